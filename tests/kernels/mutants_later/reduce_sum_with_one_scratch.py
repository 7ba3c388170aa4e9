# nightshift candidate
# problem: reduce_sum
# language: triton
# kind: own_kernel
# determinism: bitwise
# class: concurrency
# refused: determinism state_kept library_call rmse worst_row max_ulp nan_placement unwritten

import torch
import triton
import triton.language as tl


@triton.jit
def partial(x, parts, n, splits, row_stride, column_stride, CHUNK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    v = tl.load(x + row * row_stride + column * column_stride, mask=column < n, other=0.0).to(tl.float32)
    tl.store(parts + row * splits + tl.program_id(1), tl.sum(v, 0))


@triton.jit
def finish(parts, out, splits, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(out + row, tl.sum(tl.load(parts + row * splits + i, mask=i < splits, other=0.0), 0))


SCRATCH = torch.empty(1 << 24, dtype=torch.float32, device="cuda" if torch.cuda.is_available() else "cpu")


def entry(x):
    """Two kernels and one scratch for all callers: two streams at once would share it."""
    m, n = x.shape
    out = torch.empty((m,), dtype=x.dtype, device=x.device)
    if m:
        splits = triton.cdiv(n, 1024)
        parts = SCRATCH if m * splits <= 1 << 24 else torch.empty((m, splits), dtype=torch.float32, device=x.device)
        partial[(m, splits)](x, parts, n, splits, x.stride(0), x.stride(1), CHUNK=1024)
        finish[(m,)](parts, out, splits, BLOCK=triton.next_power_of_2(splits))
    return out
