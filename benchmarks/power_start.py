"""How far down a job's limit goes at its start: the rule that ships beside a contextual bandit and each fixed
choice.

    python -m benchmarks.power_start SWEEP.csv …

After its windows at the reference a job takes a first step down, of as many levels as the shield lets it and at
most `leap`. Which `leap` is what a bandit may choose, knowing the job's draw at the reference, its GPU's lowest
limit and its budget. A choice moves little but the first hour, so that is what is judged: node energy per work
saved, less `PRICE` for the share of windows over the budget.

The bandit: one Bayesian linear model an arm, whose prior is fitted on made-up curves, and inverse gap weighting
(D. Foster, A. Rakhlin, "Beyond UCB: Optimal and Efficient Contextual Bandits with Regression Oracles", ICML 2020),
so that each choice's propensity is exact. It meets the jobs of the sweeps once each, in an order drawn by seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import write
from nightshift.controllers.lab.power.learn import JUDGED_BUDGETS, Descent, interval
from nightshift.controllers.lab.power.simulate import ledgers, lowest_levels
from nightshift.controllers.lab.power.sweeps import read_sweeps
from nightshift.controllers.power import descent
from nightshift.controllers.power.belief import TOP, Bank
from nightshift.controllers.power.curves import LEVELS, Curve, Floats, on_levels, synthetic

LEAPS = (1, 3, 6)
WINDOWS = 120
PRICE = 1.0
GAMMA = 200.0
"""How greedy: a gap of half a point of node energy halves an arm's chance."""


@dataclass(eq=False)
class Bandit:
    """Per arm the precision [k, q, q] and the precision times the mean [k, q] of its weights."""

    precision: Floats
    toward: Floats

    @classmethod
    def prior(cls, context: Floats, reward: Floats, worth: float = 20.0) -> Bandit:
        """From `context` [n, q] and what each arm was worth there [k, n]; counts as so many jobs."""
        gram = context.T @ context * worth / len(context)
        toward = reward @ context * worth / len(context)
        ridge = 1e-3 * np.eye(context.shape[1])
        return cls(np.repeat((gram + ridge)[None], len(reward), 0), toward)

    def chances(self, context: Floats) -> Floats:
        """Propensity of each arm [k] for one job [q]."""
        expected = np.linalg.solve(self.precision, self.toward[:, :, None])[:, :, 0] @ context
        best, k = int(expected.argmax()), len(expected)
        chance = 1.0 / (k + GAMMA * (expected[best] - expected))
        chance[best] = 0.0
        chance[best] = 1.0 - chance.sum()
        return np.asarray(chance)

    def learn(self, arm: int, context: Floats, reward: float) -> None:
        self.precision[arm] += np.outer(context, context)
        self.toward[arm] += reward * context


def contexts(curves: Sequence[Curve], budget: float) -> Floats:
    """[n, q]: what is known when the first step is taken."""
    drawn = on_levels(curves)[1][:, TOP]
    lowest = LEVELS[lowest_levels(curves)]
    return np.column_stack(
        [np.ones(len(curves)), drawn, lowest, drawn * (drawn > lowest), np.full(len(curves), budget)]
    )


def outcomes(curves: Sequence[Curve], budget: float, seeds: Sequence[int], bank: Bank) -> Floats:
    """[leaps, seeds, jobs, (node energy saved, over, beyond)]."""
    found = []
    for leap in LEAPS:
        runs = ledgers(curves, Descent(bank, descent.DescentCare(leap=leap)), budget, seeds, WINDOWS)
        found.append([np.column_stack([one.node_saved, one.over, one.beyond]) for one in runs])
    return np.array(found)


def compare(curves: Sequence[Curve], budget: float, seeds: Sequence[int], bank: Bank) -> dict[str, Any]:
    made_up = synthetic(200, np.random.default_rng(98))
    before = outcomes(made_up, budget, (0,), bank)[:, 0]
    seen, table = contexts(curves, budget), outcomes(curves, budget, seeds, bank)
    reward = table[..., 0] - PRICE * table[..., 1]
    runs: dict[str, list[Floats]] = {f"leap {leap}": list(table[k].mean(1)) for k, leap in enumerate(LEAPS)}
    every = np.arange(len(curves))
    runs["best of each job, in hindsight"] = [
        table[reward[:, s].argmax(0), s, every].mean(0) for s in range(len(seeds))
    ]
    runs["bandit"], least = [], 1.0
    for s, seed in enumerate(seeds):
        rng = np.random.default_rng(seed)
        bandit = Bandit.prior(contexts(made_up, budget), before[..., 0] - PRICE * before[..., 1])
        got = []
        for job in rng.permutation(len(curves)):
            chance = bandit.chances(seen[job])
            arm = int(rng.choice(len(LEAPS), p=chance))
            least = min(least, float(chance[arm]))
            bandit.learn(arm, seen[job], float(reward[arm, s, job]))
            got.append(table[arm, s, job])
        runs["bandit"].append(np.mean(got, 0))
    found: dict[str, Any] = {"least propensity executed": round(least, 4)}
    for name, scores in runs.items():
        worth = [float(x[0] - PRICE * x[1]) for x in scores]
        saved, over, beyond = np.mean(scores, 0)
        found[name] = {
            "worth": round(float(np.mean(worth)), 5),
            "worth_95": [round(x, 5) for x in interval(worth)],
            "node_saved": round(float(saved), 5),
            "over": round(float(over), 5),
            "beyond": round(float(beyond), 6),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sweeps", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    curves = [c for path in given.sweeps for c in read_sweeps(path)]
    bank = Bank.make()
    budgets = {f"{budget:.0%}": compare(curves, budget, range(given.seeds), bank) for budget in JUDGED_BUDGETS}
    write("power_start", {"curves": len(curves), "seeds": given.seeds, "windows": WINDOWS, "budgets": budgets})


if __name__ == "__main__":
    main()
