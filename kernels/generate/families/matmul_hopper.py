"""Matrix products for Hopper, warp-specialised with two consumers that take turns ("ping-pong" in CUTLASS).

One warp brings tiles of a and b into a ring with the bulk copy engine, all of one output tile before the next. Two
warpgroups own a tile each: while one writes its result (and computes what is fused into it), the other has the
tensor cores. A pair of barriers keeps their main loops in turn. Written in Gluon; needs sm_90.
"""

from __future__ import annotations

from kernels.generate.base import Config, GeneratorError
from kernels.generate.bulk import SHARED_BYTES
from kernels.generate.space import Space
from kernels.generate.template import render
from kernels.problem import Case

KERNEL = """
import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)


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
    tiles_m, tiles_n = gl.cdiv(m, BM), gl.cdiv(n, BN)
    step = 0
    for number in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        i, j = place(number, tiles_m, tiles_n, GROUP)
        for turn in range(gl.cdiv(k, BK)):
            slot = step % STAGES
            mbarrier.wait(free.index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(slot), a_map.block_type.nbytes + (1 + PAIR) * b_map.block_type.nbytes)
            tma.async_copy_global_to_shared(a_map, [i * BM, turn * BK], full.index(slot), a_room.index(slot))
            if ROWS:
                tma.async_copy_global_to_shared(b_map, [j * BN, turn * BK], full.index(slot), b_room.index(slot))
            else:
                tma.async_copy_global_to_shared(b_map, [turn * BK, j * BN], full.index(slot), b_room.index(slot))
            if PAIR:
                tma.async_copy_global_to_shared(
                    c_map, [j * BN, turn * BK], full.index(slot), b_room.index(STAGES + slot)
                )
            step += 1


@gluon.jit
def multiply(
    out_map, a_room, b_room, o_room, full, free, order, m, n, k, PART: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr,
    PAIR: gl.constexpr,
):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    tiles_m, tiles_n = gl.cdiv(m, BM), gl.cdiv(n, BN)
    turns = gl.cdiv(k, BK)
    o = o_room.index(PART)
    step = PART * turns
    round = 0
    for number in range(gl.program_id(0) + PART * gl.num_programs(0), tiles_m * tiles_n, 2 * gl.num_programs(0)):
        i, j = place(number, tiles_m, tiles_n, GROUP)
        total = gl.zeros([BM, BN], gl.float32, layout=layout)
        other = gl.zeros([BM, BN], gl.float32, layout=layout)
        # the other's main loop first: a parity says nothing of phases further ahead than one
        mbarrier.wait(order.index(PART), (round & 1) ^ (1 - PART))
        round += 1
        for turn in range(turns):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), step // STAGES & 1)
            b = b_room.index(slot)
            if ROWS:
                b = b.permute((1, 0))
            total = warpgroup_mma(a_room.index(slot), b, total, is_async=True)
            if PAIR:
                other = warpgroup_mma(
                    a_room.index(slot), b_room.index(STAGES + slot).permute((1, 0)), other, is_async=True
                )
                total, other = warpgroup_mma_wait(2, deps=[total, other])
            else:
                total = warpgroup_mma_wait(1, deps=[total])
            # the step before is done: its room is free
            mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1, pred=turn > 0)
            step += 1
        mbarrier.arrive(order.index(1 - PART), count=1)
        if PAIR:
            total, other = warpgroup_mma_wait(0, deps=[total, other])
        else:
            total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1)
        step += turns
        if PAIR:
            total = total / (1.0 + gl.exp(-total)) * other
        tma.store_wait(0)
        o.store(total.to(out_map.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_map, [i * BM, j * BN], o)
    tma.store_wait(0)


@gluon.jit
def product(
    a, b, c, out, m, n, k, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr, ROWS: gl.constexpr, PAIR: gl.constexpr, SHARE: gl.constexpr,
):
    dtype: gl.constexpr = a.dtype.element_ty
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    BR: gl.constexpr = BN if ROWS else BK
    BC: gl.constexpr = BK if ROWS else BN
    a_map = tma.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[BM, BK], layout=layout)
    if ROWS:
        b_map = tma.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[BR, BC], layout=layout)
    else:
        b_map = tma.make_tensor_descriptor(b, shape=[k, n], strides=[n, 1], block_shape=[BR, BC], layout=layout)
    if PAIR:
        c_map = tma.make_tensor_descriptor(c, shape=[n, k], strides=[k, 1], block_shape=[BR, BC], layout=layout)
    else:
        c_map = b_map
    o_map = tma.make_tensor_descriptor(out, shape=[m, n], strides=[n, 1], block_shape=[BM, BN], layout=layout)
    a_room = gl.allocate_shared_memory(dtype, [STAGES, BM, BK], layout)
    b_room = gl.allocate_shared_memory(dtype, [(1 + PAIR) * STAGES, BR, BC], layout)
    o_room = gl.allocate_shared_memory(dtype, [2, BM, BN], layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    order = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    for part in gl.static_range(2):
        mbarrier.init(order.index(part), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(free.index(slot), count=1)
    gl.warp_specialize(
        [
            (multiply, (o_map, a_room, b_room, o_room, full, free, order, m, n, k, 0, BM, BN, BK, STAGES, GROUP,
                        ROWS, PAIR)),
            (multiply, (o_map, a_room, b_room, o_room, full, free, order, m, n, k, 1, BM, BN, BK, STAGES, GROUP,
                        ROWS, PAIR)),
            (bring, (a_map, b_map, c_map, a_room, b_room, full, free, m, n, k, BM, BN, BK, STAGES, GROUP,
                     ROWS, PAIR)),
        ],
        [4, 1],
        [SHARE, 24],
    )


def room(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")

"""
PRODUCT = """
def entry(a, b):
    m, k = a.shape
    n = b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    if m and n:
        triton.set_allocator(room)
        units = torch.cuda.get_device_properties(a.device).multi_processor_count
        tiles = triton.cdiv(m, $bm) * triton.cdiv(n, $bn)
        product[(min(units, triton.cdiv(tiles, 2)),)](
            a, b, b, out, m, n, k, BM=$bm, BN=$bn, BK=$bk, STAGES=$stages, GROUP=$group, ROWS=0, PAIR=0,
            SHARE=$share, num_warps=4, maxnreg=168,
        )
    return out
"""
GATED = """
def entry(x, gate, up, down):
    m, d = x.shape
    f = gate.shape[0]
    hidden = torch.empty((m, f), dtype=x.dtype, device=x.device)
    out = torch.empty((m, d), dtype=x.dtype, device=x.device)
    if m:
        triton.set_allocator(room)
        units = torch.cuda.get_device_properties(x.device).multi_processor_count
        tiles = triton.cdiv(m, 128) * triton.cdiv(f, 64)
        product[(min(units, triton.cdiv(tiles, 2)),)](
            x, gate, up, hidden, m, f, d, BM=128, BN=64, BK=64, STAGES=$stages, GROUP=$group, ROWS=1, PAIR=1,
            SHARE=$share, num_warps=4, maxnreg=168,
        )
        tiles = triton.cdiv(m, 128) * triton.cdiv(d, 128)
        product[(min(units, triton.cdiv(tiles, 2)),)](
            hidden, down, down, out, m, d, f, BM=128, BN=128, BK=64, STAGES=$depth, GROUP=$rows, ROWS=1, PAIR=0,
            SHARE=$share, num_warps=4, maxnreg=168,
        )
    return out
"""


class MatmulHopper:
    name = "matmul_hopper"
    problems = ("matmul", "fused_mlp")

    def space(self, problem: str, case: Case) -> Space:
        if case.element_bytes != 2:
            raise GeneratorError(f"{self.name}: needs 16-bit elements")

        def admits(config: Config) -> bool:
            bm, bn, bk, stages = (int(config[k]) for k in ("bm", "bn", "bk", "stages"))
            room = 2 * (stages * bk * (bm + bn) + 2 * bm * bn)
            return room <= SHARED_BYTES - 2048 and bm * bn in (1 << 13, 1 << 14) and stages * bk >= 192

        if problem == "fused_mlp":
            return Space.of(stages=(4, 5, 6), depth=(4, 5), group=(4, 8, 16), rows=(4, 8, 16), share=(232, 240))
        return Space.of(
            admits,
            bm=(64, 128),
            bn=(64, 128, 256),
            bk=(64, 128),
            stages=(3, 4, 5, 6),
            group=(4, 8, 16),
            share=(232, 240),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        low = "d 8.. /8, f 8.. /8" if problem == "fused_mlp" else "n 8.. /8, k 8.. /8"
        keys = {"dtypes": "float16 bfloat16", "bounds": f"m 1.., {low}"}
        body = KERNEL + (GATED if problem == "fused_mlp" else PRODUCT)
        return render(problem, body, config, layouts="contiguous", keys=keys, like=case)
