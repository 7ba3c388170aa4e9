"""The audit log: who did what and why, chained by hash, written in the transaction that it records.

Each record holds the SHA-256 of the one before it, so that a changed, missing, added or moved record breaks the
chain at the first place where it was touched; a head row beside the log shows where the log ends, so that a
shortened log is found too. Someone who can rewrite the whole database can rewrite the chain: for that, keep `head`
outside (a log line, a ticket, an object store with retention) and give it to `verify` as the anchor.

The shape follows Schneier and Kelsey, "Secure Audit Logs to Support Computer Forensics" (ACM TISSEC 2(2), 1999),
without their key evolution: the anchor takes its place.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from nightshift.agent.store.database import Database
from nightshift.agent.store.records import plain
from nightshift.agent.store.tables import audit, audit_head
from nightshift.collectors.seal import canonical_json, sha256_hex

FIRST = "0" * 64
"""What the first record gives as the hash before it."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One entry. `body` holds the facts of its kind; `sha256` seals it and everything before it."""

    number: int
    at_s: float
    kind: str
    by: str
    incident: str | None
    body: Mapping[str, Any]
    previous: str
    sha256: str


@dataclass(frozen=True, slots=True)
class AuditHead:
    """Where the log ends: keep it elsewhere to notice a rewritten log."""

    number: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.number}:{self.sha256}"

    @classmethod
    def parse(cls, text: str) -> AuditHead:
        number, separator, sha256 = text.strip().partition(":")
        if not separator or not number.isdecimal() or len(sha256) != 64:
            raise ValueError(f"anchor {text!r} is not NUMBER:SHA256")
        return cls(int(number), sha256)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What `verify` found. `broken` is the number of the first record that does not hold, with the reason."""

    records: int
    head: AuditHead
    broken: int | None = None
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.broken is None


def append(
    connection: Connection, *, at_s: float, kind: str, by: str, incident: int | None, body: Mapping[str, Any]
) -> None:
    """Adds a record inside the caller's open write transaction. Writers queue on the head row."""
    # the lock keeps writers in line on PostgreSQL; on SQLite the transaction holds the only write lock anyway
    last = connection.execute(sa.select(audit_head).where(audit_head.c.id == 1).with_for_update()).one()
    number = last.number + 1
    record = {
        "number": number,
        "at_s": at_s,
        "kind": kind,
        "by": by,
        "incident": incident,
        "body": plain(body),
        "previous": last.sha256,
    }
    text = canonical_json(record)
    seal = sha256_hex(text)
    connection.execute(sa.insert(audit).values(number=number, incident=incident, record=text.decode(), sha256=seal))
    connection.execute(sa.update(audit_head).where(audit_head.c.id == 1).values(number=number, sha256=seal))


_BASE = 2
"""Row of the head table that holds the last record that retention removed: where the chain begins now."""


def outdated(database: Database, before_s: float) -> AuditHead | None:
    """The end of the log's old beginning: the last record of those from its first on that are older than a time,
    never the newest of all. A record in the middle whose clock was behind makes nothing before it old."""
    with database.read() as connection:
        newest = connection.execute(sa.select(sa.func.max(audit.c.number))).scalar_one()
        last = None
        # a log of years does not fit into memory
        rows = connection.execution_options(yield_per=1000).execute(sa.select(audit).order_by(audit.c.number))
        for row in rows:
            if row.number == newest or json.loads(row.record)["at_s"] >= before_s:
                break
            last = AuditHead(row.number, row.sha256)
        return last


def cut(database: Database, through: AuditHead, now_s: float) -> int:
    """Removes the records up to this one; returns how many. The chain goes on from there."""
    with database.write() as connection:
        connection.execute(sa.select(audit_head.c.id).where(audit_head.c.id == 1).with_for_update())
        removed = connection.execute(sa.delete(audit).where(audit.c.number <= through.number)).rowcount
        # in the same transaction: a log that was cut without its new beginning would look tampered with
        connection.execute(sa.delete(audit_head).where(audit_head.c.id == _BASE))
        connection.execute(sa.insert(audit_head).values(id=_BASE, number=through.number, sha256=through.sha256))
        body = {"through": through.number, "sha256": through.sha256}
        append(connection, at_s=now_s, kind="cut", by="retention", incident=None, body=body)
        return int(removed)


class AuditLog:
    """Reads and verifies the log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def head(self) -> AuditHead:
        with self._database.read() as connection:
            row = connection.execute(sa.select(audit_head).where(audit_head.c.id == 1)).one()
        return AuditHead(row.number, row.sha256)

    def records(
        self, *, incident: int | None = None, limit: int | None = None, newest_first: bool = False
    ) -> list[AuditRecord]:
        """Records in order, of one incident or of all."""
        query = sa.select(audit).limit(limit)
        query = query.order_by(audit.c.number.desc() if newest_first else audit.c.number)
        if incident is not None:
            query = query.where(audit.c.incident == incident)
        with self._database.read() as connection:
            return [_record(row.record, row.sha256) for row in connection.execute(query)]

    def verify(
        self, anchor: AuditHead | Iterable[AuditHead] = (), cuts: Collection[AuditHead] | None = None
    ) -> AuditReport:
        """Walks the whole log and names the first record that was changed, removed, added or moved.

        Anchors on records that retention has removed say nothing any more; a log that begins after all of them
        fails. `cuts`: where retention said outside that it would cut; whoever can write the database can write a
        record of a cut, too. None: nobody knows."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(audit_head).where(audit_head.c.id == 1)).one_or_none()
            end = AuditHead(row.number, row.sha256) if row else AuditHead(0, "")
            query = sa.select(audit.c.number, audit.c.incident, self._bytes("record"), self._bytes("sha256"))
            base = connection.execute(sa.select(audit_head).where(audit_head.c.id == _BASE)).one_or_none()
            start = AuditHead(base.number, base.sha256) if base else AuditHead(0, FIRST)
            rows = connection.execution_options(yield_per=1000).execute(query.order_by(audit.c.number))
            anchors = [anchor] if isinstance(anchor, AuditHead) else list(anchor)
            # whoever can write the database can write a record of a cut; only an anchor outside vouches for it
            if cuts is not None and start.number and str(start) not in map(str, cuts):
                return AuditReport(0, end, start.number, "the log was cut here, and no anchor says so of retention")
            return _walk(iter(rows), end, start, anchors)

    def _bytes(self, column: str) -> sa.Label[bytes]:
        """A text column as the bytes on disk, which after tampering need not be UTF-8."""
        text = audit.c[column]
        # PostgreSQL's cast of text to bytea reads backslashes as escapes; convert_to does not
        raw = sa.cast(text, sa.LargeBinary) if self._database.is_sqlite else sa.func.convert_to(text, "UTF8")
        return raw.label(column)


def _walk(rows: Iterator[Any], end: AuditHead, start: AuditHead, anchors: Sequence[AuditHead]) -> AuditReport:
    told = {anchor.number: anchor.sha256 for anchor in anchors}
    last = max(told, default=start.number)
    if told.get(start.number, start.sha256) != start.sha256:
        why = "it is not the record that the anchor names: the log was cut and rewritten"
        return AuditReport(0, end, start.number, why)
    if last < start.number:
        why = f"the log begins after {start.number}, beyond every anchor: it cannot be checked"
        return AuditReport(0, end, start.number, why)
    at, cut, count = start, "", 0
    for row in rows:
        if reason := _fault(row, at, told):
            return AuditReport(count, end, at.number + 1, reason)
        at, count, cut = AuditHead(row.number, row.sha256.decode()), count + 1, _cut_in(row) or cut
    if at.number < last:
        return AuditReport(count, end, at.number + 1, f"the log ends here, the anchor is at {last}")
    if end != at:
        return AuditReport(count, end, at.number + 1, f"the log ends here, its head says {end}")
    if start.number and cut != str(start):
        return AuditReport(
            count, end, start.number, "records before are missing, and retention did not remove them"
        )
    return AuditReport(count, end)


def _cut_in(row: Any) -> str:
    """Where a record says that retention cut the log; empty for every other record."""
    if b'"kind":"cut"' not in row.record:  # few are: no other record is parsed twice
        return ""
    record = json.loads(row.record)
    return f"{record['body']['through']}:{record['body']['sha256']}" if record["kind"] == "cut" else ""


def _fault(row: Any, before: AuditHead, told: Mapping[int, str]) -> str:
    """What is wrong with a record that has to follow the one before it; empty where it does."""
    expected, previous = before.number + 1, before.sha256
    if row.number != expected:
        return f"record {expected} is missing; the next one is {row.number}"
    if sha256_hex(row.record).encode() != row.sha256:
        return "its text does not have its hash"
    record = json.loads(row.record)
    if record["previous"] != previous:
        return "it does not follow the record before it"
    # lists go by the columns: a record could be hidden from its incident without a change of its text
    if (record["number"], record["incident"]) != (row.number, row.incident):
        return "its columns do not match its text"
    if told.get(expected, row.sha256.decode()) != row.sha256.decode():
        return "it is not the record that the anchor names: the log was rewritten"
    return ""


def _record(text: str, sha256: str) -> AuditRecord:
    read = json.loads(text)
    incident = None if read["incident"] is None else f"INC-{read['incident']}"
    return AuditRecord(
        read["number"], read["at_s"], read["kind"], read["by"], incident, read["body"], read["previous"], sha256
    )
