"""Silences: incidents that nobody is told of for a while. They are still found, diagnosed and shown in the console;
a silence keeps messages away, never detection, and always ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

import sqlalchemy as sa
from sqlalchemy import Connection

from nightshift.agent.approvals.access import Permission, may
from nightshift.agent.approvals.policy import Person
from nightshift.agent.clock import Clock
from nightshift.agent.store import audit
from nightshift.agent.store.incident import FindingSummary, Incident, IncidentSummary, StoredFinding
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.tables import deliveries, silences
from nightshift.agent.store.tenancy import namespaces_of
from nightshift.collectors.base import Permanent
from nightshift.collectors.subject import Membership, SubjectKind
from nightshift.detectors.base import Finding

MAX_S = 30 * 86_400.0
MOST_NAMED = 5
_KINDS = "fault, namespace, node, gpu, pod, job, rank or incident"


@dataclass(frozen=True, slots=True)
class IncidentSilence:
    """`matcher` is `KIND:PATTERN`, such as `node:gpu-r12-*`, `namespace:research`, `fault:straggler`."""

    number: int
    matcher: str
    by: str
    reason: str
    at_s: float
    until_s: float


class Silences:
    """Reads and writes silences. Stateless: everything is in the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def add(self, matcher: str, for_s: float, by: Person, reason: str) -> IncidentSilence:
        """Raises Permanent, naming what is wrong, where the person, the matcher or the time does not do."""
        kind, colon, pattern = matcher.partition(":")
        if not (allowed := may(by, Permission.SILENCE, namespaces_of_matcher(matcher))):
            raise Permanent(allowed.reason)
        if not colon or kind not in _KINDS.replace(",", " ").split() or kind == "or" or not pattern:
            raise Permanent(f"matcher {matcher[:80]!r} is not KIND:PATTERN with KIND {_KINDS}")
        # fnmatch's wildcards alone; brackets still choose something
        if pattern.strip("*?") == "":
            raise Permanent("a silence of everything hides the next fault: name something")
        if not 0 < for_s <= MAX_S:
            raise Permanent(f"a silence lasts up to {MAX_S / 86_400:.0f} days")
        now = self._clock.now_s()
        row = {"matcher": matcher[:300], "by": by.identity, "reason": reason[:500], "at_s": now}
        row["until_s"] = now + for_s
        with self._store.database.write() as connection:
            insert = sa.insert(silences).values(row).returning(silences.c.number)
            number = int(connection.execute(insert).scalar_one())
            audit.append(connection, at_s=now, kind="silenced", by=by.identity, incident=None, body=row)
        return IncidentSilence(number, matcher[:300], by.identity, reason[:500], now, now + for_s)

    def end(self, number: int, by: Person) -> bool:
        """Ends a silence now; False where none of that number holds."""
        standing = next((s for s in self.standing() if s.number == number), None)
        if standing is None:
            return False
        if not (allowed := may(by, Permission.SILENCE, namespaces_of_matcher(standing.matcher))):
            if by.is_tenant and not may(by, Permission.SEE, namespaces_of_matcher(standing.matcher)):
                return False  # of another team's silence nothing is said, not even that it is there
            raise Permanent(allowed.reason)
        now = self._clock.now_s()
        mine = (silences.c.number == number) & (silences.c.until_s > now)
        with self._store.database.write() as connection:
            changed = connection.execute(sa.update(silences).where(mine).values(until_s=now)).rowcount
            if changed:
                look_again(connection, now)
                body = {"number": number}
                audit.append(connection, at_s=now, kind="unsilenced", by=by.identity, incident=None, body=body)
        return bool(changed)

    def standing(self) -> list[IncidentSilence]:
        """Those that hold now, the longest last."""
        query = sa.select(silences).where(silences.c.until_s > self._clock.now_s()).order_by(silences.c.until_s)
        with self._store.database.read() as connection:
            return [IncidentSilence(**row._mapping) for row in connection.execute(query)]


def look_again(connection: Connection, now_s: float) -> None:
    """Has every door look again at what it holds back: whatever else holds it back holds it again."""
    # held until now, not released: maintenance or quiet hours may hold the same message
    waits = deliveries.c.held_until_s > now_s
    connection.execute(sa.update(deliveries).where(waits).values(held_until_s=now_s))


def unmatched(matcher: str, memberships: Callable[[], Iterable[Membership]]) -> str:
    """That a silence mutes nothing for now, and which names are known; empty where it matches one of them, or
    names no subject.

    A warning and no error: a node may be away, or yet to come, when its work is planned.
    """
    kind, _, pattern = matcher.partition(":")
    if kind not in set(SubjectKind):
        return ""
    found = {subject.name for m in memberships() for subject in (m.child, m.parent) if subject.kind == kind}
    if any(fnmatchcase(name, pattern) for name in found):
        return ""
    like = get_close_matches(pattern, found, MOST_NAMED) or sorted(found)[:MOST_NAMED]
    others = f" and {len(found) - len(like)} more" if len(found) > len(like) else ""
    listed = f" Known: {', '.join(like)}{others}." if like else ""
    return f"No known {kind} matches {pattern[:100]!r}: it mutes nothing until one does.{listed}"


def namespaces_of_matcher(matcher: str) -> tuple[str, ...]:
    """The one namespace that a matcher names; none where it reaches further, so that a team silences its own
    alone."""
    kind, _, pattern = matcher.partition(":")
    return (pattern,) if kind == "namespace" and pattern and not set(pattern) & set("*?[") else ()


def silenced(
    incident: Incident | IncidentSummary, active_silences: Sequence[IncidentSilence]
) -> IncidentSilence | None:
    """The silence that covers *all* of an incident's findings for longest; None where one of them is not covered.

    So a silence of one noisy node does not hide an incident that reaches beyond it.
    """
    fitting = [s for s in active_silences if _covers(s.matcher, incident)]
    return max(fitting, key=lambda s: s.until_s, default=None)


def _covers(matcher: str, incident: Incident | IncidentSummary) -> bool:
    kind, _, pattern = matcher.partition(":")
    if kind == "incident":
        return fnmatchcase(incident.id, pattern)
    found = findings_of(incident)
    return bool(found) and all(any(fnmatchcase(n, pattern) for n in _names(kind, f)) for f in found)


def findings_of(incident: Incident | IncidentSummary) -> list[Finding | FindingSummary]:
    """What alarmed, of an incident or of its summary."""
    return [item.finding if isinstance(item, StoredFinding) else item for item in incident.findings]


def _names(kind: str, finding: Finding | FindingSummary) -> Sequence[str]:
    """What a finding is called under a matcher's kind."""
    if kind == "fault":
        return [finding.fault]
    if kind == "namespace":
        return namespaces_of([finding.subject])
    return [finding.subject.name] if finding.subject.kind == kind else []
