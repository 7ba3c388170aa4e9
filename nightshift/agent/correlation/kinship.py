"""Which findings speak of one fault: the tables behind correlation and the causal order of the rules.

A finding belongs to a `Kin` (what physically is wrong, rather than which detector spoke). `SAME` says when two
findings of one kin are one fault; `EFFECTS` says which kin can follow from which, where, and for how long. Effects
run strictly from a lower to a higher `STAGE`, so a chain of causes never closes on itself.

Xid classes follow NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors); 43, 45 and 154 only ever accompany
another error, so they are followers and never first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.topology import PART
from nightshift.detectors.base import Fault, Finding, Severity
from nightshift.detectors.hardware.xid_catalogue import LINK_XIDS, Recovery, announced_action

MEMORY_XIDS = frozenset({48, 63, 64, 92, 94, 95, 140, 156, 157, 160, 161, 171, 172})
BUS_XIDS = frozenset({54, 79, 167})
APPLICATION_XIDS = frozenset({8, 13, 31, 32, 44, 68, 69, 80})
# 43: a channel was reset; 45: pre-emptive clean-up of a process that ended; 154: the recovery action that the
# driver announces. Each comes after the error that it is about.
FOLLOWER_XIDS = frozenset({43, 45, 154})


class Kin(StrEnum):
    RACK = "rack"
    SWITCH = "switch"
    MEMORY = "memory"
    BUS = "bus"
    LINK = "link"
    FIRMWARE = "firmware"
    HOST = "host"
    THROTTLE = "throttle"
    GPU_LEAK = "gpu_leak"
    HOST_LEAK = "host_leak"
    APPLICATION = "application"
    OOM = "oom"
    STALL = "stall"
    LOSS = "loss"
    STRAGGLER = "straggler"
    SOURCE = "source"
    BREAKER = "breaker"
    LEMON = "lemon"
    GONE = "gone"
    NODE = "node"
    START = "start"
    CRASH = "crash"
    HANG = "hang"
    FOLLOWER = "follower"
    ANOMALY = "anomaly"


HARDWARE = frozenset({Kin.MEMORY, Kin.BUS, Kin.LINK, Kin.FIRMWARE})

STAGE: dict[Kin, int] = {
    kin: stage
    for stage, kins in enumerate(
        (
            (Kin.SWITCH, Kin.RACK),
            (*sorted(HARDWARE), Kin.HOST, Kin.THROTTLE),
            (Kin.GPU_LEAK, Kin.HOST_LEAK),
            (Kin.APPLICATION,),
            (Kin.OOM,),
            (Kin.NODE,),
            (Kin.STALL, Kin.LOSS),
            (Kin.STRAGGLER,),
            (Kin.SOURCE, Kin.BREAKER, Kin.LEMON),
            (Kin.GONE,),
            (Kin.START,),
            (Kin.CRASH,),
            (Kin.HANG,),
            (Kin.FOLLOWER,),
            (Kin.ANOMALY,),
        )
    )
    for kin in kins
}
"""The causal order: of findings that belong together, the one of the lowest stage is the first cause."""

_BY_FAULT = {
    Fault.GPU_MEMORY_LEAK: Kin.GPU_LEAK,
    Fault.HOST_MEMORY_LEAK: Kin.HOST_LEAK,
    Fault.LOSS_DIVERGED: Kin.LOSS,
    Fault.LOSS_NONFINITE: Kin.LOSS,
    Fault.DATA_STALL: Kin.STALL,
    Fault.HANG: Kin.HANG,
    Fault.STRAGGLER: Kin.STRAGGLER,
    Fault.HBM_IMMINENT: Kin.MEMORY,
    Fault.HBM_DEGRADED: Kin.MEMORY,
    Fault.GPU_LOST: Kin.GONE,
    Fault.DRIVER_ERROR: Kin.FIRMWARE,
    Fault.HOST_ERROR: Kin.HOST,
    Fault.PART_FAILED: Kin.HOST,
    Fault.NVLINK_DEGRADED: Kin.LINK,
    Fault.PCIE_DEGRADED: Kin.LINK,
    Fault.NETWORK_DEGRADED: Kin.LINK,
    Fault.THROTTLE: Kin.THROTTLE,
    Fault.OOM_KILL: Kin.OOM,
    Fault.JOB_CRASH: Kin.CRASH,
    Fault.POD_START: Kin.START,
    Fault.NODE_CONDITION: Kin.NODE,
    Fault.SOURCE_LOST: Kin.SOURCE,
    Fault.ACTIONS_STOPPED: Kin.BREAKER,
    Fault.LEMON: Kin.LEMON,
    Fault.ANOMALY: Kin.ANOMALY,
}


def xid_of(finding: Finding) -> int | None:
    """The Xid code that a finding speaks of, or None."""
    code = finding.facts.get("xid", finding.facts.get("code"))
    try:
        return None if code is None else int(float(code))
    except (ValueError, OverflowError):
        return None


def kin_of(finding: Finding) -> Kin:
    """The kin of a finding. A burst of Xids goes by its first code, but hardware comes before the crash that it
    causes, and both before what only follows."""
    if finding.fault is Fault.NETWORK_DEGRADED and finding.subject.kind is SubjectKind.SWITCH:
        return Kin.SWITCH
    if finding.fault is Fault.PART_FAILED and PART in finding.facts:
        return Kin.RACK
    if finding.fault is not Fault.XID:
        return _BY_FAULT[finding.fault]
    first = xid_of(finding)
    classes = [_class_of(code) for code in [*([] if first is None else [first]), *listed_xids(finding)]]
    # a burst may begin with the crash that an error caused: the order of lines is not the order of causes
    for wanted in (HARDWARE, {Kin.APPLICATION}, {Kin.FOLLOWER}):
        for kin in classes:
            if kin in wanted and not (kin is Kin.FOLLOWER and _asks_for_repair(finding)):
                return kin
    return Kin.FIRMWARE


def _asks_for_repair(finding: Finding) -> bool:
    """Whether the driver itself calls for a repair: what it follows was not seen, and is an error of the GPU."""
    announced = announced_action(str(finding.facts.get("announced_recovery", "")))
    return announced is not None and announced is not Recovery.NONE


def xids_of(finding: Finding) -> frozenset[int]:
    """Every Xid that a finding speaks of."""
    first = xid_of(finding)
    return frozenset(listed_xids(finding)) | (frozenset() if first is None else {first})


def listed_xids(finding: Finding) -> list[int]:
    """The Xids of a burst, in the order of their lines."""
    return [int(code) for code in str(finding.facts.get("codes", "")).split() if code.isdigit()]


def _class_of(code: int) -> Kin:
    classes = (
        (MEMORY_XIDS, Kin.MEMORY),
        (BUS_XIDS, Kin.BUS),
        (LINK_XIDS, Kin.LINK),
        (APPLICATION_XIDS, Kin.APPLICATION),
        (FOLLOWER_XIDS, Kin.FOLLOWER),
    )
    return next((kin for codes, kin in classes if code in codes), Kin.FIRMWARE)


def onset_key(finding: Finding) -> tuple[float, str, str, str]:
    """Orders findings by onset, then by name: the same order whatever order they came in."""
    return (finding.since.t_s, finding.fault, str(finding.subject), finding.detector)


def in_order(finding: Finding, other: Finding) -> tuple[Finding, Finding]:
    """Two findings, the one that began first before the other."""
    return (finding, other) if onset_key(finding) <= onset_key(other) else (other, finding)


def gap_s(earlier: Finding, later: Finding, ongoing: bool) -> float:
    """Seconds between two findings' onsets, or from the last sight of one that goes on to the other's onset."""
    reach_s = earlier.at.t_s if ongoing else earlier.since.t_s
    return max(0.0, later.since.t_s - reach_s)


def causal_key(finding: Finding) -> tuple[int, float, int, tuple[float, str, str, str]]:
    """Orders findings by stage, then the earlier onset, then the more severe."""
    severity = -tuple(Severity).index(finding.severity)
    return (STAGE[kin_of(finding)], finding.since.t_s, severity, onset_key(finding))


def first_cause(findings: Iterable[Finding]) -> Finding:
    """Of findings that belong together, the one that the causal order puts first."""
    return min(findings, key=causal_key)


@dataclass(frozen=True, slots=True)
class Same:
    """Findings of these kin under one `scope` are one fault if the later began within `window_s` of the earlier's
    onset, or, where `ongoing`, of the last time that the earlier was seen."""

    kin: frozenset[Kin]
    scope: SubjectKind
    window_s: float
    ongoing: bool = False


@dataclass(frozen=True, slots=True)
class CauseEffect:
    """`effects` under one `scope` follow from `causes`; the window is counted as in `Same`.

    at_limit: only where the cause, by its own forecast (`eta_low_s`), can have reached its limit within the window.
    """

    causes: frozenset[Kin]
    effects: frozenset[Kin]
    scope: SubjectKind
    window_s: float
    ongoing: bool
    why: str
    at_limit: bool = False


def _kin(*kin: Kin) -> frozenset[Kin]:
    return frozenset(kin)


_GPU, _NODE, _JOB, _POD = SubjectKind.GPU, SubjectKind.NODE, SubjectKind.JOB, SubjectKind.POD
_DAY_S = 86_400.0
SAME: tuple[Same, ...] = (
    # corrected errors, a remapping and the Xid of one failing cell may lie a day apart
    Same(_kin(Kin.MEMORY), _GPU, _DAY_S, ongoing=True),
    Same(HARDWARE, _GPU, 300.0),
    Same(_kin(Kin.BUS, Kin.GONE), _NODE, 120.0),
    Same(_kin(Kin.HOST), _NODE, 600.0, ongoing=True),
    # two supplies of one shelf are one shelf
    Same(_kin(Kin.RACK), _NODE, 600.0, ongoing=True),
    Same(_kin(Kin.LINK), SubjectKind.NVLINK_DOMAIN, 120.0),
    Same(_kin(Kin.LINK), _NODE, 120.0),
    # both ends of one link tell of it; of a switch's links only what begins together is the switch
    Same(_kin(Kin.LINK), SubjectKind.NIC, 600.0, ongoing=True),
    Same(_kin(Kin.LINK, Kin.SWITCH), SubjectKind.SWITCH, 120.0),
    Same(_kin(Kin.THROTTLE), _NODE, 600.0, ongoing=True),
    Same(_kin(Kin.GPU_LEAK), _JOB, 1800.0),
    Same(_kin(Kin.HOST_LEAK), _JOB, 1800.0),
    Same(_kin(Kin.APPLICATION), _JOB, 300.0),
    Same(_kin(Kin.OOM), _JOB, 300.0),
    Same(_kin(Kin.CRASH), _JOB, 600.0, ongoing=True),
    Same(_kin(Kin.NODE), _NODE, 1800.0, ongoing=True),
    Same(_kin(Kin.START), _JOB, 1800.0, ongoing=True),
    Same(_kin(Kin.STALL), _JOB, 1800.0, ongoing=True),
    Same(_kin(Kin.LOSS), _JOB, 1800.0, ongoing=True),
    Same(_kin(Kin.HANG), _JOB, 1800.0, ongoing=True),
    # by rank, not job: two slow ranks of one job are two machines to look at
    Same(_kin(Kin.STRAGGLER), SubjectKind.RANK, 1800.0, ongoing=True),
    Same(_kin(Kin.SOURCE), _NODE, 120.0, ongoing=True),
    Same(_kin(Kin.FOLLOWER), _JOB, 300.0),
    Same(_kin(Kin.ANOMALY), _GPU, 600.0, ongoing=True),
)

_STOPS = _kin(Kin.CRASH, Kin.HANG, Kin.FOLLOWER)
_SLOWS = _kin(Kin.THROTTLE, Kin.STALL, Kin.STRAGGLER)
EFFECTS: tuple[CauseEffect, ...] = (
    CauseEffect(HARDWARE, _kin(Kin.APPLICATION), _GPU, 120.0, False, "the GPU's error killed its process"),
    CauseEffect(HARDWARE, _kin(Kin.GONE, Kin.FOLLOWER), _GPU, 600.0, False, "the GPU went down with its error"),
    CauseEffect(HARDWARE, _kin(Kin.SOURCE), _NODE, 300.0, False, "the driver stopped answering after it"),
    CauseEffect(HARDWARE, _STOPS | {Kin.LOSS}, _JOB, 600.0, False, "the job lost a GPU to it"),
    CauseEffect(_kin(Kin.SWITCH), _kin(Kin.LINK), SubjectKind.SWITCH, 600.0, True, "its switch is down"),
    CauseEffect(
        _kin(Kin.RACK),
        frozenset(Kin) - {Kin.RACK, Kin.SWITCH, Kin.BREAKER, Kin.LEMON, Kin.GPU_LEAK, Kin.HOST_LEAK, Kin.MEMORY},
        *(_NODE, 600.0, True, "a part of its rack failed"),
    ),
    CauseEffect(
        _kin(Kin.HOST),
        _STOPS | {Kin.GONE, Kin.SOURCE, Kin.STALL, Kin.STRAGGLER, Kin.APPLICATION},
        *(_NODE, 600.0, True, "its host fails"),
    ),
    # a monitor on the node says again what the GPU or the host said itself
    CauseEffect(
        HARDWARE | _kin(Kin.HOST, Kin.THROTTLE, Kin.OOM), _kin(Kin.NODE), _NODE, 600.0, True, "its node says so"
    ),
    CauseEffect(
        HARDWARE | _kin(Kin.HOST), _kin(Kin.START), _NODE, 600.0, True, "the node starts no GPU pod after it"
    ),
    CauseEffect(
        _kin(Kin.NODE),
        _STOPS | {Kin.GONE, Kin.SOURCE, Kin.STALL, Kin.STRAGGLER, Kin.START},
        *(_NODE, 600.0, True, "its node fails"),
    ),
    CauseEffect(_kin(Kin.START), _kin(Kin.CRASH, Kin.HANG), _JOB, 1800.0, True, "its pods cannot start"),
    CauseEffect(_kin(Kin.GONE), _STOPS, _JOB, 600.0, False, "the job lost a GPU"),
    # ongoing where the effect lasts as long as its cause; what stops a job does so within minutes of its onset
    CauseEffect(HARDWARE | {Kin.THROTTLE}, _kin(Kin.STRAGGLER), _JOB, 600.0, True, "its GPU runs slower"),
    CauseEffect(_kin(Kin.HOST_LEAK), _kin(Kin.OOM), _POD, 600.0, True, "the leak reached the limit"),
    CauseEffect(_kin(Kin.HOST_LEAK), _kin(Kin.OOM), _NODE, 600.0, True, "the leak filled the host"),
    CauseEffect(_kin(Kin.HOST_LEAK), _STOPS, _JOB, 600.0, True, "the leak stopped a rank", at_limit=True),
    CauseEffect(
        _kin(Kin.GPU_LEAK),
        _STOPS | {Kin.APPLICATION},
        *(_JOB, 600.0, True, "a rank ran out of GPU memory", True),
    ),
    CauseEffect(_kin(Kin.APPLICATION), _STOPS, _JOB, 600.0, False, "a rank crashed"),
    CauseEffect(_kin(Kin.APPLICATION), _STOPS, _GPU, 600.0, False, "its process crashed"),
    CauseEffect(_kin(Kin.OOM), _STOPS, _JOB, 600.0, False, "a rank was killed"),
    CauseEffect(_kin(Kin.LOSS), _kin(Kin.CRASH), _JOB, 600.0, True, "the job gave up on it"),
    CauseEffect(_kin(Kin.CRASH), _kin(Kin.HANG, Kin.FOLLOWER), _JOB, 600.0, True, "the job ended"),
    CauseEffect(_kin(Kin.STALL), _kin(Kin.STRAGGLER, Kin.HANG), _JOB, 600.0, True, "the step waits for data"),
    CauseEffect(_kin(Kin.STRAGGLER), _kin(Kin.HANG), _JOB, 600.0, True, "one rank holds the others up"),
    CauseEffect(_kin(Kin.SOURCE), _kin(Kin.GONE, Kin.HANG), _NODE, 600.0, True, "it cannot be observed"),
    CauseEffect(_kin(Kin.SOURCE), _kin(Kin.HANG), _JOB, 600.0, True, "its steps cannot be observed"),
    CauseEffect(_kin(*Kin) - _kin(Kin.ANOMALY), _kin(Kin.ANOMALY), _GPU, 900.0, True, "it disturbs this"),
    # what slows a job, or fills a rank's memory, changes no number of another rank
    CauseEffect(
        _kin(*Kin) - _SLOWS - _kin(Kin.ANOMALY, Kin.GPU_LEAK, Kin.HOST_LEAK),
        *(_kin(Kin.ANOMALY), _JOB, 900.0, True, "it disturbs this"),
    ),
)

# Caused in many places by what they share (a switch, cooling, storage); leaks, losses and crashes are jobs' own.
STORMY = frozenset(Kin) - {Kin.BREAKER, Kin.LEMON, Kin.GPU_LEAK, Kin.HOST_LEAK, Kin.APPLICATION, Kin.OOM, Kin.LOSS}


class FindingPlaces:
    """Where findings stand: the subjects of each kind that a finding touches, by inventory at its onset (or, where
    the inventory did not reach back so far, when it was last seen). Remembers its answers; one per call."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._known: dict[tuple[Subject, float, float, str], frozenset[Subject]] = {}

    def of(self, finding: Finding) -> frozenset[Subject]:
        covers = str(finding.facts.get("covers", ""))
        key = (finding.subject, finding.since.t_s, finding.at.t_s, covers)
        if key not in self._known:
            found = self._touched(finding.subject, finding.since.t_s, finding.at.t_s)
            for text in covers.replace(",", " ").split():
                try:
                    found |= self._touched(Subject.parse(text), finding.since.t_s, finding.at.t_s)
                except ValueError:
                    continue  # not a subject's name: the detector's free text covers nothing that we know
            self._known[key] = frozenset(found)
        return self._known[key]

    def scoped(self, finding: Finding, scope: SubjectKind) -> frozenset[Subject]:
        """The subjects of that kind that the finding touches; its own subject where none is known."""
        return frozenset(s for s in self.of(finding) if s.kind is scope) or frozenset({finding.subject})

    def _touched(self, subject: Subject, since_s: float, at_s: float) -> set[Subject]:
        """As known at the onset; where no job was there then, shortly before it (a crash empties the GPU at once),
        and where nothing was known so early, when the finding was last seen."""
        told = [self._around(subject, t_s) for t_s in (since_s, since_s - BEFORE_CRASH_S, at_s)]
        busy = [found for found in told if any(s.kind is SubjectKind.JOB for s in found)]
        return next((found for found in [*busy, *told] if len(found) > 1), {subject})

    def _around(self, subject: Subject, at_s: float) -> set[Subject]:
        found = set(self._inventory.ancestors(subject, at_s))
        if subject.kind in _HOLDERS:
            pods = {subject, *found, *self._inventory.below(subject, SubjectKind.POD, at_s)}
            held = {gpu for s in pods if s.kind in _HOLDERS[:3] for gpu in self._inventory.gpus(s, at_s)}
            found |= held | {s for s in pods if s.kind is SubjectKind.POD}
            for child in found & (held | pods):
                found |= {s for s in self._inventory.ancestors(child, at_s) if s.kind in _HOUSING}
        here = [s for s in found if s.kind is SubjectKind.POD]
        return found | {r for s in here for r in self._inventory.children(s, at_s, SubjectKind.RANK)}


# A crash empties the GPU before anything is logged or scraped of it: the job is still there this long before.
BEFORE_CRASH_S = 60.0
_HOLDERS = (SubjectKind.POD, SubjectKind.RANK, SubjectKind.CONTAINER, SubjectKind.JOB)
_HOUSING = (SubjectKind.NODE, SubjectKind.RACK, SubjectKind.NVLINK_DOMAIN)
