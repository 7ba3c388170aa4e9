"""Training: many jobs at once on synthetic curves, as stable-baselines3 wants its environments.

Domain randomisation: every episode draws a fresh curve, noise, budget and, now and then, a phase change. The reward
is energy per work saved and a cost of switching. Slowdown is a constraint per job: its multiplier rises while the
share of windows over the budget is above `ALLOWED` and falls below it (Lagrangian; C. Tessler et al., "Reward
Constrained Policy Optimization", ICLR 2019). A rack's budget is no part of it: that is a projection, in the shield.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from nightshift.controllers.policy_file import Normaliser
from nightshift.controllers.power import descent
from nightshift.controllers.power.belief import TOP, Bank, Ints
from nightshift.controllers.power.curves import LEVELS, Floats, on_levels, synthetic
from nightshift.controllers.power.features import ACTIONS, FEATURES, LONGEST, apply, features

WINDOWS = LONGEST
ALLOWED = 0.003
_KEEP_EVERY = 7
SWITCH = 0.02
BUDGETS = (0.03, 0.05, 0.10)


class PowerEnv(VecEnv):
    """n jobs; each ends after WINDOWS windows and another begins in its place."""

    def __init__(
        self,
        n: int,
        seed: int,
        curves: int = 4000,
        bank: Bank | None = None,
        shielded: bool = True,
        normaliser: Normaliser | None = None,
    ) -> None:
        space = gym.spaces.Box(-np.inf, np.inf, (len(FEATURES),), np.float32)
        super().__init__(n, space, gym.spaces.Discrete(len(ACTIONS)))
        self.rng = np.random.default_rng(seed)
        self.bank = bank or Bank.make()
        self.time, self.draw = on_levels(synthetic(curves, self.rng))
        self.normaliser = normaliser
        self.shielded = shielded
        self.price = 1.0
        self.over_rate = 0.0
        self._next = np.zeros(n, dtype=np.int64)
        self.kept: list[Floats] = []
        """Some of what was seen, not normalised: the range of training."""

    def reset(self, budget: float | None = None) -> Any:
        """`budget` None: one of BUDGETS by chance, the same for all jobs."""
        n = self.num_envs
        self.budget = np.full(n, float(self.rng.choice(BUDGETS)) if budget is None else budget)
        self.care = descent.DescentCare(budget=float(self.budget[0]))
        self.row = self.rng.integers(0, len(self.time), n)
        lowest = np.maximum(np.array([self._lowest(r) for r in self.row]), 0)
        self.jobs = descent.Jobs.start(lowest)
        self.noise = self.rng.uniform(0.005, 0.015, n)
        self.level = np.full(n, TOP)
        self.window = 0
        return self._observe()

    def _lowest(self, row: int) -> int:
        flat = np.flatnonzero(np.abs(np.diff(self.time[row])) + np.abs(np.diff(self.draw[row])) > 0)
        return int(flat[0]) if len(flat) else TOP - 1

    def _observe(self) -> Floats:
        """One window at the present level, and what is believed after it."""
        n = self.num_envs
        t, p = self.time[self.row, self.level], self.draw[self.row, self.level]
        speed = (1.0 + self.noise * self.rng.normal(size=n)) / t
        drawn = p * (1.0 + self.noise * self.rng.normal(size=n))
        seen = descent.look(self.jobs, self.level, speed, drawn, self.bank, self.care)
        self.low, self.keep = descent.reachable(seen, self.jobs, self.care)
        found = features(self.jobs, seen, self.low, self.care)
        # a feature is NaN until its first reference; a network has no number for that
        found = np.nan_to_num(found, nan=0.0, posinf=10.0, neginf=-10.0)
        if self.window % _KEEP_EVERY == 0:
            self.kept.append(found)
        if self.normaliser is not None:
            found = self.normaliser(found)
        return found.astype(np.float32)

    def step_async(self, actions: Ints) -> None:
        self._next = np.asarray(actions)

    def step_wait(self) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        before = self.level
        self.level = apply(self.jobs, self._next, self.low if self.shielded else None, self.keep, self.care)
        t, p = self.time[self.row, self.level], self.draw[self.row, self.level]
        over = t - 1.0 > self.budget
        saved = 1.0 - t * p / self.draw[self.row, TOP]
        reward = 10.0 * saved - self.price * over - SWITCH * np.abs(LEVELS[self.level] - LEVELS[before]) * 10.0
        # slowly: the price has to answer the policy, not one window's noise
        self.over_rate += 0.01 * (float(over.mean()) - self.over_rate)
        self.price = float(np.clip(self.price + 0.5 * (self.over_rate - ALLOWED), 0.5, 20.0))
        self.window += 1
        found = self._observe()
        done = np.full(self.num_envs, self.window >= WINDOWS)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if self.window >= WINDOWS:
            for info, last in zip(infos, found, strict=True):
                # cut by time, not ended: its value goes on beyond (stable-baselines3, VecEnv)
                info["terminal_observation"], info["TimeLimit.truncated"] = last, True
            found = self.reset()
        return found, reward.astype(np.float32), done, infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return [getattr(self, method_name)(*args, **kwargs)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class OneJob(gym.Env[Floats, int]):
    """One job of PowerEnv as a plain gymnasium environment."""

    def __init__(self, seed: int = 0) -> None:
        self._many = PowerEnv(1, seed, curves=200)
        self.observation_space, self.action_space = self._many.observation_space, self._many.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._many.rng = np.random.default_rng(seed)
        return self._many.reset()[0], {}

    def step(self, action: int) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        found, reward, done, infos = self._many.step(np.array([action]))
        last = infos[0].get("terminal_observation", np.asarray(found)[0])
        return last, float(reward[0]), False, bool(done[0]), {}
