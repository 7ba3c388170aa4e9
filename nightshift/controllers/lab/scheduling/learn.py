"""Scheduling policies, as `nightshift policy train | evaluate scheduling` makes and judges them.

MaskablePPO of sb3-contrib (Huang and Ontañón, 2020, arXiv:2006.14171) on `SchedulingEnv`. Evaluated on
traces in the same run as the baseline and the heuristic; what wins is what `evaluate` says, and that is what ships.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from scipy import stats

from nightshift.controllers.lab.learnable import environment_sha256, exported, normaliser, rollout_report
from nightshift.controllers.lab.scheduling import trace
from nightshift.controllers.lab.scheduling.simulate import SchedulingWorld, Simulation
from nightshift.controllers.policy_file import Interface, Network, Normaliser, PolicyFile
from nightshift.controllers.scheduling.cluster import F8, I8
from nightshift.controllers.scheduling.policies import Policy, Steering, backfill
from nightshift.controllers.scheduling.state import QueueState

K = 8
PER_JOB = ("guess", "width", "waited", "alone", "shared", "late", "there")
OVERALL = ("free", "running", "queue", "closed")
FEATURES = tuple(f"{name}_{place}" for place in range(K) for name in PER_JOB) + OVERALL
ACTIONS = (*(f"start_{place}" for place in range(K)), "wait")
WAIT = K
INTERFACE = Interface("scheduling", FEATURES, ACTIONS)
STEPS = 1_000_000
LOADS = (0.6, 0.9, 1.2)
_KEPT = ("mean_jct_s", "p99_wait_s", "longest_wait_s")
SOURCES = (
    "lab/scheduling/learn.py",
    "lab/scheduling/simulate.py",
    "scheduling/cluster.py",
    "scheduling/interference.py",
    "scheduling/predict.py",
    "lab/scheduling/trace.py",
    "scheduling/policies.py",
    "scheduling/state.py",
    "lab/scheduling/twin.py",
)
"""Of what it is trained in (a test holds it complete)."""


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
    """Which of the first K of the queue starts now, or nobody. `jobs`: of an episode.

        env = SchedulingEnv(seed=1)
        observation, info = env.reset(seed=1)
        observation, reward, terminated, truncated, info = env.step(int(env.action_masks().argmax()))

    The queue is shown in our heuristic's order, so action 0 is what the heuristic would try first; a job that can
    sit nowhere, alone or shared, is masked, and so is waiting while nothing runs. Episodes are drawn traces at
    drawn loads: no measured trace is ever trained on. The reward is minus the time that jobs spent in the system
    since the last step, in mean durations: its sum is minus the mean completion time.
    """

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

    def train(
        self, seed: int, steps: int | None, say: Callable[[str], None], data: Sequence[Path] = ()
    ) -> PolicyFile:
        import torch
        from gymnasium.wrappers import TransformObservation
        from sb3_contrib import MaskablePPO

        total = steps or STEPS
        # sums over threads come in any order: the same seed would not give the same policy
        torch.set_num_threads(1)
        scale = _normaliser(SchedulingEnv(seed + 1))
        raw = SchedulingEnv(seed)
        env = TransformObservation(
            raw, lambda o: scale(np.asarray(o, float)).astype(np.float32), raw.observation_space
        )

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
        model.learn(total, callback=rollout_report(lambda: say(f"{model.num_timesteps}/{total} steps")))
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
