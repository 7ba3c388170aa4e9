"""What a verdict does not answer for, in sentences: they stand in the verdict and in its certificate.

A judge that lists only what it asked lets a reader believe the rest. Each sentence follows from what this verdict
did or left out; what no verdict of this judge can say is listed with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.probes.examine import Examination
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
    exact: Mapping[str, Any],
) -> tuple[str, ...]:
    """Of a candidate that was found fit. `probed`: every case that was put to it; `isolation`: layer → in force;
    `exact`: `exactness`."""
    said = ["sizes, dtypes, layouts and values other than those drawn (domain.probed), and other GPUs"]
    if "static" not in stages:
        said.append("the source was not read")
    if "sanitizer" not in stages:
        said.append("races, and reads outside of buffers that change no output: compute-sanitizer did not run")
    if "replay" not in stages and candidate.language == "triton":
        said.append("that its launches alone make its outputs: they were not replayed without its Python")
    said += _by_error(candidate, problem, sorted({case.dtype for case in probed}), exact)
    if unplaced := exact.get("unplaced", {}):
        where = ", ".join(f"{name}: {count}" for name, count in unplaced.items())
        said.append(f"placement of NaN and infinity in {sum(unplaced.values())} elements, where references differ")
        said[-1] += f" ({where})"
    if problem.gradients and not candidate.differentiable:
        said.append("gradients: the problem has some, the candidate declares none")
    elif problem.gradients:
        said.append("gradients of gradients (a backward pass of a kernel's own is constant to a second one)")
        said[-1] += ", and gradients bit for bit: they are judged by their error"
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


def exactness(candidate: Candidate, problem: Problem, found: Examination) -> dict[str, Any]:
    """What a verdict says about bits. compared: by rule and dtype, how many questions with one right answer were
    answered exactly (of "mantissa": within float32's bound). doubted: why a question that was meant to have one was
    judged by its error. everywhere: the operation has one answer to every question. unplaced: how many elements
    were not held to be finite, NaN or infinite, as the references differ there."""
    return {
        "declared": candidate.exact,
        "everywhere": problem.exact,
        "compared": dict(sorted(found.bits.items())),
        "doubted": dict(sorted(found.doubts.items())),
        "unplaced": dict(sorted(found.unplaced.items())),
    }


def _by_error(candidate: Candidate, problem: Problem, dtypes: Sequence[str], exact: Mapping[str, Any]) -> list[str]:
    """What was judged by its error alone, where one element may be off by a unit in the last place."""
    if problem.exact:
        return []
    if not candidate.exact:
        return ["outputs bit for bit: the candidate declares itself not exact"]
    compared = exact.get("compared", {})
    bits = {name.split()[1] for name in compared if not name.startswith("mantissa")}
    dtypes = [dtype for dtype in dtypes if dtype not in bits]
    said = [f"outputs bit for bit in {', '.join(dtypes)}: no probe there has one right answer"] if dtypes else []
    some = sorted({output for rule in problem.rules for output in rule.outputs})
    if some:
        said.append(f"outputs other than {', '.join(map(str, some))} bit for bit: honest kernels round them apart")
    return [*said, *(f"outputs bit for bit, {name}: {why}" for name, why in exact.get("doubted", {}).items())]
