"""Adds to a tick's frames what follows from their counters: rates, latencies, shares of time.

It stands behind the merge, so that a counter that two sources tell is one counter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nightshift.collectors.frame import Frame
from nightshift.collectors.subject import SubjectKind
from nightshift.collectors.telemetry.metrics import derived_of_kind
from nightshift.collectors.telemetry.rates import Rates


class Deriver:
    """Keeps the last values of every kind's counters."""

    def __init__(self) -> None:
        self._rates: dict[SubjectKind, Rates] = {}
        self._counters: dict[SubjectKind, tuple[str, ...]] = {}

    def extend(self, frame: Frame) -> Frame:
        """The frame with its derived columns at the end, or itself where it has no counter to derive from. A
        column that is there already (a recording's) is kept."""
        kind = frame.kind
        asked = [
            d
            for d in derived_of_kind(SubjectKind.GPU if kind is SubjectKind.MIG else kind)
            if d.name not in frame.columns and d.counter in frame.columns and (not d.per or d.per in frame.columns)
        ]
        counters = tuple(dict.fromkeys(name for d in asked for name in (d.counter, d.per) if name))
        if not counters:
            return frame
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
                with np.errstate(invalid="ignore", divide="ignore"):
                    added[:, place] = np.where(by > 0, added[:, place] / by, np.nan)
        observed = frame.observed_at_s
        if observed.shape[1] != 1:
            observed = np.hstack([observed, observed[:, [frame.columns[d.counter] for d in asked]]])
        metrics = (*frame.metrics, *(d.name for d in asked))
        return replace(frame, metrics=metrics, values=np.hstack([frame.values, added]), observed_at_s=observed)
