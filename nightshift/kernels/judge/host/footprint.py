"""Runs inside the candidate's host: what an entry has left behind in its process.

A kernel is called in the middle of somebody's training job. Whatever it changes beside its outputs changes that
job: a default dtype, what torch's generator draws next, a mode, a function of torch put in another's place; and
outputs that it does not let go of fill the GPU. The candidate shares this process and may lie to this code; nothing
here speaks for it.

What is asked for: torch's settings; every function, class, constant and module of the standard library, NumPy and
torch that a job's code may use next, and what torch's dispatcher runs for each operator; what is run at certain
moments (hooks, traces, filters of imports, handlers of signals); limits of the interpreter; and the generators of
Python and NumPy, from which data loaders draw.
"""

from __future__ import annotations

import _thread
import atexit
import builtins
import gc
import logging
import os
import random
import resource
import signal
import sys
import sysconfig
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch._decomp
import torch.nn.functional
import torch.nn.modules.module
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

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
# Environment variables that the CUDA driver, torch and later processes go by.
_ROOMS = ("CUDA_", "NCCL_", "PYTORCH_", "OMP_", "MKL_", "LD_", "PYTHON")
_TORCH = os.path.dirname(torch.__file__)
_COMPILER = (os.path.join(_TORCH, "_dynamo", ""), os.path.join(_TORCH, "_compile.py"))
_OPTIMISER = os.path.join(_TORCH, "optim", "optimizer.py")
_LEAST = 2.0**-1060  # zero where subnormal numbers are flushed
# Outputs of so many calls alive at once are none that a call still needs.
_MANY = 8
# So many tensors more than before the first call may be alive, and one for every fourth call.
_FEW = 16


class Footprint:
    """Taken before a candidate is loaded; asked after it was loaded and after each call."""

    def __init__(self, device: str, functions: Functions | None = None) -> None:
        """`functions`: as they were before; None: as they are."""
        self._device = device
        self._settings = _settings(device)
        self._functions = {
            (room, name): value
            for room, owner in _WATCHED.items()
            for name, value in list(vars(owner).items())
            if callable(value)
        }
        self._everything = functions or Functions()
        self._replaced = frozenset(self._everything.replaced(_by_torch_compile))  # by this host
        self._variables = dict(os.environ)
        self._threads = _thread._count()
        self._outputs: list[StorageWeakRef] = []
        self._generators = _generators(device)
        self._draws = 0
        self._frozen = gc.get_freeze_count()

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

    def grown(self, calls: int, own: int) -> int:
        """How many tensors that are not `own` have come to be alive since, where that is of the order of `calls`:
        inputs, scratch memory or upstream gradients that nobody lets go of."""
        grown = tensors() - self._everything.tensors - own
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
            # of the zygote's some go; counting takes milliseconds
            found += ["objects that are never collected"] * (gc.get_freeze_count() > self._frozen)
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
        **settings(),
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


_TORCH_ROOMS = (
    "amp",
    "autograd",
    "cuda",
    "distributed",
    "fft",
    "linalg",
    "nn",
    "optim",
    "random",
    "serialization",
    "special",
    "utils.checkpoint",
    "utils.data",
)
_PREFIXES = ("numpy.", "torch._tensor", "torch._C._nn", *(f"torch.{name}" for name in _TORCH_ROOMS))
# What jobs call. Not torch's compiler and the like, whose modules change each other when they are loaded.
_ROOTS = frozenset({*sys.stdlib_module_names, "numpy", "torch", "triton"})
_CALLED = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    type,
    staticmethod,
    classmethod,
    property,
)
# What a module's name stands for as long as a process lives.
_FIXED = (types.ModuleType, float, complex, torch.dtype, torch.layout, torch.memory_format)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")
# Where packages lie: the second is Debian's, and so that of NVIDIA's containers.
_INSTALLED = (
    "/site-packages/",
    "/dist-packages/",
    os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), ""),
)
_Place = tuple[str, Mapping[str, Any], str, Any]
"""Full name, namespace, name there, value."""
_registered: list[str] = []
"""What nobody but the candidate asked for."""
_at_exit: list[int] = []
"""How many functions a package has registered."""


class Functions:
    """What modules define or hold that can be called, methods included, or that is always the same, and what runs
    for each operator, at the time of making, which takes longer than any look later."""

    def __init__(self) -> None:
        modules = dict(_modules())
        self._places = [place for module in modules.items() for place in _contents(module)]
        self._places += [(f"sys.modules[{name!r}]", sys.modules, name, module) for name, module in modules.items()]
        self._operators = _operators()
        self.tensors = tensors()
        classes = {id(value): (full, value) for full, _, _, value in self._places if issubclass(type(value), type)}
        self._methods = [(full, cls, frozenset(vars(cls))) for full, cls in classes.values()]

    def replaced(self, excused: Callable[[Any, Any], bool]) -> list[str]:
        """Names of what is another object now or gone, and of methods put before inherited ones;
        `excused(now, before)`: it is a known wrapper."""
        found = [
            full
            for full, room, name, value in self._places
            if room.get(name) is not value
            and not excused(room.get(name), value)
            and not (full.partition(".")[0] in sys.stdlib_module_names and _of_package(room.get(name)))
        ]
        for full, cls, known in self._methods:
            for name in vars(cls).keys() - known if len(vars(cls)) > len(known) else ():
                old = next((vars(base)[name] for base in cls.__mro__[1:] if name in vars(base)), None)
                if type(old) in _CALLED and not excused(vars(cls)[name], old):
                    found.append(f"{full}.{name}")
        return found

    def overridden(self) -> list[str]:
        """Names of operators for which something else runs; asking torch's dispatcher takes some 0.05 s."""
        now = _operators()
        return [f"operator {name}" for name, runs in self._operators.items() if now.get(name) != runs]


def _modules() -> Iterator[tuple[str, types.ModuleType]]:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # which puts its own functions there for each launch
    for name, module in list(sys.modules.items()):
        known = name in _ROOTS or name.startswith(_PREFIXES) or name.partition(".")[0] in sys.stdlib_module_names
        known |= name.startswith("triton.language") and not interpreted
        if known and isinstance(module, types.ModuleType):
            yield name, module


def tensors() -> int:
    """How many Python knows that somebody still holds."""
    gc.collect()
    return sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects())


def _operators() -> dict[str, Any]:
    """What the dispatcher runs for each operator of torch under each key, and what compilers take it for.
    Not those between GPUs, some of whose kernels come with a module that is imported later."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(("aten::", "prim"))]
    runs: dict[str, Any] = {name: hash(torch._C._dispatch_dump(name)) for name in names}
    tables = torch._decomp.global_decomposition_table
    return runs | {f"{op} ({kind})": made for kind, table in tables.items() for op, made in table.items()}


def _contents(named: tuple[str, types.ModuleType]) -> Iterator[_Place]:
    home, module = named
    for name, value in list(vars(module).items()):
        is_class = issubclass(type(value), type)  # isinstance asks the object, and some warn
        of_triton = home.startswith("triton") and callable(value)  # its functions are of classes of its own
        if type(value) in _CALLED or type(value) in _FIXED or is_class or of_triton:
            yield f"{home}.{name}", vars(module), name, value
        if is_class and value.__module__ == home:
            for inner, method in list(vars(value).items()):
                if type(method) in _CALLED:
                    yield f"{home}.{name}.{inner}", vars(value), inner, method


def settings() -> dict[str, Any]:
    """Everything of one value, by name."""
    return {
        "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook,
        "sys.displayhook": sys.displayhook,
        "threading.excepthook": threading.excepthook,
        "sys.settrace": sys.gettrace(),
        "sys.setprofile": sys.getprofile(),
        "threading.settrace": threading.gettrace(),
        "threading.setprofile": threading.getprofile(),
        "sys.stdout": sys.stdout,
        "sys.stderr": sys.stderr,
        "sys.meta_path": _of_no_package(sys.meta_path),
        "sys.path_hooks": _of_no_package(sys.path_hooks),
        "sys.path": tuple(path for path in sys.path if not _installed(path)),
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "garbage collection": gc.isenabled(),
        "garbage collector's thresholds": gc.get_threshold(),
        "garbage collector's callbacks": tuple(gc.callbacks),
        "logging disabled": logging.root.manager.disable,
        "working directory": os.getcwd(),
        "hooks on audited events and forks, and functions run when an object goes": len(_registered),
        "functions run at exit": atexit._ncallbacks() - sum(_at_exit),
        "hooks on all optimisers": len(_global_optimizer_pre_hooks) + len(_global_optimizer_post_hooks),
        "hooks on saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "threads of autograd": torch._C._is_multithreading_enabled(),
        "mask of new files": _umask(),
        "oneDNN enabled": torch._C._get_mkldnn_enabled(),
        "how tensors are printed": str(torch._tensor_str.PRINT_OPTS),
        "NumPy's errors": _numpy_errors(),
        "state of NumPy's generator": _numpy_generator(),
        "state of Python's generator": hash(random.getstate()),
        "timers": tuple(signal.getitimer(which)[0] > 0 for which in _TIMERS),
        "Triton's settings": _knobs(),
        **{signal.Signals(n).name: signal.getsignal(n) for n in signal.valid_signals() if n < signal.SIGRTMIN},
        **{name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:7] == "RLIMIT_"},
    }


def _of_no_package(finders: Iterable[Any]) -> tuple[Any, ...]:
    """Without those that installed packages put there when they are imported."""
    return tuple(x for x in finders if not _of_package(x))


def _of_package(value: Any) -> bool:
    """Whether a function, class or object is an installed package's: some adapt the standard library to them."""
    home = sys.modules.get(getattr(value, "__module__", None) or type(value).__module__)
    path = getattr(getattr(value, "__code__", home), "co_filename", getattr(home, "__file__", None))
    return _installed(str(path))


def _installed(path: str) -> bool:
    return any(room in os.path.join(path, "") for room in _INSTALLED)


def _knobs() -> tuple[str, ...]:
    """Those that somebody has set, but for where torch.compile has found a library."""
    knobs = sys.modules.get("triton.knobs")
    groups = vars(knobs).items() if knobs is not None else ()
    owners = [(name, x) for name, x in groups if hasattr(type(x), "knobs")]
    known = "libdevice_path"
    return tuple(f"{name}.{knob} {value}" for name, x in owners for knob, value in vars(x).items() if knob != known)


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now


def _numpy_errors() -> Any:
    numpy = sys.modules.get("numpy")
    return tuple(sorted(numpy.geterr().items())) if numpy is not None else ()


def _numpy_generator() -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    _, keys, *rest = numpy.random.get_state()
    return hash((keys.tobytes(), *rest))


def watch_registrations() -> None:
    """From now on count what is registered to be run at audited events, forks, exit or when an object goes: none of
    it can be asked for afterwards. A hook on events is an event of its own, however it is registered."""
    sys.addaudithook(_heard)
    for owner, name in ((atexit, "register"), (os, "register_at_fork"), (weakref.finalize, "__init__")):
        setattr(owner, name, _noting(getattr(owner, name), f"{owner.__name__}.{name}"))


def _heard(event: str, details: tuple[Any, ...]) -> None:
    if event == "sys.addaudithook":
        _registered.append(event)


def _noting(register: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        before = atexit._ncallbacks()
        made = register(*args, **kwargs)
        added = atexit._ncallbacks() - before
        if _of_a_package(sys._getframe(1)):
            _at_exit.append(added)
        elif not added:
            _registered.append(name)
        return made

    return call


def _of_a_package(frame: types.FrameType | None) -> bool:
    """Whether an installed package asked for this, or an import that is under way: some do so at their first use.
    The standard library asks for whoever called it."""
    while frame is not None:
        path = frame.f_code.co_filename
        if _installed(path) or path.startswith("<frozen importlib"):
            return True
        if not path.startswith((_STANDARD, "<frozen ")):
            return False
        frame = frame.f_back
    return False
