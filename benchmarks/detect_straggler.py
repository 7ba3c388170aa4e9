"""The slow worker named, imbalance not accused: `NIGHTSHIFT_DATA=… python -m benchmarks.detect_straggler`.

Our two-rank recording (slow compute +8 %, slow data +30 ms a step; phase names carry the rank, modulo 2), and two
ByteDance traces whose slowness is sequence-length (SE) and stage (ST) imbalance: no hardware at fault in either.
Beside it: the median own time against the job's median, without regard to stages or to single steps.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.report import write
from nightshift.collectors.frame import StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import State
from nightshift.detectors.progress.straggler import STAGE, Straggler

RECORDING = Path(__file__).parent.parent / "tests" / "recordings" / "h200_ranks_steps.csv.gz"
PHASES = {
    "healthy": None,
    "varlen_benign": None,
    "eval_rank0_benign": None,
    "slow_compute_rank1": 1,
    "slow_data_rank3": 1,
}
TICK_S = 5.0
STRETCH = 20.0
"""The two-rank recording is replayed as elsewhere: one 4 Hz sample is one 5 s scrape."""
COMPUTE = ("forward-compute", "backward-compute")


def accused(steps: pd.DataFrame, stages: dict[int, int] | None = None) -> list[int]:
    """Ranks that the detector names; steps: rank, step, t_s, compute_s, data_s, fed in ticks of 5 s."""
    detector, inventory = Straggler(), Inventory()
    job = Subject(SubjectKind.JOB, "bench/job")
    ranks = {r: Subject(SubjectKind.RANK, f"bench/job#{r}") for r in sorted(steps["rank"].unique())}
    for number, rank in ranks.items():
        inventory.observe(rank, job, -1.0)
        if stages is not None:
            inventory.describe(rank, **{STAGE: str(stages[number])})
    named = set()
    for tick, rows_of_all in steps.groupby(steps.t_s // TICK_S):
        series = []
        for number, rows in rows_of_all.groupby("rank"):
            columns = {c: rows[c].to_numpy(float) for c in ("compute_s", "data_s") if c in rows}
            step, t_s = rows.step.to_numpy(np.int64), rows.t_s.to_numpy(float)
            series.append(StepSeries(ranks[number], "run", step, t_s, columns, "bench"))
        for finding in detector.update(Tick((float(tick) + 1.0) * TICK_S, steps=tuple(series)), inventory):
            if finding.state is State.FIRING:
                named.add(int(finding.subject.name.rpartition("#")[2]))
    return sorted(named)


def by_level(steps: pd.DataFrame) -> list[int]:
    """The rival: a median own time 5 % above the median of all ranks, stages or not."""
    own = steps.assign(own=steps.compute_s + steps.get("data_s", 0.0)).groupby("rank").own.median()
    return sorted(int(r) for r in own.index[own > 1.05 * own.median()])


def bytedance(path: Path) -> tuple[pd.DataFrame, dict[int, int]]:
    trace = pd.read_parquet(path)
    compute = trace[trace.optype.isin(COMPUTE)]
    steps = compute.groupby(["rank", "step"]).duration.sum().reset_index(name="compute_s")
    took_s = (trace.start_ts + trace.duration).groupby(trace.step).max().median()
    steps["step"] = steps.step.rank(method="dense").astype(int)
    again = steps.assign(
        step=steps.step + int(steps.step.max())
    )  # twice over, for traces shorter than the patience
    steps = pd.concat([steps, again])
    steps["t_s"] = steps.step * float(took_s)
    return steps, {int(r): int(s) for r, s in compute.groupby("rank").stage.first().items()}


def main() -> None:
    recorded = pd.read_csv(RECORDING)
    results: dict[str, Any] = {}
    for phase, slow in PHASES.items():
        steps = recorded[recorded.phase == phase]
        steps = steps.assign(t_s=STRETCH * (steps.ts_s - steps.ts_s.min())).sort_values("t_s")
        results[phase] = {
            "slow": slow,
            "nightshift": accused(steps),
            "level over the job's median": by_level(steps),
        }
    folder = os.environ.get("NIGHTSHIFT_DATA")
    for name in ("SE", "ST") if folder else ():
        steps, stages = bytedance(Path(str(folder)) / f"readonly/straggler/bytedance_trace-{name}.parquet")
        results[f"ByteDance {name} (imbalance only)"] = {
            "slow": None,
            "ranks": len(stages),
            "nightshift": accused(steps, stages),
            "nightshift, stages unknown": accused(steps),
            "level over the job's median": by_level(steps),
        }
    write("detect_straggler", results)


if __name__ == "__main__":
    main()
