"""A power cap of ours costs clock and time, and pages nobody: the real daemon over a page and the ranks' logs.

The same loss of clock and pace from heat, or from nothing that explains it, opens incidents: the silence is no
deafness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nightshift.agent.app import App
from nightshift.agent.clock import SteppedClock
from nightshift.agent.settings import Settings
from nightshift.detectors.base import Fault
from tests.agent.fleet import Exporter, values

pytestmark = pytest.mark.full
START_S, LOOK_S, LOOKS, FROM = 1_700_000_000.0, 15.0, 44, 14
FREE_W, CAP_W, SOFTWARE_CAP, HEAT = 700.0, 450.0, 0x4, 0x40
RANKS = 4


class Capped(Exporter):
    """Busy GPUs of one job; from look FROM on GPU 1 runs at 1,500, not 1,980 MHz, under `limit_w` and `mask`."""

    def __init__(self, limit_w: float, mask: int) -> None:
        self.look, self.limit_w, self.mask = 0, limit_w, mask
        super().__init__(RANKS)

    def slow(self, gpu: int) -> bool:
        return gpu == 1 and self.look >= FROM

    def page(self) -> bytes:
        figures: dict[str, Callable[[int], float]] = {
            "DCGM_FI_DEV_SM_CLOCK": lambda i: 1500.0 if self.slow(i) else 1980.0,
            "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": lambda i: float(self.mask) if self.slow(i) else 0.0,
            "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": lambda i: self.limit_w if self.slow(i) else FREE_W,
            "DCGM_FI_DEV_GPU_UTIL": lambda _: 97.0,
            "DCGM_FI_DEV_POWER_USAGE": lambda i: min(self.limit_w, 640.0) if self.slow(i) else 640.0,
            "DCGM_FI_DEV_GPU_TEMP": lambda _: 60.0,
        }
        lines = [f"{name}{{{self._labels(i)}}} {at(i)}" for name, at in figures.items() for i in range(RANKS)]
        return ("\n".join(lines) + "\n").encode()


@pytest.fixture
def exporters() -> Iterator[list[Exporter]]:
    made: list[Exporter] = []
    yield made
    for exporter in made:
        exporter.close()


def faults(folder: Path, exporter: Capped, exporters: list[Exporter]) -> set[Fault]:
    """What eleven minutes of such a job makes the daemon open incidents about."""
    exporters.append(exporter)
    logs = folder / "logs"
    logs.mkdir()
    sources = [
        {"type": "dcgm_exporter", "urls": [exporter.url]},
        {"type": "training_logs", "directory": str(logs)},
    ]
    clock = SteppedClock(START_S)
    app = App(
        Settings(**(values(folder / "state") | {"sources": sources, "tick_s": LOOK_S})),
        clock=clock,
    )
    try:
        app.start()
        for look in range(LOOKS):
            exporter.look = look
            for rank in range(RANKS):
                _log(logs / f"sft_job-{rank}_trainer.log", look, 1.05 if exporter.slow(rank) else 0.8)
            assert app.tick() is not None
            clock.wait_until(clock.now_s() + LOOK_S)
        found = [app.store.incident(summary.id) for summary in app.store.incidents()]
        return {stored.finding.fault for incident in found for stored in incident.findings}
    finally:
        app.stop()


def _log(path: Path, look: int, compute_s: float) -> None:
    with path.open("a") as log:
        for n in range(10):
            at = datetime.fromtimestamp(START_S + LOOK_S * (look - 1 + (n + 1) / 10), UTC).isoformat()
            step = 10 * look + n + 1
            log.write(f"{at} step={step} loss=2.1 step_time_s=1.5 compute_s={compute_s} data_s=0.01\n")


def test_a_cap_of_ours_on_one_gpu_of_a_job_opens_nothing(tmp_path: Path, exporters: list[Exporter]) -> None:
    """Neither throttling, nor the rank that it slows by a third, nor anything else."""
    assert faults(tmp_path, Capped(CAP_W, SOFTWARE_CAP), exporters) == set()


def test_the_same_loss_by_heat_is_told(tmp_path: Path, exporters: list[Exporter]) -> None:
    """Its limit is what it was: the clock is held down from outside, and its rank is late."""
    assert Fault.THROTTLE in faults(tmp_path, Capped(FREE_W, HEAT), exporters)


def test_the_same_loss_without_any_reason_is_told(tmp_path: Path, exporters: list[Exporter]) -> None:
    """Nothing holds the clock and no cap: the rank is a straggler."""
    assert faults(tmp_path, Capped(FREE_W, 0), exporters) == {Fault.STRAGGLER}
