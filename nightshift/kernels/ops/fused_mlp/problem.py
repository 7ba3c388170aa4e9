"""The gated feed-forward block of Llama: down(silu(gate(x)) · up(x)), weights as nn.Linear stores them."""

from __future__ import annotations

import torch

# by name: a job puts its own functions into torch.nn.functional, and takes these formulas for torch's
from torch.nn.functional import linear, silu

from nightshift.kernels.draw import Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, mantissa, nearest


def fused_mlp_reference(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """x: (m, d); gate, up: (f, d); down: (d, f) → (m, d)."""
    return linear(silu(linear(x, gate)) * linear(x, up), down)


def make_inputs(case: Case, draw: Draw) -> Inputs:
    d, f, dtype = case["d"], case["f"], case.torch_dtype
    return (
        draw.values((case["m"], d), dtype),
        draw.normal((f, d), dtype, max(1, d) ** -0.5),
        draw.normal((f, d), dtype, max(1, d) ** -0.5),
        draw.normal((d, f), dtype, max(1, f) ** -0.5),
    )


def saturated(case: Case, draw: Draw) -> Inputs:
    """The gate's sums are 128, 256 or 384, where SiLU is the identity to any rounding; up's are ±1 and ±2, and
    down's so few that all of it is exact. The first column of x is 1 and carries the gate; the rest are signs."""
    m, d, f, dtype = case["m"], case["d"], case["f"], case.torch_dtype
    x = 1 - 2 * draw.integers((m, d), 2)
    x[:, 0] = 1
    column = torch.arange(d, device=draw.device)
    swing = (column == 1 + draw.integers((f, 1), d - 1)) * 128 * (draw.integers((f, 1), 3) - 1)
    up = (column == draw.integers((f, 1), d)) * (1 + draw.integers((f, 1), 2))
    gate = torch.where(column == 0, 256, swing)
    down = draw.whole((d, f), dtype, terms=f, factor=6, limit=256)
    return x.to(dtype), gate.to(dtype), up.to(dtype), down


def long(case: Case, draw: Draw) -> Inputs:
    """All of it positive, and the gate's sums so large that SiLU is the identity."""
    m, d, f = case["m"], case["d"], case["f"]
    return draw.mantissas((m, d)), 32 * draw.mantissas((f, d)), draw.mantissas((f, d)), draw.mantissas((d, f))


FUSED_MLP = Problem(
    name="fused_mlp",
    family="fused_mlp",
    reference=fused_mlp_reference,
    make_inputs=make_inputs,
    cases=(Case.of("bfloat16", m=2048, d=4096, f=11008),),
    axes=(
        Axis("m", (0, 1, 17, 128), 1, 512),
        Axis("d", (16, 64, 127), 1, 512),
        Axis("f", (16, 127, 256), 1, 1024),
    ),
    compulsory_bytes=lambda case: (2 * case["m"] * case["d"] + 3 * case["d"] * case["f"]) * case.element_bytes,
    flops=lambda case: 6 * case["m"] * case["d"] * case["f"],
    distributions=("normal", "heavy_tail", "ties", "tiny", "nan", "zeros_by_nan"),
    gradients=(0, 1, 2, 3),
    rules=(
        Rule("saturated", saturated, lambda case: nearest(case, "d", lambda near: near["d"] > 1)),
        mantissa(long, lambda case: 2 * case["d"] + case["f"] + 8),
    ),
)
