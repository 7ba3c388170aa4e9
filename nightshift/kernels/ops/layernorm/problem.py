"""Layer normalisation over the last dimension with weight and bias (Ba, Kiros and Hinton, arXiv 1607.06450)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import SIZE
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, epsilon, nearest

EPS = 1e-5


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """x: (m, n); weight, bias: (n,) → (m, n)."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def make_inputs(case: Case, draw: Draw) -> Inputs:
    n, dtype = case["n"], case.torch_dtype
    x, weight = draw.values((case["m"], n), dtype), draw.weights((n,), dtype)
    return x, weight, draw.weights((n,), dtype), epsilon(case, EPS)


def powers_of_two(case: Case, draw: Draw) -> Inputs:
    """Pairs of ± one power of two: their mean is 0 and their deviation that power. Weight and bias never cancel."""
    n, dtype = case["n"], case.torch_dtype
    sign = (1 - 2 * draw.integers((case["m"], n // 2), 2)).repeat_interleave(2, dim=1)
    x = sign * (1 - 2 * (torch.arange(n, device=draw.device) % 2)) * SIZE
    weight, bias = (draw.integers((n,), 2) + 1) * (1 - 2 * draw.integers((n,), 2)), 4 + 4 * draw.integers((n,), 2)
    return x.to(dtype), weight.to(dtype), bias.to(dtype), epsilon(case, EPS)


def _pairs(case: Case) -> Iterable[Case]:
    """In 16 bits only: a running mean (Welford's), which is as good as any, is not 0 in float32."""
    return () if case.dtype == "float32" else nearest(case, "n", lambda near: near["n"] % 2 == 0 < near["n"])


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
    rules=(Rule("powers_of_two", powers_of_two, _pairs),),
    huge=(Case.of("float16", m=69632, n=32768),),
    row_inputs=(0,),
    numbers=1,
)
