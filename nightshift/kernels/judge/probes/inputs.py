"""What a candidate will be asked: the staged plan of probes, as data.

A plan is drawn from a secret, so a candidate cannot know its shapes, values, order or count. Edge cases are always
in it (size 1, primes, sizes beside a power of two, empty, non-contiguous, misaligned), and so is every distribution
of values in every dtype, and numbers among the inputs that are not the usual ones: what is refused for those must
not depend on the secret. The rest is random inside the candidate's declared domain. Stages are ordered by cost: the
first failure ends the judging.

A probe's `seeds` are calls made one after the other in the same buffers, with fresh values each: a repeated seed
must give the same output again (determinism, no state kept), and every output is held against its own oracle. A
seed's twin (`kernels.draw.TWIN`) differs from it in one element of each tensor.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nightshift.kernels.candidate import PARTS, REPEATED, Candidate
from nightshift.kernels.draw import TWIN, mix
from nightshift.kernels.judge.probes.sizes import (
    Scope,
    admits,
    between,
    beyond,
    of_each_residue,
    of_equal_axes,
    of_one_count,
    of_whole_tiles,
    rows,
    sweep,
    within,
)
from nightshift.kernels.problem import Case, Problem, kind

Stage = Literal["smoke", "sweep", "values", "determinism", "accuracy", "integrity"]
_GRADIENT_BYTES = 1 << 29
"""Timed cases beyond this are examined forward only: float64 gradients take many times the bytes."""


@dataclass(frozen=True)
class Probe:
    """Calls to make and hold against the oracle.

    case.layout tells how the input tensors lie in memory. backward: also ask for gradients, with outputs' gradients
    drawn from the seed. upstream: how those lie in memory (a layout, or "expanded": one row, repeated by stride 0),
    "some_zero": half of their rows are zero, as those of ignored tokens; "scaled": as large as a scaled loss's; or
    "infinite": some are not finite, and what they reach must not look as if they were.
    placed: only where NaN and infinities stand is compared, not the finite values' errors.
    overlapping: among other calls of the same entry, on a second stream; of a backward probe, another forward pass
    lies between its own and the backward pass, as of a network's next layer. same: inputs of one shape and dtype
    are one tensor; not asked where no two are alike. only: −1, or which output alone has a gradient (the others
    have none, as of a result that a loss does not use). twice: the backward pass runs twice over one forward pass,
    each with upstream gradients of its own, and the second's gradients are compared.
    required: the inputs ask for gradients, and what the forward pass then returns is compared.
    alone: −1, or which of the problem's gradients is the only one asked for. under_load: while other work runs on
    the device. on_stream: on a stream of its own, right behind the copies that bring the inputs. rows: 0, or the
    number of leading rows to compare (for outputs too large for a float64 oracle): see
    `kernels.judge.probes.correctness.expected`.
    """

    stage: Stage
    case: Case
    distribution: str
    seeds: tuple[int, ...]
    backward: bool = False
    under_load: bool = False
    rows: int = 0
    upstream: str = "contiguous"
    alone: int = -1
    on_stream: bool = False
    overlapping: bool = False
    same: bool = False
    placed: bool = False
    only: int = -1
    twice: bool = False
    required: bool = False

    def gradients(self, problem: Problem) -> tuple[int, ...]:
        """Positions of the inputs whose gradients a backward probe asks for."""
        return problem.gradients if self.alone < 0 else problem.gradients[self.alone : self.alone + 1]

    def to_json(self) -> dict[str, Any]:
        """Seeds as text: they have 64 bits, more than JSON's numbers hold."""
        return {
            "stage": self.stage,
            "case": self.case.to_json(),
            "distribution": self.distribution,
            "seeds": [f"{seed:016x}" for seed in self.seeds],
            "backward": self.backward,
            "under_load": self.under_load,
            "rows": self.rows,
            "upstream": self.upstream,
            "alone": self.alone,
            "on_stream": self.on_stream,
            "overlapping": self.overlapping,
            "same": self.same,
            "placed": self.placed,
            "only": self.only,
            "twice": self.twice,
            "required": self.required,
        }


INTERPRETER = Scope(1 << 16, 1 << 13, 96, 320, sweep_random=2, benchmark=False, huge=False, repeats=3)
CPU = Scope(1 << 21, 1 << 18, 1 << 20, 1 << 40, sweep_random=4, benchmark=False, huge=False, repeats=4)
QUICK_GPU = Scope(1 << 27, 1 << 22, 1 << 24, 1 << 40, sweep_random=4, benchmark=True, huge=False, repeats=4)
FULL_GPU = Scope(1 << 29, 1 << 22, 1 << 24, 1 << 40, sweep_random=12, benchmark=True, huge=True, repeats=16)


def plan(problem: Problem, candidate: Candidate, secret: bytes, scope: Scope) -> tuple[Probe, ...]:
    """The probes in the order in which they are to be run; empty where the declared domain admits no case."""
    rng = random.Random(secret + problem.name.encode())
    admitted = [case for case in sweep(problem, candidate.domain, rng, scope) if admits(problem, candidate, case)]
    if not admitted:
        return ()

    def unfit(case: Case) -> float:
        """Octaves from the wanted bytes; where rows are dear, few of them count for as much as the right bytes."""
        octaves = abs(math.log2((problem.compulsory_bytes(case) + 1) / scope.base_bytes))
        empty = any(case[axis.name] == 0 for axis in problem.axes)
        single = sum(case[axis.name] == 1 for axis in problem.axes)  # one row hides what is wrong between rows
        many = math.log2(1 + rows(problem, case.sizes)) if scope.max_rows < 1 << 20 else 0.0
        return octaves + many + 6.0 * single + (100.0 if empty else 0.0)

    base = min(admitted, key=unfit)
    plain = base.with_(layout="contiguous")
    base = plain if admits(problem, candidate, plain) else base
    bases = [case for dtype in problem.dtypes if (case := _of_dtype(problem, candidate, base, dtype)) is not None]
    others = _other_numbers(problem, candidate, bases)
    probes = [Probe("smoke", bases[0], "normal", (_seed(rng),))]
    probes += [Probe("sweep", case, "normal", (_seed(rng),)) for case in admitted]
    probes += [Probe("sweep", c, "normal", (_seed(rng),)) for c in of_each_residue(problem, candidate, rng, scope)]
    wide = _widest(problem, candidate, admitted, scope)
    parted = list(between(problem, candidate, rng, scope))
    probes += [Probe("sweep", case, "normal", (_seed(rng),)) for case in parted]
    probes += [Probe("sweep", case, "normal", (_seed(rng),)) for case in of_one_count(problem, candidate, bases[0])]
    for cases in (of_equal_axes, of_whole_tiles):
        probes += [Probe("sweep", c, "normal", (_seed(rng),)) for c in cases(problem, candidate, rng, scope)]
    for layout, parts in PARTS.items():
        if not set(parts) <= set(problem.layouts):
            continue
        for case in dict.fromkeys((*(bases if scope.benchmark else [rng.choice(bases)]), *wide)):
            mixed = case.with_(layout=layout)
            written = layout == REPEATED and candidate.mutates  # an element that is many cannot be written
            if admits(problem, candidate, mixed) and not written:
                probes.append(Probe("sweep", mixed, "normal", (_seed(rng),)))
    for name in problem.distributions:
        chosen = [*bases, *(wide if name in ("large_mean", "large_negative", "nan") else ())]
        chosen += _long(problem, candidate, parted) if name in ("masked_ends", "ramps") else []
        chosen += others if name in ("normal", "near_constant", "tiny") else ()
        probes += [Probe("values", case, name, tuple(_seed(rng) for _ in range(calls_of(name)))) for case in chosen]
    if not candidate.mutates:
        probes.append(Probe("values", rng.choice(bases), "normal", (_seed(rng),), same=True))
    seed = _seed(rng)
    probes.append(Probe("determinism", rng.choice(bases), "normal", (seed,) * scope.repeats))
    probes.append(Probe("determinism", rng.choice(bases), "normal", (seed,) * scope.repeats, under_load=True))
    if not candidate.mutates and candidate.language != "cuda":  # whose launches the judge itself makes
        probes.append(Probe("determinism", rng.choice(bases), "normal", (_seed(rng),), on_stream=True))
        for case in dict.fromkeys((rng.choice(bases), *wide)):
            probes.append(Probe("determinism", case, "normal", (_seed(rng),) * 2, overlapping=True))
    if problem.gradients and candidate.differentiable:
        probes += [Probe("accuracy", case, "normal", (_seed(rng),), required=True) for case in bases]
        probes += [Probe("accuracy", case, "normal", (_seed(rng),), backward=True) for case in (*bases, *others)]
        uneven = [c for c in of_each_residue(problem, candidate, rng, scope) if c.layout == "contiguous"]
        probes += [Probe("accuracy", case, "normal", (_seed(rng),), backward=True) for case in uneven]
        steep = [name for name in ("large_mean", "large_negative", "zero_rows") if name in problem.distributions]
        for name in steep:  # what overflows or cancels in the backward pass only
            for case in bases:  # in 32 bits eager's error there is no measure, but what is finite must stay so
                wide32 = case.element_bytes > 2
                probes.append(Probe("accuracy", case, name, (_seed(rng),), backward=True, placed=wide32))
        for upstream in ("expanded", "transposed", "padded", "some_zero", "scaled", "infinite"):
            probes += [
                Probe("accuracy", c, "normal", (_seed(rng),), backward=True, upstream=upstream) for c in bases
            ]
        for layout in problem.layouts:  # what the backward pass has kept of the inputs lies as they do
            turned = [case.with_(layout=layout) for case in bases if layout != "contiguous"]
            turned = [case for case in turned if admits(problem, candidate, case)]
            if turned:
                probes.append(Probe("accuracy", rng.choice(turned), "normal", (_seed(rng),), backward=True))
        probes += [
            Probe("accuracy", case, "ties", (_seed(rng),), backward=True)  # weights of zero, too
            for case in (bases if "ties" in problem.distributions else ())
        ]
        probes.append(Probe("accuracy", rng.choice(bases), "normal", (_seed(rng),), backward=True, twice=True))
        probes.append(
            Probe("accuracy", rng.choice(bases), "normal", (_seed(rng),), backward=True, overlapping=True)
        )
        for only in range(problem.outputs) if problem.outputs > 1 else ():
            probes.append(Probe("accuracy", rng.choice(bases), "normal", (_seed(rng),), backward=True, only=only))
        for alone in range(len(problem.gradients)) if len(problem.gradients) > 1 else ():
            probes.append(Probe("accuracy", rng.choice(bases), "normal", (_seed(rng),), backward=True, alone=alone))
        again = (_seed(rng),) * scope.repeats
        probes.append(Probe("accuracy", rng.choice(bases), "normal", again, backward=True, under_load=True))
    if scope.benchmark:
        far = beyond(problem, candidate, rng, scope)
        probes += [Probe("accuracy", case, "normal", (_seed(rng),)) for case in far]
        timed = [case for case in problem.cases if admits(problem, candidate, case)]
        probes += [Probe("accuracy", case, "normal", (_seed(rng),)) for case in timed]
        if problem.gradients and candidate.differentiable:
            small = [case for case in timed if problem.compulsory_bytes(case) <= _GRADIENT_BYTES]
            probes += [Probe("accuracy", case, "normal", (_seed(rng),), backward=True) for case in small]
    if scope.huge:
        large = [case for case in problem.huge if admits(problem, candidate, case)]
        probes += [Probe("accuracy", case, "normal", (_seed(rng),), rows=64) for case in large]
    larger = [case for case in admitted if all(case[axis.name] > 1 for axis in problem.axes)]
    for case in [*bases, *rng.sample(larger, min(1, len(larger)))]:
        a, b, c = _seed(rng), _seed(rng), _seed(rng)
        probes.append(Probe("integrity", case, "normal", (a, b, a, c, b, b + TWIN, b, a + TWIN)))
    return tuple(probes)


def _widest(problem: Problem, candidate: Candidate, admitted: Sequence[Case], scope: Scope) -> list[Case]:
    """The case with the longest last axis, contiguous, in every dtype: kernels often take another path there, whose
    rounding 16 bits may hide. Of many rows, so that eager's error is no luck; and for a GPU only, because an
    interpreter's time does not allow it."""
    last = problem.axes[-1].name
    plain = (case.with_(layout="contiguous") for case in admitted if all(case.sizes.values()))
    whole = [case for case in plain if admits(problem, candidate, case)]
    if not whole or not scope.benchmark:
        return []
    wide = max(whole, key=lambda case: case[last])
    for axis in problem.axes[:-1]:
        while problem.compulsory_bytes(wide) < scope.base_bytes:
            more = Case.of(wide.dtype, wide.layout, **{**wide.sizes, axis.name: 2 * wide[axis.name]})
            if more[axis.name] > axis.high or not admits(problem, candidate, more):
                break
            wide = more
    return [c for dtype in problem.dtypes if (c := _of_dtype(problem, candidate, wide, dtype)) is not None]


def _long(problem: Problem, candidate: Candidate, parted: Sequence[Case]) -> list[Case]:
    """Of every dtype a case of a few rows with 2,048 to 4,096 columns, contiguous: rows of several blocks."""
    last = problem.axes[-1].name
    rows_of = {axis.name: max(4 * axis.multiple, axis.low) for axis in problem.axes[:-1]}
    made = [
        Case.of(dtype, "contiguous", **{**case.sizes, **{name: max(n, case[name]) for name, n in rows_of.items()}})
        for case in [c for c in parted if 2048 <= c[last] <= 4096][-1:]
        for dtype in problem.dtypes
    ]
    return [case for case in made if admits(problem, candidate, case)]


def _other_numbers(problem: Problem, candidate: Candidate, bases: Sequence[Case]) -> list[Case]:
    """Of every dtype and every kind of numbers among the inputs that are not those of its base the nearest case,
    where there is one: the usual and the unusual ones are in every plan."""
    found: list[Case] = []
    axes = [
        axis for axis in (within(axis, candidate.domain) for axis in reversed(problem.axes)) if axis is not None
    ]
    for base in bases if problem.numbers else ():
        near = [
            Case.of(
                base.dtype,
                base.layout,
                **{**base.sizes, axis.name: (base[axis.name] // cut // axis.multiple + step) * axis.multiple},
            )
            for cut in (1, 4, 16, 64)
            for step in range(65)
            for axis in axes
        ]
        for other in sorted({*range(problem.numbers + 1)} - {kind(base, problem.numbers)}):
            fit = (c for c in near if kind(c, problem.numbers) == other and admits(problem, candidate, c))
            found += itertools.islice(fit, 1)
    return found


def calls_of(distribution: str) -> int:
    """How many calls show a distribution. Where outputs hold NaN two, whose buffers hold NaN and something else
    before them: what is not written must not pass for a NaN that belongs there."""
    return 2 if distribution in ("nan", "masked", "masked_ends", "masked_rows", "infinite", "zeros_by_nan") else 1


def _seed(rng: random.Random) -> int:
    return mix(rng.getrandbits(64))


def _of_dtype(problem: Problem, candidate: Candidate, case: Case, dtype: str) -> Case | None:
    other = case.with_(dtype=dtype)
    return other if admits(problem, candidate, other) else None
