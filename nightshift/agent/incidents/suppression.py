"""Which incidents nobody is told of now, and why: silences, and maintenance. The one answer for every door.

What is suppressed is still found, recorded, diagnosed and listed, as suppressed. When what suppresses it ends and
the fault still stands, it is told. Maintenance keeps actions away too (`controllers.guard`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.policy import ApprovalSettings, automatic_kinds, rule_for
from nightshift.agent.clock import Clock
from nightshift.agent.correlation.kinship import xids_of
from nightshift.agent.incidents.silence import IncidentSilence, Silences, findings_of, look_again, silenced
from nightshift.agent.store.incident import POLICY, Cause, HistoryStep, Incident, IncidentState, IncidentSummary
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.subject import Inventory, Subject
from nightshift.controllers.action import ActionKind, ApprovalRule, traits_of
from nightshift.controllers.guard import MaintenanceWindow
from nightshift.detectors.alarms.lanes import Lane, lane_of, widest
from nightshift.detectors.base import Fault, Finding, State

# A page waits for an automatic repair that makes it needless. Only a repair counts that can end every alarm which
# would page: what only contains a fault leaves it to people. Decided purely from what is stored, so a process that
# starts again decides the same.
PLAN_S, REPAIR_S = 60.0, 540.0
"""From the alarm on: how long a page waits for a plan that policy approves, and for its fault to be gone (s). What
pages after all does so within ten minutes."""
CLEAR_S = 300.0
"""How long an incident that is clear may take to be confirmed."""
_S = IncidentState
_PLANNED = frozenset({_S.OPEN, _S.DIAGNOSED, _S.AWAITING_APPROVAL})
_BEGUN = frozenset({_S.APPROVED, _S.ACTING, _S.CONFIRMING})

Places = Callable[[Subject, float], Collection[Subject]]
"""A subject, and what it is part of at a time (Unix s)."""


def page_waits_until_s(
    incident: Incident, policy: ApprovalSettings, halt: bool, surroundings: Places, now_s: float
) -> float | None:
    """Until when (Unix s) an incident's page waits; None where it is due: no automatic repair is planned or under
    way, or it failed, was refused, is late, or does not repair everything that pages."""
    turn = _turn(incident)
    if halt or any(step.after not in _PLANNED | _BEGUN for step in turn):
        return None
    begun = incident.state in _BEGUN
    if not _is_automatic(incident, policy, turn):
        return None
    kinds = automatic_kinds(policy) if incident.action is None else {incident.action.kind}
    if not any(_ends_all(kind, incident, turn, surroundings, now_s) for kind in kinds):
        return None
    until_s = turn[0].at_s + (REPAIR_S if begun else PLAN_S)
    if incident.clear_since_s is not None:
        until_s = max(until_s, incident.clear_since_s + CLEAR_S)
    return until_s if now_s < until_s else None


def _turn(incident: Incident) -> list[HistoryStep]:
    """The history since the fault came, or came again; its first step is that."""
    later = list(takewhile(lambda step: step.cause != Cause.RELAPSED, reversed(incident.history)))[::-1]
    first = incident.history[: len(incident.history) - len(later)][-1:]
    return [*first, *later]


def _is_automatic(incident: Incident, policy: ApprovalSettings, turn: list[HistoryStep]) -> bool:
    """Whether no person decides on the repair: one that has begun was approved by the policy, else it may be."""
    if incident.state in _BEGUN:
        approvals = [step.by for step in turn if step.cause == Cause.APPROVED]
        return bool(approvals) and approvals[-1] == POLICY
    return incident.action is None or rule_for(incident.action, policy) is ApprovalRule.AUTOMATIC


def _ends_all(
    kind: ActionKind, incident: Incident, turn: list[HistoryStep], surroundings: Places, now_s: float
) -> bool:
    """Whether an action of this kind can end every alarm that pages: it repairs it where it acts, or caused it.

    What a restart stopped is part of no job until it is back: an older alarm counts where it was before the action.
    """
    action = incident.action
    acted_s = next((step.at_s for step in turn if step.cause == Cause.INTENT_STORED), None)
    alarms = [s.finding for s in incident.findings if s.state is not State.CLEAR]
    alarms = [finding for finding in alarms if lane_of(finding) is Lane.PAGE]
    moments = [now_s if acted_s is None or f.since.t_s >= acted_s else acted_s for f in alarms]
    here = [
        f
        for f, at_s in zip(alarms, moments, strict=True)
        if action is None or not action.named.isdisjoint(surroundings(f.subject, at_s))
    ]
    ends = all(_repairs(kind, f) or (acted_s is not None and _caused(kind, f, acted_s)) for f in alarms)
    return ends and len(here) == len(alarms)


def _repairs(kind: ActionKind, finding: Finding) -> bool:
    traits = traits_of(kind)
    return finding.fault in traits.repairs and not traits.contains


def _caused(kind: ActionKind, finding: Finding, acted_s: float) -> bool:
    """Whether an action that began at `acted_s` leaves such an alarm behind: a process that it stopped."""
    codes = xids_of(finding)
    return finding.since.t_s >= acted_s and any(
        finding.fault is cause.fault and (finding.fault is not Fault.XID or (bool(codes) and codes <= cause.codes))
        for cause in traits_of(kind).causes
    )


REPAIR_POLL_S = 5.0
"""How often a page that waits for a repair is looked at: a stop of all actions changes no incident, but ends it."""


@dataclass(frozen=True, slots=True)
class Suppression:
    """Nobody is told before `until_s` (Unix s)."""

    until_s: float
    by: str
    why: str

    def sentence(self) -> str:
        return f"{self.why} ({self.by})" if self.why else self.by


@dataclass(frozen=True)
class ActiveSuppressions:
    """What suppresses at one time. Decides purely."""

    silences: Sequence[IncidentSilence]
    windows: Sequence[tuple[MaintenanceWindow, float]]
    """Each with the time at which it ends."""
    names: Callable[[Subject], Sequence[str]]
    """What a subject is called, and what it stands in."""
    repair: Callable[[Incident], float | None] = lambda incident: None
    """Until when (Unix s) an incident's page waits for an automatic repair; None where it is due."""

    def lane_of(self, incident: Incident) -> tuple[Lane, float | None]:
        """How people are notified of it now; and until when its page waits for a repair, None where it does not."""
        lane = widest(stored.finding for stored in incident.findings)
        until_s = self.repair(incident) if lane is Lane.PAGE else None
        return (lane, None) if until_s is None else (Lane.TICKET, until_s)

    def of(self, incident: Incident | IncidentSummary) -> Suppression | None:
        """What covers *all* of an incident's findings for longest; None where one of them is not covered: planned
        work on one node does not hide an incident that reaches beyond it."""
        found = []
        silence = silenced(incident, self.silences)
        if silence is not None:
            found.append(Suppression(silence.until_s, silence.by, f"silence {silence.number}: {silence.reason}"))
        subjects = {finding.subject for finding in findings_of(incident)} if self.windows else set()
        for window, until_s in self.windows:
            if subjects and all(window.covers(self.names(subject)) for subject in subjects):
                found.append(Suppression(until_s, window.owner, f"maintenance: {window.reason}"))
        return max(found, key=lambda item: item.until_s, default=None)


class Suppressor:
    """Reads what stands. `windows` gives the present settings: a reload changes them. Without a `gate` no page
    waits for a repair."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        windows: Callable[[], Sequence[MaintenanceWindow]] = lambda: (),
        inventory: Inventory | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._windows = windows
        self._inventory = inventory
        self._gate = gate
        self.silences = Silences(store, clock)

    def standing(self) -> ActiveSuppressions:
        """What suppresses now."""
        now_s = self._clock.now_s()
        held = [(window, window.holds_until(now_s)) for window in self._windows()]
        windows = [(window, until_s) for window, until_s in held if until_s is not None]
        return ActiveSuppressions(self.silences.standing(), windows, self._names, self._repair(now_s))

    def _repair(self, now_s: float) -> Callable[[Incident], float | None]:
        if (gate := self._gate) is None:
            return lambda incident: None
        halted = gate.halted().halted
        return lambda incident: page_waits_until_s(incident, gate.policy, halted, self._places, now_s)

    def look_again(self) -> None:
        """After a change of the windows: every door looks again at what it holds back."""
        with self._store.database.write() as connection:
            look_again(connection, self._clock.now_s())

    def _places(self, subject: Subject, at_s: float) -> Sequence[Subject]:
        return [subject] if self._inventory is None else list(self._inventory.ancestors(subject, at_s))

    def _names(self, subject: Subject) -> Sequence[str]:
        # a window may name a rack, or the cluster: whatever the subject stands in
        cluster = [] if self._inventory is None else [self._inventory.cluster]
        return [str(item) for item in (*self._places(subject, self._clock.now_s()), *cluster)]
