"""Data movement, exact to the bit: a copy and a permutation of the last two of three dimensions."""

from __future__ import annotations

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem


def copy_reference(x: torch.Tensor) -> torch.Tensor:
    """x: (m, n) → a contiguous copy."""
    return x.clone(memory_format=torch.contiguous_format)


def permute_reference(x: torch.Tensor) -> torch.Tensor:
    """x: (b, m, n) → contiguous (b, n, m)."""
    return x.permute(0, 2, 1).contiguous()


def _values(shape: tuple[int, ...], case: Case, draw: Draw) -> torch.Tensor:
    if case.dtype.startswith("int"):  # of all bits: half of them are negative
        return draw.integers(shape, 1 << 8 * case.element_bytes, case.torch_dtype)
    return draw.values(shape, case.torch_dtype)


def make_copy(case: Case, draw: Draw) -> Inputs:
    return (_values((case["m"], case["n"]), case, draw),)


def make_permute(case: Case, draw: Draw) -> Inputs:
    return (_values((case["b"], case["m"], case["n"]), case, draw),)


_DISTRIBUTIONS = ("normal", "heavy_tail", "zeros", "tiny", "subnormal", "huge", "infinite", "nan")
_DTYPES = ("float16", "bfloat16", "float32", "int32", "int8")

COPY = Problem(
    name="copy",
    family="copy",
    reference=copy_reference,
    make_inputs=make_copy,
    cases=(Case.of("bfloat16", m=16384, n=4096),),
    axes=(Axis("m", (0, 1, 7, 257), 1, 4096), Axis("n", (1, 31, 257, 1021, 4096), 1, 16384)),
    compulsory_bytes=lambda case: 2 * case["m"] * case["n"] * case.element_bytes,
    flops=lambda case: 0,
    dtypes=_DTYPES,
    distributions=_DISTRIBUTIONS,
    exact=True,
    huge=(Case.of("float16", m=69632, n=32768),),
    row_inputs=(0,),
)

PERMUTE = Problem(
    name="permute",
    family="copy",
    reference=permute_reference,
    make_inputs=make_permute,
    cases=(Case.of("bfloat16", b=16, m=1024, n=4096),),
    axes=(
        Axis("b", (0, 1, 3), 1, 8),
        Axis("m", (1, 31, 257), 1, 2048),
        Axis("n", (1, 33, 1021), 1, 2048),
    ),
    compulsory_bytes=lambda case: 2 * case["b"] * case["m"] * case["n"] * case.element_bytes,
    flops=lambda case: 0,
    dtypes=_DTYPES,
    distributions=_DISTRIBUTIONS,
    exact=True,
)
