"""Matrix products of a step: those that a hot one stands for, and what a search of ours can be expected to win."""

from __future__ import annotations

from nightshift.kernels.ops.problems import BY_NAME
from nightshift.kernels.problem import Case, Problem
from nightshift.kernels.profile.gradients import searches_of
from nightshift.kernels.profile.hotspots import Hotspot, Profile
from nightshift.kernels.profile.pattern import PRODUCTS

PROVEN = 0.79
"""Of the probed peak, what the best of our families' kernels reached for 2048³ in 16 bits on an H200 (28.9 µs in
`kernels/generate/known.json`). Vendors' libraries are near their peak as well: what is expected to be won beyond
this is hope, and hope waits for the rest."""


def expected_gain(found: Profile, hotspot: Hotspot, gain: float) -> float:
    """What the step gains by: a product's by what ours have been seen to reach, others' as reckoned (`gain`)."""
    if hotspot.problem not in PRODUCTS or not found.step_s > 0:
        return gain
    saved_s = max(0.0, hotspot.total_s - hotspot.floor_s / PROVEN)
    return min(gain, saved_s / (found.step_s - saved_s)) if saved_s < found.step_s else gain


def backward_of(problem: str, case: Case) -> list[tuple[Problem, Case]]:
    """(problem, case) of all that an operation is differentiated by: its gradient as one problem, or products."""
    _, *listed = searches_of(problem, case.sizes, backward=True)
    return [(BY_NAME[name], Case.of(case.dtype, case.layout, **sizes)) for name, sizes in listed if name in BY_NAME]
