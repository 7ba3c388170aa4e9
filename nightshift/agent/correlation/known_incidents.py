"""What the correlator has to know of stored incidents, read from the store only where something changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from nightshift.agent.correlation.correlate import Known
from nightshift.agent.store.archive import number_of
from nightshift.agent.store.database import Database
from nightshift.agent.store.incident import Incident, IncidentState, IncidentSummary, entered_s, findings_of
from nightshift.agent.store.intents import begun
from nightshift.controllers.guard import Commitment


class Reads(Protocol):
    """The part of the store that is read here."""

    @property
    def database(self) -> Database: ...

    def incident(self, incident_id: str) -> Incident: ...

    def open_incidents(self) -> list[IncidentSummary]: ...

    def incidents(
        self, states: Iterable[IncidentState] | None = None, *, limit: int | None = None
    ) -> list[IncidentSummary]: ...


MOST_RESOLVED = 500
"""Resolved incidents that are looked at after a start."""


class KnownIncidents:
    """Open incidents, and those resolved within `keep_s`, as the correlator takes them. One query per call, and two
    more per incident whose state, findings or sights have changed since the last."""

    def __init__(self, store: Reads, keep_s: float) -> None:
        self._store = store
        self._keep_s = keep_s
        self._cache: dict[str, tuple[tuple[object, ...], Known]] | None = None

    def read(self, now_s: float) -> list[Known]:
        """As of `now_s` (Unix s), oldest first."""
        if self._cache is None:
            recent = self._store.incidents([IncidentState.RESOLVED], limit=MOST_RESOLVED)
            self._cache = {s.id: self._load(s) for s in recent if now_s - s.updated_s <= self._keep_s}
        summaries = {summary.id: summary for summary in self._store.open_incidents()}
        for incident_id, summary in summaries.items():
            if incident_id not in self._cache or self._cache[incident_id][0] != _stamp(summary):
                self._cache[incident_id] = self._load(summary)
        for incident_id, (stamp, cached) in list(self._cache.items()):
            if incident_id in summaries:
                continue
            known = cached if cached.resolved else self._known(incident_id)
            self._cache[incident_id] = (stamp, known)
            if known.resolved_s is None or now_s - known.resolved_s > self._keep_s:
                del self._cache[incident_id]
        return sorted((known for _, known in self._cache.values()), key=lambda k: (k.opened_s, k.id))

    def _load(self, summary: IncidentSummary) -> tuple[tuple[object, ...], Known]:
        return _stamp(summary), self._known(summary.id)

    def _known(self, incident_id: str) -> Known:
        incident = self._store.incident(incident_id)
        with self._store.database.read() as connection:
            return known_of(incident, begun(connection, number_of(incident.id)))


def known_of(incident: Incident, acts: Iterable[Commitment] = ()) -> Known:
    """An incident as the correlator takes it, with the actions of ours that were begun on it."""
    resolved = entered_s(incident.history, IncidentState.RESOLVED)
    acted = entered_s(incident.history, IncidentState.ACTING)
    return Known(
        id=incident.id,
        state=incident.state,
        findings=tuple(findings_of(incident)),
        opened_s=incident.opened_s,
        resolved_s=resolved[-1] if resolved and incident.state is IncidentState.RESOLVED else None,
        acted_s=acted[-1] if acted else None,
        begun=tuple(acts),
    )


def _stamp(summary: IncidentSummary) -> tuple[object, ...]:
    return (summary.version, summary.updated_s, *((f.episode, f.state, f.last_seen_s) for f in summary.findings))
