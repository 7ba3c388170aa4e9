"""Layer normalisation over the last dimension with weight and bias (Ba, Kiros and Hinton, arXiv 1607.06450)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from nightshift.kernels.draw import Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, epsilon

EPS = 1e-5


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """x: (m, n); weight, bias: (n,) → (m, n)."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def make_inputs(case: Case, draw: Draw) -> Inputs:
    n, dtype = case["n"], case.torch_dtype
    x, weight = draw.values((case["m"], n), dtype), draw.weights((n,), dtype)
    return x, weight, draw.weights((n,), dtype), epsilon(case, EPS)


def _liger(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> Any:
    from liger_kernel.transformers.functional import liger_layer_norm

    return liger_layer_norm(x, weight, bias, eps)


LAYERNORM = Problem(
    name="layernorm",
    family="layernorm",
    reference=reference,
    make_inputs=make_inputs,
    cases=(Case.of("float16", m=4096, n=2048), Case.of("bfloat16", m=16384, n=4096)),
    axes=(Axis("m", (0, 1, 7, 257), 1, 4096), Axis("n", (2, 31, 128, 257, 1000, 1021, 4096), 2, 16384)),
    compulsory_bytes=lambda case: 2 * case["n"] * (case["m"] + 1) * case.element_bytes,
    flops=lambda case: 8 * case["m"] * case["n"],
    gradients=(0, 1, 2),
    libraries={"liger": _liger},
    huge=(Case.of("float16", m=69632, n=32768),),
    row_inputs=(0,),
    numbers=1,
)
