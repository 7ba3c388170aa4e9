"""CuTe in the job's file: compiled there with the judge's own lines, launched as its plan says."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest
import torch

from nightshift.kernels.apply.bundle import kernel_record
from nightshift.kernels.cute import cute_binary, cute_version
from nightshift.kernels.problem import Case
from tests.kernel_certificates import ENVIRONMENT, TRUSTED, gpu_certificate
from tests.kernels.apply.torch_kernels import Job
from tests.kernels.cutlass_dsl import in_cute
from tests.kernels.good import swiglu_cute

SWIGLU = in_cute("swiglu").candidate


def cute_record(version: str = cute_version()) -> dict[str, Any]:
    """Of a certificate from an H200, for this torch. version: of the library that compiled it."""
    environment = {**ENVIRONMENT, "torch": torch.__version__, "triton": "none", "cutlass_dsl": version}
    case = Case.of("float16", m=12, n=40)
    return kernel_record(gpu_certificate(SWIGLU, "swiglu", case, environment=environment), TRUSTED)


class Driver:
    """Notes what is loaded, looked for and launched."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []
        self.names: list[bytes] = []
        self.launches: list[tuple[Any, ...]] = []

    def cuModuleLoadData(self, module: Any, cubin: bytes) -> int:
        self.loaded.append(cubin)
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        self.names.append(name)
        return 0

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        *shape, shared_bytes, _stream, places, _ = rest
        kinds = *[ctypes.c_uint64] * 3, ctypes.c_int64
        given = [kind.from_address(places[number]).value for number, kind in enumerate(kinds)]
        self.launches.append((*shape, shared_bytes, *given))
        return 0


def test_a_job_launches_the_judge_s_binary_for_the_dtype_that_it_has(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form is compiled and loaded once."""
    module, driver = job(cute_record()), Driver()
    monkeypatch.setattr(module, "driver", lambda: driver)
    entry, for_compilers = module.load_entry(module.KERNELS[0])
    assert for_compilers is None
    for dtype in (torch.float16, torch.float16, torch.float32):
        gate, up = torch.ones(12, 40, dtype=dtype), torch.ones(12, 40, dtype=dtype)
        out = entry(gate, up)
        assert (out.shape, out.dtype) == (gate.shape, dtype)
        assert driver.launches[-1] == (2, 1, 1, 256, 1, 1, 0, *(x.data_ptr() for x in (gate, up, out)), 480)
    for (name, binary), word in zip(zip(driver.names, driver.loaded, strict=True), ("16", "32"), strict=True):
        types = (*[f"float{word}*"] * 3, "int64")
        assert cute_binary(swiglu_cute.swiglu, (256, 1, 1), types, "sm_90a")[1] == binary
        assert name in binary


@pytest.mark.parametrize(
    ("version", "why"),
    [("4.0", f"certified with nvidia-cutlass-dsl 4.0, this is {cute_version()}"), (cute_version(), "no GPU")],
)
def test_a_kernel_needs_the_version_that_compiled_it(
    job: Job, monkeypatch: pytest.MonkeyPatch, version: str, why: str
) -> None:
    """Another one may compile another kernel than the judge had; where there is none, the package is named."""
    module = job(cute_record(version))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert module.unfit(module.KERNELS[0]) == why
    monkeypatch.setattr(module, "cute_version", lambda: "none")
    assert module.unfit(module.KERNELS[0]).endswith(", this is none")


def test_a_version_names_the_cuda_releases_whose_compilers_differ() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+( cu\d+)+", cute_version())
