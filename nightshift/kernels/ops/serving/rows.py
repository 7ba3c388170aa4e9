"""Operations by row: norms (also after a residual addition), softmax, SiLU, rows of an embedding, rotary."""

from __future__ import annotations

NORM = """
import torch
import triton
import triton.language as tl


@triton.jit
def norm(x, residual, weight, out, count, ADD: tl.constexpr, EPSILON: tl.constexpr, ONE: tl.constexpr,
         N: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < count)[:, None] & (column < N)[None, :]
    place = row[:, None] * N + column[None, :]
    v = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        v += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(v * v, 1) / N + EPSILON)
    w = tl.load(weight + column, mask=column < N, other=0.0).to(tl.float32) + ONE
    tl.store(out + place, (v * scale[:, None] * w[None, :]).to(out.dtype.element_ty), mask=inside)


def entry($arguments):
    x = hidden_states
    out = torch.empty_like(x)
    if len(x):
        norm[(triton.cdiv(len(x), $rows),)](
            x, $residual, weight, out, len(x), ADD=$add, EPSILON=$epsilon, ONE=$one, N=$width, BLOCK=$padded,
            ROWS=$rows, num_warps=$warps,
        )
    return out
"""

SOFTMAX = """
import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        v = tl.load(x + row * N + start + column, mask=start + column < N, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(most, v)
        level = tl.where(higher > -float("inf"), higher, 0.0)
        total = total * tl.exp(most - level) + tl.exp(v - level)
        most = higher
    top = tl.max(most, 0)
    total_all = tl.sum(total * tl.exp(most - top), 0)
    for start in range(0, N, BLOCK):
        inside = start + column < N
        v = tl.load(x + row * N + start + column, mask=inside, other=-float("inf")).to(tl.float32)
        share = (tl.exp(v - top) / total_all).to(out.dtype.element_ty)
        tl.store(out + row * N + start + column, share, mask=inside)


def entry(input):
    out = torch.empty_like(input)
    if len(input):
        softmax[(len(input),)](input, out, N=$width, BLOCK=$block, num_warps=$warps)
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
def rotate(
    x, out, cos, sin, positions, heads, steps, count,
    D: tl.constexpr, TURNED: tl.constexpr, HALF: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
    CACHE: tl.constexpr, ROWS: tl.constexpr,
):
    # a row is one head of one token: [tokens, heads] with a cache by position, else [batch, heads, steps]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
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


def entry($arguments):
    made = []
    for x in (q, k):
        out = torch.empty_like(x)
        count = x.numel() // $width
        if count:
            rotate[(triton.cdiv(count, $rows),)](
                x, out, $cos, $sin, $positions, x.shape[1], $steps, count,
                D=$width, TURNED=$turned, HALF=$half, PAIRS=$pairs, REST=$rest, CACHE=$cache, ROWS=$rows,
                num_warps=$warps,
            )
        made.append(out)
    return tuple(made)
"""
