"""SwiGLU, its gradient and GEGLU over contiguous tensors as one long vector."""

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
def gated(gate, up, out, count, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * (BLOCK * $steps)
    for step in tl.static_range($steps):
        at = first + step * BLOCK + tl.arange(0, BLOCK)
        g = tl.load(gate + at, mask=at < count, other=0.0$load).to(tl.float32)
        u = tl.load(up + at, mask=at < count, other=0.0$load).to(tl.float32)
        z = $inner
        y = g / (1.0 + tl.exp(-z)) * u
        tl.store(out + at, y.to(out.dtype.element_ty), mask=at < count$store)


def entry(gate, up):
    out = torch.empty_like(gate)
    count = gate.numel()
    if count:
        gated[(triton.cdiv(count, $block * $steps),)](gate, up, out, count, BLOCK=$block, num_warps=$warps)
    return out
"""
BACKWARD = """
import torch
import triton
import triton.language as tl


@triton.jit
def gated_gradient(gradient, gate, up, to_gate, to_up, count, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * (BLOCK * $steps)
    for step in tl.static_range($steps):
        at = first + step * BLOCK + tl.arange(0, BLOCK)
        d = tl.load(gradient + at, mask=at < count, other=0.0$load).to(tl.float32)
        g = tl.load(gate + at, mask=at < count, other=0.0$load).to(tl.float32)
        u = tl.load(up + at, mask=at < count, other=0.0$load).to(tl.float32)
        s = 1.0 / (1.0 + tl.exp(-g))
        y = d * u * s * (1.0 + g * (1.0 - s))
        tl.store(to_gate + at, y.to(to_gate.dtype.element_ty), mask=at < count$store)
        tl.store(to_up + at, (d * g * s).to(to_up.dtype.element_ty), mask=at < count$store)


def entry(gradient, gate, up):
    to_gate, to_up = torch.empty_like(gate), torch.empty_like(up)
    count = gate.numel()
    if count:
        gated_gradient[(triton.cdiv(count, $block * $steps),)](
            gradient, gate, up, to_gate, to_up, count, BLOCK=$block, num_warps=$warps
        )
    return to_gate, to_up
"""
INNER = {"swiglu": "g", "geglu": "1.5957691216057308 * (g + 0.044715 * g * g * g)"}


class Gated:
    name = "gated"
    problems = ("swiglu", "geglu", "swiglu_backward")

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
        if problem not in INNER:
            # one long vector: an element's number is its address, which holds of contiguous tensors alone
            return render(problem, BACKWARD, config, layouts="contiguous offset", like=case)
        return render(problem, BODY, {**config, "inner": INNER[problem]}, layouts="contiguous offset", like=case)
