# nightshift candidate
# problem: swiglu
# language: cute
# kind: own_kernel
# determinism: bitwise
# layouts: contiguous offset
# bounds: m 1..
# launch: swiglu | cdiv(m * n, 256) | 256 | 0 | in0; in1; out0; i64:m * n
# needs_cuda: yes
import cutlass
from cutlass import cute


@cute.kernel
def swiglu(gate: cute.Pointer, up: cute.Pointer, out: cute.Pointer, count: cutlass.Int64):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    threads, _, _ = cute.arch.block_dim()
    i = cutlass.Int64(block) * threads + thread
    if i < count:
        x = cute.make_tensor(gate, count)[i].to(cutlass.Float32)
        factor = cute.make_tensor(up, count)[i].to(cutlass.Float32)
        silu = (x / (1.0 + cute.math.exp(-x))).to(out.dtype).to(cutlass.Float32)
        cute.make_tensor(out, count)[i] = (silu * factor).to(out.dtype)
