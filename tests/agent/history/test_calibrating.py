"""`nightshift calibrate` fits tails on one's own Prometheus, leaves out what the cluster's own record explains."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nightshift.agent.history.calibration import excused_by, table
from nightshift.agent.history.lookback import OwnEvent
from nightshift.agent.settings import load as load_settings
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.alarms.budget import BudgetSettings
from nightshift.detectors.alarms.calibration import load
from nightshift.detectors.alarms.tail import Tail
from tests.agent.forks import nightshift
from tests.agent.history.test_lookback import server  # noqa: F401  a Prometheus with four hours of past
from tests.conftest import PrometheusServer


def test_a_calibration_from_a_real_prometheus_is_written_and_taken(
    server: tuple[PrometheusServer, int],  # noqa: F811
    tmp_path: Path,
) -> None:
    """The command needs a Prometheus only; what it writes is what the daemon's budget reads."""
    running, start_s = server
    days = (time.time() - start_s + 600) / 86400.0
    path, config = tmp_path / "own.json", tmp_path / "nightshift.yaml"
    done = nightshift("calibrate", "--prometheus", running.url, "--days", f"{days:.3f}", "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert "a claim" in done.stdout
    assert str(path) in done.stdout
    tails = load(path)
    assert set(tails) >= {"memory_leak"}
    assert 16 * 3.5 / 24 < tails["memory_leak"].series_days < 16 * 4.5 / 24
    assert running.url in tails["memory_leak"].source
    config.write_text(f"budget:\n  calibration: {path}\n")
    assert load_settings(config).budget.calibration == str(path)


def test_nothing_there_is_one_sentence(prometheus_server, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """An empty Prometheus gives no promise and no file."""
    running = prometheus_server("scrape_configs: []")
    done = nightshift("calibrate", "--prometheus", running.url, "--days", "0.05", "-o", str(tmp_path / "own.json"))
    assert done.returncode != 0
    assert "nothing that a detector watches" in done.stderr
    assert not (tmp_path / "own.json").exists()


def test_trouble_that_the_cluster_recorded_is_no_false_alarm() -> None:
    """An alarm within the day before a cordon of its node is left out; one on another node or day is not."""
    inventory, gpu = Inventory(), Subject(SubjectKind.GPU, "GPU-1")
    inventory.observe(gpu, Subject(SubjectKind.NODE, "n1"), 0.0)
    excused = excused_by([OwnEvent("cordoned", "n1.example", 1e6)], inventory)
    assert excused(gpu, 1e6 - 3600.0)
    assert not excused(gpu, 1e6 - 2 * 86400.0)
    assert not excused(Subject(SubjectKind.GPU, "GPU-2"), 1e6 - 3600.0)


def test_the_table_says_what_is_a_claim_and_how_far_it_is_measured() -> None:
    tails = {"hang": Tail(0.1, 400.0, 0.1, 0.25, 12, 900.0, "own")}
    told = table(tails, {"hang": 1.0, "stall": 1.0}, BudgetSettings())
    assert told.splitlines()[1].split()[:3] == ["hang", "900.0", "12"]
    assert "a claim" in told.splitlines()[2]
    assert pytest.approx(16000 / 900, rel=0.01) == float(told.splitlines()[1].split()[-1])
