"""Gradients of causal attention tile by tile (Dao, arXiv 2307.08691): weights are computed again, never stored.

Three kernels: each row's inner product of result and gradient; the keys' and values' gradients, a tile of keys a
program, scores transposed so that they are the left side of the next product without leaving the registers; the
queries' gradients, a tile of queries a program. The diagonal's tiles are masked, the others need no mask. Nothing
is added atomically, so the result is the same every time. By position, heads lie side by side, and rows of a head
are as far apart as each tensor says.
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
def inner(gradient, out, delta, count, D: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    known = row[:, None] < count
    x = tl.load(gradient + at, mask=known, other=0.0).to(tl.float32)
    y = tl.load(out + at, mask=known, other=0.0).to(tl.float32)
    tl.store(delta + row, tl.sum(x * y, 1), mask=row < count)


@triton.jit
def by_queries(
    gradient, q, logs, delta, x, y, to_k, to_v, first, s, low, high, base, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
):
    column = tl.arange(0, D)
    keys = base + tl.arange(0, BN)
    for start in tl.range(low, high, BM):
        row = start + tl.arange(0, BM)
        at = first * D + row[:, None] * D + column[None, :]
        if EVEN:
            a = tl.load(q + at)
            g = tl.load(gradient + at)
            log = tl.load(logs + first + row)
            inner_ = tl.load(delta + first + row)
        else:
            a = tl.load(q + at, mask=row[:, None] < s, other=0.0)
            g = tl.load(gradient + at, mask=row[:, None] < s, other=0.0)
            log = tl.load(logs + first + row, mask=row < s, other=float("inf"))
            inner_ = tl.load(delta + first + row, mask=row < s, other=0.0)
        score = tl.dot(x, tl.trans(a))
        weight = tl.exp2(score * (scale * 1.4426950408889634) - (log * 1.4426950408889634)[None, :])
        if MASKED:
            weight = tl.where(row[None, :] >= keys[:, None], weight, 0.0)
        to_v = tl.dot(weight.to(g.dtype), g, to_v)
        back = weight * (tl.dot(y, tl.trans(g)) - inner_[None, :])
        to_k = tl.dot(back.to(a.dtype), a, to_k)
    return to_k, to_v


@triton.jit
def of_keys(
    gradient, q, k, v, logs, delta, k_out, v_out, s, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr,
):
    base = tl.program_id(0) * BN
    first = tl.program_id(1).to(tl.int64) * s
    keys = base + tl.arange(0, BN)
    at = first * D + keys[:, None] * D + tl.arange(0, D)[None, :]
    known = keys[:, None] < s
    x = tl.load(k + at, mask=known, other=0.0)
    y = tl.load(v + at, mask=known, other=0.0)
    to_k = tl.zeros((BN, D), tl.float32)
    to_v = tl.zeros((BN, D), tl.float32)
    whole = min(tl.cdiv(base + BN, BM), tl.cdiv(s, BM)) * BM
    to_k, to_v = by_queries(
        gradient, q, logs, delta, x, y, to_k, to_v, first, s, base // BM * BM, whole, base, scale,
        D, BM, BN, True, EVEN,
    )
    to_k, to_v = by_queries(
        gradient, q, logs, delta, x, y, to_k, to_v, first, s, whole, s, base, scale, D, BM, BN, False, EVEN
    )
    tl.store(k_out + at, (to_k * scale).to(k_out.dtype.element_ty), mask=known)
    tl.store(v_out + at, to_v.to(v_out.dtype.element_ty), mask=known)


@triton.jit
def by_keys(
    k, v, a, g, log, inner_, total, first, s, low, high, base, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
):
    column = tl.arange(0, D)
    row = base + tl.arange(0, BM)
    for start in tl.range(low, high, BN):
        keys = start + tl.arange(0, BN)
        at = first * D + keys[:, None] * D + column[None, :]
        if EVEN:
            x = tl.load(k + at)
            y = tl.load(v + at)
        else:
            x = tl.load(k + at, mask=keys[:, None] < s, other=0.0)
            y = tl.load(v + at, mask=keys[:, None] < s, other=0.0)
        score = tl.dot(a, tl.trans(x))
        weight = tl.exp2(score * (scale * 1.4426950408889634) - (log * 1.4426950408889634)[:, None])
        if MASKED:
            weight = tl.where(row[:, None] >= keys[None, :], weight, 0.0)
        back = weight * (tl.dot(g, tl.trans(y)) - inner_[:, None])
        total = tl.dot(back.to(x.dtype), x, total)
    return total


@triton.jit
def of_queries(
    gradient, q, k, v, logs, delta, out, s, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr,
):
    base = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM  # the longest rows first
    first = tl.program_id(1).to(tl.int64) * s
    row = base + tl.arange(0, BM)
    at = first * D + row[:, None] * D + tl.arange(0, D)[None, :]
    known = row[:, None] < s
    a = tl.load(q + at, mask=known, other=0.0)
    g = tl.load(gradient + at, mask=known, other=0.0)
    log = tl.load(logs + first + row, mask=row < s, other=float("inf"))
    inner_ = tl.load(delta + first + row, mask=row < s, other=0.0)
    total = tl.zeros((BM, D), tl.float32)
    whole = base // BN * BN
    total = by_keys(k, v, a, g, log, inner_, total, first, s, 0, whole, base, scale, D, BM, BN, False, EVEN)
    total = by_keys(
        k, v, a, g, log, inner_, total, first, s, whole, min(s, base + BM), base, scale, D, BM, BN, True, EVEN
    )
    tl.store(out + at, (total * scale).to(out.dtype.element_ty), mask=known)


def entry(gradient, q, k, v, out, logs):
    b, h, s, d = q.shape
    to_q, to_k, to_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if q.numel():
        delta = torch.empty((b, h, s), dtype=torch.float32, device=q.device)
        inner[(triton.cdiv(b * h * s, 32),)](gradient, out, delta, b * h * s, D=d, ROWS=32, num_warps=4)
        of_keys[(triton.cdiv(s, $bn), b * h)](
            gradient, q, k, v, logs, delta, to_k, to_v, s, d**-0.5, D=d, BM=$bm, BN=$bn, EVEN=s % $bm == 0,
            num_warps=$warps, num_stages=$stages,
        )
        of_queries[(triton.cdiv(s, $cm), b * h)](
            gradient, q, k, v, logs, delta, to_q, s, d**-0.5, D=d, BM=$cm, BN=$cn, EVEN=s % $cn == 0,
            num_warps=$cwarps, num_stages=$cstages,
        )
    return to_q, to_k, to_v
"""

BY_POSITION = rewritten(
    BODY,
    """
- def inner(gradient, out, delta, count, D: tl.constexpr, ROWS: tl.constexpr):
+ def inner(gradient, out, delta, count, s, heads, by_g, by_o, D: tl.constexpr, ROWS: tl.constexpr):

-     at = row[:, None] * D + tl.arange(0, D)[None, :]
-     known = row[:, None] < count
-     x = tl.load(gradient + at, mask=known, other=0.0).to(tl.float32)
-     y = tl.load(out + at, mask=known, other=0.0).to(tl.float32)
+     line = (row // s // heads * s + row % s)[:, None]
+     column = (row // s % heads * D)[:, None] + tl.arange(0, D)[None, :]
+     known = row[:, None] < count
+     x = tl.load(gradient + line * by_g + column, mask=known, other=0.0).to(tl.float32)
+     y = tl.load(out + line * by_o + column, mask=known, other=0.0).to(tl.float32)

-     gradient, q, logs, delta, x, y, to_k, to_v, first, s, low, high, base, scale,
+     gradient, q, logs, delta, x, y, to_k, to_v, first, batch, place, by_g, by_q, s, low, high, base, scale,

-         at = first * D + row[:, None] * D + column[None, :]
-         if EVEN:
-             a = tl.load(q + at)
-             g = tl.load(gradient + at)
+         part = tl.arange(0, BM)[:, None]
+         at = (batch + start) * by_q + place + part * by_q + column[None, :]
+         of = (batch + start) * by_g + place + part * by_g + column[None, :]
+         if EVEN:
+             a = tl.load(q + at)
+             g = tl.load(gradient + of)

-             g = tl.load(gradient + at, mask=row[:, None] < s, other=0.0)
+             g = tl.load(gradient + of, mask=row[:, None] < s, other=0.0)

-     gradient, q, k, v, logs, delta, k_out, v_out, s, scale,
+     gradient, q, k, v, logs, delta, k_out, v_out, s, heads, by_g, by_q, by_k, by_v, scale,

-     at = first * D + keys[:, None] * D + tl.arange(0, D)[None, :]
-     known = keys[:, None] < s
-     x = tl.load(k + at, mask=known, other=0.0)
-     y = tl.load(v + at, mask=known, other=0.0)
+     batch = (tl.program_id(1) // heads).to(tl.int64) * s
+     place = tl.program_id(1) % heads * D
+     line = batch + keys[:, None]
+     column = place + tl.arange(0, D)[None, :]
+     known = keys[:, None] < s
+     x = tl.load(k + line * by_k + column, mask=known, other=0.0)
+     y = tl.load(v + line * by_v + column, mask=known, other=0.0)

-         gradient, q, logs, delta, x, y, to_k, to_v, first, s, base // BM * BM, whole, base, scale,
-         D, BM, BN, True, EVEN,
+         gradient, q, logs, delta, x, y, to_k, to_v, first, batch, place, by_g, by_q, s, base // BM * BM, whole,
+         base, scale, D, BM, BN, True, EVEN,

-         gradient, q, logs, delta, x, y, to_k, to_v, first, s, whole, s, base, scale, D, BM, BN, False, EVEN
-     )
+         gradient, q, logs, delta, x, y, to_k, to_v, first, batch, place, by_g, by_q, s, whole, s,
+         base, scale, D, BM, BN, False, EVEN,
+     )
+     at = line * heads * D + column

-     k, v, a, g, log, inner_, total, first, s, low, high, base, scale,
+     k, v, a, g, log, inner_, total, batch, place, by_k, by_v, s, low, high, base, scale,

-         at = first * D + keys[:, None] * D + column[None, :]
-         if EVEN:
-             x = tl.load(k + at)
-             y = tl.load(v + at)
+         part = tl.arange(0, BN)[:, None]
+         at = (batch + start) * by_k + place + part * by_k + column[None, :]
+         of = (batch + start) * by_v + place + part * by_v + column[None, :]
+         if EVEN:
+             x = tl.load(k + at)
+             y = tl.load(v + of)

-             y = tl.load(v + at, mask=keys[:, None] < s, other=0.0)
+             y = tl.load(v + of, mask=keys[:, None] < s, other=0.0)

-     gradient, q, k, v, logs, delta, out, s, scale,
+     gradient, q, k, v, logs, delta, out, s, heads, by_g, by_q, by_k, by_v, scale,

-     at = first * D + row[:, None] * D + tl.arange(0, D)[None, :]
-     known = row[:, None] < s
-     a = tl.load(q + at, mask=known, other=0.0)
-     g = tl.load(gradient + at, mask=known, other=0.0)
+     batch = (tl.program_id(1) // heads).to(tl.int64) * s
+     place = tl.program_id(1) % heads * D
+     line = batch + row[:, None]
+     column = place + tl.arange(0, D)[None, :]
+     known = row[:, None] < s
+     a = tl.load(q + line * by_q + column, mask=known, other=0.0)
+     g = tl.load(gradient + line * by_g + column, mask=known, other=0.0)

-     total = by_keys(k, v, a, g, log, inner_, total, first, s, 0, whole, base, scale, D, BM, BN, False, EVEN)
-     total = by_keys(
-         k, v, a, g, log, inner_, total, first, s, whole, min(s, base + BM), base, scale, D, BM, BN, True, EVEN
-     )
+     total = by_keys(
+         k, v, a, g, log, inner_, total, batch, place, by_k, by_v, s, 0, whole, base, scale, D, BM, BN, False, EVEN
+     )
+     total = by_keys(
+         k, v, a, g, log, inner_, total, batch, place, by_k, by_v, s, whole, min(s, base + BM), base, scale,
+         D, BM, BN, True, EVEN,
+     )
+     at = line * heads * D + column

-     b, h, s, d = q.shape
-     to_q, to_k, to_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
+     b, s, h, d = q.shape
+     to_q, to_k, to_v = (torch.empty((b, s, h, d), dtype=q.dtype, device=q.device) for _ in range(3))
+     by = gradient.stride(1), q.stride(1), k.stride(1), v.stride(1)

-         inner[(triton.cdiv(b * h * s, 32),)](gradient, out, delta, b * h * s, D=d, ROWS=32, num_warps=4)
+         inner[(triton.cdiv(b * h * s, 32),)](
+             gradient, out, delta, b * h * s, s, h, by[0], out.stride(1), D=d, ROWS=32, num_warps=4
+         )

-             gradient, q, k, v, logs, delta, to_k, to_v, s, d**-0.5, D=d, BM=$bm, BN=$bn, EVEN=s % $bm == 0,
+             gradient, q, k, v, logs, delta, to_k, to_v, s, h, *by, d**-0.5,
+             D=d, BM=$bm, BN=$bn, EVEN=s % $bm == 0,

-             gradient, q, k, v, logs, delta, to_q, s, d**-0.5, D=d, BM=$cm, BN=$cn, EVEN=s % $cn == 0,
+             gradient, q, k, v, logs, delta, to_q, s, h, *by, d**-0.5,
+             D=d, BM=$cm, BN=$cn, EVEN=s % $cn == 0,
""",
)


class FlashBackward:
    name = "flash_backward"
    problems = ("flash_attention_backward", "flash_attention_by_position_backward")

    def space(self, problem: str, case: Case) -> Space:
        d, wide = case["d"], case.element_bytes

        def admits(config: Config) -> bool:
            bm, bn, warps, stages, cm, cn, cwarps, cstages = (
                int(config[k]) for k in ("bm", "bn", "warps", "stages", "cm", "cn", "cwarps", "cstages")
            )
            # each of the two large kernels by itself: its tiles in shared memory, its sums in registers
            keys = 2 * d * wide * (bn + stages * bm) <= 224 << 10
            queries = 2 * d * wide * (cm + cstages * cn) <= 224 << 10
            held = 2 * bn * (d + bm) / (32 * warps) <= 224 and cm * (d + 2 * cn) / (32 * cwarps) <= 224
            return keys and queries and held

        return Space.of(
            admits,
            bm=(32, 64, 128),
            bn=(64, 128),
            warps=(4, 8),
            stages=(2, 3),
            cm=(64, 128),
            cn=(32, 64, 128),
            cwarps=(4, 8),
            cstages=(2, 3),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        d = case["d"]
        # the depth is compiled in, so the kernel answers for this one alone
        keys = {"bounds": f"d {d}..{d}"}
        if problem == "flash_attention_backward":
            return render(problem, BODY, config, layouts="contiguous", keys=keys, like=case)
        return render(problem, BY_POSITION, config, layouts="contiguous sliced", keys=keys, like=case)
