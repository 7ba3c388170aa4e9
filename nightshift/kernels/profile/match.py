"""Which problem a run of operators is: the families that we can write kernels for, found in what a model called.

A pattern is a sequence of operator names, some optional, and a function that reads the sizes from the recorded
shapes; None means that the shapes do not fit after all. Longer patterns are tried first. An operator that no
pattern takes is reported as such: it is never forced into a family. Operations that users write out as long runs of
elementwise operators stand in `written_out`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from nightshift.kernels.profile.bent import UNKNOWN_FORM, UNTRAINED_PATTERNS, gelu_form
from nightshift.kernels.profile.operators import Unit
from nightshift.kernels.profile.pattern import (
    BIASED,
    DTYPES,
    Bind,
    Found,
    Pattern,
    dims,
    dtype,
    layout,
    rows_of,
    rowwise,
    side_by_side,
    strides,
    turned,
)
from nightshift.kernels.profile.written_out import WRITTEN_OUT


def _rmsnorm(units: Sequence[Unit]) -> Found | None:
    """pow or x·x, mean, (+ eps), rsqrt, · x, · weight. With `to` first the input is of fewer bits than the sum."""
    power = next(u for u in units if u.base in ("pow", "mul", "square"))
    weighted = units[-1]
    sizes = dims(power, 0)
    if len(sizes) < 2 or (dims(weighted, 1) or dims(weighted, 0))[-1:] != sizes[-1:]:
        return None
    weight = dims(weighted, 1) if len(dims(weighted, 1)) == 1 else dims(weighted, 0)
    if len(weight) != 1:
        return None  # no weight: another operation
    first = units[0]
    narrow = first.base in ("to", "_to_copy") and dims(first, 0) == sizes
    kind = dtype(first, 0) if narrow else dtype(power, 0)
    return Found("rmsnorm", rows_of(sizes), kind, layout(power, 0)) if kind else None


def _rmsnorm_residual(units: Sequence[Unit]) -> Found | None:
    add, rest = units[0], units[1:]
    found = _native_rmsnorm(rest) if "rms_norm" in rest[0].base else _rmsnorm(rest)
    if found is None or dims(add, 0) != dims(add, 1) or rows_of(dims(add, 0) or (0, 0)) != found.sizes:
        return None
    if dtype(add, 0) != dtype(add, 1) or dtype(add, 0) != found.dtype:
        return None  # a sum of mixed dtypes: the norm alone is taken
    return Found("rmsnorm_residual", found.sizes, found.dtype, found.layout)


def _native_rmsnorm(units: Sequence[Unit]) -> Found | None:
    return rowwise("rmsnorm", units[0])


def _layernorm(units: Sequence[Unit]) -> Found | None:
    unit = units[0]
    return rowwise("layernorm", unit) if dims(unit, 2) and dims(unit, 3) else None


def _softmax(units: Sequence[Unit]) -> Found | None:
    unit = units[0]
    concrete = unit.signature.concrete
    axis = concrete[1] if len(concrete) > 1 else ""
    rank = len(dims(unit, 0))
    return rowwise("softmax", unit) if axis in ("-1", str(rank - 1), "") else None


def _cross_entropy(units: Sequence[Unit]) -> Found | None:
    """A cast of the logits to float before it is taken along: a kernel reads the narrow ones as well."""
    loss = next(u for u in units if u.base in ("cross_entropy_loss", "log_softmax", "_log_softmax"))
    found = rowwise("cross_entropy", loss, last="v")
    if found is None:
        return None
    first = units[0]
    if (
        first.base in ("to", "_to_copy")
        and dtype(first, 0)
        and math.prod(dims(first, 0)) == math.prod(dims(loss, 0))
    ):
        note = "logits are cast to float32 first"
        return Found("cross_entropy_cast", found.sizes, dtype(first, 0), found.layout, note)
    return found


def _attention(units: Sequence[Unit]) -> Found | None:
    unit = units[0]
    q, k, v = (dims(unit, position) for position in range(3))
    concrete = unit.signature.concrete
    causal = "True" in concrete[3:]
    if len(q) != 4 or k != q or v != q or dims(unit, 3) or not causal or not dtype(unit, 0):
        return None
    sizes, kind = dict(zip("bhsd", q, strict=True)), dtype(unit, 0)
    lies = {side_by_side(unit, position) for position in range(3)}
    if "" not in lies:
        return Found("flash_attention_by_position", sizes, kind, "sliced" if "sliced" in lies else "contiguous")
    return Found("flash_attention", sizes, kind, layout(unit, 0))


def _linear(units: Sequence[Unit]) -> Found | None:
    """x (…, k) · weight (n, k)ᵀ, plus a bias. Under autocast the recorded inputs may be wider than what is
    multiplied."""
    unit = units[0]
    x, w = dims(unit, 0), dims(unit, 1)
    if len(x) < 1 or len(w) != 2 or x[-1] != w[1]:
        return None
    kind = DTYPES.get(unit.computed, "") or dtype(unit, 1)
    if not kind:
        return None
    columns, biased = turned(unit, 1), bool(dims(unit, 2))
    notes = ["autocast converts its operands"] * (kind != dtype(unit, 1)) + [BIASED] * (columns and biased)
    sizes = {"m": math.prod(x[:-1]), "n": w[0], "k": w[1]}
    name = "matmul" if columns else "linear_bias" if biased else "linear"
    return Found(name, sizes, kind, layout(unit, 0), "; ".join(notes))


def _matmul(units: Sequence[Unit]) -> Found | None:
    unit = units[0]
    shift = 1 if unit.base == "addmm" else 0
    a, b = dims(unit, shift), dims(unit, shift + 1)
    if len(a) < 2 or len(b) != 2 or a[-1] != b[0] or not dtype(unit, shift):
        return None
    kind, left, right = dtype(unit, shift), turned(unit, shift), turned(unit, shift + 1)
    if left and not right:
        return Found("linear_weight_gradient", {"m": a[1], "n": a[0], "k": b[1]}, kind)
    sizes = {"m": math.prod(a[:-1]), "n": b[1], "k": b[0]}
    rows, biased = right and not left, shift and dims(unit, 0) == (b[1],)
    name = "matmul" if not rows else "linear_bias" if biased else "linear"
    return Found(name, sizes, kind, layout(unit, shift), BIASED if shift and name != "linear_bias" else "")


def _gated(problem: str) -> Bind:
    def bind(units: Sequence[Unit]) -> Found | None:
        act, product = units[0], units[-1]
        if not dims(act, 0) or dims(product, 0) != dims(product, 1) or dims(product, 0) != dims(act, 0):
            return None
        return rowwise(problem, act)

    return bind


def _geglu(units: Sequence[Unit]) -> Found | None:
    """Of the tanh form alone: the exact one's kernel is a gelu, and a product."""
    form = gelu_form(units[0])
    found = _gated("geglu")(units) if form != "none" else None
    return replace(found, note=_TANH_TAKEN) if found is not None and not form else found


def _gelu(units: Sequence[Unit]) -> Found | None:
    form = gelu_form(units[0])
    found = rowwise("gelu", units[0]) if form != "tanh" else None
    return replace(found, note=UNKNOWN_FORM) if found is not None and not form else found


def _fused_mlp(units: Sequence[Unit]) -> Found | None:
    linears = [unit for unit in units if unit.base == "linear"]
    first, second, last = (dims(unit, 1) for unit in linears)
    x = dims(linears[0], 0)
    if first != second or len(first) != 2 or last != (first[1], first[0]) or not x or not dtype(linears[0], 0):
        return None
    sizes = {"m": math.prod(x[:-1]), "d": first[1], "f": first[0]}
    return Found("fused_mlp", sizes, dtype(linears[0], 0), layout(linears[0], 0))


def _dropout_add(units: Sequence[Unit]) -> Found | None:
    drop, add = units
    if dims(drop, 0) != dims(add, 0) or dims(add, 0) != dims(add, 1):
        return None
    found = rowwise("dropout_add", drop)
    return Found(found.problem, found.sizes, found.dtype, found.layout, "another random stream") if found else None


def _embedding(units: Sequence[Unit]) -> Found | None:
    unit = units[0]
    table, index = dims(unit, 0), dims(unit, 1)
    if len(table) != 2 or not index or not dtype(unit, 0) or unit.backward_s <= unit.forward_s:
        return None
    sizes = {"t": math.prod(index), "d": table[1], "v": table[0]}
    return Found("embedding_gradient", sizes, dtype(unit, 0))


def _reduce(problem: str) -> Bind:
    def bind(units: Sequence[Unit]) -> Found | None:
        unit = units[0]
        concrete = unit.signature.concrete
        axis = concrete[1] if len(concrete) > 1 else ""
        if axis not in ("[-1]", f"[{len(dims(unit, 0)) - 1}]", "-1"):
            return None
        return rowwise(problem, unit)

    return bind


def _rotary_half(units: Sequence[Unit]) -> Found | None:
    """q·cos + rotated(q)·sin, then the same of k."""
    first, second = (next(u for u in part if u.base == "mul") for part in (units, units[len(units) // 2 :]))
    q, k = dims(first, 0), dims(second, 0)
    if len(q) != 4 or len(k) != 4 or not dtype(first, 0):
        return None
    kind, table = dtype(first, 0), dims(first, 1)
    if table[-3:] == (q[1], 1, q[3]) and math.prod(table) == q[1] * q[3] and q[1] > 1:
        if (q[0], q[1], q[3]) != (k[0], k[1], k[3]):
            return None
        sizes = {"b": q[0], "h": q[2], "g": k[2], "s": q[1], "d": q[3]}
        return Found("rotary_half_by_position", sizes, kind, layout(first, 0))
    if (q[0], q[2], q[3]) != (k[0], k[2], k[3]):
        return None
    if math.prod(table) == q[2] * q[3] and table[-2:] == q[2:]:
        sizes = {"b": q[0], "h": q[1], "g": k[1], "s": q[2], "d": q[3]}
        # heads first, of memory that has positions first: a projection's output, turned
        turned_back = strides(first, 0) == (q[1] * q[2] * q[3], q[3], q[1] * q[3], 1) and q[1] > 1
        if turned_back:
            return Found("rotary_half_by_position", sizes, kind)
        return Found("rotary_half", sizes, kind, layout(first, 0))
    return None


_RMS = ("to?", "_to_copy?", "pow|mul|square", "mean", "add?", "rsqrt", "mul", "to?", "_to_copy?", "mul")
_MOVED = "reshape|contiguous|clone|copy?"
"""What lays the targets out between the logits' cast and the loss."""
_TURN = ("mul", "neg", "cat", "mul", "add")
PATTERNS: tuple[Pattern, ...] = (
    *WRITTEN_OUT,
    Pattern(("add", *_RMS), _rmsnorm_residual),
    Pattern(_RMS, _rmsnorm),
    Pattern((*_TURN, *_TURN), _rotary_half),
    Pattern(("linear", "silu", "linear", "mul", "linear"), _fused_mlp),
    Pattern(("linear", "linear", "silu", "mul", "linear"), _fused_mlp),
    Pattern(("add", "rms_norm|_fused_rms_norm"), _rmsnorm_residual),
    Pattern(("rms_norm|_fused_rms_norm",), _native_rmsnorm),
    Pattern(("layer_norm|native_layer_norm",), _layernorm),
    Pattern(("to?", "_to_copy?", _MOVED, "cross_entropy_loss"), _cross_entropy),
    Pattern(
        ("to?", "_to_copy?", _MOVED, "log_softmax|_log_softmax", "nll_loss|nll_loss_nd|nll_loss_forward"),
        _cross_entropy,
    ),
    Pattern(("softmax|_softmax",), _softmax),
    Pattern(("scaled_dot_product_attention",), _attention),
    Pattern(("silu", "mul"), _gated("swiglu")),
    Pattern(("gelu", "mul"), _geglu),
    Pattern(("gelu",), _gelu),
    Pattern(("dropout|native_dropout", "add"), _dropout_add),
    Pattern(("linear",), _linear),
    Pattern(("mm|matmul|addmm",), _matmul),
    Pattern(("embedding",), _embedding),
    Pattern(("sum",), _reduce("reduce_sum")),
    Pattern(("amax|max",), _reduce("max")),
)


LONGEST = max(len(pattern.names) + len(pattern.ahead) for pattern in (*UNTRAINED_PATTERNS, *PATTERNS))
_TANH_TAKEN = "which form of GELU was not recorded; taken as the tanh one"


def segments(units: Sequence[Unit], parameters: int = 0) -> list[tuple[tuple[Unit, ...], Found | None]]:
    """The units in groups: those of a problem together, each other one alone. `parameters`: elements that an
    optimiser step works on."""
    made: list[tuple[tuple[Unit, ...], Found | None]] = []
    trained = parameters > 0 or any(unit.backward_s > 0 for unit in units)
    patterns = PATTERNS if trained else (*UNTRAINED_PATTERNS, *PATTERNS)
    at = 0
    while at < len(units):
        same = [u for u in units[at : at + LONGEST] if (u.step, u.track) == (units[at].step, units[at].track)]
        if units[at].name.startswith("Optimizer.step#Adam") and parameters:
            made.append(
                ((units[at],), Found("adamw", {"n": parameters}, "float32", note="all parameters together"))
            )
            at += 1
            continue
        taken, found = next((hit for p in patterns if (hit := p.match(same)) is not None), (1, None))
        made.append((tuple(units[at : at + taken]), found))
        at += taken
    return made
