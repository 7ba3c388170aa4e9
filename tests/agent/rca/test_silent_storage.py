"""Jobs that wait for one storage server are one incident; what stops for another reason is not drawn into it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest

from nightshift.agent.correlation.correlate import CorrelationDecision, DecisionVerb, KnownIncident, correlate
from nightshift.agent.incidents.advisor import choose
from nightshift.agent.rca.evidence import gather
from nightshift.agent.rca.rules import diagnose
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.history import History
from nightshift.collectors.kernel_log.lines import KernelLogParser
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.action import ActionKind, Situation
from nightshift.controllers.playbooks.plugins import build
from nightshift.detectors.base import Fault, Finding, Severity, State

K = SubjectKind
NFS, OK = "nfs: server nfs01 not responding, still trying", "nfs: server nfs01 OK"
OST = "Lustre: fs1-OST000{}-osc-ffff8: Connection to fs1-OST000{} (at 10.0.0.1@o2ib) was lost; in progress"


def fleet(jobs: int) -> Inventory:
    """Job j{n} on node n{n}, one rank each."""
    inventory = Inventory()
    for n in range(jobs):
        node, pod, job = Subject(K.NODE, f"n{n}"), Subject(K.POD, f"ml/j{n}-0"), Subject(K.JOB, f"ml/j{n}")
        inventory.observe(Subject(K.GPU, f"GPU-{n}"), node, 0.0)
        inventory.observe(Subject(K.GPU, f"GPU-{n}"), pod, 0.0)
        inventory.observe(pod, node, 0.0)
        inventory.observe(pod, job, 0.0)
        inventory.describe(job, owner=f"team-{n}")
    return inventory


def kernel(*lines: tuple[int, float, str]) -> History:
    """(node, Unix s, text) as their kernel logs bring them."""
    kept = History()
    parsers = {n: KernelLogParser(Subject(K.NODE, f"n{n}")) for n, _, _ in lines}
    for n, at_s, text in sorted(lines, key=lambda line: line[1]):
        record = LogRecord(Instant(at_s), f"node_log n{n}", Subject(K.NODE, f"n{n}"), text, 0)
        event = parsers[n].read(record)
        kept.add(Tick(at_s, {}, (), (), () if event is None else (event,), ()))
    return kept


def stops(n: int, since_s: float, fault: Fault = Fault.HANG) -> Finding:
    when = (Instant(since_s), Instant(since_s + 200.0))
    job = Subject(K.JOB, f"ml/j{n}")
    return Finding("test", fault, job, State.FIRING, *when, Severity.CRITICAL, f"{fault} {n}", 2.0, 1.0)


def incidents(found: Iterable[Finding], kept: History, inventory: Inventory) -> list[KnownIncident]:
    """What stands after each finding has come at its own time."""
    held: dict[str, KnownIncident] = {}
    number = itertools.count(1)
    for finding in found:
        at_s = finding.at.t_s
        decision: CorrelationDecision
        for decision in correlate([finding], held.values(), inventory, at_s, events=kept.events):
            if decision.verb is DecisionVerb.OPEN:
                name = f"INC-{next(number)}"
                held[name] = KnownIncident(name, IncidentState.OPEN, decision.findings, at_s)
            elif decision.incident_id is not None:
                old = held[decision.incident_id]
                held[old.id] = replace(old, findings=(*old.findings, *decision.findings))
    return list(held.values())


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.DATA_STALL])
def test_jobs_that_stop_minutes_apart_for_one_server_are_one_incident_that_names_them_all(fault: Fault) -> None:
    inventory = fleet(4)
    kept = kernel(*((n, 1100.0 + 200.0 * n, NFS) for n in range(4)))
    found = [stops(n, 1000.0 + 200.0 * n, fault) for n in range(4)]
    (incident,) = incidents(found, kept, inventory)
    assert {f.subject.name for f in incident.findings} == {"ml/j0", "ml/j1", "ml/j2", "ml/j3"}
    told = diagnose(incident.findings, gather(incident.findings, kept, inventory, 1800.0), inventory)
    assert "no answer from NFS server nfs01" in told.headline
    assert told.headline.endswith("and jobs ml/j1, ml/j2, ml/j3")
    facts = {**told.facts, "attempt": 0.0}
    situation = Situation("INC-1", told.cause, found[0].subject, (), inventory, 1800.0, facts)
    action = choose(situation, build()).proposal.action
    assert action is not None
    assert action.kind is ActionKind.NOTIFY_OWNER
    assert "so do ml/j1, ml/j2, ml/j3" in action.why
    assert action.params["owner"] == "team-0, team-1, team-2, team-3"


def test_jobs_that_stop_in_one_tick_for_one_server_are_one_incident() -> None:
    kept = kernel(*((n, 1100.0 + n, OST.format(t, t)) for n in range(3) for t in range(2)))
    (decision,) = correlate([stops(n, 1000.0) for n in range(3)], [], fleet(3), 1200.0, events=kept.events)
    assert len(decision.findings) == 3


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([(0, 1100.0, NFS)], "the other node's server answers"),
        ([(0, 1100.0, NFS), (1, 1100.0, NFS.replace("nfs01", "nfs02"))], "another server"),
        ([(0, 1100.0, NFS), (1, 1010.0, NFS), (1, 1100.0, OK)], "it answers there again"),
        ([(0, 1100.0, NFS), (1, 10.0, NFS)], "an old mount that nobody uses"),
        (
            [(0, 1100.0, NFS), (1, 1100.0, "INFO: task python:71 blocked for more than 120 seconds.")],
            "no server",
        ),
    ],
)
def test_a_job_that_does_not_wait_for_the_server_has_its_own_incident(
    lines: list[tuple[int, float, str]], why: str
) -> None:
    found = [stops(0, 1000.0), stops(1, 1000.0)]
    assert len(incidents(found, kernel(*lines), fleet(2))) == 2, why
    assert len(correlate(found, [], fleet(2), 1200.0, events=kernel(*lines).events)) == 2, why


def test_a_job_that_lost_its_gpu_keeps_its_own_incident_and_draws_no_other_in() -> None:
    """Its node waits for the server, too, but that did not stop it."""
    kept = kernel((0, 1100.0, NFS), (1, 1100.0, NFS), (2, 1100.0, NFS))
    lost = replace(stops(0, 990.0, Fault.GPU_LOST), subject=Subject(K.GPU, "GPU-0"))
    for told in ([[lost, stops(0, 1000.0), stops(1, 1000.0), stops(2, 1000.0)]], [[lost], [stops(0, 1000.0)]]):
        held: list[KnownIncident] = []
        for found in told:
            for decision in correlate(found, held, fleet(3), 1200.0, events=kept.events):
                if decision.verb is DecisionVerb.OPEN:
                    held.append(KnownIncident(f"INC-{len(held)}", IncidentState.OPEN, decision.findings, 1200.0))
                else:
                    held[0] = replace(held[0], findings=(*held[0].findings, *decision.findings))
        assert held[0].findings[0].fault is Fault.GPU_LOST
    later = correlate([stops(1, 1000.0), stops(2, 1010.0)], held, fleet(3), 1210.0, events=kept.events)
    assert [(d.verb, len(d.findings)) for d in later] == [(DecisionVerb.OPEN, 2)]
