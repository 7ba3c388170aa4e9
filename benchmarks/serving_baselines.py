"""What torch itself and FlashInfer offer for a serving definition: called as its reference is.

References loop over sequences, tokens or heads in Python, so they are no rival for a kernel. Torch's ways gather
pages by one index, and compute attention with its memory-efficient kernel, which returns the logarithm of the sum.
FlashInfer takes part where it is installed (`pip install flashinfer-python`; it compiles with nvcc at the first
call, or reads what was compiled before). A race names each that could not run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

WORKSPACE_BYTES = 128 << 20
SAMPLERS = {
    ("probs",): "sampling_from_probs",
    ("probs", "top_k"): "top_k_sampling_from_probs",
    ("probs", "top_p"): "top_p_sampling_from_probs",
    ("probs", "top_k", "top_p"): "top_k_top_p_sampling_from_probs",
}
"""FlashInfer's functions by the inputs of a definition."""


def libraries(definition: Any) -> dict[str, Callable[..., Any]]:
    """By name, torch's ways and FlashInfer's to compute a definition."""
    return {**_torch(definition), **_flashinfer(definition)}


def _epsilon(definition: Any) -> float:
    return 1e-5 if "1e-5" in definition.reference else 1e-6


def _flashinfer(definition: Any) -> dict[str, Callable[..., Any]]:
    """The library's own function, where it computes what a definition does."""
    names = list(definition.inputs)
    if definition.kind == "rmsnorm" and len(names) == 2:
        return {"flashinfer": lambda x, weight: _module("norm").rmsnorm(x, weight, _epsilon(definition))}
    if definition.kind == "softmax":
        return {"flashinfer": lambda x: _module("sampling").softmax(x)}
    if (sampler := SAMPLERS.get(tuple(names))) is not None:
        return {"flashinfer": lambda *inputs: getattr(_module("sampling"), sampler)(*inputs).long()}
    if {"q", "k_cache", "v_cache", "kv_indptr", "kv_indices"} <= set(names):
        attention = _PagedAttention()
        return {"flashinfer": lambda *inputs: attention(dict(zip(names, inputs, strict=True)))}
    return {}


@cache
def _module(name: str) -> Any:
    import importlib

    return importlib.import_module(f"flashinfer.{name}")


class _PagedAttention:
    """FlashInfer's decode or causal prefill over a paged cache. A plan belongs to a tensor of offsets, as servers
    make one for all layers of a step."""

    def __init__(self) -> None:
        self._plans = WeakIdKeyDictionary()
        self._workspace: Any = None

    def __call__(self, given: dict[str, Any]) -> Any:
        plan = self._plans.get(given["kv_indptr"])
        if plan is None:
            plan = self._plans[given["kv_indptr"]] = self._planned(given)
        return plan.run(given["q"], (given["k_cache"], given["v_cache"]), return_lse=True)

    def _planned(self, given: dict[str, Any]) -> Any:
        q, keys, offsets = given["q"], given["k_cache"], given["kv_indptr"]
        if self._workspace is None:
            self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
        page, heads, width = keys.shape[1:]
        last = given.get("kv_last_page_len", torch.full_like(offsets[1:], page))
        sizes = (q.shape[1], heads, width, page)
        dtypes = {"q_data_type": q.dtype, "kv_data_type": keys.dtype, "sm_scale": given["sm_scale"]}
        if "qo_indptr" in given:
            made = _module("prefill").BatchPrefillWithPagedKVCacheWrapper(self._workspace)
            made.plan(given["qo_indptr"], offsets, given["kv_indices"], last, *sizes, causal=True, **dtypes)
        else:
            grouped = q.shape[1] >= 4 * heads  # its documentation's rule for tensor cores
            made = _module("decode").BatchDecodeWithPagedKVCacheWrapper(self._workspace, use_tensor_cores=grouped)
            made.plan(offsets, given["kv_indices"], last, *sizes, **dtypes)
        return made


def _torch(definition: Any) -> dict[str, Callable[..., Any]]:
    names = list(definition.inputs)
    if definition.kind == "rmsnorm":
        epsilon = _epsilon(definition)

        def norm(x: Any, *rest: Any) -> Any:
            total = x if len(rest) == 1 else x + rest[0]
            return functional.rms_norm(total, (total.shape[-1],), rest[-1], epsilon)

        return {"torch.rms_norm": norm}
    if definition.kind == "softmax":
        return {"torch.softmax": lambda x: torch.softmax(x, -1)}
    if definition.kind == "gdn" and "cu_seqlens" not in names:
        return {"torch.delta": _delta}
    if "kv_indptr" in names and "qo_indptr" not in names and "kv_indices" in names:
        return {"torch.padded": lambda *inputs: _decode(dict(zip(names, inputs, strict=True)))}
    if "qo_indptr" in names and "kv_indptr" in names and "causal" in definition.name:
        return {"torch.sequences": lambda *inputs: _prefill(dict(zip(names, inputs, strict=True)))}
    return {}


def _attend(q: Any, k: Any, v: Any, seen: Any, scale: float) -> tuple[Any, Any]:
    """(output, logarithm to base 2) of queries [b, h, t, d]; seen: where a query may look, [b, 1 or h, t, l]."""
    hidden = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill_(~seen, -math.inf)
    if q.is_cuda:
        width = -(-hidden.shape[-1] // 16) * 16  # the kernel wants rows that begin where wide loads may
        bias = functional.pad(hidden, (0, width - hidden.shape[-1]))[..., : hidden.shape[-1]]
        bias = bias.expand(*q.shape[:3], k.shape[2])
        out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, True, 0.0, False, scale=scale
        )
        lse = lse[..., : q.shape[2]]
    else:
        logits = (q.float() @ k.float().transpose(2, 3)) * scale + hidden
        out, lse = (torch.softmax(logits, -1) @ v.float()).to(q.dtype), torch.logsumexp(logits, -1)
    some = seen.any(-1)
    return out.masked_fill(~some[..., None], 0.0), (lse / math.log(2.0)).masked_fill(~some, -math.inf)


def _cache(given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Queries [tokens, heads, width], keys and values [pages, page, heads of keys, width]."""
    if "ckv_cache" in given:
        q = torch.cat([given["q_nope"], given["q_pe"]], -1)
        keys, values = torch.cat([given["ckv_cache"], given["kpe_cache"]], -1), given["ckv_cache"]
        return q, keys[:, :, None], values[:, :, None]
    if "k_cache" in given:
        return given["q"], given["k_cache"], given["v_cache"]
    return given["q"], given["k"][:, None], given["v"][:, None]


def _counts(given: dict[str, Any], page: int) -> Any:
    offsets = given["kv_indptr"].long()
    counts = (offsets[1:] - offsets[:-1]) * page
    if "kv_last_page_len" in given:
        last = given["kv_last_page_len"][: len(counts)]
        counts = torch.where(counts > 0, counts - page + last, counts)
    return counts


def _decode(given: dict[str, Any]) -> Any:
    q, keys, values = _cache(given)
    offsets, pages, counts = given["kv_indptr"].long(), given["kv_indices"].long(), _counts(given, keys.shape[1])
    if not len(q) or not len(pages):
        return torch.zeros(*q.shape[:2], values.shape[-1], dtype=q.dtype, device=q.device), torch.full(
            q.shape[:2], -math.inf, device=q.device
        )
    most = int((offsets[1:] - offsets[:-1]).max())
    places = (offsets[:-1, None] + torch.arange(most, device=q.device)).clamp(max=len(pages) - 1)
    rows = pages[places]
    k, v = (x[rows].flatten(1, 2).transpose(1, 2) for x in (keys, values))
    seen = torch.arange(k.shape[2], device=q.device) < counts[:, None]
    grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1])
    seen = seen[:, None, None].expand(len(q), k.shape[1], grouped.shape[2], k.shape[2])
    out, lse = _attend(grouped, k, v, seen, given["sm_scale"])
    return out.reshape(*q.shape[:2], -1), lse.reshape(q.shape[:2])


def _prefill(given: dict[str, Any]) -> Any:
    q, keys, values = _cache(given)
    starts, offsets = given["qo_indptr"].tolist(), given["kv_indptr"].tolist()
    counts = _counts(given, keys.shape[1]).tolist()
    out = torch.zeros(*q.shape[:2], values.shape[-1], dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:2], -math.inf, device=q.device)
    for number, count in enumerate(counts):
        first, last = starts[number], starts[number + 1]
        if first == last or not count:
            continue
        where = slice(offsets[number], offsets[number + 1])
        chosen = given["kv_indices"][where].long() if "kv_indices" in given else where
        k, v = (x[chosen].flatten(0, 1)[:count].transpose(0, 1)[None] for x in (keys, values))
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        line = torch.arange(last - first, device=q.device)[:, None] + count - (last - first)
        seen = (torch.arange(count, device=q.device) <= line)[None, None].expand(1, q.shape[1], -1, -1)
        made, logarithm = _attend(q[first:last].transpose(0, 1)[None], k, v, seen, given["sm_scale"])
        out[first:last], lse[first:last] = made[0].transpose(0, 1), logarithm[0].transpose(0, 1)
    return out, lse


def _delta(q: Any, k: Any, v: Any, state: Any, a_log: Any, a: Any, dt_bias: Any, b: Any, scale: Any) -> Any:
    """One token of every sequence: products over all sequences and heads at once, in float32."""
    scale = scale or q.shape[-1] ** -0.5
    decay = torch.exp(-torch.exp(a_log.float()) * functional.softplus(a.float() + dt_bias.float()))[:, 0]
    beta = torch.sigmoid(b.float())[:, 0, :, None]
    group = v.shape[2] // q.shape[2]
    query, key = (x[:, 0].float().repeat_interleave(group, 1) for x in (q, k))
    held = state.float() * decay[..., None, None]
    old = (held @ key[..., None])[..., 0]
    held = held + (beta * (v[:, 0].float() - old))[..., None] * key[:, :, None]
    return (scale * (held @ query[..., None])[..., 0]).to(q.dtype)[:, None], held
