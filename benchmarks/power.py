"""Power control on measured sweeps: every controller on the same jobs and seeds; a decision's cost; training's
cost.

    python -m benchmarks.power SWEEP.csv … [--policy FILE --key PUBLIC]     (Zeus's format; see
    controllers/power/curves.py)

Without --policy one is trained first (about ten minutes of one core). Times are CPU seconds of this process.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.report import write
from collectors.seal import trusted_keys
from controllers.policy_file import read
from controllers.power import descent
from controllers.power.belief import TOP, Bank
from controllers.power.evaluate import CANDIDATES, GOALS, OVER, evaluate, meets
from controllers.power.features import INTERFACE
from controllers.power.learn import LEARNABLE


def decision_cpu_s(gpus: int = 10_000, windows: int = 6) -> float:
    """CPU seconds of one decision for so many GPUs, each a gang of its own: the slowest of some."""
    rng, bank = np.random.default_rng(0), Bank.make()
    jobs = descent.Jobs.start(np.full(gpus, 20))
    level, took = jobs.home.copy(), []
    for _ in range(windows):
        speed, draw = rng.normal(100.0, 1.0, gpus), rng.uniform(0.3, 1.0, gpus)
        began_s = time.process_time()
        level = descent.decide(jobs, level, speed, draw, bank, replace(descent.Care(), first=2))
        took.append(time.process_time() - began_s)
        level = np.maximum(level, TOP - 30)
    return max(took)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sweeps", type=Path, nargs="+")
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--key", type=Path, action="append", default=[])
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    results: dict[str, object] = {}
    if given.policy is not None:
        policy = read(given.policy, INTERFACE, trusted_keys(given.key))
    else:
        began_s = time.process_time()
        policy = LEARNABLE.train(1, None, print)
        results["training_cpu_s"] = round(time.process_time() - began_s, 1)
    results["training"] = dict(policy.training)
    results["decision_10000_gpus_cpu_s"] = round(decision_cpu_s(), 3)
    table = evaluate(policy, given.sweeps, range(given.seeds), candidates=CANDIDATES)
    for row in (*table["rows"], *table["left_out"]):
        row["meets"] = meets(row)
    results |= {"goals": {"of_oracle": {str(k): v for k, v in GOALS.items()}, "over": OVER}, **table}
    results["by"] = {f"{r['budget']:.0%}": {x["controller"]: x for x in table["rows"] if x["budget"] == r["budget"]}
                     for r in table["rows"]}  # fmt: skip
    results["without"] = {f"{r['budget']:.0%}": {x["left out"]: x for x in table["left_out"]
                          if x["budget"] == r["budget"]} for r in table["left_out"]}  # fmt: skip
    write("power", results)


if __name__ == "__main__":
    main()
