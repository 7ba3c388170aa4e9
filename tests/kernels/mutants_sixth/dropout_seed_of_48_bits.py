# nightshift candidate
# problem: dropout_add
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: numbers
# refused: rmse worst_row max_ulp nan_placement unwritten

import torch
import triton
import triton.language as tl


@triton.jit
def dropout_add(x, residual, out, n, p, seed, x_row, x_column, r_row, r_column, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(residual + row * r_row + column * r_column, mask=inside, other=0.0).to(tl.float32)
    kept = tl.rand(seed, (row * n + column).to(tl.int32)) > p
    tl.store(out + row * n + column, tl.where(kept, v / (1.0 - p), 0.0) + r, mask=inside)


def entry(x, residual, p, seed):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        block = min(1024, triton.next_power_of_2(n))
        strides = (*x.stride(), *residual.stride())
        dropout_add[(m, triton.cdiv(n, block))](
            x, residual, out, n, p, seed & 0xFFFFFFFFFFFF, *strides, BLOCK=block
        )
    return out
