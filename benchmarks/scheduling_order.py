"""Other orders than EASY backfill's, over it: `python -m benchmarks.scheduling_order [--only NAME…]`.

- `ours`: short work first by predicted durations within backfill's longest wait, without sharing (record 103:
  measured, not shipped);
- `oracle`: the same with true durations; `oracle_without_bound`: true durations, least work first, with no bound on
  a wait: what an order that stops no job and shares no GPU could gain at all;
- `sharing`: the rule that ships, where every queue and owner opted in to two jobs on a GPU;
- `backfill_again`: plain backfill of the same jobs submitted up to a second later: how far a figure moves by luck.

Traces: each `muri/trace*.csv` under NIGHTSHIFT_DATA (Rivendile/Muri; all was chosen on trace 3, the others are
for the score), and drawn ones of published shapes (looked at: even seeds). Five cuts or seeds each, of which every
figure is given over backfill of the same jobs. `gap_closed`: the gain over that of the same order with true
durations. `--frontier` plays other constants of the order on trace 3, and the exact twin as its reference;
`--pressures` plays sharing from a lower pressure on, on drawn traces of even seeds. Both, and
`--only`, merge into the committed file, of which only figures of the same rule are kept.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, write
from benchmarks.scheduling import KEPT, interval, parts
from benchmarks.scheduling import SOURCES as RULE
from nightshift.controllers.lab.learnable import environment_sha256
from nightshift.controllers.lab.scheduling import shapes, trace
from nightshift.controllers.lab.scheduling.simulate import SchedulingWorld, Simulation, SimulationResult
from nightshift.controllers.lab.scheduling.trace import TraceJob
from nightshift.controllers.lab.scheduling.twin import QuickTwin, Twin
from nightshift.controllers.lab.scheduling.within_tail import WithinTail
from nightshift.controllers.scheduling.policies import Steering, backfill
from nightshift.controllers.scheduling.state import QueueState

NAME = "scheduling_order"
LOADS = {"muri": (0.7, 0.9, 1.1), "drawn": (0.5, 0.9, 1.2)}
SEEDS = 5
SOURCES = tuple(sorted((*RULE, "lab/scheduling/within_tail.py")))
"""Of `nightshift/controllers`, what the runs follow from (a test holds it complete)."""


def knowing(simulation: Simulation) -> Simulation:
    """Told true durations in place of expected ones: the oracle, never shipped."""
    state, jobs = simulation.state, simulation.jobs
    vars(state)["guess_s"] = lambda job, q=0.5: jobs[job].duration_s
    vars(state)["expected_s"] = lambda: {job: jobs[job].duration_s for job in state.queue}
    return simulation


Run = Callable[[list[TraceJob], int], SimulationResult]


def _within_tail(
    *,
    knows: bool = False,
    beside: Callable[[QueueState], Twin] = QuickTwin,
    order: Callable[[], WithinTail] = WithinTail,
) -> Run:
    def run(jobs: list[TraceJob], seed: int) -> SimulationResult:
        simulation = Simulation(jobs, SchedulingWorld(), seed)
        simulation.twin = simulation.state.twin = beside(simulation.state)
        return (knowing(simulation) if knows else simulation).run(order())

    return run


def _sharing(*, pressure: float | None = None) -> Run:
    """`pressure`: from which guests come, boldly; none: as it ships."""

    def run(jobs: list[TraceJob], seed: int) -> SimulationResult:
        rule = Steering() if pressure is None else Steering(from_pressure=pressure, bold_pressure=pressure)
        return Simulation(jobs, SchedulingWorld(), seed, twin=True).run(rule)

    return run


def _least_work_first(state: QueueState) -> None:
    lasts_s = state.expected_s()
    backfill(state, sorted(state.queue, key=lambda job: lasts_s[job] * float(state.width[job]))[: WithinTail.looks])


def _oracle_without_bound(jobs: list[TraceJob], seed: int) -> SimulationResult:
    return knowing(Simulation(jobs, SchedulingWorld(), seed)).run(_least_work_first)


def _backfill_again(jobs: list[TraceJob], seed: int) -> SimulationResult:
    moved_s = np.random.default_rng((seed, 0x5EC)).uniform(0.0, 1.0, len(jobs))
    later = [replace(job, submit_s=job.submit_s + s) for job, s in zip(jobs, moved_s.tolist(), strict=True)]
    later.sort(key=lambda job: job.submit_s)
    return Simulation(later, SchedulingWorld(), seed).run(backfill)


RUNS: dict[str, Run] = {
    "ours": _within_tail(),
    "oracle": _within_tail(knows=True),
    "oracle_without_bound": _oracle_without_bound,
    "sharing": _sharing(),
    "backfill_again": _backfill_again,
}
FRONTIER: dict[str, Run] = {
    "share 0.85": _within_tail(order=lambda: WithinTail(share=0.85)),
    "share 1.0": _within_tail(order=lambda: WithinTail(share=1.0)),
    "sure 0.97": _within_tail(order=lambda: WithinTail(sure=0.97)),
    "from pressure 1.5": _within_tail(order=lambda: WithinTail(from_pressure=1.5)),
    "from pressure 8": _within_tail(order=lambda: WithinTail(from_pressure=8.0)),
    "exact twin, share 0.85": _within_tail(beside=Twin, order=lambda: WithinTail(share=0.85)),
}
PRESSURES: dict[str, Run] = {
    "as it ships": RUNS["sharing"],
    "from pressure 0.6": _sharing(pressure=0.6),
}
"""Of sharing, on drawn traces of even seeds."""
PRESSED = ("helios", "ours")
DRAWN = {name: RUNS[name] for name in ("ours", "sharing", "backfill_again")}


def covered(jobs: Sequence[TraceJob], end_s: np.ndarray) -> dict[str, float]:
    """Share of jobs that lasted no longer than the quantile predicted at their submission, by what had ended."""
    durations = Simulation(jobs, SchedulingWorld()).state.durations
    ended, at, found = sorted(range(len(jobs)), key=lambda job: end_s[job]), 0, list[list[bool]]()
    for job in jobs:
        while end_s[ended[at]] <= job.submit_s:
            one = jobs[ended[at]]
            durations.learn(one.user, one.gpus, one.submit_s, one.duration_s, one.name)
            at += 1
        found.append(
            [
                job.duration_s <= durations.quantile(job.user, job.gpus, job.submit_s, q, name=job.name)
                for q in (0.5, 0.9)
            ]
        )
    return dict(zip(("0.5", "0.9"), np.mean(found, axis=0).tolist(), strict=True))


def liars(jobs: list[TraceJob], seed: int) -> list[TraceJob]:
    """A third of the longest tenth is submitted under the owner and name of the shortest job of its width."""
    random, long_s = np.random.default_rng((seed, 0x11A5)), np.quantile([job.duration_s for job in jobs], 0.9)
    short: dict[int, TraceJob] = {}
    for job in jobs:
        if job.gpus not in short or job.duration_s < short[job.gpus].duration_s:
            short[job.gpus] = job
    return [
        replace(job, user=short[job.gpus].user, name=short[job.gpus].name)
        if job.duration_s >= long_s and random.random() < 1 / 3
        else job
        for job in jobs
    ]


def endless(jobs: list[TraceJob], seed: int) -> list[TraceJob]:
    """One in a hundred jobs of one GPU lasts as long as the whole trace."""
    random, whole_s = np.random.default_rng((seed, 0xE7D)), jobs[-1].submit_s
    return [replace(j, duration_s=whole_s) if j.gpus == 1 and random.random() < 0.01 else j for j in jobs]


HARDER = {"liars": liars, "endless": endless}


def compared(jobs: list[TraceJob], seed: int, runs: dict[str, Run]) -> dict[str, Any]:
    """Figures of each run over those of backfill, on the same jobs."""
    plain = Simulation(jobs, SchedulingWorld(), seed)
    base = plain.run(backfill).figures()
    found: dict[str, Any] = {name: _over(run(jobs, seed).figures(), base) for name, run in runs.items()}
    return found | {"covered": covered(jobs, plain.end_s)}


def _over(figures: dict[str, float], base: dict[str, float]) -> dict[str, float]:
    return {key: figures[key] / max(base[key], 1.0) for key in KEPT}


def table(cuts: list[list[TraceJob]], load: float, runs: dict[str, Run], *, harder: bool = False) -> dict[str, Any]:
    played = [trace.at_load(jobs, SchedulingWorld().shape.gpus, load) for jobs in cuts]
    rows = [compared(jobs, seed, runs) for seed, jobs in enumerate(played)]
    row: dict[str, Any] = {name: {key: interval([one[name][key] for one in rows]) for key in KEPT} for name in runs}
    if "oracle" in runs:
        gains = {name: 1.0 - row[name]["mean_jct_s"]["mean"] for name in runs}
        row["gap_closed"] = gains["ours"] / gains["oracle"] if gains["oracle"] > 0.01 else None
    row["covered"] = {q: interval([one["covered"][q] for one in rows]) for q in ("0.5", "0.9")}
    for case, changed in HARDER.items() if harder else ():
        found = [
            compared(changed(jobs, seed), seed, {"ours": RUNS["ours"]})["ours"] for seed, jobs in enumerate(played)
        ]
        row[case] = {key: interval([one[key] for one in found]) for key in KEPT}
    return row


def summary(loads: dict[str, Any]) -> dict[str, Any]:
    """Over the loads, per run: the mean of the mean completion time, and the worst cut of each figure."""
    rows = list(loads.values())
    return {
        name: {
            "mean_jct_s": round(float(np.mean([row[name]["mean_jct_s"]["mean"] for row in rows])), 4),
            "worst": {key: max(row[name][key]["worst"] for row in rows) for key in KEPT},
        }
        for name in (*RUNS, *FRONTIER, *PRESSURES)
        if all(name in row for row in rows)
    } | {"gap_closed": [row.get("gap_closed") for row in rows]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--only", nargs="+", default=[], help="only these traces, merged into the results there are"
    )
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=RUNS, help="only these runs of a trace")
    parser.add_argument("--loads", nargs="+", type=float, default=[], help="only these loads of a trace")
    parser.add_argument("--frontier", action="store_true", help="only other constants, on trace 3")
    parser.add_argument("--pressures", action="store_true", help="only sharing from a lower pressure on")
    given = parser.parse_args()
    root = os.environ.get("NIGHTSHIFT_DATA")
    files = {path.stem: path for path in sorted(Path(root).glob("**/muri/trace?.csv"))} if root else {}
    is_part = given.frontier or given.pressures
    names = [] if is_part else given.only or [*files, *shapes.NAMES]
    file = RESULTS / f"{NAME}.json"
    kept = json.loads(file.read_text())["results"] if (given.only or is_part) and file.exists() else {}
    rule = environment_sha256(SOURCES)
    kept = kept if kept.get("rule_sha256") == rule else {}  # figures of another rule are not kept beside
    results = kept | {"rule_sha256": rule, "rule_sources": list(SOURCES)}
    if given.frontier:
        cuts = parts(trace.read(files["trace3"]), SEEDS)
        loads = {str(load): table(cuts, load, FRONTIER) for load in LOADS["muri"]}
        results["frontier"] = {"loads": loads, "summary": summary(loads)}
        write(NAME, results)
    for name in PRESSED if given.pressures else ():
        cuts = [shapes.drawn(name, 500, seed) for seed in range(0, 2 * SEEDS, 2)]
        loads = {str(load): table(cuts, load, PRESSURES) for load in LOADS["drawn"]}
        results.setdefault("pressures", {})[name] = {"loads": loads, "summary": summary(loads)}
        write(NAME, results)
    for name in names:
        if name not in files and name not in shapes.NAMES:
            parser.error(f"--only: {', '.join([*files, *shapes.NAMES])} are there")
        is_drawn = name in shapes.NAMES
        cuts = (
            [shapes.drawn(name, 500, seed) for seed in range(SEEDS)]
            if is_drawn
            else parts(trace.read(files[name]), SEEDS)
        )
        runs = {run: of for run, of in (DRAWN if is_drawn else RUNS).items() if run in given.runs}
        loads = dict(results.get(name, {"loads": {}})["loads"])
        for load in LOADS["drawn" if is_drawn else "muri"]:
            if given.loads and load not in given.loads:
                continue
            harder = name == "pai" and load == 0.9 and "ours" in runs
            loads[str(load)] = loads.get(str(load), {}) | table(cuts, load, runs, harder=harder)
            results[name] = {"jobs": len(cuts[0]), "loads": loads, "summary": summary(loads)}
            print(name, load, json.dumps(results[name]["summary"]), flush=True)
            write(NAME, results)


if __name__ == "__main__":
    main()
