# nightshift candidate
# problem: reduce_sum
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl


@triton.jit
def total(x, out, m, n, row_stride, column_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    part = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, n, BLOCK):
        column = start + lane
        inside = (row[:, None] < m) & (column[None, :] < n)
        part += tl.load(x + row[:, None] * row_stride + column[None, :] * column_stride, mask=inside, other=0.0)
    tl.store(out + row, tl.sum(part, 1), mask=row < m)


def entry(x):
    m, n = x.shape
    out = torch.empty((m,), dtype=x.dtype, device=x.device)
    if m:
        total[(triton.cdiv(m, 8),)](x, out, m, n, x.stride(0), x.stride(1), ROWS=8, BLOCK=256)
    return out
