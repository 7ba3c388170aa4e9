"""`nightshift preflight`: Jobs for other nodes; where nothing can be tested, nothing is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pynvml
import pytest
from typer.testing import CliRunner

from nightshift.agent.__main__ import app
from nightshift.agent.cli import preflight
from nightshift.kernels.preflight.gpu_tests import GpuRun
from nightshift.kernels.preflight.results import ResultFolder
from nightshift.kernels.preflight.verdict import GpuVerdict, PreflightState


def test_jobs_of_nodes_are_printed_and_pinned() -> None:
    done = CliRunner().invoke(app, ["preflight", "n1", "n2.example", "--long", "--image", "reg/kernels:1"])
    jobs = [json.loads(part) for part in done.output.split("---\n") if part]
    assert [job["metadata"]["name"] for job in jobs] == [
        "nightshift-preflight-n1",
        "nightshift-preflight-n2-example",
    ]
    pod = jobs[1]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "n2.example"}
    assert pod["containers"][0]["command"][:3] == ["nightshift", "preflight", "--long"]


def test_a_node_without_a_driver_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    done = CliRunner().invoke(app, ["preflight", "--folder", str(tmp_path)])
    assert done.exit_code == 0
    assert "preflight did not run" in done.output


@pytest.mark.parametrize(
    ("state", "code"), [(PreflightState.PASSED, 0), (PreflightState.BROKEN, 0), (PreflightState.REFUSED, 1)]
)
def test_only_a_refused_gpu_fails_the_command(
    state: PreflightState, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = GpuRun({"serial": "7", "uuid": "GPU-7", "model": "H100", "driver": "570"}, "quick")
    verdict = GpuVerdict(state, ("memory: 1 wrong value",) if state is PreflightState.REFUSED else (), (), 0.0)
    result = ResultFolder(tmp_path).add("n1", run, verdict, "v", 1e9, 86400.0)
    monkeypatch.setattr(preflight, "_tested", lambda *_: [result])
    done = CliRunner().invoke(app, ["preflight", "--folder", str(tmp_path)])
    assert done.exit_code == code
    assert f"n1 7 (H100): {state} quick" in done.output
