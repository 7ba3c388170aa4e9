"""Recorded phases as ticks, the way a fleet would tell them: one recorded sample is one scrape, 5 s apart.

A job of ranks is built from phases: each rank replays one phase, so that one rank can be at fault while its peers
are well, or all can do the same benign thing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from nightshift.collectors.frame import Frame, SeriesIndex, SourceStatus, StepSeries
from nightshift.collectors.recording import read
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick

HERE = Path(__file__).parent
TICK_S = 5.0
START_S = 1_790_000_000.0
H200_BYTES = 150_754_820_096.0
HOST_LIMIT_BYTES = 16.0 * 2**30
GPU_METRICS = (
    "gpu_memory_used_bytes",
    "gpu_memory_free_bytes",
    "gpu_power_w",
    "gpu_temperature_c",
    "gpu_sm_clock_mhz",
    "gpu_utilization_percent",
    "gpu_throttle_reasons",
    "gpu_ecc_sbe_total",
    "gpu_ecc_dbe_total",
    "gpu_row_remap_pending",
    "gpu_row_remap_failure",
)
BOX_METRICS = (
    "container_memory_working_set_bytes",
    "container_memory_anonymous_bytes",
    "container_memory_limit_bytes",
)


@dataclass(frozen=True)
class Phase:
    """One rank's recorded phase. gpu [n, len(GPU_METRICS)], rss_bytes [n], steps with their time in samples."""

    gpu: np.ndarray
    rss_bytes: np.ndarray
    step: np.ndarray
    at_sample: np.ndarray
    loss: np.ndarray
    grad_norm: np.ndarray

    def __len__(self) -> int:
        return len(self.gpu)


@cache
def _tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    return pd.read_csv(HERE / "h200_telemetry.csv.gz"), pd.read_csv(HERE / "h200_losses.csv.gz")


@cache
def h200(name: str) -> Phase:
    """A phase of the single-GPU recording."""
    telemetry, losses = _tables()
    rows, steps = telemetry[telemetry.phase == name], losses[losses.phase == name]
    gpu = _gpu(rows.fb_used, rows.power / 1000.0, rows.temp, rows.sm_clk, rows.util, rows.throttle)
    at_sample = np.interp(steps.ts, rows.ts, np.arange(len(rows)))
    return Phase(
        gpu,
        rows.rss.to_numpy(float),
        steps.step.to_numpy(np.int64),
        at_sample,
        steps.loss.to_numpy(float),
        steps.grad_norm.to_numpy(float),
    )


@cache
def h200_rank(name: str, rank: int) -> Phase:
    """A phase of one rank of the two-GPU recording (4 Hz)."""
    gpus, steps = pd.read_csv(HERE / "h200_ranks_gpus.csv.gz"), pd.read_csv(HERE / "h200_ranks_steps.csv.gz")
    steps = steps[(steps.phase == name) & (steps["rank"] == rank)]
    first, last = steps.ts_s.min(), steps.ts_s.max()
    rows = gpus[(gpus.gpu == rank) & (gpus.ts >= first) & (gpus.ts <= last)]
    gpu = _gpu(rows.fb_used, rows.power / 1000.0, rows.temp, rows.sm_clk, rows.util, rows.throttle)
    at_sample = np.interp(steps.ts_s, rows.ts, np.arange(len(rows)))
    rss = np.interp(rows.ts, steps.ts_s, steps.rss_bytes)
    loss, norm = steps.local_loss.to_numpy(float), steps.grad_norm.to_numpy(float)
    return Phase(gpu, rss, steps.step.to_numpy(np.int64), at_sample, loss, norm)


def _gpu(
    used: pd.Series, power_w: pd.Series, temp: pd.Series, clock: pd.Series, util: pd.Series, mask: pd.Series
) -> np.ndarray:  # type: ignore[type-arg]
    n = len(used)
    zeros = np.zeros(n)
    free = H200_BYTES - used
    return np.column_stack([used, free, power_w, temp, clock, util, mask, zeros, zeros, zeros, zeros]).astype(float)


class Job:
    """A job whose ranks replay phases, one after the other, on one node each eight ranks."""

    def __init__(self, ranks: Sequence[Sequence[Phase]], name: str = "train", tick_s: float = TICK_S) -> None:
        self.ranks, self.tick_s, self.name = [list(r) for r in ranks], tick_s, name
        self.job = Subject(SubjectKind.JOB, f"ml/{name}")
        count = range(len(self.ranks))
        self.rank = [Subject(SubjectKind.RANK, f"ml/{name}#{r}") for r in count]
        self.gpu = [Subject(SubjectKind.GPU, f"GPU-{name}-{r}") for r in count]
        self.pod = [Subject(SubjectKind.POD, f"ml/{name}-{r}") for r in count]
        self.box = [Subject(SubjectKind.CONTAINER, f"ml/{name}-{r}/main") for r in count]
        self.node = [Subject(SubjectKind.NODE, f"node-{r // 8}") for r in count]
        self.source = Subject(SubjectKind.SOURCE, "replay")
        self.gpu_index = SeriesIndex(SubjectKind.GPU, tuple(self.gpu))
        self.box_index = SeriesIndex(SubjectKind.CONTAINER, tuple(self.box))

    def inventory(self, at_s: float = START_S - 10.0) -> Inventory:
        inventory = Inventory()
        for gpu, node, pod, box, rank in zip(self.gpu, self.node, self.pod, self.box, self.rank, strict=True):
            inventory.observe(gpu, node, at_s)
            inventory.observe(gpu, pod, at_s)
            inventory.observe(pod, node, at_s)
            inventory.observe(pod, self.job, at_s)
            inventory.observe(box, pod, at_s)
            inventory.observe(gpu, rank, at_s)
            inventory.observe(rank, pod, at_s)
            inventory.observe(rank, self.job, at_s)
        return inventory

    def __len__(self) -> int:
        return min(sum(len(p) for p in phases) for phases in self.ranks)

    def _at(self, rank: int, sample: int) -> tuple[int, Phase, int]:
        number = 0
        for number, phase in enumerate(self.ranks[rank]):
            if sample < len(phase):
                return number, phase, sample
            sample -= len(phase)
        return number, self.ranks[rank][-1], len(self.ranks[rank][-1]) - 1

    def ticks(self, start_s: float = START_S) -> Iterator[Tick]:
        for sample in range(len(self)):
            at_s = start_s + sample * self.tick_s
            now = [self._at(r, sample) for r in range(len(self.ranks))]
            gpu = np.stack([phase.gpu[s] for _, phase, s in now])
            rss = np.array([phase.rss_bytes[s] for _, phase, s in now])
            box = np.column_stack([rss, rss, np.full(len(rss), HOST_LIMIT_BYTES)])
            frames = {
                SubjectKind.GPU: _frame(at_s, self.gpu_index, GPU_METRICS, gpu),
                SubjectKind.CONTAINER: _frame(at_s, self.box_index, BOX_METRICS, box),
            }
            steps = [s for r, (number, phase, k) in enumerate(now) if (s := self._steps(r, number, phase, k, at_s))]
            yield Tick(at_s, frames, tuple(steps), sources=(SourceStatus(self.source, at_s, ok=True),))

    def _steps(self, rank: int, number: int, phase: Phase, sample: int, at_s: float) -> StepSeries | None:
        seen = (phase.at_sample > sample - 1) & (phase.at_sample <= sample)
        if sample == 0:
            seen |= phase.at_sample <= 0
        if not seen.any():
            return None
        t_s = at_s + (phase.at_sample[seen] - sample) * self.tick_s
        columns = {"loss": phase.loss[seen], "grad_norm": phase.grad_norm[seen]}
        return StepSeries(self.rank[rank], str(number), phase.step[seen], t_s, columns, "replay")


def _frame(at_s: float, index: SeriesIndex, metrics: tuple[str, ...], values: np.ndarray) -> Frame:  # type: ignore[type-arg]
    observed = np.full((1, len(metrics)), at_s)
    return Frame(at_s, index, metrics, values, observed, np.zeros(len(index), dtype=np.int64))


def cut(phase: Phase, first: int, last: int | None = None) -> Phase:
    """The samples [first, last) of a phase, with their steps."""
    end = len(phase) if last is None else last
    steps = (phase.at_sample >= first) & (phase.at_sample < end)
    at_sample = phase.at_sample[steps] - first
    return Phase(
        phase.gpu[first:end],
        phase.rss_bytes[first:end],
        phase.step[steps],
        at_sample,
        phase.loss[steps],
        phase.grad_norm[steps],
    )


@cache
def _vision() -> tuple[tuple[Tick, ...], dict[str, tuple[float, float]]]:
    labels = json.loads((HERE / "h200_vision_labels.json").read_text())
    spans = {p["phase"]: (p["start_s"], p["end_s"]) for p in labels["phases"]}
    return tuple(recorded.tick for recorded in read(HERE / "h200_vision.nightshift.gz")), spans


@cache
def vision(name: str) -> Phase:
    """A phase of the vision transformer's recording, made by `nightshift node` at 4 Hz."""
    ticks, spans = _vision()
    first_s, last_s = spans[name]
    here = [tick for tick in ticks if first_s <= tick.at_s <= last_s]
    gpu = np.stack([[tick.frames[SubjectKind.GPU].column(m)[0] for m in GPU_METRICS] for tick in here])
    gpu[:, GPU_METRICS.index("gpu_ecc_sbe_total") :] = 0.0  # this GPU keeps no volatile counters for a guest
    rss = np.array([tick.frames[SubjectKind.CONTAINER].column(BOX_METRICS[1])[0] for tick in here])
    steps = [s for tick in ticks for s in tick.steps]
    t_s, step = (np.concatenate([getattr(s, field) for s in steps]) for field in ("t_s", "step"))
    told = {name: np.concatenate([s.column(name) for s in steps]) for name in ("loss", "grad_norm")}
    inside = (t_s >= first_s) & (t_s <= last_s) & ~np.isnan(told["loss"])
    at_sample = np.interp(t_s[inside], [tick.at_s for tick in here], np.arange(len(here)))
    return Phase(gpu, rss, step[inside], at_sample, told["loss"][inside], told["grad_norm"][inside])
