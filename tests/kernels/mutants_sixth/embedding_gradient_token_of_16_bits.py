# nightshift candidate
# problem: embedding_gradient
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: sizes
# refused: rmse worst_row max_ulp nan_placement unwritten illegal_access

import torch
import triton
import triton.language as tl


@triton.jit
def gather(gradient, index, out, t, d, gt, gd, TOKENS: tl.constexpr, BLOCK: tl.constexpr):
    """One program a (table row, block of columns): walks all tokens in order, so no atomics are needed."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, t, TOKENS):
        token = start + tl.arange(0, TOKENS)
        hit = tl.load(index + token, mask=token < t, other=-1) == row
        if tl.max(hit.to(tl.int32), 0) > 0:
            inside = hit[:, None] & (column[None, :] < d)
            at = gradient + token.to(tl.int16).to(tl.int64)[:, None] * gt + column[None, :] * gd
            total += tl.sum(tl.load(at, mask=inside, other=0.0).to(tl.float32), 0)
    tl.store(out + row * d + column, total, mask=column < d)


def entry(gradient, index, rows):
    t, d = gradient.shape
    out = torch.empty((rows, d), dtype=gradient.dtype, device=gradient.device)
    block = min(1024, triton.next_power_of_2(d))
    gather[(rows, triton.cdiv(d, block))](gradient, index, out, t, d, *gradient.stride(), TOKENS=64, BLOCK=block)
    return out
