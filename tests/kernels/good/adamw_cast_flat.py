# nightshift candidate
# problem: adamw_cast
# language: triton
# kind: in_place
# determinism: bitwise
# mutates: 0 2 3 4

import triton
import triton.language as tl


@triton.jit
def step_kernel(
    parameter,
    gradient,
    first,
    second,
    narrow,
    n,
    rest1,
    beta2,
    rest2,
    eps,
    shrink,
    scale,
    root,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    p = tl.load(parameter + i, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gradient + i, mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(first + i, mask=inside, other=0.0).to(tl.float32)
    square = tl.load(second + i, mask=inside, other=0.0).to(tl.float32)
    mean = mean + (g - mean) * rest1
    square = square * beta2 + g * g * rest2
    p = p * shrink - scale * mean / (tl.sqrt(square) / root + eps)
    tl.store(parameter + i, p, mask=inside)
    tl.store(first + i, mean, mask=inside)
    tl.store(second + i, square, mask=inside)
    tl.store(narrow + i, p.to(narrow.dtype.element_ty), mask=inside)


def entry(parameter, gradient, first, second, narrow, rate, beta1, beta2, eps, decay, step):
    n = parameter.numel()
    if n:
        shrink, scale, root = 1.0 - rate * decay, rate / (1.0 - beta1**step), (1.0 - beta2**step) ** 0.5
        rest1, rest2 = 1.0 - beta1, 1.0 - beta2  # here, in double precision: 1 - 0.9 in float32 is off by 2 ULP
        step_kernel[(triton.cdiv(n, 1024),)](
            parameter, gradient, first, second, narrow, n, rest1, beta2, rest2, eps, shrink, scale, root, BLOCK=1024
        )
