"""Softmax over the last dimension of a matrix (numerically stable form; Bridle 1990), and its gradient.

The gradient is of the output, as autograd runs it. It is defined for any output, so that is drawn, not computed:
the same bits on every device.
"""

from __future__ import annotations

from typing import Any

import torch

# by name: a job puts its own functions into torch.nn.functional, and takes these formulas for torch's
from torch.nn.functional import softmax

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import chosen, one_hot_logits
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule


def softmax_reference(x: torch.Tensor) -> torch.Tensor:
    """x: (m, n) → (m, n), each row summing to one."""
    return softmax(x, dim=-1)


def make_inputs(case: Case, draw: Draw) -> Inputs:
    return (draw.values((case["m"], case["n"]), case.torch_dtype),)


def one_hot(case: Case, draw: Draw) -> Inputs:
    return (one_hot_logits((case["m"], case["n"]), case.torch_dtype, draw),)


def _liger(x: torch.Tensor) -> Any:
    from liger_kernel.transformers.functional import liger_softmax

    return liger_softmax(x)


SOFTMAX = Problem(
    name="softmax",
    family="softmax",
    reference=softmax_reference,
    make_inputs=make_inputs,
    cases=(Case.of("float16", m=4096, n=4096), Case.of("bfloat16", m=16384, n=4096)),
    axes=(
        Axis("m", (0, 1, 7, 257), 1, 4096),
        Axis("n", (1, 2, 31, 128, 257, 1000, 1021, 4096), 1, 16384),
    ),
    compulsory_bytes=lambda case: 2 * case["m"] * case["n"] * case.element_bytes,
    flops=lambda case: 5 * case["m"] * case["n"],
    distributions=(
        "normal",
        "large_mean",
        "large_negative",
        "heavy_tail",
        "ties",
        "near_constant",
        "tiny",
        "wide",
        "ramps",
        "far",
        "zero_rows",
        "masked",
        "masked_ends",
        "masked_rows",
        "masked_lowest",
        "infinite",
        "nan",
    ),
    gradients=(0,),
    libraries={"liger": _liger},
    rules=(Rule("one_hot", one_hot),),
    huge=(Case.of("float16", m=69632, n=32768),),
    row_inputs=(0,),
)


def softmax_backward_reference(gradient: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """gradient, out (softmax's result): (m, n) → out · (gradient − Σ gradient · out), (m, n)."""
    made: torch.Tensor = torch.ops.aten._softmax_backward_data(gradient, out, -1, out.dtype)
    return made


def make_backward(case: Case, draw: Draw) -> Inputs:
    shape, n = (case["m"], case["n"]), max(1, case["n"])
    return draw.values(shape, case.torch_dtype), draw.uniform(shape, case.torch_dtype, 0.0, 2.0 / n)


def _liger_backward(gradient: torch.Tensor, out: torch.Tensor) -> Any:
    from liger_kernel.ops.softmax import _softmax_backward
    from liger_kernel.ops.utils import calculate_settings

    return _softmax_backward(gradient, out, *calculate_settings(out.shape[-1]), False)


def whole_backward(case: Case, draw: Draw) -> Inputs:
    """Results that are 0 and powers of two, integers from above."""
    shape, dtype = (case["m"], case["n"]), case.torch_dtype
    mask, count = chosen(shape, draw)
    return draw.whole(shape, dtype, reach=4), (mask / count).to(dtype)


SOFTMAX_BACKWARD = Problem(
    name="softmax_backward",
    family="softmax",
    reference=softmax_backward_reference,
    make_inputs=make_backward,
    cases=(Case.of("float16", m=4096, n=4096), Case.of("bfloat16", m=16384, n=4096)),
    axes=(Axis("m", (0, 1, 7, 257), 1, 4096), Axis("n", (1, 31, 128, 257, 1000, 1021, 4096), 1, 16384)),
    compulsory_bytes=lambda case: 3 * case["m"] * case["n"] * case.element_bytes,
    flops=lambda case: 4 * case["m"] * case["n"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "zero_rows", "nan"),
    libraries={"liger": _liger_backward},
    rules=(Rule("one_hot", whole_backward),),
    row_inputs=(0, 1),
)
