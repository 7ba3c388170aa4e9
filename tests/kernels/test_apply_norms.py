"""RMSNorm's certified gradients in the job's file: the forward pass stays torch's, the step computes the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightshift.kernels.ops.rows.summing_gradient_family import Backward
from nightshift.kernels.problem import Case
from tests.kernels.applied_records import made_of
from tests.kernels.test_apply import run

SCRIPT = Path(__file__).parent / "applied_norms.py"


@pytest.mark.full
def test_a_norm_s_gradient_takes_the_residual_s_along_and_the_rest_stays_torch_s(tmp_path: Path) -> None:
    """Both blocks' norms become one kernel each with the sum and the casts; the last norm, behind which nothing is
    added, torch's formula again. Without the pass, in eager code and after a demotion torch computes all of it."""
    record = made_of(Backward(), "rmsnorm_cast_backward", Case.of("float16", m=12, n=64))
    seen = run("folded", tmp_path, [record], script=SCRIPT)
    assert seen["applied"] == [[name, "rmsnorm_cast_backward"] for name in ("last", "norms.0", "norms.1")]
    ours = [(graph["rmsnorm_cast_backward"], graph["rmsnorm_gradient"]) for graph in seen["graphs"]]
    assert ours == [(0, 0), (2, 0), (0, 3), (0, 0)]  # torch alone, folded, without the pass, demoted
    casts = [graph["casts"] for graph in seen["graphs"]]
    assert casts[1] == casts[0] - 3, "of two norms' gradients, and of the sum between the blocks"
    assert seen["equal"] == [True] * 4
    assert (seen["calls"], seen["checks"], seen["wrong"], seen["eager_calls"]) == (2, 2, 0, 0)
    assert seen["restored"] == 3
    assert seen["taken_back"]


@pytest.mark.full
def test_a_compiler_may_launch_the_norm_s_gradient_itself(tmp_path: Path) -> None:
    """Traced without a GPU: closed it is one operator, open its two launches with what these write, and nothing of
    either once the kernel is demoted; the pass's name for caches on disk says which kernel it puts in."""
    record = made_of(Backward(), "rmsnorm_cast_backward", Case.of("float16", m=12, n=64))
    seen = run("opened", tmp_path, [record], interpret="0", script=SCRIPT)
    nothing = {"launches": [], "ours": []}
    assert seen["closed"] == [nothing, {"launches": [], "ours": ["nightshift.rmsnorm_cast_backward.default"]}]
    assert seen["open"] == [nothing, {"launches": [["out", "narrow", "part"], ["out"]], "ours": []}]
    assert seen["demoted"] == [nothing, nothing]
    assert seen["renamed"]


@pytest.mark.full
def test_a_gradient_needs_no_certified_forward_pass(tmp_path: Path) -> None:
    """`rmsnorm_backward` alone is used, eager and compiled; the forward pass is torch's to the bit."""
    record = made_of(Backward(), "rmsnorm_backward", Case.of("float32", m=12, n=64))
    seen = run("gradients", tmp_path, [record], script=SCRIPT)
    assert seen["applied"] == ["rmsnorm_backward"] * 3
    assert seen["equal"] == [True, True]
    assert seen["forward_bits"]
    assert (seen["calls"], seen["wrong"]) == ([3, 6], 0)
    assert seen["fallbacks"] == {"rmsnorm_backward: dtype": 1}
