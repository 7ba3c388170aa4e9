"""Root-mean-square normalisation (Zhang and Sennrich, arXiv 1910.07467), alone and after a residual addition."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import SIZE, even_means
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, epsilon

EPS = 1e-6
OTHER_EPS = (1e-3, 1e-8)
"""That jobs may have, too. The small one lets the inverse root of tiny rows go beyond 1,000."""


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: (m, n); weight: (n,) → (m, n)."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def residual_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual: (m, n); weight: (n,) → (normalised sum, sum), both (m, n)."""
    total = x + residual
    return F.rms_norm(total, (x.shape[-1],), weight, eps), total


def make_inputs(case: Case, draw: Draw) -> Inputs:
    x = draw.values((case["m"], case["n"]), case.torch_dtype)
    return x, draw.weights((case["n"],), case.torch_dtype), epsilon(case, EPS, OTHER_EPS)


def make_residual_inputs(case: Case, draw: Draw) -> Inputs:
    shape = (case["m"], case["n"])
    x = draw.values(shape, case.torch_dtype)
    # a tiny sum, whose mean square is far below epsilon, needs two tiny summands
    residual = draw.normal(shape, case.torch_dtype, 2.0**-16 if draw.distribution == "tiny" else 1.0)
    if draw.distribution == "zero_rows":  # a sum of zero, too
        residual = torch.where((x == 0).all(-1, keepdim=True), 0.0, residual)
    return x, residual, draw.weights((case["n"],), case.torch_dtype), epsilon(case, EPS, OTHER_EPS)


def powers_of_two(case: Case, draw: Draw) -> Inputs:
    sign = 1 - 2 * draw.integers((case["m"], case["n"]), 2)
    weight = draw.weights((case["n"],), case.torch_dtype)
    return (sign * SIZE).to(case.torch_dtype), weight, epsilon(case, EPS, OTHER_EPS)


def powers_of_two_residual(case: Case, draw: Draw) -> Inputs:
    total, weight, eps = powers_of_two(case, draw)
    assert isinstance(total, torch.Tensor)
    x = draw.whole(total.shape, total.dtype, reach=4) * (SIZE // 16)
    return x, total - x, weight, eps


def _liger(x: torch.Tensor, weight: torch.Tensor, eps: float) -> Any:
    from liger_kernel.transformers.functional import liger_rms_norm

    return liger_rms_norm(x, weight, eps, in_place=False)


def _liger_residual(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Any:
    from liger_kernel.transformers.functional import liger_fused_add_rms_norm

    return liger_fused_add_rms_norm(x, residual, weight, eps, in_place=False)


_AXES = (Axis("m", (0, 1, 7, 257), 1, 4096), Axis("n", (1, 31, 128, 257, 1000, 1021, 4096), 1, 16384))

RMSNORM = Problem(
    name="rmsnorm",
    family="rmsnorm",
    reference=reference,
    make_inputs=make_inputs,
    cases=(Case.of("float16", m=4096, n=4096), Case.of("bfloat16", m=16384, n=4096)),
    axes=_AXES,
    compulsory_bytes=lambda case: (2 * case["m"] + 1) * case["n"] * case.element_bytes,
    flops=lambda case: 4 * case["m"] * case["n"],
    gradients=(0, 1),
    libraries={"liger": _liger},
    huge=(Case.of("float16", m=69632, n=32768),),
    row_inputs=(0,),
    numbers=len(OTHER_EPS),
    rules=(Rule("powers_of_two", powers_of_two, even_means),),
)

RMSNORM_RESIDUAL = Problem(
    name="rmsnorm_residual",
    family="rmsnorm",
    reference=residual_reference,
    make_inputs=make_residual_inputs,
    cases=(Case.of("bfloat16", m=16384, n=4096),),
    axes=_AXES,
    compulsory_bytes=lambda case: (4 * case["m"] + 1) * case["n"] * case.element_bytes,
    flops=lambda case: 5 * case["m"] * case["n"],
    gradients=(0, 1, 2),
    outputs=2,
    libraries={"liger": _liger_residual},
    row_inputs=(0, 1),
    numbers=len(OTHER_EPS),
    rules=(Rule("powers_of_two", powers_of_two_residual, even_means),),
)
