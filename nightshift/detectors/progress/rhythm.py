"""The rhythm of a training run: when its steps came, how long they take, and where they stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from nightshift.collectors.frame import StepSeries
from nightshift.collectors.subject import Subject

TYPICAL_STEPS = 256
NEAR_STEPS = 9
"""A gap stands out from this many steps before it; a run of long steps is another pace, not gap after gap."""


@dataclass(slots=True)
class Gap:
    """A stretch without a step, from one step to the next (Unix s)."""

    start_s: float
    end_s: float
    checkpoint: bool
    count: int = 0
    """Steps that the rhythm had seen at its end."""


@dataclass(slots=True)
class Rhythm:
    """One series' state. `typical_s` is a running median of step times; NaN before the tenth step."""

    run: str = ""
    source: str = ""
    first_s: float = np.nan
    last_s: float = -np.inf
    step: int = -1
    count: int = 0
    recent_s: list[float] = field(default_factory=list)
    near_s: list[float] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    run_since_s: float = np.nan
    longest_s: float = 0.0
    """The longest pause of this subject after which steps came again, over its runs."""

    @property
    def typical_s(self) -> float:
        return median(self.recent_s) if len(self.recent_s) >= 10 else np.nan


class StepRhythms:
    """Rhythms by subject. A gap is a step `ratio` times longer than the typical one, and at least `least_s`."""

    def __init__(self, ratio: float, least_s: float, keep_s: float) -> None:
        self.ratio, self.least_s, self.keep_s = ratio, least_s, keep_s
        self.rhythms: dict[Subject, Rhythm] = {}

    def take(self, series: StepSeries, at_s: float) -> Rhythm:
        """Adds new steps; late and repeated ones (not after the last) are dropped."""
        rhythm = self.rhythms.setdefault(series.subject, Rhythm())
        if rhythm.run != series.run:
            since_s = float(series.t_s[0]) if len(series.t_s) else at_s
            rhythm = self.rhythms[series.subject] = Rhythm(
                run=series.run, gaps=rhythm.gaps, run_since_s=since_s, longest_s=rhythm.longest_s
            )
        rhythm.source = series.source
        t_s = series.t_s[np.isfinite(series.t_s)]
        known = np.maximum.accumulate(np.concatenate([[rhythm.last_s], t_s]))
        fresh = t_s > known[:-1]
        t_s = t_s[fresh]
        if len(t_s) == 0:
            return rhythm
        saved = np.nan_to_num(series.column("checkpoint_saved")[np.isfinite(series.t_s)][fresh]) > 0
        before = np.concatenate([[rhythm.last_s], t_s[:-1]])
        took = t_s - before
        typical = rhythm.typical_s
        long = took > max(self.ratio * typical, self.least_s) if np.isfinite(typical) else np.zeros(len(took), bool)
        paces = np.concatenate([rhythm.near_s, took])
        for i in np.flatnonzero(long):
            around = paces[max(i + len(rhythm.near_s) - NEAR_STEPS, 0) : i + len(rhythm.near_s)]
            long[i] = len(around) == 0 or took[i] > self.ratio * median(around.tolist())
        near = saved | np.concatenate([[False], saved[:-1]])
        for i in np.flatnonzero(long & np.isfinite(before)):
            gap = Gap(float(before[i]), float(t_s[i]), bool(near[i]), rhythm.count + int(i) + 1)
            rhythm.longest_s = max(rhythm.longest_s, gap.end_s - gap.start_s)
            last = rhythm.gaps[-1] if rhythm.gaps else None
            if last is not None and 0 < gap.count - last.count <= NEAR_STEPS // 2:
                gap = Gap(last.start_s, gap.end_s, last.checkpoint or gap.checkpoint, gap.count)
                rhythm.gaps.pop()
            rhythm.gaps.append(gap)
        rhythm.near_s = paces[np.isfinite(paces)][-NEAR_STEPS:].tolist()
        usual = took[~long & np.isfinite(took)]
        rhythm.recent_s = (rhythm.recent_s + usual.tolist())[-TYPICAL_STEPS:]
        rhythm.first_s = float(t_s[0]) if np.isnan(rhythm.first_s) else rhythm.first_s
        rhythm.last_s, rhythm.step = float(t_s[-1]), int(series.step[np.isfinite(series.t_s)][fresh][-1])
        rhythm.count += len(t_s)
        rhythm.gaps = [g for g in rhythm.gaps if g.end_s >= at_s - self.keep_s]
        return rhythm

    def forget(self, before_s: float) -> None:
        self.rhythms = {s: r for s, r in self.rhythms.items() if r.last_s >= before_s}

    def saved(self) -> dict[str, Any]:
        return {
            str(subject): {
                "run": r.run,
                "source": r.source,
                "first_s": r.first_s,
                "last_s": r.last_s,
                "step": r.step,
                "count": r.count,
                "recent_s": r.recent_s,
                "near_s": r.near_s,
                "gaps": [[g.start_s, g.end_s, g.checkpoint, g.count] for g in r.gaps],
                "run_since_s": r.run_since_s,
                "longest_s": r.longest_s,
            }
            for subject, r in self.rhythms.items()
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self.rhythms = {
            Subject.parse(name): Rhythm(**{**entry, "gaps": [Gap(*g) for g in entry["gaps"]]})
            for name, entry in saved.items()
        }
