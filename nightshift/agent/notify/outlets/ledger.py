"""What stands in the outlets, as far as we know: one row per incident, outlet and form, written before it is sent.

A row with `tried_s` is a call whose answer never came: it is made again under the same key, which the vendor takes
for the same alert. The row of the page is the claim to it: whoever has it pages, and nobody else does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from nightshift.agent.notify.outlets.letter import AlertPhase, Form
from nightshift.agent.store.archive import name_of, number_of
from nightshift.agent.store.database import Database
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.tables import incidents
from nightshift.agent.store.tables import outlet_alerts as alerts
from nightshift.agent.store.tables import outlet_rounds as rounds
from nightshift.detectors.base import Severity


@dataclass(frozen=True, slots=True)
class OutletAlert:
    """One alert outside. Columns as in `agent.store.tables.outlet_alerts`."""

    incident: int
    outlet: str
    form: Form
    turn: int
    severity: Severity
    due_s: float
    told: AlertPhase | None = None
    tried_s: float | None = None
    told_s: float | None = None
    withdrawn: int = 0

    @property
    def may_stand(self) -> bool:
        """Whether the outlet has it, or may have it."""
        return self.told in (AlertPhase.TRIGGERED, AlertPhase.ACKNOWLEDGED) or self.tried_s is not None


class OutletLedger:
    """Reads and writes the rows. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def news(self, now_s: float, limit: int) -> list[str]:
        """Incidents of which some outlet may not know how they stand, whoever waits longest first. What was over
        before any outlet knew of it is left alone."""
        i, r = incidents.c, rounds.c
        joined = sa.outerjoin(incidents, rounds, r.incident == i.number)
        unknown = r.incident.is_(None) & (i.state != IncidentState.RESOLVED)
        changed = (i.updated_s > r.seen_s) | (i.version > r.seen_version) | r.seen_s.is_(None)
        awake = r.held_until_s.is_(None) | (r.held_until_s <= now_s) | (i.state == IncidentState.RESOLVED)
        query = sa.select(i.number).select_from(joined)
        query = query.where(
            sa.or_(unknown, r.incident.is_not(None) & (changed | r.held_until_s.is_not(None)) & awake)
        )
        query = query.order_by(sa.func.coalesce(r.looked_s, 0.0), i.number).limit(limit)
        with self._database.read() as connection:
            return [name_of(number) for number in connection.execute(query).scalars()]

    def round(self, incident_id: str, wall_s: float, **values: Any) -> None:
        """Notes that an incident was looked at, and with what outcome."""
        row = {"incident": number_of(incident_id), "looked_s": wall_s, **values}
        mine = rounds.c.incident == row["incident"]
        with self._database.write() as connection:
            if not connection.execute(sa.update(rounds).where(mine).values(row)).rowcount:
                connection.execute(sa.insert(rounds).values(row))

    def alerts(self, incident_id: str) -> list[OutletAlert]:
        return self._rows(alerts.c.incident == number_of(incident_id))

    def put(self, *rows: OutletAlert) -> None:
        """Writes rows whole, all or none."""
        with self._database.write() as connection:
            for row in rows:
                there = connection.execute(sa.update(alerts).where(_is(row)).values(asdict(row))).rowcount
                if not there:
                    connection.execute(sa.insert(alerts).values(asdict(row)))

    def trying(self, rows: Collection[OutletAlert], wall_s: float) -> None:
        """Writes down that calls are about to be made."""
        self._change(rows, {"tried_s": wall_s})

    def unsent(self, rows: Collection[OutletAlert]) -> None:
        """They were refused: nothing happened by them."""
        for row in rows:
            self._change([row], {"tried_s": row.tried_s})

    def told(self, rows: Collection[OutletAlert], phase: AlertPhase, wall_s: float) -> None:
        self._change(rows, {"told": phase, "tried_s": None, "told_s": wall_s})

    def renewable(self, outlet: str, before_s: float, limit: int) -> list[OutletAlert]:
        """Standing alerts that were last sent before a wall time."""
        stands = alerts.c.told.in_((AlertPhase.TRIGGERED, AlertPhase.ACKNOWLEDGED)) & (alerts.c.outlet == outlet)
        return self._rows(stands & (alerts.c.told_s <= before_s), limit)

    def pages(self, outlet: str, limit: int) -> list[OutletAlert]:
        """Pages that stand in an outlet and that nobody has taken on."""
        mine = (alerts.c.outlet == outlet) & (alerts.c.form == Form.PAGE) & (alerts.c.told == AlertPhase.TRIGGERED)
        return self._rows(mine, limit)

    def pager(self, incident_id: str) -> str:
        """The outlet that paged for an incident and has it still; empty where none has."""
        mine = (alerts.c.incident == number_of(incident_id)) & (alerts.c.form == Form.PAGE)
        stands = alerts.c.told.in_((AlertPhase.TRIGGERED, AlertPhase.ACKNOWLEDGED)) & (alerts.c.withdrawn == 0)
        return next((row.outlet for row in self._rows(mine & stands)), "")

    def _change(self, rows: Collection[OutletAlert], values: dict[str, Any]) -> None:
        with self._database.write() as connection:
            for row in rows:
                connection.execute(sa.update(alerts).where(_is(row)).values(values))

    def _rows(self, where: sa.ColumnElement[bool], limit: int | None = None) -> list[OutletAlert]:
        query = sa.select(alerts).where(where).order_by(alerts.c.told_s, alerts.c.incident).limit(limit)
        with self._database.read() as connection:
            return [_alert(row._mapping) for row in connection.execute(query)]


def _is(row: OutletAlert) -> sa.ColumnElement[bool]:
    same = (alerts.c.incident == row.incident) & (alerts.c.outlet == row.outlet)
    return same & (alerts.c.form == row.form)


def _alert(row: Any) -> OutletAlert:
    told = None if row["told"] is None else AlertPhase(row["told"])
    typed = {"form": Form(row["form"]), "severity": Severity(row["severity"]), "told": told}
    return OutletAlert(**{**row, **typed})


__all__: Sequence[str] = ("OutletAlert", "OutletLedger")
