"""Causal attention tile by tile (Dao, arXiv 2307.08691): scores never leave the registers.

Tiles below the diagonal need no mask and come first; the diagonal's come last. Exponentials are base two, with
log₂e folded into the scale. Programs take the longest rows of queries first.
"""

from __future__ import annotations

from kernels.generate.base import Config
from kernels.generate.space import Space
from kernels.generate.template import render
from kernels.problem import Case

BODY = """
import torch
import triton
import triton.language as tl


@triton.jit
def attend(
    q, k, v, out, s, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TMA: tl.constexpr,
):
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    first = tl.program_id(1).to(tl.int64) * s * D
    queries = block * BM + tl.arange(0, BM)
    column = tl.arange(0, D)
    known = queries[:, None] < s
    at = first + queries[:, None] * D + column[None, :]
    x = tl.load(q + at, mask=known, other=0.0)
    if TMA:
        keys = tl.make_tensor_descriptor(k + first, shape=[s, D], strides=[D, 1], block_shape=[BN, D])
        values = tl.make_tensor_descriptor(v + first, shape=[s, D], strides=[D, 1], block_shape=[BN, D])
    high = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    sums = tl.zeros((BM, D), tl.float32)
    whole = block * BM // BN * BN
    for start in tl.range(0, whole, BN):
        if TMA:
            y = keys.load([start, 0])
            z = values.load([start, 0])
        else:
            row = start + tl.arange(0, BN)
            y = tl.load(k + first + row[:, None] * D + column[None, :])
            z = tl.load(v + first + row[:, None] * D + column[None, :])
        score = tl.dot(x, tl.trans(y))
        peak = tl.maximum(high, tl.max(score, 1) * scale)
        p = tl.exp2(score * scale - peak[:, None])
        fade = tl.exp2(high - peak)
        total = total * fade + tl.sum(p, 1)
        sums = tl.dot(p.to(z.dtype), z, sums * fade[:, None])
        high = peak
    for start in tl.range(whole, min(s, (block + 1) * BM), BN):
        row = start + tl.arange(0, BN)
        y = tl.load(k + first + row[:, None] * D + column[None, :], mask=row[:, None] < s, other=0.0)
        z = tl.load(v + first + row[:, None] * D + column[None, :], mask=row[:, None] < s, other=0.0)
        score = tl.dot(x, tl.trans(y))
        score = tl.where(queries[:, None] >= row[None, :], score, -float("inf"))
        peak = tl.maximum(high, tl.max(score, 1) * scale)
        p = tl.exp2(score * scale - peak[:, None])
        fade = tl.exp2(high - peak)
        total = total * fade + tl.sum(p, 1)
        sums = tl.dot(p.to(z.dtype), z, sums * fade[:, None])
        high = peak
    tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty), mask=known)


def room(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


def entry(q, k, v):
    b, h, s, d = q.shape
    out = torch.empty((b, h, s, d), dtype=q.dtype, device=q.device)
    if out.numel():
        if $tma:
            triton.set_allocator(room)
        attend[(triton.cdiv(s, $bm), b * h)](
            q, k, v, out, s, 1.4426950408889634 * d**-0.5, D=d, BM=$bm, BN=$bn, TMA=bool($tma),
            num_warps=$warps, num_stages=$stages,
        )
    return out
"""


class FlashAttention:
    name = "flash_attention"
    problems = ("flash_attention",)

    def space(self, problem: str, case: Case) -> Space:
        d, wide = case["d"], case.element_bytes

        def admits(config: Config) -> bool:
            bm, bn, stages, warps = (int(config[k]) for k in ("bm", "bn", "stages", "warps"))
            room = (bm * d + stages * 2 * bn * d) * wide
            held = bm * (bn + d) / (32 * warps)
            return room <= 227 << 10 and 32 <= held <= 192 and True

        return Space.of(
            admits,
            bm=(64, 128),
            bn=(32, 64, 128),
            warps=(4, 8),
            stages=(2, 3, 4),
            tma=(0, 1),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        d = case["d"]
        keys = {"bounds": f"d {d}..{d}"}
        return render(problem, BODY, config, layouts="contiguous", keys=keys, like=case)
