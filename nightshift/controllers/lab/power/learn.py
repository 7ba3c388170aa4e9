"""Power policies, as `nightshift policy train | evaluate` makes and judges them.

PPO (J. Schulman et al., 2017) of stable-baselines3 on `environment.PowerEnv`: synthetic curves only, so every
measured sweep is one that it never saw. What is written is the policy network's weights and the normaliser, nothing
else.

A table decides what ships: every controller on the same jobs, seeds and noise, with intervals.

The curves are measured sweeps; a policy was trained on synthetic ones only, so each is a GPU and a workload left
out. Beside the mean over all stand the groups: one GPU, one data set at a time. The heuristic has a few constants,
so it is judged once more with them chosen anew without the GPU, or the workload, that it is judged on.

A learned policy has to beat: static caps, Zeus's selectors, plain descent, the shipped heuristic.

Zeus: J. You et al., "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training", NSDI 2023; the two
selectors are written from `zeus/optimizer/power_limit.py` of ml-energy/zeus: every limit of a 25 W grid is profiled
from the highest down for one window, then one is chosen for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from nightshift.collectors.base import Permanent
from nightshift.controllers.drift import ranges
from nightshift.controllers.lab.learnable import environment_sha256, exported, normaliser, rollout_report
from nightshift.controllers.lab.power.simulate import Controller, PowerScore, ledgers
from nightshift.controllers.lab.power.sweeps import read_sweeps
from nightshift.controllers.policy_file import Interface, Normaliser, PolicyFile
from nightshift.controllers.power import descent
from nightshift.controllers.power.belief import TOP, Bank, Ints
from nightshift.controllers.power.curves import LEVELS, Curve, Floats, synthetic
from nightshift.controllers.power.features import FEATURES, INTERFACE, apply, features

GRID = 0.1
"""25 W of a GPU of 250 W: the step of Zeus's profiling, as a share of the highest limit."""


@dataclass
class Static:
    """The same share of the highest limit for every job, as an administrator sets it."""

    share: float
    lowest: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def start(self, lowest: Ints, budget: float, rng: np.random.Generator) -> Ints:
        self.lowest = np.maximum(lowest, int(np.searchsorted(LEVELS, self.share - 1e-9)))
        return self.lowest

    def step(self, level: Ints, speed: Floats, draw: Floats) -> Ints:
        return self.lowest


@dataclass
class Zeus:
    """Profiles the grid downwards, then keeps what its selector chose.

    Not `constrained`: ZeusCost, least eta·energy + (1-eta)·highest limit·time; else MaxSlowdownConstraint: the
    lowest limit whose measured slowdown is within the budget.
    """

    constrained: bool
    eta: float = 0.5
    chosen: Ints | None = None
    budget: float = 0.05

    def start(self, lowest: Ints, budget: float, rng: np.random.Generator) -> Ints:
        steps = np.arange(0, 1 - LEVELS[0], GRID)
        grid = np.round((1.0 - steps[None] - LEVELS[0]) * 100).astype(np.int64)
        self.grid = np.where(grid >= lowest[:, None], grid, -1)
        self.budget, self.at = budget, 0
        self.speed = np.full(self.grid.shape, np.nan)
        self.draw = np.full(self.grid.shape, np.nan)
        return np.full(len(lowest), TOP)

    def step(self, level: Ints, speed: Floats, draw: Floats) -> Ints:
        if self.chosen is not None:
            return self.chosen
        real = self.grid[:, self.at] >= 0
        self.speed[real, self.at], self.draw[real, self.at] = speed[real], draw[real]
        self.at += 1
        if self.at < self.grid.shape[1] and (self.grid[:, self.at] >= 0).any():
            return np.where(self.grid[:, self.at] >= 0, self.grid[:, self.at], level)
        if self.constrained:
            fits = self.speed >= self.speed[:, :1] / (1.0 + self.budget)
            pick = np.where(fits, np.arange(self.grid.shape[1])[None], -1).max(1)
        else:
            cost = (self.eta * self.draw + (1.0 - self.eta)) / self.speed
            pick = np.nanargmin(cost, 1)
        self.chosen = np.asarray(self.grid[np.arange(len(level)), np.maximum(pick, 0)])
        return self.chosen


@dataclass
class PlainDescent:
    """Five levels down after every three windows while the measured slowdown is within the budget; else back up,
    and that is it. What a careful engineer writes first."""

    stride: int = 5
    dwell: int = 3

    def start(self, lowest: Ints, budget: float, rng: np.random.Generator) -> Ints:
        n = len(lowest)
        self.lowest, self.budget = lowest, budget
        self.level = np.full(n, TOP)
        self.sum, self.count, self.reference = np.zeros(n), 0, np.full(n, np.nan)
        self.done = np.zeros(n, dtype=bool)
        return self.level

    def step(self, level: Ints, speed: Floats, draw: Floats) -> Ints:
        self.sum += speed
        self.count += 1
        if self.count < self.dwell:
            return self.level
        mean = self.sum / self.count
        self.sum, self.count = np.zeros(len(level)), 0
        first = np.isnan(self.reference)
        self.reference = np.where(first, mean, self.reference)
        slow = self.reference / mean - 1.0
        back = ~self.done & (slow > self.budget)
        self.done |= back
        down = np.maximum(self.level - self.stride, self.lowest)
        self.level = np.where(
            back, np.minimum(self.level + self.stride, TOP), np.where(self.done, self.level, down)
        )
        return self.level


@dataclass
class Descent:
    """The heuristic of `descent`, as a controller of simulated jobs. `former`: the same workloads' run before."""

    bank: Bank
    care: descent.DescentCare = field(default_factory=descent.DescentCare)
    former: descent.Jobs | None = None

    def start(self, lowest: Ints, budget: float, rng: np.random.Generator) -> Ints:
        self.now = replace(self.care, budget=budget)
        self.jobs = descent.Jobs.start(lowest) if self.former is None else self.former.again(self.now)
        return self.jobs.home.copy()

    def step(self, level: Ints, speed: Floats, draw: Floats) -> Ints:
        return descent.decide(self.jobs, level, speed, draw, self.bank, self.now)


JUDGED_BUDGETS = (0.03, 0.05)
GOALS = {0.05: 0.90, 0.03: 0.80}
"""Share of the 25 W-grid oracle's GPU energy to be saved, by budget."""
OVER, BEYOND = 0.005, 0.0


@dataclass
class LearnedPower:
    """A policy network as a controller, its most probable action, behind the shield or without it."""

    policy: PolicyFile
    bank: Bank
    shielded: bool = True

    def start(self, lowest: Ints, budget: float, rng: np.random.Generator) -> Ints:
        self.care = descent.DescentCare(budget=budget)
        self.jobs = descent.Jobs.start(lowest)
        return self.jobs.home.copy()

    def step(self, level: Ints, speed: Floats, draw: Floats) -> Ints:
        seen = descent.look(self.jobs, level, speed, draw, self.bank, self.care)
        low, keep = descent.reachable(seen, self.jobs, self.care)
        found = np.nan_to_num(features(self.jobs, seen, low, self.care), posinf=10.0, neginf=-10.0)
        action = self.policy.network.logits(found).argmax(1)
        return apply(self.jobs, action, low if self.shielded else None, keep, self.care)


Contestants = Iterator[tuple[str, Callable[[], Controller]]]


def heuristics(bank: Bank) -> Contestants:
    for share in (0.7, 0.8, 0.9):
        yield f"static {share:.0%}", lambda share=share: Static(share)  # type: ignore[misc]
    yield "Zeus ZeusCost", lambda: Zeus(False)
    yield "Zeus MaxSlowdown", lambda: Zeus(True)
    yield "plain descent", PlainDescent
    yield "descent (ships)", lambda: Descent(bank)


def learned(policy: PolicyFile, bank: Bank) -> Contestants:
    yield "PPO, shielded", lambda: LearnedPower(policy, bank)
    yield "PPO, unshielded", lambda: LearnedPower(policy, bank, shielded=False)


def scored(
    policy: PolicyFile, data: Sequence[Path], seeds: Sequence[int], windows: int = 240
) -> list[dict[str, Any]]:
    """The rows of `evaluate` that a learned policy makes."""
    curves, bank = _curves(data), Bank.make()
    return [
        {"budget": budget, "controller": name, **summary([run.of() for run in runs])}
        for budget in JUDGED_BUDGETS
        for name, make in learned(policy, bank)
        for runs in [ledgers(curves, make(), budget, seeds, windows)]
    ]


CANDIDATES = tuple(descent.DescentCare(sure=sure, surer=surer) for sure in (1.4, 1.6) for surer in (2.3, 3.0))
"""Constants among which a left-out evaluation chooses."""


def evaluate(
    policy: PolicyFile | None,
    data: Sequence[Path],
    seeds: Sequence[int],
    windows: int = 240,
) -> dict[str, Any]:
    """`data`: sweep files (none: 200 synthetic curves). Rows by budget and controller; groups for what ships."""
    if not seeds:
        raise Permanent("seeds: none given")
    made_up, curves, bank = _made_up(), _curves(data), Bank.make()
    keys = labels(curves)
    rows, groups, unseen = [], [], []
    for budget in JUDGED_BUDGETS:
        for name, make in heuristics(bank):
            runs = ledgers(curves, make(), budget, seeds, windows)
            rows.append({"budget": budget, "controller": name, **summary([run.of() for run in runs])})
            if data and name == "descent (ships)":
                groups += [
                    {"budget": budget, kind: group, "curves": len(mine), **summary([r.of(mine) for r in runs])}
                    for kind in ("gpu", "data set")
                    for group, mine in _grouped(keys[kind]).items()
                ]
        if data:
            runs = ledgers(made_up, Descent(bank), budget, seeds, windows)
            unseen.append({"budget": budget, "left out": "synthetic", **summary([run.of() for run in runs])})
    if policy is not None:
        rows += scored(policy, data, seeds, windows)
    return {
        "curves": len(curves),
        "seeds": list(seeds),
        "windows": windows,
        "rows": rows,
        "descent_by_group": groups,
        "left_out": unseen,
    }


def _made_up() -> list[Curve]:
    return synthetic(200, np.random.default_rng(99))


def _curves(data: Sequence[Path]) -> list[Curve]:
    return [c for path in data for c in read_sweeps(path)] or _made_up()


def labels(curves: Sequence[Curve]) -> dict[str, list[str]]:
    """By what curves are grouped."""
    return {
        "gpu": [c.gpu for c in curves],
        "data set": [c.workload.split("/")[0] for c in curves],
        "workload": ["/".join(c.workload.split("/")[:2]) for c in curves],
    }


def left_out(
    curves: Sequence[Curve],
    keys: Mapping[str, Sequence[str]],
    candidates: Sequence[descent.DescentCare],
    bank: Bank,
    seeds: Sequence[int],
    windows: int,
) -> list[dict[str, Any]]:
    """Each group (by each of `keys`) judged with constants chosen on the other groups: the most saved, of those
    that meet the safety goals there. Per budget and kind one row over all groups."""
    found = []
    for budget in JUDGED_BUDGETS:
        runs = [ledgers(curves, Descent(bank, care), budget, seeds, windows) for care in candidates]
        for kind, names_of in keys.items():
            parts = _grouped(names_of)
            chosen = {}
            for group, mine in parts.items():
                # constants are chosen on the rest alone: chosen on all they would know the group that they are
                # judged on
                others = [i for i in range(len(curves)) if i not in set(mine)]
                if not others:
                    raise Permanent(f"{kind}: only {group} is present, so it cannot be excluded")
                scores = [summary([run.of(others) for run in many]) for many in runs]
                chosen[group] = max(range(len(candidates)), key=lambda k: _rank(scores[k]))
            scored = []
            for seed in range(len(seeds)):
                scored.append(_pooled([(runs[chosen[g]][seed].of(mine), len(mine)) for g, mine in parts.items()]))
            names = {g: asdict(candidates[k]) for g, k in chosen.items()}
            constants = {g: {x: c[x] for x in ("sure", "surer")} for g, c in names.items()}
            found.append({"budget": budget, "left out": kind, "constants": constants, **summary(scored)})
    return found


def _pooled(scores: Sequence[tuple[PowerScore, int]]) -> PowerScore:
    """The mean over all jobs of groups of so many."""
    jobs = sum(n for _, n in scores)
    return PowerScore(*(sum(getattr(s, f.name) * n for s, n in scores) / jobs for f in fields(PowerScore)))


def _rank(row: Mapping[str, Any]) -> tuple[bool, float]:
    safe = row["over"] <= OVER and row["beyond"] <= BEYOND
    return safe, row["of_oracle"] if safe else -row["over"] - 10.0 * row["beyond"]


def _grouped(names: Sequence[str]) -> dict[str, list[int]]:
    return {group: [i for i, name in enumerate(names) if name == group] for group in sorted(set(names))}


def summary(scores: Sequence[PowerScore]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name in asdict(scores[0]):
        found[name] = round(float(np.mean([getattr(s, name) for s in scores])), 6)
    share = [s.of_oracle for s in scores]
    found["of_oracle"] = round(float(np.mean(share)), 4)
    found["of_oracle_95"] = [round(x, 4) for x in interval(share)]
    found["over_95"] = [round(x, 5) for x in interval([s.over for s in scores])]
    found["node_saved_95"] = [round(x, 5) for x in interval([s.node_saved for s in scores])]
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of the mean over seeds."""
    from scipy.stats import t

    mean, n = float(np.mean(values)), len(values)
    half = float(t.ppf(0.975, n - 1)) * float(np.std(values, ddof=1)) / n**0.5 if n > 1 else float("nan")
    return mean - half, mean + half


def meets(row: Mapping[str, Any]) -> bool:
    """Whether a row meets the goal of its budget."""
    return bool(row["of_oracle"] >= GOALS[row["budget"]] and row["over"] <= OVER and row["beyond"] <= BEYOND)


STEPS = 600_000
JOBS = 128
TRAIN_BANK = 256
SOURCES = (
    "lab/power/learn.py",
    "lab/power/environment.py",
    "power/features.py",
    "power/descent.py",
    "power/belief.py",
    "power/curves.py",
    "lab/power/sweeps.py",
)


class PowerLearnable:
    """See `controllers.lab.learnable.Learnable`."""

    @property
    def interface(self) -> Interface:
        return INTERFACE

    def train(
        self, seed: int, steps: int | None, say: Callable[[str], None], data: Sequence[Path] = ()
    ) -> PolicyFile:
        import torch
        from stable_baselines3 import PPO

        from nightshift.controllers.lab.power.environment import PowerEnv

        total = steps or STEPS
        # sums over threads come in any order: the same seed would not give the same policy
        torch.set_num_threads(1)
        bank = Bank.make(TRAIN_BANK)
        scale = _normaliser(PowerEnv(JOBS, seed + 1, bank=bank))
        env = PowerEnv(JOBS, seed, bank=bank, normaliser=scale)

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
        model.learn(
            total,
            callback=rollout_report(
                lambda: say(f"{model.num_timesteps}/{total} steps, price {env.price:.2f}, over {env.over_rate:.4f}")
            ),
        )
        training = {
            "algorithm": "PPO",
            "environment_sha256": environment_sha256(SOURCES),
            "seeds": [seed],
            "steps": int(model.num_timesteps),
            "data": "synthetic curves",
            "envelope": ranges(FEATURES, np.concatenate(env.kept)),
        }
        return PolicyFile("power-ppo", INTERFACE, exported(model, scale), training, {})

    def evaluate(self, policy: PolicyFile | None, data: Sequence[Path], seeds: Sequence[int]) -> Mapping[str, Any]:
        return evaluate(policy, data, seeds)


def _normaliser(env: Any) -> Normaliser:
    """Middle and spread of each feature under random actions, over every budget of training: of one alone the
    budget has no spread, and every other is clipped to the same number."""
    from nightshift.controllers.lab.power.environment import BUDGETS

    rng, rows = np.random.default_rng(0), []
    for budget in BUDGETS:
        env.reset(budget)
        seen = [env.step(rng.integers(0, env.action_space.n, env.num_envs))[0] for _ in range(60)]
        rows += seen[4:]
    return normaliser(np.concatenate(rows), robust=True)


LEARNABLE = PowerLearnable()
