"""Links that degrade: NVLink and PCIe errors at rates that matter, retrained links, and lost width or speed.

A few errors are part of a healthy link: it detects them and sends again. NVIDIA's own health watch says which rates
matter (DCGM, dcgm_gpu_hardware_limits.h): more than 8 PCIe replays per minute, 100 NVLink CRC errors per second,
and any NVLink replay or recovery, because a recovery is a retrained link. Rates are of a counter over a stretch of
time, so a counter that starts anew or jumps once (a driver reload, a hot-plug) is no rate, and a rate has to last.
A link that trains narrower or slower than it did before keeps working at half its bandwidth: it is compared with
its own best, and a GPU's with what all other GPUs of its model and node have, where it was never better. Speed
alone is judged while the GPU works, since idle links slow down to save power. InfiniBand and Ethernet ports are
judged alike: a port that goes down, recovers again and again, or trains slower than its best; its symbol errors by
InfiniBand's bit error rate of 10^-12, which is six per minute at 100 Gbit/s on a good cable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from nightshift.collectors.frame import Floats, Frame
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, RateBasis, SeriesExhibit, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.hardware.equipment import end_facts, end_words
from nightshift.detectors.series_table import Column, SeriesTable, load_tables, saved_tables
from nightshift.detectors.snapshot import pack, unpack

VERSION = 1
PEERS = 3
"""A GPU's link is compared with those of this many other GPUs of its node and model at least."""
ASKED, ASK_S = 512, 60.0
"""So many GPUs at most are compared in one look, each once in this time (s): half a fleet may have other links."""
_GPU, _LINK, _NIC = SubjectKind.GPU, SubjectKind.LINK, SubjectKind.NIC


# DCGM's own limits (dcgm_gpu_hardware_limits.h): 8 replays per minute and 100 CRC errors per second.
PCIE_REPLAYS_PER_MIN = 8.0
# ... which is this many per minute.
CRC_ERRORS_PER_MIN = 6000.0
# Retrained or fallen links: DCGM calls any one a fault; one in five minutes spares a single one at a job's start.
RETRAINS_PER_MIN = 0.2
# Ten times what InfiniBand's bit error rate of 10^-12 allows at 100 Gbit/s (six per minute).
SYMBOL_ERRORS_PER_MIN = 60.0


@dataclass(frozen=True, slots=True)
class LinkSignal:
    """One signal: a counter with the rate (per s) from which on it matters, or a level that must not fall."""

    kind: SubjectKind
    metric: str
    fault: Fault
    what: str
    per_min: float | None = None
    """The limit per minute; none: a level, compared with its own best."""
    when_busy: bool = False


SIGNALS = (
    LinkSignal(_GPU, "gpu_pcie_replay_total", Fault.PCIE_DEGRADED, "PCIe replays", PCIE_REPLAYS_PER_MIN),
    LinkSignal(_GPU, "gpu_nvlink_crc_errors_total", Fault.NVLINK_DEGRADED, "NVLink CRC errors", CRC_ERRORS_PER_MIN),
    LinkSignal(_GPU, "gpu_pcie_link_width", Fault.PCIE_DEGRADED, "PCIe lanes"),
    LinkSignal(_GPU, "gpu_pcie_link_generation", Fault.PCIE_DEGRADED, "PCIe generation", when_busy=True),
    LinkSignal(_LINK, "link_crc_errors_total", Fault.NVLINK_DEGRADED, "NVLink CRC errors", CRC_ERRORS_PER_MIN),
    LinkSignal(_LINK, "link_replay_errors_total", Fault.NVLINK_DEGRADED, "NVLink replays", RETRAINS_PER_MIN),
    LinkSignal(_LINK, "link_recovery_errors_total", Fault.NVLINK_DEGRADED, "NVLink recoveries", RETRAINS_PER_MIN),
    LinkSignal(
        _NIC, "nic_link_down_total", Fault.NETWORK_DEGRADED, "times that the port went down", RETRAINS_PER_MIN
    ),
    LinkSignal(_NIC, "nic_link_recoveries_total", Fault.NETWORK_DEGRADED, "port recoveries", RETRAINS_PER_MIN),
    LinkSignal(_NIC, "nic_symbol_errors_total", Fault.NETWORK_DEGRADED, "symbol errors", SYMBOL_ERRORS_PER_MIN),
    LinkSignal(
        _NIC, "nic_integrity_errors_total", Fault.NETWORK_DEGRADED, "link integrity errors", RETRAINS_PER_MIN
    ),
    LinkSignal(_NIC, "nic_speed_bytes_per_s", Fault.NETWORK_DEGRADED, "port speed (bytes/s)"),
    LinkSignal(_NIC, "nic_is_up", Fault.NETWORK_DEGRADED, "port up"),
    LinkSignal(_NIC, "nic_port_state", Fault.NETWORK_DEGRADED, "port state"),
)


# Stretch over which a rate is taken: the limits are per minute.
WINDOW_S = 60.0
# Stretches in a row above the limit: a hot-plug or a driver reload fills one.
WINDOWS = 2
# A link may be narrower or slower for this long: it trains again after a reset.
LEVEL_S = 120.0
# Nothing above a limit for this long clears: bad cables have quiet minutes.
CLEAR_S = 900.0
# A link unseen for this long is forgotten; its best speed may be of another board.
FORGET_S = 86400.0


class InterconnectSettings(BaseModel):
    """From which rates on a link is degraded."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Interconnect:
    """NVLINK_DEGRADED and PCIE_DEGRADED on the GPU or link, NETWORK_DEGRADED on the port.

    >>> from nightshift.detectors.contract.testing import START_S, show, tick
    >>> replays = [max(0, n - 60) for n in range(120)]  # none for five minutes, then one at every look
    >>> rows = [{0: {"gpu_pcie_replay_total": count}, 1: {"gpu_pcie_replay_total": 0}} for count in replays]
    >>> show(Interconnect(), [tick(START_S + 5 * n, row) for n, row in enumerate(rows)])
    420 s: firing pcie_degraded gpu:GPU-0
        PCIe replays: 12.0 per minute, 2 stretches in a row
    """

    plugin: ClassVar[str] = "interconnect"
    Settings = InterconnectSettings

    def __init__(self, settings: InterconnectSettings | None = None) -> None:
        self.settings = settings or InterconnectSettings()
        self._tables = self._fresh()
        self._episodes = Episodes(self.name)
        self._inventory = Inventory()
        """What this look knows of links' other ends."""

    def _fresh(self) -> dict[SubjectKind, SeriesTable]:
        tables = {}
        for kind in dict.fromkeys(s.kind for s in SIGNALS):
            columns = {"epoch": Column(np.int64, -1), "bad_s": Column(np.float64, -np.inf)}
            for signal in (s for s in SIGNALS if s.kind is kind):
                # counters: the value at the stretch's start; levels: the best so far
                columns |= {
                    f"{signal.metric}.base": Column(np.float64, np.nan),
                    f"{signal.metric}.t_s": Column(np.float64, np.nan),
                    f"{signal.metric}.bad": Column(np.int16, 0),
                    f"{signal.metric}.rate": Column(np.float64, np.nan),
                }
                if kind is _GPU and signal.per_min is None:
                    columns[f"{signal.metric}.asked_s"] = Column(np.float64, -np.inf)
            tables[kind] = SeriesTable(columns, FORGET_S)
        return tables

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.NVLINK_DEGRADED, Fault.PCIE_DEGRADED, Fault.NETWORK_DEGRADED)

    @property
    def stated(self) -> StatedRate:
        # Llama 3 405B: 35 interruptions by switch or cable and 7 by NIC in 54 days on 16,384 GPUs
        return StatedRate(
            1000.0 * (35 + 7) / (54 * 16384),
            RateBasis.EVENT,
            "arXiv 2407.21783, table 5: interruptions by network and NIC per GPU-day; limits are DCGM's",
        )

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        seen: dict[Subject, bool] = {}
        self._inventory = inventory
        for kind, table in self._tables.items():
            frame = tick.frames.get(kind)
            if frame is None or not len(frame.index):
                continue
            self._take(kind, table, frame, tick.at_s, inventory)
            for subject in {subject for _, subject in self._episodes}:
                row = frame.index.rows.get(subject)
                if row is not None:
                    columns = [frame.column(s.metric)[row] for s in SIGNALS if s.kind is kind]
                    seen[subject] = bool(np.isfinite(columns).any())
        findings: list[Finding] = []
        for fault, subject in tuple(self._episodes):
            found = self._word(fault, subject, seen.get(subject, False), tick.at_s)
            findings += [found] if found else []
        return findings

    def _take(self, kind: SubjectKind, table: SeriesTable, frame: Frame, at_s: float, inventory: Inventory) -> None:
        rows = table.rows(frame.index, at_s)
        anew = table["epoch"][rows] != frame.epoch
        table["epoch"][rows] = frame.epoch
        slots = np.arange(rows.start, rows.start + len(anew)) if isinstance(rows, slice) else rows
        busy = np.nan_to_num(frame.column("gpu_utilization_percent")) >= 50.0
        for signal in (s for s in SIGNALS if s.kind is kind and s.metric in frame.columns):
            value = frame.column(signal.metric)
            with np.errstate(invalid="ignore"):
                value = np.where((value >= 0) & (value < 2.0**53), value, np.nan)
            if signal.per_min is not None:
                self._rate(signal, table, slots, value, anew, at_s)
            else:
                value = np.where(busy, value, np.nan) if signal.when_busy else value
                if kind is _GPU:
                    self._as_its_peers(signal, table, slots, value, frame, at_s, inventory)
                self._level(signal, table, slots, value, at_s)

    def _rate(
        self,
        signal: LinkSignal,
        table: SeriesTable,
        slots: NDArray[Any],
        value: Floats,
        anew: NDArray[np.bool_],
        at_s: float,
    ) -> None:
        limit = (signal.per_min or math.inf) / 60.0
        base, since = table[f"{signal.metric}.base"], table[f"{signal.metric}.t_s"]
        elapsed = at_s - since[slots]
        with np.errstate(invalid="ignore"):
            restart = np.isfinite(value) & (anew | np.isnan(base[slots]) | (value < base[slots]) | (elapsed < 0))
            full = np.isfinite(value) & ~restart & (elapsed >= WINDOW_S)
            rate = (value - base[slots]) / np.maximum(elapsed, 1e-9)
            # after a gap in the data the stretch is longer: errors in it may have come at any time
            above = full & (rate > limit)
        count = table[f"{signal.metric}.bad"]
        count[slots] = np.where(restart, 0, np.where(full, np.where(above, count[slots] + 1, 0), count[slots]))
        np.minimum(count, 1000, out=count)
        table[f"{signal.metric}.rate"][slots] = np.where(full, rate, table[f"{signal.metric}.rate"][slots])
        for row in np.flatnonzero(above).tolist():
            slot = int(slots[row])
            if count[slot] >= WINDOWS:
                table["bad_s"][slot] = at_s
                self._fire(signal, table, slot, float(base[slot]), float(value[row]), limit, at_s)
        move = restart | full
        base[slots] = np.where(move, value, base[slots])
        since[slots] = np.where(move, at_s, since[slots])

    def _as_its_peers(
        self,
        signal: LinkSignal,
        table: SeriesTable,
        slots: NDArray[Any],
        value: Floats,
        frame: Frame,
        at_s: float,
        inventory: Inventory,
    ) -> None:
        """A GPU that was never better than now is held to the level at which all others of its node and model are:
        boards are built alike, and a card that trained narrow at boot has no better past."""
        if not np.isfinite(value).any():
            return
        best = table[f"{signal.metric}.base"]
        low = (value < np.nanmax(value)) & ~(best[slots] > value)
        asked_s = table[f"{signal.metric}.asked_s"]
        low &= ~(np.abs(at_s - asked_s[slots]) < ASK_S)
        for row in np.flatnonzero(low)[:ASKED].tolist():
            asked_s[slots[row]] = at_s
            gpu = frame.index.subjects[row]
            node = inventory.above(gpu, SubjectKind.NODE, at_s)
            others = inventory.children(node, at_s, SubjectKind.GPU) if node is not None else []
            model = inventory.fact(gpu, "model")
            rows = [frame.index.rows.get(g) for g in others if g != gpu and inventory.fact(g, "model") == model]
            theirs = value[[r for r in rows if r is not None]]
            theirs = theirs[np.isfinite(theirs)]
            if len(theirs) >= PEERS and theirs.min() == theirs.max() > value[row]:
                best[slots[row]] = theirs[0]

    def _level(
        self,
        signal: LinkSignal,
        table: SeriesTable,
        slots: NDArray[Any],
        value: Floats,
        at_s: float,
    ) -> None:
        best, since = table[f"{signal.metric}.base"], table[f"{signal.metric}.t_s"]
        best[slots] = np.fmax(best[slots], value)
        with np.errstate(invalid="ignore"):
            less = value < best[slots]
        good = np.isfinite(value) & ~less
        since[slots] = np.where(less, np.fmin(since[slots], at_s), np.where(good, np.nan, since[slots]))
        for row in np.flatnonzero(less & (at_s - since[slots] >= LEVEL_S)).tolist():
            slot = int(slots[row])
            table["bad_s"][slot] = at_s
            self._degraded(signal, table, slot, float(value[row]), at_s)

    def _fire(
        self,
        signal: LinkSignal,
        table: SeriesTable,
        slot: int,
        before: float,
        now: float,
        limit: float,
        at_s: float,
    ) -> None:
        subject, rate = table.subjects[slot], float(table[f"{signal.metric}.rate"][slot])
        since_s = float(table[f"{signal.metric}.t_s"][slot])
        exhibit = SeriesExhibit(
            subject, signal.metric, "errors", (since_s, at_s), (before, now), None, "", f"{signal.what}, counted"
        )
        words = f"{signal.what}: {60 * rate:,.1f} per minute, {WINDOWS} stretches in a row"
        facts = {"errors_per_min": 60 * rate, "limit_per_min": 60 * limit, "signal": signal.metric}
        self._say(signal, subject, since_s, words, rate / limit, 1.0, exhibit, facts, at_s)

    def _degraded(self, signal: LinkSignal, table: SeriesTable, slot: int, now: float, at_s: float) -> None:
        subject, best = table.subjects[slot], float(table[f"{signal.metric}.base"][slot])
        since_s = float(table[f"{signal.metric}.t_s"][slot])
        exhibit = SeriesExhibit(
            subject,
            signal.metric,
            "",
            (since_s, at_s),
            (now, now),
            best,
            "",
            "the reference is its own best, or its peers'",
        )
        words = f"{signal.what}: {now:g}, should be {best:g}"
        facts = {"level": now, "best": best, "signal": signal.metric}
        self._say(signal, subject, since_s, words, best / max(now, 0.5), 1.0, exhibit, facts, at_s)

    def _say(
        self,
        signal: LinkSignal,
        subject: Subject,
        since_s: float,
        words: str,
        score: float,
        threshold: float,
        exhibit: SeriesExhibit,
        facts: dict[str, Any],
        at_s: float,
    ) -> None:
        if subject.kind is _NIC:
            words = f"Port {subject.name}: {words}{end_words(subject, self._inventory)}"
            facts = facts | {"meaning": words} | end_facts(subject, self._inventory)
        alarm = Alarm(
            signal.fault,
            subject,
            since_s,
            Severity.WARNING,
            words,
            score=min(score, 1e12),
            threshold=threshold,
            evidence=(exhibit,),
            facts=facts,
        )
        self._episodes.fire(alarm, at_s)

    def _word(self, fault: Fault, subject: Subject, seen: bool, at_s: float) -> Finding | None:
        table = self._tables.get(subject.kind)
        slot = None if table is None else table.slot(subject)
        if not seen or table is None or slot is None:
            return self._episodes.no_data(fault, subject, at_s, "Its link counters are missing")
        quiet_s = self._episodes.quiet_s(fault, subject, float(table["bad_s"][slot]), at_s)
        if quiet_s >= CLEAR_S:
            return self._episodes.clear(fault, subject, at_s, f"Below every limit for {quiet_s:.0f} s")
        return self._episodes.again(fault, subject, at_s)

    def snapshot(self) -> bytes:
        subjects, arrays = saved_tables(self._tables)
        meta = {"subjects": subjects, "episodes": self._episodes.saved()}
        return pack(self.name, VERSION, meta, arrays)

    def restore(self, state: bytes) -> None:
        _, meta, arrays = unpack(state, self.name, (VERSION,))
        tables, episodes = self._fresh(), Episodes(self.name)
        try:
            load_tables(tables, meta["subjects"], arrays)
            episodes.load(meta["episodes"])
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._tables, self._episodes = tables, episodes
