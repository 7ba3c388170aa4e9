# nightshift candidate
# problem: layernorm
# language: triton
# kind: own_kernel
# determinism: bitwise
# differentiable: yes
# class: values of weights
# refused: gradient

import torch
import triton
import triton.language as tl


@triton.jit
def forward(x, weight, bias, out, scaled, stats, n, row_stride, column_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(x + row * row_stride + column * column_stride, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / n
    centred = tl.where(inside, v - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / n + eps)
    tl.store(stats + row * 2, mean)
    tl.store(stats + row * 2 + 1, scale)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(scaled + row * n + column, centred * scale * w, mask=inside)
    tl.store(out + row * n + column, centred * scale * w + b, mask=inside)


@triton.jit
def backward_x(normal_of, weight, dy, stats, dx, n, dy_row, dy_column, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    g = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(stats + row * 2 + 1)
    scaled = tl.load(normal_of + row * n + column, mask=inside, other=0.0)
    normal = tl.where(inside, scaled / tl.where(inside, w, 1.0), 0.0)
    wg = w * g
    first = tl.sum(wg, 0) / n
    second = tl.sum(wg * normal, 0) / n
    tl.store(dx + row * n + column, (wg - first - normal * second) * scale, mask=inside)


@triton.jit
def backward_parameters(
    x,
    dy,
    stats,
    dw,
    db,
    m,
    n,
    row_stride,
    column_stride,
    dy_row,
    dy_column,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a block of columns, all rows in order: no atomics, so the sums repeat bit for bit."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sum_w = tl.zeros((ROWS, BLOCK), tl.float32)
    sum_b = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, m, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row[:, None] < m) & (column[None, :] < n)
        v = tl.load(x + row[:, None] * row_stride + column[None, :] * column_stride, mask=inside, other=0.0)
        g = tl.load(dy + row[:, None] * dy_row + column[None, :] * dy_column, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(stats + row * 2, mask=row < m, other=0.0)
        scale = tl.load(stats + row * 2 + 1, mask=row < m, other=0.0)
        sum_w += g * (v.to(tl.float32) - mean[:, None]) * scale[:, None]
        sum_b += g
    tl.store(dw + column, tl.sum(sum_w, 0), mask=column < n)
    tl.store(db + column, tl.sum(sum_b, 0), mask=column < n)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        m, n = x.shape
        out = torch.empty((m, n), dtype=x.dtype, device=x.device)
        stats = torch.empty((m, 2), dtype=torch.float32, device=x.device)
        scaled = torch.empty((m, n), dtype=torch.float32, device=x.device)
        if m:
            block = triton.next_power_of_2(n)
            strides = (x.stride(0), x.stride(1))
            forward[(m,)](x, weight, bias, out, scaled, stats, n, *strides, eps, BLOCK=block, num_warps=8)
        ctx.save_for_backward(x, weight, scaled, stats)
        return out

    @staticmethod
    def backward(ctx, dy):
        x, weight, scaled, stats = ctx.saved_tensors
        m, n = x.shape
        dx = torch.empty((m, n), dtype=x.dtype, device=x.device)
        dw = torch.empty((n,), dtype=x.dtype, device=x.device)
        db = torch.empty((n,), dtype=x.dtype, device=x.device)
        strides = (x.stride(0), x.stride(1), dy.stride(0), dy.stride(1))
        if m:
            block = triton.next_power_of_2(n)
            backward_x[(m,)](scaled, weight, dy, stats, dx, n, *strides[2:], BLOCK=block, num_warps=8)
        grid = (triton.cdiv(n, 64),)
        backward_parameters[grid](x, dy, stats, dw, db, m, n, *strides, ROWS=32, BLOCK=64)
        return dx, dw, db, None


def entry(x, weight, bias, eps):
    return LayerNorm.apply(x, weight, bias, eps)
