"""The page of all clusters: this agent's own, and the others that its configuration names.

A viewer of this cluster sees the figures of all. A team's role is this cluster's: of others a team sees that they
are there and how they answer, and each cluster's own console decides about the rest. Nothing here acts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import Response

from nightshift.agent.approvals.access import Permission, Sight, may, sight
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.approvals.visibility import IncidentWindow
from nightshift.agent.console.members import COUNTED, ClusterSummary, Member, MemberIncident, MemberState
from nightshift.agent.console.site import ConsoleParts, Site
from nightshift.agent.presentation.overview import Fresh
from nightshift.agent.store.incident import IncidentState, IncidentSummary
from nightshift.agent.store.intents import commitments
from nightshift.collectors.subject import SubjectKind
from nightshift.controllers.guard import out_of_use
from nightshift.detectors.base import Severity
from nightshift.version import line

MOST_INCIDENTS, MOST_COUNTED, MOST_SHOWN = 100, 1_000, 50
_OPEN = tuple(state for state in IncidentState if state is not IncidentState.RESOLVED)
_URGENCY = {severity: place for place, severity in enumerate((Severity.CRITICAL, Severity.WARNING, Severity.INFO))}
_WHOLE = Person("federation", frozenset({Role.VIEWER}), "console")


def _summary_of(parts: ConsoleParts, window: IncidentWindow) -> ClusterSummary:
    """This cluster's own, for whoever sees the whole of it."""
    frame, health = parts.history.latest(SubjectKind.GPU), parts.health()
    opened = window.incidents(_OPEN, limit=MOST_COUNTED)
    sources, limits = parts.history.sources(), parts.limits()
    gpus = 0 if frame is None else len(frame.index)
    with parts.store.database.read() as connection:
        out = out_of_use(commitments(connection), parts.inventory, parts.clock.now_s())
    watts = np.empty(0) if frame is None else frame.column("gpu_power_w")
    seen = 0 if frame is None else int(np.isfinite(frame.values).any(axis=1).sum())
    return ClusterSummary(
        version=line(),
        cluster=parts.cluster,
        now_s=parts.clock.now_s(),
        looked_s=max((status.at_s for status in sources), default=None),
        ready=health.ready,
        halted=parts.gate.halted().halted,
        gpus=gpus,
        gpus_seen=seen,
        watts=float(np.nansum(watts)) if np.isfinite(watts).any() else None,
        sources=len(sources),
        sources_silent=sum(not status.ok for status in sources),
        opened={severity: sum(row.severity is severity for row in opened) for severity in Severity},
        waiting=sum(row.state is IncidentState.AWAITING_APPROVAL for row in opened),
        gpus_out=len(out),
        gpus_out_limit=int(limits.get("capacity_share", 0.0) * gpus),
        false_pages_left=limits.get("false_pages_left", 0.0),
        false_pages_a_week=limits.get("false_pages_a_week", 0.0),
        ettr=_known(limits.get("ettr", math.nan)),
        incidents=tuple(_listed(row) for row in sorted(opened, key=_urgency)[:MOST_INCIDENTS]),
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _listed(row: IncidentSummary) -> MemberIncident:
    waits = row.state is IncidentState.AWAITING_APPROVAL
    return MemberIncident(
        id=row.id, title=row.title[:400], severity=row.severity, waits=waits, opened_s=row.opened_s,
        namespaces=tuple(sorted(row.namespaces)),
    )  # fmt: skip


def _urgency(row: IncidentSummary | MemberIncident) -> tuple[int, float]:
    return _URGENCY.get(row.severity, len(_URGENCY)), -row.opened_s


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A cluster as its row shows it. `said` None: it is unknown, or the visitor sees incidents alone."""

    name: str
    url: str
    state: MemberState
    problem: str
    age_s: float
    said: ClusterSummary | None


@dataclass(frozen=True)
class FleetSums:
    """Over the clusters that count. `of`: all there are; a sum over fewer is a lower bound."""

    clusters: int
    of: int
    gpus: int
    gpus_seen: int
    watts: float
    opened: int
    critical: int
    waiting: int
    gpus_out: int
    gpus_out_limit: int
    false_pages_left: float
    false_pages_a_week: float


def sums(rows: Sequence[ClusterRow]) -> FleetSums:
    said = [row.said for row in rows if row.said is not None and row.state in COUNTED]
    return FleetSums(
        len(said),
        len(rows),
        sum(one.gpus for one in said),
        sum(one.gpus_seen for one in said),
        sum(one.watts or 0.0 for one in said),
        sum(sum(one.opened.values()) for one in said),
        sum(one.opened.get(Severity.CRITICAL, 0) for one in said),
        sum(one.waiting for one in said),
        sum(one.gpus_out for one in said),
        sum(one.gpus_out_limit for one in said),
        sum(one.false_pages_left for one in said),
        sum(one.false_pages_a_week for one in said),
    )


class FederationPages:
    """The page of all clusters and its JSON; without other agents the page shows this cluster alone."""

    def __init__(self, site: Site) -> None:
        self._site, self._parts = site, site.parts
        self._own: Fresh[ClusterSummary] = Fresh()

    def add_to(self, app: FastAPI) -> None:
        app.get("/clusters", response_model=None)(self.page)

    def page(self, request: Request) -> Response:
        """Every cluster, what all have together, and the most urgent incidents that the visitor may see."""
        window = self._site.window(request)
        rows = self.rows(window)
        whole = not window.person.is_tenant
        return self._site.page(
            request, "clusters.html", rows=self.shown(rows, window.person), total=sums(rows) if whole else None,
            incidents=self.incidents(rows, window.person)[:MOST_SHOWN],
        )  # fmt: skip

    def own(self, window: IncidentWindow) -> ClusterSummary:
        """This cluster's summary, kept for moments: it is asked for again and again."""
        return self._own.get("", lambda: _summary_of(self._parts, window))

    def rows(self, window: IncidentWindow) -> list[ClusterRow]:
        """This cluster first, then the others by name: rows stay where they are, whatever happens."""
        everything = IncidentWindow(self._parts.store, _WHOLE, self._parts.inventory, window.now_s)
        own = Member("", self.own(everything), time.monotonic(), "")
        others, now_s = self._parts.members(), time.monotonic()
        rows = [self._row(member, now_s) for member in others]
        return [self._row(own, now_s), *sorted(rows, key=lambda row: (row.name, row.url))]

    def _row(self, member: Member, now_s: float) -> ClusterRow:
        name = member.url if member.said is None else member.said.cluster
        state = member.state(now_s, line())
        return ClusterRow(name, member.url, state, member.problem, now_s - member.at_s, member.said)

    def shown(self, rows: Iterable[ClusterRow], person: Person) -> list[ClusterRow]:
        """Figures of a cluster are the whole cluster's: a team sees names and states."""
        if may(person, Permission.SEE_CLUSTER):
            return list(rows)
        return [ClusterRow(row.name, row.url, row.state, "", row.age_s, None) for row in rows]

    def incidents(self, rows: Iterable[ClusterRow], person: Person) -> list[tuple[ClusterRow, MemberIncident]]:
        """Those that are wholly the visitor's to see, of agents that are not silent, the most urgent first. A
        team's are this cluster's: the same namespace may be another team's elsewhere."""
        found = [
            (row, one)
            for row in rows
            if row.said is not None and row.state is not MemberState.SILENT
            if not (row.url and person.is_tenant)
            for one in row.said.incidents
            if sight(person, one.namespaces) is Sight.WHOLE
        ]
        return sorted(found, key=lambda pair: _urgency(pair[1]))

    def as_json(self, window: IncidentWindow) -> dict[str, Any]:
        """The same for programs."""
        rows = self.rows(window)
        whole = bool(may(window.person, Permission.SEE_CLUSTER))
        shown = self.shown(rows, window.person)
        return {
            "clusters": [
                {"name": row.name, "url": row.url, "state": str(row.state), "problem": row.problem,
                 "answered_s_ago": _known(row.age_s), "counted": row.state in COUNTED,
                 "said": None if row.said is None else row.said.model_dump(mode="json", exclude={"incidents"})}
                for row in shown
            ],
            "total": asdict(sums(rows)) if whole else None,
            "incidents": [
                {"cluster": row.name, **one.model_dump(mode="json")}
                for row, one in self.incidents(rows, window.person)[:MOST_INCIDENTS]
            ],
        }  # fmt: skip
