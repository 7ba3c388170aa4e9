"""Matrix products for Hopper, warp-specialised: one warp brings tiles, two warpgroups multiply them.

The ring is filled by the bulk copy engine, all of one output tile before the next. The two consumers either own a
tile each and take turns ("ping-pong" in CUTLASS): while one writes its result, and computes what is fused into it,
the other has the tensor cores. Or they share a tile, half its rows each ("cooperative"): larger tiles, fewer bytes.
Where two products share their left side (a gated layer), a tile of the right side is half of one's rows and half of
the other's, so that the tensor cores see one product, and both halves of a column pair lie in the same thread.
Descriptors come from the host: made in the kernel, they cost a small product a microsecond or two. Written in
Gluon; needs sm_90.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config, GeneratorError
from nightshift.kernels.generate.bulk import SHARED_BYTES
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

KERNEL = """
import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@gluon.jit
def place(number, tiles_m, tiles_n, GROUP: gl.constexpr):
    first = number // (GROUP * tiles_n) * GROUP
    high = gl.minimum(tiles_m - first, GROUP)
    return first + number % (GROUP * tiles_n) % high, number % (GROUP * tiles_n) // high


@gluon.jit
def bring(
    a_map, b_map, c_map, a_room, b_room, full, free, m, n, k, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr, PAIR: gl.constexpr,
):
    WIDE: gl.constexpr = BN // 2 if PAIR else BN
    if PAIR:
        parts = b_room._reinterpret(b_room.dtype, [2 * STAGES, WIDE, BK], b_room.layout)
    else:
        parts = b_room
    tiles_m, tiles_n = gl.cdiv(m, BM), gl.cdiv(n, WIDE)
    step = 0
    for number in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        i, j = place(number, tiles_m, tiles_n, GROUP)
        for turn in range(gl.cdiv(k, BK)):
            slot = step % STAGES
            mbarrier.wait(free.index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(slot), a_map.block_type.nbytes + (1 + PAIR) * b_map.block_type.nbytes)
            tma.async_copy_global_to_shared(a_map, [i * BM, turn * BK], full.index(slot), a_room.index(slot))
            if PAIR:
                tma.async_copy_global_to_shared(
                    b_map, [j * WIDE, turn * BK], full.index(slot), parts.index(2 * slot)
                )
                tma.async_copy_global_to_shared(
                    c_map, [j * WIDE, turn * BK], full.index(slot), parts.index(2 * slot + 1)
                )
            elif ROWS:
                tma.async_copy_global_to_shared(b_map, [j * BN, turn * BK], full.index(slot), b_room.index(slot))
            else:
                tma.async_copy_global_to_shared(b_map, [turn * BK, j * BN], full.index(slot), b_room.index(slot))
            step += 1


@gluon.jit
def multiply(
    out_map, ${given}a_room, b_room, o_room, full, free, order, m, n, k, PART: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr,
    PAIR: gl.constexpr, TOGETHER: gl.constexpr, PARTED: gl.constexpr,
):
    MINE: gl.constexpr = BM // 2 if TOGETHER else BM
    WIDE: gl.constexpr = BN // 2 if PAIR else BN
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    half: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN // 2, 16])
    tiles_m, tiles_n = gl.cdiv(m, BM), gl.cdiv(n, WIDE)
    turns = gl.cdiv(k, BK)
    o = o_room.index(PART)
    if TOGETHER:
        lines = a_room._reinterpret(a_room.dtype, [2 * STAGES, MINE, BK], a_room.layout)
        first = gl.program_id(0)
        stride = gl.num_programs(0)
        step = 0
    else:
        lines = a_room
        first = gl.program_id(0) + PART * gl.num_programs(0)
        stride = 2 * gl.num_programs(0)
        step = PART * turns
    round = 0
    for number in range(first, tiles_m * tiles_n, stride):
        i, j = place(number, tiles_m, tiles_n, GROUP)
        total = gl.zeros([MINE, BN], gl.float32, layout=layout)
        if not TOGETHER:
            # the other's main loop first: a parity says nothing of phases further ahead than one
            mbarrier.wait(order.index(PART), (round & 1) ^ (1 - PART))
        round += 1
        for turn in range(turns):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), step // STAGES & 1)
            b = b_room.index(slot)
            if ROWS:
                b = b.permute((1, 0))
            if TOGETHER:
                a = lines.index(2 * slot + PART)
            else:
                a = lines.index(slot)
            total = warpgroup_mma(a, b, total, is_async=True)
            total = warpgroup_mma_wait(1, deps=[total])
            # the step before is done: its room is free
            mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1, pred=turn > 0)
            step += 1
        if not TOGETHER:
            mbarrier.arrive(order.index(1 - PART), count=1)
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1)
        if not TOGETHER:
            step += turns
$shift        row = i * BM
        if TOGETHER:
            row += PART * MINE
        if PARTED:
            low, up = total.reshape((MINE, 2, BN // 2)).permute((0, 2, 1)).split()
            low = gl.convert_layout(low, half)
            up = gl.convert_layout(up, half)
            if PAIR:
                low = low / (1.0 + gl.exp(-low)) * up
            tma.store_wait(0)
            o.store(low.to(out_map.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(out_map, [row, j * WIDE], o)
            if not PAIR:
                tma.store_wait(0)
                o.store(up.to(out_map.dtype))
                fence_async_shared()
                tma.async_copy_shared_to_global(out_map, [row, j * WIDE + BN // 2], o)
        else:
            tma.store_wait(0)
            o.store(total.to(out_map.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(out_map, [row, j * BN], o)
    tma.store_wait(0)


@gluon.jit
def product(
    a_map, b_map, c_map, ${given}o_map, m, n, k, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr, PAIR: gl.constexpr, TOGETHER: gl.constexpr,
    PARTED: gl.constexpr, SHARE: gl.constexpr,
):
    dtype: gl.constexpr = a_map.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    BR: gl.constexpr = BN if ROWS else BK
    BC: gl.constexpr = BK if ROWS else BN
    MINE: gl.constexpr = BM // 2 if TOGETHER else BM
    OUT: gl.constexpr = BN // 2 if PARTED else BN
    a_room = gl.allocate_shared_memory(dtype, [STAGES, BM, BK], layout)
    b_room = gl.allocate_shared_memory(dtype, [STAGES, BR, BC], layout)
    o_room = gl.allocate_shared_memory(dtype, [2, MINE, OUT], layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    order = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    for part in gl.static_range(2):
        mbarrier.init(order.index(part), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(free.index(slot), count=2 if TOGETHER else 1)
    gl.warp_specialize(
        [
            (multiply, (o_map, ${given}a_room, b_room, o_room, full, free, order, m, n, k, 0, BM, BN, BK, STAGES,
                        GROUP, ROWS, PAIR, TOGETHER, PARTED)),
            (multiply, (o_map, ${given}a_room, b_room, o_room, full, free, order, m, n, k, 1, BM, BN, BK, STAGES,
                        GROUP, ROWS, PAIR, TOGETHER, PARTED)),
            (bring, (a_map, b_map, c_map, a_room, b_room, full, free, m, n, k, BM, BN, BK, STAGES, GROUP,
                     ROWS, PAIR)),
        ],
        [4, 1],
        [SHARE, 24],
    )


def tiles(tensor, rows, columns):
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return TensorDescriptor.from_tensor(tensor, [rows, columns], layout)


def launch(a, b, c, ${given}out, BM, BN, STAGES, GROUP, ROWS, PAIR, TOGETHER):
    m, k = a.shape
    n = out.shape[1]
    wide = BN // 2 if PAIR else BN
    shape = (wide, $bk) if ROWS else ($bk, wide)
    parted = PAIR or (TOGETHER and STAGES > 3)  # the result goes out in halves where the ring leaves little room
    parts = BN // 2 if parted else BN
    units = torch.cuda.get_device_properties(a.device).multi_processor_count
    count = triton.cdiv(m, BM) * triton.cdiv(n, wide)
    product[(min(units, count if TOGETHER else triton.cdiv(count, 2)),)](
        tiles(a, BM, $bk), tiles(b, *shape), tiles(c, *shape),
        ${given}tiles(out, BM // 2 if TOGETHER else BM, parts),
        m, n, k, BM=BM, BN=BN, BK=$bk, STAGES=STAGES, GROUP=GROUP, ROWS=ROWS, PAIR=PAIR, TOGETHER=TOGETHER,
        PARTED=parted, SHARE=$share, num_warps=4, maxnreg=168,
    )

"""
PRODUCT = """
def entry(a, b$row):
    m, k = a.shape
    n = b.shape[$columns]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    if m and n:
        launch(a, b, b, ${given}out, $bm, $bn, $stages, $group, $by_rows, False, $together)
    return out
"""
GATED = """
def entry(x, gate, up, down):
    m, d = x.shape
    f = gate.shape[0]
    hidden = torch.empty((m, f), dtype=x.dtype, device=x.device)
    out = torch.empty((m, d), dtype=x.dtype, device=x.device)
    if m:
        launch(x, gate, up, hidden, 128, $bn, $stages, $group, True, True, $together)
        launch(hidden, down, down, out, 128, $cn, $depth, $rows, True, False, $alike)
    return out
"""


_BIASED = {
    "row": ", bias",
    "given": "bias, ",
    "shift": """        column = j * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, layout))
        total += gl.load(bias + column, mask=column < n, other=0.0).to(gl.float32)[None, :]
""",
}
_UNBIASED = dict.fromkeys(_BIASED, "")


class MatmulHopper:
    name = "matmul_hopper"
    problems = ("matmul", "linear", "linear_bias", "fused_mlp")

    def space(self, problem: str, case: Case) -> Space:
        # float32 on the tensor cores would be TF32, which the judge takes for a downgrade
        if case.element_bytes != 2:
            raise GeneratorError(f"{self.name}: needs 16-bit elements")

        def admits(config: Config) -> bool:
            bm, bn, bk, stages, together = (int(config[k]) for k in ("bm", "bn", "bk", "stages", "together"))
            room = 2 * stages * bk * (bm + bn) + bm * bn * (4 if not together else 2 if stages == 3 else 1)
            # sums of the two consumers: one tile of both, or one each; larger ones have no registers
            held = bm * bn in ((1 << 15,) if together else (1 << 13, 1 << 14))
            return room <= SHARED_BYTES - 2048 and held and stages * bk >= 192

        def pairs(config: Config) -> bool:
            wide, second = config["first"] == "together", config["second"] == "together"
            return int(config["stages"]) <= (4 if wide else 6) and int(config["depth"]) <= (4 if second else 5)

        if problem == "fused_mlp":
            return Space.of(
                pairs,
                first=("together", "turns"),
                second=("together", "turns"),
                stages=(3, 4, 5, 6),
                depth=(3, 4, 5),
                group=(4, 8, 16),
                rows=(4, 8, 16),
                share=(232, 240),
            )
        return Space.of(
            admits,
            bm=(64, 128, 256),
            bn=(64, 128, 256),
            bk=(64, 128),
            stages=(3, 4, 5, 6),
            group=(2, 4, 8, 16),
            together=(0, 1),
            share=(232, 240),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        # the copy engine wants rows that begin on 16 bytes: eight 16-bit elements
        low = "d 8.. /8, f 8.. /8" if problem == "fused_mlp" else "n 8.. /8, k 8.. /8"
        keys = {"dtypes": "float16 bfloat16", "bounds": f"m 1.., {low}"}
        if problem == "fused_mlp":
            first, second = config["first"] == "together", config["second"] == "together"
            values = {**config, "bk": 64, "bn": 256 if first else 128, "cn": 256 if second else 128}
            values |= {"together": first, "alike": second, **_UNBIASED}
            return render(problem, KERNEL + GATED, values, layouts="contiguous", keys=keys, like=case)
        by_rows = problem != "matmul"
        values = {**config, "together": bool(config["together"]), "by_rows": by_rows, "columns": 1 - by_rows}
        values |= _BIASED if problem == "linear_bias" else _UNBIASED
        return render(problem, KERNEL + PRODUCT, values, layouts="contiguous", keys=keys, like=case)
