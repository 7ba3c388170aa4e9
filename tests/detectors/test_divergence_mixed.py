"""One log of several ranks: the lines of a step come among those of the next one, and the loss is judged all the
same."""

from __future__ import annotations

import numpy as np
import pytest

from nightshift.collectors.frame import StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, State
from nightshift.detectors.loss.divergence import Divergence

JOB = Subject(SubjectKind.JOB, "ml/llm")


def lines(stride: int, late_s: float, rises_at: int, ranks: int = 8) -> list[tuple[float, int, float]]:
    """(time, step, loss) of 600 printed steps, one a second, as each rank prints them: late by up to some steps."""
    random = np.random.default_rng(7)
    told = []
    for k in range(600):
        loss = 2.0 + 3.0 * np.exp(-k / 80) + (3.0 if k >= rises_at else 0.0)
        for _ in range(ranks):
            told.append((1000.0 + k + random.uniform(0, late_s), stride * k, loss + random.normal(0, 0.03)))
    return sorted(told)


def heard(told: list[tuple[float, int, float]], restore_at_s: float = np.inf) -> list[tuple[State, Fault, float]]:
    """What looks every five seconds bring; the detector is saved and restored once."""
    detector, found = Divergence(), []
    for at_s in np.arange(1005.0, told[-1][0] + 5.0, 5.0):
        part = [line for line in told if at_s - 5.0 < line[0] <= at_s]
        t_s, step, loss = (np.array(column) for column in zip(*part, strict=True))
        series = StepSeries(JOB, "r", step.astype(np.int64), t_s, {"loss": loss}, "log")
        found += [(f.state, f.fault, at_s) for f in detector.update(Tick(at_s, steps=[series]), Inventory())]
        if at_s >= restore_at_s:
            saved, detector, restore_at_s = detector.snapshot(), Divergence(), np.inf
            detector.restore(saved)
    return found


@pytest.mark.parametrize("restore_at_s", [np.inf, 1350.0])
@pytest.mark.parametrize(("stride", "late_s"), [(1, 0.8), (1, 2.5), (10, 2.5)])
def test_a_divergence_is_found_in_a_log_of_mixed_ranks(stride: int, late_s: float, restore_at_s: float) -> None:
    """Each late line began the baseline anew, so that there never was one."""
    found = heard(lines(stride, late_s, 400), restore_at_s)
    assert found, "silence over a loss that doubled"
    assert found[0][:2] == (State.FIRING, Fault.LOSS_DIVERGED)
    assert 1400.0 < found[0][2] <= 1430.0


@pytest.mark.parametrize("stride", [1, 10])
def test_a_healthy_log_of_mixed_ranks_is_none(stride: int) -> None:
    assert heard(lines(stride, 2.5, 10_000)) == []
