"""What a candidate is asked in one go: a probe, and the ground on which a plan's rules stand."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.draw import mix
from nightshift.kernels.judge.probes.sizes import Scope, admits, between, of_whole_tiles, rows, within
from nightshift.kernels.problem import Case, Problem, kind

Stage = Literal["smoke", "sweep", "values", "determinism", "accuracy", "exact", "integrity"]


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
    `kernels.judge.probes.correctness.expected`. bound: 0.0, or the largest relative error allowed (a mantissa
    probe). distribution: one of `kernels.draw.DISTRIBUTIONS`, or the name of one of the problem's rules.
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
    bound: float = 0.0

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
            "bound": self.bound,
        }


@dataclass
class Ground:
    """What every rule of a plan knows. rng: the plan's chance, which rules use up one after the other.

    secret: what it follows from. admitted: the swept cases. bases: of every dtype the case that most probes are
    about.
    """

    problem: Problem
    candidate: Candidate
    rng: random.Random
    scope: Scope
    admitted: Sequence[Case]
    secret: bytes = b""

    @property
    def differentiates(self) -> bool:
        return bool(self.problem.gradients) and self.candidate.differentiable

    def seed(self) -> int:
        return mix(self.rng.getrandbits(64))

    def admits(self, case: Case) -> bool:
        return admits(self.problem, self.candidate, case)

    def of_each_dtype(self, case: Case) -> list[Case]:
        return [other for dtype in self.problem.dtypes if self.admits(other := case.with_(dtype=dtype))]

    @cached_property
    def bases(self) -> list[Case]:
        base = min(self.admitted, key=self._unfit)
        plain = base.with_(layout="contiguous")
        return self.of_each_dtype(plain if self.admits(plain) else base)

    def _unfit(self, case: Case) -> float:
        """Octaves from the wanted bytes; where rows are dear, few of them count for as much as the right bytes."""
        octaves = abs(math.log2((self.problem.compulsory_bytes(case) + 1) / self.scope.base_bytes))
        empty = any(case[axis.name] == 0 for axis in self.problem.axes)
        single = sum(case[axis.name] == 1 for axis in self.problem.axes)  # one row hides what is wrong between rows
        many = math.log2(1 + rows(self.problem, case.sizes)) if self.scope.max_rows < 1 << 20 else 0.0
        return octaves + many + 6.0 * single + (100.0 if empty else 0.0)

    @cached_property
    def others(self) -> list[Case]:
        return _other_numbers(self.problem, self.candidate, self.bases)

    @cached_property
    def wide(self) -> list[Case]:
        """The case with the longest last axis, contiguous, in every dtype: kernels often take another path there,
        whose rounding 16 bits may hide. Of many rows, so that eager's error is no luck; and for a GPU only, because
        an interpreter's time does not allow it."""
        last = self.problem.axes[-1].name
        plain = (case.with_(layout="contiguous") for case in self.admitted if all(case.sizes.values()))
        whole = [case for case in plain if self.admits(case)]
        if not whole or not self.scope.benchmark:
            return []
        wide = max(whole, key=lambda case: case[last])
        for axis in self.problem.axes[:-1]:
            while self.problem.compulsory_bytes(wide) < self.scope.base_bytes:
                more = Case.of(wide.dtype, wide.layout, **{**wide.sizes, axis.name: 2 * wide[axis.name]})
                if more[axis.name] > axis.high or not self.admits(more):
                    break
                wide = more
        return self.of_each_dtype(wide)

    @cached_property
    def parted(self) -> list[Case]:
        """Sizes between powers of two; drawn when a rule first asks."""
        return list(between(self.problem, self.candidate, self.rng, self.scope))

    @cached_property
    def tiles(self) -> list[Case]:
        """Sizes that need no mask; drawn when a rule first asks."""
        return of_whole_tiles(self.problem, self.candidate, self.rng, self.scope)

    @property
    def long(self) -> list[Case]:
        """Of every dtype a case of a few rows with 2,048 to 4,096 columns, contiguous: rows of several blocks."""
        axes = self.problem.axes
        rows_of = {axis.name: max(4 * axis.multiple, axis.low) for axis in axes[:-1]}
        made = [
            Case.of(
                dtype, "contiguous", **{**case.sizes, **{name: max(n, case[name]) for name, n in rows_of.items()}}
            )
            for case in [c for c in self.parted if 2048 <= c[axes[-1].name] <= 4096][-1:]
            for dtype in self.problem.dtypes
        ]
        return [case for case in made if self.admits(case)]

    @cached_property
    def timed(self) -> list[Case]:
        return [case for case in self.problem.cases if self.admits(case)]


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
