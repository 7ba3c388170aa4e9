"""A restart is no recovery: a run that resumes with damaged weights is still diverged."""

from __future__ import annotations

import numpy as np
import pytest

from nightshift.collectors.frame import StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, State
from nightshift.detectors.loss.divergence import Divergence

RANK = Subject(SubjectKind.RANK, "ml/llm#0")


class Story:
    """Feeds runs of steps to one detector and keeps its last word on each episode."""

    def __init__(self) -> None:
        self.detector = Divergence()
        self.noise = np.random.default_rng(3)
        self.at_s = 1_000_000.0
        self.last: Finding | None = None

    def train(self, run: str, first: int, count: int, loss: float) -> None:
        for k in range(0, count, 10):
            steps = np.arange(first + k, first + min(k + 10, count), dtype=np.int64)
            self.at_s += 5.0
            columns = {"loss": loss + self.noise.normal(0, 0.1, len(steps))}
            t_s = self.at_s - 5.0 + 5.0 * np.arange(1, len(steps) + 1) / len(steps)
            series = StepSeries(RANK, run, steps, t_s, columns, "log")
            for finding in self.detector.update(Tick(self.at_s, steps=[series]), Inventory()):
                self.last = finding

    def diverged(self) -> None:
        self.train("a", 5_000, 400, 2.4)
        self.train("a", 5_400, 60, 12.0)
        assert self.last is not None
        assert (self.last.fault, self.last.state) == (Fault.LOSS_DIVERGED, State.FIRING)


@pytest.mark.parametrize("kept", [False, True])
def test_a_run_that_resumes_damaged_stays_diverged(kept: bool) -> None:
    """At a loss far above the old baseline it keeps firing, for as long as it trains; also over a snapshot."""
    story = Story()
    story.diverged()
    story.train("b", 5_300, 10, 7.0)
    if kept:
        again = Divergence()
        again.restore(story.detector.snapshot())
        story.detector = again
    story.train("b", 5_310, 800, 7.0)
    assert story.last is not None
    assert story.last.state is State.FIRING


def test_a_run_that_resumes_healthy_is_clear() -> None:
    """Back at the old baseline it clears after a few steps, even after a damaged attempt before it."""
    story = Story()
    story.diverged()
    story.train("b", 5_350, 100, 7.0)
    story.train("c", 5_100, 60, 2.45)
    assert story.last is not None
    assert story.last.state is State.CLEAR


def test_a_run_from_scratch_is_judged_by_itself() -> None:
    """A run that begins at step 0 starts high and is no divergence."""
    story = Story()
    story.diverged()
    story.train("b", 0, 60, 9.0)
    assert story.last is not None
    assert story.last.state is State.CLEAR
