"""Acts on a Kubernetes cluster: cordon, uncordon, drain, quarantine, restart a pod or a whole job.

Each effect leaves a marker with the action's id in the same write that makes it (an annotation of the object), so
that a repeat, or a reader after a crash, finds its own work. Every patch holds only for the version that was read.
What takes long (a drain, a job that stops) is done a step a call: `execute` raises UnderWay until it is done.

What is somebody else's stays theirs: a node that a person cordoned is never uncordoned here, and a person who takes
our cordon back has the last word.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.subject import SubjectKind
from nightshift.controllers.action import (
    Action,
    ActionKind,
    Outcome,
    OutcomeStatus,
    Precondition,
    target_of,
    traits_of,
)
from nightshift.controllers.actuators import kube_jobs, kube_nodes, kube_rights, kube_scaling
from nightshift.controllers.actuators.kube_client import KubeClient, NotFound, Object
from nightshift.controllers.actuators.kube_drain import Drains, Limits
from nightshift.controllers.actuators.kube_marks import MARKER, Marks, cordoning
from nightshift.controllers.actuators.kube_workloads import Workloads, pod_path
from nightshift.controllers.cordon import CORDON_OF, NOBODY, SOMEBODY_ELSE, cordon_ids

_K, _A = SubjectKind, ActionKind


# Name under which writes are recorded. One name: by it a cordon or a gate of ours is told from another's.
FIELD_MANAGER = "nightshift"


class KubernetesSettings(BaseModel):
    """How the agent reaches the cluster that it acts on."""

    model_config = ConfigDict(extra="forbid")

    kubeconfig: Path | None = Field(default=None, description="kubeconfig file; none: the pod's service account.")
    context: str | None = Field(default=None, description="Context of the kubeconfig; none: its current one.")
    namespaces: tuple[str, ...] = Field(
        default=(), description="Namespaces whose pods and jobs its role reaches, for doctor; none: all of them."
    )
    timeout_s: float = Field(default=10.0, gt=0, description="Longest wait for one answer (s).")
    drain_grace_s: int | None = Field(
        default=None, ge=0, description="Grace period of evicted pods (s); none: each pod's own."
    )
    evict_unmanaged: bool = Field(
        default=False, description="A drain evicts pods, too, that no controller would make again"
    )
    evict_local_data: bool = Field(
        default=True, description="A drain evicts pods, too, whose emptyDir on the node's disk goes with them"
    )
    save_wait_s: float = Field(
        default=300.0,
        ge=0,
        description="How long a job that saves on request has before it is stopped (s); 0: none is asked",
    )
    cordon_claims: tuple[str, ...] = Field(
        default=kube_nodes.CLAIMS,
        description="Annotations or labels by which other tools keep a node out; its cordon is theirs, too, then",
    )
    actions: tuple[ActionKind, ...] | None = Field(
        default=None, description="Only these kinds of action; none: every kind that it knows."
    )

    @field_validator("actions")
    @classmethod
    def _are_known(cls, actions: tuple[ActionKind, ...] | None) -> tuple[ActionKind, ...] | None:
        unknown = [kind for kind in actions or () if kind not in kube_rights.RIGHTS]
        if unknown:
            raise ValueError(f"Kubernetes has no {', '.join(unknown)}; there are {', '.join(kube_rights.RIGHTS)}")
        return actions


class KubernetesActuator:
    """Fulfils `controllers.action.Actuator` for one cluster."""

    plugin: ClassVar[str] = "kubernetes"
    Settings: ClassVar[type[BaseModel]] = KubernetesSettings
    TARGETS: ClassVar[dict[ActionKind, SubjectKind]] = {
        kind: target_of(kind)
        for kind in (
            _A.SUGGEST_SCALING,
            _A.TAINT,
            _A.CORDON,
            _A.UNCORDON,
            _A.DRAIN,
            _A.QUARANTINE_GPU,
            _A.RESTART_POD,
            _A.RESTART_JOB,
        )
    }

    def __init__(
        self, settings: KubernetesSettings, kube: KubeClient, *, now_s: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._kube, self._now_s = settings, kube, now_s
        self._warned: dict[str, tuple[str, ...]] = {}  # action → what was warned of in its tries so far
        self.marks = Marks(kube, FIELD_MANAGER, now_s)
        self.work = Workloads(kube, self.marks, FIELD_MANAGER, now_s, settings.save_wait_s)
        limits = Limits(settings.drain_grace_s, settings.evict_unmanaged, settings.evict_local_data)
        self._drains = Drains(kube, self.marks, self.work, limits, self.owns_cordon, now_s)

    @classmethod
    def from_settings(
        cls, settings: KubernetesSettings, now_s: Callable[[], float] = time.time
    ) -> KubernetesActuator:
        kube = KubeClient.connect(settings.kubeconfig, settings.context, timeout_s=settings.timeout_s)
        return cls(settings, kube, now_s=now_s)

    @property
    def name(self) -> str:
        return self.plugin

    def kinds(self) -> frozenset[ActionKind]:
        named = self._settings.actions
        return frozenset(self.TARGETS if named is None else set(named) & set(self.TARGETS))

    def refused(self) -> list[str]:
        """What the API server says that this identity may not do; `nightshift doctor` tells it."""
        kinds = [kind for kind in self.TARGETS if kind in self.kinds()]
        return kube_rights.refused(self._kube, kinds, namespaces=self._settings.namespaces)

    # the plan against the world

    def changed(self, action: Action) -> list[str]:
        sentences = []
        for condition in action.preconditions:
            try:
                found = self._fact(condition)
            except NotFound:
                sentences.append(f"{condition.subject} does not exist any more")
                continue
            if found != condition.expected:
                read = f"{condition.fact} is {found or 'not known'}, expected {condition.expected}"
                sentences.append(f"{condition.subject}: {read}")
        return sentences

    def _fact(self, condition: Precondition) -> str | None:
        subject, fact = condition.subject, condition.fact
        match subject.kind, fact:
            case _K.NODE, "cordoned":
                return _word(kube_nodes.is_cordoned(self._kube.get(kube_nodes.path(subject.name))))
            case _K.NODE, fact if fact == CORDON_OF:
                return self.cordon_of(self._kube.get(kube_nodes.path(subject.name)))
            case _K.NODE, "uid":
                return str(self._kube.get(kube_nodes.path(subject.name))["metadata"].get("uid", ""))
            case _K.NODE, "tainted":
                return _word(kube_nodes.is_tainted(self._kube.get(kube_nodes.path(subject.name))))
            case _K.NODE, "drained":
                node = self._kube.get(kube_nodes.path(subject.name))
                return _word(kube_nodes.is_cordoned(node) and not kube_nodes.evictable(self._kube, subject.name))
            case _K.GPU, "quarantined":
                return _word(kube_nodes.node_that_quarantines(self._kube, subject.name) is not None)
            case _K.POD, "running":
                pod = self._kube.get(pod_path(subject.name))
                return _word((pod.get("status") or {}).get("phase") == "Running")
            case _K.JOB, ("running" | "uid"):
                job = kube_jobs.find(self._kube, subject)
                if job is None:
                    raise NotFound(f"{subject} does not exist", 404)
                if fact == "uid":
                    return str(job.object["metadata"].get("uid", ""))
                return _word(not job.suspended and bool(kube_jobs.live_pods(self._kube, job)))
        return None

    # acting

    def execute(self, action: Action) -> Outcome:
        """What the API server warns of meanwhile stands in the outcome, of all the tries that it took."""
        self._check_target(action)
        self._kube.warnings()  # of other calls
        before = self._warned.pop(action.id, ())
        try:
            outcome = self._carry_out(action)
        except Temporary:
            self._warned[action.id] = (*before, *self._kube.warnings())
            raise
        said = dict.fromkeys((*before, *self._kube.warnings()))
        return replace(outcome, detail="; the API server warns: ".join((outcome.detail, *said)))

    def _carry_out(self, action: Action) -> Outcome:
        match action.kind:
            case _A.SUGGEST_SCALING:
                return self._suggest(action)
            case _A.TAINT:
                return self._taint(action)
            case _A.CORDON:
                return self._cordon(action)
            case _A.UNCORDON:
                return self._uncordon(action)
            case _A.DRAIN:
                return self._drains.execute(action)
            case _A.QUARANTINE_GPU:
                return self._quarantine(action)
            case _A.RESTART_POD:
                return self.work.restart_pod(action)
            case _A.RESTART_JOB:
                return self.work.restart_job(action)
            case _:
                raise Permanent(f"action {action.id}: this actuator does no {action.kind}")

    def _check_target(self, action: Action) -> None:
        expected = self.TARGETS.get(action.kind)
        if expected is None or action.kind not in self.kinds():
            raise Permanent(f"action {action.id}: this actuator does no {action.kind}")
        if action.target.kind is not expected:
            raise Permanent(f"action {action.id}: {action.kind} is for a {expected}, not {action.target}")

    def _suggest(self, action: Action) -> Outcome:
        """Reads who owns the replica count and says what they would change; nothing is written."""
        namespace, name = kube_jobs.split(action.target)
        found = kube_scaling.suggest(self._kube, namespace, name)
        if found is None:
            return self._refused(action, "no Deployment stands above it")
        return self._outcome(OutcomeStatus.DONE, str(found))

    def _taint(self, action: Action) -> Outcome:
        path = kube_nodes.path(action.target.name)
        node = self._kube.get(path)
        if self.marks.has(node, action):
            if not kube_nodes.is_tainted(node):
                return self._refused(action, "somebody has taken the taint off since; that stands")
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.id} tainted it before")
        if kube_nodes.is_tainted(node):
            return self._outcome(OutcomeStatus.ALREADY_DONE, "it is tainted: not this action's to take back")
        change = kube_nodes.taint_patch(node, str(action.params.get("value", "fault")))
        self.marks.patch(path, node, action, change)
        return self._outcome(OutcomeStatus.DONE, f"{action.target} tainted {kube_nodes.TAINT}")

    def _cordon(self, action: Action) -> Outcome:
        node = self._kube.get(kube_nodes.path(action.target.name))
        if self.marks.has(node, action):
            if not kube_nodes.is_cordoned(node):
                return self._refused(action, "a person has uncordoned it since; that stands")
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.id} cordoned it before")
        if kube_nodes.is_cordoned(node):
            return self._outcome(OutcomeStatus.ALREADY_DONE, "somebody else has cordoned it: theirs to take back")
        self.marks.patch(kube_nodes.path(action.target.name), node, action, cordoning(node, _A.CORDON))
        return self._outcome(OutcomeStatus.DONE, f"{action.target} cordoned")

    def _uncordon(self, action: Action) -> Outcome:
        node = self._kube.get(kube_nodes.path(action.target.name))
        if not kube_nodes.is_cordoned(node):
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} is schedulable")
        ours = self.cordons(node)
        if not ours:
            return self._refused(action, "it was not cordoned by Nightshift; whoever did takes it back")
        annotations = {MARKER + kind: None for kind in ours}
        change: Object = {"spec": {"unschedulable": None}, "metadata": {"annotations": annotations}}
        self.marks.patch(kube_nodes.path(action.target.name), node, action, change)
        return self._outcome(OutcomeStatus.DONE, f"{action.target} uncordoned")

    def owns_cordon(self, node: Object) -> bool:
        """Whether a node's cordon is Nightshift's alone: then it may take it back."""
        return bool(self.cordons(node))

    def cordon_of(self, node: Object) -> str:
        """Whose cordon stands on a node (`controllers.cordon`)."""
        if not kube_nodes.is_cordoned(node):
            return NOBODY
        return cordon_ids(ours.values()) if (ours := self.cordons(node)) else SOMEBODY_ELSE

    def cordons(self, node: Object) -> dict[ActionKind, str]:
        """The ids of our actions whose cordon stands; none as soon as somebody else has a part in it: had it before
        us, wrote it after us by the API server's own record, or claims the node in their own words."""
        marks = {kind: mark for kind in (_A.CORDON, _A.DRAIN) if (mark := self.marks.of(node, kind)) is not None}
        theirs = any(mark.get("theirs") for mark in marks.values())
        theirs |= kube_nodes.cordoned_by(node) != {FIELD_MANAGER}
        if theirs or kube_nodes.claimed(node, self._settings.cordon_claims):
            return {}
        return {kind: str(mark.get("id")) for kind, mark in marks.items()}

    def _quarantine(self, action: Action) -> Outcome:
        """Labels the node that holds the GPU; schedulers that honour the label keep work off it."""
        name = str(action.params.get("node", ""))
        if not name:
            raise Permanent(f"action {action.id}: params.node is missing: which node holds {action.target}?")
        node = self._kube.get(kube_nodes.path(name))
        held = kube_nodes.quarantined(node)
        if action.target.name in held:
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} is quarantined on {name}")
        change = kube_nodes.quarantine_patch([*held, action.target.name])
        self.marks.patch(kube_nodes.path(name), node, action, change)
        return self._outcome(OutcomeStatus.DONE, f"{action.target} quarantined on {name}")

    # reading back and taking back

    def read(self, action: Action) -> Outcome:
        self._check_target(action)
        if action.kind is _A.SUGGEST_SCALING:
            return self._outcome(OutcomeStatus.NOT_DONE, "a suggestion leaves no trace in the cluster")
        if action.kind in (_A.RESTART_POD, _A.RESTART_JOB):
            return self.work.read(action)
        if action.kind is _A.DRAIN:
            return self._drains.read(action)
        name = str(action.params.get("node", "")) if action.kind is _A.QUARANTINE_GPU else action.target.name
        node = self._kube.get(kube_nodes.path(name))
        marked, cordoned = self.marks.has(node, action), kube_nodes.is_cordoned(node)
        match action.kind:
            case _A.UNCORDON:
                done = marked and not cordoned
            case _A.TAINT:
                done = marked and kube_nodes.is_tainted(node)
            case _A.QUARANTINE_GPU:
                done = action.target.name in kube_nodes.quarantined(node)
            case _:
                done = marked and cordoned
        observed = {"cordoned": _word(cordoned), "marked": _word(marked)}
        status = OutcomeStatus.DONE if done else OutcomeStatus.NOT_DONE
        return Outcome(status, f"{action.kind} of {action.target} read back", self._now_s(), observed)

    def undo(self, action: Action) -> Outcome:
        """Takes our own cordon or quarantine back; never somebody else's."""
        self._check_target(action)
        if not action.undo.possible or not traits_of(action.kind).contains:
            return self._refused(action, f"{action.kind} cannot be taken back")
        name = str(action.params.get("node", "")) if action.kind is _A.QUARANTINE_GPU else action.target.name
        node = self._kube.get(kube_nodes.path(name))
        if action.kind is _A.QUARANTINE_GPU:
            held = kube_nodes.quarantined(node)
            if action.target.name not in held:
                return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} is not quarantined")
            change = kube_nodes.quarantine_patch([uuid for uuid in held if uuid != action.target.name])
            self.marks.patch(kube_nodes.path(name), node, action, change, undone=True)
            return self._outcome(OutcomeStatus.DONE, f"{action.target} back in service")
        if action.kind is _A.TAINT:
            if not kube_nodes.is_tainted(node):
                return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} has no taint of ours")
            if not self.marks.has(node, action):
                return self._refused(action, "its taint is not this action's")
            self.marks.patch(kube_nodes.path(name), node, action, kube_nodes.taint_patch(node, None), undone=True)
            return self._outcome(OutcomeStatus.DONE, f"{action.target} has no taint of ours any more")
        if not kube_nodes.is_cordoned(node):
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} is schedulable")
        ours = self.cordons(node)
        if ours.get(action.kind) != action.id:
            return self._refused(action, "its cordon is not this action's alone, or not any more")
        others = sorted(id_ for id_ in ours.values() if id_ != action.id)
        change = {} if others else {"spec": {"unschedulable": None}}
        self.marks.patch(kube_nodes.path(name), node, action, change, undone=True)
        left = f"stays cordoned for {', '.join(others)}" if others else "uncordoned"
        return self._outcome(OutcomeStatus.DONE, f"{action.target} {left}")

    def _outcome(self, status: OutcomeStatus, detail: str) -> Outcome:
        return Outcome(status, detail, self._now_s())

    def _refused(self, action: Action, why: str) -> Outcome:
        return self._outcome(OutcomeStatus.REFUSED, f"{action.kind} of {action.target}: {why}")


def _word(value: bool) -> str:
    return "true" if value else "false"
