"""Certified kernels for serving as one package: operators of torch, layers and attention for transformers.

`kernels.apply.hub` copies this file, as it is, beside `kernels.json` (what each kernel is certified for), the
kernels' sources, the references that stand in for them, and their certificates. It imports torch and the standard
library; Triton comes with the first kernel. A kernel runs where its guards allow it: the architecture that it was
judged on, the definition's dtypes, sizes and layout, no gradient. Anything else is computed as the definition's own
reference or the model's own layer does, and `COUNTS` says how often, and why.
"""

from __future__ import annotations

import collections
import importlib.util
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
COUNTS: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
"""By kernel: calls of it ("kernel"), and of what stood in for it, by the guard that refused."""
_TYPES = {"Tensor": "Tensor", "int": "int", "float": "float", "bool": "bool"}
NAMESPACE = "nightshift_serving"


KERNELS: dict[str, dict[str, Any]] = (
    json.loads((HERE / "kernels.json").read_text()) if (HERE / "kernels.json").exists() else {}
)
"""Records by a definition's name."""


@cache
def _module(name: str) -> types.ModuleType:
    """A file of this folder. Triton reads the source of what it compiles, so each kernel is a file."""
    spec = importlib.util.spec_from_file_location(f"{__name__}_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def _architecture(device: torch.device) -> str:
    if device.type != "cuda":
        return "none"
    return "{}.{}".format(*torch.cuda.get_device_capability(device))


def refusal(record: Mapping[str, Any], inputs: Sequence[Any]) -> str:
    """Why a kernel may not be called on these inputs; empty where it may."""
    if len(inputs) != len(record["inputs"]):
        return "inputs"
    sizes: dict[str, int] = {}
    for value, form in zip(inputs, record["inputs"], strict=True):
        if form["shape"] is None:
            if isinstance(value, torch.Tensor):
                return "inputs"
            continue
        if not isinstance(value, torch.Tensor):
            return "inputs"
        if why := _misfit(value, form, sizes, record["architecture"]):
            return why
    return ""


def _misfit(x: torch.Tensor, form: Mapping[str, Any], sizes: dict[str, int], architecture: str) -> str:
    if str(x.dtype) != f"torch.{form['dtype']}":
        return "dtype"
    if x.requires_grad and torch.is_grad_enabled():
        return "gradient"
    if x.dim() != len(form["shape"]):
        return "shape"
    for size, axis in zip(x.shape, form["shape"], strict=True):
        if size != (axis if isinstance(axis, int) else sizes.setdefault(axis, size)):
            return "shape"
    if not x.is_contiguous():
        return "layout"
    if torch.compiler.is_compiling() or type(x) not in (torch.Tensor, torch.nn.Parameter):
        return ""  # a tracer's stand-in has no device to ask: the operator does when it runs
    return "" if _architecture(x.device) == architecture else "architecture"


def _count(name: str, why: str) -> None:
    if not torch.compiler.is_compiling():
        COUNTS[name][why] += 1


def run(name: str, *inputs: Any) -> Any:
    """A definition's outputs: the kernel's, or its reference's where a guard refuses."""
    record = KERNELS[name]
    why = refusal(record, inputs)
    _count(name, why or "kernel")
    if why:
        made = _module(record["reference"]).run(**dict(zip(record["names"], inputs, strict=True)))
        return tuple(made[output] for output in record["outputs"]) if isinstance(made, Mapping) else made
    return getattr(_module(record["source"]), record["entry"])(*inputs)


def _operator(name: str) -> Any:
    """`torch.ops.nightshift_serving.NAME`, with a fake: a compiler sees one call and the forms of its outputs."""
    record = KERNELS[name]
    kinds = ["Tensor" if form["shape"] is not None else record["scalars"][n] for n, form in _named(record)]
    given = ", ".join(f"{kind} {n}" for kind, n in zip(kinds, record["names"], strict=True))
    outputs = list(record["outputs"].values())
    made = "Tensor" if len(outputs) == 1 else f"({', '.join(['Tensor'] * len(outputs))})"
    made_op = torch.library.custom_op(
        f"{NAMESPACE}::{name}",
        lambda *inputs: _fresh(run(name, *inputs)),
        mutates_args=(),
        schema=f"({given}) -> {made}",
    )

    def fake(*inputs: Any) -> Any:
        sizes: dict[str, Any] = dict(record["axes"])
        for value, form in zip(inputs, record["inputs"], strict=True):
            sizes |= dict(zip(form["shape"] or (), getattr(value, "shape", ()), strict=False))
        device = next(x.device for x in inputs if isinstance(x, torch.Tensor))
        shapes = [[sizes[axis] if isinstance(axis, str) else axis for axis in form["shape"]] for form in outputs]
        empty = [
            torch.empty(shape, dtype=getattr(torch, form["dtype"]), device=device)
            for shape, form in zip(shapes, outputs, strict=True)
        ]
        return empty[0] if len(empty) == 1 else tuple(empty)

    made_op.register_fake(fake)
    return made_op


def _named(record: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return list(zip(record["names"], record["inputs"], strict=True))


def _fresh(made: Any) -> Any:
    return tuple(made) if isinstance(made, list) else made


OPERATORS: dict[str, Any] = {name: _operator(name) for name in KERNELS}


def call(name: str, *inputs: Any) -> Any:
    """The operator in a compiled region; else the short way, without torch's dispatcher."""
    return OPERATORS[name](*inputs) if torch.compiler.is_compiling() else run(name, *inputs)


SOLUTIONS: dict[str, Callable[..., Any]] = {
    name: (lambda *inputs, _name=name: run(_name, *inputs)) for name in KERNELS
}
"""By definition: what `flashinfer.trace_apply.enable_apply` takes."""


# --- layers that `kernels.kernelize` puts into a model ------------------------------------------------------------


NORMS = {(r["norm"], r["epsilon"]): name for name, r in KERNELS.items() if r["norm"]}
"""Kernels by a norm's width and epsilon."""


class _RMSNorm(torch.nn.Module):
    """For transformers' "RMSNorm": any number of leading dimensions, rows contiguous."""

    can_torch_compile = True
    has_backward = False
    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight, epsilon = self.weight, float(self.variance_epsilon)
        if name := NORMS.get((hidden_states.shape[-1], epsilon)):
            rows = hidden_states.reshape(-1, hidden_states.shape[-1])
            why = refusal(KERNELS[name], (rows, weight))
            if not why:
                made: torch.Tensor = call(name, rows, weight).view(hidden_states.shape)
                return made
            _count(name, why)
        wide = hidden_states.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
        return weight * wide.to(hidden_states.dtype)


layers = types.SimpleNamespace(RMSNorm=_RMSNorm)


# --- attention of transformers, over the pages of continuous batching and over static caches ----------------------

ATTENTION, STATIC = "paged|nightshift", "nightshift"
PREFILLS = {tuple(r["attention"]): name for name, r in KERNELS.items() if r["attention"]}
DECODES = {tuple(r["decode"]): name for name, r in KERNELS.items() if r["decode"]}
"""Kernels by heads, heads of keys and width: of any number of queries a sequence, and of one."""


def register() -> str:
    """Make `paged|nightshift` and `nightshift` attentions of transformers; the first, for continuous batching.

    The second is for `generate` with a static cache. Give either to `set_attn_implementation`.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, attention)
    AttentionInterface.register(STATIC, static_attention)
    AttentionMaskInterface.register(STATIC, static_mask)
    return ATTENTION


def static_mask(batch_size: int, q_length: int, kv_length: int, **kwargs: Any) -> Any:
    """For one new token of each sequence, where its keys lie in a static cache, in the form that `static_attention`
    reads; else the mask of torch's attention."""
    from transformers.masking_utils import sdpa_mask

    mask = sdpa_mask(batch_size=batch_size, q_length=q_length, kv_length=kv_length, **kwargs)
    config = kwargs["config"].get_text_config(decoder=True)
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    record = KERNELS.get(DECODES.get((heads // kv, 1, width), ""))
    if q_length != 1 or mask is None or record is None or _architecture(mask.device) != record["architecture"]:
        return mask
    return _places_of(mask[:, 0, 0].expand(batch_size, -1), kv)


def _places_of(seen: torch.Tensor, kv: int) -> torch.Tensor:
    """Of the rows of a cache [batch, kv, length, width] those that are seen: one offset for each row of keys and
    one more, then the rows' places, and zeros up to a size that depends on the cache alone. Four dimensions, as
    transformers passes on only what has them."""
    each = seen[:, None].expand(-1, kv, -1).reshape(-1)
    count = each.numel()
    found = each.cumsum(0, dtype=torch.int32)
    rows = torch.arange(count, dtype=torch.int32, device=seen.device)
    target = torch.where(each, found - 1, count).long()
    places = rows.new_zeros(count + 1).scatter_(0, target, rows)[:count]
    return torch.cat([rows.new_zeros(1), found[seen.shape[1] - 1 :: seen.shape[1]], places])[None, None, None]


def static_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> Any:
    """Queries [batch, heads, 1, width] over a static cache [batch, kv, length, width]; longer ones as torch does.

    Each head of keys is a sequence of its own, of pages of one token. What lies beyond the last offset among the
    places is never read.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if attention_mask is None or attention_mask.dtype is not torch.int32:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    batch, heads, _, width = query.shape
    kv, length = key.shape[1:3]
    known = attention_mask.view(-1)
    offsets, places = known[: batch * kv + 1], known[batch * kv + 1 :]
    name = DECODES[heads // kv, 1, width]
    inputs = (
        query.reshape(batch * kv, heads // kv, width),
        key.reshape(-1, 1, 1, width),
        value.reshape(-1, 1, 1, width),
        offsets,
        places,
        float(scaling if scaling is not None else width**-0.5),
    )
    if why := refusal(KERNELS[name], inputs):
        _count(name, why)
        count = len(places)
        rows = torch.arange(count, device=key.device)
        seen = torch.zeros(count + 1, dtype=torch.bool, device=key.device)
        seen[torch.where(rows < offsets[-1], places.long(), count)] = True
        mask = seen[:count].view(batch, kv, 1, length).repeat_interleave(heads // kv, 1)
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)
    out, _ = call(name, *inputs)
    return out.view(batch, 1, heads, width), None


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Queries [1, heads, tokens, width] of a packed batch over the paged cache, which the new keys enter first.

    Every place of the cache is a page of one token. Where a guard refuses, torch's own attention, sequence by
    sequence.
    """
    cache = kwargs["cache"]
    group, layer = cache.layer_index_to_group_indices[module.layer_idx]
    places, new = kwargs["read_index"][group], kwargs["write_index"][group]
    keys, values = cache.key_cache[layer], cache.value_cache[layer]
    fresh, fresh_values = (x.transpose(1, 2).squeeze(0) for x in (key, value))
    keys.index_copy_(0, new, fresh)
    values.index_copy_(0, new, fresh_values)
    if not places.numel():  # a batch of prompts alone: what it needs is in its own keys
        keys, values = fresh.contiguous(), fresh_values.contiguous()
        places = torch.arange(len(keys), device=keys.device)
    queries = query.squeeze(0).transpose(0, 1).contiguous()
    offsets = kwargs["cu_seq_lens_k"]
    offsets = offsets["full_attention"] if isinstance(offsets, Mapping) else offsets
    inputs = (
        queries,
        keys[:, None],
        values[:, None],
        kwargs["cu_seq_lens_q"].to(torch.int32),
        offsets.to(torch.int32),
        places.to(torch.int32),
        float(scaling if scaling is not None else queries.shape[-1] ** -0.5),
    )
    name = PREFILLS.get((queries.shape[1], keys.shape[1], queries.shape[2]), "")
    full = getattr(cache, "sliding_windows", {module.layer_idx: 1})[module.layer_idx] == 1
    why = refusal(KERNELS[name], inputs) if name and full else "window"
    if not name or why:
        _count(name or ATTENTION, why if name else "none")
        if not full:
            raise NotImplementedError(f"{ATTENTION}: layer {module.layer_idx} has a sliding window; use paged|sdpa")
        return _sequences(*inputs)[None], None
    out, _ = call(name, *inputs)
    return out[None], None


def _sequences(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, starts: Any, offsets: Any, places: Any, scale: float
) -> torch.Tensor:
    out = torch.zeros_like(q)
    bounds = zip(starts.tolist(), starts.tolist()[1:], offsets.tolist(), offsets.tolist()[1:], strict=False)
    for first, last, low, high in bounds:
        if first == last:
            continue
        chosen = places[low:high].long()
        k, v = (x[chosen, 0].transpose(0, 1).repeat_interleave(q.shape[1] // x.shape[2], 0) for x in (keys, values))
        line = torch.arange(last - first, device=q.device)[:, None] + (high - low) - (last - first)
        seen = torch.arange(high - low, device=q.device) <= line
        made = torch.nn.functional.scaled_dot_product_attention(
            q[first:last].transpose(0, 1)[None], k[None], v[None], attn_mask=seen, scale=scale
        )
        out[first:last] = made[0].transpose(0, 1)
    return out
