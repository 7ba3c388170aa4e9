"""An AdamW step (Loshchilov and Hutter, arXiv 1711.05101) in torch's order of operations, changing its inputs."""

from __future__ import annotations

import torch

from kernels.draw import Draw, mix
from kernels.problem import Axis, Case, Inputs, Problem, unusual


def reference(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All tensors (n,) → new (parameter, first moment, second moment) after step number `step` ≥ 1."""
    shrunk = parameter * (1 - rate * decay)
    mean = first + (gradient - first) * (1 - beta1)
    square = second * beta2 + gradient * gradient * (1 - beta2)
    root = square.sqrt() / (1 - beta2**step) ** 0.5 + eps
    return shrunk - (rate / (1 - beta1**step)) * (mean / root), mean, square


def make_inputs(case: Case, draw: Draw) -> Inputs:
    n, dtype = case["n"], case.torch_dtype
    parameter, gradient = draw.normal((n,), dtype, 0.1), draw.values((n,), dtype)
    first, second = draw.normal((n,), dtype, 0.1), draw.uniform((n,), dtype, 0.0, 0.5)
    step = 1 + mix(n) % 2000
    if unusual(case):
        return parameter, gradient, first, second, 3e-3, 0.8, 0.9995, 1e-3, 0.3, step + 2000
    return parameter, gradient, first, second, 1e-3, 0.9, 0.999, 1e-8, 0.1, step


ADAMW = Problem(
    name="adamw",
    family="optimiser",
    reference=reference,
    make_inputs=make_inputs,
    cases=(Case.of("float32", n=92 << 20),),
    axes=(Axis("n", (0, 1, 7, 1021, 65537), 1, 1 << 22),),
    compulsory_bytes=lambda case: 7 * case["n"] * case.element_bytes,
    flops=lambda case: 14 * case["n"],
    dtypes=("float32", "bfloat16"),
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "zeros", "nan"),
    layouts=("contiguous", "offset"),
    mutates=(0, 2, 3),
    numbers=True,
)
