# nightshift candidate
# problem: copy
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: shape
# refused: raised
# needs_cuda: yes

import torch
import triton
import triton.language as tl


@triton.jit
def copy(x, out, n, row_stride, column_stride, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * row_stride + column * column_stride, mask=column < n)
    tl.store(out + row * n + column, v, mask=column < n)


def entry(x):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        copy[(triton.cdiv(n, 2048), m)](x, out, n, x.stride(0), x.stride(1), BLOCK=2048)
    return out
