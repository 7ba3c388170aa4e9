"""Cases that a person or another system opens: findings on their way to the next look, which places them like any.

A row is keyed by its episode, so what is told twice is one. Whoever takes it up removes it once it is stored.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from nightshift.agent.store import audit
from nightshift.agent.store.database import Database
from nightshift.agent.store.records import dump, load
from nightshift.agent.store.tables import reports
from nightshift.collectors.base import Permanent
from nightshift.detectors.base import Finding

REPORTED_BY = "reported_by"
"""The fact of a finding that says who reported it."""
MAX_WAITING = 5_000
"""Most cases that may wait while no daemon leads."""


def is_report(finding: Finding) -> bool:
    return REPORTED_BY in finding.facts


class Reports:
    """Stateless: everything is in the store. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, findings: Iterable[Finding], at_s: float, by: str = "") -> int:
        """Stores findings, all or none, a later word over an earlier one; returns how many. A person (`by`) is
        audited; a system tells the same again every few minutes. Raises Permanent where too many wait."""
        rows = list(findings)
        with self._database.write() as connection:
            waiting = connection.execute(sa.select(sa.func.count()).select_from(reports)).scalar_one()
            if waiting + len(rows) > MAX_WAITING:
                raise Permanent(f"{waiting} cases wait to be opened: does a daemon lead?")
            for finding in rows:
                connection.execute(sa.delete(reports).where(reports.c.episode == finding.episode))
                row = {"episode": finding.episode, "at_s": finding.at.t_s, "body": dump(finding)}
                connection.execute(sa.insert(reports).values(row))
            if rows and by:
                told = {"cases": [f"{f.state} {f.subject}: {f.summary}" for f in rows[:20]], "count": len(rows)}
                audit.append(connection, at_s=at_s, kind="reported", by=by, incident=None, body=told)
        return len(rows)

    def waiting(self) -> list[Finding]:
        """The findings that no look has placed yet, the oldest first."""
        with self._database.read() as connection:
            bodies = connection.execute(sa.select(reports.c.body).order_by(reports.c.at_s)).scalars().all()
        return [load(Finding, body) for body in bodies]

    def remove(self, findings: Iterable[Finding]) -> None:
        """Takes away what was placed; a later word of the same episode stays."""
        with self._database.write() as connection:
            for finding in findings:
                mine = (reports.c.episode == finding.episode) & (reports.c.at_s <= finding.at.t_s)
                connection.execute(sa.delete(reports).where(mine))
