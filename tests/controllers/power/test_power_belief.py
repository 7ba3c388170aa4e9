"""The belief is the plain formula, however little of it is computed."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from nightshift.controllers.power import belief, descent
from nightshift.controllers.power.belief import (
    KNOTS,
    NEAR,
    ROUGH,
    SLOPE,
    TOP,
    Bank,
    Ints,
    LevelWindows,
    N,
    Noise,
    Outlook,
    outlook,
)
from nightshift.controllers.power.curves import Floats, on_levels, synthetic

BANK = Bank.make(128)
HATS = np.column_stack([np.interp(np.arange(N), [*KNOTS, TOP], row) for row in np.eye(len(KNOTS) + 1)])[:, :-1]
BENDS = HATS @ belief._covariance(KNOTS) @ HATS.T
"""Of the bends between any two levels, for a slope whose deviation is one."""


def conditioned(prior: Floats, seen: Ints, error: Floats) -> tuple[Floats, Floats, Floats]:
    """(covariance of what was seen, gain on every level, covariance that is left); the scale is anything."""
    told = prior[np.ix_(seen, seen)] + 1e6 + np.diag(error)
    gain = np.asarray(np.linalg.solve(told, prior[seen]).T, dtype=np.float64)
    return told, gain, prior - gain @ prior[seen]


def plainly(windows: LevelWindows, level: Ints, noise: Noise) -> Outlook:
    """What `outlook` says, one job and one curve of the bank after another: the Gaussian over all levels that the
    module's first lines describe, conditioned on the levels that were seen."""
    found = Outlook(*np.full((6, len(level), N), np.nan))
    centre = BANK.mean + BANK.score @ BANK.parts.T
    energy = (BANK.time * BANK.draw).astype(np.float64)
    for job, here in enumerate(level):
        seen = np.flatnonzero(windows.count[job])
        if TOP not in seen:
            continue
        count = windows.count[job, seen]
        time = -np.log(windows.speed[job, seen] / count)
        drawn = np.log(windows.draw[job, seen] / count)
        error = noise.speed**2 / count
        told, gain, left = conditioned(SLOPE**2 * BENDS, seen, error)
        rest = time - centre[:, seen]
        spread = noise.draw**2 / count + noise.model_draw**2
        off = np.log(np.maximum(BANK.draw[:, seen], 1e-3)) - drawn
        log = -0.5 * (rest * np.linalg.solve(told, rest.T).T).sum(1) - (off**2 / spread).sum(1) / len(seen)
        weight = np.exp(log - log.max())
        weight /= weight.sum()
        curves = centre + rest @ gain.T
        curve = weight @ curves
        variance = weight @ (curves - curve) ** 2 + np.diag(left)
        found.slowdown[job] = np.exp(curve) - 1.0
        found.slowdown_sd[job] = np.exp(curve) * np.sqrt(np.maximum(variance, 0.0))
        near = np.maximum(here - np.arange(NEAR), 0)
        _, gain, left = conditioned(ROUGH**2 * BENDS + BANK.parts * BANK.score.var(0) @ BANK.parts.T, seen, error)
        rough = np.exp(BANK.mean + gain @ (time - BANK.mean[seen]))
        found.rough[job, near] = rough[near] - 1.0
        found.rough_sd[job, near] = (rough * np.sqrt(np.maximum(np.diag(left), 0.0)))[near]
        at = weight @ energy[:, here]
        found.gain[job] = 1.0 - weight @ energy / at
        differ = energy - energy[:, [here]]
        found.gain_sd[job] = np.sqrt(weight @ (differ - weight @ differ) ** 2) / at
    return found


def histories(seed: int, jobs: int = 40, windows: int = 60) -> tuple[descent.Jobs, Ints]:
    """Jobs of made-up curves that went anywhere for a while: some a few levels down, some all the way."""
    rng = np.random.default_rng(seed)
    time, draw = on_levels(synthetic(jobs, rng))
    rows, lowest = np.arange(jobs), rng.integers(0, TOP + 1, jobs)
    found = descent.Jobs.start(np.full(jobs, 5))
    level = np.full(jobs, TOP)
    for _ in range(windows):
        noise = 1.0 + 0.01 * rng.normal(size=(2, jobs))
        found.windows.add(rows, level, 70.0 / time[rows, level] * noise[0], draw[rows, level] * noise[1])
        level = np.where(rng.random(jobs) < 0.2, TOP, rng.integers(np.maximum(lowest, 5), TOP + 1))
    found.home[:] = np.where(rng.random(jobs) < 0.5, np.maximum(lowest, 5), level)
    found.looks[:] = windows
    return found, level


@pytest.mark.parametrize("seed", range(8))
def test_leaving_out_the_knots_below_every_window_changes_nothing(seed: int) -> None:
    """Of jobs seen down to any level: every column of the outlook is that of the plain formula, and the heuristic
    decides the same upon both, ties apart. (Single precision: the weights of the bank's curves.)"""
    jobs, level = histories(seed)
    assert len(np.unique(belief.depths(jobs.windows))) > 10
    ours, plain = outlook(BANK, jobs.windows, jobs.home, Noise()), plainly(jobs.windows, jobs.home, Noise())
    for name, within in (("slowdown", 1e-4), ("slowdown_sd", 1e-4), ("rough", 1e-6), ("rough_sd", 1e-6)):
        np.testing.assert_allclose(getattr(ours, name), getattr(plain, name), atol=within, err_msg=name)
    np.testing.assert_allclose(ours.gain, plain.gain, atol=1e-3)
    np.testing.assert_allclose(ours.gain_sd, plain.gain_sd, atol=2e-3)
    for budget in (0.03, 0.05, 0.10):
        mine, theirs = copy.deepcopy(jobs), copy.deepcopy(jobs)
        care = descent.DescentCare(budget=budget)
        chosen, other = descent.choose(mine, ours, level, care), descent.choose(theirs, plain, level, care)
        hoped = plain.gain + care.hope * plain.gain_sd
        every = np.arange(len(level))
        # limits that bind none of the bank's curves there are equal: rounding chooses among them
        np.testing.assert_allclose(hoped[every, chosen], hoped[every, other], atol=1e-9)
        np.testing.assert_allclose(hoped[every, mine.home], hoped[every, theirs.home], atol=1e-9)
        np.testing.assert_array_equal(mine.given_up, theirs.given_up)
        assert len(np.unique(chosen)) > 3


def test_a_past_is_known_but_for_its_unit_of_speed() -> None:
    """Windows of another run tell what the plain Gaussian with a second free scale tells: seen at the reference
    alone they tell nothing, in any unit the same, and this run's few windows there are as unsure as before."""
    now, past = LevelWindows.empty(3), LevelWindows.empty(3)
    rows, level = np.arange(3), np.full(3, TOP - 20)
    for at, speed in ((TOP, 70.0), (TOP - 4, 69.0)):
        now.add(rows, np.full(3, at), np.full(3, speed), np.full(3, 0.7))
    for at, speed, which in ((TOP, 1.0, rows), (TOP - 20, 0.97, rows[1:])):
        for _ in range(9):
            past.add(
                which, np.full(len(which), at), speed * np.where(which == 2, 50.0, 1.0), np.full(len(which), 0.7)
            )
    alone = outlook(BANK, now, level, Noise())
    found = outlook(BANK, now, level, Noise(), past=past)
    # the draws of the past are drawn on, so weights of the bank's curves move; one who expects cliffs has none
    np.testing.assert_allclose(found.rough_sd[0], alone.rough_sd[0], rtol=1e-6)
    np.testing.assert_allclose(found.rough[0], alone.rough[0], atol=1e-9)
    np.testing.assert_allclose(found.slowdown[1], found.slowdown[2], atol=1e-6)
    near = level - np.arange(NEAR)[:, None]
    prior = ROUGH**2 * BENDS + BANK.parts * BANK.score.var(0) @ BANK.parts.T
    seen, run = np.array([TOP, TOP - 4, TOP, TOP - 20]), np.array([0, 0, 1, 1])
    time = -np.log([70.0, 69.0, 1.0, 0.97])
    told = prior[np.ix_(seen, seen)] + 1e6 * (run[:, None] == run) + 1e-4 * np.diag([1.0, 1.0, 1 / 9, 1 / 9])
    gain = np.linalg.solve(told, prior[seen]).T
    rough = np.exp(BANK.mean + gain @ (time - BANK.mean[seen]))
    deviation = rough * np.sqrt(np.diag(prior - gain @ prior[seen]))
    np.testing.assert_allclose(found.rough[1, near[:, 0]], rough[near[:, 0]] - 1.0, atol=1e-5)
    np.testing.assert_allclose(found.rough_sd[1, near[:, 0]], deviation[near[:, 0]], atol=1e-5)
