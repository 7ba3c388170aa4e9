"""Operations that torch has no operator for, as users write them out: stencils, particle weights, quantisation, and
rotary embeddings of interleaved pairs.

Views (slices, unsqueeze) cost no GPU time and are no units, so what is left of such code is its arithmetic. The
sequences are those of `kernels.ops`, with the spellings that mean the same (square or pow, a norm or the root
of a sum, a scalar or a tensor as weight).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nightshift.kernels.profile.operators import Unit
from nightshift.kernels.profile.pattern import Bind, Found, Pattern, dims, dtype, layout, rows_of

SQUARE = "square|pow|mul"
_INT8 = "1"
"""c10::ScalarType::Char, as an operator's dtype argument is recorded."""


def concrete(unit: Unit, position: int) -> str:
    """An argument that is no tensor, as text; empty where it was not recorded."""
    told = unit.signature.concrete
    return told[position] if position < len(told) else ""


def over_last(unit: Unit) -> bool:
    """Whether a reduction is over the last dimension only."""
    rank = len(dims(unit, 0))
    return concrete(unit, 1) in ("[-1]", "-1", f"[{rank - 1}]", str(rank - 1))


def _stencil(size: int) -> Bind:
    def bind(units: Sequence[Unit]) -> Found | None:
        """x padded by zeros, then Σ weight[a, b] · (x shifted by a, b)."""
        x, kind = dims(units[0], 0), dtype(units[0], 0)
        if len(x) < 2 or kind != "float32" or concrete(units[0], 1) != str([size // 2] * 4):
            return None
        products = [unit for unit in units if unit.base == "mul"]
        sums = [unit for unit in units if unit.base == "add"]
        if not all(sorted((dims(u, 0), dims(u, 1))) == [(), x] for u in products):
            return None
        if not all(dims(u, 0) == dims(u, 1) == x for u in sums):
            return None
        return _planes(size, x, kind, layout(units[0], 0))

    return bind


def _planes(size: int, x: tuple[int, ...], kind: str, how: str) -> Found:
    sizes = {"c": math.prod(x[:-2]), "h": x[-2], "w": x[-1], "k": size}
    return Found(f"stencil_{size}x{size}", sizes, kind, how)


def _convolution(units: Sequence[Unit]) -> Found | None:
    """A convolution of single planes with one square filter is a stencil; of channels it is none of ours."""
    unit = units[0]
    x, weight = dims(unit, 0), dims(unit, 1)
    size = weight[-1] if weight else 0
    one, half = "[1, 1]", str([size // 2] * 2)
    plain = (concrete(unit, 3), concrete(unit, 4), concrete(unit, 5)) == (one, half, one)
    if not plain or size not in (3, 5) or dims(unit, 2) or dtype(unit, 0) != "float32":
        return None
    if len(x) != 4 or x[1] != 1 or weight != (1, 1, size, size):
        return None
    return _planes(size, (x[0], x[2], x[3]), "float32", layout(unit, 0))


def _particles(units: Sequence[Unit]) -> Found | None:
    """Distances of m particles to k landmarks, Gaussian log likelihoods, normalised by their log-sum-exp."""
    first = units[0]
    if first.base == "cdist":
        place, landmark = dims(first, 0), dims(first, 1)
    else:
        a, b = dims(first, 0), dims(first, 1)
        if len(a) != 3 or len(b) != 3 or a[1] != 1 or b[0] != 1:
            return None
        place, landmark = (a[0], a[2]), (b[1], b[2])
    if len(place) != 2 or len(landmark) != 2 or place[1] != 2 or landmark[1] != 2 or dtype(first, 0) != "float32":
        return None
    last = next(unit for unit in reversed(units) if unit.base in ("logsumexp", "log_softmax"))
    if dims(last, 0) != place[:1]:
        return None
    return Found("particle_weights", {"m": place[0], "k": landmark[0]}, "float32", layout(first, 0))


def _quantise(units: Sequence[Unit]) -> Found | None:
    """Codes of 8 bits and a scale for each row, from the row's largest magnitude."""
    magnitude = next(unit for unit in units if unit.base == "abs")
    reduction = next(unit for unit in units if unit.base in ("amax", "max"))
    x, last = dims(magnitude, 0), units[-1]
    first = units[0] if units[0].base in ("to", "_to_copy") else magnitude
    kind = dtype(first, 0)
    if len(x) < 2 or dims(first, 0) != x or not over_last(reduction) or not kind or dims(last, 0) != x:
        return None
    if _INT8 not in last.signature.concrete[1:3]:
        return None
    return Found("quantise", rows_of(x), kind, layout(first, 0))


def _dequantise(units: Sequence[Unit]) -> Found | None:
    """Codes of 8 bits times their row's scale."""
    code, product = units[0], units[-1]
    position = next((p for p in range(2) if dims(product, p)[-1:] == (1,)), None)
    x = dims(code, 0) if code is not product else dims(product, 1 - (position or 0))
    if position is None or len(x) < 2 or dims(product, position) != (*x[:-1], 1):
        return None
    kind, source = dtype(product, position), dtype(code, 0 if code is not product else 1 - position)
    return Found("dequantise", rows_of(x), kind, layout(code, 0)) if source == "int8" and kind else None


def _interleaved(units: Sequence[Unit]) -> Found | None:
    """(even · cos − odd · sin, even · sin + odd · cos), laid side by side again."""
    first, last = units[0], units[-1]
    half, table, kind = dims(first, 0), dims(first, 1), dtype(first, 0)
    products = [unit for unit in units if unit.base == "mul"]
    if len(half) != 4 or not kind:
        return None
    by_head = table[-2:] == half[2:] and math.prod(table) == half[2] * half[3]
    by_position = table[-3:] == (half[1], 1, half[3]) and math.prod(table) == half[1] * half[3] and half[1] > 1
    if not by_head and not by_position:
        return None
    if not all((dims(u, 0), dims(u, 1)) == (half, table) for u in products):
        return None
    strides = first.signature.strides[0] if first.signature.strides else ()
    apart = isinstance(strides, tuple) and bool(strides) and strides[-1] == 2
    if concrete(last, 1) not in ("-1", str(len(half))) or not apart:
        return None
    if by_position:
        b, s, h, d = half
        return Found("rotary_interleaved_by_position", {"b": b, "h": h, "s": s, "d": 2 * d}, kind)
    b, h, s, d = half
    return Found("rotary_interleaved", {"b": b, "h": h, "s": s, "d": 2 * d}, kind)


def _shifted_sums(size: int) -> tuple[Pattern, ...]:
    terms = size * size
    return (
        Pattern(("pad|constant_pad_nd", "zeros_like|zeros?", *("mul", "add") * terms), _stencil(size)),
        Pattern(("pad|constant_pad_nd", "mul", *("mul", "add") * (terms - 1)), _stencil(size)),
    )


_LIKELIHOOD = ("sub", "div|mul", SQUARE, "sum", "mul", "add")
WRITTEN_OUT: tuple[Pattern, ...] = (
    *_shifted_sums(5),
    *_shifted_sums(3),
    Pattern(("conv2d",), _convolution),
    *(
        Pattern((*distance, *_LIKELIHOOD, *end), _particles)
        for distance in (
            ("sub", SQUARE, "sum", "sqrt"),
            ("sub", "linalg_vector_norm|linalg_norm|norm"),
            ("cdist",),
        )
        for end in (("logsumexp", "sub"), ("log_softmax",))
    ),
    Pattern(
        ("to?", "_to_copy?", "abs", "amax|max", "clamp|clamp_min?", "div|mul", "div|mul", "round", "clamp?", "to"),
        _quantise,
    ),
    Pattern(("to", "mul"), _dequantise),
    Pattern(("mul",), _dequantise),
    Pattern(("mul", "mul", "sub", "mul", "mul", "add", "stack"), _interleaved),
)
"""The longest first. Of operators that other families begin with too, the binding function takes only its own."""
