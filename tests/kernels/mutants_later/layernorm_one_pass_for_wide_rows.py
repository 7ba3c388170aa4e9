# nightshift candidate
# problem: layernorm
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: numerics
# refused: rmse worst_row max_ulp nan_placement unwritten

import torch
import triton
import triton.language as tl


@triton.jit
def layernorm(x, weight, bias, out, n, row_stride, column_stride, eps, BLOCK: tl.constexpr):
    """One program a row: mean, then the variance of what is left."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(x + row * row_stride + column * column_stride, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, v - tl.sum(v, 0) / n, 0.0)
    if BLOCK <= 8192:
        variance = tl.sum(centred * centred, 0) / n
    else:
        variance = tl.sum(v * v, 0) / n - (tl.sum(v, 0) / n) * (tl.sum(v, 0) / n)
    scale = tl.rsqrt(variance + eps)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * n + column, centred * scale * w + b, mask=inside)


def entry(x, weight, bias, eps):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        block = triton.next_power_of_2(n)
        warps = 4 if block <= 2048 else 8 if block <= 8192 else 16
        layernorm[(m,)](x, weight, bias, out, n, x.stride(0), x.stride(1), eps, BLOCK=block, num_warps=warps)
    return out
