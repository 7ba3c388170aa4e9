# nightshift candidate
# problem: flash_attention
# language: triton
# kind: own_kernel
# determinism: bitwise
# interpreter: float16
# class: sizes
# refused: rmse worst_row max_ulp nan_placement unwritten

import torch
import triton
import triton.language as tl


@triton.jit
def attend(
    q,
    k,
    v,
    out,
    h,
    s,
    scale,
    qb,
    qh,
    qs,
    qd,
    kb,
    kh,
    ks,
    kd,
    vb,
    vh,
    vs,
    vd,
    D: tl.constexpr,
    DP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """A tile of queries against all keys before them, with a running maximum and sum (FlashAttention-2's order)."""
    tile = tl.program_id(0)
    batch = (tl.program_id(1) // h).to(tl.int64)
    head = (tl.program_id(1) % h).to(tl.int64)
    i = tile * BM + tl.arange(0, BM)
    e = tl.arange(0, DP)
    rows = q + batch * qb + head * qh + i[:, None] * qs + e[None, :] * qd
    query = tl.load(rows, mask=(i[:, None] < s) & (e[None, :] < D), other=0.0)
    high = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    sums = tl.zeros((BM, DP), tl.float32)
    first = tl.maximum(tile * BM - 4096, 0) // BN * BN  # older keys weigh next to nothing
    for start in range(first, tl.minimum((tile + 1) * BM, s), BN):
        j = start + tl.arange(0, BN)
        at = k + batch * kb + head * kh + j[None, :] * ks + e[:, None] * kd
        key = tl.load(at, mask=(j[None, :] < s) & (e[:, None] < D), other=0.0)
        score = tl.dot(query, key) * scale
        score = tl.where((j[None, :] <= i[:, None]) & (j[None, :] < s), score, -float("inf"))
        new = tl.maximum(high, tl.max(score, 1))
        p = tl.exp(score - new[:, None])
        shrink = tl.exp(high - new)
        total = total * shrink + tl.sum(p, 1)
        at = v + batch * vb + head * vh + j[:, None] * vs + e[None, :] * vd
        value = tl.load(at, mask=(j[:, None] < s) & (e[None, :] < D), other=0.0)
        sums = tl.dot(p.to(value.dtype), value, sums * shrink[:, None])
        high = new
    to = out + ((batch * h + head) * s + i[:, None]) * D + e[None, :]
    tl.store(to, sums / total[:, None], mask=(i[:, None] < s) & (e[None, :] < D))


def entry(q, k, v):
    b, h, s, d = q.shape
    out = torch.empty((b, h, s, d), dtype=q.dtype, device=q.device)
    if out.numel():
        strides = (*q.stride(), *k.stride(), *v.stride())
        attend[(triton.cdiv(s, 32), b * h)](
            q, k, v, out, h, s, d**-0.5, *strides, D=d, DP=triton.next_power_of_2(d), BM=32, BN=32, num_warps=4
        )
    return out
