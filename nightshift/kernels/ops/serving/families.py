"""Which of our kernels computes a serving definition, and its source for each configuration.

A kernel fits a definition by its inputs, outputs and kind, never by its name alone; what it computes is the judge's
to find. Constants of the definition (heads, widths, the page) are written into the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from nightshift.kernels.generate.base import Config, Value
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.ops.serving import attention, choice, experts, products, rows, states
from nightshift.kernels.problem import Case


class Described(Protocol):
    """A definition, as `kernels.suites.definitions` reads it."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def axes(self) -> Mapping[str, int | None]: ...
    @property
    def inputs(self) -> Mapping[str, Any]: ...
    @property
    def outputs(self) -> Mapping[str, Any]: ...
    @property
    def reference(self) -> str: ...


@dataclass(frozen=True)
class ServingKernel:
    """One of our kernels. values: a definition's constants by placeholder, None where the kernel is not for it."""

    name: str
    body: str
    values: Callable[[Described], dict[str, Value] | None]
    dimensions: Mapping[str, tuple[Value, ...]]


@dataclass(frozen=True)
class ServingFamily:
    """A kernel for one definition, as a family that a search explores."""

    kernel: ServingKernel
    problem: str
    constants: Mapping[str, Value]

    @property
    def name(self) -> str:
        return f"serving_{self.kernel.name}"

    @property
    def problems(self) -> tuple[str, ...]:
        return (self.problem,)

    def space(self, problem: str, case: Case) -> Space:
        return Space.of(lambda config: True, **self.kernel.dimensions)

    def source(self, problem: str, case: Case, config: Config) -> str:
        values = {**self.constants, **config}
        if "splits" in values:
            values["wide"] = 1 << (int(values["splits"]) - 1).bit_length()
        if "tokens" in values:  # a tile is of at least 16 lines, the least that a product of matrices takes
            group = int(values["group"])
            values["tokens"] = max(1, int(values["tokens"]) // group)
            values["lines"] = max(16, 1 << (int(values["tokens"]) * group - 1).bit_length())
        if "kept" in values:  # a part is no wider than the row, and no narrower than what it keeps
            block = max(int(values["kept"]), min(int(values["block"]), _power(int(values["width"]))))
            parts = -(-int(values["width"]) // block)
            values |= {"block": block, "parts": parts, "wide": _power(parts * int(values["kept"]))}
        if "filled" in values:  # rows that fill a program, or a row in parts
            block = int(values["block"])
            padded = min(_power(int(values["width"])), block)
            parts = -(-int(values["width"]) // padded)
            values |= {"padded": padded, "rows": block // padded, "parts": parts, "wide": _power(parts)}
        elif "rows" in values and "width" in values:
            values["rows"] = min(int(values["rows"]), int(values["width"]))
        return render(problem, self.kernel.body, values, layouts="contiguous")


def family_of(definition: Described) -> ServingFamily | None:
    """The kernel for a definition; None where there is none of ours."""
    for kernel in KERNELS:
        constants = kernel.values(definition)
        if constants is not None:
            given = {"arguments": ", ".join(definition.inputs), **constants}
            return ServingFamily(kernel, f"serving/{definition.name}", given)
    return None


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _size(definition: Described, *names: str) -> int:
    return next((size for name in names if (size := definition.axes.get(name)) is not None), 0)


def _cache(definition: Described) -> dict[str, Value] | None:
    """What decode and prefill share: heads, widths, and where keys and values are."""
    inputs, outputs = definition.inputs, list(definition.outputs)
    heads = _size(definition, "num_qo_heads")
    if outputs != ["output", "lse"] or not heads or inputs[next(iter(inputs))].dtype != "bfloat16":
        return None
    latent = "ckv_cache" in inputs
    if latent:
        kv, width, narrow = 1, _size(definition, "head_dim_ckv"), _size(definition, "head_dim_kpe")
        names = {"q_pe": "q_pe", "keys": "ckv_cache", "keys_pe": "kpe_cache", "values": "ckv_cache"}
    else:
        kv, width, narrow = _size(definition, "num_kv_heads"), _size(definition, "head_dim", "qk_dim"), 0
        paged = "k_cache" in inputs
        keys, values = ("k_cache", "v_cache") if paged else ("k", "v")
        kv = kv or heads
        names = {"q_pe": "q", "keys": keys, "keys_pe": keys, "values": values}
    if not width or not {"kv_indptr", "sparse_indices"} & set(inputs):
        return None
    counted = "kv_last_page_len" in inputs
    group = heads // kv
    found: dict[str, Value] = {
        **names,
        "heads": heads,
        "kv": kv,
        "group": group,
        "lines": max(16, _power(group)),
        "width": width,
        "narrow": narrow,
        "page": _size(definition, "page_size") or 1,
        "last": "kv_last_page_len" if counted else "kv_indptr",
        "counted": str(counted),
        "dot": f"tl.bfloat16 if {next(iter(inputs))}.is_cuda else tl.float32",
    }
    return found


def _decode(definition: Described) -> dict[str, Value] | None:
    found = _cache(definition)
    if found is None or _power(int(found["width"])) != found["width"]:
        return None
    if "sparse_indices" in definition.inputs:
        return {
            **found, "page": 1, "offsets": "sparse_indices", "pages": "sparse_indices", "last": "sparse_indices",
            "chosen": _size(definition, "topk"),
        }  # fmt: skip
    if "qo_indptr" in definition.inputs or "kv_indices" not in definition.inputs:
        return None
    return {**found, "offsets": "kv_indptr", "pages": "kv_indices", "chosen": 0}


def _prefill(definition: Described) -> dict[str, Value] | None:
    found = _cache(definition)
    if found is None or "qo_indptr" not in definition.inputs or "causal" not in definition.name:
        return None
    paged = "kv_indices" in definition.inputs
    out_width = _size(definition, "vo_dim") or int(found["width"])
    return {
        **found,
        "paged": str(paged),
        "pages": "kv_indices" if paged else "kv_indptr",
        "padded": _power(int(found["width"])),
        "out_width": out_width,
        "out_padded": _power(out_width),
    }


def _latent(values: Callable[[Described], dict[str, Value] | None], narrow: bool) -> Callable[..., Any]:
    """Of a kernel's definitions those with, or without, a second part of queries and keys."""

    def chosen(definition: Described) -> dict[str, Value] | None:
        found = values(definition)
        return found if found is not None and bool(found["narrow"]) is narrow else None

    return chosen


_NORMS = {("output",): "out", ("output", "updated_residual"): "out, total"}
"""What a norm's kernel returns, by a definition's outputs."""


def _norm(definition: Described) -> dict[str, Value] | None:
    width, epsilon = _size(definition, "hidden_size"), re.search(r"EPS = ([0-9.]+e-?\d+)", definition.reference)
    names = list(definition.inputs)
    if definition.kind != "rmsnorm" or epsilon is None or definition.inputs[names[0]].dtype != "bfloat16":
        return None
    if names not in (["hidden_states", "weight"], ["hidden_states", "residual", "weight"]):
        return None
    add = "residual" in names
    returned = _NORMS.get(tuple(definition.outputs))
    if returned is None or (len(definition.outputs) > 1 and not add):
        return None
    return {
        "returned": returned,
        "sum": str(returned != "out"),
        "width": width,
        "padded": _power(width),
        "epsilon": epsilon.group(1),
        "add": str(add),
        "residual": "residual" if add else "x",
        "one": "1.0" if re.search(r"1\.0 \+ weight", definition.reference) else "0.0",
    }


_FLOATS = ("bfloat16", "float16", "float32", "float8_e4m3fn")


def _silu(definition: Described) -> dict[str, Value] | None:
    if definition.kind != "silu" or list(definition.inputs) != ["input"]:
        return None
    return {} if definition.inputs["input"].dtype in _FLOATS else None


def _embedding(definition: Described) -> dict[str, Value] | None:
    if set(definition.inputs) != {"input_ids", "weight"} or definition.inputs["weight"].dtype not in _FLOATS:
        return None
    return {"width": _size(definition, "embedding_dim")}


def _rotary(definition: Described) -> dict[str, Value] | None:
    names, width = set(definition.inputs), _size(definition, "head_dim", "head_size")
    turned = _size(definition, "rotary_dim") or width
    cache = "cos_sin_cache" in names
    if definition.kind != "rope" or definition.inputs["q"].dtype not in _FLOATS or not width:
        return None
    if names - {"is_neox"} != {"q", "k", *(("cos_sin_cache", "positions") if cache else ("cos", "sin"))}:
        return None
    return {
        "width": width,
        "turned": turned,
        "half": _power(turned // 2),
        "rest": _power(max(1, width - turned)),
        "pairs": "not is_neox" if "is_neox" in names else "False",
        "cache": str(cache),
        "cos": "cos_sin_cache" if cache else "cos",
        "sin": "cos_sin_cache" if cache else "sin",
        "positions": "positions" if cache else "q",
        "steps": 1 if cache else "q.shape[2]",
    }


def _topk(definition: Described) -> dict[str, Value] | None:
    width, count = _size(definition, "dim", "vocab_size"), _size(definition, "k")
    if set(definition.outputs) != {"values", "indices"} or definition.inputs["input"].dtype != "float32":
        return None
    return {"width": width, "count": count, "kept": _power(count)}


def _sampling(definition: Described) -> dict[str, Value] | None:
    names = set(definition.inputs)
    if "probs" not in names or definition.inputs["probs"].dtype != "float32":
        return None
    if not names <= {"probs", "top_k", "top_p", "num_samples"}:
        return None
    column = "num_samples" in names  # of which a definition has one
    return {
        "width": _size(definition, "vocab_size"),
        "shape": "(rows, 1)" if column else "(rows,)",
        **{name: name if name in names else "probs" for name in ("top_k", "top_p")},
        "has_k": str("top_k" in names),
        "has_p": str("top_p" in names),
    }


def _softmax(definition: Described) -> dict[str, Value] | None:
    width = _size(definition, "dim", "vocab_size")
    if definition.kind != "softmax" or list(definition.inputs) != ["input"]:
        return None
    return {"width": width, "filled": "True"}


_STATES = ("state", "initial_state")
_GATES = (["A_log", "a", "dt_bias", "b"], ["g", "beta"])
"""A gated delta rule's gates: to be computed, or given."""


def _delta(definition: Described) -> dict[str, Value] | None:
    names = set(definition.inputs)
    gates = next((gates for gates in _GATES if names >= set(gates)), None)
    state = next((name for name in _STATES if name in names), None)
    if definition.kind != "gdn" or gates is None or state is None or len(definition.outputs) != 2:
        return None
    if not names <= {"q", "k", "v", state, *gates, "cu_seqlens", "scale"}:
        return None
    ragged, last = "cu_seqlens" in names, re.search(r"[kv]-last", definition.reference)
    keys_last = last is not None and last.group() == "k-last"
    return {
        "heads": _size(definition, "num_v_heads"),
        "keys": _size(definition, "num_k_heads"),
        "width": _size(definition, "head_size"),
        "ragged": str(ragged),
        "count": "len(cu_seqlens) - 1" if ragged else "len(q)",
        "offsets": "cu_seqlens" if ragged else "q",
        "steps": "0" if ragged else "q.shape[1]",
        "state": state,
        "gates": ", ".join(gates) if len(gates) == 4 else f"q, {gates[0]}, q, {gates[1]}",
        "given": str(len(gates) == 2),
        "values_last": str(not keys_last),
    }


def _constant(definition: Described, name: str, otherwise: int) -> int:
    """A number that the reference alone has: `TOP_K = 8`."""
    found = re.search(rf"^\s*{name} = (\d+)\b", definition.reference, re.MULTILINE)
    return int(found.group(1)) if found else otherwise


_BLOCK = 128
_SCALED = ("hidden_states_scale", "gemm1_weights_scale", "gemm2_weights_scale")


def _has_experts(definition: Described, weights: tuple[str, str], given: bool, scaled: bool) -> bool:
    """Whether the operands are of a form that the kernel reads, in whole blocks."""
    inputs, names = definition.inputs, set(definition.inputs)
    if definition.kind != "moe" or not {*weights, "hidden_states"} <= names or not (given or scaled):
        return False
    forms = [inputs[name].dtype for name in ("hidden_states", *weights)]
    if forms != ["float8_e4m3fn" if scaled else "bfloat16"] * 3:
        return False
    if _size(definition, "hidden_size") % _BLOCK or _size(definition, "intermediate_size") % _BLOCK:
        return False
    if scaled and len(inputs["hidden_states_scale"].shape or ()) != 2:
        return False
    return given or "routing_logits" in names


def _experts(definition: Described) -> dict[str, Value] | None:
    """bfloat16 with experts that are given, or FP8 with a scale for each block of 128, in both operands."""
    names = set(definition.inputs)
    given, scaled = "topk_ids" in names, set(_SCALED) <= names
    first, second = ("gemm1_weights", "gemm2_weights") if scaled else ("w1", "w2")
    if not _has_experts(definition, (first, second), given, scaled):
        return None
    local = _size(definition, "num_local_experts", "num_experts")
    number, k = (
        _size(definition, "num_experts") or local,
        _size(definition, "top_k") or _constant(definition, "TOP_K", 0),
    )
    biased = "routing_bias" in names
    scales = _SCALED if scaled else ("hidden_states",) * 3
    return {
        "width": _size(definition, "hidden_size"),
        "inner": _size(definition, "intermediate_size"),
        "experts": number,
        "wide": _power(number),
        "local": local,
        "wide_local": _power(local),
        "k": k,
        "ranks": _power(k),
        "groups": _constant(definition, "N_GROUP", 1) if biased else 1,
        "kept_groups": _constant(definition, "TOPK_GROUP", 1) if biased else 1,
        "biased": str(biased),
        "given": str(given),
        "scaled": str(scaled),
        "first": first,
        "second": second,
        "x_scale": scales[0],
        "first_scale": scales[1],
        "second_scale": scales[2],
        "logits": "hidden_states" if given else "routing_logits",
        "bias": "routing_bias" if biased else "hidden_states",
        "ids": "topk_ids" if given else "hidden_states",
        "weights": "topk_weights" if given else "hidden_states",
        "offset": "local_expert_offset" if "local_expert_offset" in names else "0",
        "factor": "routed_scaling_factor" if biased and "routed_scaling_factor" in names else "1.0",
        "between": "torch.bfloat16 if x.is_cuda else torch.float32",
        "dot": f"{'tl.float8e4nv' if scaled else 'tl.bfloat16'} if x.is_cuda else tl.float32",
        "dot_down": "tl.bfloat16 if x.is_cuda else tl.float32",
    }


def _mamba(definition: Described) -> dict[str, Value] | None:
    if definition.kind != "mamba_ssu" or "state_batch_indices" not in definition.inputs:
        return None
    return {
        "heads": _size(definition, "nheads"),
        "groups": _size(definition, "ngroups"),
        "width": _size(definition, "head_dim"),
        "states": _size(definition, "dstate"),
    }


def _product(definition: Described) -> dict[str, Value] | None:
    inputs, outputs = definition.inputs, definition.outputs
    columns, inner = _size(definition, "N"), _size(definition, "K")
    if list(inputs) != ["A", "B"] or list(outputs) != ["C"] or not columns or not inner:
        return None
    dtypes = {form.dtype for form in (*inputs.values(), *outputs.values())}
    if len(dtypes) > 1 or not dtypes <= {"bfloat16", "float16"} or tuple(inputs["B"].shape) != ("N", "K"):
        return None
    return {
        "columns_of_b": columns,
        "inner": inner,
        "dot": f"tl.{dtypes.pop()} if A.is_cuda else tl.float32",
    }


_SCALES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("tensor", (("A", "M K"), ("B", "N K"), ("A_scale", "one"), ("B_scale", "one"))),
    ("row", (("A", "M K"), ("B", "N K"), ("A_scale", "M"), ("B_scale", "N"))),
    ("block", (("A", "M K"), ("B", "N K"), ("A_scale", "M K_blocks"), ("B_scale", "N_blocks K_blocks"))),
    ("int4", (("A", "M K"), ("B_packed", "N K_half"), ("B_scale", "N K_blocks"))),
)
"""Products with quantised operands, by their inputs and the axes of each."""


def _scaled(definition: Described) -> dict[str, Value] | None:
    inputs, columns, inner = definition.inputs, _size(definition, "N"), _size(definition, "K")
    shapes = tuple((name, " ".join(map(str, form.shape or ()))) for name, form in inputs.items())
    scales = next((name for name, wanted in _SCALES if wanted == shapes), "")
    if not scales or not columns or inner % 128 or [f.dtype for f in definition.outputs.values()] != ["bfloat16"]:
        return None
    wanted = {"A": "bfloat16", "B_packed": "uint8"} if scales == "int4" else dict.fromkeys("AB", "float8_e4m3fn")
    if any(inputs[name].dtype != dtype for name, dtype in wanted.items()):
        return None
    return {
        "columns_of_b": columns,
        "inner": inner,
        "scales": scales,
        "b": "B_packed" if scales == "int4" else "B",
        "a_scale": "B_scale" if scales == "int4" else "A_scale",
    }


_MLA_DECODE = attention.DECODE.replace("q.shape", "q_nope.shape").replace("_like(q)", "_like(q_nope)")
_MLA_DECODE = _MLA_DECODE.replace("q.device", "q_nope.device").replace(
    "            q, $q_pe", "            q_nope, $q_pe"
)
_MLA_PREFILL = attention.PREFILL.replace("q.shape", "q_nope.shape").replace("q.dtype", "q_nope.dtype")
_MLA_PREFILL = _MLA_PREFILL.replace("q.device", "q_nope.device").replace(
    "            q, $q_pe", "            q_nope, $q_pe"
)

KERNELS: tuple[ServingKernel, ...] = (
    ServingKernel("norm", rows.NORM, _norm, {"wide": (8, 16, 4), "rows": (1, 2, 4), "warps": (4, 8, 2, 16)}),
    ServingKernel("softmax", rows.SOFTMAX, _softmax, {"block": (4096, 1024, 256, 8192), "warps": (4, 8, 2, 16)}),
    ServingKernel(
        "decode",
        attention.DECODE,
        _latent(_decode, False),
        {"block": (64, 32, 128), "splits": (8, 1, 4, 16, 32), "stages": (3, 2, 4), "warps": (4, 8)},
    ),
    ServingKernel(
        "latent_decode",
        _MLA_DECODE,
        _latent(_decode, True),
        {"block": (32, 16, 64), "splits": (16, 1, 8, 32), "stages": (2, 1, 3), "warps": (4, 8)},
    ),
    ServingKernel(
        "prefill",
        attention.PREFILL,
        _latent(_prefill, False),
        {"tokens": (64, 128, 16), "block": (64, 32, 128), "stages": (2, 3), "warps": (4, 8)},
    ),
    ServingKernel(
        "latent_prefill",
        _MLA_PREFILL,
        _latent(_prefill, True),
        {"tokens": (16, 64), "block": (32, 16), "stages": (1, 2), "warps": (4, 8)},
    ),
    ServingKernel("silu", rows.SILU, _silu, {"block": (2048, 1024, 4096, 8192), "warps": (4, 8)}),
    ServingKernel(
        "embedding", rows.EMBEDDING, _embedding, {"block": (1024, 512, 2048), "rows": (1, 2, 4), "warps": (4, 2, 8)}
    ),
    ServingKernel("rotary", rows.ROTARY, _rotary, {"rows": (8, 4, 16, 32), "warps": (4, 2, 8)}),
    ServingKernel("topk", choice.TOPK, _topk, {"block": (2048, 1024, 4096, 8192), "warps": (8, 4, 16)}),
    ServingKernel("sample", choice.SAMPLE, _sampling, {"block": (8192, 4096, 16384), "warps": (16, 8, 32)}),
    ServingKernel(
        "experts",
        experts.EXPERTS,
        _experts,
        {"lines": (64, 32, 128), "columns": (128, 64), "depth": (128, 64), "stages": (3, 2, 4), "warps": (8, 4)},
    ),
    ServingKernel("delta", states.DELTA, _delta, {"rows": (16, 8, 32, 64), "warps": (4, 2, 8, 1)}),
    ServingKernel(
        "product",
        products.PRODUCT,
        _product,
        {
            "lines": (128, 64),
            "columns": (128, 256, 64),
            "depth": (64, 128),
            "stages": (4, 3),
            "splits": (8, 4, 16),
            "warps": (8, 4),
        },
    ),
    ServingKernel(
        "scaled_product",
        products.SCALED,
        _scaled,
        {
            "lines": (128, 64),
            "columns": (128, 64),
            "stages": (4, 3, 2),
            "splits": (8, 4, 16),
            "warps": (8, 4),
            # bfloat16 holds every value of FP8, and sums its products without FP8's short accumulators
            "dot": (
                "tl.bfloat16 if A.is_cuda else tl.float32",
                "(tl.float8e4nv if A.dtype == torch.float8_e4m3fn else tl.bfloat16) if A.is_cuda else tl.float32",
            ),
        },
    ),
    ServingKernel("mamba", states.MAMBA, _mamba, {"rows": (16, 32, 64), "warps": (4, 2, 8)}),
)
"""All of them; a definition's is the first that fits."""
