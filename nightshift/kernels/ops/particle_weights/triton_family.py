"""Particle weights: one pass computes the log weights and a (maximum, sum) for each program, a second normalises.

The log weights between the two passes lie in the output, most of which is still in L2.
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
def update(
    position, weight, landmark, distance, out, highs, sums, m, k, factor, BLOCK: tl.constexpr, TURNS: tl.constexpr
):
    high = -float("inf")
    total = 0.0
    for turn in tl.static_range(TURNS):
        i = (tl.program_id(0) * TURNS + turn) * BLOCK + tl.arange(0, BLOCK)
        inside = i < m
        pair = (tl.program_id(0) * TURNS + turn) * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)
        both = tl.load(position + pair, mask=pair < 2 * m, other=0.0$load)
        x, y = tl.split(tl.reshape(both, (BLOCK, 2)))
        w = tl.load(weight + i, mask=inside, other=-float("inf")$load)
        likelihood = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, k, 8):
            # sums of eight: one after the other, 64 landmarks lose twice what torch's own sum loses
            some = tl.zeros((BLOCK,), tl.float32)
            for j in range(first, tl.minimum(first + 8, k)):
                dx = x - tl.load(landmark + 2 * j)
                dy = y - tl.load(landmark + 2 * j + 1)
                miss = (tl.sqrt(dx * dx + dy * dy) - tl.load(distance + j)) * factor
                some += miss * miss
            likelihood += some
        w = w - 0.5 * likelihood
        tl.store(out + i, w, mask=inside, eviction_policy="evict_last")
        peak = tl.maximum(high, tl.max(w, 0))
        total = total * tl.exp(high - peak) + tl.sum(tl.exp(w - peak), 0)
        high = peak
    tl.store(highs + tl.program_id(0), high)
    tl.store(sums + tl.program_id(0), total)


@triton.jit
def normalise(out, highs, sums, m, parts, PARTS: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr):
    part = tl.arange(0, PARTS)
    high = tl.load(highs + part, mask=part < parts, other=-float("inf"))
    total = tl.load(sums + part, mask=part < parts, other=0.0)
    peak = tl.max(high, 0)
    shift = peak + tl.log(tl.sum(total * tl.exp(high - peak), 0))
    for turn in tl.static_range(TURNS):
        i = (tl.program_id(0) * TURNS + turn) * BLOCK + tl.arange(0, BLOCK)
        w = tl.load(out + i, mask=i < m, other=0.0)
        tl.store(out + i, w - shift, mask=i < m$store)


def entry(position, weight, landmark, distance, sigma):
    m, k = position.shape[0], distance.shape[0]
    out = torch.empty((m,), dtype=weight.dtype, device=weight.device)
    turns = max($turns, triton.cdiv(m, 4096 * $block))
    parts = triton.cdiv(m, $block * turns)
    highs = torch.empty((parts,), dtype=torch.float32, device=weight.device)
    sums = torch.empty((parts,), dtype=torch.float32, device=weight.device)
    update[(parts,)](
        position, weight, landmark, distance, out, highs, sums, m, k, 1.0 / sigma, BLOCK=$block, TURNS=turns,
        num_warps=$warps,
    )
    normalise[(triton.cdiv(m, $last * $spans),)](
        out, highs, sums, m, parts, PARTS=triton.next_power_of_2(parts), BLOCK=$last, TURNS=$spans, num_warps=8
    )
    return out
"""


class ParticleWeights:
    name = "particle_weights"
    problems = ("particle_weights",)

    def space(self, problem: str, case: Case) -> Space:
        def admits(config: Config) -> bool:
            block, warps = int(config["block"]), int(config["warps"])
            return 2 <= block / (32 * warps) <= 16

        return Space.of(
            admits,
            block=(1024, 2048, 4096),
            warps=(2, 4, 8),
            turns=(1, 2),
            last=(1024, 2048, 4096),
            spans=(2, 4, 8),
            load=POLICIES,
            store=POLICIES,
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        keys = {"bounds": "m 1..16777216, k 1..64"}
        return render(problem, BODY, config, layouts="contiguous offset", keys=keys, like=case)
