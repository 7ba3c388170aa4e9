"""A linear layer with its bias, and with a pointwise function behind it, as one operation: nothing is written in
between, and the bias is added before the result is rounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

# by name: a job puts its own functions into torch.nn.functional, and takes these formulas for torch's
from torch.nn.functional import gelu, linear, relu

from nightshift.kernels.draw import WHOLE, Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, mantissa, narrow


def linear_bias_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x: (m, k); weight: (n, k); bias: (n,) → x · weightᵀ + bias, (m, n), rounded once."""
    return linear(x, weight, bias)


def linear_gelu_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x: (m, k); weight: (n, k); bias: (n,) → gelu(x · weightᵀ + bias), (m, n)."""
    return gelu(linear(x, weight, bias))


def linear_gelu_tanh_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same with GELU's tanh form."""
    return gelu(linear(x, weight, bias), approximate="tanh")


def linear_relu_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same with max(·, 0)."""
    return relu(linear(x, weight, bias))


def make_inputs(case: Case, draw: Draw) -> Inputs:
    m, n, k, dtype = case["m"], case["n"], case["k"], case.torch_dtype
    return draw.values((m, k), dtype), draw.normal((n, k), dtype, max(1, k) ** -0.5), draw.normal((n,), dtype)


def whole(case: Case, draw: Draw) -> Inputs:
    m, n, k, dtype = case["m"], case["n"], case["k"], case.torch_dtype
    x = draw.whole((m, k), dtype, terms=k + 1, factor=2)
    return x, draw.whole((n, k), dtype, reach=2), draw.whole((n,), dtype, reach=2)


def saturated(case: Case, draw: Draw) -> Inputs:
    """Sums that a bias lifts to where GELU is the identity: at least a quarter of the integers' range, or 2^16."""
    m, n, k, dtype = case["m"], case["n"], case["k"], case.torch_dtype
    lift = min(WHOLE[dtype] // 2, 1 << 17)
    x = draw.whole((m, k), dtype, terms=k, factor=2, limit=lift // 2)
    return x, draw.whole((n, k), dtype, reach=2), draw.whole((n,), dtype, reach=2) + lift


def long(case: Case, draw: Draw) -> Inputs:
    m, n, k = case["m"], case["n"], case["k"]
    return draw.mantissas((m, k)), draw.mantissas((n, k)), draw.mantissas((n,)) + 32.0


def _problem(name: str, reference: Callable[..., Any], rule: Rule) -> Problem:
    return Problem(
        name=name,
        family="linear",
        reference=reference,
        make_inputs=make_inputs,
        cases=(Case.of("bfloat16", m=8192, n=4096, k=1024),),
        axes=(
            Axis("m", (0, 1, 17, 64, 127), 1, 1024),
            Axis("n", (1, 17, 64, 127), 1, 1024),
            Axis("k", (1, 17, 64, 127, 1024), 1, 2048),
        ),
        compulsory_bytes=lambda case: (
            (case["m"] * case["k"] + case["k"] * case["n"] + case["n"] + case["m"] * case["n"]) * case.element_bytes
        ),
        flops=lambda case: 2 * case["m"] * case["n"] * case["k"],
        distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "nan", "zeros_by_nan"),
        rules=(rule, mantissa(long, lambda case: case["k"] + 1)),
    )


_INTEGERS, _SATURATED = Rule("integers", whole), Rule("saturated", saturated, narrow)
LINEAR_BIAS = replace(_problem("linear_bias", linear_bias_reference, _INTEGERS), gradients=(0, 1, 2))
LINEAR_GELU = _problem("linear_gelu", linear_gelu_reference, _SATURATED)
LINEAR_GELU_TANH = _problem("linear_gelu_tanh", linear_gelu_tanh_reference, _SATURATED)
LINEAR_RELU = _problem("linear_relu", linear_relu_reference, _INTEGERS)
ALL = (LINEAR_BIAS, LINEAR_GELU, LINEAR_GELU_TANH, LINEAR_RELU)
