"""How fast a search finds what an exhaustive sweep found, by replay on the measured tables: no GPU, no judge.

    python -m benchmarks.kernels_search [--trials 100] [--seeds 10] [--out FILE]

For each complete table (every configuration of a family's space measured on one case; of a larger space, what a
1,000-trial reference drew of it) the surrogate's search may ask for 100 configurations; a trial's answer is the
table's own time, a failure where the table has one. Peers are random search and simulated annealing on the same
budget. Told: the best found over the table's best, after 25, 50 and 100 trials, the worst of all seeds. Warm start:
the best configuration of the nearest other case of the same problem and family, run here without tuning, over
this case's best; and the trials to 97 % with and without it. Neighbouring are cases at most 3 octaves apart (sizes
and dtype together); farther ones are told apart.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.kernels_best import read
from nightshift.kernels.generate.base import Config, Value
from nightshift.kernels.generate.best_measured import octaves
from nightshift.kernels.generate.rows import carry
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import Family, Template, Warm
from nightshift.kernels.ops.families import family_named
from nightshift.kernels.problem import Case

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "results" / "kernels_search.json"
Key = tuple[Value, ...]
Answers = dict[Key, float]
BATCH = 4
REFERENCE = 1000
"""Measured points that stand for a larger space."""
NEIGHBOURING = 3.01


class Table:
    """One measured table whose space is still the family's own."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.problem, self.family = raw["problem"], family_named(raw["family"])
        self.case = Case.of(raw["case"]["dtype"], raw["case"]["layout"], **raw["case"]["params"])
        self.space = self.family.space(self.problem, self.case)
        names = list(raw["dimensions"])
        self.seconds: Answers = {}
        for row, micro in zip(raw["configs"], raw["microseconds"], strict=True):
            config = {n: raw["dimensions"][n][i] for n, i in zip(names, row, strict=True)}
            if self.space.holds(config):
                self.seconds[self.space.key(config)] = math.inf if micro is None else micro * 1e-6
        if REFERENCE <= len(self.seconds) < len(self.space):
            whole = self.space
            self.space = Space(whole.dimensions, lambda c: whole.holds(c) and whole.key(c) in self.seconds)
        self.best_s = min(self.seconds.values(), default=math.nan)

    @property
    def whole(self) -> bool:
        """Whether every point of today's space was measured, or as many as the reference asks for."""
        return len(self.seconds) == len(self.space)

    @property
    def label(self) -> str:
        return f"{self.family.name} {self.problem} {self.case}"


def surrogate(
    space: Space, answers: Answers, trials: int, seed: int, family: Family, warm: Warm | None = None
) -> list[float]:
    """Best seconds after each trial of the search's own generator, asked in batches."""
    author = Template(family, seed, warm or Warm())
    tried: list[tuple[Config, float]] = []
    while len(tried) < trials:
        chosen = author.choose(space, tried, min(BATCH, trials - len(tried)))
        if not chosen:
            break
        tried += [(config, answers[space.key(config)]) for config, _ in chosen]
    return _best_so_far([seconds for _, seconds in tried])


def at_random(space: Space, answers: Answers, trials: int, seed: int) -> list[float]:
    order = random.Random(seed).sample(list(space), min(trials, len(space)))
    return _best_so_far([answers[space.key(config)] for config in order])


def annealing(space: Space, answers: Answers, trials: int, seed: int) -> list[float]:
    """One dimension changed at a time; a worse point is taken with probability exp(−Δ log t / T), T falling."""
    rng = random.Random(seed)
    configs = list(space)
    now = rng.choice(configs)
    seen = {space.key(now): answers[space.key(now)]}
    times = [seen[space.key(now)]]
    for step in range(50 * trials):
        if len(times) >= min(trials, len(configs)):
            break
        dimension = rng.choice(space.dimensions)
        moved = {**now, dimension.name: rng.choice(dimension.values)}
        if not space.holds(moved):
            continue
        key = space.key(moved)
        if key not in seen:
            seen[key] = answers[key]
            times.append(seen[key])
        heat = 0.1 * (1 - step / (50 * trials))
        a, b = seen[space.key(now)], seen[key]
        worse = math.log(b / a) if math.isfinite(a) and math.isfinite(b) else (math.inf if b > a else -math.inf)
        if worse <= 0 or rng.random() < math.exp(-worse / max(heat, 1e-3)):
            now = moved
    return _best_so_far(times)


def _best_so_far(times: Sequence[float]) -> list[float]:
    made, best = [], math.inf
    for seconds in times:
        best = min(best, seconds)
        made.append(best)
    return made


def reached(curve: Sequence[float], best_s: float, share: float = 0.97) -> int | None:
    """Trials until the best found has `share` of the best speed; None where it never has."""
    return next((n for n, s in enumerate(curve, 1) if best_s / s >= share), None)


def told(curves: Sequence[Sequence[float]], best_s: float, trials: int) -> dict[str, Any]:
    marks = {}
    for mark in (25, 50, trials):
        shares = [best_s / curve[min(mark, len(curve)) - 1] for curve in curves]
        marks[f"share_at_{mark}"] = {"worst": round(min(shares), 4), "median": round(statistics.median(shares), 4)}
    counts = [reached(curve, best_s) for curve in curves]
    known = [c for c in counts if c is not None]
    return {
        **marks,
        "trials_to_97_percent": {
            "median": statistics.median(known) if len(known) == len(counts) else None,
            "worst": max(known) if len(known) == len(counts) else None,
            "missed": counts.count(None),
        },
    }


def neighbour(table: Table, tables: Sequence[Table]) -> Table | None:
    others = [
        t for t in tables if t is not table and (t.problem, t.family.name) == (table.problem, table.family.name)
    ]
    return min(others, key=lambda t: octaves(t.case, table.case), default=None)


def warm_of(near: Table, table: Table) -> Warm:
    """What the neighbour teaches: its five best configurations, and its whole table as the prior."""
    names = [d.name for d in near.space.dimensions]
    ranked = sorted(near.seconds, key=lambda key: near.seconds[key])
    configs = [carry(dict(zip(names, key, strict=True)), near.case, table.case) for key in ranked[:5]]
    logs = {key: math.log(s) if math.isfinite(s) else math.nan for key, s in near.seconds.items()}
    return Warm(tuple(c for c in configs if table.space.holds(c)), (logs,))


def summary(rows: list[dict[str, Any]], trials: int, seeds: int) -> dict[str, Any]:
    """The figures over all tables, and the tables."""
    carried_rows = [r for r in rows if r.get("loss_without_tuning") is not None]
    losses = [r["loss_without_tuning"] for r in carried_rows if r["octaves"] <= NEIGHBOURING]
    farther = [r["loss_without_tuning"] for r in carried_rows if r["octaves"] > NEIGHBOURING]
    worst = {
        name: min(r[name][f"share_at_{trials}"]["worst"] for r in rows)
        for name in ("search", "random", "annealing")
    }
    return {
        "trials": trials,
        "seeds": seeds,
        "tables": len(rows),
        "worst_share_of_best": worst,
        "reached_97_percent": sum(r["search"]["trials_to_97_percent"]["missed"] == 0 for r in rows),
        "worst_loss_without_tuning": max(losses, default=None),
        "worst_loss_without_tuning_farther": max(farther, default=None),
        "median_trials_to_97_percent": {
            name: statistics.median(counts)
            for name in ("search", "warm", "random", "annealing")
            if (counts := [r[name]["trials_to_97_percent"]["median"] or trials for r in rows if name in r])
        },
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    tables = []
    for raw in read():
        table = Table(raw)
        if table.whole and len(table.space) >= 60:
            tables.append(table)
    rows = []
    for table in tables:
        seeds = range(options.seeds)
        found = {
            "search": [surrogate(table.space, table.seconds, options.trials, s, table.family) for s in seeds],
            "random": [at_random(table.space, table.seconds, options.trials, s) for s in seeds],
            "annealing": [annealing(table.space, table.seconds, options.trials, s) for s in seeds],
        }
        row: dict[str, Any] = {"table": table.label, "points": len(table.space), "best_us": table.best_s * 1e6}
        near = neighbour(table, tables)
        if near is not None:
            names = [d.name for d in near.space.dimensions]
            key = min(near.seconds, key=lambda k: near.seconds[k])
            config = carry(dict(zip(names, key, strict=True)), near.case, table.case)
            known = table.space.holds(config)
            carried = table.seconds[table.space.key(config)] if known else math.inf
            row["carried_from"] = str(near.case)
            row["octaves"] = round(octaves(near.case, table.case), 2)
            row["loss_without_tuning"] = round(1 - table.best_s / carried, 4) if math.isfinite(carried) else None
            warm = warm_of(near, table)
            found["warm"] = [
                surrogate(table.space, table.seconds, options.trials, s, table.family, warm) for s in seeds
            ]
        row |= {name: told(curves, table.best_s, options.trials) for name, curves in found.items()}
        rows.append(row)
        options.out.write_text(json.dumps(summary(rows, options.trials, options.seeds), indent=1) + "\n")
        print(table.label, len(table.space), {n: row[n]["trials_to_97_percent"] for n in found}, flush=True)
    print(json.dumps({k: v for k, v in summary(rows, options.trials, options.seeds).items() if k != "rows"}))


if __name__ == "__main__":
    main()
