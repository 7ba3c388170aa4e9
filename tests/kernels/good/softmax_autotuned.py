# nightshift candidate
# problem: softmax
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"ROWS": rows}, num_warps=warps) for rows in (1, 2) for warps in (4, 8)]
CONFIGS.sort(key=lambda config: config.num_warps)


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})
@triton.jit
def softmax(x, out, m, n, row_stride, column_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (column < n) & (row < m)
    v = tl.load(x + row * row_stride + column * column_stride, mask=inside, other=-float("inf")).to(tl.float32)
    has_nan = tl.max((v != v).to(tl.int32), 1, keep_dims=True)
    e = tl.exp(v - tl.max(v, 1, keep_dims=True))
    e = tl.where(has_nan > 0, float("nan"), e)
    tl.store(out + row * n + column, e / tl.sum(tl.where(inside, e, 0.0), 1, keep_dims=True), mask=inside)


def entry(x):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        softmax[lambda meta: (triton.cdiv(m, meta["ROWS"]),)](x, out, m, n, x.stride(0), x.stride(1))
    return out
