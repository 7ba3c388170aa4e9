# nightshift candidate
# problem: rotary_interleaved
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: shape
# refused: rmse worst_row max_ulp nan_placement
# needs_cuda: yes

import torch
import triton
import triton.language as tl


@triton.jit
def rotate(x, cos, sin, out, h, s, half, sb, sh, ss, sd, cs, cd, ns, nd, BLOCK: tl.constexpr):
    """One program a (batch, head, position): both elements of each pair."""
    place = tl.program_id(0)
    position = (place % s).to(tl.int64)
    head = (place // s % h).to(tl.int64)
    batch = (place // s // h).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    inside = pair < half
    base = x + batch * sb + head * sh + position * ss
    even = tl.load(base + 2 * pair * sd, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(base + (2 * pair + 1) * sd, mask=inside, other=0.0).to(tl.float32)
    turn = position % 4096
    c = tl.load(cos + turn * cs + pair * cd, mask=inside, other=0.0).to(tl.float32)
    n = tl.load(sin + turn * ns + pair * nd, mask=inside, other=0.0).to(tl.float32)
    to = out + place.to(tl.int64) * 2 * half + 2 * pair
    tl.store(to, even * c - odd * n, mask=inside)
    tl.store(to + 1, even * n + odd * c, mask=inside)


def entry(x, cos, sin):
    b, h, s, d = x.shape
    out = torch.empty((b, h, s, d), dtype=x.dtype, device=x.device)
    if out.numel():
        block = triton.next_power_of_2(d // 2)
        strides = (*x.stride(), *cos.stride(), *sin.stride())
        rotate[(b * h * s,)](x, cos, sin, out, h, s, d // 2, *strides, BLOCK=block, num_warps=1)
    return out
