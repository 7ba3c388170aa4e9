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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from nightshift.kernels.schemes.native import CompilerError, build
from nightshift.kernels.schemes.scheme import Format, Scheme, check, definition, packed, unpacked

PATIENCE = 5_000
"""Steps without a reduction before a plus transition."""
MARGIN = 3
"""How far above the best rank plus transitions lead."""
STEPS = 10_000_000
"""Steps of one walk before it starts again."""
_MASK = (1 << 64) - 1

RANKS = {
    "2x2x2": 7, "2x2x3": 11, "2x3x3": 15, "2x3x4": 20, "2x4x4": 26, "3x3x3": 23, "3x3x4": 29, "3x4x4": 38,
    "3x4x5": 48, "3x5x5": 60, "4x4x4": 47, "4x5x5": 76, "upper-2": 6, "upper-3": 17, "upper-4": 34,
}  # fmt: skip
"""Where a search of that format, or a stage of a larger one's, may end: published ranks modulo 2, or up to two more
where the last step takes longest."""


class _Numbers:
    """SplitMix64, as the C has it."""

    def __init__(self, seed: int) -> None:
        self.state = seed & _MASK

    def below(self, bound: int) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
        z ^= z >> 31
        return (z >> 32) * bound >> 32


@dataclass(frozen=True)
class Walk:
    """What a walk came to: the factors' bits (as `scheme.packed`), steps taken, and the next walk's seed."""

    bits: list[list[int]]
    steps: int
    seed: int

    @property
    def rank(self) -> int:
        return len(self.bits[0])


def _drop(bits: list[list[int]], i: int) -> None:
    if not all(row[i] for row in bits):
        for row in bits:
            row[i] = row[-1]
            row.pop()


def _flip(bits: list[list[int]], numbers: _Numbers) -> None:
    i, axis = numbers.below(len(bits[0])), numbers.below(3)
    row = bits[axis]
    others = [j for j, word in enumerate(row) if word == row[i] and j != i]
    if not others:
        return
    j = others[numbers.below(len(others))]
    b, c = (axis + 1) % 3, (axis + 2) % 3
    if numbers.below(2):
        b, c = c, b
    bits[b][i] ^= bits[b][j]
    bits[c][j] ^= bits[c][i]
    _drop(bits, max(i, j))  # the later place first: a drop moves the last term
    _drop(bits, min(i, j))


def _plus(bits: list[list[int]], numbers: _Numbers) -> None:
    i, j, first = numbers.below(len(bits[0])), numbers.below(len(bits[0]) - 1), numbers.below(3)
    j += j >= i
    a, b, c = (bits[(first + by) % 3] for by in range(3))
    if a[i] == a[j] or b[i] == b[j] or c[i] == c[j]:
        return
    a.append(a[i])
    b.append(b[j])
    c.append(c[i] ^ c[j])
    b[i] ^= b[j]
    a[j] ^= a[i]


def walk_python(
    bits: list[list[int]], target: int, steps: int, seed: int, patience: int = PATIENCE, capacity: int = 0
) -> Walk:
    """The walk of `flip_graph.c` in Python. capacity: most terms; 0: MARGIN more than there are."""
    numbers, bits = _Numbers(seed), [list(row) for row in bits]
    room = capacity or len(bits[0]) + MARGIN
    best, step, since = [list(row) for row in bits], 0, 0
    while step < steps and len(best[0]) > target:
        before = len(bits[0])
        _flip(bits, numbers)
        since = 0 if len(bits[0]) < before else since + 1
        if len(bits[0]) < len(best[0]) or (since == 0 and len(bits[0]) == len(best[0])):
            best = [list(row) for row in bits]
        if since >= patience:
            since = 0
            if len(bits[0]) < min(len(best[0]) + MARGIN, room):
                _plus(bits, numbers)
            else:
                bits = [list(row) for row in best]
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
        # what has most to grow comes first: the last stage then adds the largest slab, which walks shrink best
        axis = max(range(3), key=lambda i: (full[i] - sizes[i], i))
        sizes[axis] += 1
        yield Format(sizes[0], sizes[1], sizes[2])


def search(
    format_: Format,
    target: int,
    seed: int,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
    steps: int = STEPS,
) -> Scheme:
    """The best scheme modulo 2 that walks find within `limit_s` seconds; they end at rank `target`. A stage on
    the way ends at its rank in RANKS, or after its share of the time. `origin`: method, seed, seconds, steps."""
    walk, began, total = chosen_walk(), clock(), 0
    numbers = _Numbers(seed)
    path = list(stages(format_))
    scheme = definition(path[0], "GF(2)")
    for number, stage in enumerate(path):
        last = number == len(path) - 1
        goal = target if last else RANKS.get(str(stage), 0)
        until = limit_s if last else limit_s * 0.5 * (number + 1) / len(path)
        start = packed(grown(scheme, stage)) if scheme.format != stage else packed(scheme)
        best = start
        while len(best[0]) > goal and clock() - began < until:
            made = walk(start, goal, steps, numbers.below(1 << 32) << 32 | numbers.below(1 << 32))
            total += made.steps
            best = min(best, made.bits, key=lambda bits: len(bits[0]))
        origin = {"method": "flip graph", "seed": seed, "seconds": round(clock() - began, 3), "steps": total}
        scheme = unpacked(stage, best, origin)
    return check(scheme)
