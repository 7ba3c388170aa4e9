# nightshift candidate
# problem: rmsnorm_residual
# language: triton
# kind: own_kernel
# determinism: bitwise
# differentiable: yes
# class: state between passes
# refused: gradient raised

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


@triton.jit
def back(total, weight, dy, dtotal, dx, n, y_row, y_column, t_row, t_column, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(total + row * n + column, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(dy + row * y_row + column * y_column, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(dtotal + row * t_row + column * t_column, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 0) / n + eps)
    wg = w * g
    along = tl.sum(wg * v, 0) / n
    tl.store(dx + row * n + column, scale * (wg - v * along * scale * scale) + d, mask=inside)


@triton.jit
def back_weight(total, dy, dw, m, n, y_row, y_column, eps, BLOCK: tl.constexpr):
    column = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    sums = 0.0
    for row in range(m):
        square = 0.0
        for start in range(0, n, BLOCK):
            j = start + lane
            v = tl.load(total + row * n + j, mask=j < n, other=0.0).to(tl.float32)
            square += tl.sum(v * v, 0)
        one = tl.load(total + row * n + column).to(tl.float32)
        g = tl.load(dy + row * y_row + column * y_column).to(tl.float32)
        sums += g * one * tl.rsqrt(square / n + eps)
    tl.store(dw + column, sums)


class AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        m, n = x.shape
        out = torch.empty((m, n), dtype=x.dtype, device=x.device)
        total = torch.empty((m, n), dtype=x.dtype, device=x.device)
        if m:
            strides = (x.stride(0), x.stride(1), residual.stride(0), residual.stride(1))
            block = triton.next_power_of_2(n)
            add_and_norm[(m,)](x, residual, weight, out, total, n, *strides, eps, BLOCK=block, num_warps=8)
        ctx.total, ctx.weight, ctx.eps = total.detach(), weight.detach(), eps  # cheaper than save_for_backward
        return out, total

    @staticmethod
    def backward(ctx, dy, dtotal):
        total, weight = ctx.total, ctx.weight
        m, n = total.shape
        dx = torch.empty((m, n), dtype=total.dtype, device=total.device)
        dw = torch.empty((n,), dtype=total.dtype, device=total.device)
        if m:
            strides = (*dy.stride(), *dtotal.stride())
            block = triton.next_power_of_2(n)
            back[(m,)](total, weight, dy, dtotal, dx, n, *strides, ctx.eps, BLOCK=block, num_warps=8)
        back_weight[(n,)](total, dy, dw, m, n, *dy.stride(), ctx.eps, BLOCK=min(1024, triton.next_power_of_2(n)))
        return dx, dx, dw, None


def entry(x, residual, weight, eps):
    return AddNorm.apply(x, residual, weight, eps)
