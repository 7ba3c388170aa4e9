"""Data that comes too slowly for every step: no pause stands out, the run just becomes slower.

Where a log prints what a step waited for data, stretches of a minute are compared with the run's own past: the step
became longer, and it is the wait that grew. A run that has always waited so long was built so, and one whose steps
grew for another reason (longer sequences, a slower peer) waits no longer than before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from nightshift.collectors.frame import StepSeries
from nightshift.collectors.subject import Subject

STRETCH_S, STRETCH_STEPS = 60.0, 10
"""A stretch has at least this time and so many steps."""
KEPT, KNOWN, IN_A_ROW = 60, 5, 5
"""Stretches kept; so many make the run's usual pace, and so many in a row show that it is lost."""
LOADS = 0.005
"""A rank whose steps wait less than this share of their time loads nothing."""
PAUSE = 5.0
"""A step this many times as long as the stretch's mean is a pause, which is not this module's."""


@dataclass(slots=True)
class Waits:
    """One series: what a step took and waited in each stretch (s), newest last, and in the stretch that is open."""

    run: str = ""
    last_s: float = -np.inf
    stretches: list[list[float]] = field(default_factory=list)
    """[end (Unix s), step (s), wait (s)]"""
    took_s: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    usual: list[float] | None = None
    """[step, wait] (s) from before an open episode."""
    news: bool = False
    """Whether a stretch ended that nobody has judged."""

    def take(self, t_s: float, wait_s: float) -> None:
        took_s = t_s - self.last_s
        if not took_s > 0:
            return
        self.last_s = t_s
        if not np.isfinite(took_s) or not 0 <= wait_s < 1e6:
            return
        self.took_s.append(took_s)
        self.wait_s.append(min(wait_s, took_s))
        if len(self.took_s) >= STRETCH_STEPS and sum(self.took_s) >= STRETCH_S:
            took, wait = np.array(self.took_s), np.array(self.wait_s)
            usual = took <= PAUSE * took.mean()
            stretch = [t_s, float(took[usual].mean()), float(wait[usual].mean())]
            self.stretches = [*self.stretches, stretch][-KEPT:]
            self.took_s, self.wait_s, self.news = [], [], True

    def before(self) -> list[float] | None:
        """[step, wait] (s) by the earlier half of what lies before the last stretches; None where too little."""
        if self.usual is not None:
            return self.usual
        past = self.stretches[:-IN_A_ROW]
        if len(past) < KNOWN:
            return None
        step_s, wait_s = np.median(np.array(past[: max(KNOWN, len(past) // 2)])[:, 1:], axis=0).tolist()
        return [step_s, wait_s]

    @property
    def loads(self) -> bool:
        """Whether its steps waited for data at all: later stages of a pipeline get none."""
        before = self.before()
        return before is not None and before[1] > LOADS * before[0]

    def lost(self) -> list[float]:
        """Share of the time that steps wait longer than usual and are longer by it, in each of the last stretches;
        empty where nothing usual is known."""
        before = self.before()
        if before is None or len(self.stretches) < IN_A_ROW:
            return []
        last = self.stretches[-IN_A_ROW:]
        return [max(min(wait_s - before[1], step_s - before[0]), 0.0) / step_s for _, step_s, wait_s in last]


class Starvation:
    """The waits of all series of which the log prints one."""

    def __init__(self) -> None:
        self.of: dict[Subject, Waits] = {}

    def take(self, series: StepSeries, at_s: float) -> None:
        """Adds what is new; times that lie ahead of `at_s` are another clock's and are left out."""
        if "data_s" not in series.columns:
            return
        waits = self.of.get(series.subject)
        if waits is None or waits.run != series.run:
            waits = self.of[series.subject] = Waits(series.run)
        for t_s, wait_s in zip(series.t_s.tolist(), series.column("data_s").tolist(), strict=True):
            if t_s <= at_s + 1.0:
                waits.take(t_s, wait_s)

    def forget(self, before_s: float) -> None:
        self.of = {subject: waits for subject, waits in self.of.items() if waits.last_s >= before_s}

    def saved(self) -> dict[str, Any]:
        return {str(subject): asdict(waits) for subject, waits in self.of.items()}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.of = {Subject.parse(name): Waits(**entry) for name, entry in saved.items()}
