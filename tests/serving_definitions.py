"""Small definitions of serving in FlashInfer-Bench's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DECODE = """
import math
import torch


@torch.no_grad()
def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):
    assert int(kv_indptr[-1]) == len(kv_indices)
    batch, heads, width = q.shape
    group = heads // k_cache.shape[2]
    output = torch.zeros(q.shape, dtype=torch.bfloat16, device=q.device)
    lse = torch.full((batch, heads), -float("inf"), dtype=torch.float32, device=q.device)
    keys, values = k_cache.to(torch.float32).flatten(0, 1), v_cache.to(torch.float32).flatten(0, 1)
    for b in range(batch):
        pages = kv_indices[int(kv_indptr[b]) : int(kv_indptr[b + 1])].long()
        if len(pages) == 0:
            continue
        k = keys[pages].repeat_interleave(group, dim=1)
        v = values[pages].repeat_interleave(group, dim=1)
        logits = torch.einsum("hd,thd->ht", q[b].to(torch.float32), k) * sm_scale
        lse[b] = torch.logsumexp(logits, dim=-1) / math.log(2.0)
        output[b] = torch.einsum("ht,thd->hd", torch.softmax(logits, dim=-1), v).to(torch.bfloat16)
    return output, lse
"""


def decode() -> dict[str, Any]:
    cache = ["num_pages", "page_size", "num_kv_heads", "head_dim"]
    sizes = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 16, "page_size": 1}
    axes = {name: {"type": "const", "value": size} for name, size in sizes.items()}
    axes |= {name: {"type": "var"} for name in ("batch_size", "num_pages", "len_indptr", "num_kv_indices")}
    return {
        "name": "decode",
        "op_type": "gqa_paged",
        "axes": axes,
        "inputs": {
            "q": {"shape": ["batch_size", "num_qo_heads", "head_dim"], "dtype": "bfloat16"},
            "k_cache": {"shape": cache, "dtype": "bfloat16"},
            "v_cache": {"shape": cache, "dtype": "bfloat16"},
            "kv_indptr": {"shape": ["len_indptr"], "dtype": "int32"},
            "kv_indices": {"shape": ["num_kv_indices"], "dtype": "int32"},
            "sm_scale": {"shape": None, "dtype": "float32"},
        },
        "outputs": {
            "output": {"shape": ["batch_size", "num_qo_heads", "head_dim"], "dtype": "bfloat16"},
            "lse": {"shape": ["batch_size", "num_qo_heads"], "dtype": "float32"},
        },
        "reference": DECODE,
    }


SAMPLE = """
import torch


@torch.no_grad()
def run(probs, top_k, top_p):
    samples = torch.empty(len(probs), dtype=torch.int64, device=probs.device)
    for i in range(len(probs)):
        row, k, p = probs[i].to(torch.float32), int(top_k[i]), float(top_p[i])
        if 0 < k < len(row):
            kept = torch.argsort(row, descending=True)[:k]
            row = torch.zeros_like(row).index_copy_(0, kept, row[kept])
            row = row / row.sum()
        if p < 1.0:
            ranked, places = torch.sort(row, descending=True)
            outside = torch.cumsum(ranked, dim=0) > p
            outside[1:] = outside[:-1].clone()
            outside[0] = False
            row = torch.zeros_like(row).index_copy_(0, places[~outside], ranked[~outside])
        samples[i] = torch.multinomial(row / row.sum(), 1)[0]
    return samples
"""


def sample() -> dict[str, Any]:
    return {
        "name": "sample",
        "op_type": "sampling",
        "axes": {"batch_size": {"type": "var"}, "vocab_size": {"type": "const", "value": 512}},
        "inputs": {
            "probs": {"shape": ["batch_size", "vocab_size"], "dtype": "float32"},
            "top_k": {"shape": ["batch_size"], "dtype": "int32"},
            "top_p": {"shape": ["batch_size"], "dtype": "float32"},
        },
        "outputs": {"samples": {"shape": ["batch_size"], "dtype": "int64"}},
        "reference": SAMPLE,
    }


TOPK = """
import torch


def run(input, k):
    values, indices = torch.topk(input, k, dim=-1)
    return values, indices
"""


def topk() -> dict[str, Any]:
    return {
        "name": "topk",
        "op_type": "topk",
        "axes": {
            "batch_size": {"type": "var"},
            "dim": {"type": "const", "value": 96},
            "k": {"type": "const", "value": 50},
        },
        "inputs": {
            "input": {"shape": ["batch_size", "dim"], "dtype": "float32"},
            "k": {"shape": None, "dtype": "int64"},
        },
        "outputs": {
            "values": {"shape": ["batch_size", "k"], "dtype": "float32"},
            "indices": {"shape": ["batch_size", "k"], "dtype": "int64"},
        },
        "reference": TOPK,
    }


def put(folder: Path, record: dict[str, Any]) -> Path:
    path = folder / "definitions" / f"{record['name']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))
    return path


NORM = """
import torch


def run(hidden_states, residual, weight):
    EPS = 1e-5
    x = hidden_states.to(torch.float32) + residual.to(torch.float32)
    y = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + EPS) * weight.to(torch.float32)
    return y.to(hidden_states.dtype)
"""


def norm() -> dict[str, Any]:
    form = {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"}
    return {
        "name": "norm",
        "op_type": "rmsnorm",
        "axes": {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": 96}},
        "inputs": {
            "hidden_states": form,
            "residual": form,
            "weight": {"shape": ["hidden_size"], "dtype": "bfloat16"},
        },
        "outputs": {"output": form},
        "reference": NORM,
    }


PREFILL = """
import math
import torch


@torch.no_grad()
def run(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, sm_scale):
    heads = q.shape[1]
    group = heads // k_cache.shape[2]
    output = torch.zeros(q.shape, dtype=torch.bfloat16, device=q.device)
    lse = torch.full(q.shape[:2], -float("inf"), dtype=torch.float32, device=q.device)
    for b in range(len(qo_indptr) - 1):
        first, last = int(qo_indptr[b]), int(qo_indptr[b + 1])
        pages = kv_indices[int(kv_indptr[b]) : int(kv_indptr[b + 1])].long()
        if first == last or len(pages) == 0:
            continue
        k = k_cache.to(torch.float32)[pages, 0].repeat_interleave(group, dim=1)
        v = v_cache.to(torch.float32)[pages, 0].repeat_interleave(group, dim=1)
        logits = torch.einsum("qhd,thd->qht", q[first:last].to(torch.float32), k) * sm_scale
        place = torch.arange(last - first, device=q.device)[:, None] + len(pages) - (last - first)
        hidden = torch.arange(len(pages), device=q.device) > place
        logits = logits.masked_fill(hidden[:, None], -float("inf"))
        lse[first:last] = torch.logsumexp(logits, dim=-1) / math.log(2.0)
        output[first:last] = torch.einsum("qht,thd->qhd", torch.softmax(logits, dim=-1), v).to(torch.bfloat16)
    return output, lse
"""


def prefill(heads: int = 4, kv: int = 2, width: int = 16) -> dict[str, Any]:
    made = decode()
    sizes = {"num_qo_heads": heads, "num_kv_heads": kv, "head_dim": width, "page_size": 1}
    axes = {name: {"type": "const", "value": size} for name, size in sizes.items()}
    axes |= {name: {"type": "var"} for name in ("total_q", "num_pages", "len_indptr", "num_kv_indices")}
    q = {"shape": ["total_q", "num_qo_heads", "head_dim"], "dtype": "bfloat16"}
    places = {name: made["inputs"][name] for name in ("kv_indptr", "kv_indices", "sm_scale")}
    caches = {name: made["inputs"][name] for name in ("k_cache", "v_cache")}
    return {
        "name": f"prefill_causal_h{heads}_kv{kv}_d{width}_ps1",
        "op_type": "gqa_paged",
        "axes": axes,
        "inputs": {"q": q, **caches, "qo_indptr": {"shape": ["len_indptr"], "dtype": "int32"}, **places},
        "outputs": {"output": q, "lse": {"shape": ["total_q", "num_qo_heads"], "dtype": "float32"}},
        "reference": PREFILL,
    }


def plain_norm(width: int, epsilon: str = "1e-6") -> dict[str, Any]:
    """A norm without a residual."""
    made = norm()
    inputs = {name: made["inputs"][name] for name in ("hidden_states", "weight")}
    reference = NORM.replace(", residual, weight", ", weight").replace(" + residual.to(torch.float32)", "")
    axes = {**made["axes"], "hidden_size": {"type": "const", "value": width}}
    return {
        **made,
        "name": f"rmsnorm_h{width}",
        "axes": axes,
        "inputs": inputs,
        "reference": reference.replace("1e-5", epsilon),
    }
