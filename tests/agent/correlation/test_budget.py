"""In the daemon: what the budget withholds opens nothing and is counted; a restart keeps the accounts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nightshift.agent.correlation.correlate import DecisionVerb, correlate
from nightshift.agent.correlation.detection import Detection
from nightshift.agent.metrics import Metrics
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.budget import BudgetSettings
from nightshift.detectors.alarms.calibration import CalibrationError, save
from nightshift.detectors.alarms.tail import Tail
from nightshift.detectors.base import Fault, Finding, RateBasis, Severity, State, StatedRate
from nightshift.detectors.progress.hang import Hang
from tests.detectors.test_budget import gpu_tick


class Odd:
    """A detector with a measured tail that alarms on GPU-0 with a score that the test sets."""

    name, faults = "odd", (Fault.ANOMALY,)
    stated = StatedRate(
        100.0, RateBasis.STATISTICAL, "test", tail=Tail(1.0, 100.0, 0.5, 0.0, 50, 500.0, "made for the test")
    )

    def __init__(self) -> None:
        self.score = 1.1

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        subject = Subject(SubjectKind.GPU, "GPU-0")
        at = Instant(tick.at_s)
        told = (self.name, Fault.ANOMALY, subject, State.FIRING, Instant(1e9), at, Severity.WARNING, "odd")
        return [Finding(*told, self.score, 1.0)]

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        return None


def detection(odd: Odd, **settings: float) -> tuple[Detection, Metrics]:
    metrics = Metrics("test")
    return Detection([odd], metrics, BudgetSettings(**settings)), metrics


def test_a_withheld_alarm_opens_nothing_until_it_is_strong() -> None:
    """On a thousand GPUs a weak alarm is ignored with its reason and counted; stronger, it opens an incident."""
    odd = Odd()
    running, metrics = detection(odd)
    inventory = Inventory()
    (weak,) = running.detect(gpu_tick(1e9, 1000), inventory).findings
    assert [d.verb for d in correlate([weak], [], inventory, 1e9)] == [DecisionVerb.IGNORE]
    assert b'nightshift_alarm_episodes{detector="odd",paged="no"} 1.0' in metrics.page()
    odd.score = 30.0
    (strong,) = running.detect(gpu_tick(1e9 + 5, 1000), inventory).findings
    assert [d.verb for d in correlate([strong], [], inventory, 1e9 + 5)] == [DecisionVerb.OPEN]
    assert strong.budget_cost < weak.budget_cost
    assert b'nightshift_alarm_episodes{detector="odd",paged="yes"} 1.0' in metrics.page()


def test_the_operators_words_decide_and_a_small_fleet_hears_more() -> None:
    """The same weak alarm pages on four GPUs, and on a thousand where the operator allows a thousand pages."""
    for gpus, allowed, pages in ((4, 10.0, True), (1000, 1.0, False), (1000, 1000.0, True)):
        running, _ = detection(Odd(), false_pages_per_week=allowed)
        (found,) = running.detect(gpu_tick(1e9, gpus), Inventory()).findings
        assert found.pages is pages, (gpus, allowed)


def test_a_restart_and_a_reload_keep_the_accounts() -> None:
    """The kept state brings alarms and series-days back; a broken one starts anew without harm."""
    running, _ = detection(Odd())
    for number in range(20):
        running.detect(gpu_tick(1e9 + 60.0 * number, 10), Inventory())
    kept: Mapping[str, bytes] = running.snapshots()
    after, _ = detection(Odd())
    after.restore(lambda name: (0.0, kept[name]) if name in kept else None)
    after.swap([Odd()], BudgetSettings(false_pages_per_week=5.0))
    (line,) = after.budget.lines()
    assert (line.alarms, after.budget.settings.false_pages_per_week) == (1, 5.0)
    assert line.series_days > 0.1
    broken, _ = detection(Odd())
    broken.restore(lambda name: (0.0, b"nothing"))
    assert broken.budget.lines()[0].alarms == 0


def test_own_calibration_is_taken_up_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    """A claim becomes a measured promise; a file that is none is refused, and the old budget goes on."""
    path = tmp_path / "own.json"
    save(path, {"hang": Tail(0.1, 400.0, 0.1, 0.25, 12, 900.0, "own")})
    running, _ = detection(Hang(), calibration=str(path))
    assert running.budget.lines()[0].basis_word == "measured"
    before = (running.budget, running.detectors)
    path.write_text("{}}")
    with pytest.raises(CalibrationError, match=r"own\.json"):
        running.swap([Hang()], BudgetSettings(calibration=str(path)))
    assert (running.budget, running.detectors) == before
