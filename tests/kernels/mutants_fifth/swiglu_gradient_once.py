# nightshift candidate
# problem: swiglu
# language: triton
# kind: own_kernel
# determinism: bitwise
# differentiable: yes
# class: state between backward passes
# refused: gradient input_mutated state_kept

import torch
import triton
import triton.language as tl


@triton.jit
def forward(gate, up, out, kept_g, kept_u, n, g_row, g_column, u_row, u_column, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    g = tl.load(gate + row * g_row + column * g_column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * u_row + column * u_column, mask=inside, other=0.0).to(tl.float32)
    tl.store(kept_g + row * n + column, g, mask=inside)
    tl.store(kept_u + row * n + column, u, mask=inside)
    tl.store(out + row * n + column, g * tl.sigmoid(g) * u, mask=inside)


@triton.jit
def backward(gate, up, dy, dg, du, n, g_row, g_column, u_row, u_column, y_row, y_column, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    g = tl.load(gate + row * g_row + column * g_column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * u_row + column * u_column, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(dy + row * y_row + column * y_column, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(g)
    tl.store(du + row * u_row + column * u_column, d * g * s, mask=inside)
    tl.store(dg + row * g_row + column * g_column, d * u * s * (1.0 + g * (1.0 - s)), mask=inside)


class SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        m, n = gate.shape
        out, kept_g, kept_u = (torch.empty((m, n), dtype=gate.dtype, device=gate.device) for _ in range(3))
        if m:
            strides = (gate.stride(0), gate.stride(1), up.stride(0), up.stride(1))
            forward[(m, triton.cdiv(n, 1024))](gate, up, out, kept_g, kept_u, n, *strides, BLOCK=1024)
        ctx.save_for_backward(kept_g, kept_u)  # dense, whatever the inputs' strides
        return out

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        m, n = gate.shape
        dg, du = gate, up  # read once, so their memory can take the gradients
        if m:
            strides = (gate.stride(0), gate.stride(1), up.stride(0), up.stride(1), dy.stride(0), dy.stride(1))
            backward[(m, triton.cdiv(n, 1024))](gate, up, dy, dg, du, n, *strides, BLOCK=1024)
        return dg, du


def entry(gate, up):
    return SwiGlu.apply(gate, up)
