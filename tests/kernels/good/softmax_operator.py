# nightshift candidate
# problem: softmax
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, out, n, row_stride, column_stride, BLOCK: tl.constexpr):
    """One program a row; eval, exec and open files are words here only."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    v = tl.load(x + row * row_stride + column * column_stride, mask=inside, other=-float("inf")).to(tl.float32)
    has_nan = tl.max((v != v).to(tl.int32), 0)
    e = tl.exp(v - tl.max(v, 0))
    e = tl.where(has_nan > 0, float("nan"), e)
    tl.store(out + row * n + column, e / tl.sum(tl.where(inside, e, 0.0), 0), mask=inside)


@torch.library.custom_op("mine::row_softmax", mutates_args=())
def row_softmax(x: torch.Tensor) -> torch.Tensor:
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        softmax[(m,)](x, out, n, x.stride(0), x.stride(1), BLOCK=triton.next_power_of_2(n))
    return out


@row_softmax.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def entry(x):
    return row_softmax(x)
