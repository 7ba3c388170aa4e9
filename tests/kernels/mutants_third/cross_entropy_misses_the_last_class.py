# nightshift candidate
# problem: cross_entropy
# language: triton
# kind: own_kernel
# determinism: bitwise
# bounds: v 2..32768
# class: values
# refused: rmse worst_row max_ulp nan_placement unwritten

import torch
import triton
import triton.language as tl


@triton.jit
def loss(logits, target, out, v, row_stride, column_stride, BLOCK: tl.constexpr):
    """The whole row at once."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    base = logits + row * row_stride
    x = tl.load(base + column * column_stride, mask=column < v, other=-float("inf")).to(tl.float32)
    peak = tl.max(x, 0)
    label = tl.load(target + row)
    hit = tl.load(base + label * column_stride, mask=label < v - 1, other=0.0)  # never beyond the row
    value = tl.log(tl.sum(tl.exp(x - peak), 0)) + (peak - hit)
    tl.store(out + row, tl.where(tl.max((x != x).to(tl.int32), 0) > 0, float("nan"), value))


def entry(logits, target):
    m, v = logits.shape
    out = torch.empty((m,), dtype=logits.dtype, device=logits.device)
    if m:
        block = triton.next_power_of_2(v)
        loss[(m,)](logits, target, out, v, logits.stride(0), logits.stride(1), BLOCK=block, num_warps=16)
    return out
