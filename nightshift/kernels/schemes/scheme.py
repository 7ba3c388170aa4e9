"""Bilinear schemes: a small matrix product by fewer multiplications than its definition has.

A scheme of rank r is r terms. Term t multiplies one sum of entries of A by one sum of entries of B, and adds the
product, times coefficients, to entries of C. It is right when the terms add up to the product's tensor.

A format is `NxMxP` (an N×M matrix by an M×P one) or `upper-N` (an upper triangular N×N matrix by a full one).
Coefficients lie in the integers ("Z") or modulo 2 ("GF(2)").
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Term = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Coefficients over the entries of A, of B and of C."""

FIELDS = {"Z": 0, "GF(2)": 2}
"""Name → modulus; 0: the integers."""
LIBRARY = Path(__file__).parent / "library"
"""Schemes that our own searches found, one file each."""
_LARGEST = 8


class SchemeError(ValueError):
    """A scheme, its format or its file is malformed or wrong. The message names the place."""


@dataclass(frozen=True)
class Format:
    """A small product: `rows`×`inner` by `inner`×`columns`. upper: A is upper triangular, its other entries 0."""

    rows: int
    inner: int
    columns: int
    upper: bool = False

    @classmethod
    def of(cls, text: str) -> Format:
        """`4x5x5` or `upper-4`. Raises SchemeError."""
        if match := re.fullmatch(r"(\d+)x(\d+)x(\d+)", text):
            sizes, upper = [int(size) for size in match.groups()], False
        elif match := re.fullmatch(r"upper-(\d+)", text):
            sizes, upper = [int(match[1])] * 3, True
        else:
            raise SchemeError(f"format: {text!r} is neither like 4x5x5 nor like upper-4")
        if not all(1 <= size <= _LARGEST for size in sizes):
            raise SchemeError(f"format: {text}: sizes are 1 to {_LARGEST}")
        return cls(sizes[0], sizes[1], sizes[2], upper)

    def __str__(self) -> str:
        return f"upper-{self.rows}" if self.upper else f"{self.rows}x{self.inner}x{self.columns}"

    @cached_property
    def left(self) -> tuple[tuple[int, int], ...]:
        """(row, column) of the entries of A that may differ from 0."""
        return tuple((i, j) for i, j in product(range(self.rows), range(self.inner)) if not self.upper or i <= j)

    @cached_property
    def right(self) -> tuple[tuple[int, int], ...]:
        return tuple(product(range(self.inner), range(self.columns)))

    @cached_property
    def out(self) -> tuple[tuple[int, int], ...]:
        return tuple(product(range(self.rows), range(self.columns)))

    @property
    def lengths(self) -> tuple[int, int, int]:
        """How many entries A, B and C have."""
        return len(self.left), len(self.right), len(self.out)

    def definition(self) -> list[tuple[int, int, int]]:
        """Places in A, B and C of each multiplication of the definition."""
        return [
            (self.left.index((i, j)), self.right.index((j, k)), self.out.index((i, k)))
            for i, j in self.left
            for k in range(self.columns)
        ]


@dataclass(frozen=True)
class Scheme:
    """Terms that claim to compute a format's product over a ring. `origin` says how it was found: method, seed,
    seconds, steps."""

    format: Format
    ring: str
    terms: tuple[Term, ...]
    origin: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        if self.ring not in FIELDS:
            raise SchemeError(f"ring: {self.ring!r} is none of {', '.join(FIELDS)}")
        lengths = self.format.lengths
        for number, term in enumerate(self.terms):
            if tuple(map(len, term)) != lengths:
                raise SchemeError(f"terms[{number}]: has {tuple(map(len, term))} coefficients, not {lengths}")

    @property
    def rank(self) -> int:
        return len(self.terms)

    @property
    def name(self) -> str:
        return f"{self.format}-rank-{self.rank}-{self.ring.replace('(', '').replace(')', '').lower()}"

    def factors(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(rank, entries) of A, B and C."""
        left, right, out = (np.array([term[axis] for term in self.terms], np.int64) for axis in range(3))
        return left, right, out

    def to_json(self) -> dict[str, Any]:
        return {
            "format": str(self.format),
            "ring": self.ring,
            "rank": self.rank,
            "origin": self.origin,
            "terms": [list(map(list, term)) for term in self.terms],
        }

    @classmethod
    def from_json(cls, value: object) -> Scheme:
        """Raises SchemeError that names the field. What it returns is not verified: see `check`."""
        if not isinstance(value, dict):
            raise SchemeError("scheme: expected an object")
        missing = {"format", "ring", "rank", "terms"} - set(value)
        if missing:
            raise SchemeError(f"scheme: no field {min(missing)!r}")
        try:
            terms = tuple((tuple(a), tuple(b), tuple(c)) for a, b, c in value["terms"])
            whole = all(type(x) is int for term in terms for factor in term for x in factor)
        except (TypeError, ValueError) as error:
            raise SchemeError("terms: each is three lists of integers") from error
        if not whole:
            raise SchemeError("terms: each is three lists of integers")
        scheme = cls(Format.of(str(value["format"])), str(value["ring"]), terms, dict(value.get("origin") or {}))
        if scheme.rank != value["rank"]:
            raise SchemeError(f"rank: {value['rank']}, and there are {scheme.rank} terms")
        return scheme


def definition(format_: Format, ring: str = "Z") -> Scheme:
    """The product by its definition: a term for each multiplication."""
    units = [np.eye(length, dtype=int).tolist() for length in format_.lengths]
    terms = tuple((tuple(units[0][a]), tuple(units[1][b]), tuple(units[2][c])) for a, b, c in format_.definition())
    return Scheme(format_, ring, terms)


def fault_of(scheme: Scheme) -> str:
    """Where a scheme is wrong, in words; empty where it is exact. Every entry of A is multiplied by every entry of
    B, in Python's integers, and the product is compared with what a matrix product puts there. It shares no code
    with those who find, lift or compile schemes."""
    form, modulus = scheme.format, FIELDS[scheme.ring]
    for a, (row, inner) in enumerate(form.left):
        for b, (other, column) in enumerate(form.right):
            for c, place in enumerate(form.out):
                total = sum(left[a] * right[b] * out[c] for left, right, out in scheme.terms)
                due = int(inner == other and place == (row, column))
                if (total - due) % modulus if modulus else total != due:
                    return f"A{row, inner} · B{other, column} adds {total} to C{place}, and should add {due}"
    return ""


def check(scheme: Scheme) -> Scheme:
    """The scheme itself. Raises SchemeError where it is not exact over its ring."""
    if fault := fault_of(scheme):
        raise SchemeError(f"{scheme.name}: {fault}")
    return scheme


def read(path: Path) -> Scheme:
    """A scheme's file, verified. Raises SchemeError."""
    try:
        return check(Scheme.from_json(json.loads(path.read_text())))
    except (OSError, ValueError) as error:
        raise SchemeError(f"{path}: {error}") from error


def write(scheme: Scheme, folder: Path) -> Path:
    """Verify a scheme and write it: one term a line."""
    record = check(scheme).to_json()
    terms = ",\n  ".join(json.dumps(term, separators=(",", ":")) for term in record.pop("terms"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{scheme.name}.json"
    path.write_text(json.dumps(record, indent=1)[:-2] + f',\n "terms": [\n  {terms}\n ]\n}}\n')
    return path


def known(format_: Format, ring: str) -> Scheme | None:
    """Of the library, the scheme of least rank; None where it holds none."""
    paths = LIBRARY.glob(f"{format_}-rank-*-{ring.replace('(', '').replace(')', '').lower()}.json")
    return min(map(read, paths), key=lambda scheme: scheme.rank, default=None)


def packed(scheme: Scheme) -> list[list[int]]:
    """Modulo 2, the coefficients of each factor as bits of an integer: a list for A, B and C."""
    return [[sum((x & 1) << i for i, x in enumerate(term[axis])) for term in scheme.terms] for axis in range(3)]


def unpacked(format_: Format, bits: Sequence[Sequence[int]], origin: dict[str, Any]) -> Scheme:
    """The inverse of `packed`: a scheme over GF(2)."""
    rows = [
        [tuple(word >> i & 1 for i in range(length)) for word in words]
        for words, length in zip(bits, format_.lengths, strict=True)
    ]
    return Scheme(format_, "GF(2)", tuple(zip(*rows, strict=True)), origin)
