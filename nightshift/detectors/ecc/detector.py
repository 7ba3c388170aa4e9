"""GPU memory errors (ECC): hard evidence at once, soft evidence by a sequential test.

What was counted before the first look is no event: it may be years old, and repaired. A later finding states it.
Hard tier, critical: an uncorrected error, the Xids that say so, a remap or page retirement after one, one that
waits for a reset or failed, a bank without spare rows. Soft tier, a warning: corrected errors that come back in
many bins of time (`detectors.ecc.counters`), rows remapped after corrected errors, and several rows of one bank.

Every finding names the unit: DRAM (HBM or GDDR), SRAM with its part where a line or a counter of the unit says it,
else "unit unknown": the two totals count both, and only DRAM has rows to remap.

No finding says when the next error comes. What is stated is how often another uncorrected error followed within
24 h on other devices, with the interval of one device (`Stratum`): it is wide, because devices differ.

GPUs of one node or rack that begin to err together have one cause that is not their memory
(`detectors.ecc.clusters`): one finding on the place, instead of one on each GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Frame
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.promise import told
from nightshift.detectors.alarms.tail import Tail, calibrated
from nightshift.detectors.base import (
    CERTAIN,
    Fault,
    Finding,
    RateBasis,
    SeriesExhibit,
    Severity,
    SnapshotError,
    StatedRate,
)
from nightshift.detectors.ecc.clusters import SRAM, UNKNOWN, MemoryCell, over_nodes, pattern, together, units_of
from nightshift.detectors.ecc.counters import (
    CORRECTED,
    COUNTERS,
    GAUGES,
    SAY,
    UNCORRECTED,
    Counted,
    CusumTest,
    EccCounters,
)
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.hardware.xid_catalogue import CATALOGUE
from nightshift.detectors.quiet_periods import QuietPeriods, deaf, exhibits, node_of
from nightshift.detectors.snapshot import pack, unpack

UNCORRECTED_XIDS = frozenset({48, 94, 95, 140, 171, 172})
HARD_XIDS = UNCORRECTED_XIDS | {63, 64}
SOFT_XIDS = frozenset({92})
DAY_S = 86400.0
BURST_S = 300.0
"""Uncorrected errors closer than this are one moment."""
FEW_DEVICES = 5
"""With fewer devices than this, no more than the lower bound is stated."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """Moments of one kind, and after how many another uncorrected error came within 24 h.

    Few devices log anything before their first uncorrected error, so what can be stated is the next one. Devices
    differ far more than the moments of one do: on the devices of the fit one gives 33 of 50 followed errors, and a
    rule that crosses 0.9 on it alone gave 0.66 on others. So expected, low and high are the mean and 95 % interval
    of that share *on a device that was not seen*: a beta-binomial over devices (Skellam 1948). Sorting errors
    further (by whether a program read them, or by how many a day held) is no better on a device that is not of the
    fit than one share for all.

    The counts are of HBM devices of the Calchas field data (openeuler hbm-predictor; Yu et al., USENIX ATC 2024),
    fitted by `python -m benchmarks.detect_ecc` on the devices with an even md5 of the name. They are accelerators
    of another maker than NVIDIA, and HBM: nothing is stated of errors in SRAM.
    """

    name: str
    moments: int
    devices: int
    within_24h: int
    expected: float
    low: float
    high: float

    @property
    def share(self) -> float:
        """What is stated as P(another uncorrected error within 24 h)."""
        # moments of four devices can be one device's story: their bound is all that they carry
        return self.expected if self.devices >= FEW_DEVICES else self.low

    def facts(self) -> dict[str, float | str]:
        """How often another uncorrected error followed within a day, and on what data."""
        return {
            "hazard_of": self.name,
            "next_error_24h": self.share,
            "next_error_low": self.low,
            "next_error_high": self.high,
            "hazard_devices": float(self.devices),
        }


AFTER_CORRECTED = Stratum("corrected errors only", 4571, 10, 1, 0.049, 0.0, 0.78)
AFTER_UNCORRECTED = Stratum("an uncorrected error", 100, 20, 50, 0.343, 0.002, 0.907)
STRATA = (AFTER_CORRECTED, AFTER_UNCORRECTED)


class ErrorHistory:
    """The moments of the last day at which one GPU had uncorrected errors (Unix s, ascending).

    >>> history = ErrorHistory()
    >>> history.add(0.0)
    >>> history.add(60.0)  # within five minutes: the same moment
    >>> len(history.moments_s), history.stratum().name, history.stratum().share
    (1, 'an uncorrected error', 0.343)
    """

    def __init__(self, moments_s: Iterable[float] = ()) -> None:
        self.moments_s = sorted(moments_s)

    def add(self, t_s: float) -> None:
        """One uncorrected error; a line that comes late joins the moment that it belongs to."""
        if all(abs(known_s - t_s) >= BURST_S for known_s in self.moments_s):
            self.moments_s = sorted([*self.moments_s, t_s])

    def forget(self, now_s: float) -> None:
        """Lets go of moments more than a day before now_s."""
        self.moments_s = [t_s for t_s in self.moments_s if t_s > now_s - DAY_S]

    def stratum(self) -> Stratum:
        return AFTER_UNCORRECTED if self.moments_s else AFTER_CORRECTED


VERSION = 3
"""1: bins of ten minutes, rows without columns. Its test starts anew. 2: moments of errors with a flag. Both said
imminent (`Fault.HBM_IMMINENT`): such an episode stays beside a degraded one until it is quiet, and none begins."""
KEEP_CELLS = 4096
KEEP_SIGNS = 4
_PLACES = (SubjectKind.RACK, SubjectKind.NODE)  # the widest first: what explains a rack's nodes is said once


# Distinct rows of one bank that are a bank's fault: two can be one row and its neighbour.
ROWS_IN_BANK = 3
# GPUs that begin to err within this time may have one cause.
TOGETHER_S = 600.0
# Below this chance of independent GPUs they have one: a fleet is asked some 10^5 times a year.
TOGETHER_P = 1e-6
# No further event for this long ends an event's episode.
QUIET_S = 600.0
# A GPU unseen for this long is forgotten: longer than a repair in place, shorter than an exchange.
FORGET_S = 7 * 86400.0


class EccSettings(BaseModel):
    """How strong soft evidence has to be; hard evidence is taken at its word."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strength: float = Field(default=1.0, gt=0, description="The test alarms at this many times its threshold")


class Ecc:
    """HBM_DEGRADED on the GPU, or on the node or rack whose GPUs err together; `unit` says whether it is HBM.

    >>> from nightshift.detectors.contract.testing import START_S, show, tick
    >>> counts = [0, 0, 1, 1]
    >>> rows = [{0: {"gpu_ecc_dbe_total": count}, 1: {"gpu_ecc_dbe_total": 0}} for count in counts]
    >>> show(Ecc(), [tick(START_S + 5 * n, row) for n, row in enumerate(rows)])
    10 s: firing hbm_degraded gpu:GPU-0
        ECC errors, unit unknown: 1 more uncorrected errors
    """

    plugin: ClassVar[str] = "ecc"
    LOOSE: ClassVar[float] = 0.5
    Settings = EccSettings

    def __init__(self, settings: EccSettings | None = None) -> None:
        s = self.settings = settings or EccSettings()
        self._test = CusumTest(strength=s.strength)
        self._counters = EccCounters(self._test, FORGET_S)
        self._cells: dict[Subject, set[MemoryCell]] = {}
        self._history: dict[Subject, ErrorHistory] = {}
        self._together: dict[Subject, float] = {}
        self._episodes = Episodes(self.name, self.stated.per_1000_series_days / 1000.0)
        self._quiet = QuietPeriods(self._episodes, QUIET_S)
        self._spoken: dict[tuple[Fault, Subject], Finding] = {}
        """What this tick has said so far."""

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.HBM_DEGRADED,)

    @property
    def strength(self) -> float:
        return self.settings.strength

    @property
    def stated(self) -> StatedRate:
        """Lorden's bound gives the test its tail: an alarm of strength s comes e^(-h (s - 1)) times as often."""
        test, bound = self._test, "average run length of the CUSUM (Lorden's bound)"
        tail = Tail(1.0, 1000.0 / test.run_length_days, 1.0 / test.threshold, 0.0, 0, 0.0, bound)
        return told(StatedRate(0.0, RateBasis.STATISTICAL, bound), calibrated(self.plugin) or tail, test.strength)

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        spoken = self._spoken = {}
        frame = tick.frames.get(SubjectKind.GPU)
        counted = None
        if frame is not None and len(frame.index):
            counted = self._counters.take(frame, tick.at_s)
        else:
            self._counters.roll(tick.at_s)
        events = self._events(tick)
        if frame is not None and counted is not None:
            self._uncorrected(frame, counted, tick.at_s)
        for subject, history in list(self._history.items()):
            history.forget(tick.at_s)
            if not history.moments_s:
                del self._history[subject]
        crowds = self._one_cause(tick.at_s, inventory)
        if frame is not None and counted is not None:
            self._by_counters(frame, counted, tick.at_s, crowds)
        for subject, lines in events.items():
            self._by_lines(subject, lines, tick)
        missing = self._missing(tick, frame, inventory)
        findings = [*spoken.values(), *(gone for gone in missing.values() if gone is not None)]
        findings += self._quiet.rest(tick, inventory, {*spoken, *missing})
        open_now = set(self._episodes)
        self._together = {p: t for p, t in self._together.items() if (Fault.HBM_DEGRADED, p) in open_now}
        return findings

    def _missing(
        self, tick: Tick, frame: Frame | None, inventory: Inventory
    ) -> dict[tuple[Fault, Subject], Finding | None]:
        """Open episodes of which this tick can say nothing, each with its one word on that."""
        observed = self._observed(frame)
        found: dict[tuple[Fault, Subject], Finding | None] = {}
        for fault, subject in tuple(self._episodes):
            if (fault, subject) in self._spoken:
                continue
            # a node's counters are its GPUs': only a GPU can be missing in a frame of GPUs
            if subject.kind is SubjectKind.GPU and frame is not None and subject not in observed:
                said = "Its ECC counters are missing"
            elif frame is None and not self._heard(tick, inventory, subject):
                said = "Neither counters nor log are read"
            else:
                continue
            found[(fault, subject)] = self._episodes.no_data(fault, subject, tick.at_s, said)
        return found

    @staticmethod
    def _heard(tick: Tick, inventory: Inventory, subject: Subject) -> bool:
        return bool(tick.sources) and node_of(subject, inventory, tick.at_s) not in deaf(tick)

    def _observed(self, frame: Frame | None) -> set[Subject]:
        """Subjects with an open episode whose counters, or at least some metric, were read in this tick."""
        found: set[Subject] = set()
        for _, subject in tuple(self._episodes) if frame is not None else ():
            row = None if frame is None else frame.index.rows.get(subject)
            if row is not None and frame is not None and np.isfinite(frame.values[row]).any():
                found.add(subject)
        return found

    def _events(self, tick: Tick) -> dict[Subject, list[KernelEvent]]:
        """Memory Xids by GPU (by node where the GPU is unknown); notes what they say of cells and of errors."""
        by_gpu: dict[Subject, list[KernelEvent]] = {}
        for event in tick.events:
            if event.kind is not KernelEventKind.XID or event.code not in HARD_XIDS | SOFT_XIDS:
                continue
            subject = event.gpu or event.node
            by_gpu.setdefault(subject, []).append(event)
            if event.code in UNCORRECTED_XIDS:
                self._history.setdefault(subject, ErrorHistory()).add(event.record.at.t_s)
            cell = MemoryCell(*(event.attributes.get(name) for name in ("bank", "row", "column")))
            fresh = cell not in self._cells.get(subject, ())
            self._keep(subject, cell)
            slot = self._counters.table.slot(subject)
            if slot is not None and event.code in SOFT_XIDS and cell.row is not None:
                (self._counters.mark(slot, tick.at_s) if fresh else self._counters.unmark(slot))
        return by_gpu

    def _keep(self, subject: Subject, cell: MemoryCell) -> None:
        if not (cell.bank or cell.row):
            return
        cells = self._cells.setdefault(subject, set())
        if len(cells) < KEEP_CELLS:  # a failing bank can name thousands of rows in an hour
            cells.add(cell)

    def _uncorrected(self, frame: Frame, counted: Counted, at_s: float) -> None:
        """Counted uncorrected errors; resets that end stories."""
        for row in np.flatnonzero(counted.uncorrected).tolist():
            self._history.setdefault(frame.index.subjects[row], ErrorHistory()).add(at_s)
        for row in np.flatnonzero(counted.took_effect).tolist():
            # the reset took the bad row out of use: what erred before says nothing of what is in use now
            self._cells.pop(frame.index.subjects[row], None)
            self._history.pop(frame.index.subjects[row], None)

    def _by_counters(self, frame: Frame, counted: Counted, at_s: float, crowds: dict[Subject, Subject]) -> None:
        table = self._counters.table
        for row in np.flatnonzero(counted.hard | counted.soft | counted.fired).tolist():
            subject = frame.index.subjects[row]
            hard = bool(counted.hard[row])
            # said once on the place; GPUs that had their own episode before keep it
            if not hard and subject in crowds and (Fault.HBM_DEGRADED, subject) not in self._episodes:
                continue
            said = [f"{counted.rose[n][row]:.0f} more {SAY[n]}" for n in COUNTERS[1:] if counted.rose[n][row] > 0]
            said += [SAY[n] for n in GAUGES if counted.standing[n][row]]
            since_s, slot = at_s, table.slot(subject)
            if counted.fired[row] and slot is not None:
                bins = int(table["active_bins"][slot])
                said.append(f"corrected errors in {bins} bins of {self._test.bin_s:.0f} s")
                since_s = float(np.fmin(table["cusum_since_s"][slot], at_s))
            self._say(subject, at_s, since_s, said, hard)

    def _by_lines(self, subject: Subject, events: list[KernelEvent], tick: Tick) -> None:
        hard = [e for e in events if e.code in HARD_XIDS]
        said = [f"Xid {e.code} ({CATALOGUE[int(e.code or 0)].meaning})" for e in (hard or events)[:3]]
        where = pattern(tuple(self._cells.get(subject, ())))
        if where.rows_in_bank >= ROWS_IN_BANK:
            said.append(f"{where.rows_in_bank} rows of one bank")
        since_s = min([tick.at_s, *(e.record.at.t_s for e in events)])
        self._say(subject, tick.at_s, since_s, said, bool(hard), events)

    def _one_cause(self, at_s: float, inventory: Inventory) -> dict[Subject, Subject]:
        """GPU → the node or rack of which so many GPUs erred within `together_s` that it is no chance."""
        table = self._counters.table
        lately = np.flatnonzero(table["last_active_s"] > at_s - TOGETHER_S)
        named = [table.subjects[slot] for slot in lately.tolist()]
        erring = {gpu for gpu in named if (Fault.HBM_DEGRADED, gpu) not in self._episodes}  # ill by itself before
        crowds: dict[Subject, Subject] = {}
        if len(erring) < 2:
            return crowds
        chance = 1.0 - (1.0 - self._test.healthy_rate) ** math.ceil(TOGETHER_S / self._test.bin_s)
        for kind in _PLACES:
            by_place: dict[Subject, list[Subject]] = {}
            for gpu in erring - set(crowds):
                place = inventory.above(gpu, kind, at_s)
                if place is not None:
                    by_place.setdefault(place, []).append(gpu)
            for place, gpus in sorted(by_place.items()):
                total = max(len(inventory.gpus(place, at_s)), len(gpus))
                p = together(len(gpus), total, chance)
                if kind is SubjectKind.RACK:
                    nodes = [inventory.above(gpu, SubjectKind.NODE, at_s) for gpu in inventory.gpus(place, at_s)]
                    ill = {inventory.above(gpu, SubjectKind.NODE, at_s) for gpu in gpus}
                    p = max(p, over_nodes(len(ill), max(len(set(nodes)), len(ill)), total, chance))
                if len(gpus) >= 2 and p < TOGETHER_P:
                    self._crowd(place, sorted(gpus), total, p, at_s)
                    crowds |= dict.fromkeys(gpus, place)
        return crowds

    def _crowd(self, place: Subject, gpus: list[Subject], total: int, p: float, at_s: float) -> None:
        table = self._counters.table
        slots = [slot for gpu in gpus if (slot := table.slot(gpu)) is not None]
        since_s = self._together.setdefault(place, float(min(table["last_active_s"][slots])))
        alarm = Alarm(
            Fault.HBM_DEGRADED,
            place,
            since_s,
            Severity.WARNING,
            f"One cause, many GPUs: {len(gpus)} of {total} GPUs of {place.name} had memory errors within "
            f"{TOGETHER_S / 60:.0f} min; check power, cooling and driver before their memory",
            score=math.log(max(p, 1e-300)) / math.log(TOGETHER_P),
            threshold=1.0,
            p_value=p,
            facts={
                "tier": "one cause",
                "gpus": ", ".join(g.name for g in gpus),
                "gpus_erring": float(len(gpus)),
                "gpus_of_place": float(total),
            },
        )
        self._spoken[(alarm.fault, place)] = self._episodes.fire(alarm, at_s)
        self._quiet.event(alarm.fault, place, at_s)

    def _say(
        self,
        subject: Subject,
        at_s: float,
        since_s: float,
        said: list[str],
        hard: bool,
        events: Sequence[KernelEvent] = (),
    ) -> None:
        fault = Fault.HBM_DEGRADED
        table, slot = self._counters.table, self._counters.table.slot(subject)
        known, before = self._episodes.get(fault, subject), self._spoken.get((fault, subject))
        moments = len(self._history.get(subject, ErrorHistory()).moments_s)
        repeated = ["more than one uncorrected error within a day"] if moments > 1 else []
        grave = _hard_signs(known, [*repeated, *said] if hard else [])
        units = self._units(subject, known, since_s, events)
        facts = self._facts(subject, slot, units, moments)
        facts |= {"tier": "hard" if grave else "soft", "hard_signs": "; ".join(grave)}
        if before is not None:
            said = [*before.summary.partition(": ")[2].split("; "), *said]
        said = list(dict.fromkeys([*grave, *said]))
        evidence: tuple[Any, ...] = exhibits(known, {e.record: "" for e in events})
        evidence += self._series(known, slot, UNCORRECTED if grave else CORRECTED, at_s)
        strength = 0.0 if slot is None else float(table["height"][slot]) / self._test.threshold
        alarm = Alarm(
            fault,
            subject,
            since_s,
            Severity.CRITICAL if grave else Severity.WARNING,
            f"ECC errors{' in ' if units else ', '}{facts['unit']}: {'; '.join(said)}",
            # what the hardware says of itself is an event: no test stands behind it, and none can silence it
            score=CERTAIN if grave or events else strength,
            threshold=self.settings.strength,
            evidence=evidence,
            facts={name: value for name, value in facts.items() if value != ""},
        )
        self._spoken[(fault, subject)] = self._episodes.fire(alarm, at_s)
        self._quiet.event(fault, subject, at_s)

    def _series(self, known: Finding | None, slot: int | None, counter: str, at_s: float) -> tuple[Any, ...]:
        """The counter when an episode begins; later what was shown then."""
        if known is not None:
            return tuple(e for e in known.evidence if isinstance(e, SeriesExhibit))[:2]
        return self._counters.exhibit(counter, slot, at_s) if slot is not None else ()

    def _units(
        self, subject: Subject, known: Finding | None, since_s: float, events: Sequence[KernelEvent]
    ) -> set[str]:
        """What erred in this episode: a unit once named stays named."""
        units = set(str(known.facts.get("unit", UNKNOWN)).split(", ")) - {UNKNOWN} if known else set()
        slot = self._counters.table.slot(subject)
        units |= units_of(events) | (self._counters.units(slot, since_s) if slot is not None else set())
        return units - {SRAM} if any(unit.startswith(f"{SRAM} ") for unit in units) else units

    def _facts(self, subject: Subject, slot: int | None, units: set[str], moments: int) -> dict[str, float | str]:
        facts: dict[str, float | str] = {
            "unit": ", ".join(sorted(units)) or UNKNOWN,
            "error_moments_24h": float(moments),
        }
        # how often an error follows was measured on HBM: of SRAM alone nothing is stated
        if not units or any(not unit.startswith(SRAM) for unit in units):
            facts |= self._history.get(subject, ErrorHistory()).stratum().facts()
        facts |= pattern(tuple(self._cells.get(subject, ()))).facts()
        return facts | (self._counters.facts(slot) if slot is not None else {})

    def snapshot(self) -> bytes:
        subjects, arrays = self._counters.saved()
        meta = {
            "subjects": subjects,
            "bin": self._counters.bin,
            "cells": {
                str(subject): sorted([c.bank or "", c.row or "", c.column or ""] for c in cells)
                for subject, cells in self._cells.items()
            },
            "history": {str(subject): history.moments_s for subject, history in self._history.items()},
            "together": {str(place): since_s for place, since_s in self._together.items()},
            "last": self._quiet.saved(),
            "episodes": self._episodes.saved(),
        }
        return pack(self.name, VERSION, meta, arrays)

    def restore(self, state: bytes) -> None:
        version, meta, arrays = unpack(state, self.name, (1, 2, VERSION))
        fresh = Ecc(self.settings)
        try:
            if version == 1:
                meta, arrays = _from_1(meta, arrays)
            if version < VERSION:
                meta = _from_2(meta)
            fresh._counters.table.load(meta["subjects"], arrays)
            fresh._counters.bin = int(meta["bin"])
            for name, cells in meta["cells"].items():
                fresh._cells[Subject.parse(name)] = {MemoryCell(*(c or None for c in cell)) for cell in cells}
            for name, moments_s in meta["history"].items():
                fresh._history[Subject.parse(name)] = ErrorHistory(map(float, moments_s))
            fresh._together = {Subject.parse(name): float(t_s) for name, t_s in meta["together"].items()}
            fresh._quiet.load(meta["last"])
            fresh._episodes.load(meta["episodes"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._counters, self._cells, self._history = fresh._counters, fresh._cells, fresh._history
        self._together, self._quiet, self._episodes = fresh._together, fresh._quiet, fresh._episodes


def _hard_signs(known: Finding | None, said: list[str]) -> list[str]:
    """Once hard, an episode stays hard, with what made it so, however soft its next word."""
    grave: list[str] = []
    if known is not None and known.severity is Severity.CRITICAL:
        # episodes of a state that was saved before this fact have their signs in the summary alone
        grave = str(known.facts.get("hard_signs", known.summary.partition(": ")[2])).split("; ")
    return list(dict.fromkeys(filter(None, [*grave, *said])))[:KEEP_SIGNS]


def _from_1(meta: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Version 1's state as version 2's: its test starts anew."""
    twins = [
        {**e, "fault": Fault.HBM_DEGRADED.value} for e in meta["episodes"] if e["fault"] == Fault.HBM_IMMINENT.value
    ]
    last = [[Fault.HBM_DEGRADED.value, s, t] for fault, s, t in meta["last"] if fault == Fault.HBM_IMMINENT.value]
    degraded = {e["subject"] for e in meta["episodes"] if e["fault"] == Fault.HBM_DEGRADED.value}
    twins = [e for e in twins if e["subject"] not in degraded]
    cells = {
        name: [[bank if bank != "?" else "", row, ""] for bank, rows in banks.items() for row in rows]
        for name, banks in meta["rows"].items()
    }
    test = ("table.cusum", "table.active", "table.active_bins", "table.cusum_since_s")
    kept = {name: array for name, array in arrays.items() if name not in test}
    known = {**meta, "bin": -1, "cells": cells, "history": {}, "logged": [], "together": {}}
    return {**known, "episodes": [*meta["episodes"], *twins], "last": [*last, *meta["last"]]}, kept


def _from_2(meta: dict[str, Any]) -> dict[str, Any]:
    """Version 2's state as this version's: whether a program read an error is no longer asked."""
    history = {subject: [t_s for t_s, _ in moments] for subject, moments in meta["history"].items()}
    return {**meta, "history": history}
