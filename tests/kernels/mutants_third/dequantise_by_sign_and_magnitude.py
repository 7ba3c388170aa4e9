# nightshift candidate
# problem: dequantise
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: values
# refused: rmse worst_row max_ulp nan_placement unwritten

import torch
import triton
import triton.language as tl


@triton.jit
def dequantise(code, scale, out, n, row_stride, column_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(code + row * row_stride + column * column_stride, mask=column < n, other=0)
    v = tl.abs(v).to(tl.float32) * tl.where(v < 0, -1.0, 1.0)
    tl.store(out + row * n + column, v * tl.load(scale + row).to(tl.float32), mask=column < n)


def entry(code, scale):
    m, n = code.shape
    out = torch.empty((m, n), dtype=scale.dtype, device=code.device)
    if m:
        block = min(2048, triton.next_power_of_2(n))
        dequantise[(m, triton.cdiv(n, block))](code, scale, out, n, code.stride(0), code.stride(1), BLOCK=block)
    return out
