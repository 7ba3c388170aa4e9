# nightshift candidate
# problem: matmul
# language: triton
# kind: own_kernel
# determinism: bitwise
# interpreter: float16
# dtypes: float16 bfloat16

import torch
import triton
import triton.language as tl


@triton.jit
def partial(a, b, parts, m, n, k, am, ak, bk, bn, SPLIT: tl.constexpr, BLOCK: tl.constexpr, BK: tl.constexpr):
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    j = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    split = tl.program_id(2)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(split * BK, k, SPLIT * BK):
        r = (start + tl.arange(0, BK)).to(tl.int64)
        left = tl.load(a + i[:, None] * am + r[None, :] * ak, mask=(i[:, None] < m) & (r[None, :] < k), other=0.0)
        right = tl.load(b + r[:, None] * bk + j[None, :] * bn, mask=(r[:, None] < k) & (j[None, :] < n), other=0.0)
        total = tl.dot(left, right, total)
    to = parts + split.to(tl.int64) * m * n + i[:, None] * n + j[None, :]
    tl.store(to, total, mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def finish(parts, c, count, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(SPLIT):
        total += tl.load(parts + split * count + at, mask=at < count, other=0.0)
    tl.store(c + at, total, mask=at < count)


def entry(a, b):
    """K in four interleaved parts, added up in a fixed order by a second kernel."""
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    if c.numel():
        parts = torch.empty((4, m, n), dtype=torch.float32, device=a.device)
        grid = (triton.cdiv(m, 64), triton.cdiv(n, 64), 4)
        partial[grid](a, b, parts, m, n, k, *a.stride(), *b.stride(), SPLIT=4, BLOCK=64, BK=32)
        finish[(triton.cdiv(m * n, 1024),)](parts, c, m * n, SPLIT=4, BLOCK=1024)
    return c
