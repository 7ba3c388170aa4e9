"""Plays one case through the production pipeline, from the pages to the repaired cluster.

Collectors, merge, detectors, correlation, evidence, rules, mitigation and guard are production's. What stands in
here is the network (the collectors' own clients ask within the process) and the lifecycle's clockwork (its own
tests cover it): a plan is approved after half a minute, as by a person on duty, and an incident is resolved once
its findings have been clear for two minutes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from benchmarks.incidents.world import World
from examples.demo.serving import CADVISOR, DCGM, KERNEL_LOG
from nightshift.agent.correlation.correlate import DecisionVerb, KnownIncident, correlate
from nightshift.agent.incidents.advisor import Advisor
from nightshift.agent.incidents.renewal import called_for
from nightshift.agent.rca.grounding import ground
from nightshift.agent.rca.investigate import Investigator
from nightshift.agent.rca.model import Model, ModelSettings
from nightshift.agent.rca.redact import Redactor
from nightshift.agent.store.diagnosis import Diagnosis, with_reading
from nightshift.agent.store.incident import HistoryStep, Incident, IncidentState, StoredFinding
from nightshift.collectors.history import History
from nightshift.collectors.kernel_log.node_log import NodeLogCollector
from nightshift.collectors.merge import Merger
from nightshift.collectors.subject import Inventory, SubjectKind
from nightshift.collectors.telemetry.cadvisor import CadvisorCollector
from nightshift.collectors.telemetry.dcgm_exporter import DcgmExporterCollector
from nightshift.collectors.training.logs import TrainingLogsCollector
from nightshift.controllers.action import Action, ActionKind
from nightshift.controllers.guard import Commitment
from nightshift.controllers.playbooks.plugins import build
from nightshift.detectors.base import Finding, State
from nightshift.detectors.plugins import ALL

APPROVED_AFTER_S, QUIET_S, CONFIRM_S, RECENT_S = 30.0, 120.0, 900.0, 60.0
_S = IncidentState


@dataclass
class Entry:
    """An incident of the run."""

    incident: Incident
    known: KnownIncident
    planned_s: float | None = None
    acted: list[tuple[float, Action]] = field(default_factory=list)
    clear_since_s: float | None = None
    resolved_s: float | None = None
    plan: Action | None = None
    reason: str = ""


@dataclass(frozen=True)
class Played:
    """What became of a case: its incidents, the world at the end, and what it took."""

    entries: tuple[Entry, ...]
    world: World
    progressing: tuple[str, ...]
    cpu_s: float
    ungrounded: int
    claims: int
    dropped: int
    tokens: int


class Player:
    def __init__(self, case: Mapping[str, Any], model: ModelSettings | None = None) -> None:
        self.world = World(case, Path(tempfile.mkdtemp(prefix="incident-")))
        urls = {node: server.url for node, server in self.world.nodes.items()}
        logs = {url + KERNEL_LOG: node for node, url in urls.items()}
        self.inventory, self.history, self.merger = Inventory("bench"), History(), Merger()
        self.collectors = (
            DcgmExporterCollector(DcgmExporterCollector.Settings(urls=[u + DCGM for u in urls.values()])),
            CadvisorCollector(CadvisorCollector.Settings(urls=[u + CADVISOR for u in urls.values()])),
            NodeLogCollector(NodeLogCollector.Settings(urls=list(logs), nodes=logs)),
            TrainingLogsCollector(TrainingLogsCollector.Settings(directory=self.world.logs)),
        )
        for collector in self.collectors[:3]:
            mounts = {node.url: node for node in self.world.nodes.values()}
            collector._fetcher._client = httpx.AsyncClient(mounts=mounts, trust_env=False)
        self.detectors = [detector() for detector in ALL]
        self.entries: dict[str, Entry] = {}
        self.begun: list[Commitment] = []
        redact = Redactor()
        self.advisor = Advisor(
            self.history, self.inventory, build(), frozenset(ActionKind), lambda: self.world.now_s,
            begun=lambda: self.begun, redact=redact,
            investigate=Investigator(Model(model), redact) if model is not None and model.enabled else None,
        )  # fmt: skip
        self.tokens = 0

    def play(self, duration_s: float) -> Played:
        began = time.process_time()
        while self.world.elapsed_s < duration_s:
            self.world.tick()
            self._look()
            for entry in self.entries.values():
                self._drive(entry)
        for collector in self.collectors:
            collector.close()
        self.world.close()
        recent_s = self.world.now_s - RECENT_S  # a job that was restarted has made steps since, if fewer
        moving = tuple(n for n, j in self.world.jobs.items() if j.up and j.last_made_s > recent_s)
        told = [e.incident.diagnosis for e in self.entries.values() if e.incident.diagnosis]
        return Played(
            tuple(self.entries.values()),
            self.world,
            moving,
            time.process_time() - began,
            sum(len(ground(d.claims, d.evidence).fell) for d in told),
            sum(len(d.claims) for d in told),
            sum(d.dropped for d in told),
            self.tokens,
        )

    def _look(self) -> None:
        now_s = self.world.now_s
        batches = [collector.collect(now_s, self.inventory, 5.0) for collector in self.collectors]
        tick = self.merger.merge(batches, now_s, self.inventory)
        self.history.add(tick)
        found = [f for detector in self.detectors for f in detector.update(tick, self.inventory)]
        known = [e.known for e in self.entries.values()]
        for decision in correlate(found, known, self.inventory, now_s, events=self.history.events):
            if decision.verb is DecisionVerb.OPEN:
                name = f"INC-{len(self.entries) + 1}"
                known = KnownIncident(name, _S.OPEN, decision.findings, now_s)
                self.entries[name] = Entry(self._incident(known), known)
                self._advise(self.entries[name])
            elif decision.incident_id is not None:
                entry = self.entries[decision.incident_id]
                held = {f.episode: f for f in entry.known.findings}
                fresh = {f.fault for f in decision.findings} - {f.fault for f in held.values()}
                held |= {f.episode: _firing_form(f, held) for f in decision.findings}
                state = _S.OPEN if decision.verb is DecisionVerb.REOPEN else entry.known.state
                entry.known = replace(entry.known, findings=tuple(held.values()), state=state)
                entry.incident = replace(self._incident(entry.known), diagnosis=entry.incident.diagnosis)
                reopened = decision.verb is DecisionVerb.REOPEN
                entry.resolved_s = None if reopened else entry.resolved_s
                if (decision.news or fresh or reopened) and entry.resolved_s is None:
                    self._advise(entry)

    def _incident(self, known: KnownIncident) -> Incident:
        now_s = self.world.now_s
        past = self.entries.get(known.id)
        steps = tuple(HistoryStep(at_s, None, _S.CONFIRMING, "", "") for at_s, _ in (past.acted if past else []))
        return Incident(
            id=known.id, state=known.state, title="", severity=known.findings[0].severity,
            opened_s=known.opened_s, updated_s=now_s, entered_s=now_s,
            findings=tuple(StoredFinding(f, f.state, f.at.t_s, f.at.t_s) for f in known.findings), diagnosis=None,
            action=None, plan_reason="", attempt=len(past.acted) if past else 0,
            clear_since_s=now_s if all(f.state is State.CLEAR for f in known.findings) else None, history=steps,
            version=1,
        )  # fmt: skip

    def _advise(self, entry: Entry) -> None:
        """Diagnoses and plans. While an action is being confirmed, as the lifecycle does: only news that calls for
        another repair, and so for another action, is planned."""
        before = entry.incident.diagnosis
        diagnosis: Diagnosis = self.advisor.diagnose(entry.incident)
        if self.advisor.investigate is not None:
            reading, spent = self.advisor.read(replace(entry.incident, diagnosis=diagnosis))
            diagnosis = with_reading(diagnosis, reading)
            self.tokens += spent.tokens
        entry.incident = replace(entry.incident, diagnosis=diagnosis)
        confirming = next((a for t, a in reversed(entry.acted) if self.world.now_s - t < CONFIRM_S), None)
        if confirming is not None and before is not None and called_for(diagnosis) == called_for(before):
            return
        proposal = self.advisor.plan(entry.incident)
        wanted = proposal.action
        if confirming is not None and (
            wanted is None or (wanted.kind, wanted.target) == (confirming.kind, confirming.target)
        ):
            return
        changed = entry.plan is None or proposal.action is None or entry.plan.kind != proposal.action.kind
        entry.plan, entry.reason = proposal.action, proposal.reason
        entry.planned_s = (self.world.now_s if changed else entry.planned_s) if proposal.action else None

    def _drive(self, entry: Entry) -> None:
        now_s = self.world.now_s
        clear = all(f.state is State.CLEAR for f in entry.known.findings)
        entry.clear_since_s = (entry.clear_since_s or now_s) if clear else None
        if entry.clear_since_s is not None and now_s - entry.clear_since_s >= QUIET_S and entry.resolved_s is None:
            entry.resolved_s = now_s
            entry.planned_s = None
            entry.known = replace(entry.known, state=_S.RESOLVED, resolved_s=now_s)
        if entry.planned_s is None or entry.plan is None or now_s - entry.planned_s < APPROVED_AFTER_S:
            return
        if clear or not self.advisor.guard(entry.plan, self.begun).allowed:
            return
        if not self._holds(entry.plan):
            self._advise(entry)
            return
        self.world.act(entry.plan)
        act = Commitment(entry.plan, now_s, now_s)
        self.begun.append(act)
        entry.acted.append((now_s, entry.plan))
        entry.known = replace(entry.known, state=_S.CONFIRMING, acted_s=now_s, begun=(*entry.known.begun, act))
        entry.planned_s = None

    def _holds(self, plan: Action) -> bool:
        """Whether the plan's preconditions on running jobs still hold, as an actuator would read them."""
        return all(
            self.world.jobs[p.subject.name.rpartition("/")[2]].up == (p.expected == "true")
            for p in plan.preconditions
            if p.fact == "running" and p.subject.kind is SubjectKind.JOB
        )


def _firing_form(finding: Finding, held: Mapping[str, Finding]) -> Finding:
    """As the store keeps it: exhibits and facts of the newest firing form, the state of now."""
    old = held.get(finding.episode)
    if finding.state is State.FIRING or old is None:
        return finding
    return replace(old, state=finding.state, at=finding.at)


def play(case: Mapping[str, Any], model: ModelSettings | None = None) -> Played:
    return Player(case, model).play(float(case["duration_s"]))
