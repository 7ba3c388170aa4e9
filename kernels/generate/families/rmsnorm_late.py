"""Root-mean-square normalisation whose weights are asked for last and kept in L2.

In `rmsnorm` a program holds its weights in registers beside its rows from the start. A row's weights are as many
bytes as the row, and every program reads them: here they come after the sum, when the rows' own loads have left the
queue, and with a wish to stay in L2, where the next program finds them. It costs a wait for L2 at the end of each
tile and frees the registers for more rows in flight.
"""

from __future__ import annotations

from kernels.generate.base import Config
from kernels.generate.rows import KEPT, MASKS, POLICIES
from kernels.generate.space import Space
from kernels.generate.template import render
from kernels.problem import Case

SOURCE = """
import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_late(
    x, weight, out, m, n, eps, x_row, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr
):
    column = tl.arange(0, BLOCK)[None, :]
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    if True:
        $masks
    known = tl.full((1, BLOCK), True, tl.int1) if EVEN else column < n
    v = tl.load(x + row * x_row + column, mask=inside, other=0.0$load).to(tl.float32)
    scale = tl.rsqrt((tl.sum(v * v, 1) / n + eps).to(tl.float32))
    w = tl.load(weight + column, mask=known, other=0.0, eviction_policy="evict_last").to(tl.float32)
    tl.store(out + row * n + column, (v * scale[:, None] * w).to(out.dtype.element_ty), mask=inside$store)


def entry(x, weight, eps):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        even = m % $rows == 0 and n == triton.next_power_of_2(n)
        rmsnorm_late[(triton.cdiv(m, $rows),)](
            x, weight, out, m, n, eps, x.stride(0), ROWS=$rows, BLOCK=triton.next_power_of_2(n), EVEN=even,
            num_warps=$warps,
        )
    return out
"""


class RmsNormLate:
    name = "rmsnorm_late"
    problems = ("rmsnorm",)

    def space(self, problem: str, case: Case) -> Space:
        width = 1 << max(0, case["n"] - 1).bit_length()

        def admits(config: Config) -> bool:
            return 4 <= int(config["rows"]) * width / (32 * int(config["warps"])) <= 64

        return Space.of(admits, rows=(1, 2, 4, 8), warps=(1, 2, 4, 8, 16, 32), load=POLICIES, store=KEPT)

    def source(self, problem: str, case: Case, config: Config) -> str:
        values = {**config, "masks": MASKS}
        return render(problem, SOURCE, values, keys={"bounds": "n 1..32768"}, like=case)
