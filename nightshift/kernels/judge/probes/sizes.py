"""Which cases of a problem a plan asks: edges, sizes beside and between powers of two, and every remainder.

All of them lie in the candidate's declared domain and within what a scope affords.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nightshift.kernels.candidate import Candidate, Domain
from nightshift.kernels.problem import Axis, Case, Problem

_OCTAVES = 14
"""Sizes between powers of two are asked below 2 to this."""
_SMALL = 8
_FAR = 1 << 16
"""Rows, tokens and the like beyond this have no number of 16 bits."""


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


def admits(problem: Problem, candidate: Candidate, case: Case) -> bool:
    return problem.constraint(case) and candidate.domain.admits(case.sizes, case.dtype, case.layout)


def rows(problem: Problem, sizes: dict[str, int]) -> int:
    return math.prod(sizes[axis.name] for axis in problem.axes[:-1])


def sweep(problem: Problem, domain: Domain, rng: random.Random, scope: Scope) -> Iterator[Case]:
    """Edges of one axis at a time among random others, each with a dtype and layout in turn; then random cases."""
    layouts = [name for name in problem.layouts if not domain.layouts or name in domain.layouts] or ["contiguous"]
    dtypes = [name for name in problem.dtypes if not domain.dtypes or name in domain.dtypes]
    if not dtypes:
        return
    limited = {axis.name: within(axis, domain) for axis in problem.axes}
    turn, cycle = rng.randrange(1000), math.lcm(len(dtypes), len(layouts))
    seen: set[Case] = set()
    for wanted, edge in _sizes(problem, limited, rng, scope):
        sizes = _affordable(problem, limited, wanted, edge, dtypes[0], scope)
        if sizes is None:
            continue
        turn += 1
        case = Case.of(dtypes[turn % len(dtypes)], layouts[(turn + turn // cycle) % len(layouts)], **sizes)
        if case not in seen and problem.constraint(case):
            seen.add(case)
            yield case


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


def _sizes(
    problem: Problem, axes: dict[str, Axis | None], rng: random.Random, scope: Scope
) -> Iterator[tuple[dict[str, int], str]]:
    """Parameters of a case, and the axis whose edge value they are made for ("" for a random case)."""
    usable = [axis for axis in axes.values() if axis is not None]
    if len(usable) < len(axes):
        return
    fixed = problem.cases[0].sizes
    for axis in usable:
        high = min(axis.high, max(axis.low, scope.largest) // axis.multiple * axis.multiple)
        beside = _beside(replace(axis, high=high), rng, min(3, scope.sweep_random))
        for edge in dict.fromkeys((*axis.edges, *beside, high)):
            yield (
                {**fixed, **{other.name: _pick(other, rng, scope.largest) for other in usable}, axis.name: edge},
                axis.name,
            )
    for _ in range(scope.sweep_random):
        yield {**fixed, **{axis.name: _pick(axis, rng, scope.largest) for axis in usable}}, ""


def _beside(axis: Axis, rng: random.Random, count: int) -> list[int]:
    """Sizes next to powers of two, where a last tile lacks one element or holds a single one; the first of them is
    of the second kind and not small."""
    near = [(1 << power) + by for by in (1, -1) for power in range(5, 24)]
    fitting = [size for size in near if axis.low <= size <= axis.high and size % axis.multiple == 0]
    single = [size for size in fitting if size % 2 and size.bit_count() == 2]
    first = [rng.choice(single[len(single) // 2 :])] if single else []
    return [*first, *rng.sample(fitting, min(max(0, count - 1), len(fitting)))]


def _affordable(
    problem: Problem, axes: dict[str, Axis | None], sizes: dict[str, int], edge: str, dtype: str, scope: Scope
) -> dict[str, int] | None:
    """The sizes, with all but the edge shrunk until the case fits the scope; None where even that does not."""
    sizes = dict(sizes)
    while max(axis.low for axis in axes.values() if axis is not None) <= scope.max_bytes:
        case = Case.of(dtype, "contiguous", **sizes)
        many = len(problem.axes) > 1 and rows(problem, sizes) > scope.max_rows
        dear = problem.compulsory_bytes(case) > scope.max_bytes or problem.flops(case) > 200 * scope.max_bytes
        if not many and not dear:
            return sizes
        last = problem.axes[-1].name if many else ""
        usable = [axis for axis in axes.values() if axis is not None]
        room = [a for a in usable if a.name not in (edge, last) and sizes[a.name] > a.low]
        if not room:
            return None
        axis = max(room, key=lambda a: sizes[a.name])
        sizes[axis.name] = max(axis.low, sizes[axis.name] // 2 // axis.multiple * axis.multiple)
    return None


def of_each_residue(problem: Problem, candidate: Candidate, rng: random.Random, scope: Scope) -> list[Case]:
    """Up to eight small cases between which every axis leaves each remainder modulo 8, and the last axis lies in
    each eighth of 128: groups of rows and parts of a tile are asked about each of their ends, whatever is drawn.
    """
    axes = [within(axis, candidate.domain) for axis in problem.axes]
    usable = [axis for axis in axes if axis is not None]
    if len(usable) < len(axes):
        return []
    layouts = [name for name in problem.layouts if not candidate.domain.layouts or name in candidate.domain.layouts]
    turns = {axis.name: rng.sample(range(8), 8) for axis in usable}
    eighths, found = rng.sample(range(8), 8), []
    for number in range(8):
        sizes = dict(problem.cases[0].sizes)
        for axis in usable:
            units = turns[axis.name][number]
            if axis.name == usable[-1].name:
                units += 16 * eighths[number] + 8 * rng.randrange(2)
            units = units or (128 if axis.name == usable[-1].name else 8)
            least = -(-axis.low // axis.multiple)
            units = least + (units - least) % (max(0, axis.high // axis.multiple - least) + 1)
            sizes[axis.name] = units * axis.multiple
        dtype = problem.dtypes[number % len(problem.dtypes)]
        layout = "contiguous" if number % 2 or not layouts else layouts[number // 2 % len(layouts)]
        case = Case.of(dtype, layout, **sizes)
        dear = problem.compulsory_bytes(case) > scope.max_bytes or problem.flops(case) > 200 * scope.max_bytes
        if (
            all(sizes.values())
            and not dear
            and rows(problem, sizes) <= scope.max_rows
            and admits(problem, candidate, case)
        ):
            found.append(case)
    return found


def between(problem: Problem, candidate: Candidate, rng: random.Random, scope: Scope) -> Iterator[Case]:
    """Sizes between two powers of two from 512 on: of the last axis in each quarter, of the others in one, their
    fellows small: loops whose last trips are another number of tiles. Dtypes and layouts in turn."""
    limited = {axis.name: within(axis, candidate.domain) for axis in problem.axes}
    if None in limited.values():
        return
    layouts = [name for name in problem.layouts if not candidate.domain.layouts or name in candidate.domain.layouts]
    turn, fixed = rng.randrange(1000), problem.cases[0].sizes
    for axis in limited.values():
        assert axis is not None
        quarters = range(4) if axis.name == problem.axes[-1].name else [rng.randrange(4)]
        for power, quarter in itertools.product(range(9, _OCTAVES), quarters):
            size = (1 << power) + round((quarter + rng.random()) * (1 << power - 2))
            size = size // axis.multiple * axis.multiple
            others = {a.name: _pick(a, rng, _SMALL) or a.multiple for a in limited.values() if a is not None}
            sizes = _affordable(
                problem, limited, {**fixed, **others, axis.name: size}, axis.name, problem.dtypes[0], scope
            )
            if size > axis.high or sizes is None:
                continue
            turn += 1
            dtype = problem.dtypes[turn % len(problem.dtypes)]
            layout = (layouts or ["contiguous"])[turn // len(problem.dtypes) % max(1, len(layouts))]
            case = Case.of(dtype, layout, **sizes)
            if admits(problem, candidate, case):
                yield case


def beyond(problem: Problem, candidate: Candidate, rng: random.Random, scope: Scope) -> list[Case]:
    """For every axis of many but the last a case where it alone is far larger than in the sweep: of more than
    65,536, or five times the sweep's largest where so many are not affordable. In 16 bits where there are some, and
    not where sums over it are of 32 bits all the same, so that no long sum's rounding is compared."""
    dtype = next((name for name in problem.dtypes if name in ("float16", "bfloat16")), problem.dtypes[0])
    limited = {axis.name: within(axis, candidate.domain) for axis in problem.axes}
    axes = {name: axis for name, axis in limited.items() if axis is not None}
    found = []
    for axis in problem.axes[:-1] if len(axes) == len(limited) else ():
        targets = [_FAR] * (axis.high >= 4096) + [5 * axis.high] * (axis.high >= 512)
        for target in targets if axis.high < _FAR and not axis.summed else ():
            few = {
                a.name: max(_SMALL * a.multiple, _pick(a, rng, 64)) if a.high >= 512 else max(a.low, a.multiple)
                for a in axes.values()
            }
            step = axes[axis.name].multiple
            size = (target + 1 + rng.randrange(1024)) // step * step + step
            wanted = {**problem.cases[0].sizes, **few, axis.name: size}
            sizes = _affordable(problem, limited, wanted, axis.name, dtype, scope)
            case = Case.of(dtype, "contiguous", **(sizes or wanted))
            if sizes is not None and admits(problem, candidate, case):
                found.append(case)
                break
    return found


def of_one_count(problem: Problem, candidate: Candidate, base: Case) -> Iterator[Case]:
    """Cases one after the other whose tensors have as many elements but other shapes: one axis is doubled and
    another halved. Who remembers something by the number of elements is wrong on the second."""
    beside = list(itertools.pairwise(problem.axes))
    for one, other in (*beside, *((b, a) for a, b in beside)):
        half = base[other.name] // (2 * other.multiple) * other.multiple
        first, second = (
            Case.of(base.dtype, base.layout, **{**base.sizes, **changed})
            for changed in ({other.name: 2 * half}, {one.name: 2 * base[one.name], other.name: half})
        )
        inside = one.low <= second[one.name] <= one.high and other.low <= half <= other.high
        if half and base[one.name] and inside and all(admits(problem, candidate, c) for c in (first, second)):
            yield first
            yield second


def _fits(problem: Problem, candidate: Candidate, case: Case, scope: Scope) -> bool:
    dear = problem.compulsory_bytes(case) > scope.max_bytes or problem.flops(case) > 200 * scope.max_bytes
    few = len(problem.axes) < 2 or rows(problem, case.sizes) <= scope.max_rows
    return few and not dear and admits(problem, candidate, case)


def of_equal_axes(problem: Problem, candidate: Candidate, rng: random.Random, scope: Scope) -> list[Case]:
    """Cases in which all axes, and every two neighbours, are of one size above 1; all of them also transposed,
    where that may be. Who tells axes, or the order in memory, by their sizes takes one for the other."""
    limited = {axis.name: within(axis, candidate.domain) for axis in problem.axes}
    axes = [axis for axis in limited.values() if axis is not None]
    if len(axes) < len(limited):
        return []
    found: list[Case] = []
    turn = rng.randrange(1000)
    groups = [axes, *itertools.pairwise(axes)] if len(axes) > 2 else [axes] * (len(axes) > 1)
    for group in groups:
        step = math.lcm(*(axis.multiple for axis in group))
        least, most = max(2, *(a.low for a in group)), min(300, *(a.high for a in group))
        small = {a.name: _pick(a, rng, _SMALL) or a.multiple for a in axes}
        sizes = list(range(-(-least // step) * step, most + 1, step))
        rng.shuffle(sizes)
        turn += 1
        for layout in ("contiguous", "transposed")[: 1 + (group is axes)]:
            made = (
                Case.of(
                    problem.dtypes[turn % len(problem.dtypes)],
                    layout,
                    **{**problem.cases[0].sizes, **small, **{axis.name: size for axis in group}},
                )
                for size in sizes
                if layout in problem.layouts
            )
            found += itertools.islice((case for case in made if _fits(problem, candidate, case, scope)), 1)
    return found


def of_whole_tiles(problem: Problem, candidate: Candidate, rng: random.Random, scope: Scope) -> list[Case]:
    """Cases that need no mask: the last axis a power of two or three of them among few rows, and all axes one, two
    or three times 128, or less where that is dear. Kernels often take another path where tiles are whole."""
    limited = {axis.name: within(axis, candidate.domain) for axis in problem.axes}
    axes = [axis for axis in limited.values() if axis is not None]
    if len(axes) < len(limited):
        return []
    last = axes[-1]
    found, turn, fixed = [], rng.randrange(1000), problem.cases[0].sizes

    def take(sizes: dict[str, int]) -> bool:
        inside = all(a.low <= sizes[a.name] <= a.high and sizes[a.name] % a.multiple == 0 for a in axes)
        case = Case.of(problem.dtypes[turn % len(problem.dtypes)], "contiguous", **{**fixed, **sizes})
        fits = inside and _fits(problem, candidate, case, scope)
        found.extend([case] * fits)
        return fits

    for power in range(8, _OCTAVES):
        for times in (1, 3):
            turn += 1
            few = {a.name: _pick(a, rng, _SMALL) or a.multiple for a in axes}
            size = {last.name: times << power - (times > 1)}
            any(take({**others, **size}) for others in (few, {a.name: max(a.low, a.multiple) for a in axes}))
    for times in (1, 2, 3):
        turn += 1
        for unit in (128, 64, 32, 16):
            if take({a.name: min(unit * (times if a is last else 1), a.high) for a in axes}):
                break
    return found
