"""Cross-entropy's gradient, on which training steps spend more than on the loss itself.

torch's own is what autograd runs for the loss; here it is one operation, so that a kernel can read everything once.
"""

from __future__ import annotations

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import one_hot_logits
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule


def cross_entropy_reference(gradient: torch.Tensor, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """gradient: (m,) of the losses; logits: (m, v); target: (m,) int64 → (softmax − one-hot) · gradient, (m, v)."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    p = torch.softmax(logits.to(wide), -1)
    hit = torch.arange(logits.shape[-1], device=logits.device) == target[:, None]
    return ((p - hit.to(wide)) * gradient.to(wide)[:, None]).to(logits.dtype)


def make_cross_entropy(case: Case, draw: Draw) -> Inputs:
    logits = draw.values((case["m"], case["v"]), case.torch_dtype)
    return draw.normal((case["m"],), case.torch_dtype), logits, draw.integers((case["m"],), case["v"])


def one_hot(case: Case, draw: Draw) -> Inputs:
    logits = one_hot_logits((case["m"], case["v"]), case.torch_dtype, draw)
    return draw.whole((case["m"],), case.torch_dtype), logits, draw.integers((case["m"],), case["v"])


CROSS_ENTROPY_BACKWARD = Problem(
    name="cross_entropy_backward",
    family="cross_entropy",
    reference=cross_entropy_reference,
    make_inputs=make_cross_entropy,
    cases=(Case.of("float32", m=8192, v=8192), Case.of("bfloat16", m=4096, v=32000)),
    axes=(Axis("m", (0, 1, 7, 257), 1, 4096), Axis("v", (2, 31, 128, 1021, 4097, 32000), 2, 65536)),
    compulsory_bytes=lambda case: 2 * case["m"] * case["v"] * case.element_bytes,
    flops=lambda case: 5 * case["m"] * case["v"],
    distributions=("normal", "large_mean", "large_negative", "ties", "near_constant", "wide"),
    row_inputs=(0, 1, 2),
    rules=(Rule("one_hot", one_hot),),
)
