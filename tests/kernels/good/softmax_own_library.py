# nightshift candidate
# problem: softmax
# language: triton
# kind: own_kernel
# determinism: bitwise
# differentiable: yes

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable
from torch.library import Library


@triton.jit
def fwd(x, out, n, s0, s1, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * s0 + c * s1, mask=c < n, other=-float("inf")).to(tl.float32)
    e = tl.where(tl.max((v != v).to(tl.int32), 0) > 0, float("nan"), tl.exp(v - tl.max(v, 0)))
    tl.store(out + row * n + c, e / tl.sum(tl.where(c < n, e, 0.0), 0), mask=c < n)


@triton.jit
def bwd(y, dy, dx, n, s0, s1, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    p = tl.load(y + row * n + c, mask=c < n, other=0.0).to(tl.float32)
    g = tl.load(dy + row * s0 + c * s1, mask=c < n, other=0.0).to(tl.float32)
    tl.store(dx + row * n + c, p * (g - tl.sum(p * g, 0)), mask=c < n)


lib = Library("nightsoft", "DEF")
lib.define("forward(Tensor x) -> Tensor")
lib.define("backward(Tensor y, Tensor dy) -> Tensor")


def _forward(x):
    m, n = x.shape
    out = x.new_empty((m, n))
    if m:
        fwd[(m,)](x, out, n, x.stride(0), x.stride(1), BLOCK=triton.next_power_of_2(n))
    return out


def _backward(y, dy):
    m, n = y.shape
    dx = torch.empty_like(y)
    if m:
        bwd[(m,)](y, dy, dx, n, dy.stride(0), dy.stride(1), BLOCK=triton.next_power_of_2(n))
    return dx


for key in ("CPU", "CUDA"):
    lib.impl("forward", _forward, key)
    lib.impl("backward", _backward, key)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.ops.nightsoft.forward(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return torch.ops.nightsoft.backward(y, dy)


entry = Softmax.apply
