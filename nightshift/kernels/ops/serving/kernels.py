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
from nightshift.kernels.ops.serving import attention, rows, states
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
        if "rows" in values and "width" in values:
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
    if not width or "kv_indptr" not in inputs:
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
    if found is None or "qo_indptr" in definition.inputs or "kv_indices" not in definition.inputs:
        return None
    if _power(int(found["width"])) != found["width"]:
        return None
    return found


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


def _norm(definition: Described) -> dict[str, Value] | None:
    width, epsilon = _size(definition, "hidden_size"), re.search(r"EPS = ([0-9.]+e-?\d+)", definition.reference)
    names = list(definition.inputs)
    if definition.kind != "rmsnorm" or epsilon is None or definition.inputs[names[0]].dtype != "bfloat16":
        return None
    if names not in (["hidden_states", "weight"], ["hidden_states", "residual", "weight"]):
        return None
    add = "residual" in names
    return {
        "width": width,
        "padded": _power(width),
        "epsilon": epsilon.group(1),
        "add": str(add),
        "residual": "residual" if add else "x",
    }


def _softmax(definition: Described) -> dict[str, Value] | None:
    width = _size(definition, "dim", "vocab_size")
    if definition.kind != "softmax" or list(definition.inputs) != ["input"]:
        return None
    return {"width": width}


def _delta(definition: Described) -> dict[str, Value] | None:
    names = list(definition.inputs)
    ragged = names == ["q", "k", "v", "state", "A_log", "a", "dt_bias", "b", "cu_seqlens", "scale"]
    if definition.kind != "gdn" or list(definition.outputs) != ["output", "new_state"]:
        return None
    if not ragged and names != ["q", "k", "v", "state", "A_log", "a", "dt_bias", "b", "scale"]:
        return None
    if "k_last" not in definition.name:
        return None
    return {
        "heads": _size(definition, "num_v_heads"),
        "keys": _size(definition, "num_k_heads"),
        "width": _size(definition, "head_size"),
        "ragged": str(ragged),
        "count": "len(cu_seqlens) - 1" if ragged else "len(q)",
        "offsets": "cu_seqlens" if ragged else "q",
        "steps": 0 if ragged else 1,
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


_MLA_DECODE = attention.DECODE.replace("q.shape", "q_nope.shape").replace("_like(q)", "_like(q_nope)")
_MLA_DECODE = _MLA_DECODE.replace("q.device", "q_nope.device").replace(
    "            q, $q_pe", "            q_nope, $q_pe"
)
_MLA_PREFILL = attention.PREFILL.replace("q.shape", "q_nope.shape").replace("q.dtype", "q_nope.dtype")
_MLA_PREFILL = _MLA_PREFILL.replace("q.device", "q_nope.device").replace(
    "            q, $q_pe", "            q_nope, $q_pe"
)

KERNELS: tuple[ServingKernel, ...] = (
    ServingKernel("norm", rows.NORM, _norm, {"rows": (1, 2, 4), "warps": (4, 8, 2, 16)}),
    ServingKernel("softmax", rows.SOFTMAX, _softmax, {"block": (1024, 4096, 8192), "warps": (4, 8)}),
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
    ServingKernel("delta", states.DELTA, _delta, {"rows": (16, 8, 32, 64), "warps": (4, 2, 8, 1)}),
    ServingKernel("mamba", states.MAMBA, _mamba, {"rows": (16, 32, 64), "warps": (4, 2, 8)}),
)
"""All of them; a definition's is the first that fits."""
