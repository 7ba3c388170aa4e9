"""Scheduling policies, as `nightshift policy train | evaluate scheduling` makes and judges them.

MaskablePPO of sb3-contrib (Huang and Ontañón, 2020, arXiv:2006.14171) on `environment.SchedulingEnv`. Evaluated on
traces in the same run as the baseline and the heuristic; what wins is what `evaluate` says, and that is what ships.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from nightshift.controllers.lab.learnable import environment_sha256, exported, normaliser
from nightshift.controllers.lab.scheduling import trace
from nightshift.controllers.lab.scheduling.environment import ACTIONS, FEATURES, WAIT, QueueChoice
from nightshift.controllers.lab.scheduling.simulate import SchedulingWorld, Simulation
from nightshift.controllers.policy_file import Interface, Network, Normaliser, PolicyFile
from nightshift.controllers.scheduling.cluster import F8
from nightshift.controllers.scheduling.policies import Policy, Steering, backfill
from nightshift.controllers.scheduling.state import QueueState

INTERFACE = Interface("scheduling", FEATURES, ACTIONS)
STEPS = 1_000_000
LOADS = (0.6, 0.9, 1.2)
_KEPT = ("mean_jct_s", "p99_wait_s", "longest_wait_s")
SOURCES = (
    "lab/scheduling/environment.py",
    "lab/scheduling/simulate.py",
    "scheduling/cluster.py",
    "scheduling/interference.py",
    "scheduling/predict.py",
    "lab/scheduling/trace.py",
    "scheduling/policies.py",
    "lab/scheduling/ramp.py",
    "scheduling/state.py",
    "lab/scheduling/twin.py",
)
"""Of what it is trained in (a test holds it complete)."""


@dataclass
class LearnedQueue:
    """A network's greedy choice, start after start, among the first K of the queue. `late_first`: it has no choice
    while somebody can start whom the baseline would have started."""

    network: Network
    late_first: bool = False

    def __call__(self, state: QueueState) -> None:
        order = Steering()
        while state.queue:
            choice = QueueChoice(state, order)
            if not choice.mask[:WAIT].any():
                return
            late = choice.mask & choice.late
            mask = late if self.late_first and late.any() else choice.mask
            logits = np.where(mask, self.network.logits(choice.features[None])[0], -np.inf)
            action = int(logits.argmax())
            if action == WAIT:
                return
            choice.carry_out(state, action)


class SchedulingLearnable:
    """See `controllers.lab.learnable.Learnable`."""

    @property
    def interface(self) -> Interface:
        return INTERFACE

    def train(self, seed: int, steps: int | None, say: Callable[[str], None]) -> PolicyFile:
        import torch
        from gymnasium.wrappers import TransformObservation
        from sb3_contrib import MaskablePPO
        from stable_baselines3.common.callbacks import BaseCallback

        from nightshift.controllers.lab.scheduling.environment import SchedulingEnv

        total = steps or STEPS
        # sums over threads come in any order: the same seed would not give the same policy
        torch.set_num_threads(1)
        scale = _normaliser(SchedulingEnv(seed + 1))
        raw = SchedulingEnv(seed)
        env = TransformObservation(
            raw, lambda o: scale(np.asarray(o, float)).astype(np.float32), raw.observation_space
        )

        class Progress(BaseCallback):
            def _on_step(self) -> bool:
                return True

            def _on_rollout_end(self) -> None:
                say(f"{self.num_timesteps}/{total} steps")

        model = MaskablePPO(
            "MlpPolicy",
            env,
            n_steps=1024,
            batch_size=256,
            # what a start costs shows hundreds of steps later
            gamma=0.999,
            ent_coef=0.005,
            policy_kwargs={"net_arch": [64, 64]},
            seed=seed,
            device="cpu",
        )
        model.learn(total, callback=Progress())
        training = {
            "algorithm": "MaskablePPO",
            "environment_sha256": environment_sha256(SOURCES),
            "seeds": [seed],
            "steps": int(model.num_timesteps),
            "data": "drawn traces",
        }
        return PolicyFile("scheduling-ppo", INTERFACE, exported(model, scale), training, {})

    def evaluate(self, policy: PolicyFile | None, data: Sequence[Path], seeds: Sequence[int]) -> Mapping[str, Any]:
        """Rows by trace, load and policy: each figure over FIFO with backfill's on the same jobs, mean over the
        seeds, and of the mean completion time its 95 % interval. Without files: drawn traces."""
        runs: dict[str, Callable[[], Policy]] = {"steering": Steering}
        if policy is not None:
            network = policy.network
            runs["learned"] = lambda: LearnedQueue(network)
        traces = {path.stem: trace.read(path) for path in data} or {"drawn": trace.draw(400, 77)}
        rows: list[dict[str, Any]] = []
        for name, jobs in traces.items():
            for load in LOADS:
                ratios: dict[str, list[list[float]]] = {run: [] for run in runs}
                for seed in seeds:
                    part = trace.at_load(trace.without_part(jobs, seed, max(len(seeds), 5)), 64, load)
                    base = Simulation(part, SchedulingWorld(), seed).run(backfill).figures()
                    for run, make in runs.items():
                        mine = Simulation(part, SchedulingWorld(), seed, twin=True).run(make()).figures()
                        ratios[run].append([mine[key] / max(base[key], 1.0) for key in _KEPT])
                for run, each in ratios.items():
                    table = np.asarray(each)
                    about = {"trace": name, "load": load, "policy": run, "seeds": len(seeds)}
                    means = {key: round(float(value), 4) for key, value in zip(_KEPT, table.mean(0), strict=True)}
                    rows.append({**about, **means, "mean_jct_95": _interval(table[:, 0])})
        return {"over": "FIFO with backfill", "rows": rows}


def _interval(values: F8) -> list[float] | None:
    """95 % t interval of the mean; None of one value."""
    if len(values) < 2:
        return None
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)
    return [round(float(values.mean()) - half, 4), round(float(values.mean()) + half, 4)]


def _normaliser(env: Any) -> Normaliser:
    """Mean and spread of each feature under random actions."""
    random = np.random.default_rng(0)
    rows = [env.reset(seed=0)[0]]
    for _ in range(3000):
        # among what is allowed: a masked action raises
        observation, _, ended, _, _ = env.step(int(random.choice(np.flatnonzero(env.action_masks()))))
        rows.append(env.reset()[0] if ended else observation)
    return normaliser(np.asarray(rows, float))


LEARNABLE = SchedulingLearnable()
