"""The probes' own commands: they end as the part does that they ask, and leave their last words."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nightshift.controllers.actuators.kube_probe import COMMANDS, ProbeJob, probe_job
from nightshift.controllers.playbooks.probes import FOR, probe_for
from nightshift.detectors.base import Fault


def run(folder: Path, command: tuple[str, ...], **programs: str) -> tuple[int, str]:
    """The command with stand-ins for NVIDIA's programs; what it would leave as termination message."""
    for name, script in programs.items():
        path = folder / name.replace("_hostengine", "-hostengine").replace("nvidia_smi", "nvidia-smi")
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
    words = folder / "words"
    words.write_text("")
    script = [part.replace("/tmp/", f"{folder}/").replace("/dev/termination-log", str(words)) for part in command]
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(script, env={"PATH": path}, capture_output=True, check=False, timeout=240)
    return done.returncode, words.read_text()


@pytest.mark.parametrize(
    ("said", "code", "ends", "words"),
    [
        ("echo '| Memory | Pass |'", 0, 0, "no failure"),
        ("echo '| Memory | Fail - GPU 3 |'; exit 226", 226, 226, "GPU 3"),
    ],
)
def test_the_dcgm_probe_ends_as_the_diagnostic_does(
    tmp_path: Path, said: str, code: int, ends: int, words: str
) -> None:
    found = run(tmp_path, COMMANDS["dcgm"], dcgmi=said, nv_hostengine="exit 0")
    assert found[0] == ends
    assert words in found[1]


@pytest.mark.parametrize(
    ("bad", "ends"), [("Out of bounds values : 0 OK", 0), ("Out of bounds values : 3 FAILED", 5), ("killed", 5)]
)
def test_the_nccl_probe_fails_on_a_wrong_value_whatever_the_exit_code(tmp_path: Path, bad: str, ends: int) -> None:
    script = f"echo '# {bad}'; echo '# Avg bus bandwidth    : 352.1'"
    found = run(tmp_path, COMMANDS["nccl"], all_reduce_perf=script, nvidia_smi="echo GPU 0; echo GPU 1")
    assert found[0] == ends
    assert "352.1" in found[1]


def test_the_gemm_probe_is_a_program_that_python_takes(tmp_path: Path) -> None:
    """Compiled here; it needs GPUs to run."""
    _, _, program = COMMANDS["gemm"]
    compile(program, "gemm", "exec")


def test_each_fault_of_hardware_has_a_probe_that_there_is() -> None:
    for fault in Fault:
        assert probe_for(fault) in COMMANDS
    named = probe_job({"nccl": ProbeJob(image="i")}, "nccl")
    assert named == ProbeJob(image="i", command=COMMANDS["nccl"])
    assert {probe_for(f) for f in FOR} == {"nccl", "gemm"}
    assert probe_for(Fault.HBM_IMMINENT) == "dcgm"
