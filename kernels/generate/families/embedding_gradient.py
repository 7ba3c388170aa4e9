"""The gradient of an embedding table in a fixed order: each table row walks the chain of the tokens that name it.

The first kernel finds, for every token, the next one with the same index, and for every row its first token.
Reading all later indices for each token is quadratic, but 16 k indices lie in L1, and a pair costs three integer
operations: minima are kept by lane and combined once. The second kernel writes each table row once, in the order of
its tokens, so the sum is the same every time.
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
def link(index, step, first, following, t, LINES: tl.constexpr, CHUNK: tl.constexpr):
    token = tl.program_id(0) * LINES + tl.arange(0, LINES)
    mine = tl.load(index + token * step, mask=token < t, other=-1).to(tl.int32)
    begin = tl.program_id(0) * LINES // CHUNK * CHUNK
    other = begin + tl.arange(0, CHUNK)
    theirs = tl.load(index + other * step, mask=other < t, other=-2).to(tl.int32)
    later = (mine[:, None] == theirs[None, :]) & (other[None, :] > token[:, None])
    near = tl.where(later, other[None, :], 2147483647)
    for start in range(begin + CHUNK, t, CHUNK):
        other = start + tl.arange(0, CHUNK)
        theirs = tl.load(index + other * step, mask=other < t, other=-2).to(tl.int32)
        near = tl.minimum(near, tl.where(mine[:, None] == theirs[None, :], other[None, :], 2147483647))
    after = tl.min(near, 1)
    tl.store(following + token, tl.where(after == 2147483647, -1, after), mask=token < t)
    tl.atomic_max(first + mine, t - token, mask=token < t, sem="relaxed")  # 0: no token names the row


@triton.jit
def gather(gradient, first, following, out, t, d, g_row, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    lost = tl.zeros((BLOCK,), tl.float32)  # by rounding (Kahan 1965): a common token has thousands of summands
    token = t - tl.load(first + row)
    token = tl.where(token < t, token, -1)
    while token >= 0:
        upcoming = tl.load(following + token)
        v = tl.load(gradient + token.to(tl.int64) * g_row + column, mask=column < d, other=0.0).to(tl.float32)
        whole = total + (v - lost)
        rest = (whole - total) - (v - lost)
        lost = tl.where(rest == rest, rest, 0.0)
        total = whole
        token = upcoming
    tl.store(out + row.to(tl.int64) * d + column, total.to(out.dtype.element_ty), mask=column < d)


def entry(gradient, index, rows):
    t, d = gradient.shape
    out = torch.empty((rows, d), dtype=gradient.dtype, device=gradient.device)
    first = torch.zeros((rows,), dtype=torch.int32, device=gradient.device)
    following = torch.empty((t,), dtype=torch.int32, device=gradient.device)
    link[(triton.cdiv(t, $lines),)](
        index, index.stride(0), first, following, t, LINES=$lines, CHUNK=$chunk, num_warps=4
    )
    block = min($block, triton.next_power_of_2(d))
    gather[(rows, triton.cdiv(d, block))](
        gradient, first, following, out, t, d, gradient.stride(0), BLOCK=block, num_warps=$warps
    )
    return out
"""


class EmbeddingGradient:
    name = "embedding_gradient"
    problems = ("embedding_gradient",)

    def space(self, problem: str, case: Case) -> Space:
        return Space.of(
            lambda c: 2 <= int(c["block"]) / (32 * int(c["warps"])) <= 32,
            lines=(16, 32),
            chunk=(128, 256),
            block=(256, 512, 1024, 2048, 4096),
            warps=(1, 2, 4, 8),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        return render(problem, BODY, config, keys={"bounds": "t 1..65536, d 1..65536"}, like=case)
