"""The rhythm of a training run: when its steps came, how long they take, and where they stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats, StepSeries
from nightshift.collectors.subject import Subject

TYPICAL_STEPS = 256
NEAR_STEPS = 9
"""A gap stands out from this many steps before it; a run of long steps is another pace, not gap after gap."""
# No step for this long. PyTorch's watchdog aborts after 600 s; this leaves seven minutes to report it.
HANG_S = 180.0
PAUSE, PAUSES_TO = 1.5, 5.0
"""A silence this many times as long as the longest pause that ended by itself is none of its kind; pauses excuse a
silence of `HANG_S` times PAUSES_TO at most."""
# ... and for this many typical steps: a run whose steps take minutes pauses for minutes.
PATIENT_STEPS = 20.0
# Steps that come this much later than they say, or before they happen, have another clock's times.
OTHER_CLOCK_S, AHEAD_S = 60.0, 1.0


def begins_again(step: NDArray[np.int64], last: int, stride: int, late: int = 3) -> NDArray[np.bool_]:
    """[n] steps at which a new run begins: they go back by more than `late` strides of the log. step [n] follows
    step `last` (negative: none). Fewer strides are a late line: several ranks print into one log.

    >>> begins_again(np.array([4000, 3990, 10, 20]), last=3990, stride=10).tolist()
    [False, False, True, False]
    """
    before = np.concatenate([[last], step[:-1]])
    return (before >= 0) & (step < before - late * max(stride, 1))


@dataclass(slots=True)
class Gap:
    """A stretch without a step, from one step to the next (Unix s)."""

    start_s: float
    end_s: float
    checkpoint: bool
    count: int = 0
    """Steps that the rhythm had seen at its end."""
    hung: bool = False
    """It lasted as long as a hang, and is that detector's to tell."""


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
    lag_s: float = np.inf
    """The least time from a step to the look that read it, by the run's clock and ours."""
    stride: int = 0
    """Least distance of two steps of the log."""
    held: dict[str, float] = field(default_factory=dict)
    """What each of its GPUs held while it stepped (bytes), as known when the present silence began."""
    held_since_s: float = np.nan
    """The last step that `held` belongs to."""

    @property
    def typical_s(self) -> float:
        return median(self.recent_s) if len(self.recent_s) >= 10 else np.nan

    @property
    def patience_s(self) -> float:
        """How long a silence of this run is no hang yet; NaN before the tenth step."""
        pause_s = min(PAUSE * self.longest_s, PAUSES_TO * HANG_S)
        return float(np.maximum(max(HANG_S, pause_s), PATIENT_STEPS * self.typical_s))

    def anew(self, since_s: float) -> Rhythm:
        """The rhythm of the run that begins here: nobody said that a process started, its steps did. What lies
        between the runs is no pause of either. A log that counts anew in each epoch does the same, at one pace."""
        kept = ("run", "source", "gaps", "longest_s", "lag_s", "count", "stride", "recent_s")
        return Rhythm(run_since_s=since_s, **{name: getattr(self, name) for name in kept})

    def pause(self, gap: Gap) -> None:
        """Adds a gap; one with hardly a step since the last is a part of it."""
        self.longest_s = max(self.longest_s, gap.end_s - gap.start_s)
        last = self.gaps[-1] if self.gaps else None
        if last is not None and 0 < gap.count - last.count <= NEAR_STEPS // 2:
            checkpoint, hung = last.checkpoint or gap.checkpoint, last.hung or gap.hung
            gap = Gap(last.start_s, gap.end_s, checkpoint, gap.count, hung)
            self.gaps.pop()
        self.gaps.append(gap)

    def on_our_clock(self, t_s: Floats, at_s: float) -> Floats:
        """Times of steps, moved where the run's clock is another: nothing is read before it happens, and the least
        delay of all looks is a clock that is behind."""
        if len(t_s) == 0:
            return t_s
        self.lag_s = min(self.lag_s, at_s - float(t_s.max()))
        return t_s if -AHEAD_S <= self.lag_s <= OTHER_CLOCK_S else t_s + self.lag_s


def _stride(rhythm: Rhythm, steps: NDArray[np.int64]) -> int:
    """The least distance of two steps of the log, with these new ones."""
    ahead = np.diff(np.concatenate([[rhythm.step], steps]) if rhythm.step >= 0 else steps)
    ahead = ahead[ahead > 0]
    return min(int(ahead.min()), rhythm.stride or int(ahead.min())) if len(ahead) else rhythm.stride


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
        told = np.isfinite(series.t_s)
        steps, t_s = series.step[told], rhythm.on_our_clock(series.t_s[told], at_s)
        anew = np.flatnonzero(begins_again(steps, rhythm.step, rhythm.stride))
        if len(anew):
            first = int(anew[-1])
            rhythm = self.rhythms[series.subject] = rhythm.anew(float(t_s[first]))
            told[np.flatnonzero(told)[:first]] = False
            steps, t_s = steps[first:], t_s[first:]
        known = np.maximum.accumulate(np.concatenate([[rhythm.last_s], t_s]))
        fresh = t_s > known[:-1]
        t_s = t_s[fresh]
        if len(t_s) == 0:
            return rhythm
        steps = steps[fresh]
        saved = series.column("checkpoint_saved")[told][fresh] > 0  # NaN is not
        before = np.concatenate([[rhythm.last_s], t_s[:-1]])
        took = t_s - before
        typical = rhythm.typical_s
        long = took > max(self.ratio * typical, self.least_s) if np.isfinite(typical) else np.zeros(len(took), bool)
        paces = np.concatenate([rhythm.near_s, took])
        for i in np.flatnonzero(long):
            around = paces[max(i + len(rhythm.near_s) - NEAR_STEPS, 0) : i + len(rhythm.near_s)]
            long[i] = len(around) == 0 or took[i] > self.ratio * median(around.tolist())
        near = saved | np.concatenate([[False], saved[:-1]])
        for place in np.flatnonzero(long & np.isfinite(before)).tolist():
            hung, count = bool(took[place] >= rhythm.patience_s), rhythm.count + place + 1
            rhythm.pause(Gap(float(before[place]), float(t_s[place]), bool(near[place]), count, hung))
        rhythm.near_s = paces[np.isfinite(paces)][-NEAR_STEPS:].tolist()
        usual = took[~long & np.isfinite(took)]
        rhythm.recent_s = (rhythm.recent_s + usual.tolist())[-TYPICAL_STEPS:]
        rhythm.first_s = float(t_s[0]) if np.isnan(rhythm.first_s) else rhythm.first_s
        rhythm.stride = _stride(rhythm, steps)
        rhythm.last_s, rhythm.step = float(t_s[-1]), int(steps[-1])
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
                "gaps": [[g.start_s, g.end_s, g.checkpoint, g.count, g.hung] for g in r.gaps],
                "run_since_s": r.run_since_s,
                "longest_s": r.longest_s,
                "lag_s": r.lag_s,
                "stride": r.stride,
                "held": r.held,
                "held_since_s": r.held_since_s,
            }
            for subject, r in self.rhythms.items()
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self.rhythms = {
            Subject.parse(name): Rhythm(**{**entry, "gaps": [Gap(*g) for g in entry["gaps"]]})
            for name, entry in saved.items()
        }
