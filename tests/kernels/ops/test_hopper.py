"""What the families write compiles for a Hopper and fits its shared memory: told here, before a GPU is paid for."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nightshift.kernels.ops.families import ALL as FAMILIES
from nightshift.kernels.ops.problems import ALL as PROBLEMS

ROOT = Path(__file__).parents[3]


@pytest.mark.full
@pytest.mark.timeout(1000)  # it compiles every family, and takes minutes where others share the cores
def test_every_family_s_first_choices_compile_for_a_hopper_over_their_whole_domain() -> None:
    """Two searches of a training step ended with a kernel that asked for more shared memory than there is. CUDA C++
    is left to NVRTC."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    names = [problem.name for problem in PROBLEMS]
    command = [sys.executable, "-m", "tests.kernels.ops.hopper", "3", *names]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [line for line in lines if "fault" in line] == []
    compiled = {(line["problem"], line["family"]) for line in lines if line["compiled"] >= 3}
    wanted = {(name, f.name) for f in FAMILIES for name in f.problems if not f.name.endswith("_cuda")}
    assert compiled == wanted
