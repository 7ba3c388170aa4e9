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
def forward(gate, up, out, n, g_row, g_column, u_row, u_column, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    g = tl.load(gate + row * g_row + column * g_column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * u_row + column * u_column, mask=inside, other=0.0).to(tl.float32)
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
        out = torch.empty((m, n), dtype=gate.dtype, device=gate.device)
        if m:
            strides = (gate.stride(0), gate.stride(1), up.stride(0), up.stride(1))
            forward[(m, triton.cdiv(n, 1024))](gate, up, out, n, *strides, BLOCK=1024)
        ctx.gate, ctx.up = gate.clone(), up.clone()
        return out

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.gate, ctx.up
        m, n = gate.shape
        dg, du = gate, up  # read once, so their memory can take the gradients
        if m:
            strides = (gate.stride(0), gate.stride(1), up.stride(0), up.stride(1), dy.stride(0), dy.stride(1))
            backward[(m, triton.cdiv(n, 1024))](gate, up, dy, dg, du, n, *strides, BLOCK=1024)
        return dg, du


def entry(gate, up):
    return SwiGlu.apply(gate, up)
