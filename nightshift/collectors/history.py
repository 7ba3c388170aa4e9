"""What was observed lately, bounded in bytes: what correlation, root-cause analysis and the console look back on.

Frames are kept as they came while the budget allows, older ones thinned to every 12th and then every 144th (at 5 s
ticks: minutes, then quarter hours). Their arrays are shared with the ticks, not copied. Steps, lines, events and
source states are kept per subject, each with its own bound. Safe to read from other threads while ticks are added.
"""

from __future__ import annotations

import bisect
import json
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from threading import RLock
from typing import TypeVar

import numpy as np

from nightshift.collectors.frame import Floats, Frame, Instant, LogRecord, SeriesIndex, SourceStatus, StepSeries
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
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
# Whole logs: of a rank or node at least so many lines; of a node what stood within RAW_AROUND_S of its events, too.
MIN_RAW_LINES, MAX_RAW_LINES, RAW_AROUND_S = 2_000, 20_000, 60.0
_RAW_BLOCK, _MOST_PINS = 250, 16
# Compressed; a log of 150 letters a line takes about 40 kB for 2,000 of them.
MAX_RAW_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class _RawBlock:
    """Lines of one source, compressed: JSON rows of time, uncertainty, clock, source, offset and text."""

    first_s: float
    last_s: float
    lines: int
    packed: bytes


class RawLines:
    """The newest lines of logs as they stood, per subject, bounded in memory.

    >>> raw, rank = RawLines(), Subject(SubjectKind.RANK, "ml/train#0")
    >>> raw.add([LogRecord(Instant(float(n)), "log", rank, f"line {n}", n) for n in range(5_000)])
    >>> kept = raw.between(rank, 0.0, 9e9)
    >>> 2_000 <= len(kept) <= 2_250, kept[-1].text
    (True, 'line 4999')
    """

    def __init__(self, max_bytes: int = MAX_RAW_BYTES, max_subjects: int = MAX_SUBJECTS) -> None:
        self._max_bytes, self._max_subjects = max_bytes, max_subjects
        self._blocks: OrderedDict[Subject, deque[_RawBlock]] = OrderedDict()
        self._open: dict[Subject, list[LogRecord]] = {}
        self._pins: dict[Subject, deque[float]] = {}
        self._bytes = 0

    def add(self, records: Iterable[LogRecord]) -> None:
        for record in records:
            lines = self._open.setdefault(record.subject, [])
            lines.append(record)
            if len(lines) >= _RAW_BLOCK:
                self._close(record.subject)

    def pin(self, subject: Subject, at_s: float) -> None:
        """Keeps what stands within RAW_AROUND_S of an event (Unix s), while a flood pushes other lines out."""
        pins = self._pins.setdefault(subject, deque(maxlen=_MOST_PINS))
        # a burst is one event: its hundred lines must not push the events before it out
        if not pins or at_s - pins[-1] > RAW_AROUND_S / 2:
            pins.append(at_s)

    def between(self, subject: Subject, start_s: float, end_s: float) -> list[LogRecord]:
        """The subject's lines of the range, in the order in which they were read."""
        found: list[LogRecord] = []
        for block in self._blocks.get(subject, ()):
            if block.first_s <= end_s and block.last_s >= start_s:
                found += _unpacked(block, subject)
        found += self._open.get(subject, ())
        return [record for record in found if start_s <= record.at.t_s <= end_s]

    def _close(self, subject: Subject) -> None:
        lines = self._open.pop(subject)
        rows = [[r.at.t_s, r.at.uncertainty_s, r.at.clock, r.source, r.offset, r.text] for r in lines]
        times = [record.at.t_s for record in lines]
        # a lone surrogate of a broken log is no UTF-8; the fastest level takes a third of the default's time
        packed = zlib.compress(json.dumps(rows).encode(), 1)
        blocks = self._blocks.setdefault(subject, deque())
        self._blocks.move_to_end(subject)
        blocks.append(_RawBlock(min(times), max(times), len(lines), packed))
        self._bytes += len(packed)
        self._forget(subject, blocks)
        while self._blocks and (self._bytes > self._max_bytes or len(self._blocks) > self._max_subjects):
            gone, left = self._blocks.popitem(last=False)
            self._bytes -= sum(len(block.packed) for block in left)
            self._open.pop(gone, None)
            self._pins.pop(gone, None)

    def _forget(self, subject: Subject, blocks: deque[_RawBlock]) -> None:
        """Drops the oldest blocks beyond what has to be kept; what stands around an event goes last."""
        count = sum(block.lines for block in blocks)
        for block in list(blocks)[:-1]:
            if count - block.lines < MIN_RAW_LINES:
                return
            near = (block.first_s - RAW_AROUND_S, block.last_s + RAW_AROUND_S)
            pinned = any(near[0] <= at_s <= near[1] for at_s in self._pins.get(subject, ()))
            # an event may still come for what was just written
            young = subject.kind is SubjectKind.NODE and blocks[-1].last_s - block.last_s <= RAW_AROUND_S
            if count <= MAX_RAW_LINES and (pinned or young):
                continue
            blocks.remove(block)
            count -= block.lines
            self._bytes -= len(block.packed)


def _unpacked(block: _RawBlock, subject: Subject) -> list[LogRecord]:
    return [
        LogRecord(Instant(t_s, unsure_s, clock), source, subject, text, offset)
        for t_s, unsure_s, clock, source, offset, text in json.loads(zlib.decompress(block.packed))
    ]


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
        self._raw = RawLines(max_subjects=max_subjects)

    def add(self, tick: Tick) -> None:
        """Remembers a tick, forgetting the oldest where a bound is reached."""
        with self._lock:
            for kind, frame in tick.frames.items():
                self._rings.setdefault(kind, _Ring()).add(frame)
            for ring in self._rings.values():
                ring.shrink(self._max_frame_bytes / len(self._rings))
            for steps in tick.steps:
                self._add_steps(steps)
            # subjects that left their slot leave their counts behind; swept now and then, not at each tick
            if len(self._step_counts) > 2 * self._max_subjects:
                self._step_counts = {s: n for s, n in self._step_counts.items() if s in self._steps}
            for record in tick.logs:
                kept_lines = self._slot(self._lines, record.subject)
                kept_lines.append(record)
                if len(kept_lines) > self._max_lines:
                    kept_lines.popleft()
            self._raw.add(tick.raw)
            self._raw.add(record for record in tick.logs if record.subject.kind is SubjectKind.NODE)
            for event in tick.events:
                if event.kind is not KernelEventKind.GAP:
                    self._raw.pin(event.node, event.record.at.t_s)
                kept_events = self._slot(self._events, event.node)
                kept_events.append(event)
                if len(kept_events) > MAX_EVENTS:
                    kept_events.popleft()
            for status in tick.sources:
                self._sources[status.source] = status

    def _add_steps(self, steps: StepSeries) -> None:
        """Remembers a series of steps, forgetting the subject's oldest beyond `max_steps`."""
        kept = self._slot(self._steps, steps.subject)
        kept.append(steps)
        count = len(steps.step) + (self._step_counts.get(steps.subject, 0) if len(kept) > 1 else 0)
        while len(kept) > 1 and count > self._max_steps:
            count -= len(kept.popleft().step)
        self._step_counts[steps.subject] = count

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

    def raw_lines(self, subject: Subject, start_s: float, end_s: float) -> list[LogRecord]:
        """The lines of a rank's, job's or node's log as they stood, also those that nothing was read from."""
        with self._lock:
            return self._raw.between(subject, start_s, end_s)

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
