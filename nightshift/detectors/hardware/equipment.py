"""Equipment that fails around the GPUs: parts of a chassis, optical modules, and whole switches.

A part is at fault where its BMC says so (`part_health`, by Redfish or IPMI) for a minute: a sensor that is polled
during a power dip is not. A module is at fault at 70 °C (NVIDIA's InfiniBand cluster bring-up guide: warning at 70,
alarm at 80) or where half its light is gone (3 dB below its own best). A switch is at fault where more than half of
the links to it, of those that were up, are down as their other ends say: a dead switch says nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from nightshift.collectors.frame import Floats, Frame, SeriesIndex
from nightshift.collectors.subject import CABLE, PEER, Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.collectors.topology import FEEDS, PART
from nightshift.detectors.base import Fault, Finding, RateBasis, SeriesExhibit, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.series_table import Column, SeriesTable, load_tables, saved_tables
from nightshift.detectors.snapshot import pack, unpack

VERSION = 1
HOLD_S = 60.0
"""So long it must be bad."""
CLEAR_S = 300.0
FORGET_S = 86_400.0
HOT_C, LOST_DB = 70.0, 3.0
LEAST_LINKS = 4
"""A switch with fewer known links is judged link by link."""
_ACTIVE = 4.0
_MOST = 300.0
"""Beyond this no signal can be: what exporters write for "none"."""
_TOPOLOGY_S = 300.0
_PART, _NIC, _SWITCH = SubjectKind.PART, SubjectKind.NIC, SubjectKind.SWITCH


@dataclass(frozen=True, slots=True)
class PartSignal:
    """A level that is bad from `limit` on; `below_best`: so far below its own best."""

    kind: SubjectKind
    metric: str
    fault: Fault
    unit: str
    limit: float
    below_best: bool = False


SIGNALS = (
    PartSignal(_PART, "part_health", Fault.PART_FAILED, "", 1.0),
    PartSignal(_NIC, "nic_module_temperature_c", Fault.NETWORK_DEGRADED, "°C", HOT_C),
    PartSignal(_NIC, "nic_rx_power_dbm", Fault.NETWORK_DEGRADED, "dBm", LOST_DB, below_best=True),
)


class EquipmentSettings(BaseModel):
    """From when on a part, a module or a switch is at fault."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Equipment:
    """PART_FAILED on a part of a chassis; NETWORK_DEGRADED on a port's module and on a switch.

    >>> from nightshift.detectors.contract.testing import START_S, frame, show
    >>> from nightshift.collectors.tick import Tick
    >>> fan = Subject(SubjectKind.PART, "n1/Fan 3")
    >>> def look(t_s, health):
    ...     return Tick(t_s, {fan.kind: frame(t_s, {fan: {"part_health": health}}, fan.kind)})
    >>> show(Equipment(), [look(START_S + t, h) for t, h in ((0, 0), (60, 2), (90, 2), (120, 2))])
    120 s: firing part_failed part:n1/Fan 3
        Fan 3 of n1: critical, as its BMC says
    """

    plugin: ClassVar[str] = "equipment"
    Settings = EquipmentSettings

    def __init__(self, settings: EquipmentSettings | None = None) -> None:
        self.settings = settings or EquipmentSettings()
        self._tables = self._fresh()
        self._episodes = Episodes(self.name)
        self._bad_s: dict[Subject, float] = {}
        """Switches with an open alarm, and when most of their links were last down."""
        self._topology: tuple[SeriesIndex, float, tuple[Subject, ...], NDArray[np.int64]] | None = None

    def _fresh(self) -> dict[SubjectKind, SeriesTable]:
        tables = {}
        for kind in (_PART, _NIC):
            columns = {"bad_s": Column(np.float64, -np.inf)}
            for signal in (s for s in SIGNALS if s.kind is kind):
                columns |= {
                    f"{signal.metric}.best": Column(np.float64, np.nan),
                    f"{signal.metric}.t_s": Column(np.float64, np.nan),
                }
            if kind is _NIC:
                columns |= {"was_up": Column(np.bool_, 0), "down_s": Column(np.float64, np.nan)}
            tables[kind] = SeriesTable(columns, FORGET_S)
        return tables

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.PART_FAILED, Fault.NETWORK_DEGRADED)

    @property
    def stated(self) -> StatedRate:
        return StatedRate(0.0, RateBasis.EVENT, "the BMC, the module or the links say so", series=SubjectKind.NODE)

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        seen: set[Subject] = set()
        for kind, table in self._tables.items():
            frame = tick.frames.get(kind)
            if frame is None or not len(frame.index):
                continue
            rows = table.rows(frame.index, tick.at_s)
            slots = np.arange(rows.start, rows.start + len(frame.index)) if isinstance(rows, slice) else rows
            for signal in (s for s in SIGNALS if s.kind is kind and s.metric in frame.columns):
                self._level(signal, table, slots, frame, tick.at_s, inventory)
            if kind is _NIC:
                seen |= self._switches(table, slots, frame, tick.at_s, inventory)
            seen |= {subject for _, subject in self._episodes if _is_measured(subject, frame)}
        words = (self._word(fault, subject, subject in seen, tick.at_s) for fault, subject in tuple(self._episodes))
        return [found for found in words if found is not None]

    # Parts and modules ------------------------------------------------------------------------------------------

    def _level(
        self,
        signal: PartSignal,
        table: SeriesTable,
        slots: NDArray[Any],
        frame: Frame,
        at_s: float,
        inventory: Inventory,
    ) -> None:
        value = frame.column(signal.metric)
        with np.errstate(invalid="ignore"):
            value = np.where(np.abs(value) <= _MOST, value, np.nan)
        best, since = table[f"{signal.metric}.best"], table[f"{signal.metric}.t_s"]
        with np.errstate(invalid="ignore"):
            bad = value <= best[slots] - signal.limit if signal.below_best else value >= signal.limit
            best[slots] = np.fmax(best[slots], value)
        good = np.isfinite(value) & ~bad
        since[slots] = np.where(bad, np.fmin(since[slots], at_s), np.where(good, np.nan, since[slots]))
        for row in np.flatnonzero(bad & (at_s - since[slots] >= HOLD_S)).tolist():
            slot = int(slots[row])
            table["bad_s"][slot] = at_s
            levels = float(value[row]), float(best[slot])
            self._fire(signal, table.subjects[slot], levels, float(since[slot]), at_s, inventory)

    def _fire(
        self,
        signal: PartSignal,
        subject: Subject,
        levels: tuple[float, float],
        since_s: float,
        at_s: float,
        inventory: Inventory,
    ) -> None:
        """`levels`: now, and the best so far."""
        value, best = levels
        owner, _, name = subject.name.partition("/")
        facts: dict[str, float | str] = {"signal": signal.metric, "level": value}
        severity = Severity.WARNING
        if signal.kind is _PART:
            grave = "critical" if value >= 2 else "in warning"
            words = f"{name} of {owner}: {grave}, as its BMC says"
            facts["part"] = inventory.fact(subject, "sort") or "part"
            facts |= _rack_facts(Subject(_PART, owner), at_s, inventory)
            # water beside powered boards does not wait for the working day
            severity = Severity.CRITICAL if facts["part"] == "leak" and value >= 2 else severity
        else:
            told = (
                f"{value:.0f} °C" if not signal.below_best else f"{value:.1f} dBm of light, {best:.1f} at its best"
            )
            facts |= end_facts(subject, inventory)
            words = f"Module of port {subject.name}: {told}{end_words(subject, inventory)}"
        facts["meaning"] = words
        reference = best if signal.below_best else signal.limit
        exhibit = SeriesExhibit(
            *(subject, signal.metric, signal.unit, (since_s, at_s), (value, value), reference, ""),
            "the reference is its limit, or its own best",
        )
        alarm = Alarm(
            *(signal.fault, subject, since_s, severity, words),
            score=abs(value),
            threshold=0.0,
            evidence=(exhibit,),
            facts=facts,
        )
        self._episodes.fire(alarm, at_s)

    # Switches ---------------------------------------------------------------------------------------------------

    def _switches(
        self, table: SeriesTable, slots: NDArray[Any], frame: Frame, at_s: float, inventory: Inventory
    ) -> set[Subject]:
        """Judges the switch at the other end of each port; returns those of which ports were observed."""
        up, down = _up_and_down(frame)
        was_up, down_s = table["was_up"], table["down_s"]
        was_up[slots] |= up
        down_s[slots] = np.where(down, np.fmin(down_s[slots], at_s), np.where(up, np.nan, down_s[slots]))
        switches, codes = self._ends(frame.index, at_s, inventory)
        known = (codes >= 0) & was_up[slots]
        count = len(switches)
        links = np.bincount(codes[known], minlength=count)
        observed = np.bincount(codes[known & (up | down)], minlength=count)
        lost = np.bincount(codes[known & down], minlength=count)
        for number in np.flatnonzero((links >= LEAST_LINKS) & (2 * lost > links)).tolist():
            mine = known & down & (codes == number)
            since_s = float(np.sort(down_s[slots][mine])[int(links[number]) // 2])
            if at_s - since_s >= HOLD_S:
                first_s = float(np.min(down_s[slots][mine]))
                self._switch_down(switches[number], int(lost[number]), int(links[number]), first_s, at_s)
        return {switches[number] for number in np.flatnonzero(observed).tolist()}

    def _switch_down(self, switch: Subject, lost: int, links: int, since_s: float, at_s: float) -> None:
        self._bad_s[switch] = at_s
        words = f"Switch {switch.name}: {lost} of {links} links to it are down"
        facts: dict[str, float | str] = {"meaning": words, "links": float(links), "links_down": float(lost)}
        exhibit = SeriesExhibit(
            *(switch, "links_down", "links", (since_s, at_s), (float(lost), float(lost)), 0.0, ""),
            "links that were up, as their other ends say",
        )
        alarm = Alarm(
            *(Fault.NETWORK_DEGRADED, switch, since_s, Severity.CRITICAL, words),
            score=lost / links,
            threshold=0.5,
            evidence=(exhibit,),
            facts=facts,
        )
        self._episodes.fire(alarm, at_s)

    def _ends(
        self, index: SeriesIndex, at_s: float, inventory: Inventory
    ) -> tuple[tuple[Subject, ...], NDArray[np.int64]]:
        """The switches that links go to, and for each row which of them; -1: none is known."""
        if self._topology is not None:
            before, asked_s, switches, codes = self._topology
            if before is index and 0 <= at_s - asked_s < _TOPOLOGY_S:
                return switches, codes
        found: dict[Subject, int] = {}
        codes = np.full(len(index), -1, dtype=np.int64)
        for row, port in enumerate(index.subjects):
            switch = _other_switch(port, at_s, inventory)
            if switch is not None:
                codes[row] = found.setdefault(switch, len(found))
        self._topology = (index, at_s, tuple(found), codes)
        return tuple(found), codes

    # Ends of alarms ---------------------------------------------------------------------------------------------

    def _word(self, fault: Fault, subject: Subject, seen: bool, at_s: float) -> Finding | None:
        table = self._tables.get(subject.kind)
        slot = None if table is None else table.slot(subject)
        if not seen or (slot is None and subject not in self._bad_s):
            return self._episodes.no_data(fault, subject, at_s, "It is not observed")
        bad_s = self._bad_s[subject] if table is None or slot is None else float(table["bad_s"][slot])
        quiet_s = self._episodes.quiet_s(fault, subject, bad_s, at_s)
        if quiet_s >= CLEAR_S:
            self._bad_s.pop(subject, None)
            return self._episodes.clear(fault, subject, at_s, f"Well for {quiet_s:.0f} s")
        return self._episodes.again(fault, subject, at_s)

    def snapshot(self) -> bytes:
        subjects, arrays = saved_tables(self._tables)
        switches = {str(switch): bad_s for switch, bad_s in self._bad_s.items()}
        meta = {"subjects": subjects, "episodes": self._episodes.saved(), "switches": switches}
        return pack(self.name, VERSION, meta, arrays)

    def restore(self, state: bytes) -> None:
        _, meta, arrays = unpack(state, self.name, (VERSION,))
        tables, episodes = self._fresh(), Episodes(self.name)
        try:
            load_tables(tables, meta["subjects"], arrays)
            episodes.load(meta["episodes"])
            bad_s = {Subject.parse(name): float(at_s) for name, at_s in meta["switches"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._tables, self._episodes, self._bad_s, self._topology = tables, episodes, bad_s, None


def _is_measured(subject: Subject, frame: Frame) -> bool:
    """Whether any signal of a part or module has a value."""
    row = frame.index.rows.get(subject)
    levels = [] if row is None else [frame.column(s.metric)[row] for s in SIGNALS if s.kind is frame.kind]
    return bool((np.abs(levels) <= _MOST).any())


def _up_and_down(frame: Frame) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    is_up: Floats = frame.column("nic_is_up")
    state: Floats = frame.column("nic_port_state")
    down = (is_up == 0) | (np.isfinite(state) & (state != _ACTIVE))
    up = ((is_up == 1) | (state == _ACTIVE)) & ~down
    return up, down


def _other_switch(port: Subject, at_s: float, inventory: Inventory) -> Subject | None:
    """The switch that a port's link goes to: of a host's port the one above it, else the owner of the other end."""
    if ":" in port.name.rpartition("/")[2]:
        return inventory.above(port, _SWITCH, at_s)
    peer = inventory.fact(port, PEER)
    if not peer or ":" in peer.rpartition("/")[2]:
        return None
    return Subject(_SWITCH, Subject.parse(peer).name.rpartition("/")[0])


def _rack_facts(holder: Subject, at_s: float, inventory: Inventory) -> dict[str, float | str]:
    """Of a part that serves several nodes of a rack: which; `covers` makes them part of where the fault is."""
    sort, rack = inventory.fact(holder, PART), inventory.above(holder, SubjectKind.RACK, at_s)
    if sort is None or rack is None:
        return {}
    fed = (inventory.fact(holder, FEEDS) or "").split()
    nodes = [Subject(SubjectKind.NODE, name) for name in fed] or inventory.children(rack, at_s, SubjectKind.NODE)
    return {PART: sort, "covers": " ".join(map(str, [rack, *nodes]))}


def end_facts(port: Subject, inventory: Inventory) -> dict[str, float | str]:
    """What is known of a port's link: `covers` makes the other end part of where the fault is."""
    peer, cable = inventory.fact(port, PEER), inventory.fact(port, CABLE)
    facts: dict[str, float | str] = {} if cable is None else {"cable": cable}
    return facts if not peer else facts | {"other_end": peer.partition(":")[2], "covers": peer}


def end_words(port: Subject, inventory: Inventory) -> str:
    facts = end_facts(port, inventory)
    told = [f"cable {facts['cable']}"] if "cable" in facts else []
    told += [f"other end {facts['other_end']}"] if "other_end" in facts else []
    return f" ({'; '.join(told)})" if told else ""
