# nightshift candidate
# problem: layernorm
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl


@triton.jit
def layernorm(x, weight, bias, out, n, row_stride, column_stride, eps, BLOCK: tl.constexpr):
    """Three sweeps over a row of any length, BLOCK columns at a time."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    base = x + row * row_stride
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        column = start + lane
        total += tl.load(base + column * column_stride, mask=column < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / n
    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        column = start + lane
        v = tl.load(base + column * column_stride, mask=column < n, other=0.0).to(tl.float32)
        centred = tl.where(column < n, v - mean, 0.0)
        square += centred * centred
    scale = tl.rsqrt(tl.sum(square, 0) / n + eps)
    for start in range(0, n, BLOCK):
        column = start + lane
        v = tl.load(base + column * column_stride, mask=column < n, other=0.0).to(tl.float32)
        w = tl.load(weight + column, mask=column < n, other=0.0).to(tl.float32)
        b = tl.load(bias + column, mask=column < n, other=0.0).to(tl.float32)
        tl.store(out + row * n + column, (v - mean) * scale * w + b, mask=column < n)


def entry(x, weight, bias, eps):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        block = min(2048, triton.next_power_of_2(n))
        layernorm[(m,)](x, weight, bias, out, n, x.stride(0), x.stride(1), eps, BLOCK=block)
    return out
