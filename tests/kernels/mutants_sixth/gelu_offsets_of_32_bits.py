# nightshift candidate
# problem: gelu
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: sizes
# refused: rmse worst_row max_ulp nan_placement unwritten illegal_access

import torch
import triton
import triton.language as tl


@triton.jit
def gelu(x, out, count, n, row_stride, column_stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    at = x + (i // n) * row_stride + (i % n) * column_stride
    v = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    half = tl.where(v < 0, 0.5 * tl.erf(v * 0.7071067811865476), 0.5 * tl.erf(v * 0.7071067811865476))
    tl.store(out + i, v * (0.5 + half), mask=inside)


def entry(x):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        gelu[(triton.cdiv(m * n, 1024),)](x, out, m * n, n, x.stride(0), x.stride(1), BLOCK=1024)
    return out
