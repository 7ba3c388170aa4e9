"""Rotary position embedding (Su et al., arXiv 2104.09864): interleaved pairs, and halves as in Llama."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule


def rotary_interleaved_reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: (b, h, s, d); cos, sin: (s, d/2) → (b, h, s, d), rotating the pairs (0, 1), (2, 3)…"""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def rotary_interleaved_backward_reference(
    gradient: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """The same with the angle turned back: a rotation's gradient is its inverse."""
    even, odd = gradient[..., 0::2], gradient[..., 1::2]
    return torch.stack((even * cos + odd * sin, odd * cos - even * sin), dim=-1).flatten(-2)


def rotary_interleaved_by_position_reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: (b, s, h, d), as a projection leaves it; cos, sin: (s, d/2) → (b, s, h, d)."""
    return rotary_interleaved_reference(x, cos[:, None], sin[:, None])


def rotary_interleaved_by_position_backward_reference(
    gradient: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """The gradient of x from that of the rotated."""
    return rotary_interleaved_backward_reference(gradient, cos[:, None], sin[:, None])


def rotary_half_reference(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """q: (b, h, s, d); k: (b, g, s, d); cos, sin: (s, d) → rotated (q, k), pairing element i with i + d/2."""

    def rotated(x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, dim=-1)
        return torch.cat((-high, low), dim=-1)

    return q * cos + rotated(q) * sin, k * cos + rotated(k) * sin


def rotary_half_backward_reference(
    q_gradient: torch.Tensor, k_gradient: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of (q, k) from those of the rotated: what came to an element from its partner goes back."""

    def returned(gradient: torch.Tensor) -> torch.Tensor:
        low, high = (gradient * sin).chunk(2, dim=-1)
        return gradient * cos + torch.cat((high, -low), dim=-1)

    return returned(q_gradient), returned(k_gradient)


def rotary_half_by_position_reference(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """q: (b, s, h, d); k: (b, s, g, d), as a projection leaves them; cos, sin: (s, d) → rotated (q, k)."""
    return rotary_half_reference(q, k, cos[:, None], sin[:, None])


def rotary_half_by_position_backward_reference(
    q_gradient: torch.Tensor, k_gradient: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of (q, k) from those of the rotated."""
    return rotary_half_backward_reference(q_gradient, k_gradient, cos[:, None], sin[:, None])


def _angles(case: Case, draw: Draw) -> torch.Tensor:
    return draw.uniform((case["s"], case["d"] // 2), torch.float32, -3.1415925, 3.1415925)


def make_interleaved(case: Case, draw: Draw) -> Inputs:
    """Cosines and sines of random angles, each in the case's dtype (taken on the CPU: libm differs on GPUs)."""
    x = draw.values((case["b"], case["h"], case["s"], case["d"]), case.torch_dtype)
    angle = _angles(case, draw).cpu().double()
    cos, sin = (f.to(case.torch_dtype).to(draw.device) for f in (angle.cos(), angle.sin()))
    return x, cos, sin


def make_interleaved_by_position(case: Case, draw: Draw) -> Inputs:
    x = draw.values((case["b"], case["s"], case["h"], case["d"]), case.torch_dtype)
    return x, *make_interleaved(case.with_(b=1, h=1), draw)[1:]


def make_half(case: Case, draw: Draw) -> Inputs:
    q = draw.values((case["b"], case["h"], case["s"], case["d"]), case.torch_dtype)
    k = draw.values((case["b"], case["g"], case["s"], case["d"]), case.torch_dtype)
    angle = _angles(case, draw).cpu().double()
    angle = torch.cat((angle, angle), dim=-1)
    cos, sin = (f.to(case.torch_dtype).to(draw.device) for f in (angle.cos(), angle.sin()))
    return q, k, cos, sin


def make_half_by_position(case: Case, draw: Draw) -> Inputs:
    q = draw.values((case["b"], case["s"], case["h"], case["d"]), case.torch_dtype)
    k = draw.values((case["b"], case["s"], case["g"], case["d"]), case.torch_dtype)
    return q, k, *make_half(case.with_(b=1, h=1, g=1), draw)[2:]


def _whole(vectors: tuple[str, ...], halves: bool) -> Rule:
    """Integers in vectors with these axes and in the tables, those of halves twice beside each other."""

    def inputs(case: Case, draw: Draw) -> Inputs:
        made = [draw.whole([case[axis] for axis in axes], case.torch_dtype) for axes in vectors]
        tables = [draw.whole((case["s"], case["d"] // 2), case.torch_dtype, reach=2) for _ in range(2)]
        return *made, *(torch.cat((table, table), dim=-1) if halves else table for table in tables)

    return Rule("integers", inputs)


def _liger(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """Liger (0.8.5) rotates in place where q and k lie as (b, s, h, d); as ours do not, it copies them first."""
    from liger_kernel.transformers.functional import liger_rope

    return liger_rope(q, k, cos.unsqueeze(0), sin.unsqueeze(0))


def _tables(case: Case, width: int) -> int:
    return 2 * case["s"] * width * case.element_bytes


ROTARY_INTERLEAVED = Problem(
    name="rotary_interleaved",
    family="rotary",
    reference=rotary_interleaved_reference,
    make_inputs=make_interleaved,
    cases=(Case.of("float16", b=2, h=32, s=1024, d=128), Case.of("bfloat16", b=1, h=32, s=8192, d=128)),
    axes=(
        Axis("b", (1, 3), 1, 4),
        Axis("h", (1, 5), 1, 32),
        Axis("s", (0, 1, 7, 127), 1, 2048),
        Axis("d", (2, 6, 64, 96, 128), 2, 256, 2),
    ),
    compulsory_bytes=lambda case: (
        2 * case["b"] * case["h"] * case["s"] * case["d"] * case.element_bytes + _tables(case, case["d"] // 2)
    ),
    flops=lambda case: 3 * case["b"] * case["h"] * case["s"] * case["d"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "nan"),
    gradients=(0,),
    rules=(_whole(("bhsd",), halves=False),),
)

ROTARY_HALF = Problem(
    name="rotary_half",
    family="rotary",
    reference=rotary_half_reference,
    make_inputs=make_half,
    cases=(Case.of("bfloat16", b=1, h=32, g=8, s=8192, d=128),),
    axes=(
        Axis("b", (1, 3), 1, 4),
        Axis("h", (1, 5), 1, 32),
        Axis("g", (1, 3), 1, 8),
        Axis("s", (0, 1, 7, 127), 1, 2048),
        Axis("d", (2, 6, 64, 96, 128), 2, 256, 2),
    ),
    compulsory_bytes=lambda case: (
        2 * case["b"] * (case["h"] + case["g"]) * case["s"] * case["d"] * case.element_bytes
        + _tables(case, case["d"])
    ),
    flops=lambda case: 3 * case["b"] * (case["h"] + case["g"]) * case["s"] * case["d"],
    distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny", "nan"),
    gradients=(0, 1),
    rules=(_whole(("bhsd", "bgsd"), halves=True),),
    outputs=2,
    libraries={"liger": _liger},
)

ROTARY_INTERLEAVED_BACKWARD = replace(
    ROTARY_INTERLEAVED,
    name="rotary_interleaved_backward",
    reference=rotary_interleaved_backward_reference,
    cases=ROTARY_INTERLEAVED.cases[1:],
    gradients=(),
)

ROTARY_INTERLEAVED_BY_POSITION = replace(
    ROTARY_INTERLEAVED,
    name="rotary_interleaved_by_position",
    reference=rotary_interleaved_by_position_reference,
    make_inputs=make_interleaved_by_position,
    rules=(_whole(("bshd",), halves=False),),
    cases=ROTARY_INTERLEAVED.cases[1:],
)

ROTARY_INTERLEAVED_BY_POSITION_BACKWARD = replace(
    ROTARY_INTERLEAVED_BY_POSITION,
    name="rotary_interleaved_by_position_backward",
    reference=rotary_interleaved_by_position_backward_reference,
    gradients=(),
)

ROTARY_HALF_BACKWARD = replace(
    ROTARY_HALF, name="rotary_half_backward", reference=rotary_half_backward_reference, gradients=(), libraries={}
)

ROTARY_HALF_BY_POSITION = replace(
    ROTARY_HALF,
    name="rotary_half_by_position",
    reference=rotary_half_by_position_reference,
    make_inputs=make_half_by_position,
    rules=(_whole(("bshd", "bsgd"), halves=True),),
    libraries={},
)

ROTARY_HALF_BY_POSITION_BACKWARD = replace(
    ROTARY_HALF_BY_POSITION,
    name="rotary_half_by_position_backward",
    reference=rotary_half_by_position_backward_reference,
    gradients=(),
)
