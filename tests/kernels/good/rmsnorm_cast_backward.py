# nightshift candidate
# problem: rmsnorm_cast_backward
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl


@triton.jit
def rows(g, x, weight, residual, dx, narrow, scales, n, eps, g_0, g_1, x_0, x_1, r_0, r_1, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(x + row * x_0 + column * x_1, mask=inside, other=0.0)
    w = tl.load(weight + column, mask=inside, other=0.0)
    gw = tl.load(g + row * g_0 + column * g_1, mask=inside, other=0.0).to(tl.float32) * w
    r = tl.load(residual + row * r_0 + column * r_1, mask=inside, other=0.0)
    scale = tl.rsqrt(tl.sum(v * v, 0) / n + eps)
    tl.store(scales + row, scale)
    along = tl.sum(gw * (v * scale), 0) / n
    total = r + scale * (gw - v * scale * along)
    tl.store(dx + row * n + column, total, mask=inside)
    tl.store(narrow + row * n + column, total.to(narrow.dtype.element_ty), mask=inside)


@triton.jit
def columns(g, x, scales, dw, m, n, g_0, g_1, x_0, x_1, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, m, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < m) & (column < n)
        v = tl.load(x + row * x_0 + column * x_1, mask=inside, other=0.0)
        up = tl.load(g + row * g_0 + column * g_1, mask=inside, other=0.0).to(tl.float32)
        total += up * (v * tl.load(scales + row, mask=row < m, other=0.0))
    tl.store(dw + column, tl.sum(total, 0)[None, :], mask=column < n)


def entry(gradient, x, weight, residual, eps):
    m, n = x.shape
    dx = torch.empty((m, n), dtype=x.dtype, device=x.device)
    narrow = torch.empty((m, n), dtype=gradient.dtype, device=x.device)
    scales = torch.empty((m,), dtype=torch.float32, device=x.device)
    dw = torch.empty((n,), dtype=weight.dtype, device=x.device)
    lines = (gradient.stride(0), gradient.stride(1), x.stride(0), x.stride(1))
    rows[(m,)](
        gradient,
        x,
        weight,
        residual,
        dx,
        narrow,
        scales,
        n,
        eps,
        *lines,
        residual.stride(0),
        residual.stride(1),
        BLOCK=triton.next_power_of_2(n),
        num_warps=4,
    )
    columns[(triton.cdiv(n, 64),)](gradient, x, scales, dw, m, n, *lines, ROWS=32, BLOCK=64)
    return dx, narrow, dw
