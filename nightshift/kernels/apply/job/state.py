"""What the job's file knows while the job runs: the kernels in use, their counts, and the line that tells them."""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from nightshift.kernels.apply.job.names import PAIRS, PASSED, PASSES, PRODUCTS

KERNELS: list[dict[str, Any]] = []
"""problem, certificate (SHA-256), candidate (SHA-256), source, entry, language, mutates, launches and scratch_bytes
(of CUDA C++ and CuTe), layouts, dtype, sizes, largest (size of each axis that the judge asked), bounds, status,
gpu, architecture, torch, triton, nvidia-cutlass-dsl (of CuTe). Written by Nightshift."""
ROWS_SLACK = 4
"""A kernel certified for m rows is used for m/4 to 4·m: other sizes were proven right, but not fast."""
ROW_AXES = ("m", "t", "b")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ON_CPU = os.environ.get("TRITON_INTERPRET") == "1"


class ByTensor:
    """Values by tensor, for as long as each lives. Cheaper to ask than torch's WeakTensorKeyDictionary: an
    optimiser's step asks it for every parameter."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, Any]] = {}

    def get(self, tensor: torch.Tensor, default: Any = None) -> Any:
        # ids are given again: a new tensor may have that of one that is gone
        reference, value = self._found.get(id(tensor), (None, None))
        return value if reference is not None and reference() is tensor else default

    def __setitem__(self, tensor: torch.Tensor, value: Any) -> None:
        key = id(tensor)
        if self.get(tensor, self) is self:
            self._found[key] = (weakref.ref(tensor, lambda _: self._found.pop(key, None)), value)
        else:
            self._found[key] = (self._found[key][0], value)

    def __len__(self) -> int:
        return len(self._found)

    def clear(self) -> None:
        self._found.clear()


@dataclass
class Report:
    """What apply did. `applied`: (where, problem, certificate); `skipped`: (what, why).

    canary: what the job's first steps said, "" where they are not measured. gains: share of a step by which it is
    longer without a place's kernels, of the places that these steps told apart. Both come later: print it again.
    """

    applied: list[tuple[str, str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    kernels_sha256: str = ""
    canary: str = ""
    gains: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"nightshift kernels {self.kernels_sha256[:16]}: {len(self.applied)} places use certified kernels"]
        lines += [f"  + {where}: {problem} ({certificate[:16]})" for where, problem, certificate in self.applied]
        lines += [f"  - {what}: {why}" for what, why in self.skipped]
        lines += [f"  canary: {self.canary}"] if self.canary else []
        return "\n".join(lines)


@dataclass
class Kernel:
    """One certified kernel in use. `traceable`: the entry for a compiler's eyes, None where it must not look in.

    calls: launches that Python saw; those that a compiler or a CUDA graph makes by itself are not among them.
    disabled: why torch computes it now; "" while the kernel does.
    A record of problem `PASSES` stands for the passes that change compiled regions without a kernel.
    """

    record: dict[str, Any]
    entry: Callable[..., Any]
    traceable: Callable[..., Any] | None = None
    calls: int = 0
    shadow_checks: int = 0
    shadow_mismatches: int = 0
    disabled: str = ""

    @property
    def problem(self) -> str:
        return str(self.record["problem"])

    @property
    def certificate(self) -> str:
        return str(self.record["certificate"])

    @property
    def uses(self) -> int:
        """How often a step used it, as far as Python saw. Of `PASSES`: how often one changed a region, and how many
        regions came from torch's cache, where one may have changed them before."""
        if self.problem != PASSES:
            return self.calls
        brought = torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"]
        return sum(STATE.rewritten.values()) + int(brought)

    @property
    def eager_only(self) -> bool:
        """It beat eager torch, and not torch.compile."""
        return self.record["status"] not in ("faster", "correct")


@dataclass
class JobState:
    """kernels: by `slot`. stepping: an optimiser's steps mark the step boundaries.

    fallbacks: reason → calls that torch computed, and compiled regions traced that left one to it. functions:
    torch's own, by "module.name", while swapped.
    open: compiled regions see through the operators and launch kernels themselves; opened: problem → name of the
    operator for that. watching: for this one step they do not, so that shadow checks can look.
    models: what `apply` was given, as long as the job holds it.
    copying: compiled layers may read weights' copies; copied_steps: optimiser steps since there are some;
    wide_products: matrix products give their gradients in float32. outdated: a kernel that a pass put into compiled
    regions was disabled, and they were not yet compiled anew. widths: of the layers that a kernel multiplies for.
    rewritten: what passes changed in compiled regions, without a kernel, by the name of the pass. passing: they do.
    gain: what the canary measured of the kernels in use, as the log line says it (µs); empty where it kept none, or
    one of them was disabled since: it measured them together.
    first_steps: the canary of the job's first steps, also after its end; None before its begin.
    """

    kernels: dict[str, Kernel] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    fold: Any = None
    hooks: list[Any] = field(default_factory=list)
    stepping: bool = False
    folder: Any = None
    shadow_every: int = 0
    step: int = 0
    log_every: int = 100
    log: Callable[[str], None] = print
    registry_mark: tuple[int, int] = (0, 0)
    open: bool = False
    opened: dict[str, str] = field(default_factory=dict)
    watching: bool = False
    models: Any = field(default_factory=weakref.WeakSet)
    copying: bool = False
    copied_steps: int = 0
    wide_products: bool = False
    multiply: Any = None
    outdated: bool = False
    widths: set[torch.Size] = field(default_factory=set)
    rewritten: Counter[str] = field(default_factory=Counter)
    passing: bool = True
    gain: dict[str, int] = field(default_factory=dict)
    first_steps: Any = None


STATE = JobState()
OPERATORS: dict[str, Any] = {}


def kernels_sha256() -> str:
    """The hash of all that this file says of its kernels: bounds and largest sizes too."""
    listed = sorted(json.dumps(record, sort_keys=True) for record in KERNELS)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def slot(problem: str, sizes: Mapping[str, int], dtype: str) -> str:
    """Where `STATE.kernels` has a problem's kernel: a product's by what its rows are multiplied with as well, a
    rotation's of pairs by its heads."""
    if problem in PRODUCTS:
        return f"{problem} n={sizes['n']} k={sizes['k']} {dtype}"
    return f"{problem} h={sizes['h']} {dtype}" if problem in PAIRS else problem


def in_use(problem: str) -> Kernel | None:
    """The kernel that computes a problem (of a product, a slot) now: none where there is none, it was disabled, or
    a region is compiled and the compiler's own code was not slower.

    A compiled region guards on the answer, so it is compiled anew, without the kernel, once that is disabled.
    """
    kernel = STATE.kernels.get(problem)
    if kernel is None or kernel.disabled or (kernel.eager_only and torch.compiler.is_compiling()):
        return None
    return kernel


def disable(kernel: Kernel, reason: str) -> None:
    """From the next call on torch computes it; from the next trace on, in compiled regions."""
    kernel.disabled = reason
    STATE.gain = {}
    # what a pass put into a graph asks no guard again; all other regions guard on `in_use`
    STATE.outdated = STATE.outdated or kernel.problem in PASSED
    STATE.log(f"nightshift kernels: {kernel.problem} {kernel.certificate[:16]} {reason}; torch computes it now")


def fell_back(problem: str, reason: str) -> None:
    """Counts a call that torch computes. A compiled region decides when it is traced, and is counted once."""
    if torch.compiler.is_compiling():
        _traced_away(problem, reason)
    else:
        count_fallback(f"{problem}: {reason}")


def count_fallback(key: str) -> None:
    """One more for a reason."""
    STATE.fallbacks[key] = STATE.fallbacks.get(key, 0) + 1


# a plain call would be traced: the count would be written into the graph, or break it
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _traced_away(problem: str, why: str) -> int:
    """Run by the tracer, and not by what it makes."""
    count_fallback(f"{problem}: {why}, in a compiled region")
    return 0


def fallbacks() -> Mapping[str, int]:
    """How often torch computed instead, by reason."""
    return dict(STATE.fallbacks)


@cache
def machine() -> dict[str, str]:
    """What certificates are held against: GPU, driver, torch and Triton. What cannot be read is left out."""
    found = {"torch": str(torch.__version__), "triton": triton_version()}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        with suppress(OSError):
            # NVML would say it too, through a package that a job need not have
            found["driver"] = Path("/sys/module/nvidia/version").read_text().strip()
    return found


def triton_version() -> str:
    try:
        import triton
    except ImportError:
        return "none"
    return str(triton.__version__)


def _figures() -> dict[str, int | str]:
    kernels, rank = STATE.kernels.values(), os.environ.get("RANK", "")
    return {
        "step": STATE.step,
        "applied": sum(not k.disabled for k in kernels),
        "calls": sum(k.calls for k in kernels),
        "fallbacks": sum(STATE.fallbacks.values()),
        "shadow_checks": sum(k.shadow_checks for k in kernels),
        "shadow_mismatches": sum(k.shadow_mismatches for k in kernels),
        "demoted": sum(bool(k.disabled) for k in kernels),
        **STATE.gain,
        **({"rank": rank} if rank.isdecimal() else {}),
    }


def log_line() -> str:
    """`nightshift kernels: step=… applied=… calls=… fallbacks=… shadow_checks=… shadow_mismatches=… demoted=…`, the
    canary's `step_us=… gain_us=… gain_low_us=…` where it kept kernels, the machine, and the certificates that are
    used and unused (16 digits of each)."""
    kernels = STATE.kernels.values()
    text = "nightshift kernels: " + " ".join(f"{key}={value}" for key, value in _figures().items())
    used = [k.certificate[:16] for k in kernels if not k.disabled]
    told = {
        "mismatched": [k.certificate[:16] for k in kernels if k.shadow_mismatches],
        **{name: [quote(value)] for name, value in machine().items()},
        "used": used,
        "unused": [str(k["certificate"])[:16] for k in KERNELS if str(k["certificate"])[:16] not in used],
    }
    return text + "".join(f" {name}={','.join(values)}" for name, values in told.items() if values)
