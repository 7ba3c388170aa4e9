"""What the memory counters of a whole fleet say in a tick, and the sequential test over corrected errors.

Corrected errors come in storms: one bad cell read in a loop counts thousands. So what is counted are bins of time
with any new corrected error (and, where lines name rows, with a row not seen before), never errors. A Bernoulli
CUSUM over bins (Page 1954; Reynolds and Stoumbos 1999) has a known average run length: with log-likelihood
increments and threshold h, the expected number of healthy bins to a false alarm is at least e^h (Lorden 1971).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats, Frame
from nightshift.detectors.base import SeriesExhibit
from nightshift.detectors.ecc.clusters import DRAM, SRAM
from nightshift.detectors.series_table import Column, Rows, SeriesTable

CORRECTED, UNCORRECTED = "gpu_ecc_sbe_total", "gpu_ecc_dbe_total"
REMAPPED, REMAPPED_UNCORRECTED = "gpu_remapped_rows_correctable", "gpu_remapped_rows_uncorrectable"
FAILURE, PENDING = "gpu_row_remap_failure", "gpu_row_remap_pending"
BANKS_NONE, BANKS_LOW = "gpu_remap_banks_none", "gpu_remap_banks_low"
RETIRED, RETIRED_UNCORRECTED = "gpu_retired_pages_sbe_total", "gpu_retired_pages_dbe_total"
RETIRED_PENDING = "gpu_retired_pages_pending"
COUNTERS = (CORRECTED, UNCORRECTED, REMAPPED, REMAPPED_UNCORRECTED, RETIRED, RETIRED_UNCORRECTED)
GAUGES = (FAILURE, PENDING, BANKS_NONE, BANKS_LOW, RETIRED_PENDING)
SIGNALS = (*COUNTERS, *GAUGES)
UNIT_COUNTERS = {
    "gpu_ecc_sbe_dram_total": DRAM,
    "gpu_ecc_dbe_dram_total": DRAM,
    "gpu_ecc_sbe_sram_total": SRAM,
    "gpu_ecc_dbe_sram_total": SRAM,
}
"""Parts of the two totals: they tell the unit, and the totals the number."""
EARLIER = f"{UNCORRECTED}.earlier"
"""What a GPU had counted at its first look: no event, since it may be years old and repaired."""
RETURN_S = 300.0
"""A count that is back within this time of a fall never fell: an exporter that restarts shows zeros for a look."""
SAY = {
    CORRECTED: "corrected errors",
    UNCORRECTED: "uncorrected errors",
    REMAPPED: "rows remapped after corrected errors",
    REMAPPED_UNCORRECTED: "rows remapped after uncorrected errors",
    RETIRED: "pages retired after corrected errors",
    RETIRED_UNCORRECTED: "pages retired after uncorrected errors",
    FAILURE: "a row remap failed",
    PENDING: "a row remap waits for a reset",
    BANKS_NONE: "a bank has no spare row left",
    BANKS_LOW: "a bank has few spare rows left",
    RETIRED_PENDING: "a page waits for a reset to be retired",
}
_HARD_COUNTERS = (UNCORRECTED, REMAPPED_UNCORRECTED, RETIRED_UNCORRECTED)
_DRAM_COUNTERS = (REMAPPED, REMAPPED_UNCORRECTED, RETIRED, RETIRED_UNCORRECTED)  # rows and pages are of DRAM
_HARD_GAUGES = (FAILURE, PENDING, RETIRED_PENDING, BANKS_NONE)


@dataclass(frozen=True)
class CusumTest:
    """The sequential test over corrected errors. Its figures belong together; `strength` is the setting."""

    # A storm within a bin counts once; healthy fleets (Calchas' data) have an error in one bin of 5,000, failing
    # devices in every fifth.
    bin_s: float = 120.0
    healthy_rate: float = 2e-4
    faulty_rate: float = 0.2
    # Average device-days to a false alarm, at least: one in 20 days on a thousand GPUs.
    run_length_days: float = 20000.0
    # The alarm ends after this long without a corrected error: five quiet bins.
    recover_s: float = 600.0
    strength: float = 1.0

    @property
    def threshold(self) -> float:
        """The CUSUM's h: log of the average run length in bins."""
        return math.log(self.run_length_days * 86400.0 / self.bin_s)

    @property
    def up(self) -> float:
        """The increment of an active bin."""
        return math.log(self.faulty_rate / self.healthy_rate)

    @property
    def down(self) -> float:
        """The (negative) increment of a quiet bin."""
        return math.log((1 - self.faulty_rate) / (1 - self.healthy_rate))


@dataclass(frozen=True, slots=True)
class Counted:
    """One tick's counters by frame row: what rose, which gauges stand, and what follows."""

    rose: dict[str, Floats]
    standing: dict[str, NDArray[np.bool_]]
    hard: NDArray[np.bool_]
    """An uncorrected error, a row or page taken out of use after one or waiting for it, or spares at their end."""
    soft: NDArray[np.bool_]
    uncorrected: NDArray[np.bool_]
    fired: NDArray[np.bool_]
    """The sequential test stands above its threshold."""
    took_effect: NDArray[np.bool_]
    """The GPU was reset, or a remap that waited has taken effect: rows that erred are out of use."""


class EccCounters:
    """Counters and the test's state of every GPU, as columns."""

    def __init__(self, test: CusumTest, forget_s: float) -> None:
        self.test = test
        self.table = SeriesTable(
            {
                **{name: Column(np.float64, np.nan) for name in SIGNALS},
                "epoch": Column(np.int64, -1),
                "active": Column(np.bool_, 0),
                "cusum": Column(np.float64, 0.0),
                "height": Column(np.float64, 0.0),  # the same without a ceiling: how strong the evidence is
                "fresh_bin": Column(np.int64, -1),
                "active_bins": Column(np.int32, 0),
                "cusum_since_s": Column(np.float64, np.nan),
                "last_active_s": Column(np.float64, -np.inf),
                **{name: Column(np.float64, np.nan) for name in UNIT_COUNTERS},
                **{f"{name}.fell": Column(np.float64, np.nan) for name in (*COUNTERS, *UNIT_COUNTERS)},
                "fell_s": Column(np.float64, -np.inf),
                DRAM: Column(np.float64, -np.inf),  # when this unit last erred (Unix s)
                SRAM: Column(np.float64, -np.inf),
                f"{CORRECTED}.left": Column(np.float64, np.nan),
                f"{UNCORRECTED}.left": Column(np.float64, np.nan),
                EARLIER: Column(np.float64, np.nan),
            },
            forget_s,
        )
        self.bin = -1

    def take(self, frame: Frame, at_s: float) -> Counted:
        """Reads a tick; a counter that starts anew, or a new epoch, says nothing by its fall."""
        table = self.table
        rows = table.rows(frame.index, at_s)
        self.roll(at_s)
        same = table["epoch"][rows] == frame.epoch
        reset = ~same & (table["epoch"][rows] != -1)
        first = np.isnan(table[UNCORRECTED][rows])
        table[EARLIER][rows] = np.where(first, _count(frame.column(UNCORRECTED)), table[EARLIER][rows])
        rose: dict[str, Floats] = {}
        for name in (*COUNTERS, *UNIT_COUNTERS):
            before = table[name][rows].copy()  # rows may be a view, and the step writes there
            rose[name], fell = self._step(name, frame, rows, same, at_s)
            if name in (CORRECTED, UNCORRECTED):
                reset |= fell
                begins = (rose[name] > 0) & ((table["cusum"][rows] <= 0) & ~table["active"][rows])
                left = table[f"{name}.left"]
                left[rows] = np.where(begins | (np.isnan(left[rows]) & (rose[name] > 0)), before, left[rows])
        table["epoch"][rows] = frame.epoch
        standing, effect = self._gauges(frame, rows, reset)
        of_dram = [rose[n] > 0 for n in _DRAM_COUNTERS] + list(standing.values())
        of_unit = {DRAM: of_dram, SRAM: []}
        for name, unit in UNIT_COUNTERS.items():
            of_unit[unit].append(rose[name] > 0)
        for unit, signs in of_unit.items():
            table[unit][rows] = np.where(np.logical_or.reduce(signs), at_s, table[unit][rows])
        erred = rose[CORRECTED] > 0
        table["active"][rows] |= erred
        table["last_active_s"][rows] = np.where(erred, at_s, table["last_active_s"][rows])
        hard = np.logical_or.reduce([rose[n] > 0 for n in _HARD_COUNTERS] + [standing[n] for n in _HARD_GAUGES])
        soft = (rose[REMAPPED] > 0) | (rose[RETIRED] > 0)
        uncorrected = np.logical_or.reduce([rose[n] > 0 for n in _HARD_COUNTERS])
        fired = table["cusum"][rows] >= self.test.strength * self.test.threshold
        return Counted(rose, standing, hard, soft, uncorrected, fired, effect)

    def _step(
        self, name: str, frame: Frame, rows: Rows, same: NDArray[np.bool_], at_s: float
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """By how much a counter rose, and where it fell; it is kept as read."""
        table = self.table
        value, before, fell = _count(frame.column(name)), table[name][rows], table[f"{name}.fell"][rows]
        if not (np.isfinite(value) & (value != before)).any():  # nearly every look of nearly every fleet
            return np.zeros(len(value)), np.zeros(len(value), dtype=bool)
        back = (at_s - table["fell_s"][rows] <= RETURN_S) & (value >= fell)
        step = np.where(same & np.isfinite(value) & np.isfinite(before), value - np.where(back, fell, before), 0.0)
        falls = step < 0
        table[f"{name}.fell"][rows] = np.where(falls, before, np.where(back, np.nan, fell))
        table["fell_s"][rows] = np.where(falls, at_s, table["fell_s"][rows])
        table[name][rows] = np.where(np.isfinite(value), value, before)
        return np.where(step > 0, step, 0.0), falls

    def _gauges(
        self, frame: Frame, rows: Rows, reset: NDArray[np.bool_]
    ) -> tuple[dict[str, NDArray[np.bool_]], NDArray[np.bool_]]:
        """What stands, and where a reset took effect: the test begins anew there; what still errs shows again."""
        table, effect = self.table, reset.copy()
        standing = {}
        for name in GAUGES:
            value, before = _count(frame.column(name)), table[name][rows]
            standing[name] = value > 0
            if name in (PENDING, RETIRED_PENDING):
                effect |= (before > 0) & (value == 0)
            table[name][rows] = np.where(np.isfinite(value), value, before)
        slots = np.arange(len(table["cusum"]))[rows][effect]
        table["cusum"][slots], table["active_bins"][slots], table["active"][slots] = 0.0, 0, False
        table["height"][slots] = 0.0
        table["cusum_since_s"][slots] = np.nan
        return standing, effect

    def mark(self, slot: int, at_s: float) -> None:
        """A corrected error that a line named, at a place not seen before."""
        self.table["active"][slot] = True
        self.table["fresh_bin"][slot] = self.bin
        self.table["last_active_s"][slot] = at_s

    def unmark(self, slot: int) -> None:
        """The bin's errors were of a place seen before: one bad cell, not a spreading fault."""
        if self.table["fresh_bin"][slot] != self.bin:
            self.table["active"][slot] = False

    def roll(self, at_s: float) -> None:
        """Closes bins: every device's CUSUM takes one increment a bin, however many errors the bin held."""
        s, table = self.test, self.table
        current = int(at_s // s.bin_s)
        if self.bin < 0 or current <= self.bin:
            self.bin = max(self.bin, current)
            return
        active, cusum = table["active"], table["cusum"]
        began = active & (cusum <= 0)
        table["cusum_since_s"][began] = self.bin * s.bin_s
        table["active_bins"][:] = np.where(cusum <= 0, 0, table["active_bins"]) + active
        step = np.where(active, s.up, s.down) + s.down * (current - self.bin - 1)
        height = np.maximum(table["height"], cusum) + step
        cusum[:] = np.maximum(cusum + step, 0.0)
        np.minimum(cusum, s.strength * s.threshold - s.down * s.recover_s / s.bin_s, out=cusum)
        table["height"][:] = np.where(cusum > 0, height, 0.0)
        active[:] = False
        self.bin = current

    def exhibit(self, name: str, slot: int, at_s: float) -> tuple[SeriesExhibit, ...]:
        """The count now against the count that it left; nothing where it was not read."""
        value, left = float(self.table[name][slot]), float(self.table[f"{name}.left"][slot])
        if not math.isfinite(value):
            return ()
        reference = left if math.isfinite(left) else None
        note = f"{SAY[name]} since the driver was loaded; the reference is the count before they began"
        subject = self.table.subjects[slot]
        return (SeriesExhibit(subject, name, "errors", (at_s,), (value,), reference, "", note),)

    def facts(self, slot: int) -> dict[str, float | str]:
        """The counters of one GPU, what the test saw, and which signals this SKU and exporter give at all."""
        known = [name for name in SIGNALS if math.isfinite(float(self.table[name][slot]))]
        found: dict[str, float | str] = {name: float(self.table[name][slot]) for name in known if name in COUNTERS}
        earlier = float(self.table[EARLIER][slot])
        found |= {"uncorrected_before_first_look": earlier} if earlier > 0 else {}
        found |= {"active_bins": float(self.table["active_bins"][slot]), "bin_s": self.test.bin_s}
        blind = [name for name in SIGNALS if name not in known]
        found["signals_seen"] = ", ".join(known) or "none"
        found["signals_blind"] = ", ".join(blind) or "none"
        return found

    def units(self, slot: int, since_s: float) -> set[str]:
        """Units of memory that erred by their own counters, or had rows taken out of use, since then."""
        return {unit for unit in (DRAM, SRAM) if float(self.table[unit][slot]) >= since_s}

    def saved(self) -> tuple[list[str], dict[str, NDArray[Any]]]:
        return self.table.saved()


def _count(values: Floats) -> Floats:
    """Counts as exported, NaN where one cannot be a count."""
    return np.where((values >= 0) & (values < 2.0**53), values, np.nan)
