"""The gradient of an embedding table without atomics: each table row walks the chain of the tokens that name it.

The first kernel finds, for every token, the next one with the same index (and whether it is the first); reading all
indices for each token is quadratic, but 16 k indices lie in L1. The second writes every table row once, in the
order of its tokens, so the sum is the same every time.
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
def link(index, step, first, following, t, TILE: tl.constexpr, CHUNK: tl.constexpr):
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mine = tl.load(index + token * step, mask=token < t, other=-1)
    after = tl.full((TILE,), 2147483647, tl.int32)
    before = tl.zeros((TILE,), tl.int32)
    for start in range(0, t, CHUNK):
        other = start + tl.arange(0, CHUNK)
        theirs = tl.load(index + other * step, mask=other < t, other=-2)
        same = mine[:, None] == theirs[None, :]
        later = same & (other[None, :] > token[:, None])
        after = tl.minimum(after, tl.min(tl.where(later, other[None, :], 2147483647), 1))
        before = tl.maximum(before, tl.max((same & (other[None, :] < token[:, None])).to(tl.int32), 1))
    tl.store(following + token, tl.where(after == 2147483647, -1, after), mask=token < t)
    tl.store(first + mine, token + 1, mask=(token < t) & (before == 0))  # 0: no token names the row


@triton.jit
def gather(gradient, first, following, out, d, g_row, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    token = tl.load(first + row) - 1
    while token >= 0:
        upcoming = tl.load(following + token)
        total += tl.load(gradient + token.to(tl.int64) * g_row + column, mask=column < d, other=0.0).to(tl.float32)
        token = upcoming
    tl.store(out + row.to(tl.int64) * d + column, total.to(out.dtype.element_ty), mask=column < d)


def entry(gradient, index, rows):
    t, d = gradient.shape
    out = torch.empty((rows, d), dtype=gradient.dtype, device=gradient.device)
    first = torch.zeros((rows,), dtype=torch.int32, device=gradient.device)
    following = torch.empty((t,), dtype=torch.int32, device=gradient.device)
    link[(triton.cdiv(t, $tile),)](
        index, index.stride(0), first, following, t, TILE=$tile, CHUNK=$chunk, num_warps=4
    )
    block = min($block, triton.next_power_of_2(d))
    gather[(rows, triton.cdiv(d, block))](
        gradient, first, following, out, d, gradient.stride(0), BLOCK=block, num_warps=$warps
    )
    return out
"""


class EmbeddingGradient:
    name = "embedding_gradient"
    problems = ("embedding_gradient",)

    def space(self, problem: str, case: Case) -> Space:
        return Space.of(
            lambda c: 2 <= int(c["block"]) / (32 * int(c["warps"])) <= 32,
            tile=(32, 64),
            chunk=(128, 256),
            block=(256, 512, 1024, 2048, 4096),
            warps=(1, 2, 4, 8),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        return render(problem, BODY, config, keys={"bounds": "t 1..65536, d 1..65536"}, like=case)
