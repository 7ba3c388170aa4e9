"""Signed results: bound to a serial number, with an expiry; nothing else counts as a pass."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from nightshift.kernels.preflight.gpu_tests import GpuRun
from nightshift.kernels.preflight.results import ResultFolder
from nightshift.kernels.preflight.verdict import GpuVerdict, PreflightState

DAY_S = 86_400.0


def add(folder: ResultFolder, serial: str, state: PreflightState, at_s: float) -> None:
    run = GpuRun({"serial": serial, "uuid": f"GPU-{serial}", "model": "H100", "driver": "570"}, "quick")
    run.figures = {"product_cycles": 1100.0}
    folder.add("n1", run, GpuVerdict(state, (), (), 1e-5), "v", at_s, DAY_S)


def test_a_pass_counts_for_its_serial_and_a_day(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    add(folder, "1/2", PreflightState.PASSED, 1000.0)
    assert folder.missing(["1/2", "3"], 2000.0) == ["3"]
    assert folder.missing(["1/2"], 1000.0 + DAY_S) == ["1/2"]
    assert folder.missing(["1/2"], 999.0) == ["1/2"]  # the clock was set back: it is no pass of the future
    assert [p.figures for p in folder.passes()] == [{"product_cycles": 1100.0}]


def test_a_refusal_ends_a_pass_and_a_broken_test_does_not(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    add(folder, "1", PreflightState.PASSED, 1000.0)
    add(folder, "1", PreflightState.BROKEN, 1100.0)
    assert folder.missing(["1"], 1200.0) == []
    add(folder, "1", PreflightState.REFUSED, 1300.0)
    assert folder.missing(["1"], 1400.0) == ["1"]


def test_a_changed_or_foreign_result_does_not_count(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    add(folder, "1", PreflightState.REFUSED, 1000.0)
    path = tmp_path / "1.jsonl"
    envelope = json.loads(path.read_text())
    record = json.loads(base64.b64decode(envelope["payload"])) | {"state": "passed", "expires_s": 9e9}
    envelope["payload"] = base64.b64encode(json.dumps(record).encode()).decode()
    path.write_text(json.dumps(envelope) + "\nnot json\n[]\n")
    assert folder.of("1") == []
    other = ResultFolder(tmp_path / "other")
    add(other, "1", PreflightState.PASSED, 1000.0)
    path.write_text((tmp_path / "other" / "1.jsonl").read_text())
    assert folder.missing(["1"], 1100.0) == ["1"]
    assert ResultFolder(tmp_path, [tmp_path / "other" / "preflight.pub"]).missing(["1"], 1100.0) == []
    add(other, "2", PreflightState.PASSED, 1000.0)  # copied under another GPU's name
    path.write_text((tmp_path / "other" / "2.jsonl").read_text())
    assert ResultFolder(tmp_path, [tmp_path / "other" / "preflight.pub"]).missing(["1"], 1100.0) == ["1"]


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    first, second = ResultFolder(tmp_path), ResultFolder(tmp_path)
    assert first.keys.keys() == second.keys.keys()
    assert (tmp_path / "preflight.key").stat().st_mode & 0o777 == 0o600
