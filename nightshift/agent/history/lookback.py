"""What Nightshift would have told you: the past of your Prometheus through the detectors, beside what you did.

Incidents are formed by the same rules as in the daemon (`agent.correlation.correlate`), in memory; nothing is
stored, and nothing but Prometheus is asked. Your own record of trouble is what it holds of the cluster: nodes that
were cordoned or not ready. Whether an alarm without such an event was false nobody can say from here: the count is
an upper bound.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nightshift.agent.correlation.correlate import CorrelationDecision, DecisionVerb, KnownIncident, correlate
from nightshift.agent.correlation.decisions import RELAPSE_S
from nightshift.agent.correlation.kinship import first_cause
from nightshift.agent.history.lookback_signals import Blind
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.budget import Budget, BudgetSettings
from nightshift.detectors.alarms.calibration import load
from nightshift.detectors.alarms.promise import promises
from nightshift.detectors.base import Detector, Finding, RateBasis, State
from nightshift.detectors.contract.evaluate import garwood

WEEK_S = 7 * 86400.0
LEAD_S = 24 * 3600.0
"""An alarm this long before a cordon warned of it."""
AFTER_S = 3600.0


@dataclass(frozen=True)
class OwnEvent:
    """What the cluster's own record says of a node: `kind` is "cordoned" or "not ready", from `at_s` (Unix s)."""

    kind: str
    node: str
    at_s: float


@dataclass(frozen=True)
class PastSighting:
    """One incident as the daemon would have opened it. `node` is empty where none is known."""

    opened_s: float
    cause: Finding
    findings: tuple[Finding, ...]
    node: str
    job: str
    pages: bool
    event: bool
    """Told by an event (an Xid, an OOM kill), which is no question of statistics."""
    gpus: int = 0
    """GPUs of the job, or of what is at fault where no job is known."""
    ended_s: float = math.nan
    """When every finding was clear (Unix s); NaN: not within the range."""

    def gpu_hours(self, end_s: float) -> float:
        """Hours of its GPUs from the onset to its end, or to the range's. What was lost is at most that."""
        until_s = end_s if math.isnan(self.ended_s) else self.ended_s
        return self.gpus * max(0.0, until_s - self.cause.since.t_s) / 3600.0


@dataclass(frozen=True)
class Warned:
    """One of your events and the earliest alarm on its node in the day before; `lead_s` < 0: only after it."""

    event: OwnEvent
    first: PastSighting | None
    lead_s: float


@dataclass(frozen=True)
class LookbackReport:
    """The answer. `unexplained`: pages by statistics that no event of yours explains; `per_week` with Garwood's
    95 % interval."""

    start_s: float
    end_s: float
    gpus: int
    incidents: tuple[PastSighting, ...]
    warned: tuple[Warned, ...]
    own_record: bool | None
    """Whether kube-state-metrics is there; None: it could not be read."""
    unexplained: tuple[PastSighting, ...]
    per_week: float
    interval: tuple[float, float]
    budget_per_week: float
    blind: tuple[Blind, ...]
    gaps: tuple[str, ...]
    waited: int = 0
    """Alarms that were tickets or in the digest."""
    read_days: float = math.nan
    """Days of which telemetry was read: what a rate rests on."""
    memory_signals: tuple[str, ...] = ()
    """Of each model of GPU: which signals of memory errors it has, and which of them are read."""
    unseen: tuple[OwnEvent, ...] = ()
    """Events of yours with no telemetry at all in the day before: nobody can say what would have been told."""

    @property
    def missed(self) -> tuple[OwnEvent, ...]:
        return tuple(w.event for w in self.warned if w.first is None and w.event not in self.unseen)


class LookbackStore:
    """Incidents as correlation leaves them, without a store."""

    def __init__(self) -> None:
        self._findings: dict[str, dict[str, Finding]] = {}
        self._opened: dict[str, float] = {}
        self._resolved: dict[str, float] = {}
        self._unjudged: set[str] = set()
        self._number = 0

    def take(self, findings: Sequence[Finding], inventory: Inventory, at_s: float) -> None:
        if not findings:
            return
        for decision in correlate(findings, self._known(at_s), inventory, at_s):
            self._apply(decision, at_s)

    def _known(self, at_s: float) -> list[KnownIncident]:
        return [
            KnownIncident(
                key,
                IncidentState.RESOLVED if key in self._resolved else IncidentState.OPEN,
                tuple(found.values()),
                self._opened[key],
                self._resolved.get(key),
            )
            for key, found in self._findings.items()
            if at_s - self._resolved.get(key, at_s) <= RELAPSE_S
        ]

    def _apply(self, decision: CorrelationDecision, at_s: float) -> None:
        if decision.verb is DecisionVerb.IGNORE:
            return
        key = decision.incident_id
        if key is None:
            self._number += 1
            key = f"L-{self._number}"
            self._findings[key], self._opened[key] = {}, at_s
        for finding in decision.findings:
            # a page is not taken back: what was sent once is what a person would have seen
            known = self._findings[key].get(finding.episode)
            kept = replace(finding, pages=finding.pages or (known is not None and known.pages))
            if known is not None and finding.state is not State.FIRING:
                kept = replace(kept, summary=known.summary)  # what was wrong, not how it ended
            self._findings[key][finding.episode] = kept
        if all(f.state is State.CLEAR for f in self._findings[key].values()):
            self._resolved[key] = at_s
            self._unjudged.add(key)
        else:
            self._resolved.pop(key, None)

    def went_on(self, at_s: float) -> list[tuple[Finding, ...]]:
        """Findings of incidents that cleared too long ago for any recorded event to explain them; each once."""
        over = [key for key in self._unjudged if at_s - self._resolved.get(key, at_s) > LEAD_S]
        self._unjudged.difference_update(over)
        return [tuple(self._findings[key].values()) for key in over]

    def incidents(self) -> list[tuple[float, tuple[Finding, ...], float]]:
        """(opened at, findings, cleared at or NaN), oldest first."""
        return [
            (self._opened[key], tuple(found.values()), self._resolved.get(key, math.nan))
            for key, found in self._findings.items()
        ]


def look_back(
    ticks: Iterable[Tick],
    inventory: Inventory,
    detectors: Sequence[Detector],
    budget: BudgetSettings,
    progress: Callable[[float], None] = lambda _: None,
    own: Sequence[OwnEvent] = (),
) -> tuple[list[PastSighting], int, int, list[float]]:
    """Every incident of the ticks, oldest first, the most GPUs that were seen at once, how many alarms did not
    page, and the times (Unix s) of looks that read any telemetry. `own` events confirm the alarms before them, as a
    person does; what clears and is not confirmed within a day was false."""
    memory = LookbackStore()
    tails = load(Path(budget.calibration)) if budget.calibration else {}
    accounts = Budget(budget, promises(detectors, tails))
    events = {d.name for d in detectors if d.stated.basis is RateBasis.EVENT}
    read_s: list[float] = []
    gpus, coming = 0, sorted(own, key=lambda event: -event.at_s)
    for tick in ticks:
        progress(tick.at_s)
        # sorted from the last one on, so that the next is popped from the end
        while coming and coming[-1].at_s <= tick.at_s:
            accounts.confirm(_confirmed_by(coming.pop(), memory, inventory))
        for findings in memory.went_on(tick.at_s):
            if not any(map(accounts.is_fact, findings)):
                accounts.refute(finding.episode for finding in findings)
        if any(np.isfinite(frame.values).any() for frame in tick.frames.values()):
            read_s.append(tick.at_s)
        frame = tick.frames.get(SubjectKind.GPU)
        # at once, not in all: a replaced board is no further GPU
        gpus = max(gpus, len(frame.index) if frame is not None else 0)
        found = [finding for detector in detectors for finding in detector.update(tick, inventory)]
        memory.take(accounts.weigh(found, tick, inventory), inventory, tick.at_s)
    waited = sum(line.tickets for line in accounts.lines())
    seen = [_seen(*incident, inventory, events) for incident in memory.incidents()]
    return seen, gpus, waited, read_s


def _confirmed_by(event: OwnEvent, memory: LookbackStore, inventory: Inventory) -> list[str]:
    """The episodes of incidents on the event's node in the day before it."""
    return [
        finding.episode
        for opened_s, findings, _ in memory.incidents()
        if event.at_s - LEAD_S <= opened_s
        and same_node(_above(findings[0].subject, SubjectKind.NODE, inventory, findings[0]), event.node)
        for finding in findings
    ]


def _seen(
    opened_s: float, findings: tuple[Finding, ...], ended_s: float, inventory: Inventory, events: set[str]
) -> PastSighting:
    cause = first_cause(findings)
    job = _above(cause.subject, SubjectKind.JOB, inventory, cause)
    held = inventory.gpus(Subject(SubjectKind.JOB, job) if job else cause.subject, opened_s)
    return PastSighting(
        opened_s,
        cause,
        findings,
        _above(cause.subject, SubjectKind.NODE, inventory, cause),
        job,
        any(f.pages for f in findings),
        any(f.detector in events for f in findings),
        max(len(held), int(cause.subject.kind is SubjectKind.GPU)),
        ended_s,
    )


def _above(subject: Subject, kind: SubjectKind, inventory: Inventory, finding: Finding) -> str:
    for at_s in (finding.since.t_s, finding.at.t_s):
        found = inventory.above(subject, kind, at_s)
        if found is None:
            # a job or rank has no node above it, its GPUs have
            held = [inventory.above(gpu, kind, at_s) for gpu in inventory.gpus(subject, at_s)]
            found = next((h for h in held if h is not None), None)
        if found is not None:
            return found.name
    return ""


def report(
    incidents: Sequence[PastSighting],
    own: Sequence[OwnEvent],
    own_record: bool | None,
    span_s: tuple[float, float],
    gpus: int,
    budget: BudgetSettings,
    blind: Sequence[Blind],
    gaps: Sequence[str],
    waited: int = 0,
    watched_s: float | None = None,
    read_s: Sequence[float] | None = None,
    memory_signals: Sequence[str] = (),
) -> LookbackReport:
    """Sets what was seen beside what you did. watched_s: seconds of the span of which telemetry was read, at the
    times read_s (ascending); all of it where not given. A rate over no time is NaN."""
    warned = [_warned(event, incidents) for event in own]
    explained = {
        id(seen)
        for seen in incidents
        for event in own
        if same_node(seen.node, event.node) and -LEAD_S <= seen.opened_s - event.at_s <= AFTER_S
    }
    unexplained = tuple(s for s in incidents if s.pages and not s.event and id(s) not in explained)
    weeks = (span_s[1] - span_s[0] if watched_s is None else watched_s) / WEEK_S
    unseen = tuple(
        event
        for event in own
        if read_s is not None and bisect_left(read_s, event.at_s - LEAD_S) == bisect_left(read_s, event.at_s)
    )
    return LookbackReport(
        start_s=span_s[0],
        end_s=span_s[1],
        gpus=gpus,
        incidents=tuple(incidents),
        warned=tuple(warned),
        own_record=own_record,
        unexplained=unexplained,
        per_week=len(unexplained) / weeks if weeks > 0 else math.nan,
        # exact for a Poisson count, even of zero: a quiet month still has an upper bound
        interval=garwood(len(unexplained), weeks),
        budget_per_week=budget.false_pages_per_week,
        blind=tuple(blind),
        gaps=tuple(gaps),
        waited=waited,
        read_days=7.0 * weeks,
        unseen=unseen,
        memory_signals=tuple(memory_signals),
    )


def models(inventory: Inventory) -> list[str]:
    """The models of all GPUs that were seen, by name."""
    gpus = {m.child for m in inventory.memberships() if m.child.kind is SubjectKind.GPU}
    return sorted({inventory.fact(gpu, "model") or "" for gpu in gpus} - {""})


def _warned(event: OwnEvent, incidents: Sequence[PastSighting]) -> Warned:
    near = [
        seen
        for seen in incidents
        if same_node(seen.node, event.node) and -AFTER_S <= event.at_s - seen.opened_s <= LEAD_S
    ]
    first = min(near, key=lambda s: s.opened_s) if near else None
    return Warned(event, first, event.at_s - first.opened_s if first else math.nan)


def same_node(node: str, other: str) -> bool:
    """Exporters tell a host's short or full name, the API server its own."""
    # two unknown nodes are not the same node
    return bool(node) and bool(other) and node.split(".", maxsplit=1)[0] == other.split(".", maxsplit=1)[0]


def own_events(
    kind: str, nodes: Sequence[str], t_s: Sequence[float], above: Sequence[Sequence[float]]
) -> list[OwnEvent]:
    """The moments at which a state was set: above[time][node] > 0; NaN is not known, and what is not known between
    two times at which it was set did not end it. What was set when it was first known began before."""
    found = []
    for column, node in enumerate(nodes):
        known = math.nan
        for row in range(len(t_s)):
            now = float(above[row][column])
            # NaN <= 0 is false: what was set when it was first known is no event of the range
            if now > 0 and known <= 0:
                found.append(OwnEvent(kind, node, float(t_s[row])))
            known = known if math.isnan(now) else now
    return sorted(found, key=lambda e: (e.at_s, e.node))
