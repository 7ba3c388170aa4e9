"""Xids from the kernel log, read by the catalogue: one episode per GPU, told by its first cause.

An Xid is an event, not a statistic. What needs judgement is which of a burst was first: 45 is the tear-down after
another and never the cause; and what to do: an Xid 154 announces the driver's own recovery action, which overrides
the table (NVIDIA, "Xid Errors", docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, RateBasis, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.hardware.sxid_catalogue import SWITCH_ERRORS
from nightshift.detectors.hardware.xid_catalogue import (
    CATALOGUE,
    GRAVITY,
    RECOVERY_ACTION_CHANGED,
    SYMPATHETIC,
    Recovery,
    Tier,
    Xid,
    action_of,
    announced_action,
)
from nightshift.detectors.quiet_periods import QuietPeriods, exhibits, node_of
from nightshift.detectors.snapshot import pack, unpack

VERSION = 1
_BROKEN = (Recovery.RESET_GPU, Recovery.REBOOT_NODE)
"""What the driver announces of a GPU that works no more; one to be drained and reset goes on meanwhile."""


# No further Xid for this long ends an episode: a reset and the driver's next lines take less.
QUIET_S = 600.0


class XidSettings(BaseModel):
    """When an episode of Xids is over."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(slots=True)
class _Burst:
    """The Xids of one GPU in one episode: (time, code) in order of arrival, what a 154 announced, and the gravest
    severity that the lines of an NVLink 5 code told."""

    codes: list[tuple[float, int]] = field(default_factory=list)
    announced: str = ""
    severities: dict[int, str] = field(default_factory=dict)
    instances: set[str] = field(default_factory=set)
    """The MIG instances that the lines named."""
    old: bool = True
    """All of it was there before the first look."""
    switch: set[int] = field(default_factory=set)
    """Codes that are a switch's (SXid): they stand on the node, as do Xids of an unknown PCI address."""

    @property
    def cause(self) -> int:
        """The first code that can be one; a lone 45 stands for itself."""
        ordered = sorted(self.codes, key=lambda entry: entry[0])
        own = [code for _, code in ordered if code not in SYMPATHETIC and code != RECOVERY_ACTION_CHANGED]
        return own[0] if own else ordered[0][1]


class XidDetector:
    """XID on the GPU of the line, or on its node where the PCI address is unknown.

    >>> from nightshift.detectors.contract.testing import START_S, show, tick
    >>> line = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4242, name=python, GPU has fallen off the bus."
    >>> show(XidDetector(), [tick(START_S, kernel=[line]), tick(START_S + 700)])
    0 s: firing xid node:n1
        Xid 79 (GPU has fallen off the bus); recovery: reboot_node
    700 s: clear xid node:n1
        Nothing more for 600 s
    """

    plugin: ClassVar[str] = "xid"
    Settings = XidSettings

    def __init__(self, settings: XidSettings | None = None) -> None:
        self.settings = settings or XidSettings()
        self._bursts: dict[Subject, _Burst] = {}
        self._latest: dict[Subject, int] = {}
        """The last Xid of each GPU."""
        self._episodes = Episodes(self.name)
        self._quiet = QuietPeriods(self._episodes, QUIET_S, by_kernel_log=True)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.XID,)

    @property
    def stated(self) -> StatedRate:
        # Llama 3 405B: 54 days, 16,384 H100s, 419 unexpected interruptions (arXiv 2407.21783, table 5)
        return StatedRate(
            1000.0 * 419 / (54 * 16384),
            RateBasis.EVENT,
            "arXiv 2407.21783, section 3.3.4: unexpected interruptions per GPU-day; 78 % confirmed hardware",
            precision=0.78,
        )

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        told: dict[Subject, list[KernelEvent]] = {}
        anew_s: dict[Subject, float] = {}
        for event in self._timely(tick):
            if event.kind is KernelEventKind.BOOT:
                anew_s[event.node] = max(event.record.at.t_s, anew_s.get(event.node, event.record.at.t_s))
            if event.kind in (KernelEventKind.XID, KernelEventKind.SXID) and event.code is not None:
                told.setdefault(event.gpu or event.node, []).append(event)
        said = {subject: self._fire(subject, events, tick.at_s) for subject, events in told.items()}
        said |= self._repaired(anew_s, tick.at_s, inventory)
        spoken = {(Fault.XID, subject) for subject in said}
        findings = [*said.values(), *self._quiet.rest(tick, inventory, spoken)]
        still = {subject for _, subject in tuple(self._episodes)}
        self._bursts = {s: b for s, b in self._bursts.items() if s in still}
        return findings

    def _timely(self, tick: Tick) -> Iterator[KernelEvent]:
        """The events of a look. Of what was there before the first look (`old`) only what a GPU does not get over
        by itself counts, and nothing twice: a gauge shows its last Xid again at each start of the daemon."""
        frame = tick.frames.get(SubjectKind.GPU)
        if frame is not None:
            for row in np.flatnonzero(frame.column("gpu_recovery_action") > 0).tolist():
                self._quiet.event(Fault.XID, frame.index.subjects[row], tick.at_s)  # it lasts as long as it is said
        for event in tick.events:
            if event.kind is not KernelEventKind.XID or event.code is None or event.gpu is None:
                yield event
                continue
            known, self._latest[event.gpu] = self._latest.get(event.gpu), event.code
            entry = CATALOGUE.get(event.code)
            lasts = entry is not None and entry.tier is Tier.FATAL and known != event.code
            if lasts or "old" not in event.attributes or event.code == RECOVERY_ACTION_CHANGED:
                yield event

    def _fire(self, subject: Subject, events: list[KernelEvent], at_s: float) -> Finding:
        burst = self._bursts.setdefault(subject, _Burst())
        lines = {}
        for event in events:
            code = int(event.code or 0)
            burst.old &= "old" in event.attributes
            burst.codes.append((event.record.at.t_s, code))
            if event.kind is KernelEventKind.SXID:
                burst.switch.add(code)
            if code != RECOVERY_ACTION_CHANGED and announced_action(burst.announced) is Recovery.NONE:
                burst.announced = ""  # of what came before this error
            burst.announced = _announced(subject, burst.announced, event.attributes.get("recovery_action", ""))
            if instance := event.attributes.get("gpu_instance"):
                burst.instances.add(instance)
            if (word := event.attributes.get("severity", "").lower().replace("-", "")) in GRAVITY[1:]:
                burst.severities[code] = max(word, burst.severities.get(code, ""), key=GRAVITY.index)
            lines[event.record] = _meaning(code)
            self._quiet.event(Fault.XID, subject, min(event.record.at.t_s, at_s))
        burst.codes = burst.codes[:32] + burst.codes[32:][-32:]
        self._quiet.event(Fault.XID, subject, at_s)
        known = self._episodes.get(Fault.XID, subject)
        return self._episodes.fire(self._alarm(subject, burst, exhibits(known, lines)), at_s)

    def _repaired(self, anew_s: dict[Subject, float], at_s: float, inventory: Inventory) -> dict[Subject, Finding]:
        """What began before its node, or its driver, began anew: told still, and grave no more."""
        found = {}
        for subject, burst in self._bursts.items() if anew_s else ():
            node = node_of(subject, inventory, at_s)
            known = self._episodes.get(Fault.XID, subject)
            since_s = anew_s.get(node, -math.inf) if node is not None else -math.inf
            if known is None or max(t_s for t_s, _ in burst.codes) >= since_s:
                continue
            alarm = self._alarm(subject, burst, known.evidence)
            if alarm.severity is Severity.CRITICAL:
                summary = f"{alarm.summary}; its driver has restarted since"
                found[subject] = self._episodes.fire(
                    replace(alarm, severity=Severity.WARNING, summary=summary), at_s
                )
        return found

    def _alarm(self, subject: Subject, burst: _Burst, evidence: tuple[Any, ...]) -> Alarm:
        code = burst.cause
        entry = None if code in burst.switch else CATALOGUE.get(code)
        action = _called_for(code, burst)
        tier = _tier(code, burst)
        if burst.announced:
            action = announced_action(burst.announced) or action
        codes = sorted({c for _, c in burst.codes})
        facts = _facts(burst, entry, codes, action, tier)
        meaning = _meaning(code)
        others = [_named(c, burst) for c in codes if c != code]
        also = f", with {', '.join(others)}" if others else ""
        where = f" in MIG instance {', '.join(sorted(burst.instances))}" if burst.instances else ""
        summary = f"{_named(code, burst)} ({meaning}){where}{also}; recovery: {action.value}"
        summary += "; it happened before the first look" if burst.old else ""
        since_s = min(t for t, _ in burst.codes)
        score = float(len(burst.codes))
        severity = _severity(burst, codes)
        return Alarm(Fault.XID, subject, since_s, severity, summary, score, 0.0, evidence=evidence, facts=facts)

    def snapshot(self) -> bytes:
        bursts = {
            str(s): {
                "codes": [list(c) for c in b.codes],
                "announced": b.announced,
                "severities": {str(code): word for code, word in b.severities.items()},
                "switch": sorted(b.switch),
                "old": b.old,
                "instances": sorted(b.instances),
            }
            for s, b in self._bursts.items()
        }
        latest = {str(gpu): code for gpu, code in self._latest.items()}
        meta = {"bursts": bursts, "latest": latest, "last": self._quiet.saved(), "episodes": self._episodes.saved()}
        return pack(self.name, VERSION, meta, {})

    def restore(self, state: bytes) -> None:
        _, meta, _ = unpack(state, self.name, (VERSION,))
        fresh = XidDetector(self.settings)
        try:
            fresh._episodes.load(meta["episodes"])
            fresh._quiet.load(meta["last"])
            # a state from before gauges were read has none
            fresh._latest = {Subject.parse(gpu): int(code) for gpu, code in meta.get("latest", {}).items()}
            fresh._bursts = {
                Subject.parse(name): _Burst(
                    [(float(t), int(c)) for t, c in entry["codes"]],
                    entry["announced"],
                    {int(code): str(word) for code, word in entry.get("severities", {}).items()},
                    {str(name) for name in entry.get("instances", ())},
                    bool(entry.get("old", False)),
                    {int(code) for code in entry.get("switch", ())},
                )
                for name, entry in meta["bursts"].items()
            }
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._episodes, self._quiet, self._bursts = fresh._episodes, fresh._quiet, fresh._bursts
        self._latest = fresh._latest


def _announced(subject: Subject, before: str, now: str) -> str:
    """A GPU's newest announcement holds; of several GPUs whose addresses are not known, so that all stand on their
    node, the one that asks for most."""
    asked = (announced_action(before), announced_action(now))
    if subject.kind is SubjectKind.NODE and Recovery.REBOOT_NODE in asked:
        return before if asked[0] is Recovery.REBOOT_NODE else now
    return now or before


def _named(code: int, burst: _Burst) -> str:
    return f"{'SXid' if code in burst.switch else 'Xid'} {code}"


def _tier(code: int, burst: _Burst) -> Tier:
    """How grave a code is: by the catalogue, or by the severity that its line told."""
    told = burst.severities.get(code, "")
    if code in burst.switch:
        known = SWITCH_ERRORS.get(code)
        # a switch's own word counts: of a trunk port's and an access port's error one number may be either
        return Tier.FATAL if told == "fatal" or (not told and known and known.tier is Tier.FATAL) else Tier.WARNING
    entry = CATALOGUE.get(code)
    tier = entry.tier if entry else Tier.WARNING
    if told and tier in (Tier.BY_SUBCODE, Tier.WARNING):
        return Tier.FATAL if told == "fatal" else Tier.WARNING
    return tier


def _meaning(code: int) -> str:
    known = SWITCH_ERRORS.get(code) or CATALOGUE.get(code)
    return known.meaning if known else "not in NVIDIA's catalogue as we know it"


def _severity(burst: _Burst, codes: Sequence[int]) -> Severity:
    # whether it was repaired since is not known: it is said, and nobody is woken
    if burst.old:
        return Severity.WARNING
    # whichever came first: an application's may; and the line of the error itself may be lost
    announced = announced_action(burst.announced)
    if any(_tier(c, burst) is Tier.FATAL for c in codes) or announced in _BROKEN:
        return Severity.CRITICAL
    # alone it is all that is known of the GPU: its first error was lost, in a flood or before the log was read
    if codes == [RECOVERY_ACTION_CHANGED] and announced is Recovery.DRAIN_AND_RESET:
        return Severity.CRITICAL
    return Severity.INFO if set(codes) <= SYMPATHETIC else Severity.WARNING


def _called_for(code: int, burst: _Burst) -> Recovery:
    if code in burst.switch:
        return SWITCH_ERRORS[code].action if code in SWITCH_ERRORS else Recovery.CONTACT_SUPPORT
    return action_of(code, burst.severities.get(code, "")) or Recovery.CONTACT_SUPPORT


def _facts(
    burst: _Burst, entry: Xid | None, codes: list[int], action: Recovery, tier: Tier
) -> dict[str, float | str]:
    """What the log said of a burst, and what the catalogue says of its cause; only what is known."""
    facts: dict[str, float | str] = {
        "xid": float(burst.cause),
        "codes": " ".join(map(str, codes)),
        "events": float(len(burst.codes)),
        "recovery": action.value,
        "tier": tier.value,
        "sympathetic": "yes" if set(codes) <= SYMPATHETIC else "no",
    }
    told: dict[str, float | str] = {
        "severities": " ".join(f"{code}:{word}" for code, word in sorted(burst.severities.items())),
        "announced_recovery": burst.announced,
        "mig_instances": " ".join(sorted(burst.instances)),
    }
    if entry is not None:
        told |= {"xid_name": entry.name, "meaning": entry.meaning}
        told |= {"sources_disagree": entry.disagreement, "note": entry.note}
    return facts | {name: fact for name, fact in told.items() if fact}
