"""What power and scheduling training share: hashes, normalisers and networks mean the same for both."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nightshift.controllers.lab.learnable import environment_sha256, exported, normaliser

torch = pytest.importorskip("torch", reason="training needs the extra rl")


def test_the_environment_has_another_hash_once_one_of_its_files_changed(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(name)
    before = environment_sha256(("a.py", "b.py"), tmp_path)
    assert before == environment_sha256(("a.py", "b.py"), tmp_path)
    (tmp_path / "b.py").write_text("changed")
    assert environment_sha256(("a.py", "b.py"), tmp_path) != before


def test_a_long_tail_does_not_widen_a_robust_normaliser_and_a_constant_never_divides_by_zero() -> None:
    seen = np.column_stack([np.random.default_rng(0).normal(size=1000), np.full(1000, 7.0)])
    seen[0, 0] = 1e6
    assert normaliser(seen, robust=True).scale[0] == pytest.approx(1.0, rel=0.1)
    assert normaliser(seen).scale[0] > 1e4
    assert np.isfinite(normaliser(seen)(seen)).all()


def test_an_exported_network_answers_as_torch_does_whatever_its_depth() -> None:
    nn = torch.nn
    torch.manual_seed(0)
    hidden = nn.Sequential(*[part for n, m in ((3, 8), (8, 8), (8, 8)) for part in (nn.Linear(n, m), nn.Tanh())])
    body = nn.Module()
    body.policy_net = hidden
    policy = nn.Module()
    policy.mlp_extractor, policy.action_net = body, nn.Linear(8, 4)
    seen = np.random.default_rng(1).normal(size=(5, 3))
    plain = normaliser(np.array([[-1.0] * 3, [1.0] * 3]))
    mine = exported(SimpleNamespace(policy=policy), plain).logits(seen)
    theirs = policy.action_net(hidden(torch.tensor(seen, dtype=torch.float32))).detach().numpy()
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
