# nightshift candidate
# problem: softmax
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: large values
# refused: rmse worst_row max_ulp nan_placement unwritten

import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, n, row_stride, column_stride, BLOCK: tl.constexpr):
    """One program a row; the whole row in registers."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(x + row * row_stride + column * column_stride, mask=inside, other=-float("inf")).to(tl.float32)
    has_nan = tl.max((v != v).to(tl.int32), 0)
    v = v * 1.4426950408889634
    e = tl.exp2(v - tl.max(v, 0))
    e = tl.where(has_nan > 0, float("nan"), e)
    tl.store(out + row * n + column, e / tl.sum(tl.where(inside, e, 0.0), 0), mask=inside)


def entry(x):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        block = triton.next_power_of_2(n)
        warps = 4 if block <= 2048 else 8 if block <= 8192 else 16
        softmax[(m,)](x, out, n, x.stride(0), x.stride(1), BLOCK=block, num_warps=warps)
    return out
