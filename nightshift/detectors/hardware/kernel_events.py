"""Kernel-log events that are faults by themselves: an OOM kill, a GPU that fell off the bus, a failing link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.kernel_log.messages import (
    BMC_LOG,
    BY_NAME,
    HUNG_TASK,
    KINDS,
    STORAGE_SILENT,
    MessageKind,
)
from nightshift.collectors.kernel_log.pci import PCI_FACT, canonical_pci
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, RateBasis, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.quiet_periods import QuietPeriods, exhibits, unread
from nightshift.detectors.snapshot import pack, unpack

VERSION = 1
_FAULTS = {
    KernelEventKind.OOM_KILL: Fault.OOM_KILL,
    KernelEventKind.FELL_OFF_BUS: Fault.GPU_LOST,
    KernelEventKind.NVLINK: Fault.NVLINK_DEGRADED,
}
"""Of which one line is a fault."""
_OF_XIDS: Mapping[int | None, Fault] = {79: Fault.GPU_LOST, 74: Fault.NVLINK_DEGRADED}
_WORDS = {
    Fault.GPU_LOST: "The GPU has fallen off the bus",
    Fault.NVLINK_DEGRADED: "NVLink errors",
    Fault.PCIE_DEGRADED: "PCIe errors keep coming",
    Fault.NETWORK_DEGRADED: "Network link errors",
    Fault.DRIVER_ERROR: "GPU driver error",
    Fault.HOST_ERROR: "Host hardware error",
}
"""Where the line's kind has no words of its own."""
_SAYS_MORE = {STORAGE_SILENT.name: "server", BMC_LOG.name: "bmc_says"}
"""By kind of line, the fact that says more than its words."""


# Nothing more for this long ends an episode; the Xid detector's time, since one fault writes both kinds of line.
QUIET_S = 600.0
# PCIe AER lines within the quiet time: corrected ones come singly on a healthy link. A fatal one counts as all of
# them: what was on its way is lost, and the link is reset under its device.
AER_EVENTS = 10
# Ports without a cable, and what starts slowly, say so after a boot.
BOOTS_S = 300.0


class KernelEventSettings(BaseModel):
    """When an episode of events is over, and how many soft link events make one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KernelEvents:
    """OOM_KILL on the node; GPU_LOST, NVLINK_DEGRADED and PCIE_DEGRADED on the GPU of the line, else its node.

    >>> from nightshift.detectors.contract.testing import START_S, show, tick
    >>> line = "Memory cgroup out of memory: Killed process 4242 (python) total-vm:90000000kB, anon-rss:64000000kB"
    >>> show(KernelEvents(), [tick(START_S, kernel=[line]), tick(START_S + 700)])
    0 s: firing oom_kill node:n1
        The kernel killed python: out of memory
    700 s: clear oom_kill node:n1
        Nothing more for 600 s
    """

    plugin: ClassVar[str] = "kernel_events"
    Settings = KernelEventSettings

    def __init__(self, settings: KernelEventSettings | None = None) -> None:
        self.settings = settings or KernelEventSettings()
        self._aer: dict[Subject, list[float]] = {}
        self._lines: dict[tuple[str, Subject], list[float]] = {}
        """When lines came of which one alone is no fault. A restart of the daemon empties both."""
        self._lasting: dict[tuple[str, Subject, str], tuple[float, KernelEvent]] = {}
        """What no line took back yet, since when."""
        self._booted_s: dict[Subject, float] = {}
        self._counts: dict[tuple[Fault, Subject], int] = {}
        self._episodes = Episodes(self.name)
        self._quiet = QuietPeriods(self._episodes, QUIET_S, by_kernel_log=True)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        told = {Fault(kind.fault) for kind in KINDS}
        return tuple(sorted({Fault.OOM_KILL, Fault.GPU_LOST, Fault.NVLINK_DEGRADED, Fault.PCIE_DEGRADED} | told))

    @property
    def stated(self) -> StatedRate:
        return StatedRate(
            0.0, RateBasis.EVENT, "the kernel says what it did", series=SubjectKind.NODE, precision=1.0
        )

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        told: dict[tuple[Fault, Subject], list[KernelEvent]] = {}
        accused = _accused(tick)
        for event in tick.events:
            fault = self._fault(event, tick.at_s, inventory)
            if fault is not None and "old" not in event.attributes:
                subject = event.node if fault is Fault.OOM_KILL else _subject(event)
                if fault is Fault.DRIVER_ERROR and subject == event.node:
                    subject = accused.get(event.node, subject)
                told.setdefault((fault, subject), []).append(event)
        for event in self._due(tick):
            kind = _kind_of(event)
            if kind is not None:
                told.setdefault((Fault(kind.fault), _subject(event)), []).append(event)
        findings = [self._fire(fault, subject, events, tick.at_s) for (fault, subject), events in told.items()]
        findings += self._quiet.rest(tick, inventory, set(told))
        open_now = set(self._episodes)
        self._counts = {key: n for key, n in self._counts.items() if key in open_now}
        return findings

    def _fault(self, event: KernelEvent, at_s: float, inventory: Inventory) -> Fault | None:
        if event.kind is KernelEventKind.XID:
            return _OF_XIDS.get(event.code)
        if event.kind in _FAULTS:
            return _FAULTS[event.kind]
        if event.kind in (KernelEventKind.MESSAGE, KernelEventKind.STORAGE):
            return self._said(event, at_s)
        if event.kind is KernelEventKind.BOOT and event.attributes.get("scope") == "host":
            self._booted_s[event.node] = event.record.at.t_s
            self._lasting = {place: one for place, one in self._lasting.items() if one[1].node != event.node}
        if event.kind is KernelEventKind.PCIE_AER and not _is_of_another_device(event, inventory, at_s):
            subject = event.gpu or event.node
            recent = [t for t in self._aer.get(subject, []) if t > at_s - QUIET_S]
            self._aer[subject] = [*recent, *[at_s] * (AER_EVENTS if _is_fatal(event) else 1)][-1000:]
            return Fault.PCIE_DEGRADED if len(self._aer[subject]) >= AER_EVENTS else None
        return None

    def _said(self, event: KernelEvent, at_s: float) -> Fault | None:
        """The fault that a line of a known kind tells, where there were as many as make one."""
        kind = _kind_of(event)
        if kind is None:
            return None
        told, subject = event.attributes, _subject(event)
        if kind.lasts_s:
            place = (kind.name, subject, told.get("server", ""))
            if told.get("is_over") == "yes" or told.get("answers") == "yes":
                self._lasting.pop(place, None)
                return None
            if event.record.at.t_s - self._booted_s.get(event.node, -BOOTS_S) >= BOOTS_S:
                self._lasting.setdefault(place, (at_s, event))
        if kind.least > 1:
            errors = min(int(told.get("errors") or told.get("blocked_s") or 1), kind.least)
            recent = [t for t in self._lines.get((kind.name, subject), ()) if t > at_s - QUIET_S]
            self._lines[(kind.name, subject)] = recent = [*recent, *[at_s] * errors][-kind.least :]
            return Fault(kind.fault) if len(recent) >= kind.least else None
        return None if kind.lasts_s else Fault(kind.fault)

    def _due(self, tick: Tick) -> list[KernelEvent]:
        """What was not taken back for as long as its kind says, each once. While its log is not read, it waits."""
        due = {
            place: event
            for place, (since_s, event) in self._lasting.items()
            if (kind := _kind_of(event)) is not None
            and tick.at_s - since_s >= kind.lasts_s
            and not unread(tick, event.node)
        }
        for place in due:
            del self._lasting[place]
        return list(due.values())

    def _fire(self, fault: Fault, subject: Subject, events: list[KernelEvent], at_s: float) -> Finding:
        known = self._episodes.get(fault, subject)
        count = self._counts[(fault, subject)] = self._counts.get((fault, subject), 0) + len(events)
        self._quiet.event(fault, subject, at_s)
        latest = events[-1]
        facts: dict[str, float | str] = {"events": float(count)}
        facts |= {name: value for name, value in latest.attributes.items() if len(value) <= 200}
        if latest.process:
            facts["process"] = latest.process
        said = _gravest(events)
        facts |= _facts(said, known)
        meaning = str(facts.get("meaning", "")) or _words(fault, events)
        named = _SAYS_MORE.get(said.name) if said else None
        if named in facts:
            meaning = f"{meaning}: {facts[named]}"
        alarm = Alarm(
            fault,
            subject,
            min(e.record.at.t_s for e in events),
            _severity(fault, said, known),
            f"{meaning} ({count} lines)" if count > 1 else meaning,
            score=float(count),
            threshold=float(AER_EVENTS) if fault is Fault.PCIE_DEGRADED else 0.0,
            evidence=exhibits(known, {e.record: "" for e in events}),
            facts=facts,
        )
        return self._episodes.fire(alarm, at_s)

    def snapshot(self) -> bytes:
        meta = {
            "aer": {str(s): times for s, times in self._aer.items()},
            "counts": [[f.value, str(s), n] for (f, s), n in self._counts.items()],
            "last": self._quiet.saved(),
            "episodes": self._episodes.saved(),
        }
        return pack(self.name, VERSION, meta, {})

    def restore(self, state: bytes) -> None:
        _, meta, _ = unpack(state, self.name, (VERSION,))
        fresh = KernelEvents(self.settings)
        try:
            fresh._aer = {Subject.parse(s): [float(t) for t in times] for s, times in meta["aer"].items()}
            fresh._counts = {(Fault(f), Subject.parse(s)): int(n) for f, s, n in meta["counts"]}
            fresh._quiet.load(meta["last"])
            fresh._episodes.load(meta["episodes"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._aer, self._counts = fresh._aer, fresh._counts
        self._quiet, self._episodes = fresh._quiet, fresh._episodes


def _accused(tick: Tick) -> dict[Subject, Subject]:
    """The GPU of each node whose Xids came in this tick, where it is a single one: what the driver says beside them
    without an address (a GSP timeout, a reset that is required) is of that GPU."""
    found: dict[Subject, set[Subject]] = {}
    for event in tick.events:
        if event.kind is KernelEventKind.XID and event.gpu is not None and "old" not in event.attributes:
            found.setdefault(event.node, set()).add(event.gpu)
    return {node: next(iter(gpus)) for node, gpus in found.items() if len(gpus) == 1}


def _subject(event: KernelEvent) -> Subject:
    named = event.attributes.get("subject", "")
    return Subject.parse(named) if named else event.gpu or event.node


def _kind_of(event: KernelEvent) -> MessageKind | None:
    if event.kind is KernelEventKind.STORAGE:
        return STORAGE_SILENT if "server" in event.attributes else HUNG_TASK
    return BY_NAME.get(event.attributes.get("message", ""))


def _words(fault: Fault, events: Sequence[KernelEvent]) -> str:
    if fault is Fault.OOM_KILL:
        return f"The kernel killed {events[-1].process or 'a process'}: out of memory"
    if fault is Fault.PCIE_DEGRADED and any(map(_is_fatal, events)):
        return "A fatal PCIe error, which was not corrected"
    return _WORDS[fault]


def _severity(fault: Fault, said: MessageKind | None, known: Finding | None) -> Severity:
    """What was critical once stays so."""
    if known is not None and known.severity is Severity.CRITICAL:
        return known.severity
    if said is not None:
        return Severity(said.severity)
    return Severity.CRITICAL if fault is Fault.GPU_LOST else Severity.WARNING


def _gravest(events: Sequence[KernelEvent]) -> MessageKind | None:
    """Of the kinds of lines that came together: one that says what to do, else a critical one, else the first."""
    kinds = [kind for event in events if (kind := _kind_of(event)) is not None]
    return min(kinds, key=lambda kind: (not kind.recovery, kind.severity), default=None)


def _facts(kind: MessageKind | None, known: Finding | None) -> dict[str, float | str]:
    """What a line means and calls for; a later line that calls for nothing takes nothing back."""
    names = ("meaning", "log_recovery", "stated_in")
    before = {name: known.facts[name] for name in names if known is not None and name in known.facts}
    if kind is None or ("log_recovery" in before and not kind.recovery):
        return before
    asked: dict[str, float | str] = {"log_recovery": kind.recovery} if kind.recovery else {}
    return before | {"meaning": kind.meaning, "stated_in": kind.source} | asked


def _is_fatal(event: KernelEvent) -> bool:
    severity = event.attributes.get("severity", "")
    return event.kind is KernelEventKind.PCIE_AER and severity.startswith("Uncorrect") and "(Fatal)" in severity


def _is_of_another_device(event: KernelEvent, inventory: Inventory, at_s: float) -> bool:
    """Whether the line tells of a corrected error of a disk or a network card: where the addresses of the node's
    GPUs are known, the device that it names is neither one of them nor a port above one. What was not corrected
    counts whosever it is."""
    told = event.attributes
    if event.gpu is not None or not told.get("severity", "").lower().startswith("correct"):
        return False
    of_port = told.get("driver") == "pcieport" and canonical_pci(told.get("port", "")) in (None, event.pci_address)
    gpus = inventory.children(event.node, at_s, SubjectKind.GPU)
    return not of_port and any(inventory.fact(gpu, PCI_FACT) for gpu in gpus)
