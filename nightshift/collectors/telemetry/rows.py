"""From samples to a frame: keeps the rows in place from tick to tick, and says where counters began anew.

A subject whose source is silent keeps its row and reads NaN; only after `forget_after_s` is the row given up. So a
row that goes away means a subject that is gone, not a page that was late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nightshift.collectors.frame import Floats, Frame, Ints, Reason, SeriesIndex
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.telemetry.metrics import Metric, MetricType

# Prometheus's own look-back: an older sample no longer stands for now.
STALE_S = 300.0
FUTURE_S = 60.0
_FP64_BLANK = 2.0**47
_INT32_BLANK = 2147483632.0
_INT64_BLANK = 2.0**63
_BLANKS = 16.0


@dataclass(frozen=True, eq=False)
class Cells:
    """Where the samples of one page belong: sample `position[i]` is `metric[i]` of `subjects[row[i]]`, times
    `scale[i]`. All arrays [n_cells]; one cell may be named twice."""

    kind: SubjectKind
    subjects: tuple[Subject, ...]
    position: Ints
    row: Ints
    column: Ints
    scale: Floats
    twice: tuple[tuple[int, int], ...]
    """Pairs of cells (later, first) that name the same row and column."""
    highest: bool = False
    """Of cells that are named twice the highest value stands; else none, where they differ."""


def cells(kind: SubjectKind, entries: Sequence[tuple[int, Subject, int, float]], highest: bool = False) -> Cells:
    """Cells of (sample position, subject, column, scale) entries."""
    rows: dict[Subject, int] = {}
    first: dict[tuple[int, int], int] = {}
    twice = []
    for number, (_, subject, column, _scale) in enumerate(entries):
        row = rows.setdefault(subject, len(rows))
        if (seen := first.setdefault((row, column), number)) != number:
            twice.append((number, seen))
    return Cells(
        kind,
        tuple(rows),
        np.array([entry[0] for entry in entries], dtype=np.int64),
        np.array([rows[entry[1]] for entry in entries], dtype=np.int64),
        np.array([entry[2] for entry in entries], dtype=np.int64),
        np.array([entry[3] for entry in entries], dtype=np.float64),
        tuple(twice),
        highest,
    )


def without_blanks(values: Floats) -> Floats:
    """DCGM's placeholders for "no value" become NaN. Source: dcgm_structs.h, DCGM_INT32_BLANK (0x7ffffff0),
    DCGM_INT64_BLANK (0x7ffffffffffffff0), DCGM_FP64_BLANK (2^47), each followed by NOT_FOUND, NOT_SUPPORTED and
    NOT_PERMISSIONED.

    >>> without_blanks(np.array([655.0, 2147483632.0, 2.0**47 + 1.0, np.inf])).tolist()
    [655.0, nan, nan, inf]
    """
    blank = (values >= _INT32_BLANK) & (values < _INT32_BLANK + _BLANKS)
    blank |= (values >= _FP64_BLANK) & (values < _FP64_BLANK + _BLANKS)
    blank |= values >= _INT64_BLANK - 1024
    blank &= ~np.isinf(values)
    return np.where(blank, np.nan, values)


class Rows:
    """The rows of one kind of subject, with the columns of `metrics`."""

    def __init__(self, kind: SubjectKind, metrics: Sequence[Metric], forget_after_s: float = 3600.0) -> None:
        self.kind = kind
        self.metrics = tuple(metric.name for metric in metrics)
        self.column = {
            name: number for number, metric in enumerate(metrics) for name in (metric.exported_as, *metric.aliases)
        }
        self._low = np.array([metric.low for metric in metrics])
        self._high = np.array([metric.high for metric in metrics])
        self._zero_is_missing = np.array([metric.zero_is_missing for metric in metrics])
        self._counters = np.array(
            [n for n, metric in enumerate(metrics) if metric.type is MetricType.COUNTER], dtype=np.int64
        )
        self._forget_after_s = forget_after_s
        self._index = SeriesIndex(kind, ())
        self._seen_s = np.empty(0)
        self._epoch = np.empty(0, dtype=np.int64)
        self._last = np.empty((0, len(self._counters)))
        self._local: dict[int, tuple[tuple[Subject, ...], SeriesIndex, Ints]] = {}
        self._parts: list[tuple[Cells, Floats, Floats | float]] = []

    def __len__(self) -> int:
        return len(self._index)

    def put(
        self, where: Cells, sample_values: Floats, times_s: Floats, at_s: float, blanks: bool = False
    ) -> Mapping[Reason, int]:
        """Takes one page's samples (both [n_samples]; times NaN where the page gives none) into the next frame.
        Returns what was refused and why; a refused value is NaN."""
        rejected: dict[Reason, int] = {}
        raw = sample_values[where.position]
        values = (without_blanks(raw) if blanks else raw) * where.scale
        # some exporters write 0 for what they could not read: a clock of 0 MHz is no measurement
        values[(values <= 0) & self._zero_is_missing[where.column]] = np.nan
        wrong = ~np.isnan(values) & ~((values >= self._low[where.column]) & (values <= self._high[where.column]))
        _refuse(values, wrong, Reason.MALFORMED, rejected)
        times: Floats | float = float(at_s)
        stamps = times_s[where.position]
        # pages without timestamps, the usual ones, keep one time per page and no array
        if not np.isnan(stamps).all():
            stamps = np.where(np.isnan(stamps), at_s, stamps)
            _refuse(values, stamps < at_s - STALE_S, Reason.STALE, rejected)
            _refuse(values, stamps > at_s + FUTURE_S, Reason.CLOCK, rejected)
            times = stamps
        quarrel: set[int] = set()
        for later, first in where.twice:
            if where.highest:
                values[first], values[later] = np.fmax(values[first], values[later]), np.nan
            else:
                _agree(values, times, first, later, rejected, quarrel)
        self._parts.append((where, values, times))
        return rejected

    def renew(self, subjects: Iterable[Subject]) -> None:
        """The counters of these began anew (a reboot, another driver), whatever their values say."""
        for subject in subjects:
            row = self._index.rows.get(subject)
            if row is not None:
                self._epoch[row] += 1
                self._last[row] = np.nan

    def frame(self, at_s: float) -> Frame | None:
        """The frame of what was put since the last one; None where no subject is known."""
        parts, self._parts = self._parts, []
        subjects = {id(where.subjects): where.subjects for where, _, _ in parts}
        self._grow(subjects.values(), at_s)
        n_rows = len(self._index)
        if not n_rows:
            return None
        values = np.full((n_rows, len(self.metrics)), np.nan)
        per_cell = any(not isinstance(times, float) for _, _, times in parts)
        observed = np.full((n_rows, len(self.metrics) if per_cell else 1), np.nan)
        for where, part, times in parts:
            cell_rows = self._rows(where.subjects)[where.row]
            self._seen_s[cell_rows] = at_s
            fresh = ~np.isnan(part)  # of two pages that know a cell, the one with a value
            values[cell_rows[fresh], where.column[fresh]] = part[fresh]
            observed[cell_rows, where.column if per_cell else 0] = times
        self._count_resets(values)
        self._local = {key: kept for key, kept in self._local.items() if key in subjects}
        return Frame(at_s, self._index, self.metrics, values, observed, self._epoch.copy())

    def _rows(self, subjects: tuple[Subject, ...]) -> Ints:
        known = self._local.get(id(subjects))
        if known is None or known[1] is not self._index:
            rows = np.fromiter((self._index.rows[s] for s in subjects), np.int64, len(subjects))
            known = self._local[id(subjects)] = (subjects, self._index, rows)
        return known[2]

    def _grow(self, parts: Iterable[tuple[Subject, ...]], at_s: float) -> None:
        """Adds new subjects at the end and drops those unseen for too long."""
        new: dict[Subject, None] = {}
        named: set[Subject] = set()
        expired = self._seen_s < at_s - self._forget_after_s
        for subjects in parts:
            known = self._local.get(id(subjects))
            if known is None or known[1] is not self._index:
                new.update((s, None) for s in subjects if s not in self._index.rows)
            if expired.any():
                named.update(subjects)
        keep = ~expired
        if named:
            keep |= np.fromiter((s in named for s in self._index.subjects), np.bool_, len(self._index))
        if not new and keep.all():
            return
        kept = [s for s, stays in zip(self._index.subjects, keep, strict=True) if stays]
        self._index = SeriesIndex(self.kind, (*kept, *new))
        n_new = len(new)
        self._seen_s = np.concatenate([self._seen_s[keep], np.full(n_new, at_s)])
        self._epoch = np.concatenate([self._epoch[keep], np.zeros(n_new, dtype=np.int64)])
        self._last = np.concatenate([self._last[keep], np.full((n_new, len(self._counters)), np.nan)])

    def _count_resets(self, values: Floats) -> None:
        """A counter that went back began anew: after a reboot, a driver reload, or with another board."""
        now = values[:, self._counters]
        self._epoch[(now < self._last).any(axis=1)] += 1
        # a look without a value must not hide that the counter went back meanwhile
        self._last = np.where(np.isnan(now), self._last, now)


def _agree(
    values: Floats,
    times: Floats | float,
    first: int,
    later: int,
    rejected: dict[Reason, int],
    quarrel: set[int],
) -> None:
    """One value for a cell that a page gives more than once: the newest, the one that is there, or none where they
    differ, whatever a third says of the same moment. The outcome so far stands at `first`; `quarrel` are the cells
    that differ at their newest."""
    one, other = values[first], values[later]
    if not isinstance(times, float) and times[first] != times[later]:
        if times[later] > times[first]:
            values[first], times[first] = other, times[later]
            quarrel.discard(first)
    elif first in quarrel or np.isnan(other) or one == other:
        pass
    elif np.isnan(one):
        values[first] = other
    else:
        values[first] = np.nan
        quarrel.add(first)
        rejected[Reason.DUPLICATE] = rejected.get(Reason.DUPLICATE, 0) + 1
    values[later] = np.nan
    if not isinstance(times, float):
        times[later] = times[first]


def _refuse(
    values: Floats,
    wrong: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    reason: Reason,
    rejected: dict[Reason, int],
) -> None:
    wrong = wrong & ~np.isnan(values)
    if count := int(wrong.sum()):
        values[wrong] = np.nan
        rejected[reason] = rejected.get(reason, 0) + count
