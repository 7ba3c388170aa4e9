"""Figures of the ledger over a stretch of time: accounts, ETTR, faults, what was saved, money. Each estimate has an
interval and its count beside it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy import Connection

from nightshift.agent.goodput.accounts import ACCOUNTS, HELD, NOT_KNOWN, SURVIVED, WAITING, Account, Nest
from nightshift.agent.goodput.settle import Sums
from nightshift.agent.goodput.sums import BY, summed, totals
from nightshift.agent.store.incident import Cause, IncidentState
from nightshift.agent.store.tables import findings, incidents, intents, steps, tenancies
from nightshift.detectors.base import Fault
from nightshift.detectors.tails import gamma_quantile

HOUR_S = 3600.0
_CONFIDENCE = 0.9
_DRAWS = 500
_MOST_INCIDENTS = 5_000


@dataclass(frozen=True, slots=True)
class GoodputEstimate:
    """A figure and its 90 % interval, or its bounds; NaN: not known. `n`: of how many."""

    value: float
    low: float
    high: float
    n: int = 0


NOT_KNOWN_YET = GoodputEstimate(math.nan, math.nan, math.nan)


def ettr(sums: Sums, queueing: bool) -> GoodputEstimate:
    """Effective training time ratio: time in surviving steps over held time, of jobs that report steps; with the
    time that they waited where `queueing`. Bounds: everything that is not known was lost, or was useful.

    >>> from nightshift.agent.goodput.settle import LedgerEntry
    >>> sums = {LedgerEntry(Account.UNATTRIBUTED, "a"): 80.0, LedgerEntry(Account.HUNG, "a"): 10.0,
    ...         LedgerEntry(Account.UNEXPLAINED, "a"): 10.0, LedgerEntry(Account.QUEUED, "a"): 25.0}
    >>> ettr(sums, False)
    GoodputEstimate(value=0.8, low=0.8, high=0.9, n=1)
    >>> ettr(sums, True).value
    0.64
    """
    jobs = {entry.job for entry in sums if entry.account in SURVIVED}
    amounts: dict[Account, float] = {}
    for entry, spent in sums.items():
        if entry.job:
            amounts[entry.account] = amounts.get(entry.account, 0.0) + spent
    survived = sum(amounts.get(account, 0.0) for account in SURVIVED)
    held = sum(spent for account, spent in amounts.items() if account not in WAITING)
    waited = sum(amounts.get(account, 0.0) for account in WAITING) if queueing else 0.0
    unknown = sum(amounts.get(account, 0.0) for account in NOT_KNOWN)
    told = held - amounts.get(Account.NO_STEPS, 0.0) + waited
    if told <= 0 or not jobs:
        return NOT_KNOWN_YET
    return GoodputEstimate(
        survived / told, survived / (held + waited), (survived + unknown) / (held + waited), len(jobs)
    )


@dataclass(frozen=True, slots=True)
class IncidentTimes:
    """When an incident's fault began, was found, was acted on by us, and was over (Unix s; None: not)."""

    cause: str
    onset_s: float
    opened_s: float
    acted_s: float | None
    over_s: float | None
    false: bool = False


@dataclass(frozen=True, slots=True)
class FaultLine:
    """One kind of fault. `lost_gpu_s`: in accounts that name it as cause."""

    cause: str
    count: int
    lost_gpu_s: float
    mtbf_s: GoodputEstimate
    mttr_s: GoodputEstimate


@dataclass(frozen=True, slots=True)
class Response:
    """Medians over incidents (s). `alone`: from onset to the end where nothing of ours acted: the team's own way.
    `saved_s`: how much sooner one is over where we acted."""

    detected_s: GoodputEstimate
    acted_s: GoodputEstimate
    over_s: GoodputEstimate
    alone_s: GoodputEstimate
    saved_s: GoodputEstimate


@dataclass(frozen=True)
class GoodputReport:
    """Everything that the page, the weekly message and the CSV show."""

    start_s: float
    end_s: float
    sums: Sums
    ettr: GoodputEstimate
    ettr_with_queueing: GoodputEstimate
    faults: tuple[FaultLine, ...]
    response: Response
    price: float | None = None
    """Of one GPU-hour, in the operator's currency."""

    @property
    def amounts(self) -> dict[Account, float]:
        """Account → GPU-seconds, all accounts, in the table's order."""
        of = summed(self.sums, lambda entry: "").get("", {})
        return {account: of.get(account, 0.0) for account in ACCOUNTS}

    @property
    def wall_gpu_s(self) -> float:
        """Wall time × GPUs: the sum of all accounts but those of waiting jobs."""
        return sum(spent for account, spent in self.amounts.items() if account not in WAITING)

    @property
    def unattributed(self) -> float:
        """Share of surviving steps' time that no job splits; NaN: no steps."""
        amounts = self.amounts
        survived = sum(amounts[account] for account in SURVIVED)
        return amounts[Account.UNATTRIBUTED] / survived if survived else math.nan

    def nests(self) -> dict[Nest, dict[Account, float]]:
        """Accounts by where they nest."""
        found: dict[Nest, dict[Account, float]] = {}
        for account, spent in self.amounts.items():
            found.setdefault(ACCOUNTS[account].nest, {})[account] = spent
        return found

    def by(self, key: str, limit: int = 20) -> list[tuple[str, dict[Account, float]]]:
        """The largest of a split, by time that was held or out of use and in no surviving step."""
        rows = summed(self.sums, BY[key])
        rows.pop("", None)
        return sorted(rows.items(), key=lambda row: -lost(row[1]))[:limit]

    def money(self, gpu_s: float) -> float:
        """What GPU-seconds cost; NaN without a price."""
        return math.nan if self.price is None else gpu_s / HOUR_S * self.price


def lost(amounts: Mapping[Account, float]) -> float:
    """GPU-seconds that were held, or out of use for a fault, and in no surviving step."""
    out = (HELD - SURVIVED) | {Account.UNHEALTHY, Account.IN_REPAIR, Account.DATA_WAIT, Account.STRAGGLING}
    return sum(spent for account, spent in amounts.items() if account in out)


def make(
    connection: Connection,
    start_s: float,
    end_s: float,
    price: float | None = None,
    namespaces: Iterable[str] | None = None,
) -> GoodputReport:
    """The report of [start_s, end_s) (Unix s); of some namespaces' jobs and incidents, or all."""
    mine = None if namespaces is None else sorted(namespaces)
    sums = totals(connection, start_s, end_s, mine)
    times = incident_times(connection, start_s, end_s, mine)
    return GoodputReport(
        start_s, end_s, sums, ettr(sums, False), ettr(sums, True), fault_lines(times, sums, end_s - start_s),
        response(times), price,
    )  # fmt: skip


def incident_times(
    connection: Connection, start_s: float, end_s: float, namespaces: Sequence[str] | None = None
) -> list[IncidentTimes]:
    """Of the incidents that were opened in a range."""
    number = incidents.c.number
    onset = sa.select(sa.func.min(findings.c.since_s)).where(findings.c.incident == number).scalar_subquery()
    first = sa.select(findings.c.fault).where(findings.c.incident == number).order_by(findings.c.since_s).limit(1)
    acted = sa.select(sa.func.min(intents.c.at_s)).where(intents.c.incident == number, intents.c.phase == "act")
    false = sa.select(sa.func.count()).where(steps.c.incident == number, steps.c.cause == str(Cause.NOT_A_FAULT))
    query = sa.select(
        incidents.c.cause, incidents.c.opened_s, incidents.c.state, incidents.c.entered_s, onset.label("onset"),
        first.scalar_subquery().label("fault"), acted.scalar_subquery().label("acted"),
        false.scalar_subquery().label("false"),
    ).where(incidents.c.opened_s >= start_s, incidents.c.opened_s < end_s)  # fmt: skip
    if namespaces is not None:
        query = query.where(
            number.in_(sa.select(tenancies.c.incident).where(tenancies.c.namespace.in_(namespaces)))
        )
    found = []
    for row in connection.execute(query.order_by(incidents.c.opened_s.desc()).limit(_MOST_INCIDENTS)):
        over_s = row.entered_s if row.state == IncidentState.RESOLVED else None
        onset_s = row.opened_s if row.onset is None else min(row.onset, row.opened_s)
        cause = row.cause or row.fault or "not known"
        found.append(IncidentTimes(cause, onset_s, row.opened_s, row.acted, over_s, bool(row.false)))
    return found


def fault_lines(times: Sequence[IncidentTimes], sums: Sums, span_s: float) -> tuple[FaultLine, ...]:
    """By kind of fault, the one that cost most first. MTBF is of the whole fleet; its interval is exact for faults
    that come independently (gamma quantiles of the count)."""
    spent = {cause: lost(amounts) for cause, amounts in summed(sums, BY["cause"]).items() if cause}
    real = [item for item in times if not item.false]
    lines = []
    for cause in {item.cause for item in real} | set(spent):
        mine = [item for item in real if item.cause == cause]
        lasted = [item.over_s - item.onset_s for item in mine if item.over_s is not None]
        lines.append(
            FaultLine(cause, len(mine), spent.get(cause, 0.0), mtbf(len(mine), span_s), bootstrap(lasted, np.mean))
        )
    return tuple(sorted(lines, key=lambda line: (-line.lost_gpu_s, -line.count, line.cause)))


def mtbf(count: int, span_s: float) -> GoodputEstimate:
    """Mean time between `count` faults of a time; of none the lower bound alone is known.

    >>> round(mtbf(10, 100.0).value), round(mtbf(10, 100.0).low, 1), round(mtbf(10, 100.0).high, 1)
    (10, 5.9, 18.4)
    """
    tail = (1 - _CONFIDENCE) / 2
    low = span_s / gamma_quantile(count + 1, 1 - tail)
    if count == 0:
        return GoodputEstimate(math.nan, low, math.nan, 0)
    return GoodputEstimate(span_s / count, low, span_s / gamma_quantile(count, tail), count)


def bootstrap(values: Sequence[float], of: Callable[..., object]) -> GoodputEstimate:
    """A statistic of values with a bootstrap interval; of one value alone no interval is known."""
    if not values:
        return NOT_KNOWN_YET
    sample = np.asarray(values, dtype=float)
    value = float(of(sample))  # type: ignore[arg-type]
    if len(sample) < 3:
        return GoodputEstimate(value, math.nan, math.nan, len(sample))
    rng = np.random.default_rng(0)
    drawn = np.asarray(of(rng.choice(sample, (_DRAWS, len(sample))), axis=1))
    low, high = np.quantile(drawn, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return GoodputEstimate(value, float(low), float(high), len(sample))


def response(times: Sequence[IncidentTimes]) -> Response:
    """How soon faults were found, acted on and over; and against incidents that people ended without us."""
    real = [item for item in times if not item.false]
    ended = [item for item in real if item.over_s is not None]
    ours = [item.over_s - item.onset_s for item in ended if item.acted_s is not None and item.over_s is not None]
    theirs = [item.over_s - item.onset_s for item in ended if item.acted_s is None and item.over_s is not None]
    acted = [item.acted_s - item.onset_s for item in real if item.acted_s is not None]
    return Response(
        bootstrap([item.opened_s - item.onset_s for item in real], np.median),
        bootstrap(acted, np.median),
        bootstrap(ours, np.median),
        bootstrap(theirs, np.median),
        _difference(theirs, ours),
    )


def _difference(before: Sequence[float], after: Sequence[float]) -> GoodputEstimate:
    """How much less the median of `after` is, with a bootstrap interval; three of each are needed."""
    if min(len(before), len(after)) < 3:
        return NOT_KNOWN_YET
    rng = np.random.default_rng(0)
    drawn = [np.median(rng.choice(np.asarray(values), (_DRAWS, len(values))), axis=1) for values in (before, after)]
    low, high = np.quantile(drawn[0] - drawn[1], [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    value = float(np.median(before) - np.median(after))
    return GoodputEstimate(value, float(low), float(high), len(before) + len(after))


_FAULTS = frozenset(str(fault) for fault in Fault)


def figures_of(sums: Sums) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
    """(GPU-seconds by account and cause, ETTR by whether queueing counts) for Prometheus. A cause that is no fault
    is a job's own word, which no label may have."""
    found: dict[tuple[str, str], float] = {}
    for entry, spent in sums.items():
        key = (str(entry.account), entry.cause if entry.cause in _FAULTS else "")
        found[key] = found.get(key, 0.0) + spent
    return found, {"without": ettr(sums, False).value, "with": ettr(sums, True).value}


def as_json(report: GoodputReport, by: str, limit: int = 20) -> dict[str, Any]:
    """The report as JSON values: GPU-seconds, seconds, ratios; null: not known. An estimate is value, low, high,
    n."""
    response = {f.name: _plain(getattr(report.response, f.name)) for f in fields(report.response)}
    return {
        "start_s": report.start_s, "end_s": report.end_s, "wall_gpu_s": report.wall_gpu_s, "price": report.price,
        "accounts": [
            {"account": str(a), "nest": str(ACCOUNTS[a].nest), "gpu_s": spent, "cost": _number(report.money(spent))}
            for a, spent in report.amounts.items()
        ],
        "unattributed": _number(report.unattributed),
        "ettr": _plain(report.ettr), "ettr_with_queueing": _plain(report.ettr_with_queueing),
        "response": response,
        "faults": [
            {"cause": f.cause, "count": f.count, "lost_gpu_s": f.lost_gpu_s}
            | {"mtbf_s": _plain(f.mtbf_s), "mttr_s": _plain(f.mttr_s)}
            for f in report.faults
        ],
        "by": by,
        "rows": [
            {"name": name, "lost_gpu_s": lost(amounts), "gpu_s": {str(a): spent for a, spent in amounts.items()}}
            for name, amounts in report.by(by, limit)
        ],
    }  # fmt: skip


def _plain(figure: GoodputEstimate) -> dict[str, float | int | None]:
    return {"value": _number(figure.value), "low": _number(figure.low), "high": _number(figure.high), "n": figure.n}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def as_csv(report: GoodputReport) -> str:
    """Every entry as a row."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(("account", "nest", "job", "team", "node", "cause", "incident", "gpu_seconds", "cost"))
    for entry, spent in sorted(report.sums.items(), key=lambda item: -item[1]):
        cost = "" if report.price is None else f"{report.money(spent):.2f}"
        names = (entry.job, BY["team"](entry), entry.node, entry.cause, entry.incident)
        rows.writerow((entry.account, ACCOUNTS[entry.account].nest, *map(_safe, names), f"{spent:.3f}", cost))
    return out.getvalue()


def _safe(text: str) -> str:
    """A spreadsheet takes text that begins so for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
