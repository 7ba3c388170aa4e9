"""Pages of the machines around the GPUs: ipmi_exporter's (a BMC's parts) and fabric telemetry's (ports of switches
and hosts), told apart by the names of their series.

ipmi_exporter (prometheus-community, docs/metrics.md): sensors by `id` and `name`; their state is 0 nominal, 1
warning, 2 critical. Its pages are asked per target, so a page's address names the BMC (`?target=`).

UFM Telemetry and NMX Telemetry (docs.nvidia.com/networking): ports by `node_guid` and `port_num`; readable names
come with label generation, or as fields in the index: `node_description` (or `node_desc`, `hostname`,
`device_name`), `port_label`, `Cable_SN`, `Cable_PN`, `FW_Version`. A host's description is `n1 mlx5_0`, a managed
switch's `MF0;leaf1:MQM9700/U1`. The other end of a link is named by labels (`peer_…`), or it is the other port with
the same cable's serial number. A port without a readable name is named by its GUID.
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

from nightshift.collectors.frame import Floats, Reason
from nightshift.collectors.subject import CABLE, PEER, Subject, SubjectKind
from nightshift.collectors.telemetry.exposition import Layout, Page, Series
from nightshift.collectors.telemetry.metrics import of_kind
from nightshift.collectors.telemetry.pages import FORGET_AFTER_S, PageCollector, PagePlan, PageSettings, Relation
from nightshift.collectors.telemetry.rows import Rows, cells

_PART, _NIC = SubjectKind.PART, SubjectKind.NIC
_LANE = re.compile(r"rx_power_lane_\d+")
_HOST_PORT = re.compile(r"(\S+)[ /](mlx\d+_\d+|HCA-\d+)")
_MANAGED = re.compile(r"MF\d+;([^:;/]+)(?::.*)?")


@dataclass(frozen=True, eq=False)
class EquipmentPlan(PagePlan):
    """With the lanes of each module: positions of which the weakest stands for the port."""

    lanes: Sequence[tuple[int, ...]] = field(default=())


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
        for source in self._sources:
            # one ipmi_exporter answers for many BMCs: the page is of the target, and not of the exporter's machine
            source.node = source.node or next(iter(parse_qs(urlsplit(source.url).query).get("target", [])), None)

    def plan(self, layout: Layout, page: Page, host: str, node: str | None, address: str) -> EquipmentPlan:
        parts, ports = [], []
        for position, series in enumerate(layout.series):
            if series.name in self._rows[_PART].column:
                parts.append((position, series))
            elif series.name in self._rows[_NIC].column or _LANE.fullmatch(series.name):
                ports.append((position, series))
        rejected: Counter[Reason] = Counter()
        here = node or host
        of_parts = self._parts(layout, parts, here, rejected) if parts else EquipmentPlan(layout, ())
        of_ports = self._ports(layout, ports, rejected)
        return EquipmentPlan(
            layout,
            [*of_parts.cells, *of_ports.cells],
            of_parts.relations | of_ports.relations,
            {**of_parts.facts, **of_ports.facts},
            of_parts.nodes,
            dict(rejected),
            lanes=of_ports.lanes,
        )

    def shaped(self, plan: PagePlan, page: Page, now_s: float) -> tuple[Floats, Floats]:
        lanes = plan.lanes if isinstance(plan, EquipmentPlan) else ()
        if not lanes:
            return page.values, page.times_s
        values = page.values.copy()
        for positions in lanes:
            lit = [value for value in values[list(positions)] if np.isfinite(value)]
            values[positions[0]] = min(lit) if lit else np.nan
        return values, page.times_s

    def _parts(
        self, layout: Layout, found: Sequence[tuple[int, Series]], here: str, rejected: Counter[Reason]
    ) -> EquipmentPlan:
        node = Subject(SubjectKind.NODE, here)
        twice = Counter(name for name, _ in {(s.label("name"), s.label("id")) for _, s in found})
        entries, facts = [], {}
        for position, series in found:
            name = series.label("name").strip()
            if not name or not name.isprintable():
                rejected[Reason.MALFORMED] += 1
                continue
            name += f" #{series.label('id')}" if twice[series.label("name")] > 1 else ""
            part = Subject(_PART, f"{here}/{name}")
            facts[part] = {"sort": sort_of(f"{series.label('type')} {name} {series.name}")}
            entries.append((position, part, self._rows[_PART].column[series.name], 1.0))
        relations = frozenset((part, node) for part in facts)
        return EquipmentPlan(layout, [cells(_PART, entries)], relations, facts, (node,))

    def _ports(
        self, layout: Layout, found: Sequence[tuple[int, Series]], rejected: Counter[Reason]
    ) -> EquipmentPlan:
        entries: list[tuple[int, Subject, int, float]] = []
        lanes: dict[Subject, list[int]] = defaultdict(list)
        labels: dict[Subject, Series] = {}
        column = self._rows[_NIC].column
        for position, series in found:
            port = port_of(series.label)
            if port is None:
                rejected[Reason.MALFORMED] += 1
                continue
            labels.setdefault(port, series)
            if _LANE.fullmatch(series.name):
                lanes[port].append(position)
            else:
                entries.append((position, port, column[series.name], 1.0))
        entries += [(positions[0], port, column["rx_power_lane_0"], 1.0) for port, positions in lanes.items()]
        facts = self._remembered(_ends(labels))
        relations, firmware = _owners(facts, labels)
        kept = [cells(_NIC, entries, highest=True)] if entries else []
        return EquipmentPlan(
            layout, kept, relations, facts | firmware, lanes=[tuple(positions) for positions in lanes.values()]
        )

    def _remembered(self, ends: Mapping[Subject, dict[str, str]]) -> dict[Subject, dict[str, str]]:
        """The links of the page, with what was known before: another cable is another link."""
        for port, told in ends.items():
            before = self._ends.get(port, {})
            same = told.get(CABLE) == before.get(CABLE)
            self._ends[port] = (before if same else {}) | told
        return dict(self._ends)


def port_of(label: Callable[[str], str], prefix: str = "") -> Subject | None:
    """The port that labels name, or None where they name none. `prefix`: of the labels of the other end."""

    def first(*names: str) -> str:
        return next((text for name in names if (text := label(f"{prefix}{name}").strip())), "")

    described = first("node_description", "node_desc", "node_name", "hostname", "device_name")
    number = first("port_label", "port_num", "Port_Number", "port_number", "port", "port_dname")
    if match := _HOST_PORT.fullmatch(described):
        # a host's adapter numbers its ports from 1; the fabric's number of it is the same
        described, number = f"{match[1]}/{match[2]}", number if number.isdecimal() else "1"
        name = f"{described}:{number}"
    else:
        managed = _MANAGED.fullmatch(described)
        described = managed[1] if managed else described or first("node_guid", "Node_GUID")
        name = f"{described}/{number}"
    if not described or not number or not name.isprintable():
        return None
    return Subject(_NIC, name)


def _is_of_a_host(port: Subject) -> bool:
    return ":" in port.name.rpartition("/")[2]


def _ends(labels: Mapping[Subject, Series]) -> dict[Subject, dict[str, str]]:
    """What the labels say of each port's cable and other end."""
    facts: dict[Subject, dict[str, str]] = {}
    by_serial: dict[str, list[Subject]] = defaultdict(list)
    for port, series in labels.items():
        serial = next((series.label(n).strip() for n in ("Cable_SN", "cable_sn", "SN") if series.label(n)), "")
        model = next((series.label(n).strip() for n in ("Cable_PN", "cable_pn", "PN") if series.label(n)), "")
        known = [
            f"{name} {text}" for name, text in (("SN", serial), ("PN", model)) if text not in ("", "N/A", "NA")
        ]
        facts[port] = {CABLE: ", ".join(known)} if known else {}
        if known and known[0].startswith("SN"):
            by_serial[serial].append(port)
        for prefix in ("peer_", "remote_"):
            if (named := port_of(series.label, prefix)) is not None:
                facts[port][PEER] = str(named)
    for ends in by_serial.values():
        if len(ends) == 2:  # a breakout cable has more ends: its serial number names no single other one
            for port, other in (ends, ends[::-1]):
                facts[port].setdefault(PEER, str(other))
    return facts


def _owners(
    facts: Mapping[Subject, Mapping[str, str]], labels: Mapping[Subject, Series]
) -> tuple[frozenset[Relation], dict[Subject, dict[str, str]]]:
    """Whose each port is, the switch that a host's port is linked to, and switches' firmware."""
    relations: set[Relation] = set()
    firmware: dict[Subject, dict[str, str]] = {}
    for port, told in facts.items():
        owner = port.name.rpartition("/")[0]
        if not _is_of_a_host(port):
            switch = Subject(SubjectKind.SWITCH, owner)
            relations.add((port, switch))
            if port in labels and (version := labels[port].label("FW_Version").strip()):
                firmware[switch] = {"firmware": version}
            continue
        relations.add((port, Subject(SubjectKind.NODE, owner)))
        if PEER in told and not _is_of_a_host(other := Subject.parse(told[PEER])):
            relations.add((port, Subject(SubjectKind.SWITCH, other.name.rpartition("/")[0])))
    return frozenset(relations), firmware


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
