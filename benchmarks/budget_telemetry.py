"""Healthy telemetry for `benchmarks.budget`: a serving trace, recorded training, imbalance without a slow rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.detect_straggler import bytedance
from nightshift.collectors.frame import Frame, SeriesIndex, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from tests.recordings.replay import Job, h200, h200_rank

GENAI = "readonly/gentd26/pod_{}_anon_dev_half.parquet"
LIMIT_BYTES = 64.0 * 2**30
DAY_S = 86400.0
GPU_METRICS = ("gpu_utilization_percent", "gpu_memory_used_bytes")
HEALTHY = ("train_ok", "train_varlen_benign", "train_periodic_eval_benign", "train_spike_recovers")
HEALTHY_RANKS = ("healthy", "varlen_benign", "eval_rank0_benign")


def serving(folder: Path) -> tuple[list[Tick], dict[SubjectKind, np.ndarray]]:
    """The trace as ticks of one minute, and observed seconds by kind and series."""
    tables = {n: pd.read_parquet(folder / GENAI.format(n)) for n in (
        "gpu_duty_cycle", "gpu_memory_used_bytes", "memory_util")}  # fmt: skip
    start = min(t.timestamp_anon.min() for t in tables.values())
    grids = {}
    for name, table in tables.items():
        minute = ((table.timestamp_anon - start) // 60).astype(int)
        placed = table.assign(minute=minute)
        grids[name] = placed.pivot_table(
            index="minute", columns="container_ip", values="value", aggfunc="last", observed=True
        )
    minutes = range(int(max(g.index.max() for g in grids.values())) + 1)
    grids = {name: g.reindex(minutes) for name, g in grids.items()}
    pods = grids["gpu_duty_cycle"].columns.union(grids["gpu_memory_used_bytes"].columns)
    duty = grids["gpu_duty_cycle"].reindex(columns=pods).to_numpy(float)
    used = grids["gpu_memory_used_bytes"].reindex(columns=pods).to_numpy(float)
    boxes = grids["memory_util"].columns
    memory = grids["memory_util"].to_numpy(float) * LIMIT_BYTES
    gpu_index = SeriesIndex(SubjectKind.GPU, tuple(Subject(SubjectKind.GPU, f"GPU-{p}") for p in pods))
    box_index = SeriesIndex(
        SubjectKind.CONTAINER, tuple(Subject(SubjectKind.CONTAINER, f"serving/{b}/main") for b in boxes)
    )
    ticks = []
    for minute in minutes:
        at_s = 1.7e9 + 60.0 * minute
        limit = np.where(np.isfinite(memory[minute]), LIMIT_BYTES, np.nan)
        gpus = np.column_stack([duty[minute], used[minute]])
        hosts = np.column_stack([memory[minute], limit])
        ticks.append(
            Tick(
                at_s,
                {
                    SubjectKind.GPU: _frame(at_s, gpu_index, GPU_METRICS, gpus),
                    SubjectKind.CONTAINER: _frame(
                        at_s,
                        box_index,
                        ("container_memory_anonymous_bytes", "container_memory_limit_bytes"),
                        hosts,
                    ),
                },
            )
        )
    seen = {
        SubjectKind.GPU: 60.0 * np.isfinite(duty + used).sum(axis=0),
        SubjectKind.CONTAINER: 60.0 * np.isfinite(memory).sum(axis=0),
    }
    return ticks, seen


def _frame(at_s: float, index: SeriesIndex, metrics: tuple[str, ...], values: np.ndarray) -> Frame:
    return Frame(
        at_s, index, metrics, values, np.full((1, len(metrics)), at_s), np.zeros(len(index), dtype=np.int64)
    )


def recordings() -> list[Job]:
    """Healthy recorded phases at the pace at which they ran."""
    alone = [Job([[h200(name)]], name, tick_s=0.2) for name in HEALTHY]
    pairs = [Job([[h200_rank(name, 0)], [h200_rank(name, 1)]], name, tick_s=0.25) for name in HEALTHY_RANKS]
    return alone + pairs


def imbalance(path: Path) -> tuple[Iterator[Tick], Inventory, float]:
    """A ByteDance trace as ticks: healthy hardware, unequal sequences or stages; its rank-days, counted once."""
    steps, stages = bytedance(path)
    inventory, job = Inventory(), Subject(SubjectKind.JOB, "bench/job")
    ranks = {r: Subject(SubjectKind.RANK, f"bench/job#{r}") for r in sorted(steps["rank"].unique())}
    for number, rank in ranks.items():
        inventory.observe(rank, job, -1.0)
        inventory.describe(rank, pipeline_stage=str(stages[number]))

    def ticks() -> Iterator[Tick]:
        for number, rows in steps.groupby(steps.t_s // 5.0):
            series = [
                StepSeries(
                    ranks[r],
                    "run",
                    own.step.to_numpy(np.int64),
                    own.t_s.to_numpy(float),
                    {"compute_s": own.compute_s.to_numpy(float)},
                    "bench",
                )
                for r, own in rows.groupby("rank")
            ]
            yield Tick((float(number) + 1.0) * 5.0, steps=tuple(series))

    once_s = (steps.t_s.max() - steps.t_s.min()) / 2.0  # the trace is played twice over
    return ticks(), inventory, len(ranks) * once_s / DAY_S
