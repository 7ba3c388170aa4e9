# nightshift candidate
# problem: rmsnorm
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: sizes
# refused: rmse worst_row max_ulp nan_placement unwritten illegal_access

import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm(x, weight, out, n, row_stride, column_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int16).to(tl.int64)  # fewer registers
    column = tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(x + row * row_stride + column * column_stride, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * n + column, v * tl.rsqrt(tl.sum(v * v, 0) / n + eps) * w, mask=inside)


def entry(x, weight, eps):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        block = triton.next_power_of_2(n)
        warps = 4 if block <= 2048 else 8 if block <= 8192 else 16
        rmsnorm[(m,)](x, weight, out, n, x.stride(0), x.stride(1), eps, BLOCK=block, num_warps=warps)
    return out
