"""What is kept how long, and where the audit log's end is written down outside the database.

Ended incidents are removed whole once they are old, or once the evidence of all of them takes too much room, oldest
first; never one that is open, nor one whose action still holds capacity: the guard counts that. The audit log
outlives them. Its oldest records go later, and what the last of those was is kept as the chain's new beginning,
in a record of its own, so that the rest still verifies and a log that was cut by somebody else does not.

Defaults hold for a cluster of 1,000 GPUs: at 20 incidents a day with 200 kB of evidence each, 180 days take 0.7 GB;
an incident leaves about ten audit records of 2 kB, so three years take 0.4 GB.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
import structlog
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from nightshift.agent.store import audit
from nightshift.agent.store.anchors import line, signer_of
from nightshift.agent.store.audit import AuditHead, AuditLog
from nightshift.agent.store.database import Database
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.intents import commitments
from nightshift.agent.store.receipts import Receipts
from nightshift.agent.store.tables import diagnoses, incidents, intents, metadata, vendor_files
from nightshift.collectors.base import Permanent, Temporary
from nightshift.controllers.action import traits_of

DAY_S = 86_400.0
# Receipts of learned control are kept for so long: what an operator compares is the last month.
DECISIONS_DAYS = 30.0
# Most that diagnoses with their evidence take before old ones go: one dump still saves the whole database.
EVIDENCE_BYTES = 4 * 2**30
# Not the audit log: it only names the incident's number, and outlives it.
_OF_AN_INCIDENT = [
    # children first: a reading is of a diagnosis
    t
    for t in reversed(metadata.sorted_tables)
    if any(key.column.table is incidents for key in t.foreign_keys)
]
_AT_ONCE = 200


# How often records are looked after; the shortest time that anything is kept is in days.
EVERY_S = 3600.0
# How often the audit log's end is written down where it has moved: what happened since then has no anchor yet.
ANCHOR_EVERY_S = 60.0


class Settings(BaseModel):
    """How long incidents, evidence and the audit log are kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    incidents_days: float = Field(default=180.0, gt=0, description="Ended incidents with their evidence (days)")
    audit_days: float = Field(default=1095.0, gt=0, description="Records of the audit log (days)")
    anchor_file: Path | None = Field(
        default=None,
        description="File outside the database, e.g. on another volume; the audit log's head is appended to it",
    )
    anchor_key: Path | None = Field(
        default=None,
        description="File with the private key that signs each anchor (`nightshift audit keygen`), e.g. from "
        "a mounted Secret. Reloaded for each anchor",
    )


class Keeping:
    """Looked after by the replica that leads, every `EVERY_S`; the audit log's end every `ANCHOR_EVERY_S`."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.settings = settings
        self._database = database
        self._audit = AuditLog(database)
        self._next_s = self._next_anchor_s = float("-inf")
        self._anchored: AuditHead | None = None
        self._log = structlog.get_logger("keeping")

    def turn(self, now_s: float) -> None:
        """Does what is due. A failure is told and tried again the next time; it never holds up a look."""
        removed, cut = 0, 0
        # both bounds: a clock that was set back would else put off the next turn by as much
        tidy = not self._next_s - EVERY_S <= now_s < self._next_s
        if not tidy and self._next_anchor_s - ANCHOR_EVERY_S <= now_s < self._next_anchor_s:
            return
        # before the work: one that fails is tried at the next turn, not at every look
        self._next_anchor_s = now_s + ANCHOR_EVERY_S
        try:
            if tidy:
                self._next_s = now_s + EVERY_S
                removed, cut = self.remove_incidents(now_s), self.cut_audit(now_s)
                Receipts(self._database).prune(now_s - DECISIONS_DAYS * DAY_S)
            if tidy or self._audit.head() != self._anchored:
                self._anchored = self.anchor(now_s)
        except (Temporary, Permanent, OSError) as error:
            self._log.error("retention failed", error=str(error))
            return
        if removed or cut:
            self._log.info("old records removed", incidents=removed, audit_records=cut)

    def anchor(self, now_s: float) -> AuditHead:
        """Writes the log's end to the daemon's log and the anchor file."""
        head = self._audit.head()
        self._log.info("audit log anchored", anchor=str(head))
        self._write(now_s, head)
        return head

    def _write(self, now_s: float, head: AuditHead, *, cut: bool = False) -> None:
        if self.settings.anchor_file is not None:
            text = line(now_s, head, signer_of(self.settings.anchor_key), cut=cut)
            # opened for each line: the file may be rotated, or its volume mounted later
            with self.settings.anchor_file.open("a", encoding="ascii") as file:
                file.write(f"{text}\n")

    def remove_incidents(self, now_s: float) -> int:
        """Removes ended incidents that are too old, or too much; returns how many."""
        removed = 0
        while True:
            with self._database.write() as connection:
                # in pieces: SQLite's one write lock is free between them, and a finding can be stored
                numbers = self._outdated(connection, now_s)[:_AT_ONCE]
                if not numbers:
                    return removed
                # children before the incident: SQLite and PostgreSQL check foreign keys at each statement
                for table in _OF_AN_INCIDENT:
                    connection.execute(sa.delete(table).where(table.c.incident.in_(numbers)))
                connection.execute(sa.delete(incidents).where(incidents.c.number.in_(numbers)))
                body = {"incidents": numbers}
                audit.append(connection, at_s=now_s, kind="removed", by="retention", incident=None, body=body)
            removed += len(numbers)

    def _outdated(self, connection: Connection, now_s: float) -> list[int]:
        begun = commitments(connection)
        # the guard counts what these hold; forgetting one would let it take more than allowed
        held = {c.action.id for c in begun if c.released_s is None and traits_of(c.action.kind).takes_capacity}
        holding = sa.select(intents.c.incident).where(intents.c.action_id.in_(held))
        c = incidents.c
        ended = (c.state == str(IncidentState.RESOLVED)) & c.number.not_in(holding)
        old_s = now_s - self.settings.incidents_days * DAY_S
        query = sa.select(c.number).where(ended, c.updated_s < old_s).order_by(c.number)
        found = [row.number for row in connection.execute(query)]
        if found:
            return found
        pieces = sa.union_all(
            sa.select(diagnoses.c.incident, sa.func.length(diagnoses.c.body).label("size")),
            sa.select(vendor_files.c.incident, sa.func.length(vendor_files.c.content)),
        ).subquery()
        total = connection.execute(sa.select(sa.func.coalesce(sa.func.sum(pieces.c.size), 0))).scalar_one()
        left = int(total) - EVIDENCE_BYTES
        if left <= 0:
            return []
        each = sa.select(pieces.c.incident, sa.func.sum(pieces.c.size).label("size"))
        of = each.group_by(pieces.c.incident).subquery()
        query = sa.select(c.number, of.c.size).join(of, of.c.incident == c.number).where(ended)
        for row in connection.execute(query.order_by(c.updated_s)):
            if left <= 0:
                break
            found.append(row.number)
            left -= int(row.size)
        return found

    def cut_audit(self, now_s: float) -> int:
        """Removes audit records that are too old; returns how many. That it will is written outside first: after a
        crash between the two, the line allows what is due anyway."""
        through = audit.outdated(self._database, now_s - self.settings.audit_days * DAY_S)
        if through is None:
            return 0
        self._log.info("audit log cut", anchor=str(through))
        self._write(now_s, through, cut=True)
        return audit.cut(self._database, through, now_s)
