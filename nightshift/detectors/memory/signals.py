"""The memory signals that can leak, with their state by subject, limits and peers; and how they are judged.

Widths of floor buckets follow the scrape interval (`LeakSignal.pace`): an empty bucket says nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Floats, Frame
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.base import Fault
from nightshift.detectors.memory.floors import Floors
from nightshift.detectors.series_table import Column, Rows, SeriesTable

GAPS = 9
"""Times between looks whose median is the scrape interval."""

EMPTY, FULL, HIGHER = 0.02, 0.9, 0.25
"""Shares: of the limit, below which no process is left, and from which on no climb waits; and of a tooth, by which
the next one must be higher to be told."""
CREST_S = 3600.0
"""How long a peak is of late: the time in which it fades to the level by a factor of e."""


# Width of a floor bucket of the test against peers; wider where scrapes are rarer (`LeakSignal.pace`).
CONTRAST_BUCKET_S = 20.0
# Buckets of the test against peers: eight minutes of them.
CONTRAST_BUCKETS = 24
# Climbing buckets that it needs: fewer are a larger batch.
CONTRAST_MIN_BUCKETS = 10
# A leak climbs this many times faster than its peers, which grow with longer sequences, too.
CONTRAST_RATIO = 4.0
# Width of a floor bucket of the test without peers: longer than a collection cycle.
PATIENCE_BUCKET_S = 300.0
# Buckets of it, some 21 hours: warm-up, caches and allocator plateaus end before.
PATIENCE_BUCKETS = 257
# Hours of floors that a climb is compared with: yesterday's tide, and that of the last weekday on a Monday.
DAYS_BUCKETS = 96
# A level has come down where it stayed down for so long: restarts, collections and idle minutes are shorter.
FALL_S = 4 * 3600.0
# Its crest lasts at least this share of its climb: a burst of requests is no tide of half a day.
CREST_SHARE = 0.25
# On a series of which a climb ended by itself, the next one takes twice the odds of the share of free memory that
# the former took ...
AGAIN = 2.0
# ... or so large a share.
MOST = 2.0 / 3.0
# Smaller climbs are never a leak: they cost no job its memory.
MIN_GROWTH_BYTES = float(2**26)
# Time after a start or a drop that is not judged: weights and caches are being loaded.
WARMUP_S = 60.0
# After this a process has its starting level.
SETTLE_S = 600.0
# A climb that needs longer than three days to the limit can wait for the next release.
HORIZON_S = 72 * 3600.0
# A subject unseen for this long has ended.
FORGET_S = 3600.0


class LeakSettings(BaseModel):
    """Times are of the observed signal, in seconds; shares are of the limit (capacity or container limit)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strength: float = Field(
        default=1.0,
        gt=0,
        description="A climb this many times stronger than its threshold is an alarm. Strength: odds of the "
        "free memory share it took, or its growth over that of its peers",
    )


class LeakSignal:
    """One memory signal of one kind of subject: its state by subject and what it calls itself."""

    def __init__(self, kind: SubjectKind, settings: LeakSettings) -> None:
        of_host = kind is SubjectKind.CONTAINER
        self.kind, self.fault = kind, Fault.HOST_MEMORY_LEAK if of_host else Fault.GPU_MEMORY_LEAK
        self.metric = "container_memory_anonymous_bytes" if of_host else "gpu_memory_used_bytes"
        self.looked_s: list[float] = []
        self.observed = np.zeros(0, dtype=bool)
        """[slots] whose level was read in the last frame."""
        self.contrast = Floors("contrast", CONTRAST_BUCKET_S, CONTRAST_BUCKETS)
        self.patience = Floors("patience", PATIENCE_BUCKET_S, PATIENCE_BUCKETS)
        self.days = Floors("days", 3600.0, DAYS_BUCKETS)
        columns = {
            **self.contrast.columns(),
            **self.patience.columns(),
            **self.days.columns(),
            "born_s": Column(np.float64, np.nan),
            "life_s": Column(np.float64, np.nan),
            "lowest": Column(np.float64, np.inf),
            "suspect": Column(np.bool_, 0),
            "level": Column(np.float64, np.nan),
            "limit": Column(np.float64, np.nan),
            "epoch": Column(np.int64, -1),
            "floor_at_onset": Column(np.float64, np.nan),
            "slope": Column(np.float64, np.nan),
            "crest": Column(np.float64, np.nan),  # the highest level of late
            "crest_s": Column(np.float64, np.nan),
            "top": Column(np.float64, np.nan),  # the highest level since memory was last freed
            "plateau": Column(np.float64, 0.0),  # the largest share of what was free that a climb took, and ended
            "clean_plateau": Column(np.float64, 0.0),  # the same of clean climbs
            "bar": Column(np.float64, np.nan),  # what a climb must pass to be news: others so high were freed
        }
        self.table = SeriesTable(columns, FORGET_S)

    def pace(self, at_s: float) -> None:
        """Takes note of a look, and widens or narrows the buckets where the looks come at another pace."""
        if self.looked_s and at_s < self.looked_s[-1] - self.contrast.width_s:
            self._set_back(self.looked_s[-1] - at_s)
        if self.looked_s and not at_s > self.looked_s[-1]:
            return
        self.looked_s = [*self.looked_s[-GAPS:], at_s]
        if len(self.looked_s) > GAPS:
            gap_s = float(np.median(np.diff(self.looked_s)))
            for floors in (self.contrast, self.patience, self.days):
                floors.widen(self.table, gap_s)

    def _set_back(self, by_s: float) -> None:
        """The clock was: what was learnt is as old as it was. Or nothing is judged until it is as late again."""
        self.looked_s = [at_s - by_s for at_s in self.looked_s]
        for name in ("born_s", "life_s", "crest_s"):
            self.table[name][:] -= by_s
        for floors in (self.contrast, self.patience, self.days):
            floors.set_back(self.table, by_s)

    def past(self, slots: NDArray[np.int64], crest_s: float = 0.0) -> Floats:
        """[n, k] what each process held over FALL_S since its start, oldest first: days ago by hours, then today.

        A value is the highest level that was held for `crest_s` (s) in the FALL_S before it: a shorter dip is no
        fall.
        """
        recent_s, hours_s = self.patience.times_s(), self.days.times_s()
        # the rings overlap: an hour that counts twice would look like a fall back to it
        old = hours_s + 0.5 * self.days.width_s <= recent_s[0]
        life_s = self.table["life_s"][slots][:, None]
        parts = []
        for ring, t_s in ((self.days, hours_s), (self.patience, recent_s)):
            floors = ring.window(self.table, slots).astype(np.float64)
            floors = np.where(np.isfinite(floors) & ~(t_s[None, :] < life_s), floors, -np.inf)
            up = max(round(crest_s / ring.width_s), 1)
            padded = np.pad(
                np.where(floors > -np.inf, floors, np.inf), ((0, 0), (up - 1, 0)), constant_values=np.inf
            )
            lowest = sliding_window_view(padded, up, axis=1).min(axis=2)
            lowest = np.where(lowest < np.inf, lowest, -np.inf)
            width = max(round(FALL_S / ring.width_s), 1) + up - 1
            held = np.full(floors.shape, np.nan)
            held[:, width - 1 :] = sliding_window_view(lowest, width, axis=1).max(axis=2)
            parts.append(np.where(np.isfinite(held), held, np.nan))
        return np.hstack([parts[0][:, old], parts[1]])

    def ended(self, rows: Rows, values: Floats) -> NDArray[np.bool_]:
        """Whether so little is left that no process is there any more."""
        with np.errstate(invalid="ignore"):
            found: NDArray[np.bool_] = values < EMPTY * self.table["limit"][rows]
        return found

    def start_anew(
        self, dropped: NDArray[np.int64], restarted: NDArray[np.int64], ended: NDArray[np.int64], at_s: float
    ) -> None:
        """A drop of these slots begins the contrast test anew. Only one to the starting level, or a new epoch, is a
        restart: a collection that leaves a higher floor than the last one is what a leak looks like. Where no
        process was seen to end, the starting level stays: a saw that leaks comes back to it at first."""
        self.table["born_s"][dropped] = at_s
        self.contrast.forget(self.table, dropped)
        self.table["life_s"][restarted] = at_s
        self.table["lowest"][ended] = np.inf

    def top(self, rows: Rows, values: Floats, ended: NDArray[np.bool_], at_s: float) -> None:
        """Takes note of the levels [n] of a look. With its process ends what was learnt of its teeth."""
        table = self.table
        aged_s = np.nan_to_num(np.maximum(at_s - table["crest_s"][rows], 0.0))
        crest = values + (table["crest"][rows] - values) * np.exp(-aged_s / CREST_S)
        known = np.isfinite(values)
        table["crest"][rows] = np.where(known, np.fmax(crest, values), table["crest"][rows])
        table["crest_s"][rows] = np.where(known, at_s, table["crest_s"][rows])
        table["bar"][rows] = np.where(ended, np.nan, table["bar"][rows])
        for plateau in ("plateau", "clean_plateau"):
            table[plateau][rows] = np.where(ended, 0.0, table[plateau][rows])
        table["top"][rows] = np.where(ended, values, np.fmax(table["top"][rows], values))

    def eta_s(self, slot: int, slope: float, crest: bool = False) -> float:
        """Time to the limit at this pace (bytes/s) in s; NaN where no limit is known. `crest`: for a climb of
        hours, whose teeth reach the limit before its floor does."""
        left = float(self.table["limit"][slot] - self.table["crest" if crest else "level"][slot])
        return max(left, 0.0) / slope if slope > 0 else np.inf

    def freed(self, slot: int, least_bytes: float, share: float, clean: bool) -> None:
        """Takes note of a climb that was told and ended by itself, with its process still there: a tooth. share: of
        the free memory that a climb of hours took, otherwise 0."""
        top, level, limit = (float(self.table[name][slot]) for name in ("top", "level", "limit"))
        for plateau in ("plateau", "clean_plateau")[: 1 + clean] if not level < EMPTY * limit else ():
            self.table[plateau][slot] = max(float(self.table[plateau][slot]), share)
        if level < EMPTY * limit or top >= FULL * limit:
            return
        bar = top + max(least_bytes, HIGHER * (top - level))
        self.table["bar"][slot], self.table["top"][slot] = np.fmin(bar, FULL * limit), level

    def is_news(self, slots: NDArray[np.int64], share: Floats, clean: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[n] whether a climb of hours that took such a share of the free memory says more than those that ended by
        themselves; a clean one than the clean ones of them."""
        former = np.where(clean, self.table["clean_plateau"][slots], self.table["plateau"][slots])
        found: NDArray[np.bool_] = share >= np.minimum(AGAIN * former / (1.0 + (AGAIN - 1.0) * former), MOST)
        return found

    def is_tooth(self, slot: int) -> bool:
        """Whether what climbs now is no higher than a tooth was."""
        return bool(self.table["top"][slot] <= self.table["bar"][slot])


def slots_of(rows: Rows, count: int) -> NDArray[np.int64]:
    return np.arange(rows.start, rows.start + count) if isinstance(rows, slice) else rows


def level_and_limit(kind: SubjectKind, frame: Frame) -> tuple[Floats, Floats]:
    """[n] bytes in use and [n] bytes at most; NaN where unknown or unlimited."""
    if kind is not SubjectKind.CONTAINER:
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


def peers_of(subject: Subject, signal: LeakSignal, inventory: Inventory, at_s: float) -> NDArray[np.int64]:
    """Slots of the same thing at the other ranks of the subject's job; containers by the same container name."""
    job = inventory.above(subject, SubjectKind.JOB, at_s)
    if job is None:
        return np.zeros(0, dtype=np.int64)
    others = [s for s in inventory.below(job, signal.kind, at_s) if s != subject]
    if signal.kind is SubjectKind.CONTAINER:
        others = [s for s in others if s.name.rpartition("/")[2] == subject.name.rpartition("/")[2]]
    slots = [signal.table.slot(s) for s in others]
    return np.array([slot for slot in slots if slot is not None], dtype=np.int64)


def rank_of(subject: Subject, inventory: Inventory, at_s: float) -> Subject | None:
    rank = inventory.above(subject, SubjectKind.RANK, at_s)
    if rank is not None:
        return rank
    pod = inventory.above(subject, SubjectKind.POD, at_s)
    ranks = inventory.children(pod, at_s, SubjectKind.RANK) if pod else []
    return ranks[0] if len(ranks) == 1 else None
