"""Dropout and a residual addition, with the mask fixed by a seed so that it can be checked.

The mask is Philox4x32-10 (Salmon et al., SC'11) at counter = element index and key = seed, turned into a float32
uniform as Triton's `tl.rand` does (triton/language/random.py); an element is kept where the uniform is > p.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nightshift.kernels.draw import Draw, mix
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, kind, nearest

_WORD = 0xFFFFFFFF


def _product(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of unsigned 32-bit products (int64 in and out; the 64-bit product may wrap)."""
    low_part = (a & 0xFFFF) * b
    high_part = (a >> 16) * b + (low_part >> 16)
    return high_part >> 16, ((high_part & 0xFFFF) << 16) | (low_part & 0xFFFF)


def philox(seed: int, counter: torch.Tensor) -> torch.Tensor:
    """First 32-bit word (as int64) of Philox4x32-10 for each 64-bit counter."""
    c0, c1 = counter & _WORD, counter >> 32 & _WORD
    c2 = c3 = torch.zeros_like(counter)
    k0, k1 = seed & _WORD, seed >> 32 & _WORD
    for _ in range(10):
        high0, low0 = _product(c0, 0xD2511F53)
        high2, low2 = _product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9 & _WORD, k1 + 0xBB67AE85 & _WORD
    return c0


def uniform(seed: int, counter: torch.Tensor) -> torch.Tensor:
    """Float32 in [0, 1), as `tl.rand(seed, offset)`."""
    word = philox(seed, counter)
    signed = torch.where(word >= 1 << 31, word - (1 << 32), word)
    return torch.where(signed < 0, -signed - 1, signed).to(torch.float32) * 4.6566127342e-10


def reference(x: torch.Tensor, residual: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """x, residual: (m, n) → residual + mask · x / (1 − p); element (i, j) uses counter i · n + j."""
    counter = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    kept = uniform(seed, counter) > p
    return torch.where(kept, x / (1.0 - p), 0.0) + residual


def make_inputs(case: Case, draw: Draw) -> Inputs:
    shape = (case["m"], case["n"])
    x, residual = draw.values(shape, case.torch_dtype), draw.normal(shape, case.torch_dtype)
    seed = 1 + mix(*shape) % (1 << 30)
    share = (0.25, 0.3, 0.0)[kind(case, 2)]  # not 1, where the reference's gradient divides by zero
    return x, residual, share, seed if share == 0.25 else (1 << 62) + mix(*shape, 1) % (1 << 62)


def whole(case: Case, draw: Draw) -> Inputs:
    """Multiples of 3, which 1 − 0.25 divides."""
    _, _, share, seed = make_inputs(case, draw)
    shape, dtype = (case["m"], case["n"]), case.torch_dtype
    return 3 * draw.whole(shape, dtype), draw.whole(shape, dtype), share, seed


def _dyadic(case: Case) -> Iterator[Case]:
    """Not with 1 − 0.3, of which nothing is a multiple; in float32, where a fast division shows, with 1 alone."""
    kinds = (2,) if case.dtype == "float32" else (0, 2)
    return nearest(case, "n", lambda near: kind(near, 2) in kinds)


DROPOUT_ADD = Problem(
    name="dropout_add",
    family="dropout_add",
    reference=reference,
    make_inputs=make_inputs,
    cases=(Case.of("bfloat16", m=16384, n=4096),),
    axes=(Axis("m", (0, 1, 7, 257), 1, 4096), Axis("n", (1, 31, 257, 1021, 4096), 1, 8192)),
    compulsory_bytes=lambda case: 3 * case["m"] * case["n"] * case.element_bytes,
    flops=lambda case: 90 * case["m"] * case["n"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "far", "infinite"),
    gradients=(0, 1),
    numbers=2,
    rules=(Rule("integers", whole, _dyadic),),
)
