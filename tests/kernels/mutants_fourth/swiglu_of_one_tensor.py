# nightshift candidate
# problem: swiglu
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: alias
# refused: rmse worst_row max_ulp unwritten

import torch
import triton
import triton.language as tl


@triton.jit
def gated(gate, up, out, n, g_row, g_column, u_row, u_column, ONE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    g = tl.load(gate + row * g_row + column * g_column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * u_row + column * u_column, mask=inside, other=0.0).to(tl.float32)
    y = g / (1.0 + tl.exp(-g))
    if ONE:  # x · x · sigmoid(x): loaded once
        u = y
    tl.store(out + row * n + column, y * u, mask=inside)


def entry(gate, up):
    m, n = gate.shape
    out = torch.empty((m, n), dtype=gate.dtype, device=gate.device)
    if m:
        block = min(2048, triton.next_power_of_2(n))
        strides = (gate.stride(0), gate.stride(1), up.stride(0), up.stride(1))
        one = gate.data_ptr() == up.data_ptr()
        gated[(m, triton.cdiv(n, block))](gate, up, out, n, *strides, ONE=one, BLOCK=block)
    return out
