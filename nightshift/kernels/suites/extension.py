"""Builds a solution of C++ and CUDA files as an extension of torch, in bounded processes that run none of it.

Each file is compiled by itself: C++ with the compiler's headers of torch made once (`HEADERS`), CUDA first with the
headers of torch's tensors alone, and with all of torch's where those are not enough. A compiler that takes longer
than its limit, more memory or more disk ends with everything it started, and the solution is refused by name.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.utils import cpp_extension

from nightshift.kernels.problem import ProblemError

MODULE = "solution"
HEADERS = "all_of_torch.h"
_TENSORS = """#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/types.h>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>
"""
_FILE_BYTES = 2 << 30
_MEMORY_BYTES = 24 << 30
_CPP, _CUDA = (".cpp", ".cc", ".cxx"), (".cu",)


class BuildError(ProblemError):
    """A solution does not build: what the compiler said, or which limit it met."""


def flags() -> list[str]:
    """Of every compiler: torch's headers and names, Python's, and CUDA's where there are some."""
    folders = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"], *_cuda_headers()]
    given = [f"-DTORCH_EXTENSION_NAME={MODULE}", "-DTORCH_API_INCLUDE_EXTENSION_H", "-std=c++17", "-w"]
    for folder in folders:
        given += ["-isystem", folder]
    return given


def _cuda_headers() -> list[str]:
    """The first folder with CUDA's headers: the compiler's own, the usual one, or that of NVIDIA's wheels."""
    nvcc = shutil.which("nvcc")
    roots = [Path(nvcc).resolve().parents[1]] if nvcc else []
    roots += [Path("/usr/local/cuda"), *sorted(Path(sysconfig.get_paths()["purelib"], "nvidia").glob("cu*"))]
    return [str(root / "include") for root in roots if (root / "include/cuda_runtime.h").exists()][:1]


def make_headers(folder: Path, limit_s: float = 300.0) -> None:
    """torch's headers, compiled once for all solutions of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / f"{HEADERS}.gch").exists():
        return
    (folder / HEADERS).write_text("#include <torch/extension.h>\n")
    (folder / "tensors/torch").mkdir(parents=True, exist_ok=True)
    (folder / "tensors/torch/extension.h").write_text(_TENSORS)
    part = folder / f"{HEADERS}.part"
    command = ["g++", *_host(), "-x", "c++-header", str(folder / HEADERS), "-o", str(part)]
    run(command, folder, limit_s)
    part.rename(folder / f"{HEADERS}.gch")


def build(sources: Mapping[str, str], folder: Path, headers: Path, arch: str, limit_s: float = 240.0) -> Path:
    """The extension's file, made in `folder`. arch: as "90a"; empty where there is no CUDA. Raises BuildError."""
    made = folder / f"{MODULE}.so"
    if made.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    deadline = time.monotonic() + limit_s
    objects = []
    for name in sources:
        if name.endswith(_CPP + _CUDA):
            objects.append(folder / f"{name}.o")
            _compile(folder / name, objects[-1], headers, arch, deadline)
    if not objects:
        raise BuildError("no C++ or CUDA file among its sources")
    # CUDA's libraries are torch's own, in the process already
    libraries = ["c10", "torch_cpu", "torch", "torch_python", *(["c10_cuda", "torch_cuda"] if arch else [])]
    paths = [f"-L{path}" for path in cpp_extension.library_paths()]
    part = folder / f"{MODULE}.part"
    command = ["g++", "-shared", *map(str, objects), *paths, *(f"-l{name}" for name in libraries), "-o", str(part)]
    run(command, folder, deadline - time.monotonic())
    part.rename(made)
    for path in objects:
        path.unlink()
    return made


def _host() -> list[str]:
    return ["-fPIC", "-O0", *flags()]


def _compile(source: Path, into: Path, headers: Path, arch: str, deadline: float) -> None:
    if source.suffix in _CPP:
        whole = ["-include", str(headers / HEADERS)] if "<torch/extension.h>" in source.read_text() else []
        run(
            ["g++", *_host(), *whole, "-c", str(source), "-o", str(into)],
            source.parent,
            deadline - time.monotonic(),
        )
        return
    if not arch:
        raise BuildError("its CUDA files need a GPU")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    command = [nvcc, *flags(), f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Xcompiler", "-fPIC,-O0,-w"]
    command += ["-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__"]
    command += ["-D__CUDA_NO_BFLOAT16_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__", "--expt-relaxed-constexpr"]
    rest = ["-c", str(source), "-o", str(into)]
    try:
        run([*command, "-I", str(headers / "tensors"), *rest], source.parent, deadline - time.monotonic())
    except BuildError:
        run([*command, *rest], source.parent, deadline - time.monotonic())


def run(command: Sequence[str], folder: Path, limit_s: float) -> None:
    """One compiler, ended with all that it started when its time is over. Raises BuildError: its first errors."""
    if limit_s <= 0:
        raise BuildError("the compiler took longer than its limit")

    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    ) as process:  # fmt: skip
        for kind, most in ((resource.RLIMIT_FSIZE, _FILE_BYTES), (resource.RLIMIT_AS, _MEMORY_BYTES)):
            with contextlib.suppress(ProcessLookupError):  # it has failed already
                resource.prlimit(process.pid, kind, (most, most))
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise BuildError(f"the compiler took longer than {limit_s:.0f} s") from None
    if process.returncode:
        lines = said.decode(errors="replace").replace(f"{folder}/", "").splitlines()
        errors = [line for line in lines if "error" in line.lower() or "undefined" in line] or lines
        raise BuildError("; ".join(errors[:2])[:400] or f"the compiler ended with code {process.returncode}")
