"""Symmetric int8 quantisation by row, and its inverse.

On a GPU torch divides by the number 127 as a product with its reciprocal, on a CPU it divides: scales that differ
in their last bit round some code the other way, so this does as torch does there.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import row_space, row_values
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

QUANTISE = """
import torch
import triton
import triton.language as tl


@triton.jit
def quantise(
    x, code, scales, m, n, x_row, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    RECIPROCAL: tl.constexpr,
):
    column = tl.arange(0, BLOCK)[None, :]
    $walk
        line = (turn * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        row = line[:, None]
        inside = (row < m) & (column < n)
        v = tl.load(x + row * x_row + column, mask=inside, other=0.0$load).to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(v), 1), 1e-10)
        scale = largest * 0.007874015718698502 if RECIPROCAL else tl.div_rn(largest, 127.0)
        ratio = tl.div_rn(v, scale[:, None] + tl.zeros_like(v))
        even = (ratio + 12582912.0) - 12582912.0  # adding 1.5 * 2^23 rounds half to even
        even = tl.minimum(tl.maximum(even, -127.0), 127.0)
        tl.store(code + row * n + column, even.to(tl.int8), mask=inside$store)
        tl.store(scales + line, scale, mask=line < m)


def entry(x):
    m, n = x.shape
    code = torch.empty((m, n), dtype=torch.int8, device=x.device)
    scales = torch.empty((m,), dtype=torch.float32, device=x.device)
    if m:
        $grid
        quantise[(programs,)](
            x, code, scales, m, n, x.stride(0), ROWS=$rows, BLOCK=triton.next_power_of_2(n), STAGES=$stages,
            RECIPROCAL=x.is_cuda, num_warps=$warps,
        )
    return code, scales
"""

DEQUANTISE = """
import torch
import triton
import triton.language as tl


@triton.jit
def dequantise(
    code, scales, out, m, n, c_row, s_step, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    column = tl.arange(0, BLOCK)[None, :]
    $walk
        line = (turn * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        row = line[:, None]
        inside = (row < m) & (column < n)
        c = tl.load(code + row * c_row + column, mask=inside, other=0$load).to(tl.float32)
        s = tl.load(scales + line * s_step, mask=line < m, other=0.0).to(tl.float32)
        y = (c * s[:, None]).to(out.dtype.element_ty)
        tl.store(out + row * n + column, y, mask=inside$store)


def entry(x, scales):
    m, n = x.shape
    out = torch.empty((m, n), dtype=scales.dtype, device=x.device)
    if m:
        $grid
        dequantise[(programs,)](
            x, scales, out, m, n, x.stride(0), scales.stride(0), ROWS=$rows,
            BLOCK=triton.next_power_of_2(n), STAGES=$stages, num_warps=$warps,
        )
    return out
"""


class Quantise:
    name = "quantise"
    problems = ("quantise", "dequantise")

    def space(self, problem: str, case: Case) -> Space:
        return row_space(case)

    def source(self, problem: str, case: Case, config: Config) -> str:
        body = QUANTISE if problem == "quantise" else DEQUANTISE
        # a row lies in registers as a whole
        return render(problem, body, row_values(config), keys={"bounds": "n 1..32768"}, like=case)
