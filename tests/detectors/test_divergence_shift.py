"""A loss that jumps with its data and falls again is no divergence, however slowly; one that stays up is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nightshift.collectors.frame import StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, State
from nightshift.detectors.loss.divergence import Divergence

JOB = Subject(SubjectKind.JOB, "ml/llm")
SHIFTS = Path(__file__).parent.parent / "recordings" / "loss_shift.parquet"


def said(loss: np.ndarray, step: np.ndarray | None = None) -> list[Finding]:
    """What the detector says of these losses, ten steps a tick, one step a second."""
    detector, found = Divergence(), []
    step = np.arange(1, len(loss) + 1) if step is None else step
    for first in range(0, len(loss), 10):
        part = slice(first, first + 10)
        t_s = np.arange(first + 1, first + 1 + len(step[part]), dtype=float)
        series = StepSeries(JOB, "run", step[part], t_s, {"loss": loss[part]}, "log")
        found += detector.update(Tick(float(first + 10), steps=(series,)), Inventory())
    return found


@pytest.mark.parametrize("run", [21, 181])
def test_a_recorded_shift_of_a_third_of_the_domain_is_no_divergence(run: int) -> None:
    """Real runs whose loss jumped by half and took more than 150 steps to fall; one never quite came back."""
    table = pd.read_parquet(SHIFTS)
    assert said(table[table.run == run].loss.to_numpy(float)) == []


@pytest.mark.parametrize(("tau", "diverged"), [(60.0, False), (200.0, False), (1e9, True)])
def test_what_still_falls_is_waited_for_and_what_stays_is_called(tau: float, diverged: bool) -> None:
    """The same jump by 1.3 over a baseline of 3: falling within 60 or 200 steps, or not at all."""
    rng = np.random.default_rng(2)
    steps = np.arange(1000)
    loss = 3.0 + 1.85 * np.exp(-steps / 100.0) + rng.normal(0, 0.08, 1000)
    loss[500:] += 1.3 * np.exp(-(steps[500:] - 500) / tau)
    found = said(loss)
    assert bool(found) is diverged
    if diverged:
        assert found[0].fault is Fault.LOSS_DIVERGED
        assert 495 <= float(found[0].facts["onset_step"]) <= 505
        assert float(found[0].facts["delay_steps"]) <= 150


def test_a_rewind_to_a_checkpoint_alarms_nothing() -> None:
    """Steps come again from an earlier number, with the losses of that time."""
    rng = np.random.default_rng(3)
    step = np.concatenate([np.arange(1, 601), np.arange(401, 1001)])
    loss = 2.2 + 2.6 * np.exp(-step / 300.0) + rng.normal(0, 0.1, len(step))
    assert [f for f in said(loss, step) if f.state is State.FIRING] == []
