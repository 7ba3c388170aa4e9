"""A certified source's entry, as it is and as a compiler may look into it.

Seen from a compiled region a custom operator is a call into Python: it costs tens of microseconds, and inside a
step whose GPU is nearly always busy, twenty of them cost more than their kernels save. So a second copy of the
entry has its Triton kernels wrapped by `torch.library.wrap_triton`: torch.compile then writes their launches into
its own code, as it does for the kernels that it generates.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from nightshift.kernels.apply.job.cuda_source import CudaSource
from nightshift.kernels.apply.job.state import STATE


def load_entry(record: Mapping[str, Any]) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """(entry, the same for a compiler) of a record's source. Triton has to read its own from a file."""
    if hashlib.sha256(record["source"].encode()).hexdigest() != record["source_sha256"]:
        raise ValueError("the source is not the one that was certified")
    if record.get("language") == "cuda":
        return CudaSource(record), None
    if STATE.folder is None:
        STATE.folder = tempfile.TemporaryDirectory(prefix="nightshift-kernels-")
    name = f"nightshift_kernel_{record['candidate'][:16]}"
    path = Path(STATE.folder.name) / f"{name}.py"
    path.write_text(record["source"], encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    entry: Callable[..., Any] = getattr(module, record["entry"])
    return entry, traceable(entry)


class _Wrapped:
    """`kernel[grid](…)` for a compiler's eyes."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        return torch.library.wrap_triton(self._kernel)[grid]


def traceable(entry: Callable[..., Any]) -> Callable[..., Any] | None:
    """The entry with its module's Triton kernels wrapped; None where one is no plain `triton.jit` kernel (Gluon,
    the interpreter), or none is found: such an entry stays a call into Python."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        return None
    if not isinstance(entry, FunctionType):
        return None
    names = dict(entry.__globals__)
    plain = {name: value for name, value in names.items() if type(value) is JITFunction}
    other = [name for name, value in names.items() if isinstance(value, JITFunction) and name not in plain]
    if not plain or other:
        return None
    names |= {name: _Wrapped(value) for name, value in plain.items()}
    for name, value in list(names.items()):
        if isinstance(value, FunctionType) and value.__module__ == entry.__module__:
            names[name] = FunctionType(value.__code__, names, name, value.__defaults__, value.__closure__)
    made: Callable[..., Any] = names[entry.__name__]
    return made
