"""Flip graphs: walks over decompositions of one tensor modulo 2, from many multiplications to few.

A flip changes two terms with a common factor into two others with the same sum; where one of them vanishes, the
rank drops (a reduction); a plus transition makes three terms of two, as a way out (Kauers and Moosbauer, arXiv
2212.01175; Arai, Ichikawa and Hukushima, arXiv 2312.16960). A walk from the definition of a larger product is lost
for long; so a search grows: the best scheme of a smaller format, plus what the definition adds, is the next start.

The walk is C (`flip_graph.c`), compiled by the user's compiler on first use. Without one, the same walk runs in
Python, some two hundred times slower: both take the same steps from the same seed.
"""

from __future__ import annotations

import ctypes
import time
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from nightshift.kernels.schemes.native import CompilerError, build
from nightshift.kernels.schemes.scheme import Format, Scheme, check, definition, packed, unpacked

PATIENCE = 1_000
"""Steps without a reduction before a plus transition."""
MARGIN = 3
"""How far above the best rank plus transitions lead."""
STEPS = 20_000_000
"""Steps without a lower rank before a walk ends."""
_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15

RANKS = {
    "2x2x2": 7, "2x2x3": 11, "2x3x3": 15, "2x3x4": 20, "2x4x4": 26, "3x3x3": 23, "3x3x4": 29, "3x4x4": 38,
    "3x4x5": 48, "3x5x5": 60, "4x4x4": 47, "4x4x5": 63, "4x5x5": 76, "upper-2": 6, "upper-3": 17, "upper-4": 34,
}  # fmt: skip
"""Where a search of that format, or a stage of a larger one's, may end: published ranks modulo 2, or up to two more
where the last step takes longest."""


WAY = {"4x4x4": (49, 50), "4x4x5": (60, 64)}
"""On the way to a larger format: where a walk ends, and the most with which the climb continues. A walk that ends
as soon as it may is a poor start, and so is 4x4x4 of rank 47: hardly anything lower grows from either."""
AGAIN = 5
"""Further walks at a climb's end, where it is as low as any climb before."""


class _Numbers:
    """SplitMix64, as the C has it."""

    def __init__(self, seed: int) -> None:
        self.state = seed & _MASK

    def next(self) -> int:
        self.state = (self.state + _ODD) & _MASK
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
        return z ^ (z >> 31)

    def below(self, bound: int) -> int:
        return (self.next() >> 32) * bound >> 32


@dataclass(frozen=True)
class Walk:
    """What a walk came to: the factors' bits (as `scheme.packed`), steps taken, and the next walk's seed."""

    bits: list[list[int]]
    steps: int
    seed: int

    @property
    def rank(self) -> int:
        return len(self.bits[0])


class _Terms:
    """A scheme's terms, and those with the same hash of a factor: the C's index with the same order."""

    def __init__(self, bits: list[list[int]]) -> None:
        self.bits = [list(row) for row in bits]
        self.slots: dict[tuple[int, int], list[int]] = {}
        self.crowded: list[tuple[int, int]] = []
        for axis in range(3):
            for i in range(self.rank):
                self._enter(axis, i)

    @property
    def rank(self) -> int:
        return len(self.bits[0])

    def _enter(self, axis: int, i: int) -> None:
        slot = (axis, (self.bits[axis][i] * _ODD & _MASK) >> 55)
        members = self.slots.setdefault(slot, [])
        insort(members, i)
        if len(members) == 2:
            self.crowded.append(slot)

    def _leave(self, axis: int, i: int) -> None:
        slot = (axis, (self.bits[axis][i] * _ODD & _MASK) >> 55)
        members = self.slots[slot]
        members.remove(i)
        if len(members) == 1:
            last = self.crowded.pop()
            if last != slot:
                self.crowded[self.crowded.index(slot)] = last

    def _put(self, axis: int, i: int, factor: int) -> None:
        self._leave(axis, i)
        self.bits[axis][i] = factor
        self._enter(axis, i)

    def _drop_vanished(self, i: int) -> None:
        if all(row[i] for row in self.bits):
            return
        for axis, row in enumerate(self.bits):
            self._leave(axis, len(row) - 1)
            last = row.pop()
            if i < len(row):
                self._put(axis, i, last)

    def flip(self, numbers: _Numbers) -> None:
        drawn = numbers.next()
        if not self.crowded:
            return
        slot = self.crowded[(drawn >> 32) * len(self.crowded) >> 32]
        members, axis = self.slots[slot], slot[0]
        others = len(members) - 1
        first, second = divmod((drawn & 0xFFFFFFFF) * (others + 1) * others >> 32, others)
        i, j = members[first], members[second + (second >= first)]
        if self.bits[axis][i] != self.bits[axis][j]:
            return
        b, c = (axis + 1) % 3, (axis + 2) % 3
        self._put(b, i, self.bits[b][i] ^ self.bits[b][j])
        self._put(c, j, self.bits[c][j] ^ self.bits[c][i])
        self._drop_vanished(max(i, j))  # the later place first: a drop moves the last term
        self._drop_vanished(min(i, j))

    def plus(self, numbers: _Numbers) -> None:
        i, j, first = numbers.below(self.rank), numbers.below(self.rank - 1), numbers.below(3)
        j += j >= i
        if any(row[i] == row[j] for row in self.bits):
            return
        a, b, c = ((first + by) % 3 for by in range(3))
        k = self.rank
        self.bits[a].append(self.bits[a][i])
        self.bits[b].append(self.bits[b][j])
        self.bits[c].append(self.bits[c][i] ^ self.bits[c][j])
        for axis in range(3):
            self._enter(axis, k)
        self._put(b, i, self.bits[b][i] ^ self.bits[b][j])
        self._put(a, j, self.bits[a][j] ^ self.bits[a][i])


def walk_python(
    bits: list[list[int]], target: int, steps: int, seed: int, patience: int = PATIENCE, capacity: int = 0
) -> Walk:
    """The walk of `flip_graph.c` in Python. capacity: most terms; 0: MARGIN more than there are."""
    numbers, terms = _Numbers(seed), _Terms(bits)
    room = capacity or terms.rank + MARGIN
    best, step, since, last = [list(row) for row in bits], 0, 0, 0
    while step - last < steps and len(best[0]) > target:
        before = terms.rank
        terms.flip(numbers)
        since = 0 if terms.rank < before else since + 1
        if since == 0 and terms.rank <= len(best[0]):
            last = step if terms.rank < len(best[0]) else last
            best = [list(row) for row in terms.bits]
        if since >= patience:
            since = 0
            if terms.rank == len(best[0]):
                best = [list(row) for row in terms.bits]  # as good, and further from the start
            if terms.rank < min(len(best[0]) + MARGIN, room):
                terms.plus(numbers)
            else:
                terms = _Terms(best)
        step += 1
    return Walk(best, step, numbers.state)


@cache
def _library() -> ctypes.CDLL:
    library = build(Path(__file__).with_suffix(".c").read_text())
    library.walk.restype = ctypes.c_int64
    return library


def walk_native(
    bits: list[list[int]], target: int, steps: int, seed: int, patience: int = PATIENCE, capacity: int = 0
) -> Walk:
    """The same, compiled. Raises CompilerError."""
    library = _library()
    room = capacity or len(bits[0]) + MARGIN
    terms = np.zeros((3, room), np.uint64)
    terms[:, : len(bits[0])] = np.array(bits, np.uint64)
    rank, state = ctypes.c_int(len(bits[0])), ctypes.c_uint64(seed & _MASK)
    taken = library.walk(
        terms.ctypes.data_as(ctypes.c_void_p), room, ctypes.byref(rank), target, ctypes.c_int64(steps),
        ctypes.c_int64(patience), MARGIN, ctypes.byref(state),
    )  # fmt: skip
    return Walk(terms[:, : rank.value].tolist(), int(taken), state.value)


def chosen_walk() -> Callable[..., Walk]:
    """The compiled walk where there is a compiler, else Python's."""
    try:
        walk_native([[1], [1], [1]], 1, 0, 0)
    except CompilerError:
        return walk_python
    return walk_native


def grown(scheme: Scheme, format_: Format) -> Scheme:
    """A scheme of a smaller format, and what the definition of a larger one adds to it. `format_` may also be the
    full product of an upper triangular one."""
    small, places = scheme.format, []
    for side in ("left", "right", "out"):
        large = {place: number for number, place in enumerate(getattr(format_, side))}
        places.append([large[place] for place in getattr(small, side)])
    lengths = format_.lengths
    terms = []
    for term in scheme.terms:
        wide = [[0] * length for length in lengths]
        for axis in range(3):
            for at, value in zip(places[axis], term[axis], strict=True):
                wide[axis][at] = value
        terms.append((tuple(wide[0]), tuple(wide[1]), tuple(wide[2])))
    inside = {
        (places[0][a], places[1][b], places[2][c])
        for a, b, c in small.definition()
    }  # fmt: skip
    added = [
        term
        for term, where in zip(definition(format_).terms, format_.definition(), strict=True)
        if where not in inside
    ]
    return Scheme(format_, scheme.ring, (*terms, *added))


def stages(format_: Format) -> Iterator[Format]:
    """The formats that a search grows through, the smallest first and its own last: one size grows at a time."""
    if format_.upper:
        yield from (Format(size, size, size, True) for size in range(2, format_.rows + 1))
        return
    full = (format_.rows, format_.inner, format_.columns)
    sizes = [min(2, size) for size in full]
    yield Format(sizes[0], sizes[1], sizes[2])
    while tuple(sizes) != full:
        sizes[min((i for i in range(3) if sizes[i] < full[i]), key=lambda i: (sizes[i], -i))] += 1
        yield Format(sizes[0], sizes[1], sizes[2])


def search(
    format_: Format,
    target: int,
    seed: int,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
    steps: int = STEPS,
) -> Scheme:
    """The best scheme modulo 2 that climbs find within `limit_s` seconds; they end at rank `target`. A climb takes
    one walk at each stage, and AGAIN more at its end where it is as low as any before. Where a walk does not reach
    its stage's rank in WAY or RANKS, the next climb begins: the first stages take little. `origin`: method, seed,
    seconds, steps."""
    walk, began, total = chosen_walk(), clock(), 0
    numbers = _Numbers(seed)
    path = list(stages(format_))
    best = definition(format_, "GF(2)")

    def walked(scheme: Scheme, stage: Format, goal: int) -> Scheme:
        nonlocal total
        made = walk(packed(scheme), goal, steps, numbers.next())
        total += made.steps
        origin = {"method": "flip graph", "seed": seed, "seconds": round(clock() - began, 3), "steps": total}
        return unpacked(stage, made.bits, origin)

    while best.rank > target and clock() - began < limit_s:
        scheme = definition(path[0], "GF(2)")
        for stage in path[:-1]:
            rank = RANKS.get(str(stage), 0)
            goal, most = WAY.get(str(stage), (rank, rank))
            scheme = walked(grown(scheme, stage), stage, goal)
            if scheme.rank > most > 0:
                break
        else:
            scheme = grown(scheme, format_)
            for _ in range(1 + AGAIN):
                scheme = walked(scheme, format_, target)
                best = scheme if scheme.rank < best.rank else best
                if scheme.rank > best.rank or best.rank <= target:
                    break
    return check(best)
