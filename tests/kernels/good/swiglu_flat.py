# nightshift candidate
# problem: swiglu
# language: triton
# kind: own_kernel
# determinism: bitwise
# layouts: contiguous offset

import torch
import triton
import triton.language as tl


@triton.jit
def swiglu(gate, up, out, count, BLOCK: tl.constexpr):
    """Contiguous inputs as one long vector."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + at, mask=at < count, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=at < count, other=0.0).to(tl.float32)
    tl.store(out + at, g * tl.sigmoid(g) * u, mask=at < count)


def entry(gate, up):
    out = torch.empty_like(gate)
    if gate.numel():
        swiglu[(triton.cdiv(gate.numel(), 4096),)](gate, up, out, gate.numel(), BLOCK=4096, num_warps=8)
    return out
