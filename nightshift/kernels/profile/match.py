"""Which problem a run of operators is: the families that we can write kernels for, found in what a model called.

A pattern is a sequence of operator names, some optional, and a function that reads the sizes from the recorded
shapes; None means that the shapes do not fit after all. Longer patterns are tried first. An operator that no
pattern takes is reported as such: it is never forced into a family.

Three kinds of pattern. What torch has an operator for. What users write out as long runs of elementwise operators
(stencils, particle weights, quantisation, rotary embeddings of interleaved pairs): views cost no GPU time and are
no units, so what is left of such code is its arithmetic; the sequences are those of `kernels.ops`, with the
spellings that mean the same (square or pow, a norm or the root of a sum, a scalar or a tensor as weight). And a
linear layer with GELU or ReLU behind it, and a whole gated block, where nothing is differentiated: there the job's
file has a place for them as one kernel. In training it has one for the gate alone, and for each product.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from nightshift.kernels.profile.operators import OperatorCall
from nightshift.kernels.profile.pattern import (
    BIASED,
    DTYPES,
    Bind,
    Pattern,
    ProblemMatch,
    dims,
    dtype,
    layout,
    rows_of,
    rowwise,
    side_by_side,
    strides,
    turned,
)

_FORM = re.compile(r"Gelu\w*Impl\([^)]*\)::\{lambda\(\)#(\d)\}")
"""ATen's ActivationGeluKernel.cu: the first function is the tanh form's, the second the exact one's."""
_PART = "(?:_unsafe_view|view|addmm|gelu|relu)"
_FUSED = re.compile(rf"triton_poi_fused_({_PART}(?:_{_PART})*)_\d+")
UNKNOWN_FORM = "which form of GELU was not recorded; taken as the exact one"


def gelu_form(unit: OperatorCall) -> str:
    """tanh or none, as torch calls them; empty where the trace does not say."""
    found = _FORM.search(unit.kernel)
    return {"1": "tanh", "2": "none"}.get(found[1], "") if found else ""


def _linear_act(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    up, act = units[:2]
    *_, down = (unit for unit in units if unit.base != "mul")
    first, inside = _layer(up), _inside(act)
    if first is None or ("gelu" in inside) == ("relu" in inside):
        return None
    x, (n, k), kind, biased = first
    if not (biased or "addmm" in inside) or not _comes_back(down, first):
        return None
    if units[-1] is not down and n == k:
        return None  # a gate and what it is multiplied by
    if inside == act.base and dims(act, 0) != (*x[:-1], n):  # what was fused has no sizes of its own
        return None
    form = "relu" if "relu" in inside else gelu_form(act)
    sizes = {"m": math.prod(x[:-1]), "n": n, "k": k}
    how = layout(up, int(up.base == "addmm"))
    return ProblemMatch(_LINEAR.get(form, "linear_gelu"), sizes, kind, how, "" if form else UNKNOWN_FORM)


_LINEAR = {"relu": "linear_relu", "tanh": "linear_gelu_tanh"}
"""Linear layers with an activation behind them, by its form; with any other it is the exact GELU."""


def _inside(unit: OperatorCall) -> str:
    """The operators that a kernel of torch.compile's was fused from, else the one operator."""
    fused = _FUSED.fullmatch(unit.base)
    return fused[1] if fused else unit.base


_Layer = tuple[tuple[int, ...], tuple[int, int], str, bool]


def _comes_back(down: OperatorCall, up: _Layer) -> bool:
    """Whether a linear layer takes as many rows of what another made back to where that began."""
    second, (x, (n, k), kind, _) = _layer(down), up
    if second is None or second[0][-1:] != (n,) or second[1] != (k, n) or second[2] != kind:
        return False
    return math.prod(second[0]) == math.prod(x[:-1]) * n


def _layer(unit: OperatorCall) -> _Layer | None:
    """(sizes of x, (n, k), dtype, whether a bias is added) of an `nn.Linear`; None where it is none, or is cast."""
    x_at = int(unit.base == "addmm")
    x, w = dims(unit, x_at), dims(unit, x_at + 1)
    if len(w) != 2 or not x:
        return None
    if unit.base == "linear":
        n, k = w
        bias_at = 2
    else:
        k, n = w
        bias_at = 0 if unit.base == "addmm" else -1
        if strides(unit, x_at + 1) != (1, k) and k != 1 and n != 1:
            return None  # its weight does not lie as a linear layer's
    bias = bias_at >= 0 and dims(unit, bias_at) == (n,)
    kinds = {dtype(unit, x_at), dtype(unit, x_at + 1), *((dtype(unit, bias_at),) if bias else ())}
    kinds |= {DTYPES[unit.computed]} if unit.computed in DTYPES else set()
    if x[-1] != k or len(kinds) != 1 or not (kind := kinds.pop()):
        return None
    return x, (n, k), kind, bias


SQUARE = "square|pow|mul"
_INT8 = "1"
"""c10::ScalarType::Char, as an operator's dtype argument is recorded."""


def concrete(unit: OperatorCall, position: int) -> str:
    """An argument that is no tensor, as text; empty where it was not recorded."""
    told = unit.signature.concrete
    return told[position] if position < len(told) else ""


def over_last(unit: OperatorCall) -> bool:
    """Whether a reduction is over the last dimension only."""
    rank = len(dims(unit, 0))
    return concrete(unit, 1) in ("[-1]", "-1", f"[{rank - 1}]", str(rank - 1))


def _stencil(size: int) -> Bind:
    def bind(units: Sequence[OperatorCall]) -> ProblemMatch | None:
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


def _planes(size: int, x: tuple[int, ...], kind: str, how: str) -> ProblemMatch:
    sizes = {"c": math.prod(x[:-2]), "h": x[-2], "w": x[-1], "k": size}
    return ProblemMatch(f"stencil_{size}x{size}", sizes, kind, how)


def _convolution(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    """A convolution of single planes with one square filter is a stencil; of channels it is none of ours."""
    unit = units[0]
    x, weight = dims(unit, 0), dims(unit, 1)
    size = weight[-1] if weight else 0
    one, half = "[1, 1]", str([size // 2] * 2)
    # any other stride, padding or dilation computes something else
    plain = (concrete(unit, 3), concrete(unit, 4), concrete(unit, 5)) == (one, half, one)
    if not plain or size not in (3, 5) or dims(unit, 2) or dtype(unit, 0) != "float32":
        return None
    if len(x) != 4 or x[1] != 1 or weight != (1, 1, size, size):
        return None
    return _planes(size, (x[0], x[2], x[3]), "float32", layout(unit, 0))


def _particles(units: Sequence[OperatorCall]) -> ProblemMatch | None:
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
    return ProblemMatch("particle_weights", {"m": place[0], "k": landmark[0]}, "float32", layout(first, 0))


def _quantise(units: Sequence[OperatorCall]) -> ProblemMatch | None:
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
    return ProblemMatch("quantise", rows_of(x), kind, layout(first, 0))


def _dequantise(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    """Codes of 8 bits times their row's scale."""
    code, product = units[0], units[-1]
    position = next((p for p in range(2) if dims(product, p)[-1:] == (1,)), None)
    x = dims(code, 0) if code is not product else dims(product, 1 - (position or 0))
    if position is None or len(x) < 2 or dims(product, position) != (*x[:-1], 1):
        return None
    kind, source = dtype(product, position), dtype(code, 0 if code is not product else 1 - position)
    return ProblemMatch("dequantise", rows_of(x), kind, layout(code, 0)) if source == "int8" and kind else None


def _rotated(x: tuple[int, ...], table: tuple[int, ...], columns: int) -> str:
    """The names of a rotary embedding's dimensions, as its table's rows tell them; empty where they fit none."""
    if len(x) != 4:
        return ""
    # with one position a table of heads first has the same sizes
    if table[-3:] == (x[1], 1, columns) and math.prod(table) == x[1] * columns and x[1] > 1:
        return "bshd"
    return "bhsd" if table[-2:] == (x[2], columns) and math.prod(table) == x[2] * columns else ""


def _interleaved(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    """(even · cos − odd · sin, even · sin + odd · cos), laid side by side again."""
    first, last = units[0], units[-1]
    half, table, kind = dims(first, 0), dims(first, 1), dtype(first, 0)
    products = [unit for unit in units if unit.base == "mul"]
    names = _rotated(half, table, half[-1] if half else 0)
    if not names or not kind or not all((dims(u, 0), dims(u, 1)) == (half, table) for u in products):
        return None
    # every second element: halves of the width give the same operators and sizes, and are another rotation
    apart = strides(first, 0)[-1:] == (2,)
    if concrete(last, 1) not in ("-1", str(len(half))) or not apart:
        return None
    sizes = dict(zip(names, half, strict=True))
    name = "rotary_interleaved" + ("_by_position" if names == "bshd" else "")
    return ProblemMatch(name, sizes | {"d": 2 * half[-1]}, kind)


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


def _rmsnorm(units: Sequence[OperatorCall]) -> ProblemMatch | None:
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
    # the kernel reads what the cast reads: its dtype is the one before
    narrow = first.base in ("to", "_to_copy") and dims(first, 0) == sizes
    kind = dtype(first, 0) if narrow else dtype(power, 0)
    return ProblemMatch("rmsnorm", rows_of(sizes), kind, layout(power, 0)) if kind else None


def _rmsnorm_residual(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    add, rest = units[0], units[1:]
    found = _native_rmsnorm(rest) if "rms_norm" in rest[0].base else _rmsnorm(rest)
    if found is None or dims(add, 0) != dims(add, 1) or rows_of(dims(add, 0) or (0, 0)) != found.sizes:
        return None
    if dtype(add, 0) != dtype(add, 1) or dtype(add, 0) != found.dtype:
        return None  # a sum of mixed dtypes: the norm alone is taken
    return ProblemMatch("rmsnorm_residual", found.sizes, found.dtype, found.layout)


def _native_rmsnorm(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    return rowwise("rmsnorm", units[0])


def _layernorm(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    unit = units[0]
    return rowwise("layernorm", unit) if dims(unit, 2) and dims(unit, 3) else None


def _softmax(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    unit = units[0]
    concrete = unit.signature.concrete
    axis = concrete[1] if len(concrete) > 1 else ""
    rank = len(dims(unit, 0))
    return rowwise("softmax", unit) if axis in ("-1", str(rank - 1), "") else None


def _cross_entropy(units: Sequence[OperatorCall]) -> ProblemMatch | None:
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
        return ProblemMatch("cross_entropy_cast", found.sizes, dtype(first, 0), found.layout, note)
    return found


def _attention(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    unit = units[0]
    q, k, v = (dims(unit, position) for position in range(3))
    concrete = unit.signature.concrete
    causal = "True" in concrete[3:]
    if len(q) != 4 or k != q or v != q or dims(unit, 3) or not causal or not dtype(unit, 0):
        return None
    sizes, kind = dict(zip("bhsd", q, strict=True)), dtype(unit, 0)
    lies = {side_by_side(unit, position) for position in range(3)}
    if "" not in lies:
        return ProblemMatch(
            "flash_attention_by_position", sizes, kind, "sliced" if "sliced" in lies else "contiguous"
        )
    return ProblemMatch("flash_attention", sizes, kind, layout(unit, 0))


def _linear(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    """x (…, k) · weight (n, k)ᵀ, plus a bias. Under autocast the recorded inputs may be wider than what is
    multiplied."""
    unit = units[0]
    x, w = dims(unit, 0), dims(unit, 1)
    if len(x) < 1 or len(w) != 2 or x[-1] != w[1]:
        return None
    # autocast casts beneath the operator: what it records of its inputs is from before
    kind = DTYPES.get(unit.computed, "") or dtype(unit, 1)
    if not kind:
        return None
    columns, biased = turned(unit, 1), bool(dims(unit, 2))
    notes = ["autocast converts its operands"] * (kind != dtype(unit, 1)) + [BIASED] * (columns and biased)
    sizes = {"m": math.prod(x[:-1]), "n": w[0], "k": w[1]}
    name = "matmul" if columns else "linear_bias" if biased else "linear"
    return ProblemMatch(name, sizes, kind, layout(unit, 0), "; ".join(notes))


def _matmul(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    unit = units[0]
    shift = 1 if unit.base == "addmm" else 0
    a, b = dims(unit, shift), dims(unit, shift + 1)
    if len(a) < 2 or len(b) != 2 or a[-1] != b[0] or not dtype(unit, shift):
        return None
    kind, left, right = dtype(unit, shift), turned(unit, shift), turned(unit, shift + 1)
    # the first operand turned is how autograd asks for a weight's gradient
    if left and not right:
        return ProblemMatch("linear_weight_gradient", {"m": a[1], "n": a[0], "k": b[1]}, kind)
    sizes = {"m": math.prod(a[:-1]), "n": b[1], "k": b[0]}
    rows, biased = right and not left, shift and dims(unit, 0) == (b[1],)
    name = "matmul" if not rows else "linear_bias" if biased else "linear"
    return ProblemMatch(name, sizes, kind, layout(unit, shift), BIASED if shift and name != "linear_bias" else "")


def _gated(problem: str) -> Bind:
    def bind(units: Sequence[OperatorCall]) -> ProblemMatch | None:
        act, product = units[0], units[-1]
        if not dims(act, 0) or dims(product, 0) != dims(product, 1) or dims(product, 0) != dims(act, 0):
            return None
        return rowwise(problem, act)

    return bind


def _geglu(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    """Of the tanh form alone: the exact one's kernel is a gelu, and a product."""
    # the profiler records no strings, and gelu's `approximate` is one
    form = gelu_form(units[0])
    found = _gated("geglu")(units) if form != "none" else None
    return replace(found, note=_TANH_TAKEN) if found is not None and not form else found


def _gelu(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    form = gelu_form(units[0])
    found = rowwise("gelu", units[0]) if form != "tanh" else None
    return replace(found, note=UNKNOWN_FORM) if found is not None and not form else found


def _gates_last(units: Sequence[OperatorCall]) -> list[OperatorCall]:
    """act(gate(x)) * up(x) with its products first: as it is called, up's stands between the gate's operators."""
    made = list(units)
    for at in range(len(made) - 2):
        act, up, product = made[at : at + 3]
        gated = act.base in ("silu", "gelu") and (up.base, product.base) == ("linear", "mul")
        if gated and dims(product, 0) == dims(product, 1) == dims(act, 0) != ():
            made[at : at + 2] = up, act
    return made


def _fused_mlp(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    linears = [unit for unit in units if unit.base == "linear"]
    first, second, last = (dims(unit, 1) for unit in linears)
    x = dims(linears[0], 0)
    if first != second or len(first) != 2 or last != (first[1], first[0]) or not x or not dtype(linears[0], 0):
        return None
    sizes = {"m": math.prod(x[:-1]), "d": first[1], "f": first[0]}
    return ProblemMatch("fused_mlp", sizes, dtype(linears[0], 0), layout(linears[0], 0))


def _dropout_add(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    drop, add = units
    if dims(drop, 0) != dims(add, 0) or dims(add, 0) != dims(add, 1):
        return None
    found = rowwise("dropout_add", drop)
    return (
        ProblemMatch(found.problem, found.sizes, found.dtype, found.layout, "another random stream")
        if found
        else None
    )


def _embedding(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    unit = units[0]
    table, index = dims(unit, 0), dims(unit, 1)
    # a look-up is no kernel of ours: only its gradient is worth one
    if len(table) != 2 or not index or not dtype(unit, 0) or unit.backward_s <= unit.forward_s:
        return None
    sizes = {"t": math.prod(index), "d": table[1], "v": table[0]}
    return ProblemMatch("embedding_gradient", sizes, dtype(unit, 0))


def _reduce(problem: str) -> Bind:
    def bind(units: Sequence[OperatorCall]) -> ProblemMatch | None:
        unit = units[0]
        concrete = unit.signature.concrete
        axis = concrete[1] if len(concrete) > 1 else ""
        if axis not in ("[-1]", f"[{len(dims(unit, 0)) - 1}]", "-1"):
            return None
        return rowwise(problem, unit)

    return bind


def _rotary_half(units: Sequence[OperatorCall]) -> ProblemMatch | None:
    """q·cos + rotated(q)·sin, then the same of k."""
    first, second = (next(u for u in part if u.base == "mul") for part in (units, units[len(units) // 2 :]))
    q, k, kind = dims(first, 0), dims(second, 0), dtype(first, 0)
    names = _rotated(q, dims(first, 1), q[-1] if q else 0)
    if not names or len(k) != 4 or not kind:
        return None
    heads = names.index("h")
    if (*q[:heads], *q[heads + 1 :]) != (*k[:heads], *k[heads + 1 :]):
        return None
    sizes = {**dict(zip(names, q, strict=True)), "g": k[heads]}
    if names == "bshd":
        return ProblemMatch("rotary_half_by_position", sizes, kind, layout(first, 0))
    # heads first, of memory that has positions first: a projection's output, turned
    if strides(first, 0) == (q[1] * q[2] * q[3], q[3], q[1] * q[3], 1) and q[1] > 1:
        return ProblemMatch("rotary_half_by_position", sizes, kind)
    return ProblemMatch("rotary_half", sizes, kind, layout(first, 0))


_RMS = ("to?", "_to_copy?", "pow|mul|square", "mean", "add?", "rsqrt", "mul", "to?", "_to_copy?", "mul")
_MOVED = "reshape|contiguous|clone|copy?"
"""What lays the targets out between the logits' cast and the loss."""
_TURN = ("mul", "neg", "cat", "mul", "add")
UNTRAINED_PATTERNS: tuple[Pattern, ...] = (
    Pattern(("linear|addmm", "gelu|relu"), _linear_act, ahead=("dropout?", "linear|addmm|mm", "mul?")),
    Pattern(("addmm|mm", "triton_poi_fused_*"), _linear_act, ahead=("addmm|mm",)),
    Pattern(("linear", "linear", "silu", "mul", "linear"), _fused_mlp),
)
"""Asked first, and only of traces in which nothing is differentiated."""
PATTERNS: tuple[Pattern, ...] = (
    *WRITTEN_OUT,
    Pattern(("add", *_RMS), _rmsnorm_residual),
    Pattern(_RMS, _rmsnorm),
    Pattern((*_TURN, *_TURN), _rotary_half),
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


def segments(
    units: Sequence[OperatorCall], parameters: int = 0
) -> list[tuple[tuple[OperatorCall, ...], ProblemMatch | None]]:
    """The units in groups: those of a problem together, each other one alone. `parameters`: elements that an
    optimiser step works on."""
    made: list[tuple[tuple[OperatorCall, ...], ProblemMatch | None]] = []
    units = _gates_last(units)
    # what a kernel for inference fuses is kept for a gradient in training
    trained = parameters > 0 or any(unit.backward_s > 0 for unit in units)
    patterns = PATTERNS if trained else (*UNTRAINED_PATTERNS, *PATTERNS)
    at = 0
    while at < len(units):
        # operators of two threads, or of two steps, stand side by side by chance
        same = [u for u in units[at : at + LONGEST] if (u.step, u.track) == (units[at].step, units[at].track)]
        # the trace has the optimiser's operators, not its parameters: their elements are those of the gradients
        if units[at].name.startswith("Optimizer.step#Adam") and parameters:
            made.append(
                ((units[at],), ProblemMatch("adamw", {"n": parameters}, "float32", note="all parameters together"))
            )
            at += 1
            continue
        taken, found = next((hit for p in patterns if (hit := p.match(same)) is not None), (1, None))
        made.append((tuple(units[at : at + taken]), found))
        at += taken
    return made
