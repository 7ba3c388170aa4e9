# nightshift candidate
# problem: max
# language: triton
# kind: own_kernel
# determinism: bitwise
# dtypes: float16 bfloat16 float32

import torch
import triton
import triton.language as tl


@triton.jit
def largest(x, out, n, row_stride, column_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    high = tl.full((BLOCK,), -float("inf"), tl.float32)
    bad = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, n, BLOCK):
        column = start + lane
        at = x + row * row_stride + column * column_stride
        v = tl.load(at, mask=column < n, other=-float("inf")).to(tl.float32)
        bad |= (v != v).to(tl.int32)
        high = tl.where(v > high, v, high)
    tl.store(out + row, tl.where(tl.max(bad, 0) > 0, float("nan"), tl.max(high, 0)))


def entry(x):
    m, n = x.shape
    out = torch.empty((m,), dtype=x.dtype, device=x.device)
    if m:
        largest[(m,)](x, out, n, x.stride(0), x.stride(1), BLOCK=min(2048, triton.next_power_of_2(n)))
    return out
