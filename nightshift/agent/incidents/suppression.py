"""Which incidents nobody is told of now, and why: silences, and maintenance. The one answer for every door.

What is suppressed is still found, recorded, diagnosed and listed, as suppressed. When what suppresses it ends and
the fault still stands, it is told. Maintenance keeps actions away too (`controllers.guard`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.clock import Clock
from nightshift.agent.incidents.automatic_repair import page_waits_until_s
from nightshift.agent.incidents.silence import IncidentSilence, Silences, findings_of, look_again, silenced
from nightshift.agent.store.incident import Incident, IncidentSummary
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.subject import Inventory, Subject
from nightshift.controllers.guard import MaintenanceWindow
from nightshift.detectors.alarms.lanes import Lane, widest

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

    def _places(self, subject: Subject) -> Sequence[Subject]:
        if self._inventory is None:
            return [subject]
        return [subject, *self._inventory.ancestors(subject, self._clock.now_s())]

    def _names(self, subject: Subject) -> Sequence[str]:
        # a window may name a rack, or the cluster: whatever the subject stands in
        cluster = [] if self._inventory is None else [self._inventory.cluster]
        return [str(item) for item in (*self._places(subject), *cluster)]
