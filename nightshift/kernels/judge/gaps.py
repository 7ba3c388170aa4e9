"""What a verdict does not answer for, in sentences: they stand in the verdict and in its certificate.

A judge that lists only what it asked lets a reader believe the rest. Each sentence follows from what this verdict
did or left out; what no verdict of this judge can say is listed with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.probes.examine import Examination
from nightshift.kernels.judge.verdict import Comparison, LeftOut
from nightshift.kernels.problem import Case, Problem

_LARGE = 1 << 31


@dataclass(frozen=True)
class Coverage:
    """What a verdict did. probed: every case that was put to the candidate; isolation: layer → in force; exact:
    `exactness`."""

    candidate: Candidate
    problem: Problem
    stages: Sequence[str]
    probed: Sequence[Case]
    comparisons: Sequence[Comparison]
    left_out: Sequence[LeftOut]
    isolation: Mapping[str, str]
    exact: Mapping[str, Any]


def _stages(on: Coverage) -> Iterator[str]:
    if "static" not in on.stages:
        yield "the source was not read"
    if "sanitizer" not in on.stages:
        yield "races, and reads outside of buffers that change no output: compute-sanitizer did not run"
    if "replay" not in on.stages and on.candidate.language == "triton":
        yield "that its launches alone make its outputs: they were not replayed without its Python"


def _bits(on: Coverage) -> Iterator[str]:
    """What was judged by its error alone, where one element may be off by a unit in the last place."""
    if on.problem.exact:
        return
    if not on.candidate.exact:
        yield "outputs bit for bit: the candidate declares itself not exact"
        return
    bits = {name.split()[1] for name in on.exact.get("compared", {}) if not name.startswith("mantissa")}
    if dtypes := sorted({case.dtype for case in on.probed} - bits):
        yield f"outputs bit for bit in {', '.join(dtypes)}: no probe there has one right answer"
    if some := sorted({output for rule in on.problem.rules for output in rule.outputs}):
        yield f"outputs other than {', '.join(map(str, some))} bit for bit: honest kernels round them apart"
    yield from (f"outputs bit for bit, {name}: {why}" for name, why in on.exact.get("doubted", {}).items())


def _placement(on: Coverage) -> Iterator[str]:
    if unplaced := on.exact.get("unplaced", {}):
        where = ", ".join(f"{name}: {count}" for name, count in unplaced.items())
        count = sum(unplaced.values())
        yield f"placement of NaN and infinity in {count} elements, where references differ ({where})"


def _gradients(on: Coverage) -> Iterator[str]:
    if on.problem.gradients and not on.candidate.differentiable:
        yield "gradients: the problem has some, the candidate declares none"
    elif on.problem.gradients:
        told = "gradients of gradients (a backward pass of a kernel's own is constant to a second one)"
        yield told + ", and gradients bit for bit: they are judged by their error"


def _indices(on: Coverage) -> Iterator[str]:
    shapes = [math.prod(max(1, n) for n in case.sizes.values()) for case in on.probed]
    if on.problem.huge and max(shapes, default=0) < _LARGE:
        yield "indices beyond 2^31"


def _timing(on: Coverage) -> Iterator[str]:
    if not on.comparisons:
        yield "speed"
    if any(c.tier == "B" for c in on.comparisons):
        yield "that no library worked while it was timed: its own process ran it (tier B)"
    if any(c.tier == "A" and not math.isfinite(c.chained_s) for c in on.comparisons):
        yield "events of less than 40 µs a launch: its calls could not be chained for the judge's clock"
    if absent := sorted({entry.baseline for entry in on.left_out if entry.missing}):
        yield f"baselines that could not run: {', '.join(absent)}"


def _user(on: Coverage) -> Iterator[str]:
    if on.isolation.get("user", "").startswith("the judge's own"):
        yield "a process that is another user's: it ran as the judge's own, behind Landlock and seccomp"


GAPS = (_stages, _bits, _placement, _gradients, _indices, _timing, _user)


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
    """Of a candidate that was found fit."""
    on = Coverage(candidate, problem, stages, probed, comparisons, left_out, isolation, exact)
    always = "sizes, dtypes, layouts and values other than those drawn (domain.probed), and other GPUs"
    return (always, *(sentence for gap in GAPS for sentence in gap(on)))


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
