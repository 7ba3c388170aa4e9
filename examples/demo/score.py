"""Holds what the daemon did against the script: what was found, when, what was done, and what should not have been.

Only this file and the world know the truth. It reads the store as any user could, after the fact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from examples.demo.scenario import START_S, TICK_S, FaultKind
from examples.demo.world import FaultRecord, World, gpu_subject, job_subject, pod_subject
from nightshift.agent.store.incident import Incident, IncidentState, unanswered_since_s
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import ActionKind
from nightshift.controllers.actuators.simulated import SimulatedEffect
from nightshift.detectors.alarms.lanes import Lane, widest
from nightshift.detectors.base import Fault

EXPECTED: dict[FaultKind, frozenset[Fault]] = {
    FaultKind.GPU_LEAK: frozenset({Fault.GPU_MEMORY_LEAK}),
    FaultKind.HOST_LEAK: frozenset({Fault.HOST_MEMORY_LEAK}),
    FaultKind.DIVERGENCE: frozenset({Fault.LOSS_DIVERGED, Fault.LOSS_NONFINITE}),
    FaultKind.BIT_FLIP: frozenset({Fault.LOSS_DIVERGED, Fault.LOSS_NONFINITE}),
    FaultKind.DATA_STALL: frozenset({Fault.DATA_STALL}),
    FaultKind.ECC: frozenset({Fault.HBM_DEGRADED, Fault.HBM_IMMINENT, Fault.XID}),
}
"""Causes that name the fault rightly."""
RUNGS = ("U0BOB", "S0TEAM")
"""Whom an unanswered page mentions, in order: the second person, then the team."""
ESCALATE_S = 600.0
_EARLY_S = 2 * TICK_S
"""A finding's onset is the start of a step or bucket; it may lie this much before the script's."""


@dataclass(frozen=True)
class Row:
    """One fault of the script and what became of it. Times are simulated seconds after its onset."""

    fault: str
    job: str
    gpu: str
    onset_s: float
    size: float
    incident: str | None
    detected_after_s: float | None
    diagnosis: str | None
    action: str | None
    acted_after_s: float | None
    resolved_after_s: float | None
    outcome: str
    problems: tuple[str, ...]
    lane: str = ""
    """page, ticket or digest."""
    called: tuple[str, ...] = ()
    """Whom the page mentions after a time without an answer."""


@dataclass(frozen=True)
class Report:
    """The verdict on a run; `ok` is what the exit code says."""

    seed: int
    simulated_s: float
    rows: tuple[Row, ...]
    problems: tuple[str, ...] = field(default=())
    wall_s: float = 0.0
    storm: str = ""
    """What became of the alarms of a detector gone mad."""
    story: tuple[str, ...] = ()
    """What else the night shows, a line each."""
    unsettled: int = 0
    """Ticks at which the daemon was not done when the time that it was given ran out: the machine was too slow."""

    @property
    def ok(self) -> bool:
        return not self.problems and not any(row.problems for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def score(world: World, incidents: Sequence[Incident]) -> Report:
    """Every fault needs exactly one incident with the right cause, an action on it, and a confirmed recovery; every
    incident and every action needs a fault."""
    effects = world.cluster.effects()
    owned = _owned(world, incidents)
    rows = tuple(
        _row(world, record, [i for i in incidents if owned.get(i.id) is record], effects)
        for record in world.records
    )
    problems = [
        f"{incident.id} is about no fault: {incident.title}" for incident in incidents if incident.id not in owned
    ]
    problems += [p for effect in effects if (p := _needless(world, effect)) is not None]
    return Report(world.scenario.seed, world.elapsed_s, rows, tuple(problems))


def score_asleep(
    world: World, incidents: Sequence[Incident], mad: str, noise: str, calls: Mapping[str, Sequence[str]]
) -> Report:
    """Where no one answers: every fault is open in an incident of its own, nothing was done, and every page that is
    due has called all of `RUNGS`. The alarms of the detector `mad` are tickets that say so; some fault pages."""
    storm = [i for i in incidents if all(stored.finding.detector == mad for stored in i.findings)]
    others = [i for i in incidents if i not in storm]
    owned = _owned(world, others)
    rows = []
    for record in world.records:
        about = [i for i in others if owned.get(i.id) is record]
        row = _row(world, record, about, world.cluster.effects())
        problems = [p for p in row.problems if p != "not repaired" and not p.startswith("ended ")]
        problems += [f"{row.action} without an approval"] if row.action else []
        for incident in about:
            if is_due(incident, world.now_s) and len(calls[incident.id]) < len(RUNGS):
                problems.append(f"{incident.id} has called only {', '.join(calls[incident.id]) or 'on-call'}")
        called = tuple(whom for whom in RUNGS if any(whom in calls[i.id] for i in about))
        lane = widest(s.finding for i in about for s in i.findings) if about else ""
        rows.append(replace(row, problems=tuple(problems), lane=str(lane), called=called))
    problems = [f"{i.id} is about no fault: {i.title}" for i in others if i.id not in owned]
    problems += [f"{i.id} pages: {i.title}" for i in storm if lane_of_incident(i) is Lane.PAGE]
    problems += [] if storm and noise else [f"detector {mad} is not called noisy"]
    problems += [] if any(row.lane == Lane.PAGE for row in rows) else ["no fault pages"]
    problems += [] if any(row.called for row in rows) else ["no page calls the second person"]
    alarms = sum(len(i.findings) for i in storm)
    said = f"{alarms} alarms, {len(storm)} incidents, no page: {noise}"
    return Report(world.scenario.seed, world.elapsed_s, tuple(rows), tuple(problems), storm=said)


def lane_of_incident(incident: Incident) -> Lane:
    return widest(stored.finding for stored in incident.findings)


def is_due(incident: Incident, now_s: float) -> bool:
    """Whether a page has been unanswered for so long that everyone is called."""
    since_s = unanswered_since_s(incident.history)
    due = since_s is not None and now_s >= since_s + len(RUNGS) * ESCALATE_S
    return due and lane_of_incident(incident) is Lane.PAGE


def _owned(world: World, incidents: Sequence[Incident]) -> dict[str, FaultRecord]:
    """The fault that each incident is about, by the incident's id."""
    found = {i.id: [record for record in world.records if _is_about(world, record, i)] for i in incidents}
    return {name: records[0] for name, records in found.items() if records}


def subjects_of(world: World, record: FaultRecord) -> set[Subject]:
    """What a fault may be called by: its job, pods, ranks, containers; its GPU and, for memory errors, its node."""
    job = world.jobs[record.fault.job]
    plan = job.plan
    gpu = plan.gpus[record.fault.rank]
    named = {job_subject(job), gpu_subject(gpu)}
    for rank in job.ranks:
        named.add(pod_subject(job, rank))
        named.add(Subject(SubjectKind.RANK, f"{plan.full_name}#{rank}"))
        named.add(Subject(SubjectKind.CONTAINER, f"{plan.namespace}/{job.pod(rank)}/trainer"))
    if record.fault.kind is FaultKind.ECC:
        named.add(Subject(SubjectKind.NODE, gpu.node))
    return named


def _is_about(world: World, record: FaultRecord, incident: Incident) -> bool:
    if record.began_s is None or incident.opened_s < record.began_s - _EARLY_S:
        return False
    subject = incident.findings[0].finding.subject
    return subject in subjects_of(world, record) or any(s in subjects_of(world, record) for s in incident.subjects)


def _row(
    world: World, record: FaultRecord, incidents: Sequence[Incident], effects: Sequence[SimulatedEffect]
) -> Row:
    fault = record.fault
    plan = world.scenario.jobs[fault.job]
    began_s = math.nan if record.began_s is None else record.began_s
    problems = []
    if not incidents:
        problems.append("missed")
    if len(incidents) > 1:
        problems.append(f"opened {len(incidents)} times: " + ", ".join(f"{i.id} ({i.title})" for i in incidents))
    first = incidents[0] if incidents else None
    cause = first.diagnosis.cause if first is not None and first.diagnosis is not None else None
    if first is not None and cause not in EXPECTED[fault.kind]:
        problems.append(f"diagnosed as {cause}")
    if first is not None and fault.kind is FaultKind.BIT_FLIP and not _says_possible_corruption(first):
        problems.append("silent corruption is not said to be possible")
    state = first.state if first is not None else None
    if first is not None and state is not IncidentState.RESOLVED:
        problems.append(f"ended {state}")
    about = {str(s) for s in subjects_of(world, record)}
    acts = [e for e in effects if not e.undo and str(e.target) in about and e.at_s >= began_s]
    if record.active:
        problems.append("not repaired")
    resolved_s = next((s.at_s for s in first.history if s.after is IncidentState.RESOLVED), None) if first else None
    return Row(
        fault=fault.kind,
        job=plan.full_name,
        gpu=plan.gpus[fault.rank].uuid,
        onset_s=began_s - START_S,
        size=round(fault.size, 2),
        incident=first.id if first else None,
        detected_after_s=_after(first.opened_s if first else None, began_s),
        diagnosis=cause,
        action=", ".join(f"{e.kind}" for e in acts) or None,
        acted_after_s=_after(acts[0].at_s if acts else None, began_s),
        resolved_after_s=_after(resolved_s, began_s),
        outcome=str(state) if state else "not found",
        problems=tuple(problems),
    )


def _after(at_s: float | None, began_s: float) -> float | None:
    return None if at_s is None else round(at_s - began_s, 1)


def _says_possible_corruption(incident: Incident) -> bool:
    diagnosis = incident.diagnosis
    if diagnosis is None:
        return False
    text = " ".join((diagnosis.headline, diagnosis.hypothesis, *diagnosis.caveats)).lower()
    return "corruption" in text


def _needless(world: World, effect: SimulatedEffect) -> str | None:
    """What is wrong with an action, or None: its target must belong to a fault that was going on."""
    if effect.kind is ActionKind.NOTIFY_OWNER or effect.undo:
        return None
    for record in world.records:
        active = record.began_s is not None and record.began_s <= effect.at_s
        over = record.ended_s is not None and record.ended_s < effect.at_s - 2 * TICK_S
        if active and not over and effect.target in subjects_of(world, record):
            return None
    return f"{effect.kind} of {effect.target} at {effect.at_s - START_S:.0f} s touched what was healthy"
