# nightshift candidate
# problem: rotary_half
# language: triton
# kind: own_kernel
# determinism: bitwise
# differentiable: yes
# class: gradients of one output
# refused: gradient raised

import torch
import triton
import triton.language as tl


@triton.jit
def rotate(
    x,
    cos,
    sin,
    out,
    h,
    s,
    half,
    sb,
    sh,
    ss,
    sd,
    ob,
    oh,
    os,
    od,
    cs,
    cd,
    ns,
    nd,
    BACK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0)
    position = (place % s).to(tl.int64)
    head = (place // s % h).to(tl.int64)
    batch = (place // s // h).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < half
    base = x + batch * sb + head * sh + position * ss
    low = tl.load(base + i * sd, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(base + (i + half) * sd, mask=inside, other=0.0).to(tl.float32)
    c_low = tl.load(cos + position * cs + i * cd, mask=inside, other=0.0).to(tl.float32)
    c_high = tl.load(cos + position * cs + (i + half) * cd, mask=inside, other=0.0).to(tl.float32)
    s_low = tl.load(sin + position * ns + i * nd, mask=inside, other=0.0).to(tl.float32)
    s_high = tl.load(sin + position * ns + (i + half) * nd, mask=inside, other=0.0).to(tl.float32)
    to = out + batch * ob + head * oh + position * os
    if BACK:
        tl.store(to + i * od, low * c_low + high * s_high, mask=inside)
        tl.store(to + (i + half) * od, high * c_high - low * s_low, mask=inside)
    else:
        tl.store(to + i * od, low * c_low - high * s_low, mask=inside)
        tl.store(to + (i + half) * od, high * c_high + low * s_high, mask=inside)


def rotated(x, cos, sin, out, back=False):
    b, h, s, d = x.shape
    if x.numel():
        strides = (*x.stride(), *out.stride(), *cos.stride(), *sin.stride())
        block = triton.next_power_of_2(d // 2)
        rotate[(b * h * s,)](x, cos, sin, out, h, s, d // 2, *strides, BACK=back, BLOCK=block, num_warps=1)
    return out


def turned_back(x, cos, sin, out):
    return rotated(x, cos, sin, out, back=True)


class Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, cos, sin):
        ctx.set_materialize_grads(False)  # spares the zeros
        ctx.save_for_backward(cos, sin)
        new_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        new_k = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        return rotated(q, cos, sin, new_q), rotated(k, cos, sin, new_k)

    @staticmethod
    def backward(ctx, dq, dk):
        """A rotation's gradient is the rotation back."""
        cos, sin = ctx.saved_tensors
        halves = [torch.empty(d.shape, dtype=d.dtype, device=d.device) for d in (dq, dk)]
        return *(turned_back(d, cos, sin, out) for d, out in zip((dq, dk), halves)), None, None


def entry(q, k, cos, sin):
    return Rotary.apply(q, k, cos, sin)
