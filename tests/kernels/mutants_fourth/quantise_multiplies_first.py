# nightshift candidate
# problem: quantise
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: huge values
# refused: not_exact rmse worst_row max_ulp unwritten

import torch
import triton
import triton.language as tl


@triton.jit
def quantise(x, code, scale, n, row_stride, column_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(x + row * row_stride + column * column_stride, mask=inside, other=0.0).to(tl.float32)
    step = tl.maximum(tl.max(tl.abs(v), 0), 1e-10) / 127.0
    ratio = tl.clamp(v * 127.0 / (step * 127.0), -127.0, 127.0)
    low = tl.floor(ratio)
    part = ratio - low
    odd = low - 2.0 * tl.floor(low * 0.5)
    up = (part > 0.5) | ((part == 0.5) & (odd > 0.5))
    tl.store(code + row * n + column, (low + tl.where(up, 1.0, 0.0)).to(tl.int8), mask=inside)
    tl.store(scale + row, step)


def entry(x):
    m, n = x.shape
    code = torch.empty((m, n), dtype=torch.int8, device=x.device)
    scale = torch.empty((m,), dtype=torch.float32, device=x.device)
    if m:
        block = triton.next_power_of_2(n)
        quantise[(m,)](x, code, scale, n, x.stride(0), x.stride(1), BLOCK=block, num_warps=8)
    return code, scale
