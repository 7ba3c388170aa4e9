"""Causal scaled-dot-product attention, exact (Dao et al., arXiv 2205.14135, computes it tile by tile)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.draw import Draw
from kernels.problem import Axis, Case, Inputs, Problem


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q, k, v: (b, h, s, d) → (b, h, s, d), scale 1/sqrt(d); query i sees keys 0…i."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same by cuDNN; RuntimeError where it refuses the shape."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same by FlashAttention, whatever torch would choose."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def oracle(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Head by head, so that the float64 scores of long sequences fit."""
    b, h, s, d = q.shape
    hidden = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
    heads = []
    for qh, kh, vh in zip(*(x.reshape(b * h, s, d) for x in (q, k, v)), strict=True):
        scores = (qh @ kh.T * d**-0.5).masked_fill(hidden, float("-inf"))
        heads.append(torch.softmax(scores, dim=-1) @ vh)
    return torch.stack(heads).reshape(b, h, s, d) if heads else torch.zeros_like(q)


def make_inputs(case: Case, draw: Draw) -> Inputs:
    shape = (case["b"], case["h"], case["s"], case["d"])
    q = draw.values(shape, case.torch_dtype)
    if draw.distribution == "large_negative":  # keys that turn every score of every row far below zero
        return q, draw.uniform(shape, case.torch_dtype, 0.5, 1.5), draw.normal(shape, case.torch_dtype)
    return q, draw.normal(shape, case.torch_dtype), draw.values(shape, case.torch_dtype)


FLASH_ATTENTION = Problem(
    name="flash_attention",
    family="flash_attention",
    reference=reference,
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
    libraries={"cudnn": cudnn, "flash": flash},
)
