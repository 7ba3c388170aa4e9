"""Root-mean-square normalisation that reads its rows twice, in chunks: few registers, many rows in flight.

The first pass over a row asks L2 (and L1, which holds a row or several) to keep it, so the second finds it there
and memory is read once. It is how torch.compile writes long rows; on some shapes it beats rows in registers.
Strides are constants, and addresses have 32 bits where that is enough: each block begins by computing them, and is
short.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import STORES
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

SOURCE = """
import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_looped(
    x, weight, out, m, eps, x_row: tl.constexpr, n: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, EVEN: tl.constexpr
):
    line = tl.arange(0, CHUNK)[None, :]
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    if WIDE:
        row = row.to(tl.int64)
    total = tl.zeros((ROWS, CHUNK), tl.float32)
    for start in range(0, n, CHUNK):
        column = start + line
        if EVEN:
            inside = tl.full((ROWS, CHUNK), True, tl.int1)
        else:
            inside = (row < m) & (column < n)
        v = tl.load(x + row * x_row + column, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        total += v * v
    scale = tl.rsqrt(tl.sum(total, 1) / n + eps)[:, None]
    for start in range(0, n, CHUNK):
        column = start + line
        if EVEN:
            inside = tl.full((ROWS, CHUNK), True, tl.int1)
            known = tl.full((1, CHUNK), True, tl.int1)
        else:
            inside = (row < m) & (column < n)
            known = column < n
        v = tl.load(x + row * x_row + column, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        w = tl.load(weight + column, mask=known, other=0.0, eviction_policy="evict_last").to(tl.float32)
        tl.store(out + row * n + column, (v * scale * w).to(out.dtype.element_ty), mask=inside$store)


def entry(x, weight, eps):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        chunk = min($chunk, triton.next_power_of_2(n))
        even = m % $rows == 0 and n % chunk == 0
        rmsnorm_looped[(triton.cdiv(m, $rows),)](
            x, weight, out, m, eps, x.stride(0), n, WIDE=m * max(n, x.stride(0)) >= 2**31, ROWS=$rows,
            CHUNK=chunk, EVEN=even, num_warps=$warps,
        )
    return out
"""


class RmsNormLooped:
    name = "rmsnorm_looped"
    problems = ("rmsnorm",)

    def space(self, problem: str, case: Case) -> Space:
        def admits(config: Config) -> bool:
            # values of a thread at a time: few, since that is why rows are read twice
            return 4 <= int(config["rows"]) * int(config["chunk"]) / (32 * int(config["warps"])) <= 32

        return Space.of(
            admits, rows=(1, 2, 4), chunk=(512, 1024, 2048, 4096), warps=(1, 2, 4, 8, 16, 32), store=STORES
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        return render(problem, SOURCE, config, keys={"bounds": "n 1..1048576"}, like=case)
