"""Laws of loss divergence, on drawn curves of any level, noise, pace and onset: what must alarm and what must not.

Each law holds for every one of the drawn runs; they are drawn from fixed seeds and judged side by side, as the
series of one fleet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nightshift.collectors.frame import StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, State
from nightshift.detectors.loss.divergence import Divergence

RECORDINGS = Path(__file__).parent.parent / "recordings"
STEPS = 700
OF = pytest.mark.parametrize(
    "of", [range(16), pytest.param(range(16, 48), marks=pytest.mark.full)], ids=["few", "rest"]
)
"""The seeds of the runs that a law is asked of."""
Law = Callable[["Run"], None]


@dataclass
class Run:
    """A training run in the order of its steps; `clean` is its loss without noise."""

    rng: np.random.Generator
    onset: int
    clean: np.ndarray
    step: np.ndarray
    loss: np.ndarray
    norm: np.ndarray
    rate: np.ndarray

    @classmethod
    def healthy(cls, seed: int) -> Run:
        """The loss falls to a level of 0.5 to 8, from 1.3 to 3.5 times as much, with noise of 0.2 to 8 %."""
        rng = np.random.default_rng([41, seed])
        steps = np.arange(STEPS)
        level, progress, tau = rng.uniform(0.5, 8.0), rng.uniform(0.3, 2.5), rng.uniform(30.0, 150.0)
        clean = level * (1.0 + progress * np.exp(-steps / tau))
        noise = np.exp(rng.uniform(np.log(0.002), np.log(0.08)))
        loss = clean * (1.0 + noise * rng.standard_normal(STEPS))
        norm = 0.5 * np.exp(0.05 * rng.standard_normal(STEPS))
        onset = int(rng.integers(300, 500))
        return cls(rng, onset, clean, steps + 1, loss, norm, np.full(STEPS, 1e-3))

    @property
    def since(self) -> np.ndarray:
        return np.arange(len(self.loss) - self.onset)

    def rise(self, by: np.ndarray | float) -> None:
        """Adds this share of the level at the onset to the loss from there on."""
        self.loss[self.onset :] += self.clean[self.onset] * by


def said(runs: list[Run]) -> list[list[Finding]]:
    """Firing findings by run, ten steps a tick, one step a second."""
    detector, found = Divergence(), [[] for _ in runs]  # type: ignore[var-annotated]
    jobs = [Subject(SubjectKind.JOB, f"ml/{n}") for n in range(len(runs))]
    for first in range(0, max(len(run.loss) for run in runs), 10):
        part, series = slice(first, first + 10), []
        for job, run in zip(jobs, runs, strict=True):
            columns = {"loss": run.loss[part], "grad_norm": run.norm[part], "learning_rate": run.rate[part]}
            t_s = np.arange(first + 1, first + 1 + len(run.loss[part]), dtype=float)
            series.append(StepSeries(job, "run", run.step[part], t_s, columns, "log"))
        for finding in detector.update(Tick(float(first + 10), steps=tuple(series)), Inventory()):
            if finding.state is State.FIRING:
                found[jobs.index(finding.subject)].append(finding)
    return found


def drawn(law: Law, of: range) -> tuple[list[Run], list[list[Finding]]]:
    runs = [Run.healthy(seed) for seed in of]
    for run in runs:
        law(run)
    return runs, said(runs)


def nothing(run: Run) -> None:
    """A healthy run."""


def gradients_alone(run: Run) -> None:
    """Another batch size, clipping or scale moves the gradients' norm by any factor; the loss goes on as before."""
    run.norm[run.onset :] *= np.exp(run.rng.uniform(-4.0, 4.0))


def shift_of_the_data(run: Run) -> None:
    """The loss jumps by up to 60 % and heals; gradients triple for some steps, as in recorded runs."""
    run.rise(run.rng.uniform(0.1, 0.6) * np.exp(-run.since / run.rng.uniform(20.0, 100.0)))
    run.norm[run.onset :] *= np.exp(1.1 * np.exp(-run.since / 6.0))


def steps_without_a_loss(run: Run) -> None:
    """A step that the loss scaler skipped prints no loss; some trainers print one loss in ten steps."""
    run.loss[run.step % run.rng.integers(3, 40) == 0] = np.nan


def policy_gradient(run: Run) -> None:
    """Begins at zero and grows with the distance from the policy that it began with, as GRPO's does."""
    growth = np.linspace(0.0, run.rng.uniform(0.005, 0.1), STEPS)
    run.loss[:] = growth * (1.0 + run.rng.uniform(0.1, 1.0) * run.rng.standard_normal(STEPS))
    run.loss[: int(run.rng.integers(1, 60))] = 0.0


def below_zero(run: Run) -> None:
    """A likelihood's logarithm may have either sign; it scatters about its level from the first step on."""
    run.loss[:] = -run.rng.uniform(0.5, 9.0) + run.rng.uniform(0.05, 0.5) * run.rng.standard_normal(STEPS)


def spikes(run: Run) -> None:
    """Single hard or garbage batches, however high."""
    for place in run.rng.choice(np.arange(100, 690), size=int(run.rng.integers(1, 9)), replace=False):
        height = run.rng.uniform(0.2, 6.0)
        run.loss[place] *= 1.0 + height
        run.norm[place] *= 1.0 + height


def noisier_batches(run: Run) -> None:
    """A batch a quarter as large and less: the loss scatters more around the same level, gradients grow."""
    times = run.rng.uniform(2.0, 6.0)
    sigma = min(float(np.std(run.loss[200 : run.onset] - run.clean[200 : run.onset])), 0.03 * run.clean[run.onset])
    run.loss[run.onset :] = run.clean[run.onset :] + times * sigma * run.rng.standard_normal(len(run.since))
    run.norm[run.onset :] *= times


def learning_rate_step(run: Run) -> None:
    """The rate changes by up to twenty or four times, with a bump where it went up."""
    times = float(np.exp(run.rng.uniform(np.log(0.05), np.log(4.0))))
    run.rate[run.onset :] *= times
    run.rise(0.05 * np.log2(max(times, 1.0)) * np.exp(-run.since / 30.0))


def rewind(run: Run) -> None:
    """Steps come again from an earlier number, with the losses of that time."""
    back = int(run.rng.integers(20, 250))
    again = np.concatenate([np.arange(run.onset), np.arange(run.onset - back, STEPS - back)])
    run.loss, run.norm, run.rate, run.step = (a[again] for a in (run.loss, run.norm, run.rate, run.step))


BENIGN = (
    nothing,
    gradients_alone,
    shift_of_the_data,
    spikes,
    steps_without_a_loss,
    policy_gradient,
    below_zero,
    noisier_batches,
    learning_rate_step,
    rewind,
)


@OF
@pytest.mark.parametrize("law", BENIGN, ids=lambda law: law.__name__)
def test_what_is_benign_says_nothing(law: Law, of: range) -> None:
    """Of no drawn run, whatever its level, noise and pace."""
    _, found = drawn(law, of)
    assert [seed for seed, findings in zip(of, found, strict=True) if findings] == []


@OF
@pytest.mark.parametrize("every", [1, 10])
def test_a_loss_that_is_printed_no_more_while_steps_go_on_is_told(every: int, of: range) -> None:
    """A loss scaler skips every step of a run that is lost, and a skipped step prints no loss. Within ten steps, or
    three times as many as the run let pass before."""

    def lost(run: Run) -> None:
        run.loss[run.step % every != 0] = np.nan
        run.loss[run.onset :] = np.nan

    for run, found in zip(*drawn(lost, of), strict=True):
        assert {f.fault for f in found} == {Fault.LOSS_NONFINITE}
        assert 0.0 < found[0].at.t_s - run.onset <= 3 * every + 20.0
        assert found[0].summary.startswith("No loss in the last ")


@OF
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_a_loss_that_is_no_number_is_told_in_the_tick_that_brings_it(value: float, of: range) -> None:
    """One such step is enough."""

    def law(run: Run) -> None:
        run.loss[run.onset] = value

    for run, findings in zip(*drawn(law, of), strict=True):
        assert findings[0].fault is Fault.LOSS_NONFINITE
        assert findings[0].at.t_s == 10.0 * (run.onset // 10 + 1)


@OF
@pytest.mark.parametrize("kind", [policy_gradient, below_zero], ids=lambda law: law.__name__)
def test_a_loss_without_a_scale_that_explodes_is_found(kind: Law, of: range) -> None:
    """Wherever it began."""

    def law(run: Run) -> None:
        kind(run)
        run.loss[run.onset :] += run.rng.uniform(8.0, 20.0)

    for run, findings in zip(*drawn(law, of), strict=True):
        assert findings[0].fault is Fault.LOSS_DIVERGED
        assert run.onset < findings[0].at.t_s <= run.onset + 30


@OF
def test_a_jump_beyond_all_that_was_won_is_told_within_fifteen_steps(of: range) -> None:
    """The loss rises by its own size or more and stays."""

    def law(run: Run) -> None:
        won = float(run.clean[0] / run.clean[run.onset] - 1.0)
        run.rise(run.rng.uniform(1.0, 20.0) * max(1.0, 1.3 * won))

    for run, findings in zip(*drawn(law, of), strict=True):
        assert findings[0].fault is Fault.LOSS_DIVERGED
        assert abs(float(findings[0].facts["onset_step"]) - run.step[run.onset]) <= 1
        assert float(findings[0].facts["delay_steps"]) <= 15


@OF
@pytest.mark.parametrize("shift", [-2.5, -1.2, 2.5])
def test_a_jump_that_the_gradients_confirm_is_told_within_ten_steps(shift: float, of: range) -> None:
    """A third more loss is little; that the gradients change at once by a factor of three, for good, is much."""

    def law(run: Run) -> None:
        run.rise(run.rng.uniform(0.4, 0.9))
        run.norm[run.onset :] *= np.exp(shift)

    for _, findings in zip(*drawn(law, of), strict=True):
        assert findings[0].fault is Fault.LOSS_DIVERGED
        assert float(findings[0].facts["delay_steps"]) <= 10


@OF
def test_a_slow_climb_is_told_while_it_climbs_or_soon_after(of: range) -> None:
    """No spike at all: the loss climbs from step 250 on by a third or more, over 120 to 350 steps."""

    def law(run: Run) -> None:
        run.onset = 250
        lasts = run.rng.uniform(120.0, 350.0)
        run.rise(run.rng.uniform(0.35, 1.0) * np.minimum(run.since / lasts, 1.0))

    for _, findings in zip(*drawn(law, of), strict=True):
        assert findings
        assert findings[0].at.t_s <= 250 + 350 + 100


@pytest.mark.parametrize("number", [25, 41])
def test_recorded_weights_with_a_flipped_bit_are_told_within_ten_steps(number: int) -> None:
    """Real runs whose loss doubled and fell again, but never to its level; without gradients it took 75 and 99."""
    table = pd.read_parquet(RECORDINGS / "loss.parquet")
    onset = int(pd.read_csv(RECORDINGS / "loss_meta.csv").set_index("run").onset_step[number])
    step, loss, norm, rate = (
        table[table.run == number][c].to_numpy(float) for c in ("step", "loss", "grad_norm", "lr")
    )
    findings = said([Run(np.random.default_rng(0), onset, loss, step.astype(np.int64), loss, norm, rate)])[0]
    assert findings[0].fault is Fault.LOSS_DIVERGED
    told = float(findings[0].facts["onset_step"]) + float(findings[0].facts["delay_steps"])
    assert onset <= told <= onset + 10
