"""Clusters that are drawn, with the truth of every GPU-second: what `benchmarks.goodput` scores the ledger on.

A drawn cluster gives the ledger what the daemon gives it: looks with frames, steps and log lines, the inventory's
relations, incidents and actions in a store. What is made up: findings come 60 to 400 s after their onset and name
the right fault; how fast jobs step, save, start and fail. What the ledger is not given: the truth.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa

from nightshift.agent.clock import SteppedClock
from nightshift.agent.goodput.accounts import Account
from nightshift.agent.goodput.ledger import GoodputLedger
from nightshift.agent.store.archive import number_of
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.tables import incidents
from nightshift.collectors.frame import Frame, Instant, LogRecord, SeriesIndex, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, Severity, State

K = SubjectKind
GPUS = 8
LOOK_S = 30.0
START_S = 1_790_006_400.0  # a full hour
HW = (Fault.GPU_LOST, Fault.XID, Fault.HBM_DEGRADED, Fault.NODE_CONDITION)
Key = tuple[int, str, str, Account, str]


@dataclass
class Style:
    """How a job reports."""

    step_s: float
    stride: int
    prints_time: bool = False
    split: tuple[float, float, float] | None = None
    """Shares of compute, data, communication."""
    records: bool = False
    silent: bool = False
    flags_saves: bool = True
    ahead_s: float = 0.0
    late_s: float = 0.0


@dataclass
class DrawnCluster:
    """Draw with `draw`, then `replay` it through a ledger."""

    seed: int
    hours: float = 6.0
    rng: np.random.Generator = field(init=False)
    events: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    truth: dict[Key, float] = field(default_factory=lambda: defaultdict(float))
    injected: set[Key] = field(default_factory=set)
    steps: list[tuple[float, Subject, str, list[tuple[int, float, float, bool]], Style]] = field(
        default_factory=list
    )
    lines: list[tuple[float, Subject, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.clock = SteppedClock(START_S)
        self.end_s = START_S + self.hours * 3600.0
        self.inventory = Inventory("drawn")
        self.nodes = [f"n{n}" for n in range(int(self.rng.integers(8, 20)))]
        self.gpus = {node: [Subject(K.GPU, f"GPU-{node}-{g}") for g in range(GPUS)] for node in self.nodes}
        self.util = {gpu: 0.0 for gpus in self.gpus.values() for gpu in gpus}
        self.used = dict.fromkeys(self.util, 5e8)
        self.seen = dict.fromkeys(self.util, True)
        for node, gpus in self.gpus.items():
            for gpu in gpus:
                self.inventory.observe(gpu, Subject(K.NODE, node), START_S)
            self.inventory.describe(Subject(K.NODE, node), unschedulable="false")
        self._n = 0
        self.styles: dict[str, Style] = {}

    # What happens ---------------------------------------------------------------------------------------------

    def at(self, t_s: float, what: Callable[[float], None]) -> None:
        self.events.append((t_s, len(self.events), what))

    def is_true(
        self, start_s: float, end_s: float, nodes: Sequence[str], job: str, account: Account, cause: str = "",
        injected: bool = False, gpus: float = GPUS,
    ) -> None:  # fmt: skip
        """GPU-seconds of some nodes' GPUs belong to an account."""
        start_s, end_s = max(start_s, START_S), min(end_s, self.end_s)
        while start_s < end_s:
            cut_s = min(end_s, (start_s // 3600 + 1) * 3600)
            for node in nodes:
                key = (int(start_s // 3600), node, job, account, cause)
                self.truth[key] += (cut_s - start_s) * gpus
                if injected:
                    self.injected.add(key)
            start_s = cut_s

    def uniform(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def draw(self) -> None:
        left = list(self.nodes)
        self.rng.shuffle(left)
        while len(left) > 2:
            size = int(min(self.rng.choice([1, 2, 4]), len(left) - 2))
            Gang(self, [left.pop() for _ in range(size)]).live()
        for node, kind in zip(left, ("repair", "maintenance", "unobserved"), strict=False):
            self._spare(node, kind)

    def _spare(self, node: str, kind: str) -> None:
        begin_s, span_s = self.uniform(START_S + 1800, self.end_s - 9000), self.uniform(1500, 7000)
        end_s = begin_s + span_s
        subject = Subject(K.NODE, node)
        self.is_true(START_S, begin_s, [node], "", Account.FREE)
        self.is_true(end_s, self.end_s, [node], "", Account.FREE)
        if kind == "unobserved":
            self.is_true(begin_s, end_s, [node], "", Account.UNOBSERVED, injected=True)
            self.at(begin_s, lambda t: self.seen.update(dict.fromkeys(self.gpus[node], False)))
            self.at(end_s, lambda t: self.seen.update(dict.fromkeys(self.gpus[node], True)))
        elif kind == "maintenance":
            self.is_true(begin_s, end_s, [node], "", Account.MAINTENANCE, "cordoned", injected=True)
            self.at(begin_s, lambda t: self.inventory.describe(subject, unschedulable="true"))
            self.at(end_s, lambda t: self.inventory.describe(subject, unschedulable="false"))
        else:
            fault = Fault(self.rng.choice([str(f) for f in HW]))
            self.is_true(begin_s, end_s, [node], "", Account.UNHEALTHY, str(fault), injected=True)
            self.incident(begin_s, end_s, [(fault, subject)], str(fault))

    def incident(self, onset_s: float, end_s: float, faults: list[tuple[Fault, Subject]], cause: str) -> None:
        """An incident that is opened late, and cleared when its signals are."""
        found_s = onset_s + self.uniform(60, 400)
        known: dict[str, Any] = {}

        def opened(at_s: float) -> None:
            made = [_finding(fault, subject, onset_s, at_s) for fault, subject in faults]
            known["id"], known["findings"] = self.store.open_incident(cause, made), made
            number = number_of(known["id"])
            with self.store.database.write() as connection:
                where = incidents.c.number == number
                connection.execute(sa.update(incidents).where(where).values(cause=cause))

        def cleared(at_s: float) -> None:
            for finding in known.get("findings", ()):
                clear = _finding(finding.fault, finding.subject, onset_s, at_s, State.CLEAR)
                self.store.update_finding(known["id"], clear)

        self.at(found_s, opened)
        self.at(max(end_s, found_s + 1), cleared)

    # The daemon's side ----------------------------------------------------------------------------------------

    def replay(self, store: Store, restarts: Sequence[float] = ()) -> GoodputLedger:
        """Every look through a ledger; at `restarts` (share of the time) the process dies and another begins."""
        self.store = store
        ledger = GoodputLedger(store, self.inventory)
        ledger.resume()
        dies = [START_S + share * (self.end_s - START_S) for share in restarts]
        self.events.sort(key=lambda event: event[:2])
        self.steps.sort(key=lambda item: item[0])
        self.lines.sort(key=lambda item: item[0])
        events, points, lines = iter([*self.events, (math.inf, 0, None)]), list(self.steps), list(self.lines)
        event = next(events)
        index = SeriesIndex(K.GPU, tuple(self.util))
        at_s = START_S
        while at_s < self.end_s:
            at_s = min(at_s + LOOK_S, self.end_s)
            self.clock.wait_until(at_s)
            while event[0] <= at_s:
                event[2](event[0])  # type: ignore[misc]
                event = next(events)
            series = []
            while points and points[0][0] <= at_s:
                series.append(_series(*points.pop(0)[1:]))
            raw = []
            while lines and lines[0][0] <= at_s:
                t_s, subject, text = lines.pop(0)
                raw.append(LogRecord(Instant(t_s), "log", subject, text, 0))
            ledger.look(Tick(at_s, {K.GPU: self._frame(index, at_s)}, series, raw=raw))
            if dies and at_s >= dies[0]:
                dies.pop(0)  # nothing is kept but what the store has
                ledger = GoodputLedger(store, self.inventory)
                ledger.resume()
        ledger.turn(self.end_s)
        return ledger

    def _frame(self, index: SeriesIndex, at_s: float) -> Frame:
        values = np.array(
            [[self.util[g], self.used[g]] if self.seen[g] else [np.nan, np.nan] for g in index.subjects]
        )
        names = ("gpu_utilization_percent", "gpu_memory_used_bytes")
        return Frame(at_s, index, names, values, np.full((1, 2), at_s), np.zeros(len(index), dtype=np.int64))


def _finding(fault: Fault, subject: Subject, onset_s: float, at_s: float, state: State = State.FIRING) -> Finding:
    return Finding(
        "drawn", fault, subject, state, Instant(onset_s), Instant(at_s), Severity.CRITICAL, str(fault), 1.0, 0.5
    )


def _series(subject: Subject, run: str, points: list[tuple[int, float, float, bool]], style: Style) -> StepSeries:
    number = np.array([step for step, *_ in points], dtype=np.int64)
    took = np.array([took_s for *_, took_s, _ in points])
    columns = {"checkpoint_saved": np.array([float(saved) if saved else np.nan for *_, saved in points])}
    if style.prints_time:
        columns["step_time_s"] = took
    if style.split is not None:
        for name, share in zip(("compute_s", "data_s", "comm_s"), style.split, strict=True):
            columns[name] = style.step_s * share * np.ones(len(points))
    t_s = np.array([t_s + style.ahead_s for _, t_s, *_ in points])
    return StepSeries(subject, run, number, t_s, columns, "log")


class Gang:
    """One job on some nodes, from its start to the end of the time."""

    def __init__(self, cluster: DrawnCluster, nodes: list[str]) -> None:
        self.c, self.nodes = cluster, nodes
        cluster._n += 1
        rng = cluster.rng
        self.job = f"team{cluster._n % 3}/job{cluster._n}"
        kind = rng.choice(["plain", "timed", "split", "records", "silent"], p=[0.35, 0.2, 0.2, 0.1, 0.15])
        step_s = cluster.uniform(1, 25)
        # a log has a line at least each minute
        stride = int(rng.choice([n for n in (1, 5, 10, 50) if n == 1 or n * step_s <= 60]))
        self.style = Style(
            step_s=step_s,
            stride=1 if kind == "records" else stride,
            prints_time=kind == "timed" or (kind == "split" and rng.random() < 0.5),
            split=(0.7, 0.1, 0.12) if kind == "split" else None,
            records=kind == "records",
            silent=kind == "silent",
            flags_saves=rng.random() < 0.8,
            ahead_s=float(rng.choice([0.0, 0.0, 0.0, 40.0])),
            late_s=float(rng.choice([0.0, 0.0, 240.0])),
        )
        cluster.styles[self.job] = self.style
        self.subject = Subject(K.RANK, f"{self.job}#0")
        cluster.inventory.observe(self.subject, Subject(K.JOB, self.job), START_S)
        self.attempt, self.step, self.high, self.saved_step, self.t_s = 0, 0, 0, 0, 0.0
        self.printed: list[tuple[int, float, float, bool]] = []
        self.pods: list[tuple[Subject, Subject]] = []

    def live(self) -> None:
        c = self.c
        self.t_s = START_S + c.uniform(0, 1200)
        c.is_true(START_S, self.t_s, self.nodes, "", Account.FREE)
        if self.style.silent:
            self._silent()
            return
        cause, first = "", True
        while self.t_s < c.end_s:
            if first or not self._in_place:
                self._hold(self.t_s)
            self._start(cause)
            first = False
            cause = self._train(self.t_s + c.uniform(2400, 9000))

    _in_place = False

    def _hold(self, t_s: float) -> None:
        self.attempt += 1
        relations = [
            (gpu, Subject(K.POD, f"{self.job}-{self.attempt}-{node}"))
            for node in self.nodes
            for gpu in self.c.gpus[node]
        ]
        pods = sorted({pod for _, pod in relations})
        job = Subject(K.JOB, self.job)

        def begin(at_s: float) -> None:
            for gpu, pod in relations:
                self.c.inventory.observe(gpu, pod, at_s)
            for pod in pods:
                self.c.inventory.observe(pod, job, at_s)

        self.pods = [*relations, *((pod, job) for pod in pods)]
        self.c.at(t_s, begin)

    def _release(self, t_s: float) -> None:
        relations = self.pods
        self.c.at(t_s, lambda at_s: [self.c.inventory.end(a, b, at_s) for a, b in relations] and None)

    def _state(self, t_s: float, util: float | None = None, used: float | None = None) -> None:
        gpus = [gpu for node in self.nodes for gpu in self.c.gpus[node]]
        if util is not None:
            self.c.at(t_s, lambda at_s: self.c.util.update(dict.fromkeys(gpus, util)))
        if used is not None:
            self.c.at(t_s, lambda at_s: self.c.used.update(dict.fromkeys(gpus, used)))

    def _start(self, cause: str) -> None:
        took_s = self.c.uniform(60, 500)
        self.c.is_true(self.t_s, self.t_s + took_s, self.nodes, self.job, Account.INITIALISING, cause, bool(cause))
        self._state(self.t_s + took_s / 2, 50.0, 6e10)
        if self.style.records:
            self._line(self.t_s + 1, job_start_time=self.t_s + 1)
        self.t_s += took_s
        self.run = f"run{self.attempt}-{self.t_s:.0f}"
        self._state(self.t_s, 97.0)
        self.restart_cause = cause

    def _line(self, t_s: float, **fields: float | str) -> None:
        text = json.dumps({"job_name": self.job, **fields})
        self.c.lines.append((t_s + 1, self.subject, text))

    def _one_step(self, factor: float = 1.0) -> float:
        style = self.style
        took_s = style.step_s * factor * float(self.c.rng.normal(1.0, 0.02))
        begin_s = self.t_s
        self.t_s += took_s
        self.step += 1
        if style.records:
            self._line(begin_s, step_count=self.step, step_start_time=begin_s)
        elif self.step % style.stride == 0:
            self.printed.append((self.step, self.t_s, took_s, False))
        again = self.step <= self.high
        self.high = max(self.high, self.step)
        if again:
            self._true(begin_s, Account.RECOMPUTED, 1.0, self.restart_cause, True)
        return took_s

    def _true(
        self, begin_s: float, account: Account, share: float, cause: str = "", injected: bool = False
    ) -> None:
        if share > 0:
            gpus = GPUS * share
            self.c.is_true(begin_s, self.t_s, self.nodes, self.job, account, cause, injected, gpus)

    def _healthy(self, begin_s: float) -> None:
        compute, data, comm = self.style.split or (0.0, 0.0, 0.0)
        self._true(begin_s, Account.PRODUCTIVE, compute)
        self._true(begin_s, Account.DATA_WAIT, data)
        self._true(begin_s, Account.EXPOSED_COMM, comm)
        self._true(begin_s, Account.UNATTRIBUTED, 1 - compute - data - comm)

    def _flush(self) -> None:
        """Hands the printed lines over, in batches as a log is read."""
        batch: list[tuple[int, float, float, bool]] = []
        for point in self.printed:
            if batch and point[1] - batch[0][1] > LOOK_S:
                self._hand(batch)
                batch = []
            batch.append(point)
        if batch:
            self._hand(batch)
        self.printed = []

    def _hand(self, batch: list[tuple[int, float, float, bool]]) -> None:
        late_s = self.c.uniform(0, self.style.late_s) if self.style.late_s else 2.0
        self.c.steps.append((batch[-1][1] + late_s, self.subject, self.run, batch, self.style))

    def _train(self, until_s: float) -> str:
        """Steps until something happens; returns the cause of the restart."""
        c, rng = self.c, self.c.rng
        what = str(rng.choice(["hang", "hang", "crash", "stall", "slow"]))
        next_save_s = self.t_s + c.uniform(600, 1800)
        while self.t_s < min(until_s, c.end_s):
            begin_s, again = self.t_s, self.step < self.high
            self._one_step()
            if not again:
                self._healthy(begin_s)
            # as trainers are set up: a checkpoint falls on a step that is logged
            if self.t_s > next_save_s and self.step % self.style.stride == 0:
                self._save()
                next_save_s = self.t_s + c.uniform(600, 1800)
        cause = ""
        if self.t_s < c.end_s:
            cause = {"hang": self._hang, "crash": self._crash, "stall": self._stall, "slow": self._slow}[what]()
        self._flush()
        return cause

    def _save(self) -> None:
        """A checkpoint: its pause is beside the step that is flagged."""
        begin_s, took_s = self.t_s, self.c.uniform(10, 60)
        if self.style.records:
            kind = "checkpoint_save"
            self._line(begin_s, custom_badput_event_type=kind, custom_badput_event_start_time=begin_s)
            end_s = begin_s + took_s
            self._line(end_s, custom_badput_event_type=kind, custom_badput_event_end_time=end_s)
        elif self.style.flags_saves and self.printed:
            step, t_s, step_took_s, _ = self.printed[-1]
            self.printed[-1] = (step, t_s, step_took_s, True)
        self.saved_step = self.step
        self.t_s += took_s
        self._true(begin_s, Account.CHECKPOINTING, 1.0)

    def _hang(self) -> str:
        c, begin_s = self.c, self.t_s
        dies_s = begin_s + c.uniform(300, 1200)
        is_hardware = c.rng.random() < 0.6
        cause = str(c.rng.choice([str(f) for f in HW])) if is_hardware else str(Fault.HANG)
        faults = [(Fault.HANG, Subject(K.JOB, self.job))]
        if is_hardware:
            faults.append((Fault(cause), Subject(K.NODE, self.nodes[0])))
        self.t_s = dies_s
        self._true(begin_s, Account.HUNG, 1.0, cause, True)
        return self._ends(begin_s, cause, faults, is_hardware)

    def _crash(self) -> str:
        begin_s = self.t_s
        self.t_s += self.c.uniform(5, 40)
        self._true(begin_s, Account.HUNG, 1.0, str(Fault.JOB_CRASH), True)
        faults = [(Fault.JOB_CRASH, Subject(K.JOB, self.job))]
        return self._ends(begin_s, str(Fault.JOB_CRASH), faults, False)

    def _ends(self, onset_s: float, cause: str, faults: list[tuple[Fault, Subject]], is_hardware: bool) -> str:
        """The process dies now; the job comes back in place, or with new pods after a while."""
        c = self.c
        self._in_place = bool(c.rng.random() < 0.25)
        self._state(self.t_s, 0.0, 5e8)
        gap_s = 0.0 if self._in_place else c.uniform(20, 600)
        self.step = self.saved_step
        if not self._in_place:
            self._release(self.t_s)
        away_s = self.t_s
        self.t_s += gap_s
        c.incident(onset_s, self.t_s + 1, faults, cause)
        if gap_s and is_hardware:
            c.is_true(away_s, self.t_s, self.nodes[:1], "", Account.UNHEALTHY, cause, True)
            c.is_true(away_s, self.t_s, self.nodes[1:], "", Account.FREE)
        elif gap_s:
            c.is_true(away_s, self.t_s, self.nodes, "", Account.FREE)
        return cause

    def _stall(self) -> str:
        """One step that waits for its data."""
        begin_s, took_s = self.t_s, self.c.uniform(200, 900)
        self.t_s += took_s
        cause = str(Fault.DATA_STALL)
        self._true(begin_s, Account.DATA_WAIT, 1.0, cause, True)
        self.c.incident(begin_s, self.t_s, [(Fault.DATA_STALL, Subject(K.JOB, self.job))], cause)
        return self._train(self.t_s + self.c.uniform(1800, 6000))

    def _slow(self) -> str:
        onset_s, factor = self.t_s, self.c.uniform(1.15, 1.8)
        until_s = onset_s + self.c.uniform(1800, 4500)
        cause = str(Fault.STRAGGLER)
        while self.t_s < min(until_s, self.c.end_s):
            begin_s, again = self.t_s, self.step < self.high
            self._one_step(factor)
            if again:
                continue
            excess = 1 - 1 / factor
            split = self.style.split
            if split is not None:  # what it measures stays as long as it was; the rest of the step grew
                parts = [share / factor for share in split]
                self._true(begin_s, Account.PRODUCTIVE, parts[0])
                self._true(begin_s, Account.DATA_WAIT, parts[1], cause)
                self._true(begin_s, Account.UNATTRIBUTED, 1 - excess - sum(parts))
                self._true(begin_s, Account.EXPOSED_COMM, parts[2])
            else:
                self._true(begin_s, Account.UNATTRIBUTED, 1 - excess)
            self._true(begin_s, Account.STRAGGLING, excess, cause, True)
        self.c.incident(onset_s, self.t_s, [(Fault.STRAGGLER, Subject(K.JOB, self.job))], cause)
        return self._train(self.t_s + self.c.uniform(1800, 6000))

    def _silent(self) -> None:
        """No steps: busy, then idle."""
        c = self.c
        self._hold(self.t_s)
        self._state(self.t_s, 90.0, 6e10)
        idle_s = c.uniform(self.t_s + 3600, c.end_s - 3600)
        back_s = idle_s + c.uniform(900, 3000)
        self._state(idle_s, 0.0)
        self._state(back_s, 90.0)
        c.is_true(self.t_s, idle_s, self.nodes, self.job, Account.NO_STEPS)
        c.is_true(idle_s, back_s, self.nodes, self.job, Account.IDLE_HELD, "", True)
        c.is_true(back_s, c.end_s, self.nodes, self.job, Account.NO_STEPS)
