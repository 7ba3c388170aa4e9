"""CUDA C++ in the job's file: built with the judge's options, launched as its plan says, guarded as any kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernels.apply.bundle import candidate_record
from kernels.candidate import Bound, Candidate, Domain, Launch
from tests.kernels.applied_records import record
from tests.kernels.test_apply import run

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
