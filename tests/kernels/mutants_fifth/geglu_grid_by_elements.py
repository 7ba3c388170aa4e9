# nightshift candidate
# problem: geglu
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: state between calls
# refused: rmse worst_row max_ulp nan_placement unwritten state_kept host_died illegal_access

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


GRIDS = {0: ((1, 1), 1)}


def grid_of(gate):
    """Of a tensor's size: worked out once."""
    m, n = gate.shape
    block = min(2048, triton.next_power_of_2(n))
    return GRIDS.setdefault(gate.numel(), ((m, triton.cdiv(n, block)), block))


def entry(gate, up):
    m, n = gate.shape
    out = torch.empty((m, n), dtype=gate.dtype, device=gate.device)
    if m:
        grid, block = grid_of(gate)
        strides = (gate.stride(0), gate.stride(1), up.stride(0), up.stride(1))
        gated[grid](gate, up, out, n, *strides, BLOCK=block)
    return out
