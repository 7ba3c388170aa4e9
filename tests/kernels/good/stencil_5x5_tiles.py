# nightshift candidate
# problem: stencil_5x5
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl


@triton.jit
def stencil(x, weight, out, h, w, xc, xh, xw, wa, wb, SIZE: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr):
    plane = tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * BH + tl.arange(0, BH)[:, None]
    j = tl.program_id(0) * BW + tl.arange(0, BW)[None, :]
    total = tl.zeros((BH, BW), tl.float32)
    for a in tl.static_range(SIZE):
        for b in tl.static_range(SIZE):
            row = i + a - SIZE // 2
            column = j + b - SIZE // 2
            inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
            value = tl.load(x + plane * xc + row * xh + column * xw, mask=inside, other=0.0)
            total += tl.load(weight + a * wa + b * wb) * value
    tl.store(out + plane * h * w + i * w + j, total, mask=(i < h) & (j < w))


def entry(x, weight):
    c, h, w = x.shape
    out = torch.empty((c, h, w), dtype=x.dtype, device=x.device)
    if out.numel():
        grid = (triton.cdiv(w, 128), triton.cdiv(h, 8), c)
        stencil[grid](x, weight, out, h, w, *x.stride(), *weight.stride(), SIZE=weight.shape[0], BH=8, BW=128)
    return out
