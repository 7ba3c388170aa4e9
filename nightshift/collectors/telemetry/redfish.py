"""BMCs by Redfish (DMTF DSP0266, DSP2046): the health of a chassis's parts, new entries of its logs, firmware.

A walk begins at the service root and follows links of known names: power supplies, fans, sensors of temperature,
leak detectors, log entries, firmware. `PowerSubsystem` and `ThermalSubsystem` are read, else the older `Power` and
`Thermal`. BMCs are slow, so a walk takes a few documents a tick, and what it knows is told meanwhile; a value that
no walk renewed goes stale.

A BMC's clock is not believed: after a battery change it says 1970. An entry that was not there at the last walk
came since then, whatever its stamp says. Entries of the first walk are old, but for those that the BMC stamped
after it began, as its own clock tells. What a BMC says of a part is 0 well,
1 warning, 2 critical. A part that is absent or switched off has no health.
"""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import urljoin, urlsplit

import numpy as np
import orjson
from pydantic import Field

from nightshift.collectors.frame import Frame, Instant, Reason, SourceStatus
from nightshift.collectors.http import Fetcher, HttpRequest, HttpResponse, SourceError
from nightshift.collectors.kernel_log.event import KernelEvent
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.equipment import bmc_entry, sort_of
from nightshift.collectors.telemetry.metrics import of_kind
from nightshift.collectors.telemetry.pages import FORGET_AFTER_S, PageSettings, source_subject
from nightshift.collectors.telemetry.rows import Rows, cells
from nightshift.collectors.tick import Batch

ROOT = "/redfish/v1/"
WALK_S, WHOLE_S = 60.0, 3600.0
"""A walk begins so long after the last one did (s); a whole one once an hour. Between, only documents are read that
told something: a GB300 tray's BMC has 250, and parts are in few of them."""
AT_ONCE = 4
"""Documents of one BMC in a tick: it answers them one after the other."""
MOST_DOCUMENTS = 400
_MAX_BYTES = 4 * 2**20
_HEALTH = {"OK": 0.0, "Warning": 1.0, "Critical": 2.0}
_HARDWARE, _OFFICE = frozenset({"Hardware", "System Health", "Storage"}), "Administration"
"""How vendors sort the entries of one log: HPE by `Categories`, Dell by `Category`."""
_ABSENT = frozenset({"Absent", "Disabled", "StandbyOffline", "UnavailableOffline"})
_CLOCK_OFF_S = 3600.0
_PART = SubjectKind.PART
# Links that a walk follows, by the property that holds them; `Members` of collections are followed always.
_FOLLOWED = (
    *("Chassis", "Systems", "Managers", "UpdateService", "FirmwareInventory"),
    *("PowerSubsystem", "PowerSupplies", "ThermalSubsystem", "Fans", "ThermalMetrics", "LeakDetection"),
    *("LeakDetectors", "LogServices", "Entries"),
)
_OLDER = {"Power": "PowerSubsystem", "Thermal": "ThermalSubsystem"}
_PARTS = {
    "PowerSupply": "power supply",
    "Fan": "fan",
    "LeakDetector": "leak",
}
"""Documents that are parts, by their type."""
_LISTED = {
    "PowerSupplies": "power supply",
    "Fans": "fan",
    "Temperatures": "",
    "Redundancy": "",
    "TemperatureReadingsCelsius": "",
}
"""Parts that stand in a list of another document; the sort of an empty one is in its name."""


class RedfishSettings(PageSettings):
    """Asks BMCs by Redfish: power supplies, fans, leaks, temperatures, event logs, firmware."""

    urls: list[str] = Field(min_length=1, description="Addresses of the BMCs, one per node, e.g. https://n1-bmc")
    verify: bool = Field(
        True, description="Whether a BMC's certificate must be valid; false: its answers may be another machine's"
    )


@dataclass
class _Bmc:
    url: str
    source: Subject
    node: str
    named: bool
    """Whether the configuration names the node."""
    todo: deque[str] = field(default_factory=deque)
    whole_s: float = -np.inf
    """When the last whole walk began, by our clock."""
    telling: dict[str, None] = field(default_factory=dict)
    """Documents that told something in it."""
    seen: set[str] = field(default_factory=set)
    begun_s: float = -np.inf
    last_begun_s: float = -np.inf
    """When this walk and the last whole one began, by our clock."""
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    found: dict[str, dict[str, float]] = field(default_factory=dict)
    sorts: dict[str, str] = field(default_factory=dict)
    read_s: float = -np.inf
    entries: set[str] = field(default_factory=set)
    fresh: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    firmware: dict[str, str] = field(default_factory=dict)
    clock_off_s: float = 0.0
    tells_time: bool = False
    problem: SourceError | None = None


class RedfishCollector:
    """Parts of chassis with their health; new critical and warning entries of their logs as events."""

    plugin: ClassVar[str] = "redfish"
    Settings = RedfishSettings

    def __init__(self, settings: RedfishSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows = Rows(_PART, of_kind(_PART), FORGET_AFTER_S)
        fetcher = Fetcher if settings.verify else _Unverified
        self._fetcher = fetcher(settings.connection, max_bytes=_MAX_BYTES, accept="application/json", timer=clock)
        self._bmcs = [
            _Bmc(
                url,
                source_subject(self.plugin, url),
                settings.nodes.get(url) or urlsplit(url).hostname or url,
                url in settings.nodes,
            )
            for url in settings.urls
        ]
        self._count = 0

    @property
    def name(self) -> str:
        return self.plugin

    def close(self) -> None:
        self._fetcher.close()

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        asked: list[tuple[_Bmc, str]] = []
        for bmc in self._bmcs:
            # below: a clock that was set back must not put the next walk off
            if not bmc.todo and not bmc.begun_s <= now_s < bmc.begun_s + WALK_S:
                bmc.todo.append(ROOT)
                bmc.found, bmc.begun_s = {}, now_s
                if bmc.whole_s <= now_s < bmc.whole_s + WHOLE_S:
                    bmc.todo.extend(bmc.telling)
                else:
                    bmc.seen, bmc.whole_s, bmc.telling = {ROOT}, now_s, {}
            asked += [(bmc, bmc.todo.popleft()) for _ in range(min(AT_ONCE, len(bmc.todo)))]
        answers = self._fetcher.fetch([HttpRequest(urljoin(bmc.url, path)) for bmc, path in asked], timeout_s)
        events: list[KernelEvent] = []
        for (bmc, path), answer in zip(asked, answers, strict=True):
            self._take(bmc, path, answer, now_s)
        for bmc in {id(bmc): bmc for bmc, _ in asked}.values():
            if not bmc.todo:
                events += self._walked(bmc, now_s, inventory)
        for bmc in self._bmcs:
            self._tell(bmc, now_s)
        frame = self._rows.frame(now_s)
        frames = [frame] if isinstance(frame, Frame) else []
        statuses = [self._status(bmc, now_s) for bmc in self._bmcs]
        return Batch(statuses, frames, logs=[event.record for event in events], events=events)

    # One document -----------------------------------------------------------------------------------------------

    def _take(self, bmc: _Bmc, path: str, answer: HttpResponse | SourceError, now_s: float) -> None:
        try:
            if isinstance(answer, SourceError):
                raise answer
            document = _document(answer)
        except SourceError as error:
            if path == ROOT or error.reason in (Reason.TIMEOUT, Reason.UNREACHABLE, Reason.UNAUTHORISED):
                # it hangs or is away: nothing more is asked in this walk, and what it said before goes stale
                bmc.problem = _explained(error)
                bmc.todo.clear()
                bmc.found, bmc.whole_s = {}, -np.inf
            elif error.reason is not Reason.NOT_FOUND:  # a link that leads nowhere is common, and costs one part
                bmc.problem = error
            return
        if path == ROOT:
            if "@odata.id" not in document and "RedfishVersion" not in document:
                bmc.problem = SourceError(Reason.MALFORMED, "the service root is no Redfish document")
                bmc.todo.clear()
                return
            bmc.problem = None
        if bmc.whole_s == bmc.begun_s:
            self._follow(bmc, document)
        told = len(bmc.found), len(bmc.fresh)
        self._read(bmc, document, now_s)
        is_log = isinstance(document.get("Members"), list) and path.rstrip("/").endswith("/Entries")
        if path != ROOT and (is_log or "DateTime" in document or told != (len(bmc.found), len(bmc.fresh))):
            bmc.telling[path] = None

    def _follow(self, bmc: _Bmc, document: Mapping[str, Any]) -> None:
        links = [document.get(name) for name in _FOLLOWED]
        links += [document.get(old) for old, new in _OLDER.items() if new not in document]
        members = document.get("Members")
        if isinstance(members, list):
            # entries of a log usually stand in the collection itself
            links += [member for member in members if isinstance(member, dict) and len(member) == 1]
        for link in links:
            target = link.get("@odata.id") if isinstance(link, dict) and len(link) <= 2 else None
            if not isinstance(target, str) or not target.startswith("/redfish/") or "#" in target:
                continue
            if target not in bmc.seen and len(bmc.seen) < MOST_DOCUMENTS:
                bmc.seen.add(target)
                bmc.todo.append(target)

    def _read(self, bmc: _Bmc, document: Mapping[str, Any], now_s: float) -> None:
        kind = str(document.get("@odata.type", "")).removeprefix("#").partition(".")[0]
        if kind in _PARTS:
            self._part(bmc, document, _PARTS[kind])
        elif kind == "LogEntry":
            self._entry(bmc, document)
        elif kind == "SoftwareInventory":
            self._firmware(bmc, document)
        elif kind == "ComputerSystem" and not bmc.named and isinstance(document.get("HostName"), str):
            bmc.node = document["HostName"].strip() or bmc.node
        elif kind == "Manager":
            said_s = _unix(document.get("DateTime"))
            bmc.clock_off_s, bmc.tells_time = (0.0, False) if said_s is None else (said_s - now_s, True)
        for name, sort in _LISTED.items():
            listed = document.get(name)
            for item in listed if isinstance(listed, list) else ():
                if isinstance(item, dict) and ("Status" in item or "Reading" in item):
                    self._part(bmc, item, sort)
        members = document.get("Members")
        for member in members if isinstance(members, list) else ():
            if isinstance(member, dict) and len(member) > 1:
                self._read(bmc, member, now_s)

    def _part(self, bmc: _Bmc, document: Mapping[str, Any], sort: str) -> None:
        name = str(document.get("Name") or document.get("MemberId") or document.get("Id") or "").strip()
        if not name or not name.isprintable() or len(name) > 200:
            return
        context = str(document.get("PhysicalContext", ""))
        sort = sort or sort_of(f"{name} {context} temp")
        if name in bmc.found:  # two chassis of one BMC call their parts alike
            name += f" ({document.get('Id') or document.get('MemberId') or len(bmc.found)})"
        status = document.get("Status")
        state = status if isinstance(status, dict) else {}
        told = document.get("DetectorState") or state.get("Health")
        health = np.nan if state.get("State") in _ABSENT else _HEALTH.get(str(told), np.nan)
        speed = document.get("SpeedPercent")
        bmc.found[name] = {
            "part_health": health,
            "part_temperature_c": _number(document.get("ReadingCelsius")),
            "part_fan_rpm": _number(speed.get("SpeedRPM") if isinstance(speed, dict) else _rpm(document)),
            "part_power_w": _number(document.get("PowerInputWatts")),
        }
        bmc.sorts[name] = sort

    def _entry(self, bmc: _Bmc, document: Mapping[str, Any]) -> None:
        key = str(document.get("@odata.id") or document.get("Id"))
        # an entry's number is used again once its log was cleared: its time and text tell it from the former one
        bmc.fresh.append((f"{key} {document.get('Created')} {document.get('Message')}", document))

    def _firmware(self, bmc: _Bmc, document: Mapping[str, Any]) -> None:
        version, words = document.get("Version"), f"{document.get('Id')} {document.get('Name')}".lower()
        if not isinstance(version, str) or not version.isprintable():
            return
        for component, signs in (("bmc", ("bmc", "ilo", "idrac")), ("bios", ("bios", "uefi"))):
            if any(sign in words for sign in signs) and "backup" not in words and "rollback" not in words:
                bmc.firmware.setdefault(component, version.strip())

    # One walk ---------------------------------------------------------------------------------------------------

    def _walked(self, bmc: _Bmc, now_s: float, inventory: Inventory) -> list[KernelEvent]:
        """A walk has ended: what it found replaces what was known, and what its logs say anew are events."""
        fresh, bmc.fresh = bmc.fresh, []
        firmware, bmc.firmware = bmc.firmware, {}
        if bmc.problem is not None and not bmc.found:
            return []
        node = Subject(SubjectKind.NODE, bmc.node)
        bmc.parts, bmc.read_s = bmc.found, now_s
        for name in bmc.parts:
            part = Subject(_PART, f"{bmc.node}/{name}"[:512])
            inventory.observe(part, node, now_s)
            inventory.describe(part, sort=bmc.sorts.get(name, "part"))
        if firmware:
            inventory.describe(node, **firmware)
        is_first = bmc.last_begun_s == -np.inf
        since_s, bmc.last_begun_s = bmc.last_begun_s, bmc.begun_s
        known, bmc.entries = bmc.entries, {key for key, _ in fresh}
        new = [document for key, document in fresh if key not in known]
        # of a first walk, which takes minutes, those count that came since it began, by the BMC's own clock
        new = [document for document in new if _came_since(bmc, document)] if is_first else new
        since_s = bmc.begun_s if is_first else since_s
        return [event for document in new if (event := self._event(bmc, node, document, since_s, now_s))]

    def _event(
        self, bmc: _Bmc, node: Subject, document: Mapping[str, Any], since_s: float, now_s: float
    ) -> KernelEvent | None:
        severity = str(document.get("Severity", ""))
        if severity not in ("Warning", "Critical") or not document.get("Message") or not _is_of_hardware(document):
            return None
        stamped_s = _unix(document.get("Created"))
        at_s = now_s if stamped_s is None else stamped_s - bmc.clock_off_s
        at_s = min(max(at_s, since_s), now_s)
        said = " ".join(str(document["Message"]).split())[:300]
        self._count += 1
        return bmc_entry(bmc.source, node, severity, said, Instant(at_s, now_s - since_s), self._count)

    def _tell(self, bmc: _Bmc, now_s: float) -> None:
        """Puts what the last walk found into the frame, as of then: what is too old is refused there."""
        if not bmc.parts:
            return
        entries: list[tuple[int, Subject, int, float]] = []
        values: list[float] = []
        for name, told in bmc.parts.items():
            part = Subject(_PART, f"{bmc.node}/{name}"[:512])
            for metric, value in told.items():
                column = self._rows.metrics.index(metric)
                entries.append((len(entries), part, column, 1.0))
                values.append(value)
        times = np.full(len(values), bmc.read_s)
        self._rows.put(cells(_PART, entries), np.array(values), times, now_s)

    def _status(self, bmc: _Bmc, now_s: float) -> SourceStatus:
        covers = (Subject(SubjectKind.NODE, bmc.node),) if bmc.parts or bmc.named else ()
        problem, off_s = bmc.problem, bmc.clock_off_s
        # said, and no fault: nothing relies on that clock
        note = f"the BMC's clock is off by {off_s / 86_400:,.1f} days" if abs(off_s) > _CLOCK_OFF_S else ""
        if problem is not None:
            return SourceStatus(bmc.source, now_s, False, problem.reason, problem.detail, covers=covers)
        if bmc.read_s > -np.inf and not bmc.parts:
            detail = "it has no power supply, fan, sensor or leak detector that we understand"
            return SourceStatus(bmc.source, now_s, False, Reason.NOT_FOUND, detail, covers=covers)
        return SourceStatus(bmc.source, now_s, True, None, note, samples=len(bmc.parts), covers=covers)


class _Unverified(Fetcher):
    """Takes any certificate: BMCs sign their own, with names that are not theirs."""

    def _new_context(self) -> ssl.SSLContext:
        context = super()._new_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


def _came_since(bmc: _Bmc, document: Mapping[str, Any]) -> bool:
    stamped_s = _unix(document.get("Created"))
    return bmc.tells_time and stamped_s is not None and stamped_s - bmc.clock_off_s >= bmc.begun_s


def _is_of_hardware(document: Mapping[str, Any]) -> bool:
    """Whether a log's entry is of the machine, where its vendor says so: an iLO warns of logins, settings and every
    reset of the server, too."""
    oem = document.get("Oem")
    for own in oem.values() if isinstance(oem, dict) else ():
        told = own.get("Categories") or own.get("Category") if isinstance(own, dict) else None
        sorts = {str(sort) for sort in (told if isinstance(told, list) else [told] if told else [])}
        if sorts:
            return bool(sorts & _HARDWARE) and _OFFICE not in sorts
    return True


def _document(answer: HttpResponse) -> dict[str, Any]:
    try:
        document = orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        what = "a page in HTML" if answer.body.lstrip()[:1] == b"<" else f"no JSON: {error}"
        raise SourceError(Reason.MALFORMED, f"it answered with {what}") from None
    if not isinstance(document, dict):
        raise SourceError(Reason.MALFORMED, "it answered with JSON that is no object")
    return document


def _explained(error: SourceError) -> SourceError:
    if "certificate verify failed" not in error.detail and "CERTIFICATE_VERIFY_FAILED" not in error.detail:
        return error
    hint = "name its authority as `ca_file` of its connection, or set `verify: false`"
    return SourceError(error.reason, f"{error.detail[:180]}: {hint}")


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else np.nan


def _rpm(document: Mapping[str, Any]) -> Any:
    return document.get("Reading") if document.get("ReadingUnits") == "RPM" else None


def _unix(stamp: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(stamp).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
