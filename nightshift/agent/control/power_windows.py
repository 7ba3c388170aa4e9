"""Telemetry of GPUs and jobs, gathered into windows: mean draw, the limit as it is enforced, work per second.

A job's speed is its training steps per second inside the window, the median over its ranks; a job that tells no
steps has no speed (NaN), and then no policy may slow it.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from nightshift.collectors.frame import Frame, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.actuators.kube_queue_follow import unnumbered
from nightshift.detectors.hardware.throttle import POWER_CAP, REASONS

_COLUMNS = {
    "draw_w": "gpu_power_w",
    "limit_w": "gpu_power_limit_w",
    "clock_mhz": "gpu_sm_clock_mhz",
    "sm_active": "gpu_sm_active_ratio",
    "dram_active": "gpu_dram_active_ratio",
    "temperature_c": "gpu_temperature_c",
}


_DRAW = list(_COLUMNS).index("draw_w")
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


@dataclass(slots=True)
class _Sums:
    """Of one GPU in one window. `sums`, `counts`: in the order of `_COLUMNS`."""

    sums: list[float] = field(default_factory=lambda: [0.0] * len(_COLUMNS))
    counts: list[int] = field(default_factory=lambda: [0] * len(_COLUMNS))
    limit_w: float = math.nan
    read_s: float = -math.inf
    low_w: float = math.inf
    high_w: float = -math.inf
    clock_mhz: list[float] = field(default_factory=list)
    clock_read_s: float = -math.inf
    reasons: int = 0

    @property
    def steady(self) -> bool:
        return 0.0 <= self.high_w - self.low_w < 1.0


class GpuWindows:
    """Gathers ticks; `close` gives the window and begins another."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._gpus: dict[Subject, _Sums] = defaultdict(_Sums)
        self._steps: dict[Subject, list[float]] = defaultdict(list)
        self._last_step_s: dict[str, float] = {}
        self._lock = threading.RLock()  # looks are taken in one thread, windows closed in another

    def take(self, tick: Tick) -> None:
        with self._lock:
            self._take(tick)

    def _take(self, tick: Tick) -> None:
        frame = tick.frames.get(SubjectKind.GPU)
        if frame is not None:
            columns = {name: frame.column(metric) for name, metric in _COLUMNS.items()}
            values = np.column_stack(list(columns.values())).tolist()
            read_s = frame.times_s("gpu_power_limit_w")
            clock_s, reasons = frame.times_s("gpu_sm_clock_mhz"), frame.column("gpu_throttle_reasons")
            for row, gpu in enumerate(frame.index.subjects):
                sums = self._gpus[gpu]
                for place, value in enumerate(values[row]):
                    # no GPU that is on draws nothing: a meter that reads 0 is broken
                    if 0.0 <= value < math.inf and (value or place != _DRAW):
                        sums.sums[place] += value
                        sums.counts[place] += 1
                if math.isfinite(columns["limit_w"][row]) and math.isfinite(read_s[row]):
                    sums.limit_w, sums.read_s = float(columns["limit_w"][row]), float(read_s[row])
                    sums.low_w, sums.high_w = min(sums.low_w, sums.limit_w), max(sums.high_w, sums.limit_w)
                if math.isfinite(columns["clock_mhz"][row]) and math.isfinite(clock_s[row]):
                    sums.clock_mhz.append(float(columns["clock_mhz"][row]))
                    sums.clock_read_s = float(clock_s[row])
                if math.isfinite(reasons[row]):
                    sums.reasons |= int(reasons[row])
        for series in tick.steps:
            self._take_steps(series)

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
        for row, gpu in enumerate(frame.index.subjects):
            node = self._inventory.above(gpu, SubjectKind.NODE, tick.at_s)
            if node is not None:
                found[node.name] += float(draws[row])
        for gpu, limit_mw in self._not_shown(frame).items():
            node = self._inventory.above(gpu, SubjectKind.NODE, tick.at_s)
            if node is not None and node.name in found:
                found[node.name] += limit_mw
        return found

    def _not_shown(self, frame: Frame) -> dict[Subject, float]:
        """GPUs that were seen before and are not in the frame, with their newest limits (mW)."""
        with self._lock:
            if len(self._gpus) <= len(frame.index):
                return {}
            shown = set(frame.index.subjects)
            return {gpu: sums.limit_w * 1000.0 for gpu, sums in self._gpus.items() if gpu not in shown}

    def close(self, at_s: float) -> tuple[list[GpuWindow], Mapping[str, tuple[float, float]]]:
        """(GPUs, job → (work per second, age of its last step)). Begins the next window."""
        with self._lock:
            return self._close(at_s)

    def _close(self, at_s: float) -> tuple[list[GpuWindow], Mapping[str, tuple[float, float]]]:
        gpus = self.peek(at_s)
        speeds = self._speeds(at_s)
        self._steps.clear()
        # limits and the time of their reading are kept: an old one is old, not gone
        kept = {s: _Sums(limit_w=old.limit_w, read_s=old.read_s) for s, old in self._gpus.items()}
        self._gpus = defaultdict(_Sums, kept)
        return gpus, speeds

    def peek(self, at_s: float) -> list[GpuWindow]:
        """GPUs as they are by now, in the middle of a window."""
        gpus = []
        with self._lock:
            now = list(self._gpus.items())
        for subject, sums in now:
            kinds = (SubjectKind.NODE, SubjectKind.JOB, SubjectKind.POD)
            node, job, pod = self._inventory.nearest(subject, kinds, at_s)
            means = [
                total / count if count else math.nan for total, count in zip(sums.sums, sums.counts, strict=True)
            ]
            gpus.append(
                GpuWindow(
                    subject.name,
                    "" if node is None else node.name,
                    "" if job is None else job.name,
                    **{**dict(zip(_COLUMNS, means, strict=True)), "limit_w": sums.limit_w},
                    read_s=sums.read_s,
                    steady=sums.steady,
                    clock_now_mhz=sums.clock_mhz[-1] if sums.clock_mhz else math.nan,
                    clock_read_s=sums.clock_read_s,
                    clock_low_mhz=min(sums.clock_mhz, default=math.nan),
                    clock_high_mhz=max(sums.clock_mhz, default=math.nan),
                    throttled=bool(sums.reasons & _THROTTLED),
                    hot=bool(sums.reasons & _HOT),
                    workload=self._workload(subject, job, pod),
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
        jobs = set()
        for subject, sums in self._gpus.items():
            if subject.name in changed:
                self._gpus[subject] = _Sums(limit_w=sums.limit_w, read_s=sums.read_s)
                job = self._inventory.above(subject, SubjectKind.JOB, at_s)
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


def mean(values: Sequence[float]) -> float:
    """Of those that are known; NaN where none is."""
    known = [v for v in values if math.isfinite(v)]
    return sum(known) / len(known) if known else math.nan
