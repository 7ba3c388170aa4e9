"""Where an element lies: coordinates as digits of a kernel's loop variables, in mixed radix.

A coordinate is start + step · number, and the number's digits are (variable // divisor) % size, the highest first.
A view regroups digits, so an element's place stays exact through any chain of views, and a contiguous tensor is
read at the loop variable itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace


class Uncut(ValueError):
    """What stands here cannot be written into the kernel that asked; it is to be in memory first."""


@dataclass(frozen=True)
class Digit:
    """(variable // divisor) % size."""

    variable: str
    divisor: int
    size: int


@dataclass(frozen=True)
class Coordinate:
    """start + step · (the number of the digits, the highest first). No digits: start alone."""

    digits: tuple[Digit, ...] = ()
    start: int = 0
    step: int = 1

    @property
    def extent(self) -> int:
        return math.prod(d.size for d in self.digits)

    @property
    def plain(self) -> bool:
        return self.start == 0 and self.step == 1

    def scaled(self, by: int, plus: int) -> Coordinate:
        """by · this + plus."""
        return replace(self, start=by * self.start + plus, step=by * self.step)


ZERO = Coordinate()
Place = tuple[Coordinate, ...]
"""A coordinate for each dimension."""


def merged(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    """Neighbours that are one digit of their variable are written as one; digits of size 1 are none."""
    found: list[Digit] = []
    for digit in digits:
        if digit.size == 1:
            continue
        last = found[-1] if found else None
        if last and last.variable == digit.variable and last.divisor == digit.divisor * digit.size:
            found[-1] = Digit(digit.variable, digit.divisor, last.size * digit.size)
        else:
            found.append(digit)
    return tuple(found)


def grouped(digits: Sequence[Digit], shape: Sequence[int]) -> Place:
    """The digits of a flat number as a coordinate for each size. Raises Uncut where a digit splits unevenly."""
    rest = [d for d in digits if d.size > 1]
    made: list[Coordinate] = []
    for size in reversed(shape):
        left = size
        taken: list[Digit] = []
        while left > 1:
            if not rest:
                raise Uncut("a view of fewer elements than its source")
            digit = rest.pop()
            inner = math.gcd(digit.size, left)
            if digit.size > inner:
                if inner != left:
                    raise Uncut(f"a view that splits {digit.size} elements at {left}")
                rest.append(Digit(digit.variable, digit.divisor * inner, digit.size // inner))
            taken.insert(0, Digit(digit.variable, digit.divisor, inner))
            left //= inner
        made.insert(0, Coordinate(merged(taken)))
    if rest:
        raise Uncut("a view of more elements than its source")
    return tuple(made)


def regrouped(element: Place, shape: Sequence[int]) -> Place:
    """A place in a view as the place in what it is a view of, which has this shape."""
    kept = [c for c in element if c != ZERO]
    sizes = [n for n in shape if n != 1]
    if [c.extent for c in kept] == sizes:  # only dimensions of size 1 come or go: a sliced one stays sliced
        rest = iter(kept)
        return tuple(next(rest) if n != 1 else ZERO for n in shape)
    if not all(c.plain for c in element):
        raise Uncut("a view of a slice, a pad or a window")
    return grouped([d for c in element for d in c.digits], shape)


def renamed(element: Place, pieces: Mapping[Digit, Digit]) -> Place:
    """A place in other variables: `pieces` are digits without overlap, and what stands for each."""
    return tuple(replace(c, digits=merged(x for d in c.digits for x in _pieces(d, pieces))) for c in element)


def _pieces(digit: Digit, pieces: Mapping[Digit, Digit]) -> list[Digit]:
    found = []
    for piece, stands in sorted(pieces.items(), key=lambda item: -item[0].divisor):
        if piece.variable != digit.variable:
            continue
        low = max(piece.divisor, digit.divisor)
        high = min(piece.divisor * piece.size, digit.divisor * digit.size)
        if low >= high:
            continue
        if low % piece.divisor or high % low:
            raise Uncut("a view that splits a loop unevenly")
        found.append(Digit(stands.variable, stands.divisor * (low // piece.divisor), high // low))
    if math.prod(x.size for x in found) != digit.size:
        raise Uncut("a view that splits a loop unevenly")
    return found


def linear(element: Place, strides: Sequence[int], sizes: Mapping[str, int]) -> str:
    """The offset of a place as text, for a tensor with these strides; sizes: of the loop variables."""
    offset, terms = 0, []
    for coordinate, stride in zip(element, strides, strict=True):
        offset += coordinate.start * stride
        weight = coordinate.step * stride
        for digit in reversed(coordinate.digits):
            terms.append((digit, weight))
            weight *= digit.size
    joined: list[tuple[Digit, int]] = []
    for digit, weight in sorted(terms, key=lambda t: (t[0].variable, -t[0].divisor)):
        if joined:
            last, above = joined[-1]
            same = last.variable == digit.variable and last.divisor == digit.divisor * digit.size
            if same and above == weight * digit.size:
                joined[-1] = (Digit(digit.variable, digit.divisor, last.size * digit.size), weight)
                continue
        joined.append((digit, weight))
    texts = [f"{_digit(d, sizes)} * {w}" if w != 1 else _digit(d, sizes) for d, w in joined]
    if offset or not texts:
        texts.append(str(offset))
    return " + ".join(texts)


def number(coordinate: Coordinate, sizes: Mapping[str, int]) -> str:
    """A coordinate as text."""
    return linear((coordinate,), (1,), sizes)


def _digit(digit: Digit, sizes: Mapping[str, int]) -> str:
    text = digit.variable if digit.divisor == 1 else f"({digit.variable} // {digit.divisor})"
    whole = digit.divisor * digit.size == sizes[digit.variable]
    return text if whole else f"({text} % {digit.size})"
