"""Faults of BMCs' parts, links and switches in drawn fabrics: `python -m benchmarks.equipment`.

204 draws, our own: no public record of labelled PSU, fan, leak, link and switch faults with telemetry was found.
Each is a fabric of 16 nodes on four rails (four leaf switches, two spines, 72 links) for 40 minutes, seen every
30 s. Eight nodes are read by ipmi_exporter's pages, eight by Redfish (four of them with the older documents), ports
by one page of UFM Telemetry's names, and the NVLinks of each node's GPU to four NVLink switches by one of NMX
Telemetry's names. Once, between minutes 10 and 14, one fault begins: a power supply, a fan, a leak, inlet air, an
entry of an event log (by Redfish, or counted by ipmi_exporter), a flapping link or NVLink, a module that runs hot
or loses light, or a leaf, a spine or an NVLink switch that dies. Beside it, in each draw: links that go down once,
sensors in warning for one look, a scrape in ten that is missing, a BMC that hangs, one that answers in HTML and one
with its clock in 1970. In every third draw the daemon restarts two minutes before the fault is seen, or, of a dead
switch, a minute after: what collectors remember is lost, and what the daemon stores is there. A draw is right where
just one incident was opened in it and its first cause is the part: of a link either end, with cable (NVLinks have
none) and other end named, and of an NVLink's end on a GPU, with that GPU above it.

`--mockup DIR`: what the collector reads of a Redfish mock-up (github.com/DMTF/Redfish-Mockup-Server), or of a
capture of a real BMC (github.com/spyroot/redfish_ctl, tests/*_fixtures, for some).
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.detect_held_out import commit
from benchmarks.report import RESULTS, write
from nightshift.agent.correlation.correlate import correlate
from nightshift.agent.correlation.decisions import DecisionVerb, KnownIncident
from nightshift.agent.correlation.kinship import first_cause
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.frame import Reason
from nightshift.collectors.http import HttpResponse, SourceError
from nightshift.collectors.merge import Merger
from nightshift.collectors.subject import CABLE, PEER, Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.equipment import EquipmentCollector
from nightshift.collectors.telemetry.redfish import RedfishCollector, RedfishSettings
from nightshift.detectors.base import Finding, State
from nightshift.detectors.hardware.equipment import Equipment
from nightshift.detectors.hardware.interconnect import Interconnect
from nightshift.detectors.hardware.kernel_events import KernelEvents
from tests.bmc import Answering, Bmc, response

DRAWS, SEED, START_S, LOOK_S, LOOKS = 204, 2, 1_795_300_000.0, 30.0, 80
NODES, RAILS, SPINES, TRAYS = 16, 4, 2, 4
KINDS = (
    *("power supply", "fan", "leak", "inlet air", "event log", "event log by IPMI"),
    *("flapping link", "module", "leaf", "spine", "flapping NVLink", "NVLink switch"),
)
SWITCHES = {"leaf": ("leaf", RAILS), "spine": ("spine", SPINES), "NVLink switch": ("nvsw", TRAYS)}
SEL = "ipmi_sel_events_count_by_state"
UFM, NMX = "http://ufm:9001/labels/metrics", "http://nvsw1:9352/xcset/nvlink_domain_telemetry"


class Port:
    """One end of a link, with its counters as UFM Telemetry tells them."""

    def __init__(self, owner: str, number: int, description: str) -> None:
        self.owner, self.number, self.description = owner, number, description
        self.downs, self.state, self.temperature, self.light, self.serial = 0, 4, 48.0, -1.5, ""

    @property
    def subject(self) -> str:
        if self.description.startswith("MF0;"):
            return f"nic:{self.owner}/{self.number}"
        return f"nic:{self.description.replace(' ', '/')}:1"


class NvlinkEnd(Port):
    """One end of an NVLink, as NMX Telemetry tells it: its description names no GPU."""

    def __init__(self, owner: str, number: int, tray: int | None = None) -> None:
        super().__init__(owner, number, "GB100 Nvidia Technologies" if tray else f"MF0;{owner}:N5400_LD/U1")
        self.tray, self.guid = tray, f"0x{0xE1D0_0000_0000_0000 + tray if tray else 0x2C5E_0000 + int(owner[4:]):x}"
        self.other: NvlinkEnd = self

    @property
    def subject(self) -> str:
        return (
            f"nic:c1.tray{self.tray}.gpu1/nvlink:{self.number}" if self.tray else f"nic:{self.owner}/{self.number}"
        )

    def labels(self) -> str:
        of_gpu = f'device_num_on_tray="1",tray_index="{self.tray}",' if self.tray else ""
        label = f"GPUP{self.number - 1}" if self.tray else str(self.number)
        return (
            f'Node_GUID="{self.guid}",node_description="{self.description}",Port_Number="{self.number}",{of_gpu}'
            f'port_label="{label}",chassis_id="c1",topology_id="128",Cable_SN="NA",Cable_PN="NA",'
            f'link_partner_description="{self.other.description}",link_partner_node_guid="{self.other.guid}",'
            f'link_partner_port_num="{self.other.number}",logical_state="{"ACT" if self.state == 4 else "DOWN"}",'
            f'Module_Temperature="0C"'
        )


class Fabric:
    """What is where, and what of it fails."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.links: list[tuple[Port, Port]] = []
        self.dead: set[str] = set()
        self.flaps: list[tuple[Port, Port]] = []
        used: Counter[str] = Counter()

        def port(switch: str) -> Port:
            used[switch] += 1
            return Port(switch, used[switch], f"MF0;{switch}:MQM9700/U1")

        for node in range(1, NODES + 1):
            for rail in range(RAILS):
                self.links.append((Port(f"n{node}", 1, f"n{node} mlx5_{rail}"), port(f"leaf{rail + 1}")))
        for rail in range(RAILS):
            for spine in range(SPINES):
                self.links.append((port(f"leaf{rail + 1}"), port(f"spine{spine + 1}")))
        for number, ends in enumerate(self.links):
            for end in ends:
                end.serial, end.downs = f"MT{2300000 + number}VS", int(rng.integers(0, 5))
        for node in range(1, NODES + 1):
            for tray in range(1, TRAYS + 1):
                ends = NvlinkEnd(f"n{node}", tray, node), NvlinkEnd(f"nvsw{tray}", node)
                ends[0].other, ends[1].other = ends[1], ends[0]
                self.links.append(ends)
        self.once = [self.links[n] for n in rng.permutation(len(self.links))]
        self.bmcs = {f"n{n}": Bmc(f"n{n}", older=n > 12) for n in range(9, NODES + 1)}
        self.ipmi: dict[str, dict[str, int]] = {
            f"n{n}": dict.fromkeys(("PSU 1", "PSU 2", "Fan 1", "Fan 2", "Fan 3", "Inlet Temp", "Leak 1"), 0)
            for n in range(1, 9)
        }
        self.sel = {
            node: {"Nominal": int(rng.integers(1, 90)), "Critical": int(rng.integers(0, 3))} for node in self.ipmi
        }

    def place_gpus(self, inventory: Inventory) -> None:
        """As dcgm-exporter tells them."""
        for node in range(1, NODES + 1):
            gpu = Subject(SubjectKind.GPU, f"GPU-{node}")
            inventory.observe(gpu, Subject(SubjectKind.NODE, f"n{node}"), START_S)
            inventory.describe(gpu, fabric_guid=f"{0xE1D0_0000_0000_0000 + node:x}")

    def step(self) -> None:
        """Half a minute of its life."""
        for ends in self.links:
            lost = any(end.owner in self.dead for end in ends)
            if ends in self.flaps:
                times = 1 + int(self.rng.poisson(1.0))
                for end in ends:
                    end.downs += times
            for end in ends:
                if lost and end.state == 4:
                    end.downs += 1
                end.state = 1 if lost else 4
        if self.rng.random() < 0.1:  # a link that goes down once is no fault
            for end in self.once.pop() if self.once else ():
                end.downs += 1

    def page(self) -> bytes:
        rows: dict[str, list[str]] = {}
        for ends in self.links:
            for end in ends:
                if end.owner in self.dead or isinstance(end, NvlinkEnd):
                    continue
                labels = (
                    f'node_guid="0x{abs(hash(end.owner)) % 2**40:x}",port_num="{end.number}",'
                    f'node_description="{end.description}",Cable_SN="{end.serial}",Cable_PN="MCP4Y10-N002"'
                )
                hot = end.temperature + self.rng.normal(0, 1.0)
                told = {
                    "LinkDownedCounterExtended": end.downs, "logical_state": end.state, "Module_Temperature": hot,
                    "rx_power_lane_0": end.light + self.rng.normal(0, 0.1), "rx_power_lane_1": end.light + 0.4,
                    "SymbolErrorCounterExtended": 0,
                }  # fmt: skip
                for name, value in told.items():
                    rows.setdefault(name, []).append(f"{name}{{{labels}}} {value}")
        return ("\n".join(line for lines in rows.values() for line in lines) + "\n").encode()

    def nvlinks(self) -> bytes:
        ends = [end for pair in self.links for end in pair if isinstance(end, NvlinkEnd)]
        return "".join(
            f"Link_Down{{{end.labels()}}} {end.downs}\n" for end in ends if end.owner not in self.dead
        ).encode()

    def sensors(self, node: str) -> bytes:
        blip = str(self.rng.choice(list(self.ipmi[node]))) if self.rng.random() < 0.02 else ""
        lines = []
        for number, (name, state) in enumerate(self.ipmi[node].items()):
            labels = f'id="{number}",name="{name}"'
            told = 1 if name == blip else state
            if name.startswith("Fan"):
                lines += [f"ipmi_fan_speed_state{{{labels}}} {told}", f"ipmi_fan_speed_rpm{{{labels}}} 9000"]
            elif name == "Inlet Temp":
                lines += [f"ipmi_temperature_state{{{labels}}} {told}", f"ipmi_temperature_celsius{{{labels}}} 24"]
            else:
                sort = "Cooling Device" if name == "Leak 1" else "Power Supply"
                lines.append(f'ipmi_sensor_state{{{labels},type="{sort}"}} {told}')
        up = int(self.rng.random() >= 0.05)  # the log does not answer at times
        lines.append(f'ipmi_up{{collector="sel-events"}} {up}')
        if self.rng.random() < 0.05:
            self.sel[node]["Nominal"] += 1
        lines += [f'{SEL}{{state="{state}"}} {count}' for state, count in self.sel[node].items() if up and count]
        return ("\n".join(lines) + "\n").encode()


def begin(kind: str, fabric: Fabric, rng: np.random.Generator) -> tuple[set[str], Callable[[Finding], bool]]:
    """Makes a fault of this kind; returns the subjects that are right, and whether a finding names what it must."""
    parts = {"power supply": "PSU 2", "fan": "Fan 2", "leak": "Leak 1", "inlet air": "Inlet Temp"}
    if kind in parts:
        name, by_redfish = parts[kind], bool(rng.random() < 0.5)
        level = int(rng.integers(1, 3))
        able = [n for n, bmc in fabric.bmcs.items() if (name != "Leak 1" or not bmc.older)
                and (name != "Inlet Temp" or bmc.older) and not bmc.hangs and not bmc.html]  # fmt: skip
        node = str(rng.choice(able if by_redfish else list(fabric.ipmi)))
        if by_redfish:
            fabric.bmcs[node].health[name] = ("Warning", "Critical")[level - 1]
        else:
            fabric.ipmi[node][name] = level
        return {f"part:{node}/{name}"}, lambda found: name in found.summary and node in found.summary
    if kind == "event log":
        node = str(rng.choice([n for n, bmc in fabric.bmcs.items() if not bmc.hangs and not bmc.html]))
        said = str(rng.choice(["Uncorrectable ECC error, DIMM A3", "Drive bay 4: predictive failure"]))
        fabric.bmcs[node].entries.append((fabric.bmcs[node].clock, "Critical", said))
        return {f"node:{node}"}, lambda found: said in found.summary
    if kind == "event log by IPMI":
        node, state = str(rng.choice(list(fabric.ipmi))), str(rng.choice(["Critical", "Warning"]))
        fabric.sel[node][state] = fabric.sel[node].get(state, 0) + 1
        return {f"node:{node}"}, lambda found: "1 new entry" in found.summary
    if kind in SWITCHES:
        name, count = SWITCHES[kind]
        switch = f"{name}{int(rng.integers(1, count + 1))}"
        fabric.dead.add(switch)
        return {f"switch:{switch}"}, lambda found: switch in found.summary
    able_links = [pair for pair in fabric.links if isinstance(pair[0], NvlinkEnd) == (kind == "flapping NVLink")]
    ends = able_links[int(rng.integers(len(able_links)))]
    if kind.startswith("flapping"):
        fabric.flaps.append(ends)
    elif rng.random() < 0.5:
        ends[1].temperature = 76.0
    else:
        ends[0].light -= 5.0
    names = {end.subject for end in ends}
    bare = [name.partition(":")[2] for name in sorted(names)]

    def named(found: Finding) -> bool:
        cable = isinstance(ends[0], NvlinkEnd) or ends[0].serial in found.summary
        return cable and all(name in found.summary for name in bare)

    return names, named


def draw(number: int, kind: str) -> dict[str, Any]:
    rng = np.random.default_rng([SEED, number])
    fabric, inventory, merger = Fabric(rng), Inventory(), Merger()
    hung, html, clock = (str(name) for name in rng.choice(list(fabric.bmcs), 3, replace=False))
    fabric.bmcs[html].html, fabric.bmcs[clock].clock = True, "1970-01-05T00:00:00Z"
    fabric.place_gpus(inventory)
    pages = {UFM: fabric.page, NMX: fabric.nvlinks} | {
        f"http://ipmi:9290/ipmi?target={node}": (lambda node=node: fabric.sensors(node)) for node in fabric.ipmi
    }

    def page(url: str) -> HttpResponse | SourceError:
        if rng.random() < 0.1:
            return SourceError(Reason.TIMEOUT, "no complete answer within 4 s")
        return response(pages[url](), "text/plain")

    def document(url: str) -> HttpResponse | SourceError:
        place = urlsplit(url)
        return fabric.bmcs[str(place.hostname)].answer(place.path)

    def collectors() -> tuple[EquipmentCollector, RedfishCollector]:
        scraped = EquipmentCollector(EquipmentCollector.Settings(urls=list(pages)))
        walked = RedfishCollector(RedfishSettings(urls=[f"https://{node}" for node in fabric.bmcs]))
        scraped._fetcher = Answering(page)  # type: ignore[assignment]
        walked._fetcher = Answering(document)  # type: ignore[assignment]
        return scraped, walked

    detectors: tuple[Any, ...] = (Equipment(), Interconnect(), KernelEvents())
    begins, incidents, asked = int(rng.integers(20, 28)), Book(), collectors()
    restarts = begins + (2 if kind in SWITCHES else -4) if number // len(KINDS) % 3 == 0 else -1
    right: set[str] = set()
    names: Callable[[Finding], bool] = lambda found: False  # noqa: E731
    for look in range(LOOKS):
        now_s = START_S + look * LOOK_S
        if look == 10:
            fabric.bmcs[hung].hangs = True
        if look == begins:
            right, names = begin(kind, fabric, rng)
        if look == restarts:
            inventory, merger, asked = restarted(inventory), Merger(), collectors()
            fabric.place_gpus(inventory)
            for detector in detectors:
                detector.restore(detector.snapshot())
        fabric.step()
        tick = merger.merge([one.collect(now_s, inventory, 4.0) for one in asked], now_s, inventory)
        found = [finding for detector in detectors for finding in detector.update(tick, inventory)]
        incidents.take(found, inventory, now_s)
    causes = [first_cause(findings.values()) for findings in incidents.fired.values()]
    told = [str(cause.subject) for cause in causes]
    ok = len(causes) == 1 and told[0] in right and names(causes[0])
    if ok and "/nvlink:" in told[0]:
        ok = inventory.above(causes[0].subject, SubjectKind.GPU, now_s) is not None
    return {
        "kind": kind,
        "restarted": restarts > 0,
        "incidents": len(causes),
        "right": ok,
        "named": told[:4],
        "wanted": sorted(right),
    }


def restarted(before: Inventory) -> Inventory:
    """What the next process knows: relations, and what is stored of links (`agent.correlation.watch`)."""
    after = Inventory()
    after.load(before.memberships())
    for port, facts in before.described(PEER, CABLE):
        after.describe(port, **facts)
    return after


class Book:
    """Incidents of one draw, as decisions make them."""

    def __init__(self) -> None:
        self.by: dict[str, list[Finding]] = {}
        self.fired: dict[str, dict[str, Finding]] = {}
        """By incident and episode the newest firing form, as the store keeps it for people."""
        self._opened: dict[str, float] = {}

    def take(self, found: list[Finding], inventory: Inventory, now_s: float) -> None:
        known = [
            KnownIncident(name, IncidentState.OPEN, tuple(findings), self._opened[name])
            for name, findings in self.by.items()
        ]
        for decision in correlate(found, known, inventory, now_s):
            if decision.verb is DecisionVerb.OPEN:
                name = f"INC-{len(self.by) + 1}"
                self.by[name], self._opened[name], self.fired[name] = list(decision.findings), now_s, {}
            elif decision.incident_id is not None:
                mine = {finding.episode: finding for finding in self.by[decision.incident_id]}
                mine |= {f.episode: f for f in decision.findings if f.state is State.FIRING or f.episode in mine}
                self.by[decision.incident_id], name = list(mine.values()), decision.incident_id
            else:
                continue
            self.fired[name] |= {f.episode: f for f in decision.findings if f.state is State.FIRING}


def mockup(folder: Path) -> dict[str, Any]:
    """What the collector reads of a mock-up (a folder a resource, `index.json` in it), or of a capture (a file a
    resource, named by its path with `_` for `/`)."""

    def answer(url: str) -> HttpResponse | SourceError:
        asked = urlsplit(url).path.rstrip("/")
        path = folder / asked.removeprefix("/redfish/v1").strip("/") / "index.json"
        path = path if path.is_file() else folder / f"{asked.replace('/', '_')}.json"
        return response(path.read_bytes()) if path.is_file() else SourceError(Reason.NOT_FOUND, "HTTP 404")

    collector, inventory = RedfishCollector(RedfishSettings(urls=["https://mockup"])), Inventory()
    collector._fetcher = fetcher = Answering(answer)  # type: ignore[assignment]
    (bmc,) = collector._bmcs
    look = 0
    while not math.isfinite(bmc.read_s) and look < 300:
        batch = collector.collect(START_S + 5.0 * look, inventory, 4.0)
        look += 1
    (status,) = batch.sources
    told = {name: values["part_health"] for name, values in bmc.parts.items()}
    return {
        "ok": status.ok, "detail": status.detail, "documents": len(set(fetcher.asked)), "parts": told,
        "sorts": sorted(set(bmc.sorts.values())),
        "log_entries": len(bmc.entries),
        "facts": inventory.facts(status.covers[0]) if status.covers else {},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mockup", type=Path, action="append", default=[], metavar="DIR")
    parser.add_argument(
        "--kind", choices=KINDS, action="append", help="Draw these alone, and keep the others' rows"
    )
    given = parser.parse_args()
    path, at, kinds = RESULTS / "equipment.json", commit(), given.kind or KINDS
    before = json.loads(path.read_text())["results"].get("by_draw", []) if given.kind and path.exists() else []
    draws = [one for one in before if one["kind"] not in kinds]
    for number in range(DRAWS):
        if (kind := KINDS[number % len(KINDS)]) in kinds:
            draws.append({"commit": at, **draw(number, kind)})
            print(number, draws[-1], flush=True)
    by = {kind: [one["right"] for one in draws if one["kind"] == kind] for kind in KINDS}
    results = {
        "commit": at, "draws": len(draws), "right": sum(one["right"] for one in draws),
        "right_share": sum(one["right"] for one in draws) / max(len(draws), 1),
        "restarted": f"{sum(one['right'] for one in draws if one['restarted'])} of "
                     f"{sum(one['restarted'] for one in draws)}",
        "by_kind": {kind: f"{sum(right)} of {len(right)}" for kind, right in by.items()},
        "wrong": [one for one in draws if not one["right"]],
        "by_draw": draws,
        "mockups": {folder.name: mockup(folder) for folder in given.mockup},
    }  # fmt: skip
    write("equipment", results)


if __name__ == "__main__":
    main()
