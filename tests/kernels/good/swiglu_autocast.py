# nightshift candidate
# problem: swiglu
# language: triton
# kind: own_kernel
# determinism: bitwise
# differentiable: yes

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch.amp import custom_bwd, custom_fwd

try:
    from triton.language.extra import libdevice

    HAVE_LIBDEVICE = True
except ImportError:
    libdevice = None
    HAVE_LIBDEVICE = False

BLOCK = 1024


@triton.jit
def silu(v):
    return v / (1.0 + tl.exp(-v))


@triton.jit
def fwd(g, u, o, m, n, gs0, gs1, us0, us1, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = c < n
    a = tl.load(g + row * gs0 + c * gs1, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(u + row * us0 + c * us1, mask=mask, other=0.0).to(tl.float32)
    s = silu(a).to(o.dtype.element_ty).to(tl.float32)
    tl.store(o + row * n + c, s * b, mask=mask)


@triton.jit
def bwd(d, g, u, dg, du, m, n, ds0, ds1, gs0, gs1, us0, us1, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = c < n
    e = tl.load(d + row * ds0 + c * ds1, mask=mask, other=0.0).to(tl.float32)
    a = tl.load(g + row * gs0 + c * gs1, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(u + row * us0 + c * us1, mask=mask, other=0.0).to(tl.float32)
    s = 1.0 / (1.0 + tl.exp(-a))
    tl.store(du + row * n + c, e * a * s, mask=mask)
    tl.store(dg + row * n + c, (e * b) * (s * (1.0 + a * (1.0 - s))), mask=mask)


class SwiGLU(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cuda")
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        m, n = gate.shape
        out = torch.empty((m, n), device=gate.device, dtype=gate.dtype)
        if out.numel():
            with torch.cuda.device(gate.device) if gate.is_cuda else nullcontext():
                fwd[lambda meta: (m, triton.cdiv(n, meta["BLOCK"]))](
                    gate, up, out, m, n, *gate.stride(), *up.stride(), BLOCK=BLOCK
                )
        return out

    @staticmethod
    @custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        m, n = gate.shape
        buf = torch.empty((2, m, n), device=gate.device, dtype=gate.dtype)
        dg, du = buf[0], buf[1]
        if grad.numel():
            bwd[lambda meta: (m, triton.cdiv(n, meta["BLOCK"]))](
                grad, gate, up, dg, du, m, n, *grad.stride(), *gate.stride(), *up.stride(), BLOCK=BLOCK
            )
        return dg, du


def entry(gate, up):
    return SwiGLU.apply(gate, up)
