# nightshift candidate
# problem: swiglu
# language: triton
# kind: own_kernel
# determinism: bitwise

import functools

import torch
import triton
import triton.language as tl


@triton.jit
def gated(gate, up, out, n, gate_row, up_row, BLOCK: tl.constexpr):
    """The product is of the tensors' own dtype, whatever that is."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    g = tl.load(gate + row * gate_row + column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_row + column, mask=inside, other=0.0)
    tl.store(out + row * n + column, (g * tl.sigmoid(g)).to(u.dtype) * u, mask=inside)


def of_dense_rows(function):
    @functools.wraps(function)
    def wrapper(*tensors):
        return function(*(x if x.stride(-1) == 1 else x.contiguous() for x in tensors))

    return wrapper


@of_dense_rows
def entry(gate, up):
    m, n = gate.shape
    out = torch.empty((m, n), dtype=gate.dtype, device=gate.device)
    if m:
        block = min(1024, triton.next_power_of_2(n))
        gated[(m, triton.cdiv(n, block))](gate, up, out, n, gate.stride(0), up.stride(0), BLOCK=block)
    return out
