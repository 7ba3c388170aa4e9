"""Choices from a vocabulary: the k largest of a row, and a token drawn from the most probable ones.

A float's bits, turned so that they grow with it, share an integer with its place: the largest integers are the
largest values with their places. Parts of a row give their own k largest, and a second kernel joins them.

A sampler needs no order. The least value that is kept is found by halving the range of its bits: of top-k by how
many are above, of top-p by their mass. All that tie with it may be drawn. One uniform number of torch's generator
then picks the token at which the cumulative mass passes it.
"""

from __future__ import annotations

TOPK = """
import torch
import triton
import triton.language as tl

_LOW = -(1 << 63)


@triton.jit
def keys_of(x, place, inside):
    v = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    bits = v.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def part(x, out, N: tl.constexpr, BLOCK: tl.constexpr, KEPT: tl.constexpr, PARTS: tl.constexpr,
         LOW: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    # of equal values the first place is the largest integer
    packed = keys_of(x, row * N + column, inside) * 4294967296 + (4294967295 - column.to(tl.int64))
    best = tl.topk(tl.where(inside, packed, LOW), KEPT)
    tl.store(out + (row * PARTS + tl.program_id(1)) * KEPT + tl.arange(0, KEPT), best)


@triton.jit
def join(parts, values, places, COUNT: tl.constexpr, WIDE: tl.constexpr, KEPT: tl.constexpr, K: tl.constexpr,
         LOW: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDE)
    best = tl.topk(tl.load(parts + row * COUNT + at, mask=at < COUNT, other=LOW), KEPT)
    rank = tl.arange(0, KEPT)
    bits = (best >> 32).to(tl.int32)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    value = bits.to(tl.float32, bitcast=True)
    place = 4294967295 - (best & 4294967295)
    tl.store(values + row * K + rank, value.to(values.dtype.element_ty), mask=rank < K)
    tl.store(places + row * K + rank, place, mask=rank < K)


def entry($arguments):
    rows = len(input)
    values = torch.empty((rows, $count), dtype=input.dtype, device=input.device)
    places = torch.empty((rows, $count), dtype=torch.int64, device=input.device)
    parts = torch.empty((rows, $parts * $kept), dtype=torch.int64, device=input.device)
    if rows:
        part[(rows, $parts)](
            input, parts, N=$width, BLOCK=$block, KEPT=$kept, PARTS=$parts, LOW=_LOW, num_warps=$warps,
        )
        join[(rows,)](
            parts, values, places, COUNT=$parts * $kept, WIDE=$wide, KEPT=$kept, K=$count, LOW=_LOW, num_warps=8,
        )
    return values, places
"""

SAMPLE = """
import torch
import triton
import triton.language as tl


@triton.jit
def above(x, bits, N: tl.constexpr, BLOCK: tl.constexpr):
    # how many values have larger bits, and their sum
    column = tl.arange(0, BLOCK)
    count = tl.zeros((BLOCK,), tl.int32)
    mass = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        v = tl.load(x + start + column, mask=start + column < N, other=0.0)
        larger = v.to(tl.int32, bitcast=True) > bits
        count += larger.to(tl.int32)
        mass += tl.where(larger, v, 0.0)
    return tl.sum(count, 0), tl.sum(mass, 0)


@triton.jit
def sample(
    x, uniform, top_k, top_p, out,
    N: tl.constexpr, BLOCK: tl.constexpr, HAS_K: tl.constexpr, HAS_P: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x += row * N
    least = 0  # bits of the least value that is kept: zero, so that all but zeros are
    total_count, total = above(x, 0, N, BLOCK)
    if HAS_K:
        k = tl.load(top_k + row)
        if (k > 0) & (k < total_count):
            low, high = 0, 0x7F800000  # more than k - 1 are above low, and fewer than k above high
            while high - low > 1:
                middle = low + (high - low) // 2
                count, mass = above(x, middle, N, BLOCK)
                low = tl.where(count >= k, middle, low)
                high = tl.where(count >= k, high, middle)
            least = high
            count, mass = above(x, least, N, BLOCK)
            total = mass + (k - count).to(tl.float32) * least.to(tl.float32, bitcast=True)
    if HAS_P:
        p = tl.load(top_p + row)
        if p < 1.0:
            bound = tl.maximum(p, 0.0) * total
            low, high = least - 1, 0x7F800000  # the mass above high is within the bound, that above low is not
            while high - low > 1:
                middle = low + (high - low) // 2
                count, mass = above(x, middle, N, BLOCK)
                inside = mass <= bound
                high = tl.where(inside, middle, high)
                low = tl.where(inside, low, middle)
            least = tl.maximum(least, high)
    count, mass = above(x, least - 1, N, BLOCK)
    goal = tl.load(uniform + row) * mass
    column = tl.arange(0, BLOCK)
    passed = 0.0
    start = 0
    token = -1
    last = 0
    while (token < 0) & (start < N):
        at = start + column
        v = tl.load(x + at, mask=at < N, other=0.0)
        kept = (v.to(tl.int32, bitcast=True) >= least) & (v > 0.0)
        v = tl.where(kept, v, 0.0)
        reached = kept & (passed + tl.cumsum(v, 0) > goal)
        first = tl.min(tl.where(reached, at, N), 0)
        token = tl.where(first < N, first, token)
        last = tl.maximum(last, tl.max(tl.where(kept, at, 0), 0))
        passed += tl.sum(v, 0)
        start += BLOCK
    tl.store(out + row, tl.where(token < 0, last, token).to(out.dtype.element_ty))  # a sum that rounding kept below


def entry($arguments):
    rows = len(probs)
    out = torch.empty($shape, dtype=torch.int64, device=probs.device)
    if rows:
        uniform = torch.rand(rows, device=probs.device)
        sample[(rows,)](
            probs, uniform, $top_k, $top_p, out, N=$width, BLOCK=$block, HAS_K=$has_k, HAS_P=$has_p,
            num_warps=$warps,
        )
    return out
"""
