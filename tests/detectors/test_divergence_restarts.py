"""A run begins where steps begin again, whatever the log says between; a cause lies at the onset."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.held_out.loss import TRAINERS, WITHOUT, alarms, curve
from nightshift.detectors.contract.testing import JOB, START_S, changes, steps, tick
from nightshift.detectors.loss.divergence import Divergence, rate_jumps


def two_runs(trainer: str, ill: bool) -> tuple[list[str], int]:
    """(lines of two runs in one log, at which of them the second one's labels go wrong)."""
    line, words = TRAINERS[WITHOUT.get(trainer, trainer)]
    at = np.arange(10, 2010, 10)
    first, second = curve(at, 10.6, 1.3, 400.0, 1), curve(at, 10.6, 1.3, 400.0, 2)
    second[150:] += 6.0 * ill
    printed = [[line(int(s), float(x), 3e-4, 1.0) for s, x in zip(at, run, strict=True)] for run in (first, second)]
    between = [] if trainer in WITHOUT else words.split("\n")
    return printed[0] + between + printed[1], len(at) + len(between) + 150


@pytest.mark.parametrize("trainer", [*TRAINERS, *WITHOUT])
def test_a_second_run_in_the_same_log_is_judged_by_itself(trainer: str) -> None:
    """No alarm for starting high; its own fault is found within thirty lines."""
    assert alarms(two_runs(trainer, ill=False)[0]) == []
    lines, onset = two_runs(trainer, ill=True)
    found = alarms(lines)
    assert len(found) == 1
    assert onset <= found[0] <= onset + 30


def story(*parts: tuple[int, int, float]) -> list[str]:
    """States that are said of parts of one log (first step, steps, loss)."""
    draw, at_s, ticks = np.random.default_rng(4), START_S, []
    for first, count, loss in parts:
        for step in range(first, first + count, 10):
            at_s += 5.0
            values = (loss + draw.normal(0.0, 0.05, 10)).tolist()
            ticks.append(
                tick(at_s, series=[steps(JOB, step, [at_s - 1 + 0.1 * k for k in range(10)], {"loss": values})])
            )
    return [str(f.state) for f in changes(Divergence(), ticks)]


def test_a_run_that_resumes_from_a_checkpoint_is_no_divergence_for_being_younger() -> None:
    """Step 4,000 at 1.3, back to step 1,000 at 2.5, without a word."""
    assert story((3000, 1000, 1.3), (1000, 300, 2.5)) == []


def test_a_log_that_counts_anew_in_each_epoch_is_one_run() -> None:
    """Thirty lines an epoch, at the loss of the epoch before: a divergence of the fifth one is found."""
    epochs = [(0, 30, 2.0)] * 4
    assert story(*epochs) == []
    assert story(*epochs, (0, 30, 2.0), (30, 40, 9.0)) == ["firing"]


def test_a_diverged_run_that_goes_on_in_its_next_epoch_is_not_well() -> None:
    assert story((0, 200, 2.0), (200, 40, 9.0), (0, 200, 9.0)) == ["firing"]


def test_a_run_that_begins_again_after_a_divergence_clears_it_once_it_has_learned() -> None:
    found = story((0, 400, 2.0), (400, 60, 12.0), (0, 60, 10.0), (60, 60, 4.0))
    assert found == ["firing", "clear"]


@pytest.mark.parametrize("length", [100, 500, 2000])
@pytest.mark.parametrize("every", [1, 10, 50])
@pytest.mark.parametrize("digits", [None, 2, 6], ids=["exact", "two digits", "six decimals"])
def test_no_warm_up_is_a_jump_wherever_the_log_begins(length: int, every: int, digits: int | None) -> None:
    step = every * np.arange(1.0, 3 * max(length // every, 32))
    rate = 6e-4 * np.minimum(1.0, step / length)
    if digits == 2:
        rate = np.array([float(f"{value:.1e}") for value in rate])
    elif digits == 6:
        rate = np.round(rate, 6)
    for first in range(0, len(step) - 4, max(len(step) // 40, 1)):
        part = slice(first, first + 64)
        after = np.zeros(len(step[part]), dtype=bool)
        for last in range(4, len(after) + 1, 3):
            ratio, _ = rate_jumps(rate[part][None, :last], step[part][None, :last], after[None, :last])
            assert ratio[0] == 1.0, (first, last)


@pytest.mark.parametrize("factor", [1.6, 2.0, 3.0, 10.0, 1000.0])
@pytest.mark.parametrize("lines_ago", [0, 5, 14])
def test_a_jump_is_named_while_it_lies_at_the_onset(factor: float, lines_ago: int) -> None:
    step = np.arange(1.0, 61.0)
    rate = 3e-4 * np.minimum(1.0, step / 20.0)
    rate[-1 - lines_ago :] *= factor
    before = np.zeros((1, len(step)), dtype=bool)
    ratio, place = rate_jumps(rate[None, :], step[None, :], before)
    assert (ratio[0], place[0]) == (pytest.approx(factor), len(step) - 1 - lines_ago)
    long_ago = np.concatenate([rate, np.full(60, rate[-1])])[None, :]
    assert rate_jumps(long_ago, np.arange(1.0, 121.0)[None, :], np.zeros((1, 120), dtype=bool))[0][0] == 1.0


def test_a_rate_that_falls_or_moves_after_the_onset_is_no_cause() -> None:
    step = np.arange(1.0, 61.0)[None, :]
    falls, later = np.full((1, 60), 3e-4), np.full((1, 60), 3e-4)
    falls[0, 55:], later[0, 55:] = 3e-6, 3e-2
    assert rate_jumps(falls, step, np.zeros((1, 60), dtype=bool))[0][0] == 1.0
    assert rate_jumps(later, step, step > 50.0)[0][0] == 1.0
