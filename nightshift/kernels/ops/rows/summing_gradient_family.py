"""Gradients of RMSNorm and cross-entropy, each in one pass over its inputs.

RMSNorm's weight gradient is a sum over rows: every program keeps its part in registers while it walks its rows,
and a second kernel adds the parts in a fixed order, so the result is the same every time. In
`rmsnorm_cast_backward` the residual's gradient is added before the store, and a second, narrow store follows.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import POLICIES, SUMMING_HOST, row_bounds
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import HINTS, render
from nightshift.kernels.problem import Case

RMSNORM = (
    """
import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_gradient(
    gradient, x, weight,$residual out,$narrow part, m, n, eps, g_row, x_row,$residual_row
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):
    column = tl.arange(0, BLOCK)[None, :]
    w = tl.load(weight + column, mask=column < n, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for turn in tl.range(tl.program_id(0), tl.cdiv(m, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (turn * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < m) & (column < n)
        v = tl.load(x + row * x_row + column, mask=inside, other=0.0$load).to(tl.float32)
        g = tl.load(gradient + row * g_row + column, mask=inside, other=0.0$load)
        g = g.to(tl.float32)
        scale = tl.rsqrt((tl.sum(v * v, 1) / n + eps).to(tl.float32))[:, None]
        normal = v * scale
        gw = g * w
        inner = tl.sum(gw * normal, 1)[:, None] / n
        y = scale * (gw - normal * inner)$add
        tl.store(out + row * n + column, y.to(out.dtype.element_ty), mask=inside$store)$copy
        total += g * normal
    tl.store(part + tl.program_id(0) * n + column, tl.sum(total, 0)[None, :], mask=column < n)


@triton.jit
def add_parts(part, out, count, n, LINES: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((LINES, BLOCK), tl.float32)
    for start in range(0, count, LINES):
        line = start + tl.arange(0, LINES)[:, None]
        total += tl.load(part + line * n + column, mask=(line < count) & (column < n), other=0.0)
    y = tl.sum(total, 0)[None, :]
    tl.store(out + column, y.to(out.dtype.element_ty), mask=column < n)


def entry(gradient, x, weight,$residual eps):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)$made
    summed = torch.empty((n,), dtype=weight.dtype, device=x.device)
    units = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
    """
    + SUMMING_HOST
    + """
    part = torch.empty((programs, n), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(n)
    deep = $rows * block * (x.element_size() + gradient.element_size()) * $stages <= 160 << 10
    rmsnorm_gradient[(programs,)](
        gradient, x, weight,$residual out,$narrow part, m, n, eps, gradient.stride(0), x.stride(0),$stride
        ROWS=$rows, BLOCK=block, STAGES=$stages if deep else 1, num_warps=$warps,
    )
    add_parts[(triton.cdiv(n, 32),)](part, summed, programs, n, LINES=64, BLOCK=32, num_warps=4)
    return out,$narrow summed
"""
)

RESIDUAL = {
    "residual": " residual,",
    "residual_row": " r_row,",
    "narrow": " narrow,",
    "made": "\n    narrow = torch.empty((m, n), dtype=gradient.dtype, device=x.device)",
    "stride": " residual.stride(0),",
    "add": "\n        y += tl.load(residual + row * r_row + column, mask=inside, other=0.0{load})",
    "copy": "\n        tl.store(narrow + row * n + column, y.to(narrow.dtype.element_ty), mask=inside)",
}
"""What RMSNORM has more where a residual's gradient is added. The narrow store is kept in L2 where it fits: the
matrix product reads it next."""

LOSS = """
import torch
import triton
import triton.language as tl


@triton.jit
def loss_gradient(
    gradient, logits, target, out, v, x_row, g_step, t_step,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, HELD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * x_row
    g = tl.load(gradient + row * g_step).to(tl.float32)
    hit = tl.load(target + row * t_step)
    if HELD:  # the whole row in registers
        at = tl.arange(0, BLOCK)
        x = tl.load(base + at, mask=at < v, other=-float("inf")$load).to(tl.float32)
        e = tl.exp(x - tl.max(x, 0))
        y = (e * (1.0 / tl.sum(e, 0)) - tl.where(at == hit, 1.0, 0.0)) * g
        tl.store(out + row * v + at, y.to(out.dtype.element_ty), mask=at < v$store)
        return
    high = tl.full((BLOCK,), -3.0e38, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, v, BLOCK, num_stages=STAGES):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(base + at, mask=at < v, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
        peak = tl.maximum(high, x)
        total = total * tl.exp(high - peak) + tl.exp(x - peak)
        high = peak
    peak = tl.max(high, 0)
    rest = 1.0 / tl.sum(total * tl.exp(high - peak), 0)
    for start in tl.range(0, v, BLOCK, num_stages=STAGES):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(base + at, mask=at < v, other=-float("inf")$load).to(tl.float32)
        y = (tl.exp(x - peak) * rest - tl.where(at == hit, 1.0, 0.0)) * g
        tl.store(out + row * v + at, y.to(out.dtype.element_ty), mask=at < v$store)


def entry(gradient, logits, target):
    m, v = logits.shape
    out = torch.empty((m, v), dtype=logits.dtype, device=logits.device)
    if m:
        loss_gradient[(m,)](
            gradient, logits, target, out, v, logits.stride(0), gradient.stride(0), target.stride(0),
            BLOCK=min($block, triton.next_power_of_2(v)), STAGES=$stages, HELD=$block >= v, num_warps=$warps,
        )
    return out
"""


class Backward:
    name = "backward"
    problems = (
        "rmsnorm_backward", "rmsnorm_cast_backward", "cross_entropy_backward", "cross_entropy_cast_backward",
    )  # fmt: skip

    def space(self, problem: str, case: Case) -> Space:
        if not problem.startswith("rmsnorm"):
            return Space.of(
                lambda c: 4 <= int(c["block"]) / (32 * int(c["warps"])) <= 64,
                block=(512, 1024, 2048, 4096, 8192),
                warps=(1, 2, 4, 8, 16),
                stages=(1, 2, 3),
                load=POLICIES,
                store=POLICIES,
            )
        width = 1 << max(0, case["n"] - 1).bit_length()

        def admits(config: Config) -> bool:
            held = int(config["rows"]) * width / (32 * int(config["warps"]))
            # columns of a thread: of each the row's values and the weight's running sum
            return 1 <= held <= 64

        return Space.of(
            admits,
            rows=(1, 2, 4),
            warps=(1, 2, 4, 8, 16),
            waves=(1, 2, 4, 8),
            stages=(1, 2, 3),
            load=POLICIES,
            store=POLICIES,
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        if not problem.startswith("rmsnorm"):
            # the logits are walked in chunks, so a row's width is no matter of registers
            return render(problem, LOSS, config, like=case, keys={"bounds": "v 2..1048576"})
        cast, load = problem == "rmsnorm_cast_backward", HINTS[str(config["load"])]
        more = {key: text.replace("{load}", load) if cast else "" for key, text in RESIDUAL.items()}
        # bytes in flight for each column, at most: the gradient and x, and with a cast the residual's gradient
        bounds = f"m 1..16777216, {row_bounds(config, case, 10 if cast else 8, 16384)}"
        return render(problem, RMSNORM, {**config, **more}, like=case, keys={"bounds": bounds})
