"""Inputs that leave the range of training are found by the share of jobs that show them, and odd jobs are not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from nightshift.agent.control.policy_watch import reason_of
from nightshift.controllers.drift import Drift, Envelope, ranges
from nightshift.controllers.policy_file import Interface, Network, Normaliser, PolicyFile, PolicyRefused
from nightshift.controllers.promotion import Criteria

NAMES = ("budget", "width", "age")


def a_file(**training: object) -> PolicyFile:
    scale = Normaliser(np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.5, 2.0]), 5.0)
    layers = ((np.zeros((2, 3)), np.zeros(2)),)
    return PolicyFile("p", Interface("power", NAMES, ("a", "b")), Network(scale, layers), training, {})


def found(jobs: int, outside: int, envelope: Envelope | None = None, windows: int = 5) -> list[str]:
    """Inputs that are said to have drifted where `outside` of `jobs` jobs have a width far from training's."""
    drift = Drift(envelope or Envelope.of(a_file()))
    for job in range(jobs):
        for window in range(windows):
            drift.take(str(job), np.array([0.0, 9.0 if job < outside else 1.0, 2.0]), 30.0 * window)
    return [left.words for left in drift.found(200.0) if left.share_low > Criteria().most_outside]


def test_an_input_that_many_jobs_show_outside_is_named_with_its_range_and_its_jobs() -> None:
    assert found(40, 12) == ["width left the range of training (-1.5 to 3.5) in 12 of 40 jobs"]
    assert found(3, 3) == ["width left the range of training (-1.5 to 3.5) in 3 of 3 jobs"]


def test_a_few_odd_jobs_are_no_drift() -> None:
    assert found(40, 0) == found(40, 3) == found(1, 1) == []


@pytest.mark.parametrize("jobs", [2, 10, 60])
def test_a_fleet_with_as_many_odd_jobs_as_are_allowed_is_seldom_said_to_drift(jobs: int) -> None:
    """In each of 300 fixed worlds every job leaves the range with the allowed chance: at most 5 % may be said."""
    rng = np.random.default_rng(11)
    odd = (rng.random((300, jobs)) < Criteria().most_outside).sum(axis=1)
    said = {int(count): bool(found(jobs, int(count), windows=1)) for count in np.unique(odd)}
    assert np.mean([said[int(count)] for count in odd]) <= 0.05


def test_a_job_counts_once_however_long_it_runs_and_is_forgotten_a_day_after_its_end() -> None:
    drift = Drift(Envelope.of(a_file()))
    for window in range(2000):
        drift.take("long", np.array([0.0, 9.0, 2.0]), 30.0 * window)
    for job in range(9):
        drift.take(str(job), np.array([0.0, 1.0, 2.0]), 60_000.0)
    (left,) = drift.found(60_000.0)
    assert (left.name, left.jobs_outside, left.jobs) == ("width", 1, 10)
    assert drift.found(60_000.0 + 86_400.0) == ()


def test_a_single_window_outside_does_not_put_a_job_outside_and_a_missing_one_says_nothing() -> None:
    drift = Drift(Envelope.of(a_file()))
    for window in range(100):
        drift.take("j", np.array([0.0, 99.0 if window == 50 else 1.0, 2.0]), 30.0 * window)
        drift.take("k", np.array([0.0, math.nan, 2.0]), 30.0 * window)
    assert drift.found(3000.0) == ()


def test_the_range_is_the_files_own_and_an_unfit_one_is_refused_with_its_place() -> None:
    own = {"budget": [0.0, 0.1], "width": [0.0, 10.0], "age": [0.0, 5.0]}
    envelope = Envelope.of(a_file(envelope=own))
    assert found(10, 10, envelope) == []
    assert envelope.outside(np.array([0.05, 11.0, 4.0])) == {"width": (11.0, 0.0, 10.0)}
    for wrong in (
        {**own, "age": [5.0, 0.0]},
        {"budget": [0, 1]},
        {**own, "age": [0.0, math.inf]},
        7,
        {**own, "age": 1},
    ):
        with pytest.raises(PolicyRefused, match=r"training\.envelope"):
            Envelope.of(a_file(envelope=wrong))


def test_what_training_writes_holds_nearly_all_that_it_saw() -> None:
    rows = np.random.default_rng(1).normal(size=(20_000, 3))
    envelope = Envelope.of(a_file(envelope=ranges(NAMES, rows)))
    inside = ((rows >= envelope.low) & (rows <= envelope.high)).mean(axis=0)
    assert (inside > 0.997).all()
    assert (inside < 1.0).all()


def test_a_drift_of_the_input_called_budget_is_not_counted_as_a_budget_event() -> None:
    drift = Drift(replace(Envelope.of(a_file())))
    for job in range(20):
        drift.take(str(job), np.array([50.0, 1.0, 2.0]), 0.0)
    assert reason_of(f"drift: {drift.found(0.0)[0].words}") == "drift"
    assert reason_of("1 budget events") == "budget"
