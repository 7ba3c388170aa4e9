"""Two real processes of one job: the same kernels or none, and a mismatch on one that ends the kernel on both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import triton

from nightshift.collectors.training.kernel_use import read_use
from nightshift.kernels.apply.bundle import kernel_record, write_bundle
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.certification.registry import CertificateState, Registry
from nightshift.kernels.problem import Case
from tests.kernel_certificates import ENVIRONMENT, TRUSTED, gpu_certificate
from tests.kernels.apply.applied_records import RMS

SCRIPT = Path(__file__).parent / "rank_program.py"
WAIT_S = 120.0
WRONG_ON_LARGE = RMS.replace("WRONG", "1.0").replace(
    "* w * wrong", "* w * tl.where(tl.max(v, 0) > 100.0, 1.01, 1.0)"
)


def certificate(source: str, note: str) -> dict[str, Any]:
    made = Candidate(source, "entry", "triton", "own_kernel", "bitwise")
    environment = {**ENVIRONMENT, "capability": "none", "torch": torch.__version__, "triton": triton.__version__}
    case = Case.of("float32", m=4, n=64)
    return gpu_certificate(made, "rmsnorm", case, detail=note, environment=environment)


def ran(folder: Path, processes: list[subprocess.Popen[str]]) -> bool:
    """Whether both ranks came to where they wait; False where one ended, or it took too long."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s and all(process.poll() is None for process in processes):
        if all((folder / f"ran.{rank}").exists() for rank in range(2)):
            return True
        time.sleep(0.05)
    return False


def test_two_ranks_use_the_same_kernels_and_a_mismatch_on_one_reaches_the_other(tmp_path: Path) -> None:
    """Refusals are the same sentence on both; the log line is read; the registry's demotion stops both."""
    wrong, other = certificate(WRONG_ON_LARGE, "a"), certificate(RMS.replace("WRONG", "1.0"), "b")
    registry = Registry(tmp_path / "registry", TRUSTED)
    entry = registry.propose(wrong, "ann", "drill", 1.0)
    registry.move(entry.certificate, CertificateState.canary, "ann", "drill", 2.0, "ab" * 32)
    write_bundle(tmp_path / "same.py", registry.records())
    write_bundle(tmp_path / "other.py", [kernel_record(other, TRUSTED)])
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "demoted.json").write_text(json.dumps([{"certificate": entry.certificate}]))
    base = {**os.environ, "TRITON_INTERPRET": "1", "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    base["NIGHTSHIFT_KERNEL_REGISTRY"] = str(tmp_path / "registry")
    processes = [
        subprocess.Popen(
            [sys.executable, "-I", str(SCRIPT), str(tmp_path)],
            env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        if ran(tmp_path, processes):
            (gone,) = registry.collect_mismatches(3.0)
            assert gone.certificate == entry.certificate
            assert "rank 1: shadow check" in gone.history[-1].why
            (tmp_path / "go").touch()
        outputs = [process.communicate(timeout=WAIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], [err[-1500:] for _, err in outputs]
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in outputs)

    for seen in (first, second):
        assert "before torch.distributed" in seen["too early"][0]
        assert seen["other file"] == ["ranks [1] have other kernels in their file than rank 0"]
        assert seen["alike"] == []
        assert seen["agree"] == [True] * 4
    assert first["demoted on one"] == ["on rank 1: demoted in the registry"]
    assert second["demoted on one"] == ["demoted in the registry"]

    assert first["calls"] == [1, 2, 3, 3], "step 2 still used it: a demotion comes at a step's end"
    assert second["calls"] == [1, 2, 2, 2], "the rank that saw it wrong must not use it again"
    assert first["disabled"] == "demoted in the registry"
    lines = [use for text in second["told"] if (use := read_use(text)) is not None]
    assert (lines[0].shadow_mismatches, lines[-1].shadow_mismatches) == (0, 1)
    assert lines[-1].mismatched == (entry.certificate[:16],)
    assert all("rank=1" in text for text in second["told"] if "step=" in text)
