"""HBM errors that cluster: hard evidence at once, soft evidence by a sequential test, degraded apart from imminent.

*Degraded* says that the memory is ill. Hard tier, critical: an uncorrected error, the Xids that say so, a remap or
page retirement after one, one that waits for a reset, a bank without spare rows. Soft tier, a warning: corrected
errors that come back in many bins of time (`detectors.ecc.counters`), rows remapped after corrected errors, and
several rows of one bank.

*Imminent* says that the next uncorrected error is a matter of hours, and is said sparingly: where the hazard fitted
on field data is at least 0.9 (`detectors.ecc.hazard`), or a row remap failed, so that the bad row stays in use
(NVIDIA's criterion for replacement; its hazard is not in the data). An uncorrected error by itself is not imminent:
two thirds of them are followed by none within a day. The hazard is told with every alarm.

GPUs of one node or rack that begin to err together have one cause that is not their memory
(`detectors.ecc.clusters`): one finding on the place, instead of one on each GPU.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Frame, LogRecord
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
from nightshift.detectors.ecc.clusters import MemoryCell, over_nodes, pattern, together
from nightshift.detectors.ecc.counters import (
    CORRECTED,
    COUNTERS,
    FAILURE,
    GAUGES,
    SAY,
    UNCORRECTED,
    Counted,
    CusumTest,
    EccCounters,
)
from nightshift.detectors.ecc.hazard import (
    CONSUMED_XIDS,
    DAY_S,
    FAILED_XID,
    HARD_XIDS,
    IMMINENT_FROM,
    SOFT_XIDS,
    ErrorHistory,
)
from nightshift.detectors.ecc.saved_state import cells_of, from_1, histories_of, told_by_lines
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.hardware.xid_catalogue import CATALOGUE
from nightshift.detectors.quiet_periods import QuietPeriods, deaf, exhibits, node_of
from nightshift.detectors.snapshot import pack, unpack

VERSION = 2
"""1: bins of ten minutes, rows without columns, imminent on every hard sign. Its test starts anew; its open
imminent episodes stay until they are quiet, beside a degraded one of the same onset."""
KEEP_CELLS = 4096
KEEP_SIGNS = 4
_PLACES = (SubjectKind.RACK, SubjectKind.NODE)  # the widest first: what explains a rack's nodes is said once


# Distinct rows of one bank that are a bank's fault: two can be one row and its neighbour.
ROWS_IN_BANK = 3
# An uncorrected error without an Xid for this long was read by no program (a scrubber found it).
SETTLE_S = 60.0
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
    """HBM_IMMINENT and HBM_DEGRADED on the GPU; HBM_DEGRADED on the node or rack whose GPUs err together.

    >>> from nightshift.detectors.contract.testing import START_S, show, tick
    >>> counts = [0, 0, 1, 1]
    >>> rows = [{0: {"gpu_ecc_dbe_total": count}, 1: {"gpu_ecc_dbe_total": 0}} for count in counts]
    >>> show(Ecc(), [tick(START_S + 5 * n, row) for n, row in enumerate(rows)])
    10 s: firing hbm_degraded gpu:GPU-0
        HBM degraded: 1 more uncorrected errors
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
        self._logged: set[Subject] = set()
        """Nodes whose kernel log is known to be read: only there does a missing Xid mean anything."""
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
        return (Fault.HBM_IMMINENT, Fault.HBM_DEGRADED)

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
            self._uncorrected(frame, counted, tick.at_s, inventory)
        crowds = self._one_cause(tick.at_s, inventory)
        if frame is not None and counted is not None:
            self._by_counters(frame, counted, tick.at_s, crowds)
        for subject, lines in events.items():
            self._by_lines(subject, lines, tick)
        self._imminent(tick, frame, inventory)
        findings = list(spoken.values())
        missing = []
        observed = self._observed(frame)
        for fault, subject in tuple(self._episodes):
            if (fault, subject) in spoken:
                continue
            if subject.kind is SubjectKind.GPU and frame is not None and subject not in observed:
                said = "Its ECC counters are missing"
            elif frame is None and not self._heard(tick, inventory, subject):
                said = "Neither counters nor log are read"
            else:
                continue
            missing.append((fault, subject))
            gone = self._episodes.no_data(fault, subject, tick.at_s, said)
            findings += [gone] if gone else []
        findings += self._quiet.rest(tick, inventory, set(spoken) | set(missing))
        open_now = set(self._episodes)
        self._together = {p: t for p, t in self._together.items() if (Fault.HBM_DEGRADED, p) in open_now}
        return findings

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
        """Memory Xids by GPU (by node where the GPU is unknown); notes what they say of cells and of reading."""
        by_gpu: dict[Subject, list[KernelEvent]] = {}
        for event in tick.events:
            # a gap says that lines are missing: no proof that the log is read
            if event.kind is not KernelEventKind.GAP:
                self._logged.add(event.node)
            if event.kind is not KernelEventKind.XID or event.code not in HARD_XIDS | SOFT_XIDS:
                continue
            subject = event.gpu or event.node
            by_gpu.setdefault(subject, []).append(event)
            cells = self._cells.setdefault(subject, set())
            cell = MemoryCell(*(event.attributes.get(name) for name in ("bank", "row", "column")))
            fresh = cell not in cells
            if (cell.bank or cell.row) and len(cells) < KEEP_CELLS:
                cells.add(cell)
            if event.code in CONSUMED_XIDS | {171}:
                history = self._history.setdefault(subject, ErrorHistory())
                history.add(event.record.at.t_s, event.code in CONSUMED_XIDS)
            slot = self._counters.table.slot(subject)
            if slot is not None and event.code in SOFT_XIDS and cell.row is not None:
                (self._counters.mark(slot, tick.at_s) if fresh else self._counters.unmark(slot))
            if not cells:
                del self._cells[subject]
        return by_gpu

    def _uncorrected(self, frame: Frame, counted: Counted, at_s: float, inventory: Inventory) -> None:
        """Counted uncorrected errors, consumed until the log's silence shows otherwise; resets that end stories."""
        for row in np.flatnonzero(counted.uncorrected).tolist():
            subject = frame.index.subjects[row]
            logged = node_of(subject, inventory, at_s) in self._logged
            self._history.setdefault(subject, ErrorHistory()).add(at_s, consumed=not logged)
        for row in np.flatnonzero(counted.took_effect).tolist():
            subject = frame.index.subjects[row]
            self._cells.pop(subject, None)
            self._history.pop(subject, None)
            # the reset took the bad row out of use: what was imminent ends now, not after `quiet_s`
            if (Fault.HBM_IMMINENT, subject) in self._episodes:
                self._quiet.last_s[(Fault.HBM_IMMINENT, subject)] = 0.0

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
            self._say(Fault.HBM_DEGRADED, subject, at_s, since_s, said, hard, ())

    def _by_lines(self, subject: Subject, events: list[KernelEvent], tick: Tick) -> None:
        hard = [e for e in events if e.code in HARD_XIDS]
        said = [f"Xid {e.code} ({CATALOGUE[int(e.code or 0)].meaning})" for e in (hard or events)[:3]]
        where = pattern(tuple(self._cells.get(subject, ())))
        if where.rows_in_bank >= ROWS_IN_BANK:
            said.append(f"{where.rows_in_bank} rows of one bank")
        lines = tuple(e.record for e in events)
        since_s = min([tick.at_s, *(line.at.t_s for line in lines)])
        self._say(Fault.HBM_DEGRADED, subject, tick.at_s, since_s, said, bool(hard), lines)

    def _imminent(self, tick: Tick, frame: Frame | None, inventory: Inventory) -> None:
        """GPUs whose next uncorrected error is near by the fitted hazard, or whose bad row cannot be replaced."""
        for subject, history in list(self._history.items()):
            history.forget(tick.at_s)
            if not history.moments:
                del self._history[subject]
                continue
            newest_s = history.moments[-1].t_s
            known = self._episodes.get(Fault.HBM_IMMINENT, subject)
            told = known is not None and known.facts.get("newest_s") == newest_s
            stratum = history.stratum(tick.at_s, SETTLE_S)
            if (
                stratum.share < IMMINENT_FROM
                or told
                or (frame is None and not self._heard(tick, inventory, subject))
            ):
                continue
            said = [f"{stratum.name} ({len(history.moments)} times)"]
            self._near(subject, tick.at_s, history.moments[0].t_s, newest_s, said)
        failed = {e.gpu or e.node for e in tick.events if e.kind is KernelEventKind.XID and e.code == FAILED_XID}
        if frame is not None:
            standing = frame.column(FAILURE)
            failed |= {frame.index.subjects[r] for r in np.flatnonzero((standing > 0) & (standing < 2.0**53))}
        for subject in sorted(failed):
            said = ["a row remap failed: the bad row stays in use"]
            self._near(subject, tick.at_s, tick.at_s, tick.at_s, said)

    def _near(self, subject: Subject, at_s: float, since_s: float, newest_s: float, said: list[str]) -> None:
        """Says imminent; what it promises is a day, so it outlives the events' quiet time."""
        self._say(Fault.HBM_IMMINENT, subject, at_s, since_s, said, True, (), newest_s)
        self._quiet.event(Fault.HBM_IMMINENT, subject, newest_s + DAY_S - QUIET_S)

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
        fault: Fault,
        subject: Subject,
        at_s: float,
        since_s: float,
        said: list[str],
        hard: bool,
        lines: tuple[LogRecord, ...],
        newest_s: float = math.nan,
    ) -> None:
        table, slot = self._counters.table, self._counters.table.slot(subject)
        imminent = fault is Fault.HBM_IMMINENT
        known = self._episodes.get(fault, subject)
        before = self._spoken.get((fault, subject))
        grave = _hard_signs(known, said if hard else [])
        hard = bool(grave)
        if before is not None:
            said = [*before.summary.partition(": ")[2].split("; "), *said]
        said = list(dict.fromkeys([*grave, *said]))
        where = pattern(tuple(self._cells.get(subject, ())))
        facts: dict[str, float | str] = {"tier": "imminent" if imminent else "hard" if hard else "soft"}
        stratum = self._history.get(subject, ErrorHistory()).stratum(at_s, SETTLE_S)
        facts |= stratum.facts() | where.facts() | {"newest_s": newest_s}
        facts |= {"hard_signs": "; ".join(grave)} if grave else {}
        strength = 0.0
        if slot is not None:
            strength = float(table["height"][slot]) / self._test.threshold
            facts |= self._counters.facts(slot)
        evidence: tuple[Any, ...] = exhibits(known, dict.fromkeys(lines, ""))
        evidence += tuple(e for e in (known.evidence if known else ()) if isinstance(e, SeriesExhibit))[:2]
        if known is None and slot is not None:
            evidence += self._counters.exhibit(UNCORRECTED if hard else CORRECTED, slot, at_s)
        alarm = Alarm(
            fault,
            subject,
            since_s,
            Severity.CRITICAL if hard or imminent else Severity.WARNING,
            ("HBM error imminent: " if imminent else "HBM degraded: ") + "; ".join(said),
            # what the hardware says of itself is an event: no test stands behind it, and none can silence it
            score=CERTAIN if hard or imminent or lines else strength,
            threshold=self.settings.strength,
            evidence=evidence,
            facts=facts,
        )
        self._spoken[(fault, subject)] = self._episodes.fire(alarm, at_s)
        if not imminent:
            self._quiet.event(fault, subject, at_s)

    def snapshot(self) -> bytes:
        subjects, arrays = self._counters.saved()
        meta = {
            "subjects": subjects,
            "bin": self._counters.bin,
            **told_by_lines(self._cells, self._history),
            "logged": sorted(map(str, self._logged)),
            "together": {str(place): since_s for place, since_s in self._together.items()},
            "last": self._quiet.saved(),
            "episodes": self._episodes.saved(),
        }
        return pack(self.name, VERSION, meta, arrays)

    def restore(self, state: bytes) -> None:
        version, meta, arrays = unpack(state, self.name, (1, VERSION))
        fresh = Ecc(self.settings)
        try:
            if version == 1:
                meta, arrays = from_1(meta, arrays)
            fresh._counters.table.load(meta["subjects"], arrays)
            fresh._counters.bin = int(meta["bin"])
            fresh._cells, fresh._history = cells_of(meta), histories_of(meta)
            fresh._logged = {Subject.parse(name) for name in meta["logged"]}
            fresh._together = {Subject.parse(name): float(t_s) for name, t_s in meta["together"].items()}
            fresh._quiet.load(meta["last"])
            fresh._episodes.load(meta["episodes"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._counters, self._cells, self._history = fresh._counters, fresh._cells, fresh._history
        self._logged, self._together = fresh._logged, fresh._together
        self._quiet, self._episodes = fresh._quiet, fresh._episodes


def _hard_signs(known: Finding | None, said: list[str]) -> list[str]:
    """Once hard, an episode stays hard, with what made it so, however soft its next word."""
    grave: list[str] = []
    if known is not None and known.severity is Severity.CRITICAL:
        # episodes of a state that was saved before this fact have their signs in the summary alone
        grave = str(known.facts.get("hard_signs", known.summary.partition(": ")[2])).split("; ")
    return list(dict.fromkeys(filter(None, [*grave, *said])))[:KEEP_SIGNS]
