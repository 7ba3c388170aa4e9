"""Runs inside the candidate's host: what an entry has left behind in its process.

A kernel is called in the middle of somebody's training job. Whatever it changes beside its outputs changes that
job: a default dtype, what torch's generator draws next, a mode, a function of torch put in another's place; and
outputs that it does not let go of fill the GPU. The candidate shares this process and may lie to this code; nothing
here speaks for it.
"""

from __future__ import annotations

import _thread
import builtins
import gc
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional
import torch.nn.modules.module
from torch.multiprocessing.reductions import StorageWeakRef

from nightshift.kernels.judge.host import surroundings

_WATCHED: Mapping[str, Any] = {
    "builtins": builtins,
    "gc": gc,
    "time": time,
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.autograd": torch.autograd,
    "torch.cuda": torch.cuda,
    "torch.nn.Module": torch.nn.Module,
    "torch.nn.functional": torch.nn.functional,
}
_HOOKS = sorted(name for name in vars(torch.nn.modules.module) if name.startswith("_global_") and "hook" in name)
_ROOMS = ("CUDA_", "NCCL_", "PYTORCH_", "OMP_", "MKL_", "LD_", "PYTHON")
"""Environment variables that the CUDA driver, torch and later processes go by."""
_TORCH = os.path.dirname(torch.__file__)
_COMPILER = (os.path.join(_TORCH, "_dynamo", ""), os.path.join(_TORCH, "_compile.py"))
_OPTIMISER = os.path.join(_TORCH, "optim", "optimizer.py")
_LEAST = 2.0**-1060  # zero where subnormal numbers are flushed
_MANY = 8
"""Outputs of so many calls alive at once are none that a call still needs."""
_FEW = 16
"""So many tensors more than before the first call may be alive, and one for every fourth call."""


class Footprint:
    """Taken before a candidate is loaded; asked after it was loaded and after each call."""

    def __init__(self, device: str, functions: surroundings.Functions | None = None) -> None:
        """`functions`: as they were before; None: as they are."""
        self._device = device
        self._settings = _settings(device)
        self._functions = {
            (room, name): value
            for room, owner in _WATCHED.items()
            for name, value in list(vars(owner).items())
            if callable(value)
        }
        self._everything = functions or surroundings.Functions()
        self._replaced = frozenset(self._everything.replaced(_by_torch_compile))  # by this host
        self._variables = dict(os.environ)
        self._threads = _thread._count()
        self._outputs: list[StorageWeakRef] = []
        self._generators = _generators(device)
        self._draws = 0

    def handed_over(self, outputs: Iterable[torch.Tensor]) -> None:
        """Note a call's outputs, so that `outlived` can tell whether they were let go of."""
        self._outputs += [StorageWeakRef(x.untyped_storage()) for x in outputs if x.numel()]  # type: ignore[no-untyped-call]

    def outlived(self) -> int:
        """How many outputs of earlier calls are alive although only the candidate can hold them; a few are 0."""
        self._outputs = [ref for ref in self._outputs if not ref.expired()]  # type: ignore[no-untyped-call]
        if len(self._outputs) >= _MANY:
            gc.collect()
            self._outputs = [ref for ref in self._outputs if not ref.expired()]  # type: ignore[no-untyped-call]
        return len(self._outputs) if len(self._outputs) >= _MANY else 0

    def grown(self, calls: int, ours: int) -> int:
        """How many tensors that are not `ours` have come to be alive since, where that is of the order of `calls`:
        inputs, scratch memory or upstream gradients that nobody lets go of."""
        grown = surroundings.tensors() - self._everything.tensors - ours
        return grown if grown > _FEW + calls // 4 else 0

    def threads(self) -> int:
        """Threads of Python that were not there before."""
        return max(0, _thread._count() - self._threads)

    def changed(self, thoroughly: bool = False, at_last: bool = False) -> list[str]:
        """Names of what is no longer as it was, sorted, with the value before and now where that is short.
        thoroughly: every function of every module as well, which takes some 0.02 s; at_last: every operator too."""
        now = _settings(self._device)
        found = [
            f"{name} ({str(old)[:40]} before, now {str(now[name])[:40]})"
            for name, old in self._settings.items()
            if now[name] != old
        ]
        for (room, name), value in self._functions.items():
            put = vars(_WATCHED[room]).get(name)
            if put is not value and not _by_torch_compile(put, value):
                found.append(f"{room}.{name}")
        if thoroughly:
            found += set(self._everything.replaced(_by_torch_compile)) - self._replaced
        if at_last:
            found += self._everything.overridden()
        if self._drawn() > 1:  # once is a model whose weights are drawn when it is made
            found.append("state of torch's generator")
        known = {*self._variables, *(name for name in os.environ if name.startswith(_ROOMS))}
        found += [f"os.environ[{name!r}]" for name in known if os.environ.get(name) != self._variables.get(name)]
        return sorted(set(found))[:16]

    def _drawn(self) -> int:
        """How often something has been drawn from torch's generators between two looks."""
        now = _generators(self._device)
        self._draws += not all(map(torch.equal, self._generators, now))
        self._generators = now
        return self._draws


def _settings(device: str) -> dict[str, Any]:
    """Everything of one value that the rest of a process goes by."""
    backends = torch.backends
    found: dict[str, Any] = {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradients enabled": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "autocast on the GPU": torch.is_autocast_enabled("cuda"),
        "autocast on the CPU": torch.is_autocast_enabled("cpu"),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "seed of torch's generator": torch.initial_seed(),
        "threads of torch": torch.get_num_threads(),
        "torch function modes": torch._C._len_torch_function_stack(),
        "torch dispatch modes": torch._C._len_torch_dispatch_stack(),
        "cuDNN enabled": backends.cudnn.enabled,
        "cuDNN benchmark": backends.cudnn.benchmark,
        "cuDNN deterministic": backends.cudnn.deterministic,
        "cuDNN allows TF32": backends.cudnn.allow_tf32,
        "cuBLAS allows TF32": backends.cuda.matmul.allow_tf32,
        "cuBLAS reduces in float16": backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "cuBLAS reduces in bfloat16": backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "FlashAttention enabled": backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        "memory-efficient attention enabled": backends.cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
        "attention by matrix products enabled": backends.cuda.math_sdp_enabled(),  # type: ignore[no-untyped-call]
        "subnormal numbers flushed": _LEAST * len(_WATCHED) == 0,
        "hooks on all modules": sum(len(vars(torch.nn.modules.module)[name] or ()) for name in _HOOKS),
        **surroundings.settings(),
    }
    if device == "cuda":
        found |= {
            "seed of the GPU's generator": torch.cuda.initial_seed(),
            "current GPU": torch.cuda.current_device(),
            "current stream": torch.cuda.current_stream().cuda_stream,
        }
    return found


def _generators(device: str) -> tuple[torch.Tensor, ...]:
    """What the job draws next follows from these."""
    return torch.get_rng_state(), *((torch.cuda.get_rng_state(),) if device == "cuda" else ())


def _by_torch_compile(put: Any, value: Any) -> bool:
    """Whether torch.compile put this function in `value`'s place, as it does for itself at its first use: around
    functions that it must not trace, and around `Module.__init__`, to be told of new modules; or torch an
    optimiser's step, as it does when the first of its kind is made."""
    path = _path(put)
    return path.startswith((*_COMPILER, _OPTIMISER)) and (
        path.endswith("mutation_guard.py") or _innermost(put) is _innermost(value)
    )


def _path(function: Any) -> str:
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _innermost(function: Any) -> Any:
    """What torch.compile's wrappers, and that of an optimiser's step, stand around."""
    while _path(function).startswith((*_COMPILER, _OPTIMISER)):
        inner = getattr(function, "_torchdynamo_orig_callable", getattr(function, "__wrapped__", None))
        if inner is None:
            break
        function = inner
    return function
