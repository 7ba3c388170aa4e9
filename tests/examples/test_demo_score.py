"""The scorer cannot be pleased by silence, by noise, or by acting on whatever is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples.demo.recording import load
from examples.demo.scenario import START_S, FaultKind, draw
from examples.demo.score import EXPECTED, RUNGS, Report, score, score_asleep
from examples.demo.world import FaultRecord, World, gpu_subject, job_subject
from nightshift.agent.store.diagnosis import Confidence, Diagnosis
from nightshift.agent.store.incident import HistoryStep, Incident, IncidentState, StoredFinding
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Subject
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Undo
from nightshift.controllers.actuators.simulated import SimulatedActuator
from nightshift.detectors.alarms.lanes import Lane, in_lane
from nightshift.detectors.base import Fault, Finding, Severity, State

CORRUPTION = "silent data corruption is possible, not proven"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An hour in which every fault happened, was acted on, and ended."""
    made = World(draw(100), load(), tmp_path_factory.mktemp("world"))
    actuator = SimulatedActuator(made.cluster.path, lambda: made.now_s)
    waiting = list(made.records)
    while waiting:
        made.advance(made.now_s + 300)
        for record in [r for r in waiting if r.began_s is not None]:
            waiting.remove(record)
            kind, target, params = _repair(made, record)
            action = Action(record.fault.kind, kind, target, "", BlastRadius(), Undo(False, ""), 9e9, params=params)
            actuator.execute(action)
    made.advance(made.now_s + 600)
    yield made
    made.close()


def _repair(world: World, record: FaultRecord) -> tuple[ActionKind, Subject, dict[str, int]]:
    job = world.jobs[record.fault.job]
    if record.fault.kind is FaultKind.ECC:
        return ActionKind.RESET_GPU, gpu_subject(job.gpus[record.fault.rank]), {}
    clean = [c.step for c in job.checkpoints if not c.tainted]
    return ActionKind.RESTART_JOB, job_subject(job), {"checkpoint_step": clean[-1]}


def incident(number: int, subject: Subject, fault: Fault, opened_s: float, caveat: str = CORRUPTION) -> Incident:
    at = Instant(opened_s)
    finding = Finding("test", fault, subject, State.FIRING, at, at, Severity.WARNING, "", score=1.0, threshold=0.0)
    done = HistoryStep(opened_s + 300, IncidentState.CONFIRMING, IncidentState.RESOLVED, "confirmed", "test")
    return Incident(
        id=f"INC-{number}",
        state=IncidentState.RESOLVED,
        title=f"{fault} on {subject}",
        severity=Severity.WARNING,
        opened_s=opened_s,
        updated_s=opened_s,
        entered_s=opened_s,
        findings=(StoredFinding(finding, State.CLEAR, opened_s, opened_s),),
        diagnosis=Diagnosis(fault, "", Confidence.HIGH, (), (), caveats=(caveat,)),
        action=None,
        plan_reason="",
        attempt=1,
        clear_since_s=opened_s,
        history=(done,),
        version=1,
    )


def right(world: World) -> list[Incident]:
    """One incident per fault, each as it should be."""
    made = []
    for number, record in enumerate(world.records, 1):
        assert record.began_s is not None
        job = world.jobs[record.fault.job]
        ecc = record.fault.kind is FaultKind.ECC
        subject = gpu_subject(job.plan.gpus[record.fault.rank]) if ecc else job_subject(job)
        cause = sorted(EXPECTED[record.fault.kind])[0]
        made.append(incident(number, subject, cause, record.began_s + 60))
    return made


def problems(report: Report) -> list[str]:
    assert not report.ok
    return [*report.problems, *(problem for row in report.rows for problem in row.problems)]


def test_one_right_incident_per_fault_passes(world: World) -> None:
    """Every fault found once, rightly named, acted on and recovered is the only run that passes."""
    report = score(world, right(world))
    assert report.ok, problems(report)
    assert {row.detected_after_s for row in report.rows} == {60.0}


def test_silence_fails(world: World) -> None:
    """Without an incident every fault counts as missed."""
    assert [row.problems[0] for row in score(world, []).rows] == ["missed"] * len(FaultKind)


def test_an_alarm_on_a_benign_job_fails(world: World) -> None:
    """An incident about a job that no fault hit is named."""
    benign = world.jobs[world.scenario.benign[0].job]
    extra = incident(99, job_subject(benign), Fault.DATA_STALL, START_S + 3000)
    assert problems(score(world, [*right(world), extra])) == [f"INC-99 is about no fault: {extra.title}"]


def test_an_alarm_before_the_fault_is_no_detection(world: World) -> None:
    """What opened before the onset cannot have found it."""
    early = right(world)
    first = early[0]
    early[0] = incident(1, first.subjects[0], first.findings[0].finding.fault, START_S + 60)
    found = problems(score(world, early))
    assert any("INC-1 is about no fault" in problem for problem in found)
    assert "missed" in found


def test_a_fault_told_twice_fails(world: World) -> None:
    """Two incidents for one fault are one too many; a false alarm on its job counts as one, and is told as such."""
    twice = right(world)
    false = incident(98, twice[0].subjects[0], Fault.LOSS_DIVERGED, twice[0].opened_s + 60)
    (problem,) = problems(score(world, [*twice, false]))
    assert problem == f"opened 2 times: INC-1 ({twice[0].title}), INC-98 ({false.title})"


def test_a_wrong_cause_and_a_hidden_corruption_fail(world: World) -> None:
    """A diagnosis with another cause, or a flip without the word corruption, is a problem of its row."""
    for index, record in enumerate(world.records):
        wrong = right(world)
        at_s = wrong[index].opened_s
        wrong[index] = incident(index + 1, wrong[index].subjects[0], Fault.THROTTLE, at_s)
        assert "diagnosed as throttle" in problems(score(world, wrong))
        if record.fault.kind is FaultKind.BIT_FLIP:
            wrong[index] = incident(index + 1, wrong[index].subjects[0], Fault.LOSS_DIVERGED, at_s, "all well")
            assert "silent corruption is not said to be possible" in problems(score(world, wrong))


def test_without_an_answer_each_page_calls_everyone_and_the_storm_stays_in_tickets(world: World) -> None:
    """Acting without an approval, an alarm of the storm that pages, a storm without a name, and a page that ends at
    the first person fail a run; what is open, called and named passes."""
    unanswered = [replace(i, state=IncidentState.OPEN, history=()) for i in right(world)]
    unanswered = [
        replace(i, history=(HistoryStep(i.opened_s, None, IncidentState.OPEN, "found", "test"),))
        for i in unanswered
    ]
    storm = incident(50, gpu_subject(world.scenario.gpus[0]), Fault.THROTTLE, START_S + 400)
    told = in_lane(replace(storm.findings[0].finding, detector="throttle"), Lane.TICKET)
    storm = replace(storm, findings=(replace(storm.findings[0], finding=told),))
    paging = replace(storm, findings=(replace(storm.findings[0], finding=replace(told, facts={}, pages=True)),))
    calls = {i.id: RUNGS for i in unanswered}

    def found(incident: Incident, noise: str, calls: dict[str, tuple[str, ...]]) -> list[str]:
        report = score_asleep(world, [*unanswered, incident], "throttle", noise, calls)
        return [p for p in problems(report) if "without an approval" not in p]

    assert {row.lane for row in score_asleep(world, [*unanswered, storm], "throttle", "x", calls).rows} == {"page"}
    assert found(storm, "it is noisy", calls) == []
    assert found(paging, "it is noisy", calls) == [f"INC-50 pages: {storm.title}"]
    assert found(storm, "", calls) == ["detector throttle is not called noisy"]
    assert "INC-1 has called only U0BOB" in found(storm, "it is noisy", {**calls, "INC-1": RUNGS[:1]})


def test_acting_on_a_healthy_job_fails(tmp_path: Path) -> None:
    """A restart of a job that nothing is wrong with is told with its time."""
    world = World(draw(101), load(), tmp_path)
    try:
        world.advance(START_S + 100)
        healthy = job_subject(world.jobs[world.scenario.faults[-1].job])
        action = Action("x", ActionKind.RESTART_JOB, healthy, "", BlastRadius(), Undo(False, ""), 9e9)
        SimulatedActuator(world.cluster.path, lambda: world.now_s).execute(action)
        found = score(world, []).problems
        assert found == (f"restart_job of {healthy} at 100 s touched what was healthy",)
    finally:
        world.close()
