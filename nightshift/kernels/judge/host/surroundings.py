"""Runs inside the candidate's host: what else a training job's process goes by, apart from torch's settings.

Every function, class, constant and module of the standard library, NumPy and torch that somebody else's code may
use next, and what torch's dispatcher runs for each operator; what is run at certain moments (hooks, traces, filters
of imports, handlers of signals); limits of the interpreter; and the generators of Python and NumPy, from which data
loaders draw. `kernels.judge.host.footprint` asks for all of it.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import random
import resource
import signal
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch._decomp
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

_TORCH = (
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
_PREFIXES = ("numpy.", "torch._tensor", "torch._C._nn", *(f"torch.{name}" for name in _TORCH))
_ROOTS = frozenset({*sys.stdlib_module_names, "numpy", "torch", "triton"})
"""What jobs call. Not torch's compiler and the like, whose modules change each other when they are loaded."""
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
_FIXED = (types.ModuleType, float, complex, torch.dtype, torch.layout, torch.memory_format)
"""What a module's name stands for as long as a process lives."""
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")
_INSTALLED = (
    "/site-packages/",
    "/dist-packages/",
    os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), ""),
)
"""Where packages lie: the second is Debian's, and so that of NVIDIA's containers."""
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
        "objects that are never collected": gc.get_freeze_count(),
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
