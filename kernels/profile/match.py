"""Which problem a run of operators is: the families that we can write kernels for, found in what a model called.

A pattern is a sequence of operator names, some optional, and a function that reads the sizes from the recorded
shapes; None means that the shapes do not fit after all. Longer patterns are tried first. An operator that no
pattern takes is reported as such: it is never forced into a family.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.profile.operators import Unit

DTYPES = {
    "float": "float32",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "double": "float64",
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
}
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Cost:
    """What any implementation must move (bytes) and calculate (operations), forward and backward."""

    forward_bytes: float
    forward_flops: float
    backward_bytes: float
    backward_flops: float


@dataclass(frozen=True)
class Found:
    """A problem in a trace: its name, sizes and dtype; `layout` of the first input; what could not be said."""

    problem: str
    sizes: Sizes
    dtype: str
    layout: str = "contiguous"
    note: str = ""


Bind = Callable[[Sequence[Unit]], Found | None]


@dataclass(frozen=True)
class Pattern:
    """names: alternatives are separated by `|`, an optional operator ends with `?`."""

    names: tuple[str, ...]
    bind: Bind

    def match(self, units: Sequence[Unit]) -> tuple[int, Found] | None:
        """(how many units it takes, what they are) at the beginning of `units`; None where it does not fit."""
        taken: list[Unit] = []
        at = 0
        for name in self.names:
            optional = name.endswith("?")
            wanted = name.rstrip("?").split("|")
            if at < len(units) and units[at].base in wanted:
                taken.append(units[at])
                at += 1
            elif not optional:
                return None
        found = self.bind(taken)
        return (at, found) if found is not None else None


def dims(unit: Unit, position: int) -> tuple[int, ...]:
    """Sizes of an argument; empty where it is no tensor or was not recorded."""
    listed = unit.signature.dims
    value: Any = listed[position] if position < len(listed) else ()
    return value if isinstance(value, tuple) and all(isinstance(size, int) for size in value) else ()


def dtype(unit: Unit, position: int) -> str:
    listed = unit.signature.dtypes
    return DTYPES.get(listed[position], "") if position < len(listed) else ""


def layout(unit: Unit, position: int) -> str:
    """contiguous, padded (rows further apart than they are long) or transposed, as `kernels.judge.inputs` says."""
    sizes = dims(unit, position)
    listed = unit.signature.strides
    strides: Any = listed[position] if position < len(listed) else ()
    if not sizes or not isinstance(strides, tuple) or len(strides) != len(sizes):
        return "contiguous"
    expected, plain = 1, True
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        plain = plain and (stride == expected or size == 1)
        expected *= max(1, size)
    if plain:
        return "contiguous"
    return "padded" if strides[-1] == 1 else "transposed"


def _rows(sizes: tuple[int, ...]) -> dict[str, int]:
    return {"m": math.prod(sizes[:-1]), "n": sizes[-1]}


def _rowwise(problem: str, unit: Unit, position: int = 0, last: str = "n") -> Found | None:
    sizes, kind = dims(unit, position), dtype(unit, position)
    if len(sizes) < 2 or not kind:
        return None
    named = _rows(sizes)
    return Found(problem, {"m": named["m"], last: named["n"]}, kind, layout(unit, position))


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
    return Found("rmsnorm", _rows(sizes), kind, layout(power, 0)) if kind else None


def _rmsnorm_residual(units: Sequence[Unit]) -> Found | None:
    add, rest = units[0], units[1:]
    found = _rmsnorm(rest)
    if found is None or dims(add, 0) != dims(add, 1) or _rows(dims(add, 0) or (0, 0)) != found.sizes:
        return None
    if dtype(add, 0) != dtype(add, 1) or dtype(add, 0) != found.dtype:
        return None  # a sum of mixed dtypes: the norm alone is taken
    return Found("rmsnorm_residual", found.sizes, found.dtype, found.layout)


def _native_rmsnorm(units: Sequence[Unit]) -> Found | None:
    return _rowwise("rmsnorm", units[0])


def _layernorm(units: Sequence[Unit]) -> Found | None:
    unit = units[0]
    return _rowwise("layernorm", unit) if dims(unit, 2) and dims(unit, 3) else None


def _softmax(units: Sequence[Unit]) -> Found | None:
    unit = units[0]
    concrete = unit.signature.concrete
    axis = concrete[1] if len(concrete) > 1 else ""
    rank = len(dims(unit, 0))
    return _rowwise("softmax", unit) if axis in ("-1", str(rank - 1), "") else None


def _cross_entropy(units: Sequence[Unit]) -> Found | None:
    """A cast of the logits to float before it is taken along: a kernel reads the narrow ones as well."""
    loss = next(u for u in units if u.base in ("cross_entropy_loss", "log_softmax", "_log_softmax"))
    found = _rowwise("cross_entropy", loss, last="v")
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
    sizes = dict(zip("bhsd", q, strict=True))
    return Found("flash_attention", sizes, dtype(unit, 0), layout(unit, 0))


def _linear(units: Sequence[Unit]) -> Found | None:
    """x (…, k) · weight (n, k)ᵀ. Under autocast the recorded inputs may be wider than what is multiplied."""
    unit = units[0]
    x, w = dims(unit, 0), dims(unit, 1)
    if len(x) < 1 or len(w) != 2 or x[-1] != w[1]:
        return None
    kind = DTYPES.get(unit.computed, "") or dtype(unit, 1)
    if not kind:
        return None
    note = "autocast converts its operands" if kind != dtype(unit, 1) else ""
    return Found("matmul", {"m": math.prod(x[:-1]), "n": w[0], "k": w[1]}, kind, layout(unit, 0), note)


def _matmul(units: Sequence[Unit]) -> Found | None:
    unit = units[0]
    shift = 1 if unit.base == "addmm" else 0
    a, b = dims(unit, shift), dims(unit, shift + 1)
    if len(a) < 2 or len(b) != 2 or a[-1] != b[0] or not dtype(unit, shift):
        return None
    return Found("matmul", {"m": math.prod(a[:-1]), "n": b[1], "k": b[0]}, dtype(unit, shift), layout(unit, shift))


def _gated(problem: str) -> Bind:
    def bind(units: Sequence[Unit]) -> Found | None:
        act, product = units[0], units[-1]
        if not dims(act, 0) or dims(product, 0) != dims(product, 1) or dims(product, 0) != dims(act, 0):
            return None
        return _rowwise(problem, act)

    return bind


def _gelu(units: Sequence[Unit]) -> Found | None:
    concrete = units[0].signature.concrete
    return None if "tanh" in concrete[1:] else _rowwise("gelu", units[0])


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
    found = _rowwise("dropout_add", drop)
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
        return _rowwise(problem, unit)

    return bind


def _rotary_half(units: Sequence[Unit]) -> Found | None:
    """q·cos + rotated(q)·sin, then the same of k."""
    first, second = (next(u for u in part if u.base == "mul") for part in (units, units[len(units) // 2 :]))
    q, k = dims(first, 0), dims(second, 0)
    if len(q) != 4 or len(k) != 4 or (q[0], q[2], q[3]) != (k[0], k[2], k[3]) or not dtype(first, 0):
        return None
    sizes = {"b": q[0], "h": q[1], "g": k[1], "s": q[2], "d": q[3]}
    return Found("rotary_half", sizes, dtype(first, 0), layout(first, 0))


_RMS = ("to?", "_to_copy?", "pow|mul|square", "mean", "add?", "rsqrt", "mul", "to?", "_to_copy?", "mul")
_MOVED = "reshape|contiguous|clone|copy?"
"""What lays the targets out between the logits' cast and the loss."""
_TURN = ("mul", "neg", "cat", "mul", "add")
PATTERNS: tuple[Pattern, ...] = (
    Pattern(("add", *_RMS), _rmsnorm_residual),
    Pattern(_RMS, _rmsnorm),
    Pattern((*_TURN, *_TURN), _rotary_half),
    Pattern(("linear", "silu", "linear", "mul", "linear"), _fused_mlp),
    Pattern(("linear", "linear", "silu", "mul", "linear"), _fused_mlp),
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
    Pattern(("gelu", "mul"), _gated("geglu")),
    Pattern(("gelu",), _gelu),
    Pattern(("dropout|native_dropout", "add"), _dropout_add),
    Pattern(("linear",), _linear),
    Pattern(("mm|matmul|addmm",), _matmul),
    Pattern(("embedding",), _embedding),
    Pattern(("sum",), _reduce("reduce_sum")),
    Pattern(("amax|max",), _reduce("max")),
)


def segments(units: Sequence[Unit], parameters: int = 0) -> list[tuple[tuple[Unit, ...], Found | None]]:
    """The units in groups: those of a problem together, each other one alone. `parameters`: elements that an
    optimiser step works on."""
    made: list[tuple[tuple[Unit, ...], Found | None]] = []
    at = 0
    while at < len(units):
        same = [u for u in units[at : at + 16] if (u.step, u.track) == (units[at].step, units[at].track)]
        if units[at].name.startswith("Optimizer.step#Adam") and parameters:
            made.append(
                ((units[at],), Found("adamw", {"n": parameters}, "float32", note="all parameters together"))
            )
            at += 1
            continue
        taken, found = next((hit for p in PATTERNS if (hit := p.match(same)) is not None), (1, None))
        made.append((tuple(units[at : at + taken]), found))
        at += taken
    return made


def cost(found: Found) -> Cost:
    """Compulsory traffic and arithmetic of one call, as `kernels.problems` counts them; backward passes read the
    outputs' gradients and what was kept, and write the inputs' gradients."""
    s, size = found.sizes, BYTES.get(found.dtype, 4)
    match found.problem:
        case "matmul":
            m, n, k = s["m"], s["n"], s["k"]
            moved = (m * k + k * n + m * n) * size
            return Cost(moved, 2 * m * n * k, 2 * moved, 4 * m * n * k)
        case "fused_mlp":
            m, d, f = s["m"], s["d"], s["f"]
            moved = (2 * m * d + 3 * d * f) * size
            return Cost(moved, 6 * m * d * f, 2 * moved, 12 * m * d * f)
        case "flash_attention":
            area = s["b"] * s["h"] * s["s"]
            flops = 2 * area * (s["s"] + 1) * s["d"]
            return Cost(4 * area * s["d"] * size, flops, 8 * area * s["d"] * size, 2.5 * flops)
        case "cross_entropy" | "cross_entropy_cast":
            logits = s["m"] * s["v"]
            return Cost(logits * size, 4 * logits, 2 * logits * size, 4 * logits)
        case "adamw":
            return Cost(7 * s["n"] * size, 14 * s["n"], 0, 0)
        case "embedding_gradient":
            rows = s["t"] * s["d"] * size
            return Cost(2 * rows, 0, rows + s["v"] * s["d"] * size, s["t"] * s["d"])
        case "rotary_half":
            values = s["b"] * (s["h"] + s["g"]) * s["s"] * s["d"]
            return Cost(2 * values * size, 3 * values, 2 * values * size, 3 * values)
        case "reduce_sum" | "max":
            values = s["m"] * s["n"]
            return Cost(values * size, values, values * size, 0)
    values = s["m"] * s["n"]
    inputs, outputs = {"swiglu": (2, 1), "geglu": (2, 1), "dropout_add": (2, 1), "rmsnorm_residual": (2, 2)}.get(
        found.problem, (1, 1)
    )
    return Cost((inputs + outputs) * values * size, 5 * values, (2 * inputs + outputs) * values * size, 8 * values)
