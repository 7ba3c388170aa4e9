"""Root-mean-square normalisation (Zhang and Sennrich, arXiv 1910.07467), alone and after a residual addition.

Training steps spend more on its gradient than on the norm. torch's own is what autograd runs for the formula that
users write; here it is one operation, so that a kernel can read everything once.

In a mixed-precision step a block computes x + f(norm(x)): x is float32, and f casts the norm to 16 bits for its
matrix product. On the way back the norm's gradient arrives in 16 bits, what comes of it is added to the gradient
that the residual brings, and the sum goes on twice: in float32 to the residual of the block before, in 16 bits to
that block's matrix product. That is one operation too. The casts lose nothing: 16 bits are exact in 32, and the sum
is rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import SIZE, cancelling, even_means, some_rows
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, epsilon

EPS = 1e-6
OTHER_EPS = (1e-3, 1e-8)
"""That jobs may have, too. The small one lets the inverse root of tiny rows go beyond 1,000."""


def rmsnorm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: (m, n); weight: (n,) → (m, n)."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def rmsnorm_residual_reference(
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
    reference=rmsnorm_reference,
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
    reference=rmsnorm_residual_reference,
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


def rmsnorm_backward_reference(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """gradient, x: (m, n); weight: (n,) → gradients of x (m, n) and of weight (n,), sums in float32 or wider."""
    wide = torch.promote_types(x.dtype, torch.float32)
    g, value, w = gradient.to(wide), x.to(wide), weight.to(wide)
    r = torch.rsqrt(value.square().mean(-1, keepdim=True) + eps)
    normal, gw = value * r, g * w
    dx = r * (gw - normal * (gw * normal).mean(-1, keepdim=True))
    return dx.to(x.dtype), (g * normal).sum(0).to(weight.dtype)


def make_backward(case: Case, draw: Draw) -> Inputs:
    shape, dtype = (case["m"], case["n"]), case.torch_dtype
    x = draw.values(shape, dtype)
    return draw.normal(shape, dtype), x, draw.weights((case["n"],), dtype), epsilon(case, EPS, OTHER_EPS)


def powers(case: Case, draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(gradient, x, weight) as integers: x is ± one power of two, so its root mean square is that, and what a row's
    gradient, times weight and normalised x, adds up to is 0. The weight's gradient is nowhere 0: a root that is off
    by one unit would be seen there alone."""
    m, n = case["m"], case["n"]
    size, signs = cancelling(m, n, draw)
    sign, weight = 1 - 2 * draw.integers((m, n), 2), signs * (1 + draw.integers((n,), 2))
    some = some_rows(m, case.torch_dtype, 8, draw)
    return size // weight.abs() * sign * some, sign * SIZE, weight


def powers_of_two_backward(case: Case, draw: Draw) -> Inputs:
    return *(made.to(case.torch_dtype) for made in powers(case, draw)), epsilon(case, EPS, OTHER_EPS)


RMSNORM_BACKWARD = Problem(
    name="rmsnorm_backward",
    family="rmsnorm",
    reference=rmsnorm_backward_reference,
    make_inputs=make_backward,
    cases=(Case.of("float32", m=8192, n=1024), Case.of("bfloat16", m=16384, n=4096)),
    axes=(Axis("m", (1, 7, 257), 1, 4096), Axis("n", (1, 31, 128, 257, 1000, 1021, 4096), 1, 8192)),
    compulsory_bytes=lambda case: (3 * case["m"] + 2) * case["n"] * case.element_bytes,
    flops=lambda case: 9 * case["m"] * case["n"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "near_constant", "tiny", "zero_rows"),
    numbers=len(OTHER_EPS),
    rules=(Rule("powers_of_two", powers_of_two_backward, lambda case: even_means(case, least=2)),),
)


def rmsnorm_cast_backward_reference(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """gradient: (m, n) of 16 bits; x, residual (the residual's gradient): (m, n) and weight: (n,), float32.

    → (gradient of x with the residual's, the same in the dtype of `gradient`, gradient of weight).
    """
    to_x, to_weight = rmsnorm_backward_reference(gradient, x, weight, eps)
    total = residual + to_x
    return total, total.to(gradient.dtype), to_weight


def make_cast_backward(case: Case, draw: Draw) -> Inputs:
    shape, wide = (case["m"], case["n"]), torch.float32
    x, weight = draw.values(shape, wide), draw.weights((case["n"],), wide)
    return draw.normal(shape, case.torch_dtype), x, weight, draw.normal(shape, wide), epsilon(case, EPS, OTHER_EPS)


def powers_of_two_cast_backward(case: Case, draw: Draw) -> Inputs:
    """The residual's gradient is odd, of the norm's size: what is added up is even and never becomes 0."""
    gradient, x, weight = powers(case, draw)
    odd = 2 * draw.whole(x.shape, torch.float32, reach=4) + 1
    eps = epsilon(case, EPS, OTHER_EPS)
    return gradient.to(case.torch_dtype), x.float(), weight.float(), odd / SIZE, eps


RMSNORM_CAST_BACKWARD = Problem(
    name="rmsnorm_cast_backward",
    family="rmsnorm",
    reference=rmsnorm_cast_backward_reference,
    make_inputs=make_cast_backward,
    cases=(Case.of("bfloat16", m=8192, n=1024),),
    axes=(Axis("m", (1, 7, 257), 1, 4096, summed=True), Axis("n", (1, 31, 128, 257, 1000, 1021, 4096), 1, 8192)),
    compulsory_bytes=lambda case: ((12 + 2 * case.element_bytes) * case["m"] + 8) * case["n"],
    flops=lambda case: 10 * case["m"] * case["n"],
    dtypes=("float16", "bfloat16"),
    distributions=("normal", "large_mean", "heavy_tail", "ties", "near_constant", "tiny", "zero_rows"),
    numbers=len(OTHER_EPS),
    rules=(Rule("powers_of_two", powers_of_two_cast_backward, lambda case: even_means(case, least=2, wide=True)),),
)
