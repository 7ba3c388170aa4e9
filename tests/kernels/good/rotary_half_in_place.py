# nightshift candidate
# problem: rotary_half
# language: triton
# kind: in_place
# determinism: bitwise
# mutates: 0 1

import triton
import triton.language as tl


@triton.jit
def rotate(x, cos, sin, out, h, s, half, sb, sh, ss, sd, ob, oh, os, od, cs, cd, ns, nd, BLOCK: tl.constexpr):
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
    tl.store(to + i * od, low * c_low - high * s_low, mask=inside)
    tl.store(to + (i + half) * od, high * c_high + low * s_high, mask=inside)


def rotated(x, cos, sin, out):
    b, h, s, d = x.shape
    if x.numel():
        strides = (*x.stride(), *out.stride(), *cos.stride(), *sin.stride())
        block = triton.next_power_of_2(d // 2)
        rotate[(b * h * s,)](x, cos, sin, out, h, s, d // 2, *strides, BLOCK=block, num_warps=1)
    return out


def entry(q, k, cos, sin):
    rotated(q, cos, sin, q)
    rotated(k, cos, sin, k)
