"""GELU in its exact form (Hendrycks and Gimpel, arXiv 1606.08415), and its gradient as one operation."""

from __future__ import annotations

import torch

# by name: a job puts its own functions into torch.nn.functional, and takes these formulas for torch's
from torch.nn.functional import gelu

from nightshift.kernels.draw import Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, narrow


def gelu_reference(x: torch.Tensor) -> torch.Tensor:
    """x: (m, n) → x · Φ(x), Φ the normal distribution function."""
    return gelu(x)


def gelu_backward_reference(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """gradient, x: (m, n) → gradient · (Φ(x) + x · φ(x))."""
    out: torch.Tensor = torch.ops.aten.gelu_backward(gradient, x)
    return out


def make_inputs(case: Case, draw: Draw) -> Inputs:
    return (draw.values((case["m"], case["n"]), case.torch_dtype),)


def make_backward(case: Case, draw: Draw) -> Inputs:
    shape = (case["m"], case["n"])
    return draw.normal(shape, case.torch_dtype), draw.values(shape, case.torch_dtype)


def saturated(case: Case, draw: Draw) -> Inputs:
    """From 16 on, where GELU is the identity to any rounding: values of all the dtype's bits. Not in float32, where
    a rational approximation of erf ends a unit below 1."""
    return (draw.uniform((case["m"], case["n"]), case.torch_dtype, 16.0, 32.0),)


def saturated_backward(case: Case, draw: Draw) -> Inputs:
    return draw.normal((case["m"], case["n"]), case.torch_dtype), *saturated(case, draw)


_AXES = (Axis("m", (0, 1, 7, 257), 1, 4096), Axis("n", (1, 31, 128, 257, 1000, 1021, 4096), 1, 16384))
_CASES = (Case.of("bfloat16", m=8192, n=4096),)
_HUGE = (Case.of("float16", m=69632, n=32768),)

GELU = Problem(
    name="gelu",
    family="gelu",
    reference=gelu_reference,
    make_inputs=make_inputs,
    cases=_CASES,
    axes=_AXES,
    compulsory_bytes=lambda case: 2 * case["m"] * case["n"] * case.element_bytes,
    flops=lambda case: 20 * case["m"] * case["n"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "wide", "tiny", "far", "nan"),
    gradients=(0,),
    huge=_HUGE,
    row_inputs=(0,),
    rules=(Rule("saturated", saturated, narrow),),
)

GELU_BACKWARD = Problem(
    name="gelu_backward",
    family="gelu",
    reference=gelu_backward_reference,
    make_inputs=make_backward,
    cases=_CASES,
    axes=_AXES,
    compulsory_bytes=lambda case: 3 * case["m"] * case["n"] * case.element_bytes,
    flops=lambda case: 25 * case["m"] * case["n"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "wide", "tiny", "nan"),
    huge=_HUGE,
    row_inputs=(0, 1),
    rules=(Rule("saturated", saturated_backward, narrow),),
)
