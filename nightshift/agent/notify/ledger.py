"""What stands outside, as far as we know: one row per message or alert, written before it is sent.

A row with `tried_s` is a send whose answer never came: it may be there or not. Where the outlet knows a message by
our key, it is sent again under that key; where a second send would make a second copy (Slack), it is looked for
first. The row of a page is the claim to it: whoever has it pages, and nobody else does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from nightshift.agent.store.archive import name_of, number_of
from nightshift.agent.store.database import Database
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.tables import deliveries, incidents
from nightshift.detectors.base import Severity

# A lost post may still arrive this much later, beside the one that took its place.
WATCH_S = 60.0
CARD, THREAD, STORM, PROPOSAL = "card", "thread", "storm", "proposal"
PAGE, SHOWN = "page", "shown"
TICKET = "ticket"
# The pagers' joint row of an incident: what all of them were told. In the chat the card has that part itself.
ROUND = "round"
STANDING = ("triggered", "acknowledged")


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message or an alert that is, may be or will be outside. Columns as in `agent.store.tables.deliveries`."""

    key: str
    outlet: str
    kind: str
    incident: int | None = None
    channel: str = ""
    thread: str | None = None
    ts: str | None = None
    shows: str | None = None
    tried_s: float | None = None
    told_s: float | None = None
    watch_until_s: float | None = None
    posted_s: float | None = None
    steps: int = 0
    seen_s: float | None = None
    seen_version: int | None = None
    held_until_s: float | None = None
    storm: str | None = None
    snoozed_until_s: float | None = None
    reminders: int = 0
    turn: int = 0
    severity: Severity | None = None
    due_s: float | None = None
    withdrawn: int = 0

    @property
    def may_stand(self) -> bool:
        """Whether the outlet has the alert, or may have it."""
        return self.shows in STANDING or self.tried_s is not None


def card_key(incident_id: str) -> str:
    return f"{incident_id}/card"


def ticket_key(incident_id: str) -> str:
    return f"{incident_id}/ticket"


def round_key(incident_id: str) -> str:
    return f"{incident_id}/round"


def alert_key(outlet: str, incident: int, form: str) -> str:
    return f"{outlet}/{name_of(incident)}/{form}"


class DeliveryLedger:
    """Reads and writes the rows. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # Any outlet -------------------------------------------------------------------------------------------------

    def row(self, key: str) -> Delivery | None:
        found = self._rows(deliveries.c.key == key)
        return found[0] if found else None

    def put(self, *rows: Delivery) -> None:
        """Writes rows whole, all or none; those of the same keys are replaced."""
        with self._database.write() as connection:
            for row in rows:
                _put(connection, row.key, asdict(row))

    def change(self, key: str, **values: Any) -> None:
        with self._database.write() as connection:
            connection.execute(sa.update(deliveries).where(deliveries.c.key == key).values(values))

    def begin(self, row: Delivery, wall_s: float) -> bool:
        """Writes down that a post is about to be sent. False where it is there already, or being looked for."""
        kept = ("ts", "tried_s", "watch_until_s")
        values = {name: value for name, value in asdict(row).items() if name not in kept} | {"tried_s": wall_s}
        query = sa.select(deliveries.c.ts, deliveries.c.tried_s).where(deliveries.c.key == row.key)
        with self._database.write() as connection:
            old = connection.execute(query).one_or_none()
            if old is not None and (old.ts is not None or old.tried_s is not None):
                return False
            _put(connection, row.key, values)
        return True

    def trying(self, rows: Collection[Delivery], wall_s: float) -> None:
        """Writes down that calls are about to be made, which the outlet takes for the same ones where it had
        them."""
        self._change(rows, {"tried_s": wall_s})

    def unsent(self, rows: Collection[Delivery]) -> None:
        """They were refused: nothing happened by them."""
        for row in rows:
            self._change([row], {"tried_s": row.tried_s})

    def told(self, rows: Collection[Delivery], shows: str, wall_s: float, ts: str | None = None) -> None:
        """The outlet has them, and shows that. Of a post of which an earlier try was without answer, a second copy
        is looked for during a minute."""
        watched = sa.case((deliveries.c.watch_until_s.is_not(None), wall_s + WATCH_S))
        values = {"ts": ts, "shows": shows, "tried_s": None, "told_s": wall_s, "watch_until_s": watched}
        self._change(rows, values)

    def news(self, kind: str, now_s: float) -> list[str]:
        """Incidents of which the outlets may not know how they stand, by the row of that kind (`CARD`, `ROUND`):
        open ones without a row, those that changed, and those that were held back until now. An incident that was
        over before any outlet knew of it is left alone."""
        i, d = incidents.c, deliveries.c
        joined = sa.outerjoin(incidents, deliveries, (d.incident == i.number) & (d.kind == kind))
        unknown = d.key.is_(None) & (i.state != IncidentState.RESOLVED)
        changed = (i.updated_s > d.seen_s) | (i.version > d.seen_version) | d.seen_s.is_(None)
        due = sa.or_(unknown, d.key.is_not(None) & changed, d.held_until_s <= now_s)
        return self._names(sa.select(i.number).select_from(joined).where(due).order_by(i.number))

    def _names(self, query: sa.Select[Any]) -> list[str]:
        with self._database.read() as connection:
            return [name_of(number) for number in connection.execute(query).scalars()]

    def _change(self, rows: Collection[Delivery], values: dict[str, Any]) -> None:
        keys = deliveries.c.key.in_([row.key for row in rows])
        with self._database.write() as connection:
            connection.execute(sa.update(deliveries).where(keys).values(values))

    def _rows(self, where: sa.ColumnElement[bool], limit: int | None = None) -> list[Delivery]:
        order = (deliveries.c.told_s, deliveries.c.incident, deliveries.c.key)
        query = sa.select(deliveries).where(where).order_by(*order).limit(limit)
        with self._database.read() as connection:
            return [_delivery(row._mapping) for row in connection.execute(query)]

    # Chat -------------------------------------------------------------------------------------------------------

    def unanswered(self, outlet: str) -> list[Delivery]:
        """Posts without an answer, and those of which a second copy may turn up."""
        lost = deliveries.c.tried_s.is_not(None) & deliveries.c.ts.is_(None)
        return self._rows((deliveries.c.outlet == outlet) & (lost | deliveries.c.watch_until_s.is_not(None)))

    def thread(self, incident: int) -> set[str]:
        """Keys of what an incident's thread holds, or may hold: a post without an answer is being looked for."""
        there = deliveries.c.ts.is_not(None) | deliveries.c.tried_s.is_not(None)
        mine = (deliveries.c.incident == incident) & (deliveries.c.kind == THREAD)
        with self._database.read() as connection:
            return set(connection.execute(sa.select(deliveries.c.key).where(mine & there)).scalars())

    def card_of(self, channel: str, ts: str) -> Delivery | None:
        """The incident's message that stands at a place of the chat."""
        at = (deliveries.c.channel == channel) & (deliveries.c.ts == ts) & (deliveries.c.kind == CARD)
        return next(iter(self._rows(at)), None)

    def lately(self, channel: str, after_s: float) -> int:
        """Incidents whose own message was first put into a channel after a time."""
        d = deliveries.c
        mine = (d.channel == channel) & (d.kind == CARD) & (d.posted_s > after_s) & d.storm.is_(None)
        with self._database.read() as connection:
            return int(connection.execute(sa.select(sa.func.count()).where(mine)).scalar_one())

    def storms(self, after_s: float) -> list[Delivery]:
        """Storm messages that an incident joined after a time (`seen_s` is when the last one did)."""
        return self._rows((deliveries.c.kind == STORM) & (deliveries.c.seen_s > after_s))

    def in_storm(self, key: str) -> list[str]:
        mine = deliveries.c.storm == key
        return self._names(sa.select(deliveries.c.incident).where(mine).order_by(deliveries.c.incident.desc()))

    def join_storms(self, rows: Sequence[Delivery], now_s: float) -> None:
        """Writes rows of incidents that a storm's message stands for; the storms go on."""
        if not rows:
            return
        with self._database.write() as connection:
            connection.execute(sa.delete(deliveries).where(deliveries.c.key.in_([row.key for row in rows])))
            connection.execute(sa.insert(deliveries), [asdict(row) for row in rows])
            storms = deliveries.c.key.in_({row.storm for row in rows})
            connection.execute(sa.update(deliveries).where(storms).values(seen_s=now_s))

    def waiting(self, opened_before_s: float, now_s: float) -> list[tuple[str, float]]:
        """(Incident, when it changed) of open, unsnoozed ones with a message of their own, opened before a time."""
        i, d = incidents.c, deliveries.c
        joined = sa.join(incidents, deliveries, (d.incident == i.number) & (d.kind == CARD))
        awake = d.snoozed_until_s.is_(None) | (d.snoozed_until_s <= now_s)
        due = (i.state != IncidentState.RESOLVED) & (i.opened_s < opened_before_s) & awake & d.ts.is_not(None)
        query = sa.select(i.number, i.updated_s).select_from(joined).where(due)
        with self._database.read() as connection:
            return [(name_of(number), updated_s) for number, updated_s in connection.execute(query)]

    # Pagers -----------------------------------------------------------------------------------------------------

    def round(self, incident_id: str, **values: Any) -> None:
        """Notes that an incident was looked at, and with what outcome."""
        blank = Delivery(round_key(incident_id), "", ROUND, number_of(incident_id))
        with self._database.write() as connection:
            mine = sa.update(deliveries).where(deliveries.c.key == blank.key).values(values)
            if not connection.execute(mine).rowcount:
                connection.execute(sa.insert(deliveries).values(asdict(blank) | values))

    def alerts(self, incident_id: str) -> list[Delivery]:
        return self._rows((deliveries.c.incident == number_of(incident_id)) & deliveries.c.kind.in_((PAGE, SHOWN)))

    def renewable(self, outlet: str, before_s: float, limit: int) -> list[Delivery]:
        """Standing alerts that were last sent before a wall time."""
        stands = (deliveries.c.outlet == outlet) & deliveries.c.shows.in_(STANDING)
        return self._rows(stands & (deliveries.c.told_s <= before_s), limit)

    def pages(self, outlet: str, limit: int) -> list[Delivery]:
        """Pages that stand in an outlet and that nobody has taken on."""
        d = deliveries.c
        return self._rows((d.outlet == outlet) & (d.kind == PAGE) & (d.shows == STANDING[0]), limit)

    def tickets(self, outlet: str, before_s: float, limit: int) -> list[Delivery]:
        """Tickets that we keep open and that were last called before a wall time, the longest ago first."""
        d = deliveries.c
        open_ = (d.outlet == outlet) & (d.kind == TICKET) & d.ts.is_not(None) & (d.withdrawn == 0)
        return self._rows(open_ & d.shows.startswith("open ") & (d.told_s <= before_s), limit)

    def pager(self, incident_id: str) -> str:
        """The outlet that paged for an incident and has it still; empty where none has."""
        d = deliveries.c
        mine = (d.incident == number_of(incident_id)) & (d.kind == PAGE) & (d.withdrawn == 0)
        return next((row.outlet for row in self._rows(mine & d.shows.in_(STANDING))), "")


def _put(connection: Connection, key: str, values: dict[str, Any]) -> None:
    mine = sa.update(deliveries).where(deliveries.c.key == key)
    if not connection.execute(mine.values(values)).rowcount:
        connection.execute(sa.insert(deliveries).values(values))


def _delivery(row: Any) -> Delivery:
    severity = None if row["severity"] is None else Severity(row["severity"])
    return Delivery(**{**row, "severity": severity})


__all__: Sequence[str] = ("Delivery", "DeliveryLedger", "alert_key", "card_key", "round_key", "ticket_key")
