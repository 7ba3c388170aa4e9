# nightshift candidate
# problem: rmsnorm
# language: triton
# kind: own_kernel
# determinism: bitwise
# differentiable: yes
# class: values of upstream gradients
# refused: gradient

import torch
import triton
import triton.language as tl


@triton.jit
def forward(x, weight, out, scales, n, row_stride, column_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(x + row * row_stride + column * column_stride, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 0) / n + eps)
    tl.store(scales + row, scale)
    tl.store(out + row * n + column, v * scale * w, mask=inside)


@triton.jit
def backward_x(x, weight, dy, scales, dx, n, row_stride, column_stride, dy_row, dy_column, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(x + row * row_stride + column * column_stride, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(tl.float32)
    g = tl.where(tl.abs(g) < float("inf"), g, 0.0)  # one bad token must not spoil a row
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(scales + row)
    wg = w * g
    along = tl.sum(wg * v, 0) / n
    tl.store(dx + row * n + column, scale * (wg - v * along * scale * scale), mask=inside)


@triton.jit
def backward_weight(
    x, dy, scales, dw, m, n, row_stride, column_stride, dy_row, dy_column, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, m, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row[:, None] < m) & (column[None, :] < n)
        v = tl.load(x + row[:, None] * row_stride + column[None, :] * column_stride, mask=inside, other=0.0)
        g = tl.load(dy + row[:, None] * dy_row + column[None, :] * dy_column, mask=inside, other=0.0).to(tl.float32)
        g = tl.where(tl.abs(g) < float("inf"), g, 0.0)
        scale = tl.load(scales + row, mask=row < m, other=0.0)
        total += g * v.to(tl.float32) * scale[:, None]
    tl.store(dw + column, tl.sum(total, 0), mask=column < n)


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        m, n = x.shape
        out = torch.empty((m, n), dtype=x.dtype, device=x.device)
        scales = torch.empty((m,), dtype=torch.float32, device=x.device)
        if m:
            block = triton.next_power_of_2(n)
            forward[(m,)](x, weight, out, scales, n, x.stride(0), x.stride(1), eps, BLOCK=block, num_warps=8)
        ctx.save_for_backward(x, weight, scales)
        return out

    @staticmethod
    def backward(ctx, dy):
        x, weight, scales = ctx.saved_tensors
        m, n = x.shape
        dx = torch.empty((m, n), dtype=x.dtype, device=x.device)
        dw = torch.empty((n,), dtype=x.dtype, device=x.device)
        strides = (x.stride(0), x.stride(1), dy.stride(0), dy.stride(1))
        if m:
            backward_x[(m,)](x, weight, dy, scales, dx, n, *strides, BLOCK=triton.next_power_of_2(n), num_warps=8)
        backward_weight[(triton.cdiv(n, 64),)](x, dy, scales, dw, m, n, *strides, ROWS=32, BLOCK=64)
        return dx, dw, None


def entry(x, weight, eps):
    return RmsNorm.apply(x, weight, eps)
