"""What the race beside tutorials reads of others' files, and what it calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks import kernels_peers
from benchmarks.kernels_peers import flex, peers_of, taught

TUTORIAL = """import torch


def helper(x):
    return x.float()


class Norm:
    @staticmethod
    def apply(x, shape, weight, bias, eps):
        return torch.nn.functional.layer_norm(helper(x), shape, weight, bias, eps)


layer_norm = Norm.apply
raise SystemExit("its own tests")
"""


def test_a_tutorial_runs_up_to_what_it_teaches_and_no_further(tmp_path: Path) -> None:
    (tmp_path / "05-layer-norm.py").write_text(TUTORIAL)
    x, weight, bias = torch.randn(3, 8), torch.randn(8), torch.randn(8)
    found = peers_of("layernorm", tmp_path)["tutorial"](x, weight, bias, 1e-5)
    assert torch.equal(found, F.layer_norm(x, (8,), weight, bias, 1e-5))
    with pytest.raises(ValueError, match="defines no attention"):
        taught(tmp_path / "05-layer-norm.py", "attention")
    missing = peers_of("softmax", tmp_path)["tutorial"]
    with pytest.raises(FileNotFoundError):
        missing(x)


@pytest.mark.filterwarnings("ignore::UserWarning")  # it is not compiled here
def test_flex_attention_is_causal(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(kernels_peers, "_flex", lambda: flex_attention)
    q, k, v = (torch.randn(1, 2, 128, 16) for _ in range(3))
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(flex(q, k, v), want, atol=1e-5)
