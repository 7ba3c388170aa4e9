"""Attention of a server, over paged and ragged caches, for one token or many of each sequence.

A decode deals each sequence out to `splits` programs for each head of keys, and a second kernel joins their parts
by their maxima (Flash-Decoding). Nothing is read on the host, so that a CUDA graph may hold the launch: the grid is
of the batch, and a program finds its sequence's length on the device. Queries of many tokens come in tiles of
`tokens`; a tile finds its sequence by walking the offsets. Heads that share their keys lie in one tile.

Sparse attention reads the places that an indexer chose for each query, which may be fewer than there is room for.

MLA (multi-head latent attention) is the same with one head of keys that is also its values, and a second, short
part of queries and keys.
"""

from __future__ import annotations

DECODE = """
import torch
import triton
import triton.language as tl


@triton.jit
def decode(
    q, q_pe, keys, keys_pe, values, offsets, pages, last, out, lse, part, part_lse, scale,
    HEADS: tl.constexpr, KV: tl.constexpr, GROUP: tl.constexpr, LINES: tl.constexpr, D: tl.constexpr,
    PE: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, LAST: tl.constexpr,
    STAGES: tl.constexpr, DOT: tl.constexpr, CHOSEN: tl.constexpr,
):
    # heads of one token lie beside each other in memory: they are read at the same time
    batch = tl.program_id(0) // KV
    kv = tl.program_id(0) % KV
    split = tl.program_id(1)
    if CHOSEN > 0:  # places of single tokens, as many for each query; -1 is none
        start = batch.to(tl.int64) * CHOSEN
        length = CHOSEN
    else:
        start = tl.load(offsets + batch)
        stop = tl.load(offsets + batch + 1)
        length = (stop - start) * PAGE
    if LAST:
        length = tl.where(stop > start, length - PAGE + tl.load(last + batch, mask=stop > start, other=0), 0)
    each = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
    low = split * each
    high = tl.minimum(low + each, length)
    line = tl.arange(0, LINES)
    column = tl.arange(0, D)
    head = batch.to(tl.int64) * HEADS + kv * GROUP + line
    inside = line < GROUP
    query = tl.load(q + head[:, None] * D + column[None, :], mask=inside[:, None], other=0.0)
    if PE > 0:
        narrow = tl.arange(0, PE)
        query_pe = tl.load(q_pe + head[:, None] * PE + narrow[None, :], mask=inside[:, None], other=0.0)
    most = tl.full((LINES,), -float("inf"), tl.float32)
    total = tl.zeros((LINES,), tl.float32)
    made = tl.zeros((LINES, D), tl.float32)
    for token in tl.range(low, high, BLOCK, num_stages=STAGES):
        at = token + tl.arange(0, BLOCK)
        known = at < high
        page = tl.load(pages + start + at // PAGE, mask=known, other=0).to(tl.int64)
        if CHOSEN > 0:
            known = known & (page >= 0)
            page = tl.maximum(page, 0)
        row = (page * PAGE + at % PAGE) * KV + kv
        key = tl.load(keys + row[:, None] * D + column[None, :], mask=known[:, None], other=0.0)
        logits = tl.dot(query.to(DOT), tl.trans(key).to(DOT))
        if PE > 0:
            key_pe = tl.load(keys_pe + row[:, None] * PE + narrow[None, :], mask=known[:, None], other=0.0)
            logits += tl.dot(query_pe.to(DOT), tl.trans(key_pe).to(DOT))
        logits = tl.where(known[None, :], logits * (scale * 1.4426950408889634), -float("inf"))
        higher = tl.maximum(most, tl.max(logits, 1))
        level = tl.where(higher > -float("inf"), higher, 0.0)
        weight = tl.exp2(logits - level[:, None])
        fade = tl.exp2(most - level)
        total = total * fade + tl.sum(weight, 1)
        if PE > 0:
            value = key
        else:
            value = tl.load(values + row[:, None] * D + column[None, :], mask=known[:, None], other=0.0)
        made = made * fade[:, None] + tl.dot(weight.to(value.dtype).to(DOT), value.to(DOT))
        most = higher
    found = total > 0
    result = made / tl.where(found, total, 1.0)[:, None]
    logarithm = tl.where(found, most + tl.log2(tl.where(found, total, 1.0)), -float("inf"))
    if SPLITS == 1:
        tl.store(out + head[:, None] * D + column[None, :], result.to(out.dtype.element_ty), mask=inside[:, None])
        tl.store(lse + head, logarithm, mask=inside)
    else:
        place = head * SPLITS + split
        tl.store(part + place[:, None] * D + column[None, :], result, mask=inside[:, None])
        tl.store(part_lse + place, logarithm, mask=inside)


@triton.jit
def join(part, part_lse, out, lse, D: tl.constexpr, SPLITS: tl.constexpr, WIDE: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, WIDE)
    column = tl.arange(0, D)
    logarithm = tl.load(part_lse + head * SPLITS + split, mask=split < SPLITS, other=-float("inf"))
    most = tl.max(logarithm, 0)
    low = tl.where(most > -float("inf"), most, 0.0)
    weight = tl.exp2(logarithm - low)
    total = tl.sum(weight, 0)
    values = tl.load(
        part + (head * SPLITS + split)[:, None] * D + column[None, :], mask=(split < SPLITS)[:, None], other=0.0
    )
    made = tl.sum(values * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + head * D + column, made.to(out.dtype.element_ty))
    tl.store(lse + head, tl.where(total > 0, low + tl.log2(tl.where(total > 0, total, 1.0)), -float("inf")))


def entry($arguments):
    batch = q.shape[0]
    out = torch.empty_like(q)
    lse = torch.empty((batch, $heads), dtype=torch.float32, device=q.device)
    parts = (batch * $heads * $splits, $width) if $splits > 1 else (1,)
    part = torch.empty(parts, dtype=torch.float32, device=q.device)
    part_lse = torch.empty((batch * $heads * $splits,), dtype=torch.float32, device=q.device)
    if batch:
        decode[(batch * $kv, $splits)](
            q, $q_pe, $keys, $keys_pe, $values, $offsets, $pages, $last, out, lse, part, part_lse, sm_scale,
            HEADS=$heads, KV=$kv, GROUP=$group, LINES=$lines, D=$width, PE=$narrow, PAGE=$page, BLOCK=$block,
            SPLITS=$splits, LAST=$counted, STAGES=$stages, DOT=$dot, CHOSEN=$chosen,
            num_warps=$warps,
        )
        if $splits > 1:
            join[(batch * $heads,)](part, part_lse, out, lse, D=$width, SPLITS=$splits, WIDE=$wide, num_warps=4)
    return out, lse
"""

PREFILL = """
import torch
import triton
import triton.language as tl


@triton.jit
def prefill(
    q, q_pe, keys, keys_pe, values, q_offsets, offsets, pages, last, out, lse, count, scale,
    HEADS: tl.constexpr, KV: tl.constexpr, GROUP: tl.constexpr, LINES: tl.constexpr, D: tl.constexpr,
    V: tl.constexpr, PE: tl.constexpr, PAGE: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
    LAST: tl.constexpr, PAGED: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr, STAGES: tl.constexpr,
    DOT: tl.constexpr,
):
    tile = tl.program_id(0)
    kv = tl.program_id(1)
    batch = 0
    before = 0
    first = tl.load(q_offsets)
    queries = tl.load(q_offsets + 1) - first
    tiles = tl.cdiv(queries, TOKENS)
    while (batch < count - 1) & (tile >= before + tiles):
        before += tiles
        batch += 1
        first = tl.load(q_offsets + batch)
        queries = tl.load(q_offsets + batch + 1) - first
        tiles = tl.cdiv(queries, TOKENS)
    if tile < before + tiles:
        start = tl.load(offsets + batch)
        stop = tl.load(offsets + batch + 1)
        length = (stop - start) * PAGE
        if LAST:
            length = tl.where(stop > start, length - PAGE + tl.load(last + batch, mask=stop > start, other=0), 0)
        line = tl.arange(0, LINES)
        number = (tile - before) * TOKENS + line // GROUP
        inside = (number < queries) & (line < TOKENS * GROUP)
        head = (first + number).to(tl.int64) * HEADS + kv * GROUP + line % GROUP
        column = tl.arange(0, D)
        across = tl.arange(0, V)
        query = tl.load(
            q + head[:, None] * WIDTH + column[None, :], mask=inside[:, None] & (column < WIDTH)[None, :], other=0.0
        )
        if PE > 0:
            narrow = tl.arange(0, PE)
            query_pe = tl.load(q_pe + head[:, None] * PE + narrow[None, :], mask=inside[:, None], other=0.0)
        reach = length - queries + number
        most = tl.full((LINES,), -float("inf"), tl.float32)
        total = tl.zeros((LINES,), tl.float32)
        made = tl.zeros((LINES, V), tl.float32)
        high = tl.minimum(length, length - queries + (tile - before + 1) * TOKENS)
        for token in tl.range(0, high, BLOCK, num_stages=STAGES):
            at = token + tl.arange(0, BLOCK)
            known = at < high
            if PAGED:
                page = tl.load(pages + start + at // PAGE, mask=known, other=0).to(tl.int64)
                row = (page * PAGE + at % PAGE) * KV + kv
            else:
                row = (start + at).to(tl.int64) * KV + kv
            key = tl.load(
                keys + row[:, None] * WIDTH + column[None, :],
                mask=known[:, None] & (column < WIDTH)[None, :], other=0.0,
            )
            logits = tl.dot(query.to(DOT), tl.trans(key).to(DOT))
            if PE > 0:
                key_pe = tl.load(keys_pe + row[:, None] * PE + narrow[None, :], mask=known[:, None], other=0.0)
                logits += tl.dot(query_pe.to(DOT), tl.trans(key_pe).to(DOT))
            seen = known[None, :] & (at[None, :] <= reach[:, None])
            logits = tl.where(seen, logits * (scale * 1.4426950408889634), -float("inf"))
            higher = tl.maximum(most, tl.max(logits, 1))
            level = tl.where(higher > -float("inf"), higher, 0.0)
            weight = tl.exp2(logits - level[:, None])
            fade = tl.exp2(most - level)
            total = total * fade + tl.sum(weight, 1)
            if PE > 0:
                value = key
            else:
                value = tl.load(
                    values + row[:, None] * VALUES + across[None, :],
                    mask=known[:, None] & (across < VALUES)[None, :], other=0.0,
                )
            made = made * fade[:, None] + tl.dot(weight.to(value.dtype).to(DOT), value.to(DOT))
            most = higher
        found = total > 0
        result = made / tl.where(found, total, 1.0)[:, None]
        logarithm = tl.where(found, most + tl.log2(tl.where(found, total, 1.0)), -float("inf"))
        tl.store(
            out + head[:, None] * VALUES + across[None, :], result.to(out.dtype.element_ty),
            mask=inside[:, None] & (across < VALUES)[None, :],
        )
        tl.store(lse + head, logarithm, mask=inside)


def entry($arguments):
    tokens, count = q.shape[0], kv_indptr.shape[0] - 1
    out = torch.empty((tokens, $heads, $out_width), dtype=q.dtype, device=q.device)
    lse = torch.empty((tokens, $heads), dtype=torch.float32, device=q.device)
    if tokens:
        prefill[(triton.cdiv(tokens, $tokens) + count, $kv)](
            q, $q_pe, $keys, $keys_pe, $values, qo_indptr, kv_indptr, $pages, $last, out, lse, count, sm_scale,
            HEADS=$heads, KV=$kv, GROUP=$group, LINES=$lines, D=$padded, V=$out_padded, PE=$narrow, PAGE=$page,
            TOKENS=$tokens, BLOCK=$block, LAST=$counted, PAGED=$paged, WIDTH=$width, VALUES=$out_width,
            STAGES=$stages, DOT=$dot, num_warps=$warps,
        )
    return out, lse
"""
