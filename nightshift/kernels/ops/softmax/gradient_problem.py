"""Softmax's gradient as autograd runs it: from the output.

The function is defined for any output, so that is drawn, not computed: the same bits on every device.
"""

from __future__ import annotations

from typing import Any

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import chosen
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule


def softmax_reference(gradient: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """gradient, out (softmax's result): (m, n) → out · (gradient − Σ gradient · out), (m, n)."""
    made: torch.Tensor = torch.ops.aten._softmax_backward_data(gradient, out, -1, out.dtype)
    return made


def make_softmax(case: Case, draw: Draw) -> Inputs:
    shape, n = (case["m"], case["n"]), max(1, case["n"])
    return draw.values(shape, case.torch_dtype), draw.uniform(shape, case.torch_dtype, 0.0, 2.0 / n)


def _liger_softmax(gradient: torch.Tensor, out: torch.Tensor) -> Any:
    from liger_kernel.ops.softmax import _softmax_backward
    from liger_kernel.ops.utils import calculate_settings

    return _softmax_backward(gradient, out, *calculate_settings(out.shape[-1]), False)


def whole_softmax(case: Case, draw: Draw) -> Inputs:
    """Results that are 0 and powers of two, integers from above."""
    shape, dtype = (case["m"], case["n"]), case.torch_dtype
    mask, count = chosen(shape, draw)
    return draw.whole(shape, dtype, reach=4), (mask / count).to(dtype)


SOFTMAX_BACKWARD = Problem(
    name="softmax_backward",
    family="softmax",
    reference=softmax_reference,
    make_inputs=make_softmax,
    cases=(Case.of("float16", m=4096, n=4096), Case.of("bfloat16", m=16384, n=4096)),
    axes=(Axis("m", (0, 1, 7, 257), 1, 4096), Axis("n", (1, 31, 128, 257, 1000, 1021, 4096), 1, 16384)),
    compulsory_bytes=lambda case: 3 * case["m"] * case["n"] * case.element_bytes,
    flops=lambda case: 4 * case["m"] * case["n"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "zero_rows", "nan"),
    libraries={"liger": _liger_softmax},
    rules=(Rule("one_hot", whole_softmax),),
    row_inputs=(0, 1),
)
