"""Loss divergence on labelled runs, rivals on the same runs: `python -m benchmarks.detect_loss [--set NAME PATH]…`.

Delay is counted in steps from the onset to the first alarm at or after it; alarms before the onset are counted
apart. Fresh runs are made by `python -m benchmarks.loss_runs OUT --runs N --seed S`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.report import write
from nightshift.collectors.frame import StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import State
from nightshift.detectors.contract.evaluate import exact_interval
from nightshift.detectors.loss.divergence import Divergence
from tests.recordings.truth import Truth, truth

RECORDINGS = Path(__file__).parent.parent / "tests" / "recordings"
STEPS_PER_TICK = 10


@dataclass(frozen=True)
class Runs:
    """Training runs in the order of their steps; a rewound run prints some step numbers twice."""

    name: str
    step: list[np.ndarray]
    loss: list[np.ndarray]
    lr: list[np.ndarray]
    norm: list[np.ndarray]
    meta: pd.DataFrame

    @classmethod
    def load(cls, name: str, curves: Path, meta: Path) -> Runs:
        table, about = pd.read_parquet(curves), pd.read_csv(meta)
        by_run = dict(tuple(table.groupby("run", sort=False)))
        step, loss, lr, norm = (
            [by_run[run][column].to_numpy(float) for run in about.run]
            for column in ("step", "loss", "lr", "grad_norm")
        )
        return cls(name, [s.astype(np.int64) for s in step], loss, lr, norm, about)


def ours(runs: Runs, with_lr: bool = True, with_norm: bool = True) -> list[list[int]]:
    """First-alarm places by run, through the detector itself: ticks of ten steps, as a log would bring them."""
    detector, inventory = Divergence(), Inventory()
    jobs = [Subject(SubjectKind.JOB, f"bench/{run}") for run in range(len(runs.loss))]
    row_of = {job: row for row, job in enumerate(jobs)}
    alarms: list[list[int]] = [[] for _ in jobs]
    firing = [False] * len(jobs)
    for first in range(0, max(map(len, runs.loss)), STEPS_PER_TICK):
        series = []
        for row, job in enumerate(jobs):
            part = slice(first, first + STEPS_PER_TICK)
            step, loss = runs.step[row][part], runs.loss[row][part]
            if len(step) == 0:
                continue
            norm = runs.norm[row][part] if with_norm else np.ones(len(step))
            columns = {"loss": np.where(np.isnan(loss), np.inf, loss), "grad_norm": norm}
            columns |= {"learning_rate": runs.lr[row][part]} if with_lr else {}
            place = np.arange(first + 1, first + 1 + len(step), dtype=float)  # one step a second: a time is a place
            series.append(StepSeries(job, "run", step, place, columns, "bench"))
        for finding in detector.update(Tick(float(first + STEPS_PER_TICK), steps=tuple(series)), inventory):
            row = row_of[finding.subject]
            if finding.state is State.FIRING and not firing[row]:
                decided = finding.since.t_s + float(finding.facts.get("delay_steps", 0.0))
                alarms[row].append(int(decided))
            firing[row] = finding.state is not State.CLEAR
    return alarms


def each(rule: Callable[[np.ndarray], np.ndarray]) -> Callable[[Runs], list[list[int]]]:
    """A rule on one run's losses [steps] → mask of alarmed steps; every rising edge is an alarm."""

    def alarms(runs: Runs) -> list[list[int]]:
        found = []
        for loss in runs.loss:
            mask = rule(loss) | ~np.isfinite(loss)
            found.append((np.flatnonzero(mask & ~np.concatenate([[False], mask[:-1]])) + 1).tolist())
        return found

    return alarms


def rolling_z(loss: np.ndarray) -> np.ndarray:
    """z > 3 against the last 100 losses."""
    series = pd.Series(loss)
    past = series.shift(1).rolling(100, min_periods=50)
    return ((series - past.mean()) / past.std() > 3.0).to_numpy()


def sustained(loss: np.ndarray) -> np.ndarray:
    """Above 1.2 times the mean of the 300 losses before, for 20 steps."""
    series = pd.Series(loss)
    above = series > 1.2 * series.shift(20).rolling(300, min_periods=100).mean()
    return (above.rolling(20).sum() >= 20).to_numpy()


def cusum(loss: np.ndarray) -> np.ndarray:
    """One-sided CUSUM of log loss, k = 0.5σ, h = 12σ, against an exponentially weighted baseline."""
    log = np.log(np.clip(np.nan_to_num(loss, nan=1e3, posinf=1e3), 1e-9, None))
    base, dev, score = log[0], 0.05, 0.0
    alarm = np.zeros(len(loss), dtype=bool)
    for t, value in enumerate(log):
        z = (value - base) / max(dev, 1e-6)
        score = max(0.0, score + min(z, 8.0) - 0.5) if t > 50 else 0.0
        alarm[t] = score > 12.0
        if not alarm[t]:
            base += 0.02 * (value - base)
            dev += 0.02 * (1.2533 * abs(value - base) - dev)
    return alarm


def told_the_onset(runs: Runs) -> list[list[int]]:
    """A bound, no rival: it knows the onset of every fault, and that it is one, and needs only to see it.

    The first step at which the mean of the last 1, 2, 4 … 64 losses since the onset stands four standard errors
    above the 64 before. What it sees late, no watcher of the loss can tell early.
    """
    found = []
    for row, about in enumerate(runs.meta.itertuples()):
        kind = truth(about.kind, about.loss_pre, about.loss_final, about.n_nonfinite)
        onset, loss = int(about.onset_step), runs.loss[row]
        before = loss[max(onset - 65, 0) : onset - 1]
        if kind is not Truth.DIVERGED or len(before) < 32:
            found.append([onset] if kind is Truth.DIVERGED else [])
            continue
        level, sigma = np.median(before), 1.4826 * np.median(np.abs(before - np.median(before)))
        rise = np.nan_to_num(loss[onset - 1 :] - level, nan=1e9, posinf=1e9).clip(-1e9, 1e9)
        sums = np.concatenate([[0.0], np.cumsum(rise)])
        seen = np.zeros(len(rise), dtype=bool)
        for width in (1, 2, 4, 8, 16, 32, 64):
            mean = (sums[width:] - sums[:-width]) / width
            seen[width - 1 :] |= mean * np.sqrt(width) > 4.0 * sigma
        found.append([onset + int(seen.argmax())] if seen.any() else [])
    return found


METHODS: dict[str, Callable[[Runs], list[list[int]]]] = {
    "nightshift": ours,
    "nightshift, learning rate not logged": lambda runs: ours(runs, with_lr=False),
    "nightshift, gradient norm not logged": lambda runs: ours(runs, with_norm=False),
    "rolling z > 3": each(rolling_z),
    "1.2 x mean(300) sustained 20": each(sustained),
    "log-CUSUM": each(cusum),
    "bound: told the onset": told_the_onset,
}


def score(runs: Runs, alarms: list[list[int]]) -> dict[str, Any]:
    about = runs.meta
    kinds = [truth(r.kind, r.loss_pre, r.loss_final, r.n_nonfinite) for r in about.itertuples()]
    delays, found, early = [], 0, 0
    missed, alarmed = [], []
    for row, (kind, steps) in enumerate(zip(kinds, alarms, strict=True)):
        onset = int(about.onset_step.iloc[row])
        if kind is Truth.BENIGN:
            alarmed += [f"{about.kind.iloc[row]} #{about.run.iloc[row]}"] if steps else []
        if kind is Truth.DIVERGED:
            after = [s for s in steps if s >= onset]
            early += any(s < onset for s in steps)
            found += bool(after)
            delays += [after[0] - onset] if after else []
            missed += [] if after else [f"{about.kind.iloc[row]} #{about.run.iloc[row]}"]
    diverged, healthy = kinds.count(Truth.DIVERGED), kinds.count(Truth.BENIGN)
    return {
        "diverged": diverged,
        "found": found,
        "recall": found / diverged if diverged else None,
        "recall_interval": exact_interval(found, diverged),
        "alarmed_before_onset": early,
        "benign": healthy,
        "benign_alarmed": len(alarmed),
        "benign_interval": exact_interval(len(alarmed), healthy),
        "alarmed": alarmed,
        "benign_by_kind": _by_kind(about, kinds, alarmed),
        "median_delay_steps": float(np.median(delays)) if delays else None,
        "p90_delay_steps": float(np.quantile(delays, 0.9)) if delays else None,
        "within_15_steps": sum(delay <= 15 for delay in delays),
        "missed": missed,
    }


def _by_kind(about: pd.DataFrame, kinds: list[Truth], alarmed: list[str]) -> dict[str, list[int]]:
    """Benign kind → [alarmed, runs]."""
    found: dict[str, list[int]] = {}
    for kind, truth_of_it in zip(about.kind, kinds, strict=True):
        if truth_of_it is Truth.BENIGN:
            found.setdefault(kind, [0, 0])[1] += 1
    for name in alarmed:
        found[name.partition(" ")[0]][0] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--set", nargs=2, action="append", default=[], metavar=("NAME", "PATH"), help="runs of benchmarks.loss_runs"
    )
    arguments = parser.parse_args()
    sets = [Runs.load("development (64 runs)", RECORDINGS / "loss.parquet", RECORDINGS / "loss_meta.csv")]
    for name, path in arguments.set:
        sets.append(Runs.load(name, Path(f"{path}.parquet"), Path(f"{path}.csv")))
    results = {runs.name: {name: score(runs, method(runs)) for name, method in METHODS.items()} for runs in sets}
    write("detect_loss", results)


if __name__ == "__main__":
    main()
