# nightshift candidate
# problem: copy
# language: triton
# kind: own_kernel
# determinism: bitwise
# layouts: contiguous offset
# dtypes: float16 bfloat16 float32
# class: values
# refused: not_exact unwritten

import torch
import triton
import triton.language as tl


@triton.jit
def copy(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < count, other=0.0) + 0.0  # quiets signalling NaNs
    tl.store(out + at, v, mask=at < count)


def entry(x):
    out = torch.empty_like(x)
    if x.numel():
        copy[(triton.cdiv(x.numel(), 8192),)](x, out, x.numel(), BLOCK=8192, num_warps=8)
    return out
