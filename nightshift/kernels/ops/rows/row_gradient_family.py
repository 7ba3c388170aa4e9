"""Gradients of softmax and layer normalisation, each in one pass over its inputs.

The gradients of layer normalisation's weight and bias are sums over rows: every program keeps its part in registers
while it walks its rows, and a second kernel adds the parts in a fixed order, so the result is the same every time.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import POLICIES, SUMMING_HOST, row_bounds, row_space, row_values
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

SOFTMAX = """
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_gradient(
    gradient, y, out, m, n, g_row, y_row,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
):
    column = tl.arange(0, BLOCK)[None, :]
    $walk
        row = (turn * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        $masks
        g = tl.load(gradient + row * g_row + column, mask=inside, other=0.0$load)
        v = tl.load(y + row * y_row + column, mask=inside, other=0.0$load).to(tl.float32)
        gv = g.to(tl.float32) * v
        made = gv - v * tl.sum(gv, 1)[:, None]
        tl.store(out + row * n + column, made.to(out.dtype.element_ty), mask=inside$store)


def entry(gradient, x):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        $grid
        softmax_gradient[(programs,)](
            gradient, x, out, m, n, gradient.stride(0), x.stride(0), ROWS=$rows,
            BLOCK=triton.next_power_of_2(n), STAGES=$stages, EVEN=even, num_warps=$warps,
        )
    return out
"""

LAYERNORM = (
    """
import torch
import triton
import triton.language as tl


@triton.jit
def layernorm_gradient(
    gradient, x, weight, mean, scale, out, part, m, n, g_row, x_row, mean_step, scale_step,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):
    column = tl.arange(0, BLOCK)[None, :]
    w = tl.load(weight + column, mask=column < n, other=0.0).to(tl.float32)
    to_weight = tl.zeros((ROWS, BLOCK), tl.float32)
    to_bias = tl.zeros((ROWS, BLOCK), tl.float32)
    for turn in tl.range(tl.program_id(0), tl.cdiv(m, ROWS), tl.num_programs(0), num_stages=STAGES):
        line = turn * ROWS + tl.arange(0, ROWS)
        row = line.to(tl.int64)[:, None]
        inside = (row < m) & (column < n)
        v = tl.load(x + row * x_row + column, mask=inside, other=0.0$load).to(tl.float32)
        g = tl.load(gradient + row * g_row + column, mask=inside, other=0.0$load)
        g = g.to(tl.float32)
        centre = tl.load(mean + line * mean_step, mask=line < m, other=0.0)[:, None]
        r = tl.load(scale + line * scale_step, mask=line < m, other=0.0)[:, None]
        normal = tl.where(inside, (v - centre) * r, 0.0)
        gw = g * w
        middle = tl.sum(gw, 1)[:, None] / n
        inner = tl.sum(gw * normal, 1)[:, None] / n
        y = r * (gw - middle - normal * inner)
        tl.store(out + row * n + column, y.to(out.dtype.element_ty), mask=inside$store)
        to_weight += g * normal
        to_bias += g
    at = part + tl.program_id(0) * 2 * n + column
    tl.store(at, tl.sum(to_weight, 0)[None, :], mask=column < n)
    tl.store(at + n, tl.sum(to_bias, 0)[None, :], mask=column < n)


@triton.jit
def add_parts(part, weight, bias, count, n, LINES: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((LINES, BLOCK), tl.float32)
    for start in range(0, count, LINES):
        line = start + tl.arange(0, LINES)[:, None]
        known = (line < count) & (column < 2 * n)
        total += tl.load(part + line * 2 * n + column, mask=known, other=0.0)
    y = tl.sum(total, 0)[None, :].to(weight.dtype.element_ty)
    tl.store(weight + column, y, mask=column < n)
    tl.store(bias + column - n, y, mask=(column >= n) & (column < 2 * n))


def entry(gradient, x, weight, mean, scale):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    to_weight = torch.empty((n,), dtype=weight.dtype, device=x.device)
    to_bias = torch.empty((n,), dtype=weight.dtype, device=x.device)
    units = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
    """
    + SUMMING_HOST
    + """
    part = torch.empty((programs, 2, n), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(n)
    deep = $rows * block * (x.element_size() + gradient.element_size()) * $stages <= 160 << 10
    layernorm_gradient[(programs,)](
        gradient, x, weight, mean, scale, out, part, m, n, gradient.stride(0), x.stride(0), mean.stride(0),
        scale.stride(0), ROWS=$rows, BLOCK=block, STAGES=$stages if deep else 1, num_warps=$warps,
    )
    add_parts[(triton.cdiv(2 * n, 32),)](
        part, to_weight, to_bias, programs, n, LINES=64, BLOCK=32, num_warps=4
    )
    return out, to_weight, to_bias
"""
)


class RowBackward:
    name = "row_backward"
    problems = ("softmax_backward", "layernorm_backward")

    def space(self, problem: str, case: Case) -> Space:
        if problem == "softmax_backward":
            # two inputs are held, so half as many columns of each
            return row_space(case, 48)
        width = 1 << max(0, case["n"] - 1).bit_length()

        def admits(config: Config) -> bool:
            held = int(config["rows"]) * width / (32 * int(config["warps"]))
            # the sums of weight and bias stay in registers beside the row, for as long as the program walks
            return 2 <= held <= 32

        return Space.of(
            admits,
            rows=(1, 2, 4),
            warps=(4, 8, 16, 32),
            waves=(1, 2, 4, 8),
            stages=(1, 2, 3),
            load=POLICIES,
            store=POLICIES,
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        if problem == "softmax_backward":
            bounds = row_bounds(config, case, 2 * case.element_bytes, 16384)
            return render(problem, SOFTMAX, row_values(config), keys={"bounds": bounds}, like=case)
        # the second kernel adds one part for each program, at least one for every 256 tiles of rows
        bounds = f"m 1..1048576, {row_bounds(config, case, 2 * case.element_bytes, 16384)}"
        return render(problem, LAYERNORM, config, like=case, keys={"bounds": bounds})
