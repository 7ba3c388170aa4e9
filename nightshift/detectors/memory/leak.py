"""Memory that leaks, on GPUs, in MIG instances and in containers: a floor that climbs, where the others' does not.

Three tests on the floor after collection (`detectors.memory.floors`):

- *contrast*, minutes: this rank climbs and the other ranks of its job do not. The job's own ranks are the best
  control there is: they warm up, cache and grow with longer sequences alike.
- *patience*, hours: no peers (or all climb alike), so only a climb that outlives the stated patience, keeps its
  pace and heads for the limit counts; warm-up, allocator plateaus and caches end before that. Beside it, a
  saw counts whose troughs rise where the other ranks' do not (`detectors.memory.teeth`).
- *steep*, minutes, without peers: a climb that keeps its slowest pace fills the limit within minutes.

Without peers a climb is compared with days of the same series: what rose, stayed up and came down before is a tide
(`detectors.memory.climb.falls_back`). Where a climb was told and ended while its process stayed, the next one must
take a larger share of the free memory.

A restart or a free drops the floor and starts the test anew. A climb that was told and then freed while its process
went on was a tooth of a saw (a cache that is flushed, steps between evaluations): the next one is told once it is
well above it, as a leak's teeth come to be, or fills nine tenths of the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats, Frame
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.lanes import REDO_S
from nightshift.detectors.alarms.promise import stated
from nightshift.detectors.base import Fault, Finding, SeriesExhibit, Severity, State, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.memory import teeth
from nightshift.detectors.memory.climb import REVERTED, SHAPES, by_chance, climbs, falls, falls_back, gradual, odds
from nightshift.detectors.memory.contrast import Climb, assess, assess_paired, growth_over, risen
from nightshift.detectors.memory.floors import Floors
from nightshift.detectors.memory.signals import (
    CONTRAST_BUCKET_S,
    CONTRAST_BUCKETS,
    CONTRAST_MIN_BUCKETS,
    CONTRAST_RATIO,
    CREST_SHARE,
    EMPTY,
    HORIZON_S,
    MIN_GROWTH_BYTES,
    SETTLE_S,
    WARMUP_S,
    LeakSettings,
    LeakSignal,
    level_and_limit,
    peers_of,
    rank_of,
    slots_of,
)
from nightshift.detectors.snapshot import pack, unpack

VERSION = 2
"""1: a shorter patience ring and no life_s, lowest; its patience test starts anew, its episodes go on."""
GIB = float(2**30)
SHAPE_NAMES = (*(shape.name for shape in SHAPES), "near", "stairs")
SOON_S, NEARLY_FULL = REDO_S, 0.5
"""A leak that has filled half of a hard limit and needs less than an hour for the rest is a near-fact
(`detectors.alarms.lanes`), if its last half kept at least half its pace: who waits for more hears it from the
kernel.
Host memory follows the day, so there a day (TIDE_S) must have been seen in which no such climb came down, and the
climb is NO_CHANCE times what its usual steps come to by chance."""
TIDE_S = 86400.0
NO_CHANCE = 3.0
HURRY_S = 7200.0
"""A climb of hours is told at its second look; at its first where the limit is so near."""
STEEP_S, STEEP_ETA_S, STEEP_GROWTH, STEEP_LEFT = 240.0, 300.0, 0.04, 0.35
"""A steep climb has lasted so long (s), will fill the limit within so long (s, and two buckets), took such a share
of the limit, and has at most such a share left: a leak of ten minutes is told two minutes before its end."""
UNLIMITED_HEADROOM_BYTES = 16 * GIB
"""Where no limit is known, growth is judged as if this much (or as much again as is used) were left."""


class MemoryLeak:
    """GPU_MEMORY_LEAK on GPUs and MIG instances, HOST_MEMORY_LEAK on containers.

    >>> from nightshift.detectors.contract.testing import START_S, show, tick
    >>> def rows(n):
    ...     used = {g: 40e9 + (4e7 * n if g == 0 else 0.0) for g in range(8)}  # GPU 0 grows by 8 MB/s
    ...     return {g: {"gpu_memory_used_bytes": b, "gpu_memory_free_bytes": 80e9 - b} for g, b in used.items()}
    >>> show(MemoryLeak(), [tick(START_S + 5 * n, rows(n)) for n in range(160)])
    260 s: firing gpu_memory_leak gpu:GPU-0
        GPU memory climbs: 1.34 GiB in 3 min, by now +26.82 GiB/h; the job's 7 other ranks +0.00 GiB; limit in 1.3 h
    """

    plugin: ClassVar[str] = "memory_leak"
    LOOSE: ClassVar[float] = 0.2
    Settings = LeakSettings

    def __init__(self, settings: LeakSettings | None = None) -> None:
        self.settings = settings or LeakSettings()
        self._episodes = Episodes(self.name, self.stated.per_1000_series_days / 1000.0)
        self._signals = self._fresh()

    def expect(self, step_s: float) -> None:
        """Before the first look, where looks come `step_s` apart: no bucket is shorter than a look."""
        for signal in self._signals:
            signal.contrast = Floors("contrast", max(CONTRAST_BUCKET_S, step_s), CONTRAST_BUCKETS)

    def _fresh(self) -> tuple[LeakSignal, ...]:
        kinds = (SubjectKind.GPU, SubjectKind.MIG, SubjectKind.CONTAINER)
        return tuple(LeakSignal(kind, self.settings) for kind in kinds)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.GPU_MEMORY_LEAK, Fault.HOST_MEMORY_LEAK)

    @property
    def strength(self) -> float:
        return self.settings.strength

    @property
    def stated(self) -> StatedRate:
        source = "benchmarks/detect_leak.py: healthy pod memory"
        also = (SubjectKind.MIG, SubjectKind.CONTAINER)
        return stated(self.plugin, 10.0, source, self.settings.strength, also=also)

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        findings: list[Finding] = []
        for signal in self._signals:
            frame = tick.frames.get(signal.kind)
            if frame is not None and len(frame.index):
                signal.pace(tick.at_s)
                self._take(signal, frame, tick.at_s, inventory)
            findings += self._report(signal, frame, tick.at_s)
        return findings

    def _take(self, signal: LeakSignal, frame: Frame, at_s: float, inventory: Inventory) -> None:
        table = signal.table
        rows = table.rows(frame.index, at_s)
        values, limit = level_and_limit(signal.kind, frame)
        known = np.isfinite(values)
        signal.observed = np.zeros(len(table), dtype=bool)
        signal.observed[rows] = known
        new_epoch = (table["epoch"][rows] != frame.epoch) & (table["epoch"][rows] != -1)
        table["epoch"][rows] = frame.epoch
        level = table["level"][rows]
        ended = signal.ended(rows, values) | new_epoch
        with np.errstate(invalid="ignore"):
            dropped = (values < 0.7 * level - MIN_GROWTH_BYTES) | new_epoch
            restarted = (dropped & (values < 1.1 * table["lowest"][rows])) | new_epoch
        if dropped.any():
            slots = slots_of(rows, len(values))
            signal.start_anew(slots[dropped], slots[restarted], slots[ended], at_s)
        for since in ("born_s", "life_s"):
            known_since = table[since][rows]
            table[since][rows] = np.where(np.isnan(known_since) & known, at_s, known_since)
        table["level"][rows] = np.where(known, values, level)
        table["limit"][rows] = np.where(np.isfinite(limit), limit, table["limit"][rows])
        signal.top(rows, values, ended, at_s)
        settled = dropped | (at_s - table["life_s"][rows] >= SETTLE_S)
        table["lowest"][rows] = np.where(settled, np.fmin(table["lowest"][rows], values), table["lowest"][rows])
        signal.days.add(table, rows, values, at_s)
        judged = np.where(at_s - table["born_s"][rows] >= WARMUP_S, values, np.nan)
        if signal.contrast.add(table, rows, judged, at_s):
            self._test_contrast(signal, at_s, inventory)
            self._test_steep(signal, at_s, inventory)
        if signal.patience.add(table, rows, values, at_s):
            self._test_patience(signal, at_s, inventory)

    def _test_contrast(self, signal: LeakSignal, at_s: float, inventory: Inventory) -> None:
        s, table = self.settings, signal.table
        window = signal.contrast.window(table)
        candidates, width_s = risen(window, MIN_GROWTH_BYTES), signal.contrast.width_s
        if len(candidates) == 0:
            return
        climb = assess(window[candidates], signal.contrast.times_s(), width_s, MIN_GROWTH_BYTES)
        enough = climb.lasted_s >= (CONTRAST_MIN_BUCKETS - 1) * width_s
        for row in np.flatnonzero(climb.steady & enough).tolist():
            slot = int(candidates[row])
            subject = table.subjects[slot]
            if not signal.observed[slot] or (
                (signal.fault, subject) not in self._episodes and signal.is_tooth(slot)
            ):
                continue  # not seen now: what it did before is no news
            if rank_of(subject, inventory, at_s) is None:
                continue  # replicas of a service hold what their own users bring them: no control
            peers = peers_of(subject, signal, inventory, at_s)
            if len(peers) == 0 or not self._heads_for_limit(signal, slot, climb, row):
                continue
            grown = growth_over(window[peers], climb.lasted_s[row], width_s, climb.growth_bytes[row])
            grown = grown[np.isfinite(grown)]
            if len(grown) == 0:
                continue
            usual = max(float(np.median(grown)), 0.0)
            with_it = float(np.mean(grown > climb.growth_bytes[row] / CONTRAST_RATIO))
            strength = float(climb.growth_bytes[row]) / (CONTRAST_RATIO * usual + 0.5 * MIN_GROWTH_BYTES)
            if strength > s.strength and with_it <= 0.34:
                facts: dict[str, float | str] = {
                    "peers": float(len(grown)),
                    "peer_growth_bytes": usual,
                    "test": "contrast",
                }
                self._fire(signal, signal.contrast, slot, climb, row, at_s, strength, facts, inventory)

    def _test_steep(self, signal: LeakSignal, at_s: float, inventory: Inventory) -> None:
        """A climb of minutes that fills the limit within minutes: no peers and no hours are waited for."""
        table, floors = signal.table, signal.contrast
        window = floors.window(table)
        candidates = risen(window, MIN_GROWTH_BYTES)
        candidates = candidates[signal.observed[candidates] & np.isfinite(table["limit"][candidates])]
        if len(candidates):
            limit, last = table["limit"][candidates], window[candidates, -1]
            grown = last - np.fmin.reduce(window[candidates], axis=1) >= STEEP_GROWTH * limit
            # far from the limit no climb of the window can be about to end
            # the last floor is a bucket old: by now as much is gone as that bucket brought
            since = last - window[candidates, -2]
            candidates = candidates[grown & (limit - last - np.nan_to_num(since) <= STEEP_LEFT * limit)]
        if len(candidates) == 0:
            return
        climb = assess_paired(window[candidates], floors.times_s(), floors.width_s, MIN_GROWTH_BYTES)
        limit = table["limit"][candidates]
        left = np.maximum(limit - climb.end, 0.0)
        half = np.maximum((climb.lasted_s / floors.width_s / 2).astype(np.int64), 1)
        last = window[candidates, -1] - window[candidates, -1 - half]
        with np.errstate(invalid="ignore"):
            # the slowest pace within the climb: what slows down is a cache that fills, what wavers is a tide
            pace = np.minimum(climb.slope_low, last / (half * floors.width_s))
            # the last floor is a bucket old, and the next word comes a bucket later
            soon = left <= pace * (STEEP_ETA_S + 2.0 * floors.width_s)
            steep = climb.steady & (climb.lasted_s >= STEEP_S) & soon
            steep &= (left <= pace * climb.lasted_s) & (climb.growth_bytes >= STEEP_GROWTH * limit)
        rows = np.flatnonzero(steep)
        past = signal.past(candidates[rows])
        back = falls_back(past, climb.growth_bytes[rows], climb.end[rows], limit[rows])
        # who freed as much by itself, with its process still there, has teeth: the other tests judge it
        ring = signal.patience.window(table)[candidates[rows]].astype(np.float64)
        with np.errstate(invalid="ignore"):
            fell = np.where(ring > EMPTY * limit[rows, None], np.fmax.accumulate(ring, axis=1) - ring, 0.0)
            back |= np.fmax.reduce(fell, axis=1, initial=0.0) >= REVERTED * climb.growth_bytes[rows]
        for row in rows[~back].tolist():
            slot = int(candidates[row])
            told = self._episodes.get(signal.fault, table.subjects[slot])
            # a tooth on a leak that the other tests told climbs like this, and says less of it than they did
            if signal.is_tooth(slot) if told is None else told.facts.get("test") != "steep":
                continue
            grown = climb.growth_bytes[row : row + 1]
            strength = float(odds(grown / (grown + left[row]), 0.5)[0])
            facts: dict[str, float | str] = {"test": "steep"}
            self._fire(signal, floors, slot, climb, row, at_s, strength, facts, inventory)

    def _test_patience(self, signal: LeakSignal, at_s: float, inventory: Inventory) -> None:
        s, table = self.settings, signal.table
        window = signal.patience.window(table)
        candidates = risen(window, MIN_GROWTH_BYTES)
        # nothing climbs: who was suspected once would be told at its next single sign
        if len(candidates) == 0:
            table["suspect"][:] = False
            return
        floors = window[candidates].astype(float)
        limit = table["limit"][candidates]
        end = np.nan_to_num(floors[:, -1])
        limit = np.where(np.isfinite(limit), limit, end + np.maximum(end, UNLIMITED_HEADROOM_BYTES))
        width_s = signal.patience.width_s
        age = np.nan_to_num((at_s - table["life_s"][candidates]) // width_s).astype(np.int64)
        seen = climbs(floors, limit, age, width_s, HORIZON_S, s.strength)
        lasted_s: Floats = (seen.buckets * width_s).astype(np.float64)
        climb = Climb(
            seen.found,
            seen.growth,
            lasted_s,
            seen.slope / width_s,
            seen.slope_low / width_s,
            seen.slope_high / width_s,
            seen.end,
        )
        found = seen.found & (seen.growth >= MIN_GROWTH_BYTES)
        crest_h = (CREST_SHARE * lasted_s / 3600.0).astype(np.int64)  # less than an hour is not asked for
        for hours in np.unique(crest_h[found]).tolist():
            at = np.flatnonzero(found & (crest_h == hours))
            past = signal.past(candidates[at], 3600.0 * hours)
            past = np.where(seen.clean[at, None], gradual(past), past)
            found[at] = ~falls_back(past, seen.growth[at], seen.end[at], limit[at])
        # a second look costs much of the time that is left
        hurried = limit - seen.end <= climb.slope * HURRY_S
        confirmed = found & (table["suspect"][candidates] | hurried)
        table["suspect"][:] = False
        table["suspect"][candidates] = found
        saw, told = teeth.told(signal, window, candidates, s, inventory, at_s)
        for row, strength, facts in told:
            self._fire(signal, signal.patience, int(candidates[row]), saw, row, at_s, strength, facts, inventory)
        saws = {row for row, *_ in told}
        share = seen.growth / np.maximum(limit - seen.end + seen.growth, 1.0)
        news = signal.is_news(candidates, share, seen.clean)
        for row in np.flatnonzero(confirmed & signal.observed[candidates]).tolist():
            if row in saws:
                continue  # told by its troughs: what rises on the last of them is a tooth
            slot = int(candidates[row])
            strength = float(seen.strength[row])
            is_new = (signal.fault, table.subjects[slot]) not in self._episodes
            if is_new and (signal.is_tooth(slot) or not news[row]):
                continue
            facts = {"test": "patience", "shape": SHAPE_NAMES[int(seen.shape[row])]}
            facts |= {"noise": "low"} if seen.clean[row] else {}
            self._fire(signal, signal.patience, slot, climb, row, at_s, strength, facts, inventory)

    def _heads_for_limit(self, signal: LeakSignal, slot: int, climb: Climb, row: int) -> bool:
        eta_s = signal.eta_s(slot, float(climb.slope[row]))
        return bool(climb.slope[row] > 0) and not (eta_s > HORIZON_S)

    def _fire(
        self,
        signal: LeakSignal,
        floors: Floors,
        slot: int,
        climb: Climb,
        row: int,
        at_s: float,
        strength: float,
        facts: dict[str, float | str],
        inventory: Inventory,
    ) -> None:
        table, subject = signal.table, signal.table.subjects[slot]
        slope, level = float(climb.slope[row]), float(table["level"][slot])
        since_s = at_s - float(climb.lasted_s[row]) - floors.width_s
        window, t_s = floors.window(table, np.array([slot]))[0], floors.times_s()
        floor = float(climb.end[row])  # the level, and the last bucket, may be a tooth's
        start = floor - float(climb.growth_bytes[row])
        if (signal.fault, subject) not in self._episodes:
            table["floor_at_onset"][slot], table["slope"][slot] = start, slope
        crest = floors is signal.patience
        eta_s = signal.eta_s(slot, slope, crest)
        interval = [signal.eta_s(slot, float(v), crest) for v in (climb.slope_high[row], climb.slope_low[row])]
        told: dict[str, float | str] = {
            **facts,
            "slope_bytes_per_h": 3600.0 * slope,
            "growth_bytes": float(climb.growth_bytes[row]),
            "lasted_s": float(climb.lasted_s[row]),
            "level_bytes": level,
            "floor_bytes": floor,
        }
        if np.isfinite(eta_s):
            told |= {"eta_s": eta_s, "eta_low_s": interval[0], "limit_bytes": float(table["limit"][slot])}
            told |= {"eta_high_s": interval[1]} if np.isfinite(interval[1]) else {}
        rank = rank_of(subject, inventory, at_s)
        told |= {"rank": rank.name} if rank else {}
        seen = np.isfinite(window)
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
        severity = Severity.CRITICAL if eta_s < SOON_S else Severity.WARNING
        lasted_s = float(climb.lasted_s[row])
        growth = float(climb.growth_bytes[row])
        pressing = self._pressing(signal, slot, eta_s, growth, lasted_s, at_s) if strength >= 1.0 else {}
        # a model that is loaded climbs as evenly as a steep leak, and the waves of a tide near the limit do
        pressing = {} if facts["test"] == "steep" else pressing
        alarm = Alarm(
            signal.fault,
            subject,
            since_s,
            severity,
            _summary(signal.fault, told),
            score=min(strength, 1e12),
            threshold=self.settings.strength,
            evidence=(exhibit,),
            facts=told | pressing,
        )
        self._episodes.fire(alarm, at_s)

    @staticmethod
    def _goes_on(signal: LeakSignal, slot: int, slope: float, lasted_s: float) -> bool:
        """Whether the last half of the time that a climb took went at no less than half its pace (bytes/s)."""
        floors = signal.contrast if lasted_s < 4 * signal.patience.width_s else signal.patience
        back = int(min(max(0.5 * lasted_s / floors.width_s, 3), floors.count - 1))
        window = floors.window(signal.table, np.array([slot]))[0, -1 - back :]
        rest_s = back * floors.width_s
        # an end that was not observed proves no climb
        return bool(window[-1] - window[0] >= 0.5 * slope * rest_s)

    def _pressing(
        self, signal: LeakSignal, slot: int, eta_s: float, growth: float, lasted_s: float, at_s: float
    ) -> dict[str, float | str]:
        """Why a leak can wait for no budget: it is about to fill a hard limit. Empty where it can."""
        level, limit = float(signal.table["level"][slot]), float(signal.table["limit"][slot])
        if not (eta_s < SOON_S and level >= NEARLY_FULL * limit):
            return {}
        if not self._goes_on(signal, slot, growth / max(lasted_s, 1.0), lasted_s):
            return {}
        if signal.kind is SubjectKind.CONTAINER:
            slots = np.array([slot])
            young = not at_s - float(signal.table["life_s"][slot]) >= TIDE_S
            if young or falls(signal.past(slots)).max() >= REVERTED * growth:
                return {}
            buckets = max(round(lasted_s / signal.patience.width_s), 2)
            window = signal.patience.window(signal.table, slots)[0, -buckets - 1 :].astype(np.float64)
            seen = window[np.isfinite(window)]
            if len(seen) < 3 or growth < NO_CHANCE * by_chance(seen[None, :])[0]:
                return {}
        return {"pages_because": f"{level / limit:.0%} of the limit in use, full within the hour at this pace"}

    def _press(self, signal: LeakSignal, slot: int, at_s: float) -> Finding | None:
        """The open episode of this slot, a near-fact from now on where its climb is about to end."""
        known = self._episodes.get(signal.fault, signal.table.subjects[slot])
        if known is None or known.state is not State.FIRING or known.score < 1.0:
            return None
        if "pages_because" in known.facts or known.facts.get("test") == "steep":
            return None
        slope = float(known.facts["slope_bytes_per_h"]) / 3600.0
        eta_s = signal.eta_s(slot, slope, crest=known.facts.get("test") == "patience")
        lasted_s = float(known.facts["growth_bytes"]) / max(slope, 1e-9)
        pressing = self._pressing(signal, slot, eta_s, float(known.facts["growth_bytes"]), lasted_s, at_s)
        if not pressing:
            return None
        alarm = Alarm(
            signal.fault,
            known.subject,
            known.since.t_s,
            Severity.CRITICAL,
            known.summary,
            score=known.score,
            threshold=known.threshold,
            evidence=known.evidence,
            facts={**known.facts, "eta_s": eta_s, **pressing},
        )
        return self._episodes.fire(alarm, at_s)

    def _report(self, signal: LeakSignal, frame: Frame | None, at_s: float) -> list[Finding]:
        """What each open episode of this signal says in this tick: still firing, dropped, stopped or unseen."""
        findings: list[Finding] = []
        for fault, subject in tuple(self._episodes):
            if fault is not signal.fault or subject.kind is not signal.kind:
                continue
            slot, row = signal.table.slot(subject), None if frame is None else frame.index.rows.get(subject)
            if slot is None:
                continue
            value = np.nan if row is None or frame is None else level_and_limit(signal.kind, frame)[0][row]
            found: Finding | None
            if not np.isfinite(value):
                found = self._episodes.no_data(fault, subject, at_s, f"{signal.metric} is missing")
            elif self._dropped(signal, slot, float(value)):
                signal.freed(slot, MIN_GROWTH_BYTES, *self._share(signal, subject, slot))
                found = self._episodes.clear(fault, subject, at_s, "Memory was freed: back near its level before")
            elif self._stopped(signal, slot):
                signal.freed(slot, MIN_GROWTH_BYTES, *self._share(signal, subject, slot))
                found = self._episodes.clear(fault, subject, at_s, "Memory no longer climbs")
            else:
                found = self._press(signal, slot, at_s) or self._episodes.again(fault, subject, at_s)
            findings += [found] if found else []
        return findings

    def _share(self, signal: LeakSignal, subject: Subject, slot: int) -> tuple[float, bool]:
        """The share of the free memory that an open episode's climb of hours took, and if it was clean; 0 of
        another climb."""
        known = self._episodes.get(signal.fault, subject)
        if known is None or "shape" not in known.facts:
            return 0.0, False
        growth, floor = float(known.facts["growth_bytes"]), float(known.facts["floor_bytes"])
        share = growth / max(float(signal.table["limit"][slot]) - floor + growth, 1.0)
        return float(np.clip(np.nan_to_num(share), 0.0, 1.0)), "noise" in known.facts

    def _dropped(self, signal: LeakSignal, slot: int, value: float) -> bool:
        known = self._episodes.get(signal.fault, signal.table.subjects[slot])
        told = known.facts if known else {}
        highest = float(told.get("floor_bytes", told.get("level_bytes", np.nan)))
        start = float(signal.table["floor_at_onset"][slot])
        if not np.isfinite(start):  # away for so long that its slot was forgotten; its alarm was not
            start = highest - float(told.get("growth_bytes", np.nan))
        return bool(value < start + 0.5 * (highest - start))

    def _stopped(self, signal: LeakSignal, slot: int) -> bool:
        """No tenth of the climb that fired goes on: over a full window against peers, or over half the time that
        the climb of hours took (between two stairs it is no news that nothing rises)."""
        known = self._episodes.get(signal.fault, signal.table.subjects[slot])
        if known is not None and known.facts.get("test") == "patience":
            return self._levelled_off(signal, slot, known)
        window = signal.contrast.window(signal.table, np.array([slot]))[0]
        if not np.isfinite(window).sum() >= CONTRAST_BUCKETS - 1:
            return False
        seen = window[np.isfinite(window)]
        span_s = (len(seen) - 1) * signal.contrast.width_s
        slope = float(signal.table["slope"][slot])
        if known and not np.isfinite(slope):
            slope = float(known.facts["slope_bytes_per_h"]) / 3600.0
        return bool(seen[-1] - seen[0] < 0.1 * slope * span_s)

    @staticmethod
    def _levelled_off(signal: LeakSignal, slot: int, known: Finding) -> bool:
        pace = float(known.facts["slope_bytes_per_h"]) / 3600.0
        lasted_s = float(known.facts["growth_bytes"]) / max(pace, 1e-9)
        buckets = max(round(0.5 * lasted_s / signal.patience.width_s), 4)
        window = signal.patience.window(signal.table, np.array([slot]))[0, -buckets - 1 :]
        if len(window) <= buckets or not (np.isfinite(window[0]) and np.isfinite(window[-1])):
            return False
        grown = window[-1] - np.fmin.reduce(window)  # the first may stand on a tooth
        return bool(grown < 0.1 * pace * buckets * signal.patience.width_s)

    def snapshot(self) -> bytes:
        meta: dict[str, Any] = {"episodes": self._episodes.saved(), "signals": {}}
        arrays: dict[str, NDArray[Any]] = {}
        for signal in self._signals:
            subjects, columns = signal.table.saved()
            buckets = [signal.contrast.bucket, signal.patience.bucket]
            meta["signals"][signal.kind.value] = {
                "subjects": subjects,
                "buckets": buckets,
                "widths_s": [signal.contrast.width_s, signal.patience.width_s],
                "looked_s": signal.looked_s,
                # beside the two of before, which an earlier release expects as a pair
                "days": [signal.days.bucket, signal.days.width_s],
            }
            arrays |= {f"{signal.kind.value}/{name}": array for name, array in columns.items()}
        return pack(self.name, VERSION, meta, arrays)

    def restore(self, state: bytes) -> None:
        version, meta, arrays = unpack(state, self.name, (1, VERSION))
        signals, episodes = self._fresh(), Episodes(self.name, self.stated.per_1000_series_days / 1000.0)
        episodes.load(meta["episodes"])
        for signal in signals:
            saved = meta["signals"].get(signal.kind.value)
            if saved is None and signal.kind is SubjectKind.MIG:
                continue  # of before its instances were judged
            prefix = f"{signal.kind.value}/"
            columns = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
            if version == 1:
                columns = {name: a for name, a in columns.items() if not name.startswith("table.patience.")}
            signal.table.load(saved["subjects"], columns)
            signal.contrast.bucket, signal.patience.bucket = saved["buckets"]
            widths_s = saved.get("widths_s", [signal.contrast.width_s, signal.patience.width_s])
            signal.contrast.width_s, signal.patience.width_s = (float(width_s) for width_s in widths_s)
            signal.looked_s = [float(at_s) for at_s in saved.get("looked_s", [])]
            if "days" in saved:
                signal.days.bucket, signal.days.width_s = int(saved["days"][0]), float(saved["days"][1])
        self._signals, self._episodes = signals, episodes


def _summary(fault: Fault, facts: Mapping[str, float | str]) -> str:
    """How much it climbed in which time and how fast it climbs by now, how its job's other ranks do, and when the
    limit is reached: each number is a fact of the finding."""
    place = "GPU memory" if fault is Fault.GPU_MEMORY_LEAK else "Anonymous memory"
    value = {name: float(number) for name, number in facts.items() if isinstance(number, int | float)}
    summary = f"{place} climbs: {value['growth_bytes'] / GIB:.2f} GiB in {value['lasted_s'] / 60:.0f} min"
    summary += f", by now {value['slope_bytes_per_h'] / GIB:+.2f} GiB/h"
    if "peer_growth_bytes" in value:
        summary += f"; the job's {value['peers']:.0f} other ranks {value['peer_growth_bytes'] / GIB:+.2f} GiB"
    return summary if "eta_s" not in value else f"{summary}; limit in {value['eta_s'] / 3600:.1f} h"
