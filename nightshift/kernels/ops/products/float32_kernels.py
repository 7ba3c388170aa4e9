"""Products of float32 matrices as exact as torch's own, for the families whose 16-bit kernels are another matter.

torch multiplies float32 without rounding factors to TF32. `ieee` does the same on the ordinary units; `tf32x3`
splits each factor in two on the tensor cores. Every block of the depth is added up by itself and then to the total:
one long sum in float32 loses bits that cuBLAS, which splits the depth, does not lose. The addition is written as an
fma, because Triton would draw a plain one into the product.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.space import Space

HEAD = """
import torch
import triton
import triton.language as tl


@triton.jit
def place(number, tiles_m, tiles_n, GROUP: tl.constexpr):
    first = number // (GROUP * tiles_n) * GROUP
    high = min(tiles_m - first, GROUP)
    return first + number % (GROUP * tiles_n) % high, number % (GROUP * tiles_n) // high


@triton.jit
def product(
    a, b, c, m, n, k, a_row, a_column, b_row, b_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, FULL: tl.constexpr,
):
    at_m, at_n = place(tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN), GROUP)
    i = at_m * BM + tl.arange(0, BM)
    j = at_n * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    left = a + (i % m).to(tl.int64)[:, None] * a_row + depth[None, :] * a_column
    right = b + depth.to(tl.int64)[:, None] * b_row + (j % n).to(tl.int64)[None, :] * b_column
    total = tl.zeros((BM, BN), tl.float32)
    one = tl.full((BM, BN), 1.0, tl.float32)
    for start in range(0, k, BK):
        if FULL:
            x, y = tl.load(left), tl.load(right)
        else:
            x = tl.load(left, mask=depth[None, :] < k - start, other=0.0)
            y = tl.load(right, mask=depth[:, None] < k - start, other=0.0)
        total = tl.fma(tl.dot(x, y, input_precision="$way"), one, total)
        left += BK * a_column
        right += BK * b_row
    out = c + i.to(tl.int64)[:, None] * n + j[None, :]
    tl.store(out, total, mask=(i[:, None] < m) & (j[None, :] < n))

"""

MATMUL = (
    HEAD
    + """
def entry(a, b):
$turned    m, k = a.shape
    n = b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    if m and n:
        product[(triton.cdiv(m, $bm) * triton.cdiv(n, $bn),)](
            a, b, c, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1),
            BM=$bm, BN=$bn, BK=$bk, GROUP=$group, FULL=k % $bk == 0, num_warps=$warps, num_stages=$stages,
        )
    return c
"""
)

MLP = (
    HEAD
    + """
@triton.jit
def gated(
    x, gate, up, out, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):
    at_m, at_n = place(tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN), GROUP)
    i = at_m * BM + tl.arange(0, BM)
    j = at_n * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    left = (i % m).to(tl.int64)[:, None] * k + depth[None, :]
    right = (j % n).to(tl.int64)[None, :] * k + depth[:, None]
    g = tl.zeros((BM, BN), tl.float32)
    u = tl.zeros((BM, BN), tl.float32)
    one = tl.full((BM, BN), 1.0, tl.float32)
    for start in range(0, k, BK):
        a = tl.load(x + left, mask=depth[None, :] < k - start, other=0.0)
        b = tl.load(gate + right, mask=depth[:, None] < k - start, other=0.0)
        g = tl.fma(tl.dot(a, b, input_precision="$way"), one, g)
        b = tl.load(up + right, mask=depth[:, None] < k - start, other=0.0)
        u = tl.fma(tl.dot(a, b, input_precision="$way"), one, u)
        left += BK
        right += BK
    y = g / (1.0 + tl.exp(-g)) * u
    tl.store(out + i.to(tl.int64)[:, None] * n + j[None, :], y, mask=(i[:, None] < m) & (j[None, :] < n))


def entry(x, gate, up, down):
    m, d = x.shape
    f = gate.shape[0]
    hidden = torch.empty((m, f), dtype=x.dtype, device=x.device)
    out = torch.empty((m, d), dtype=x.dtype, device=x.device)
    if m:
        gated[(triton.cdiv(m, $bm) * triton.cdiv(f, $bn),)](
            x, gate, up, hidden, m, f, d, BM=$bm, BN=$bn, BK=$bk, GROUP=$group, num_warps=$warps,
            num_stages=$stages,
        )
        product[(triton.cdiv(m, $bm) * triton.cdiv(d, $bn),)](
            hidden, down, out, m, d, f, f, 1, 1, f,
            BM=$bm, BN=$bn, BK=$bk, GROUP=$group, FULL=f % $bk == 0, num_warps=$warps, num_stages=$stages,
        )
    return out
"""
)


def space(products: int = 1) -> Space:
    """For the ordinary units tiles are small: Triton writes their products out. products: held at a time."""

    def admits(config: Config) -> bool:
        bm, bn, bk, stages, warps = (int(config[k]) for k in ("bm", "bn", "bk", "stages", "warps"))
        held, cores = products * bm * bn / (32 * warps), config["way"] == "tf32x3"
        room = stages * bk * (bm + products * bn) * 4 <= 200 << 10
        return room and 8 <= held <= 64 and (bm >= 64 and bn >= 64 if cores else bk <= 32)

    return Space.of(
        admits,
        way=("ieee", "tf32x3"),
        bm=(32, 64, 128),
        bn=(32, 64, 128),
        bk=(16, 32, 64),
        stages=(2, 3, 4),
        warps=(4, 8),
        group=(4, 8),
    )
