"""The books: each turn closes the newest hours again from all that is known by then, and replaces their rows.

An hour's rows are a pure function of evidence, so doing it twice, late or after a crash gives the same. Hours older
than `OPEN_S` are final; `sums` joins them to days after `HOURLY_S`, and removes them after `KEEP_S`. Evidence is
what `signals` keeps, and what store and inventory say: who held what, which faults stood, what was done.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection

from nightshift.agent.goodput.accounts import UNFIT, Account
from nightshift.agent.goodput.job_time import JobFault, JobSignals, job_time
from nightshift.agent.goodput.records import Utilisation, judged, peak_flops
from nightshift.agent.goodput.settle import (
    GpuGroup,
    GpuHold,
    JobTime,
    LedgerEntry,
    PlaceMark,
    PlaceState,
    Sums,
    settle,
)
from nightshift.agent.goodput.signals import HOUR_S, Signals
from nightshift.agent.goodput.sums import DAY_S, team_of, thin_out, totals
from nightshift.agent.incidents.returns import cases
from nightshift.agent.store.archive import name_of
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.intents import commitments
from nightshift.agent.store.tables import findings, goodput, incidents
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.subject import TAKES_WORK_SINCE, Inventory, Membership, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.action import traits_of
from nightshift.controllers.cordon import node_of
from nightshift.controllers.guard import Commitment, MaintenanceWindow
from nightshift.detectors.base import Fault, State

EVERY_S = 300.0
OPEN_S = 6 * HOUR_S
_STATE = "goodput/signals"
_K = SubjectKind
_ON_A_NODE = frozenset({_K.NIC, _K.DISK})
_HARDWARE = frozenset({_K.GPU, _K.MIG, _K.LINK, _K.NODE, *_ON_A_NODE})
_MOST_FINDINGS = 20_000


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


# Faults and actions, as the store has them -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoodFault:
    """A finding of an incident, from its onset to its end (Unix s; infinity: it stands)."""

    start_s: float
    end_s: float
    fault: Fault
    subject: Subject
    cause: str
    incident: str


@dataclass
class GoodputEvidence:
    """By name: faults of jobs, marks of GPUs and of nodes."""

    job_faults: dict[str, list[JobFault]] = field(default_factory=lambda: defaultdict(list))
    gpu_marks: dict[str, list[PlaceMark]] = field(default_factory=lambda: defaultdict(list))
    node_marks: dict[str, list[PlaceMark]] = field(default_factory=lambda: defaultdict(list))


def stood_faults(connection: Connection, since_s: float) -> list[StoodFault]:
    """Findings that were open after a time. Where a person closed the incident, its findings ended with it."""
    query = (
        sa.select(
            findings.c.incident, findings.c.fault, findings.c.subject, findings.c.state, findings.c.since_s,
            findings.c.changed_s, incidents.c.state.label("of"), incidents.c.entered_s, incidents.c.cause,
        )
        .join(incidents, incidents.c.number == findings.c.incident)
        .where(sa.or_(findings.c.state != str(State.CLEAR), findings.c.changed_s > since_s))
        .where(sa.or_(incidents.c.state != str(IncidentState.RESOLVED), incidents.c.entered_s > since_s))
        .order_by(findings.c.since_s.desc())
        .limit(_MOST_FINDINGS)
    )  # fmt: skip
    found = []
    for row in connection.execute(query):
        end_s = row.changed_s if row.state == State.CLEAR else math.inf
        if row.of == IncidentState.RESOLVED:
            end_s = min(end_s, row.entered_s)
        subject, cause = Subject.parse(row.subject), row.cause or row.fault
        found.append(StoodFault(row.since_s, end_s, Fault(row.fault), subject, cause, name_of(row.incident)))
    return found


def gather(connection: Connection, inventory: Inventory, since_s: float) -> GoodputEvidence:
    """Everything that the store says of a time on."""
    found = GoodputEvidence()
    for fault in stood_faults(connection, since_s):
        _place(found, fault, inventory)
    acts = [item for item in commitments(connection) if (item.released_s or item.ended_s or math.inf) > since_s]
    named = [number for item in acts if (number := _number(item)) is not None]
    causes = sa.select(incidents.c.number, incidents.c.cause).where(incidents.c.number.in_(named))
    words = {row.number: row.cause or "" for row in connection.execute(causes)}
    for item in acts:
        _act(found, item, inventory, words)
    for case in cases(connection):
        end_s = math.inf if case.back_s is None else case.back_s
        if end_s > since_s:
            mark = PlaceMark(case.out_s, end_s, PlaceState.REPAIR, case.fault, name_of(case.incident))
            found.gpu_marks[case.gpu].append(mark)
    return found


def _place(found: GoodputEvidence, fault: StoodFault, inventory: Inventory) -> None:
    subject = _carrier(fault.subject)
    for job in _jobs(subject, inventory, fault.start_s, fault.end_s):
        of = JobFault.of(fault.fault, fault.start_s, fault.end_s, fault.cause, fault.incident)
        found.job_faults[job].append(of)
    if fault.subject.kind in _HARDWARE and fault.fault in UNFIT:
        mark = PlaceMark(fault.start_s, fault.end_s, PlaceState.FAULT, fault.cause, fault.incident)
        marks = found.node_marks if subject.kind is _K.NODE else found.gpu_marks
        marks[subject.name].append(mark)


def _carrier(subject: Subject) -> Subject:
    """The GPU, node or owner that a fault's subject belongs to."""
    if subject.kind is _K.LINK:
        return Subject(_K.GPU, subject.name.partition("/")[0])
    if subject.kind in _ON_A_NODE:
        return Subject(_K.NODE, subject.name.partition("/")[0].partition(":")[0])
    return subject


def _jobs(subject: Subject, inventory: Inventory, start_s: float, end_s: float) -> set[str]:
    """Jobs above a subject, or of the GPUs below it, when the fault began: who came later was not stopped by it."""
    if subject.kind is _K.JOB:
        return {subject.name}
    if subject.kind is _K.CLUSTER or subject.kind is _K.SOURCE:
        return set()
    found = {inventory.above(subject, _K.JOB, start_s)}
    for gpu in inventory.gpus(subject, start_s):
        found.update(inventory.above(pod, _K.JOB, start_s) for pod in inventory.parents(gpu, start_s, _K.POD))
    return {job.name for job in found if job is not None}


def _act(found: GoodputEvidence, item: Commitment, inventory: Inventory, causes: Mapping[int, str]) -> None:
    """What our own actions take: a repair of a place, and the stop of a job."""
    action, traits, number = item.action, traits_of(item.action.kind), _number(item)
    name, cause = ("", "") if number is None else (name_of(number), causes.get(number, ""))
    end_s = item.ended_s if item.ended_s is not None else math.inf
    if traits.cordons or traits.rung is not None:
        until_s = _given_back_s(item, inventory) if traits.cordons else end_s
        mark = PlaceMark(item.begun_s, until_s, PlaceState.REPAIR, cause, name)
        at_gpu = action.target.kind is _K.GPU and not traits.cordons
        if at_gpu:
            found.gpu_marks[action.target.name].append(mark)
        elif action.target.kind in (_K.NODE, _K.GPU):
            found.node_marks[node_of(action)].append(mark)
    if traits.stops_jobs:
        jobs = set(action.blast_radius.jobs) | _jobs(action.target, inventory, item.begun_s, end_s)
        for job in jobs:
            stop = JobFault(item.begun_s, max(end_s, item.begun_s + 1.0), cause, name, stops=Account.HUNG, order=99)
            found.job_faults[job].append(stop)


def _number(item: Commitment) -> int | None:
    """Of the incident that an action's id names."""
    prefix, _, rest = item.action.id.partition("-")
    digits = rest.partition("-")[0]
    return int(digits) if prefix == "inc" and digits.isdecimal() and len(digits) < 10 else None


def _given_back_s(item: Commitment, inventory: Inventory) -> float:
    """When a node that an action took takes work again: we gave it back, or a person did."""
    if item.released_s is not None:
        return item.released_s
    node = Subject(_K.NODE, node_of(item.action))
    since_s = float(inventory.fact(node, TAKES_WORK_SINCE) or 0.0)
    works = inventory.fact(node, "unschedulable") == "false"
    return since_s if works and since_s > item.begun_s else math.inf


# Who held what --------------------------------------------------------------------------------------------------


@dataclass
class Holdings:
    """Who held which GPU, as the inventory has it."""

    node_of: dict[str, list[tuple[float, float, str]]] = field(default_factory=lambda: defaultdict(list))
    holds: dict[str, list[GpuHold]] = field(default_factory=lambda: defaultdict(list))

    def of_job(self, start_s: float) -> dict[str, list[tuple[float, float]]]:
        """Job → when it held any GPU after a time, each of its holds."""
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for holds in self.holds.values():
            for hold in holds:
                if hold.end_s > start_s:
                    found[hold.job].append((hold.start_s, hold.end_s))
        return {job: sorted(set(spans)) for job, spans in found.items()}


def holdings(inventory: Inventory, now_s: float) -> Holdings:
    """Every GPU's nodes and holders as far back as the inventory goes, what is open until now."""
    up: dict[tuple[SubjectKind, SubjectKind], dict[Subject, list[Membership]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for membership in inventory.memberships():
        up[membership.child.kind, membership.parent.kind][membership.child].append(membership)
    found = Holdings()
    jobs = {kind: up[kind, _K.JOB] for kind in (_K.POD, _K.RANK)}
    for child, memberships in up[_K.GPU, _K.NODE].items():
        for m in memberships:
            found.node_of[child.name].append((m.since_s, min(m.until_s, now_s), m.parent.name))
    instances: dict[str, list[Membership]] = defaultdict(list)
    for memberships in up[_K.MIG, _K.GPU].values():
        for m in memberships:
            instances[m.parent.name].append(m)
    for gpu in list(found.node_of):
        subject = Subject(_K.GPU, gpu)
        if instances.get(gpu):
            found.holds[gpu] = list(
                _of_instances(instances[gpu], up[_K.MIG, _K.POD], jobs[_K.POD], inventory, now_s)
            )
            continue
        pods = up[_K.GPU, _K.POD].get(subject, [])
        ranks = [] if pods else up[_K.GPU, _K.RANK].get(subject, [])
        by = jobs[_K.POD if pods else _K.RANK]
        found.holds[gpu] = _one_a_job(_hold(m, by, now_s) for m in (pods or ranks))
    return found


def _hold(
    m: Membership, jobs: Mapping[Subject, Sequence[Membership]], now_s: float, share: float = math.nan
) -> GpuHold:
    end_s = min(m.until_s, now_s)
    over = [j for j in jobs.get(m.parent, ()) if j.since_s < end_s and j.until_s > m.since_s]
    job = max(over, key=lambda j: min(j.until_s, end_s) - max(j.since_s, m.since_s)).parent if over else m.parent
    return GpuHold(m.since_s, end_s, job.name, share)


def _of_instances(
    instances: Sequence[Membership],
    pods: Mapping[Subject, Sequence[Membership]],
    jobs: Mapping[Subject, Sequence[Membership]],
    inventory: Inventory,
    now_s: float,
) -> Iterator[GpuHold]:
    """Holds of a GPU's MIG instances: of a profile such as `3g.40gb` three sevenths; of an unknown one an equal
    part."""
    for instance in instances:
        slices = (inventory.fact(instance.child, "profile") or "").partition("g")[0]
        share = int(slices) / 7 if slices.isdecimal() and 0 < int(slices) <= 7 else 1 / len(instances)
        for m in pods.get(instance.child, ()):
            yield _hold(m, jobs, now_s, share)


def _one_a_job(holds: Iterable[GpuHold]) -> list[GpuHold]:
    """Two pods of one job on one GPU are one holder, not two that take turns."""
    found: list[GpuHold] = []
    last: dict[str, int] = {}
    for hold in sorted(holds, key=lambda hold: hold.start_s):
        place = last.get(hold.job)
        if place is not None and hold.start_s < found[place].end_s:
            before = found[place]
            found[place] = GpuHold(before.start_s, max(before.end_s, hold.end_s), hold.job, hold.share)
            continue
        last[hold.job] = len(found)
        found.append(hold)
    return found


def grouped(
    holdings: Holdings,
    marks: Mapping[str, Sequence[PlaceMark]],
    node_marks: Mapping[str, Sequence[PlaceMark]],
    window: tuple[float, float],
) -> list[GpuGroup]:
    """GPUs about which everything in the window is alike, together: most of a node's are."""
    start_s, end_s = window
    counts: dict[tuple[str, tuple[tuple[float, float], ...], tuple[GpuHold, ...], tuple[PlaceMark, ...]], int] = {}
    for gpu, places in holdings.node_of.items():
        holds = tuple(hold for hold in holdings.holds.get(gpu, ()) if hold.end_s > start_s and hold.start_s < end_s)
        for since_s, until_s, node in places:
            if until_s <= start_s or since_s >= end_s:
                continue
            here = (*marks.get(gpu, ()), *node_marks.get(node, ()))
            inside = tuple(mark for mark in here if mark.end_s > start_s and mark.start_s < end_s)
            key = (node, ((since_s, until_s),), holds, inside)
            counts[key] = counts.get(key, 0) + 1
    return [GpuGroup(count, *key) for key, count in counts.items()]
