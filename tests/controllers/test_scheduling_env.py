"""The scheduling environment and what is learned in it."""

from __future__ import annotations

import os

import numpy as np
import pytest

for _needed in ("gymnasium", "sb3_contrib"):
    if not os.environ.get("CI"):
        pytest.importorskip(_needed, reason=f"{_needed} is in the extra rl")

from controllers.learnable import learnable  # noqa: E402
from controllers.scheduling import trace  # noqa: E402
from controllers.scheduling.environment import ACTIONS, FEATURES, WAIT, SchedulingEnv  # noqa: E402
from controllers.scheduling.learn import Learned  # noqa: E402
from controllers.scheduling.simulate import Simulation, World  # noqa: E402


def test_it_is_an_environment_as_gymnasium_means_it() -> None:
    env = SchedulingEnv(3, jobs=30)
    observation, _ = env.reset(seed=4)
    assert env.observation_space.contains(observation)
    assert observation.shape == (len(FEATURES),)
    again, _ = SchedulingEnv(9, jobs=30).reset(seed=4)
    assert np.array_equal(observation, again)


def test_a_masked_action_is_refused_and_any_allowed_course_ends_with_every_job_done() -> None:
    env, random = SchedulingEnv(3, jobs=40), np.random.default_rng(0)
    env.reset(seed=4)
    ended, total = False, 0.0
    while not ended:
        mask = env.action_masks()
        assert mask.any()
        if not mask.all():
            with pytest.raises(ValueError, match="masked"):
                env.step(int(np.flatnonzero(~mask)[0]))
        _, reward, ended, cut, _ = env.step(int(random.choice(np.flatnonzero(mask))))
        assert reward <= 0
        assert not cut
        total += reward
    result = env.simulation.result()
    assert np.isfinite(result.jct_s).all()
    scale = np.mean([job.duration_s for job in env.simulation.jobs])
    assert total == pytest.approx(-float(result.jct_s.mean()) / float(scale), rel=1e-6)


@pytest.mark.full
def test_training_gives_the_same_policy_for_the_same_seed_and_it_ends_a_trace() -> None:
    part = learnable("scheduling")
    first, second = (part.train(1, 1024, lambda text: None) for _ in range(2))
    assert first.interface.actions == ACTIONS
    assert ACTIONS[WAIT] == "wait"
    for (w1, b1), (w2, b2) in zip(first.network.layers, second.network.layers, strict=True):
        assert np.array_equal(w1, w2)
        assert np.array_equal(b1, b2)
    jobs = trace.at_load(trace.draw(60, 5), 64, 0.9)
    result = Simulation(jobs, World(), twin=True).run(Learned(first.network))
    assert np.isfinite(result.jct_s).all()
