"""Gated activations of transformer feed-forward blocks: SwiGLU and GEGLU (Shazeer, arXiv 2002.05202)."""

from __future__ import annotations

from typing import Any

import torch

# by name: a job puts its own functions into torch.nn.functional, and takes these formulas for torch's
from torch.nn.functional import gelu, silu

from nightshift.kernels.draw import Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, narrow


def swiglu_reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gate, up: (m, n) → silu(gate) · up."""
    return silu(gate) * up


def swiglu_backward_reference(
    gradient: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """gradient, gate, up: (m, n) → gradients of gate and of up, by the operations that autograd runs."""
    to_gate: torch.Tensor = torch.ops.aten.silu_backward(gradient * up, gate)
    return to_gate, gradient * silu(gate)


def geglu_reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gate, up: (m, n) → gelu(gate) · up, gelu in the tanh form (Hendrycks and Gimpel, arXiv 1606.08415)."""
    return gelu(gate, approximate="tanh") * up


def make_inputs(case: Case, draw: Draw) -> Inputs:
    shape = (case["m"], case["n"])
    return draw.values(shape, case.torch_dtype), draw.normal(shape, case.torch_dtype)


def make_backward(case: Case, draw: Draw) -> Inputs:
    return draw.normal((case["m"], case["n"]), case.torch_dtype), *make_inputs(case, draw)


def saturated(case: Case, draw: Draw) -> Inputs:
    """Gates of 32, 64 or 96, where sigmoid is 1 to any rounding."""
    shape, dtype = (case["m"], case["n"]), case.torch_dtype
    return 32 * (draw.whole(shape, dtype, reach=1) + 2), draw.whole(shape, dtype)


def saturated_backward(case: Case, draw: Draw) -> Inputs:
    gate, up = saturated(case, draw)
    return draw.whole((case["m"], case["n"]), case.torch_dtype, reach=4), gate, up


def _liger_swiglu(gate: torch.Tensor, up: torch.Tensor) -> Any:
    from liger_kernel.transformers.functional import liger_swiglu

    return liger_swiglu(gate, up)


def _liger_geglu(gate: torch.Tensor, up: torch.Tensor) -> Any:
    from liger_kernel.transformers.functional import liger_geglu

    return liger_geglu(gate, up)


_AXES = (Axis("m", (0, 1, 7, 257), 1, 4096), Axis("n", (1, 31, 128, 257, 1000, 1021, 4096), 1, 16384))
_DISTRIBUTIONS = (
    "normal",
    "large_mean",
    "heavy_tail",
    "ties",
    "wide",
    "tiny",
    "far",
    "infinite",
    "nan",
    "zeros_by_nan",
)

SWIGLU = Problem(
    name="swiglu",
    family="swiglu",
    reference=swiglu_reference,
    make_inputs=make_inputs,
    cases=(Case.of("bfloat16", m=16384, n=14336),),
    axes=_AXES,
    compulsory_bytes=lambda case: 3 * case["m"] * case["n"] * case.element_bytes,
    flops=lambda case: 5 * case["m"] * case["n"],
    distributions=_DISTRIBUTIONS,
    gradients=(0, 1),
    elementwise=True,
    rules=(Rule("saturated", saturated),),
    libraries={"liger": _liger_swiglu},
    huge=(Case.of("float16", m=69632, n=32768),),
    row_inputs=(0, 1),
)

GEGLU = Problem(
    name="geglu",
    family="swiglu",
    reference=geglu_reference,
    make_inputs=make_inputs,
    cases=(Case.of("bfloat16", m=16384, n=14336),),
    axes=_AXES,
    compulsory_bytes=lambda case: 3 * case["m"] * case["n"] * case.element_bytes,
    flops=lambda case: 10 * case["m"] * case["n"],
    distributions=_DISTRIBUTIONS,
    gradients=(0, 1),
    elementwise=True,
    rules=(Rule("saturated", saturated, narrow),),
    libraries={"liger": _liger_geglu},
    huge=(Case.of("float16", m=69632, n=32768),),
    row_inputs=(0, 1),
)

SWIGLU_BACKWARD = Problem(
    name="swiglu_backward",
    family="swiglu",
    reference=swiglu_backward_reference,
    make_inputs=make_backward,
    cases=(Case.of("bfloat16", m=16384, n=14336),),
    axes=_AXES,
    compulsory_bytes=lambda case: 5 * case["m"] * case["n"] * case.element_bytes,
    flops=lambda case: 12 * case["m"] * case["n"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "wide", "tiny", "nan"),
    row_inputs=(0, 1, 2),
    rules=(Rule("saturated", saturated_backward),),
)
"""Liger has no peer here: its gradient is written over its own inputs, which a second call would then read."""
