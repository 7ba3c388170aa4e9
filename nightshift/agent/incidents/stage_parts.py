"""What the stages of an incident work with: settings, and what diagnoses, plans, guards and probes for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pydantic import BaseModel, ConfigDict, Field

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.clock import Clock
from nightshift.agent.store.diagnosis import Diagnosis
from nightshift.agent.store.incident import Incident
from nightshift.agent.store.incident_store import Store
from nightshift.controllers.action import Action, Actuator, Outcome, Proposal
from nightshift.controllers.guard import Commitment, Ruling

if TYPE_CHECKING:
    from nightshift.agent.incidents.node_return import GivingBack


# Wait before a stage's second try; it doubles each time.
RETRY_S = 5.0
# Longest wait between two tries of a stage: an API server that is back is used within it.
RETRY_MAX_S = 300.0
# Stages that run at the same time. They wait for other systems, and the guard limits actions anyhow.
WORKERS = 4


class LifecycleSettings(BaseModel):
    """Settings of the incident's way. Times are in the daemon's clock."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    quiet_s: float = Field(
        default=120.0,
        ge=0,
        description="Every finding has to stay clear for so long before it is resolved.",
    )
    confirm_timeout_s: float = Field(
        default=1800.0, gt=0, description="After an action, how long to wait for recovery before undoing it."
    )
    act_timeout_s: float = Field(
        default=3600.0,
        gt=0,
        description="A drain, restart or reboot that is still under way after this is given to a person.",
    )
    max_plans: int = Field(default=5, ge=1, description="Plans for one incident before a person has to take over.")
    max_tries: int = Field(default=5, ge=1, description="Tries of one stage before the incident is escalated.")


class Diagnose(Protocol):
    """Finds the cause of an incident. May raise Temporary or Permanent."""

    def __call__(self, incident: Incident) -> Diagnosis: ...


class Plan(Protocol):
    """Chooses the least disruptive fitting mitigation, with a new action id for each `incident.attempt`."""

    def __call__(self, incident: Incident) -> Proposal: ...


class Probe(Protocol):
    """Actively tests that the action worked: DONE where it did, FAILED where not; UnderWay to be asked again."""

    def __call__(self, incident: Incident) -> Outcome: ...


class Guard(Protocol):
    """Whether an action may begin now, given those that have: asked in the transaction that stores the intent."""

    def __call__(self, action: Action, begun: Sequence[Commitment]) -> Ruling: ...


@dataclass(frozen=True)
class Parts:
    """What the stages work with; built once in `agent.app`."""

    store: Store
    gate: Gate
    clock: Clock
    diagnose: Diagnose
    plan: Plan
    actuator_for: Callable[[Incident], Actuator]
    settings: LifecycleSettings
    probe: Probe | None = None
    guard: Guard | None = None
    not_earned: Callable[[Action], str] | None = None
    """Why a kind that is automatic by policy has not earned it yet; empty where it has."""
    giving_back: GivingBack | None = None
    """When a node that we cordoned or drained is given back; None: it is left to people, and nobody is told."""
