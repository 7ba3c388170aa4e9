# nightshift candidate
# mypy: ignore-errors
# problem: pattern_check
# language: triton
# kind: own_kernel
# determinism: bitwise
# dtypes: int32
# layouts: contiguous
"""Memory that holds a pattern: how many words of each block differ from what was written there."""

import torch
import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def word(at, seed):
    v = (at * 2654435761 + seed * 40503) & 0xFFFFFFFF
    return (v ^ (v >> 15)).to(tl.int32)


@triton.jit(do_not_specialize=["seed"])
def pattern_fill(x, count, seed, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    tl.store(x + at, word(at, seed.to(tl.int64)), mask=at < count)


@triton.jit
def pattern_check(x, wrong, count, seed_at, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    seed = tl.load(seed_at).to(tl.int64)
    inside = at < count
    differs = (tl.load(x + at, mask=inside, other=0) != word(at, seed)) & inside
    tl.store(wrong + tl.program_id(0), tl.sum(differs.to(tl.int32), 0))


def entry(x, seed):
    count = x.numel()
    wrong = torch.empty((triton.cdiv(count, BLOCK),), dtype=torch.int32, device=x.device)
    if count:
        pattern_check[(wrong.numel(),)](x, wrong, count, seed, SIZE=BLOCK, num_warps=8)
    return wrong
