"""The gated feed-forward block in two kernels: both products of the first layer share their left tile and are
combined before anything is written; the second layer is a plain product with a transposed weight."""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.ops.products import float32_kernels
from nightshift.kernels.problem import Case

BODY = """
import torch
import triton
import triton.language as tl


@triton.jit
def place(number, tiles_m, tiles_n, GROUP: tl.constexpr):
    first = number // (GROUP * tiles_n) * GROUP
    high = min(tiles_m - first, GROUP)
    return first + number % (GROUP * tiles_n) % high, number % (GROUP * tiles_n) // high


@triton.jit
def gated(
    x, gate, up, out, m, n, k, programs, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    SPECIALISED: tl.constexpr, FLAT: tl.constexpr,
):
    left = tl.make_tensor_descriptor(x, shape=[m, k], strides=[k, 1], block_shape=[BM, BK])
    one = tl.make_tensor_descriptor(gate, shape=[n, k], strides=[k, 1], block_shape=[BN, BK])
    two = tl.make_tensor_descriptor(up, shape=[n, k], strides=[k, 1], block_shape=[BN, BK])
    result = tl.make_tensor_descriptor(out, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    for number in tl.range(
        tl.program_id(0), tiles_m * tiles_n, programs, flatten=FLAT, warp_specialize=SPECIALISED
    ):
        at_m, at_n = place(number, tiles_m, tiles_n, GROUP)
        g = tl.zeros((BM, BN), tl.float32)
        u = tl.zeros((BM, BN), tl.float32)
        for turn in range(tl.cdiv(k, BK)):
            a = left.load([at_m * BM, turn * BK])
            g = tl.dot(a, one.load([at_n * BN, turn * BK]).T, g)
            u = tl.dot(a, two.load([at_n * BN, turn * BK]).T, u)
        y = g / (1.0 + tl.exp(-g)) * u
        result.store([at_m * BM, at_n * BN], y.to(out.dtype.element_ty))


@triton.jit
def product(
    x, w, out, m, n, k, programs, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    SPECIALISED: tl.constexpr, FLAT: tl.constexpr, SPLIT: tl.constexpr,
):
    left = tl.make_tensor_descriptor(x, shape=[m, k], strides=[k, 1], block_shape=[BM, BK])
    right = tl.make_tensor_descriptor(w, shape=[n, k], strides=[k, 1], block_shape=[BN, BK])
    result = tl.make_tensor_descriptor(out, shape=[m, n], strides=[n, 1], block_shape=[BM, BN // SPLIT])
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    for number in tl.range(
        tl.program_id(0), tiles_m * tiles_n, programs, flatten=FLAT, warp_specialize=SPECIALISED
    ):
        at_m, at_n = place(number, tiles_m, tiles_n, GROUP)
        total = tl.zeros((BM, BN), tl.float32)
        for turn in range(tl.cdiv(k, BK)):
            a = left.load([at_m * BM, turn * BK])
            total = tl.dot(a, right.load([at_n * BN, turn * BK]).T, total)
        if SPLIT == 2:
            low, up = tl.split(tl.permute(tl.reshape(total, (BM, 2, BN // 2)), (0, 2, 1)))
            result.store([at_m * BM, at_n * BN], low.to(out.dtype.element_ty))
            result.store([at_m * BM, at_n * BN + BN // 2], up.to(out.dtype.element_ty))
        else:
            result.store([at_m * BM, at_n * BN], total.to(out.dtype.element_ty))


def room(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


def entry(x, gate, up, down):
    m, d = x.shape
    f = gate.shape[0]
    hidden = torch.empty((m, f), dtype=x.dtype, device=x.device)
    out = torch.empty((m, d), dtype=x.dtype, device=x.device)
    if m:
        triton.set_allocator(room)
        units = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
        tiles = triton.cdiv(m, $bm) * triton.cdiv(f, $bn)
        programs = min(tiles, units) if $persistent else tiles
        gated[(programs,)](
            x, gate, up, hidden, m, f, d, programs, BM=$bm, BN=$bn, BK=$bk, GROUP=$group,
            SPECIALISED=bool($specialised), FLAT=bool($persistent), num_warps=$warps, num_stages=$stages,
        )
        tiles = triton.cdiv(m, $cm) * triton.cdiv(d, $cn)
        programs = min(tiles, units)
        product[(programs,)](
            hidden, down, out, m, d, f, programs, BM=$cm, BN=$cn, BK=64, GROUP=$group,
            SPECIALISED=$cspecial, FLAT=True, SPLIT=$csplit, num_warps=$cwarps, num_stages=$cstages,
        )
    return out
"""


SECOND: dict[str, tuple[int, int, int, int, int, bool]] = {
    "wide": (128, 256, 8, 3, 1, False),
    "wide_special": (128, 256, 8, 3, 1, True),
    "square_special": (128, 128, 4, 5, 2, True),
    "tall": (256, 128, 8, 3, 2, True),
}
"""The second product's tile, warps, stages, parts of its epilogue and warp specialisation: what was best for plain
products of this size (see the matmul family's tables)."""


class FusedMlp:
    name = "fused_mlp"
    problems = ("fused_mlp",)

    def space(self, problem: str, case: Case) -> Space:
        if case.dtype == "float32":
            return float32_kernels.space(2)
        wide = case.element_bytes

        def admits(config: Config) -> bool:
            bm, bn, bk, stages, warps = (int(config[k]) for k in ("bm", "bn", "bk", "stages", "warps"))
            # both right tiles beside the left one for each stage, and the product on its way out
            room = (stages * bk * (bm + 2 * bn) + bm * bn) * wide
            # float32 sums that a thread keeps: of two products for each element of the tile
            held = 2 * bm * bn / (32 * warps)
            # Triton specialises warps of a loop over tiles only, which a program with one tile has not
            paired = bool(config["persistent"] or not config["specialised"])
            return room <= 227 << 10 and 64 <= held <= 128 and paired

        return Space.of(
            admits,
            bm=(64, 128, 256),
            bn=(64, 128),
            bk=(64,),
            stages=(2, 3, 4),
            warps=(4, 8),
            group=(4, 8, 16),
            persistent=(0, 1),
            specialised=(0, 1),
            second=tuple(SECOND),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        if case.dtype == "float32":
            return render(problem, float32_kernels.MLP, config, layouts="contiguous offset", like=case)
        # the copy engine wants rows that begin on 16 bytes: eight 16-bit elements
        keys = {"dtypes": "float16 bfloat16", "bounds": "m 0.., d 8.. /8, f 8.. /8"}
        cm, cn, cwarps, cstages, csplit, special = SECOND[str(config["second"])]
        second = {"cm": cm, "cn": cn, "cwarps": cwarps, "cstages": cstages, "csplit": csplit}
        values = {**config, **second, "cspecial": str(special)}
        return render(problem, BODY, values, layouts="contiguous", keys=keys, like=case)
