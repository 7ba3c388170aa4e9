"""What may be done to the world: an Action is a plan that a person can read, approve, and see undone.

`KINDS` is the one table of action kinds. Guard, approval policy, correlation, actuators and pages read it; a kind
without a row is refused by all of them.

A plan's hash covers everything that was shown to the approver. An approval binds to the hash, so a plan that
changes in any way needs a new approval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from nightshift.collectors.base import Temporary
from nightshift.collectors.seal import fingerprint
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
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
    DRAIN_RACK = "drain_rack"
    """Drain the nodes of one rack that a failed part of it serves, in one plan."""
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    START_MAINTENANCE = "start_maintenance"
    """Have the cloud do the maintenance of a machine now that it announced for later."""
    REPLACE_NODE = "replace_node"
    """Drain a node and give its machine back to what made it, which makes another."""
    OPEN_RMA = "open_rma"
    KERNEL_JOB = "kernel_job"
    """Take one free GPU, exclusively and preemptibly, for a kernel search."""
    PROMOTE_KERNEL = "promote_kernel"
    """Let jobs use a certified kernel: first a few (canary), then all."""
    PROMOTE_POLICY = "promote_policy"
    """Let a learned policy act a step further: shadow, trial, canary, active."""


class ApprovalRule(StrEnum):
    """How many people an action needs."""

    AUTOMATIC = "automatic"
    ONE = "one"
    TWO = "two"
    """Two different people, neither of whom asked for it."""
    NEVER = "never"
    """Shown as advice; carried out by hand."""


@dataclass(frozen=True, slots=True)
class Consequence:
    """A finding that an action can cause: this fault, joined to the action by a subject of the kind `through`.

    An Xid counts only if all of its codes are among `codes`.
    """

    fault: Fault
    through: SubjectKind
    codes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ActionTraits:
    """All that the rest of Nightshift has to know of one kind of action. The defaults are the strict side."""

    targets: frozenset[SubjectKind]
    does: str
    """For people, after "Plan:"."""
    changes: tuple[tuple[str, str, str], ...] = ()
    """What differs at the target: (what, before, after)."""
    harmless: bool = False
    """Changes nothing in the cluster, so the guard has nothing to count."""
    takes_capacity: bool = False
    cordons: bool = False
    gives_back_itself: bool = False
    """Ends by giving back the node that it cordoned."""
    gives_back: bool = False
    """Takes back what an earlier action cordoned."""
    contains: bool = False
    """Taking it back while the fault is there would put the fault back to work."""
    stops_jobs: bool = False
    approval: ApprovalRule = ApprovalRule.ONE
    """Without a rule of the operator's. AUTOMATIC holds only for a plan that asks for no approval."""
    least_approval: ApprovalRule = ApprovalRule.AUTOMATIC
    """No setting makes it laxer than this."""
    fresh_sign_in: bool = False
    evidence: bool = False
    """Destroys what the vendor will ask for, or asks the vendor: that is collected first, where it can be."""
    repairs: frozenset[Fault] = frozenset()
    """Faults that it can repair or contain."""
    order: int | None = None
    """Its place among the remedies of a fault; None: no remedy that is tried by itself."""
    rung: int | None = None
    """Its place on the ladder of hardware repairs; None: not on it."""
    rights: tuple[str, ...] | None = None
    """What it needs on Kubernetes, as `kubectl auth can-i` writes it; None: nothing there carries it out."""
    own_rights: tuple[str, ...] = ()
    """What it needs beside that in the one namespace where Jobs of ours run."""
    causes: tuple[Consequence, ...] = ()


WHOLE_JOBS = "whole jobs"
"""The right to stop and start jobs of every kind; `controllers.actuators.kube_rights` lists the resources."""
_CORDONING = ("get patch nodes",)
_EMPTYING = ("get patch nodes", "list pods", "create pods/eviction", WHOLE_JOBS)
_A, _F, _K = ActionKind, Fault, SubjectKind
_ENDS_A_PROCESS = frozenset({43, 45})
"""Xids that the driver logs for a process that was stopped, whoever stopped it."""
_STOPS_A_JOB = (
    Consequence(_F.HANG, _K.JOB),
    Consequence(_F.JOB_CRASH, _K.JOB),
    Consequence(_F.XID, _K.JOB, _ENDS_A_PROCESS),
    Consequence(_F.SOURCE_LOST, _K.JOB),
)
_RESTARTS_THE_DRIVER = (
    *_STOPS_A_JOB,
    Consequence(_F.XID, _K.NODE, _ENDS_A_PROCESS | {154}),
    Consequence(_F.GPU_LOST, _K.NODE),
    Consequence(_F.SOURCE_LOST, _K.NODE),
)
_MEMORY = frozenset({_F.HBM_IMMINENT, _F.HBM_DEGRADED})
_DEGRADED = frozenset({_F.NVLINK_DEGRADED, _F.PCIE_DEGRADED, _F.NETWORK_DEGRADED, _F.THROTTLE})
_LEAKS = frozenset({_F.GPU_MEMORY_LEAK, _F.HOST_MEMORY_LEAK})

KINDS: Mapping[ActionKind, ActionTraits] = {
    _A.NONE: ActionTraits(frozenset(_K), "nothing", harmless=True, approval=ApprovalRule.AUTOMATIC),
    _A.OBSERVE: ActionTraits(frozenset(_K), "watch", harmless=True, approval=ApprovalRule.AUTOMATIC),
    _A.NOTIFY_OWNER: ActionTraits(
        frozenset({_K.JOB, _K.POD, _K.NODE, _K.GPU}),
        "tell the owner",
        harmless=True,
        approval=ApprovalRule.AUTOMATIC,
    ),
    _A.SUGGEST_SCALING: ActionTraits(
        frozenset({_K.JOB}),
        "suggest more replicas",
        harmless=True,
        approval=ApprovalRule.AUTOMATIC,
        rights=("get replicasets.apps", "get deployments.apps", "list horizontalpodautoscalers.autoscaling"),
    ),
    _A.RESTART_JOB: ActionTraits(
        frozenset({_K.JOB}),
        "restart the job once",
        (("its processes", "run on", "stopped once, started from the checkpoint"),),
        stops_jobs=True,
        repairs=_LEAKS | {_F.LOSS_DIVERGED, _F.LOSS_NONFINITE, _F.DATA_STALL, _F.HANG},
        order=2,
        rights=("list pods", WHOLE_JOBS),
        causes=_STOPS_A_JOB,
    ),
    _A.RESTART_POD: ActionTraits(
        frozenset({_K.POD}),
        "restart the pod",
        (("its processes", "run on", "restarted"),),
        repairs=_LEAKS,
        order=1,
        rights=("get patch delete pods", "get jobs.batch"),
        causes=(
            Consequence(_F.HANG, _K.POD),
            Consequence(_F.XID, _K.POD, _ENDS_A_PROCESS),
            Consequence(_F.SOURCE_LOST, _K.POD),
        ),
    ),
    _A.QUARANTINE_GPU: ActionTraits(
        frozenset({_K.GPU}),
        "take the GPU out of use",
        (("is offered to jobs", "yes", "no"), ("its node takes new pods", "yes", "no")),
        takes_capacity=True,
        contains=True,
        evidence=True,
        repairs=_MEMORY | {_F.XID},
        order=5,
        rights=("get list patch nodes",),
        causes=_STOPS_A_JOB,  # its job moves off it, by our hand or by its own
    ),
    _A.TAINT: ActionTraits(
        frozenset({_K.NODE}),
        "taint the node",
        (("tolerates every pod", "yes", "no"),),
        takes_capacity=True,
        contains=True,
        repairs=_DEGRADED | {_F.GPU_LOST, _F.DRIVER_ERROR, _F.HOST_ERROR, _F.NODE_CONDITION},
        order=9,
        rights=_CORDONING,
    ),
    _A.CORDON: ActionTraits(
        frozenset({_K.NODE}),
        "cordon the node",
        (("takes new pods", "yes", "no"),),
        takes_capacity=True,
        cordons=True,
        contains=True,
        repairs=_DEGRADED | {_F.GPU_LOST, _F.DRIVER_ERROR, _F.HOST_ERROR, _F.NODE_CONDITION},
        order=8,
        rights=_CORDONING,
    ),
    _A.UNCORDON: ActionTraits(
        frozenset({_K.NODE}),
        "uncordon the node",
        (("takes new pods", "no", "yes"),),
        gives_back=True,
        rights=_CORDONING,
    ),
    _A.RETURN_NODE: ActionTraits(
        frozenset({_K.NODE}),
        "probe the node and, where that passes, uncordon it",
        (("takes new pods", "no", "yes, where the probe passes"),),
        gives_back=True,
        least_approval=ApprovalRule.ONE,  # whether the hardware was repaired, only people know
        rights=_CORDONING,
        own_rights=("get create jobs.batch", "list pods"),
    ),
    _A.DRAIN: ActionTraits(
        frozenset({_K.NODE}),
        "drain the node",
        (("takes new pods", "yes", "no"), ("its jobs", "run here", "stop whole and start elsewhere")),
        takes_capacity=True,
        cordons=True,
        contains=True,
        stops_jobs=True,
        repairs=_DEGRADED | {_F.NODE_CONDITION},
        order=6,
        rights=_EMPTYING,
        causes=_STOPS_A_JOB,
    ),
    _A.DRAIN_RACK: ActionTraits(
        frozenset({_K.RACK}),
        "drain the nodes of the rack that its failed part serves",
        (("take new pods", "yes", "no"), ("their jobs", "run here", "stop whole and start elsewhere")),
        takes_capacity=True,
        cordons=True,
        contains=True,
        stops_jobs=True,
        least_approval=ApprovalRule.ONE,  # up to a whole rack: its breaker is a person
        repairs=_DEGRADED
        | {_F.XID, _F.GPU_LOST, _F.DRIVER_ERROR, _F.HOST_ERROR, _F.NODE_CONDITION, _F.PART_FAILED, _F.SOURCE_LOST},
        order=0,
        # its steps are drains, and need what those need
        causes=_STOPS_A_JOB,
    ),
    _A.RESET_GPU: ActionTraits(
        frozenset({_K.GPU}),
        "reset the GPU",
        (("GPU state", "as it is", "reset, empty, and given back"),),
        takes_capacity=True,
        cordons=True,
        gives_back_itself=True,
        stops_jobs=True,
        evidence=True,
        repairs=_MEMORY | {_F.XID, _F.NVLINK_DEGRADED, _F.DRIVER_ERROR},
        order=4,
        rung=1,
        rights=_EMPTYING,
        own_rights=("get create jobs.batch", "get pods/log"),
        causes=_RESTARTS_THE_DRIVER,  # what reads the node's GPUs is paused for it
    ),
    _A.REBOOT_NODE: ActionTraits(
        frozenset({_K.NODE}),
        "reboot the node",
        (("boot", "this one", "the next one"),),
        takes_capacity=True,
        cordons=True,
        gives_back_itself=True,
        stops_jobs=True,
        fresh_sign_in=True,
        evidence=True,
        repairs=_MEMORY | {_F.XID, _F.GPU_LOST, _F.PCIE_DEGRADED, _F.DRIVER_ERROR},
        order=3,
        rung=2,
        rights=_EMPTYING,
        own_rights=("get create jobs.batch", "get pods/log"),
        causes=_RESTARTS_THE_DRIVER,
    ),
    _A.START_MAINTENANCE: ActionTraits(
        frozenset({_K.NODE}),
        "have the announced maintenance done now",
        (("maintenance", "when its cloud comes to it", "now"),),
        takes_capacity=True,
        repairs=frozenset({_F.NODE_CONDITION}),
        order=7,
        rights=_CORDONING,
        causes=_RESTARTS_THE_DRIVER,
    ),
    _A.REPLACE_NODE: ActionTraits(
        frozenset({_K.NODE}),
        "drain the node and have another made in its place",
        (("machine", "this one", "another one"), ("its jobs", "run here", "stop whole and start elsewhere")),
        takes_capacity=True,
        cordons=True,
        gives_back_itself=True,
        stops_jobs=True,
        least_approval=ApprovalRule.ONE,
        fresh_sign_in=True,
        evidence=True,
        rights=(*_EMPTYING, "get delete machines.cluster.x-k8s.io", "get delete nodeclaims.karpenter.sh"),
        causes=_RESTARTS_THE_DRIVER,
    ),
    _A.OPEN_RMA: ActionTraits(
        frozenset({_K.GPU}),
        "open a return case",
        (("return to the vendor", "none", "opened"),),
        harmless=True,
        fresh_sign_in=True,
        evidence=True,
        rung=3,
        rights=("get nodes",),
        own_rights=("get create jobs.batch", "list pods", "get pods/log"),
    ),
    _A.KERNEL_JOB: ActionTraits(
        frozenset({_K.JOB}),
        "search for a faster kernel on one free GPU",
        rights=(),
        own_rights=("get create patch delete jobs.batch", "list pods", "get pods/log"),
    ),
    _A.PROMOTE_KERNEL: ActionTraits(
        frozenset({_K.CLUSTER}),
        "allow jobs to use the kernel",
        (("kernel in use", "as it is", "the certified one"),),
    ),
    _A.PROMOTE_POLICY: ActionTraits(
        frozenset({_K.CLUSTER}),
        "allow the policy one more step",
        (("decides", "as it does", "one step further"),),
    ),
}
"""One row per kind. What is not here is refused (`traits_of`)."""

UNCLASSIFIED = ActionTraits(
    targets=frozenset(),
    does="do something that is not classified",
    takes_capacity=True,
    stops_jobs=True,
    approval=ApprovalRule.NEVER,
    least_approval=ApprovalRule.NEVER,
    fresh_sign_in=True,
)


def traits_of(kind: ActionKind) -> ActionTraits:
    """The row of a kind; the strictest one where it has none."""
    return KINDS.get(kind, UNCLASSIFIED)


def kinds_where(holds: Callable[[ActionTraits], bool]) -> frozenset[ActionKind]:
    """The kinds whose row fulfils a condition.

    >>> sorted(kinds_where(lambda row: row.gives_back))
    [<ActionKind.RETURN_NODE: 'return_node'>, <ActionKind.UNCORDON: 'uncordon'>]
    """
    return frozenset(kind for kind, row in KINDS.items() if holds(row))


def target_of(kind: ActionKind) -> SubjectKind:
    """The one kind of subject that a kind acts on. Raises KeyError without a row, ValueError without just one."""
    (only,) = KINDS[kind].targets
    return only


def node_steps(action: Action) -> tuple[Action, ...]:
    """The steps of an action that an actuator of single nodes carries out: of a rack's drain, each node's; else the
    action itself. A step's id names the action and the node's place in the plan."""
    if action.kind is not ActionKind.DRAIN_RACK:
        return (action,)
    nodes = [Subject(SubjectKind.NODE, name) for name in action.blast_radius.nodes]
    return tuple(
        replace(
            action,
            id=f"{action.id}-{number}",
            kind=ActionKind.DRAIN,
            target=node,
            blast_radius=replace(action.blast_radius, nodes=(node.name,), gpus=()),
            undo=replace(action.undo, kind=ActionKind.UNCORDON),
            preconditions=tuple(c for c in action.preconditions if c.subject == node),
        )
        for number, node in enumerate(nodes)
    )


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
    def named(self) -> frozenset[Subject]:
        """Every subject that the plan names: its target, and whom its blast radius reaches."""
        radius = self.blast_radius
        kinds = {_K.NODE: radius.nodes, _K.GPU: radius.gpus, _K.JOB: radius.jobs, _K.POD: radius.pods}
        return frozenset(Subject(kind, name) for kind, names in kinds.items() for name in names) | {self.target}

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
class ActionOutcome:
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
    `execute` raises `UnderWay` while the operation that it began still runs. An actuator that reads a server may
    define the method `one_look` (see the function below).
    """

    @property
    def name(self) -> str: ...

    def kinds(self) -> frozenset[ActionKind]:
        """The kinds that this actuator carries out."""
        ...

    def changed(self, action: Action) -> list[str]:
        """The preconditions that no longer hold, each as a sentence; empty where the plan still stands."""
        ...

    def execute(self, action: Action) -> ActionOutcome:
        """Carries the action out under `action.id`; a repeat with the same id finds it already done."""
        ...

    def read(self, action: Action) -> ActionOutcome:
        """Reads whether the action has happened: DONE, UNDER_WAY, NOT_DONE or UNKNOWN. Changes nothing."""
        ...

    def undo(self, action: Action) -> ActionOutcome:
        """Takes a done action back, where `action.undo.possible`."""
        ...


@runtime_checkable
class EvidenceSource(Protocol):
    """An actuator that can collect, on an action's node, what a vendor asks for (`ActionTraits.evidence`)."""

    def evidence(self, action: Action) -> Mapping[str, bytes]:
        """By name, not redacted, cut to a size. Raises UnderWay while it is collected, Permanent where it cannot
        be; a repeat finds what it began."""
        ...


def one_look(actuator: Actuator) -> AbstractContextManager[None]:
    """Around calls of an actuator that follow each other at once: it may answer equal reads from one request."""
    found: Callable[[], AbstractContextManager[None]] = getattr(actuator, "one_look", nullcontext)
    return found()


def site_of(actuator: Actuator) -> str:
    """Whose nodes and jobs an actuator acts on (`collectors.subject.SITE`); empty: Kubernetes', and a
    simulation's."""
    return str(getattr(actuator, "site", ""))


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
class ActionProposal:
    """A playbook's answer: an action, or None; either way with the reason. `refused`: something would fit, but the
    guard does not let it happen, so a person has to look. `outdated`: the diagnosis is of what is over; another is
    needed first."""

    action: Action | None
    reason: str
    refused: bool = False
    outdated: bool = False


@runtime_checkable
class Playbook(Protocol):
    """Decides purely whether, and how, its mitigation fits a situation."""

    @property
    def kind(self) -> ActionKind: ...

    def propose(self, situation: Situation) -> ActionProposal: ...
