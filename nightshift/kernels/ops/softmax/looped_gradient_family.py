"""Softmax's gradient that reads its rows twice, in chunks, then from the caches: see `rmsnorm_looped`."""

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
def softmax_gradient(
    gradient, y, out, m, g_row: tl.constexpr, y_row: tl.constexpr, n: tl.constexpr, WIDE: tl.constexpr,
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
        g = tl.load(gradient + row * g_row + column, mask=inside, other=0.0, eviction_policy="evict_last")
        v = tl.load(y + row * y_row + column, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        total += g.to(tl.float32) * v
    inner = tl.sum(total, 1)[:, None]
    for start in range(0, n, CHUNK):
        column = start + line
        if EVEN:
            inside = tl.full((ROWS, CHUNK), True, tl.int1)
        else:
            inside = (row < m) & (column < n)
        g = tl.load(gradient + row * g_row + column, mask=inside, other=0.0, eviction_policy="evict_first")
        v = tl.load(y + row * y_row + column, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        made = v * (g.to(tl.float32) - inner)
        tl.store(out + row * n + column, made.to(out.dtype.element_ty), mask=inside$store)


def entry(gradient, x):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        chunk = min($chunk, triton.next_power_of_2(n))
        even = m % $rows == 0 and n % chunk == 0
        softmax_gradient[(triton.cdiv(m, $rows),)](
            gradient, x, out, m, gradient.stride(0), x.stride(0), n,
            WIDE=m * max(n, gradient.stride(0), x.stride(0)) >= 2**31, ROWS=$rows, CHUNK=chunk, EVEN=even,
            num_warps=$warps,
        )
    return out
"""


class SoftmaxGradientLooped:
    name = "softmax_gradient_looped"
    problems = ("softmax_backward",)

    def space(self, problem: str, case: Case) -> Space:
        def admits(config: Config) -> bool:
            # two inputs at a time: half of what `rmsnorm_looped` holds of one
            return 4 <= int(config["rows"]) * int(config["chunk"]) / (32 * int(config["warps"])) <= 16

        return Space.of(
            admits, rows=(1, 2, 4), chunk=(512, 1024, 2048, 4096), warps=(1, 2, 4, 8, 16, 32), store=STORES
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        return render(problem, SOURCE, config, keys={"bounds": "n 1..1048576"}, like=case)
