"""Which cases of a problem a plan asks: edges, sizes beside and between powers of two, and every remainder.

All of them lie in the candidate's declared domain and within what a scope affords.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from nightshift.kernels.candidate import Candidate, Domain
from nightshift.kernels.problem import Axis, Case, Problem

_OCTAVES = 14
"""Sizes between powers of two are asked below 2 to this."""
_SMALL = 8
# Rows, tokens and the like beyond this have no number of 16 bits.
_FAR = 1 << 16


@dataclass(frozen=True)
class Scope:
    """How much to ask.

    max_bytes bounds a swept case's compulsory traffic; base_bytes is about that of the case which all other stages
    use; largest bounds a randomly chosen parameter (edges are taken as they are); max_rows bounds the product of
    all parameters but the last, which is what an interpreter's time goes with; benchmark: include timed cases.
    """

    max_bytes: int
    base_bytes: int
    largest: int
    max_rows: int
    sweep_random: int
    benchmark: bool
    huge: bool
    repeats: int


def rows(problem: Problem, sizes: dict[str, int]) -> int:
    return math.prod(sizes[axis.name] for axis in problem.axes[:-1])


def within(axis: Axis, domain: Domain) -> Axis | None:
    """The axis cut to the declared bounds, or None where nothing of it is left."""
    low, high, multiple = axis.low, axis.high, axis.multiple
    edges = axis.edges
    for bound in domain.bounds:
        if bound.name == axis.name:
            multiple = math.lcm(multiple, bound.multiple)
            low, high = max(low, bound.low), min(max(high, bound.low), bound.high)
            own = (bound.low, bound.high) if bound.high < 2**53 else (bound.low,)
            edges = tuple(edge for edge in (*edges, *own) if bound.admits(edge))
    first = -(-low // multiple) * multiple
    if first > high:
        return replace(axis, edges=edges, low=edges[0], high=edges[0], multiple=1) if edges else None
    return replace(axis, edges=edges, low=first, high=high, multiple=multiple)


def _pick(axis: Axis, rng: random.Random, largest: int) -> int:
    """Log-uniform, so that small sizes come up as often as large ones."""
    high = max(axis.low, min(axis.high, largest)) // axis.multiple
    low = max(0, axis.low // axis.multiple)
    value = round(math.exp(rng.uniform(math.log(low + 1), math.log(high + 1)))) - 1
    return min(max(value, low), high) * axis.multiple


def _beside(axis: Axis, rng: random.Random, count: int) -> list[int]:
    """Sizes next to powers of two, where a last tile lacks one element or holds a single one; the first of them is
    of the second kind and not small."""
    near = [(1 << power) + by for by in (1, -1) for power in range(5, 24)]
    fitting = [size for size in near if axis.low <= size <= axis.high and size % axis.multiple == 0]
    single = [size for size in fitting if size % 2 and size.bit_count() == 2]
    first = [rng.choice(single[len(single) // 2 :])] if single else []
    return [*first, *rng.sample(fitting, min(max(0, count - 1), len(fitting)))]


@dataclass
class SizeSpace:
    """The cases of a problem that a candidate answers for and a scope affords. rng: what is drawn, in order."""

    problem: Problem
    candidate: Candidate
    rng: random.Random
    scope: Scope

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The problem's, cut to the declared bounds; without those of which nothing is left."""
        cut = (within(axis, self.candidate.domain) for axis in self.problem.axes)
        return tuple(axis for axis in cut if axis is not None)

    @cached_property
    def layouts(self) -> list[str]:
        declared = self.candidate.domain.layouts
        return [name for name in self.problem.layouts if not declared or name in declared] or ["contiguous"]

    def admits(self, case: Case) -> bool:
        return self.problem.constraint(case) and self.candidate.domain.admits(case.sizes, case.dtype, case.layout)

    def case(self, sizes: dict[str, int], turn: int, layout: str = "contiguous") -> Case:
        """A case of these sizes, the others as they are in all of the problem's; dtypes in turn."""
        dtype = self.problem.dtypes[turn % len(self.problem.dtypes)]
        return Case.of(dtype, layout, **{**self.problem.cases[0].sizes, **sizes})

    def fits(self, case: Case) -> bool:
        return not self._many(case) and not self._dear(case) and self.admits(case)

    def first(self, cases: Iterable[Case]) -> list[Case]:
        """The first that fits, in a list; none where none does."""
        return list(itertools.islice((case for case in cases if self.fits(case)), 1))

    def few(self) -> dict[str, int]:
        """A small size of each axis."""
        return {axis.name: _pick(axis, self.rng, _SMALL) or axis.multiple for axis in self.axes}

    def affordable(self, sizes: dict[str, int], edge: str, dtype: str) -> dict[str, int] | None:
        """The sizes, with all but the edge shrunk until the case fits the scope; None where even that does not."""
        sizes = {**self.problem.cases[0].sizes, **sizes}
        while max(axis.low for axis in self.axes) <= self.scope.max_bytes:
            case = Case.of(dtype, "contiguous", **sizes)
            many = self._many(case)
            if not many and not self._dear(case):
                return sizes
            # what bounds the rows is no reason to shorten them
            last = self.problem.axes[-1].name if many else ""
            room = [a for a in self.axes if a.name not in (edge, last) and sizes[a.name] > a.low]
            if not room:
                return None
            axis = max(room, key=lambda a: sizes[a.name])
            sizes[axis.name] = max(axis.low, sizes[axis.name] // 2 // axis.multiple * axis.multiple)
        return None

    def _many(self, case: Case) -> bool:
        return len(self.problem.axes) > 1 and rows(self.problem, case.sizes) > self.scope.max_rows

    def _dear(self, case: Case) -> bool:
        if all(axis.low == axis.high for axis in self.problem.axes):
            return False  # of one size alone, which is asked whatever it costs
        most = self.scope.max_bytes
        # 200 operations a byte: more than any of the problems needs at its timed cases
        return self.problem.compulsory_bytes(case) > most or self.problem.flops(case) > 200 * most


def sweep(on: SizeSpace) -> Iterator[Case]:
    """Edges of one axis at a time among random others, each with a dtype and layout in turn; then random cases."""
    declared = on.candidate.domain.dtypes
    dtypes = [name for name in on.problem.dtypes if not declared or name in declared]
    if not dtypes or len(on.axes) < len(on.problem.axes):
        return
    turn, cycle = on.rng.randrange(1000), math.lcm(len(dtypes), len(on.layouts))
    seen: set[Case] = set()
    for wanted, edge in _sizes(on):
        sizes = on.affordable(wanted, edge, dtypes[0])
        if sizes is None:
            continue
        turn += 1
        # one layout further after each whole cycle, else a dtype would always meet the same layouts
        layout = on.layouts[(turn + turn // cycle) % len(on.layouts)]
        case = Case.of(dtypes[turn % len(dtypes)], layout, **sizes)
        if case not in seen and on.problem.constraint(case):
            seen.add(case)
            yield case


def _sizes(on: SizeSpace) -> Iterator[tuple[dict[str, int], str]]:
    """Sizes of a case, and the axis whose edge value they are made for ("" for a random case)."""
    largest, count = on.scope.largest, on.scope.sweep_random
    for axis in on.axes:
        high = min(axis.high, max(axis.low, largest) // axis.multiple * axis.multiple)
        beside = _beside(replace(axis, high=high), on.rng, min(3, count))
        for edge in dict.fromkeys((*axis.edges, *beside, high)):
            yield {**{other.name: _pick(other, on.rng, largest) for other in on.axes}, axis.name: edge}, axis.name
    for _ in range(count):
        yield {axis.name: _pick(axis, on.rng, largest) for axis in on.axes}, ""


def of_each_residue(on: SizeSpace) -> list[Case]:
    """Up to eight small cases between which every axis leaves each remainder modulo 8, and the last axis lies in
    each eighth of 128: groups of rows and parts of a tile are asked about each of their ends, whatever is drawn.
    """
    turns = {axis.name: on.rng.sample(range(8), 8) for axis in on.axes}
    eighths, found = on.rng.sample(range(8), 8), []
    for number in range(8):
        sizes = {}
        for axis in on.axes:
            last = axis is on.axes[-1]
            units = turns[axis.name][number]
            if last:
                units += 16 * eighths[number] + 8 * on.rng.randrange(2)
            units = units or (128 if last else 8)  # nothing at all is asked by the edges
            least = -(-axis.low // axis.multiple)
            units = least + (units - least) % (max(0, axis.high // axis.multiple - least) + 1)
            sizes[axis.name] = units * axis.multiple
        layout = "contiguous" if number % 2 else on.layouts[number // 2 % len(on.layouts)]
        case = on.case(sizes, number, layout)
        if all(case.sizes.values()) and on.fits(case):
            found.append(case)
    return found


def between(on: SizeSpace) -> Iterator[Case]:
    """Sizes between two powers of two from 512 on: of the last axis in each quarter, of the others in one, their
    fellows small: loops whose last trips are another number of tiles. Dtypes and layouts in turn."""
    turn, dtypes = on.rng.randrange(1000), on.problem.dtypes
    for axis in on.axes:
        quarters = range(4) if axis is on.axes[-1] else [on.rng.randrange(4)]
        for power, quarter in itertools.product(range(9, _OCTAVES), quarters):
            size = (1 << power) + round((quarter + on.rng.random()) * (1 << power - 2))
            size = size // axis.multiple * axis.multiple
            sizes = on.affordable({**on.few(), axis.name: size}, axis.name, dtypes[0])
            if size > axis.high or sizes is None:
                continue
            turn += 1
            case = on.case(sizes, turn, on.layouts[turn // len(dtypes) % len(on.layouts)])
            if on.admits(case):
                yield case


def beyond(on: SizeSpace) -> list[Case]:
    """For every axis of many but the last a case where it alone is far larger than in the sweep: of more than
    65,536, or five times the sweep's largest where so many are not affordable. In 16 bits where there are some, and
    not where sums over it are of 32 bits all the same, so that no long sum's rounding is compared."""
    found: list[Case] = []
    for whole, axis in zip(on.problem.axes[:-1], on.axes, strict=False):
        targets = [_FAR] * (whole.high >= 4096) + [5 * whole.high] * (whole.high >= 512)
        if whole.high < _FAR and not whole.summed:
            cases = (case for target in targets for case in _far(on, axis, target))
            found += itertools.islice(cases, 1)
    return found


def _far(on: SizeSpace, axis: Axis, target: int) -> list[Case]:
    """The case of few others in which the axis is beyond the target, if it is affordable."""
    dtype = next((name for name in on.problem.dtypes if name in ("float16", "bfloat16")), on.problem.dtypes[0])
    few = {
        a.name: max(_SMALL * a.multiple, _pick(a, on.rng, 64)) if a.high >= 512 else max(a.low, a.multiple)
        for a in on.axes
    }
    size = (target + 1 + on.rng.randrange(1024)) // axis.multiple * axis.multiple + axis.multiple
    sizes = on.affordable({**few, axis.name: size}, axis.name, dtype)
    made = [Case.of(dtype, "contiguous", **sizes)] if sizes is not None else []
    return [case for case in made if on.admits(case)]


def of_one_count(on: SizeSpace, base: Case) -> Iterator[Case]:
    """Cases one after the other whose tensors have as many elements but other shapes: one axis is doubled and
    another halved. Who remembers something by the number of elements is wrong on the second."""
    beside = list(itertools.pairwise(on.problem.axes))
    for one, other in (*beside, *((b, a) for a, b in beside)):
        half = base[other.name] // (2 * other.multiple) * other.multiple
        first, second = (
            Case.of(base.dtype, base.layout, **{**base.sizes, **changed})
            for changed in ({other.name: 2 * half}, {one.name: 2 * base[one.name], other.name: half})
        )
        inside = one.low <= second[one.name] <= one.high and other.low <= half <= other.high
        if half and base[one.name] and inside and on.admits(first) and on.admits(second):
            yield first
            yield second


def of_equal_axes(on: SizeSpace) -> list[Case]:
    """Cases in which all axes, and every two neighbours, are of one size above 1; all of them also transposed,
    where that may be. Who tells axes, or the order in memory, by their sizes takes one for the other."""
    found: list[Case] = []
    turn, axes = on.rng.randrange(1000), on.axes
    groups = [axes, *itertools.pairwise(axes)] if len(axes) > 2 else [axes] * (len(axes) > 1)
    for group in groups:
        step = math.lcm(*(axis.multiple for axis in group))
        least, most = max(2, *(a.low for a in group)), min(300, *(a.high for a in group))
        small = on.few()
        sizes = list(range(-(-least // step) * step, most + 1, step))
        on.rng.shuffle(sizes)
        turn += 1
        for layout in ("contiguous", "transposed")[: 1 + (group is axes)]:
            equal = [{**small, **{axis.name: size for axis in group}} for size in sizes]
            found += on.first(on.case(one, turn, layout) for one in equal if layout in on.problem.layouts)
    return found


def of_whole_tiles(on: SizeSpace) -> list[Case]:
    """Cases that need no mask: the last axis a power of two or three of them among few rows, and all axes one, two
    or three times 128, or less where that is dear. Kernels often take another path where tiles are whole."""
    turn, last = on.rng.randrange(1000), on.axes[-1]
    least = {axis.name: max(axis.low, axis.multiple) for axis in on.axes}
    asked: list[list[dict[str, int]]] = []  # of each the first that fits
    for power, times in itertools.product(range(8, _OCTAVES), (1, 3)):
        size = {last.name: times << power - (times > 1)}
        asked.append([{**few, **size} for few in (on.few(), least)])
    for times in (1, 2, 3):
        units = (128, 64, 32, 16)
        asked.append([{a.name: min(unit * (times if a is last else 1), a.high) for a in on.axes} for unit in units])
    found: list[Case] = []
    for number, alternatives in enumerate(asked, turn + 1):
        inside = (sizes for sizes in alternatives if all(_holds(axis, sizes[axis.name]) for axis in on.axes))
        found += on.first(on.case(sizes, number) for sizes in inside)
    return found


def _holds(axis: Axis, size: int) -> bool:
    return axis.low <= size <= axis.high and size % axis.multiple == 0
