"""The scheduling environment and what is learned in it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

for _needed in ("gymnasium", "sb3_contrib"):
    if not os.environ.get("CI"):
        pytest.importorskip(_needed, reason=f"{_needed} is in the extra rl")

from nightshift.controllers.lab.learnable import learnable  # noqa: E402
from nightshift.controllers.lab.scheduling import trace  # noqa: E402
from nightshift.controllers.lab.scheduling.learn import (  # noqa: E402
    ACTIONS,
    FEATURES,
    WAIT,
    LearnedQueue,
    QueueChoice,
    SchedulingEnv,
)
from nightshift.controllers.lab.scheduling.simulate import SchedulingWorld, Simulation  # noqa: E402
from nightshift.controllers.scheduling.state import QueueState  # noqa: E402


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


@dataclass
class Idler:
    """Of what is allowed, the last: whoever is furthest behind, and nobody at all as soon as that is allowed."""

    def logits(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.arange(len(ACTIONS), dtype=float)[None]


def played(late_first: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[bool, bool]], float]:
    """(somebody late could have started, who started was late) of each start of an idler, and its longest wait."""
    starts: list[tuple[bool, bool]] = []
    carry_out = QueueChoice.carry_out

    def watched(self: QueueChoice, state: QueueState, action: int) -> None:
        starts.append((bool((self.mask & self.late).any()), bool(self.late[action])))
        carry_out(self, state, action)

    monkeypatch.setattr(QueueChoice, "carry_out", watched)
    jobs = trace.at_load(trace.draw(60, 5), 64, 0.9)
    policy = LearnedQueue(Idler(), late_first)  # type: ignore[arg-type]
    return starts, float(Simulation(jobs, SchedulingWorld(), twin=True).run(policy).wait_s.max())


def test_whoever_is_late_goes_first_whatever_the_network_says(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded, longest_s = played(True, monkeypatch)
    assert sum(could for could, _ in bounded) > 10
    assert all(was for could, was in bounded if could)
    _, without_s = played(False, monkeypatch)
    assert longest_s < without_s


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
    result = Simulation(jobs, SchedulingWorld(), twin=True).run(LearnedQueue(first.network))
    assert np.isfinite(result.jct_s).all()
