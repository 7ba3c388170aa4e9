# nightshift candidate
# problem: softmax
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: shape
# refused: rmse worst_row max_ulp nan_placement unwritten state_kept
# needs_cuda: yes

import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, n, row_stride, column_stride, BLOCK: tl.constexpr):
    """Two passes: a running maximum and sum (Milakov and Gimelshein, arXiv 1805.02867), then the quotients."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    high = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, tl.minimum(n, 16384), BLOCK):
        column = start + lane
        v = tl.load(x + row * row_stride + column * column_stride, mask=column < n, other=-float("inf")).to(
            tl.float32
        )
        new = tl.where(v > high, v, high)
        new = tl.where(v != v, v, new)
        fresh = tl.where(v == -float("inf"), 0.0, tl.exp(v - new))
        kept = tl.where(high == -float("inf"), 0.0, tl.exp(high - new))
        total = total * kept + fresh
        high = new
    peak = tl.max(high, 0)
    bad = tl.max(((total != total) | (high != high)).to(tl.int32), 0)
    scale = tl.where(high == -float("inf"), 0.0, tl.exp(high - peak))
    whole = tl.sum(total * scale, 0)
    whole = tl.where(bad > 0, float("nan"), whole)
    for start in range(0, tl.minimum(n, 16384), BLOCK):
        column = start + lane
        v = tl.load(x + row * row_stride + column * column_stride, mask=column < n, other=-float("inf")).to(
            tl.float32
        )
        tl.store(out + row * n + column, tl.exp(v - peak) / whole, mask=column < n)


def entry(x):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        softmax[(m,)](x, out, n, x.stride(0), x.stride(1), BLOCK=min(1024, triton.next_power_of_2(n)))
    return out
