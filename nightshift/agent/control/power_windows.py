"""Telemetry of GPUs and jobs, gathered into windows: mean draw, the limit as it is enforced, work per second.

A job's speed is its training steps per second inside the window, the median over its ranks; a job that tells no
steps has no speed (NaN), and then no policy may slow it.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats, Frame, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.actuators.kube_queue_follow import unnumbered
from nightshift.detectors.hardware.throttle import POWER_CAP, REASONS
from nightshift.detectors.series_table import Column, Rows, SeriesTable

_COLUMNS = {
    "draw_w": "gpu_power_w",
    "limit_w": "gpu_power_limit_w",
    "clock_mhz": "gpu_sm_clock_mhz",
    "sm_active": "gpu_sm_active_ratio",
    "dram_active": "gpu_dram_active_ratio",
    "temperature_c": "gpu_temperature_c",
}


_DRAW, _LIMIT, _CLOCK = (list(_COLUMNS).index(name) for name in ("draw_w", "limit_w", "clock_mhz"))
_HOT = sum(REASONS)
_THROTTLED = POWER_CAP | _HOT
"""Bits of the throttle reasons."""


@dataclass(frozen=True, slots=True)
class GpuWindow:
    """Of one GPU: means over the window, the newest enforced limit, and when it was read. NaN: not seen. `steady`:
    every reading of the limit in the window was the same."""

    uuid: str
    node: str
    job: str
    draw_w: float
    limit_w: float
    read_s: float
    clock_mhz: float
    sm_active: float
    dram_active: float
    temperature_c: float
    steady: bool = True
    clock_now_mhz: float = math.nan  # the newest reading, when, and the extremes of the window
    clock_read_s: float = -math.inf
    clock_low_mhz: float = math.nan
    clock_high_mhz: float = math.nan
    throttled: bool = False  # at any reading, by heat, a power brake or the power limit
    hot: bool = False  # at any reading, by heat or a power brake
    workload: str = ""  # the same for the next run of the same workload; empty where its pod is not known


_NEWEST = {"limit_w": Column(float, math.nan), "read_s": Column(float, -math.inf)}
"""Kept from window to window: an old limit is old, not gone."""
_OF_WINDOW = {
    "sums": Column(float, 0.0, (len(_COLUMNS),)),
    "counts": Column(np.int64, 0, (len(_COLUMNS),)),
    "low_w": Column(float, math.inf),
    "high_w": Column(float, -math.inf),
    "clock_mhz": Column(float, math.nan),
    "clock_low_mhz": Column(float, math.nan),
    "clock_high_mhz": Column(float, math.nan),
    "clock_read_s": Column(float, -math.inf),
    "reasons": Column(np.int64, 0),
}


class GpuWindows:
    """Gathers ticks; `close` gives the window and begins another."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        # what a GPU's limit was counts for as long as its node is there, however long it is silent
        self._table = SeriesTable({**_NEWEST, **_OF_WINDOW}, math.inf)
        self._steps: dict[Subject, list[float]] = defaultdict(list)
        self._last_step_s: dict[str, float] = {}
        self._lock = threading.RLock()  # looks are taken in one thread, windows closed in another

    def take(self, tick: Tick) -> None:
        with self._lock:
            if (frame := tick.frames.get(SubjectKind.GPU)) is not None:
                self._take(frame, tick.at_s)
            for series in tick.steps:
                self._take_steps(series)

    def _take(self, frame: Frame, at_s: float) -> None:
        """Whole columns at a time: fleets are large."""
        table = self._table
        rows = table.rows(frame.index, at_s)
        values = np.column_stack([frame.column(metric) for metric in _COLUMNS.values()])
        with np.errstate(invalid="ignore"):
            good = (values >= 0.0) & (values < math.inf)
        # no GPU that is on draws nothing: a meter that reads 0 is broken
        good[:, _DRAW] &= values[:, _DRAW] != 0.0
        table["sums"][rows] += np.where(good, values, 0.0)
        table["counts"][rows] += good
        limit_w, read_s = values[:, _LIMIT], frame.times_s("gpu_power_limit_w")
        known = np.isfinite(limit_w) & np.isfinite(read_s)
        _put(table, "limit_w", rows, known, limit_w)
        _put(table, "read_s", rows, known, read_s)
        _put(table, "low_w", rows, known, np.fmin(table["low_w"][rows], limit_w))
        _put(table, "high_w", rows, known, np.fmax(table["high_w"][rows], limit_w))
        clock_mhz, clock_s = values[:, _CLOCK], frame.times_s("gpu_sm_clock_mhz")
        known = np.isfinite(clock_mhz) & np.isfinite(clock_s)
        _put(table, "clock_mhz", rows, known, clock_mhz)
        _put(table, "clock_read_s", rows, known, clock_s)
        _put(table, "clock_low_mhz", rows, known, np.fmin(table["clock_low_mhz"][rows], clock_mhz))
        _put(table, "clock_high_mhz", rows, known, np.fmax(table["clock_high_mhz"][rows], clock_mhz))
        reasons = frame.column("gpu_throttle_reasons")
        table["reasons"][rows] |= np.where(np.isfinite(reasons), reasons, 0.0).astype(np.int64)

    def _take_steps(self, series: StepSeries) -> None:
        times = series.t_s[np.isfinite(series.t_s)]
        self._steps[series.subject].extend(times.tolist())

    def draws_mw(self, tick: Tick) -> dict[str, float]:
        """Node → sum of the newest draws of its GPUs (mW); NaN where one of them is not known. One that the node
        showed before and does not show now may still draw what its limit was: it counts at that."""
        frame = tick.frames.get(SubjectKind.GPU)
        found: dict[str, float] = defaultdict(float)
        if frame is None:
            return found
        draws = frame.column("gpu_power_w") * 1000.0
        draws = np.where(draws > 0.0, draws, np.nan)  # no GPU that is on draws nothing, or less
        nodes = self._inventory.nearest_each(frame.index.subjects, (SubjectKind.NODE,), tick.at_s)
        for draw_mw, (node,) in zip(draws.tolist(), nodes, strict=True):
            if node is not None:
                found[node.name] += draw_mw
        for gpu, limit_mw in self._not_shown(frame).items():
            node = self._inventory.above(gpu, SubjectKind.NODE, tick.at_s)
            if node is not None and node.name in found:
                found[node.name] += limit_mw
        return found

    def _not_shown(self, frame: Frame) -> dict[Subject, float]:
        """GPUs that were seen before and are not in the frame, with their newest limits (mW)."""
        with self._lock:
            if len(self._table) <= len(frame.index):
                return {}
            shown = frame.index.rows
            limits = zip(self._table.subjects, self._table["limit_w"].tolist(), strict=True)
            return {gpu: limit_w * 1000.0 for gpu, limit_w in limits if gpu not in shown}

    def close(self, at_s: float) -> tuple[list[GpuWindow], Mapping[str, tuple[float, float]]]:
        """(GPUs, job → (work per second, age of its last step)). Begins the next window."""
        with self._lock:
            return self._close(at_s)

    def _close(self, at_s: float) -> tuple[list[GpuWindow], Mapping[str, tuple[float, float]]]:
        gpus = self.peek(at_s)
        speeds = self._speeds(at_s)
        self._steps.clear()
        self._fresh(slice(None))
        return gpus, speeds

    def _fresh(self, slots: slice | list[int]) -> None:
        """Begins a window of these GPUs."""
        for name, column in _OF_WINDOW.items():
            self._table[name][slots] = column.fill

    def peek(self, at_s: float) -> list[GpuWindow]:
        """GPUs as they are by now, in the middle of a window."""
        with self._lock:
            subjects = list(self._table.subjects)
            columns = {name: array.copy() for name, array in self._table.arrays.items()}
        with np.errstate(invalid="ignore"):
            means = np.where(columns["counts"] > 0, columns["sums"] / np.maximum(columns["counts"], 1), np.nan)
            range_w = columns["high_w"] - columns["low_w"]
        told = (
            means, columns["limit_w"], columns["read_s"], (range_w >= 0.0) & (range_w < 1.0),
            columns["clock_mhz"], columns["clock_read_s"], columns["clock_low_mhz"], columns["clock_high_mhz"],
            (columns["reasons"] & _THROTTLED) != 0, (columns["reasons"] & _HOT) != 0,
        )  # fmt: skip
        kinds = (SubjectKind.NODE, SubjectKind.JOB, SubjectKind.POD)
        above = self._inventory.nearest_each(subjects, kinds, at_s)
        columns_of = zip(*(column.tolist() for column in told), strict=True)
        gpus = []
        for gpu, (node, job, pod), row in zip(subjects, above, columns_of, strict=True):
            means_of, limit_w, read_s, steady, now_mhz, clock_s, low_mhz, high_mhz, throttled, hot = row
            gpus.append(
                GpuWindow(
                    gpu.name,
                    "" if node is None else node.name,
                    "" if job is None else job.name,
                    **{**dict(zip(_COLUMNS, means_of, strict=True)), "limit_w": limit_w},
                    read_s=read_s,
                    steady=steady,
                    clock_now_mhz=now_mhz,
                    clock_read_s=clock_s,
                    clock_low_mhz=low_mhz,
                    clock_high_mhz=high_mhz,
                    throttled=throttled,
                    hot=hot,
                    workload=self._workload(gpu, job, pod),
                )
            )
        return gpus

    def _workload(self, gpu: Subject, job: Subject | None, pod: Subject | None) -> str:
        """What the next run of the same workload has in common with this one: name but for its number, image,
        batch, GPUs of a pod and their model."""
        if job is None or pod is None:
            return ""
        facts = self._inventory.facts(pod)
        of_pod = (facts.get(name, "") for name in ("image", "batch", "gpus"))
        return "|".join((unnumbered(job.name), *of_pod, self._inventory.fact(gpu, "model") or ""))

    def restart(self, uuids: Iterable[str], at_s: float) -> None:
        """Their limits change in the middle of a window: it counts from now, for them and their jobs."""
        with self._lock:
            self._restart(set(uuids), at_s)

    def _restart(self, changed: set[str], at_s: float) -> None:
        slots = [slot for slot, subject in enumerate(self._table.subjects) if subject.name in changed]
        self._fresh(slots)
        jobs = set()
        for slot in slots:
            job = self._inventory.above(self._table.subjects[slot], SubjectKind.JOB, at_s)
            jobs.add("" if job is None else job.name)
        for subject, times in self._steps.items():
            if _job(subject) in jobs:
                times[:] = [t for t in times if t >= at_s]

    def _speeds(self, at_s: float) -> dict[str, tuple[float, float]]:
        rates: dict[str, list[float]] = defaultdict(list)
        last: dict[str, float] = dict(self._last_step_s)
        for subject, times in self._steps.items():
            job = _job(subject)
            ordered = sorted(set(times))
            if ordered:
                last[job] = max(last.get(job, -math.inf), ordered[-1])
            # a single interval is mostly chance: a window holds one where a step takes long
            if len(ordered) >= 3:
                rates[job].append((len(ordered) - 1) / (ordered[-1] - ordered[0]))
        self._last_step_s = {job: t for job, t in last.items() if at_s - t < 3600.0}
        return {job: (median(rates[job]) if job in rates else math.nan, at_s - t) for job, t in last.items()}


def _job(subject: Subject) -> str:
    return subject.name.rpartition("#")[0] if subject.kind is SubjectKind.RANK else subject.name


def _put(table: SeriesTable, name: str, rows: Rows, known: NDArray[np.bool_], values: Floats) -> None:
    """Sets a column where the values are known."""
    table[name][rows] = np.where(known, values, table[name][rows])


def mean(values: Sequence[float]) -> float:
    """Of those that are known; NaN where none is."""
    known = [v for v in values if math.isfinite(v)]
    return sum(known) / len(known) if known else math.nan
