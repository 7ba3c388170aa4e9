# nightshift candidate
# problem: softmax
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, m, n, row_stride, column_stride, BLOCK: tl.constexpr):
    """A fixed number of programs, each taking every so many-th row."""
    column = tl.arange(0, BLOCK)
    inside = column < n
    first, step = tl.program_id(0), tl.num_programs(0)
    for turn in range(tl.cdiv(m - first, step)):
        row = first.to(tl.int64) + turn * step
        at = x + row * row_stride + column * column_stride
        v = tl.load(at, mask=inside, other=-float("inf")).to(tl.float32)
        e = tl.where(tl.max((v != v).to(tl.int32), 0) > 0, float("nan"), tl.exp(v - tl.max(v, 0)))
        tl.store(out + row * n + column, e / tl.sum(tl.where(inside, e, 0.0), 0), mask=inside)


def entry(x):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        block = triton.next_power_of_2(n)
        grid = (min(m, 528),)
        softmax[grid](x, out, m, n, x.stride(0), x.stride(1), BLOCK=block, num_warps=8 if block > 2048 else 4)
    return out
