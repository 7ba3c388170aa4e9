"""Power policies, as `nightshift policy train | evaluate` makes and judges them.

PPO (J. Schulman et al., 2017) of stable-baselines3 on `environment.PowerEnv`: synthetic curves only, so every
measured sweep is one that it never saw. What is written is the policy network's weights and the normaliser, nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nightshift.controllers.drift import ranges
from nightshift.controllers.learnable import environment_sha256, exported, normaliser
from nightshift.controllers.policy_file import Interface, Normaliser, PolicyFile
from nightshift.controllers.power.belief import Bank
from nightshift.controllers.power.features import FEATURES, INTERFACE

STEPS = 600_000
JOBS = 128
TRAIN_BANK = 256
_SOURCES = ("learn.py", "environment.py", "features.py", "descent.py", "belief.py", "curves.py")


class PowerLearnable:
    """See `controllers.learnable.Learnable`."""

    @property
    def interface(self) -> Interface:
        return INTERFACE

    def train(self, seed: int, steps: int | None, say: Callable[[str], None]) -> PolicyFile:
        import torch
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback

        from nightshift.controllers.power.environment import PowerEnv

        total = steps or STEPS
        torch.set_num_threads(1)
        bank = Bank.make(TRAIN_BANK)
        scale = _normaliser(PowerEnv(JOBS, seed + 1, bank=bank))
        env = PowerEnv(JOBS, seed, bank=bank, normaliser=scale)

        class Progress(BaseCallback):
            def _on_step(self) -> bool:
                return True

            def _on_rollout_end(self) -> None:
                say(f"{self.num_timesteps}/{total} steps, price {env.price:.2f}, over {env.over_rate:.4f}")

        model = PPO(
            "MlpPolicy",
            env,
            learning_rate=1e-3,
            n_steps=60,
            batch_size=1920,
            n_epochs=5,
            gamma=0.97,
            gae_lambda=0.9,
            ent_coef=0.003,
            policy_kwargs={"net_arch": [64, 64]},
            seed=seed,
            device="cpu",
        )
        model.learn(total, callback=Progress())
        training = {
            "algorithm": "PPO",
            "environment_sha256": environment_sha256(Path(__file__).parent, _SOURCES),
            "seeds": [seed],
            "steps": int(model.num_timesteps),
            "data": "synthetic curves",
            "envelope": ranges(FEATURES, np.concatenate(env.kept)),
        }
        return PolicyFile("power-ppo", INTERFACE, exported(model, scale), training, {})

    def evaluate(self, policy: PolicyFile | None, data: Sequence[Path], seeds: Sequence[int]) -> Mapping[str, Any]:
        from nightshift.controllers.power.evaluate import evaluate

        return evaluate(policy, data, seeds)


def _normaliser(env: Any) -> Normaliser:
    """Middle and spread of each feature under random actions, over every budget of training: of one alone the
    budget has no spread, and every other is clipped to the same number."""
    from nightshift.controllers.power.environment import BUDGETS

    rng, rows = np.random.default_rng(0), []
    for budget in BUDGETS:
        env.reset(budget)
        seen = [env.step(rng.integers(0, env.action_space.n, env.num_envs))[0] for _ in range(60)]
        rows += seen[4:]
    return normaliser(np.concatenate(rows), robust=True)


LEARNABLE = PowerLearnable()
