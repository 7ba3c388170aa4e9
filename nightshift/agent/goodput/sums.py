"""GPU-seconds of the books as they are stored: totals, what these can be split by, and what old rows become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import sqlalchemy as sa
from sqlalchemy import Connection

from nightshift.agent.goodput.accounts import Account
from nightshift.agent.goodput.settle import LedgerEntry, Sums
from nightshift.agent.goodput.signals import HOUR_S
from nightshift.agent.store.tables import goodput
from nightshift.agent.store.tenancy import namespaces_of
from nightshift.collectors.subject import Subject, SubjectKind

DAY_S = 24 * HOUR_S
HOURLY_S, KEEP_S = 8 * DAY_S, 400 * DAY_S


def team_of(job: str) -> str:
    """A job's namespace: teams own namespaces."""
    return next(iter(namespaces_of([Subject(SubjectKind.JOB, job)])), "") if job else ""


def thin_out(connection: Connection, now_s: float) -> None:
    """Joins old hours to days, and removes what is too old."""
    connection.execute(sa.delete(goodput).where(goodput.c.start_s < now_s - KEEP_S))
    before_s = (now_s - HOURLY_S) // DAY_S * DAY_S
    old = (goodput.c.span_s == HOUR_S) & (goodput.c.start_s < before_s)
    day = sa.func.floor(goodput.c.start_s / DAY_S) * DAY_S
    of = (goodput.c.account, goodput.c.job, goodput.c.node, goodput.c.cause, goodput.c.incident, goodput.c.team)
    sums = (
        sa.select(day.label("start_s"), *of, sa.func.sum(goodput.c.gpu_s).label("gpu_s"))
        .where(old)
        .group_by(day, *of)
    )
    rows = [{**row._mapping, "span_s": DAY_S} for row in connection.execute(sums)]
    if rows:
        connection.execute(sa.delete(goodput).where(old))
        connection.execute(sa.insert(goodput), rows)


def totals(connection: Connection, start_s: float, end_s: float, namespaces: Iterable[str] | None = None) -> Sums:
    """GPU-seconds of the rows that begin in [start_s, end_s), by entry; of some namespaces' jobs, or all."""
    of = (goodput.c.account, goodput.c.job, goodput.c.node, goodput.c.cause, goodput.c.incident)
    query = sa.select(*of, sa.func.sum(goodput.c.gpu_s).label("spent")).group_by(*of)
    query = query.where(goodput.c.start_s >= start_s // HOUR_S * HOUR_S, goodput.c.start_s < end_s)
    if namespaces is not None:
        query = query.where(goodput.c.team.in_(sorted(namespaces)))
    return {
        LedgerEntry(Account(row.account), row.job, row.node, row.cause, row.incident): row.spent
        for row in connection.execute(query)
    }


def summed(sums: Sums, key: Callable[[LedgerEntry], str]) -> dict[str, dict[Account, float]]:
    """By a key of the entries: account → GPU-seconds."""
    found: dict[str, dict[Account, float]] = {}
    for entry, spent in sums.items():
        of = found.setdefault(key(entry), {})
        of[entry.account] = of.get(entry.account, 0.0) + spent
    return found


BY: Mapping[str, Callable[[LedgerEntry], str]] = {
    "job": lambda entry: entry.job,
    "team": lambda entry: team_of(entry.job),
    "node": lambda entry: entry.node,
    "cause": lambda entry: entry.cause,
    "incident": lambda entry: entry.incident,
}
"""What a table can be split by."""
