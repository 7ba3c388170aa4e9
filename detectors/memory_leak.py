"""Memory that leaks, on GPUs and in containers: a floor that climbs, steadily, where the others' does not.

Two tests on the floor after collection (`detectors.floors`):

- *contrast*, minutes: this rank climbs and the other ranks of its job do not. The job's own ranks are the best
  control there is: they warm up, cache and grow with longer sequences alike.
- *patience*, hours: no peers (or all climb alike), so only a climb that outlives the stated patience, keeps its
  pace and heads for the limit counts; warm-up, allocator plateaus and caches end before that.

A restart or a free drops the floor and starts the test anew; a leak that comes back with the same slope after each
restart is the sawtooth, and its earlier teeth count as patience.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from collectors.frame import Floats, Frame
from collectors.subject import Inventory, Subject, SubjectKind
from collectors.tick import Tick
from detectors.base import Fault, Finding, RateBasis, SeriesExhibit, Severity, StatedRate
from detectors.climb import SHAPES, climbs
from detectors.contrast import Climb, assess, growth_over, risen
from detectors.episodes import Alarm, Episodes
from detectors.floors import Floors
from detectors.snapshot import pack, unpack
from detectors.table import Column, Rows, Table

VERSION = 2
"""1: a shorter patience ring and no life_s, lowest; its patience test starts anew, its episodes go on."""
GIB = float(2**30)
SHAPE_NAMES = (*(shape.name for shape in SHAPES), "near", "stairs")
UNLIMITED_HEADROOM_BYTES = 16 * GIB
"""Where no limit is known, growth is judged as if this much (or as much again as is used) were left."""


class LeakSettings(BaseModel):
    """Times are of the observed signal, in seconds; shares are of the limit (capacity or container limit)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    contrast_bucket_s: float = Field(
        default=20.0, gt=0, description="Width of a floor bucket of the test against peers"
    )
    contrast_buckets: int = Field(default=24, ge=6, description="Buckets of the test against peers")
    contrast_min_buckets: int = Field(
        default=10, ge=4, description="Climbing buckets that the test against peers needs"
    )
    contrast_ratio: float = Field(
        default=4.0, gt=1, description="A leak climbs this many times faster than its peers"
    )
    patience_bucket_s: float = Field(
        default=300.0, gt=0, description="Width of a floor bucket of the test without peers"
    )
    patience_buckets: int = Field(default=257, ge=16, description="Buckets of the test without peers")
    min_growth_bytes: float = Field(default=float(2**26), ge=0, description="Smaller climbs are never a leak")
    warmup_s: float = Field(default=60.0, ge=0, description="Time after a start or a drop that is not judged")
    settle_s: float = Field(default=600.0, ge=0, description="After this a process has its starting level")
    horizon_s: float = Field(
        default=72 * 3600.0, gt=0, description="A climb that needs longer to the limit is no alarm"
    )
    forget_s: float = Field(default=3600.0, gt=0, description="A subject unseen for this long is forgotten")


class _Signal:
    """One memory signal of one kind of subject: its state by subject and what it calls itself."""

    def __init__(self, kind: SubjectKind, fault: Fault, metric: str, settings: LeakSettings) -> None:
        self.kind, self.fault, self.metric = kind, fault, metric
        self.contrast = Floors("contrast", settings.contrast_bucket_s, settings.contrast_buckets)
        self.patience = Floors("patience", settings.patience_bucket_s, settings.patience_buckets)
        columns = {
            **self.contrast.columns(),
            **self.patience.columns(),
            "born_s": Column(np.float64, np.nan),
            "life_s": Column(np.float64, np.nan),
            "lowest": Column(np.float64, np.inf),
            "suspect": Column(np.bool_, 0),
            "level": Column(np.float64, np.nan),
            "limit": Column(np.float64, np.nan),
            "epoch": Column(np.int64, -1),
            "floor_at_onset": Column(np.float64, np.nan),
            "slope": Column(np.float64, np.nan),
        }
        self.table = Table(columns, settings.forget_s)


class MemoryLeak:
    """GPU_MEMORY_LEAK on GPUs, HOST_MEMORY_LEAK on containers."""

    plugin: ClassVar[str] = "memory_leak"
    Settings = LeakSettings

    def __init__(self, settings: LeakSettings | None = None) -> None:
        self.settings = settings or LeakSettings()
        self._episodes = Episodes(self.name, self.stated.per_1000_series_days / 1000.0)
        self._signals = self._fresh()

    def _fresh(self) -> tuple[_Signal, ...]:
        return (
            _Signal(SubjectKind.GPU, Fault.GPU_MEMORY_LEAK, "gpu_memory_used_bytes", self.settings),
            _Signal(
                SubjectKind.CONTAINER, Fault.HOST_MEMORY_LEAK, "container_memory_anonymous_bytes", self.settings
            ),
        )

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.GPU_MEMORY_LEAK, Fault.HOST_MEMORY_LEAK)

    @property
    def stated(self) -> StatedRate:
        return StatedRate(10.0, RateBasis.STATISTICAL, "benchmarks/detect_leak.py: healthy pod memory")

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        findings: list[Finding] = []
        for signal in self._signals:
            frame = tick.frames.get(signal.kind)
            if frame is not None and len(frame.index):
                self._take(signal, frame, tick.at_s, inventory)
            findings += self._report(signal, frame, tick.at_s)
        return findings

    def _take(self, signal: _Signal, frame: Frame, at_s: float, inventory: Inventory) -> None:
        table = signal.table
        rows = table.rows(frame.index, at_s)
        values, limit = _level_and_limit(signal.kind, frame)
        known = np.isfinite(values)
        new_epoch = (table["epoch"][rows] != frame.epoch) & (table["epoch"][rows] != -1)
        table["epoch"][rows] = frame.epoch
        level = table["level"][rows]
        with np.errstate(invalid="ignore"):
            dropped = (values < 0.7 * level - self.settings.min_growth_bytes) | new_epoch
            restarted = (dropped & (values < 1.1 * table["lowest"][rows])) | new_epoch
        if dropped.any():
            self._start_anew(signal, _slots(rows, len(values)), dropped, restarted, at_s)
        for since in ("born_s", "life_s"):
            known_since = table[since][rows]
            table[since][rows] = np.where(np.isnan(known_since) & known, at_s, known_since)
        table["level"][rows] = np.where(known, values, level)
        table["limit"][rows] = np.where(np.isfinite(limit), limit, table["limit"][rows])
        settled = at_s - table["life_s"][rows] >= self.settings.settle_s
        table["lowest"][rows] = np.where(settled, np.fmin(table["lowest"][rows], values), table["lowest"][rows])
        judged = np.where(at_s - table["born_s"][rows] >= self.settings.warmup_s, values, np.nan)
        if signal.contrast.add(table, rows, judged, at_s):
            self._test_contrast(signal, at_s, inventory)
        if signal.patience.add(table, rows, values, at_s):
            self._test_patience(signal, at_s, inventory)

    def _start_anew(
        self,
        signal: _Signal,
        slots: NDArray[np.int64],
        dropped: NDArray[np.bool_],
        restarted: NDArray[np.bool_],
        at_s: float,
    ) -> None:
        """A drop begins the contrast test anew. Only a drop to the starting level, or a new epoch, is a restart:
        a collection that leaves a higher floor than the last one is what a leak looks like.
        """
        table = signal.table
        table["born_s"][slots[dropped]] = at_s
        signal.contrast.forget(table, slots[dropped])
        table["life_s"][slots[restarted]] = at_s
        table["lowest"][slots[restarted]] = np.inf

    def _test_contrast(self, signal: _Signal, at_s: float, inventory: Inventory) -> None:
        s, table = self.settings, signal.table
        window = signal.contrast.window(table)
        candidates = risen(window, s.min_growth_bytes)
        if len(candidates) == 0:
            return
        climb = assess(window[candidates], signal.contrast.times_s(), s.contrast_bucket_s, s.min_growth_bytes)
        enough = climb.lasted_s >= (s.contrast_min_buckets - 1) * s.contrast_bucket_s
        for row in np.flatnonzero(climb.steady & enough).tolist():
            slot = int(candidates[row])
            subject = table.subjects[slot]
            peers = _peers(subject, signal, inventory, at_s)
            if len(peers) == 0 or not self._heads_for_limit(signal, slot, climb, row):
                continue
            grown = growth_over(window[peers], climb.lasted_s[row], s.contrast_bucket_s)
            grown = grown[np.isfinite(grown)]
            if len(grown) == 0:
                continue
            usual = max(float(np.median(grown)), 0.0)
            alike = float(np.mean(grown > climb.growth_bytes[row] / s.contrast_ratio))
            if climb.growth_bytes[row] > s.contrast_ratio * usual + 0.5 * s.min_growth_bytes and alike <= 0.34:
                facts: dict[str, float | str] = {
                    "peers": float(len(grown)),
                    "peer_growth_bytes": usual,
                    "test": "contrast",
                }
                self._fire(signal, signal.contrast, slot, climb, row, at_s, facts, inventory)

    def _test_patience(self, signal: _Signal, at_s: float, inventory: Inventory) -> None:
        s, table = self.settings, signal.table
        window = signal.patience.window(table)
        candidates = risen(window, s.min_growth_bytes)
        if len(candidates) == 0:
            table["suspect"][:] = False
            return
        floors = window[candidates].astype(float)
        limit = table["limit"][candidates]
        lowest = np.fmin.reduce(floors, axis=1)
        limit = np.where(np.isfinite(limit), limit, lowest + np.maximum(lowest, UNLIMITED_HEADROOM_BYTES))
        age = np.nan_to_num((at_s - table["life_s"][candidates]) // s.patience_bucket_s).astype(np.int64)
        seen = climbs(floors, limit, age, s.patience_bucket_s, s.horizon_s)
        width_s = s.patience_bucket_s
        lasted_s: Floats = (seen.buckets * width_s).astype(np.float64)
        climb = Climb(
            seen.found,
            seen.growth,
            lasted_s,
            seen.slope / width_s,
            seen.slope_low / width_s,
            seen.slope_high / width_s,
        )
        found = seen.found & (seen.growth >= s.min_growth_bytes)
        confirmed = found & table["suspect"][candidates]
        table["suspect"][:] = False
        table["suspect"][candidates] = found
        for row in np.flatnonzero(confirmed).tolist():
            facts: dict[str, float | str] = {"test": "patience", "shape": SHAPE_NAMES[int(seen.shape[row])]}
            self._fire(signal, signal.patience, int(candidates[row]), climb, row, at_s, facts, inventory)

    def _heads_for_limit(self, signal: _Signal, slot: int, climb: Climb, row: int) -> bool:
        eta_s = self._eta_s(signal, slot, float(climb.slope[row]))
        return bool(climb.slope[row] > 0) and not (eta_s > self.settings.horizon_s)

    def _eta_s(self, signal: _Signal, slot: int, slope: float) -> float:
        """Time to the limit at this pace (s); NaN where no limit is known."""
        left = float(signal.table["limit"][slot] - signal.table["level"][slot])
        return max(left, 0.0) / slope if slope > 0 else np.inf

    def _fire(
        self,
        signal: _Signal,
        floors: Floors,
        slot: int,
        climb: Climb,
        row: int,
        at_s: float,
        facts: dict[str, float | str],
        inventory: Inventory,
    ) -> None:
        table, subject = signal.table, signal.table.subjects[slot]
        slope, level = float(climb.slope[row]), float(table["level"][slot])
        since_s = at_s - float(climb.lasted_s[row]) - floors.width_s
        start = level - float(climb.growth_bytes[row])
        if (signal.fault, subject) not in self._episodes:
            table["floor_at_onset"][slot], table["slope"][slot] = start, slope
        eta_s = self._eta_s(signal, slot, slope)
        interval = [self._eta_s(signal, slot, float(v)) for v in (climb.slope_high[row], climb.slope_low[row])]
        told: dict[str, float | str] = {
            **facts,
            "slope_bytes_per_h": 3600.0 * slope,
            "growth_bytes": float(climb.growth_bytes[row]),
            "level_bytes": level,
        }
        if np.isfinite(eta_s):
            told |= {"eta_s": eta_s, "eta_low_s": interval[0], "limit_bytes": float(table["limit"][slot])}
            told |= {"eta_high_s": interval[1]} if np.isfinite(interval[1]) else {}
        rank = _rank(subject, inventory, at_s)
        told |= {"rank": rank.name} if rank else {}
        window, t_s = floors.window(table, np.array([slot]))[0], floors.times_s()
        seen = np.isfinite(window)
        place = "GPU memory" if signal.kind is SubjectKind.GPU else "Anonymous memory"
        summary = f"{place} climbs {3600 * slope / GIB:+.2f} GiB/h for {climb.lasted_s[row] / 60:.0f} min"
        if "peer_growth_bytes" in facts:
            pace = float(facts["peer_growth_bytes"]) / max(float(climb.lasted_s[row]), 1.0)
            summary += f"; the job's {int(float(facts['peers']))} other ranks {3600 * pace / GIB:+.2f} GiB/h"
        if np.isfinite(eta_s):
            summary += f"; limit in {eta_s / 3600:.1f} h"
        exhibit = SeriesExhibit(
            subject,
            signal.metric,
            "bytes",
            tuple(t_s[seen].tolist()),
            tuple(window[seen].astype(float).tolist()),
            start,
            "",
            f"lowest value in every {floors.width_s:.0f} s",
        )
        severity = Severity.CRITICAL if eta_s < 3600.0 else Severity.WARNING
        threshold = self.settings.min_growth_bytes
        alarm = Alarm(
            signal.fault,
            subject,
            since_s,
            severity,
            summary,
            float(climb.growth_bytes[row]),
            threshold,
            evidence=(exhibit,),
            facts=told,
        )
        self._episodes.fire(alarm, at_s)

    def _report(self, signal: _Signal, frame: Frame | None, at_s: float) -> list[Finding]:
        """What each open episode of this signal says in this tick: still firing, dropped, stopped or unseen."""
        findings: list[Finding] = []
        for fault, subject in tuple(self._episodes):
            if fault is not signal.fault:
                continue
            slot, row = signal.table.slot(subject), None if frame is None else frame.index.rows.get(subject)
            if slot is None:
                continue
            value = np.nan if row is None or frame is None else _level_and_limit(signal.kind, frame)[0][row]
            found: Finding | None
            if not np.isfinite(value):
                found = self._episodes.no_data(fault, subject, at_s, f"{signal.metric} is missing")
            elif self._dropped(signal, slot, float(value)):
                found = self._episodes.clear(fault, subject, at_s, "Memory was freed: back near its level before")
            elif self._stopped(signal, slot):
                found = self._episodes.clear(fault, subject, at_s, "Memory no longer climbs")
            else:
                found = self._episodes.again(fault, subject, at_s)
            findings += [found] if found else []
        return findings

    def _dropped(self, signal: _Signal, slot: int, value: float) -> bool:
        known = self._episodes.get(signal.fault, signal.table.subjects[slot])
        highest = float(known.facts.get("level_bytes", np.nan)) if known else np.nan
        start = float(signal.table["floor_at_onset"][slot])
        return bool(value < start + 0.5 * (highest - start))

    def _stopped(self, signal: _Signal, slot: int) -> bool:
        """A full window without a tenth of the climb that fired."""
        window = signal.contrast.window(signal.table, np.array([slot]))[0]
        if not np.isfinite(window).sum() >= self.settings.contrast_buckets - 1:
            return False
        seen = window[np.isfinite(window)]
        span_s = (len(seen) - 1) * self.settings.contrast_bucket_s
        return bool(seen[-1] - seen[0] < 0.1 * float(signal.table["slope"][slot]) * span_s)

    def snapshot(self) -> bytes:
        meta: dict[str, Any] = {"episodes": self._episodes.saved(), "signals": {}}
        arrays: dict[str, NDArray[Any]] = {}
        for signal in self._signals:
            subjects, columns = signal.table.saved()
            buckets = [signal.contrast.bucket, signal.patience.bucket]
            meta["signals"][signal.kind.value] = {"subjects": subjects, "buckets": buckets}
            arrays |= {f"{signal.kind.value}/{name}": array for name, array in columns.items()}
        return pack(self.name, VERSION, meta, arrays)

    def restore(self, state: bytes) -> None:
        version, meta, arrays = unpack(state, self.name, (1, VERSION))
        signals, episodes = self._fresh(), Episodes(self.name, self.stated.per_1000_series_days / 1000.0)
        episodes.load(meta["episodes"])
        for signal in signals:
            saved = meta["signals"][signal.kind.value]
            prefix = f"{signal.kind.value}/"
            columns = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
            if version == 1:
                columns = {name: a for name, a in columns.items() if not name.startswith("table.patience.")}
            signal.table.load(saved["subjects"], columns)
            signal.contrast.bucket, signal.patience.bucket = saved["buckets"]
        self._signals, self._episodes = signals, episodes


def _slots(rows: Rows, count: int) -> NDArray[np.int64]:
    return np.arange(rows.start, rows.start + count) if isinstance(rows, slice) else rows


def _level_and_limit(kind: SubjectKind, frame: Frame) -> tuple[Floats, Floats]:
    """[n] bytes in use and [n] bytes at most; NaN where unknown or unlimited."""
    if kind is SubjectKind.GPU:
        values = _bytes(frame.column("gpu_memory_used_bytes"))
        return values, values + _bytes(frame.column("gpu_memory_free_bytes"))
    anonymous = _bytes(frame.column("container_memory_anonymous_bytes"))
    working = _bytes(frame.column("container_memory_working_set_bytes"))
    limit = _bytes(frame.column("container_memory_limit_bytes"))
    values = np.where(np.isfinite(anonymous), anonymous, working)
    return values, np.where(limit > 0, limit, np.nan)


def _bytes(values: Floats) -> Floats:
    """Sizes as exported, NaN where one cannot be a size (cAdvisor spells "no limit" as 0 or as 2^63)."""
    return np.where((values >= 0) & (values < 2.0**53), values, np.nan)


def _peers(subject: Subject, signal: _Signal, inventory: Inventory, at_s: float) -> NDArray[np.int64]:
    """Slots of the same thing at the other ranks of the subject's job; containers by the same container name."""
    job = inventory.above(subject, SubjectKind.JOB, at_s)
    if job is None:
        return np.zeros(0, dtype=np.int64)
    others = [s for s in inventory.below(job, signal.kind, at_s) if s != subject]
    if signal.kind is SubjectKind.CONTAINER:
        others = [s for s in others if s.name.rpartition("/")[2] == subject.name.rpartition("/")[2]]
    slots = [signal.table.slot(s) for s in others]
    return np.array([slot for slot in slots if slot is not None], dtype=np.int64)


def _rank(subject: Subject, inventory: Inventory, at_s: float) -> Subject | None:
    rank = inventory.above(subject, SubjectKind.RANK, at_s)
    if rank is not None:
        return rank
    pod = inventory.above(subject, SubjectKind.POD, at_s)
    ranks = inventory.children(pod, at_s, SubjectKind.RANK) if pod else []
    return ranks[0] if len(ranks) == 1 else None
