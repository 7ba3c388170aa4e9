"""Symmetric int8 quantisation by row and its inverse (Jacob et al., arXiv 1712.05877, without zero point)."""

from __future__ import annotations

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule

SMALLEST = 1e-10
"""Largest magnitude assumed for a row of zeros."""


def reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x: (m, n), n ≥ 1 → int8 codes (m, n), rounded half to even, and float32 scales (m,): x ≈ code · scale."""
    wide = x.float()
    scale = wide.abs().amax(dim=-1).clamp(min=SMALLEST) / 127.0
    return torch.round(wide / scale[:, None]).clamp(-127, 127).to(torch.int8), scale


def oracle(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes before rounding: a code may round the other way only where that is as near."""
    scale = x.abs().amax(dim=-1).clamp(min=SMALLEST) / 127.0
    return x / scale[:, None], scale


def dequantise_reference(code: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """code: (m, n) int8; scale: (m,) → (m, n) of the scale's dtype."""
    return code.to(scale.dtype) * scale[:, None]


def make_inputs(case: Case, draw: Draw) -> Inputs:
    return (draw.values((case["m"], case["n"]), case.torch_dtype),)


def make_dequantise_inputs(case: Case, draw: Draw) -> Inputs:
    code = draw.integers((case["m"], case["n"]), 256, torch.int64) - 128
    if draw.distribution not in ("wide", "infinite", "nan"):
        return code.to(torch.int8), draw.uniform((case["m"],), case.torch_dtype, 0.001, 0.1)
    scale = draw.values((case["m"],), case.torch_dtype)
    if case["m"] and draw.distribution != "wide":  # 0 times this is NaN
        scale[draw.integer(0, case["m"])] = float("nan" if draw.distribution == "nan" else "inf")
    return code.to(torch.int8), scale


def _scales(case: Case, draw: Draw) -> torch.Tensor:
    return 2.0 ** (draw.integers((case["m"],), 7) - 3).float()


def powers_of_two(case: Case, draw: Draw) -> Inputs:
    """Rows of integers up to 127, which each row has, times a power of two: the scale, as far as a fast division by
    127 leaves it one, which the codes do not show."""
    shape = (case["m"], case["n"])
    code = draw.integers(shape, 253) - 126
    most = torch.arange(case["n"], device=draw.device) == draw.integers((case["m"], 1), case["n"])
    sign = 1 - 2 * draw.integers((case["m"], 1), 2)
    return ((torch.where(most, 127 * sign, code) * _scales(case, draw)[:, None]).to(case.torch_dtype),)


def powers_of_two_back(case: Case, draw: Draw) -> Inputs:
    code = draw.integers((case["m"], case["n"]), 256, torch.int64) - 128
    return code.to(torch.int8), _scales(case, draw).to(case.torch_dtype)


_AXES = (Axis("m", (0, 1, 7, 257), 1, 4096), Axis("n", (1, 31, 128, 257, 1021, 4096), 1, 16384))

QUANTISE = Problem(
    name="quantise",
    family="quantise",
    reference=reference,
    oracle=oracle,
    make_inputs=make_inputs,
    cases=(Case.of("bfloat16", m=16384, n=4096),),
    axes=_AXES,
    compulsory_bytes=lambda case: case["m"] * (case["n"] * (case.element_bytes + 1) + 4),
    flops=lambda case: 4 * case["m"] * case["n"],
    distributions=(
        "normal",
        "large_mean",
        "heavy_tail",
        "ties",
        "near_constant",
        "tiny",
        "zeros",
        "zero_rows",
        "subnormal",
        "huge",
    ),
    row_inputs=(0,),
    rules=(Rule("powers_of_two", powers_of_two, outputs=(0,)),),
)

DEQUANTISE = Problem(
    name="dequantise",
    family="quantise",
    reference=dequantise_reference,
    make_inputs=make_dequantise_inputs,
    cases=(Case.of("bfloat16", m=16384, n=4096),),
    axes=_AXES,
    compulsory_bytes=lambda case: case["m"] * (case["n"] * (case.element_bytes + 1) + case.element_bytes),
    flops=lambda case: case["m"] * case["n"],
    distributions=("normal", "ties", "wide", "infinite", "nan"),
    elementwise=True,
    row_inputs=(0, 1),
    rules=(Rule("powers_of_two", powers_of_two_back),),
)
