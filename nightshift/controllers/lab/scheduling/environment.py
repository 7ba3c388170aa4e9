"""Scheduling as an environment of gymnasium: which of the first K of the queue starts now, or nobody.

    env = SchedulingEnv(seed=1)
    observation, info = env.reset(seed=1)
    observation, reward, terminated, truncated, info = env.step(int(env.action_masks().argmax()))

The queue is shown in our heuristic's order, so action 0 is what the heuristic would try first; a job that can sit
nowhere, alone or shared, is masked, and so is waiting while nothing runs. Episodes are drawn traces at drawn loads:
no measured trace is ever trained on. The reward is minus the time that jobs spent in the system since the last
step, in mean durations: its sum is minus the mean completion time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from nightshift.controllers.lab.scheduling import trace
from nightshift.controllers.lab.scheduling.simulate import SchedulingWorld, Simulation
from nightshift.controllers.scheduling.cluster import I8
from nightshift.controllers.scheduling.policies import Steering
from nightshift.controllers.scheduling.state import QueueState

K = 8
PER_JOB = ("guess", "width", "waited", "alone", "shared", "late", "there")
OVERALL = ("free", "running", "queue", "closed")
FEATURES = tuple(f"{name}_{place}" for place in range(K) for name in PER_JOB) + OVERALL
ACTIONS = (*(f"start_{place}" for place in range(K)), "wait")
WAIT = K


class QueueChoice:
    """The first K of the queue as a policy sees them. `features` `[len(FEATURES)]`, `mask` `[K + 1]`; `late`
    `[K + 1]`: whom the baseline would have started."""

    def __init__(self, state: QueueState, order: Steering) -> None:
        late = state.twin.late() if state.twin is not None else []
        self.jobs = [*late, *order.order(state, set(late))][:K]
        self.places: list[tuple[I8, bool] | None] = []
        gpus = state.cluster.shape.gpus
        rows = np.zeros((K, len(PER_JOB)))
        for place, job in enumerate(self.jobs):
            width = int(state.width[job])
            alone = state.cluster.alone(width)
            shared = alone
            if alone is None:
                seat = state.seat(job)
                shared = None if seat is None else seat.gpus
            self.places.append(None if shared is None else (shared, alone is None))
            # logarithms of what spans orders of magnitude: a network sees no difference between a day and a week
            # otherwise
            rows[place] = (
                np.log1p(state.guess_s(job)), width / gpus, np.log1p(state.now_s - state.submit_s[job]),
                alone is not None, alone is None and shared is not None, job in late, 1.0,
            )  # fmt: skip
        free = float(state.cluster.free().mean())
        closed = float(state.cluster.closed.mean())
        overall = (free, len(state.cluster.held) / gpus, np.log1p(len(state.queue)), closed)
        self.features = np.concatenate([rows.ravel(), overall])
        self.mask = np.zeros(K + 1, bool)
        self.mask[: len(self.places)] = [place is not None for place in self.places]
        self.late = np.zeros(K + 1, bool)
        self.late[: len(self.jobs)] = [job in late for job in self.jobs]
        # while nothing runs nothing will come free: to wait would be for ever, unless nobody can start
        self.mask[WAIT] = bool(state.cluster.held) or not self.mask.any()

    def carry_out(self, state: QueueState, action: int) -> None:
        """Starts the job at that place of the order."""
        place = self.places[action]
        assert place is not None
        state.start(self.jobs[action], place[0], "chosen by the policy", shared=place[1])


class SchedulingEnv(gymnasium.Env[NDArray[np.float32], int]):
    """See the module. `jobs`: of an episode."""

    def __init__(self, seed: int = 0, jobs: int = 120) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (len(FEATURES),), np.float32)
        self.action_space = spaces.Discrete(K + 1)
        self._jobs, self._order = jobs, Steering()
        self._random = np.random.default_rng(seed)
        self._steps: Iterator[QueueState] = iter(())
        self._choice: QueueChoice

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._random = np.random.default_rng(seed)
        drawn = trace.draw(self._jobs, int(self._random.integers(2**31)))
        load = float(self._random.uniform(0.6, 1.4))
        self.simulation = Simulation(
            # 64 GPUs: the default shape's
            trace.at_load(drawn, 64, load),
            SchedulingWorld(),
            int(self._random.integers(2**31)),
            twin=True,
        )
        # so that rewards are of the order of one, whatever the lengths in a trace
        self._scale_s = float(np.mean([job.duration_s for job in drawn])) * self._jobs
        self._steps = self.simulation.steps()
        self._spent_s = 0.0
        self._done = False
        self._go_on()
        return self._seen(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Raises ValueError for an action that is masked."""
        if not self._choice.mask[action]:
            raise ValueError(f"action {ACTIONS[action]} is masked")
        state = self.simulation.state
        reward = 0.0
        if action != WAIT:
            self._choice.carry_out(state, action)
            self._choice = QueueChoice(state, self._order)
            # time goes on only when nobody else can start: several starts belong to one moment
            if not state.queue or not self._choice.mask[:WAIT].any():
                reward = self._go_on()
        else:
            reward = self._go_on()
        return self._seen(), reward, self._done, False, {}

    def action_masks(self) -> NDArray[np.bool_]:
        """What sb3-contrib's MaskablePPO asks for."""
        return self._choice.mask

    def _go_on(self) -> float:
        """To the next moment at which somebody could start; returns the reward of the time between."""
        state = self.simulation.state
        for _ in self._steps:
            self._choice = QueueChoice(state, self._order)
            if self._choice.mask[:WAIT].any():
                break
        else:
            self._done = True
        spent_s = self._in_system_s()
        reward, self._spent_s = -(spent_s - self._spent_s) / self._scale_s, spent_s
        return reward

    def _in_system_s(self) -> float:
        """Time in the system so far, summed over jobs."""
        state, ends_s = self.simulation.state, self.simulation.end_s
        until_s = np.where(np.isnan(ends_s), state.now_s, ends_s)
        return float(np.maximum(until_s - state.submit_s, 0.0).sum())

    def _seen(self) -> NDArray[np.float32]:
        return self._choice.features.astype(np.float32)
