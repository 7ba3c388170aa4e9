"""Weights' copies in the job's file: the same training to the bit, and who writes a weight is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightshift.kernels.ops.adamw.flat_family import Flat
from nightshift.kernels.problem import Case
from tests.kernels.applied_records import made_of
from tests.kernels.test_apply import run


@pytest.mark.full
@pytest.mark.parametrize(("problem", "calls", "checks"), [("adamw_many", 10, 2), ("adamw_cast", 20, 5)])
def test_layers_that_read_the_optimiser_s_copies_train_as_torch_does(
    tmp_path: Path, problem: str, calls: int, checks: int
) -> None:
    """One launch for all parameters, or one for each large weight. The course is torch's to the bit, eager and
    compiled, and where weights are written; hidden writes end it. A CUDA graph reads copies where they lie, and
    does not record the check that they are fresh."""
    record = made_of(Flat(), problem, Case.of("float16", n=1024))
    seen = run("copied", tmp_path, [record], script=Path(__file__).parent / "applied_copies.py")
    for name in ("plain", "compiled", "scaled", "scaled compiled"):
        assert seen[name]["gap"] == 0.0, name
        assert (seen[name]["disabled"], seen[name]["fallbacks"]) == ("", {})
        assert seen[name]["calls"] == calls  # of ten steps
    assert all(seen[name]["keys"] and seen[name]["back"] for name in ("plain", "compiled", "hidden"))
    assert (seen["plain"]["reads"], seen["scaled"]["reads"]) == (18, 17)  # not in the first step, nor when scaled
    assert (seen["compiled"]["reads"], seen["scaled compiled"]["reads"]) == (1, 1)  # one region, with its fence
    assert seen["else"] == {"zero": 0.0, "reads": 0, "again": 4}  # other weights, and no autocast: torch's
    assert seen["graphs"] == {"static": ["unguarded"] * 2, "fence": ["Tag.cudagraph_unsafe"]}
    assert (seen["twice"]["reads"], seen["twice"]["gradients"]) == (2, 6), "two layers read copies in that step too"
    assert seen["twice"]["gap"] < 5e-3, "a penalty on gradients is differentiated as torch does it"
    assert "nobody counts" in seen["hidden"]["disabled"]
    assert (seen["checks"], seen["wrong"]) == (checks, 0)
