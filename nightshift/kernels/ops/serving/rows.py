"""Rows of activations: norms, after a residual addition too, SiLU of a gate, softmax; a row is read once."""

from __future__ import annotations

NORM = """
import torch
import triton
import triton.language as tl


@triton.jit
def norm(x, residual, weight, out, count, ADD: tl.constexpr, EPSILON: tl.constexpr, N: tl.constexpr,
         BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < count)[:, None] & (column < N)[None, :]
    place = row[:, None] * N + column[None, :]
    v = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        v += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(v * v, 1) / N + EPSILON)
    w = tl.load(weight + column, mask=column < N, other=0.0).to(tl.float32)
    tl.store(out + place, (v * scale[:, None] * w[None, :]).to(out.dtype.element_ty), mask=inside)


def entry($arguments):
    x = hidden_states
    out = torch.empty_like(x)
    if len(x):
        norm[(triton.cdiv(len(x), $rows),)](
            x, $residual, weight, out, len(x), ADD=$add, EPSILON=$epsilon, N=$width, BLOCK=$padded, ROWS=$rows,
            num_warps=$warps,
        )
    return out
"""

SOFTMAX = """
import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        v = tl.load(x + row * N + start + column, mask=start + column < N, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(most, v)
        level = tl.where(higher > -float("inf"), higher, 0.0)
        total = total * tl.exp(most - level) + tl.exp(v - level)
        most = higher
    top = tl.max(most, 0)
    total_all = tl.sum(total * tl.exp(most - top), 0)
    for start in range(0, N, BLOCK):
        inside = start + column < N
        v = tl.load(x + row * N + start + column, mask=inside, other=-float("inf")).to(tl.float32)
        share = (tl.exp(v - top) / total_all).to(out.dtype.element_ty)
        tl.store(out + row * N + start + column, share, mask=inside)


def entry(input):
    out = torch.empty_like(input)
    if len(input):
        softmax[(len(input),)](input, out, N=$width, BLOCK=$block, num_warps=$warps)
    return out
"""
