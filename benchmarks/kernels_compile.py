"""Processes without a GPU that compile kernels into one cache, for `benchmarks.kernels_tables`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.generate.template import candidate
from nightshift.kernels.judge import cuda
from nightshift.kernels.ops.families import family_named
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case, Inputs, Problem


def own_gpu(gpu: int) -> None:
    """Leave this process the `gpu`-th of the GPUs that its parent may use, before CUDA begins."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    os.environ["CUDA_VISIBLE_DEVICES"] = allowed.split(",")[gpu] if allowed else str(gpu)


def own_arch() -> str:
    """What NVRTC calls this process's GPU."""
    return cuda.arch_of("{}.{}".format(*torch.cuda.get_device_capability()))


def load(made: Candidate, folder: str) -> Callable[..., Any]:
    path = Path(folder) / f"c{made.source_sha256[:24]}.py"
    if not path.exists():
        path.write_text(made.source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    entry: Callable[..., Any] = getattr(module, made.entry)
    return entry


def like(problem: Problem, case: Case) -> Inputs:
    """Inputs without values: what a kernel is specialised for is their types, sizes and alignment."""
    try:
        return problem.inputs(case, "normal", 1, "meta")
    except NotImplementedError:
        small = problem.inputs(case.with_(s=64), "normal", 1, "cpu")
        return tuple(x.to("meta") if isinstance(x, torch.Tensor) else x for x in small)


class _NoDevice:
    """A Triton driver that only knows its target, so that processes without a GPU context can compile."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def compile_only(capability: int, told: Callable[[str, Any], None]) -> Callable[[], None]:
    """From here on kernels are compiled without a GPU and none is run. Told of each: its name, and what the
    compiler made of it or raised. Returns what lets kernels run again."""
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    driver.set_active(_NoDevice(capability))
    run = JITFunction.run

    def warm(self: Any, *args: Any, grid: Any = None, warmup: bool = False, **named_: Any) -> None:
        try:
            made = run(self, *args, grid=grid, warmup=True, **named_)
        except Exception as error:  # noqa: BLE001  whatever a compiler raises
            made = error
        told(self.fn.__name__, made)

    JITFunction.run = warm
    return lambda: setattr(JITFunction, "run", run)


def start_compiler(capability: int, folder: str) -> None:
    """A compiling process: kernels are only warmed, whatever an entry launches."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)  # compilers say a lot about configurations that they refuse
    torch.set_num_threads(1)
    # a refused configuration is found again, and told, where it is timed
    compile_only(capability, lambda name, made: None)


def compile_all(capability: int, folder: str, todo: Any, told: Any, me: int) -> None:
    """A compiling process: takes parts of tables from a queue until it gets None, and says when it begins and ends.

    It warms Triton's cache; for CUDA C++ it tells the cubins' paths, or "" where NVRTC refused.
    """
    start_compiler(capability, folder)
    arch = cuda.arch_of(f"{capability // 10}.{capability % 10}")
    while (item := todo.get()) is not None:
        number, place, family, name, case, configs = item
        told.put((me, "begin", number, place, []))
        found = family_named(family)
        values = like(named(name), case)
        made = []
        for config in configs:
            written = candidate(found, name, case, config)
            path = Path(folder) / f"{written.source_sha256[:24]}.cubin"
            with contextlib.suppress(
                Exception
            ):  # what does not compile is found again, and told, where it is timed
                if written.language == "cuda":
                    path.write_bytes(cuda.compile_source(written.source, arch))
                else:
                    load(written, folder)(*values)
            made.append(str(path) if path.exists() else "")
        told.put((me, "end", number, place, made))
