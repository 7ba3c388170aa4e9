# nightshift candidate
# problem: reduce_sum
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: sizes
# refused: rmse worst_row max_ulp nan_placement unwritten

import torch
import triton
import triton.language as tl


@triton.jit
def total(x, out, n, row_stride, column_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    part = tl.zeros((BLOCK,), tl.float32)
    whole = tl.cdiv(n, BLOCK) // 8 * 8 * BLOCK
    for start in range(0, whole, BLOCK):
        column = start + lane
        part += tl.load(x + row * row_stride + column * column_stride, mask=column < n, other=0.0).to(tl.float32)
    rest = tl.cdiv(n, BLOCK) % 8
    if rest >= 4:
        for tile in range(4):
            column = whole + tile * BLOCK + lane
            part += tl.load(x + row * row_stride + column * column_stride, mask=column < n, other=0.0).to(
                tl.float32
            )
    if rest % 4 >= 2:
        for tile in range(2):
            column = whole + tile * BLOCK + lane
            part += tl.load(x + row * row_stride + column * column_stride, mask=column < n, other=0.0).to(
                tl.float32
            )
    if rest % 2 == 1:
        column = whole + (rest - 1) * BLOCK + lane
        part += tl.load(x + row * row_stride + column * column_stride, mask=column < n, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(part, 0))


def entry(x):
    m, n = x.shape
    out = torch.empty((m,), dtype=x.dtype, device=x.device)
    if m:
        total[(m,)](x, out, n, x.stride(0), x.stride(1), BLOCK=1024, num_warps=8)
    return out
