"""A pattern: operators in a row that compute a problem, and how sizes, dtype and layout are read off them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.kernels.profile.operators import OperatorCall

DTYPES = {
    "float": "float32",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "double": "float64",
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "signed char": "int8",
}
Sizes = Mapping[str, int]
PRODUCTS = ("matmul", "linear", "linear_bias", "linear_weight_gradient", "linear_weight_gradient_wide")
"""Matrix products, by which operand lies transposed: none, the right one (without a bias, with one), the left."""
BIASED = "it adds a bias"
"""The note of a product that is not all of its operator."""


@dataclass(frozen=True)
class ProblemMatch:
    """A problem in a trace: its name, sizes and dtype; `layout` of the first input; what could not be said."""

    problem: str
    sizes: Sizes
    dtype: str
    layout: str = "contiguous"
    note: str = ""


Bind = Callable[[Sequence[OperatorCall]], ProblemMatch | None]


@dataclass(frozen=True)
class Pattern:
    """names: alternatives are separated by `|`, an optional operator ends with `?`, a name's beginning with `*`.

    ahead: what has to follow; the binding function sees it, but it is not taken."""

    names: tuple[str, ...]
    bind: Bind
    ahead: tuple[str, ...] = ()

    def match(self, units: Sequence[OperatorCall]) -> tuple[int, ProblemMatch] | None:
        """(how many units it takes, what they are) at the beginning of `units`; None where it does not fit."""
        seen: list[OperatorCall] = []
        at = taken = 0
        for number, name in enumerate((*self.names, *self.ahead)):
            optional = name.endswith("?")
            if at < len(units) and _is_one_of(units[at].base, name.rstrip("?")):
                seen.append(units[at])
                at += 1
            elif not optional:
                return None
            taken = at if number < len(self.names) else taken
        found = self.bind(seen)
        return (taken, found) if found is not None else None


def _is_one_of(base: str, wanted: str) -> bool:
    return any(base.startswith(name[:-1]) if name.endswith("*") else base == name for name in wanted.split("|"))


def dims(unit: OperatorCall, position: int) -> tuple[int, ...]:
    """Sizes of an argument; empty where it is no tensor or was not recorded."""
    listed = unit.signature.dims
    value: Any = listed[position] if position < len(listed) else ()
    return value if isinstance(value, tuple) and all(isinstance(size, int) and size >= 0 for size in value) else ()


def strides(unit: OperatorCall, position: int) -> tuple[int, ...]:
    """How far apart an argument's elements lie; empty where it is no tensor or was not recorded."""
    listed = unit.signature.strides
    value: Any = listed[position] if position < len(listed) else ()
    return value if isinstance(value, tuple) and all(isinstance(one, int) for one in value) else ()


def dtype(unit: OperatorCall, position: int) -> str:
    listed = unit.signature.dtypes
    return DTYPES.get(listed[position], "") if position < len(listed) else ""


def layout(unit: OperatorCall, position: int) -> str:
    """contiguous, padded (rows further apart than they are long) or transposed, as `kernels.judge.probes.inputs`
    says."""
    sizes, apart = dims(unit, position), strides(unit, position)
    if not sizes or len(apart) != len(sizes):
        return "contiguous"
    expected, plain = 1, True
    for size, stride in zip(reversed(sizes), reversed(apart), strict=True):
        # a dimension of one may have any stride
        plain = plain and (stride == expected or size == 1)
        expected *= max(1, size)
    if plain:
        return "contiguous"
    return "padded" if apart[-1] == 1 else "transposed"


def turned(unit: OperatorCall, position: int) -> bool:
    """Whether an argument is a matrix whose columns lie one after the other."""
    sizes = dims(unit, position)
    return len(sizes) == 2 and min(sizes) > 1 and strides(unit, position) == (1, sizes[0])


def side_by_side(unit: OperatorCall, position: int) -> str:
    """How (b, h, s, d) lies of which a projection made (b, s, h, d): contiguous, or sliced, positions further apart
    than their heads are long (`kernels.judge.probes.layouts.place`); empty where it lies otherwise, or heads are
    first."""
    sizes, apart = dims(unit, position), strides(unit, position)
    if len(sizes) != 4 or len(apart) != 4:
        return ""
    (b, h, s, d), (batch, head, row, one) = sizes, apart
    if one != 1 or (head != d and h > 1) or (batch != s * row and b > 1) or row < h * d or h == 1:
        return ""
    return "contiguous" if row == h * d else "sliced"


def rows_of(sizes: tuple[int, ...]) -> dict[str, int]:
    return {"m": math.prod(sizes[:-1]), "n": sizes[-1]}


def rowwise(problem: str, unit: OperatorCall, position: int = 0, last: str = "n") -> ProblemMatch | None:
    sizes, kind = dims(unit, position), dtype(unit, position)
    if len(sizes) < 2 or not kind:
        return None
    named = rows_of(sizes)
    return ProblemMatch(problem, {"m": named["m"], last: named["n"]}, kind, layout(unit, position))
