"""How an alarm reaches people: page, ticket or digest. Every alarm opens or joins an incident; this is the only
thing that is rationed.

One table decides (`LANES`), by how sure the alarm is (`Proof`) and what waiting for it costs (`Haste`). The cost is
counted, not taken from the detector's word: GPU-hours lost per hour of waiting. Only of a proven fault the
detector's "critical" counts, since there it is a catalogue's word (of Xids, of crash causes) and not a score's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.base import Fault, Finding, Severity


class Lane(StrEnum):
    """How people are notified, the most urgent last."""

    DIGEST = "digest"
    """Listed in one channel message a day."""
    TICKET = "ticket"
    """A channel message of its own that pings no one."""
    PAGE = "page"


ORDER = tuple(Lane)


class Proof(StrEnum):
    """How sure an alarm is."""

    FACT = "fact"
    """Hardware, kernel, Kubernetes or the job's own log says so."""
    NEAR_FACT = "near-fact"
    """Seen rather than inferred (`is_near_fact`)."""
    RARE = "rare"
    """Statistical; so few false alarms are as strong that its detector's share of the budget allows a page."""
    COMMON = "common"
    """Statistical; too many false alarms are as strong, or too many pages were false."""
    NOISY = "noisy"
    """Its detector alarms far more often than it states."""
    UNMEASURED = "unmeasured"
    """Statistical; its false-alarm rate was not measured on this population."""


class Haste(StrEnum):
    """What waiting for the next working day costs."""

    NOW = "now"
    SOON = "soon"
    LATER = "later"


_P, _H, _L = Proof, Haste, Lane
LANES: Mapping[Proof, Mapping[Haste, Lane]] = {
    _P.FACT: {_H.NOW: _L.PAGE, _H.SOON: _L.TICKET, _H.LATER: _L.TICKET},
    _P.NEAR_FACT: {_H.NOW: _L.PAGE, _H.SOON: _L.TICKET, _H.LATER: _L.TICKET},
    _P.RARE: {_H.NOW: _L.PAGE, _H.SOON: _L.TICKET, _H.LATER: _L.TICKET},
    _P.COMMON: {_H.NOW: _L.TICKET, _H.SOON: _L.TICKET, _H.LATER: _L.DIGEST},
    _P.NOISY: {_H.NOW: _L.TICKET, _H.SOON: _L.TICKET, _H.LATER: _L.DIGEST},
    _P.UNMEASURED: {_H.NOW: _L.TICKET, _H.SOON: _L.TICKET, _H.LATER: _L.DIGEST},
}
_FACTS = ("lane", "lane_reason", "proof")
"""Facts of a finding that is no page: how it is notified, why, and how sure it is."""
PROVEN = frozenset({Proof.FACT, Proof.NEAR_FACT})
DOUBTFUL = frozenset({Proof.COMMON, Proof.NOISY})
"""Nothing runs automatically on such an alarm alone."""

PAGE_COST = 8.0
"""GPU-hours lost per hour of waiting from which a person is woken: a node of eight GPUs that stands. Until the next
working day that is some 64 GPU-hours, about what an engineer's interrupted night costs."""
DIGEST_COST = 0.1
"""Below this, the wait until the next working day costs less than one GPU-hour."""
SLOWED = 0.1
"""Share of the work that a fault costs which neither stops the work nor states a share."""
REDO_S = 3600.0
"""What a job repeats that ends by a full memory: its restart and the steps since its checkpoint. A leak that leaves
more time than that can wait: it pages when so much is left."""
REACT_S = 600.0
"""In less than this no one who is woken can act. What ends then is a fact, which pages by itself
(docs/decisions/042)."""
STOPS = frozenset(
    {
        Fault.HANG,
        Fault.LOSS_DIVERGED,  # every step since is thrown away
        Fault.LOSS_NONFINITE,
        Fault.JOB_CRASH,
        Fault.OOM_KILL,
        Fault.POD_START,
        Fault.XID,
        Fault.GPU_LOST,
        Fault.DRIVER_ERROR,
        Fault.NODE_CONDITION,
    }
)
"""Faults whose GPUs do no useful work until somebody acts."""
NEAR_FACTS = frozenset({Fault.HANG, Fault.LOSS_NONFINITE, Fault.LOSS_DIVERGED})
"""What is seen rather than inferred: no step for much longer than this run's longest while its GPUs hold memory, a
loss that is no number or has left its band for good. Where its detector was measured, it pages whatever the budget
holds."""


def is_near_fact(finding: Finding) -> bool:
    """Whether an alarm is one of NEAR_FACTS, or a memory that is about to be full (`memory.leak`)."""
    return finding.fault in NEAR_FACTS or "pages_because" in finding.facts


def lost_share(finding: Finding) -> float:
    """Share of the touched GPUs' work that is lost while the fault waits, 0 to 1.

    What the detector measured counts first; then how soon a leak ends the job; then the kind of the fault.
    """
    measured, eta_s = _figure(finding, "lost_share"), _figure(finding, "eta_s")
    if math.isfinite(measured):
        return min(max(measured, 0.0), 1.0)
    if math.isfinite(eta_s):
        return REDO_S / max(eta_s, REDO_S)
    return 1.0 if finding.fault in STOPS else SLOWED


def _figure(finding: Finding, name: str) -> float:
    value = finding.facts.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def can_wait(finding: Finding) -> bool:
    """Whether a page for a leak would come too early, or too late, to save anything."""
    eta_s = _figure(finding, "eta_s")
    return math.isfinite(eta_s) and not REACT_S <= eta_s <= REDO_S


class WaitingGpus:
    """GPUs that wait for a fault, at one time. Of a job all wait, since its ranks step together."""

    _HOLDERS = (SubjectKind.JOB, SubjectKind.SERVER, SubjectKind.POD)

    def __init__(self, inventory: Inventory, at_s: float) -> None:
        self._inventory, self._at_s = inventory, at_s
        # a thousand alarms of one job must not walk its thousand GPUs a thousand times
        self._sizes: dict[Subject, int] = {}

    def gpus(self, subject: Subject) -> int:
        """How many GPUs do less while this subject is at fault; 0 where none is known."""
        holder = self._holder(subject)
        if holder is not None:
            return self._size(holder)
        # a node, or a GPU that nobody holds: whoever holds one of its GPUs waits whole
        own = self._inventory.gpus(subject, self._at_s)
        holders = {holder for gpu in own if (holder := self._holder(gpu)) is not None}
        return max(sum(map(self._size, holders)), len(own))

    def _holder(self, subject: Subject) -> Subject | None:
        """Whoever uses a subject as a whole: its job, else its server, else its pod."""
        return next((s for s in self._inventory.nearest(subject, self._HOLDERS, self._at_s) if s is not None), None)

    def _size(self, holder: Subject) -> int:
        if holder not in self._sizes:
            gpus = len(self._inventory.gpus(holder, self._at_s))
            # a job that only its log tells of: a rank has a GPU
            ranks = len(self._inventory.below(holder, SubjectKind.RANK, self._at_s)) if not gpus else 0
            self._sizes[holder] = gpus or ranks
        return self._sizes[holder]


def haste_of(finding: Finding, proof: Proof, gpus: int) -> Haste:
    """How long a fault may wait that `gpus` GPUs wait for. Where no GPU is known, its cost is unknown: soon."""
    cost = gpus * lost_share(finding)
    # that a loss is out of its band is inferred, and only its cost makes it urgent
    critical = finding.severity is Severity.CRITICAL and finding.fault is not Fault.LOSS_DIVERGED
    if (critical and proof in PROVEN) or (cost >= PAGE_COST and not can_wait(finding)):
        return Haste.NOW
    return Haste.SOON if cost >= DIGEST_COST or not gpus else Haste.LATER


def lane_of(finding: Finding) -> Lane:
    """The lane of a weighed finding."""
    written = finding.facts.get("lane")
    if written is not None:
        return Lane(str(written))
    return Lane.PAGE if finding.pages else Lane.TICKET


def proof_of(finding: Finding) -> Proof | None:
    """How sure a weighed finding is; None where nothing weighed it."""
    written = finding.facts.get("proof")
    return Proof(str(written)) if written else None


def in_lane(finding: Finding, lane: Lane, proof: Proof | None = None, reason: str = "") -> Finding:
    """The finding with its lane written; a page has no reason to state."""
    facts = {name: value for name, value in finding.facts.items() if name not in _FACTS}
    if lane is not Lane.PAGE:
        facts |= dict(zip(_FACTS, (str(lane), reason, str(proof or "")), strict=True))
    return replace(finding, facts=facts, pages=lane is Lane.PAGE)


def at_least(finding: Finding, stored: Finding) -> Finding:
    """The finding in the lane that it had before, where that was more urgent: nobody is paged back."""
    if ORDER.index(lane_of(finding)) >= ORDER.index(lane_of(stored)):
        return finding
    kept = {name: stored.facts[name] for name in _FACTS if name in stored.facts}
    plain = {name: value for name, value in finding.facts.items() if name not in _FACTS}
    return replace(finding, facts=plain | kept, pages=stored.pages)


def widest(findings: Iterable[Finding]) -> Lane:
    """The lane of an incident: that of its most urgent alarm; page where it has none."""
    return max(map(lane_of, findings), key=ORDER.index, default=Lane.PAGE)


def doubtful(findings: Iterable[Finding]) -> bool:
    """Whether an incident rests on doubtful alarms alone."""
    proofs = [proof_of(finding) for finding in findings]
    return bool(proofs) and all(proof in DOUBTFUL for proof in proofs)
