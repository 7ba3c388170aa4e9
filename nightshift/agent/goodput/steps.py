"""One job's steps as stretches of time: in surviving steps, in steps computed again, and the pauses between.

A job's points (step, time) come late, twice and out of order; they are sorted for `SETTLE_S` before they are folded
into stretches. A pause is what a step took beyond what its run's steps take; several steps between two points are
judged together, so points that were lost (a restart of ours) change nothing. After a rewind, steps up to the
highest number reached before are computed again.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median
from typing import Any

SETTLE_S = 300.0
# What steps take longer than so much is no pause yet, however regular they are.
LEAST_PAUSE_S = 1.5
# Stretches of alike steps are joined within such a cell, so that one fault's onset does not blur an hour.
GRID_S = 300.0
RECENT, ENOUGH = 64, 8
# Another rank leads a job's steps once the leader has been silent for so long.
SILENT_S, SILENT_STEPS = 60.0, 5.0
# A run that starts at its first step this long after the last one is another training under the same name.
ANOTHER_S = 6 * 3600.0
# A line of several ranks' common log may be so many strides late.
LATE_STRIDES = 3


@dataclass(frozen=True, slots=True)
class StepPoint:
    """The end of a step (Unix s on our clock). Times a step (s): NaN where the job did not print them; a
    `step_time_s` of 0: nothing came before, as where a job says that its first step begins."""

    t_s: float
    step: int
    run: str = ""
    step_time_s: float = math.nan
    compute_s: float = math.nan
    data_s: float = math.nan
    comm_s: float = math.nan
    saved: bool = False


@dataclass(frozen=True, slots=True)
class StepStretch:
    """Steps without a pause between. `measured_s` is the part whose split was measured: into `data_s`, `comm_s`,
    `compute_s`."""

    start_s: float
    end_s: float
    steps: float
    again: bool
    measured_s: float = 0.0
    compute_s: float = 0.0
    data_s: float = 0.0
    comm_s: float = 0.0

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s

    def part(self, start_s: float, end_s: float) -> StepStretch:
        """The stretch between two times within it, in proportion."""
        share = (end_s - start_s) / self.length_s if self.length_s > 0 else 0.0
        scaled = {name: getattr(self, name) * share for name in _ADDED}
        return replace(self, start_s=start_s, end_s=end_s, **scaled)


_ADDED = ("steps", "measured_s", "compute_s", "data_s", "comm_s")


@dataclass(frozen=True, slots=True)
class Pause:
    """From the end of one step to the beginning of the next. `saved`: beside a checkpoint; `restart`: another
    process steps after it; `back`: it begins again at a lower step."""

    start_s: float
    end_s: float
    saved: bool = False
    restart: bool = False
    back: bool = False


@dataclass
class StepTrack:
    """The steps of one job, in order of time.

    >>> track = StepTrack()
    >>> times = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 230.0, 240.0]
    >>> track.take("job", [StepPoint(t_s, n + 1) for n, t_s in enumerate(times)])
    12
    >>> stretches, pauses = track.timeline()
    >>> [(s.start_s, s.end_s, s.again) for s in stretches]
    [(0.0, 100.0, False), (220.0, 240.0, False)]
    >>> [(p.start_s, p.end_s) for p in pauses]
    [(100.0, 220.0)]
    """

    lead: str = ""
    lead_s: float = -math.inf
    points: list[StepPoint] = field(default_factory=list)
    """Not folded yet, by time."""
    anchor: StepPoint | None = None
    """The last point that was folded."""
    high: int = -1
    """The highest step so far; steps up to it are computed again after a rewind."""
    first: int | None = None
    stride: int = 0
    recent_s: list[float] = field(default_factory=list)
    """Times of a step of late, without pauses."""
    stretches: list[StepStretch] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    late: int = 0
    """Points dropped: older than what was folded already."""

    @property
    def typical_s(self) -> float:
        return median(self.recent_s) if len(self.recent_s) >= ENOUGH else math.nan

    @property
    def line_s(self) -> float:
        """Time from one line of steps to the next; steps between a last line and a stop are not seen."""
        return 0.0 if math.isnan(self.typical_s) else self.typical_s * max(self.stride, 1)

    @property
    def last_s(self) -> float:
        """The time of the newest point."""
        return self.points[-1].t_s if self.points else self.anchor.t_s if self.anchor else -math.inf

    def take(self, subject: str, points: Iterable[StepPoint]) -> int:
        """Takes points of one rank (or of the job); those of one rank alone are used while it speaks. Returns how
        many were used."""
        used = 0
        for point in points:
            silent_s = max(SILENT_S, SILENT_STEPS * (0.0 if math.isnan(self.typical_s) else self.typical_s))
            if subject != self.lead and point.t_s <= self.lead_s + silent_s:
                continue
            if self.anchor is not None and point.t_s <= self.anchor.t_s:
                self.late += point.step != self.anchor.step
                continue
            self.lead, self.lead_s = subject, max(point.t_s, self.lead_s)
            bisect.insort(self.points, point, key=lambda p: (p.t_s, p.step))
            used += 1
        return used

    def fold(self, before_s: float) -> None:
        """Turns points up to a time into stretches for good."""
        # how long a first step took only the next one tells
        if self.anchor is not None or len(self.points) > 1:
            self._fold(bisect.bisect_right(self.points, before_s, key=lambda p: p.t_s))

    def _fold(self, count: int) -> None:
        for place, point in enumerate(self.points[:count]):
            self._step(point, self.points[place + 1] if place + 1 < len(self.points) else None)
        del self.points[:count]

    def timeline(self) -> tuple[list[StepStretch], list[Pause]]:
        """Everything as known now; what is not folded yet stays open."""
        ahead = StepTrack(**{f.name: getattr(self, f.name) for f in fields(self)})
        ahead.points, ahead.recent_s = list(self.points), list(self.recent_s)
        ahead.stretches, ahead.pauses = list(self.stretches), list(self.pauses)
        ahead._fold(len(ahead.points))
        return ahead.stretches, ahead.pauses

    def forget(self, before_s: float) -> None:
        self.stretches = [s for s in self.stretches if s.end_s > before_s]
        self.pauses = [p for p in self.pauses if p.end_s > before_s]

    def _step(self, point: StepPoint, following: StepPoint | None) -> None:
        last = self.anchor
        if last is None:
            self.first = point.step
            if following is not None and following.step > point.step and following.run == point.run:
                self.stride = following.step - point.step
            self._begin(point, point.t_s - self._own(point) * self._leading(point), Pause(point.t_s, point.t_s))
            return
        ahead = point.step - last.step
        other = point.run != last.run
        if not other and -LATE_STRIDES * max(self.stride, 1) <= ahead <= 0:
            return  # said twice, or a line of another rank that came late
        if ahead <= 0 or other:
            self._restart(last, point, other)
        else:
            self._advance(last, point, following, ahead)

    def _advance(self, last: StepPoint, point: StepPoint, following: StepPoint | None, ahead: int) -> None:
        """Steps after the last one; what they take too long is a pause before them."""
        self.stride = min(self.stride or ahead, ahead)
        gap_s = point.t_s - last.t_s
        per_s = point.step_time_s if _is_time(point.step_time_s) else self.typical_s
        length_s = ahead * per_s
        is_slow = not (last.saved or point.saved) and self._is_pace(point, gap_s / ahead, per_s, following)
        # NaN, too: nobody knows yet how long its steps take
        if is_slow or not gap_s - length_s > LEAST_PAUSE_S or gap_s - length_s <= self._slack(point, ahead):
            length_s = gap_s
            self.recent_s = [*self.recent_s[1 - RECENT :], gap_s / ahead]
        begin_s = point.t_s - length_s
        if length_s < gap_s:
            self._pause(Pause(last.t_s, begin_s, last.saved or point.saved))
        self._add(begin_s, last.step, point)
        self.anchor, self.high = point, max(self.high, point.step)

    def _restart(self, last: StepPoint, point: StepPoint, other: bool) -> None:
        """Another process, or the same one further back: from which step on is it new?"""
        gap_s = point.t_s - last.t_s
        fresh_count = point.step <= (self.first or 0) + max(self.stride, 1)
        usual_s = self.typical_s if not math.isnan(self.typical_s) else 0.0
        in_process = not other and gap_s <= max(SILENT_S, 10 * usual_s)
        if fresh_count and (in_process or gap_s > ANOTHER_S):
            self.high = -1
        begin_s = max(last.t_s, point.t_s - self._own(point) * self._leading(point))
        back = point.step <= self.high
        self._begin(point, begin_s, Pause(last.t_s, begin_s, False, not in_process, back))

    def _begin(self, point: StepPoint, begin_s: float, pause: Pause) -> None:
        if pause.end_s > pause.start_s:
            self._pause(pause)
        self._add(begin_s, point.step - self._leading(point), point)
        self.anchor, self.high = point, max(self.high, point.step)

    def _leading(self, point: StepPoint) -> int:
        """Steps before a run's first point that it stands for: as many as lie between its points."""
        return max(1, min(self.stride or 1, point.step))

    def _own(self, point: StepPoint) -> float:
        """Time of a step where nothing before it is known."""
        if point.step_time_s >= 0 and math.isfinite(point.step_time_s):
            return point.step_time_s
        known = self.recent_s or [b.t_s - a.t_s for a, b in itertools.islice(_ahead(self.points), ENOUGH)]
        return median(known) if known else 0.0

    def _slack(self, point: StepPoint, count: int) -> float:
        """How much longer `count` steps may take without a pause (s)."""
        if _is_time(point.step_time_s):
            return 0.05 * count * point.step_time_s
        typical_s = self.typical_s
        spread_s = 0.02 * typical_s + 1.4826 * median([abs(t - typical_s) for t in self.recent_s])
        return 5.0 * spread_s * math.sqrt(count)

    def _is_pace(self, point: StepPoint, took_s: float, usual_s: float, following: StepPoint | None) -> bool:
        """Whether a step is as slow as the one before or after it: a pace of its own, and no pause."""
        paces = self.recent_s[-1:]
        if following is not None and following.run == point.run and following.step > point.step:
            paces.append((following.t_s - point.t_s) / (following.step - point.step))
        return any(pace - usual_s > 0.5 * (took_s - usual_s) > 0 for pace in paces)

    def _pause(self, pause: Pause) -> None:
        self.pauses.append(pause)

    def _add(self, start_s: float, after: int, point: StepPoint) -> None:
        """Adds the steps (after, point.step] of [start_s, point.t_s], those computed again apart."""
        length_s, count = point.t_s - start_s, point.step - after
        if length_s <= 0 or count <= 0:
            return
        split = _split(point, length_s / count)
        again = min(max(self.high - after, 0), count) / count
        middle_s = start_s + again * length_s
        for begin_s, end_s, share, is_again in (
            (start_s, middle_s, again, True),
            (middle_s, point.t_s, 1 - again, False),
        ):
            if end_s > begin_s:
                amounts = {name: value * share * count for name, value in split.items()}
                self._join(StepStretch(begin_s, end_s, count * share, is_again, **amounts))

    def _join(self, new: StepStretch) -> None:
        for piece in _cells(new):
            last = self.stretches[-1] if self.stretches else None
            alike = (
                last is not None
                and last.end_s == piece.start_s
                and last.again == piece.again
                and (last.measured_s > 0) == (piece.measured_s > 0)
                and last.start_s // GRID_S == piece.start_s // GRID_S
            )
            if last is not None and alike:
                sums = {name: getattr(last, name) + getattr(piece, name) for name in _ADDED}
                self.stretches[-1] = replace(last, end_s=piece.end_s, **sums)
            else:
                self.stretches.append(piece)

    def saved(self) -> dict[str, Any]:
        """As JSON values; `load` takes it back."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["lead_s"] = None if math.isinf(self.lead_s) else self.lead_s
        plain["anchor"] = None if self.anchor is None else _row(self.anchor)
        for name in ("points", "stretches", "pauses"):
            plain[name] = [_row(item) for item in plain[name]]
        return plain

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> StepTrack:
        """Raises KeyError, TypeError or ValueError where it is no such state."""
        made = cls(**{f.name: saved[f.name] for f in fields(cls)})
        made.lead_s = -math.inf if saved["lead_s"] is None else float(saved["lead_s"])
        made.anchor = None if saved["anchor"] is None else _point(saved["anchor"])
        made.points = [_point(row) for row in saved["points"]]
        made.stretches = [StepStretch(*row) for row in saved["stretches"]]
        made.pauses = [Pause(*row) for row in saved["pauses"]]
        return made


def _is_time(span_s: float) -> bool:
    return 0 < span_s < math.inf


def _ahead(points: Sequence[StepPoint]) -> Iterator[tuple[StepPoint, StepPoint]]:
    return ((a, b) for a, b in itertools.pairwise(points) if b.step == a.step + 1 and b.t_s > a.t_s)


def _split(point: StepPoint, per_s: float) -> dict[str, float]:
    """What a step's measured parts come to (s); nothing where it measured none. Parts that overlap (together longer
    than the step) leave to communication what the others leave."""
    given = {"compute_s": point.compute_s, "data_s": point.data_s, "comm_s": point.comm_s}
    known = {name: min(max(value, 0.0), per_s) for name, value in given.items() if math.isfinite(value)}
    if not known or per_s <= 0:
        return {}
    split = {"measured_s": per_s, **dict.fromkeys(given, 0.0), **known}
    split["data_s"] = min(split["data_s"], per_s)
    split["compute_s"] = min(split["compute_s"], per_s - split["data_s"])
    split["comm_s"] = min(split["comm_s"], per_s - split["data_s"] - split["compute_s"])
    return split


def _cells(stretch: StepStretch) -> Iterator[StepStretch]:
    """A stretch cut at the grid; nearly always one piece."""
    start_s = stretch.start_s
    while (cut_s := (start_s // GRID_S + 1) * GRID_S) < stretch.end_s:
        yield stretch.part(start_s, cut_s)
        start_s = cut_s
    yield stretch.part(start_s, stretch.end_s)


def _row(item: StepPoint | StepStretch | Pause) -> list[Any]:
    values = [getattr(item, f.name) for f in fields(item)]
    return [None if isinstance(value, float) and math.isnan(value) else value for value in values]


def _point(row: Sequence[Any]) -> StepPoint:
    values: list[Any] = [math.nan if value is None else value for value in row]
    return StepPoint(*values)
