# nightshift candidate
# mypy: ignore-errors
# problem: product_sweep
# language: triton
# kind: own_kernel
# determinism: bitwise
# dtypes: float16 bfloat16 float32
# layouts: contiguous
# bounds: m 1..128, n 1..128, k 1..128
"""Products with a known answer, on every SM at once: what differs by one bit is a fault of the chip.

Operands are small integers, so that each sum is exact in float32 in any order. A program multiplies the same two
tiles again and again out of shared memory, which loads the matrix units as no other work does, and counts what
differs from `repeats` times the known product. This file is what the kernel judge reads, and what preflight runs.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer, smid


@triton.jit
def _clock():
    return tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit(do_not_specialize=["repeats", "offset", "flip_place", "flip_after", "flip_element", "flip_by"])
def product_sweep(
    a, b, expected, wrong, sm, cycles, nanoseconds, repeats, offset, patterns, m, n, k, flip_place, flip_after,
    flip_element, flip_by, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ON_GPU: tl.constexpr,
    FLIP: tl.constexpr, FLIP_BY_SM: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    pattern = ((program + offset) % patterns).to(tl.int64)
    i, j, r = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(
        a + pattern * m * k + i[:, None] * k + r[None, :], mask=(i[:, None] < m) & (r[None, :] < k), other=0.0
    )
    y = tl.load(
        b + pattern * k * n + r[:, None] * n + j[None, :], mask=(r[:, None] < k) & (j[None, :] < n), other=0.0
    )
    total = tl.zeros((M, N), tl.float32)
    place, began, began_ns = program, tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
    if ON_GPU:
        place = smid()
        began_ns = globaltimer()
        began = _clock()
    if FLIP:  # a fault for benchmarks and tests, in a build of its own
        for _ in range(flip_after):
            total = tl.dot(x, y, total, input_precision="ieee")
        hit = (place if FLIP_BY_SM else program) == flip_place
        total += tl.where(hit & (i[:, None] * N + j[None, :] == flip_element), flip_by, 0.0)
        for _ in range(repeats - flip_after):
            total = tl.dot(x, y, total, input_precision="ieee")
    else:
        for _ in range(repeats):
            total = tl.dot(x, y, total, input_precision="ieee")
    if ON_GPU:
        tl.store(cycles + program, _clock() - began)
        tl.store(nanoseconds + program, globaltimer() - began_ns)
    inside = (i[:, None] < m) & (j[None, :] < n)
    known = tl.load(expected + pattern * m * n + i[:, None] * n + j[None, :], mask=inside, other=0.0)
    differs = (total != known * repeats) & inside
    tl.store(wrong + program, tl.sum(tl.sum(differs.to(tl.int32), 1), 0))
    tl.store(sm + program, place)


def entry(a, b, expected):
    s, m, k = a.shape
    n = b.shape[2]
    wrong = torch.empty((s,), dtype=torch.int32, device=a.device)
    if s:
        sm = torch.empty((s,), dtype=torch.int32, device=a.device)
        cycles = torch.empty((s,), dtype=torch.int64, device=a.device)
        sides = [max(16, triton.next_power_of_2(size)) for size in (m, n, k)]
        product_sweep[(s,)](
            a, b, expected, wrong, sm, cycles, cycles, 1, 0, s, m, n, k, 0, 0, 0, 0.0, *sides, ON_GPU=a.is_cuda,
            FLIP=False, FLIP_BY_SM=False, num_warps=8,
        )  # fmt: skip
    return wrong
