"""Causal attention for Hopper, warp-specialised (Shah et al., arXiv 2407.08608, "FlashAttention-3").

One warp brings tiles in with the bulk copy engine; two warpgroups of consumers take 64 rows of queries each, and
while the tensor cores multiply the next tile of keys, they exponentiate this one; they may take turns at the cores.
Written in Gluon, since Triton's own scheduler does not overlap the two. Programs stay: they walk the rows longest
first, dealt out like a snake. Needs sm_90, sequences of whole 128 rows, and 64 or 128 columns. By position it
writes the logarithms that the gradients need, too.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config, GeneratorError
from nightshift.kernels.generate.bulk import SHARED_BYTES
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.ops.attention.hopper_by_position import FORWARD, laid_out
from nightshift.kernels.problem import Case

BODY = """
import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@gluon.jit
def tile_of(turn, tiles, heads, blocks):
    # longest rows first, dealt out like a snake: every program gets about the same
    programs = gl.num_programs(0)
    mine = gl.program_id(0)
    place = mine if turn % 2 == 0 else programs - 1 - mine
    number = turn * programs + place
    return number, blocks - 1 - number // heads, number % heads


@gluon.jit
def produce(
    q_map, k_map, v_map, q_room, k_room, v_room, q_full, q_free, k_full, k_free, v_full, v_free,
    s, heads, blocks, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
):
    tiles = heads * blocks
    step = 0
    for turn in range(gl.cdiv(tiles, gl.num_programs(0))):
        number, block, head = tile_of(turn, tiles, heads, blocks)
        if number < tiles:
            base = head * s
            for part in gl.static_range(2):
                mbarrier.wait(q_free.index(part), (turn & 1) ^ 1)
                mbarrier.expect(q_full.index(part), q_map.block_type.nbytes)
                tma.async_copy_global_to_shared(
                    q_map, [base + block * BM + part * (BM // 2), 0], q_full.index(part), q_room.index(part)
                )
            last = (block + 1) * BM // BN - 1
            for i in range(last + 1):
                slot = step % STAGES
                phase = step // STAGES & 1
                row = base + (last - i) * BN
                mbarrier.wait(k_free.index(slot), phase ^ 1)
                mbarrier.expect(k_full.index(slot), k_map.block_type.nbytes)
                tma.async_copy_global_to_shared(k_map, [row, 0], k_full.index(slot), k_room.index(slot))
                mbarrier.wait(v_free.index(slot), phase ^ 1)
                mbarrier.expect(v_full.index(slot), v_map.block_type.nbytes)
                tma.async_copy_global_to_shared(v_map, [row, 0], v_full.index(slot), v_room.index(slot))
                step += 1


@gluon.jit
def consume(
    out_map, q_room, k_room, v_room, o_room, q_full, q_free, k_full, k_free, v_full, v_free, order,
    s, heads, blocks, scale, PART: gl.constexpr, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    STAGES: gl.constexpr, TURNS: gl.constexpr,
):
    HALF: gl.constexpr = BM // 2
    MASKED: gl.constexpr = BM // BN if BM > BN else 1
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    rows_s: gl.constexpr = gl.SliceLayout(1, score_layout)
    rows_a: gl.constexpr = gl.SliceLayout(1, sum_layout)
    dtype: gl.constexpr = q_room.dtype
    tiles = heads * blocks
    step = 0
    round = 0
    q = q_room.index(PART)
    o = o_room.index(PART)
    line = PART * HALF + gl.arange(0, HALF, layout=rows_s)
    column = gl.arange(0, BN, layout=gl.SliceLayout(0, score_layout))
    empty = gl.zeros([HALF, BN], gl.float32, layout=score_layout)
    for turn in range(gl.cdiv(tiles, gl.num_programs(0))):
        number, block, head = tile_of(turn, tiles, heads, blocks)
        if number < tiles:
            last = (block + 1) * BM // BN - 1
            mbarrier.wait(q_full.index(PART), turn & 1)
            # the last tile of keys alone: nothing to overlap it with
            slot = step % STAGES
            mbarrier.wait(k_full.index(slot), step // STAGES & 1)
            score = warpgroup_mma(q, k_room.index(slot).permute((1, 0)), empty, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(0, deps=[score])
            mbarrier.arrive(k_free.index(slot), count=1)
            seen = (block * BM + line)[:, None] >= (last * BN + column)[None, :]
            score = gl.where(seen, score, -float("inf"))
            high = gl.maximum(gl.max(score, 1) * scale, -1.0e30)
            p = gl.exp2(score * scale - high[:, None])
            total = gl.sum(p, 1)
            p = gl.convert_layout(p.to(dtype), p_layout)
            sums = gl.zeros([HALF, D], gl.float32, layout=sum_layout)
            for i in range(1, last + 1):
                ahead = step + 1
                new = ahead % STAGES
                old = step % STAGES
                mbarrier.wait(k_full.index(new), ahead // STAGES & 1)
                if TURNS:  # one's products while the other exponentiates
                    mbarrier.wait(order.index(PART), (round & 1) ^ (1 - PART))
                    round += 1
                next_score = warpgroup_mma(
                    q, k_room.index(new).permute((1, 0)), empty, use_acc=False, is_async=True
                )
                mbarrier.wait(v_full.index(old), step // STAGES & 1)
                next_sums = warpgroup_mma(p, v_room.index(old), sums, is_async=True)
                if TURNS:
                    mbarrier.arrive(order.index(1 - PART), count=1)
                score = warpgroup_mma_wait(1, deps=[next_score])
                mbarrier.arrive(k_free.index(new), count=1)
                if MASKED > 1:
                    if i < MASKED:
                        here = (block * BM + line)[:, None] >= ((last - i) * BN + column)[None, :]
                        score = gl.where(here, score, -float("inf"))
                peak = gl.maximum(high, gl.max(score, 1) * scale)
                fade = gl.exp2(high - peak)
                weight = gl.exp2(score * scale - peak[:, None])
                total = total * fade + gl.sum(weight, 1)
                high = peak
                sums = warpgroup_mma_wait(0, deps=[next_sums])
                mbarrier.arrive(v_free.index(old), count=1)
                sums = sums * gl.convert_layout(fade, rows_a)[:, None]
                p = gl.convert_layout(weight.to(dtype), p_layout)
                step += 1
            mbarrier.arrive(q_free.index(PART), count=1)
            slot = step % STAGES
            mbarrier.wait(v_full.index(slot), step // STAGES & 1)
            sums = warpgroup_mma(p, v_room.index(slot), sums, is_async=True)
            sums = warpgroup_mma_wait(0, deps=[sums])
            mbarrier.arrive(v_free.index(slot), count=1)
            step += 1
            made = sums * gl.convert_layout(1.0 / total, rows_a)[:, None]
            tma.store_wait(0)
            o.store(made.to(dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(out_map, [head * s + block * BM + PART * HALF, 0], o)
    tma.store_wait(0)


@gluon.jit
def attend(
    q_map, k_map, v_map, o_map, s, heads, blocks, scale,
    D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
    SHARE: gl.constexpr,
):
    half: gl.constexpr = BM // 2
    dtype: gl.constexpr = q_map.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    q_room = gl.allocate_shared_memory(dtype, [2, half, D], layout)
    o_room = gl.allocate_shared_memory(dtype, [2, half, D], layout)
    k_room = gl.allocate_shared_memory(dtype, [STAGES, BN, D], layout)
    v_room = gl.allocate_shared_memory(dtype, [STAGES, BN, D], layout)
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    q_free = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    order = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    for part in gl.static_range(2):
        mbarrier.init(q_full.index(part), count=1)
        mbarrier.init(q_free.index(part), count=1)
        mbarrier.init(order.index(part), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(k_free.index(slot), count=2)
        mbarrier.init(v_free.index(slot), count=2)
    gl.warp_specialize(
        [
            (consume, (o_map, q_room, k_room, v_room, o_room, q_full, q_free, k_full, k_free, v_full, v_free,
                       order, s, heads, blocks, scale, 0, D, BM, BN, STAGES, TURNS)),
            (consume, (o_map, q_room, k_room, v_room, o_room, q_full, q_free, k_full, k_free, v_full, v_free,
                       order, s, heads, blocks, scale, 1, D, BM, BN, STAGES, TURNS)),
            (produce, (q_map, k_map, v_map, q_room, k_room, v_room, q_full, q_free, k_full, k_free, v_full,
                       v_free, s, heads, blocks, BM, BN, STAGES)),
        ],
        [4, 1],
        [SHARE, 24],
    )


def tiles(tensor, rows):
    b, h, s, d = tensor.shape
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return TensorDescriptor(tensor, [b * h * s, d], [d, 1], [rows, d], layout)


def entry(q, k, v):
    b, h, s, d = q.shape
    out = torch.empty((b, h, s, d), dtype=q.dtype, device=q.device)
    blocks = s // 128
    if out.numel():
        units = torch.cuda.get_device_properties(q.device).multi_processor_count
        programs = min(units, b * h * blocks) if $persistent else b * h * blocks
        attend[(programs,)](
            tiles(q, 64), tiles(k, $bn), tiles(v, $bn), tiles(out, 64), s, b * h, blocks,
            1.4426950408889634 * d**-0.5, D=d, BM=128, BN=$bn, STAGES=$stages, TURNS=$turns,
            SHARE=$share, num_warps=4, maxnreg=168,
        )
    return out
"""


class FlashHopper:
    name = "flash_hopper"
    problems = ("flash_attention", "flash_attention_by_position")

    def space(self, problem: str, case: Case) -> Space:
        d = case["d"]
        # two warpgroups take 64 rows each, the tensor cores' own height, and no row is masked away
        if d not in (64, 128) or case["s"] % 128:
            raise GeneratorError(f"{self.name}: needs 64 or 128 columns and sequences of whole 128 rows")

        def admits(config: Config) -> bool:
            bn, stages = int(config["bn"]), int(config["stages"])
            # two bytes an element: the queries and the result of 128 rows, keys and values of each stage; the
            # rest is barriers
            return 2 * d * (2 * 128 + 2 * stages * bn) <= SHARED_BYTES - 2048

        return Space.of(
            # share: registers of a consumer's thread, which the hardware hands out by eights
            admits,
            bn=(64, 128),
            stages=(2, 3, 4, 5, 6),
            persistent=(0, 1),
            turns=(0, 1),
            share=(224, 232, 240),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        keys = {"bounds": f"d {case['d']}..{case['d']}, s 128.. /128"}
        body, layouts = laid_out(problem, BODY, FORWARD)
        return render(problem, body, config, layouts=layouts, keys=keys, like=case)
