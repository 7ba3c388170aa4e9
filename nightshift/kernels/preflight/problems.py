"""What the kernel judge holds preflight's kernels to: exact counts of what is wrong, on right and spoilt data."""

from __future__ import annotations

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.preflight.candidates.pattern_check import BLOCK
from nightshift.kernels.problem import Axis, Case, Inputs, Problem

_SPOILT = 97
"""One value in so many is changed: the count must be right where something is wrong, too."""


def sweep_reference(a: torch.Tensor, b: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """a: (s, m, k), b: (s, k, n), expected: (s, m, n) → (s,) int32: values of a·b that differ from it."""
    made = a.to(torch.float64) @ b.to(torch.float64)
    return (made != expected.to(torch.float64)).sum((1, 2)).to(torch.int32)


def _sweep_inputs(case: Case, draw: Draw) -> Inputs:
    s, m, n, k = (case[name] for name in "smnk")
    a = (draw.integers((s, m, k), 7) - 3).to(case.torch_dtype)
    b = (draw.integers((s, k, n), 7) - 3).to(case.torch_dtype)
    spoilt = draw.integers((s, m, n), _SPOILT) == 0
    return a, b, (a.to(torch.float64) @ b.to(torch.float64) + spoilt).to(torch.float32)


def words(count: int, seed: int, device: torch.device | str) -> torch.Tensor:
    """(count,) int32: the pattern of a seed."""
    at = torch.arange(count, device=device, dtype=torch.int64)
    v = (at * 2654435761 + seed * 40503) & 0xFFFFFFFF
    v = v ^ (v >> 15)
    return torch.where(v >= 1 << 31, v - (1 << 32), v).to(torch.int32)


def pattern_reference(x: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    """x: (count,), seed: (1,), both int32 → int32 counts by block of what differs from the pattern."""
    differs = x != words(x.numel(), int(seed), x.device)
    blocks = -(-x.numel() // BLOCK)
    padded = torch.nn.functional.pad(differs, (0, blocks * BLOCK - x.numel()))
    return padded.view(blocks, BLOCK).sum(1).to(torch.int32)


def _pattern_inputs(case: Case, draw: Draw) -> Inputs:
    seed = draw.integers((1,), 1 << 20, torch.int32)
    right = words(case["count"], int(seed), seed.device)
    return right ^ (draw.integers((case["count"],), _SPOILT) == 0).to(torch.int32), seed


SWEEP = Problem(
    name="product_sweep",
    family="preflight",
    reference=sweep_reference,
    make_inputs=_sweep_inputs,
    cases=(Case.of("bfloat16", s=1056, m=128, n=128, k=128),),
    axes=(
        Axis("s", (0, 1, 3), 1, 64),
        *(Axis(name, (1, 15, 16, 17, 127, 128), 1, 128) for name in ("m", "n", "k")),
    ),
    compulsory_bytes=lambda case: (
        case["s"] * ((case["m"] + case["n"]) * case["k"] * case.element_bytes + 4 * case["m"] * case["n"] + 4)
    ),
    flops=lambda case: 2 * case["s"] * case["m"] * case["n"] * case["k"],
    distributions=("normal",),
    layouts=("contiguous",),
    exact=True,
)
PATTERN = Problem(
    name="pattern_check",
    family="preflight",
    reference=pattern_reference,
    make_inputs=_pattern_inputs,
    cases=(Case.of("int32", count=1 << 28),),
    axes=(Axis("count", (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 65537), 1, 1 << 18),),
    compulsory_bytes=lambda case: 4 * case["count"] + 4 * -(-case["count"] // BLOCK),
    flops=lambda case: 5 * case["count"],
    dtypes=("int32",),
    distributions=("normal",),
    layouts=("contiguous",),
    exact=True,
)
