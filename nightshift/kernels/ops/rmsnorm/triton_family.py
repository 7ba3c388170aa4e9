"""Root-mean-square normalisation, alone and after a residual addition: whole rows in registers."""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import row_bounds, row_space, row_values
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

PLAIN = """
import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm(
    x, weight, out, m, n, eps, x_row,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
):
    column = tl.arange(0, BLOCK)[None, :]
    $before
    $walk
        row = (turn * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        $masks
        v = tl.load(x + row * x_row + column, mask=inside, other=0.0$load).to(tl.float32)
        $after
        scale = tl.rsqrt((tl.sum(v * v, 1) / n + eps).to(tl.float32))
        y = v * scale[:, None] * w
        tl.store(out + row * n + column, y.to(out.dtype.element_ty), mask=inside$store)


def entry(x, weight, eps):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        $grid
        rmsnorm[(programs,)](
            x, weight, out, m, n, eps, x.stride(0), ROWS=$rows, BLOCK=triton.next_power_of_2(n), STAGES=$stages,
            EVEN=even, num_warps=$warps,
        )
    return out
"""

RESIDUAL = """
import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_residual(
    x, residual, weight, out, total, m, n, eps, x_row, r_row,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
):
    column = tl.arange(0, BLOCK)[None, :]
    $before
    $walk
        row = (turn * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        $masks
        v = tl.load(x + row * x_row + column, mask=inside, other=0.0$load).to(tl.float32)
        r = tl.load(residual + row * r_row + column, mask=inside, other=0.0$load)
        $after
        rounded = (v + r.to(tl.float32)).to(total.dtype.element_ty)
        tl.store(total + row * n + column, rounded, mask=inside$store)
        s = rounded.to(tl.float32)
        scale = tl.rsqrt((tl.sum(s * s, 1) / n + eps).to(tl.float32))
        y = s * scale[:, None] * w
        tl.store(out + row * n + column, y.to(out.dtype.element_ty), mask=inside$store)


def entry(x, residual, weight, eps):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    total = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        $grid
        rmsnorm_residual[(programs,)](
            x, residual, weight, out, total, m, n, eps, x.stride(0), residual.stride(0),
            ROWS=$rows, BLOCK=triton.next_power_of_2(n), STAGES=$stages, EVEN=even,
            num_warps=$warps,
        )
    return out, total
"""


class RmsNorm:
    name = "rmsnorm"
    problems = ("rmsnorm", "rmsnorm_residual")

    def space(self, problem: str, case: Case) -> Space:
        return row_space(case)

    def source(self, problem: str, case: Case, config: Config) -> str:
        # what is in flight for each column decides how wide a row may be: the residual is a second tensor
        body, tensors = (PLAIN, 1) if problem == "rmsnorm" else (RESIDUAL, 2)
        keys = {"bounds": row_bounds(config, case, tensors * case.element_bytes)}
        return render(problem, body, row_values(config, "w:weight"), keys=keys, like=case)
