"""The table that decides what ships: every controller on the same jobs, seeds and noise, with intervals.

The curves are measured sweeps; a policy was trained on synthetic ones only, so each is a GPU and a workload left
out. Beside the mean over all stand the groups: one GPU, one data set at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collectors.base import Permanent
from controllers.policy_file import PolicyFile
from controllers.power import descent
from controllers.power.baselines import Descent, PlainDescent, Static, Zeus
from controllers.power.belief import Bank, Ints
from controllers.power.curves import Curve, Floats, read_sweeps, synthetic
from controllers.power.features import apply, features
from controllers.power.simulate import Controller, run

BUDGETS = (0.03, 0.05)
GOALS = {0.05: 0.90, 0.03: 0.80}
"""Share of the 25 W-grid oracle's GPU energy to be saved, by budget."""
OVER, BEYOND = 0.005, 0.0


@dataclass
class Learned:
    """A policy network as a controller, its most probable action, behind the shield or without it."""

    policy: PolicyFile
    bank: Bank
    shielded: bool = True

    def start(self, lowest: Ints, budget: float, rng: np.random.Generator) -> Ints:
        self.care = descent.Care(budget=budget)
        self.jobs = descent.Jobs.start(lowest)
        return self.jobs.home.copy()

    def step(self, level: Ints, speed: Floats, draw: Floats) -> Ints:
        seen = descent.look(self.jobs, level, speed, draw, self.bank, self.care)
        low, keep = descent.reachable(seen, self.jobs.home, self.jobs.lowest, self.care)
        found = np.nan_to_num(features(self.jobs, seen, low, self.care), posinf=10.0, neginf=-10.0)
        action = self.policy.network.logits(found).argmax(1)
        return apply(self.jobs, action, low if self.shielded else None, keep, self.care)


def contestants(policy: PolicyFile | None, bank: Bank) -> Iterator[tuple[str, Callable[[], Controller]]]:
    for share in (0.7, 0.8, 0.9):
        yield f"static {share:.0%}", lambda share=share: Static(share)  # type: ignore[misc]
    yield "Zeus ZeusCost", lambda: Zeus(False)
    yield "Zeus MaxSlowdown", lambda: Zeus(True)
    yield "plain descent", PlainDescent
    yield "descent (ships)", lambda: Descent(bank)
    if policy is not None:
        yield "PPO, shielded", lambda: Learned(policy, bank)
        yield "PPO, unshielded", lambda: Learned(policy, bank, shielded=False)


def evaluate(
    policy: PolicyFile | None, data: Sequence[Path], seeds: Sequence[int], windows: int = 240
) -> dict[str, Any]:
    """`data`: sweep files (none: 200 synthetic curves). Rows by budget and controller; groups for what ships."""
    if not seeds:
        raise Permanent("seeds: none given")
    curves = [c for path in data for c in read_sweeps(path)] or synthetic(200, np.random.default_rng(99))
    bank = Bank.make()
    rows, groups = [], []
    for budget in BUDGETS:
        for name, make in contestants(policy, bank):
            rows.append({"budget": budget, "controller": name, **_summary(curves, make, budget, seeds, windows)})
        kinds = (("gpu", [c.gpu for c in curves]), ("data set", [c.workload.split("/")[0] for c in curves]))
        for kind, keys in kinds if data else ():
            for group in sorted(set(keys)):
                few = [c for c, key in zip(curves, keys, strict=True) if key == group]
                found = _summary(few, lambda: Descent(bank), budget, seeds[:2], windows)
                groups.append({"budget": budget, kind: group, "curves": len(few), **found})
    return {
        "curves": len(curves),
        "seeds": list(seeds),
        "windows": windows,
        "rows": rows,
        "descent_by_group": groups,
    }


def _summary(
    curves: Sequence[Curve], make: Callable[[], Controller], budget: float, seeds: Sequence[int], windows: int
) -> Mapping[str, Any]:
    scores = [run(curves, make(), budget, seed, windows) for seed in seeds]
    found: dict[str, Any] = {}
    for name in asdict(scores[0]):
        found[name] = round(float(np.mean([getattr(s, name) for s in scores])), 5)
    share = [s.of_oracle for s in scores]
    found["of_oracle"] = round(float(np.mean(share)), 4)
    found["of_oracle_95"] = [round(x, 4) for x in interval(share)]
    found["over_95"] = [round(x, 5) for x in interval([s.over for s in scores])]
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
