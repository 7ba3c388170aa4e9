"""What a problem that was found in a trace must move and calculate at least: the roofline's numerator."""

from __future__ import annotations

from dataclasses import dataclass

from nightshift.kernels.profile.pattern import Found

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class Cost:
    """What any implementation must move (bytes) and calculate (operations), forward and backward."""

    forward_bytes: float
    forward_flops: float
    backward_bytes: float
    backward_flops: float


def cost(found: Found) -> Cost:
    """Compulsory traffic and arithmetic of one call, as `kernels.ops` counts them; backward passes read the
    outputs' gradients and what was kept, and write the inputs' gradients."""
    s, size = found.sizes, BYTES.get(found.dtype, 4)
    match found.problem:
        case "matmul" | "linear" | "linear_weight_gradient":
            m, n, k = s["m"], s["n"], s["k"]
            moved = (m * k + k * n + m * n) * size
            return Cost(moved, 2 * m * n * k, 2 * moved, 4 * m * n * k)
        case "linear_weight_gradient_wide":
            m, n, k = s["m"], s["n"], s["k"]
            return Cost(m * (n + k) * size + n * k * 4, 2 * m * n * k, 0, 0)
        case "linear_bias":
            m, n, k = s["m"], s["n"], s["k"]
            moved = (m * k + k * n + n + m * n) * size
            return Cost(moved, 2 * m * n * k, 2 * moved, 4 * m * n * k)
        case "linear_gelu" | "linear_gelu_tanh" | "linear_relu":
            m, n, k = s["m"], s["n"], s["k"]
            return Cost((m * k + k * n + n + m * n) * size, 2 * m * n * k, 0, 0)
        case "fused_mlp":
            m, d, f = s["m"], s["d"], s["f"]
            moved = (2 * m * d + 3 * d * f) * size
            return Cost(moved, 6 * m * d * f, 2 * moved, 12 * m * d * f)
        case "flash_attention" | "flash_attention_by_position":
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
        case "rotary_interleaved" | "rotary_interleaved_by_position":
            values = s["b"] * s["h"] * s["s"] * s["d"]
            return Cost(2 * values * size, 3 * values, 2 * values * size, 3 * values)
        case "stencil_3x3" | "stencil_5x5":
            values = s["c"] * s["h"] * s["w"]
            flops = 2 * s["k"] ** 2 * values
            return Cost(2 * values * size, flops, 2 * values * size, 2 * flops)
        case "particle_weights":
            return Cost(4 * s["m"] * size, 9 * s["m"] * s["k"], 8 * s["m"] * size, 18 * s["m"] * s["k"])
        case "quantise" | "dequantise":
            values = s["m"] * s["n"]
            return Cost(values * (size + 1), 4 * values, 0, 0)
        case "rotary_half" | "rotary_half_by_position":
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
