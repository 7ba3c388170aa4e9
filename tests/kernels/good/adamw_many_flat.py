# nightshift candidate
# problem: adamw_many
# language: triton
# kind: in_place
# determinism: bitwise
# layouts: contiguous
# dtypes: float16 bfloat16
# mutates: 0 2 3 4

import triton
import triton.language as tl


@triton.jit
def moved(p, g, mean, square, rest1, beta2, rest2, eps, shrink, scale, root):
    mean = mean + (g - mean) * rest1
    square = square * beta2 + g * g * rest2
    return p * shrink - scale * mean / (tl.sqrt(square) / root + eps), mean, square


@triton.jit
def step_many(
    parameter,
    gradient,
    first,
    second,
    narrow,
    table,
    rest1,
    beta2,
    rest2,
    eps,
    shrink,
    scale,
    root,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = table + tl.program_id(0).to(tl.int64) * 6
    parameter += tl.multiple_of(tl.load(row), 8)
    gradient += tl.multiple_of(tl.load(row + 1), 8)
    first += tl.multiple_of(tl.load(row + 2), 8)
    second += tl.multiple_of(tl.load(row + 3), 8)
    to_copy = tl.load(row + 4)
    narrow += tl.multiple_of(tl.maximum(to_copy, 0), 8)
    count = tl.load(row + 5).to(tl.int32)
    if count == CHUNK:
        for start in range(0, CHUNK, BLOCK):
            i = start + tl.arange(0, BLOCK)
            p, g = tl.load(parameter + i), tl.load(gradient + i)
            mean, square = tl.load(first + i), tl.load(second + i)
            p, mean, square = moved(p, g, mean, square, rest1, beta2, rest2, eps, shrink, scale, root)
            tl.store(parameter + i, p)
            tl.store(first + i, mean)
            tl.store(second + i, square)
            if to_copy >= 0:
                tl.store(narrow + i, p.to(narrow.dtype.element_ty))
    else:
        for begin in range(0, count, BLOCK):
            i = begin + tl.arange(0, BLOCK)
            inside = i < count
            p, g = tl.load(parameter + i, mask=inside, other=0.0), tl.load(gradient + i, mask=inside, other=0.0)
            mean, square = tl.load(first + i, mask=inside, other=0.0), tl.load(second + i, mask=inside, other=0.0)
            p, mean, square = moved(p, g, mean, square, rest1, beta2, rest2, eps, shrink, scale, root)
            tl.store(parameter + i, p, mask=inside)
            tl.store(first + i, mean, mask=inside)
            tl.store(second + i, square, mask=inside)
            if to_copy >= 0:
                tl.store(narrow + i, p.to(narrow.dtype.element_ty), mask=inside)


def entry(parameter, gradient, first, second, narrow, table, rate, beta1, beta2, eps, decay, step):
    rows = table.shape[0]
    if rows:
        shrink, scale, root = 1.0 - rate * decay, rate / (1.0 - beta1**step), (1.0 - beta2**step) ** 0.5
        rest1, rest2 = 1.0 - beta1, 1.0 - beta2
        step_many[(rows,)](
            parameter,
            gradient,
            first,
            second,
            narrow,
            table,
            rest1,
            beta2,
            rest2,
            eps,
            shrink,
            scale,
            root,
            CHUNK=16384,
            BLOCK=1024,
            num_warps=8,
        )
