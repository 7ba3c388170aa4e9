"""Training's environment keeps gymnasium's contract, and its reward knows nothing of a rack's budget."""

from __future__ import annotations

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="the extra rl is not installed")
pytest.importorskip("stable_baselines3", reason="the extra rl is not installed")

from nightshift.controllers.lab.power.environment import BUDGETS, OneJob, PowerEnv  # noqa: E402
from nightshift.controllers.lab.power.learn import _normaliser  # noqa: E402
from nightshift.controllers.power.belief import TOP, Bank  # noqa: E402
from nightshift.controllers.power.features import ACTIONS, FEATURES, PROBE  # noqa: E402


def test_it_passes_the_check_that_every_environment_must() -> None:
    from stable_baselines3.common.env_checker import check_env

    check_env(OneJob(1), warn=False)


def test_an_episode_is_the_same_for_the_same_seed_and_never_holds_a_value_that_is_none() -> None:
    runs = []
    for _ in range(2):
        env, seen = PowerEnv(4, 3, curves=50, bank=Bank.make(64)), []
        rng = np.random.default_rng(0)
        seen.append(env.reset())
        for _ in range(30):
            found, reward, _, _ = env.step(rng.integers(0, len(ACTIONS), 4))
            assert np.isfinite(found).all()
            assert np.isfinite(reward).all()
            seen.append(found)
        runs.append(np.stack(seen))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert runs[0].shape[2] == len(FEATURES)


def test_staying_at_the_reference_earns_nothing_and_costs_nothing() -> None:
    env = PowerEnv(4, 3, curves=50, bank=Bank.make(64))
    env.reset()
    for _ in range(10):
        _, reward, _, _ = env.step(np.full(4, PROBE))
        np.testing.assert_allclose(reward, 0.0, atol=1e-6)
    assert (env.level == TOP).all()


def test_every_budget_of_training_is_another_number_to_the_policy() -> None:
    """The normaliser saw all of them: none is clipped, and each lies apart from the next."""
    scale = _normaliser(PowerEnv(8, 3, curves=50, bank=Bank.make(64)))
    rows = np.zeros((len(BUDGETS), len(FEATURES)))
    rows[:, FEATURES.index("budget")] = BUDGETS
    seen = scale(rows)[:, FEATURES.index("budget")]
    assert (np.abs(seen) < scale.clip).all()
    assert (np.diff(seen) > 0.5).all()
