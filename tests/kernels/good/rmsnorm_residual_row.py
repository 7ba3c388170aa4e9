# nightshift candidate
# problem: rmsnorm_residual
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl


@triton.jit
def add_and_norm(x, residual, weight, out, total, n, x_row, x_column, r_row, r_column, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    a = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(residual + row * r_row + column * r_column, mask=inside, other=0.0).to(tl.float32)
    v = a + b
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + row * n + column, v, mask=inside)
    tl.store(out + row * n + column, v * tl.rsqrt(tl.sum(v * v, 0) / n + eps) * w, mask=inside)


def entry(x, residual, weight, eps):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    total = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        strides = (x.stride(0), x.stride(1), residual.stride(0), residual.stride(1))
        block = triton.next_power_of_2(n)
        add_and_norm[(m,)](x, residual, weight, out, total, n, *strides, eps, BLOCK=block, num_warps=8)
    return out, total
