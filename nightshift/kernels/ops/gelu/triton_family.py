"""GELU and its gradient over contiguous tensors as one long vector.

The complementary error function is one exponential of a polynomial (Chebyshev fit with a fractional error below
1.2e-7 everywhere: Press et al., Numerical Recipes in C, 2nd ed., section 6.2). erf itself costs so many
instructions that the multiprocessors, not memory, set the pace; and 1 + erf cancels where x is very negative. In
float32, where there is twice the time for each element and 1.2e-7 is too much, it is torch's own formula with erf.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import POLICIES
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

NORMAL = """
import torch
import triton
import triton.language as tl


@triton.jit
def beyond(x):
    # half the probability beyond |x|: erfc(|x| / sqrt(2)) / 2
    z = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.5 * z)
    p = 0.17087277 * t - 0.82215223
    p = p * t + 1.48851587
    p = p * t - 1.13520398
    p = p * t + 0.27886807
    p = p * t - 0.18628806
    p = p * t + 0.09678418
    p = p * t + 0.37409196
    p = p * t + 1.00002368
    p = p * t - 1.26551223
    return 0.5 * t * tl.exp(p - z * z)

"""
EXACT = """
import torch
import triton
import triton.language as tl


@triton.jit
def beyond(x):
    # half the probability beyond |x|
    return 0.5 - 0.5 * tl.erf(tl.abs(x) * 0.7071067811865476)

"""
FORWARD = """
@triton.jit
def gelu(x, out, count, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * (BLOCK * $steps)
    for step in tl.static_range($steps):
        at = first + step * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + at, mask=at < count, other=0.0$load).to(tl.float32)
        tail = beyond(v)
        y = v * tl.where(v < 0.0, tail, 1.0 - tail)
        tl.store(out + at, y.to(out.dtype.element_ty), mask=at < count$store)


def entry(x):
    out = torch.empty_like(x)
    count = x.numel()
    if count:
        gelu[(triton.cdiv(count, $block * $steps),)](x, out, count, BLOCK=$block, num_warps=$warps)
    return out
"""
BACKWARD = """
@triton.jit
def gelu_gradient(gradient, x, out, count, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * (BLOCK * $steps)
    for step in tl.static_range($steps):
        at = first + step * BLOCK + tl.arange(0, BLOCK)
        g = tl.load(gradient + at, mask=at < count, other=0.0$load).to(tl.float32)
        v = tl.load(x + at, mask=at < count, other=0.0$load).to(tl.float32)
        tail = beyond(v)
        density = 0.3989422804014327 * tl.exp(-0.5 * v * v)
        y = g * (tl.where(v < 0.0, tail, 1.0 - tail) + v * density)
        tl.store(out + at, y.to(out.dtype.element_ty), mask=at < count$store)


def entry(gradient, x):
    out = torch.empty_like(x)
    count = x.numel()
    if count:
        gelu_gradient[(triton.cdiv(count, $block * $steps),)](
            gradient, x, out, count, BLOCK=$block, num_warps=$warps
        )
    return out
"""


class Gelu:
    name = "gelu"
    problems = ("gelu", "gelu_backward")

    def space(self, problem: str, case: Case) -> Space:
        def admits(config: Config) -> bool:
            block, warps, steps = (int(config[k]) for k in ("block", "warps", "steps"))
            return 4 <= block / (32 * warps) <= 32 and steps * block / (32 * warps) <= 64

        return Space.of(
            admits,
            block=(512, 1024, 2048, 4096, 8192),
            warps=(1, 2, 4, 8, 16),
            steps=(1, 2, 4),
            load=POLICIES,
            store=POLICIES,
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        # the fit's 1.2e-7 is far below what 16 bits round away, and above what float32 does
        head, body = EXACT if case.dtype == "float32" else NORMAL, FORWARD if problem == "gelu" else BACKWARD
        return render(problem, head + body, config, layouts="contiguous offset", like=case)
