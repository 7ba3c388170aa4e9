"""What correlation takes and gives: what it has to know of incidents, and what it decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nightshift.agent.correlation.kinship import STAGE, first_cause, kin_of
from nightshift.agent.store.incident import IncidentState
from nightshift.controllers.guard import Commitment
from nightshift.detectors.base import Finding, Severity

# An effect may be dated this much before its cause: clocks and scrapes differ by as much.
SLACK_S = 60.0
# A fault that returns within this time re-opens its incident, with what was tried in it.
RELAPSE_S = 1800.0
# How long after its end a Nightshift action can still cause findings: a reboot's late links and pods.
SETTLE_S = 600.0
# Time between two writes of a finding that continues: each write is a row of the store.
REFRESH_S = 60.0
# Onsets within this time can be one storm: detectors of one cause differ by their own delays.
STORM_S = 120.0
# From this many places in one rack or NVLink domain on: three can be chance.
STORM_FAULTS = 4
# From this many places in the cluster on: more than one rack's storm.
STORM_CLUSTER = 8


class AlarmVerdict(StrEnum):
    """What is known of an incident's alarms."""

    OPEN = "open"
    TRUE = "true"
    """Nightshift acted on it, which a person or a policy approved."""
    FALSE = "false"
    """A person says that it is not a fault."""
    WENT_ON = "went on"
    """It cleared by itself and no one acknowledged it: false, unless one of its alarms is a fact."""


@dataclass(frozen=True)
class KnownIncident:
    """What the correlator needs of a stored incident: its findings as last stored (cleared ones too), when it was
    resolved and by whom, when our last action on it began (Unix s; None = not), and the actions that were begun."""

    id: str
    state: IncidentState
    findings: tuple[Finding, ...]
    opened_s: float
    resolved_s: float | None = None
    acted_s: float | None = None
    begun: tuple[Commitment, ...] = ()
    verdict: AlarmVerdict = AlarmVerdict.OPEN

    @property
    def resolved(self) -> bool:
        return self.state is IncidentState.RESOLVED


class DecisionVerb(StrEnum):
    OPEN = "open"
    ATTACH = "attach"
    REOPEN = "reopen"
    UPDATE = "update"
    IGNORE = "ignore"


@dataclass(frozen=True)
class CorrelationDecision:
    """What to do with findings, and why. `incident_id` is None for OPEN and IGNORE. `cause` is the first cause of
    these findings; `news` says that the incident has to be diagnosed again: its first cause is now another, or an
    event says more than it did (a further Xid, an announced recovery action)."""

    verb: DecisionVerb
    findings: tuple[Finding, ...]
    reason: str
    incident_id: str | None = None
    news: bool = False
    louder: bool = False
    """A finding came into a more urgent lane: whoever notifies people looks again."""

    @property
    def cause(self) -> Finding:
        return first_cause(self.findings)

    @property
    def severity(self) -> Severity:
        order = tuple(Severity)
        return max((f.severity for f in self.findings), key=order.index)


@dataclass(eq=False)  # a group is itself: two with the same findings may still go to two incidents
class Group:
    """Findings of one fault on their way to an incident: a known one, or a new one (`incident` None)."""

    findings: list[Finding]
    incident: KnownIncident | None = None
    reason: str = ""
    storm: bool = False

    @property
    def stage(self) -> int:
        return min(STAGE[kin_of(f)] for f in self.findings)
