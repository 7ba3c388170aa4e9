"""Jobs of several kinds, stopped and started as a whole: a gang is never killed rank by rank.

One that has ended is not started again by its field, and a RayJob that keeps its cluster afterwards may not be
suspended at all (KubeRay marks it invalid: ray-project/kuberay#1813): both are said before anything is touched.

Each kind has one field that stops all of its pods and keeps the object: `spec.suspend` of a batch/v1 Job, a JobSet,
a TrainJob (which starts a JobSet again that is suspended beneath it) and a RayJob, `spec.runPolicy.suspend` of a
PyTorchJob and an MPIJob (their API references). Where Kueue manages the job it owns
that field, and its Workload's `spec.active` is the one to set (kueue.sigs.k8s.io, "Workload").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nightshift.collectors.base import Permanent
from nightshift.collectors.kubernetes.api import DISCOVERY_S, Refused
from nightshift.collectors.subject import Subject
from nightshift.controllers.actuators.kube_client import KubeClient, NotFound, Object, named

RESUME_STEP = "nightshift.dev/resume-from-step"
"""Annotation on the job: the checkpoint hook. The job's start script resumes from the newest checkpoint whose step
is at most this one, and must not delete later ones. Without it the script resumes as it always does."""
SAVES_ON_REQUEST = "nightshift.dev/saves-on-request"
"""Annotation by the job's owner, `true`: its script watches the next one."""
SAVE_REQUEST = "nightshift.dev/save-request"
"""Annotation by us: an action's id. The script saves a checkpoint and answers."""
SAVED = "nightshift.dev/saved"
"""The script's answer: `ACTION-ID/STEP`. An answer to an earlier request is none."""


@dataclass(frozen=True)
class JobKind:
    kind: str
    api: str
    plural: str
    suspend: tuple[str, ...]
    """Path of the field that stops it."""
    pods: str
    """Label that carries the job's name on its pods."""


KINDS = (
    JobKind("Job", "apis/batch/v1", "jobs", ("spec", "suspend"), "batch.kubernetes.io/job-name"),
    JobKind(
        "JobSet", "apis/jobset.x-k8s.io/v1alpha2", "jobsets", ("spec", "suspend"), "jobset.sigs.k8s.io/jobset-name"
    ),
    JobKind(
        "PyTorchJob",
        "apis/kubeflow.org/v1",
        "pytorchjobs",
        ("spec", "runPolicy", "suspend"),
        "training.kubeflow.org/job-name",
    ),
    JobKind(
        "MPIJob",
        "apis/kubeflow.org/v2beta1",
        "mpijobs",
        ("spec", "runPolicy", "suspend"),
        "training.kubeflow.org/job-name",
    ),
    JobKind(
        "TrainJob",
        "apis/trainer.kubeflow.org/v1alpha1",
        "trainjobs",
        ("spec", "suspend"),
        "jobset.sigs.k8s.io/jobset-name",
    ),
    JobKind("RayJob", "apis/ray.io/v1", "rayjobs", ("spec", "suspend"), "ray.io/originated-from-cr-name"),
)


# Discovery is asked again after so long (s) where a job is found under no kind.
MISSED_S = 60.0
_ENDED = frozenset({"Complete", "Completed", "Succeeded", "Failed"})


@dataclass(frozen=True)
class FoundJob:
    """A job as it stands in the cluster."""

    kind: JobKind
    namespace: str
    name: str
    object: Object

    @property
    def path(self) -> str:
        return f"/{self.kind.api}/namespaces/{self.namespace}/{self.kind.plural}/{self.name}"

    @property
    def version(self) -> str:
        return str(self.object["metadata"]["resourceVersion"])

    @property
    def annotations(self) -> dict[str, str]:
        return self.object["metadata"].get("annotations") or {}

    @property
    def suspended(self) -> bool:
        value: Any = self.object
        for part in self.kind.suspend:
            value = (value or {}).get(part)
        return value is True

    @property
    def ended(self) -> str | None:
        """How it ended, in its own words; None while it runs, waits or is suspended. A Job and a PyTorchJob say so
        by a condition, a JobSet by `terminalState`, too, a RayJob by `jobDeploymentStatus`."""
        status = self.object.get("status") or {}
        for condition in status.get("conditions") or []:
            if condition.get("type") in _ENDED and condition.get("status") == "True":
                reason = condition.get("reason")
                return f"{condition['type']}: {reason}" if reason else str(condition["type"])
        said = status.get("terminalState") or status.get("jobDeploymentStatus")
        return str(said) if said in _ENDED else None

    @property
    def unstoppable(self) -> str | None:
        """Why its field would not stop it, or would break it; None where it may be set."""
        spec = self.object.get("spec") or {}
        if self.kind.kind == "RayJob" and not spec.get("shutdownAfterJobFinishes"):
            return "a RayJob may be suspended only with shutdownAfterJobFinishes: true"
        if self.kind.kind == "RayJob" and spec.get("clusterSelector"):
            return "a RayJob on a cluster that it selects cannot be suspended"
        # the built-in controller leaves such a Job alone, so its suspend field would stop nothing
        manager = spec.get("managedBy")
        if self.kind.kind == "Job" and manager not in (None, "kubernetes.io/job-controller"):
            return f"{manager} manages it, from outside of this cluster's Job controller"
        return None

    def loses_by(self, evicted: int) -> bool:
        """Whether that many evicted pods would end it or restart all of it. An eviction counts against a Job's
        `backoffLimit` unless its podFailurePolicy ignores the DisruptionTarget condition (kubernetes.io, "Handling
        retriable and non-retriable pod failures"); what operators make of one lost pod is theirs, so their jobs
        are stopped whole."""
        if self.kind.kind != "Job":
            return True
        spec, status = self.object.get("spec") or {}, self.object.get("status") or {}
        if any(_ignores_evictions(rule) for rule in (spec.get("podFailurePolicy") or {}).get("rules") or []):
            return False
        # 6 is the API's default of backoffLimit
        limit = spec.get("backoffLimit", spec.get("backoffLimitPerIndex", 6))
        return int(status.get("failed") or 0) + evicted > int(limit)

    @property
    def saves_on_request(self) -> bool:
        return self.annotations.get(SAVES_ON_REQUEST) == "true"

    def saved_step(self, action_id: str) -> int | None:
        """The step that the job says it has saved for this action; None while it has not answered."""
        asked, _, step = self.annotations.get(SAVED, "").rpartition("/")
        return int(step) if asked == action_id and step.isdecimal() else None

    def with_suspend(self, value: bool) -> Object:
        """The part of a merge patch that stops or starts it."""
        patch: Object | bool = value
        for part in reversed(self.kind.suspend):
            patch = {part: patch}
        assert isinstance(patch, dict)
        return patch


def split(job: Subject) -> tuple[str, str]:
    namespace, _, name = job.name.partition("/")
    if not namespace or not name:
        raise Permanent(f"{job} is not namespace/job")
    return namespace, name


def find(kube: KubeClient, job: Subject) -> FoundJob | None:
    """The job of that name; the outermost kind wins, since a JobSet owns Jobs. None where there is none. Raises
    Refused where none is seen and a kind may not be looked for."""
    namespace, name = split(job)
    try:
        named(namespace), named(name)
    except NotFound:  # of another scheduler: no Kubernetes job has such a name
        return None
    found: list[FoundJob] = []
    refused: list[Refused] = []
    asked: set[str] = set()
    # a job that was not found may be of a kind whose operator is newer than our last discovery
    for within_s in (DISCOVERY_S, MISSED_S):
        for kind in KINDS if not found else ():
            path = f"/{kind.api}/namespaces/{namespace}/{kind.plural}/{name}"
            if path in asked or not kube.serves(path, within_s=within_s):
                continue
            asked.add(path)
            try:
                item = kube.find(path)
            except Refused as error:  # a role that was written before we knew this kind
                refused.append(error)
                continue
            if item is not None:
                found.append(FoundJob(kind, namespace, name, item))
    if refused and not found:
        raise refused[0]
    outermost = _outermost(found)
    if len(outermost) > 1:
        raise Permanent(f"{job} names {len(outermost)} jobs: {', '.join(f.kind.kind for f in outermost)}")
    return outermost[0] if outermost else None


def _outermost(jobs: list[FoundJob]) -> list[FoundJob]:
    """Of jobs of one name, those that own another of them; all where none does."""
    owned = {r["uid"] for job in jobs for r in job.object["metadata"].get("ownerReferences") or []}
    return [job for job in jobs if job.object["metadata"]["uid"] in owned] or jobs


def live_pods(kube: KubeClient, job: FoundJob) -> list[Object]:
    """Pods of the job that still hold resources."""
    path = f"/api/v1/namespaces/{job.namespace}/pods"
    pods = kube.list(path, labelSelector=f"{job.kind.pods}={job.name}")
    # pods that have ended stay listed until their job is deleted, and hold no GPU
    return [p for p in pods if (p.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]


_KUEUE = ("v1beta1", "v1beta2")


def _ignores_evictions(rule: Object) -> bool:
    conditions = rule.get("onPodConditions") or []
    return rule.get("action") == "Ignore" and any(
        c.get("type") == "DisruptionTarget" and c.get("status", "True") == "True" for c in conditions
    )


def workload(kube: KubeClient, job: FoundJob) -> Object | None:
    """Kueue's Workload of the job, if Kueue manages it: then Kueue owns the suspend field. A label on the job does
    not tell: it may stand there without Kueue, and `manageJobsWithoutQueueName` has no need of it."""
    uid = job.object["metadata"]["uid"]
    for version in _KUEUE:
        path = f"/apis/kueue.x-k8s.io/{version}/namespaces/{job.namespace}/workloads"
        try:
            if not kube.serves(path):
                continue
            items = kube.list(path)
        except NotFound:
            continue  # no Kueue, or another version of it
        for item in items:
            if any(r.get("uid") == uid for r in item["metadata"].get("ownerReferences") or []):
                return {**item, "apiVersion": f"kueue.x-k8s.io/{version}"}
        return None
    return None


def is_active(workload: Object) -> bool:
    return (workload.get("spec") or {}).get("active", True) is True


def set_active(kube: KubeClient, workload: Object, value: bool, manager: str) -> None:
    """Stops or starts a Workload; only if it is still what was read."""
    version = str(workload["metadata"]["resourceVersion"])
    kube.merge(_workload_path(workload), {"spec": {"active": value}}, version=version, manager=manager)


def fresh(kube: KubeClient, workload: Object) -> Object:
    return kube.get(_workload_path(workload))


def _workload_path(workload: Object) -> str:
    meta = workload["metadata"]
    return f"/apis/{workload['apiVersion']}/namespaces/{meta['namespace']}/workloads/{meta['name']}"


def own_job(kube: KubeClient, pod: Object) -> FoundJob | None:
    """The batch/v1 Job that made a pod, whatever stands above it; None where no Job did."""
    owner = _controller(pod)
    return None if owner is None or _kind_of(owner) is not KINDS[0] else _referred(kube, pod, owner)


def owner_job(kube: KubeClient, pod: Object) -> FoundJob | None:
    """The outermost job above a pod, through its owner references; None for a pod that no job owns."""
    namespace, labels = pod["metadata"]["namespace"], pod["metadata"].get("labels") or {}
    # a drain stopped the RayJob that had come to have an older one's name: so its present cluster is asked for too
    if labels.get("ray.io/originated-from-crd") == "RayJob":  # a RayCluster stands between
        ray = next(kind for kind in KINDS if kind.kind == "RayJob")
        name = labels.get(ray.pods, "")
        item = kube.find(f"/{ray.api}/namespaces/{namespace}/{ray.plural}/{name}") if name else None
        cluster = ((item or {}).get("status") or {}).get("rayClusterName")
        if item is not None and cluster in (None, "", labels.get("ray.io/cluster")):  # else of an earlier one's
            return FoundJob(ray, namespace, name, item)
    found: FoundJob | None = None
    current = pod
    # pod, Job, JobSet, TrainJob: nothing is nested deeper, and references that form a ring end here
    for _ in range(4):
        owner = _controller(current)
        above = None if owner is None else _referred(kube, current, owner)
        if above is None:
            return found
        found, current = above, above.object
    return found


def _controller(obj: Object) -> Object | None:
    return next((r for r in obj["metadata"].get("ownerReferences") or [] if r.get("controller")), None)


def _kind_of(owner: Object) -> JobKind | None:
    """By group, too: Volcano's jobs are called Job as well."""
    group = str(owner.get("apiVersion", "")).partition("/")[0]
    return next((k for k in KINDS if (k.kind, k.api.split("/")[1]) == (owner.get("kind"), group)), None)


def _referred(kube: KubeClient, obj: Object, owner: Object) -> FoundJob | None:
    """The very job that a reference means: one that was submitted anew under its name is another one, however long
    the last pod of the first takes to end."""
    kind, namespace = _kind_of(owner), obj["metadata"]["namespace"]
    item = kube.find(f"/{kind.api}/namespaces/{namespace}/{kind.plural}/{owner['name']}") if kind else None
    if kind is None or item is None or item["metadata"].get("uid") != owner.get("uid"):
        return None
    return FoundJob(kind, namespace, str(owner["name"]), item)
