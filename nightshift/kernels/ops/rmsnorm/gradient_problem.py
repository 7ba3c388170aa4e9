"""RMSNorm's gradient, on which training steps spend more than on the norm itself.

torch's own is what autograd runs for the formula that users write; here it is one operation, so that a kernel can
read everything once.
"""

from __future__ import annotations

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import SIZE, cancelling, even_means, some_rows
from nightshift.kernels.ops.rmsnorm.problem import EPS, OTHER_EPS
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, epsilon


def rmsnorm_reference(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """gradient, x: (m, n); weight: (n,) → gradients of x (m, n) and of weight (n,), sums in float32 or wider."""
    wide = torch.promote_types(x.dtype, torch.float32)
    g, value, w = gradient.to(wide), x.to(wide), weight.to(wide)
    r = torch.rsqrt(value.square().mean(-1, keepdim=True) + eps)
    normal, gw = value * r, g * w
    dx = r * (gw - normal * (gw * normal).mean(-1, keepdim=True))
    return dx.to(x.dtype), (g * normal).sum(0).to(weight.dtype)


def make_rmsnorm(case: Case, draw: Draw) -> Inputs:
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


def powers_of_two(case: Case, draw: Draw) -> Inputs:
    return *(made.to(case.torch_dtype) for made in powers(case, draw)), epsilon(case, EPS, OTHER_EPS)


RMSNORM_BACKWARD = Problem(
    name="rmsnorm_backward",
    family="rmsnorm",
    reference=rmsnorm_reference,
    make_inputs=make_rmsnorm,
    cases=(Case.of("float32", m=8192, n=1024), Case.of("bfloat16", m=16384, n=4096)),
    axes=(Axis("m", (1, 7, 257), 1, 4096), Axis("n", (1, 31, 128, 257, 1000, 1021, 4096), 1, 8192)),
    compulsory_bytes=lambda case: (3 * case["m"] + 2) * case["n"] * case.element_bytes,
    flops=lambda case: 9 * case["m"] * case["n"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "near_constant", "tiny", "zero_rows"),
    numbers=len(OTHER_EPS),
    rules=(Rule("powers_of_two", powers_of_two, lambda case: even_means(case, least=2)),),
)
