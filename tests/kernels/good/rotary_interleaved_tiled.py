# nightshift candidate
# problem: rotary_interleaved
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl


@triton.jit
def rotate(x, cos, sin, out, h, s, half, sb, sh, ss, sd, cs, cd, ns, nd, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """One program a (batch, position): the tables are loaded once for a tile of heads."""
    position = tl.program_id(0).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    c = tl.load(cos + position * cs + pair * cd, mask=pair < half, other=0.0).to(tl.float32)[None, :]
    n = tl.load(sin + position * ns + pair * nd, mask=pair < half, other=0.0).to(tl.float32)[None, :]
    for first in range(0, h, HEADS):
        head = (first + tl.arange(0, HEADS)).to(tl.int64)
        inside = (head[:, None] < h) & (pair[None, :] < half)
        base = x + batch * sb + head[:, None] * sh + position * ss
        even = tl.load(base + 2 * pair[None, :] * sd, mask=inside, other=0.0).to(tl.float32)
        odd = tl.load(base + (2 * pair[None, :] + 1) * sd, mask=inside, other=0.0).to(tl.float32)
        to = out + ((batch * h + head[:, None]) * s + position) * 2 * half + 2 * pair[None, :]
        tl.store(to, even * c - odd * n, mask=inside)
        tl.store(to + 1, even * n + odd * c, mask=inside)


def entry(x, cos, sin):
    b, h, s, d = x.shape
    out = torch.empty((b, h, s, d), dtype=x.dtype, device=x.device)
    if out.numel():
        block = triton.next_power_of_2(d // 2)
        strides = (*x.stride(), *cos.stride(), *sin.stride())
        rotate[(s, b)](x, cos, sin, out, h, s, d // 2, *strides, HEADS=4, BLOCK=block)
    return out
