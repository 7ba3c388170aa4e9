"""CUDA C++ in the job's file: built with the judge's options, launched as its plan says, guarded as any kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nightshift.kernels.apply.bundle import candidate_record
from nightshift.kernels.apply.job import launch
from nightshift.kernels.candidate import Bound, Candidate, Domain, Launch
from nightshift.kernels.judge import cuda, launch_plan
from tests.kernels.apply.applied_records import record
from tests.kernels.apply.test_apply import run

SCRIPT = Path(__file__).parent / "applied_cuda.py"


def cuda_record(source: str = 'extern "C" __global__ void norm() {}') -> dict[str, Any]:
    """As `kernel_record` makes it of a certificate."""
    arguments = ("in0", "in1", "tmp0", "out0", "i32:m", "i32:n", "scalar:in2")
    launch = Launch("norm", ("max(1, min(132, cdiv(m, 5)))", "1", "1"), ("128", "1", "1"), arguments, "1024 * n")
    candidate = Candidate(
        source, "norm", "cuda", "own_kernel", "bitwise",
        domain=Domain(("float32",), ("contiguous",), (Bound("n", 64, 64),)), launches=(launch,),
        scratch_bytes=("4 * m",),
    )  # fmt: skip
    return {**record("rmsnorm", candidate.source, m=12, n=64), **candidate_record(candidate)}


@pytest.mark.full
def test_a_cuda_kernel_computes_its_place_and_what_it_is_not_certified_for_stays_torch_s(tmp_path: Path) -> None:
    """Parameters, grid, scratch and shared memory are its plan's, eager and compiled; a tensor that begins where
    wide loads may not is refused and counted."""
    seen = run("applied", tmp_path, [cuda_record()], script=SCRIPT)
    assert seen["applied"] == ["rmsnorm"]
    assert seen["equal"] == [True] * 4
    assert (seen["calls"], seen["checks"]) == (3, [1, 0])
    assert seen["launches"] == [[3, 1, 1, 128, 1, 1, 1024 * 64]] * 3
    assert (seen["loaded"], seen["allowed"]) == (1, 1024 * 64)
    assert seen["options"][1:3] == ["--std=c++17", "-default-device"]
    assert seen["fallbacks"] == {"rmsnorm: alignment": 1}


@pytest.mark.full
def test_a_cuda_source_that_does_not_compile_is_skipped_with_the_compiler_s_words(tmp_path: Path) -> None:
    """The job runs on torch; the report holds NVRTC's log."""
    seen = run("applied", tmp_path, [cuda_record("no such type")], script=SCRIPT)
    assert seen["skipped"] == ["does not load: RuntimeError: candidate.cu(1): error"]
    assert seen["equal"] == [True] * 4
    assert seen["launches"] == []


@pytest.mark.parametrize("text", ["map:in0:2:m:n:16:64", "map:in0:1:m:n:8:64", "map:in0:4:m:n:2:4"])
def test_a_job_encodes_a_tile_descriptor_as_the_judge_does(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is asked the same of both; the descriptor lies where the driver takes one (aligned to 64)."""
    asked: list[list[Any]] = []

    def encode(made: Any, *args: Any) -> int:
        assert ctypes.addressof(made) % 64 == 0
        values = [x if isinstance(x, int) else list(x) if isinstance(x, ctypes.Array) else x.value for x in args]
        asked.append(values)
        return 0

    stand_in = SimpleNamespace(cuTensorMapEncodeTiled=encode)
    monkeypatch.setattr(cuda, "library", lambda: stand_in)
    monkeypatch.setattr(launch, "driver", lambda: stand_in)
    monkeypatch.setattr(launch, "compiled", lambda source, architecture: b"")
    made = {**cuda_record(), "launches": [{**cuda_record()["launches"][0], "args": [text]}]}
    launches, _ = launch.CudaSource(made).plan((("m", 24), ("n", 128)))
    argument = launches[0][-1][0]
    launch._argument(argument, {"in": [SimpleNamespace(data_ptr=lambda: 4096)]})
    declared = launch_plan._declared(text, {"m": 24, "n": 128}, {})
    assert isinstance(declared, launch_plan.TensorMap)
    launch_plan.tensor_map(declared, 4096)
    assert asked[0] == asked[1]
    assert asked[0][:4] == [declared.element, 2, 4096, [128, 24]]


@pytest.mark.parametrize("arch_of", [cuda.arch_of, launch._arch])
def test_judge_and_job_compile_for_the_instructions_of_that_gpu_alone(arch_of: Callable[[str], str]) -> None:
    """`wgmma` is of sm_90a alone; an Ampere has no such suffix, and without a GPU nothing is said."""
    assert [arch_of(c) for c in ("8.0", "9.0", "10.3", "12.0", "none")] == [
        "sm_80", "sm_90a", "sm_103a", "sm_120a", "sm_none",
    ]  # fmt: skip
