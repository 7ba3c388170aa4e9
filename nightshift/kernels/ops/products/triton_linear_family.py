"""Linear layers with a bias, with a pointwise function behind it or none: a tile is biased, bent and written once.

The weight lies as nn.Linear keeps it, so its tiles are read along the depth, as the left ones are. float32 is added
up block by block (see `float32_products`).
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

BODY = """
import torch
import triton
import triton.language as tl


@triton.jit
def linear(
    x, weight, bias, out, m, n, k, x_row, w_row,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, FULL: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    number = tl.program_id(0)
    first = number // (GROUP * tiles_n) * GROUP
    high = min(tiles_m - first, GROUP)
    i = (first + number % (GROUP * tiles_n) % high) * BM + tl.arange(0, BM)
    j = number % (GROUP * tiles_n) // high * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    left = x + (i % m).to(tl.int64)[:, None] * x_row + depth[None, :]
    right = weight + (j % n).to(tl.int64)[None, :] * w_row + depth[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    one = tl.full((BM, BN), 1.0, tl.float32)
    for start in range(0, k, BK):
        if FULL:
            a, b = tl.load(left), tl.load(right)
        else:
            a = tl.load(left, mask=depth[None, :] < k - start, other=0.0)
            b = tl.load(right, mask=depth[:, None] < k - start, other=0.0)
        total = $add
        left += BK
        right += BK
    v = total + tl.load(bias + j, mask=j < n, other=0.0).to(tl.float32)[None, :]
    y = $act
    place = out + i.to(tl.int64)[:, None] * n + j[None, :]
    tl.store(place, y.to(out.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


def entry(x, weight, bias):
    m, k = x.shape
    n = weight.shape[0]
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        linear[(triton.cdiv(m, $bm) * triton.cdiv(n, $bn),)](
            x, weight, bias, out, m, n, k, x.stride(0), weight.stride(0), BM=$bm, BN=$bn, BK=$bk, GROUP=$group,
            FULL=k % $bk == 0, num_warps=$warps, num_stages=$stages,
        )
    return out
"""
NARROW = "tl.dot(a, b, total)"
WIDE = 'tl.fma(tl.dot(a, b, input_precision="ieee"), one, total)'
ACTS = {
    "linear_bias": "v",
    "linear_gelu": "0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))",
    "linear_gelu_tanh": "v / (1.0 + tl.exp(-1.5957691216057308 * (v + 0.044715 * v * v * v)))",
    "linear_relu": "tl.where(v < 0.0, 0.0, v)",
}


class Linear:
    name = "linear"
    problems = tuple(ACTS)

    def space(self, problem: str, case: Case) -> Space:
        wide = case.dtype == "float32"

        def admits(config: Config) -> bool:
            bm, bn, bk, stages, warps = (int(config[k]) for k in ("bm", "bn", "bk", "stages", "warps"))
            held = bm * bn / (32 * warps)
            room = stages * bk * (bm + bn) * case.element_bytes <= 200 << 10
            # float32 products run on the ordinary units: smaller tiles, and short blocks of the depth, each
            # summed by itself
            return room and (8 <= held <= 64 and bk <= 32 if wide else 32 <= held <= 128)

        return Space.of(
            admits,
            bm=(32, 64, 128, 256),
            bn=(32, 64, 128, 256),
            bk=(16, 32, 64, 128),
            stages=(2, 3, 4, 5),
            warps=(4, 8),
            group=(4, 8, 16),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        values = {**config, "act": ACTS[problem], "add": WIDE if case.dtype == "float32" else NARROW}
        return render(problem, BODY, values, layouts="contiguous padded offset", like=case)
