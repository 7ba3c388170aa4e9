"""The table that decides what ships: every controller on the same jobs, seeds and noise, with intervals.

The curves are measured sweeps; a policy was trained on synthetic ones only, so each is a GPU and a workload left
out. Beside the mean over all stand the groups: one GPU, one data set at a time. The heuristic has a few constants,
so it is judged once more with them chosen anew without the GPU, or the workload, that it is judged on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from nightshift.collectors.base import Permanent
from nightshift.controllers.policy_file import PolicyFile
from nightshift.controllers.power import descent
from nightshift.controllers.power.baselines import Descent, PlainDescent, Static, Zeus
from nightshift.controllers.power.belief import Bank, Ints
from nightshift.controllers.power.curves import Curve, Floats, read_sweeps, synthetic
from nightshift.controllers.power.features import apply, features
from nightshift.controllers.power.simulate import Controller, Score, ledgers

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


Contestants = Iterator[tuple[str, Callable[[], Controller]]]


def heuristics(bank: Bank) -> Contestants:
    for share in (0.7, 0.8, 0.9):
        yield f"static {share:.0%}", lambda share=share: Static(share)  # type: ignore[misc]
    yield "Zeus ZeusCost", lambda: Zeus(False)
    yield "Zeus MaxSlowdown", lambda: Zeus(True)
    yield "plain descent", PlainDescent
    yield "descent (ships)", lambda: Descent(bank)


def learned(policy: PolicyFile, bank: Bank) -> Contestants:
    yield "PPO, shielded", lambda: Learned(policy, bank)
    yield "PPO, unshielded", lambda: Learned(policy, bank, shielded=False)


def scored(
    policy: PolicyFile, data: Sequence[Path], seeds: Sequence[int], windows: int = 240
) -> list[dict[str, Any]]:
    """The rows of `evaluate` that a learned policy makes."""
    curves, bank = _curves(data), Bank.make()
    return [
        {"budget": budget, "controller": name, **summary([run.of() for run in runs])}
        for budget in BUDGETS
        for name, make in learned(policy, bank)
        for runs in [ledgers(curves, make(), budget, seeds, windows)]
    ]


CANDIDATES = tuple(
    descent.Care(sure=sure, stay_sure=sure - 0.2, surer=surer) for sure in (1.7, 1.9) for surer in (2.7, 3.0)
)
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
    for budget in BUDGETS:
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
    candidates: Sequence[descent.Care],
    bank: Bank,
    seeds: Sequence[int],
    windows: int,
) -> list[dict[str, Any]]:
    """Each group (by each of `keys`) judged with constants chosen on the other groups: the most saved, of those
    that meet the safety goals there. Per budget and kind one row over all groups."""
    found = []
    for budget in BUDGETS:
        runs = [ledgers(curves, Descent(bank, care), budget, seeds, windows) for care in candidates]
        for kind, names_of in keys.items():
            parts = _grouped(names_of)
            chosen = {}
            for group, mine in parts.items():
                others = [i for i in range(len(curves)) if i not in set(mine)]
                if not others:
                    raise Permanent(f"{kind}: only {group} is there, so it cannot be left out")
                scores = [summary([run.of(others) for run in many]) for many in runs]
                chosen[group] = max(range(len(candidates)), key=lambda k: _rank(scores[k]))
            scored = []
            for seed in range(len(seeds)):
                parts_of = [(runs[chosen[group]][seed].of(mine), len(mine)) for group, mine in parts.items()]
                scored.append(
                    Score(*(sum(getattr(s, f.name) * n for s, n in parts_of) / len(curves) for f in fields(Score)))
                )
            names = {g: asdict(candidates[k]) for g, k in chosen.items()}
            constants = {g: {x: c[x] for x in ("sure", "surer")} for g, c in names.items()}
            found.append({"budget": budget, "left out": kind, "constants": constants, **summary(scored)})
    return found


def _rank(row: Mapping[str, Any]) -> tuple[bool, float]:
    safe = row["over"] <= OVER and row["beyond"] <= BEYOND
    return safe, row["of_oracle"] if safe else -row["over"] - 10.0 * row["beyond"]


def _grouped(names: Sequence[str]) -> dict[str, list[int]]:
    return {group: [i for i, name in enumerate(names) if name == group] for group in sorted(set(names))}


def summary(scores: Sequence[Score]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name in asdict(scores[0]):
        found[name] = round(float(np.mean([getattr(s, name) for s in scores])), 6)
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
