# nightshift candidate
# problem: max
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: values
# refused: not_exact
# dtypes: int32

import torch
import triton
import triton.language as tl


@triton.jit
def largest(x, out, n, row_stride, column_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    high = tl.full((BLOCK,), -2147483647, tl.int32)
    for start in range(0, n, BLOCK):
        column = start + lane
        v = tl.load(x + row * row_stride + column * column_stride, mask=column < n, other=-2147483647)
        high = tl.maximum(high, v)
    tl.store(out + row, tl.max(high, 0))


def entry(x):
    m, n = x.shape
    out = torch.empty((m,), dtype=x.dtype, device=x.device)
    if m:
        largest[(m,)](x, out, n, x.stride(0), x.stride(1), BLOCK=min(2048, triton.next_power_of_2(n)))
    return out
