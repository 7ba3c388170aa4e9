"""Leaks in real pod memory, rivals on the same series: `NIGHTSHIFT_DATA=… python -m benchmarks.detect_leak`.

Healthy series: pod memory utilisation of Alibaba's GenAI trace (clusterdata v2026-GenAI), one sample a minute.
Leaks are added that reach the limit 2 to 72 hours after their onset (log-uniform): linear, accelerating, stepwise
and sawtooth. Found means alarmed between the onset and 15 minutes before the limit, on the recorded stretch; leaks
whose limit lies within the recording are scored apart as well. Any alarm on a series without a leak is a false one.

The shapes of `detectors.memory.climb` were chosen on these pods with the leaks of seeds 11 and 99; those of the
default seed were not looked at. The two halves of the pods (by a hash of their names) are told apart, and so are
the GPU memory series of the same pods, in which nothing is known to leak: a second set for false alarms. The 72
series-days are too few to tell a rate of 10 per 1,000 (that needs 1,600): the interval says what they can.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.report import write
from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import State
from nightshift.detectors.contract.evaluate import exact_interval, garwood
from nightshift.detectors.memory.leak import MemoryLeak

LIMIT_BYTES = 64.0 * 2**30
LEAD_S = 900.0
STATED = 10.0
"""False alarms per 1,000 series-days that the detector states."""
GPU_BYTES = 80.0 * 2**30
SHAPES = ("linear", "accelerating", "stepwise", "sawtooth")
TRACE = "readonly/gentd26/pod_memory_util_anon_dev_half.parquet"
GPU_TRACE = "readonly/gentd26/pod_gpu_memory_used_bytes_anon_dev_half.parquet"


@dataclass(frozen=True)
class Series:
    """One pod: t_s (s, from the start of the trace), used [0, 1], and the onset and limit time of its leak."""

    name: str
    t_s: np.ndarray
    used: np.ndarray
    shape: str = ""
    onset_s: float = np.nan
    limit_s: float = np.nan


def pods(path: Path, limit: float = 1.0) -> list[Series]:
    """The pods of a trace; `limit` is what a level of 1 means in the trace's unit."""
    table = pd.read_parquet(path)
    table = table.groupby(["container_ip", "timestamp_anon"], observed=True, as_index=False).value.mean()
    start = table.timestamp_anon.min()
    found = []
    for name, rows in table.groupby("container_ip", observed=True):
        ordered = rows.sort_values("timestamp_anon")
        found.append(
            Series(
                str(name), (ordered.timestamp_anon - start).to_numpy(float), ordered.value.to_numpy(float) / limit
            )
        )
    return found


def leaking(series: Series, shape: str, rng: np.random.Generator) -> Series:
    """The series with a leak from a random early onset; it ends where the limit is reached."""
    lasts_s = 3600.0 * float(np.exp(rng.uniform(np.log(2.0), np.log(72.0))))
    t_s, used = series.t_s, series.used
    onset_s = float(t_s[0] + (t_s[-1] - t_s[0]) * rng.uniform(0.05, 0.4))
    u = np.clip((t_s - onset_s) / lasts_s, 0.0, None)
    steps = int(rng.integers(8, 25))
    tooth = (u * steps) % 1.0
    level = {
        "linear": u,
        "accelerating": u**2,
        "stepwise": np.floor(u * steps) / steps,
        "sawtooth": np.maximum(u + (0.8 * tooth - 0.4) / steps * (u > 0), 0.0),
    }[shape]
    total = used + (1.0 - np.median(used[t_s >= onset_s])) * level
    kept = t_s <= onset_s + lasts_s
    return Series(series.name, t_s[kept], np.clip(total[kept], 0.0, 1.0), shape, onset_s, onset_s + lasts_s)


def ours(many: list[Series]) -> list[list[float]]:
    """Alarm times (s) by series, through the detector: a tick a minute, all series in one frame."""
    detector, inventory = MemoryLeak(), Inventory()
    boxes = tuple(Subject(SubjectKind.CONTAINER, f"bench/{n}/main") for n in range(len(many)))
    rows = {box: n for n, box in enumerate(boxes)}
    index, metrics = (
        SeriesIndex(SubjectKind.CONTAINER, boxes),
        ("container_memory_anonymous_bytes", "container_memory_limit_bytes"),
    )
    last_s = max(s.t_s[-1] for s in many)
    minutes = np.arange(0.0, last_s + 60.0, 60.0)
    grid = np.full((len(minutes), len(many)), np.nan)
    for n, s in enumerate(many):
        grid[(s.t_s // 60.0).astype(int), n] = s.used
    alarms: list[list[float]] = [[] for _ in many]
    firing: set[int] = set()
    epoch = np.zeros(len(many), dtype=np.int64)
    for minute, used in zip(minutes, grid, strict=True):
        values = np.column_stack([used * LIMIT_BYTES, np.where(np.isfinite(used), LIMIT_BYTES, np.nan)])
        at_s = 1e9 + minute
        frame = Frame(at_s, index, metrics, values, np.full((1, 2), at_s), epoch)
        for finding in detector.update(Tick(at_s, {SubjectKind.CONTAINER: frame}), inventory):
            n = rows[finding.subject]
            if finding.state is State.FIRING and n not in firing:
                firing.add(n)
                alarms[n].append(float(minute))
            elif finding.state is State.CLEAR:
                firing.discard(n)
    return alarms


def each(rule: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[list[Series]], list[list[float]]]:
    """A rule (t_s, used) → mask of alarmed samples; rising edges at least 30 minutes apart are alarms."""

    def alarms(many: list[Series]) -> list[list[float]]:
        found = []
        for s in many:
            mask = rule(s.t_s, s.used)
            edges: list[float] = []
            last_s = -np.inf
            for t in s.t_s[mask].tolist():
                if t - last_s > 1800.0:
                    edges.append(t)
                last_s = t
            found.append(edges)
        return found

    return alarms


def static(t_s: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Above 90 % of the limit for five minutes."""
    return (pd.Series(used > 0.9).rolling(5).sum() >= 5).to_numpy()


def predict_linear(t_s: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Prometheus' idiom: predict_linear(used[1h], 4h) beyond the limit, for 15 minutes."""
    return (pd.Series(_regression(t_s, used, 60, 4 * 3600.0) >= 1.0).rolling(15).sum() >= 15).to_numpy()


def backward_regression(t_s: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Linear backward regression: R² > 0.8 over the last six hours and the limit within a week."""
    found = np.zeros(len(used), dtype=bool)
    for i in range(360, len(used), 5):
        t, x = t_s[i - 360 : i], used[i - 360 : i]
        r = np.corrcoef(t, x)[0, 1] if x.std() > 1e-9 else 0.0
        slope = r * x.std() / t.std()
        found[i] = bool(r > 0 and r * r > 0.8 and (1.0 - x[-1]) / max(slope, 1e-12) < 7 * 86400.0)
    return found


def precog(t_s: np.ndarray, used: np.ndarray) -> np.ndarray:
    """After Precog (Jindal et al., 2021): R² > 0.8 since the last change point, the limit in a week."""
    found = np.zeros(len(used), dtype=bool)
    smooth = pd.Series(used).rolling(5, min_periods=1).median().to_numpy()
    change = np.concatenate([[0.0], np.abs(np.diff(smooth))]) > 0.05
    last_change = np.maximum.accumulate(np.where(change, np.arange(len(used)), 0))
    for i in range(60, len(used), 5):
        first = max(int(last_change[i]), i - 1440)
        if i - first < 60:
            continue
        t, x = t_s[first:i], smooth[first:i]
        r = np.corrcoef(t, x)[0, 1] if x.std() > 1e-9 else 0.0
        slope = r * x.std() / t.std()
        found[i] = bool(r > 0 and r * r > 0.8 and (1.0 - x[-1]) / max(slope, 1e-12) < 7 * 86400.0)
    return found


def _regression(t_s: np.ndarray, used: np.ndarray, window: int, ahead_s: float) -> np.ndarray:
    t, x = pd.Series(t_s), pd.Series(used)
    covariance = t.rolling(window).cov(x)
    slope = covariance / t.rolling(window).var().clip(lower=1e-9)
    result: np.ndarray = (x.rolling(window).mean() + slope * (t + ahead_s - t.rolling(window).mean())).to_numpy()
    return result


METHODS: dict[str, Callable[[list[Series]], list[list[float]]]] = {
    "nightshift": ours,
    "static 90 %": each(static),
    "predict_linear 4 h": each(predict_linear),
    "linear backward regression": each(backward_regression),
    "Precog's method": each(precog),
}


def half(name: str) -> int:
    """0 or 1 by the pod's name alone."""
    return hashlib.sha256(name.encode()).digest()[0] % 2


def score(
    healthy: list[Series], leaky: list[Series], method: Callable[[list[Series]], list[list[float]]]
) -> dict[str, Any]:
    days = sum(s.t_s[-1] - s.t_s[0] for s in healthy) / 86400.0
    false = method(healthy)
    count = sum(map(len, false))
    rows = []
    for s, alarms in zip(leaky, method(leaky), strict=True):
        after = [t for t in alarms if t >= s.onset_s]
        ok = bool(after) and after[0] <= s.limit_s - LEAD_S
        lead_h = (s.limit_s - after[0]) / 3600.0 if ok else np.nan
        rows.append((s.shape, ok, lead_h, s.limit_s <= s.t_s[-1] + 120.0, half(s.name)))
    table = pd.DataFrame(rows, columns=["shape", "found", "lead_h", "within", "half"])
    low, high = garwood(count, days)
    within = table[table.within]
    return {
        "healthy_series": len(healthy),
        "healthy_series_days": days,
        "false_alarms": count,
        "series_with_false_alarms": sum(bool(a) for a in false),
        "false_per_1000_series_days": 1000.0 * count / days,
        "false_interval": [1000.0 * low, 1000.0 * high],
        "held": "extrapolated" if days < 16.0 * 1000.0 / STATED else "measured",
        "leaks": len(table),
        "recall": table.found.mean(),
        "recall_interval": exact_interval(int(table.found.sum()), len(table)),
        "recall_where_the_limit_is_within_the_recording": within.found.mean(),
        "leaks_within": len(within),
        "recall_by_half_of_the_pods": [float(table[table.half == h].found.mean()) for h in (0, 1)],
        "recall_by_shape": table.groupby("shape").found.mean().to_dict(),
        "median_lead_h": table.lead_h.median(),
    }


def healthy_only(series: list[Series]) -> dict[str, Any]:
    days = sum(s.t_s[-1] - s.t_s[0] for s in series) / 86400.0
    count = sum(map(len, ours(series)))
    low, high = garwood(count, days)
    return {
        "healthy_series": len(series),
        "healthy_series_days": days,
        "false_alarms": count,
        "false_per_1000_series_days": 1000.0 * count / days,
        "false_interval": [1000.0 * low, 1000.0 * high],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--copies", type=int, default=2, help="leaks of each shape on every long series")
    parser.add_argument("--trace", default=TRACE)
    arguments = parser.parse_args()
    data = os.environ.get("NIGHTSHIFT_DATA")
    if not data:
        parser.error("NIGHTSHIFT_DATA does not name the folder of measurements")
    healthy = [s for s in pods(Path(data) / arguments.trace) if len(s.t_s) > 1]
    rng = np.random.default_rng(arguments.seed)
    long = [s for s in healthy if s.t_s[-1] - s.t_s[0] > 6 * 3600.0]
    leaky = [leaking(s, shape, rng) for shape in SHAPES for _ in range(arguments.copies) for s in long]
    results: dict[str, Any] = {name: score(healthy, leaky, method) for name, method in METHODS.items()}
    gpus = [s for s in pods(Path(data) / GPU_TRACE, GPU_BYTES) if len(s.t_s) > 1]
    results["nightshift, healthy GPU memory"] = healthy_only(gpus)
    write("detect_leak", results)


if __name__ == "__main__":
    main()
