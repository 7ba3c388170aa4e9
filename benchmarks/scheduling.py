"""Scheduling against its peers on traces: `python -m benchmarks.scheduling [--trace FILE]… [--seeds 5]`.

Traces: the Philly-derived one under NIGHTSHIFT_DATA where it is there, and drawn ones of published shapes
(`controllers/lab/scheduling/shapes.py`). Each has its bound: the least mean completion time that anybody could
reach.
`--only NAME…` runs some of them and merges them into the committed file, which has to be of the same rule.
`--resume` goes on where a run was cut short, as long as the rule has not changed since.

Every seed leaves another part of the trace out, draws how wrong the interference model is, and scales the arrivals
to each load. All policies run on the same jobs; ratios are paired with FIFO with backfill in the same run, with
95 % t intervals over the seeds. No policy that may be shipped sees a duration before its end, or stops a job.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.report import RESULTS, write
from nightshift.controllers.lab.learnable import environment_sha256
from nightshift.controllers.lab.scheduling import shapes, trace
from nightshift.controllers.lab.scheduling.bound import least_mean_jct_s
from nightshift.controllers.lab.scheduling.preemptive import (
    Preemptive,
    least_attained,
    remaining_predicted,
    remaining_true,
)
from nightshift.controllers.lab.scheduling.simulate import Faults, SchedulingWorld, Simulation, SimulationResult
from nightshift.controllers.lab.scheduling.trace import TraceJob
from nightshift.controllers.scheduling import policies
from nightshift.controllers.scheduling.cluster import ClusterShape
from nightshift.controllers.scheduling.state import QueueState

LOADS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
ALIKE = (0.5, 0.9, 1.2)
"""Loads of drawn shapes and of the tables beside the main one."""
PHILLY = "readonly/muri/trace3.csv"
SOURCES = (
    "lab/scheduling/bound.py",
    "scheduling/cluster.py",
    "scheduling/interference.py",
    "scheduling/policies.py",
    "scheduling/predict.py",
    "lab/scheduling/preemptive.py",
    "lab/scheduling/shapes.py",
    "lab/scheduling/simulate.py",
    "scheduling/state.py",
    "lab/scheduling/trace.py",
    "lab/scheduling/twin.py",
)
"""Of `nightshift/controllers`, what the runs follow from (a test holds it complete)."""
KEPT = ("mean_jct_s", "p99_jct_s", "p99_wait_s", "longest_wait_s")

Run = Callable[[list[TraceJob], SchedulingWorld, int], SimulationResult]


def steady(policy: policies.Policy, *, twin: bool = False) -> Run:
    return lambda jobs, world, seed: Simulation(jobs, world, seed, twin=twin).run(policy)


def preemptive(order: Callable[[Simulation, int], float]) -> Run:
    def run(jobs: list[TraceJob], world: SchedulingWorld, seed: int) -> SimulationResult:
        simulation = Simulation(jobs, SchedulingWorld(world.shape, world.model, tick_s=3600.0), seed)
        return simulation.run(Preemptive(simulation, order))

    return run


BASELINE = "fifo_backfill"
OURS = "steering"
SLOPE_W = 8 * 500.0
"""A minute, a rack of 32 GPUs: one node's start at a time."""


def flat(jobs: list[TraceJob], world: SchedulingWorld, seed: int) -> SimulationResult:
    """Ours with starts spread by the rack's slope; backfill beside it starts them all at once."""
    return Simulation(jobs, replace(world, slope_w=SLOPE_W), seed, twin=True).run(policies.Steering())


STEADY: dict[str, Run] = {
    BASELINE: steady(policies.backfill),
    "fifo": steady(policies.fifo),
    "shortest_predicted_first": steady(policies.shortest),
    "backfill_sharing": steady(policies.backfill_sharing),
    "steering_without_sharing": steady(policies.Steering(share=False), twin=True),
    OURS: steady(policies.Steering(), twin=True),
    "rack_ramp": flat,
}


def knowing(simulation: Simulation) -> Simulation:
    """Told true durations in place of predictions: an ablation, never shipped."""
    jobs = simulation.jobs
    vars(simulation.state)["guess_s"] = lambda job, q=0.5: jobs[job].duration_s
    return simulation


def oracle(*, share: bool) -> Run:
    """Short and narrow first with true durations and no bound on waiting: how much predictions could ever give."""

    def run(jobs: list[TraceJob], world: SchedulingWorld, seed: int) -> SimulationResult:
        rank = policies.Steering().rank

        def order(state: QueueState) -> None:
            policies.backfill(state, sorted(state.queue, key=lambda job: rank(state, job)), share=share)

        return knowing(Simulation(jobs, world, seed)).run(order)

    return run


def ours_knowing(jobs: list[TraceJob], world: SchedulingWorld, seed: int) -> SimulationResult:
    """Ours as it ships, with true durations of who waits."""
    return knowing(Simulation(jobs, world, seed, twin=True)).run(policies.Steering())


SHAPED: dict[str, Run] = {
    BASELINE: STEADY[BASELINE],
    "steering_without_sharing": STEADY["steering_without_sharing"],
    OURS: STEADY[OURS],
    "steering_oracle": ours_knowing,
    "oracle": oracle(share=True),
    "oracle_without_sharing": oracle(share=False),
    "srtf_oracle": preemptive(remaining_true),
}
PREEMPTIVE: dict[str, Run] = {
    BASELINE: STEADY[BASELINE],
    "least_attained_service": preemptive(least_attained),
    "srtf_predicted": preemptive(remaining_predicted),
    "srtf_oracle": preemptive(remaining_true),
    OURS: STEADY[OURS],
}
HARDER = {
    "neighbours_1_5_times_slower": SchedulingWorld(harsher=float(np.log(1.5))),
    "faults_every_2000_gpu_hours": SchedulingWorld(faults=Faults(2000.0)),
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


def parts(jobs: list[TraceJob], seeds: int) -> list[list[TraceJob]]:
    """Per seed the trace without another of its parts."""
    return [trace.without_part(jobs, seed, max(seeds, 5)) for seed in range(seeds)]


def table(
    traces: list[list[TraceJob]],
    runs: dict[str, Run],
    loads: tuple[float, ...],
    world: SchedulingWorld,
    found: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    """What there is after each load, so that a run that is cut short leaves what it has; `found`: what such a run
    left."""
    for load in loads:
        if str(load) in found:
            continue
        figures: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
        bounds: dict[str, list[float]] = {"bound": [], "bound_without_sharing": []}
        for seed, jobs in enumerate(traces):
            part = trace.at_load(jobs, world.shape.gpus, load)
            for name, run in runs.items():
                began_s = time.process_time()
                figures[name].append(run(part, world, seed).figures() | {"cpu_s": time.process_time() - began_s})
            base_s = figures[BASELINE][-1]["mean_jct_s"]
            bounds["bound"].append(least_mean_jct_s(part, world.shape.gpus, gain=2.0) / base_s)
            bounds["bound_without_sharing"].append(least_mean_jct_s(part, world.shape.gpus) / base_s)
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
        for name, values in bounds.items():
            found[str(load)][name] = {"over_backfill": {"mean_jct_s": interval(values)}}
        print(
            f"load {load}: "
            + ", ".join(f"{key} {value['mean']:.3f} (worst {value['worst']:.3f})" for key, value in ours.items()),
            flush=True,
        )
        yield found


def tables(
    loads: tuple[float, ...], shape: ClusterShape, *, is_drawn: bool, main_only: bool
) -> Iterator[tuple[str, dict[str, Run], tuple[float, ...], SchedulingWorld]]:
    """Of one trace: name, runs, loads and world."""
    beside = tuple(load for load in loads if load in ALIKE)
    if is_drawn:
        yield "loads", SHAPED, beside, SchedulingWorld(shape)
        return
    yield "loads", STEADY, loads, SchedulingWorld(shape)
    if main_only:
        return
    yield "preemptive", PREEMPTIVE, beside, SchedulingWorld(shape)
    for case, world in HARDER.items():
        yield case, {key: STEADY[key] for key in (BASELINE, OURS)}, beside, replace(world, shape=shape)


def summary(loads: dict[str, Any]) -> dict[str, Any]:
    high = [row[OURS]["over_backfill"] for load, row in loads.items() if float(load) >= 0.9] or [
        {key: {"mean": np.nan, "worst": np.nan} for key in KEPT}
    ]
    every = [row[OURS]["over_backfill"] for row in loads.values()]
    worst = {key: max(row[key]["worst"] for row in every) for key in KEPT}
    jct = max(row["mean_jct_s"]["worst"] for row in high)
    return {
        "worst_mean_jct_at_load_0.9_and_more": jct,
        "mean_jct_at_load_0.9_and_more": round(float(np.mean([row["mean_jct_s"]["mean"] for row in high])), 4),
        "bound_at_load_0.9": next(
            (r["bound"]["over_backfill"]["mean_jct_s"] for k, r in loads.items() if k == "0.9"), None
        ),
        "worst_at_any_load": worst,
        "met": bool(jct <= 0.6 and all(value <= 1.0 for value in worst.values())),
    }


def decision_cpu_s(gpus: int = 10_000, waiting: int = 2_000) -> float:
    """CPU seconds of one decision over a full cluster of that size, the slowest of three."""
    per_node = 8
    jobs = trace.draw(gpus // 3 + waiting, 3)
    took = []
    for seed in range(3):
        simulation = Simulation(
            jobs, SchedulingWorld(ClusterShape(gpus // per_node, per_node, 16)), seed, twin=True
        )
        state = simulation.state
        assert state.twin is not None
        state.now_s = float(jobs[-1].submit_s)
        state.queue = list(range(len(jobs)))
        for job in jobs[: len(jobs) // 2]:
            state.durations.learn(job.user, job.gpus, job.submit_s, job.duration_s)
        policies.backfill(state)
        simulation._settle()
        state.now_s += 3600.0
        simulation._observe()
        steering = policies.Steering(from_pressure=0.0, margin=float("inf"))
        began_s = time.process_time()
        for job in range(len(jobs) - waiting, len(jobs)):
            state.twin._state.queue.append(job)
        state.twin._look()
        steering(state)
        took.append(time.process_time() - began_s)
    return max(took)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS)
    parser.add_argument("--jobs", type=int, default=500, help="of a drawn trace")
    parser.add_argument("--main-only", action="store_true", help="only the non-preemptive tables")
    parser.add_argument("--name", default="scheduling")
    parser.add_argument("--only", nargs="+", help="only these traces, merged into the results there are")
    parser.add_argument("--resume", action="store_true", help="leave out what a run of the same rule has measured")
    given = parser.parse_args()
    root = os.environ.get("NIGHTSHIFT_DATA")
    paths = given.trace or ([Path(root) / PHILLY] if root else [])
    shape, loads = ClusterShape(nodes=given.nodes), tuple(given.loads)
    traces = {path.stem: parts(trace.read(path), given.seeds) for path in paths}
    drawn = {} if given.trace else {f"shape_{name}": name for name in shapes.NAMES}
    traces |= {
        key: [shapes.drawn(name, given.jobs, seed) for seed in range(given.seeds)] for key, name in drawn.items()
    }
    if given.only and not set(given.only) <= traces.keys():
        parser.error(f"--only: {', '.join(traces)} are there")
    file = RESULTS / f"{given.name}.json"
    kept: dict[str, Any] = json.loads(file.read_text())["results"] if file.exists() else {}
    rule = rule_sha256()
    is_same = kept.get("rule_sha256") == rule
    if given.only and kept and not is_same:
        parser.error(f"--only: {file} is of another rule; run all of it, or under another --name")
    results = kept if is_same and (given.resume or given.only) else {}
    results |= {"rule_sha256": rule, "rule_sources": list(SOURCES)}
    for name in given.only or traces:
        print(f"{name}: {len(traces[name][0])} jobs", flush=True)
        if not given.resume:
            results.pop(name, None)
        about = results.setdefault(name, {"jobs": len(traces[name][0]), "gpus": shape.gpus})
        for part, runs, at, world in tables(loads, shape, is_drawn=name in drawn, main_only=given.main_only):
            for found in table(traces[name], runs, at, world, about.get(part, {})):
                about[part] = found
                about["summary"] = summary(about["loads"])
                write(given.name, results)
    results["decision_10000_gpus_cpu_s"] = round(decision_cpu_s(), 3)
    write(given.name, results)


def rule_sha256() -> str:
    """Of every module that the runs follow from."""
    return environment_sha256(SOURCES)


if __name__ == "__main__":
    main()
