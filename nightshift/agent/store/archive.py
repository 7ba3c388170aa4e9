"""Reads incidents from their rows: one with everything, or many as summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from nightshift.agent.store.database import Database
from nightshift.agent.store.diagnosis import Diagnosis, Reading, with_reading
from nightshift.agent.store.incident import (
    FindingSummary,
    HistoryStep,
    Incident,
    IncidentState,
    IncidentSummary,
    StoredFinding,
)
from nightshift.agent.store.records import load
from nightshift.agent.store.tables import diagnoses, findings, incidents, plans, readings, steps, tenancies
from nightshift.collectors.base import Permanent
from nightshift.collectors.subject import Subject
from nightshift.controllers.action import Action, ActionKind
from nightshift.detectors.base import Fault, Finding, Severity, State

# An enum's own look-up is slow, and a list of ten thousand incidents makes sixty thousand of them.
_FAULTS, _SEVERITIES = {str(one): one for one in Fault}, {str(one): one for one in Severity}
_STATES, _FINDING_STATES = {str(one): one for one in IncidentState}, {str(one): one for one in State}
_ACTIONS = {str(one): one for one in ActionKind}
_LIGHT = (
    *("incident", "episode", "detector", "fault", "subject"),
    *("severity", "state", "since_s", "last_seen_s"),
)
_SHOWN = (
    *("number", "state", "title", "severity", "opened_s", "updated_s", "clear_since_s", "attempt", "version"),
    *("cause", "action_kind", "plan_sha256", "expires_s"),
)
_MOST_WORDS = 8
# SQLite takes 32,766 variables in one query; PostgreSQL 65,535.
_MANY = 5_000


@dataclass(frozen=True, slots=True)
class IncidentQuery:
    """Which incidents a list is of: all words of `text` in the number, title, fault or a subject; any of the
    severities."""

    text: str = ""
    severities: tuple[Severity, ...] = ()


EVERYTHING = IncidentQuery()


class NoSuchIncident(Permanent):
    """There is no incident of that name."""


def number_of(incident_id: str) -> int:
    """7 of `INC-7`. Raises NoSuchIncident."""
    prefix, _, digits = incident_id.strip().upper().partition("-")
    # isdecimal() alone also takes other scripts' digits; ten digits may not fit PostgreSQL's integer
    if prefix != "INC" or not digits.isascii() or not digits.isdecimal() or len(digits) > 9:
        raise NoSuchIncident(f"{incident_id!r} is not an incident (INC-NUMBER)")
    return int(digits)


def name_of(number: int) -> str:
    return f"INC-{number}"


def row_of(connection: Connection, number: int, lock: bool = False) -> Any:
    """An incident's row, locked until the transaction ends where asked for. Raises NoSuchIncident."""
    query = sa.select(incidents).where(incidents.c.number == number)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NoSuchIncident(f"there is no {name_of(number)}")
    return row


class Archive:
    """The reading half of the store. Readers never wait for writers."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def incident(self, incident_id: str) -> Incident:
        """Everything stored of one incident. Raises NoSuchIncident."""
        number = number_of(incident_id)
        with self.database.read() as connection:
            row = row_of(connection, number)
            found = connection.execute(
                sa.select(findings).where(findings.c.incident == number).order_by(findings.c.since_s)
            ).all()
            history = connection.execute(
                sa.select(steps).where(steps.c.incident == number).order_by(steps.c.number)
            ).all()
            diagnosis = connection.execute(
                sa.select(diagnoses.c.body).where(diagnoses.c.number == row.diagnosis)
            ).scalar_one_or_none()
            # the newest: what was read of an earlier diagnosis counts until the present one is read
            newest = sa.select(readings.c.body).where(readings.c.incident == number)
            read = connection.execute(newest.order_by(readings.c.diagnosis.desc()).limit(1)).scalar_one_or_none()
            plan = connection.execute(
                sa.select(plans.c.body, plans.c.reason).where(
                    plans.c.incident == number, plans.c.plan_sha256 == row.plan_sha256
                )
            ).one_or_none()
            touched = _namespaces(connection, tenancies.c.incident == number)
        told = None if diagnosis is None else load(Diagnosis, diagnosis)
        reading = None if read is None else load(Reading, read)
        return Incident(
            id=name_of(row.number),
            state=_STATES[row.state],
            severity=_SEVERITIES[row.severity],
            title=row.title,
            opened_s=row.opened_s,
            updated_s=row.updated_s,
            clear_since_s=row.clear_since_s,
            attempt=row.attempt,
            version=row.version,
            entered_s=row.entered_s,
            findings=tuple(
                StoredFinding(load(Finding, f.body), State(f.state), f.last_seen_s, f.changed_s) for f in found
            ),
            diagnosis=told if told is None or reading is None else with_reading(told, reading),
            reading=reading,
            action=None if plan is None else load(Action, plan.body),
            plan_reason="" if plan is None else plan.reason,
            history=tuple(step_of(row) for row in history),
            namespaces=tuple(touched.get(number, ())),
            news=bool(row.news),
        )

    def incidents(
        self,
        states: Iterable[IncidentState] | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        touching: Callable[[str], bool] | None = None,
        search: IncidentQuery = EVERYTHING,
    ) -> list[IncidentSummary]:
        """Summaries, newest first; of some states, or all; of those that touch a chosen namespace, or all; of what
        somebody looks for, or all."""
        query = sa.select(incidents).order_by(incidents.c.number.desc()).limit(limit).offset(offset)
        if touching is not None:
            chosen = [name for name in self.namespaces() if touching(name)]
            query = query.where(
                incidents.c.number.in_(sa.select(tenancies.c.incident).where(tenancies.c.namespace.in_(chosen)))
            )
        if states is not None:
            query = query.where(incidents.c.state.in_([str(state) for state in states]))
        return self._summaries(query.where(*_conditions(search)))

    def namespaces(self) -> list[str]:
        """Every namespace whose jobs an incident has touched."""
        with self.database.read() as connection:
            return list(connection.execute(sa.select(tenancies.c.namespace).distinct()).scalars())

    def plan_before(self, incident_id: str) -> Action | None:
        """The plan that was made before the present one; None for the first."""
        number = number_of(incident_id)
        query = sa.select(plans.c.body).where(plans.c.incident == number)
        with self.database.read() as connection:
            present = row_of(connection, number).plan_sha256
            older = query.where(plans.c.plan_sha256 != present).order_by(plans.c.attempt.desc()).limit(1)
            body = connection.execute(older).scalar_one_or_none()
        return None if body is None else load(Action, body)

    def summaries(self, incident_ids: Iterable[str]) -> list[IncidentSummary]:
        """Summaries of some incidents, newest first; those that do not exist are left out."""
        numbers = [number_of(name) for name in incident_ids]
        found: list[IncidentSummary] = []
        for start in range(0, len(numbers), _MANY):
            query = sa.select(incidents).where(incidents.c.number.in_(numbers[start : start + _MANY]))
            found += self._summaries(query)
        return sorted(found, key=lambda row: number_of(row.id), reverse=True)

    def _summaries(self, query: sa.Select[Any]) -> list[IncidentSummary]:
        # exhibits are most of a finding's bytes, and no list shows them
        light = [findings.c[name] for name in _LIGHT]
        with self.database.read() as connection:
            rows = connection.execute(query.with_only_columns(*(incidents.c[name] for name in _SHOWN))).all()
            if not rows:
                return []
            # the query again, inside the next two: thousands of numbers need not travel back as variables
            chosen = query.with_only_columns(incidents.c.number)
            found = connection.execute(
                sa.select(*light).where(findings.c.incident.in_(chosen)).order_by(findings.c.since_s)
            ).all()
            touched = _namespaces(connection, tenancies.c.incident.in_(chosen))
        of: dict[int, list[FindingSummary]] = {row[0]: [] for row in rows}
        for incident, episode, detector, fault, subject, severity, state, since_s, last_seen_s in found:
            of[incident].append(
                FindingSummary(
                    episode, detector, _FAULTS[fault], Subject.parse(subject), _SEVERITIES[severity],
                    _FINDING_STATES[state], since_s, last_seen_s,
                )
            )  # fmt: skip
        return [_summary(row, tuple(of[row[0]]), tuple(touched.get(row[0], ()))) for row in rows]

    def open_incidents(self) -> list[IncidentSummary]:
        """Summaries of all that are not resolved, newest first."""
        return self.incidents([state for state in IncidentState if state is not IncidentState.RESOLVED])


def _namespaces(connection: Connection, which: sa.ColumnElement[bool]) -> dict[int, list[str]]:
    """The namespaces that each of some incidents touches, in order."""
    found: dict[int, list[str]] = {}
    for row in connection.execute(sa.select(tenancies).where(which).order_by(tenancies.c.namespace)):
        found.setdefault(row.incident, []).append(row.namespace)
    return found


def _conditions(wanted: IncidentQuery) -> list[sa.ColumnElement[bool]]:
    """Every word has to be found; what the words stand in may differ. `%` and `_` are words' own characters."""
    found: list[sa.ColumnElement[bool]] = []
    if wanted.severities:
        found.append(incidents.c.severity.in_([str(level) for level in wanted.severities]))
    for word in wanted.text.split()[:_MOST_WORDS]:
        # a name, not text: as text INC-7 would find INC-70 as well
        number = word.upper().removeprefix("INC-")
        if number.isascii() and number.isdecimal() and len(number) <= 9 and word.upper().startswith("INC-"):
            found.append(incidents.c.number == int(number))
            continue
        of = findings.c.subject.icontains(word, autoescape=True) | findings.c.fault.icontains(word, autoescape=True)
        about = sa.select(findings.c.incident).where(of)
        titled = incidents.c.title.icontains(word, autoescape=True)
        found.append(titled | incidents.c.number.in_(about))
    return found


def _summary(row: Any, found: tuple[FindingSummary, ...], touched: tuple[str, ...]) -> IncidentSummary:
    # unpacked: a look-up of each column by name is slow
    number, state, title, severity, opened_s, updated_s, clear_since_s, attempt, version, *plan = row
    cause, action_kind, plan_sha256, expires_s = plan
    return IncidentSummary(
        name_of(number), _STATES[state], title, _SEVERITIES[severity], opened_s, updated_s, clear_since_s, attempt,
        version, None if cause is None else _FAULTS[cause], None if action_kind is None else _ACTIONS[action_kind],
        plan_sha256, expires_s, found, touched,
    )  # fmt: skip


def step_of(row: Any) -> HistoryStep:
    """A history entry of its row."""
    before = None if row.before is None else IncidentState(row.before)
    return HistoryStep(row.at_s, before, IncidentState(row.after), row.cause, row.by, row.note)
