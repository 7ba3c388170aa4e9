"""Which incidents nobody is told of now, and why: silences, and maintenance. The one answer for every door.

What is suppressed is still found, recorded, diagnosed and listed, as suppressed. When what suppresses it ends and
the fault still stands, it is told. Maintenance keeps actions away too (`controllers.guard`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nightshift.agent.clock import Clock
from nightshift.agent.incidents.silence import IncidentSilence, Silences, findings_of, look_again, silenced
from nightshift.agent.store.incident import Incident, IncidentSummary
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.subject import Inventory, Subject
from nightshift.controllers.guard import MaintenanceWindow


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
    """Reads what stands. `windows` gives the present settings: a reload changes them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        windows: Callable[[], Sequence[MaintenanceWindow]] = lambda: (),
        inventory: Inventory | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._windows = windows
        self._inventory = inventory
        self.silences = Silences(store, clock)

    def standing(self) -> ActiveSuppressions:
        """What suppresses now."""
        now_s = self._clock.now_s()
        held = [(window, window.holds_until(now_s)) for window in self._windows()]
        windows = [(window, until_s) for window, until_s in held if until_s is not None]
        return ActiveSuppressions(self.silences.standing(), windows, self._names)

    def look_again(self) -> None:
        """After a change of the windows: every door looks again at what it holds back."""
        with self._store.database.write() as connection:
            look_again(connection, self._clock.now_s())

    def _names(self, subject: Subject) -> Sequence[str]:
        if self._inventory is None:
            return [str(subject)]
        # a window may name a rack, or the cluster: whatever the subject stands in
        above = self._inventory.ancestors(subject, self._clock.now_s())
        return [str(item) for item in (subject, *above, self._inventory.cluster)]
