"""The bandit over first steps: its propensities are exact, and it goes where more was seen."""

from __future__ import annotations

import numpy as np

from benchmarks.power_start import LEAPS, Bandit


def test_chances_sum_to_one_and_every_arm_keeps_one() -> None:
    rng = np.random.default_rng(1)
    bandit = Bandit.prior(rng.normal(size=(50, 3)), 0.05 * rng.normal(size=(len(LEAPS), 50)))
    for context in rng.normal(size=(20, 3)):
        chance = bandit.chances(context)
        assert abs(float(chance.sum()) - 1.0) < 1e-12
        assert chance.min() > 0.0


def test_it_learns_which_arm_is_worth_more_in_which_context() -> None:
    """One arm is best where the context is high, another where it is low."""
    rng = np.random.default_rng(2)
    bandit = Bandit.prior(np.ones((5, 2)), np.zeros((2, 5)))
    for _ in range(400):
        context = np.array([1.0, float(rng.choice([-1.0, 1.0]))])
        arm = int(rng.choice(2, p=bandit.chances(context)))
        bandit.learn(arm, context, 0.05 * context[1] * (1 if arm == 0 else -1))
    assert bandit.chances(np.array([1.0, 1.0])).argmax() == 0
    assert bandit.chances(np.array([1.0, -1.0])).argmax() == 1
