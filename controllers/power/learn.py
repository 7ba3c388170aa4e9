"""Power policies, as `nightshift policy train | evaluate` makes and judges them.

PPO (J. Schulman et al., 2017) of stable-baselines3 on `environment.PowerEnv`: synthetic curves only, so every
measured sweep is one that it never saw. What is written is the policy network's weights and the normaliser, nothing
else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from controllers.policy_file import Interface, Network, Normaliser, PolicyFile
from controllers.power.belief import Bank
from controllers.power.features import INTERFACE

STEPS = 600_000
JOBS = 128
TRAIN_BANK = 256
_SOURCES = ("environment.py", "features.py", "descent.py", "belief.py", "curves.py")


def environment_sha256() -> str:
    """Of the source text of everything that a policy is trained in."""
    state = hashlib.sha256()
    for name in _SOURCES:
        state.update(Path(__file__).with_name(name).read_bytes())
    return state.hexdigest()


class PowerLearnable:
    """See `controllers.learnable.Learnable`."""

    @property
    def interface(self) -> Interface:
        return INTERFACE

    def train(self, seed: int, steps: int | None, say: Callable[[str], None]) -> PolicyFile:
        import torch
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback

        from controllers.power.environment import PowerEnv

        total = steps or STEPS
        torch.set_num_threads(1)
        bank = Bank.make(TRAIN_BANK)
        normaliser = _normaliser(PowerEnv(JOBS, seed + 1, bank=bank))
        env = PowerEnv(JOBS, seed, bank=bank, normaliser=normaliser)

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
        weights = {name: w.detach().numpy().astype(np.float64) for name, w in model.policy.state_dict().items()}
        layers = [
            (weights[f"mlp_extractor.policy_net.{i}.weight"], weights[f"mlp_extractor.policy_net.{i}.bias"])
            for i in (0, 2)
        ]
        layers.append((weights["action_net.weight"], weights["action_net.bias"]))
        training = {
            "algorithm": "PPO",
            "environment_sha256": environment_sha256(),
            "seeds": [seed],
            "steps": int(model.num_timesteps),
            "data": "synthetic curves",
        }
        return PolicyFile("power-ppo", INTERFACE, Network(normaliser, tuple(layers)), training, {})

    def evaluate(self, policy: PolicyFile | None, data: Sequence[Path], seeds: Sequence[int]) -> Mapping[str, Any]:
        from controllers.power.evaluate import evaluate

        return evaluate(policy, data, seeds)


def _normaliser(env: Any) -> Normaliser:
    """Mean and spread of each feature under random actions."""
    rng = np.random.default_rng(0)
    rows = [env.reset()]
    for _ in range(60):
        rows.append(env.step(rng.integers(0, env.action_space.n, env.num_envs))[0])
    seen = np.concatenate(rows[5:]).astype(np.float64)
    middle = np.median(seen, axis=0)
    spread = (np.percentile(seen, 90, axis=0) - np.percentile(seen, 10, axis=0)) / 2.56
    return Normaliser(middle, np.maximum(spread, 1e-3), 5.0)


LEARNABLE = PowerLearnable()
