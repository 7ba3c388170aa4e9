# nightshift candidate
# problem: copy
# language: triton
# kind: own_kernel
# determinism: bitwise
# layouts: contiguous offset

import torch
import triton
import triton.language as tl


@triton.jit
def copy(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < count), mask=at < count)


def entry(x):
    out = torch.empty_like(x)
    if x.numel():
        copy[(triton.cdiv(x.numel(), 8192),)](x, out, x.numel(), BLOCK=8192, num_warps=8)
    return out
