"""Cross-entropy of 16-bit logits in float32, as mixed-precision training steps compute it (`logits.float()` first).

A kernel reads the narrow logits; the wide copy, twice as large, is never made. The gradient comes back narrow: the
cast's own gradient rounds it once in either case.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import one_hot_logits, one_hot_targets
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule


def reference(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """logits: (m, v); target: (m,) int64 in [0, v) → (m,) float32 (or wider), in nats."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(wide), target, reduction="none")


def backward_reference(gradient: torch.Tensor, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """gradient: (m,) float32 of the losses → (softmax − one-hot) · gradient, (m, v) of the logits' dtype."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    hit = torch.arange(logits.shape[-1], device=logits.device) == target[:, None]
    made = (torch.softmax(logits.to(wide), -1) - hit.to(wide)) * gradient.to(wide)[:, None]
    return made.to(logits.dtype)


def make_inputs(case: Case, draw: Draw) -> Inputs:
    return draw.values((case["m"], case["v"]), case.torch_dtype), draw.integers((case["m"],), case["v"])


def make_backward(case: Case, draw: Draw) -> Inputs:
    logits = draw.values((case["m"], case["v"]), case.torch_dtype)
    return draw.normal((case["m"],), torch.float32), logits, draw.integers((case["m"],), case["v"])


def one_hot(case: Case, draw: Draw) -> Inputs:
    return one_hot_targets((case["m"], case["v"]), case.torch_dtype, draw)


def one_hot_backward(case: Case, draw: Draw) -> Inputs:
    logits = one_hot_logits((case["m"], case["v"]), case.torch_dtype, draw)
    return draw.whole((case["m"],), torch.float32), logits, draw.integers((case["m"],), case["v"])


_AXES = (Axis("m", (0, 1, 7, 257), 1, 4096), Axis("v", (2, 31, 128, 1021, 4097, 32000), 2, 65536))
_CASES = (Case.of("bfloat16", m=8192, v=8192),)
_DTYPES = ("float16", "bfloat16")

CROSS_ENTROPY_CAST = Problem(
    name="cross_entropy_cast",
    family="cross_entropy",
    reference=reference,
    make_inputs=make_inputs,
    cases=_CASES,
    axes=_AXES,
    compulsory_bytes=lambda case: case["m"] * case["v"] * case.element_bytes + 12 * case["m"],
    flops=lambda case: 4 * case["m"] * case["v"],
    dtypes=_DTYPES,
    distributions=("normal", "large_mean", "large_negative", "heavy_tail", "ties", "near_constant", "wide", "far"),
    row_inputs=(0, 1),
    rules=(Rule("one_hot", one_hot),),
)

CROSS_ENTROPY_CAST_BACKWARD = Problem(
    name="cross_entropy_cast_backward",
    family="cross_entropy",
    reference=backward_reference,
    make_inputs=make_backward,
    cases=_CASES,
    axes=_AXES,
    compulsory_bytes=lambda case: 2 * case["m"] * case["v"] * case.element_bytes,
    flops=lambda case: 5 * case["m"] * case["v"],
    dtypes=_DTYPES,
    distributions=("normal", "large_mean", "large_negative", "ties", "near_constant", "wide", "far"),
    row_inputs=(0, 1, 2),
    rules=(Rule("one_hot", one_hot_backward),),
)
