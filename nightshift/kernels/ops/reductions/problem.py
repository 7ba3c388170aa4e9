"""Row reductions: the sum (rounded once, in float32 accumulators) and the maximum (exact)."""

from __future__ import annotations

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, mantissa


def sum_reference(x: torch.Tensor) -> torch.Tensor:
    """x: (m, n) → (m,)."""
    return x.sum(dim=-1)


def max_reference(x: torch.Tensor) -> torch.Tensor:
    """x: (m, n), n ≥ 1 → (m,); a NaN in a row is that row's maximum (IEEE 754-2019 maximum)."""
    return x.amax(dim=-1)


def make_inputs(case: Case, draw: Draw) -> Inputs:
    if case.dtype.startswith("int"):
        bits = 32 if draw.distribution == "huge" else 30  # two of 32 are further apart than a third can say
        values = (draw.integers((case["m"], case["n"]), 1 << bits) - (1 << bits - 1)).to(case.torch_dtype)
        if draw.distribution == "nan" and case["m"]:  # integers have none: some rows hold only the least there is
            spared = draw.integers((case["m"], 1), 1 << 20) % 3 > 0
            spared[draw.integer(0, case["m"])] = False
            values = torch.where(spared, values, torch.iinfo(case.torch_dtype).min)
        return (values,)
    return (draw.values((case["m"], case["n"]), case.torch_dtype),)


def whole(case: Case, draw: Draw) -> Inputs:
    return (draw.whole((case["m"], case["n"]), case.torch_dtype, terms=case["n"]),)


def long(case: Case, draw: Draw) -> Inputs:
    return (draw.mantissas((case["m"], case["n"])),)


_CASES = (Case.of("float16", m=8192, n=8192), Case.of("bfloat16", m=1024, n=32768))
_AXES = (
    Axis("m", (0, 1, 7, 257), 1, 4096),
    Axis("n", (1, 2, 31, 128, 257, 1000, 1021, 4096), 1, 32768),
)

REDUCE_SUM = Problem(
    name="reduce_sum",
    family="reduce",
    reference=sum_reference,
    make_inputs=make_inputs,
    cases=_CASES,
    axes=_AXES,
    compulsory_bytes=lambda case: case["m"] * (case["n"] + 1) * case.element_bytes,
    flops=lambda case: case["m"] * case["n"],
    distributions=(
        "normal",
        "large_mean",
        "large_negative",
        "heavy_tail",
        "ties",
        "wide",
        "tiny",
        "ramps",
        "far",
        "zero_rows",
        "infinite",
        "nan",
    ),
    gradients=(0,),
    rules=(Rule("integers", whole), mantissa(long, lambda case: case["n"])),
    huge=(Case.of("float16", m=69632, n=32768),),
    row_inputs=(0,),
)

MAX = Problem(
    name="max",
    family="reduce",
    reference=max_reference,
    make_inputs=make_inputs,
    cases=_CASES,
    axes=_AXES,
    compulsory_bytes=lambda case: case["m"] * (case["n"] + 1) * case.element_bytes,
    flops=lambda case: case["m"] * case["n"],
    dtypes=("float16", "bfloat16", "float32", "int32"),
    distributions=(
        "normal",
        "large_mean",
        "large_negative",
        "heavy_tail",
        "ties",
        "wide",
        "tiny",
        "ramps",
        "far",
        "huge",
        "subnormal",
        "masked",
        "masked_ends",
        "masked_rows",
        "masked_lowest",
        "infinite",
        "nan",
    ),
    exact=True,
    signed_zero=False,
    huge=(Case.of("float16", m=69632, n=32768),),
    row_inputs=(0,),
)
