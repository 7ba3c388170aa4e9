"""Hangs, stalls and stragglers on histories that no recording has, and on recorded ranks.

Everything here is drawn, or our own recording of two ranks (`tests/recordings`), with waits added to one rank's
steps; nothing is fetched, and `folder` is not read. The public traces with ranks (ByteDance, of imbalance without a
slow rank) are scored by `python -m benchmarks.detect_straggler`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.detect_straggler import RECORDING, STRETCH, TICK_S
from nightshift.collectors.frame import StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import State
from nightshift.detectors.contract.testing import changes, inventory, rank, tick
from nightshift.detectors.contract.world import START_S
from nightshift.detectors.progress.hang import Hang
from nightshift.detectors.progress.stall import DataStall
from nightshift.detectors.progress.straggler import Straggler

GIB = 2.0**30
JOB_NAME = "bench/job"
WORKS = {"gpu_utilization_percent": 97.0, "gpu_power_w": 600.0}
IDLES = {"gpu_utilization_percent": 0.0, "gpu_power_w": 110.0}
EARLIER_GIB = (0.0, 5.0, 13.0, 40.0, 80.0, 140.0)
SEEDS = range(10)
REPEATS = 3
"""A recorded phase is ten seconds to twenty; played so often one after the other it is five minutes and more."""


def _look(at_s: float, row: dict[str, float], new: np.ndarray, times: np.ndarray, ranks: int = 2) -> Tick:
    series = [
        StepSeries(rank(r), "run", new, times[new], {"loss": np.full(len(new), 2.0)}, "log") for r in range(ranks)
    ]
    return replace(tick(at_s, dict.fromkeys(range(ranks), row)), steps=tuple(series) if len(new) else ())


def after_an_earlier_job(earlier_gib: float, ends: bool) -> Iterator[Tick]:
    """A job holds so much for five minutes; two minutes later one that holds 6 GiB trains for five, and then hangs,
    or ends."""
    times = START_S + 420.0 + 0.5 * np.arange(1, 601)
    for at_s in START_S + 5.0 * np.arange(0, 240):
        if at_s < START_S + 300.0:
            row = {**WORKS, "gpu_memory_used_bytes": earlier_gib * GIB}
        elif at_s <= times[0]:
            row = {**IDLES, "gpu_memory_used_bytes": 0.5 * GIB}
        elif at_s <= times[-1]:
            row = {**WORKS, "gpu_memory_used_bytes": 6.0 * GIB}
        else:
            row = {**IDLES, "gpu_memory_used_bytes": (0.5 if ends else 6.0) * GIB}
        yield _look(float(at_s), row, np.flatnonzero((times > at_s - 5.0) & (times <= at_s)), times)


def hangs() -> dict[str, Any]:
    """Delay of the first alarm after the last step (s) by what an earlier job held; alarms where the job ended."""
    last_s, delays, false = START_S + 720.0, {}, 0
    for gib in EARLIER_GIB:
        found = changes(Hang(), list(after_an_earlier_job(gib, ends=False)), inventory(2))
        delays[f"{gib:g} GiB"] = min((f.at.t_s - last_s for f in found), default=None)
        false += len(changes(Hang(), list(after_an_earlier_job(gib, ends=True)), inventory(2)))
    return {"delay_s": delays, "alarms_where_the_job_ended": false}


def checkpoints_after_a_hang() -> dict[str, list[str]]:
    """A hang of five minutes that ends by itself, then checkpoints of six seconds each minute: what is said."""
    took = np.array([0.5] * 600 + [300.0] + ([0.5] * 120 + [6.0]) * 8 + [0.5] * 200)
    times = START_S + np.cumsum(took)
    pauses = [(end - t, end) for end, t in zip(times, took, strict=True) if t > 1.0]
    ticks = []
    for at_s in np.arange(START_S, times[-1], 5.0):
        idle = any(a < at_s <= b for a, b in pauses)
        row = {**(IDLES if idle else WORKS), "gpu_memory_used_bytes": 6e10}
        ticks.append(_look(float(at_s), row, np.flatnonzero((times > at_s - 5.0) & (times <= at_s)), times))
    said = {}
    for detector in (Hang(), DataStall()):
        said[detector.name] = [str(f.state) for f in changes(detector, ticks, inventory(2)) if f.subject == rank(0)]
    return said


def recorded(
    phase: str, slow_share: float, wait_s: float, seed: int, of_all: bool = False
) -> tuple[list[str], float | None, float]:
    """(ranks named, after how many seconds of data, share of the speed that the job lost) of a phase played
    REPEATS times at STRETCH of its speed; in a share of the steps rank 1's loader takes `wait_s` longer, or, with
    `of_all`, the loader of a rank that is drawn for each step."""
    table = pd.read_csv(RECORDING)
    table = table[table.phase == phase].sort_values(["step", "rank"])
    draw, job = np.random.default_rng(seed), Subject(SubjectKind.JOB, JOB_NAME)
    known, detector = Inventory(), Straggler()
    ranks = {int(r): Subject(SubjectKind.RANK, f"{JOB_NAME}#{r}") for r in table["rank"].unique().tolist()}
    for one in ranks.values():
        known.observe(one, job, -1.0)
    steps = {r: table[table["rank"] == r].reset_index(drop=True) for r in ranks}
    count = min(len(rows) for rows in steps.values())
    took = np.diff(steps[0].ts_s.to_numpy(float)[:count], prepend=steps[0].ts_s.iloc[0] - 0.05)
    whole = np.tile(np.maximum(took, 1e-3), REPEATS) * STRETCH
    slow = draw.random(len(whole)) < slow_share
    late = draw.integers(0, len(ranks), len(whole)) if of_all else np.ones(len(whole), dtype=int)
    times = np.cumsum(whole + STRETCH * wait_s * slow)
    named: list[str] = []
    first_s = None
    for at_s in np.arange(TICK_S, times[-1] + TICK_S, TICK_S):
        new = np.flatnonzero((times > at_s - TICK_S) & (times <= at_s))
        series = []
        for r, rows in steps.items():
            data_s = rows.data_s.to_numpy(float)[new % count] + wait_s * (slow[new] & (late[new] == r))
            columns = {"compute_s": rows.compute_s.to_numpy(float)[new % count], "data_s": data_s}
            series.append(StepSeries(ranks[r], "run", new, times[new], columns, "bench"))
        for finding in detector.update(Tick(float(at_s), steps=tuple(series) if len(new) else ()), known):
            if finding.state is State.FIRING:
                named.append(finding.subject.name)
                first_s = float(at_s) if first_s is None else first_s
    return sorted(set(named)), first_s, float(1.0 - whole.sum() / times[-1])


def loaders() -> dict[str, Any]:
    """An intermittent loader on the recorded healthy phase, by how often and how long it is slow; and the benign
    phases as they are, and with waits that fall on any rank."""
    found: dict[str, Any] = {}
    for share, wait_s in ((0.135, 0.15), (0.135, 0.08), (0.25, 0.08), (0.08, 0.3), (0.08, 0.15)):
        said = [recorded("healthy", share, wait_s, seed) for seed in SEEDS]
        right = [seconds for names, seconds, _ in said if names == [f"{JOB_NAME}#1"] and seconds is not None]
        found[f"{share:g} of steps, {wait_s:g} s"] = {
            "named_within_300_s": [sum(seconds <= 300.0 for seconds in right), len(said)],
            "others_named": sum(any(not name.endswith("#1") for name in names) for names, _, _ in said),
            "slowest_s": max(right, default=None),
            "speed_lost": round(float(np.mean([lost for _, _, lost in said])), 3),
        }
    for phase in ("healthy", "varlen_benign", "eval_rank0_benign"):
        found[phase] = {"named": recorded(phase, 0.0, 0.0, 0)[0]}
        slow = [recorded(phase, share, 0.15, seed, of_all=True)[0] for seed in SEEDS for share in (0.08, 0.135)]
        found[f"{phase}, a shared store slow for any rank"] = {
            "named": sorted({name for row in slow for name in row})
        }
    return found


def measure(folder: Path) -> dict[str, Any]:
    """All of the above; `folder` is not read."""
    return {"hangs": hangs(), "after_a_hang": checkpoints_after_a_hang(), "loaders": loaders()}
