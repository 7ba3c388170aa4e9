"""Matrix products: a · b, and the two others of a linear layer without bias, each with its operands as they lie.

A layer's weight is (n, k), so its forward pass is x · weightᵀ, its input's gradient the plain product gradient ·
weight, and its weight's gradient gradientᵀ · x. A compiler's graph has the same three, with strides for the ᵀ.
float32 inputs mean float32 products: TF32 is off in the matmul_reference and a downgrade elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import torch

# by name: a job puts its own functions into torch.nn.functional, and takes these formulas for torch's
from torch.nn.functional import linear

from nightshift.kernels.draw import Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, mantissa


def matmul_reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a: (m, k); b: (k, n) → (m, n)."""
    return a @ b


def make_inputs(case: Case, draw: Draw) -> Inputs:
    a = draw.values((case["m"], case["k"]), case.torch_dtype)
    return a, draw.normal((case["k"], case["n"]), case.torch_dtype)


def linear_reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x: (m, k); weight: (n, k) → x · weightᵀ, (m, n)."""
    return linear(x, weight)


def make_linear(case: Case, draw: Draw) -> Inputs:
    x = draw.values((case["m"], case["k"]), case.torch_dtype)
    return x, draw.normal((case["n"], case["k"]), case.torch_dtype)


def linear_weight_gradient_reference(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """gradient: (m, n); x: (m, k) → gradientᵀ · x, (n, k): a sum over the m rows."""
    return gradient.t() @ x


def make_weight_gradient(case: Case, draw: Draw) -> Inputs:
    gradient = draw.values((case["m"], case["n"]), case.torch_dtype)
    return gradient, draw.normal((case["m"], case["k"]), case.torch_dtype)


def linear_weight_gradient_wide_reference(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The same of 16-bit matrices in float32, as it was added up: (n, k)."""
    if gradient.element_size() > 2:
        return gradient.t() @ x
    if gradient.is_cuda:
        return torch.mm(gradient.t(), x, out_dtype=torch.float32)
    return gradient.float().t() @ x.float()


def whole(case: Case, draw: Draw) -> Inputs:
    m, n, k, dtype = case["m"], case["n"], case["k"], case.torch_dtype
    return draw.whole((m, k), dtype, terms=k, factor=2), draw.whole((k, n), dtype, reach=2)


def whole_linear(case: Case, draw: Draw) -> Inputs:
    m, n, k, dtype = case["m"], case["n"], case["k"], case.torch_dtype
    return draw.whole((m, k), dtype, terms=k, factor=2), draw.whole((n, k), dtype, reach=2)


def whole_weight_gradient(case: Case, draw: Draw) -> Inputs:
    m, n, k, dtype = case["m"], case["n"], case["k"], case.torch_dtype
    return draw.whole((m, n), dtype, terms=m, factor=2, axis=0), draw.whole((m, k), dtype, reach=2)


def _long(first: str, second: str, summed: str) -> Rule:
    """The mantissa rule of a product of matrices with these axes."""

    def inputs(case: Case, draw: Draw) -> Inputs:
        return tuple(draw.mantissas([case[axis] for axis in axes]) for axes in (first, second))

    return mantissa(inputs, lambda case: case[summed])


MATMUL = Problem(
    name="matmul",
    family="matmul",
    reference=matmul_reference,
    make_inputs=make_inputs,
    cases=(Case.of("float16", m=2048, n=2048, k=2048), Case.of("bfloat16", m=4096, n=11008, k=4096)),
    axes=(
        Axis("m", (0, 1, 17, 64, 127, 256), 1, 1024),
        Axis("n", (1, 17, 64, 127, 256), 1, 1024),
        Axis("k", (1, 17, 64, 127, 1024), 1, 2048),
    ),
    compulsory_bytes=lambda case: (
        (case["m"] * case["k"] + case["k"] * case["n"] + case["m"] * case["n"]) * case.element_bytes
    ),
    flops=lambda case: 2 * case["m"] * case["n"] * case["k"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "nan", "zeros_by_nan"),
    gradients=(0, 1),
    rules=(Rule("integers", whole), _long("mk", "kn", "k")),
)

LINEAR = replace(
    MATMUL,
    name="linear",
    reference=linear_reference,
    make_inputs=make_linear,
    cases=(Case.of("bfloat16", m=8192, n=3072, k=1024),),
    rules=(Rule("integers", whole_linear), _long("mk", "nk", "k")),
)
LINEAR_WEIGHT_GRADIENT = replace(
    MATMUL,
    name="linear_weight_gradient",
    reference=linear_weight_gradient_reference,
    make_inputs=make_weight_gradient,
    cases=LINEAR.cases,
    axes=(
        Axis("m", (1, 17, 64, 127, 1024), 1, 2048),
        Axis("n", (1, 17, 64, 127, 256), 1, 1024),
        Axis("k", (1, 17, 64, 127, 256), 1, 1024),
    ),
    gradients=(),
    rules=(Rule("integers", whole_weight_gradient), _long("mn", "mk", "m")),
)
LINEAR_WEIGHT_GRADIENT_WIDE = replace(
    LINEAR_WEIGHT_GRADIENT,
    name="linear_weight_gradient_wide",
    reference=linear_weight_gradient_wide_reference,
    dtypes=("float16", "bfloat16"),
    rules=LINEAR_WEIGHT_GRADIENT.rules[:1],
    compulsory_bytes=lambda case: 2 * case["m"] * (case["n"] + case["k"]) + 4 * case["n"] * case["k"],
)
