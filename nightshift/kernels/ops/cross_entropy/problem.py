"""Cross-entropy of logits with class indices, one loss per row, and its gradient.

Mixed-precision training steps compute it of 16-bit logits in float32 (`logits.float()` first). A kernel for that
reads the narrow logits; the wide copy, twice as large, is never made. The gradient comes back narrow: the cast's
own gradient rounds it once in either case. Each gradient is one operation: a kernel can read everything once.
"""

from __future__ import annotations

from typing import Any

import torch

# by name: a job puts its own functions into torch.nn.functional, and takes these formulas for torch's
from torch.nn.functional import cross_entropy

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import one_hot_logits, one_hot_targets
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule


def cross_entropy_reference(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """logits: (m, v); target: (m,) int64 in [0, v) → (m,) in nats, of the logits' dtype."""
    return cross_entropy(logits, target, reduction="none")


def make_inputs(case: Case, draw: Draw) -> Inputs:
    return draw.values((case["m"], case["v"]), case.torch_dtype), draw.integers((case["m"],), case["v"])


def one_hot(case: Case, draw: Draw) -> Inputs:
    return one_hot_targets((case["m"], case["v"]), case.torch_dtype, draw)


def _liger(logits: torch.Tensor, target: torch.Tensor) -> Any:
    from liger_kernel.transformers.functional import liger_cross_entropy

    return liger_cross_entropy(logits, target, reduction="none")


CROSS_ENTROPY = Problem(
    name="cross_entropy",
    family="cross_entropy",
    reference=cross_entropy_reference,
    make_inputs=make_inputs,
    cases=(Case.of("float16", m=4096, v=32000), Case.of("bfloat16", m=4096, v=128256)),
    axes=(
        Axis("m", (0, 1, 7, 257), 1, 4096),
        Axis("v", (2, 31, 128, 1021, 4097, 32000), 2, 131072),
    ),
    compulsory_bytes=lambda case: case["m"] * (case["v"] + 1) * case.element_bytes + 8 * case["m"],
    flops=lambda case: 4 * case["m"] * case["v"],
    distributions=(
        "normal",
        "large_mean",
        "large_negative",
        "heavy_tail",
        "ties",
        "near_constant",
        "wide",
        "ramps",
        "far",
        "zero_rows",
        "masked",
        "masked_ends",
        "masked_rows",
        "infinite",
        "nan",
    ),
    gradients=(0,),
    libraries={"liger": _liger},
    rules=(Rule("one_hot", one_hot),),
    huge=(Case.of("float16", m=17408, v=131072),),
    row_inputs=(0, 1),
)


def cross_entropy_cast_reference(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """logits: (m, v); target: (m,) int64 in [0, v) → (m,) float32 (or wider), in nats."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return cross_entropy(logits.to(wide), target, reduction="none")


def cross_entropy_backward_reference(
    gradient: torch.Tensor, logits: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """gradient: (m,) of the losses; logits: (m, v); target: (m,) int64 → (softmax − one-hot) · gradient, (m, v)."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    hit = torch.arange(logits.shape[-1], device=logits.device) == target[:, None]
    made = (torch.softmax(logits.to(wide), -1) - hit.to(wide)) * gradient.to(wide)[:, None]
    return made.to(logits.dtype)


def make_cast_backward(case: Case, draw: Draw) -> Inputs:
    logits = draw.values((case["m"], case["v"]), case.torch_dtype)
    return draw.normal((case["m"],), torch.float32), logits, draw.integers((case["m"],), case["v"])


def one_hot_cast_backward(case: Case, draw: Draw) -> Inputs:
    logits = one_hot_logits((case["m"], case["v"]), case.torch_dtype, draw)
    return draw.whole((case["m"],), torch.float32), logits, draw.integers((case["m"],), case["v"])


_CAST_AXES = (Axis("m", (0, 1, 7, 257), 1, 4096), Axis("v", (2, 31, 128, 1021, 4097, 32000), 2, 65536))
_CAST_CASES = (Case.of("bfloat16", m=8192, v=8192),)
_CAST_DTYPES = ("float16", "bfloat16")

CROSS_ENTROPY_CAST = Problem(
    name="cross_entropy_cast",
    family="cross_entropy",
    reference=cross_entropy_cast_reference,
    make_inputs=make_inputs,
    cases=_CAST_CASES,
    axes=_CAST_AXES,
    compulsory_bytes=lambda case: case["m"] * case["v"] * case.element_bytes + 12 * case["m"],
    flops=lambda case: 4 * case["m"] * case["v"],
    dtypes=_CAST_DTYPES,
    distributions=("normal", "large_mean", "large_negative", "heavy_tail", "ties", "near_constant", "wide", "far"),
    row_inputs=(0, 1),
    rules=(Rule("one_hot", one_hot),),
)

CROSS_ENTROPY_CAST_BACKWARD = Problem(
    name="cross_entropy_cast_backward",
    family="cross_entropy",
    reference=cross_entropy_backward_reference,
    make_inputs=make_cast_backward,
    cases=_CAST_CASES,
    axes=_CAST_AXES,
    compulsory_bytes=lambda case: 2 * case["m"] * case["v"] * case.element_bytes,
    flops=lambda case: 5 * case["m"] * case["v"],
    dtypes=_CAST_DTYPES,
    distributions=("normal", "large_mean", "large_negative", "ties", "near_constant", "wide", "far"),
    row_inputs=(0, 1, 2),
    rules=(Rule("one_hot", one_hot_cast_backward),),
)


def make_backward(case: Case, draw: Draw) -> Inputs:
    logits = draw.values((case["m"], case["v"]), case.torch_dtype)
    return draw.normal((case["m"],), case.torch_dtype), logits, draw.integers((case["m"],), case["v"])


def one_hot_backward(case: Case, draw: Draw) -> Inputs:
    logits = one_hot_logits((case["m"], case["v"]), case.torch_dtype, draw)
    return draw.whole((case["m"],), case.torch_dtype), logits, draw.integers((case["m"],), case["v"])


CROSS_ENTROPY_BACKWARD = Problem(
    name="cross_entropy_backward",
    family="cross_entropy",
    reference=cross_entropy_backward_reference,
    make_inputs=make_backward,
    cases=(Case.of("float32", m=8192, v=8192), Case.of("bfloat16", m=4096, v=32000)),
    axes=(Axis("m", (0, 1, 7, 257), 1, 4096), Axis("v", (2, 31, 128, 1021, 4097, 32000), 2, 65536)),
    compulsory_bytes=lambda case: 2 * case["m"] * case["v"] * case.element_bytes,
    flops=lambda case: 5 * case["m"] * case["v"],
    distributions=("normal", "large_mean", "large_negative", "ties", "near_constant", "wide"),
    row_inputs=(0, 1, 2),
    rules=(Rule("one_hot", one_hot_backward),),
)
