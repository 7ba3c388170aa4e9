"""Promotion's statistics in worlds whose truth is known: `python -m benchmarks.promotion`.

Doubly robust means: right where either the outcome's model or the propensities are. `coverage_when_wrong` plays
worlds whose noise has heavy tails (Student's t of 3 degrees), whose jobs differ in length, and whose reward follows
a confounder that propensities follow too, and gives the estimate a model that is right or wrong (its features are
noise) with propensities that are right or wrong (an even coin throughout): the bound has to cover with one of both
right; with neither, nothing helps.

A world is a trial of jobs that differ among themselves by twice what a window is noisy, with propensities that
follow a feature that also moves the reward. Told: how often the one-sided bound covers the truth, by job and (as a
peer) by window; how often a policy without effect, and a worse one, passes any of four looks; and how often a gain
of a given size passes with a given number of jobs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.report import write
from nightshift.controllers.estimate import TrialTurn, clustered_mean, doubly_robust, scores
from nightshift.controllers.promotion import Criteria

SPREAD = 0.05


def world(seed: int, gain: float, jobs: int, windows: int) -> list[TrialTurn]:
    random = np.random.default_rng((seed, 0x90D))
    turns = []
    for job in range(jobs):
        own, level = random.normal(0, 2 * SPREAD), random.normal()
        chance, lift = (0.7 if level > 0 else 0.3), gain + random.normal(0, SPREAD / 2)
        for _ in range(windows):
            treated = bool(random.random() < chance)
            reward = own + 0.1 * level + lift * treated + random.normal(0, SPREAD)
            turns.append(TrialTurn(str(job), treated, chance, reward, 1.0, 1.0, False, (level,)))
    return turns


def hard_world(seed: int, gain: float, jobs: int, *, model: bool, chances: bool) -> list[TrialTurn]:
    """Clustered, heavy-tailed, confounded; told with the right or a wrong model's features and propensities."""
    random = np.random.default_rng((seed, 0xDB))
    turns = []
    for job in range(jobs):
        own, level = SPREAD * random.standard_t(3), random.normal()
        chance, lift = float(np.clip(0.5 + 0.3 * np.tanh(2 * level), 0.1, 0.9)), gain + random.normal(0, SPREAD / 2)
        for _ in range(int(random.integers(2, 20))):
            treated = bool(random.random() < chance)
            reward = own + 0.2 * level + lift * treated + SPREAD * float(random.standard_t(3))
            seen = level if model else random.normal()
            turns.append(TrialTurn(str(job), treated, chance if chances else 0.5, reward, 1.0, 1.0, False, (seen,)))
    return turns


def coverage(worlds: int, jobs: int = 120) -> dict[str, float]:
    """Share of worlds in which the one-sided 95 % bound covers, by what is right."""
    found = {}
    for model, chances in ((True, True), (False, True), (True, False), (False, False)):
        told = [doubly_robust(hard_world(s, 0.03, jobs, model=model, chances=chances)) for s in range(worlds)]
        name = f"model {'right' if model else 'wrong'}, propensities {'right' if chances else 'wrong'}"
        found[name] = float(np.mean([estimate.low <= 0.03 for estimate in told]))
    return found


def by_window(turns: list[TrialTurn]) -> float:
    """The lower bound from the same scores as if windows were independent."""
    score, _ = scores(turns)
    return clustered_mean(score, np.arange(len(score))).low


def _gains(turns: list[TrialTurn], alpha: float) -> bool:
    try:
        return doubly_robust(turns, alpha).low > 0
    except ValueError:  # too few jobs in an arm: nothing is promoted
        return False


def passes(gain: float, jobs: int, worlds: int, windows: int = 6) -> float:
    """Share of worlds in which any of the looks finds the bound above zero."""
    criteria = Criteria()
    alpha = criteria.alpha / criteria.looks
    passed = 0
    for seed in range(worlds):
        turns = world(seed, gain, jobs, windows)
        cuts = [len(turns) * look // criteria.looks for look in range(1, criteria.looks + 1)]
        passed += any(_gains(turns[:cut], alpha) for cut in cuts)
    return passed / worlds


def main() -> None:
    covered: list[list[bool]] = [[], []]
    for seed in range(300):
        turns = world(seed, 0.03, 40, 8)
        covered[0].append(doubly_robust(turns).low <= 0.03)
        covered[1].append(by_window(turns) <= 0.03)
    results: dict[str, Any] = {
        "coverage_of_95_by_job": float(np.mean(covered[0])),
        "coverage_of_95_by_window": float(np.mean(covered[1])),
        "no_effect_passes": passes(0.0, 80, 300),
        "worse_passes": {str(loss): passes(-loss, 80, 100) for loss in (0.01, 0.03)},
        "spread_of_a_window": SPREAD,
        "coverage_when_wrong": coverage(400),
        "power": {
            str(gain): {str(jobs): passes(gain, jobs, 50) for jobs in (60, 120, 240)} for gain in (0.01, 0.02, 0.04)
        },
    }
    write("promotion", results)


if __name__ == "__main__":
    main()
