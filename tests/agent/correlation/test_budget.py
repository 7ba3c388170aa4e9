"""In the daemon: each alarm opens an incident at once, in the lane that the budget decides; restarts keep it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.agent.correlation.correlate import DecisionVerb, KnownIncident, correlate
from nightshift.agent.correlation.decisions import AlarmVerdict
from nightshift.agent.correlation.detection import Detection
from nightshift.agent.correlation.watch import verdict_of
from nightshift.agent.metrics import Metrics
from nightshift.agent.store.incident import Cause, HistoryStep, IncidentState
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.budget import BudgetSettings
from nightshift.detectors.alarms.calibration import CalibrationError, save
from nightshift.detectors.alarms.lanes import Lane, Proof, in_lane, widest
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
        return [Finding(*told, self.score, 1.0, facts={"lost_share": 0.5})]

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        return None


def detection(odd: Odd, **settings: float) -> tuple[Detection, Metrics]:
    metrics = Metrics("test")
    return Detection([odd], metrics, BudgetSettings(**settings)), metrics


def one_job() -> Inventory:
    """GPU-0 and 63 others in one job."""
    known = Inventory()
    for number in range(64):
        known.observe(Subject(SubjectKind.GPU, f"GPU-{number}"), Subject(SubjectKind.JOB, "ml/a"), 0.0)
    return known


def known_of(incident_id: str, *findings: Finding) -> KnownIncident:
    return KnownIncident(incident_id, IncidentState.OPEN, findings, 1e9)


def test_a_weak_alarm_opens_a_ticket_at_once_and_a_strong_one_makes_it_a_page() -> None:
    """On a thousand GPUs a weak alarm opens its incident with its reason; stronger, it updates it at once, louder.
    What was a page stays one when the alarm is weak again."""
    odd, inventory = Odd(), one_job()
    running, metrics = detection(odd)
    running.budget.stated["odd"] = replace(Odd.stated, own=True)
    (weak,) = running.detect(gpu_tick(1e9, 1000), inventory).findings
    (opened,) = correlate([weak], [], inventory, 1e9)
    assert (opened.verb, widest(opened.findings)) == (DecisionVerb.OPEN, Lane.TICKET)
    assert b'nightshift_alarm_episodes{detector="odd",paged="no"} 1.0' in metrics.page()
    odd.score = 30.0
    (strong,) = running.detect(gpu_tick(1e9 + 5, 1000), inventory).findings
    (update,) = correlate([strong], [known_of("INC-1", weak)], inventory, 1e9 + 5)
    assert (update.verb, update.louder, widest(update.findings)) == (DecisionVerb.UPDATE, True, Lane.PAGE)
    assert strong.budget_cost < weak.budget_cost
    assert b'nightshift_alarm_episodes{detector="odd",paged="yes"} 1.0' in metrics.page()
    again = replace(weak, at=Instant(1e9 + 100))
    (kept,) = correlate([again], [known_of("INC-1", strong)], inventory, 1e9 + 100)
    assert (kept.louder, widest(kept.findings)) == (False, Lane.PAGE)


@pytest.mark.parametrize(
    ("proof", "lane"), [(Proof.COMMON, Lane.PAGE), (Proof.NOISY, Lane.TICKET), (Proof.UNMEASURED, Lane.TICKET)]
)
def test_a_storm_of_weak_alarms_pages_unless_its_detector_is_noisy_or_unmeasured(proof: Proof, lane: Lane) -> None:
    """So many at once in one rack are no chance, where chance is known."""
    inventory, rack, found = Inventory(), Subject(SubjectKind.RACK, "r1"), []
    for number in range(6):
        gpu = Subject(SubjectKind.GPU, f"GPU-{number}")
        node = Subject(SubjectKind.NODE, f"n{number}")
        inventory.observe(gpu, node, 0.0)
        inventory.observe(node, rack, 0.0)
        at = Instant(1e9)
        told = ("throttle", Fault.THROTTLE, gpu, State.FIRING, at, at, Severity.WARNING, "slow", 2.0, 1.0)
        found.append(in_lane(Finding(*told), Lane.TICKET, proof, "weak"))
    (opened,) = correlate(found, [], inventory, 1e9)
    assert (len(opened.findings), widest(opened.findings)) == (6, lane)


@pytest.mark.parametrize(
    ("causes", "verdict"),
    [
        (["opened"], AlarmVerdict.OPEN),
        (["opened", Cause.CLEARED_BY_ITSELF], AlarmVerdict.WENT_ON),
        (["opened", Cause.CLEARED_BY_ITSELF, Cause.RELAPSED], AlarmVerdict.OPEN),
        (["opened", Cause.ACKNOWLEDGED, Cause.CLEARED_BY_ITSELF], AlarmVerdict.OPEN),
        (["opened", Cause.CLOSED_BY_PERSON], AlarmVerdict.OPEN),
        (["opened", Cause.NOT_A_FAULT], AlarmVerdict.FALSE),
        (["opened", Cause.APPROVED, Cause.INTENT_STORED, Cause.CONFIRMED], AlarmVerdict.TRUE),
    ],
)
def test_only_a_person_or_how_it_ended_makes_an_alarm_false(causes: list[str], verdict: AlarmVerdict) -> None:
    """An open page that nobody answers has no verdict, and neither has one that a person took on."""
    state = {Cause.INTENT_STORED: IncidentState.ACTING}
    steps = [HistoryStep(0.0, None, state.get(c, IncidentState.OPEN), c, "x") for c in causes]  # type: ignore[call-overload]
    assert verdict_of(steps) is verdict


def test_the_operators_words_decide_and_a_small_fleet_hears_more() -> None:
    """The same weak alarm pages on four GPUs, and on a thousand where the operator allows a thousand pages."""
    for gpus, allowed, pages in ((4, 10.0, True), (1000, 1.0, False), (1000, 1000.0, True)):
        running, _ = detection(Odd(), false_pages_per_week=allowed)
        running.budget.stated["odd"] = replace(Odd.stated, own=True)
        (found,) = running.detect(gpu_tick(1e9, gpus), one_job()).findings
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
