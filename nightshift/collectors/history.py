"""What was observed lately, bounded in bytes: what correlation, root-cause analysis and the console look back on.

Frames are kept as they came while the budget allows, older ones thinned to every 12th and then every 144th (at 5 s
ticks: minutes, then quarter hours). Their arrays are shared with the ticks, not copied. Steps, lines, events and
source states are kept per subject, each with its own bound. Safe to read from other threads while ticks are added.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from threading import RLock
from typing import TypeVar

import numpy as np

from nightshift.collectors.frame import Floats, Frame, LogRecord, SeriesIndex, SourceStatus, StepSeries
from nightshift.collectors.kernel_log.event import KernelEvent
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.tick import Tick

_STRIDE = 12
_LEVELS = 3
T = TypeVar("T")


# Memory for frames of all kinds. Older frames are thinned out, so more memory buys little more past.
MAX_FRAME_BYTES = 64 * 2**20
# Most subjects with stored steps, lines and events; the longest unheard goes first.
MAX_SUBJECTS = 4096
# Training steps kept per rank or job: fifty of the loss detector's longest watches.
MAX_STEPS = 20_000
# Log lines kept per subject.
MAX_LINES = 2_000
# Kernel events kept per node.
MAX_EVENTS = 2_000


class _Ring:
    """Frames of one kind at three resolutions, oldest first in each."""

    def __init__(self) -> None:
        self.levels: list[deque[Frame]] = [deque() for _ in range(_LEVELS)]
        self.bytes = [0] * _LEVELS
        self._thinned = [0] * _LEVELS

    def add(self, frame: Frame) -> None:
        self._put(0, frame)

    def _put(self, level: int, frame: Frame) -> None:
        self.levels[level].append(frame)
        self.bytes[level] += _bytes(frame)

    def shrink(self, limit_bytes: float) -> None:
        """Brings every level within its third of the limit; every 12th evicted frame moves to the next level."""
        for level in range(_LEVELS):
            while self.bytes[level] > limit_bytes / _LEVELS and len(self.levels[level]) > 1:
                frame = self.levels[level].popleft()
                self.bytes[level] -= _bytes(frame)
                self._thinned[level] += 1
                # the oldest frames are thinned, not dropped: a leak of hours has to stay visible at a coarser step
                if level + 1 < _LEVELS and self._thinned[level] % _STRIDE == 1:
                    self._put(level + 1, frame)

    def between(self, start_s: float, end_s: float) -> Iterable[Frame]:
        for level in reversed(self.levels):
            frames = list(level)
            first = bisect.bisect_left(frames, start_s, key=lambda frame: frame.at_s)
            for frame in frames[first:]:
                if frame.at_s > end_s:
                    break
                yield frame


@dataclass(frozen=True, eq=False)
class Columns:
    """One metric of all subjects of a kind: values [n_ticks, n_subjects], NaN = missing; t_s [n_ticks] (Unix s)."""

    t_s: Floats
    subjects: tuple[Subject, ...]
    values: Floats


class History:
    def __init__(
        self,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_subjects: int = MAX_SUBJECTS,
        max_steps: int = MAX_STEPS,
        max_lines: int = MAX_LINES,
    ) -> None:
        self._max_frame_bytes, self._max_subjects = max_frame_bytes, max_subjects
        self._max_steps, self._max_lines = max_steps, max_lines
        self._lock = RLock()
        self._rings: dict[SubjectKind, _Ring] = {}
        self._steps: OrderedDict[Subject, deque[StepSeries]] = OrderedDict()
        self._step_counts: dict[Subject, int] = {}
        self._lines: OrderedDict[Subject, deque[LogRecord]] = OrderedDict()
        self._events: OrderedDict[Subject, deque[KernelEvent]] = OrderedDict()
        self._sources: dict[Subject, SourceStatus] = {}

    def add(self, tick: Tick) -> None:
        """Remembers a tick, forgetting the oldest where a bound is reached."""
        with self._lock:
            for kind, frame in tick.frames.items():
                self._rings.setdefault(kind, _Ring()).add(frame)
            for ring in self._rings.values():
                ring.shrink(self._max_frame_bytes / len(self._rings))
            for steps in tick.steps:
                kept = self._slot(self._steps, steps.subject)
                kept.append(steps)
                count = len(steps.step) + (self._step_counts.get(steps.subject, 0) if len(kept) > 1 else 0)
                while len(kept) > 1 and count > self._max_steps:
                    count -= len(kept.popleft().step)
                self._step_counts[steps.subject] = count
            # subjects that left their slot leave their counts behind; swept now and then, not at each tick
            if len(self._step_counts) > 2 * self._max_subjects:
                self._step_counts = {s: n for s, n in self._step_counts.items() if s in self._steps}
            for record in tick.logs:
                kept_lines = self._slot(self._lines, record.subject)
                kept_lines.append(record)
                if len(kept_lines) > self._max_lines:
                    kept_lines.popleft()
            for event in tick.events:
                kept_events = self._slot(self._events, event.node)
                kept_events.append(event)
                if len(kept_events) > MAX_EVENTS:
                    kept_events.popleft()
            for status in tick.sources:
                self._sources[status.source] = status

    def _slot(self, table: OrderedDict[Subject, deque[T]], subject: Subject) -> deque[T]:
        slot = table.setdefault(subject, deque())
        table.move_to_end(subject)
        while len(table) > self._max_subjects:
            table.popitem(last=False)
        return slot

    def window(self, subject: Subject, metric: str, start_s: float, end_s: float) -> tuple[Floats, Floats]:
        """(t_s, values) of one signal, both [n], oldest first, missing values left out. A step column
        (`collectors.frame.STEP_COLUMNS`) of a rank or job is read from its steps."""
        with self._lock:
            ring = self._rings.get(subject.kind)
            frames = list(ring.between(start_s, end_s)) if ring is not None else []
        row_in: dict[int, int | None] = {}
        t_s, values = [], []
        for frame in frames:
            # an index is shared by the frames of hours: its row is looked up once, not per frame
            row = row_in.setdefault(id(frame.index), frame.index.rows.get(subject))
            column = frame.columns.get(metric)
            if row is None or column is None:
                continue
            value = frame.values[row, column]
            if not np.isnan(value):
                t_s.append(float(np.broadcast_to(frame.observed_at_s, frame.values.shape)[row, column]))
                values.append(float(value))
        if not t_s and (steps := self.steps(subject, start_s, end_s)) is not None:
            column_values = steps.column(metric)
            known = ~np.isnan(column_values)
            return steps.t_s[known], column_values[known]
        return np.array(t_s), np.array(values)

    def columns(self, kind: SubjectKind, metric: str, start_s: float, end_s: float) -> Columns:
        """One metric of every subject of a kind that the newest frame of the range has, to compare peers."""
        with self._lock:
            ring = self._rings.get(kind)
            frames = list(ring.between(start_s, end_s)) if ring is not None else []
        if not frames:
            return Columns(np.empty(0), (), np.empty((0, 0)))
        index = frames[-1].index
        moves: dict[int, tuple[list[int], list[int]]] = {}
        values = np.full((len(frames), len(index)), np.nan)
        for position, frame in enumerate(frames):
            if frame.index is index:
                values[position] = frame.column(metric)
                continue
            if id(frame.index) not in moves:
                moves[id(frame.index)] = _moves(frame.index, index)
            source, target = moves[id(frame.index)]
            values[position, target] = frame.column(metric)[source]
        return Columns(np.array([frame.at_s for frame in frames]), index.subjects, values)

    def steps(self, subject: Subject, start_s: float, end_s: float) -> StepSeries | None:
        """The training steps of a rank or job in the range, joined; None where there are none. `run` is that of
        the newest; a rewind shows as a step that goes back."""
        with self._lock:
            parts = list(self._steps.get(subject, ()))
        if not parts:
            return None
        t_s = np.concatenate([part.t_s for part in parts])
        inside = (t_s >= start_s) & (t_s <= end_s)
        if not inside.any():
            return None
        names = list(dict.fromkeys(name for part in parts for name in part.columns))
        return StepSeries(
            subject,
            parts[-1].run,
            np.concatenate([part.step for part in parts])[inside],
            t_s[inside],
            {name: np.concatenate([part.column(name) for part in parts])[inside] for name in names},
            parts[-1].source,
        )

    def logs(self, subject: Subject, start_s: float, end_s: float) -> list[LogRecord]:
        """The subject's own lines in the range, oldest first."""
        with self._lock:
            return [record for record in self._lines.get(subject, ()) if start_s <= record.at.t_s <= end_s]

    def events(self, node: Subject, start_s: float, end_s: float) -> list[KernelEvent]:
        """The node's kernel events in the range, oldest first."""
        with self._lock:
            return [event for event in self._events.get(node, ()) if start_s <= event.record.at.t_s <= end_s]

    def step_subjects(self) -> list[Subject]:
        with self._lock:
            return list(self._steps)

    def sources(self) -> list[SourceStatus]:
        """The newest status of every source ever seen."""
        with self._lock:
            return list(self._sources.values())

    def latest(self, kind: SubjectKind) -> Frame | None:
        with self._lock:
            ring = self._rings.get(kind)
            return ring.levels[0][-1] if ring is not None and ring.levels[0] else None


def _bytes(frame: Frame) -> int:
    return frame.values.nbytes + frame.observed_at_s.nbytes + frame.epoch.nbytes + 256


def _moves(before: SeriesIndex, after: SeriesIndex) -> tuple[list[int], list[int]]:
    common = [(row, after.rows[subject]) for row, subject in enumerate(before.subjects) if subject in after.rows]
    return [row for row, _ in common], [row for _, row in common]
