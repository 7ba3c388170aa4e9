"""Data movement: a flat copy, and a permutation through square tiles."""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import POLICIES
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

COPY = """
import torch
import triton
import triton.language as tl


@triton.jit
def copy(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < count$load)
    tl.store(out + at, v, mask=at < count$store)


def entry(x):
    out = torch.empty_like(x)
    if x.numel():
        copy[(triton.cdiv(x.numel(), $block),)](x, out, x.numel(), BLOCK=$block, num_warps=$warps)
    return out
"""

PERMUTE = """
import torch
import triton
import triton.language as tl


@triton.jit
def permute(x, out, m, n, x_plane, x_row, x_column, TALL: tl.constexpr, WIDE: tl.constexpr):
    plane = tl.program_id(2).to(tl.int64)
    i = (tl.program_id(1) * TALL + tl.arange(0, TALL)).to(tl.int64)
    j = (tl.program_id(0) * WIDE + tl.arange(0, WIDE)).to(tl.int64)
    inside = (i[:, None] < m) & (j[None, :] < n)
    at = x + plane * x_plane + i[:, None] * x_row + j[None, :] * x_column
    v = tl.load(at, mask=inside$load)
    turned = out + plane * m * n + j[:, None] * m + i[None, :]
    tl.store(turned, tl.trans(v), mask=tl.trans(inside)$store)


def entry(x):
    b, m, n = x.shape
    out = torch.empty((b, n, m), dtype=x.dtype, device=x.device)
    if out.numel():
        side = max(16, $block // 64)
        grid = (triton.cdiv(n, 64), triton.cdiv(m, side), b)
        permute[grid](x, out, m, n, *x.stride(), TALL=side, WIDE=64, num_warps=$warps)
    return out
"""


class Copy:
    name = "copy"
    problems = ("copy", "permute")

    def space(self, problem: str, case: Case) -> Space:
        return Space.of(
            lambda c: 4 <= int(c["block"]) / (32 * int(c["warps"])) <= 64,
            block=(1024, 2048, 4096, 8192),
            warps=(1, 2, 4, 8),
            load=POLICIES,
            store=POLICIES,
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        if problem == "copy":
            # flat: an element's number is its address, which holds of contiguous tensors alone.
            return render(problem, COPY, config, layouts="contiguous offset")
        return render(problem, PERMUTE, config, layouts="contiguous padded transposed offset")
