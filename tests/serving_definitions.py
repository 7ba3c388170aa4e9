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


def decode(heads: int = 4, kv: int = 2) -> dict[str, Any]:
    cache = ["num_pages", "page_size", "num_kv_heads", "head_dim"]
    sizes = {"num_qo_heads": heads, "num_kv_heads": kv, "head_dim": 16, "page_size": 1}
    axes = {name: {"type": "const", "value": size} for name, size in sizes.items()}
    axes |= {name: {"type": "var"} for name in ("batch_size", "num_pages", "len_indptr", "num_kv_indices")}
    return {
        "name": "decode" if (heads, kv) == (4, 2) else f"decode_h{heads}_kv{kv}",
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


def _form(text: str) -> dict[str, Any]:
    """ "bfloat16 rows width" is a tensor's dtype and axes; "float32" a number's."""
    dtype, *axes = text.split()
    return {"shape": axes or None, "dtype": dtype}


def _definition(
    name: str,
    kind: str,
    sizes: dict[str, int | None],
    inputs: dict[str, str],
    outputs: dict[str, str],
    reference: str,
) -> dict[str, Any]:
    """sizes: None of an axis that varies."""
    axes = {
        key: {"type": "var"} if size is None else {"type": "const", "value": size} for key, size in sizes.items()
    }
    forms = [{key: _form(text) for key, text in part.items()} for part in (inputs, outputs)]
    made = {"name": name, "op_type": kind, "axes": axes, "inputs": forms[0], "outputs": forms[1]}
    return {**made, "reference": reference}


SPARSE = """
import math
import torch


def run(q_nope, q_pe, ckv_cache, kpe_cache, sparse_indices, sm_scale):
    output = torch.zeros(q_nope.shape, dtype=torch.bfloat16, device=q_nope.device)
    lse = torch.full(q_nope.shape[:2], -float("inf"), dtype=torch.float32, device=q_nope.device)
    keys, narrow = ckv_cache.to(torch.float32).flatten(0, 1), kpe_cache.to(torch.float32).flatten(0, 1)
    for t in range(len(q_nope)):
        places = sparse_indices[t][sparse_indices[t] >= 0].long()
        if len(places):
            k, pe = keys[places], narrow[places]
            logits = (q_nope[t].to(torch.float32) @ k.T + q_pe[t].to(torch.float32) @ pe.T) * sm_scale
            lse[t] = torch.logsumexp(logits, dim=-1) / math.log(2.0)
            output[t] = (torch.softmax(logits, dim=-1) @ k).to(torch.bfloat16)
    return output, lse
"""


def sparse() -> dict[str, Any]:
    sizes = {"num_qo_heads": 4, "head_dim_ckv": 32, "head_dim_kpe": 16, "page_size": 4, "topk": 24}
    inputs = {
        "q_nope": "bfloat16 num_tokens num_qo_heads head_dim_ckv",
        "q_pe": "bfloat16 num_tokens num_qo_heads head_dim_kpe",
        "ckv_cache": "bfloat16 num_pages page_size head_dim_ckv",
        "kpe_cache": "bfloat16 num_pages page_size head_dim_kpe",
        "sparse_indices": "int32 num_tokens topk",
        "sm_scale": "float32",
    }
    outputs = {"output": inputs["q_nope"], "lse": "float32 num_tokens num_qo_heads"}
    return _definition(
        "sparse", "dsa_paged", {"num_tokens": None, "num_pages": None, **sizes}, inputs, outputs, SPARSE
    )


DELTA = """
import torch


def run(q, k, v, initial_state, g, beta, cu_seqlens, scale):
    heads = v.shape[1]
    q, k = (x.float().repeat_interleave(heads // x.shape[1], dim=1) for x in (q, k))
    output, final = torch.zeros_like(v), torch.zeros_like(initial_state)
    for n in range(len(cu_seqlens) - 1):
        first, last = int(cu_seqlens[n]), int(cu_seqlens[n + 1])
        state = initial_state[n].float()
        for t in range(first, last):
            state = state * g[t][:, None, None]
            old = torch.einsum("hkv,hk->hv", state, k[t])
            state = state + torch.einsum("hv,hk->hkv", beta[t][:, None] * (v[t].float() - old), k[t])
            output[t] = (scale * torch.einsum("hkv,hk->hv", state, q[t])).to(v.dtype)
        final[n] = state if last > first else 0.0
    return output, final
"""


def delta() -> dict[str, Any]:
    """A gated delta rule. The gates are inputs, and the state's last axis is that of the values."""
    sizes = {"num_q_heads": 2, "num_k_heads": 2, "num_v_heads": 4, "head_size": 16}
    state = "float32 num_seqs num_v_heads head_size head_size"
    inputs = {
        "q": "bfloat16 total_seq_len num_q_heads head_size",
        "k": "bfloat16 total_seq_len num_k_heads head_size",
        "v": "bfloat16 total_seq_len num_v_heads head_size",
        "initial_state": state,
        "g": "float32 total_seq_len num_v_heads",
        "beta": "float32 total_seq_len num_v_heads",
        "cu_seqlens": "int64 len_cu_seqlens",
        "scale": "float32",
    }
    varies = {"total_seq_len": None, "num_seqs": None, "len_cu_seqlens": None}
    outputs = {"output": inputs["v"], "final_state": state}
    return _definition("delta", "gdn", {**varies, **sizes}, inputs, outputs, DELTA)


EXPERTS = """
import torch


def run(
    routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
    gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor,
):
    TOP_K = 2
    N_GROUP = 4
    TOPK_GROUP = 2
    tokens, experts = routing_logits.shape
    local, inner = len(gemm1_weights), gemm2_weights.shape[2]
    x = hidden_states.float() * hidden_states_scale.float().T.repeat_interleave(128, dim=1)
    w1, w2 = (
        w.float() * s.float().repeat_interleave(128, dim=1).repeat_interleave(128, dim=2)
        for w, s in ((gemm1_weights, gemm1_weights_scale), (gemm2_weights, gemm2_weights_scale))
    )
    share = torch.sigmoid(routing_logits.float())
    score = share + routing_bias.float()
    grouped = score.view(tokens, N_GROUP, -1)
    groups = grouped.topk(2, dim=2).values.sum(dim=2).topk(TOPK_GROUP, dim=1).indices
    kept = torch.zeros_like(grouped[:, :, 0], dtype=torch.bool).scatter_(1, groups, True)
    score = torch.where(kept[:, :, None], grouped, -1e30).view(tokens, experts)
    chosen = score.topk(TOP_K, dim=1).indices
    weights = share.gather(1, chosen)
    weights = weights / weights.sum(dim=1, keepdim=True) * routed_scaling_factor
    output = torch.zeros(hidden_states.shape, dtype=torch.float32, device=hidden_states.device)
    for e in range(local):
        row, rank = (chosen == e + local_expert_offset).nonzero(as_tuple=True)
        both = x[row] @ w1[e].T
        made = torch.nn.functional.silu(both[:, inner:]) * both[:, :inner]
        output.index_add_(0, row, (made @ w2[e].T) * weights[row, rank][:, None])
    return output.to(torch.bfloat16)
"""


def experts() -> dict[str, Any]:
    """FP8 with scales of blocks, as DeepSeek-V3 has them; half of the experts are on another rank."""
    sizes = {
        "num_experts": 16, "num_local_experts": 8, "hidden_size": 256, "intermediate_size": 128, "both": 256,
        "hidden_blocks": 2, "inner_blocks": 1, "both_blocks": 2,
    }  # fmt: skip
    inputs = {
        "routing_logits": "float32 seq_len num_experts",
        "routing_bias": "bfloat16 num_experts",
        "hidden_states": "float8_e4m3fn seq_len hidden_size",
        "hidden_states_scale": "float32 hidden_blocks seq_len",
        "gemm1_weights": "float8_e4m3fn num_local_experts both hidden_size",
        "gemm1_weights_scale": "float32 num_local_experts both_blocks hidden_blocks",
        "gemm2_weights": "float8_e4m3fn num_local_experts hidden_size intermediate_size",
        "gemm2_weights_scale": "float32 num_local_experts hidden_blocks inner_blocks",
        "local_expert_offset": "int32",
        "routed_scaling_factor": "float32",
    }
    outputs = {"output": "bfloat16 seq_len hidden_size"}
    return _definition("experts", "moe", {"seq_len": None, **sizes}, inputs, outputs, EXPERTS)


ROTARY = """
import torch


def run(q, k, cos_sin_cache, positions, is_neox=True):
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)
    made = []
    for x in (q, k):
        turned, rest = x.float()[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
        one, other = turned.chunk(2, dim=-1) if is_neox else (turned[..., ::2], turned[..., 1::2])
        pair = one * cos - other * sin, other * cos + one * sin
        both = torch.cat(pair, dim=-1) if is_neox else torch.stack(pair, dim=-1).flatten(-2)
        made.append(torch.cat((both.to(x.dtype), rest), dim=-1))
    return tuple(made)
"""


def rotary() -> dict[str, Any]:
    inputs = {
        "q": "bfloat16 num_tokens num_qo_heads head_size",
        "k": "bfloat16 num_tokens num_kv_heads head_size",
        "cos_sin_cache": "float32 max_seq_len rotary_dim",
        "positions": "int64 num_tokens",
        "is_neox": "bool",
    }
    sizes = {"num_tokens": None, "num_qo_heads": None, "num_kv_heads": None, "max_seq_len": None}
    outputs = {"q_out": inputs["q"], "k_out": inputs["k"]}
    return _definition("rotary", "rope", {**sizes, "head_size": 32, "rotary_dim": 16}, inputs, outputs, ROTARY)


def silu() -> dict[str, Any]:
    form = "bfloat16 batch_size hidden_size"
    reference = "def run(input):\n    x = input.float()\n    return (x / (1.0 + (-x).exp())).to(input.dtype)\n"
    sizes = {"batch_size": None, "hidden_size": 96}
    return _definition("silu", "silu", sizes, {"input": form}, {"output": form}, reference)


def embedding() -> dict[str, Any]:
    inputs = {"input_ids": "int64 batch_size", "weight": "bfloat16 vocab_size embedding_dim"}
    sizes = {"batch_size": None, "vocab_size": 50, "embedding_dim": 48}
    outputs = {"output": "bfloat16 batch_size embedding_dim"}
    reference = "def run(input_ids, weight):\n    return weight[input_ids]\n"
    return _definition("embedding", "embedding", sizes, inputs, outputs, reference)


def product() -> dict[str, Any]:
    inputs = {"A": "float16 M K", "B": "float16 N K"}
    reference = "import torch\n\ndef run(A, B):\n    return {'C': torch.matmul(A, B.T)}\n"
    return _definition("product", "gemm", {"M": None, "N": 80, "K": 96}, inputs, {"C": "float16 M N"}, reference)


_DEQUANTISED = {
    "tensor": "a, b = A.float() * A_scale, B.float() * B_scale",
    "row": "a, b = A.float() * A_scale[:, None], B.float() * B_scale[:, None]",
    "block": "a = (A.float().reshape(len(A), -1, 128) * A_scale[:, :, None]).flatten(1)\n"
    "    wide = B_scale.repeat_interleave(128, 0)[: len(B)]\n"
    "    b = (B.float().reshape(len(B), -1, 128) * wide[:, :, None]).flatten(1)",
    "int4": "pairs = torch.stack([B_packed & 15, B_packed >> 4], -1).flatten(1).float() - 8\n"
    "    a, b = A.float(), (pairs.reshape(len(pairs), -1, 128) * B_scale.float()[:, :, None]).flatten(1)",
}


def scaled(scales: str) -> dict[str, Any]:
    """A product with operands in FP8, or with a weight in int4."""
    given = "bfloat16" if scales == "int4" else "float8_e4m3fn"
    weight = {"B_packed": "uint8 N K_half"} if scales == "int4" else {"B": "float8_e4m3fn N K"}
    named = {"tensor": ("one", "one"), "row": ("M", "N"), "block": ("M K_blocks", "N_blocks K_blocks")}
    of_a, of_b = named.get(scales, ("", "N K_blocks"))
    sizes = {"M": None, "N": 160, "K": 256, "K_half": 128, "K_blocks": 2, "N_blocks": 2, "one": 1}
    inputs = {"A": f"{given} M K", **weight}
    inputs |= {"A_scale": f"float32 {of_a}"} if of_a else {}
    inputs["B_scale"] = f"{'bfloat16' if scales == 'int4' else 'float32'} {of_b}"
    body = f"    {_DEQUANTISED[scales]}\n    return torch.matmul(a, b.T).to(torch.bfloat16)\n"
    reference = f"import torch\n\ndef run({', '.join(inputs)}):\n{body}"
    return _definition(f"scaled_{scales}", "gemm", sizes, inputs, {"C": "bfloat16 M N"}, reference)


SOFTMAX = """
import torch


@torch.no_grad()
def run(input):
    return torch.softmax(input.to(torch.float32), dim=-1).to(input.dtype)
"""


def softmax(width: int = 300) -> dict[str, Any]:
    form = {"shape": ["batch_size", "dim"], "dtype": "float32"}
    return {
        "name": f"softmax_{width}",
        "op_type": "softmax",
        "axes": {"batch_size": {"type": "var"}, "dim": {"type": "const", "value": width}},
        "inputs": {"input": form},
        "outputs": {"output": form},
        "reference": SOFTMAX,
    }
