"""Softmax over the last dimension of a matrix (numerically stable form; Bridle 1990)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import one_hot_logits
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule


def reference(x: torch.Tensor) -> torch.Tensor:
    """x: (m, n) → (m, n), each row summing to one."""
    return F.softmax(x, dim=-1)


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
    reference=reference,
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
