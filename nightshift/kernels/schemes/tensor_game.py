"""The tensor game (AlphaTensor: Fawzi and others, Nature 610, 2022) modulo 2, at 2×2, learned by PPO from nothing.

The state is what is left of the product's tensor. A move takes away the product of three sets of entries, of A, B
and C; the game is won when nothing is left, and the moves are the scheme. Each move costs 1. The potential is a
bound on the moves that are still needed: ranks of all sums of slices, summed. Its change is added to the reward,
which leaves the best play as it is (Ng, Harada and Russell 1999). Of 3,375 moves the player is offered the 32 that
lower the potential most: chance alone wins none of a hundred such games. The extra `rl` installs gymnasium and
stable-baselines3.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from nightshift.kernels.schemes.scheme import Format, Scheme, check, definition, unpacked

FORMAT = Format(2, 2, 2)
MOVES = 10
"""A game that is not over after so many moves is lost."""
MENU = 32
"""Moves that the player is offered."""
_SIDE = 4
_SETS = 15


@cache
def _ranks() -> NDArray[np.int8]:
    """Rank modulo 2 of each 4×4 matrix, by its 16 bits."""
    ranks = np.zeros(1 << 16, np.int8)
    for bits in range(1 << 16):
        rows = [bits >> 4 * i & 15 for i in range(4)]
        rank = 0
        while rows:
            row = rows.pop()
            if row:
                rank += 1
                low = row & -row
                rows = [other ^ row if other & low else other for other in rows]
        ranks[bits] = rank
    return ranks


_POWERS = 1 << np.arange(16)
_SUBSETS = np.array([[number >> i & 1 for i in range(_SIDE)] for number in range(1, _SETS + 1)], np.int64)


def _sums(tensors: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n, 4, 4, 4) → (n, 3, 15): every sum of slices along each axis, as 16 bits."""
    parts = []
    for axis in range(3):
        slices = np.moveaxis(tensors, axis + 1, 1).reshape(len(tensors), _SIDE, 16)
        parts.append((np.einsum("sx,nxk->nsk", _SUBSETS, slices) & 1) @ _POWERS)
    return np.stack(parts, axis=1)


@cache
def _products() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every product of three sets, (3375, 4, 4, 4), and its sums of slices."""
    all_ = np.einsum("xa,yb,zc->xyzabc", _SUBSETS, _SUBSETS, _SUBSETS).reshape(-1, _SIDE, _SIDE, _SIDE)
    return all_, _sums(all_)


def potential(tensor: NDArray[np.int64]) -> float:
    """At most the rank of a (4, 4, 4) tensor modulo 2: a term changes the rank of 8 of the 15 sums of slices, on
    each of 3 axes, by at most 1."""
    return float(_ranks()[_sums(tensor[None])].sum()) / 24.0


@lru_cache(maxsize=1 << 14)
def _menu(state: bytes) -> NDArray[np.int64]:
    """The MENU products that lower the potential most, the best first."""
    tensor = np.frombuffer(state, np.int64).reshape((_SIDE,) * 3)
    after = _ranks()[_sums(tensor[None]) ^ _products()[1]].sum(axis=(1, 2), dtype=np.int64)
    return np.argsort(after, kind="stable")[:MENU]


class TensorGame(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Observation: (64,) bits of what is left, and the share of moves made. Action: a line of the menu."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (_SIDE**3 + 1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(MENU)
        self.start = np.zeros((_SIDE,) * 3, np.int64)
        for a, b, c in FORMAT.definition():
            self.start[a, b, c] = 1
        self.left = self.start.copy()
        self.moves: list[tuple[int, int, int]] = []
        self.best: list[tuple[int, int, int]] | None = None

    def _seen(self) -> NDArray[np.float32]:
        return np.append(self.left.reshape(-1), len(self.moves) / MOVES).astype(np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.moves = self.start.copy(), []
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        product = int(_menu(self.left.tobytes())[int(action)])
        before = potential(self.left)
        self.left = self.left ^ _products()[0][product]
        self.moves.append((product // _SETS**2 + 1, product // _SETS % _SETS + 1, product % _SETS + 1))
        won = not self.left.any()
        if won and (self.best is None or len(self.moves) < len(self.best)):
            self.best = list(self.moves)
        reward = -1.0 + before - potential(self.left)
        return self._seen(), reward, won, not won and len(self.moves) >= MOVES, {}


def learned(
    target: int, seed: int, limit_s: float, clock: Callable[[], float] = time.monotonic
) -> tuple[Scheme, list[dict[str, float]]]:
    """The best scheme of 2×2 that PPO's games came to, and the curve: moves per game over steps. Without a won game
    it is the definition's. Learning ends at rank `target` or after `limit_s` seconds."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    games: list[TensorGame] = []

    def made() -> TensorGame:
        games.append(TensorGame())
        return games[-1]

    def best() -> list[tuple[int, int, int]] | None:
        return min((game.best for game in games if game.best is not None), key=len, default=None)

    class Watch(BaseCallback):
        """Ends the learning, and keeps the curve."""

        def _on_step(self) -> bool:
            found = best()
            return clock() - began < limit_s and not (found is not None and len(found) <= target)

        def _on_rollout_end(self) -> None:
            kept = list(self.model.ep_info_buffer or ())
            if kept:
                mean = {key: round(float(np.mean([info[key] for info in kept])), 3) for key in ("r", "l")}
                curve.append({"steps": self.num_timesteps, "reward": mean["r"], "moves": mean["l"]})

    from stable_baselines3.common.monitor import Monitor

    curve: list[dict[str, float]] = []
    began = clock()
    worlds = DummyVecEnv([lambda: Monitor(made()) for _ in range(8)])
    model = PPO(
        "MlpPolicy", worlds, seed=seed, n_steps=256, batch_size=256, n_epochs=4, gamma=1.0, ent_coef=0.02,
        learning_rate=1e-3, policy_kwargs={"net_arch": [128, 128]}, device="cpu",
    )  # fmt: skip
    watch = Watch()
    model.learn(10**9, callback=watch)
    origin = {
        "method": "PPO on the tensor game", "seed": seed, "seconds": round(clock() - began, 3),
        "steps": model.num_timesteps,
    }  # fmt: skip
    moves = best()
    if moves is None:
        return definition(FORMAT, "GF(2)"), curve
    bits = [[move[axis] for move in moves] for axis in range(3)]
    return check(unpacked(FORMAT, bits, origin)), curve
