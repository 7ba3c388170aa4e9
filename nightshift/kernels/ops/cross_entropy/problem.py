"""Cross-entropy of logits with class indices, one loss per row."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import one_hot_targets
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule


def reference(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """logits: (m, v); target: (m,) int64 in [0, v) → (m,) in nats, of the logits' dtype."""
    return F.cross_entropy(logits, target, reduction="none")


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
    reference=reference,
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
