"""Cross-entropy in one pass over the logits: maximum and sum of exponentials kept by lane, rescaled once a chunk.

A chunk is `depth` vectors of `lanes` logits. Its maximum over the depth stays in a thread's registers, so a logit
costs one exponential and a lane one more for each chunk (online normaliser: Milakov and Gimelshein, arXiv
1805.02867). Lanes are combined once, at the row's end.
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

LOW: tl.constexpr = tl.constexpr(-3.0e38)


@triton.jit
def loss(
    logits, target, out, v, x_row, t_step, DEPTH: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * x_row
    hit = tl.load(base + tl.load(target + row * t_step)).to(tl.float32)
    lane = tl.arange(0, LANES)
    offset = tl.arange(0, DEPTH)[:, None] * LANES + lane[None, :]
    high = tl.full((LANES,), LOW, tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    whole = v // (DEPTH * LANES) * (DEPTH * LANES)
    for start in tl.range(0, whole, DEPTH * LANES, num_stages=STAGES):
        x = tl.load(base + start + offset$load).to(tl.float32)
        peak = tl.maximum(high, tl.max(x, 0))
        total = total * tl.exp(high - peak) + tl.sum(tl.exp(x - peak[None, :]), 0)
        high = peak
    if whole < v:
        x = tl.load(
            base + whole + offset, mask=whole + offset < v, other=-float("inf")$load
        ).to(tl.float32)
        peak = tl.maximum(high, tl.max(x, 0))
        total = total * tl.exp(high - peak) + tl.sum(tl.exp(x - peak[None, :]), 0)
        high = peak
    peak = tl.max(high, 0)
    value = tl.log(tl.sum(total * tl.exp(high - peak), 0)) + (peak - hit)
    value = tl.where(peak <= LOW, float("nan"), value)  # a row of minus infinities has no softmax
    tl.store(out + row, value.to(out.dtype.element_ty))


def entry(logits, target):
    m, v = logits.shape
    out = torch.empty((m,), dtype=$kind, device=logits.device)
    if m:
        loss[(m,)](
            logits, target, out, v, logits.stride(0), target.stride(0), DEPTH=$depth, LANES=$lanes,
            STAGES=$stages, num_warps=$warps,
        )
    return out
"""


class CrossEntropy:
    name = "cross_entropy"
    problems = ("cross_entropy", "cross_entropy_cast")

    def space(self, problem: str, case: Case) -> Space:
        def admits(config: Config) -> bool:
            depth, lanes, warps = (int(config[k]) for k in ("depth", "lanes", "warps"))
            held = lanes // (32 * warps)  # whole vectors of 16 bytes, so that the depth stays within a thread
            return held in (16 // case.element_bytes, 32 // case.element_bytes) and depth * held <= 128

        return Space.of(
            admits,
            depth=(1, 2, 4, 8, 16),
            lanes=(128, 256, 512, 1024, 2048, 4096),
            warps=(1, 2, 4, 8, 16),
            stages=(1, 2, 3, 4),
            load=POLICIES,
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        # the cast operation keeps its losses in float32, as the wide logits would have had it
        kind = "logits.dtype" if problem == "cross_entropy" else "torch.float32"
        return render(problem, BODY, {**config, "kind": kind}, like=case)
