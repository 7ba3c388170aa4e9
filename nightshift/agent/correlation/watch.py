"""One look at the fleet: collect, merge, remember, detect, correlate, store.

Nothing that was found is lost when a look is cut short. What is to be stored is kept in the database together with
the detectors' states before it is applied, and is taken up again by the next look, or by the next process: findings
that were applied twice change nothing, because correlation sees them as known.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import structlog

from nightshift.agent.correlation.collection import Collection
from nightshift.agent.correlation.correlate import CorrelationDecision, DecisionVerb, KnownIncident, correlate
from nightshift.agent.correlation.decisions import RELAPSE_S, AlarmVerdict
from nightshift.agent.correlation.detection import Detected, Detection
from nightshift.agent.correlation.outside_reports import with_alerts
from nightshift.agent.metrics import Metrics
from nightshift.agent.store.archive import Archive, number_of
from nightshift.agent.store.incident import (
    REMARKS,
    Cause,
    HistoryStep,
    Incident,
    IncidentState,
    IncidentSummary,
    entered_s,
    findings_of,
)
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.intents import begun
from nightshift.agent.store.records import dump, load
from nightshift.agent.store.reports import Reports, is_report
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.history import History
from nightshift.collectors.merge import Merger
from nightshift.collectors.subject import CABLE, PEER, Inventory, Membership, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.guard import Commitment
from nightshift.detectors.base import Finding, State

# A bound on reading after a start alone: what was resolved longer ago than `RELAPSE_S` is dropped at once.
MOST_RESOLVED = 500


class KnownIncidents:
    """Open incidents, and those resolved within `keep_s`, as the correlator takes them. One query per call, and two
    more per incident whose state, findings or sights have changed since the last."""

    def __init__(self, store: Archive, keep_s: float) -> None:
        self._store = store
        self._keep_s = keep_s
        # an incident is read whole, with its findings: too slow for a thousand open ones at every look
        self._cache: dict[str, tuple[tuple[object, ...], KnownIncident]] | None = None

    def read(self, now_s: float) -> list[KnownIncident]:
        """As of `now_s` (Unix s), oldest first."""
        if self._cache is None:
            recent = self._store.incidents([IncidentState.RESOLVED], limit=MOST_RESOLVED)
            self._cache = {s.id: self._load(s) for s in recent if now_s - s.updated_s <= self._keep_s}
        summaries = {summary.id: summary for summary in self._store.open_incidents()}
        for incident_id, summary in summaries.items():
            if incident_id not in self._cache or self._cache[incident_id][0] != _stamp(summary):
                self._cache[incident_id] = self._load(summary)
        for incident_id, (stamp, cached) in list(self._cache.items()):
            # open at the last look, but not now: read once more, for when it was resolved
            if incident_id in summaries:
                continue
            known = cached if cached.resolved else self._known(incident_id)
            self._cache[incident_id] = (stamp, known)
            if known.resolved_s is None or now_s - known.resolved_s > self._keep_s:
                del self._cache[incident_id]
        return sorted((known for _, known in self._cache.values()), key=lambda k: (k.opened_s, k.id))

    def _load(self, summary: IncidentSummary) -> tuple[tuple[object, ...], KnownIncident]:
        return _stamp(summary), self._known(summary.id)

    def _known(self, incident_id: str) -> KnownIncident:
        incident = self._store.incident(incident_id)
        with self._store.database.read() as connection:
            return known_of(incident, begun(connection, number_of(incident.id)))


def known_of(incident: Incident, acts: Iterable[Commitment] = ()) -> KnownIncident:
    """An incident as the correlator takes it, with the actions of ours that were begun on it."""
    resolved = entered_s(incident.history, IncidentState.RESOLVED)
    acted = entered_s(incident.history, IncidentState.ACTING)
    return KnownIncident(
        id=incident.id,
        state=incident.state,
        findings=tuple(findings_of(incident)),
        opened_s=incident.opened_s,
        resolved_s=resolved[-1] if resolved and incident.state is IncidentState.RESOLVED else None,
        acted_s=acted[-1] if acted else None,
        begun=tuple(acts),
        verdict=verdict_of(incident.history),
    )


_ATTENDED = frozenset({Cause.ACKNOWLEDGED, Cause.REJECTED, Cause.CLOSED_BY_PERSON})


def verdict_of(history: Sequence[HistoryStep]) -> AlarmVerdict:
    """What an incident's history says of its alarms. Silence of people says nothing."""
    causes = [step.cause for step in history]
    if Cause.NOT_A_FAULT in causes:
        return AlarmVerdict.FALSE
    if any(step.after is IncidentState.ACTING for step in history):
        return AlarmVerdict.TRUE
    moves = [cause for cause in causes if cause not in REMARKS]
    over = moves[-1:] == [Cause.CLEARED_BY_ITSELF]
    return AlarmVerdict.WENT_ON if over and _ATTENDED.isdisjoint(causes) else AlarmVerdict.OPEN


def _stamp(summary: IncidentSummary) -> tuple[object, ...]:
    return (summary.version, summary.updated_s, *((f.episode, f.state, f.last_seen_s) for f in summary.findings))


HOUSEKEEPING_S = 60.0
STATE_BYTES_PER_S, STATE_BYTES_A_LOOK = 5_000.0, 32 * 2**20
"""Of one detector's state over time, so that a GPU costs the same in all clusters past some thousand GPUs; of all
in one look, though a larger one is written whole."""
FORGET_AT_MOST_S = 600.0
"""A crash costs a detector at most so much of what it learned."""
DAY_S = 86_400.0
REMEMBER_RELATIONS_S = 7 * DAY_S
_OWED, _LINKS = "watch/owed", "watch/links"


@dataclass(frozen=True)
class Look:
    """What one look at the fleet brought."""

    tick: Tick
    detected: Detected
    decisions: tuple[CorrelationDecision, ...] = ()
    problem: str = ""
    """Why the decisions were not stored, where they were not; the next look takes them up."""


class Watch:
    """Looks at the fleet, one look after another, from one thread. `store` None: nothing is stored (replay)."""

    def __init__(
        self,
        collection: Collection,
        detection: Detection,
        store: Store,
        history: History,
        inventory: Inventory,
        metrics: Metrics,
        own: Callable[[float], Iterable[Finding]] = lambda now_s: (),
    ) -> None:
        """`own`: what Nightshift finds about itself at a time."""
        self._own = own
        self.collection = collection
        self.detection = detection
        self.history = history
        self.inventory = inventory
        self._store = store
        self._metrics = metrics
        self._merger = Merger()
        self._reports = Reports(store.database)
        self._known = KnownIncidents(store, RELAPSE_S)
        self._owed: dict[tuple[str, State], Finding] = {}
        self._links: dict[str, tuple[float, dict[str, str]]] = {}
        """By port the day on which it was last seen, and what is known of its link."""
        self._unstored: list[Membership] = []
        self._states: dict[str, tuple[float, int]] = {}
        """Detector → when its state is due to be written again (Unix s), and its size when it last was (bytes)."""
        self._tidied_s: float | None = None
        self._log = structlog.get_logger("watch")

    def resume(self, now_s: float) -> None:
        """Takes up where the last process, or the replica that led before, left off."""
        # a fault that is told of after a restart is placed by who held the GPU at its onset
        self.inventory.load(self._store.load_memberships(now_s - REMEMBER_RELATIONS_S))
        self._unstored = []
        self.inventory.changes()
        links = self._store.recall(_LINKS)
        for name, (day_s, facts) in (json.loads(links[1]) if links is not None else {}).items():
            if day_s > now_s - REMEMBER_RELATIONS_S:
                self._links[name] = day_s, facts
                self.inventory.describe(Subject.parse(name), **facts)
        self.detection.restore(self._store.recall)
        owed = self._store.recall(_OWED)
        for text in json.loads(owed[1]) if owed is not None else []:
            finding = load(Finding, text)
            self._owed[finding.episode, finding.state] = finding
        self._known = KnownIncidents(self._store, RELAPSE_S)
        self._tidied_s = now_s

    def look(self, at_s: float) -> Look:
        """One look at `at_s` (Unix s). A store that is away or full costs a delay, never a finding."""
        began_s = time.perf_counter()
        batches = self.collection.collect(at_s, self.inventory)
        tick = self._merger.merge(batches, at_s, self.inventory)
        self.history.add(tick)
        detected = self.detection.detect(tick, self.inventory)
        reports: list[Finding] = []
        # by state, too: an alarm that began and ended while the store was away is owed twice, as both
        self._owed.update(((finding.episode, finding.state), finding) for finding in detected.findings)
        decisions: list[CorrelationDecision] = []
        problem = ""
        try:
            reports = self._reports.waiting()
            for finding in with_alerts(reports, tick.alerts):
                self._owed[finding.episode, finding.state] = finding
            self._owed.update(((finding.episode, finding.state), finding) for finding in self._own(at_s))
            decisions = self._decide(at_s)
            if reports:
                self._reports.remove(reports)
            self._tidy(at_s)
        except (Temporary, Permanent) as error:
            problem = str(error)
            self._metrics.stage_failures.labels("store").inc()
            self._log.error("findings write failed", error=problem, findings=len(self._owed))
        self._metrics.observe_tick(tick)
        self._metrics.tick_seconds.observe(time.perf_counter() - began_s)
        return Look(tick, detected, tuple(decisions), problem)

    def keep(self) -> None:
        """Stores what a restart needs: detectors' states, findings on their way, relations."""
        self._store.keep(self.detection.snapshots() | self._owed_record(self._owed.values()) | self._new_links())
        self._keep_relations()

    def _new_links(self) -> dict[str, bytes]:
        """What is known of links, where that is news: a switch that is dead at the next start is on no page."""
        frame, before = self.history.latest(SubjectKind.NIC), dict(self._links)
        for port in frame.index.subjects if frame is not None else ():
            facts = {name: text for name in (PEER, CABLE) if (text := self.inventory.fact(port, name))}
            if facts and frame is not None:
                self._links[str(port)] = frame.at_s // DAY_S * DAY_S, facts
        return {_LINKS: json.dumps(self._links).encode()} if self._links != before else {}

    def _decide(self, at_s: float) -> list[CorrelationDecision]:
        """Correlates and stores what is owed: alarms before their ends, so that one which began and ended while the
        store was away is opened and cleared, not left out."""
        fires = [finding for finding in self._owed.values() if finding.state is State.FIRING]
        ends = [finding for finding in self._owed.values() if finding.state is not State.FIRING]
        decisions = [decision for part in (fires, ends) if part for decision in self._decide_on(part, at_s)]
        self._owed.clear()
        return decisions

    def _decide_on(self, findings: Sequence[Finding], at_s: float) -> list[CorrelationDecision]:
        decisions = correlate(findings, self._known.read(at_s), self.inventory, at_s, self.history.events)
        changes = [decision for decision in decisions if decision.verb is not DecisionVerb.IGNORE]
        if changes:
            # detectors' states and findings in one write: a crash after it repeats the findings, and one before
            # it lets the detectors find them again
            involved = [finding for decision in changes for finding in decision.findings]
            states = self.detection.snapshots({finding.detector for finding in involved})
            self._store.keep(states | self._owed_record(involved))
            self._apply(changes)
            self._store.keep(self._owed_record(()))
        return decisions

    def _apply(self, decisions: Sequence[CorrelationDecision]) -> None:
        for (verb, known_id), group in groupby(decisions, key=lambda one: (one.verb, one.incident_id)):
            if verb is DecisionVerb.UPDATE:
                assert known_id is not None, f"{verb} names an incident"
                self._store.update_findings(
                    known_id, [(f, one.news, one.louder) for one in group for f in one.findings]
                )
                continue
            for decision in group:
                if verb is DecisionVerb.OPEN:
                    opened = self._store.open_incident(title_of(decision), decision.findings, note=decision.reason)
                    self._log.info("incident opened", incident=opened, why=decision.reason)
                    continue
                assert known_id is not None, f"{verb} names an incident"
                for finding in decision.findings:
                    self._store.attach(known_id, finding, note=decision.reason)

    def _tidy(self, at_s: float) -> None:
        # 0 <=: a clock that was set back must not stop housekeeping until it has caught up
        if self._tidied_s is not None and 0 <= at_s - self._tidied_s < HOUSEKEEPING_S:
            return
        self._tidied_s = at_s
        self.inventory.prune(at_s - REMEMBER_RELATIONS_S)
        self._store.prune_memberships(at_s - REMEMBER_RELATIONS_S)
        self._judge(at_s)
        self._keep_some(at_s)

    def _keep_some(self, at_s: float) -> None:
        """Stores what a restart needs; large states less often than once a minute, and not all in one look: those
        of 100,000 GPUs are half a gigabyte. The state of a detector that found something is stored with that."""
        states: dict[str, bytes] = {}
        written = 0
        never = (0.0, STATE_BYTES_A_LOOK)
        for name in sorted((d.name for d in self.detection.detectors), key=lambda n: self._states.get(n, never)):
            due_s, size = self._states.get(name, never)
            # both bounds: a clock that was set back must not put a state off
            if at_s < due_s <= at_s + FORGET_AT_MOST_S:
                continue
            # the small ones never wait for a large one's turn
            if written >= STATE_BYTES_A_LOOK and size > STATE_BYTES_A_LOOK // 100:
                continue
            fresh = self.detection.snapshots({name})
            size = sum(map(len, fresh.values()))
            lasts_s = min(max(HOUSEKEEPING_S, size / STATE_BYTES_PER_S), FORGET_AT_MOST_S)
            self._states[name] = at_s + lasts_s, size
            states |= fresh
            written += size
        self._store.keep(states | self._owed_record(self._owed.values()) | self._new_links())
        self._keep_relations()

    def _judge(self, at_s: float) -> None:
        """Has the budget learn which alarms were true and which false."""
        budget = self.detection.budget
        for known in self._known.read(at_s):
            episodes = [finding.episode for finding in known.findings]
            if known.verdict is AlarmVerdict.TRUE:
                budget.confirm(episodes)
            elif known.verdict is AlarmVerdict.FALSE or (
                known.verdict is AlarmVerdict.WENT_ON and not any(map(budget.is_fact, known.findings))
            ):
                budget.refute(episodes)

    def confirm(self, incidents: Iterable[Incident]) -> None:
        """The same of incidents on which a person did by hand what was proposed."""
        for incident in incidents:
            self.detection.budget.confirm(finding.episode for finding in findings_of(incident))

    def _keep_relations(self) -> None:
        self._unstored += self.inventory.changes()
        self._store.save_memberships(self._unstored)
        self._unstored = []

    def _owed_record(self, findings: Iterable[Finding]) -> dict[str, bytes]:
        return {_OWED: json.dumps([dump(finding) for finding in findings]).encode()}


def title_of(decision: CorrelationDecision) -> str:
    """What an incident is called until its diagnosis has a headline: the first cause's fault and place."""
    cause = decision.cause
    if is_report(cause):
        return cause.summary[:200]
    words = str(cause.fault).replace("_", " ").capitalize()
    return f"{words} on {cause.subject.name}"[:200]
