# nightshift candidate
# problem: layernorm
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: determinism
# refused: determinism
# differentiable: yes
# dtypes: float32
# needs_cuda: yes

import torch
import triton
import triton.language as tl


@triton.jit
def forward(x, weight, bias, out, stats, n, row_stride, column_stride, eps, BLOCK: tl.constexpr):
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
    tl.store(out + row * n + column, centred * scale * w + b, mask=inside)


@triton.jit
def backward_x(x, weight, dy, stats, dx, n, row_stride, column_stride, dy_row, dy_column, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(x + row * row_stride + column * column_stride, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(stats + row * 2)
    scale = tl.load(stats + row * 2 + 1)
    normal = tl.where(inside, (v - mean) * scale, 0.0)
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
    """Sixteen programs share a block of columns, and whoever comes first is added first."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sum_w = tl.zeros((ROWS, BLOCK), tl.float32)
    sum_b = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(tl.program_id(1) * ROWS, m, 16 * ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row[:, None] < m) & (column[None, :] < n)
        v = tl.load(x + row[:, None] * row_stride + column[None, :] * column_stride, mask=inside, other=0.0)
        g = tl.load(dy + row[:, None] * dy_row + column[None, :] * dy_column, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(stats + row * 2, mask=row < m, other=0.0)
        scale = tl.load(stats + row * 2 + 1, mask=row < m, other=0.0)
        sum_w += g * (v.to(tl.float32) - mean[:, None]) * scale[:, None]
        sum_b += g
    tl.atomic_add(dw + column, tl.sum(sum_w, 0), mask=column < n)
    tl.atomic_add(db + column, tl.sum(sum_b, 0), mask=column < n)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        m, n = x.shape
        out = torch.empty((m, n), dtype=x.dtype, device=x.device)
        stats = torch.empty((m, 2), dtype=torch.float32, device=x.device)
        if m:
            block = triton.next_power_of_2(n)
            forward[(m,)](x, weight, bias, out, stats, n, x.stride(0), x.stride(1), eps, BLOCK=block, num_warps=8)
        ctx.save_for_backward(x, weight, stats)
        return out

    @staticmethod
    def backward(ctx, dy):
        x, weight, stats = ctx.saved_tensors
        m, n = x.shape
        dx = torch.empty((m, n), dtype=x.dtype, device=x.device)
        dw = torch.zeros((n,), dtype=torch.float32, device=x.device)
        db = torch.zeros((n,), dtype=torch.float32, device=x.device)
        strides = (x.stride(0), x.stride(1), dy.stride(0), dy.stride(1))
        if m:
            block = triton.next_power_of_2(n)
            backward_x[(m,)](x, weight, dy, stats, dx, n, *strides, BLOCK=block, num_warps=8)
        grid = (triton.cdiv(n, 64), 16)
        backward_parameters[grid](x, dy, stats, dw, db, m, n, *strides, ROWS=32, BLOCK=64)
        return dx, dw, db, None


def entry(x, weight, bias, eps):
    return LayerNorm.apply(x, weight, bias, eps)
