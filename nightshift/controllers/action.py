"""What may be done to the world: an Action is a plan that a person can read, approve, and see undone.

A plan's hash covers everything that was shown to the approver. An approval binds to the hash, so a plan that
changes in any way needs a new approval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from nightshift.collectors.base import Temporary
from nightshift.collectors.seal import fingerprint
from nightshift.collectors.subject import Inventory, Subject
from nightshift.detectors.base import Fault, Finding


class ActionKind(StrEnum):
    """The mitigation catalogue, least disruptive first. Free text never becomes an action."""

    NONE = "none"
    OBSERVE = "observe"
    NOTIFY_OWNER = "notify_owner"
    SUGGEST_SCALING = "suggest_scaling"
    """Say who owns a Deployment's replica count and what to change there; never change it."""
    RESTART_JOB = "restart_job"
    """Stop the whole gang once and start it from its last good checkpoint, on the same or other nodes."""
    RESTART_POD = "restart_pod"
    QUARANTINE_GPU = "quarantine_gpu"
    TAINT = "taint"
    """Keep off a node what does not tolerate its fault."""
    CORDON = "cordon"
    UNCORDON = "uncordon"
    RETURN_NODE = "return_node"
    """Probe a node that we cordoned or drained, once its fault is gone, and uncordon it where the probe passes."""
    DRAIN = "drain"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    OPEN_RMA = "open_rma"
    KERNEL_JOB = "kernel_job"
    """Take one free GPU, exclusively and preemptibly, for a kernel search."""
    PROMOTE_KERNEL = "promote_kernel"
    """Let jobs use a certified kernel: first a few (canary), then all."""
    PROMOTE_POLICY = "promote_policy"
    """Let a learned policy act a step further: shadow, trial, canary, active."""


STOPPED_GPUS = "stopped_gpus"
"""A parameter of plans that stop jobs: how many GPUs these hold, wherever they are."""


@dataclass(frozen=True, slots=True)
class BlastRadius:
    """Who feels it: what stops, and what it costs whether or not we act (GPU-hours; NaN = not known)."""

    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    cost_gpu_hours: float = float("nan")
    cost_of_waiting_gpu_hours: float = float("nan")
    note: str = ""


@dataclass(frozen=True, slots=True)
class Undo:
    """How the action is taken back, or `possible=False` and why it cannot be."""

    possible: bool
    how: str
    kind: ActionKind | None = None


@dataclass(frozen=True, slots=True)
class Precondition:
    """A fact of the world that the plan rests on; read again right before acting."""

    subject: Subject
    fact: str
    expected: str


@dataclass(frozen=True, slots=True)
class Action:
    """One step on the world. `id` is the idempotency key: the same id is never carried out twice."""

    id: str
    kind: ActionKind
    target: Subject
    why: str
    blast_radius: BlastRadius
    undo: Undo
    expires_at_s: float
    params: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    preconditions: tuple[Precondition, ...] = ()
    needs_approval: bool = True

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; figures that are not known are null."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    @property
    def plan_sha256(self) -> str:
        """The hash that an approval binds to: over every field above."""
        return fingerprint(self.to_json())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


class OutcomeStatus(StrEnum):
    DONE = "done"
    ALREADY_DONE = "already_done"
    NOT_DONE = "not_done"
    UNDER_WAY = "under_way"
    """Begun and not done, as read back: it has to be carried on, whatever the preconditions say now."""
    UNKNOWN = "unknown"
    """The world cannot tell whether it happened: a person must look."""
    REFUSED = "refused"
    FAILED = "failed"


class UnderWay(Temporary):
    """The action has begun and goes on by itself; asking again finds out how far it is, and is no failed try."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an action, as read back from the world. `observed` holds the facts that were read."""

    status: OutcomeStatus
    detail: str
    at_s: float
    observed: Mapping[str, str] = field(default_factory=dict)

    @property
    def left_cordoned(self) -> bool:
        """Whether what failed half-way has left its node out of use, by its own word."""
        return self.status is OutcomeStatus.FAILED and self.observed.get("cordoned") == "true"


@runtime_checkable
class Actuator(Protocol):
    """Changes the world. Only classes of `controllers.actuators` fulfil this.

    Every method may raise `collectors.base.Temporary` (the caller retries) or `Permanent` (said to a person);
    `execute` raises `UnderWay` while what it began goes on.
    """

    @property
    def name(self) -> str: ...

    def kinds(self) -> frozenset[ActionKind]:
        """The kinds that this actuator carries out."""
        ...

    def changed(self, action: Action) -> list[str]:
        """The preconditions that no longer hold, each as a sentence; empty where the plan still stands."""
        ...

    def execute(self, action: Action) -> Outcome:
        """Carries the action out under `action.id`; a repeat with the same id finds it already done."""
        ...

    def read(self, action: Action) -> Outcome:
        """Reads whether the action has happened: DONE, UNDER_WAY, NOT_DONE or UNKNOWN. Changes nothing."""
        ...

    def undo(self, action: Action) -> Outcome:
        """Takes a done action back, where `action.undo.possible`."""
        ...


@dataclass(frozen=True)
class Situation:
    """What a playbook may look at. `cause` is the diagnosed first cause (`Fault`), not free text."""

    incident_id: str
    cause: Fault
    subject: Subject
    findings: tuple[Finding, ...]
    inventory: Inventory
    at_s: float
    facts: Mapping[str, str | float] = field(default_factory=dict)
    """Such as `recovery_action` of Xid 154, `job_gpus`, `last_checkpoint_step`, `onset_step`."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A playbook's answer: an action, or None; either way with the reason. `refused`: something would fit, but the
    guard does not let it happen, so a person has to look."""

    action: Action | None
    reason: str
    refused: bool = False


@runtime_checkable
class Playbook(Protocol):
    """Decides purely whether, and how, its mitigation fits a situation."""

    @property
    def kind(self) -> ActionKind: ...

    def propose(self, situation: Situation) -> Proposal: ...
