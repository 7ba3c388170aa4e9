# nightshift candidate
# problem: fused_mlp
# language: triton
# kind: own_kernel
# determinism: bitwise
# interpreter: float16
# dtypes: float16 bfloat16

import torch
import triton
import triton.language as tl


@triton.jit
def gate_and_up(
    x, gate, up, hidden, m, d, f, xm, xd, gf, gd, uf, ud, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    i = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    j = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    g = tl.zeros((BM, BN), tl.float32)
    u = tl.zeros((BM, BN), tl.float32)
    for start in range(0, d, BK):
        r = (start + tl.arange(0, BK)).to(tl.int64)
        rows = tl.load(x + i[:, None] * xm + r[None, :] * xd, mask=(i[:, None] < m) & (r[None, :] < d), other=0.0)
        inside = (r[:, None] < d) & (j[None, :] < f)
        g = tl.dot(rows, tl.load(gate + j[None, :] * gf + r[:, None] * gd, mask=inside, other=0.0), g)
        u = tl.dot(rows, tl.load(up + j[None, :] * uf + r[:, None] * ud, mask=inside, other=0.0), u)
    tl.store(hidden + i[:, None] * f + j[None, :], g * tl.sigmoid(g) * u, mask=(i[:, None] < m) & (j[None, :] < f))


@triton.jit
def down_projection(hidden, down, out, m, d, f, wd, wf, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    j = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, f, BK):
        r = (start + tl.arange(0, BK)).to(tl.int64)
        left = tl.load(hidden + i[:, None] * f + r[None, :], mask=(i[:, None] < m) & (r[None, :] < f), other=0.0)
        right = tl.load(
            down + j[None, :] * wd + r[:, None] * wf, mask=(r[:, None] < f) & (j[None, :] < d), other=0.0
        )
        total = tl.dot(left, right, total)
    tl.store(out + i[:, None] * d + j[None, :], total, mask=(i[:, None] < m) & (j[None, :] < d))


def entry(x, gate, up, down):
    m, d = x.shape
    f = gate.shape[0]
    out = torch.empty((m, d), dtype=x.dtype, device=x.device)
    if out.numel():
        hidden = torch.empty((m, f), dtype=x.dtype, device=x.device)
        grid = (triton.cdiv(m, 64), triton.cdiv(f, 64))
        strides = (*x.stride(), *gate.stride(), *up.stride())
        gate_and_up[grid](x, gate, up, hidden, m, d, f, *strides, BM=64, BN=64, BK=32)
        grid = (triton.cdiv(m, 64), triton.cdiv(d, 64))
        down_projection[grid](hidden, down, out, m, d, f, *down.stride(), BM=64, BN=64, BK=32)
    return out
