"""An AdamW step (Loshchilov and Hutter, arXiv 1711.05101) in torch's order of operations, changing its inputs.

`adamw_cast` also leaves a 16-bit copy of the new parameter: what the next forward pass under autocast would read
four bytes and write two for, and launch a kernel of its own for each weight.
"""

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


def cast_reference(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    narrow: torch.Tensor,
    rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same on float32 tensors, and the new parameter rounded to the dtype of `narrow` (n,)."""
    made = reference(parameter, gradient, first, second, rate, beta1, beta2, eps, decay, step)
    return *made, made[0].to(narrow.dtype)


def make_inputs(case: Case, draw: Draw) -> Inputs:
    return _inputs(case, draw, case.torch_dtype)


def make_cast(case: Case, draw: Draw) -> Inputs:
    parameter, gradient, first, second, *numbers = _inputs(case, draw, torch.float32)
    return parameter, gradient, first, second, draw.normal((case["n"],), case.torch_dtype), *numbers


def _inputs(case: Case, draw: Draw, dtype: torch.dtype) -> Inputs:
    n = case["n"]
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

ADAMW_CAST = Problem(
    name="adamw_cast",
    family="optimiser",
    reference=cast_reference,
    make_inputs=make_cast,
    cases=(Case.of("bfloat16", n=84 << 20),),
    axes=(Axis("n", (0, 1, 7, 1021, 65537), 1, 1 << 22),),
    compulsory_bytes=lambda case: (7 * 4 + case.element_bytes) * case["n"],
    flops=lambda case: 14 * case["n"],
    dtypes=("float16", "bfloat16"),
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "zeros", "nan"),
    layouts=("contiguous", "offset"),
    mutates=(0, 2, 3, 4),
    numbers=True,
)
