"""The gated feed-forward block of Llama: down(silu(gate(x)) · up(x)), weights as nn.Linear stores them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from nightshift.kernels.draw import Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem


def reference(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """x: (m, d); gate, up: (f, d); down: (d, f) → (m, d)."""
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def make_inputs(case: Case, draw: Draw) -> Inputs:
    d, f, dtype = case["d"], case["f"], case.torch_dtype
    return (
        draw.values((case["m"], d), dtype),
        draw.normal((f, d), dtype, max(1, d) ** -0.5),
        draw.normal((f, d), dtype, max(1, d) ** -0.5),
        draw.normal((d, f), dtype, max(1, f) ** -0.5),
    )


FUSED_MLP = Problem(
    name="fused_mlp",
    family="fused_mlp",
    reference=reference,
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
)
