"""Gradients of causal attention for Hopper, warp-specialised: five products, none of them computed twice.

Four happen where a program holds 128 keys: scores and their gradients, transposed so that they are the left side of
the next product without leaving the registers, then the keys' and values' gradients. Two warpgroups take 64 keys
each and never wait for one another; one warp brings 64 queries at a time with the bulk copy engine. The scores'
gradients go to a workspace, and a second kernel multiplies them by the keys. FlashAttention-3 (Shah et al., arXiv
2407.08608) adds the queries' gradients atomically, in float32, so that no two results agree; here they do.

Memory beside the outputs: 8 bytes a row, and the workspace: 2 bytes for each pair of a query and a key that it
sees, of as many heads at a time as 1 GiB holds, at least of one (s² bytes). Written in Gluon; needs sm_90, 16-bit
elements, sequences of whole 128 rows, and 64 or 128 columns.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config, GeneratorError
from nightshift.kernels.generate.bulk import SHARED_BYTES
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.ops.attention.hopper_by_position import BACKWARD, laid_out
from nightshift.kernels.problem import Case

BODY = """
import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@triton.jit
def inner(gradient, out, logs, rows, D: tl.constexpr):
    # of each 64 rows: the logarithms to base 2, then the inner products of result and gradient
    line = tl.program_id(0) % 4 * 16 + tl.arange(0, 16)
    row = tl.program_id(0).to(tl.int64) // 4 * 64
    at = (row + line)[:, None] * D + tl.arange(0, D)[None, :]
    x = tl.load(gradient + at).to(tl.float32)
    y = tl.load(out + at).to(tl.float32)
    tl.store(rows + 2 * row + line, tl.load(logs + row + line) * 1.4426950408889634)
    tl.store(rows + 2 * row + 64 + line, tl.sum(x * y, 1))


@gluon.jit
def tile_of(turn, heads, blocks, LONGEST: gl.constexpr):
    # the longest of all heads or of one head first, dealt out like a snake: every program gets about the same
    programs = gl.num_programs(0)
    mine = gl.program_id(0)
    place = mine if turn % 2 == 0 else programs - 1 - mine
    number = turn * programs + place
    return number, number // heads if LONGEST else number % blocks, number % heads if LONGEST else number // blocks


@gluon.jit
def put(out_map, row, room, value):
    tma.store_wait(0)  # what left this room before is read
    room.store(value)
    fence_async_shared()
    tma.async_copy_shared_to_global(out_map, [row, 0], room)


@gluon.jit
def bring(
    g_map, q_map, k_map, v_map, r_map, ring, own, r_room, held, left, full, free, first, s, heads,
    STAGES: gl.constexpr, LONGEST: gl.constexpr,
):
    blocks = s // 128
    step = 0
    for turn in range(gl.cdiv(heads * blocks, gl.num_programs(0))):
        number, block, head = tile_of(turn, heads, blocks, LONGEST)
        if number < heads * blocks:
            base = (first + head) * s
            for part in gl.static_range(2):
                mbarrier.wait(left.index(part), (turn & 1) ^ 1)
                mbarrier.expect(held.index(part), 2 * k_map.block_type.nbytes)
                row = base + block * 128 + part * 64
                tma.async_copy_global_to_shared(k_map, [row, 0], held.index(part), own.index(2 * part))
                tma.async_copy_global_to_shared(v_map, [row, 0], held.index(part), own.index(2 * part + 1))
            for i in range(2 * block, 2 * blocks):
                slot = step % STAGES
                row = base + i * 64
                bar = full.index(slot)
                mbarrier.wait(free.index(slot), (step // STAGES & 1) ^ 1)
                mbarrier.expect(bar, 2 * q_map.block_type.nbytes + 2 * r_map.block_type.nbytes)
                tma.async_copy_global_to_shared(q_map, [row, 0], bar, ring.index(2 * slot))
                tma.async_copy_global_to_shared(g_map, [row, 0], bar, ring.index(2 * slot + 1))
                tma.async_copy_global_to_shared(r_map, [2 * row], bar, r_room.index(2 * slot))
                tma.async_copy_global_to_shared(r_map, [2 * row + 64], bar, r_room.index(2 * slot + 1))
                step += 1


@gluon.jit
def differentiate(
    w_map, k_out, v_out, ring, own, r_room, o_room, held, left, full, free, first, s, heads, scale,
    PART: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, EARLY: gl.constexpr, LONGEST: gl.constexpr,
):
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    left_layout: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    columns: gl.constexpr = gl.SliceLayout(0, score_layout)
    dtype: gl.constexpr = own.dtype
    ROOMS: gl.constexpr = D // 64
    blocks = s // 128
    k = own.index(2 * PART)
    v = own.index(2 * PART + 1)
    o = o_room.index(PART)
    w_room = o_room._reinterpret(dtype, [2 * ROOMS, 64, 64], o_room.layout)
    line = gl.arange(0, 64, layout=gl.SliceLayout(1, score_layout))
    column = gl.arange(0, 64, layout=columns)
    empty = gl.zeros([64, 64], gl.float32, layout=score_layout)
    step = 0
    for turn in range(gl.cdiv(heads * blocks, gl.num_programs(0))):
        number, block, head = tile_of(turn, heads, blocks, LONGEST)
        if number < heads * blocks:
            low = 2 * block + PART
            mbarrier.wait(held.index(PART), turn & 1)
            if PART:  # the first queries come before all of these keys
                mbarrier.wait(full.index(step % STAGES), step // STAGES & 1)
                mbarrier.arrive(free.index(step % STAGES), count=1)
                step += 1
            sum_k = gl.zeros([64, D], gl.float32, layout=sum_layout)
            sum_v = gl.zeros([64, D], gl.float32, layout=sum_layout)
            slot = step % STAGES
            mbarrier.wait(full.index(slot), step // STAGES & 1)
            score = warpgroup_mma(k, ring.index(2 * slot).permute((1, 0)), empty, use_acc=False, is_async=True)
            tma.store_wait(0)
            score = warpgroup_mma_wait(0, deps=[score])
            for i in range(low, 2 * blocks):
                q = ring.index(2 * slot)
                g = ring.index(2 * slot + 1)
                back = warpgroup_mma(v, g.permute((1, 0)), empty, use_acc=False, is_async=True)
                log = r_room.index(2 * slot).load(columns)
                weight = gl.exp2(score * scale - log[None, :])
                if i == low:
                    weight = gl.where(column[None, :] >= line[:, None], weight, 0.0)
                p = gl.convert_layout(weight.to(dtype), left_layout)
                if EARLY:
                    next_v = warpgroup_mma(p, g, sum_v, is_async=True)
                delta = r_room.index(2 * slot + 1).load(columns)
                back = warpgroup_mma_wait(EARLY, deps=[back])
                made = (weight * (back - delta[None, :])).to(dtype)
                w = w_room.index(ROOMS * PART + step % ROOMS)
                tma.store_wait(ROOMS - 1)
                w.store(made)
                if not EARLY:
                    next_v = warpgroup_mma(p, g, sum_v, is_async=True)
                next_k = warpgroup_mma(gl.convert_layout(made, left_layout), q, sum_k, is_async=True)
                ahead = step + (i + 1 < 2 * blocks).to(gl.int32)  # after the last, the last again
                new = ahead % STAGES
                mbarrier.wait(full.index(new), ahead // STAGES & 1)
                next_score = warpgroup_mma(
                    k, ring.index(2 * new).permute((1, 0)), empty, use_acc=False, is_async=True
                )
                fence_async_shared()
                tile = (head * blocks * (2 * blocks + 1) + i * (i + 1) // 2 + low) * 64
                tma.async_copy_shared_to_global(w_map, [tile, 0], w)
                sum_v, sum_k, score = warpgroup_mma_wait(0, deps=[next_v, next_k, next_score])
                mbarrier.arrive(free.index(slot), count=1)
                step += 1
                slot = new
            mbarrier.arrive(left.index(PART), count=1)
            row = (first + head) * s + low * 64
            put(v_out, row, o, sum_v.to(dtype))
            put(k_out, row, o, (sum_k * (scale * 0.6931471805599453)).to(dtype))
    tma.store_wait(0)


@gluon.jit
def of_keys(
    g_map, q_map, k_map, v_map, r_map, w_map, k_out, v_out, first, s, heads, scale,
    D: gl.constexpr, STAGES: gl.constexpr, EARLY: gl.constexpr, LONGEST: gl.constexpr,
):
    dtype: gl.constexpr = q_map.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    ring = gl.allocate_shared_memory(dtype, [2 * STAGES, 64, D], layout)  # queries, gradients
    own = gl.allocate_shared_memory(dtype, [4, 64, D], layout)  # each part's keys, values
    o_room = gl.allocate_shared_memory(dtype, [2, 64, D], layout)
    r_room = gl.allocate_shared_memory(gl.float32, [2 * STAGES, 64], r_map.layout)
    held = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    left = gl.allocate_shared_memory(gl.int64, [2, 1], bar)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    for part in gl.static_range(2):
        mbarrier.init(held.index(part), count=1)
        mbarrier.init(left.index(part), count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(free.index(slot), count=2)
    gl.warp_specialize(
        [
            (differentiate, (w_map, k_out, v_out, ring, own, r_room, o_room, held, left, full, free, first, s,
                             heads, scale, 0, D, STAGES, EARLY, LONGEST)),
            (differentiate, (w_map, k_out, v_out, ring, own, r_room, o_room, held, left, full, free, first, s,
                             heads, scale, 1, D, STAGES, EARLY, LONGEST)),
            (bring, (g_map, q_map, k_map, v_map, r_map, ring, own, r_room, held, left, full, free, first, s,
                     heads, STAGES, LONGEST)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def fetch(
    w_map, k_map, w_room, k_room, k_full, k_free, w_full, w_free, first, s, heads, STAGES: gl.constexpr,
    LONGEST: gl.constexpr,
):
    tiles = s // 64
    blocks = gl.cdiv(s, 256)
    step = 0
    one = gl.to_tensor(0)
    second = gl.to_tensor(0)
    for turn in range(gl.cdiv(heads * blocks, gl.num_programs(0))):
        number, place, head = tile_of(turn, heads, blocks, LONGEST)
        if number < heads * blocks:
            base = (first + head) * s
            low = (blocks - 1 - place) * 4
            last = gl.minimum(low + 4, tiles) - 1
            for done in range(last + 1):
                i = last - done
                slot = step % STAGES
                mbarrier.wait(k_free.index(slot), (step // STAGES & 1) ^ 1)
                mbarrier.expect(k_full.index(slot), k_map.block_type.nbytes)
                tma.async_copy_global_to_shared(k_map, [base + i * 64, 0], k_full.index(slot), k_room.index(slot))
                step += 1
                for part in gl.static_range(2):
                    line = low + 2 * part
                    if (line < tiles) & (i <= line + 1):
                        turned = second if part else one
                        if part:
                            second += 1
                        else:
                            one += 1
                        at = turned % STAGES + part * STAGES
                        bar = w_full.index(at)
                        mbarrier.wait(w_free.index(at), (turned // STAGES & 1) ^ 1)
                        tile = head * (tiles * (tiles + 1) // 2) + line * (line + 1) // 2 + i
                        below = (tile + line + 1) * 64
                        if i <= line:
                            mbarrier.expect(bar, 2 * w_map.block_type.nbytes)
                            tma.async_copy_global_to_shared(w_map, [tile * 64, 0], bar, w_room.index(2 * at))
                        else:  # above the diagonal: never written
                            mbarrier.expect(bar, w_map.block_type.nbytes)
                        tma.async_copy_global_to_shared(w_map, [below, 0], bar, w_room.index(2 * at + 1))


@gluon.jit
def gather(
    q_out, w_room, k_room, o_room, k_full, k_free, w_full, w_free, first, s, heads, scale,
    PART: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, LONGEST: gl.constexpr,
):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    dtype: gl.constexpr = k_room.dtype
    tiles = s // 64
    blocks = gl.cdiv(s, 256)
    o = o_room.index(PART)
    step = 0
    turned = 0
    for turn in range(gl.cdiv(heads * blocks, gl.num_programs(0))):
        number, place, head = tile_of(turn, heads, blocks, LONGEST)
        if number < heads * blocks:
            low = (blocks - 1 - place) * 4
            line = low + 2 * PART
            count = gl.minimum(low + 4, tiles)
            for _ in range(count - line - 2 if line < tiles else count):  # keys that the other's queries see alone
                mbarrier.wait(k_full.index(step % STAGES), step // STAGES & 1)
                mbarrier.arrive(k_free.index(step % STAGES), count=1)
                step += 1
            if line < tiles:
                slot = step % STAGES
                at = turned % STAGES + PART * STAGES
                mbarrier.wait(k_full.index(slot), step // STAGES & 1)
                mbarrier.wait(w_full.index(at), turned // STAGES & 1)
                # of these keys the first 64 queries see none
                up = gl.zeros([64, D], gl.float32, layout=layout)
                k = k_room.index(slot)
                down = warpgroup_mma(w_room.index(2 * at + 1).permute((1, 0)), k, up, is_async=True)
                down = warpgroup_mma_wait(0, deps=[down])
                for i in range(line + 1):
                    step += 1
                    turned += 1
                    slot = step % STAGES
                    at = turned % STAGES + PART * STAGES
                    mbarrier.wait(k_full.index(slot), step // STAGES & 1)
                    mbarrier.wait(w_full.index(at), turned // STAGES & 1)
                    k = k_room.index(slot)
                    up = warpgroup_mma(w_room.index(2 * at).permute((1, 0)), k, up, is_async=True)
                    down = warpgroup_mma(w_room.index(2 * at + 1).permute((1, 0)), k, down, is_async=True)
                    up, down = warpgroup_mma_wait(2, deps=[up, down])
                    # the step before is done: its room is free
                    mbarrier.arrive(k_free.index((step + STAGES - 1) % STAGES), count=1)
                    mbarrier.arrive(w_free.index((turned + STAGES - 1) % STAGES + PART * STAGES), count=1)
                up, down = warpgroup_mma_wait(0, deps=[up, down])
                mbarrier.arrive(k_free.index(slot), count=1)
                mbarrier.arrive(w_free.index(at), count=1)
                step += 1
                turned += 1
                row = (first + head) * s + line * 64
                put(q_out, row, o, (up * scale).to(dtype))
                put(q_out, row + 64, o, (down * scale).to(dtype))
    tma.store_wait(0)


@gluon.jit
def of_queries(
    w_map, k_map, q_out, first, s, heads, scale, D: gl.constexpr, STAGES: gl.constexpr, LONGEST: gl.constexpr
):
    dtype: gl.constexpr = k_map.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    k_room = gl.allocate_shared_memory(dtype, [STAGES, 64, D], layout)
    w_room = gl.allocate_shared_memory(dtype, [4 * STAGES, 64, 64], layout)
    o_room = gl.allocate_shared_memory(dtype, [2, 64, D], layout)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    w_full = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], bar)
    w_free = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], bar)
    for slot in gl.static_range(STAGES):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(k_free.index(slot), count=2)
    for slot in gl.static_range(2 * STAGES):
        mbarrier.init(w_full.index(slot), count=1)
        mbarrier.init(w_free.index(slot), count=1)
    gl.warp_specialize(
        [
            (gather, (q_out, w_room, k_room, o_room, k_full, k_free, w_full, w_free, first, s, heads, scale, 0,
                      D, STAGES, LONGEST)),
            (gather, (q_out, w_room, k_room, o_room, k_full, k_free, w_full, w_free, first, s, heads, scale, 1,
                      D, STAGES, LONGEST)),
            (fetch, (w_map, k_map, w_room, k_room, k_full, k_free, w_full, w_free, first, s, heads, STAGES,
                     LONGEST)),
        ],
        [4, 1],
        [240, 24],
    )


def tiles(tensor, columns):
    count = tensor.numel() // columns
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return TensorDescriptor(tensor, [count, columns], [columns, 1], [64, columns], layout)


def entry(gradient, q, k, v, out, logs):
    b, h, s, d = q.shape
    to_q, to_k, to_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if q.numel():
        rows = torch.empty(2 * b * h * s, dtype=torch.float32, device=q.device)
        inner[(b * h * s // 16,)](gradient, out, logs, rows, D=d, num_warps=2)
        pairs = 64 * 64 * (s // 64) * (s // 64 + 1) // 2
        most = min(b * h, max(1, (1 << 29) // pairs))
        work = torch.empty(most * pairs, dtype=q.dtype, device=q.device)
        layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
        row_map = TensorDescriptor(rows, [2 * b * h * s], [1], [64], layout)
        units = torch.cuda.get_device_properties(q.device).multi_processor_count
        for first in range(0, b * h, most):
            heads = min(most, b * h - first)
            count = heads * (s // 128)
            of_keys[(min(units, count) if $persistent else count,)](
                tiles(gradient, d), tiles(q, d), tiles(k, d), tiles(v, d), row_map, tiles(work, 64),
                tiles(to_k, d), tiles(to_v, d), first, s, heads, 1.4426950408889634 * d**-0.5, D=d,
                STAGES=$stages, EARLY=$early, LONGEST="$keys" == "all", num_warps=4, maxnreg=168,
            )
            count = heads * triton.cdiv(s, 256)
            of_queries[(min(units, count) if $persistent else count,)](
                tiles(work, 64), tiles(k, d), tiles(to_q, d), first, s, heads, d**-0.5, D=d, STAGES=$depth,
                LONGEST="$queries" == "all", num_warps=4, maxnreg=168,
            )
    return to_q, to_k, to_v
"""


class FlashBackwardHopper:
    name = "flash_backward_hopper"
    problems = ("flash_attention_backward", "flash_attention_by_position_backward")

    def space(self, problem: str, case: Case) -> Space:
        d = case["d"]
        if d not in (64, 128) or case["s"] % 128:
            raise GeneratorError(f"{self.name}: needs 64 or 128 columns and sequences of whole 128 rows")

        def admits(config: Config) -> bool:
            stages, depth = int(config["stages"]), int(config["depth"])
            # the first kernel's shared memory, then the second's: whichever is larger has to fit
            keys = 2 * 64 * d * (6 + 2 * stages) + 512 * stages
            queries = 2 * 64 * (d * (2 + depth) + 256 * depth)
            return max(keys, queries) <= SHARED_BYTES - 512

        order = ("all", "head")  # whose longest come first
        return Space.of(
            admits, stages=(2, 3, 4, 5, 6), depth=(3, 4), early=(0, 1), persistent=(0, 1), keys=order, queries=order
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        # the workspace holds a pair of a query and a key in 2 bytes: at 65,536 rows that is 4 GiB for one head
        keys = {"bounds": f"d {case['d']}..{case['d']}, s 128..65536 /128"}
        body, layouts = laid_out(problem, BODY, BACKWARD)
        return render(problem, body, config, layouts=layouts, keys=keys, like=case)
