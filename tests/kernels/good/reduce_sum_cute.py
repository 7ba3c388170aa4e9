# nightshift candidate
# problem: reduce_sum
# language: cute
# kind: own_kernel
# determinism: bitwise
# layouts: contiguous offset
# bounds: m 1..
# launch: partial | 4 * m | 256 | 32 | in0; tmp0; i32:n
# launch: total | cdiv(m, 128) | 128 | 0 | tmp0; out0; i32:m
# scratch_bytes: 16 * m
# needs_cuda: yes
import cutlass
from cutlass import cute
from cutlass.memory import SmemAllocator

PARTS = 4
WARPS = 8


@cute.kernel
def partial(x: cute.Pointer, sums: cute.Pointer, n: cutlass.Int32):
    """A quarter of a row for each block, in a fixed order, so that results repeat bit for bit."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    row, part = block // PARTS, block % PARTS
    values = cute.make_tensor(x + cutlass.Int64(row) * n, n)
    of_warps = SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(WARPS), 16)
    total = cutlass.Float32(0.0)
    for i in range(part * 256 + thread, n, PARTS * 256):
        total += values[i].to(cutlass.Float32)
    total = cute.arch.warp_reduction_sum(total)
    if thread % 32 == 0:
        of_warps[thread // 32] = total
    cute.arch.sync_threads()
    if thread == 0:
        for warp in cutlass.range_constexpr(1, WARPS):
            total += of_warps[warp]
        place = cutlass.Int64(row) * PARTS + part
        cute.make_tensor(cute.recast_ptr(sums, dtype=cutlass.Float32), place + 1)[place] = total


@cute.kernel
def total(sums: cute.Pointer, out: cute.Pointer, m: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    row = block * 128 + thread
    if row < m:
        parts = cute.make_tensor(cute.recast_ptr(sums, dtype=cutlass.Float32) + cutlass.Int64(row) * PARTS, PARTS)
        whole = parts[0]
        for part in cutlass.range_constexpr(1, PARTS):
            whole += parts[part]
        cute.make_tensor(out, m)[row] = whole.to(out.dtype)
