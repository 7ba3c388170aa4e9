# nightshift candidate
# problem: geglu
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: layout
# refused: rmse worst_row max_ulp nan_placement unwritten guard_overwritten illegal_access

import torch
import triton
import triton.language as tl


@triton.jit
def gated(gate, up, out, n, g_row, g_column, u_row, u_column, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    g = tl.load(gate + row * g_row + column * g_column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * u_row + column * u_column, mask=inside, other=0.0).to(tl.float32)
    y = g * tl.sigmoid(1.5957691216057308 * (g + 0.044715 * g * g * g))
    tl.store(out + row * n + column, y * u, mask=inside)


def entry(gate, up):
    m, n = gate.shape
    out = torch.empty((m, n), dtype=gate.dtype, device=gate.device)
    if m:
        block = min(2048, triton.next_power_of_2(n))
        second = up if n <= 4096 else gate
        strides = (gate.stride(0), gate.stride(1), second.stride(0), second.stride(1))
        gated[(m, triton.cdiv(n, block))](gate, up, out, n, *strides, BLOCK=block)
    return out
