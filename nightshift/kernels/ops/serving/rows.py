"""Operations by row: norms (also after a residual addition), softmax, SiLU, rows of an embedding, rotary."""

from __future__ import annotations

NORM = """
import torch
import triton
import triton.language as tl


@triton.jit
def norm(x, residual, weight, out, total, count, ADD: tl.constexpr, SUM: tl.constexpr, EPSILON: tl.constexpr,
         ONE: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < count)[:, None] & (column < N)[None, :]
    place = row[:, None] * N + column[None, :]
    v = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=column < N, other=0.0)  # beside the row: memory is waited for once
    if ADD:
        v += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    if SUM:
        tl.store(total + place, v.to(total.dtype.element_ty), mask=inside)
    scale = 1.0 / tl.sqrt_rn(tl.sum(v * v, 1) / N + EPSILON)
    w = w.to(tl.float32) + ONE
    tl.store(out + place, (v * scale[:, None] * w[None, :]).to(out.dtype.element_ty), mask=inside)


def entry($arguments):
    x = hidden_states
    out = torch.empty_like(x)
    total = torch.empty_like(x) if $sum else out
    if len(x):
        # few rows leave most of the GPU idle: then a row is read by as many threads as it fills
        rows, warps = (1, min($wide, max(1, $padded // 256))) if len(x) <= 512 else ($rows, $warps)
        norm[(triton.cdiv(len(x), rows),)](
            x, $residual, weight, out, total, len(x), ADD=$add, SUM=$sum, EPSILON=$epsilon, ONE=$one, N=$width,
            BLOCK=$padded, ROWS=rows, num_warps=warps,
        )
    return $returned
"""

SOFTMAX = """
import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, count, N: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < count)[:, None] & (column < N)[None, :]
    place = row[:, None] * N + column[None, :]
    v = tl.load(x + place, mask=inside, other=-float("inf")).to(tl.float32)
    share = tl.exp(v - tl.max(v, 1)[:, None])
    share = share / tl.sum(share, 1)[:, None]
    tl.store(out + place, share.to(out.dtype.element_ty), mask=inside)


# A row that is too long for one program: each part's largest value and sum, then all shares.
@triton.jit
def parts(x, largest, sums, N: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * N + column, mask=column < N, other=-float("inf")).to(tl.float32)
    most = tl.max(v, 0)
    level = tl.where(most > -float("inf"), most, 0.0)
    tl.store(largest + row * PARTS + part, most)
    tl.store(sums + row * PARTS + part, tl.sum(tl.exp(v - level), 0))


@triton.jit
def shares(
    x, largest, sums, out, N: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, WIDE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, WIDE)
    most = tl.load(largest + row * PARTS + part, mask=part < PARTS, other=-float("inf"))
    total = tl.load(sums + row * PARTS + part, mask=part < PARTS, other=0.0)
    top = tl.max(most, 0)
    total = tl.sum(tl.where(total == 0, 0.0, total * tl.exp(most - top)), 0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    v = tl.load(x + row * N + column, mask=inside, other=-float("inf")).to(tl.float32)
    tl.store(out + row * N + column, (tl.exp(v - top) / total).to(out.dtype.element_ty), mask=inside)


def entry(input):
    out = torch.empty_like(input)
    count = len(input)
    if count and $parts == 1:
        softmax[(triton.cdiv(count, $rows),)](
            input, out, count, N=$width, BLOCK=$padded, ROWS=$rows, num_warps=$warps
        )
    elif count:
        largest, sums = torch.empty((2, count, $parts), dtype=torch.float32, device=input.device)
        parts[(count, $parts)](input, largest, sums, N=$width, BLOCK=$padded, PARTS=$parts, num_warps=$warps)
        shares[(count, $parts)](
            input, largest, sums, out, N=$width, BLOCK=$padded, PARTS=$parts, WIDE=$wide, num_warps=$warps
        )
    return out
"""

SILU = """
import torch
import triton
import triton.language as tl


@triton.jit
def silu(x, out, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    v = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, (v / (1.0 + tl.exp(-v))).to(out.dtype.element_ty), mask=inside)


def entry(input):
    out = torch.empty_like(input)
    if input.numel():
        silu[(triton.cdiv(input.numel(), $block),)](input, out, input.numel(), BLOCK=$block, num_warps=$warps)
    return out
"""

EMBEDDING = """
import torch
import triton
import triton.language as tl


@triton.jit
def gather(ids, weight, out, count, N: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < count)[:, None] & (column < N)[None, :]
    token = tl.load(ids + row, mask=row < count, other=0)
    v = tl.load(weight + token[:, None] * N + column[None, :], mask=inside)
    tl.store(out + row[:, None] * N + column[None, :], v, mask=inside)


def entry($arguments):
    out = torch.empty((len(input_ids), $width), dtype=weight.dtype, device=weight.device)
    if len(input_ids):
        gather[(triton.cdiv(len(input_ids), $rows), triton.cdiv($width, $block))](
            input_ids, weight, out, len(input_ids), N=$width, BLOCK=$block, ROWS=$rows, num_warps=$warps,
        )
    return out
"""

ROTARY = """
import torch
import triton
import triton.language as tl


@triton.jit
def turned(
    tile, x, out, cos, sin, positions, heads, steps, count,
    D: tl.constexpr, TURNED: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
    CACHE: tl.constexpr, ROWS: tl.constexpr,
):
    # a row is one head of one token: [tokens, heads] with a cache by position, else [batch, heads, steps]
    row = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < count
    pair = tl.arange(0, HALF)
    known = inside[:, None] & (pair < TURNED // 2)[None, :]
    if PAIRS:
        one, other = 2 * pair, 2 * pair + 1
    else:
        one, other = pair, pair + TURNED // 2
    first = tl.load(x + row[:, None] * D + one[None, :], mask=known, other=0.0).to(tl.float32)
    second = tl.load(x + row[:, None] * D + other[None, :], mask=known, other=0.0).to(tl.float32)
    if CACHE:
        place = tl.load(positions + row // heads, mask=inside, other=0).to(tl.int64) * TURNED
        c = tl.load(cos + place[:, None] + pair[None, :], mask=known, other=0.0).to(tl.float32)
        s = tl.load(cos + place[:, None] + (TURNED // 2 + pair)[None, :], mask=known, other=0.0).to(tl.float32)
        made, after = first * c - second * s, second * c + first * s
    else:
        place = (row // (heads * steps) * steps + row % steps) * D
        c = tl.load(cos + place[:, None] + one[None, :], mask=known, other=0.0).to(tl.float32)
        s = tl.load(sin + place[:, None] + one[None, :], mask=known, other=0.0).to(tl.float32)
        made = first * c - second * s
        c = tl.load(cos + place[:, None] + other[None, :], mask=known, other=0.0).to(tl.float32)
        s = tl.load(sin + place[:, None] + other[None, :], mask=known, other=0.0).to(tl.float32)
        after = second * c + first * s
    tl.store(out + row[:, None] * D + one[None, :], made.to(out.dtype.element_ty), mask=known)
    tl.store(out + row[:, None] * D + other[None, :], after.to(out.dtype.element_ty), mask=known)
    if TURNED < D:
        rest = TURNED + tl.arange(0, REST)
        kept = inside[:, None] & (rest < D)[None, :]
        v = tl.load(x + row[:, None] * D + rest[None, :], mask=kept)
        tl.store(out + row[:, None] * D + rest[None, :], v, mask=kept)


@triton.jit
def rotate(
    q, k, out_q, out_k, cos, sin, positions, heads_q, heads_k, steps, count_q, count_k,
    D: tl.constexpr, TURNED: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
    CACHE: tl.constexpr, ROWS: tl.constexpr,
):
    tile = tl.program_id(0)
    tiles = tl.cdiv(count_q, ROWS)
    if tile < tiles:
        turned(
            tile, q, out_q, cos, sin, positions, heads_q, steps, count_q, D, TURNED, HALF, PAIRS, REST, CACHE, ROWS
        )
    else:
        turned(
            tile - tiles, k, out_k, cos, sin, positions, heads_k, steps, count_k, D, TURNED, HALF, PAIRS, REST,
            CACHE, ROWS,
        )


def entry($arguments):
    out_q, out_k = torch.empty_like(q), torch.empty_like(k)
    count_q, count_k = q.numel() // $width, k.numel() // $width
    tiles = triton.cdiv(count_q, $rows) + triton.cdiv(count_k, $rows)
    if tiles:
        rotate[(tiles,)](
            q, k, out_q, out_k, $cos, $sin, $positions, q.shape[1], k.shape[1], $steps, count_q, count_k,
            D=$width, TURNED=$turned, HALF=$half, PAIRS=$pairs, REST=$rest, CACHE=$cache, ROWS=$rows,
            num_warps=$warps,
        )
    return out_q, out_k
"""
