# nightshift candidate
# problem: softmax
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: values
# refused: rmse worst_row max_ulp nan_placement unwritten

import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, n, row_stride, column_stride, BLOCK: tl.constexpr):
    """Two passes: a running maximum and sum, one of each for the whole row, then the quotients."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    base = x + row * row_stride
    high = tl.max(tl.load(base + lane * column_stride, mask=lane < n, other=-float("inf")).to(tl.float32), 0)
    total = 0.0
    bad = 0
    for start in range(0, n, BLOCK):
        column = start + lane
        v = tl.load(base + column * column_stride, mask=column < n, other=-float("inf")).to(tl.float32)
        bad = tl.maximum(bad, tl.max((v != v).to(tl.int32), 0))
        new = tl.maximum(high, tl.max(v, 0))
        total = total * tl.exp(high - new) + tl.sum(tl.where(column < n, tl.exp(v - new), 0.0), 0)
        high = new
    total = tl.where(bad > 0, float("nan"), total)
    for start in range(0, n, BLOCK):
        column = start + lane
        v = tl.load(base + column * column_stride, mask=column < n, other=-float("inf")).to(tl.float32)
        tl.store(out + row * n + column, tl.exp(v - high) / total, mask=column < n)


def entry(x):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        softmax[(m,)](x, out, n, x.stride(0), x.stride(1), BLOCK=min(256, triton.next_power_of_2(n)))
    return out
