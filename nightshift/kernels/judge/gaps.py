"""What a verdict does not answer for, in sentences: they stand in the verdict and in its certificate.

A judge that lists only what it asked lets a reader believe the rest. Each sentence follows from what this verdict
did or left out; what no verdict of this judge can say is listed with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.verdict import Comparison, LeftOut
from nightshift.kernels.problem import Case, Problem

_LARGE = 1 << 31


def unchecked(
    candidate: Candidate,
    problem: Problem,
    stages: Sequence[str],
    probed: Sequence[Case],
    comparisons: Sequence[Comparison],
    left_out: Sequence[LeftOut],
    isolation: Mapping[str, str],
) -> tuple[str, ...]:
    """Of a candidate that was found fit. `probed`: every case that was put to it; `isolation`: layer → in force."""
    said = ["sizes, dtypes, layouts and values other than those drawn (domain.probed), and other GPUs"]
    if "static" not in stages:
        said.append("the source was not read")
    if "sanitizer" not in stages:
        said.append("races, and reads outside of buffers that change no output: compute-sanitizer did not run")
    if "replay" not in stages and candidate.language == "triton":
        said.append("that its launches alone make its outputs: they were not replayed without its Python")
    if problem.gradients and not candidate.differentiable:
        said.append("gradients: the problem has some, the candidate declares none")
    elif problem.gradients:
        said.append("gradients of gradients: a backward pass of a kernel's own is constant to a second one")
    shapes = [math.prod(max(1, n) for n in case.sizes.values()) for case in probed]
    if problem.huge and max(shapes, default=0) < _LARGE:
        said.append("indices beyond 2^31")
    if not comparisons:
        said.append("speed")
    if any(c.tier == "B" for c in comparisons):
        said.append("that no library worked while it was timed: its own process ran it (tier B)")
    if comparisons and any(c.tier == "A" and not math.isfinite(c.chained_s) for c in comparisons):
        said.append("events of less than 40 µs a launch: its calls could not be chained for the judge's clock")
    absent = sorted({entry.baseline for entry in left_out if entry.missing})
    if absent:
        said.append(f"baselines that could not run: {', '.join(absent)}")
    if isolation.get("user", "").startswith("the judge's own"):
        said.append("a process that is another user's: it ran as the judge's own, behind Landlock and seccomp")
    return tuple(said)
