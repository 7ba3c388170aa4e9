"""Incidents in the database: opened, fed with findings, moved by compare-and-set, each with its audit record.

Every public method is one transaction. A move goes through the one table of `agent.store.incident` and through the
version that its caller saw, so that of two movers one wins and the other is told. Readers never block writers.
Writers lock the incident's row first and the audit log's head last, so that they never wait in a ring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from nightshift.agent.clock import Clock
from nightshift.agent.store import audit
from nightshift.agent.store.archive import Archive, NoSuchIncident, name_of, number_of, row_of, step_of
from nightshift.agent.store.database import Database
from nightshift.agent.store.diagnosis import Diagnosis, Reading, ReadingState
from nightshift.agent.store.incident import Cause, HistoryStep, Incident, IncidentState, next_state, taken_on
from nightshift.agent.store.records import dump
from nightshift.agent.store.reports import is_report
from nightshift.agent.store.tables import (
    diagnoses,
    findings,
    incidents,
    kept,
    memberships,
    plans,
    questions,
    readings,
    steps,
    tenancies,
)
from nightshift.agent.store.tenancy import Tenancy
from nightshift.collectors.base import Temporary
from nightshift.collectors.subject import Inventory, Membership, Subject
from nightshift.controllers.action import Action
from nightshift.detectors.base import Finding, Severity, State

_SEVERITIES = list(Severity)
_CLOSED = IncidentState.RESOLVED
_RELATIONS_A_WRITE = 10_000
_OUTDATED = -1
"""`findings.diagnosed` of a finding that says more now than when it was diagnosed."""


class Conflict(Temporary):
    """Somebody else moved the incident first; read it again. Nothing was written."""


FaultPoint = Callable[[str], None]
"""Where tests stop the process: called with `before STATE CAUSE` and `after STATE CAUSE` of every move."""


@dataclass(frozen=True, slots=True)
class IncidentMove:
    """A change of state to be made: for `cause`, if the incident still has `version`."""

    cause: Cause
    by: str
    note: str
    version: int


@dataclass(frozen=True, slots=True)
class Position:
    """Where an incident stands: its state, and the runs and failures of that state's stage."""

    state: IncidentState
    version: int
    stage_runs: int
    stage_failures: int
    waited_s: float
    """How long it has waited in that state by now (s), as far as somebody looked."""


@dataclass(frozen=True, slots=True)
class ToRead:
    """A diagnosed incident and how far a model is with it; `state` None: nothing was read yet. `tokens` and `usd`
    went into this diagnosis."""

    incident: str
    diagnosis: int
    state: ReadingState | None
    at_s: float
    tokens: int
    usd: float


@dataclass(frozen=True, slots=True)
class Outdated:
    """An incident of which more was seen since its diagnosis (its number)."""

    incident: str
    diagnosis: int
    opened_s: float


_READ_MEANWHILE = (IncidentState.AWAITING_APPROVAL, IncidentState.MONITORING, IncidentState.ESCALATED)
_WORST_FIRST = sa.case({"critical": 0, "warning": 1}, value=incidents.c.severity, else_=2)
"""States in which people read a diagnosis and no stage of ours works on it."""
COUNTED_GAP_S = 300.0
"""Most of the time between a look that was due and the look itself that counts as waiting (s). More is a clock that
jumped, an emergency stop, or a daemon that was down: nobody waited for the world meanwhile."""


def _waited_s(row: Any, now_s: float) -> float:
    since_s = row.entered_s if row.due_s is None else row.due_s
    late_s: float = min(max(now_s - since_s, 0.0), COUNTED_GAP_S)
    return float(row.waited_s) + late_s


@cache  # asked at each look of the lifecycle, as `_to_read` is at each of the models' queue
def _outdated(limit: int) -> sa.Select[Any]:
    """`Store.outdated_diagnoses`; bound: `diagnosed`, until which a diagnosis is old enough."""
    fires = (findings.c.incident == incidents.c.number) & (findings.c.state == str(State.FIRING))
    return (
        sa.select(incidents.c.number, incidents.c.diagnosis, incidents.c.opened_s)
        .join(diagnoses, diagnoses.c.number == incidents.c.diagnosis)
        .where(
            incidents.c.state.in_([str(state) for state in _READ_MEANWHILE]),
            incidents.c.news == 0,
            diagnoses.c.at_s <= sa.bindparam("diagnosed"),
            sa.exists().where(fires, findings.c.last_seen_s > diagnoses.c.at_s),
        )
        .order_by(_WORST_FIRST, diagnoses.c.at_s)
        .limit(limit)
    )


@cache
def _to_read(states: frozenset[IncidentState]) -> sa.Select[Any]:
    """`Store.to_read`."""
    columns = (incidents.c.number, incidents.c.diagnosis, readings.c.state, readings.c.at_s, readings.c.tokens)
    return (
        sa.select(*columns, readings.c.usd)
        .outerjoin(readings, readings.c.diagnosis == incidents.c.diagnosis)
        .where(incidents.c.diagnosis.is_not(None), incidents.c.state.in_(sorted(map(str, states))))
        .order_by(_WORST_FIRST, incidents.c.number)
    )


class Store(Archive):
    """Incidents, and what the daemon keeps across restarts. Threads and processes may share one database."""

    def __init__(
        self,
        url: str | Database,
        clock: Clock,
        *,
        fault_point: FaultPoint = lambda _: None,
        inventory: Inventory | None = None,
    ) -> None:
        """`inventory`: who held a piece of hardware, for whose incident it is; without: what names say."""
        self.database = url if isinstance(url, Database) else Database(url)
        self._clock = clock
        self._tenancy = Tenancy(inventory)
        self.audit = audit.AuditLog(self.database)
        self._fault_point = fault_point

    def close(self) -> None:
        self.database.close()

    # Findings in ------------------------------------------------------------------------------------------------

    def open_incident(
        self, title: str, new_findings: Sequence[Finding], *, by: str = "nightshift", note: str = ""
    ) -> str:
        """Opens an incident for findings of one fault; returns its id."""
        if not new_findings:
            raise ValueError("an incident needs at least one finding")
        now = self._clock.now_s()
        severity = max((finding.severity for finding in new_findings), key=_SEVERITIES.index)
        with self.database.write() as connection:
            row = {
                "state": IncidentState.OPEN,
                "title": title,
                "severity": severity,
                "opened_s": now,
                "updated_s": now,
                "entered_s": now,
                "news": 0,
                "attempt": 0,
                "version": 1,
                "stage_runs": 0,
                "stage_failures": 0,
            }
            number = connection.execute(sa.insert(incidents).values(row).returning(incidents.c.number)).scalar_one()
            for finding in new_findings:
                self._insert_finding(connection, number, finding, now)
            self._refresh(connection, number)
            self._step(connection, number, HistoryStep(now, None, IncidentState.OPEN, "opened", by, note))
            body = {
                "title": title,
                "severity": severity,
                "episodes": [f.episode for f in new_findings],
                "note": note,
            }
            audit.append(connection, at_s=now, kind="opened", by=by, incident=number, body=body)
            self._fault_point("before none opened")
        self._fault_point("after none opened")
        return name_of(number)

    def attach(self, incident_id: str, finding: Finding, *, by: str = "nightshift", note: str = "") -> None:
        """Adds a finding to an incident, or renews one that it has; a resolved incident relapses to open.

        A fault that the current diagnosis has not seen is news: the lifecycle diagnoses again.
        """
        number, now = number_of(incident_id), self._clock.now_s()
        cause = None
        with self.database.write() as connection:
            row = row_of(connection, number, lock=True)
            # after the incident's row and before the audit log's head: all writers lock in this order
            is_new = self._insert_finding(connection, number, finding, now)
            values = {"updated_s": now, **_graver(row.severity, finding)}
            connection.execute(sa.update(incidents).where(incidents.c.number == number).values(values))
            self._refresh(connection, number)
            if is_new:
                body = {"episode": finding.episode, "summary": finding.summary, "note": note}
                audit.append(connection, at_s=now, kind="attached", by=by, incident=number, body=body)
            if row.state == _CLOSED and finding.state is State.FIRING:
                cause = Cause.RELAPSED
                move = IncidentMove(cause, by, finding.summary, row.version)
                self._move(connection, number, move)
        if cause is not None:
            self._fault_point(f"after {row.state} {cause}")

    def update_finding(
        self, incident_id: str, finding: Finding, *, news: bool = False, louder: bool = False
    ) -> None:
        """`update_findings` of one."""
        self.update_findings(incident_id, [(finding, news, louder)])

    def update_findings(self, incident_id: str, updates: Sequence[tuple[Finding, bool, bool]]) -> None:
        """Stores how attached findings stand now (firing, clear or no_data), in one write: a storm has hundreds at
        each look. Unknown episodes are attached. Each comes with `news` (it says more than the current diagnosis
        knew, so the lifecycle diagnoses again) and `louder` (a more urgent lane). A graver alarm raises its
        incident's severity and notifies people again; so does a more urgent lane."""
        number, now, others = number_of(incident_id), self._clock.now_s(), list[Finding]()
        with self.database.write() as connection:
            row, shown, values = row_of(connection, number, lock=True), False, dict[str, Any]()
            query = sa.select(findings.c.episode, findings.c.state).where(findings.c.incident == number)
            known = {one.episode: one.state for one in connection.execute(query)}
            for finding, news, louder in updates:
                if finding.episode not in known or (row.state == _CLOSED and finding.state is State.FIRING):
                    others.append(finding)
                    continue
                self._insert_finding(connection, number, finding, now)
                if news:
                    mine = (findings.c.incident == number) & (findings.c.episode == finding.episode)
                    connection.execute(sa.update(findings).where(mine).values(diagnosed=_OUTDATED))
                graver = _graver(values.get("severity", row.severity), finding)
                values |= graver
                shown |= bool(news or louder or graver or known[finding.episode] != finding.state)
            # `updated_s` is what Slack and the pagers look for: an alarm that only goes on is no change to show
            if shown:
                values["updated_s"] = now
                connection.execute(sa.update(incidents).where(incidents.c.number == number).values(values))
            if len(others) < len(updates):
                self._refresh(connection, number)
        for finding in others:
            self.attach(incident_id, finding)

    def _insert_finding(self, connection: Connection, number: int, finding: Finding, now: float) -> bool:
        """Inserts, or renews, one finding; True where it is new. Clear and no_data keep the firing form."""
        mine = (findings.c.incident == number) & (findings.c.episode == finding.episode)
        old = connection.execute(sa.select(findings.c.state, findings.c.changed_s).where(mine)).one_or_none()
        values: dict[str, Any] = {
            "state": finding.state,
            "severity": finding.severity,
            "last_seen_s": finding.at.t_s,
            # what seems to have changed in the future did so before the clock went back
            "changed_s": now if old is None or old.state != finding.state else min(now, old.changed_s),
        }
        # the exhibits are to show what was wrong, not how it ended
        if old is None or finding.state is State.FIRING:
            values["body"] = dump(finding)
        if old is not None:
            connection.execute(sa.update(findings).where(mine).values(values))
            return False
        # stored now: when a person looks, the pods are gone
        self._touch_tenants(connection, number, self._tenancy.of(finding.subject, finding.since.t_s, now))
        values |= {
            "incident": number,
            "episode": finding.episode,
            "detector": finding.detector,
            "fault": finding.fault,
            "subject": str(finding.subject),
            "since_s": finding.since.t_s,
            # a report names no fault: it changes no plan that waits for approval
            "diagnosed": int(is_report(finding)),
        }
        connection.execute(sa.insert(findings).values(values))
        return True

    def _touch_tenants(self, connection: Connection, number: int, namespaces: Iterable[str]) -> None:
        """Notes whose jobs an incident touches; what was once noted stays."""
        known = sa.select(tenancies.c.namespace).where(tenancies.c.incident == number)
        for name in sorted(set(namespaces) - set(connection.execute(known).scalars())):
            connection.execute(sa.insert(tenancies).values(incident=number, namespace=name))

    def _refresh(self, connection: Connection, number: int) -> None:
        """Keeps `clear_since_s` and `news` in step with the findings."""
        columns = (findings.c.state, findings.c.changed_s, findings.c.fault, findings.c.diagnosed)
        rows = connection.execute(sa.select(*columns).where(findings.c.incident == number)).all()
        clear = all(row.state == State.CLEAR for row in rows)
        since = max(row.changed_s for row in rows) if clear else None
        diagnosed = {row.fault for row in rows if row.diagnosed == 1}
        # A job's thousand ranks hang alike: one more of a known fault makes no new diagnosis. After an action it
        # does, because the same fault on another machine is one that nothing was done about.
        state = connection.execute(sa.select(incidents.c.state).where(incidents.c.number == number)).scalar_one()
        if state == IncidentState.CONFIRMING:
            diagnosed = set()
        unseen = [r for r in rows if r.diagnosed == _OUTDATED or (r.diagnosed == 0 and r.fault not in diagnosed)]
        news = any(row.state == State.FIRING for row in unseen)
        connection.execute(
            sa.update(incidents).where(incidents.c.number == number).values(clear_since_s=since, news=int(news))
        )

    # Moves ------------------------------------------------------------------------------------------------------

    def move(self, incident_id: str, cause: Cause, by: str, note: str, expected_version: int) -> IncidentState:
        """Moves an incident for a cause. Raises Conflict where its version has changed, IllegalTransition where
        the table has no such move."""
        return self.change(incident_id, IncidentMove(cause, by, note, expected_version))

    def change(
        self,
        incident_id: str,
        move: IncidentMove,
        also: Callable[[Connection, int], None] | None = None,
        columns: Mapping[str, Any] = MappingProxyType({}),
    ) -> IncidentState:
        """A move together with what belongs to it, in one transaction: `also`, then columns of the incident."""
        number = number_of(incident_id)
        with self.database.write() as connection:
            row_of(connection, number, lock=True)
            if also is not None:
                # before the move, since it may fill in `columns` (`save_diagnosis`)
                also(connection, number)
            before, after = self._move(connection, number, move, columns)
        self._fault_point(f"after {before} {move.cause}")
        return after

    def _move(
        self,
        connection: Connection,
        number: int,
        move: IncidentMove,
        columns: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[IncidentState, IncidentState]:
        now = self._clock.now_s()
        row = row_of(connection, number)
        before = IncidentState(row.state)
        if row.version != move.version:
            raise Conflict(f"{name_of(number)} is {before} now: another writer changed it first")
        after = next_state(before, move.cause)
        changed = connection.execute(
            sa.update(incidents)
            .where(incidents.c.number == number, incidents.c.version == move.version)
            .values(
                state=after,
                version=move.version + 1,
                updated_s=now,
                entered_s=now,
                moved_by=move.cause,
                stage_runs=0,
                stage_failures=0,
                due_s=None,
                waited_s=0.0,
                runner=None,
                runner_term=None,
                **columns,
            )
        )
        if changed.rowcount != 1:
            raise Conflict(f"{name_of(number)}: another writer changed it first")
        self._step(connection, number, HistoryStep(now, before, after, move.cause, move.by, move.note))
        body = {"before": before, "after": after, "cause": move.cause, "note": move.note}
        audit.append(connection, at_s=now, kind="moved", by=move.by, incident=number, body=body)
        self._fault_point(f"before {before} {move.cause}")
        return before, after

    def _step(self, connection: Connection, number: int, step: HistoryStep) -> None:
        last = connection.execute(sa.select(sa.func.max(steps.c.number)).where(steps.c.incident == number)).scalar()
        connection.execute(sa.insert(steps).values(incident=number, number=(last or 0) + 1, **asdict(step)))

    def acknowledge(self, incident_id: str, by: str, note: str) -> bool:
        """Notes in the history that somebody has taken it on; its state stays. False where it is over, or the same
        person has taken it on in this turn already."""
        number = number_of(incident_id)
        with self.database.write() as connection:
            row = row_of(connection, number, lock=True)
            if row.state == _CLOSED:
                return False
            rows = connection.execute(sa.select(steps).where(steps.c.incident == number).order_by(steps.c.number))
            given = taken_on([step_of(step) for step in rows])
            if given is not None and given.by == by:
                return False
            self._remark(connection, row, Cause.ACKNOWLEDGED, by, note)
        return True

    def remark(
        self,
        incident: Incident,
        cause: Cause,
        by: str,
        note: str,
        also: Callable[[Connection, int], None] = lambda connection, number: None,
    ) -> None:
        """Notes in the history what moves nothing, with what belongs to it (`also`) in one transaction. Raises
        Conflict where the incident has moved since."""
        with self.database.write() as connection:
            row = row_of(connection, number_of(incident.id), lock=True)
            if row.version != incident.version:
                raise Conflict(f"{incident.id}: another writer changed it first")
            also(connection, row.number)
            self._remark(connection, row, cause, by, note)

    def _remark(self, connection: Connection, row: Any, cause: Cause, by: str, note: str) -> None:
        now, number, state = self._clock.now_s(), row.number, IncidentState(row.state)
        self._step(connection, number, HistoryStep(now, state, state, cause, by, note))
        later_s = max(now, row.updated_s + 1e-4)  # a stepped clock may stand still: the change has to be seen
        connection.execute(sa.update(incidents).where(incidents.c.number == number).values(updated_s=later_s))
        audit.append(connection, at_s=now, kind=cause, by=by, incident=number, body={"note": note})

    def save_diagnosis(self, incident: Incident, diagnosis: Diagnosis, *, by: str) -> None:
        """Stores a diagnosis of the findings that `incident` had when it was read, and moves it to diagnosed."""
        stored: dict[str, Any] = {}
        move = IncidentMove(Cause.DIAGNOSIS_STORED, by, diagnosis.headline, incident.version)
        self.change(
            incident.id, move, lambda c, _: stored.update(self._diagnosed(c, incident, diagnosis, by)), stored
        )

    def learn(self, incident: Incident, diagnosis: Diagnosis | None, *, by: str) -> None:
        """Stores a later diagnosis without a move; None: the present one covers what was found since, too. Raises
        Conflict where the incident has changed since."""
        with self.database.write() as connection:
            self.touch(connection, incident)
            values: dict[str, Any] = {"runner": None, "runner_term": None}
            if diagnosis is None:
                self._cover(connection, incident)
            else:
                values |= self._diagnosed(connection, incident, diagnosis, by)
            mine = incidents.c.number == number_of(incident.id)
            connection.execute(sa.update(incidents).where(mine).values(values))

    def outdated_diagnoses(self, now_s: float, age_s: float, limit: int = 200) -> list[Outdated]:
        """Open incidents of which a finding still fires that was seen after their diagnosis, which is older than
        `age_s`; the gravest first. What is being acted on, or is news already, is not among them."""
        with self.database.read() as connection:
            rows = connection.execute(_outdated(limit), {"diagnosed": now_s - age_s})
            return [Outdated(name_of(row.number), row.diagnosis, row.opened_s) for row in rows]

    def renew(self, incident: Incident, diagnosis: Diagnosis, *, by: str, news: bool) -> None:
        """Stores a diagnosis in the place of the present one: version, plan and reading stay. `news`: it calls for
        another plan. Raises Conflict where the incident has moved or was diagnosed since."""
        number, now = number_of(incident.id), self._clock.now_s()
        with self.database.write() as connection:
            row = row_of(connection, number, lock=True)
            if row.version != incident.version or IncidentState(row.state) not in _READ_MEANWHILE:
                raise Conflict(f"{incident.id}: another writer changed it first")
            mine = diagnoses.c.number == row.diagnosis
            connection.execute(sa.update(diagnoses).where(mine).values(at_s=now, body=dump(diagnosis)))
            values = {"title": diagnosis.headline, "updated_s": max(now, row.updated_s + 1e-4)}
            connection.execute(sa.update(incidents).where(incidents.c.number == number).values(values))
            if news:
                mine = (findings.c.incident == number) & (findings.c.state == str(State.FIRING))
                connection.execute(sa.update(findings).where(mine).values(diagnosed=_OUTDATED))
                self._refresh(connection, number)
            body = _audited(diagnosis)
            audit.append(connection, at_s=now, kind="diagnosis", by=by, incident=number, body=body)

    def save_reading(
        self, incident_id: str, diagnosis: int, reading: Reading, tokens: int, usd: float, *, final: bool
    ) -> None:
        """Stores how far a model is with a diagnosis (its number), and what that has cost in all. The incident
        keeps state, version and plan: an approval under way does not notice. A `final` one goes to the audit log,
        too."""
        number, now = number_of(incident_id), self._clock.now_s()
        row = {"incident": number, "at_s": now, "state": reading.state, "tokens": tokens, "usd": usd}
        row["body"] = dump(reading)
        with self.database.write() as connection:
            at = row_of(connection, number, lock=True)
            mine = readings.c.diagnosis == diagnosis
            if connection.execute(sa.update(readings).where(mine).values(row)).rowcount == 0:
                connection.execute(sa.insert(readings).values(diagnosis=diagnosis, **row))
            if not final:
                return
            # a stepped clock may stand still: pages and chat have to see that there is more to show
            seen_s = max(now, at.updated_s + 1e-4)
            connection.execute(sa.update(incidents).where(incidents.c.number == number).values(updated_s=seen_s))
            body = {
                "state": reading.state,
                "model": reading.model,
                "cause": reading.cause,
                "claims": [claim.sentence for claim in reading.claims],
                "contest": reading.contest.reason if reading.contest is not None else "",
                "note": reading.note,
                "prompt_sha256": reading.prompt_sha256,
                "evidence": {item.id: item.sha256 for item in reading.evidence},
            }
            audit.append(connection, at_s=now, kind="reading", by=reading.model, incident=number, body=body)

    def to_read(self, states: Iterable[IncidentState]) -> list[ToRead]:
        """The diagnosed incidents in some states, the gravest first, with how far a model is with each."""
        with self.database.read() as connection:
            return [
                ToRead(
                    name_of(row.number),
                    row.diagnosis,
                    None if row.state is None else ReadingState(row.state),
                    row.at_s or 0.0,
                    row.tokens or 0,
                    row.usd or 0.0,
                )
                for row in connection.execute(_to_read(frozenset(states)))
            ]

    def spent_on_reading(self, since_s: float = -math.inf, incident_id: str | None = None) -> tuple[int, float]:
        """Tokens and USD that models took, of one incident or of all, for what was read and answered since a
        time."""
        tokens, usd = 0, 0.0
        with self.database.read() as connection:
            for c in (readings.c, questions.c):
                query = sa.select(sa.func.sum(c.tokens), sa.func.sum(c.usd))
                if incident_id is not None:
                    query = query.where(c.incident == number_of(incident_id))
                if math.isfinite(since_s):
                    query = query.where(c.at_s >= since_s)
                some, money = connection.execute(query).one()
                tokens, usd = tokens + int(some or 0), usd + float(money or 0.0)
        return tokens, usd

    def _cover(self, connection: Connection, incident: Incident) -> None:
        """Notes that the diagnosis knows the findings that `incident` has."""
        number = number_of(incident.id)
        seen = findings.c.episode.in_([item.episode for item in incident.findings])
        connection.execute(sa.update(findings).where(findings.c.incident == number, seen).values(diagnosed=1))
        self._refresh(connection, number)

    def _diagnosed(
        self, connection: Connection, incident: Incident, diagnosis: Diagnosis, by: str
    ) -> dict[str, Any]:
        """Inserts a diagnosis of the findings that `incident` has; returns the incident's columns that follow."""
        number, now = number_of(incident.id), self._clock.now_s()
        insert = sa.insert(diagnoses).values(incident=number, at_s=now, body=dump(diagnosis))
        stored = connection.execute(insert.returning(diagnoses.c.number)).scalar_one()
        self._cover(connection, incident)
        body = _audited(diagnosis)
        audit.append(connection, at_s=now, kind="diagnosis", by=by, incident=number, body=body)
        return {"cause": diagnosis.cause, "title": diagnosis.headline, "diagnosis": stored}

    def save_plan(self, incident: Incident, action: Action, reason: str, *, by: str, rule: str = "one") -> None:
        """Stores a proposed action, with the approval rule that it falls under, and waits for approval."""
        now = self._clock.now_s()
        columns = {
            "plan_sha256": action.plan_sha256,
            "action_kind": action.kind,
            "expires_s": action.expires_at_s,
            "approval_rule": rule,
            "attempt": incident.attempt + 1,
        }

        def keep(connection: Connection, number: int) -> None:
            mine = (plans.c.incident == number) & (plans.c.plan_sha256 == action.plan_sha256)
            # the same plan may be proposed again after it expired: its key is its hash
            connection.execute(sa.delete(plans).where(mine))
            row = {"incident": number, "plan_sha256": action.plan_sha256, "attempt": incident.attempt + 1}
            row |= {"at_s": now, "reason": reason, "body": dump(action)}
            connection.execute(sa.insert(plans).values(row))
            self._touch_tenants(connection, number, self._tenancy.of_action(action, now))
            body = {"plan_sha256": action.plan_sha256, "plan": action.to_json(), "reason": reason}
            audit.append(connection, at_s=now, kind="plan", by=by, incident=number, body=body)

        note = f"{action.kind} {action.target}: {reason}"
        self.change(incident.id, IncidentMove(Cause.PLAN_PROPOSED, by, note, incident.version), keep, columns)

    def touch(self, connection: Connection, incident: Incident) -> None:
        """Raises an incident's version without a move. Raises Conflict where it is no longer as it was read."""
        mine = (incidents.c.number == number_of(incident.id)) & (incidents.c.version == incident.version)
        row = {"version": incident.version + 1, "updated_s": self._clock.now_s()}
        if connection.execute(sa.update(incidents).where(mine).values(row)).rowcount != 1:
            raise Conflict(f"{incident.id}: another writer changed it first")

    # One runner at a time: which replica works on an incident's stage ---------------------------------------------

    def claim(self, number: int, version: int, runs: int, runner: str, term: int) -> bool:
        """Takes an incident for one run of its stage. False where it has moved, has been run, or is being run by
        somebody of this term; a claim of an earlier term belongs to a leader that is gone."""
        c = incidents.c
        # the same runner again: DBOS offers a run once more after its process has died
        free = sa.or_(c.runner.is_(None), c.runner_term < term, c.runner == runner)
        mine = (c.number == number) & (c.version == version) & (c.stage_runs == runs) & free
        with self.database.write() as connection:
            row = {"runner": runner, "runner_term": term}
            return connection.execute(sa.update(incidents).where(mine).values(row)).rowcount == 1

    def put_off(self, number: int, version: int, runs: int, due_s: float | None, *, failed: bool) -> bool:
        """Ends a run that did not move the incident: the next one is not before `due_s` (None: now) and has another
        key."""
        c = incidents.c
        mine = (c.number == number) & (c.version == version) & (c.stage_runs == runs)
        now_s = self._clock.now_s()
        due_s = now_s if due_s is None else due_s
        row: dict[str, Any] = {"runner": None, "runner_term": None, "due_s": due_s, "stage_runs": runs + 1}
        row["stage_failures"] = c.stage_failures + int(failed)
        with self.database.write() as connection:
            before = row_of(connection, number, lock=True)
            row["waited_s"] = _waited_s(before, now_s) + max(due_s - now_s, 0.0)
            return connection.execute(sa.update(incidents).where(mine).values(row)).rowcount == 1

    def position(self, number: int) -> Position:
        """Where an incident stands on its way."""
        with self.database.read() as connection:
            row = row_of(connection, number)
        waited_s = _waited_s(row, self._clock.now_s())
        return Position(IncidentState(row.state), row.version, row.stage_runs, row.stage_failures, waited_s)

    # What the daemon keeps across restarts beside incidents -------------------------------------------------------

    def save_memberships(self, changed: Iterable[Membership]) -> None:
        """Stores relations of the inventory; one that is known (child, parent, since) gets its new end. A write
        holds so many of them that no other writer waits for long."""
        c, every = memberships.c, list(changed)
        for first in range(0, len(every), _RELATIONS_A_WRITE):
            rows = [
                {
                    "child": str(item.child),
                    "parent": str(item.parent),
                    "since_s": item.since_s,
                    # infinity is no value of JSON, nor of every driver's float: null means "still"
                    "until_s": item.until_s if math.isfinite(item.until_s) else None,
                }
                for item in every[first : first + _RELATIONS_A_WRITE]
            ]
            with self.database.write() as connection:
                mine = [c[key] == sa.bindparam(f"old_{key}") for key in ("child", "parent", "since_s")]
                old = [{f"old_{key}": value for key, value in row.items() if key != "until_s"} for row in rows]
                connection.execute(sa.delete(memberships).where(*mine), old)
                connection.execute(sa.insert(memberships), rows)

    def load_memberships(self, after_s: float = -math.inf) -> list[Membership]:
        """Stored relations that held after a time, for `Inventory.load`."""
        c = memberships.c
        query = sa.select(c.child, c.parent, c.since_s, c.until_s).order_by(c.since_s)
        if math.isfinite(after_s):
            query = query.where(sa.or_(c.until_s.is_(None), c.until_s > after_s))
        subject = cache(Subject.parse)  # a fleet has three relations a node, and few racks and clusters
        with self.database.read() as connection:
            return [
                Membership(subject(child), subject(parent), since_s, math.inf if until_s is None else until_s)
                for rows in connection.execute(query).partitions(_RELATIONS_A_WRITE)
                for child, parent, since_s, until_s in rows
            ]

    def prune_memberships(self, before_s: float) -> int:
        """Forgets relations that ended before a time; returns how many."""
        with self.database.write() as connection:
            gone = connection.execute(sa.delete(memberships).where(memberships.c.until_s < before_s))
        return gone.rowcount

    def keep(self, items: dict[str, bytes]) -> None:
        """Stores named bytes, such as detectors' snapshots and collectors' cursors, all or none."""
        now = self._clock.now_s()
        with self.database.write() as connection:
            connection.execute(sa.delete(kept).where(kept.c.name.in_(list(items))))
            for name, content in items.items():
                connection.execute(sa.insert(kept).values(name=name, at_s=now, content=content))

    def recall(self, name: str) -> tuple[float, bytes] | None:
        """When it was kept, and the bytes; None where nothing was kept under that name."""
        with self.database.read() as connection:
            row = connection.execute(sa.select(kept).where(kept.c.name == name)).one_or_none()
        return None if row is None else (row.at_s, bytes(row.content))


__all__ = [
    "Conflict",
    "FaultPoint",
    "IncidentMove",
    "NoSuchIncident",
    "Position",
    "Store",
    "ToRead",
    "name_of",
    "number_of",
]


def _audited(diagnosis: Diagnosis) -> dict[str, Any]:
    """What the audit log keeps of a diagnosis."""
    return {
        "cause": diagnosis.cause,
        "headline": diagnosis.headline,
        "confidence": diagnosis.confidence,
        "author": diagnosis.author,
        "evidence": {item.id: item.sha256 for item in diagnosis.evidence},
    }


def _graver(known: str, finding: Finding) -> dict[str, Any]:
    """The incident's severity where a firing finding's is above it; an incident never becomes milder."""
    above = _SEVERITIES.index(finding.severity) > _SEVERITIES.index(Severity(known))
    return {"severity": finding.severity} if above and finding.state is State.FIRING else {}
