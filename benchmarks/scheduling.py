"""Scheduling against its peers on traces: `python -m benchmarks.scheduling [--trace FILE]… [--seeds 5]`.

Every seed leaves another part of the trace out, draws how wrong the interference model is, and scales the arrivals
to each load. All policies run on the same jobs; ratios are paired with FIFO with backfill in the same run, with
95 % t intervals over the seeds. No policy that may be shipped sees a duration before its end, or stops a job.

Without --trace: the Philly-derived trace under NIGHTSHIFT_DATA where it is there, and a drawn one.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.report import write
from controllers.scheduling import policies, trace
from controllers.scheduling.cluster import Shape
from controllers.scheduling.preemptive import (
    Preemptive,
    least_attained,
    remaining_predicted,
    remaining_true,
)
from controllers.scheduling.simulate import Faults, Result, Simulation, World
from controllers.scheduling.trace import Job

LOADS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
ALIKE = (0.5, 0.9, 1.2)
"""Loads of the tables beside the main one."""
PHILLY = "readonly/muri/trace3.csv"
KEPT = ("mean_jct_s", "p99_jct_s", "p99_wait_s", "longest_wait_s")

Run = Callable[[list[Job], World, int], Result]


def steady(policy: policies.Policy, *, twin: bool = False) -> Run:
    return lambda jobs, world, seed: Simulation(jobs, world, seed, twin=twin).run(policy)


def preemptive(order: Callable[[Simulation, int], float]) -> Run:
    def run(jobs: list[Job], world: World, seed: int) -> Result:
        simulation = Simulation(jobs, World(world.shape, world.model, tick_s=3600.0), seed)
        return simulation.run(Preemptive(simulation, order))

    return run


BASELINE = "fifo_backfill"
OURS = "steering"
STEADY: dict[str, Run] = {
    BASELINE: steady(policies.backfill),
    "fifo": steady(policies.fifo),
    "shortest_predicted_first": steady(policies.shortest),
    "backfill_sharing": steady(policies.backfill_sharing),
    "steering_without_sharing": steady(policies.Steering(share=False), twin=True),
    OURS: steady(policies.Steering(), twin=True),
}
PREEMPTIVE: dict[str, Run] = {
    BASELINE: STEADY[BASELINE],
    "least_attained_service": preemptive(least_attained),
    "srtf_predicted": preemptive(remaining_predicted),
    "srtf_oracle": preemptive(remaining_true),
    OURS: STEADY[OURS],
}
HARDER = {
    "as_modelled": World(),
    "neighbours_1_5_times_slower": World(harsher=float(np.log(1.5))),
    "faults_every_2000_gpu_hours": World(faults=Faults(2000.0)),
}


def interval(values: list[float]) -> dict[str, float]:
    """Mean with its 95 % t interval, and the worst."""
    array = np.asarray(values)
    half = (
        float(stats.t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / len(array) ** 0.5)
        if len(array) > 1
        else np.nan
    )
    mean = float(array.mean())
    return {
        "mean": round(mean, 4),
        "low": round(mean - half, 4),
        "high": round(mean + half, 4),
        "worst": round(float(array.max()), 4),
    }


def table(
    jobs: list[Job], runs: dict[str, Run], loads: tuple[float, ...], seeds: int, world: World
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for load in loads:
        figures: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
        for seed in range(seeds):
            part = trace.at_load(trace.without_part(jobs, seed, max(seeds, 5)), world.shape.gpus, load)
            for name, run in runs.items():
                began_s = time.process_time()
                figures[name].append(run(part, world, seed).figures() | {"cpu_s": time.process_time() - began_s})
        base = figures[BASELINE]
        found[str(load)] = {
            name: {
                **{key: round(float(np.mean([each[key] for each in rows])), 3) for key in rows[0]},
                "over_backfill": {
                    key: interval(
                        [mine[key] / max(theirs[key], 1.0) for mine, theirs in zip(rows, base, strict=True)]
                    )
                    for key in KEPT
                },
            }
            for name, rows in figures.items()
        }
        ours = found[str(load)][OURS]["over_backfill"]
        print(
            f"load {load}: "
            + ", ".join(f"{key} {value['mean']:.3f} (worst {value['worst']:.3f})" for key, value in ours.items()),
            flush=True,
        )
    return found


def summary(loads: dict[str, Any]) -> dict[str, Any]:
    high = [row[OURS]["over_backfill"] for load, row in loads.items() if float(load) >= 0.9]
    every = [row[OURS]["over_backfill"] for row in loads.values()]
    worst = {key: max(row[key]["worst"] for row in every) for key in KEPT}
    jct = max(row["mean_jct_s"]["worst"] for row in high)
    return {
        "worst_mean_jct_at_load_0.9_and_more": jct,
        "worst_at_any_load": worst,
        "met": bool(jct <= 0.6 and all(value <= 1.0 for value in worst.values())),
    }


def decision_cpu_s(gpus: int = 10_000, waiting: int = 2_000) -> float:
    """CPU seconds of one decision over a full cluster of that size, the slowest of three."""
    per_node = 8
    jobs = trace.draw(gpus // 3 + waiting, 3)
    took = []
    for seed in range(3):
        simulation = Simulation(jobs, World(Shape(gpus // per_node, per_node, 16)), seed)
        state = simulation.state
        state.now_s = float(jobs[-1].submit_s)
        state.queue = list(range(len(jobs)))
        for job in jobs[: len(jobs) // 2]:
            state.durations.learn(job.user, job.gpus, job.submit_s, job.duration_s)
        policies.backfill(state)
        simulation._settle()
        began_s = time.process_time()
        policies.Steering()(state)
        took.append(time.process_time() - began_s)
    return max(took)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS)
    parser.add_argument("--main-only", action="store_true", help="only the non-preemptive table")
    parser.add_argument("--name", default="scheduling")
    parser.add_argument("--drawn", action="store_true", help="the drawn trace only")
    given = parser.parse_args()
    root = os.environ.get("NIGHTSHIFT_DATA")
    paths = given.trace or ([Path(root) / PHILLY] if root and not given.drawn else [])
    traces = {path.stem: trace.read(path) for path in paths}
    if not given.trace:
        traces["drawn"] = trace.draw(1000, 11)
    shape = Shape(nodes=given.nodes)
    results: dict[str, Any] = {}
    for name, jobs in traces.items():
        print(f"{name}: {len(jobs)} jobs", flush=True)
        loads = table(jobs, STEADY, tuple(given.loads), given.seeds, World(shape))
        results[name] = {"jobs": len(jobs), "summary": summary(loads), "loads": loads}
        if not given.main_only:
            beside = tuple(load for load in given.loads if load in ALIKE)
            results[name]["preemptive"] = table(jobs, PREEMPTIVE, beside, given.seeds, World(shape))
            pair = {key: STEADY[key] for key in (BASELINE, OURS)}
            for case, world in HARDER.items():
                harder = World(shape, faults=world.faults, harsher=world.harsher)
                results[name][case] = table(jobs, pair, beside, given.seeds, harder)
    results["decision_10000_gpus_cpu_s"] = round(decision_cpu_s(), 3)
    write(given.name, results)


if __name__ == "__main__":
    main()
