"""Throttling that costs work: a busy GPU whose hardware holds its clock well under what it ran at before.

Throttling as such is no fault: a big matrix product draws the board's limit and runs at 1.45 instead of 1.98 GHz on
a healthy H200, with the software power cap told all the while, and so does every GPU that we cap ourselves. What is
a fault is a clock held down from outside the workload: heat (software or hardware thermal slowdown), the power
brake of the rack or supply, or a hardware slowdown; and only while the GPU has work to do, and by how much. The
reference is the GPU's own clock when it was as busy and not held; where it has none, that of its job's other GPUs.
An exporter's page may have the reasons and no clock: what the hardware itself then reports for minutes is a fact.
Reasons by bit: NVML API reference, "nvmlClocksEventReasons".
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Floats, Frame
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.promise import stated
from nightshift.detectors.base import Fault, Finding, SeriesExhibit, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.series_table import Column, Rows, SeriesTable
from nightshift.detectors.snapshot import pack, unpack

VERSION = 1
REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits that hold the clock from outside the workload. Left out: idle 0x1, application clocks 0x2, software power
cap 0x4 (full draw, or our own cap), sync boost 0x10, display 0x100."""
HELD = sum(REASONS)
BY_HARDWARE = 0x08 | 0x40 | 0x80
"""Bits that a healthy GPU does not show for minutes, whatever its clock."""
POWER_CAP = 0x04
WAYS = ("", "_capped")
"""A clock at the power cap is compared with clocks at the power cap: heavy work runs slower on a healthy GPU."""
RING = 32


# A GPU at least this utilised has work; an idle one clocks down by itself.
BUSY_PERCENT = 50.0
# Share of its clock, and so of its work, lost; `strength` scales it.
LOST_SHARE = 0.05
# The loss is averaged over this: thermal slowdown comes and goes within seconds.
WINDOW_S = 120.0
# ... and stays lost at every look for this long.
PERSIST_S = 60.0
# Busy time without throttling that makes a reference: boost clocks settle within it.
LEARN_S = 60.0
# Reasons of the hardware without a clock beside them are a fault after this.
TOLD_S = 120.0
# No such throttling for this long clears; a hot GPU that is given work again is hot again sooner.
CLEAR_S = 300.0
# A GPU unseen for this long is forgotten; its reference would be of another job.
FORGET_S = 86400.0


class ThrottleSettings(BaseModel):
    """When throttling costs work."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strength: float = Field(default=1.0, gt=0, description="A loss this many times as large is an alarm")


class Throttle:
    """THROTTLE on the GPU whose clock is held down while it works.

    >>> from nightshift.detectors.contract.testing import START_S, show, tick
    >>> busy = {"gpu_utilization_percent": 95.0, "gpu_sm_clock_mhz": 1980.0, "gpu_throttle_reasons": 0.0}
    >>> hot = {**busy, "gpu_sm_clock_mhz": 1500.0, "gpu_throttle_reasons": float(0x40)}  # slowed down by heat
    >>> show(Throttle(), [tick(START_S + 5 * n, {0: busy if n < 60 else hot, 1: busy}) for n in range(120)])
    385 s: firing throttle gpu:GPU-0
        Works at 1500 MHz, 13 % of its clock lost to hardware thermal slowdown
    """

    plugin: ClassVar[str] = "throttle"
    LOOSE: ClassVar[float] = 0.1
    Settings = ThrottleSettings

    def __init__(self, settings: ThrottleSettings | None = None) -> None:
        self.settings = settings or ThrottleSettings()
        self._table = self._fresh()
        self._episodes = Episodes(self.name, self.stated.per_1000_series_days / 1000.0)
        self._servers: Frame | None = None
        self._told_s: dict[Subject, float] = {}
        """When the hardware of a GPU without a clock on its page began to report a slowdown. Not saved."""

    def _fresh(self) -> SeriesTable:
        columns = {
            # the references: its own clock when busy and not held, free and at its power cap (MHz)
            **{f"clock{way}": Column(np.float64, np.nan) for way in WAYS},
            **{f"learnt_s{way}": Column(np.float64, 0.0) for way in WAYS},
            "lost": Column(np.float64, 0.0),  # running mean of the share of the clock that is lost
            "since_s": Column(np.float64, np.inf),  # lost more than allowed since then
            "held_s": Column(np.float64, -np.inf),  # last held
            "last_s": Column(np.float64, np.nan),
            "mask": Column(np.int64, 0),
            "ring": Column(np.float32, np.nan, (RING,)),
            "ring_t": Column(np.float64, np.nan, (RING,)),
            "ring_n": Column(np.int64, 0),
        }
        return SeriesTable(columns, FORGET_S)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.THROTTLE,)

    @property
    def strength(self) -> float:
        return self.settings.strength

    @property
    def stated(self) -> StatedRate:
        return stated(self.plugin, 1.0, "benchmarks/budget.py", self.settings.strength)

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        frame = tick.frames.get(SubjectKind.GPU)
        self._servers = tick.frames.get(SubjectKind.SERVER)
        seen: NDArray[np.bool_] | None = None
        if frame is not None and len(frame.index):
            seen = self._take(frame, tick.at_s, inventory) | self._take_told(frame, tick.at_s)
        return self._episodes.report(lambda fault, subject: self._word(fault, subject, frame, seen, tick.at_s))

    def _take(self, frame: Frame, at_s: float, inventory: Inventory) -> NDArray[np.bool_]:
        """One look at every GPU; which of them were seen whole (clock, reasons and utilisation)."""
        s, table = self.settings, self._table
        rows = table.rows(frame.index, at_s)
        clock, mask, busy_percent = (
            frame.column(name) for name in ("gpu_sm_clock_mhz", "gpu_throttle_reasons", "gpu_utilization_percent")
        )
        with np.errstate(invalid="ignore"):
            seen = (clock > 0) & (clock < 1e5) & (mask >= 0) & (mask < 2.0**31)
            seen &= (busy_percent >= 0) & (busy_percent <= 100)
            busy = seen & (busy_percent >= BUSY_PERCENT)
        bits = np.where(seen, mask, 0.0).astype(np.int64)
        held = busy & ((bits & HELD) != 0)
        last_s = table["last_s"][rows]
        step_s = np.clip(np.nan_to_num(at_s - last_s, nan=0.0), 0.0, WINDOW_S)
        late = np.isfinite(last_s) & (at_s <= last_s)
        busy, held = busy & ~late, held & ~late
        table["last_s"][rows] = np.where(seen & ~late, at_s, last_s)
        capped = (bits & POWER_CAP) != 0
        free = busy & ((bits & HELD) == 0)
        reference = np.full(len(clock), np.nan)
        for way, which in zip(WAYS, (~capped, capped), strict=True):
            self._learn(way, rows, clock, free & which, step_s)
            known = which & (table[f"learnt_s{way}"][rows] >= LEARN_S)
            reference = np.where(known, table[f"clock{way}"][rows], reference)
        with np.errstate(invalid="ignore"):
            share = np.where(held, np.clip(1.0 - clock / reference, 0.0, 1.0), 0.0)
        share = np.nan_to_num(share)
        weight = np.where(busy, -np.expm1(-step_s / WINDOW_S), 0.0)
        table["lost"][rows] += weight * (share - table["lost"][rows])
        still = seen & ~late & ((bits & HELD) != 0)
        table["held_s"][rows] = np.where(still, at_s, table["held_s"][rows])
        if held.any():
            slots = _slots(rows, len(clock))
            self._note(slots[held], clock[held], bits[held], at_s)
            blind = held & ~np.isfinite(reference)
            if blind.any():
                peers = (free & ~capped, free & capped)
                self._by_peers(frame, np.flatnonzero(blind), slots, clock, capped, peers, weight, at_s, inventory)
        lost = table["lost"][rows]
        since_s = np.where(lost >= s.strength * LOST_SHARE, np.minimum(table["since_s"][rows], at_s), np.inf)
        table["since_s"][rows] = since_s
        for row in np.flatnonzero(held & (at_s - since_s >= PERSIST_S)).tolist():
            self._fire(int(_slots(rows, len(clock))[row]), float(clock[row]), frame, row, at_s, inventory)
        return seen

    def _take_told(self, frame: Frame, at_s: float) -> NDArray[np.bool_]:
        """GPUs that tell reasons and no clock: which of them were seen. What lasts is reported."""
        clock, mask, busy_percent = (
            frame.column(name) for name in ("gpu_sm_clock_mhz", "gpu_throttle_reasons", "gpu_utilization_percent")
        )
        with np.errstate(invalid="ignore"):
            seen = np.isnan(clock) & (mask >= 0) & (mask < 2.0**31)
            idle = busy_percent < BUSY_PERCENT
        bits = np.where(seen, mask, 0.0).astype(np.int64) & BY_HARDWARE
        told = {frame.index.subjects[row]: int(bits[row]) for row in np.flatnonzero((bits != 0) & ~idle).tolist()}
        self._told_s = {subject: self._told_s.get(subject, at_s) for subject in told}
        for subject, since_s in self._told_s.items():
            slot = self._table.slot(subject)
            if slot is not None:
                self._table["held_s"][slot] = at_s
            if at_s - since_s < TOLD_S:
                continue
            reasons = ", ".join(words for bit, words in REASONS.items() if told[subject] & bit)
            alarm = Alarm(
                Fault.THROTTLE,
                subject,
                since_s,
                Severity.WARNING,
                f"Slowed down by {reasons}; its source tells no clock",
                score=at_s - since_s,
                threshold=TOLD_S,
                facts={"reasons": reasons},
            )
            self._episodes.fire(alarm, at_s)
        return seen

    def _learn(self, way: str, rows: Rows, clock: Floats, free: NDArray[np.bool_], step_s: Floats) -> None:
        """A reference follows the clock of busy, unheld looks: up by a tenth of the way, down by a hundredth."""
        table = self._table
        known = table[f"clock{way}"][rows]
        with np.errstate(invalid="ignore"):
            pace = np.where(clock > known, 0.1, 0.01)
        fresh = np.where(np.isfinite(known), known + pace * (clock - known), clock)
        table[f"clock{way}"][rows] = np.where(free, fresh, known)
        table[f"learnt_s{way}"][rows] += np.where(free, step_s, 0.0)

    def _by_peers(
        self,
        frame: Frame,
        blind: NDArray[np.int64],
        slots: NDArray[np.int64],
        clock: Floats,
        capped: NDArray[np.bool_],
        free: tuple[NDArray[np.bool_], NDArray[np.bool_]],
        weight: Floats,
        at_s: float,
        inventory: Inventory,
    ) -> None:
        """A GPU that was held from its first look is compared with its job's GPUs that are busy and not held."""
        table = self._table
        clocks: dict[tuple[Subject, bool], float] = {}
        for row in blind.tolist():
            job = inventory.above(frame.index.subjects[row], SubjectKind.JOB, at_s)
            if job is None:
                continue
            key = (job, bool(capped[row]))
            if key not in clocks:
                peers = [frame.index.rows.get(g) for g in inventory.gpus(job, at_s)]
                others = [float(clock[p]) for p in peers if p is not None and free[key[1]][p]]
                clocks[key] = float(np.median(others)) if others else np.nan
            reference = clocks[key]
            if np.isfinite(reference) and reference > 0:
                with np.errstate(over="ignore"):  # a clock of 1e308 has lost nothing
                    share = float(np.clip(1.0 - clock[row] / reference, 0.0, 1.0))
                table["lost"][slots[row]] += weight[row] * share

    def _note(self, slots: NDArray[np.int64], clock: Floats, bits: NDArray[np.int64], at_s: float) -> None:
        table = self._table
        place = table["ring_n"][slots] % RING
        table["ring"][slots, place], table["ring_t"][slots, place] = clock, at_s
        table["ring_n"][slots] += 1
        table["mask"][slots] |= bits & HELD

    def _serves(self, gpu: Subject, at_s: float, inventory: Inventory) -> dict[str, float | str]:
        """What the inference servers of its node say meanwhile: what the throttling costs their users."""
        node = inventory.above(gpu, SubjectKind.NODE, at_s) if self._servers is not None else None
        told: dict[str, float | str] = {}
        for server in inventory.children(node, at_s, SubjectKind.SERVER)[:1] if node is not None else ():
            assert self._servers is not None
            told["server"] = server.name
            for metric in ("server_tpot_p50_s", "server_ttft_p50_s", "server_requests_waiting"):
                value = self._servers.value(server, metric)
                told |= {metric: value} if np.isfinite(value) else {}
        return told

    def _fire(self, slot: int, clock: float, frame: Frame, row: int, at_s: float, inventory: Inventory) -> None:
        table = self._table
        subject, lost = table.subjects[slot], float(table["lost"][slot])
        bits = int(table["mask"][slot])
        reasons = ", ".join(words for bit, words in REASONS.items() if bits & bit)
        order = np.argsort(table["ring_t"][slot])
        t_s, clocks = table["ring_t"][slot][order], table["ring"][slot][order]
        kept = np.isfinite(t_s) & np.isfinite(clocks)
        mask = float(frame.column("gpu_throttle_reasons")[row])
        reference = float(table["clock" + WAYS[int(mask) & POWER_CAP > 0]][slot])
        exhibit = SeriesExhibit(
            subject,
            "gpu_sm_clock_mhz",
            "MHz",
            tuple(t_s[kept].tolist()),
            tuple(clocks[kept].astype(float).tolist()),
            reference if np.isfinite(reference) else None,
            "",
            f"while busy and held by {reasons}; the reference is its clock when it was not held",
        )
        facts: dict[str, float | str] = {"lost_share": lost, "reasons": reasons, "sm_clock_mhz": clock}
        facts |= {"reference_mhz": reference} if np.isfinite(reference) else {"reference": "its job's other GPUs"}
        for name, fact in (("gpu_temperature_c", "temperature_c"), ("gpu_power_w", "power_w")):
            value = float(frame.column(name)[row])
            facts |= {fact: value} if np.isfinite(value) else {}
        facts |= self._serves(subject, at_s, inventory)
        alarm = Alarm(
            Fault.THROTTLE,
            subject,
            float(table["since_s"][slot]),
            Severity.WARNING,
            f"Works at {clock:.0f} MHz, {100 * lost:.0f} % of its clock lost to {reasons}",
            score=lost / LOST_SHARE,
            threshold=self.settings.strength,
            evidence=(exhibit,),
            facts=facts,
        )
        self._episodes.fire(alarm, at_s)

    def _word(
        self, fault: Fault, subject: Subject, frame: Frame | None, seen: NDArray[np.bool_] | None, at_s: float
    ) -> Finding | None:
        slot, row = self._table.slot(subject), None if frame is None else frame.index.rows.get(subject)
        if slot is None or row is None or seen is None or not seen[row]:
            return self._episodes.no_data(fault, subject, at_s, "Its clock or its throttle reasons are missing")
        if at_s - float(self._table["held_s"][slot]) >= CLEAR_S:
            self._table["mask"][slot] = 0
            return self._episodes.clear(fault, subject, at_s, f"Not held down for {CLEAR_S:.0f} s")
        return self._episodes.again(fault, subject, at_s)

    def snapshot(self) -> bytes:
        subjects, arrays = self._table.saved()
        return pack(self.name, VERSION, {"subjects": subjects, "episodes": self._episodes.saved()}, arrays)

    def restore(self, state: bytes) -> None:
        _, meta, arrays = unpack(state, self.name, (VERSION,))
        table, episodes = self._fresh(), Episodes(self.name, self.stated.per_1000_series_days / 1000.0)
        try:
            table.load(meta["subjects"], arrays)
            episodes.load(meta["episodes"])
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._table, self._episodes = table, episodes


def _slots(rows: Rows, count: int) -> NDArray[Any]:
    return np.arange(rows.start, rows.start + count) if isinstance(rows, slice) else rows
