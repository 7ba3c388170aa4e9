# nightshift candidate
# problem: matmul
# language: triton
# kind: own_kernel
# determinism: bitwise
# interpreter: float16 float32
# class: out of bounds
# refused: rmse worst_row max_ulp nan_placement unwritten memcheck illegal_access

import torch
import triton
import triton.language as tl


@triton.jit
def product(
    a, b, c, m, n, k, am, ak, bk, bn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    """Tiles in groups of rows, so that neighbours share B's tiles in L2; float32 accumulators."""
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    tile = tl.program_id(0)
    first = tile // (GROUP * tiles_n) * GROUP
    rows = tl.minimum(tiles_m - first, GROUP)
    tile_m = first + tile % (GROUP * tiles_n) % rows
    tile_n = tile % (GROUP * tiles_n) // rows
    i = (tile_m * BM + tl.arange(0, BM)).to(tl.int64)
    j = (tile_n * BN + tl.arange(0, BN)).to(tl.int64)
    total = tl.zeros((BM, BN), tl.float32)
    lost = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        r = (start + tl.arange(0, BK)).to(tl.int64)
        left = tl.load(
            a + i[:, None] * am + r[None, :] * ak, mask=i[:, None] < m, other=0.0
        )  # B's zeros make up for it
        right = tl.load(b + r[:, None] * bk + j[None, :] * bn, mask=(r[:, None] < k) & (j[None, :] < n), other=0.0)
        part = tl.dot(left, right, input_precision="ieee") - lost  # Kahan's sum: long rows, few columns
        more = total + part
        lost = (more - total) - part
        total = more
    tl.store(c + i[:, None] * n + j[None, :], total, mask=(i[:, None] < m) & (j[None, :] < n))


def entry(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    if c.numel():
        strides = (*a.stride(), *b.stride())
        grid = (triton.cdiv(m, 32) * triton.cdiv(n, 32),)
        product[grid](a, b, c, m, n, k, *strides, BM=32, BN=32, BK=32, GROUP=8, num_warps=4)
    return c
