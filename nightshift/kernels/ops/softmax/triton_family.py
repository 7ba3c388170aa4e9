"""Row softmax: a tile of whole rows in registers, read once and written once."""

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
def softmax(
    x, out, m, n, x_row, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr
):
    column = tl.arange(0, BLOCK)[None, :]
    $walk
        row = (turn * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        $masks
        v = tl.load(x + row * x_row + column, mask=inside, other=-float("inf")$load)
        v = v.to(tl.float32)
        e = tl.exp(v - tl.max(v, 1)[:, None])
        y = e * (1.0 / tl.sum(e, 1))[:, None]
        tl.store(out + row * n + column, y.to(out.dtype.element_ty), mask=inside$store)


def entry(x):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        block = triton.next_power_of_2(n)
        $grid
        softmax[(programs,)](
            x, out, m, n, x.stride(0), ROWS=$rows, BLOCK=block, STAGES=$stages,
            EVEN=even, num_warps=$warps,
        )
    return out
"""


class Softmax:
    name = "softmax"
    problems = ("softmax",)

    def space(self, problem: str, case: Case) -> Space:
        return row_space(case)

    def source(self, problem: str, case: Case, config: Config) -> str:
        return render(
            problem,
            BODY,
            row_values(config),
            keys={"bounds": row_bounds(config, case, case.element_bytes)},
            like=case,
        )
