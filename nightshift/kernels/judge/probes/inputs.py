"""What a candidate will be asked: the staged plan of probes, as a table of small rules.

A plan is drawn from a secret, so a candidate cannot know its shapes, values, order or count. Each of `RULES`, in
their order, adds probes for one kind of fault. Edge cases are always asked (size 1, primes, sizes beside a power of
two, empty, non-contiguous, misaligned), and so is every distribution of values in every dtype, and numbers among
the inputs that are not the usual ones: what is refused for those must not depend on the secret. The rest is random
inside the candidate's declared domain. Stages are ordered by cost: the first failure ends the judging.

A probe's `seeds` are calls made one after the other in the same buffers, with fresh values each: a repeated seed
must give the same output again (determinism, no state kept), and every output is held against its own oracle. A
seed's twin (`kernels.draw.TWIN`) differs from it in one element of each tensor.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from nightshift.kernels.candidate import PARTS, REPEATED, Candidate
from nightshift.kernels.draw import TWIN, mix
from nightshift.kernels.judge.probes.exact import mantissa_bound
from nightshift.kernels.judge.probes.sizes import (
    Scope,
    SizeSpace,
    between,
    beyond,
    of_each_residue,
    of_equal_axes,
    of_one_count,
    of_whole_tiles,
    rows,
    sweep,
)
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


@dataclass
class Ground(SizeSpace):
    """What every rule of a plan knows. rng: the plan's chance, which rules use up one after the other.

    secret: what it follows from. admitted: the swept cases. bases: of every dtype the case that most probes are
    about.
    """

    admitted: Sequence[Case]
    secret: bytes = b""

    @property
    def differentiates(self) -> bool:
        return bool(self.problem.gradients) and self.candidate.differentiable

    def seed(self) -> int:
        return mix(self.rng.getrandbits(64))

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
        return _other_numbers(self)

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
        return list(between(self))

    @cached_property
    def tiles(self) -> list[Case]:
        """Sizes that need no mask; drawn when a rule first asks."""
        return of_whole_tiles(self)

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


def _other_numbers(on: Ground) -> list[Case]:
    """Of every dtype and every kind of numbers among the inputs that are not those of its base the nearest case,
    where there is one: the usual and the unusual ones are in every plan."""
    found: list[Case] = []
    numbers = on.problem.numbers
    for base in on.bases if numbers else ():
        near = [
            Case.of(
                base.dtype,
                base.layout,
                **{**base.sizes, axis.name: (base[axis.name] // cut // axis.multiple + step) * axis.multiple},
            )
            for cut in (1, 4, 16, 64)
            for step in range(65)
            for axis in reversed(on.axes)
        ]
        for other in sorted({*range(numbers + 1)} - {kind(base, numbers)}):
            found += itertools.islice((c for c in near if kind(c, numbers) == other and on.admits(c)), 1)
    return found


INTERPRETER = Scope(1 << 16, 1 << 13, 96, 320, sweep_random=2, benchmark=False, huge=False, repeats=3)
CPU = Scope(1 << 21, 1 << 18, 1 << 20, 1 << 40, sweep_random=4, benchmark=False, huge=False, repeats=4)
QUICK_GPU = Scope(1 << 27, 1 << 22, 1 << 24, 1 << 40, sweep_random=4, benchmark=True, huge=False, repeats=4)
FULL_GPU = Scope(1 << 29, 1 << 22, 1 << 24, 1 << 40, sweep_random=12, benchmark=True, huge=True, repeats=16)


def plan(problem: Problem, candidate: Candidate, secret: bytes, scope: Scope) -> tuple[Probe, ...]:
    """The probes in the order in which they are to be run; empty where the declared domain admits no case."""
    if problem.probes is not None:
        return problem.probes(problem, candidate, secret, scope)
    rng = random.Random(secret + problem.name.encode())
    on = Ground(problem, candidate, rng, scope, [], secret)
    on.admitted = [case for case in sweep(on) if on.admits(case)]
    if not on.admitted:
        return ()
    made = [replace(probe, rows=probe.rows or problem.sampled_rows) for rule in RULES for probe in rule(on)]
    if all(axis.low == axis.high for axis in problem.axes):
        asked: dict[Probe, Probe] = {}
        for probe in made:
            asked.setdefault(_question(probe), probe)
        made = list(asked.values())
    return tuple(made)


def _question(probe: Probe) -> Probe:
    """What a probe asks of a problem of one size: one call on fresh values is the same in every sweep."""
    alike = len(probe.seeds) == 1 and probe.stage in ("sweep", "values", "accuracy")
    return replace(probe, stage="sweep", seeds=()) if alike else probe


# Timed cases beyond this are examined forward only: float64 gradients take many times the bytes.
_GRADIENT_BYTES = 1 << 29
Probes = Iterator[Probe]


def smoke(on: Ground) -> Probes:
    yield Probe("smoke", on.bases[0], "normal", (on.seed(),))


def swept(on: Ground) -> Probes:
    yield from (Probe("sweep", case, "normal", (on.seed(),)) for case in on.admitted)


def residues(on: Ground) -> Probes:
    cases = of_each_residue(on)
    yield from (Probe("sweep", case, "normal", (on.seed(),)) for case in cases)


def between_powers(on: Ground) -> Probes:
    yield from (Probe("sweep", case, "normal", (on.seed(),)) for case in on.parted)


def one_count(on: Ground) -> Probes:
    cases = of_one_count(on, on.bases[0])
    yield from (Probe("sweep", case, "normal", (on.seed(),)) for case in cases)


def equal_axes(on: Ground) -> Probes:
    cases = of_equal_axes(on)
    yield from (Probe("sweep", case, "normal", (on.seed(),)) for case in cases)


def whole_tiles(on: Ground) -> Probes:
    yield from (Probe("sweep", case, "normal", (on.seed(),)) for case in on.tiles)


def mixed_layouts(on: Ground) -> Probes:
    for layout, parts in PARTS.items():
        if not set(parts) <= set(on.problem.layouts):
            continue
        for case in dict.fromkeys((*(on.bases if on.scope.benchmark else [on.rng.choice(on.bases)]), *on.wide)):
            mixed = case.with_(layout=layout)
            written = layout == REPEATED and on.candidate.mutates  # an element that is many cannot be written
            if on.admits(mixed) and not written:
                yield Probe("sweep", mixed, "normal", (on.seed(),))


def distributions(on: Ground) -> Probes:
    for name in on.problem.distributions:
        chosen = [*on.bases, *(on.wide if name in ("large_mean", "large_negative", "nan") else ())]
        chosen += on.long if name in ("masked_ends", "ramps") else []
        chosen += on.others if name in ("normal", "near_constant", "tiny") else ()
        yield from (Probe("values", c, name, tuple(on.seed() for _ in range(calls_of(name)))) for c in chosen)


def one_tensor(on: Ground) -> Probes:
    if not on.candidate.mutates:
        yield Probe("values", on.rng.choice(on.bases), "normal", (on.seed(),), same=True)


def repeated(on: Ground) -> Probes:
    seed = on.seed()
    yield Probe("determinism", on.rng.choice(on.bases), "normal", (seed,) * on.scope.repeats)
    yield Probe("determinism", on.rng.choice(on.bases), "normal", (seed,) * on.scope.repeats, under_load=True)


def streams(on: Ground) -> Probes:
    if not on.candidate.mutates and not on.candidate.brings_launches:  # the judge makes those launches
        yield Probe("determinism", on.rng.choice(on.bases), "normal", (on.seed(),), on_stream=True)
        for case in dict.fromkeys((on.rng.choice(on.bases), *on.wide)):
            yield Probe("determinism", case, "normal", (on.seed(),) * 2, overlapping=True)


def gradients(on: Ground) -> Probes:
    if not on.differentiates:
        return
    yield from (Probe("accuracy", case, "normal", (on.seed(),), required=True) for case in on.bases)
    yield from (Probe("accuracy", case, "normal", (on.seed(),), backward=True) for case in (*on.bases, *on.others))
    cases = of_each_residue(on)
    uneven = [case for case in cases if case.layout == "contiguous"]
    yield from (Probe("accuracy", case, "normal", (on.seed(),), backward=True) for case in uneven)


def steep_gradients(on: Ground) -> Probes:
    """What overflows or cancels in the backward pass only."""
    wanted = ("large_mean", "large_negative", "zero_rows") if on.differentiates else ()
    for name in (name for name in wanted if name in on.problem.distributions):
        for case in on.bases:  # in 32 bits eager's error there is no measure, but what is finite must stay so
            wide = case.element_bytes > 2
            yield Probe("accuracy", case, name, (on.seed(),), backward=True, placed=wide)


def upstreams(on: Ground) -> Probes:
    kinds = ("expanded", "transposed", "padded", "some_zero", "scaled", "infinite") if on.differentiates else ()
    for upstream in kinds:
        for case in on.bases:
            yield Probe("accuracy", case, "normal", (on.seed(),), backward=True, upstream=upstream)


def gradient_layouts(on: Ground) -> Probes:
    """What the backward pass has kept of the inputs lies as they do."""
    for layout in on.problem.layouts if on.differentiates else ():
        turned = [case.with_(layout=layout) for case in on.bases if layout != "contiguous"]
        turned = [case for case in turned if on.admits(case)]
        if turned:
            yield Probe("accuracy", on.rng.choice(turned), "normal", (on.seed(),), backward=True)


def gradient_ties(on: Ground) -> Probes:
    """Weights of zero, too."""
    for case in on.bases if on.differentiates and "ties" in on.problem.distributions else ():
        yield Probe("accuracy", case, "ties", (on.seed(),), backward=True)


def gradient_calls(on: Ground) -> Probes:
    if not on.differentiates:
        return
    bases, rng, outputs, inputs = on.bases, on.rng, on.problem.outputs, len(on.problem.gradients)
    yield Probe("accuracy", rng.choice(bases), "normal", (on.seed(),), backward=True, twice=True)
    yield Probe("accuracy", rng.choice(bases), "normal", (on.seed(),), backward=True, overlapping=True)
    for only in range(outputs) if outputs > 1 else ():
        yield Probe("accuracy", rng.choice(bases), "normal", (on.seed(),), backward=True, only=only)
    for alone in range(inputs) if inputs > 1 else ():
        yield Probe("accuracy", rng.choice(bases), "normal", (on.seed(),), backward=True, alone=alone)
    again = (on.seed(),) * on.scope.repeats
    yield Probe("accuracy", rng.choice(bases), "normal", again, backward=True, under_load=True)


def benchmarked(on: Ground) -> Probes:
    if not on.scope.benchmark:
        return
    far = beyond(on)
    yield from (Probe("accuracy", case, "normal", (on.seed(),)) for case in (*far, *on.timed))
    for case in on.timed if on.differentiates else ():
        if on.problem.compulsory_bytes(case) <= _GRADIENT_BYTES:
            yield Probe("accuracy", case, "normal", (on.seed(),), backward=True)


def huge(on: Ground) -> Probes:
    large = [case for case in on.problem.huge if on.admits(case)] if on.scope.huge else []
    yield from (Probe("accuracy", case, "normal", (on.seed(),), rows=64) for case in large)


def of_bases(on: Ground, rng: random.Random) -> list[Case]:
    return on.bases


def of_ragged_sizes(on: Ground, rng: random.Random) -> list[Case]:
    """Of every dtype a case whose last tile is never whole, and one in the layout that it was drawn with."""
    last = on.problem.axes[-1]
    ragged = [case for case in on.admitted if all(case.sizes.values()) and case[last.name] // last.multiple % 8]
    dense = [case.with_(layout="contiguous") for case in rng.sample(ragged, len(ragged))]
    turns = [c.with_(dtype=dtype) for c, dtype in zip(dense, on.problem.dtypes, strict=False)]
    return [*(case for case in turns if on.admits(case)), *rng.sample(ragged, min(1, len(ragged)))]


def of_tiles(on: Ground, rng: random.Random) -> list[Case]:
    """A case that needs no mask."""
    return rng.sample(on.tiles, min(1, len(on.tiles)))


def of_largest(on: Ground, rng: random.Random) -> list[Case]:
    asked = (*on.admitted, *on.parted, *on.tiles)
    return on.of_each_dtype(max(asked, key=lambda case: on.problem.compulsory_bytes(case) / case.element_bytes))


def of_timed(on: Ground, rng: random.Random) -> list[Case]:
    return on.timed if on.scope.benchmark else []


EXACT_CASES: tuple[Callable[[Ground, random.Random], list[Case]], ...] = (
    of_bases,
    of_ragged_sizes,
    of_tiles,
    of_largest,
    of_timed,
)
"""Where each of a problem's own rules (`kernels.problem.RULES`) is asked."""


def exact(on: Ground) -> Probes:
    """Questions with one right answer; of a candidate that declares itself not exact only those with a bound."""
    rng, asked = random.Random(on.secret + b"exact"), set[tuple[str, Case]]()
    cases = [case for rule in EXACT_CASES for case in rule(on, rng) if all(case.sizes.values())]
    for case in cases:
        for rule in on.problem.rules if on.candidate.exact else [r for r in on.problem.rules if r.terms]:
            near = (c for c in rule.near(case) if c.dtype in on.problem.dtypes and on.admits(c))
            found = next(near, None)
            if found is None or (rule.name, found) in asked:
                continue
            asked.add((rule.name, found))
            bound = mantissa_bound(rule.terms(found), on.candidate.exact) if rule.terms else 0.0
            yield Probe("exact", found, rule.name, (mix(rng.getrandbits(64)),), bound=bound)


def integrity(on: Ground) -> Probes:
    larger = [case for case in on.admitted if all(case[axis.name] > 1 for axis in on.problem.axes)]
    for case in [*on.bases, *on.rng.sample(larger, min(1, len(larger)))]:
        a, b, c = on.seed(), on.seed(), on.seed()
        yield Probe("integrity", case, "normal", (a, b, a, c, b, b + TWIN, b, a + TWIN))


RULES: tuple[Callable[[Ground], Probes], ...] = (
    smoke,
    swept,
    residues,
    between_powers,
    one_count,
    equal_axes,
    whole_tiles,
    mixed_layouts,
    distributions,
    one_tensor,
    repeated,
    streams,
    gradients,
    steep_gradients,
    upstreams,
    gradient_layouts,
    gradient_ties,
    gradient_calls,
    benchmarked,
    huge,
    exact,
    integrity,
)


def calls_of(distribution: str) -> int:
    """How many calls show a distribution. Where outputs hold NaN two, whose buffers hold NaN and something else
    before them: what is not written must not pass for a NaN that belongs there."""
    return 2 if distribution in ("nan", "masked", "masked_ends", "masked_rows", "infinite", "zeros_by_nan") else 1
