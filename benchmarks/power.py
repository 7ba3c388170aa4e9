"""Power control on measured sweeps: every controller on the same jobs and seeds; a decision's cost; training's
cost.

    python -m benchmarks.power SWEEP.csv … [--policy FILE --key PUBLIC] [--clocks CLOCKS.csv --tdp W]

Sweeps are in Zeus's format (controllers/power/curves.py). Without --policy one is trained last (some minutes of one
core); what is known before it is written. Times are CPU seconds of this process.

The other lever, locked SM clocks, has a part of its own: the same controllers on jobs whose draw no limit binds, as
the daemon would take them over (`agent/control/power_loop.py`): of made-up curves that are not in the bank, and
of a sweep over clocks where one is given (the same format, MHz in `power_limit`; its GPU's highest limit as --tdp).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.power_look import look_cpu_s
from benchmarks.report import write
from nightshift.agent.control.power_loop import UNBOUND
from nightshift.collectors.seal import trusted_keys
from nightshift.controllers.lab.power.learn import (
    CANDIDATES,
    GOALS,
    JUDGED_BUDGETS,
    LEARNABLE,
    OVER,
    Descent,
    PlainDescent,
    Static,
    Zeus,
    evaluate,
    labels,
    left_out,
    meets,
    scored,
    summary,
)
from nightshift.controllers.lab.power.simulate import Controller, ledgers, lowest_levels
from nightshift.controllers.lab.power.sweeps import read_sweeps
from nightshift.controllers.policy_file import read
from nightshift.controllers.power import descent
from nightshift.controllers.power.belief import Bank, Ints
from nightshift.controllers.power.clock_curves import careful, clock_bank, synthetic_clocks
from nightshift.controllers.power.clocks import FLOOR_SHARE, MAX_MHZ
from nightshift.controllers.power.curves import Curve, on_levels, synthetic
from nightshift.controllers.power.features import INTERFACE


def decision_cpu_s(gpus: int = 10_000, windows: int = 240, looks: int = 9) -> dict[str, float]:
    """CPU seconds of one decision for so many GPUs, each a gang of its own: the median of some, where the heuristic
    has had them for two hours, and where each was seen at every level, which is the most that a belief can cost."""
    rng, bank, care = np.random.default_rng(0), Bank.make(), descent.DescentCare()
    curves = synthetic(gpus // 40, np.random.default_rng(99))
    time_of, draw_of = (np.repeat(x, 40, 0) for x in on_levels(curves))

    def decide(jobs: descent.Jobs, level: Ints, rows: Ints) -> tuple[Ints, float]:
        noise = 1.0 + 0.01 * rng.normal(size=(2, len(rows)))
        speed, draw = noise[0] / time_of[rows, level], noise[1] * draw_of[rows, level]
        began_s = time.process_time()
        level = descent.decide(jobs, level, speed, draw, bank, care)
        return level, time.process_time() - began_s

    few, one_each = descent.Jobs.start(lowest_levels(curves)), np.arange(0, gpus, 40)
    level = few.home.copy()
    for _ in range(windows):
        level, _took = decide(few, level, one_each)
    many, level = descent.Jobs.start(np.repeat(few.lowest, 40)), np.repeat(level, 40)
    for name in ("count", "speed", "draw"):
        getattr(many.windows, name)[:] = np.repeat(getattr(few.windows, name), 40, 0)
    for name in ("home", "looks", "given_up"):
        getattr(many, name)[:] = np.repeat(getattr(few, name), 40)
    found = {}
    for name in ("after two hours", "seen at every level"):
        took = []
        for _ in range(looks):
            level, took_s = decide(many, level, np.arange(gpus))
            took.append(took_s)
        found[name] = round(float(np.median(took)), 3)
        unseen = many.windows.count == 0
        many.windows.count[unseen] = 1.0
        many.windows.speed[unseen], many.windows.draw[unseen] = 1.0 / time_of[unseen], draw_of[unseen]
    return found


def for_clocks(curves: Sequence[Curve]) -> list[Curve]:
    """Those that no limit binds on, from the lowest clock that is ever locked up."""
    found = []
    for c in curves:
        if c.draw_w[-1] <= UNBOUND * c.max_w:
            kept = c.limit_w >= FLOOR_SHARE * c.max_w - 1e-9
            found.append(Curve(c.gpu, c.workload, c.limit_w[kept], c.time[kept], c.draw_w[kept]))
    return found


def clock_sets(sweep: Path | None, tdp_w: float) -> Iterator[tuple[str, list[Curve]]]:
    """Curves over MHz; their draws as shares of the highest limit, times the highest clock."""
    made_up = synthetic_clocks(200, np.random.default_rng(99))
    yield (
        "made up",
        for_clocks([Curve(c.gpu, c.workload, c.limit_w * MAX_MHZ, c.time, c.draw_w * MAX_MHZ) for c in made_up]),
    )
    if sweep is not None:
        read_in = read_sweeps(sweep)
        shares = [Curve(c.gpu, c.workload, c.limit_w, c.time, c.draw_w / tdp_w * c.max_w) for c in read_in]
        yield sweep.stem, for_clocks(shares)


def clocks(sweep: Path | None, tdp_w: float, seeds: Sequence[int], windows: int = 240) -> dict[str, Any]:
    """Set → budget → controller → score. The oracle knows the curve and has a grid of 25 MHz."""
    care = careful(descent.DescentCare())
    contestants: dict[str, Callable[[], Controller]] = {
        "descent (ships)": lambda: Descent(clock_bank(), care),
        "plain descent": PlainDescent,
        "Zeus MaxSlowdown": lambda: Zeus(True),
        "Zeus ZeusCost": lambda: Zeus(False),
        "static 90%": lambda: Static(0.9),
        "static 80%": lambda: Static(0.8),
        "static 70%": lambda: Static(0.7),
    }
    found: dict[str, Any] = {}
    for name, curves in clock_sets(sweep, tdp_w):
        found[name] = {"curves": len(curves)}
        for budget in JUDGED_BUDGETS:
            rows = found[name][f"{budget:.0%}"] = {}
            for who, make in contestants.items():
                runs = ledgers(curves, make(), budget, seeds, windows)
                rows[who] = {"budget": budget, **summary([one.of() for one in runs])}
                rows[who]["meets"] = meets(rows[who])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sweeps", type=Path, nargs="+")
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--key", type=Path, action="append", default=[])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--clocks", type=Path, help="A sweep over SM clocks")
    parser.add_argument("--tdp", type=float, default=700.0, help="Highest power limit of its GPU (W)")
    given = parser.parse_args()
    seeds = range(given.seeds)
    results: dict[str, Any] = {"decision_10000_gpus_cpu_s": decision_cpu_s()}
    results |= {"look_10000_gangs_cpu_s": look_cpu_s()}
    results |= {"goals": {"of_oracle": {str(k): v for k, v in GOALS.items()}, "over": OVER}}
    results |= evaluate(None, given.sweeps, seeds)
    keep(results)
    results["clocks"] = clocks(given.clocks, given.tdp, seeds)
    keep(results)
    curves = [c for path in given.sweeps for c in read_sweeps(path)]
    groups = {kind: labels(curves)[kind] for kind in ("gpu", "workload")}
    results["left_out"] += left_out(curves, groups, CANDIDATES, Bank.make(), seeds, 240)
    keep(results)
    if given.policy is not None:
        policy = read(given.policy, INTERFACE, trusted_keys(given.key))
    else:
        began_s = time.process_time()
        policy = LEARNABLE.train(1, None, print)
        results["training_cpu_s"] = round(time.process_time() - began_s, 1)
    results["training"] = dict(policy.training)
    results["rows"] += scored(policy, given.sweeps, seeds)
    keep(results)


def keep(results: dict[str, Any]) -> None:
    """Writes what there is by now, and the rows once more under their names."""
    for row in (*results["rows"], *results["left_out"]):
        row["meets"] = meets(row)
    for name, rows, key in (("by", "rows", "controller"), ("without", "left_out", "left out")):
        results[name] = {
            f"{budget:.0%}": {row[key]: row for row in results[rows] if row["budget"] == budget}
            for budget in JUDGED_BUDGETS
        }
    write("power", results)


if __name__ == "__main__":
    main()
