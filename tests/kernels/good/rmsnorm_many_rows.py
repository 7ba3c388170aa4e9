# nightshift candidate
# problem: rmsnorm
# language: triton
# kind: own_kernel
# determinism: bitwise
# bounds: n 1..2048

import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm(x, weight, out, m, n, row_stride, column_stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Several rows a program, for short rows."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < m) & (column < n)
    v = tl.load(x + row * row_stride + column * column_stride, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=column < n, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 1) / n + eps)
    tl.store(out + row * n + column, v * scale[:, None] * w, mask=inside)


def entry(x, weight, eps):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        block = triton.next_power_of_2(n)
        rows = max(1, 2048 // block)
        grid = (triton.cdiv(m, rows),)
        rmsnorm[grid](x, weight, out, m, n, x.stride(0), x.stride(1), eps, ROWS=rows, BLOCK=block)
    return out
