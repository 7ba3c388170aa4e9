# nightshift candidate
# problem: rmsnorm
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm(x, weight, out, n, row_stride, column_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        column = start + lane
        v = tl.load(x + row * row_stride + column * column_stride, mask=column < n, other=0.0).to(tl.float32)
        square += v * v
    scale = tl.rsqrt(tl.sum(square, 0) / n + eps)
    for start in range(0, n, BLOCK):
        column = start + lane
        v = tl.load(x + row * row_stride + column * column_stride, mask=column < n, other=0.0).to(tl.float32)
        w = tl.load(weight + column, mask=column < n, other=0.0).to(tl.float32)
        tl.store(out + row * n + column, v * scale * w, mask=column < n)


def entry(x, weight, eps):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        block = min(1024, triton.next_power_of_2(n))
        rmsnorm[(m,)](x, weight, out, n, x.stride(0), x.stride(1), eps, BLOCK=block)
    return out
