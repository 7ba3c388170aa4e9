"""The H200 recording that `nightshift node` made replays as a source, and detectors agree with its labels."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from nightshift.collectors.check import check_collect
from nightshift.collectors.replay import ReplayCollector, span
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.base import Fault, State
from nightshift.detectors.plugins import ALL
from tests.recordings.replay import GPU_METRICS, Job, vision

HERE = Path(__file__).parents[1] / "recordings"
RECORDING = HERE / "h200_vision.nightshift.gz"
PHASES = {p["phase"]: p for p in json.loads((HERE / "h200_vision_labels.json").read_text())["phases"]}
FOUND = {"dataloader_stall": Fault.DATA_STALL, "lr_spike": Fault.LOSS_NONFINITE}
"""Faults whose phase is long enough, at 5 s a sample, for what their detectors ask."""
BENIGN = ("healthy", "eval_benign", "resolution_benign")


def test_it_replays_as_a_source_tick_by_tick() -> None:
    """Every recorded tick comes once and keeps the contract; the GPU, its rank and its container are known."""
    start_s, end_s, tick_s = span(RECORDING)
    assert tick_s == 0.25
    of, inventory = ReplayCollector(ReplayCollector.Settings(path=RECORDING)), Inventory()
    steps, frames = 0, 0
    for now_s in np.arange(start_s, end_s + 1.0, 1.0):
        batch = check_collect(of, float(now_s), inventory, 30.0)
        steps += sum(len(series.step) for series in batch.steps)
        frames += len(batch.frames)
    assert steps > 2_000
    assert frames > 150
    (gpu,) = inventory.subjects(SubjectKind.GPU, end_s)
    assert inventory.above(gpu, SubjectKind.RANK, end_s) == Subject(SubjectKind.RANK, "ml/vit#0")
    assert inventory.above(gpu, SubjectKind.NODE, end_s) == Subject(SubjectKind.NODE, "gpu-node-1")
    of.close()


def test_every_phase_shows_what_its_label_says() -> None:
    """Stalls idle the GPU, leaks grow, the loss breaks, a hang is busy at little power, benign phases do not."""
    used, power, busy = (
        GPU_METRICS.index(f"gpu_{name}") for name in ("memory_used_bytes", "power_w", "utilization_percent")
    )
    healthy = vision("healthy")
    assert np.isfinite(healthy.loss).all()
    assert vision("dataloader_stall").gpu[:, busy].mean() < 0.7 * healthy.gpu[10:, busy].mean()
    leak = vision("gpu_leak").gpu[:, used]
    assert leak[-1] - leak[0] > 5 * 2**30
    assert np.ptp(vision("host_leak").rss_bytes) > 400 * 2**20 > 20 * np.ptp(healthy.rss_bytes)
    assert np.isinf(vision("lr_spike").loss).any()
    hang = vision("hang").gpu[-20:]
    assert hang[:, busy].mean() > 95
    assert hang[:, power].mean() < 0.5 * healthy.gpu[10:, power].mean()
    for phase in PHASES.values():
        assert (phase["onset_s"] is not None) == (phase["is"] == "fault")


@pytest.mark.parametrize("phase", [*FOUND, *BENIGN])
def test_detectors_find_the_faults_and_nothing_in_benign_phases(phase: str) -> None:
    """One sample a scrape of 5 s, after two healthy phases: the labelled fault, or silence."""
    well = vision("healthy")
    job = Job([[well, well, vision(phase), well]])
    detectors, inventory = [kind() for kind in ALL], job.inventory()
    told = [f for tick in job.ticks() for d in detectors for f in d.update(tick, inventory)]
    firing = {finding.fault for finding in told if finding.state is State.FIRING}
    assert firing == ({FOUND[phase]} if phase in FOUND else set())


def test_the_interference_table_is_whole_and_physical() -> None:
    """Every pair was measured: slowdowns near or above one, power and activity within their bounds."""
    with (HERE / "h200_interference.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 46
    for row in rows:
        assert 75 < float(row["power_w"]) < 760
        assert all(0 <= float(row[f"{unit}_active"]) <= 1.05 for unit in ("sm", "tensor", "dram"))
        if row["b"]:
            assert float(row["a_slowdown"]) > 0.7
            assert float(row["b_slowdown"]) > 0.7
