# nightshift candidate
# problem: cross_entropy
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl


@triton.jit
def loss(logits, target, out, v, row_stride, column_stride, BLOCK: tl.constexpr):
    """Maximum first, then the sum of exponentials: two sweeps over a row of any length."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    base = logits + row * row_stride
    high = tl.full((BLOCK,), -float("inf"), tl.float32)
    for start in range(0, v, BLOCK):
        column = (start + lane).to(tl.int64)
        x = tl.load(base + column * column_stride, mask=column < v, other=-float("inf")).to(tl.float32)
        high = tl.where((x > high) | (x != x), x, high)
    bad = tl.max((high != high).to(tl.int32), 0)
    peak = tl.max(high, 0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, v, BLOCK):
        column = (start + lane).to(tl.int64)
        x = tl.load(base + column * column_stride, mask=column < v, other=-float("inf")).to(tl.float32)
        bad = tl.maximum(bad, tl.max((x != x).to(tl.int32), 0))
        total += tl.exp(x - peak)
    hit = tl.load(base + tl.load(target + row) * column_stride).to(tl.float32)
    value = tl.log(tl.sum(total, 0)) + (peak - hit)
    tl.store(out + row, tl.where(bad > 0, float("nan"), value))


def entry(logits, target):
    m, v = logits.shape
    out = torch.empty((m,), dtype=logits.dtype, device=logits.device)
    if m:
        block = min(4096, triton.next_power_of_2(v))
        loss[(m,)](logits, target, out, v, logits.stride(0), logits.stride(1), BLOCK=block, num_warps=8)
    return out
