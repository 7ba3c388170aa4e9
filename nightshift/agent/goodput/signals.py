"""What the daemon's looks tell the ledger, kept for as long as the books can change.

Steps, marks and FLOPs of jobs; when each GPU was not observed, and when it did nothing; which nodes are cordoned;
which jobs wait. Who holds what is the inventory's, and faults and actions are the store's: neither is kept again.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nightshift.agent.goodput.accounts import Account
from nightshift.agent.goodput.job_time import JobMark
from nightshift.agent.goodput.records import MarkEdge, ProcessBegins, StatedFlops, StepBegins, read_mfu, read_record
from nightshift.agent.goodput.settle import PlaceMark, PlaceState
from nightshift.agent.goodput.steps import SETTLE_S, StepPoint, StepTrack
from nightshift.collectors.frame import Floats, Frame, LogRecord, SeriesIndex, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick

IDLE_PERCENT = 5.0
# Shorter is no idleness, and a look that failed is no loss of sight (s).
IDLE_S, UNOBSERVED_S = 60.0, 120.0
# Cordons are looked for so often (s).
CORDONS_S = 60.0
# More than a driver and its contexts take.
USED_BYTES = 2.0**30
# Steps further ahead of the look that reads them, or further behind at each of so many looks, have another clock.
AHEAD_S, BEHIND_S, ENOUGH_LOOKS = 1.0, 900.0, 3
VERSION = 1
_TIMES = ("step_time_s", "compute_s", "data_s", "comm_s")
HOUR_S = 3600.0
T = TypeVar("T")


@dataclass
class JobNotes:
    """What one job said of itself."""

    track: StepTrack = field(default_factory=StepTrack)
    marks: list[JobMark] = field(default_factory=list)
    open_marks: dict[str, MarkEdge] = field(default_factory=dict)
    begins: list[float] = field(default_factory=list)
    run: int = 0
    """Counts programs that said that they start."""
    lag_s: float = math.inf
    looks: int = 0
    """The least delay from a step to the look that read it, over so many looks."""
    mfu: float = math.nan
    flops: float = math.nan

    @property
    def offset_s(self) -> float:
        """What brings the job's times to our clock. Steps are not read before they happen. A delay that no log has
        is a clock that is behind; but a log's first reading brings its past."""
        behind = self.looks >= ENOUGH_LOOKS and BEHIND_S < self.lag_s < math.inf
        return self.lag_s if behind or self.lag_s < -AHEAD_S else 0.0


class RowStates:
    """Since when each GPU is in a state, by row of a frame: whole columns at a time, since fleets are large."""

    def __init__(self) -> None:
        self._index: SeriesIndex | None = None
        self.seen_s: Floats = np.empty(0)
        self.idle_s: Floats = np.empty(0)
        self.used: NDArray[np.bool_] = np.empty(0, dtype=bool)
        """Whether a process has memory there, as last read."""

    def rows(self, index: SeriesIndex, at_s: float) -> None:
        """Moves to another membership; a GPU that is new has been seen from now on."""
        if index is self._index:
            return
        seen_s, idle_s = np.full(len(index), at_s), np.full(len(index), np.nan)
        used = np.zeros(len(index), dtype=bool)
        if self._index is not None:
            old = self._index.rows
            pairs = [(row, old[subject]) for subject, row in index.rows.items() if subject in old]
            if pairs:
                to, of = np.array(pairs).T
                seen_s[to], idle_s[to], used[to] = self.seen_s[of], self.idle_s[of], self.used[of]
        self._index, self.seen_s, self.idle_s, self.used = index, seen_s, idle_s, used

    @property
    def subjects(self) -> tuple[Subject, ...]:
        return self._index.subjects if self._index is not None else ()


class Signals:
    """Takes every look; not thread-safe."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobNotes] = {}
        self.marks: dict[str, list[PlaceMark]] = defaultdict(list)
        """GPU → when it was idle or not observed, closed intervals."""
        self.waiting: dict[tuple[int, str, Account], float] = defaultdict(float)
        """(hour, job, queued or preempted) → GPU-seconds."""
        self.exits: dict[str, list[float]] = defaultdict(list)
        """GPU → when its process gave its memory back: what runs there then starts anew."""
        self.cordons: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._preempted: set[str] = set()
        self._states = RowStates()
        self._tensor: dict[str, tuple[float, int]] = {}
        self._waited_s: float | None = None
        self._newest: Frame | None = None
        self._cordons_s = -math.inf

    # One look -----------------------------------------------------------------------------------------------

    def take(self, tick: Tick, inventory: Inventory) -> None:
        for series in tick.steps:
            job = job_of(series.subject, inventory, tick.at_s)
            if job and len(series.step):
                self._steps(job, series, tick.at_s)
        for record in tick.raw:
            if '"job_name"' in record.text or "mfu" in record.text:
                self._said(record, inventory, tick.at_s)
        for record in tick.logs:
            if "preempt" in record.text.lower() and record.subject.kind in (SubjectKind.POD, SubjectKind.JOB):
                self._preempted.add(job_of(record.subject, inventory, tick.at_s))
        if (frame := tick.frames.get(SubjectKind.GPU)) is not None:
            self._gpus(frame, tick.at_s)
        if not 0 <= tick.at_s - self._cordons_s < CORDONS_S:
            self._cordons_s = tick.at_s
            self._nodes(tick.at_s, inventory)

    def _steps(self, job: str, series: StepSeries, at_s: float) -> None:
        notes = self.jobs.setdefault(job, JobNotes())
        newest_s = float(np.nanmax(series.t_s)) if np.isfinite(series.t_s).any() else math.nan
        if math.isnan(newest_s):
            return
        notes.lag_s, notes.looks = min(notes.lag_s, at_s - newest_s), notes.looks + 1
        step_s, compute_s, data_s, comm_s = (series.column(name) for name in _TIMES)
        saved = np.nan_to_num(series.column("checkpoint_saved")) > 0
        run, offset_s = f"{series.run}:{notes.run}", notes.offset_s
        points = [
            StepPoint(
                float(t_s) + offset_s, int(series.step[i]), run, float(step_s[i]), float(compute_s[i]),
                float(data_s[i]), float(comm_s[i]), bool(saved[i]),
            )
            for i, t_s in enumerate(series.t_s)
            if math.isfinite(t_s)
        ]  # fmt: skip
        notes.track.take(str(series.subject), points)

    def _said(self, record: LogRecord, inventory: Inventory, at_s: float) -> None:
        job = job_of(record.subject, inventory, at_s)
        if not job:
            return
        notes = self.jobs.setdefault(job, JobNotes())
        if (mfu := read_mfu(record.text)) is not None:
            notes.mfu = mfu
        match read_record(record.text):
            case StepBegins(step, t_s) if t_s <= at_s + AHEAD_S:
                fresh = notes.track.anchor is None and not notes.track.points
                began = 0.0 if fresh else math.nan
                # the beginning of a step is the end of the one before
                point = StepPoint(t_s, step - 1, f"records:{notes.run}", began)
                notes.track.take(f"records {record.subject}", [point])
            case ProcessBegins(t_s) if t_s <= at_s + AHEAD_S and (not notes.begins or t_s > notes.begins[-1]):
                notes.run += 1
                notes.begins.append(t_s)
            case MarkEdge() as edge if edge.t_s <= at_s + AHEAD_S:
                self._edge(notes, edge)
            case StatedFlops(per_step):
                notes.flops = per_step

    @staticmethod
    def _edge(notes: JobNotes, edge: MarkEdge) -> None:
        if edge.begins:
            notes.open_marks[edge.kind] = edge
        elif (begun := notes.open_marks.pop(edge.kind, None)) is not None and edge.t_s > begun.t_s:
            notes.marks.append(JobMark(begun.t_s, edge.t_s, edge.account))

    def _gpus(self, frame: Frame, at_s: float) -> None:
        states = self._states
        states.rows(frame.index, at_s)
        seen = np.isfinite(frame.values).any(axis=1)
        for row in np.flatnonzero(seen & (at_s - states.seen_s > UNOBSERVED_S)).tolist():
            gone = PlaceMark(float(states.seen_s[row]), at_s, PlaceState.UNOBSERVED)
            self.marks[states.subjects[row].name].append(gone)
        states.seen_s[seen] = at_s
        util = frame.column("gpu_utilization_percent")
        with np.errstate(invalid="ignore"):
            idle, busy = seen & (util < IDLE_PERCENT), seen & (util >= IDLE_PERCENT)
        for row in np.flatnonzero(busy & (at_s - states.idle_s >= IDLE_S)).tolist():
            rest = PlaceMark(float(states.idle_s[row]), at_s, PlaceState.IDLE)
            self.marks[states.subjects[row].name].append(rest)
        states.idle_s[busy] = np.nan
        states.idle_s[idle & np.isnan(states.idle_s)] = at_s
        memory = frame.column("gpu_memory_used_bytes")
        with np.errstate(invalid="ignore"):
            gave_back = states.used & (memory < USED_BYTES)
            states.used = np.where(np.isfinite(memory), memory >= USED_BYTES, states.used)
        for row in np.flatnonzero(gave_back).tolist():
            self.exits[states.subjects[row].name].append(at_s)
        self._newest = frame

    def tensor_active(self, job: str, gpus: Iterable[Subject]) -> float:
        """Running mean of the job's tensor activity (ratio), with the newest values of its GPUs; NaN: not known."""
        newest = self._newest
        known = [] if newest is None else [newest.value(gpu, "gpu_tensor_active_ratio") for gpu in gpus]
        known = [value for value in known if 0 <= value <= 1.05]
        mean, count = self._tensor.get(job, (0.0, 0))
        if known:
            mean = (mean * count + sum(known) / len(known)) / (count + 1)
            self._tensor[job] = (mean, min(count + 1, 50))
        return mean if known or count else math.nan

    # Once a turn --------------------------------------------------------------------------------------------

    def turn(self, now_s: float, inventory: Inventory) -> None:
        """What is sampled rather than told: jobs that wait."""
        since_s, self._waited_s = self._waited_s, now_s
        waits = self._demand(now_s, inventory)
        self._preempted &= set(waits)
        if since_s is None or not 0 < now_s - since_s <= HOUR_S:
            return
        for job, gpus in waits.items():
            account = Account.PREEMPTED if job in self._preempted else Account.QUEUED
            self.waiting[int(now_s // HOUR_S), job, account] += gpus * (now_s - since_s)

    def _nodes(self, now_s: float, inventory: Inventory) -> None:
        for node in inventory.subjects(SubjectKind.NODE, now_s):
            spans = self.cordons[node.name]
            is_open = bool(spans) and spans[-1][1] == math.inf
            out = inventory.fact(node, "unschedulable") == "true"
            if out and not is_open:
                spans.append((now_s, math.inf))
            elif is_open and not out:
                spans[-1] = (spans[-1][0], now_s)

    @staticmethod
    def _demand(now_s: float, inventory: Inventory) -> dict[str, int]:
        """Job → GPUs that its pods ask for and no node gives; a Slurm job says itself how many it waits for."""
        waits: dict[str, int] = {}
        for job in inventory.subjects(SubjectKind.JOB, now_s):
            pods = inventory.children(job, now_s, SubjectKind.POD)
            asked = [pod for pod in pods if not inventory.parents(pod, now_s, SubjectKind.NODE)]
            count = sum(_whole(inventory.fact(pod, "gpus")) for pod in asked)
            if count:
                waits[job.name] = count
        return waits

    def open_marks(self, now_s: float) -> dict[str, list[PlaceMark]]:
        """GPU → what it is since some time and still."""
        found: dict[str, list[PlaceMark]] = {}
        states = self._states
        for row in np.flatnonzero(now_s - states.seen_s > UNOBSERVED_S).tolist():
            lost = PlaceMark(float(states.seen_s[row]), math.inf, PlaceState.UNOBSERVED)
            found.setdefault(states.subjects[row].name, []).append(lost)
        for row in np.flatnonzero(now_s - states.idle_s >= IDLE_S).tolist():
            rest = PlaceMark(float(states.idle_s[row]), math.inf, PlaceState.IDLE)
            found.setdefault(states.subjects[row].name, []).append(rest)
        return found

    def forget(self, before_s: float) -> None:
        """Drops what ended before a time, and folds steps that cannot come late any more."""
        for notes in self.jobs.values():
            notes.track.forget(before_s)
            notes.marks = [mark for mark in notes.marks if mark.end_s > before_s]
            notes.begins = [t_s for t_s in notes.begins if t_s > before_s]
        self.jobs = {job: notes for job, notes in self.jobs.items() if _is_alive(notes, before_s)}
        self.marks = _since(self.marks, lambda mark: mark.end_s > before_s)
        self.exits = _since(self.exits, lambda t_s: t_s > before_s)
        self.cordons = _since(self.cordons, lambda span: span[1] > before_s)
        hour = int(before_s // HOUR_S)
        self.waiting = defaultdict(float, {key: v for key, v in self.waiting.items() if key[0] >= hour})

    def fold(self, now_s: float) -> None:
        for notes in self.jobs.values():
            notes.track.fold(now_s - SETTLE_S)

    # A restart of ours --------------------------------------------------------------------------------------

    def saved(self) -> bytes:
        states = self._states
        value = {
            "version": VERSION,
            "jobs": {job: _saved(notes) for job, notes in self.jobs.items()},
            "marks": {
                gpu: [[m.start_s, m.end_s, int(m.state)] for m in marks] for gpu, marks in self.marks.items()
            },
            "exits": self.exits,
            "cordons": {n: [[a, None if b == math.inf else b] for a, b in s] for n, s in self.cordons.items() if s},
            "waiting": [[hour, job, account, spent] for (hour, job, account), spent in self.waiting.items()],
            "preempted": sorted(self._preempted),
            "waited_s": self._waited_s,
            "rows": [
                [subject.name, float(seen), None if math.isnan(idle) else float(idle), bool(used)]
                for subject, seen, idle, used in zip(
                    states.subjects, states.seen_s, states.idle_s, states.used, strict=True
                )
            ],
        }
        return zlib.compress(json.dumps(value, allow_nan=False).encode(), 1)

    @classmethod
    def load(cls, content: bytes) -> Signals:
        """Raises ValueError, KeyError or TypeError where it is no such state."""
        try:
            value = json.loads(zlib.decompress(content))
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if value["version"] != VERSION:
            raise ValueError(f"goodput state of version {value['version']}")
        made = cls()
        made.jobs = {job: _notes(saved) for job, saved in value["jobs"].items()}
        for gpu, marks in value["marks"].items():
            made.marks[gpu] = [PlaceMark(a, b, PlaceState(state)) for a, b, state in marks]
        made.exits = defaultdict(list, value["exits"])
        for node, spans in value["cordons"].items():
            made.cordons[node] = [(a, math.inf if b is None else b) for a, b in spans]
        for hour, job, account, spent in value["waiting"]:
            made.waiting[int(hour), job, Account(account)] = float(spent)
        made._preempted, made._waited_s = set(value["preempted"]), value["waited_s"]
        rows = value["rows"]
        subjects = tuple(Subject(SubjectKind.GPU, name) for name, *_ in rows)
        made._states.rows(SeriesIndex(SubjectKind.GPU, subjects), 0.0)
        made._states.seen_s = np.array([row[1] for row in rows], dtype=float)
        made._states.idle_s = np.array([np.nan if row[2] is None else row[2] for row in rows], dtype=float)
        made._states.used = np.array([row[3] for row in rows], dtype=bool)
        return made


def _since(lists: Mapping[str, list[T]], is_kept: Callable[[T], bool]) -> defaultdict[str, list[T]]:
    """What of each list is kept; without lists that are empty then."""
    kept = {name: [item for item in items if is_kept(item)] for name, items in lists.items()}
    return defaultdict(list, {name: items for name, items in kept.items() if items})


def _saved(notes: JobNotes) -> dict[str, Any]:
    return {
        "track": notes.track.saved(),
        "marks": [[m.start_s, m.end_s, m.account] for m in notes.marks],
        "open": [[e.kind, e.account, e.t_s] for e in notes.open_marks.values()],
        "begins": notes.begins,
        "run": notes.run,
        "lag_s": None if math.isinf(notes.lag_s) else notes.lag_s,
        "looks": notes.looks,
        "mfu": None if math.isnan(notes.mfu) else notes.mfu,
        "flops": None if math.isnan(notes.flops) else notes.flops,
    }


def _notes(saved: Mapping[str, Any]) -> JobNotes:
    return JobNotes(
        StepTrack.load(saved["track"]),
        [JobMark(a, b, Account(account)) for a, b, account in saved["marks"]],
        {kind: MarkEdge(kind, Account(account), t_s, True) for kind, account, t_s in saved["open"]},
        list(saved["begins"]),
        int(saved["run"]),
        math.inf if saved["lag_s"] is None else float(saved["lag_s"]),
        int(saved["looks"]),
        math.nan if saved["mfu"] is None else float(saved["mfu"]),
        math.nan if saved["flops"] is None else float(saved["flops"]),
    )


def _is_alive(notes: JobNotes, before_s: float) -> bool:
    return bool(notes.track.last_s > before_s or notes.marks or notes.open_marks or notes.begins)


def job_of(subject: Subject, inventory: Inventory, at_s: float) -> str:
    """The name of the job above a subject; empty: none is known."""
    job = subject if subject.kind is SubjectKind.JOB else inventory.above(subject, SubjectKind.JOB, at_s)
    return "" if job is None else job.name


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 7 else 0
