"""The gradient of an embedding table in a fixed order: each table row adds its own tokens up, and is written once.

In the first kernel every program owns a span of table rows. It reads all indices, counts those of earlier rows and
packs those of its own; then it counts what each of its rows has, and deals the tokens out: in the order of their
rows, and of their places within a row, without an atomic operation or a look at another program's work. In the
second kernel each table row adds its tokens up, a few at a time.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import POLICIES
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

BODY = """
import torch
import triton
import triton.language as tl


@triton.jit
def deal(
    index, step, packed, order, start, t, rows, SPAN: tl.constexpr, CHUNK: tl.constexpr, LANES: tl.constexpr
):
    low = tl.program_id(0) * SPAN
    room = packed + tl.program_id(0).to(tl.int64) * t
    before = 0
    held = 0
    for begin in range(0, t, CHUNK):
        token = begin + tl.arange(0, CHUNK)
        row = tl.load(index + token * step, mask=token < t, other=2147483647).to(tl.int32)
        before += tl.sum((row < low).to(tl.int32), 0)
        mine = ((row >= low) & (row < low + SPAN)).to(tl.int32)
        place = held + tl.cumsum(mine, 0) - 1
        tl.store(room + place, (row - low) * 65536 + token, mask=mine > 0)
        held += tl.sum(mine, 0)
    tl.debug_barrier()
    line = tl.arange(0, SPAN)
    count = tl.zeros((SPAN,), tl.int32)
    for begin in range(0, held, LANES):
        one = begin + tl.arange(0, LANES)
        key = tl.load(room + one, mask=one < held, other=-1, cache_modifier=".cg")
        count += tl.sum((key[None, :] >> 16 == line[:, None]).to(tl.int32), 1)
    place = before + tl.cumsum(count, 0) - count
    tl.store(start + low + line, place, mask=low + line < rows)
    if low + SPAN >= rows:
        tl.store(start + rows, t)
    for begin in range(0, held, LANES):
        one = begin + tl.arange(0, LANES)
        key = tl.load(room + one, mask=one < held, other=-1, cache_modifier=".cg")
        mine = (key[None, :] >> 16 == line[:, None]).to(tl.int32)
        at = place[:, None] + tl.cumsum(mine, 1) - 1
        tl.store(order + at, (key & 65535)[None, :] + 0 * at, mask=mine > 0)
        place += tl.sum(mine, 1)


@triton.jit
def gather(gradient, order, start, out, d, g_row, LINES: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    lost = tl.zeros((BLOCK,), tl.float32)  # by rounding (Kahan 1965): a common token has thousands of summands
    end = tl.load(start + row + 1)
    for begin in range(tl.load(start + row), end, LINES):
        line = begin + tl.arange(0, LINES)
        token = tl.load(order + line, mask=line < end, other=0).to(tl.int64)[:, None]
        known = (line < end)[:, None] & (column < d)[None, :]
        found = tl.load(gradient + token * g_row + column[None, :], mask=known, other=0.0$load)
        v = tl.sum(found.to(tl.float32), 0)
        whole = total + (v - lost)
        rest = (whole - total) - (v - lost)
        lost = tl.where(rest == rest, rest, 0.0)
        total = whole
    tl.store(out + row.to(tl.int64) * d + column, total.to(out.dtype.element_ty), mask=column < d$store)


def entry(gradient, index, rows):
    t, d = gradient.shape
    out = torch.empty((rows, d), dtype=gradient.dtype, device=gradient.device)
    span = max($span, triton.next_power_of_2(rows * t >> 24))  # each program has room for all tokens: 64 MiB
    programs = triton.cdiv(rows, span)
    packed = torch.empty((programs, t), dtype=torch.int32, device=gradient.device)
    order = torch.empty((t,), dtype=torch.int32, device=gradient.device)
    start = torch.empty((rows + 1,), dtype=torch.int32, device=gradient.device)
    deal[(programs,)](
        index, index.stride(0), packed, order, start, t, rows, SPAN=span,
        CHUNK=min($chunk, max(32, triton.next_power_of_2(t))), LANES=max(1, 8192 // span), num_warps=$dealers,
    )
    block = min($block, triton.next_power_of_2(d))
    gather[(rows, triton.cdiv(d, block))](
        gradient, order, start, out, d, gradient.stride(0), LINES=4, BLOCK=block, num_warps=$warps
    )
    return out
"""


class EmbeddingGradient:
    name = "embedding_gradient"
    problems = ("embedding_gradient",)

    def space(self, problem: str, case: Case) -> Space:
        return Space.of(
            lambda c: 2 <= int(c["block"]) / (32 * int(c["warps"])) <= 32,
            span=(16, 32, 64, 128, 256),
            chunk=(4096, 8192, 16384),
            dealers=(8, 16, 32),
            block=(1024, 2048, 4096),
            warps=(2, 4, 8),
            load=POLICIES,
            store=POLICIES,
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        return render(problem, BODY, config, keys={"bounds": "t 1..65536, d 1..65536"}, like=case)
