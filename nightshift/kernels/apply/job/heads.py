"""Causal attention's formulas, and how its tensors may lie in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from nightshift.kernels.ops.attention.gradient_problem import attention_backward_reference
from nightshift.kernels.ops.attention.problem import causal_scores

ATEN: Any = torch.ops.aten


def side_by_side(record: Mapping[str, Any], x: torch.Tensor) -> bool:
    """Whether (b, s, h, d) lies as attention's kernels take it: the heads of a position one after the other, and
    where the certificate has the layout "sliced" positions further apart. Any other tensor has to be dense."""
    if x.dim() != 4:
        return x.is_contiguous()
    (_, s, h, d), (batch, row, head, one) = x.shape, x.stride()
    if x.is_contiguous() and row == h * d:
        return True
    whole = one == 1 and head == d and batch == s * row and row >= h * d and row * x.element_size() % 16 == 0
    return whole and "sliced" in (record.get("layouts") or ["sliced"])


def plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of (b, h, s, d), and of each query the logarithm of the sum of its scores' exponentials,
    (b, h, s): the formula, which can be differentiated twice and takes s² of memory for each head."""
    with torch.autocast(q.device.type, enabled=False):
        scores = causal_scores(q, k)
        logs = torch.logsumexp(scores, -1)
        return torch.exp(scores - logs[..., None]).to(q.dtype) @ v, logs


def _plain_gradients(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Its gradients, of (gradient, q, k, v, out, logs)."""
    dtype = inputs[1].dtype
    wide = torch.promote_types(dtype, torch.float32)
    with torch.autocast(inputs[1].device.type, enabled=False):
        # scores of 16 bits would round before the exponential, which the saved logarithms do not
        made = attention_backward_reference(*(x.to(wide) for x in inputs))
    return tuple(x.to(dtype) for x in made)


def _torchs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str:
    """Whose kernels torch would take, heads first: "cudnn", "flash"; "" where the formula is taken, head by head,
    as in float64. cuDNN's gradients are not the same each time."""
    if q.device.type != "cuda" or q.dtype not in (torch.float16, torch.bfloat16):
        return ""
    chosen = torch._fused_sdp_choice(q, k, v, None, 0.0, True)
    same = torch.are_deterministic_algorithms_enabled()
    return "cudnn" if chosen == SDPBackend.CUDNN_ATTENTION.value and not same else "flash"


def attended(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """q, k, v: (b, s, h, d) → (b, s, h, d), (b, h, s), by torch."""
    turned = [x.transpose(1, 2) for x in inputs]
    whose = _torchs(*turned)
    if whose == "cudnn":
        out, logs, *_ = ATEN._scaled_dot_product_cudnn_attention(*turned, None, True, 0.0, True)
    elif whose:
        out, logs, *_ = ATEN._scaled_dot_product_flash_attention(*turned, 0.0, True)
    else:
        made = [plain_attention(*(x[:, n : n + 1] for x in turned)) for n in range(turned[0].shape[1])]
        out, logs = (torch.cat(found, 1) for found in zip(*made, strict=True))
    return out.transpose(1, 2).contiguous(), logs.reshape(turned[0].shape[:-1])


def like_attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of what `attended` makes, for a compiler."""
    b, s, h, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((b, h, s), dtype=torch.promote_types(q.dtype, torch.float32))


def attention_gradients(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """gradient, q, k, v, out: (b, s, h, d); logs: (b, h, s) → gradients of q, k, v, (b, s, h, d), by torch."""
    *turned, logs = (*(x.transpose(1, 2) for x in inputs[:-1]), inputs[-1])
    whose, s, device = _torchs(*turned[1:4]), turned[0].shape[2], logs.device
    if whose == "cudnn":
        seed = torch.zeros((), dtype=torch.int64, device=device)
        made = ATEN._scaled_dot_product_cudnn_attention_backward(
            *turned, logs[..., None], seed, seed, None, None, None, s, s, 0.0, True
        )
    elif whose:
        seed = torch.zeros(2, dtype=torch.uint64, device=device)
        made = ATEN._scaled_dot_product_flash_attention_backward(
            *turned, logs, None, None, s, s, 0.0, True, seed, seed[:0]
        )
    else:
        heads = [_plain_gradients(*(x[:, n : n + 1] for x in (*turned, logs))) for n in range(turned[0].shape[1])]
        made = [torch.cat(found, 1) for found in zip(*heads, strict=True)]
    return tuple(x.transpose(1, 2).contiguous() for x in made)
