"""Kernel searches as Jobs of the cluster: one GPU, lowest priority, for a bounded time, and never two for one plan.

A Job is made suspended, under a name made of its plan; who ordered it writes its uid down, and only then is it let
go. So a Job that is missing afterwards was begun and taken away by somebody, and one without a uid has run nothing:
whoever is killed at any point finds out which, and makes no second one. Candidates are code that nobody trusts: the
pod has no account, no service links and no way to reach us; what it has to say stands in its log.

Sources: kubernetes.io, "Jobs" (suspend, podReplacementPolicy), "Pod disruption conditions" (DisruptionTarget),
"Pod Lifecycle" (activeDeadlineSeconds); kueue.sigs.k8s.io, "Run A Kubernetes Job" (a queue's name may be written
while a Job is suspended).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.base import Permanent
from nightshift.collectors.kubernetes.api import ACCESS, Access, AccessSettings, Refused
from nightshift.collectors.kubernetes.nodes_and_pods import ClusterLabels, LabelSettings
from nightshift.collectors.seal import fingerprint
from nightshift.collectors.shared_settings import stated_once
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, OutcomeStatus, UnderWay
from nightshift.controllers.actuators import kube_rights
from nightshift.controllers.actuators.kube_client import KubeClient, NotFound, Object
from nightshift.controllers.actuators.kube_repair_jobs import said, why_failed
from nightshift.controllers.actuators.kubernetes import FIELD_MANAGER

POLL_S = 30.0
LOG_BYTES = 16 << 20
COMPONENT = "kernel-search"
"""`app.kubernetes.io/component` of the pods; the chart's network policy lets them reach nothing."""
ACTION, PLAN, RELEASED = "nightshift.dev/action-id", "nightshift.dev/plan-sha256", "nightshift.dev/released"
_MOST = 8
_KERNEL = re.compile(r"[a-z0-9_]{1,60}")
_CASE = re.compile(r"[a-z0-9_]{1,20}( [a-z_0-9]{1,20}=[0-9]{1,12}){1,12}")


# An ended Job and its log stay for a day, so that a person can read why a search of the night ended.
KEEP_S = 86400
# A search that has got no GPU for so long is given up: the profile that it rests on is of that day.
START_WITHIN_S = 6 * 3600.0
# What the pod asks for beside its GPU: the compilers use four cores, and candidates are measured one at a time.
CPU = "4"
MEMORY = "16Gi"
# More than this is a leak of a candidate or of a compiler, and must not take memory from the node's jobs.
MEMORY_LIMIT = "64Gi"


class KernelJobSettings(BaseModel):
    """Runs kernel searches as Jobs of the cluster."""

    model_config = ConfigDict(extra="forbid")

    access: Access = Field(default_factory=AccessSettings, description=ACCESS)
    image: str = Field(min_length=1, description="The kernel worker's image, from your registry")
    namespace: str = Field(min_length=1, description="Where the Jobs run")
    signer_secret: str = Field(
        min_length=1, description="Secret with `signer.key`, by which the judge in the pod signs certificates"
    )
    pull_secrets: SkipJsonSchema[tuple[str, ...]] = stated_once("pull_secrets", tuple)
    queue: str = Field(default="", description="Kueue's LocalQueue; empty: none")
    claim: str = Field(
        default="",
        description="Volume claim for runs, so that an interrupted search continues in the next run; empty: none",
    )
    labels: ClusterLabels = stated_once("labels", LabelSettings)
    runtime_class: str = Field(default="", description="Runtime class of the pod; empty: none")
    node_selector: dict[str, str] = Field(default={}, description="Nodes that a search may use")
    tolerations: tuple[dict[str, str | int], ...] = Field(
        default=({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},),
        description="Taints that the pod tolerates",
    )


@dataclass(frozen=True, slots=True)
class SearchStatus:
    """What the cluster says of a search's Job. gpu_s: how long it has had its GPU, as far as can still be read."""

    there: bool
    released: bool = False
    suspended: bool = False
    preempted: bool = False
    ended: str = ""
    """"" while it goes on, else Complete or Failed."""
    said: str = ""
    gpu_s: float = 0.0


class KernelJobActuator:
    """Starts, follows and ends a search's Job. Fulfils `controllers.action.Actuator`.

    Who keeps count asks in steps: `prepare`, write the uid down, `release`, then `look` and `log`.
    """

    plugin: ClassVar[str] = "kubernetes_kernels"
    Settings: ClassVar[type[BaseModel]] = KernelJobSettings

    def __init__(
        self, settings: KernelJobSettings, kube: KubeClient, *, now_s: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._kube, self._now_s = settings, kube, now_s
        self._jobs = f"/apis/batch/v1/namespaces/{settings.namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{settings.namespace}/pods"

    @classmethod
    def from_settings(
        cls, settings: KernelJobSettings, now_s: Callable[[], float] = time.time
    ) -> KernelJobActuator:
        kube = KubeClient.connect(settings.access)
        return cls(settings, kube, now_s=now_s)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def start_within_s(self) -> float:
        return START_WITHIN_S

    def kinds(self) -> frozenset[ActionKind]:
        return frozenset({ActionKind.KERNEL_JOB})

    def refused(self) -> list[str]:
        """What the API server says that this identity may not do; `nightshift doctor` tells it."""
        return kube_rights.refused(self._kube, [ActionKind.KERNEL_JOB], own_namespace=self._settings.namespace)

    def changed(self, action: Action) -> list[str]:
        """A search rests on nothing in the world: it waits until a GPU is free."""
        return []

    # Step by step ------------------------------------------------------------------------------------------------

    def prepare(self, action: Action) -> str:
        """The uid of the plan's Job, which is made, suspended, where there is none. Nothing runs yet."""
        job = self._find(action)
        if job is None:
            job = self._kube.request("POST", self._jobs, body=job_of(action, self._settings))
        return str(job["metadata"]["uid"])

    def release(self, action: Action, uid: str) -> None:
        """Lets the Job of this uid go: by itself, or into its queue. Once; a repeat changes nothing."""
        job = self._find(action, uid)
        if job is None or RELEASED in (job["metadata"].get("annotations") or {}):
            return
        meta: Object = {"annotations": {RELEASED: "true"}}
        change: Object = {"metadata": meta}
        if self._settings.queue:
            meta["labels"] = {"kueue.x-k8s.io/queue-name": self._settings.queue}
        else:
            change["spec"] = {"suspend": False}
        version = str(job["metadata"]["resourceVersion"])
        path = f"{self._jobs}/{job_name(action)}"
        self._kube.merge(path, change, version=version, manager=FIELD_MANAGER)

    def look(self, action: Action, uid: str = "") -> SearchStatus:
        """How far the Job is."""
        job = self._find(action, uid)
        if job is None:
            return SearchStatus(False)
        pods, status = self._pods_of(action), job.get("status") or {}
        conditions = status.get("conditions") or []
        done = {c["type"]: c for c in conditions if c.get("status") == "True"}
        ended = next((kind for kind in ("Complete", "Failed") if kind in done), "")
        place = self._kube, self._settings.namespace, job_name(action)
        text = said(*place) or why_failed(*place, done[ended]) if ended == "Failed" else ""
        gpu_s = sum(_gpu_s(pod, self._now_s()) for pod in pods)
        if ended and not pods:  # they are cleaned up after a while; the Job remembers when they ran
            gpu_s = _between(status.get("startTime"), _ended_at(status, done[ended]))
        return SearchStatus(
            True,
            RELEASED in (job["metadata"].get("annotations") or {}),
            bool(job["spec"].get("suspend")),
            any(_disrupted(pod) for pod in pods),
            ended,
            text,
            gpu_s,
        )

    def log(self, action: Action) -> str:
        """What the search's newest pod has printed so far; "" where it has not begun, or is gone."""
        begun = [pod for pod in self._pods_of(action) if (pod.get("status") or {}).get("startTime")]
        if not begun:
            return ""
        newest = max(begun, key=lambda pod: str(pod["status"]["startTime"]))
        path = f"{self._pods}/{newest['metadata']['name']}/log"
        try:
            return self._kube.text(path, container="search", limitBytes=str(LOG_BYTES))
        except Refused as error:
            if error.status in (400, 404):  # its container has not begun, or the pod went meanwhile
                return ""
            raise

    # As any other action -----------------------------------------------------------------------------------------

    def execute(self, action: Action) -> ActionOutcome:
        uid = self.prepare(action)
        self.release(action, uid)
        seen = self.look(action, uid)
        if not seen.ended:
            raise UnderWay(f"Job {job_name(action)} searches", retry_after_s=POLL_S)
        status = OutcomeStatus.DONE if seen.ended == "Complete" else OutcomeStatus.FAILED
        return self._outcome(status, seen.said or f"Job {job_name(action)} ended: {seen.ended}")

    def read(self, action: Action) -> ActionOutcome:
        seen = self.look(action)
        if not seen.released:
            return self._outcome(OutcomeStatus.NOT_DONE, f"no Job {job_name(action)} was released")
        if not seen.ended:
            return self._outcome(OutcomeStatus.UNDER_WAY, f"Job {job_name(action)} searches")
        status = OutcomeStatus.DONE if seen.ended == "Complete" else OutcomeStatus.FAILED
        return self._outcome(status, seen.said or seen.ended)

    def undo(self, action: Action) -> ActionOutcome:
        """Takes the Job and its pod away, and gives the GPU back."""
        job = self._find(action)
        if job is None:
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"there is no Job {job_name(action)}")
        how = {"propagationPolicy": "Background", "preconditions": {"uid": job["metadata"]["uid"]}}
        try:
            self._kube.request("DELETE", f"{self._jobs}/{job_name(action)}", body=how)
        except NotFound:
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"there is no Job {job_name(action)}")
        return self._outcome(OutcomeStatus.DONE, f"Job {job_name(action)} deleted")

    # The world's side --------------------------------------------------------------------------------------------

    def _find(self, action: Action, uid: str = "") -> Object | None:
        """The plan's Job, or None; with a uid only that very one. Raises Permanent where the name is another's."""
        if action.kind is not ActionKind.KERNEL_JOB:
            raise Permanent(f"action {action.id}: this actuator does no {action.kind}")
        job = self._kube.find(f"{self._jobs}/{job_name(action)}")
        if job is None or job["metadata"].get("deletionTimestamp"):
            return None
        notes = job["metadata"].get("annotations") or {}
        if notes.get(ACTION) != action.id or notes.get(PLAN) != action.plan_sha256:
            raise Permanent(f"Job {self._settings.namespace}/{job_name(action)} is there and is not ours")
        return None if uid and job["metadata"]["uid"] != uid else job

    def _pods_of(self, action: Action) -> list[Object]:
        return self._kube.list(self._pods, labelSelector=f"batch.kubernetes.io/job-name={job_name(action)}")

    def _outcome(self, status: OutcomeStatus, detail: str) -> ActionOutcome:
        return ActionOutcome(status, detail, self._now_s())


def job_name(action: Action) -> str:
    """The same for the same plan: a repeat finds the Job instead of making another."""
    return f"nightshift-kernel-job-{fingerprint([action.id, action.plan_sha256])[:12]}"


def arguments(action: Action) -> list[str]:
    """What the search is told, all of it from the plan that was approved. Raises Permanent where a trace's odd
    shape makes no order."""
    kernel, case = str(action.params.get("kernel", "")), str(action.params.get("case", ""))
    if not _KERNEL.fullmatch(kernel) or not _CASE.fullmatch(case):
        raise Permanent(f"action {action.id}: {kernel!r} on {case!r} is no order for a search")
    backward = bool(action.params.get("backward"))
    among = action.params.get("searches", 2 if backward else 1)  # a plan that was made before they were counted
    if not isinstance(among, int) or isinstance(among, bool) or not 1 <= among <= _MOST:
        raise Permanent(f"action {action.id}: {among!r} searches are no order")
    question = [kernel, case, backward, *([again] if (again := str(action.params.get("again", ""))) else [])]
    whole = 60.0 * _hours(action)
    # kept for the judge's start and the winner's whole verdict: of a short search 15 % would not hold them
    minutes = (whole - max(0.15 * whole, min(1.0, 0.3 * whole))) / among
    return [
        *("kernels", "optimize", "--device", "cuda", "--problem", kernel, "--case", case, "--for-jobs"),
        *("--run", f"/work/{fingerprint(question)[:12]}", "--key", "/keys/signer.key", "--stream"),
        *("--minutes", f"{minutes:.1f}", "--trials", "1000"),
        *(["--backward"] if backward else []),
    ]


def _container(action: Action, settings: KernelJobSettings) -> Object:
    resources = {"cpu": CPU, "memory": MEMORY, settings.labels.gpu_resource: "1"}
    limits = {"memory": MEMORY_LIMIT, settings.labels.gpu_resource: "1"}
    return {
        "name": "search",
        "image": settings.image,
        "args": arguments(action),
        "env": [{"name": "HOME", "value": "/work"}, {"name": "TRITON_CACHE_DIR", "value": "/work/triton"}],
        "resources": {"requests": resources, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "work", "mountPath": "/work"},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "key", "mountPath": "/keys", "readOnly": True},
        ],
    }


def job_of(action: Action, settings: KernelJobSettings) -> Object:
    """The batch/v1 Job, suspended."""
    labels = {
        "app.kubernetes.io/name": "nightshift",
        "app.kubernetes.io/part-of": "nightshift",
        "app.kubernetes.io/component": COMPONENT,
    }
    kept = {"persistentVolumeClaim": {"claimName": settings.claim}}
    pod: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": str(action.params["priority_class"]),
        "activeDeadlineSeconds": round(3600 * _hours(action)),
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532},
        "containers": [_container(action, settings)],
        "volumes": [
            {"name": "work", **(kept if settings.claim else {"emptyDir": {"sizeLimit": "20Gi"}})},
            {"name": "tmp", "emptyDir": {"sizeLimit": "5Gi"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}},
            {"name": "key", "secret": {"secretName": settings.signer_secret, "defaultMode": 0o440}},
        ],
        "tolerations": [dict(toleration) for toleration in settings.tolerations],
    }
    if settings.pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in settings.pull_secrets]
    if settings.runtime_class:
        pod["runtimeClassName"] = settings.runtime_class
    if settings.node_selector:
        pod["nodeSelector"] = dict(settings.node_selector)
    spec = {
        "suspend": True,
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",  # never a second pod beside one that is still ending
        "ttlSecondsAfterFinished": KEEP_S,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    notes = {ACTION: action.id, PLAN: action.plan_sha256}
    meta = {"name": job_name(action), "labels": labels, "annotations": notes}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def _hours(action: Action) -> float:
    hours = float(action.params.get("gpu_hours", 0.0))
    if not 0.0 < hours < 1000.0:
        raise Permanent(f"action {action.id}: params.gpu_hours is {hours:g}: a search is bounded")
    return hours


def _disrupted(pod: Object) -> bool:
    conditions: Iterable[Any] = (pod.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "DisruptionTarget" and c.get("status") == "True" for c in conditions)


def _gpu_s(pod: Object, now_s: float) -> float:
    """From when the pod's node had it until its container ended; a pod without a node has no GPU."""
    status = pod.get("status") or {}
    ends = [
        ended["finishedAt"]
        for container in status.get("containerStatuses") or []
        if (ended := (container.get("state") or {}).get("terminated")) and ended.get("finishedAt")
    ]
    if not status.get("startTime"):
        return 0.0
    return _between(status["startTime"], max(ends)) if ends else max(0.0, now_s - _stamp(status["startTime"]))


def _ended_at(status: Object, condition: Object) -> str | None:
    """A Job that failed has no completionTime: then its condition says when."""
    return status.get("completionTime") or condition.get("lastTransitionTime")


def _between(begin: Any, end: Any) -> float:
    return max(0.0, _stamp(end) - _stamp(begin)) if begin and end else 0.0


def _stamp(text: Any) -> float:
    return datetime.fromisoformat(str(text)).timestamp()
