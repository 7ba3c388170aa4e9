"""Pages of the machines around the GPUs: ipmi_exporter's (a BMC's parts and event log) and fabric telemetry's
(ports of switches, hosts and GPUs), told apart by the names of their series.

ipmi_exporter (prometheus-community, docs/metrics.md): sensors by `id` and `name`; their state is 0 nominal, 1
warning, 2 critical. Its pages are asked per target, so a page's address names the BMC (`?target=`). Its collector
`sel-events` counts the event log's entries by state, and by the names that its configuration gives; a count that
rises is an event. What is there at the first look is old, and of entries that were deleted nothing is concluded.

UFM Telemetry and NMX Telemetry (docs.nvidia.com/networking): ports by `node_guid` and `port_num`; readable names
come with label generation, or as fields in the index: `node_description` (or `node_desc`, `hostname`,
`device_name`), `port_label`, `Cable_SN`, `Cable_PN`, `FW_Version`. A host's description is `n1 mlx5_0`, a managed
switch's `MF0;leaf1:MQM9700/U1`. The other end of a link is named by labels (`peer_…`, NMX: `link_partner_…`), or it
is the other port with the same cable's serial number. A port without a readable name is named by its GUID.

NMX Telemetry of an NVL72, as NVIDIA's infra-controller reads it of a GB200 (crates/health, `nmxt`): all GPUs have
one description, so a description that several GUIDs share names none. A GPU's port (`port_label` GPUP10) is named
by chassis, tray and number, and stands under the GPU that reports the same GUID. `logical_state` and
`Module_Temperature` are labels (ACT, 47C), and light is in milliwatts.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import numpy as np

from nightshift.collectors.frame import Floats, Instant, LogRecord, Reason
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.subject import CABLE, FABRIC_GUID, PEER, Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.exposition import Layout, Page, Series
from nightshift.collectors.telemetry.metrics import of_kind
from nightshift.collectors.telemetry.pages import FORGET_AFTER_S, PageCollector, PagePlan, PageSettings, Relation
from nightshift.collectors.telemetry.rows import Rows, cells
from nightshift.collectors.tick import Batch

_PART, _NIC = SubjectKind.PART, SubjectKind.NIC
_LANE = re.compile(r"rx_power_lane_\d+")
_HOST_PORT = re.compile(r"(\S+)[ /](mlx\d+_\d+|HCA-\d+)")
_MANAGED = re.compile(r"MF\d+;([^:;/]+)(?::.*)?")
_OF_A_GPU, _NVLINK = re.compile(r"GPU\w*"), "nvlink"
_STATES = {"ACT": 4.0, "ARM": 3.0, "INI": 2.0, "DOW": 1.0, "DWN": 1.0}
"""InfiniBand's port states, as telemetry abbreviates them."""
_LOG, _NAMED, _SEL, _INFO = (
    "ipmi_sel_events_count_by_state", "ipmi_sel_events_count_by_name", "sel-events", "ipmi_bmc_info",
)  # fmt: skip
_GRAVE = ("Critical", "Warning")
Label = Callable[[str], str]


@dataclass(frozen=True, eq=False)
class EquipmentPlan(PagePlan):
    """With the lanes of each module: positions of which the weakest stands for the port."""

    lanes: Sequence[tuple[int, ...]] = field(default=())
    milliwatts: Sequence[int] = field(default=())
    """Samples of light that are not in dBm."""
    said: Sequence[float] = field(default=())
    """Values that labels tell: cells find them behind the page's own samples."""


class EquipmentCollector(PageCollector):
    r"""One row per part that a BMC watches, and per port of a fabric; NaN where a page did not say.

    >>> from nightshift.collectors.telemetry.exposition import PageParser
    >>> page = PageParser().parse(b'ipmi_fan_speed_state{id="12",name="Fan1A"} 2\n')
    >>> collector = EquipmentCollector(EquipmentCollector.Settings(urls=["http://x:9290/ipmi?target=n1-bmc"]))
    >>> plan = collector.plan(page.layout, page, "x", "n1", "x:9290")
    >>> [str(subject) for found in plan.cells for subject in found.subjects]
    ['part:n1/Fan1A']
    """

    plugin: ClassVar[str] = "equipment"

    class Settings(PageSettings):
        """Scrapes ipmi_exporter, UFM Telemetry and NMX Telemetry: power supplies, fans, leaks, ports, cables."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        rows = {kind: Rows(kind, of_kind(kind), FORGET_AFTER_S) for kind in (_PART, _NIC)}
        super().__init__(settings, rows, clock)
        self._ends: dict[Subject, dict[str, str]] = {}
        """What was last known of each link: a dead switch is on no page, and then the links to it count."""
        self._told: Inventory | None = None
        """The inventory that said what was known of links before a restart."""
        self._unplaced: dict[Subject, str] = {}
        """Ports of GPUs that no GPU has claimed, with the GUID."""
        self._logs: dict[Subject, tuple[dict[tuple[str, str], float], float]] = {}
        """By source: what its BMC's log counted when it was last read, and when that was."""
        self._count = 0
        for source in self._sources:
            # one ipmi_exporter answers for many BMCs: the page is of the target, and not of the exporter's machine
            source.node = source.node or next(iter(parse_qs(urlsplit(source.url).query).get("target", [])), None)

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        if self._told is not inventory:
            self._told = inventory
            for port, facts in inventory.described(PEER, CABLE):
                self._ends.setdefault(port, facts)
        batch = super().collect(now_s, inventory, timeout_s)
        if self._unplaced:
            known = {inventory.fact(gpu, FABRIC_GUID): gpu for gpu in inventory.subjects(SubjectKind.GPU, now_s)}
            for port in [port for port, guid in self._unplaced.items() if guid in known]:
                inventory.observe(port, known[self._unplaced.pop(port)], now_s)
        return batch

    def plan(self, layout: Layout, page: Page, host: str, node: str | None, address: str) -> EquipmentPlan:
        parts, ports, counts, firmware = [], [], [], {}
        for position, series in enumerate(layout.series):
            if series.name in self._rows[_PART].column:
                parts.append((position, series))
            elif series.name in self._rows[_NIC].column or _LANE.fullmatch(series.name):
                ports.append((position, series))
            elif series.name in (_LOG, _NAMED):
                counts.append((position, series.label("state"), _plain(series.label("name"))))
            elif series.name == _INFO:
                told = {"bmc": series.label("firmware_revision"), "bios": series.label("system_firmware_version")}
                firmware = {name: _plain(text) for name, text in told.items() if text not in ("", "N/A")}
        rejected: Counter[Reason] = Counter()
        here = Subject(SubjectKind.NODE, node or host)
        of_parts = self._parts(layout, parts, here, rejected) if parts else EquipmentPlan(layout, ())
        of_ports = self._ports(layout, ports, rejected)
        return EquipmentPlan(
            layout,
            [*of_parts.cells, *of_ports.cells],
            of_parts.relations | of_ports.relations,
            {**of_parts.facts, **of_ports.facts, **({here: firmware} if firmware else {})},
            (here,) if parts or counts or firmware else (),
            dict(rejected),
            counts=counts,
            lanes=of_ports.lanes,
            milliwatts=of_ports.milliwatts,
            said=of_ports.said,
        )

    def logged(self, source: Subject, plan: PagePlan, page: Page, now_s: float) -> list[KernelEvent]:
        up = [
            page.values[position]
            for position, series in enumerate(page.layout.series)
            if series.name == "ipmi_up" and series.label("collector") == _SEL
        ]
        # a BMC that did not answer for its log has not emptied it
        if (up and up[0] != 1) or not (up or plan.counts):
            return []
        told = {(state, name): float(page.values[position]) for position, state, name in plan.counts}
        now = {key: value for key, value in told.items() if np.isfinite(value)}
        before, read_s = self._logs.get(source, (now, now_s))
        self._logs[source] = now, now_s
        rose = {
            key: int(value - before.get(key, 0.0)) for key, value in now.items() if value > before.get(key, 0.0)
        }
        severity = next((state for state in _GRAVE if (state, "") in rose), "")
        if not severity:
            return []
        new = rose[severity, ""]
        named = ", ".join(sorted(name for _, name in rose if name))
        said = named or f"{new} new {'entry' if new == 1 else 'entries'}, which ipmi_exporter does not name"
        self._count += 1
        at = Instant(now_s, max(0.0, now_s - read_s))
        return [bmc_entry(source, plan.nodes[0], severity, said, at, self._count)]

    def shaped(self, plan: PagePlan, page: Page, now_s: float) -> tuple[Floats, Floats]:
        if not isinstance(plan, EquipmentPlan) or not (plan.lanes or plan.said):
            return page.values, page.times_s
        values = np.concatenate([page.values, plan.said])
        times_s = np.concatenate([page.times_s, np.full(len(plan.said), np.nan)])
        light = list(plan.milliwatts)
        with np.errstate(divide="ignore", invalid="ignore"):
            values[light] = np.where(values[light] > 0, 10.0 * np.log10(values[light]), np.nan)
        for positions in plan.lanes:
            lit = [value for value in values[list(positions)] if np.isfinite(value)]
            values[positions[0]] = min(lit) if lit else np.nan
        return values, times_s

    def _parts(
        self, layout: Layout, found: Sequence[tuple[int, Series]], here: Subject, rejected: Counter[Reason]
    ) -> EquipmentPlan:
        twice = Counter(name for name, _ in {(s.label("name"), s.label("id")) for _, s in found})
        entries, facts = [], {}
        for position, series in found:
            name = series.label("name").strip()
            if not name or not name.isprintable():
                rejected[Reason.MALFORMED] += 1
                continue
            name += f" #{series.label('id')}" if twice[series.label("name")] > 1 else ""
            part = Subject(_PART, f"{here.name}/{name}")
            facts[part] = {"sort": sort_of(f"{series.label('type')} {name} {series.name}")}
            entries.append((position, part, self._rows[_PART].column[series.name], 1.0))
        relations = frozenset((part, here) for part in facts)
        return EquipmentPlan(layout, [cells(_PART, entries)], relations, facts)

    def _ports(
        self, layout: Layout, found: Sequence[tuple[int, Series]], rejected: Counter[Reason]
    ) -> EquipmentPlan:
        entries: list[tuple[int, Subject, int, float]] = []
        lanes: dict[Subject, list[int]] = defaultdict(list)
        milliwatts: list[int] = []
        labels: dict[Subject, Series] = {}
        column, shared = self._rows[_NIC].column, _shared([series for _, series in found])
        for position, series in found:
            port = port_of(series.label, shared=shared)
            if port is None:
                rejected[Reason.MALFORMED] += 1
                continue
            labels.setdefault(port, series)
            if _LANE.fullmatch(series.name):
                lanes[port].append(position)
                milliwatts += [position] if series.label("topology_id") else []
            else:
                entries.append((position, port, column[series.name], 1.0))
        entries += [(positions[0], port, column["rx_power_lane_0"], 1.0) for port, positions in lanes.items()]
        measured = {(port, number) for _, port, number, _ in entries}
        said: list[float] = []
        for port, series in labels.items():
            for name, value in _said(series.label):
                if (port, column[name]) not in measured:
                    entries.append((len(layout.series) + len(said), port, column[name], 1.0))
                    said.append(value)
        facts = self._remembered(_ends(labels, shared))
        self._unplaced |= {port: told[FABRIC_GUID] for port, told in facts.items() if FABRIC_GUID in told}
        relations, firmware = _owners(facts, labels)
        kept = [cells(_NIC, entries, highest=True)] if entries else []
        of_lanes = [tuple(positions) for positions in lanes.values()]
        return EquipmentPlan(
            layout, kept, relations, facts | firmware, lanes=of_lanes, milliwatts=milliwatts, said=said
        )

    def _remembered(self, ends: Mapping[Subject, dict[str, str]]) -> dict[Subject, dict[str, str]]:
        """The links of the page, with what was known before: another cable is another link."""
        for port, told in ends.items():
            before = self._ends.get(port, {})
            # an empty name takes back what the inventory knows of the former cable's other end
            kept = before if told.get(CABLE) == before.get(CABLE) else {PEER: ""} if PEER in before else {}
            self._ends[port] = kept | told
        return dict(self._ends)


def bmc_entry(source: Subject, node: Subject, severity: str, message: str, at: Instant, number: int) -> KernelEvent:
    """An entry of a BMC's log as an event of its node. `number`: of the event, in the order of its source."""
    record = LogRecord(at, source.name, node, f"BMC log {severity}: {message}", number)
    attributes = {"message": "bmc_log", "severity": severity, "bmc_says": message[:200]}
    return KernelEvent(KernelEventKind.MESSAGE, record, node, attributes=attributes)


def _plain(text: str) -> str:
    return "".join(c for c in text.strip() if c.isprintable())[:100]


def _first(label: Label, prefix: str, *names: str) -> str:
    return next((text for name in names if (text := label(f"{prefix}{name}").strip())), "")


def _described(label: Label, prefix: str = "") -> str:
    names = ("node_description", "node_desc", "description", "node_name", "hostname", "device_name")
    return _first(label, prefix, *names)


def _guid(label: Label, prefix: str = "") -> str:
    return _first(label, prefix, "node_guid", "Node_GUID")


def _shared(found: Sequence[Series]) -> frozenset[str]:
    """Descriptions that devices of several GUIDs have: those name none of them."""
    guids: dict[str, set[str]] = defaultdict(set)
    for series in found:
        for prefix in ("", "link_partner_"):
            if guid := _guid(series.label, prefix):
                guids[_described(series.label, prefix)].add(guid)
    return frozenset(text for text, mine in guids.items() if len(mine) > 1)


def port_of(label: Label, prefix: str = "", shared: frozenset[str] = frozenset()) -> Subject | None:
    """The port that labels name, or None where they name none. `prefix`: of the labels of the other end; `shared`:
    descriptions that name no device."""
    described = _described(label, prefix)
    described = "" if described in shared else described
    number = _first(label, prefix, "port_label", "port_num", "Port_Number", "port_number", "port", "port_dname")
    if not prefix and _OF_A_GPU.fullmatch(label("port_label").strip()):
        number = _first(label, "", "Port_Number", "port_num", "port_label")
        name = f"{_place_of_gpu(label)}/{_NVLINK}:{number}"
    elif match := _HOST_PORT.fullmatch(described):
        # a host's adapter numbers its ports from 1; the fabric's number of it is the same
        described, number = f"{match[1]}/{match[2]}", number if number.isdecimal() else "1"
        name = f"{described}:{number}"
    else:
        managed = _MANAGED.fullmatch(described)
        described = managed[1] if managed else described or _guid(label, prefix)
        name = f"{described}/{number}" if described else ""
    if not name or not number or not name.isprintable():
        return None
    return Subject(_NIC, name)


def _place_of_gpu(label: Label) -> str:
    chassis, tray, number = (label(name).strip() for name in ("chassis_id", "tray_index", "device_num_on_tray"))
    return f"{chassis}.tray{tray}.gpu{number}" if chassis and tray and number else _guid(label)


def _said(label: Label) -> list[tuple[str, float]]:
    """What labels tell of a port as values, by the name of the series that others write."""
    state = _STATES.get(label("logical_state").strip().upper()[:3])
    heat = label("Module_Temperature").strip().rstrip("Cc")
    # 0 °C is what a cable without electronics has
    warm = [("Module_Temperature", float(heat))] if heat.isdecimal() and int(heat) else []
    return ([("logical_state", state)] if state is not None else []) + warm


def _is_of_a_host(port: Subject) -> bool:
    """Whether a port is of a host or a GPU, and no switch's."""
    return ":" in port.name.rpartition("/")[2]


def _is_of_a_gpu(port: Subject) -> bool:
    return port.name.rpartition("/")[2].startswith(f"{_NVLINK}:")


def _ends(labels: Mapping[Subject, Series], shared: frozenset[str]) -> dict[Subject, dict[str, str]]:
    """What the labels say of each port's cable and other end, and of which GPU it is."""
    facts: dict[Subject, dict[str, str]] = {}
    by_serial: dict[str, list[Subject]] = defaultdict(list)
    numbers = ("Port_Number", "port_num")
    by_number = {(_guid(s.label), _first(s.label, "", *numbers)): port for port, s in labels.items()}
    for port, series in labels.items():
        serial = next((series.label(n).strip() for n in ("Cable_SN", "cable_sn", "SN") if series.label(n)), "")
        model = next((series.label(n).strip() for n in ("Cable_PN", "cable_pn", "PN") if series.label(n)), "")
        known = [
            f"{name} {text}" for name, text in (("SN", serial), ("PN", model)) if text not in ("", "N/A", "NA")
        ]
        facts[port] = {CABLE: ", ".join(known)} if known else {}
        if known and known[0].startswith("SN"):
            by_serial[serial].append(port)
        if _is_of_a_gpu(port):
            facts[port][FABRIC_GUID] = plain_guid(_guid(series.label))
        for prefix in ("peer_", "remote_", "link_partner_"):
            exact = by_number.get((_guid(series.label, prefix) or "-", _first(series.label, prefix, *numbers)))
            if (named := exact or port_of(series.label, prefix, shared)) is not None:
                facts[port][PEER] = str(named)
    for ends in by_serial.values():
        if len(ends) == 2:  # a breakout cable has more ends: its serial number names no single other one
            for port, other in (ends, ends[::-1]):
                facts[port].setdefault(PEER, str(other))
    return facts


def _owners(
    facts: Mapping[Subject, Mapping[str, str]], labels: Mapping[Subject, Series]
) -> tuple[frozenset[Relation], dict[Subject, dict[str, str]]]:
    """Each port's owner, the switch that a host's or GPU's port leads to, and both sides' firmware."""
    relations: set[Relation] = set()
    firmware: dict[Subject, dict[str, str]] = {}
    for port, told in facts.items():
        owner = port.name.rpartition("/")[0]
        version = _plain(labels[port].label("FW_Version")) if port in labels else ""
        if not _is_of_a_host(port):
            switch = Subject(SubjectKind.SWITCH, owner)
            relations.add((port, switch))
            if version:
                firmware[switch] = {"firmware": version}
            continue
        if not _is_of_a_gpu(port):
            relations.add((port, Subject(SubjectKind.NODE, owner)))
            if version:
                firmware[port] = {**told, "firmware": version}
        if told.get(PEER) and not _is_of_a_host(other := Subject.parse(told[PEER])):
            relations.add((port, Subject(SubjectKind.SWITCH, other.name.rpartition("/")[0])))
    return frozenset(relations), firmware


def plain_guid(text: str) -> str:
    """A GUID of 64 bits in one spelling: NMX and DCGM write it in hexadecimal, or as the beginning of a UUID.

    >>> {plain_guid(text) for text in (" 0xE1D04A69816F16BC", "e1d04a69-816f-16bc-0000-000000000000")}
    {'e1d04a69816f16bc'}
    """
    plain = text.strip().lower().removeprefix("0x").replace(":", "").replace("-", "")[:16]
    return plain if plain.strip("0") else ""


SORTS = (
    ("leak", re.compile(r"leak|liquid|moisture", re.I)),
    ("fan", re.compile(r"\bfan|fan_speed|blower", re.I)),
    ("power supply", re.compile(r"\bpsu|\bps ?\d|power ?supply|\bpwr|power_", re.I)),
    ("air temperature", re.compile(r"inlet|intake|ambient|exhaust|outlet", re.I)),
    ("temperature", re.compile(r"temp", re.I)),
    ("voltage", re.compile(r"volt|\b12v|\b5v|\b3\.3v|vcore|vbat|battery", re.I)),
    ("memory module", re.compile(r"dimm|memory", re.I)),
    ("drive", re.compile(r"drive|disk|nvme", re.I)),
)


def sort_of(text: str) -> str:
    """What sort of part a sensor's type and name speak of; `part` where they say nothing known.

    >>> [sort_of(text) for text in ("PS2 Status", "Cooling Leak Sensor", "Inlet Temp", "Fan1A", "CPU VR")]
    ['power supply', 'leak', 'air temperature', 'fan', 'part']
    """
    return next((sort for sort, pattern in SORTS if pattern.search(text)), "part")
