"""Causal attention tile by tile (Dao, arXiv 2307.08691): scores never leave the registers.

Tiles below the diagonal need no mask and come first; the diagonal's come last. Exponentials are base two, with
log₂e folded into the scale. Programs take the longest rows of queries first. By position, heads lie side by side:
rows of a head are as far apart as each tensor says, and the logarithms that the gradients need are written too.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render, rewritten
from nightshift.kernels.problem import Case

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

BY_POSITION = rewritten(
    BODY,
    """
-     q, k, v, out, s, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TMA: tl.constexpr,
+     q, k, v, out, logs, s, heads, by_q, by_k, by_v, scale,
+     D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TMA: tl.constexpr,

-     first = tl.program_id(1).to(tl.int64) * s * D
+     head = tl.program_id(1)
+     batch = (head // heads).to(tl.int64) * s
+     place = head % heads * D
+     part = tl.arange(0, BN)

-     at = first + queries[:, None] * D + column[None, :]
+     line = batch + queries[:, None]
+     at = line * by_q + place + column[None, :]

-         keys = tl.make_tensor_descriptor(k + first, shape=[s, D], strides=[D, 1], block_shape=[BN, D])
-         values = tl.make_tensor_descriptor(v + first, shape=[s, D], strides=[D, 1], block_shape=[BN, D])
+         k_head = k + batch * by_k + place
+         v_head = v + batch * by_v + place
+         keys = tl.make_tensor_descriptor(k_head, shape=[s, D], strides=[by_k, 1], block_shape=[BN, D])
+         values = tl.make_tensor_descriptor(v_head, shape=[s, D], strides=[by_v, 1], block_shape=[BN, D])

-             row = start + tl.arange(0, BN)
-             y = tl.load(k + first + row[:, None] * D + column[None, :])
-             z = tl.load(v + first + row[:, None] * D + column[None, :])
+             y = tl.load(k + (batch + start) * by_k + place + part[:, None] * by_k + column[None, :])
+             z = tl.load(v + (batch + start) * by_v + place + part[:, None] * by_v + column[None, :])

-         row = start + tl.arange(0, BN)
-         y = tl.load(k + first + row[:, None] * D + column[None, :], mask=row[:, None] < s, other=0.0)
-         z = tl.load(v + first + row[:, None] * D + column[None, :], mask=row[:, None] < s, other=0.0)
+         row = start + part
+         known_k = row[:, None] < s
+         y_at = (batch + start) * by_k + place + part[:, None] * by_k + column[None, :]
+         z_at = (batch + start) * by_v + place + part[:, None] * by_v + column[None, :]
+         y = tl.load(k + y_at, mask=known_k, other=0.0)
+         z = tl.load(v + z_at, mask=known_k, other=0.0)

-     tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty), mask=known)
+     at = line * heads * D + place + column[None, :]
+     tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty), mask=known)
+     log = (high + tl.log2(total)) * 0.6931471805599453
+     tl.store(logs + head.to(tl.int64) * s + queries, log, mask=queries < s)

-     b, h, s, d = q.shape
-     out = torch.empty((b, h, s, d), dtype=q.dtype, device=q.device)
+     b, s, h, d = q.shape
+     out = torch.empty((b, s, h, d), dtype=q.dtype, device=q.device)
+     logs = torch.empty((b, h, s), dtype=torch.float32, device=q.device)

-             q, k, v, out, s, 1.4426950408889634 * d**-0.5, D=d, BM=$bm, BN=$bn, TMA=bool($tma),
-             num_warps=$warps, num_stages=$stages,
+             q, k, v, out, logs, s, h, q.stride(1), k.stride(1), v.stride(1), 1.4426950408889634 * d**-0.5,
+             D=d, BM=$bm, BN=$bn, TMA=bool($tma), num_warps=$warps, num_stages=$stages,

-     return out
+     return out, logs
""",
)


class FlashAttention:
    name = "flash_attention"
    problems = ("flash_attention", "flash_attention_by_position")

    def space(self, problem: str, case: Case) -> Space:
        d, wide = case["d"], case.element_bytes

        def admits(config: Config) -> bool:
            bm, bn, stages, warps = (int(config[k]) for k in ("bm", "bn", "stages", "warps"))
            # shared memory: one tile of queries, and keys and values for each stage
            room = (bm * d + stages * 2 * bn * d) * wide
            # float32 scores and results that a thread keeps, of the 255 registers it can have
            held = bm * (bn + d) / (32 * warps)
            return room <= 227 << 10 and 32 <= held <= 192

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
        # the depth is compiled in, so the kernel answers for this one alone
        keys = {"bounds": f"d {d}..{d}"}
        if problem == "flash_attention":
            return render(problem, BODY, config, layouts="contiguous", keys=keys, like=case)
        return render(problem, BY_POSITION, config, layouts="contiguous sliced", keys=keys, like=case)
