"""Faults of BMCs' parts, links and switches in drawn fabrics: `python -m benchmarks.equipment`.

200 draws, our own: no public record of labelled PSU, fan, leak, link and switch faults with telemetry was found.
Each is a fabric of 16 nodes on four rails (four leaf switches, two spines, 72 links) for 40 minutes, seen every
30 s. Eight nodes are read by ipmi_exporter's pages, eight by Redfish (four of them with the older documents), ports
by one page of UFM Telemetry's names. Once, between minutes 10 and 14, one fault begins: a power supply, a fan, a
leak, inlet air, an entry of an event log, a flapping link, a module that runs hot or loses light, or a leaf or a
spine that dies. Beside it, in each draw: links that go down once, sensors in warning for one look, a scrape in ten
that is missing, a BMC that hangs, one that answers in HTML and one with its clock in 1970. A draw is right where
just one incident was opened in it and its first cause is the part: of a link either end, with cable and other end
named.

`--mockup DIR`: what the collector reads of a Redfish mock-up (github.com/DMTF/Redfish-Mockup-Server, for one).
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.detect_held_out import commit
from benchmarks.report import write
from nightshift.agent.correlation.correlate import correlate
from nightshift.agent.correlation.decisions import DecisionVerb, KnownIncident
from nightshift.agent.correlation.kinship import first_cause
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.frame import Reason
from nightshift.collectors.http import HttpResponse, SourceError
from nightshift.collectors.merge import Merger
from nightshift.collectors.subject import Inventory
from nightshift.collectors.telemetry.equipment import EquipmentCollector
from nightshift.collectors.telemetry.redfish import RedfishCollector, RedfishSettings
from nightshift.detectors.base import Finding, State
from nightshift.detectors.hardware.equipment import Equipment
from nightshift.detectors.hardware.interconnect import Interconnect
from nightshift.detectors.hardware.kernel_events import KernelEvents
from tests.bmc import Answering, Bmc, response

DRAWS, SEED, START_S, LOOK_S, LOOKS = 200, 1, 1_795_300_000.0, 30.0, 80
NODES, RAILS, SPINES = 16, 4, 2
KINDS = ("power supply", "fan", "leak", "inlet air", "event log", "flapping link", "module", "leaf", "spine")
UFM = "http://ufm:9001/labels/metrics"


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


class Fabric:
    """What stands where, and what of it fails."""

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
        self.once = [self.links[n] for n in rng.permutation(len(self.links))]
        self.bmcs = {f"n{n}": Bmc(f"n{n}", older=n > 12) for n in range(9, NODES + 1)}
        self.ipmi: dict[str, dict[str, int]] = {
            f"n{n}": dict.fromkeys(("PSU 1", "PSU 2", "Fan 1", "Fan 2", "Fan 3", "Inlet Temp", "Leak 1"), 0)
            for n in range(1, 9)
        }

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
                if end.owner in self.dead:
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
    if kind in ("leaf", "spine"):
        switch = f"{kind}{int(rng.integers(1, (RAILS if kind == 'leaf' else SPINES) + 1))}"
        fabric.dead.add(switch)
        return {f"switch:{switch}"}, lambda found: switch in found.summary
    ends = fabric.links[int(rng.integers(len(fabric.links)))]
    if kind == "flapping link":
        fabric.flaps.append(ends)
    elif rng.random() < 0.5:
        ends[1].temperature = 76.0
    else:
        ends[0].light -= 5.0
    names = {end.subject for end in ends}
    bare = [name.partition(":")[2] for name in sorted(names)]

    def named(found: Finding) -> bool:
        return ends[0].serial in found.summary and all(name in found.summary for name in bare)

    return names, named


def draw(number: int, kind: str) -> dict[str, Any]:
    rng = np.random.default_rng([SEED, number])
    fabric, inventory, merger = Fabric(rng), Inventory(), Merger()
    hung, html, clock = (str(name) for name in rng.choice(list(fabric.bmcs), 3, replace=False))
    fabric.bmcs[html].html, fabric.bmcs[clock].clock = True, "1970-01-05T00:00:00Z"
    pages = {UFM: fabric.page} | {
        f"http://ipmi:9290/ipmi?target={node}": (lambda node=node: fabric.sensors(node)) for node in fabric.ipmi
    }
    scraped = EquipmentCollector(EquipmentCollector.Settings(urls=list(pages)))
    walked = RedfishCollector(RedfishSettings(urls=[f"https://{node}" for node in fabric.bmcs]))

    def page(url: str) -> HttpResponse | SourceError:
        if rng.random() < 0.1:
            return SourceError(Reason.TIMEOUT, "no complete answer within 4 s")
        return response(pages[url](), "text/plain")

    def document(url: str) -> HttpResponse | SourceError:
        place = urlsplit(url)
        return fabric.bmcs[str(place.hostname)].answer(place.path)

    scraped._fetcher = Answering(page)  # type: ignore[assignment]
    walked._fetcher = Answering(document)  # type: ignore[assignment]
    detectors = (Equipment(), Interconnect(), KernelEvents())
    begins, incidents = int(rng.integers(20, 28)), Book()
    right: set[str] = set()
    names: Callable[[Finding], bool] = lambda found: False  # noqa: E731
    for look in range(LOOKS):
        now_s = START_S + look * LOOK_S
        if look == 10:
            fabric.bmcs[hung].hangs = True
        if look == begins:
            right, names = begin(kind, fabric, rng)
        fabric.step()
        batches = [collector.collect(now_s, inventory, 4.0) for collector in (scraped, walked)]
        tick = merger.merge(batches, now_s, inventory)
        found = [finding for detector in detectors for finding in detector.update(tick, inventory)]
        incidents.take(found, inventory, now_s)
    causes = [first_cause(findings.values()) for findings in incidents.fired.values()]
    told = [str(cause.subject) for cause in causes]
    ok = len(causes) == 1 and told[0] in right and names(causes[0])
    return {"kind": kind, "incidents": len(causes), "right": ok, "named": told[:4], "wanted": sorted(right)}


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
    """What the collector reads of a mock-up: a folder a resource, `index.json` in it."""

    def answer(url: str) -> HttpResponse | SourceError:
        path = folder / urlsplit(url).path.removeprefix("/redfish/v1").strip("/") / "index.json"
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
        "facts": inventory.facts(status.covers[0]) if status.covers else {},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mockup", type=Path, action="append", default=[], metavar="DIR")
    parser.add_argument("--draws", type=int, default=DRAWS)
    given = parser.parse_args()
    at, draws = commit(), []
    for number in range(given.draws):
        draws.append(draw(number, KINDS[number % len(KINDS)]))
        print(number, draws[-1], flush=True)
    by = {kind: [one["right"] for one in draws if one["kind"] == kind] for kind in KINDS}
    results = {
        "commit": at, "draws": len(draws), "right": sum(one["right"] for one in draws),
        "right_share": sum(one["right"] for one in draws) / max(len(draws), 1),
        "by_kind": {kind: f"{sum(right)} of {len(right)}" for kind, right in by.items()},
        "wrong": [one for one in draws if not one["right"]],
        "mockups": {folder.name: mockup(folder) for folder in given.mockup},
    }  # fmt: skip
    write("equipment", results)


if __name__ == "__main__":
    main()
