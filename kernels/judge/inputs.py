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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kernels.candidate import MIXED, Candidate, Domain
from kernels.draw import TWIN, mix
from kernels.problem import Axis, Case, Problem, unusual

Stage = Literal["smoke", "sweep", "values", "determinism", "accuracy", "integrity"]
_GRADIENT_BYTES = 1 << 29
"""Timed cases beyond this are examined forward only: float64 gradients take many times the bytes."""
STAGES: tuple[Stage, ...] = ("smoke", "sweep", "values", "determinism", "accuracy", "integrity")


@dataclass(frozen=True)
class Probe:
    """Calls to make and hold against the oracle.

    case.layout tells how the input tensors lie in memory. backward: also ask for gradients, with outputs' gradients
    drawn from the seed. upstream: how those lie in memory (a layout, or "expanded": one row, repeated by stride 0),
    "some_zero": half of their rows are zero, as those of ignored tokens; or "scaled": as large as a scaled loss's.
    placed: only where NaN and infinities stand is compared, not the finite values' errors.
    overlapping: among other calls of the same entry, on a second stream. same: inputs of one shape and dtype are
    one tensor; not asked where no two are alike.
    alone: −1, or which of the problem's gradients is the only one asked for. under_load: while other work runs on
    the device. on_stream: on a stream of its own, right behind the copies that bring the inputs. rows: 0, or the
    number of leading rows to compare (for outputs too large for a float64 oracle): see
    `kernels.judge.correctness.expected`.
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
        }


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


INTERPRETER = Scope(1 << 16, 1 << 13, 96, 320, sweep_random=2, benchmark=False, huge=False, repeats=3)
CPU = Scope(1 << 21, 1 << 18, 1 << 20, 1 << 40, sweep_random=4, benchmark=False, huge=False, repeats=4)
QUICK_GPU = Scope(1 << 27, 1 << 22, 1 << 24, 1 << 40, sweep_random=4, benchmark=True, huge=False, repeats=4)
FULL_GPU = Scope(1 << 29, 1 << 22, 1 << 24, 1 << 40, sweep_random=12, benchmark=True, huge=True, repeats=16)


def plan(problem: Problem, candidate: Candidate, secret: bytes, scope: Scope) -> tuple[Probe, ...]:
    """The probes in the order in which they are to be run; empty where the declared domain admits no case."""
    rng = random.Random(secret + problem.name.encode())
    admitted = [case for case in _sweep(problem, candidate.domain, rng, scope) if _admits(problem, candidate, case)]
    if not admitted:
        return ()

    def unfit(case: Case) -> float:
        """Octaves from the wanted bytes; where rows are dear, few of them count for as much as the right bytes."""
        octaves = abs(math.log2((problem.compulsory_bytes(case) + 1) / scope.base_bytes))
        empty = any(case[axis.name] == 0 for axis in problem.axes)
        single = sum(case[axis.name] == 1 for axis in problem.axes)  # one row hides what is wrong between rows
        rows = math.log2(1 + _rows(problem, case.sizes)) if scope.max_rows < 1 << 20 else 0.0
        return octaves + rows + 6.0 * single + (100.0 if empty else 0.0)

    base = min(admitted, key=unfit)
    plain = base.with_(layout="contiguous")
    base = plain if _admits(problem, candidate, plain) else base
    bases = [case for dtype in problem.dtypes if (case := _of_dtype(problem, candidate, base, dtype)) is not None]
    others = _other_numbers(problem, candidate, bases)
    probes = [Probe("smoke", bases[0], "normal", (_seed(rng),))]
    probes += [Probe("sweep", case, "normal", (_seed(rng),)) for case in admitted]
    probes += [Probe("sweep", c, "normal", (_seed(rng),)) for c in _of_each_residue(problem, candidate, rng, scope)]
    wide = _widest(problem, candidate, admitted, scope)
    for layout, parts in MIXED.items():
        for case in dict.fromkeys((*(bases if scope.benchmark else [rng.choice(bases)]), *wide)):
            mixed = case.with_(layout=layout)
            if set(parts) <= set(problem.layouts) and _admits(problem, candidate, mixed):
                probes.append(Probe("sweep", mixed, "normal", (_seed(rng),)))
    for name in problem.distributions:
        chosen = [*bases, *(wide if name in ("large_mean", "large_negative", "nan") else ())]
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
        probes += [Probe("accuracy", case, "normal", (_seed(rng),), backward=True) for case in (*bases, *others)]
        uneven = [c for c in _of_each_residue(problem, candidate, rng, scope) if c.layout == "contiguous"]
        probes += [Probe("accuracy", case, "normal", (_seed(rng),), backward=True) for case in uneven]
        steep = [name for name in ("large_mean", "large_negative") if name in problem.distributions]
        for name in steep:  # what overflows or cancels in the backward pass only
            for case in bases:  # in 32 bits eager's error there is no measure, but what is finite must stay so
                wide32 = case.element_bytes > 2
                probes.append(Probe("accuracy", case, name, (_seed(rng),), backward=True, placed=wide32))
        for upstream in ("expanded", "transposed", "padded", "some_zero", "scaled"):
            probes += [
                Probe("accuracy", c, "normal", (_seed(rng),), backward=True, upstream=upstream) for c in bases
            ]
        for layout in problem.layouts:  # what the backward pass has kept of the inputs lies as they do
            turned = [case.with_(layout=layout) for case in bases if layout != "contiguous"]
            turned = [case for case in turned if _admits(problem, candidate, case)]
            if turned:
                probes.append(Probe("accuracy", rng.choice(turned), "normal", (_seed(rng),), backward=True))
        for alone in range(len(problem.gradients)) if len(problem.gradients) > 1 else ():
            probes.append(Probe("accuracy", rng.choice(bases), "normal", (_seed(rng),), backward=True, alone=alone))
        again = (_seed(rng),) * scope.repeats
        probes.append(Probe("accuracy", rng.choice(bases), "normal", again, backward=True, under_load=True))
    if scope.benchmark:
        timed = [case for case in problem.cases if _admits(problem, candidate, case)]
        probes += [Probe("accuracy", case, "normal", (_seed(rng),)) for case in timed]
        if problem.gradients and candidate.differentiable:
            small = [case for case in timed if problem.compulsory_bytes(case) <= _GRADIENT_BYTES]
            probes += [Probe("accuracy", case, "normal", (_seed(rng),), backward=True) for case in small]
    if scope.huge:
        large = [case for case in problem.huge if _admits(problem, candidate, case)]
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
    whole = [case for case in plain if _admits(problem, candidate, case)]
    if not whole or not scope.benchmark:
        return []
    wide = max(whole, key=lambda case: case[last])
    for axis in problem.axes[:-1]:
        while problem.compulsory_bytes(wide) < scope.base_bytes:
            more = Case.of(wide.dtype, wide.layout, **{**wide.sizes, axis.name: 2 * wide[axis.name]})
            if more[axis.name] > axis.high or not _admits(problem, candidate, more):
                break
            wide = more
    return [c for dtype in problem.dtypes if (c := _of_dtype(problem, candidate, wide, dtype)) is not None]


def _of_each_residue(problem: Problem, candidate: Candidate, rng: random.Random, scope: Scope) -> list[Case]:
    """Up to eight small cases between which every axis leaves each remainder modulo 8, and the last axis lies in
    each eighth of 128: groups of rows and parts of a tile are asked about each of their ends, whatever is drawn.
    """
    axes = [_within(axis, candidate.domain) for axis in problem.axes]
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
            and _rows(problem, sizes) <= scope.max_rows
            and _admits(problem, candidate, case)
        ):
            found.append(case)
    return found


def _other_numbers(problem: Problem, candidate: Candidate, bases: Sequence[Case]) -> list[Case]:
    """Of every dtype the nearest case whose numbers among the inputs are not those of its base, where there is one:
    the usual and the unusual ones are in every plan."""
    found: list[Case] = []
    axes = [
        axis for axis in (_within(axis, candidate.domain) for axis in reversed(problem.axes)) if axis is not None
    ]
    for base in bases if problem.numbers else ():
        near = (
            Case.of(
                base.dtype,
                base.layout,
                **{**base.sizes, axis.name: (base[axis.name] // cut // axis.multiple + step) * axis.multiple},
            )
            for cut in (1, 4, 16, 64)
            for step in range(65)
            for axis in axes
        )
        fit = (c for c in near if unusual(c) != unusual(base) and _admits(problem, candidate, c))
        found += itertools.islice(fit, 1)
    return found


def calls_of(distribution: str) -> int:
    """How many calls show a distribution. Where outputs hold NaN two, whose buffers hold NaN and something else
    before them: what is not written must not pass for a NaN that belongs there."""
    return 2 if distribution in ("nan", "masked", "masked_rows", "infinite") else 1


def _rows(problem: Problem, sizes: dict[str, int]) -> int:
    return math.prod(sizes[axis.name] for axis in problem.axes[:-1])


def _seed(rng: random.Random) -> int:
    return mix(rng.getrandbits(64))


def _admits(problem: Problem, candidate: Candidate, case: Case) -> bool:
    return problem.constraint(case) and candidate.domain.admits(case.sizes, case.dtype, case.layout)


def _of_dtype(problem: Problem, candidate: Candidate, case: Case, dtype: str) -> Case | None:
    other = case.with_(dtype=dtype)
    return other if _admits(problem, candidate, other) else None


def _sweep(problem: Problem, domain: Domain, rng: random.Random, scope: Scope) -> Iterator[Case]:
    """Edges of one axis at a time among random others, each with a dtype and layout in turn; then random cases."""
    layouts = [name for name in problem.layouts if not domain.layouts or name in domain.layouts] or ["contiguous"]
    dtypes = [name for name in problem.dtypes if not domain.dtypes or name in domain.dtypes]
    if not dtypes:
        return
    limited = {axis.name: _within(axis, domain) for axis in problem.axes}
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


def _within(axis: Axis, domain: Domain) -> Axis | None:
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
        many = len(problem.axes) > 1 and _rows(problem, sizes) > scope.max_rows
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
