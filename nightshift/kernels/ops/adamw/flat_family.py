"""Long vectors: an AdamW step in place (with a 16-bit copy, or without, or of many tensors in one launch), and
dropout with a residual addition."""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import POLICIES
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.ops.adamw.problem import CHUNK
from nightshift.kernels.problem import Case

ADAMW = """
import triton
import triton.language as tl


@triton.jit
def step_kernel(
    parameter, gradient, first, second,$narrow n, rest1, beta2, rest2, eps, shrink, scale, root,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * (BLOCK * $steps)
    for turn in tl.static_range($steps):
        i = start + turn * BLOCK + tl.arange(0, BLOCK)
        inside = i < n
        p = tl.load(parameter + i, mask=inside, other=0.0$load).to(tl.float32)
        g = tl.load(gradient + i, mask=inside, other=0.0$load).to(tl.float32)
        mean = tl.load(first + i, mask=inside, other=0.0$load).to(tl.float32)
        square = tl.load(second + i, mask=inside, other=0.0$load).to(tl.float32)
        mean = mean + (g - mean) * rest1
        square = square * beta2 + g * g * rest2
        p = p * shrink - scale * mean / (tl.sqrt(square) / root + eps)
        tl.store(parameter + i, p.to(parameter.dtype.element_ty), mask=inside$store)
        tl.store(first + i, mean.to(first.dtype.element_ty), mask=inside$store)
        tl.store(second + i, square.to(second.dtype.element_ty), mask=inside$store)$copy


def entry(parameter, gradient, first, second,$narrow rate, beta1, beta2, eps, decay, step):
    n = parameter.numel()
    if n:
        shrink, scale, root = 1.0 - rate * decay, rate / (1.0 - beta1**step), (1.0 - beta2**step) ** 0.5
        rest1, rest2 = 1.0 - beta1, 1.0 - beta2  # in double precision: 1 - 0.9 in float32 is off by 2 ULP
        step_kernel[(triton.cdiv(n, $block * $steps),)](
            parameter, gradient, first, second,$narrow n, rest1, beta2, rest2, eps, shrink, scale, root,
            BLOCK=$block, num_warps=$warps,
        )
"""

MANY = """
import triton
import triton.language as tl


@triton.jit
def moved(p, g, mean, square, rest1, beta2, rest2, eps, shrink, scale, root):
    mean = mean + (g - mean) * rest1
    square = square * beta2 + g * g * rest2
    return p * shrink - scale * mean / (tl.sqrt(square) / root + eps), mean, square


@triton.jit
def step_many(
    parameter, gradient, first, second, narrow, table, rest1, beta2, rest2, eps, shrink, scale, root,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):
    row = table + tl.program_id(0).to(tl.int64) * 6
    parameter += tl.multiple_of(tl.load(row), 8)
    gradient += tl.multiple_of(tl.load(row + 1), 8)
    first += tl.multiple_of(tl.load(row + 2), 8)
    second += tl.multiple_of(tl.load(row + 3), 8)
    to_copy = tl.load(row + 4)
    narrow += tl.multiple_of(tl.maximum(to_copy, 0), 8)
    count = tl.load(row + 5).to(tl.int32)
    if count == CHUNK:
        for start in range(0, CHUNK, BLOCK):
            i = start + tl.arange(0, BLOCK)
            p, g = tl.load(parameter + i$load), tl.load(gradient + i$load)
            mean, square = tl.load(first + i$load), tl.load(second + i$load)
            p, mean, square = moved(p, g, mean, square, rest1, beta2, rest2, eps, shrink, scale, root)
            tl.store(parameter + i, p$store)
            tl.store(first + i, mean$store)
            tl.store(second + i, square$store)
            if to_copy >= 0:
                tl.store(narrow + i, p.to(narrow.dtype.element_ty))
    else:
        for begin in range(0, count, BLOCK):
            i = begin + tl.arange(0, BLOCK)
            inside = i < count
            p, g = tl.load(parameter + i, mask=inside, other=0.0), tl.load(gradient + i, mask=inside, other=0.0)
            mean, square = tl.load(first + i, mask=inside, other=0.0), tl.load(second + i, mask=inside, other=0.0)
            p, mean, square = moved(p, g, mean, square, rest1, beta2, rest2, eps, shrink, scale, root)
            tl.store(parameter + i, p, mask=inside)
            tl.store(first + i, mean, mask=inside)
            tl.store(second + i, square, mask=inside)
            if to_copy >= 0:
                tl.store(narrow + i, p.to(narrow.dtype.element_ty), mask=inside)


def entry(parameter, gradient, first, second, narrow, table, rate, beta1, beta2, eps, decay, step):
    rows = table.shape[0]
    if rows:
        shrink, scale, root = 1.0 - rate * decay, rate / (1.0 - beta1**step), (1.0 - beta2**step) ** 0.5
        rest1, rest2 = 1.0 - beta1, 1.0 - beta2
        step_many[(rows,)](
            parameter, gradient, first, second, narrow, table, rest1, beta2, rest2, eps, shrink, scale, root,
            CHUNK=$chunk, BLOCK=$block, num_warps=$warps,
        )
"""

COPY = "\n        tl.store(narrow + i, p.to(narrow.dtype.element_ty), mask=inside)"
"""Kept in L2 where it fits: the next forward pass reads it."""

DROPOUT = """
import torch
import triton
import triton.language as tl


@triton.jit
def dropout_add(x, residual, out, count, p, rest, seed, BLOCK: tl.constexpr):
    start = tl.program_id(0) * (BLOCK * $steps)
    for turn in tl.static_range($steps):
        i = start + turn * BLOCK + tl.arange(0, BLOCK)
        inside = i < count
        v = tl.load(x + i, mask=inside, other=0.0$load).to(tl.float32)
        r = tl.load(residual + i, mask=inside, other=0.0$load).to(tl.float32)
        y = tl.where(tl.rand(seed, i) > p, v / rest, 0.0) + r
        tl.store(out + i, y.to(out.dtype.element_ty), mask=inside$store)


def entry(x, residual, p, seed):
    out = torch.empty_like(x)
    count = x.numel()
    if count:
        dropout_add[(triton.cdiv(count, $block * $steps),)](
            x, residual, out, count, p, 1.0 - p, seed, BLOCK=$block, num_warps=$warps
        )
    return out
"""


class Flat:
    name = "flat"
    problems = ("adamw", "adamw_cast", "adamw_many", "dropout_add")

    def space(self, problem: str, case: Case) -> Space:
        def admits(config: Config) -> bool:
            block, warps, steps = (int(config[k]) for k in ("block", "warps", "steps"))
            # elements of a thread: of each, four tensors are in registers at once, and there are 255 of those
            return 2 <= block / (32 * warps) <= 16 and steps * block / (32 * warps) <= 32

        return Space.of(
            admits,
            block=(256, 512, 1024, 2048, 4096),
            warps=(1, 2, 4, 8),
            steps=(1, 2, 4),
            load=POLICIES,
            store=POLICIES,
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        if problem == "adamw_many":
            # a chunk's elements are the loop here: `steps` widens the block instead
            values = {**config, "block": int(config["block"]) * int(config["steps"]), "chunk": CHUNK}
            keys = {"mutates": "0 2 3 4"}
            return render(problem, MANY, values, kind="in_place", layouts="contiguous", keys=keys, like=case)
        if problem != "dropout_add":
            copies = problem == "adamw_cast"
            keys = {"mutates": "0 2 3 4" if copies else "0 2 3"}
            values = {**config, "narrow": " narrow," if copies else "", "copy": COPY if copies else ""}
            return render(
                problem, ADAMW, values, kind="in_place", layouts="contiguous offset", keys=keys, like=case
            )
        # the generator's counter is the element's number in 32 bits: m · n stays below 2^31
        keys = {"bounds": "m 0..131072, n 1..8192"}
        return render(problem, DROPOUT, config, layouts="contiguous offset", keys=keys, like=case)
