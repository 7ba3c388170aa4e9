"""RMSNorm's gradient in a mixed-precision step, with the residual stream's gradient added.

A block computes x + f(norm(x)): x is float32, and f casts the norm to 16 bits for its matrix product. On the way
back the norm's gradient arrives in 16 bits, what comes of it is added to the gradient that the residual brings, and
the sum goes on twice: in float32 to the residual of the block before, in 16 bits to that block's matrix product.
Here all of that is one operation. The casts lose nothing: 16 bits are exact in 32, and the sum is rounded once.
"""

from __future__ import annotations

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import SIZE, even_means
from nightshift.kernels.ops.rmsnorm.gradient_problem import powers
from nightshift.kernels.ops.rmsnorm.problem import EPS, OTHER_EPS
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, epsilon


def backward_reference(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """gradient: (m, n) of 16 bits; x, residual (the residual's gradient): (m, n) and weight: (n,), float32.

    → (gradient of x with the residual's, the same in the dtype of `gradient`, gradient of weight).
    """
    g = gradient.to(torch.promote_types(x.dtype, torch.float32))
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    normal, gw = x * r, g * weight
    total = residual + r * (gw - normal * (gw * normal).mean(-1, keepdim=True))
    return total, total.to(gradient.dtype), (g * normal).sum(0)


def make_backward(case: Case, draw: Draw) -> Inputs:
    shape, wide = (case["m"], case["n"]), torch.float32
    x, weight = draw.values(shape, wide), draw.weights((case["n"],), wide)
    return draw.normal(shape, case.torch_dtype), x, weight, draw.normal(shape, wide), epsilon(case, EPS, OTHER_EPS)


def powers_of_two(case: Case, draw: Draw) -> Inputs:
    """The residual's gradient is odd, of the norm's size: what is added up is even and never becomes 0."""
    gradient, x, weight = powers(case, draw)
    odd = 2 * draw.whole(x.shape, torch.float32, reach=4) + 1
    eps = epsilon(case, EPS, OTHER_EPS)
    return gradient.to(case.torch_dtype), x.float(), weight.float(), odd / SIZE, eps


RMSNORM_CAST_BACKWARD = Problem(
    name="rmsnorm_cast_backward",
    family="rmsnorm",
    reference=backward_reference,
    make_inputs=make_backward,
    cases=(Case.of("bfloat16", m=8192, n=1024),),
    axes=(Axis("m", (1, 7, 257), 1, 4096, summed=True), Axis("n", (1, 31, 128, 257, 1000, 1021, 4096), 1, 8192)),
    compulsory_bytes=lambda case: ((12 + 2 * case.element_bytes) * case["m"] + 8) * case["n"],
    flops=lambda case: 10 * case["m"] * case["n"],
    dtypes=("float16", "bfloat16"),
    distributions=("normal", "large_mean", "heavy_tail", "ties", "near_constant", "tiny", "zero_rows"),
    numbers=len(OTHER_EPS),
    rules=(Rule("powers_of_two", powers_of_two, lambda case: even_means(case, least=2, wide=True)),),
)
