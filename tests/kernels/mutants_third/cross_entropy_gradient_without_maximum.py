# nightshift candidate
# problem: cross_entropy
# language: triton
# kind: own_kernel
# determinism: bitwise
# differentiable: yes
# class: gradient numerics
# refused: gradient nan_placement

import torch
import triton
import triton.language as tl


@triton.jit
def forward(logits, target, out, sums, v, row_stride, column_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    base = logits + row * row_stride
    high = tl.full((BLOCK,), -float("inf"), tl.float32)
    bad = 0
    for start in range(0, v, BLOCK):
        column = (start + lane).to(tl.int64)
        x = tl.load(base + column * column_stride, mask=column < v, other=-float("inf")).to(tl.float32)
        bad = tl.maximum(bad, tl.max((x != x).to(tl.int32), 0))
        high = tl.maximum(high, x)
    peak = tl.max(high, 0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, v, BLOCK):
        column = (start + lane).to(tl.int64)
        x = tl.load(base + column * column_stride, mask=column < v, other=-float("inf")).to(tl.float32)
        total += tl.exp(x - peak)
    whole = tl.log(tl.sum(total, 0))
    hit = tl.load(base + tl.load(target + row) * column_stride).to(tl.float32)
    value = tl.where(bad > 0, float("nan"), whole + (peak - hit))
    tl.store(sums + row, tl.where(bad > 0, float("nan"), whole + peak))
    tl.store(out + row, value)


@triton.jit
def backward(logits, target, sums, dy, dx, v, row_stride, column_stride, dy_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    x = tl.load(logits + row * row_stride + column * column_stride, mask=column < v, other=0.0).to(tl.float32)
    p = tl.exp(x) / tl.exp(tl.load(sums + row))
    p = tl.where(column == tl.load(target + row), p - 1.0, p)
    tl.store(dx + row * v + column, p * tl.load(dy + row * dy_stride).to(tl.float32), mask=column < v)


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target):
        m, v = logits.shape
        out = torch.empty((m,), dtype=logits.dtype, device=logits.device)
        sums = torch.empty((m,), dtype=torch.float32, device=logits.device)
        if m:
            block = min(4096, triton.next_power_of_2(v))
            forward[(m,)](
                logits, target, out, sums, v, logits.stride(0), logits.stride(1), BLOCK=block, num_warps=8
            )
        ctx.save_for_backward(logits, target, sums)
        return out

    @staticmethod
    def backward(ctx, dy):
        logits, target, sums = ctx.saved_tensors
        m, v = logits.shape
        dx = torch.empty((m, v), dtype=logits.dtype, device=logits.device)
        if m:
            grid = (m, triton.cdiv(v, 1024))
            strides = (logits.stride(0), logits.stride(1), dy.stride(0))
            backward[grid](logits, target, sums, dy, dx, v, *strides, BLOCK=1024)
        return dx, None


def entry(logits, target):
    return Loss.apply(logits, target)
