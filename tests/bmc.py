"""A BMC that speaks Redfish, as small documents of DMTF's schemas (DSP2046), and answers for fleets of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson

from nightshift.collectors.frame import Reason
from nightshift.collectors.http import HttpRequest, HttpResponse, SourceError

Documents = dict[str, Any]


def _link(path: str) -> dict[str, str]:
    return {"@odata.id": f"/redfish/v1{path}"}


@dataclass
class Bmc:
    """One machine's BMC. `older`: with the Power and Thermal documents of before 2020 instead of the subsystems."""

    node: str
    older: bool = False
    health: dict[str, str] = field(default_factory=dict)
    """By part, where it is not OK."""
    entries: list[tuple[str, str, str]] = field(default_factory=list)
    """(time, severity, message) of its event log."""
    clock: str = "2026-11-21T20:00:00Z"
    bios: str = "2.4.1"
    hangs: bool = False
    html: bool = False

    def documents(self) -> Documents:
        return self._service() | self._chassis() | self._logs()

    def _service(self) -> Documents:
        inventory = "/UpdateService/FirmwareInventory"
        firmware = {"@odata.type": "#SoftwareInventory.v1_10_0.SoftwareInventory"}
        return {
            "/": {
                "@odata.type": "#ServiceRoot.v1_15_0.ServiceRoot", **_link("/"), "RedfishVersion": "1.15.0",
                "Chassis": _link("/Chassis"), "Systems": _link("/Systems"), "Managers": _link("/Managers"),
                "UpdateService": _link("/UpdateService"),
            },
            "/Systems": {"Members": [_link("/Systems/1")]},
            "/Systems/1": {
                "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem", "HostName": self.node,
                "LogServices": _link("/Systems/1/LogServices"), "Chassis": None,
            },
            "/Managers": {"Members": [_link("/Managers/BMC")]},
            "/Managers/BMC": {"@odata.type": "#Manager.v1_18_0.Manager", "DateTime": self.clock},
            "/UpdateService": {"FirmwareInventory": _link(inventory)},
            inventory: {"Members": [_link(f"{inventory}/BIOS"), _link(f"{inventory}/BMC")]},
            f"{inventory}/BIOS": {**firmware, "Id": "BIOS", "Name": "BIOS", "Version": self.bios},
            f"{inventory}/BMC": {**firmware, "Id": "BMC", "Name": "BMC firmware", "Version": "1.13.0"},
        }  # fmt: skip

    def _chassis(self) -> Documents:
        at = "/Chassis/1"
        chassis: dict[str, Any] = {"@odata.type": "#Chassis.v1_23_0.Chassis", "Id": "1"}
        supplies, fans = ("PSU 1", "PSU 2"), ("Fan 1", "Fan 2", "Fan 3")
        inlet = {
            "Name": "Inlet Temp",
            "PhysicalContext": "Intake",
            "ReadingCelsius": 24,
            **self._status("Inlet Temp"),
        }
        if self.older:
            return {
                "/Chassis": {"Members": [_link(at)]},
                at: chassis | {"Power": _link(f"{at}/Power"), "Thermal": _link(f"{at}/Thermal")},
                f"{at}/Power": {"PowerSupplies": [{"Name": name, **self._status(name)} for name in supplies]},
                f"{at}/Thermal": {
                    "Fans": [
                        {"Name": name, "Reading": 9000, "ReadingUnits": "RPM", **self._status(name)}
                        for name in fans
                    ],
                    "Temperatures": [inlet],
                },
            }
        power, cool = f"{at}/PowerSubsystem", f"{at}/ThermalSubsystem"
        leak = f"{cool}/LeakDetection/LeakDetectors"
        documents: Documents = {
            "/Chassis": {"Members": [_link(at)]},
            at: chassis | {"PowerSubsystem": _link(power), "ThermalSubsystem": _link(cool),
                           "Thermal": _link(f"{at}/T")},
            power: {"PowerSupplies": _link(f"{power}/PowerSupplies")},
            f"{power}/PowerSupplies": {"Members": [_link(f"{power}/PowerSupplies/{i}") for i in range(2)]},
            cool: {"Fans": _link(f"{cool}/Fans"), "LeakDetection": _link(f"{cool}/LeakDetection"),
                   "ThermalMetrics": _link(f"{cool}/ThermalMetrics")},
            f"{cool}/Fans": {"Members": [_link(f"{cool}/Fans/{i}") for i in range(3)]},
            f"{cool}/LeakDetection": {"LeakDetectors": _link(leak)},
            f"{cool}/ThermalMetrics": {"TemperatureReadingsCelsius": [{"Reading": 24, "DeviceName": "Intake"}]},
            leak: {"Members": [_link(f"{leak}/1")]},
            f"{leak}/1": {
                "@odata.type": "#LeakDetector.v1_1_0.LeakDetector", "Name": "Leak 1", **self._status("Leak 1"),
                "DetectorState": self.health.get("Leak 1", "OK"),
            },
        }  # fmt: skip
        for number, name in enumerate(supplies):
            kind = {"@odata.type": "#PowerSupply.v1_5_0.PowerSupply", "Name": name}
            documents[f"{power}/PowerSupplies/{number}"] = kind | self._status(name)
        for number, name in enumerate(fans):
            fan: dict[str, Any] = {
                "@odata.type": "#Fan.v1_5_0.Fan",
                "Name": name,
                "SpeedPercent": {"Reading": 45, "SpeedRPM": 9000},
            }
            documents[f"{cool}/Fans/{number}"] = fan | self._status(name)
        return documents

    def _logs(self) -> Documents:
        at = "/Systems/1/LogServices"
        entries = [
            {"@odata.type": "#LogEntry.v1_15_0.LogEntry", "Id": str(n), **_link(f"{at}/SEL/Entries/{n}"),
             "Name": "Entry", "Created": created, "Severity": severity, "Message": message}
            for n, (created, severity, message) in enumerate(self.entries)
        ]  # fmt: skip
        return {
            at: {"Members": [_link(f"{at}/SEL")]},
            f"{at}/SEL": {"Entries": _link(f"{at}/SEL/Entries")},
            f"{at}/SEL/Entries": {"Members": entries},
        }

    def _status(self, name: str) -> dict[str, Any]:
        return {"Status": {"State": "Enabled", "Health": self.health.get(name, "OK")}}

    def answer(self, path: str) -> HttpResponse | SourceError:
        if self.hangs:
            return SourceError(Reason.TIMEOUT, "no complete answer within 4 s")
        if self.html:
            return response(b"<html><body>Sign in</body></html>")
        found = self.documents().get("/" + path.removeprefix("/redfish/v1").strip("/"))
        return SourceError(Reason.NOT_FOUND, "HTTP 404") if found is None else response(orjson.dumps(found))


def response(body: bytes, content_type: str = "application/json") -> HttpResponse:
    return HttpResponse(body, content_type, 0.01, math.nan)


class Answering:
    """In a collector's place of its fetcher: answers by a function of the address, without a network."""

    def __init__(self, answer: Callable[[str], HttpResponse | SourceError]) -> None:
        self._answer = answer
        self.asked: list[str] = []

    def fetch(self, requests: Sequence[HttpRequest], timeout_s: float) -> list[HttpResponse | SourceError]:
        self.asked += [request.url for request in requests]
        return [self._answer(request.url) for request in requests]

    def close(self) -> None:
        pass


def answering(bmcs: dict[str, Bmc]) -> Answering:
    """By host of the address."""
    return Answering(lambda url: bmcs[str(urlsplit(url).hostname)].answer(urlsplit(url).path))
