"""What the race beside tutorials reads of others' files, and what it calls."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

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


def test_of_cutlass_s_operators_the_fastest_of_the_largest_is_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a trial for each form of operands. What it cannot do is a reason, and ends no race."""
    told: list[Any] = []

    def run(asked: Any, compiled_artifact: int, **rest: Any) -> None:
        told.append(compiled_artifact)
        a, b, out = asked
        clock[0] += abs(compiled_artifact - 5)
        torch.mm(a, b, out=out)

    def operator(tile: int) -> Any:
        design = SimpleNamespace(tile_shape=(tile, 1, 1))
        return SimpleNamespace(metadata=SimpleNamespace(design=design), compile=lambda asked: tile, run=run)

    stub, clock = ModuleType("cutlass.operators"), [0.0]
    vars(stub).update(
        GemmArguments=lambda a, b, out, accumulator_type: (a, b, out),
        get_operators=lambda asked, target_sm: [operator(n) for n in range(1, 12)] if target_sm == "90a" else [],
    )
    monkeypatch.setitem(sys.modules, "cutlass", SimpleNamespace(operators=stub))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(kernels_peers.time, "perf_counter", lambda: clock[0])
    peer, a, b = peers_of("matmul", Path())["cutlass"], torch.randn(4, 5), torch.randn(5, 6)
    assert torch.equal(peer(a, b), a @ b)
    assert set(told) == set(range(4, 12)), "the eight largest"
    told.clear()
    peer(a, b)
    assert told == [5]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    with pytest.raises(RuntimeError, match="CUTLASS: "):
        peer(b, torch.randn(6, 7))
