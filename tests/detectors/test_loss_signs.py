"""Signs that end the watch of a loss early: what was learnt is gone, or loss and gradients climb together."""

from __future__ import annotations

import numpy as np
import pytest

from nightshift.collectors.frame import Floats, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Finding
from nightshift.detectors.loss.divergence import Divergence

JOB = Subject(SubjectKind.JOB, "ml/llm")
ONSET = 500


def said(rise: Floats, norm: Floats) -> list[Finding]:
    """What is said of a run that came from 5.1 down to 3.1, with `rise` and `norm` (a factor) from the onset on."""
    rng = np.random.default_rng(5)
    steps = np.arange(ONSET + len(rise))
    loss = 3.1 + 2.0 * np.exp(-steps / 100.0) + rng.normal(0.0, 0.06, len(steps))
    norms = 0.5 * np.exp(rng.normal(0.0, 0.04, len(steps)))
    loss[ONSET:] += rise
    norms[ONSET:] *= norm
    detector, found = Divergence(), []
    for first in range(0, len(steps), 10):
        part = slice(first, first + 10)
        columns = {"loss": loss[part], "grad_norm": norms[part]}
        series = StepSeries(JOB, "run", steps[part] + 1, steps[part] + 1.0, columns, "log")
        found += detector.update(Tick(float(first + 10), steps=(series,)), Inventory())
    return found


@pytest.mark.parametrize("share", [0.85, 0.95])
def test_a_run_that_forgets_most_of_what_it_learnt_is_told_within_fifteen_steps(share: float) -> None:
    """A jump by a little less than all of the progress, half of the loss, that stays: as wrong labels make it."""
    found = said(np.full(60, share * 2.0), np.ones(60))
    assert found
    assert found[0].facts["arm"] == "lost"
    assert float(found[0].facts["delay_steps"]) <= 15


@pytest.mark.parametrize(("share", "tau"), [(0.5, 1e9), (0.95, 30.0), (0.95, 60.0)])
def test_what_lost_less_or_is_learning_again_is_waited_for(share: float, tau: float) -> None:
    """Half of the progress, or nearly all of it with a part that comes back, is not called within sixty steps."""
    since = np.arange(60)
    assert said(share * 2.0 * np.exp(-since / tau), np.ones(60)) == []


def test_loss_and_gradients_that_climb_together_are_told_before_the_loss_is_far_for_long() -> None:
    """The same climb of the loss is told some steps later where the gradient norm stays as it was."""
    since = np.arange(60)
    rise = 0.1 * np.exp(since / 6.0)
    both = said(rise, np.exp(since / 20.0))
    alone = said(rise, np.ones(60))
    assert both[0].facts["arm"] == "climbs"
    assert both[0].facts["delay_steps"] < alone[0].facts["delay_steps"]


def test_a_hump_of_loss_and_gradients_that_comes_back_alarms_nothing() -> None:
    """Up by a third and a doubled norm within ten steps, back within thirty, as after new optimiser moments."""
    since = np.arange(120)
    hump = (since / 10.0) * np.exp(1.0 - since / 10.0)
    assert said(1.0 * hump, np.exp(0.7 * hump)) == []
