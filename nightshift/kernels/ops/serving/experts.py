"""Mixtures of experts: routing, both products of each expert's own tokens, and the weighted sum.

Experts are chosen by one program for each token, which also enters the token in its experts' lists. A tile of a
product finds its expert by the lists' lengths, on the device: nothing is read on the host, so that a CUDA graph may
hold the launch. The first product ends with SwiGLU, the second reads its result in bfloat16. Of FP8 operands each
block of 128 is multiplied alone, and its sum enters the whole with both scales (DeepSeek-V3, arXiv 2412.19437).
"""

from __future__ import annotations

EXPERTS = """
import torch
import triton
import triton.language as tl


@triton.jit
def route(
    logits, bias, given, given_weights, ids, weights, lists, counts, offset, factor, rows,
    E: tl.constexpr, WIDE: tl.constexpr, LOCAL: tl.constexpr, K: tl.constexpr, GROUPS: tl.constexpr,
    KEPT: tl.constexpr, BIASED: tl.constexpr, GIVEN: tl.constexpr, RANKS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, WIDE)
    rank = tl.arange(0, RANKS)
    if GIVEN:
        chosen = tl.load(given + token * K + rank, mask=rank < K, other=-1).to(tl.int32)
        share = tl.load(given_weights + token * K + rank, mask=rank < K, other=0.0).to(tl.float32)
    else:
        value = tl.load(logits + token * E + expert, mask=expert < E, other=-float("inf")).to(tl.float32)
        score = value
        if BIASED:
            value = 1.0 / (1.0 + tl.exp(-value))
            score = value + tl.load(bias + expert, mask=expert < E, other=0.0).to(tl.float32)
            score = tl.where(expert < E, score, -float("inf"))
        if GROUPS > 1:  # the groups with the largest sums of their two largest scores
            grouped = tl.reshape(score, (GROUPS, WIDE // GROUPS))
            place = tl.arange(0, WIDE // GROUPS)
            first = tl.argmax(grouped, 1)
            second = tl.max(tl.where(place[None, :] == first[:, None], -float("inf"), grouped), 1)
            sums = tl.max(grouped, 1) + second
            group = tl.arange(0, GROUPS)
            kept = tl.zeros((GROUPS,), tl.int32)
            for _ in tl.static_range(KEPT):
                best = tl.argmax(tl.where(kept > 0, -float("inf"), sums), 0)
                kept = tl.where(group == best, 1, kept)
            score = tl.reshape(tl.where(kept[:, None] > 0, grouped, -float("inf")), (WIDE,))
        chosen = tl.full((RANKS,), -1, tl.int32)
        share = tl.full((RANKS,), -float("inf"), tl.float32)
        for k in tl.static_range(K):
            best = tl.argmax(score, 0)
            chosen = tl.where(rank == k, best, chosen)
            share = tl.where(rank == k, tl.max(tl.where(expert == best, value, -float("inf")), 0), share)
            score = tl.where(expert == best, -float("inf"), score)
        if BIASED:
            share = tl.where(rank < K, share, 0.0)
            share = share / tl.maximum(tl.sum(share, 0), 1e-20) * factor
        else:
            share = tl.exp(share - tl.max(share, 0))
            share = share / tl.sum(share, 0)
    local = chosen - offset
    mine = (rank < K) & (local >= 0) & (local < LOCAL)
    place = token * K + rank
    tl.store(ids + place, tl.where(mine, local, -1), mask=rank < K)
    tl.store(weights + place, share, mask=rank < K)
    slot = tl.atomic_add(counts + local, 1, mask=mine)
    tl.store(lists + local.to(tl.int64) * rows + slot, place.to(tl.int32), mask=mine)


@triton.jit
def tile_of(counts, tile, LOCAL: tl.constexpr, WIDE: tl.constexpr, LINES: tl.constexpr):
    # (expert, first line of its list, how many it has) of a tile; an expert of WIDE where there is none
    expert = tl.arange(0, WIDE)
    count = tl.load(counts + expert, mask=expert < LOCAL, other=0)
    tiles = (count + LINES - 1) // LINES
    last = tl.cumsum(tiles, 0)
    mine = (tile < last) & (tile >= last - tiles)
    found = tl.min(tl.where(mine, expert, WIDE), 0)
    first = tl.sum(tl.where(mine, (tile - (last - tiles)) * LINES, 0), 0)
    return found, first, tl.sum(tl.where(mine, count, 0), 0)


@triton.jit
def up(
    x, x_scale, w, w_scale, lists, counts, out, rows,
    H: tl.constexpr, I: tl.constexpr, LOCAL: tl.constexpr, WIDE: tl.constexpr, K: tl.constexpr, LINES: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SCALED: tl.constexpr, STAGES: tl.constexpr, DOT: tl.constexpr,
):
    expert, first, count = tile_of(counts, tl.program_id(1), LOCAL, WIDE, LINES)
    if expert < WIDE:
        line = first + tl.arange(0, LINES)
        known = line < count
        row = tl.load(lists + expert.to(tl.int64) * rows + line, mask=known, other=0).to(tl.int64)
        token = row // K
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < I
        depth = tl.arange(0, DEPTH)
        w += expert.to(tl.int64) * 2 * I * H
        value = tl.zeros((LINES, COLUMNS), tl.float32)
        gate = tl.zeros((LINES, COLUMNS), tl.float32)
        for k in tl.range(0, H, DEPTH, num_stages=STAGES):
            there = (k + depth) < H
            whole = known[:, None] & there[None, :]
            a = tl.load(x + token[:, None] * H + (k + depth)[None, :], mask=whole, other=0.0)
            place = column[None, :] * H + (k + depth)[:, None]
            b = tl.load(w + place, mask=inside[None, :] & there[:, None], other=0.0)
            c = tl.load(w + I * H + place, mask=inside[None, :] & there[:, None], other=0.0)
            one, other = tl.dot(a.to(DOT), b.to(DOT)), tl.dot(a.to(DOT), c.to(DOT))
            if SCALED:
                block, blocks = k // 128, H // 128
                of_x = tl.load(x_scale + block * rows + token, mask=known, other=0.0)
                at = w_scale + (expert * 2 * (I // 128) + column // 128) * blocks + block
                one = one * of_x[:, None] * tl.load(at, mask=inside, other=0.0)[None, :]
                other = other * of_x[:, None] * tl.load(at + (I // 128) * blocks, mask=inside, other=0.0)[None, :]
            value += one
            gate += other
        made = gate / (1.0 + tl.exp(-gate)) * value
        tl.store(out + row[:, None] * I + column[None, :], made.to(out.dtype.element_ty),
                 mask=known[:, None] & inside[None, :])


@triton.jit
def down(
    x, w, w_scale, lists, counts, out, rows,
    H: tl.constexpr, I: tl.constexpr, LOCAL: tl.constexpr, WIDE: tl.constexpr, LINES: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SCALED: tl.constexpr, STAGES: tl.constexpr, DOT: tl.constexpr,
):
    expert, first, count = tile_of(counts, tl.program_id(1), LOCAL, WIDE, LINES)
    if expert < WIDE:
        line = first + tl.arange(0, LINES)
        known = line < count
        row = tl.load(lists + expert.to(tl.int64) * rows + line, mask=known, other=0).to(tl.int64)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < H
        depth = tl.arange(0, DEPTH)
        w += expert.to(tl.int64) * H * I
        total = tl.zeros((LINES, COLUMNS), tl.float32)
        for k in tl.range(0, I, DEPTH, num_stages=STAGES):
            there = (k + depth) < I
            whole = known[:, None] & there[None, :]
            a = tl.load(x + row[:, None] * I + (k + depth)[None, :], mask=whole, other=0.0)
            place = column[None, :] * I + (k + depth)[:, None]
            b = tl.load(w + place, mask=inside[None, :] & there[:, None], other=0.0)
            one = tl.dot(a.to(DOT), b.to(tl.float32).to(DOT))
            if SCALED:
                at = w_scale + (expert * (H // 128) + column // 128) * (I // 128) + k // 128
                one = one * tl.load(at, mask=inside, other=0.0)[None, :]
            total += one
        tl.store(out + row[:, None] * H + column[None, :], total.to(out.dtype.element_ty),
                 mask=known[:, None] & inside[None, :])


@triton.jit
def combine(x, ids, weights, out, H: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(K):
        place = token * K + k
        if tl.load(ids + place) >= 0:
            v = tl.load(x + place * H + column, mask=column < H, other=0.0).to(tl.float32)
            total += v * tl.load(weights + place)
    tl.store(out + token * H + column, total.to(out.dtype.element_ty), mask=column < H)


def entry($arguments):
    x, device = hidden_states, hidden_states.device
    rows, local = len(x), len($first)
    lines = $lines if rows * $k >= $lines * 4 else 16
    out = torch.empty((rows, $width), dtype=torch.bfloat16, device=device)
    if not rows:
        return out
    ids = torch.empty((rows, $k), dtype=torch.int32, device=device)
    weights = torch.empty((rows, $k), dtype=torch.float32, device=device)
    lists = torch.empty((local, rows), dtype=torch.int32, device=device)
    counts = torch.zeros((local,), dtype=torch.int32, device=device)
    between = torch.empty((rows * $k, $inner), dtype=$between, device=device)
    parts = torch.empty((rows * $k, $width), dtype=$between, device=device)
    route[(rows,)](
        $logits, $bias, $ids, $weights, ids, weights, lists, counts, $offset, $factor, rows,
        E=$experts, WIDE=$wide, LOCAL=$local, K=$k, GROUPS=$groups, KEPT=$kept_groups, BIASED=$biased, GIVEN=$given,
        RANKS=$ranks, num_warps=2,
    )
    tiles = triton.cdiv(rows * $k, lines) + min(local, rows * $k)
    up[(triton.cdiv($inner, $columns), tiles)](
        x, $x_scale, $first, $first_scale, lists, counts, between, rows,
        H=$width, I=$inner, LOCAL=$local, WIDE=$wide_local, K=$k, LINES=lines, COLUMNS=$columns, DEPTH=$depth,
        SCALED=$scaled, STAGES=$stages, DOT=$dot, num_warps=$warps,
    )
    down[(triton.cdiv($width, $columns), tiles)](
        between, $second, $second_scale, lists, counts, parts, rows,
        H=$width, I=$inner, LOCAL=$local, WIDE=$wide_local, LINES=lines, COLUMNS=$columns, DEPTH=$depth,
        SCALED=$scaled, STAGES=$stages, DOT=$dot_down, num_warps=$warps,
    )
    combine[(rows, triton.cdiv($width, 1024))](parts, ids, weights, out, H=$width, K=$k, BLOCK=1024, num_warps=4)
    return out
"""
