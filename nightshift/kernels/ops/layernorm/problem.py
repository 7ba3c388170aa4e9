"""Layer normalisation over the last dimension (Ba, Kiros and Hinton, arXiv 1607.06450), and its gradient.

The gradient is of saved statistics, as autograd runs it. It is defined for any statistics, so those are drawn, not
computed: the same bits on every device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import SIZE, cancelling, some_rows
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, epsilon, nearest

EPS = 1e-5


def layernorm_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
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
    reference=layernorm_reference,
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


def layernorm_backward_reference(
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


def make_backward(case: Case, draw: Draw) -> Inputs:
    shape, dtype = (case["m"], case["n"]), case.torch_dtype
    rows = (case["m"],)
    mean, scale = draw.normal(rows, torch.float32, 0.25), draw.uniform(rows, torch.float32, 0.5, 2.0)
    return draw.normal(shape, dtype), draw.values(shape, dtype), draw.weights((case["n"],), dtype), mean, scale


def _aten_backward(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor
) -> Any:
    """torch's own kernels, as autograd calls them."""
    rows = mean[:, None], scale[:, None]
    every = [True, True, True]
    return torch.ops.aten.native_layer_norm_backward(gradient, x, [x.shape[-1]], *rows, weight, weight, every)


def _liger_backward(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor
) -> Any:
    from liger_kernel.ops.layer_norm import layer_norm_backward

    return layer_norm_backward(gradient, x, weight, weight, mean, scale)


def whole_backward(case: Case, draw: Draw) -> Inputs:
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
    reference=layernorm_backward_reference,
    make_inputs=make_backward,
    cases=(Case.of("float16", m=4096, n=2048), Case.of("bfloat16", m=16384, n=4096)),
    axes=(Axis("m", (1, 7, 257), 1, 4096), Axis("n", (1, 31, 128, 257, 1000, 1021, 4096), 1, 8192)),
    compulsory_bytes=lambda case: (3 * case["m"] + 3) * case["n"] * case.element_bytes + 8 * case["m"],
    flops=lambda case: 12 * case["m"] * case["n"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "zero_rows"),
    rules=(Rule("powers_of_two", whole_backward, _paired),),
    libraries={"aten": _aten_backward, "liger": _liger_backward},
)
