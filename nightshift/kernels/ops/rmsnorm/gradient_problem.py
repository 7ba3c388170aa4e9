"""Gradients that training steps spend more on than on the forward passes: RMSNorm's and cross-entropy's.

torch's own are what autograd runs for the formulas that users write; here each is one operation, so that a kernel
can read everything once.
"""

from __future__ import annotations

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import SIZE, cancelling, even_means, one_hot_logits, some_rows
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


def cross_entropy_reference(gradient: torch.Tensor, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """gradient: (m,) of the losses; logits: (m, v); target: (m,) int64 → (softmax − one-hot) · gradient, (m, v)."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    p = torch.softmax(logits.to(wide), -1)
    hit = torch.arange(logits.shape[-1], device=logits.device) == target[:, None]
    return ((p - hit.to(wide)) * gradient.to(wide)[:, None]).to(logits.dtype)


def make_rmsnorm(case: Case, draw: Draw) -> Inputs:
    shape, dtype = (case["m"], case["n"]), case.torch_dtype
    x = draw.values(shape, dtype)
    return draw.normal(shape, dtype), x, draw.weights((case["n"],), dtype), epsilon(case, EPS, OTHER_EPS)


def make_cross_entropy(case: Case, draw: Draw) -> Inputs:
    logits = draw.values((case["m"], case["v"]), case.torch_dtype)
    return draw.normal((case["m"],), case.torch_dtype), logits, draw.integers((case["m"],), case["v"])


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


def one_hot(case: Case, draw: Draw) -> Inputs:
    logits = one_hot_logits((case["m"], case["v"]), case.torch_dtype, draw)
    return draw.whole((case["m"],), case.torch_dtype), logits, draw.integers((case["m"],), case["v"])


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

CROSS_ENTROPY_BACKWARD = Problem(
    name="cross_entropy_backward",
    family="cross_entropy",
    reference=cross_entropy_reference,
    make_inputs=make_cross_entropy,
    cases=(Case.of("float32", m=8192, v=8192), Case.of("bfloat16", m=4096, v=32000)),
    axes=(Axis("m", (0, 1, 7, 257), 1, 4096), Axis("v", (2, 31, 128, 1021, 4097, 32000), 2, 65536)),
    compulsory_bytes=lambda case: 2 * case["m"] * case["v"] * case.element_bytes,
    flops=lambda case: 5 * case["m"] * case["v"],
    distributions=("normal", "large_mean", "large_negative", "ties", "near_constant", "wide"),
    row_inputs=(0, 1, 2),
    rules=(Rule("one_hot", one_hot),),
)
