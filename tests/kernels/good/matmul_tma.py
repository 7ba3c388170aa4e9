# nightshift candidate
# problem: matmul
# language: triton
# kind: own_kernel
# determinism: bitwise
# dtypes: float16 bfloat16
# layouts: contiguous
# bounds: m 1.., n 16.. /16, k 16.. /16
# needs_cuda: yes

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def product(a, b, out, m, n, k, TILE: tl.constexpr, DEPTH: tl.constexpr):
    row, column = tl.program_id(0) * TILE, tl.program_id(1) * TILE
    total = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, k, DEPTH):
        total = tl.dot(a.load([row, start]), b.load([start, column]), total)
    i = (row + tl.arange(0, TILE)).to(tl.int64)[:, None]
    j = (column + tl.arange(0, TILE))[None, :]
    tl.store(out + i * n + j, total, mask=(i < m) & (j < n))


def entry(a, b):
    m, k = a.shape
    n = b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    if m:
        left = TensorDescriptor.from_tensor(a, [128, 64])
        right = TensorDescriptor.from_tensor(b, [64, 128])
        grid = (triton.cdiv(m, 128), triton.cdiv(n, 128))
        product[grid](left, right, out, m, n, k, TILE=128, DEPTH=64, num_warps=8, num_stages=3)
    return out
