"""What the correlator is told of stored incidents is what is stored, after a restart too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa

from nightshift.agent.correlation.correlate import DecisionVerb, correlate
from nightshift.agent.correlation.watch import KnownIncidents
from nightshift.agent.store.diagnosis import Confidence, Diagnosis
from nightshift.agent.store.incident import Cause, IncidentState
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.tables import incidents
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.base import Fault, Finding, Severity, State

GPU = Subject(SubjectKind.GPU, "GPU-1")


class SteppedClock:
    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s


def leak(since_s: float, at_s: float) -> Finding:
    return Finding(
        "memory_leak", Fault.GPU_MEMORY_LEAK, GPU, State.FIRING, Instant(since_s), Instant(at_s), Severity.WARNING,
        "climbs", 2.0, 1.0,
    )  # fmt: skip


def test_the_correlator_sees_findings_as_they_stand_and_resolved_incidents_for_a_while(tmp_path: Path) -> None:
    clock = SteppedClock()
    store = Store(f"sqlite:///{tmp_path}/s.sqlite", clock)
    known = KnownIncidents(store, keep_s=600.0)
    assert known.read(clock.at_s) == []
    first = leak(900.0, 1000.0)
    incident = store.open_incident("leak", [first])
    (seen,) = known.read(clock.at_s)
    assert (seen.id, seen.findings[0].state, seen.findings[0].at.t_s) == (incident, State.FIRING, 1000.0)
    clock.at_s = 1100.0
    store.update_finding(incident, replace(first, state=State.CLEAR, at=Instant(1100.0)))
    (seen,) = known.read(clock.at_s)
    assert (seen.findings[0].state, seen.findings[0].at.t_s) == (State.CLEAR, 1100.0)
    store.move(incident, Cause.CLOSED_BY_PERSON, "ada", "done", store.incident(incident).version)
    for reader in (known, KnownIncidents(store, keep_s=600.0)):
        (seen,) = reader.read(1200.0)
        assert (seen.state, seen.resolved_s) == (IncidentState.RESOLVED, 1100.0)
        (back,) = correlate([leak(1150.0, 1200.0)], [seen], Inventory(), 1200.0)
        assert (back.verb, back.incident_id) == (DecisionVerb.REOPEN, incident)
        assert reader.read(5000.0) == []
    store.close()


def test_a_finding_that_says_more_than_was_diagnosed_asks_for_a_new_diagnosis(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/s.sqlite", SteppedClock())
    first = leak(900.0, 1000.0)
    incident = store.open_incident("leak", [first])

    def news() -> int:
        with store.database.read() as connection:
            return int(connection.execute(sa.select(incidents.c.news)).scalar_one())

    def diagnose() -> None:
        diagnosis = Diagnosis(first.fault, "leak", Confidence.HIGH, (), ())
        store.save_diagnosis(store.incident(incident), diagnosis, by="rules")

    assert news() == 1
    diagnose()
    assert news() == 0
    store.update_finding(incident, replace(first, at=Instant(1001.0)))
    assert news() == 0
    store.update_finding(incident, replace(first, at=Instant(1002.0)), news=True)
    assert news() == 1
    store.close()
