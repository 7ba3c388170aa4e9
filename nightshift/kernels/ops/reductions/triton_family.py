"""Row sums and maxima: partial results by lane over chunks of a row, combined once at the row's end."""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import POLICIES
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

SUM = """
import torch
import triton
import triton.language as tl


@triton.jit
def row_sum(x, out, m, x_row, n: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, STAGES: tl.constexpr):
    line = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    base = x + line[:, None] * x_row
    total = tl.zeros((ROWS, CHUNK), tl.float32)
    for start in tl.range(0, n, CHUNK, num_stages=STAGES):
        column = start + tl.arange(0, CHUNK)[None, :]
        if ROWS == 1 and n % CHUNK == 0:
            total += tl.load(base + column$load).to(tl.float32)
        else:
            inside = (line[:, None] < m) & (column < n)
            total += tl.load(base + column, mask=inside, other=0.0$load).to(tl.float32)
    tl.store(out + line, tl.sum(total, 1).to(out.dtype.element_ty), mask=line < m)


def entry(x):
    m, n = x.shape
    out = torch.empty((m,), dtype=x.dtype, device=x.device)
    if m:
        chunk = min($chunk, triton.next_power_of_2(n))
        row_sum[(triton.cdiv(m, $rows),)](
            x, out, m, x.stride(0), n, ROWS=$rows, CHUNK=chunk, STAGES=$stages, num_warps=$warps
        )
    return out
"""

MAX = """
import torch
import triton
import triton.language as tl


@triton.jit
def row_max(
    x, out, m, n, low, x_row, ROWS: tl.constexpr, CHUNK: tl.constexpr, STAGES: tl.constexpr, FLOAT: tl.constexpr
):
    line = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    base = x + line[:, None] * x_row
    high = tl.full((ROWS, CHUNK), low, tl.float32 if FLOAT else tl.int32)
    bad = tl.zeros((ROWS, CHUNK), tl.int32)
    for start in tl.range(0, n, CHUNK, num_stages=STAGES):
        column = start + tl.arange(0, CHUNK)[None, :]
        inside = (line[:, None] < m) & (column < n)
        v = tl.load(base + column, mask=inside, other=low$load)
        if FLOAT:
            v = v.to(tl.float32)
            bad = bad | (v != v).to(tl.int32)
        high = tl.maximum(high, v)
    best = tl.max(high, 1)
    if FLOAT:
        best = tl.where(tl.max(bad, 1) > 0, float("nan"), best)
    tl.store(out + line, best.to(out.dtype.element_ty), mask=line < m)


def entry(x):
    m, n = x.shape
    out = torch.empty((m,), dtype=x.dtype, device=x.device)
    if m:
        chunk = min($chunk, triton.next_power_of_2(n))
        real = x.is_floating_point()
        row_max[(triton.cdiv(m, $rows),)](
            x, out, m, n, -float("inf") if real else -(2**31), x.stride(0), ROWS=$rows, CHUNK=chunk,
            STAGES=$stages, FLOAT=real, num_warps=$warps,
        )
    return out
"""


class Reduce:
    name = "reduce"
    problems = ("reduce_sum", "max")

    def space(self, problem: str, case: Case) -> Space:
        def admits(config: Config) -> bool:
            rows, chunk, warps = (int(config[k]) for k in ("rows", "chunk", "warps"))
            return 4 <= rows * chunk / (32 * warps) <= 64

        return Space.of(
            admits,
            rows=(1, 2),
            chunk=(512, 1024, 2048, 4096, 8192, 16384, 32768),
            warps=(4, 8, 16, 32),
            stages=(1, 2, 3),
            load=POLICIES,
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        return render(problem, SUM if problem == "reduce_sum" else MAX, config, keys={"bounds": "n 1.."}, like=case)
