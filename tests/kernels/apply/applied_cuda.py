"""A job with a certified CUDA C++ kernel, on stand-ins of the driver and NVRTC that compute what it would.

TRITON_INTERPRET=1 python applied_cuda.py FILE WHAT
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from applied import N, Rms, load


class Nvrtc:
    """Takes any source but one that says so; notes the options."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.options: list[str] = []

    def nvrtcCreateProgram(self, program: Any, source: bytes, *_: Any) -> int:
        self.sources.append(source.decode())
        return 0

    def nvrtcCompileProgram(self, program: Any, count: int, options: Any) -> int:
        self.options = [options[n].decode() for n in range(count)]
        return int("no such type" in self.sources[-1])

    def _size(self, program: Any, size: Any) -> int:
        size._obj.value = 64
        return 0

    nvrtcGetProgramLogSize = nvrtcGetCUBINSize = _size

    def nvrtcGetProgramLog(self, program: Any, log: Any) -> int:
        log.value = b"candidate.cu(1): error"
        return 0

    def nvrtcGetCUBIN(self, program: Any, cubin: Any) -> int:
        cubin.value = b"cubin"
        return 0

    def nvrtcDestroyProgram(self, program: Any) -> int:
        return 0


def held(address: int, count: int) -> torch.Tensor:
    """The float32 memory at an address."""
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)


class Driver:
    """Launches `norm(x, weight, scratch, out, m, n, eps)`, reading the parameters where the driver would."""

    def __init__(self) -> None:
        self.loaded, self.allowed, self.launches = 0, 0, []  # type: ignore[var-annotated]

    def cuModuleLoadData(self, module: Any, cubin: bytes) -> int:
        self.loaded += cubin.startswith(b"cubin")
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value = 7
        return 0 if name == b"norm" else 500

    def cuFuncSetAttribute(self, function: Any, number: int, value: int) -> int:
        self.allowed = value
        return 0

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        *shape, shared_bytes, _stream, places, _ = rest
        kinds = (*[ctypes.c_uint64] * 4, ctypes.c_int32, ctypes.c_int32, ctypes.c_float)
        x, weight, scratch, out, m, n, eps = (
            kind.from_address(places[number]).value for number, kind in enumerate(kinds)
        )
        rows = held(x, m * n).view(m, n)
        held(scratch, m).copy_(torch.rsqrt(rows.square().mean(-1) + eps))
        held(out, m * n).view(m, n).copy_(rows * held(scratch, m)[:, None] * held(weight, n))
        self.launches.append((*shape, shared_bytes))
        return 0


def applied(kernels: Any) -> dict[str, Any]:
    driver, nvrtc = Driver(), Nvrtc()
    kernels.driver, kernels.nvrtc = lambda: driver, lambda: nvrtc
    torch.manual_seed(1)
    model, x = torch.nn.Sequential(Rms()), torch.randn(12, N)
    want = model(x)
    report = kernels.apply(model, log=lambda _: None, shadow_every=2)
    eager = [model(x) for _ in range(2)]
    region = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    kernel = kernels.STATE.kernels.get("rmsnorm")
    calls = 0 if kernel is None else kernel.calls
    askew = torch.empty(12 * N + 1)[1:].view(12, N).copy_(x)
    elsewhere = model(askew)
    return {
        "applied": [problem for _, problem, _ in report.applied],
        "skipped": [why for _, why in report.skipped],
        "equal": [bool(torch.allclose(y, want, atol=1e-5)) for y in (*eager, region, elsewhere)],
        "calls": calls,
        "checks": [] if kernel is None else [kernel.shadow_checks, kernel.shadow_mismatches],
        "loaded": driver.loaded,
        "allowed": driver.allowed,
        "launches": driver.launches,
        "options": nvrtc.options,
        "fallbacks": kernels.fallbacks(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(globals()[sys.argv[2]](load(sys.argv[1]))))
