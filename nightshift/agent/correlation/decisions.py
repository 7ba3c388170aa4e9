"""What correlation takes and gives: its settings, what it has to know of incidents, and what it decides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from nightshift.agent.correlation.kinship import STAGE, first_cause, kin_of
from nightshift.agent.store.incident import IncidentState
from nightshift.controllers.guard import Commitment
from nightshift.detectors.base import Finding, Severity


class Settings(BaseModel):
    """How findings are joined into incidents."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    slack_s: float = Field(default=60.0, ge=0, description="An effect may be dated this much before its cause (s)")
    relapse_s: float = Field(
        default=1800.0, ge=0, description="A fault that returns within this time re-opens its incident"
    )
    settle_s: float = Field(
        default=600.0, ge=0, description="How long after its end a Nightshift action can still cause findings (s)"
    )
    refresh_s: float = Field(
        default=60.0, gt=0, description="Time between two writes of a finding that continues (s)"
    )
    storm_s: float = Field(default=120.0, ge=0, description="Onsets within this time can be one storm (s)")
    storm_faults: int = Field(
        default=4, ge=2, description="From this many places in one rack or NVLink domain on: a storm"
    )
    storm_cluster: int = Field(default=8, ge=2, description="From this many places in the cluster on: a storm")


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

    @property
    def cause(self) -> Finding:
        return first_cause(self.findings)

    @property
    def severity(self) -> Severity:
        order = tuple(Severity)
        return max((f.severity for f in self.findings), key=order.index)


@dataclass
class Group:
    """Findings of one fault on their way to an incident: a known one, or a new one (`incident` None)."""

    findings: list[Finding]
    incident: KnownIncident | None = None
    reason: str = ""
    storm: bool = False

    @property
    def stage(self) -> int:
        return min(STAGE[kin_of(f)] for f in self.findings)
