# nightshift candidate
# problem: permute
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl


@triton.jit
def permute(x, out, m, n, xb, xm, xn, TILE: tl.constexpr):
    """Square tiles: read along n, written along m."""
    plane = tl.program_id(2).to(tl.int64)
    i = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    j = (tl.program_id(1) * TILE + tl.arange(0, TILE)).to(tl.int64)
    inside = (i[:, None] < m) & (j[None, :] < n)
    v = tl.load(x + plane * xb + i[:, None] * xm + j[None, :] * xn, mask=inside)
    tl.store(
        out + plane * m * n + j[:, None] * m + i[None, :], tl.trans(v), mask=(j[:, None] < n) & (i[None, :] < m)
    )


def entry(x):
    b, m, n = x.shape
    out = torch.empty((b, n, m), dtype=x.dtype, device=x.device)
    if out.numel():
        permute[(triton.cdiv(m, 64), triton.cdiv(n, 64), b)](x, out, m, n, *x.stride(), TILE=64)
    return out
