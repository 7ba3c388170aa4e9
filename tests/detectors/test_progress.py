"""A gap is a step that stands out from the steps around it."""

from __future__ import annotations

import numpy as np

from nightshift.collectors.frame import StepSeries
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.progress.rhythm import Rhythm, StepRhythms

RANK = Subject(SubjectKind.RANK, "ml/llm#0")


def after(times_s: list[float], at_once: int = 10) -> Rhythm:
    """The rhythm after steps that took these times, handed over some at once."""
    progress = StepRhythms(8.0, 2.0, 10_000.0)
    t_s = 1_000.0 + np.cumsum(times_s)
    rhythm = Rhythm()
    for k in range(0, len(t_s), at_once):
        steps = np.arange(k, min(k + at_once, len(t_s)), dtype=np.int64)
        rhythm = progress.take(StepSeries(RANK, "r", steps, t_s[steps], {}, "log"), float(t_s[steps[-1]]))
    return rhythm


def test_a_run_that_becomes_slower_has_one_gap_not_many() -> None:
    """Variable length makes every step eight times longer: that is another pace, told once at most."""
    for at_once in (1, 3, 10):
        assert len(after([0.47] * 100 + [3.6, 4.4, 3.9, 5.1, 3.2, 4.8] * 20, at_once).gaps) <= 1


def test_stalls_between_usual_steps_are_gaps_each() -> None:
    """A pause every few steps stands out, whatever the length of the batches of steps."""
    for at_once in (1, 4, 10):
        gaps = after([0.5] * 20 + ([0.5] * 12 + [40.0]) * 6, at_once).gaps
        assert [round(g.end_s - g.start_s) for g in gaps] == [40] * 6


def test_a_stop_that_stutters_is_one_gap() -> None:
    """Two pauses with hardly a step between them are one stop."""
    gaps = after([0.5] * 50 + [30.0, 0.5, 20.0] + [0.5] * 50).gaps
    assert [round(g.end_s - g.start_s) for g in gaps] == [50]
