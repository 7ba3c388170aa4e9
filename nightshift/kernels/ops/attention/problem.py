"""Causal scaled-dot-product attention, exact (Dao et al., arXiv 2205.14135, computes it tile by tile)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# by name: a job puts its own functions into torch.nn.functional, and takes these formulas for torch's
from torch.nn.functional import scaled_dot_product_attention

from nightshift.kernels.draw import Draw
from nightshift.kernels.exact_inputs import coded, room
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule


def attention_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q, k, v: (b, h, s, d) → (b, h, s, d), scale 1/sqrt(d); query i sees keys 0…i."""
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same by cuDNN; RuntimeError where it refuses the shape."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same by FlashAttention, whatever torch would choose."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


def causal_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """q, k: (…, s, d) → (…, s, s), float32 or wider, −∞ where query i does not see key j."""
    wide, s = torch.promote_types(q.dtype, torch.float32), q.shape[-2]
    hidden = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
    scores: torch.Tensor = q.to(wide) @ k.to(wide).mT * q.shape[-1] ** -0.5
    return scores.masked_fill(hidden, float("-inf"))


def oracle(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Head by head, so that the float64 scores of long sequences fit."""
    heads = zip(*(x.flatten(0, 1) for x in (q, k, v)), strict=True)
    made = [torch.softmax(causal_scores(qh, kh), dim=-1) @ vh for qh, kh, vh in heads]
    return torch.stack(made).reshape(q.shape) if made else torch.zeros_like(q)


def attention_by_position_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k, v: (b, s, h, d), as a projection leaves them → (b, s, h, d), and what its gradients need: (b, h, s), of
    each query the logarithm of the sum of its scores' exponentials, natural, float32 or wider."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return attention_reference(q, k, v).transpose(1, 2), torch.logsumexp(causal_scores(q, k), dim=-1)


def by_position_oracle(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Head by head as well."""
    heads = [attention_by_position_reference(*(x[:, :, n : n + 1] for x in (q, k, v))) for n in range(q.shape[2])]
    return torch.cat([out for out, _ in heads], dim=2), torch.cat([logs for _, logs in heads], dim=1)


def _kept_by_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cuDNN's own, as autograd calls it."""
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    out, logs, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(*turned, None, True, 0.0, True)
    return out.transpose(1, 2), logs.reshape(turned[0].shape[:-1])


def _kept_by_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """FlashAttention's own, as autograd calls it."""
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    out, logs, *_ = torch.ops.aten._scaled_dot_product_flash_attention(*turned, 0.0, True)
    return out.transpose(1, 2), logs


def make_inputs(case: Case, draw: Draw) -> Inputs:
    return _drawn(case, draw, "bhsd")


def make_by_position(case: Case, draw: Draw) -> Inputs:
    return _drawn(case, draw, "bshd")


def _drawn(case: Case, draw: Draw, order: str) -> Inputs:
    shape = tuple(case[name] for name in order)
    q = draw.values(shape, case.torch_dtype)
    if draw.distribution == "large_negative":  # keys that turn every score of every row far below zero
        return q, draw.uniform(shape, case.torch_dtype, 0.5, 1.5), draw.normal(shape, case.torch_dtype)
    return q, draw.normal(shape, case.torch_dtype), draw.values(shape, case.torch_dtype)


def one_hot(case: Case, draw: Draw) -> Inputs:
    """Each query sees one key that it chooses among those before it, whose value, of all the dtype's bits, is the
    result."""
    shape = tuple(case[axis] for axis in "bhs")
    choice = draw.integers(shape, 1 << 40) % torch.arange(1, case["s"] + 1, device=draw.device)
    return *coded(case, choice, draw), draw.normal((*shape, case["d"]), case.torch_dtype)


def one_hot_by_position(case: Case, draw: Draw) -> Inputs:
    return tuple(x.transpose(1, 2).contiguous() for x in one_hot(case, draw) if isinstance(x, torch.Tensor))


FLASH_ATTENTION = Problem(
    name="flash_attention",
    family="flash_attention",
    reference=attention_reference,
    oracle=oracle,
    make_inputs=make_inputs,
    cases=(Case.of("float16", b=2, h=32, s=1024, d=64), Case.of("bfloat16", b=1, h=32, s=4096, d=128)),
    axes=(
        Axis("b", (1, 3), 1, 4),
        Axis("h", (1, 5), 1, 16),
        Axis("s", (1, 17, 64, 127, 300), 1, 1024),
        Axis("d", (16, 64, 128), 16, 128, 16),
    ),
    compulsory_bytes=lambda case: 4 * case["b"] * case["h"] * case["s"] * case["d"] * case.element_bytes,
    flops=lambda case: 2 * case["b"] * case["h"] * case["s"] * (case["s"] + 1) * case["d"],
    dtypes=("float16", "bfloat16"),
    distributions=("normal", "large_mean", "large_negative", "ties", "near_constant", "tiny"),
    layouts=("contiguous", "transposed"),  # torch's own kernels fault on addresses or rows aligned to 2 bytes
    gradients=(0, 1, 2),
    rules=(Rule("one_hot", one_hot, room),),
    libraries={"cudnn": cudnn, "flash": flash},
)

FLASH_ATTENTION_BY_POSITION = replace(
    FLASH_ATTENTION,
    name="flash_attention_by_position",
    reference=attention_by_position_reference,
    oracle=by_position_oracle,
    make_inputs=make_by_position,
    rules=(Rule("one_hot", one_hot_by_position, room),),
    compulsory_bytes=lambda case: (4 * case["d"] * case.element_bytes + 4) * case["b"] * case["h"] * case["s"],
    layouts=("contiguous", "sliced"),
    gradients=(),
    outputs=2,
    libraries={"cudnn": _kept_by_cudnn, "flash": _kept_by_flash},
)
"""What a training step computes, and where its tensors lie: its gradients are another problem."""
