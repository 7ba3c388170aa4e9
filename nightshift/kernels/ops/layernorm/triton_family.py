"""Layer normalisation with weight and bias: whole rows in registers, the variance from centred values."""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import row_bounds, row_space, row_values
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

BODY = """
import torch
import triton
import triton.language as tl


@triton.jit
def layernorm(
    x, weight, bias, out, m, n, eps, x_row,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
):
    column = tl.arange(0, BLOCK)[None, :]
    $before
    $walk
        row = (turn * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        $masks
        v = tl.load(x + row * x_row + column, mask=inside, other=0.0$load).to(tl.float32)
        $after
        centred = tl.where(inside, v - (tl.sum(v, 1) / n)[:, None], 0.0)
        scale = tl.rsqrt((tl.sum(centred * centred, 1) / n + eps).to(tl.float32))
        y = centred * scale[:, None] * w + b
        tl.store(out + row * n + column, y.to(out.dtype.element_ty), mask=inside$store)


def entry(x, weight, bias, eps):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        $grid
        layernorm[(programs,)](
            x, weight, bias, out, m, n, eps, x.stride(0), ROWS=$rows, BLOCK=triton.next_power_of_2(n),
            STAGES=$stages, EVEN=even, num_warps=$warps,
        )
    return out
"""


class LayerNorm:
    name = "layernorm"
    problems = ("layernorm",)

    def space(self, problem: str, case: Case) -> Space:
        return row_space(case)

    def source(self, problem: str, case: Case, config: Config) -> str:
        return render(
            problem,
            BODY,
            row_values(config, "w:weight b:bias"),
            keys={"bounds": row_bounds(config, case, case.element_bytes)},
            like=case,
        )
