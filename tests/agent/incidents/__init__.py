"""Findings, diagnoses, plans and a clock for the tests of the incident's way."""

from __future__ import annotations

from nightshift.agent.clock import SteppedClock
from nightshift.agent.store.diagnosis import (
    LOG,
    Claim,
    Confidence,
    Contest,
    Diagnosis,
    Evidence,
    Predicate,
    Quote,
    QuotedSentence,
    Reading,
    ReadingState,
)
from nightshift.agent.store.incident import IncidentState, plan_name
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Precondition, Undo
from nightshift.detectors.base import Fault, Finding, LogExhibit, SeriesExhibit, Severity, State

NODE = Subject(SubjectKind.NODE, "n1")
GPU = Subject(SubjectKind.GPU, "GPU-1")
JOB = Subject(SubjectKind.JOB, "team/job")


class ManualClock(SteppedClock):
    """A clock that stands still until it is moved."""

    def __init__(self, now_s: float = 1_000.0) -> None:
        super().__init__(now_s)

    def advance(self, seconds: float) -> None:
        self.wait_until(self.now_s() + seconds)


def a_finding(
    fault: Fault = Fault.GPU_MEMORY_LEAK,
    subject: Subject = GPU,
    state: State = State.FIRING,
    *,
    at_s: float = 1_000.0,
    since_s: float = 990.0,
    severity: Severity = Severity.WARNING,
) -> Finding:
    record = LogRecord(Instant(since_s, 0.5, "n1"), "kernel_log n1", NODE, "NVRM: Xid (PCI:0000:9b:00): 63", 17)
    nan = float("nan")
    series = SeriesExhibit(GPU, "gpu_memory_used_bytes", "bytes", (990.0, 995.0), (1e9, nan), None, "dcgm n1")
    return Finding(
        detector="memory_leak",
        fault=fault,
        subject=subject,
        state=state,
        since=Instant(since_s),
        at=Instant(at_s),
        severity=severity,
        summary=f"{fault} on {subject}",
        score=float("inf"),
        threshold=4.0,
        evidence=(series, LogExhibit(record)),
        facts={"eta_s": 3600.0, "unit": "bytes"},
    )


def a_diagnosis(cause: Fault = Fault.GPU_MEMORY_LEAK) -> Diagnosis:
    line = b"NVRM: Xid (PCI:0000:9b:00): 63"
    evidence = Evidence("E1", "kernel_log n1", "after=0", 900.0, 1000.0, "text/plain", line + b"\xff")
    claim = Claim("Xid 63 was logged", Predicate.EQUALS, ("E1",), (Quote("E1", "Xid"),), {"code": 63.0})
    return Diagnosis(cause, f"{cause} on GPU-1", Confidence.HIGH, (claim,), (evidence,), caveats=("one node only",))


def an_action(
    action_id: str = "INC-1-1",
    kind: ActionKind = ActionKind.RESTART_JOB,
    target: Subject = JOB,
    *,
    expires_at_s: float = 4_600.0,
    preconditions: tuple[Precondition, ...] = (),
    undo: Undo | None = None,
) -> Action:
    return Action(
        id=action_id,
        kind=kind,
        target=target,
        why="the leak grows until the job dies",
        blast_radius=BlastRadius(jobs=("team/job",), cost_gpu_hours=3.5),
        undo=undo or Undo(False, "a restart cannot be undone"),
        expires_at_s=expires_at_s,
        params={"checkpoint": "latest", "grace_s": 30, "force": False, "share": 0.5},
        preconditions=preconditions,
    )


def contested(store: Store, name: str, quote: str, reason: str = "The reset will fail.") -> None:
    """Has a model contest the plan of an incident, in a reading as the queue stores it."""
    action = store.incident(name).action
    assert action is not None
    (row,) = [row for row in store.to_read(frozenset(IncidentState)) if row.incident == name]
    item = Evidence("E1", "kernel_log n1", "", 0.0, 1.0, LOG, f"1.0\t{quote}".encode(), "kernel events of n1")
    contest = Contest(plan_name(action), reason, Quote("E1", quote))
    told = (QuotedSentence("The unload failed.", contest.quote),)
    reading = Reading(ReadingState.DONE, "openai m", evidence=(item,), sentences=told, contest=contest, asked=1)
    store.save_reading(name, row.diagnosis, reading, 1, 0.0, final=True)
