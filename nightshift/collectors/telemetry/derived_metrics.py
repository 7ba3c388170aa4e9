"""Adds to a tick's frames what follows from their counters: rates, latencies, shares of time.

It stands behind the merge, so that a counter that two sources tell is one counter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nightshift.collectors.frame import Floats, Frame, Ints, SeriesIndex
from nightshift.collectors.subject import SubjectKind
from nightshift.collectors.telemetry.metrics import Derived, derived_of_kind

MAX_GAP_S = 300.0


class Rates:
    """Counters to rates, a whole column at a time, with one answer to each doubtful case:

        first look, or nothing known before     missing
        the same sample again (same time)       the rate that it had
        a sample from before the last one       missing; the last one stands
        one from more than `max_gap_s` before   missing; it stands: the clock was put back, and goes on from there
        value missing now                       missing; the last one stands, so the next rate spans the hole
        a hole of more than `max_gap_s`         missing: a mean over it would hide what happened inside
        the counter went back, or a new epoch   missing: what it counted before it began anew is not known

    Prometheus' own `rate` counts a reset from zero instead, which reads a reboot as quiet.

    One instance holds one kind of subject: a value, a time and a rate per counter and subject.

    >>> from nightshift.collectors.subject import Subject, SubjectKind
    >>> index = SeriesIndex(SubjectKind.GPU, (Subject(SubjectKind.GPU, "GPU-0"),))
    >>> rates, epoch = Rates(1), np.zeros(1, dtype=np.int64)
    >>> for t_s, count in ((0.0, 100.0), (10.0, 130.0), (20.0, 5.0), (30.0, 15.0)):  # it began anew before 20 s
    ...     print(t_s, rates.update(index, np.array([[count]]), np.array([[t_s]]), epoch).item())
    0.0 nan
    10.0 3.0
    20.0 nan
    30.0 1.0
    """

    def __init__(self, n_counters: int, max_gap_s: float = MAX_GAP_S) -> None:
        self._n = n_counters
        self._max_gap_s = max_gap_s
        self._index: SeriesIndex | None = None
        self._value = np.empty((0, n_counters))
        self._time_s = np.empty((0, n_counters))
        self._rate = np.empty((0, n_counters))
        self._epoch = np.empty(0, dtype=np.int64)

    def update(self, index: SeriesIndex, values: Floats, times_s: Floats, epoch: Ints) -> Floats:
        """Rates [n_series, n_counters] (per s), NaN = missing, of counters `values` observed at `times_s` (both
        [n_series, n_counters]); `epoch` [n_series] changes where the counters of a row began anew."""
        if index is not self._index:
            self._move(index, epoch)
        anew = epoch != self._epoch
        if anew.any():
            self._value[anew] = self._time_s[anew] = self._rate[anew] = np.nan
            self._epoch = epoch.copy()
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            elapsed = times_s - self._time_s
            increase = values - self._value
            seen = ~np.isnan(values) & ~np.isnan(times_s)
            again = seen & (elapsed == 0) & (increase == 0)
            put_back = elapsed < -self._max_gap_s
            late = seen & (((elapsed < 0) & ~put_back) | ((elapsed == 0) & (increase != 0)))
            # two extremes of a float may be infinitely far apart: an infinite increase is no rate
            usable = seen & (elapsed > 0) & (elapsed <= self._max_gap_s) & (increase >= 0) & (increase < np.inf)
            rate = np.where(usable, increase / elapsed, np.where(again, self._rate, np.nan))
        keep = ~seen | late
        self._value = np.where(keep, self._value, values)
        self._time_s = np.where(keep, self._time_s, times_s)
        self._rate = np.where(keep, self._rate, rate)
        return rate

    def _move(self, index: SeriesIndex, epoch: Ints) -> None:
        """Takes the rows along to another membership; new ones are unknown."""
        before = self._index
        value, time_s, rate = (np.full((len(index), self._n), np.nan) for _ in range(3))
        known_epoch = epoch.copy()
        if before is not None:
            pairs = [(row, at) for at, s in enumerate(index.subjects) if (row := before.rows.get(s)) is not None]
            if pairs:
                source, target = np.array(pairs, dtype=np.int64).T
                value[target], time_s[target] = self._value[source], self._time_s[source]
                rate[target], known_epoch[target] = self._rate[source], self._epoch[source]
        self._index, self._value, self._time_s, self._rate = index, value, time_s, rate
        self._epoch = known_epoch


class Deriver:
    """Keeps the last values of every kind's counters."""

    def __init__(self) -> None:
        self._rates: dict[SubjectKind, Rates] = {}
        self._counters: dict[SubjectKind, tuple[str, ...]] = {}

    def extend(self, frame: Frame) -> Frame:
        """The frame with its derived columns at the end, or itself where it has no counter to derive from. A
        column that is there already (a recording's) is kept."""
        kind = frame.kind
        asked = _derivable(frame)
        counters = tuple(dict.fromkeys(name for d in asked for name in (d.counter, d.per) if name))
        if not counters:
            return frame
        # another exporter's columns: the rows of the last values mean other counters now
        if self._counters.get(kind) != counters:
            self._counters[kind], self._rates[kind] = counters, Rates(len(counters))
        places = [frame.columns[name] for name in counters]
        times_s = np.broadcast_to(frame.observed_at_s, frame.values.shape)[:, places]
        rates = self._rates[kind].update(frame.index, frame.values[:, places], times_s, frame.epoch)
        at = {name: place for place, name in enumerate(counters)}
        added = rates[:, [at[d.counter] for d in asked]]
        for place, derived in enumerate(asked):
            if derived.per:
                by = rates[:, at[derived.per]]
                # of no operations there is no time per operation: an idle disk is not one of zero latency
                with np.errstate(invalid="ignore", divide="ignore"):
                    added[:, place] = np.where(by > 0, added[:, place] / by, np.nan)
        observed = frame.observed_at_s
        if observed.shape[1] != 1:
            observed = np.hstack([observed, observed[:, [frame.columns[d.counter] for d in asked]]])
        metrics = (*frame.metrics, *(d.name for d in asked))
        return replace(frame, metrics=metrics, values=np.hstack([frame.values, added]), observed_at_s=observed)


def _derivable(frame: Frame) -> list[Derived]:
    """What the frame's counters allow, and does not stand in it already."""
    # MIG instances carry the metrics of GPUs
    kind = SubjectKind.GPU if frame.kind is SubjectKind.MIG else frame.kind
    columns = frame.columns
    return [
        derived
        for derived in derived_of_kind(kind)
        if derived.name not in columns
        and derived.counter in columns
        and (not derived.per or derived.per in columns)
    ]
