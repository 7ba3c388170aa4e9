# nightshift candidate
# problem: reduce_sum
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl


@triton.jit
def total(x, out, n, row_stride, column_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    part = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        column = start + lane
        part += tl.load(x + row * row_stride + column * column_stride, mask=column < n, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(part, 0))


def entry(x):
    m, n = x.shape
    out = torch.empty((m,), dtype=x.dtype, device=x.device)
    if m:
        total[(m,)](x, out, n, x.stride(0), x.stride(1), BLOCK=min(2048, triton.next_power_of_2(n)), num_warps=8)
    return out
