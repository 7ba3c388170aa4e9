"""The gradients of causal attention as autograd runs them: from the result and the saved logarithms of row sums.

The function is defined for any result and logarithms, so those are drawn, not computed: the same bits on every
device. The logarithms are near those of normal scores, so that no weight overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import coded, room
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def attention_backward_reference(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    logs: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """gradient, q, k, v, out: (b, h, s, d); logs: (b, h, s) float32 → gradients of q, k, v, scale 1/sqrt(d)."""
    s, scale = q.shape[-2], q.shape[-1] ** -0.5
    wide = torch.promote_types(q.dtype, torch.float32)
    hidden = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
    weights = torch.exp((q @ k.mT).to(wide) * scale - logs.to(wide)[..., None]).masked_fill(hidden, 0.0)
    delta = (gradient.to(wide) * out.to(wide)).sum(-1, keepdim=True)
    back = (weights * ((gradient @ v.mT).to(wide) - delta) * scale).to(q.dtype)
    return back @ k, back.mT @ q, weights.to(q.dtype).mT @ gradient


def oracle(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    logs: torch.Tensor,
) -> Three:
    """Head by head, so that the float64 weights of long sequences fit."""
    shape = q.shape
    heads = [x.flatten(0, 1).unsqueeze(1) for x in (gradient, q, k, v, out, logs)]
    made = [attention_backward_reference(*one) for one in zip(*heads, strict=True)]
    if not made:
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    first, second, third = (torch.cat(found).reshape(shape) for found in zip(*made, strict=True))
    return first, second, third


def _flash(*inputs: torch.Tensor) -> Any:
    """FlashAttention's own, as autograd calls it."""
    s = inputs[1].shape[-2]
    seed = torch.zeros(2, dtype=torch.uint64, device=inputs[1].device)
    rest = None, None, s, s, 0.0, True, seed, seed[:0]
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(*inputs, *rest)


def _cudnn(*inputs: torch.Tensor) -> Any:
    """cuDNN's own, as autograd calls it."""
    *others, logs = inputs
    s, seed = inputs[1].shape[-2], torch.zeros((), dtype=torch.int64, device=inputs[1].device)
    rest = seed, seed, None, None, None, s, s, 0.0, True
    return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(*others, logs[..., None], *rest)


def _by_position(function: Callable[..., Three], *inputs: torch.Tensor) -> Three:
    """The same of tensors with positions first, all but the last: the logarithms have heads first either way."""
    *others, logs = inputs
    to_q, to_k, to_v = function(*(x.transpose(1, 2) for x in others), logs)
    return to_q.transpose(1, 2), to_k.transpose(1, 2), to_v.transpose(1, 2)


def attention_by_position_backward_reference(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    logs: torch.Tensor,
) -> Three:
    """The same with gradient, q, k, v, out and the gradients as (b, s, h, d); logs: (b, h, s)."""
    return _by_position(attention_backward_reference, gradient, q, k, v, out, logs)


def by_position_oracle(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    logs: torch.Tensor,
) -> Three:
    return _by_position(oracle, gradient, q, k, v, out, logs)


def _flash_by_position(*inputs: torch.Tensor) -> Any:
    return _by_position(_flash, *inputs)


def _cudnn_by_position(*inputs: torch.Tensor) -> Any:
    return _by_position(_cudnn, *inputs)


def make_inputs(case: Case, draw: Draw) -> Inputs:
    return _drawn(case, draw, "bhsd")


def make_by_position(case: Case, draw: Draw) -> Inputs:
    return _drawn(case, draw, "bshd")


def _drawn(case: Case, draw: Draw, order: str) -> Inputs:
    shape, dtype = tuple(case[name] for name in order), case.torch_dtype
    gradient, v = draw.values(shape, dtype), draw.values(shape, dtype)
    q, k, out = draw.normal(shape, dtype), draw.normal(shape, dtype), draw.normal(shape, dtype, 0.25)
    seen = torch.arange(1, case["s"] + 1, dtype=torch.float64).log().float().to(draw.device)
    return gradient, q, k, v, out, draw.uniform((case["b"], case["h"], case["s"]), torch.float32, 0.25, 0.75) + seen


def one_hot(case: Case, draw: Draw) -> Inputs:
    """Each query chooses itself or the key before it; all else are small integers, the upstream gradient's few. The
    gradient of v is exact; who scales q or k by log2(e)/sqrt(d) before they are multiplied, as is usual, rounds the
    others."""
    shape, dtype = tuple(case[axis] for axis in "bhsd"), case.torch_dtype
    place = torch.arange(case["s"], device=draw.device)
    choice = (place - draw.integers(shape[:3], 2)).clamp(min=0)
    q, k = coded(case, choice, draw)
    gradient = draw.whole(shape, dtype, terms=case["d"], limit=4)
    v, out = (draw.whole(shape, dtype, reach=1) for _ in range(2))
    return gradient, q, k, v, out, torch.zeros(shape[:3], device=draw.device)


def one_hot_by_position(case: Case, draw: Draw) -> Inputs:
    *others, logs = (x for x in one_hot(case, draw) if isinstance(x, torch.Tensor))
    return *(x.transpose(1, 2).contiguous() for x in others), logs


def _even_scale(case: Case) -> Iterator[Case]:
    """1/sqrt(d) is a power of two for a power of four."""
    return (near for d in (64, 16) for near in room(case.with_(d=d)))


FLASH_ATTENTION_BACKWARD = Problem(
    name="flash_attention_backward",
    family="flash_attention",
    reference=attention_backward_reference,
    oracle=oracle,
    make_inputs=make_inputs,
    cases=(Case.of("float16", b=2, h=32, s=1024, d=64), Case.of("bfloat16", b=1, h=32, s=4096, d=128)),
    axes=(
        Axis("b", (1, 3), 1, 4),
        Axis("h", (1, 5), 1, 16),
        Axis("s", (1, 17, 64, 127, 300), 1, 1024),
        Axis("d", (16, 64, 128), 16, 128, 16),
    ),
    compulsory_bytes=lambda case: (8 * case["d"] * case.element_bytes + 4) * case["b"] * case["h"] * case["s"],
    flops=lambda case: 5 * case["b"] * case["h"] * case["s"] * (case["s"] + 1) * case["d"],
    dtypes=("float16", "bfloat16"),
    distributions=("normal", "ties", "near_constant", "tiny"),
    layouts=("contiguous",),
    rules=(Rule("one_hot", one_hot, _even_scale, outputs=(2,)),),
    libraries={"flash": _flash, "cudnn": _cudnn},
)

FLASH_ATTENTION_BY_POSITION_BACKWARD = replace(
    FLASH_ATTENTION_BACKWARD,
    name="flash_attention_by_position_backward",
    reference=attention_by_position_backward_reference,
    oracle=by_position_oracle,
    make_inputs=make_by_position,
    rules=(Rule("one_hot", one_hot_by_position, _even_scale, outputs=(2,)),),
    layouts=("contiguous", "sliced"),
    libraries={"flash": _flash_by_position, "cudnn": _cudnn_by_position},
)
