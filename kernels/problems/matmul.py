"""Matrix product. float32 inputs mean float32 products: TF32 is off in the reference and a downgrade elsewhere."""

from __future__ import annotations

import torch

from kernels.draw import Draw
from kernels.problem import Axis, Case, Inputs, Problem


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a: (m, k); b: (k, n) → (m, n)."""
    return a @ b


def make_inputs(case: Case, draw: Draw) -> Inputs:
    a = draw.values((case["m"], case["k"]), case.torch_dtype)
    return a, draw.normal((case["k"], case["n"]), case.torch_dtype)


MATMUL = Problem(
    name="matmul",
    family="matmul",
    reference=reference,
    make_inputs=make_inputs,
    cases=(Case.of("float16", m=2048, n=2048, k=2048), Case.of("bfloat16", m=4096, n=11008, k=4096)),
    axes=(
        Axis("m", (0, 1, 17, 64, 127, 256), 1, 1024),
        Axis("n", (1, 17, 64, 127, 256), 1, 1024),
        Axis("k", (1, 17, 64, 127, 1024), 1, 2048),
    ),
    compulsory_bytes=lambda case: (
        (case["m"] * case["k"] + case["k"] * case["n"] + case["m"] * case["n"]) * case.element_bytes
    ),
    flops=lambda case: 2 * case["m"] * case["n"] * case["k"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "nan"),
    gradients=(0, 1),
)
