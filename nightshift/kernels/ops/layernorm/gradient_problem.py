"""Layer normalisation's gradient as autograd runs it: from saved statistics.

The function is defined for any statistics, so those are drawn, not computed: the same bits on every device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import cancelling, some_rows
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, nearest


def layernorm_reference(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """gradient, x: (m, n); weight: (n,); mean, scale (one over the standard deviation): (m,) → gradients of x
    (m, n), of weight and of bias (n,), sums in float32 or wider."""
    wide = torch.promote_types(x.dtype, torch.float32)
    g, r = gradient.to(wide), scale.to(wide)[:, None]
    normal, gw = (x.to(wide) - mean.to(wide)[:, None]) * r, gradient.to(wide) * weight.to(wide)
    inner, middle = (gw * normal).mean(-1, keepdim=True), gw.mean(-1, keepdim=True)
    dx = r * (gw - middle - normal * inner)
    return dx.to(x.dtype), (g * normal).sum(0).to(weight.dtype), g.sum(0).to(weight.dtype)


def make_layernorm(case: Case, draw: Draw) -> Inputs:
    shape, dtype = (case["m"], case["n"]), case.torch_dtype
    rows = (case["m"],)
    mean, scale = draw.normal(rows, torch.float32, 0.25), draw.uniform(rows, torch.float32, 0.5, 2.0)
    return draw.normal(shape, dtype), draw.values(shape, dtype), draw.weights((case["n"],), dtype), mean, scale


def _aten_layernorm(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor
) -> Any:
    """torch's own kernels, as autograd calls them."""
    rows = mean[:, None], scale[:, None]
    every = [True, True, True]
    return torch.ops.aten.native_layer_norm_backward(gradient, x, [x.shape[-1]], *rows, weight, weight, every)


def _liger_layernorm(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor
) -> Any:
    from liger_kernel.ops.layer_norm import layer_norm_backward

    return layer_norm_backward(gradient, x, weight, weight, mean, scale)


def whole_layernorm(case: Case, draw: Draw) -> Inputs:
    """What a row's upstream gradient, times its weight, adds up to is 0, also when it is weighted with the
    normalised values, which come in the same pairs: no mean is rounded."""
    m, n, dtype = case["m"], case["n"], case.torch_dtype
    size, signs = cancelling(m, n, draw)
    weight = signs * (1 + draw.integers((n,), 2))
    gradient = size * signs * some_rows(m, dtype, 64, draw) // weight
    level = (draw.integers((m, (n + 1) // 2), 5) - 2).repeat_interleave(2, dim=1)[:, :n]
    if n % 2:
        level[:, -2:] = level[:, -3:-2]
    mean, half = draw.integers((m,), 5) - 2, draw.integers((m,), 2)
    x = mean[:, None] + 2 * level
    return *(t.to(dtype) for t in (gradient, x, weight)), mean.float(), 1.0 / (1 + half).float()


def _paired(case: Case) -> Iterator[Case]:
    return nearest(case, "n", lambda near: near["n"] > 1)


LAYERNORM_BACKWARD = Problem(
    name="layernorm_backward",
    family="layernorm",
    reference=layernorm_reference,
    make_inputs=make_layernorm,
    cases=(Case.of("float16", m=4096, n=2048), Case.of("bfloat16", m=16384, n=4096)),
    axes=(Axis("m", (1, 7, 257), 1, 4096), Axis("n", (1, 31, 128, 257, 1000, 1021, 4096), 1, 8192)),
    compulsory_bytes=lambda case: (3 * case["m"] + 3) * case["n"] * case.element_bytes + 8 * case["m"],
    flops=lambda case: 12 * case["m"] * case["n"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "zero_rows"),
    rules=(Rule("powers_of_two", whole_layernorm, _paired),),
    libraries={"aten": _aten_layernorm, "liger": _liger_layernorm},
)
