"""What a problem that was found in a trace must move and calculate at least: the roofline's numerator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from nightshift.kernels.profile.pattern import ProblemMatch, Sizes

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class Cost:
    """What any implementation must move (bytes) and calculate (operations), forward and backward."""

    forward_bytes: float
    forward_flops: float
    backward_bytes: float
    backward_flops: float


def cost(operation: ProblemMatch) -> Cost:
    """Compulsory traffic and arithmetic of one call, as `kernels.ops` counts them; backward passes read the
    outputs' gradients and what was kept, and write the inputs' gradients."""
    return _COSTS.get(operation.problem, _row_wise)(operation.sizes, BYTES.get(operation.dtype, 4))


def _product(s: Sizes, size: int) -> Cost:
    m, n, k = s["m"], s["n"], s["k"]
    moved = (m * k + k * n + m * n) * size
    return Cost(moved, 2 * m * n * k, 2 * moved, 4 * m * n * k)


def _biased_product(s: Sizes, size: int) -> Cost:
    m, n, k = s["m"], s["n"], s["k"]
    moved = (m * k + k * n + n + m * n) * size
    return Cost(moved, 2 * m * n * k, 2 * moved, 4 * m * n * k)


def _activated_product(s: Sizes, size: int) -> Cost:
    """Written as one kernel only where nothing is differentiated."""
    return replace(_biased_product(s, size), backward_bytes=0, backward_flops=0)


def _wide_weight_gradient(s: Sizes, size: int) -> Cost:
    """Two narrow operands, a result in float32."""
    m, n, k = s["m"], s["n"], s["k"]
    return Cost(m * (n + k) * size + n * k * BYTES["float32"], 2 * m * n * k, 0, 0)


def _fused_mlp(s: Sizes, size: int) -> Cost:
    m, d, f = s["m"], s["d"], s["f"]
    moved = (2 * m * d + 3 * d * f) * size
    return Cost(moved, 6 * m * d * f, 2 * moved, 12 * m * d * f)


def _attention(s: Sizes, size: int) -> Cost:
    area = s["b"] * s["h"] * s["s"]
    # half of the scores: what the causal mask hides need not be calculated
    flops = 2 * area * (s["s"] + 1) * s["d"]
    return Cost(4 * area * s["d"] * size, flops, 8 * area * s["d"] * size, 2.5 * flops)


def _cross_entropy(s: Sizes, size: int) -> Cost:
    logits = s["m"] * s["v"]
    return Cost(logits * size, 4 * logits, 2 * logits * size, 4 * logits)


def _embedding_gradient(s: Sizes, size: int) -> Cost:
    rows = s["t"] * s["d"] * size
    return Cost(2 * rows, 0, rows + s["v"] * s["d"] * size, s["t"] * s["d"])


def _rotation(values: int, size: int) -> Cost:
    return Cost(2 * values * size, 3 * values, 2 * values * size, 3 * values)


def _stencil(s: Sizes, size: int) -> Cost:
    values = s["c"] * s["h"] * s["w"]
    flops = 2 * s["k"] ** 2 * values
    return Cost(2 * values * size, flops, 2 * values * size, 2 * flops)


def _particle_weights(s: Sizes, size: int) -> Cost:
    return Cost(4 * s["m"] * size, 9 * s["m"] * s["k"], 8 * s["m"] * size, 18 * s["m"] * s["k"])


def _codes(s: Sizes, size: int) -> Cost:
    """Numbers and their codes of one byte, either from the other."""
    values = s["m"] * s["n"]
    return Cost(values * (size + 1), 4 * values, 0, 0)


def _reduction(s: Sizes, size: int) -> Cost:
    values = s["m"] * s["n"]
    return Cost(values * size, values, values * size, 0)


def _row_wise(s: Sizes, size: int, inputs: int = 1, outputs: int = 1) -> Cost:
    """A few operations an element, which memory hides."""
    values = s["m"] * s["n"]
    return Cost((inputs + outputs) * values * size, 5 * values, (2 * inputs + outputs) * values * size, 8 * values)


_COSTS: Mapping[str, Callable[[Sizes, int], Cost]] = {
    **dict.fromkeys(("matmul", "linear", "linear_weight_gradient"), _product),
    "linear_weight_gradient_wide": _wide_weight_gradient,
    "linear_bias": _biased_product,
    **dict.fromkeys(("linear_gelu", "linear_gelu_tanh", "linear_relu"), _activated_product),
    "fused_mlp": _fused_mlp,
    **dict.fromkeys(("flash_attention", "flash_attention_by_position"), _attention),
    **dict.fromkeys(("cross_entropy", "cross_entropy_cast"), _cross_entropy),
    "adamw": lambda s, size: Cost(7 * s["n"] * size, 14 * s["n"], 0, 0),
    "embedding_gradient": _embedding_gradient,
    **dict.fromkeys(
        ("rotary_interleaved", "rotary_interleaved_by_position"),
        lambda s, size: _rotation(s["b"] * s["h"] * s["s"] * s["d"], size),
    ),
    # heads of queries, and of keys
    **dict.fromkeys(
        ("rotary_half", "rotary_half_by_position"),
        lambda s, size: _rotation(s["b"] * (s["h"] + s["g"]) * s["s"] * s["d"], size),
    ),
    **dict.fromkeys(("stencil_3x3", "stencil_5x5"), _stencil),
    "particle_weights": _particle_weights,
    **dict.fromkeys(("quantise", "dequantise"), _codes),
    **dict.fromkeys(("reduce_sum", "max"), _reduction),
    **dict.fromkeys(("swiglu", "geglu", "dropout_add"), partial(_row_wise, inputs=2)),
    "rmsnorm_residual": partial(_row_wise, inputs=2, outputs=2),
}
"""By problem, of its sizes and the bytes of an element. All others are row-wise, of one input and one output."""
