"""The books: each turn closes the newest hours again from all that is known by then, and replaces their rows.

An hour's rows are a pure function of evidence, so doing it twice, late or after a crash gives the same. Hours older
than `OPEN_S` are final; after `HOURLY_S` they are joined to days, and after `KEEP_S` they go.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection

from nightshift.agent.goodput.accounts import Account
from nightshift.agent.goodput.evidence import GoodputEvidence, Holdings, gather, grouped, holdings
from nightshift.agent.goodput.job_time import JobSignals, job_time
from nightshift.agent.goodput.records import Utilisation, judged, peak_flops
from nightshift.agent.goodput.settle import JobTime, LedgerEntry, PlaceMark, PlaceState, Sums, settle
from nightshift.agent.goodput.signals import HOUR_S, Signals
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.tables import goodput
from nightshift.agent.store.tenancy import namespaces_of
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.guard import MaintenanceWindow

EVERY_S = 300.0
OPEN_S = 6 * HOUR_S
DAY_S = 24 * HOUR_S
HOURLY_S, KEEP_S = 8 * DAY_S, 400 * DAY_S
_STATE = "goodput/signals"


@dataclass(frozen=True)
class Books:
    """One stretch of time, settled. `wall_gpu_s`: wall time × GPUs, counted apart from the entries."""

    start_s: float
    end_s: float
    sums: Sums
    wall_gpu_s: float


class GoodputLedger:
    """Kept by the replica that leads, beside its looks."""

    def __init__(
        self,
        store: Store,
        inventory: Inventory,
        windows: Callable[[], Sequence[MaintenanceWindow]] = tuple,
    ) -> None:
        self._store, self._inventory, self._windows = store, inventory, windows
        self.signals = Signals()
        self.utilisation: dict[str, Utilisation] = {}
        self.recent: Sums = {}
        """GPU-seconds of the last 24 hours."""
        self._next_s = -math.inf
        self._hour: int | None = None
        self._log = structlog.get_logger("goodput")

    def resume(self) -> None:
        """Takes up where the last process, or the replica that led before, left off."""
        kept = self._store.recall(_STATE)
        self._hour = None
        if kept is None:
            return
        try:
            self.signals = Signals.load(kept[1])
        except (ValueError, KeyError, TypeError) as error:
            self._log.error("goodput state refused", error=str(error))

    def keep(self) -> None:
        """Stores what a restart needs beside the books."""
        self._store.keep({_STATE: self.signals.saved()})

    def look(self, tick: Tick) -> None:
        """Takes a look in, and closes what is due. A store that is away costs a delay."""
        self.signals.take(tick, self._inventory)
        # both bounds: a clock that was set back must not put the next turn off
        if self._next_s - EVERY_S <= tick.at_s < self._next_s:
            return
        self._next_s = tick.at_s + EVERY_S
        try:
            self.turn(tick.at_s)
        except (Temporary, Permanent) as error:
            self._log.warning("goodput not booked", error=str(error))

    def turn(self, now_s: float) -> None:
        """Closes the present hour and the one before; at each new hour every hour that is still open."""
        self.signals.turn(now_s, self._inventory)
        self.signals.fold(now_s)
        hour = int(now_s // HOUR_S)
        count = 2 if hour == self._hour else int(OPEN_S // HOUR_S) + 1
        first_s = (hour - count + 1) * HOUR_S
        with self._store.database.read() as connection:
            found = gather(connection, self._inventory, now_s - OPEN_S - HOUR_S)
        held = holdings(self._inventory, now_s)
        jobs = self.job_times(held, found, now_s - OPEN_S - HOUR_S)
        marks = self._gpu_marks(found, now_s)
        nodes = self._node_marks(found, first_s, now_s)
        books = []
        for start_s in (first_s + n * HOUR_S for n in range(count)):
            window = (start_s, min(start_s + HOUR_S, now_s))
            groups = grouped(held, marks, nodes, window)
            wall_s = sum(
                g.count * max(0.0, min(until_s, window[1]) - max(since_s, window[0]))
                for g in groups
                for since_s, until_s in g.present
            )
            books.append(Books(*window, settle(groups, jobs, *window), wall_s))
        self._check(books)
        self._utilise(held, now_s)
        state = self.signals.saved()
        with self._store.database.write() as connection:
            for book in books:
                self._write(connection, book)
            if hour != self._hour:
                thin_out(connection, now_s)
            self.recent = totals(connection, now_s - DAY_S, now_s)
        self._store.keep({_STATE: state})
        if hour != self._hour:
            self.signals.forget(now_s - OPEN_S - HOUR_S)
        self._hour = hour

    def job_times(self, holdings: Holdings, evidence: GoodputEvidence, since_s: float) -> dict[str, JobTime]:
        """What each job that held GPUs after a time did."""
        times: dict[str, JobTime] = {}
        exits: dict[str, set[float]] = defaultdict(set)
        for gpu, ends in self.signals.exits.items():
            for hold in holdings.holds.get(gpu, ()):
                exits[hold.job].update(end_s for end_s in ends if hold.start_s < end_s < hold.end_s)
        for job, spans in holdings.of_job(since_s).items():
            notes = self.signals.jobs.get(job)
            stretches, pauses = notes.track.timeline() if notes is not None else ([], [])
            begins = [*(start_s for start_s, _ in spans), *exits[job]]
            begins += notes.begins if notes is not None else []
            faults = evidence.job_faults.get(job, ())
            marks = notes.marks if notes is not None else ()
            steps = notes is not None and (notes.track.anchor is not None or bool(notes.track.points))
            line_s = notes.track.line_s if notes is not None else 0.0
            times[job] = job_time(JobSignals(stretches, pauses, spans, begins, faults, marks, line_s), steps)
        return times

    def _gpu_marks(self, found: GoodputEvidence, now_s: float) -> dict[str, list[PlaceMark]]:
        marks: dict[str, list[PlaceMark]] = defaultdict(list)
        for part in (self.signals.marks, self.signals.open_marks(now_s), found.gpu_marks):
            for gpu, items in part.items():
                marks[gpu] += items
        return marks

    def _node_marks(self, found: GoodputEvidence, start_s: float, end_s: float) -> dict[str, list[PlaceMark]]:
        marks: dict[str, list[PlaceMark]] = defaultdict(
            list, {n: list(items) for n, items in found.node_marks.items()}
        )
        for node, spans in self.signals.cordons.items():
            marks[node] += [PlaceMark(*span, PlaceState.MAINTENANCE, "cordoned") for span in spans]
        windows = self._windows()
        nodes = self._inventory.subjects(SubjectKind.NODE, end_s) if windows else []
        for window in windows:
            for subject in nodes:
                if window.covers(str(s) for s in self._inventory.ancestors(subject, end_s)):
                    marks[subject.name] += [
                        PlaceMark(*span, PlaceState.MAINTENANCE, "window")
                        for span in _spans(window, start_s, end_s)
                    ]
        return marks

    def _check(self, books: Iterable[Books]) -> None:
        """Says where the books do not balance: a defect of ours, which no figure may hide."""
        for book in books:
            booked = sum(book.sums.values())
            if abs(booked - book.wall_gpu_s) > 1e-6 * max(book.wall_gpu_s, 1.0):
                self._log.error("goodput imbalance found", booked=booked, wall=book.wall_gpu_s, start=book.start_s)

    def _utilise(self, held: Holdings, now_s: float) -> None:
        """MFU of the jobs that state it, or their FLOPs."""
        gpus: dict[str, list[Subject]] = defaultdict(list)
        for gpu, holds in held.holds.items():
            for hold in holds:
                if hold.end_s >= now_s and hold.job in self.signals.jobs:
                    gpus[hold.job].append(Subject(SubjectKind.GPU, gpu))
        self.utilisation = {}
        for job, notes in self.signals.jobs.items():
            mine = gpus.get(job, [])
            stated = notes.mfu
            if not math.isnan(notes.flops) and mine:
                peak = peak_flops(self._inventory.fact(mine[0], "model") or "")
                stated = notes.flops / (notes.track.typical_s * len(mine) * peak)
            if not math.isnan(stated):
                self.utilisation[job] = judged(stated, self.signals.tensor_active(job, mine))

    def _write(self, connection: Connection, book: Books) -> None:
        """Replaces the rows of an hour."""
        hour = int(book.start_s // HOUR_S)
        waiting = [
            (LedgerEntry(a, job), spent) for (at, job, a), spent in self.signals.waiting.items() if at == hour
        ]
        rows = [
            {"start_s": hour * HOUR_S, "span_s": HOUR_S, "team": team_of(entry.job), "gpu_s": spent}
            | entry._asdict()
            for entry, spent in (*book.sums.items(), *waiting)
            if spent > 0
        ]
        connection.execute(sa.delete(goodput).where(goodput.c.start_s == hour * HOUR_S, goodput.c.span_s == HOUR_S))
        if rows:
            connection.execute(sa.insert(goodput), rows)


def _spans(window: MaintenanceWindow, start_s: float, end_s: float) -> list[tuple[float, float]]:
    """When a window holds within a range, its beginning to the minute."""
    spans, at_s = [], start_s
    while at_s < end_s:
        until_s = window.holds_until(at_s)
        if until_s is not None:
            spans.append((at_s, until_s))
        at_s = at_s + 60.0 if until_s is None else until_s
    return spans


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
