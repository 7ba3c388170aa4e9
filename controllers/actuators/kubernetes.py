"""Acts on a Kubernetes cluster: cordon, uncordon, drain, quarantine, restart a pod or a whole job.

Each effect leaves a marker with the action's id in the same write that makes it (an annotation of the object), so
that a repeat, or a reader after a crash, finds its own work. Every patch holds only for the version that was read.
What takes long (a drain, a job that stops) is done a step a call: `execute` raises UnderWay until it is done.

What is somebody else's stays theirs: a node that a person cordoned is never uncordoned here, and a person who takes
our cordon back has the last word.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from collectors.base import Permanent
from collectors.subject import Subject, SubjectKind
from controllers.action import Action, ActionKind, Outcome, OutcomeStatus, Precondition, UnderWay
from controllers.actuators import kube_jobs, kube_nodes, kube_rights
from controllers.actuators.kube_client import KubeClient, NotFound, Object

MARKER = "nightshift.dev/action."
"""Prefix of annotations, one for each kind: JSON `{"id", "at_s", "phase", "undone"}` of the newest such action."""
POLL_S = 5.0
_K, _A = SubjectKind, ActionKind


class KubernetesSettings(BaseModel):
    """How the agent reaches the cluster that it acts on."""

    model_config = ConfigDict(extra="forbid")

    kubeconfig: Path | None = Field(default=None, description="kubeconfig file; none: the pod's service account.")
    context: str | None = Field(default=None, description="Context of the kubeconfig; none: its current one.")
    field_manager: str = Field(default="nightshift", description="Name under which writes are recorded.")
    timeout_s: float = Field(default=10.0, gt=0, description="Longest wait for one answer (s).")
    drain_grace_s: int | None = Field(
        default=None, ge=0, description="Grace period of evicted pods (s); none: each pod's own."
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
        _A.CORDON: _K.NODE,
        _A.UNCORDON: _K.NODE,
        _A.DRAIN: _K.NODE,
        _A.QUARANTINE_GPU: _K.GPU,
        _A.RESTART_POD: _K.POD,
        _A.RESTART_JOB: _K.JOB,
    }

    def __init__(
        self, settings: KubernetesSettings, kube: KubeClient, *, now_s: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._kube, self._now_s = settings, kube, now_s

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
        return kube_rights.refused(self._kube, [kind for kind in self.TARGETS if kind in self.kinds()])

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
            case _K.NODE, "drained":
                node = self._kube.get(kube_nodes.path(subject.name))
                return _word(kube_nodes.is_cordoned(node) and not kube_nodes.evictable(self._kube, subject.name))
            case _K.GPU, "quarantined":
                return _word(kube_nodes.node_that_quarantines(self._kube, subject.name) is not None)
            case _K.POD, "running":
                pod = self._kube.get(_pod_path(subject.name))
                return _word((pod.get("status") or {}).get("phase") == "Running")
            case _K.JOB, "running":
                job = kube_jobs.find(self._kube, subject)
                if job is None:
                    raise NotFound(f"{subject} does not exist", 404)
                return _word(not job.suspended and bool(kube_jobs.live_pods(self._kube, job)))
        return None

    # acting

    def execute(self, action: Action) -> Outcome:
        self._check_target(action)
        match action.kind:
            case _A.CORDON:
                return self._cordon(action)
            case _A.UNCORDON:
                return self._uncordon(action)
            case _A.DRAIN:
                return self._drain(action)
            case _A.QUARANTINE_GPU:
                return self._quarantine(action)
            case _A.RESTART_POD:
                return self._restart_pod(action)
            case _:
                return self._restart_job(action)

    def _check_target(self, action: Action) -> None:
        expected = self.TARGETS.get(action.kind)
        if expected is None or action.kind not in self.kinds():
            raise Permanent(f"action {action.id}: this actuator does no {action.kind}")
        if action.target.kind is not expected:
            raise Permanent(f"action {action.id}: {action.kind} is for a {expected}, not {action.target}")

    def _cordon(self, action: Action) -> Outcome:
        node = self._kube.get(kube_nodes.path(action.target.name))
        if self._is_marked(node, action):
            if not kube_nodes.is_cordoned(node):
                return self._refused(action, "a person has uncordoned it since; that stands")
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.id} cordoned it before")
        if kube_nodes.is_cordoned(node):
            return self._outcome(OutcomeStatus.ALREADY_DONE, "somebody else has cordoned it: theirs to take back")
        self._patch(kube_nodes.path(action.target.name), node, action, {"spec": {"unschedulable": True}})
        return self._outcome(OutcomeStatus.DONE, f"{action.target} cordoned")

    def _uncordon(self, action: Action) -> Outcome:
        node = self._kube.get(kube_nodes.path(action.target.name))
        if not kube_nodes.is_cordoned(node):
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} is schedulable")
        ours = [kind for kind in (_A.CORDON, _A.DRAIN) if self._marker(node, kind) is not None]
        if not ours:
            return self._refused(action, "it was not cordoned by Nightshift; whoever did takes it back")
        annotations = {MARKER + kind: None for kind in ours}
        change: Object = {"spec": {"unschedulable": None}, "metadata": {"annotations": annotations}}
        self._patch(kube_nodes.path(action.target.name), node, action, change)
        return self._outcome(OutcomeStatus.DONE, f"{action.target} uncordoned")

    def owns_cordon(self, node: Object) -> bool:
        """Whether a node's cordon is Nightshift's: then it may take it back."""
        return any(self._marker(node, kind) is not None for kind in (_A.CORDON, _A.DRAIN))

    def _drain(self, action: Action) -> Outcome:
        """Cordons, stops gangs whole and starts them elsewhere, evicts the rest; UnderWay until all of it is done.

        The node's marker names the gangs before the first of them is stopped, so that none is left stopped when the
        last pod has gone.
        """
        path = kube_nodes.path(action.target.name)
        node = self._kube.get(path)
        if self._is_marked(node, action) and not kube_nodes.is_cordoned(node):
            return self._refused(action, "a person has uncordoned it during the drain; that stands")
        left = kube_nodes.evictable(self._kube, action.target.name)
        gangs, single = self._gangs(left)
        known = self._gangs_of(node, action)
        if not self._is_marked(node, action) or not gangs <= known:
            known |= gangs
            self._patch(path, node, action, {"spec": {"unschedulable": True}}, jobs=sorted(known))
        waits = [wait for gang in sorted(known) if (wait := self._cycle_named(gang, action))]
        waits += [kube_nodes.evict(self._kube, pod, self._settings.drain_grace_s) for pod in single]
        if not waits and not left:
            return self._outcome(OutcomeStatus.DONE, f"{action.target} cordoned and empty of evictable pods")
        text = f"drain of {action.target.name}: {len(left)} pods left; " + "; ".join(waits)
        raise UnderWay(text, retry_after_s=POLL_S)

    def _gangs(self, pods: list[Object]) -> tuple[set[str], list[Object]]:
        """Jobs among the pods' owners that span nodes, and the pods of none of them."""
        gangs, single = set(), []
        for pod in pods:
            job = kube_jobs.owner_job(self._kube, pod)
            nodes = {p["spec"].get("nodeName") for p in kube_jobs.live_pods(self._kube, job)} if job else set()
            if job is not None and len(nodes) > 1:
                gangs.add(f"{job.namespace}/{job.name}")
            else:
                single.append(pod)
        return gangs, single

    def _gangs_of(self, node: Object, action: Action) -> set[str]:
        mark = self._marker(node, action.kind) if self._is_marked(node, action) else None
        jobs = (mark or {}).get("jobs")
        return {str(job) for job in jobs} if isinstance(jobs, list) else set()

    def _cycle_named(self, name: str, action: Action) -> str | None:
        job = kube_jobs.find(self._kube, Subject(SubjectKind.JOB, name))
        return self._cycle(job, action) if job is not None else None

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
        self._patch(kube_nodes.path(name), node, action, change)
        return self._outcome(OutcomeStatus.DONE, f"{action.target} quarantined on {name}")

    def _restart_pod(self, action: Action) -> Outcome:
        """Deletes the very pod that was marked: its controller makes another. A bare pod is refused."""
        path = _pod_path(action.target.name)
        pod = self._kube.find(path)
        if pod is None:
            return self._outcome(OutcomeStatus.DONE, f"{action.target} is gone; its controller replaces it")
        meta = pod["metadata"]
        if not any(r.get("controller") for r in meta.get("ownerReferences") or []):
            return self._refused(action, "no controller owns it: deleted, it would not come back")
        if not self._is_marked(pod, action):
            wanted = action.params.get("uid")
            if wanted is not None and wanted != meta["uid"]:
                return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} has been replaced already")
            pod = self._patch(path, pod, action, {})
        if not meta.get("deletionTimestamp"):
            self._kube.request("DELETE", path, body={"preconditions": {"uid": meta["uid"]}})
        raise UnderWay(f"{action.target} is terminating", retry_after_s=POLL_S)

    def _restart_job(self, action: Action) -> Outcome:
        job = kube_jobs.find(self._kube, action.target)
        if job is None:
            raise Permanent(f"action {action.id}: {action.target} does not exist")
        waiting = self._cycle(job, action)
        if waiting is None:
            return self._outcome(OutcomeStatus.DONE, f"{action.target} stopped whole and started anew")
        raise UnderWay(waiting, retry_after_s=POLL_S)

    def _cycle(self, job: kube_jobs.FoundJob, action: Action) -> str | None:
        """Stops a job, waits until its pods are gone, starts it again; None once it was started again."""
        name, phase = f"{job.namespace}/{job.name}", self._phase(job.object, action)
        workload = kube_jobs.workload(self._kube, job)
        if phase == "started":
            return None
        if phase is None:
            if workload is None and job.suspended:
                raise Permanent(f"job {name} is suspended by somebody else; it is theirs to start")
            change = job.with_suspend(True) if workload is None else {}
            self._patch(job.path, job.object, action, change, phase="stopping")
        if workload is not None and kube_jobs.is_active(workload):
            kube_jobs.set_active(self._kube, workload, False, self._settings.field_manager)
        left = kube_jobs.live_pods(self._kube, job)
        if phase is None or left:
            return f"job {name} is stopping: {len(left)} pods left"
        resume = job.with_suspend(False) if workload is None else {}
        step = action.params.get("checkpoint_step")
        if step is not None:
            resume["metadata"] = {"annotations": {kube_jobs.RESUME_STEP: str(step)}}
        if workload is not None:
            kube_jobs.set_active(
                self._kube, kube_jobs.fresh(self._kube, workload), True, self._settings.field_manager
            )
        self._patch(job.path, job.object, action, resume, phase="started")
        return None

    # reading back and taking back

    def read(self, action: Action) -> Outcome:
        self._check_target(action)
        if action.kind is _A.RESTART_POD:
            pod = self._kube.find(_pod_path(action.target.name))
            if pod is None:
                return self._outcome(OutcomeStatus.DONE, f"{action.target} is gone; its controller replaces it")
            if self._is_marked(pod, action):
                return self._outcome(OutcomeStatus.UNDER_WAY, f"{action.target} is terminating")
            done = action.params.get("uid") not in (None, pod["metadata"]["uid"])
            status = OutcomeStatus.DONE if done else OutcomeStatus.NOT_DONE
            return self._outcome(status, f"{action.target} " + ("has been replaced" if done else "is there"))
        if action.kind is _A.RESTART_JOB:
            job = kube_jobs.find(self._kube, action.target)
            phase = self._phase(job.object, action) if job else None
            steps = {"started": OutcomeStatus.DONE, "stopping": OutcomeStatus.UNDER_WAY}
            status = steps.get(phase or "", OutcomeStatus.NOT_DONE)
            return self._outcome(status, f"{action.target}: {phase or 'untouched'}")
        name = str(action.params.get("node", "")) if action.kind is _A.QUARANTINE_GPU else action.target.name
        node = self._kube.get(kube_nodes.path(name))
        marked, cordoned = self._is_marked(node, action), kube_nodes.is_cordoned(node)
        match action.kind:
            case _A.UNCORDON:
                done = marked and not cordoned
            case _A.QUARANTINE_GPU:
                done = action.target.name in kube_nodes.quarantined(node)
            case _A.DRAIN:
                done = marked and cordoned and not kube_nodes.evictable(self._kube, name)
                done = done and all(self._is_started(gang, action) for gang in self._gangs_of(node, action))
            case _:
                done = marked and cordoned
        observed = {"cordoned": _word(cordoned), "marked": _word(marked)}
        status = OutcomeStatus.DONE if done else OutcomeStatus.NOT_DONE
        if action.kind is _A.DRAIN and marked and cordoned and not done:
            status = OutcomeStatus.UNDER_WAY
        return Outcome(status, f"{action.kind} of {action.target} read back", self._now_s(), observed)

    def _is_started(self, name: str, action: Action) -> bool:
        job = kube_jobs.find(self._kube, Subject(SubjectKind.JOB, name))
        return job is None or self._phase(job.object, action) == "started"

    def undo(self, action: Action) -> Outcome:
        """Takes our own cordon or quarantine back; never somebody else's."""
        self._check_target(action)
        if not action.undo.possible or action.kind not in (_A.CORDON, _A.DRAIN, _A.QUARANTINE_GPU):
            return self._refused(action, f"{action.kind} cannot be taken back")
        name = str(action.params.get("node", "")) if action.kind is _A.QUARANTINE_GPU else action.target.name
        node = self._kube.get(kube_nodes.path(name))
        if action.kind is _A.QUARANTINE_GPU:
            held = kube_nodes.quarantined(node)
            if action.target.name not in held:
                return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} is not quarantined")
            change = kube_nodes.quarantine_patch([uuid for uuid in held if uuid != action.target.name])
            self._patch(kube_nodes.path(name), node, action, change, undone=True)
            return self._outcome(OutcomeStatus.DONE, f"{action.target} back in service")
        if not kube_nodes.is_cordoned(node):
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} is schedulable")
        if not self._is_marked(node, action):
            return self._refused(action, "its cordon is not this action's")
        self._patch(kube_nodes.path(name), node, action, {"spec": {"unschedulable": None}}, undone=True)
        return self._outcome(OutcomeStatus.DONE, f"{action.target} uncordoned")

    # markers

    def _patch(
        self,
        path: str,
        obj: Object,
        action: Action,
        change: Object,
        *,
        phase: str = "done",
        undone: bool = False,
        jobs: list[str] | None = None,
    ) -> Object:
        """One write: the change and the marker together."""
        facts = {"id": action.id, "at_s": self._now_s(), "phase": phase, "undone": undone}
        mark = json.dumps(facts | ({"jobs": jobs} if jobs else {}))
        meta = change.get("metadata", {})
        annotations = {**meta.get("annotations", {}), MARKER + action.kind: mark}
        body = {**change, "metadata": {**meta, "annotations": annotations}}
        version = str(obj["metadata"]["resourceVersion"])
        return self._kube.merge(path, body, version=version, manager=self._settings.field_manager)

    def _marker(self, obj: Object, kind: ActionKind) -> dict[str, object] | None:
        text = (obj["metadata"].get("annotations") or {}).get(MARKER + kind)
        try:
            mark = json.loads(text) if text else None
        except ValueError:
            return None
        return mark if isinstance(mark, dict) and not mark.get("undone") else None

    def _is_marked(self, obj: Object, action: Action) -> bool:
        mark = self._marker(obj, action.kind)
        return mark is not None and mark.get("id") == action.id

    def _phase(self, obj: Object, action: Action) -> str | None:
        mark = self._marker(obj, action.kind)
        return str(mark.get("phase")) if mark is not None and mark.get("id") == action.id else None

    def _outcome(self, status: OutcomeStatus, detail: str) -> Outcome:
        return Outcome(status, detail, self._now_s())

    def _refused(self, action: Action, why: str) -> Outcome:
        return self._outcome(OutcomeStatus.REFUSED, f"{action.kind} of {action.target}: {why}")


def _word(value: bool) -> str:
    return "true" if value else "false"


def _pod_path(name: str) -> str:
    namespace, _, pod = name.partition("/")
    if not pod:
        raise Permanent(f"pod {name!r} is not namespace/pod")
    return f"/api/v1/namespaces/{namespace}/pods/{pod}"
