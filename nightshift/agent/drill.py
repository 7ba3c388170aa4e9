"""Drills: a TEST incident that goes the whole way, so that a newcomer sees every channel work before a fault does.

A drill is real wherever people are: detectors find it in scripted telemetry, the rules diagnose it, the playbooks
plan, the gate asks, Slack and the console show it. Only its place is made up (a node, GPUs and a job whose names no
cluster has), and only a simulated cluster is acted on. An incident is a drill by what its findings say of
themselves; the lifecycle then never asks a configured actuator, and the guard does not count it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.construct import build_detectors
from nightshift.agent.incidents.advisor import Advisor
from nightshift.agent.settings import DetectorEntries
from nightshift.agent.store.incident import TEST_TITLE as TITLE
from nightshift.agent.store.incident import Incident
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import Frame, Instant, LogRecord, SeriesIndex, SourceStatus
from nightshift.collectors.history import History
from nightshift.collectors.kernel_log.lines import KernelLogParser
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.action import Action
from nightshift.controllers.actuators.simulated import SimulatedActuator
from nightshift.controllers.guard import Settings as GuardSettings
from nightshift.controllers.playbooks import plugins as playbooks
from nightshift.detectors.base import Finding, Severity, State

FACT = "drill_at_s"
"""In a finding's facts: it belongs to a drill whose telemetry ends at that time (Unix s)."""
MARK = "nightshift-drill"
NODE = Subject(SubjectKind.NODE, f"{MARK}-node")
GPUS = tuple(Subject(SubjectKind.GPU, f"GPU-{MARK}-{number}") for number in range(8))
JOB = Subject(SubjectKind.JOB, f"{MARK}/train")
PODS = tuple(Subject(SubjectKind.POD, f"{MARK}/train-{number}") for number in range(8))
# An hour before the fault, so that detectors which learn a baseline have one by the onset.
_SPAN_S, _STEP_S, _ONSET_S = 3600.0, 15.0, 900.0
_PCI = "0000:9b:00"
_BAD = 5
_SOURCE = Subject(SubjectKind.SOURCE, f"node_log https://{MARK}-node:9400")
_XID = f"NVRM: Xid (PCI:{_PCI}):"
SCRIPTS: dict[str, tuple[tuple[float, str], ...]] = {
    "ecc": (
        (600.0, f"{_XID} 48, pid=4112, name=python3, An uncorrectable double bit error (DBE) has been detected"),
        (600.2, f"{_XID} 94, pid=4112, name=python3, Contained: SM (0x1). RST: No, D-RST: No"),
        (
            600.9,
            f"{_XID} 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu",
        ),
    ),
    "gpu-lost": ((600.0, f"{_XID} 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),),
}
"""By name of the drill: kernel log lines, seconds after the onset."""


@dataclass(frozen=True)
class DrillScene:
    """The made-up place of a drill: what was seen of it, and what the detectors found."""

    history: History
    inventory: Inventory
    findings: tuple[Finding, ...]


FORGOTTEN_S = 3600.0
"""A drill that no one decides, and of which no command waits, ends by itself after so long."""


def end_forgotten(store: Store, gate: Gate, now_s: float) -> int:
    """Ends the drills that are open for too long; returns how many."""
    ended = 0
    for row in store.open_incidents():
        if not row.title.startswith(TITLE) or now_s - row.opened_s < FORGOTTEN_S:
            continue
        incident = store.incident(row.id)
        if not is_drill(incident):
            continue
        end_findings(store, incident)
        by = Person(MARK, frozenset({Role.ADMIN}), "daemon")
        ended += gate.close(row.id, by, "no decision: the drill is over").changed
    return ended


def end_findings(store: Store, incident: Incident) -> None:
    """Clears what a drill made up: nothing real ever does."""
    for stored_finding in incident.findings:
        if stored_finding.state is State.FIRING:
            store.update_finding(incident.id, replace(stored_finding.finding, state=State.CLEAR))


def is_drill(incident: Incident) -> bool:
    """Whether every finding of an incident says that it belongs to a drill."""
    return bool(incident.findings) and all(FACT in stored.finding.facts for stored in incident.findings)


def is_drills(action: Action) -> bool:
    """Whether an action's target is a drill's made-up place."""
    return action.target in (NODE, JOB, *GPUS, *PODS)


def stage(name: str, at_s: float) -> DrillScene:
    """The place and the telemetry of a drill that ends at `at_s`. The same arguments give the same stage. Raises
    Permanent where there is no such drill."""
    if name not in SCRIPTS:
        raise Permanent(f"there is no drill {name!r}: {', '.join(SCRIPTS)}")
    return _stage(name, at_s)


# Each stage of a drill's incident asks for the scene again, and detectors take seconds over an hour of it.
@lru_cache(maxsize=4)
def _stage(name: str, at_s: float) -> DrillScene:
    history, inventory = History(), Inventory(MARK)
    _place(inventory, at_s - 2 * _SPAN_S)
    found: dict[str, Finding] = {}
    watching = build_detectors(DetectorEntries())
    for tick in _ticks(name, at_s):
        history.add(tick)
        for detector in watching:
            for finding in detector.update(tick, inventory):
                if finding.state is State.FIRING:
                    found[finding.episode] = finding
    marked = tuple(
        replace(f, summary=f"TEST: {f.summary}", pages=True, facts={**f.facts, FACT: at_s, "drill": name})
        for f in found.values()
        if f.severity is not Severity.INFO
    )
    if not marked:
        raise Permanent(f"drill {name}: the detectors found nothing in it; that is a defect of Nightshift")
    return DrillScene(history, inventory, marked)


def _place(inventory: Inventory, since_s: float) -> None:
    for number, (gpu, pod) in enumerate(zip(GPUS, PODS, strict=True)):
        rank = Subject(SubjectKind.RANK, f"{JOB.name}#{number}")
        inventory.observe(gpu, NODE, since_s)
        inventory.observe(gpu, pod, since_s)
        inventory.observe(gpu, rank, since_s)
        inventory.observe(pod, NODE, since_s)
        inventory.observe(pod, JOB, since_s)
        inventory.observe(rank, pod, since_s)
        inventory.observe(rank, JOB, since_s)
        inventory.describe(gpu, index=str(number), model="TEST GPU")


def _ticks(name: str, at_s: float) -> Sequence[Tick]:
    """An hour of a node; from the onset on one GPU's corrected errors rise, then the script's lines come."""
    parser = KernelLogParser(NODE)
    parser.uuid_of[_PCI] = GPUS[_BAD].name
    onset_s = at_s - _ONSET_S
    index = SeriesIndex(SubjectKind.GPU, GPUS)
    metrics = ("gpu_memory_used_bytes", "gpu_power_w", "gpu_ecc_sbe_total")
    lines = [(onset_s + after_s, text) for after_s, text in SCRIPTS[name]]
    # Seeded: each stage of the incident makes the scene again, and has to see what was diagnosed.
    noise = np.random.default_rng(0)
    ticks = []
    for t_s in np.arange(at_s - _SPAN_S, at_s + 1e-6, _STEP_S):
        errors = np.zeros(len(GPUS))
        errors[_BAD] = max(0.0, t_s - onset_s) // 60.0 * 3.0
        values = np.stack([np.full(8, 6e10), 600.0 + noise.normal(0, 9, 8), errors], axis=1)
        frame = Frame(t_s, index, metrics, values, np.full((1, 3), t_s), np.zeros(len(GPUS), dtype=np.int64))
        records = [
            LogRecord(Instant(when_s, 0.0, NODE.name), _SOURCE.name, NODE, text, number)
            for number, (when_s, text) in enumerate(lines)
            if t_s - _STEP_S < when_s <= t_s
        ]
        events = [event for record in records if (event := parser.read(record)) is not None]
        status = SourceStatus(_SOURCE, t_s, True, covers=(NODE,))
        ticks.append(Tick(float(t_s), {SubjectKind.GPU: frame}, [], [], events, [status]))
    return ticks


class Drills:
    """Answers for drill incidents in place of the fleet's own parts. `world` is the simulated cluster's file."""

    def __init__(self, world: Path, now_s: Callable[[], float]) -> None:
        self._world = world
        self._now_s = now_s

    @cached_property
    def actuator(self) -> SimulatedActuator:
        """A cluster that is a file; made when the first drill needs it."""
        actuator = SimulatedActuator(self._world)
        for subject in (NODE, JOB, *GPUS, *PODS):
            actuator.cluster.add(subject)
        return actuator

    def advisor(self, incident: Incident) -> Advisor:
        """The rules and playbooks over the drill's own telemetry."""
        facts = incident.findings[0].finding.facts
        told = stage(str(facts["drill"]), float(facts[FACT]))
        return Advisor(
            history=told.history,
            inventory=told.inventory,
            playbooks=playbooks.build(),
            can=self.actuator.kinds(),
            now_s=self._now_s,
            guard_settings=GuardSettings(
                # One node is the whole made-up cluster: any lower share would refuse to touch it.
                cluster_fraction=1.0,
                rack_fraction=1.0,
                domain_fraction=1.0,
                least_nodes=0,
            ),
        )
