"""What stands in the chat, as far as we know: one row per message, written before it is sent.

A row with `tried_s` and without `ts` is a post whose answer never came: it may be there or not, so it is looked for
by its key (which the message carries as metadata) before it is sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from nightshift.agent.store.archive import name_of
from nightshift.agent.store.database import Database
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.tables import chat_messages as messages
from nightshift.agent.store.tables import incidents

_WATCH_S = 60.0
"""A lost post may still arrive this much later, beside the one that took its place."""
_WAITING = (IncidentState.AWAITING_APPROVAL, IncidentState.ESCALATED)


@dataclass(frozen=True, slots=True)
class Row:
    """A message that is, may be or will be in the chat. Columns as in `agent.store.tables.chat_messages`."""

    key: str
    kind: str
    incident: int | None
    channel: str
    thread: str | None = None
    ts: str | None = None
    content_sha256: str | None = None
    tried_s: float | None = None
    watch_until_s: float | None = None
    posted_s: float | None = None
    steps: int = 0
    seen_s: float | None = None
    seen_version: int | None = None
    held_until_s: float | None = None
    storm: str | None = None
    snoozed_until_s: float | None = None
    reminders: int = 0


def card_key(incident_id: str) -> str:
    return f"{incident_id}/card"


class ChatLedger:
    """Reads and writes the rows. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def row(self, key: str) -> Row | None:
        found = self._rows(messages.c.key == key)
        return found[0] if found else None

    def put(self, row: Row) -> None:
        """Writes a row whole; one of the same key is replaced."""
        values = {column.name: getattr(row, column.name) for column in messages.c}
        with self._database.write() as connection:
            done = connection.execute(sa.update(messages).where(messages.c.key == row.key).values(values)).rowcount
            if not done:
                connection.execute(sa.insert(messages).values(values))

    def join_storms(self, rows: Sequence[Row], now_s: float) -> None:
        """Writes rows of incidents that a storm's message stands for; the storms go on."""
        if not rows:
            return
        with self._database.write() as connection:
            connection.execute(sa.delete(messages).where(messages.c.key.in_([row.key for row in rows])))
            connection.execute(sa.insert(messages), [asdict(row) for row in rows])
            storms = messages.c.key.in_({row.storm for row in rows})
            connection.execute(sa.update(messages).where(storms).values(seen_s=now_s))

    def begin(self, row: Row, wall_s: float) -> bool:
        """Writes down that a post is about to be sent. False where it is there already, or being looked for."""
        kept = ("ts", "tried_s", "watch_until_s")
        values = {c.name: getattr(row, c.name) for c in messages.c if c.name not in kept} | {"tried_s": wall_s}
        mine = messages.c.key == row.key
        with self._database.write() as connection:
            old = connection.execute(sa.select(messages.c.ts, messages.c.tried_s).where(mine)).one_or_none()
            if old is not None and (old.ts is not None or old.tried_s is not None):
                return False
            statement = sa.insert(messages).values(values) if old is None else sa.update(messages).where(mine)
            connection.execute(statement.values(values))
        return True

    def change(self, key: str, **values: Any) -> None:
        with self._database.write() as connection:
            connection.execute(sa.update(messages).where(messages.c.key == key).values(values))

    def posted(self, key: str, ts: str, content_sha256: str, wall_s: float) -> None:
        """The chat has it. If an earlier try was without answer, a second copy is looked for during a minute."""
        with self._database.write() as connection:
            mine = messages.c.key == key
            row = connection.execute(sa.select(messages.c.watch_until_s).where(mine)).one()
            again = None if row.watch_until_s is None else wall_s + _WATCH_S
            values = {"ts": ts, "content_sha256": content_sha256, "tried_s": None, "watch_until_s": again}
            connection.execute(sa.update(messages).where(mine).values(values))

    def news(self, now_s: float) -> list[str]:
        """Incidents whose message is missing or out of date: open ones without a row, and those that changed. An
        incident that was over before the chat knew of it is left alone."""
        i, m = incidents.c, messages.c
        joined = sa.outerjoin(incidents, messages, (m.incident == i.number) & (m.kind == "card"))
        unknown = m.key.is_(None) & (i.state != IncidentState.RESOLVED)
        changed = (i.updated_s > m.seen_s) | (i.version > m.seen_version) | m.seen_s.is_(None)
        due = sa.or_(unknown, m.key.is_not(None) & changed, m.held_until_s <= now_s)
        query = sa.select(i.number).select_from(joined).where(due).order_by(i.number)
        with self._database.read() as connection:
            return [name_of(number) for number in connection.execute(query).scalars()]

    def thread(self, incident: int) -> set[str]:
        """Keys of what an incident's thread holds, or may hold: a post without an answer is being looked for."""
        there = messages.c.ts.is_not(None) | messages.c.tried_s.is_not(None)
        mine = (messages.c.incident == incident) & (messages.c.kind == "thread")
        query = sa.select(messages.c.key).where(mine & there)
        with self._database.read() as connection:
            return set(connection.execute(query).scalars())

    def unanswered(self) -> list[Row]:
        """Posts without an answer, and those of which a second copy may turn up."""
        lost = messages.c.tried_s.is_not(None) & messages.c.ts.is_(None)
        return self._rows(lost | messages.c.watch_until_s.is_not(None))

    def lately(self, channel: str, after_s: float) -> int:
        """Incidents whose own message was first put into a channel after a time."""
        m = messages.c
        mine = (m.channel == channel) & (m.kind == "card") & (m.posted_s > after_s) & m.storm.is_(None)
        with self._database.read() as connection:
            return int(connection.execute(sa.select(sa.func.count()).where(mine)).scalar_one())

    def storms(self, after_s: float) -> list[Row]:
        """Storm messages that somebody joined after a time (`seen_s` is when the last one did)."""
        return self._rows((messages.c.kind == "storm") & (messages.c.seen_s > after_s))

    def in_storm(self, key: str) -> list[str]:
        query = sa.select(messages.c.incident).where(messages.c.storm == key).order_by(messages.c.incident.desc())
        with self._database.read() as connection:
            return [name_of(number) for number in connection.execute(query).scalars()]

    def waiting(self, entered_before_s: float, reminders: int, now_s: float) -> list[str]:
        """Incidents with a message of their own that have waited for a person since before a time and were told so
        fewer than `reminders` times; snoozed ones are left out."""
        i, m = incidents.c, messages.c
        joined = sa.join(incidents, messages, (m.incident == i.number) & (m.kind == "card"))
        awake = m.snoozed_until_s.is_(None) | (m.snoozed_until_s <= now_s)
        due = i.state.in_(_WAITING) & (i.entered_s < entered_before_s) & (m.reminders < reminders)
        query = sa.select(i.number).select_from(joined).where(due & awake & m.ts.is_not(None))
        with self._database.read() as connection:
            return [name_of(number) for number in connection.execute(query).scalars()]

    def _rows(self, where: sa.ColumnElement[bool]) -> list[Row]:
        with self._database.read() as connection:
            return [Row(**row._mapping) for row in connection.execute(sa.select(messages).where(where))]


__all__: Sequence[str] = ("ChatLedger", "Row", "card_key")
