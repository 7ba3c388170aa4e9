"""Nodes and GPU pods of a Kubernetes cluster, kept as relations over time: who runs where, of which job and rank.

What the API server says outweighs what a pod's name suggests. A rank is told only where it is certain: the
completion index of an indexed Job, or the RANK that an operator (PyTorchJob) put into the environment, of pods that
hold one GPU each. What is wrong with a node, a pod or a job comes beside that, as lines (`states`). Needs `list`
and `watch` on nodes and pods; of jobs of every kind what the cluster has and permits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.frame import LogRecord, Reason, SourceStatus
from nightshift.collectors.kubernetes.api import ACCESS, Access, AccessSettings, KubeApi, Object
from nightshift.collectors.kubernetes.follow import Follower
from nightshift.collectors.kubernetes.makers import REPLACED_BY, maker
from nightshift.collectors.kubernetes.states import (
    JOB_PATHS,
    NEW,
    Trouble,
    is_infrastructure,
    of_job,
    of_node,
    of_pod,
    recent,
    written,
)
from nightshift.collectors.shared_settings import completed, stated_once
from nightshift.collectors.subject import IMAGE_OF, TAKES_WORK_SINCE, Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch
from nightshift.collectors.topology import CLIQUE_LABEL, RACK_LABEL
from nightshift.collectors.training.workload import pod_subject, rank_of

AUTHORITY = 1
"""Of relations that the API server told, over inferred ones."""
# Labels that carry a pod's job and what kind of job that is, the outermost owner first (each operator's label
# reference). A Kueue Workload stands for one of these and has no pods of its own; its queue is a fact of the pod.
JOB_LABELS = {
    "jobset.sigs.k8s.io/jobset-name": "JobSet",
    "training.kubeflow.org/job-name": "PyTorchJob",
    "ray.io/originated-from-cr-name": "RayJob",
    "ray.io/cluster": "RayCluster",
    "leaderworkerset.sigs.k8s.io/name": "LeaderWorkerSet",
    "volcano.sh/job-name": "VolcanoJob",
    "kueue.x-k8s.io/pod-group-name": "PodGroup",
    "batch.kubernetes.io/job-name": "Job",
    "job-name": "Job",
}
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_BATCH = re.compile(r"(?i)batch[a-z_-]*[= ]+[0-9]+")
VERSIONS = {
    "kernel": "kernelVersion",
    "container_runtime": "containerRuntimeVersion",
    "kubelet": "kubeletVersion",
    "os_image": "osImage",
}
"""Facts of a node by the field of its `status.nodeInfo`."""
CUDA_LABEL = "nvidia.com/cuda.runtime-version.full"
ZONE_LABEL = "topology.kubernetes.io/zone"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
OPT_OUT = "nightshift-opt-out"
NAMED_ALIKE = "of no one machine: sources of two clusters have a node of this name"
"""What stands for the uid of such a node: no machine has it, so that no plan for one of them is carried out."""
_K = SubjectKind
_Relations = list[tuple[Subject, Subject]]


# Not heard for so long, the API server counts as lost: its bookmarks come once a minute.
STALE_S = 180.0


class LabelSettings(BaseModel):
    """What the cluster calls its GPUs, racks and NVLink domains."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu_resource: str = Field(
        "nvidia.com/gpu",
        description="Resource that GPU pods request; shares of it and the vendor's MIG instances count, too",
    )
    rack_label: str = Field(
        "topology.kubernetes.io/rack", description="Node label that names the rack; empty: none"
    )
    nvlink_domain_label: str = Field(
        "nvidia.com/gpu.clique", description="Node label that names the NVLink domain; empty: none"
    )


ClusterLabels = Annotated[SkipJsonSchema[LabelSettings], completed("labels")]


class KubernetesSettings(BaseModel):
    """Reads nodes and pods from the API server."""

    model_config = ConfigDict(extra="forbid")

    access: Access = Field(default_factory=AccessSettings, description=ACCESS)
    labels: ClusterLabels = stated_once("labels", LabelSettings)


@dataclass(frozen=True, slots=True)
class _Node:
    rack: str | None
    domain: str | None
    facts: tuple[tuple[str, str], ...]
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True, slots=True)
class _Pod:
    node: str | None
    job: str | None
    rank: int | None
    facts: tuple[tuple[str, str], ...]
    job_uid: str = ""
    """Of the job's own object, where that made the pod and the pod is not going."""
    troubles: tuple[Trouble, ...] = ()
    placed: bool = True
    """Whether it holds GPUs now: infrastructure never does, and one that ended no longer."""
    infra: str = ""
    """The DaemonSet that it belongs to, where it serves the node's GPUs."""


class KubernetesCollector:
    """Two followed lists (nodes, pods); every tick their changes go into the inventory."""

    plugin: ClassVar[str] = "kubernetes"
    Settings = KubernetesSettings

    def __init__(self, settings: KubernetesSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._nodes: Follower[_Node] = Follower(self._connect, "/api/v1/nodes", self._node, clock)
        self._pods: Follower[_Pod] = Follower(self._connect, "/api/v1/pods", self._pod, clock)
        self._jobs: dict[str, Follower[tuple[Trouble, ...]]] = {
            kind: Follower(self._connect, path, partial(of_job, kind, settings.labels.gpu_resource), clock)
            for kind, path in JOB_PATHS.items()
        }
        self._held: dict[str, _Relations] = {}
        self._told: dict[str, tuple[dict[str, str], tuple[Trouble, ...]]] = {}
        """By object: what its last lines said of it; absent where all was well."""
        self._uids: dict[str, str] = {}
        """Of each node, the uid that this source saw last."""
        self._listed: set[str] = set()
        self._joined: set[str] = set()
        self._started = False

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        followers: tuple[Follower[Any], ...] = (self._nodes, self._pods, *self._jobs.values())
        if not self._started:
            self._started = True
            for follower in followers:
                follower.start()
        deadline = time.monotonic() + 0.8 * timeout_s
        # a look waits for what places faults, and not for what few clusters have
        for follower in followers[:2]:
            follower.synced.wait(max(0.0, deadline - time.monotonic()))
        lines: list[LogRecord] = []
        for name, node in self._nodes.take().items():
            self._place_node(name, node, inventory, now_s)
            lines += self._said("Node", name, {}, self._of_node(name, node), now_s)
        for name, pod in self._pods.take().items():
            self._place_pod(name, pod if pod and pod.placed else None, inventory, now_s)
            if pod and pod.infra and pod.node and (image := dict(pod.facts)["image"]):
                inventory.describe(Subject(_K.NODE, pod.node), **{IMAGE_OF + pod.infra: image})
            lines += self._said("Pod", name, _facts_of(pod, name), pod.troubles if pod else (), now_s)
        for kind, jobs in self._jobs.items():
            for name, troubles in jobs.take().items():
                lines += self._said(kind, name, {}, troubles or (), now_s)
        lines += self._first_lists(inventory, now_s)
        pods = self._status("pods", self._pods, now_s)
        if pods.ok:
            pods = replace(pods, detail="; ".join(filter(None, (pods.detail, self._unread_jobs()))))
        return Batch([self._status("nodes", self._nodes, now_s), pods], logs=lines)

    def _of_node(self, name: str, node: _Node | None) -> tuple[Trouble, ...]:
        """What is wrong with a node. One that was ready here is not new, whatever times its object bears."""
        if node is None:
            self._joined.discard(name)
            return ()
        if ("ready", "true") in node.facts:
            self._joined.add(name)
        return tuple(t for t in node.troubles if t.cause != NEW or name not in self._joined)

    def _said(
        self, kind: str, name: str, facts: dict[str, str], troubles: tuple[Trouble, ...], now_s: float
    ) -> list[LogRecord]:
        """The lines of an object, where they differ from its last ones."""
        key, now = f"{kind} {name}", (facts, recent(troubles, now_s))
        before = self._told.pop(key, None)
        if now[1]:
            self._told[key] = now
        if now == before or (before is None and not now[1]):
            return []
        try:
            subject = _subject(kind, name)
        except ValueError:
            return []  # a name that no subject can have: nothing can be said of it
        return list(written(kind, name, facts or (before[0] if before else {}), now[1], subject, now_s))

    def _first_lists(self, inventory: Inventory, now_s: float) -> list[LogRecord]:
        """Says once of each kind that all of it has been read: what a detector remembers and this did not repeat
        ended while nobody looked."""
        found = []
        lists: dict[str, Follower[Any]] = {"Node": self._nodes, "Pod": self._pods, **self._jobs}
        for kind, follower in lists.items():
            if kind not in self._listed and follower.health()[0] is not None:
                self._listed.add(kind)
                found += list(written(kind, "*", {}, (), inventory.cluster, now_s))
        return found

    def _unread_jobs(self) -> str:
        """Which kinds of jobs are not read, and why: no error, since few clusters have every operator."""
        words = {Reason.NOT_FOUND: "not installed", Reason.UNAUTHORISED: "needs the rights list and watch"}
        told: dict[str, list[str]] = {}
        for kind, follower in self._jobs.items():
            silent_s, fault = follower.health()
            if silent_s is None:
                reason = fault[0] if fault else Reason.TIMEOUT
                told.setdefault(words.get(reason, str(reason)), []).append(kind)
        return "; ".join(f"failed jobs not read: {', '.join(kinds)} ({why})" for why, kinds in told.items())

    def close(self) -> None:
        if self._started:
            followers: tuple[Follower[Any], ...] = (self._nodes, self._pods, *self._jobs.values())
            for follower in followers:
                follower.close()

    def _connect(self) -> KubeApi:
        settings = self._settings
        return KubeApi.connect(settings.access)

    def _status(self, what: str, follower: Follower[Any], now_s: float) -> SourceStatus:
        return follower.status(source_subject(self.plugin, what), what, now_s, STALE_S)

    # what is kept of an object

    def _node(self, obj: Object) -> _Node:
        meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
        labels = meta.get("labels") or {}
        ready, wrong = "Unknown", list[str]()
        for condition in status.get("conditions") or ():
            kind, said = condition.get("type"), condition.get("status")
            if kind == "Ready":
                ready = said
            elif said == "True":
                wrong.append(str(kind))
        facts = {
            "uid": str(meta.get("uid", "")),
            "zone": str(labels.get(ZONE_LABEL, ""))[:200],
            "conditions": ",".join(sorted(wrong))[:200],
            "gpus": str((status.get("capacity") or {}).get(self._settings.labels.gpu_resource, "")),
            "unschedulable": _word(spec.get("unschedulable") is True),
            "ready": {"True": "true", "False": "false"}.get(ready, "unknown"),
            "taints": ",".join(sorted(str(t.get("key")) for t in spec.get("taints") or [])),
            OPT_OUT: _opted_out(meta),
            **_versions(status.get("nodeInfo") or {}, labels),
        }
        settings = self._settings
        rack, domain = labels.get(settings.labels.rack_label), labels.get(settings.labels.nvlink_domain_label)
        said = ((RACK_LABEL, rack), (CLIQUE_LABEL, domain), (REPLACED_BY, maker(obj)))
        facts |= {name: value for name, value in said if value}
        troubles = of_node(obj, settings.labels.gpu_resource)
        return _Node(rack or None, domain or None, tuple(facts.items()), troubles)

    def _pod(self, obj: Object) -> _Pod | None:
        meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
        gpus, infra = self._gpus(spec), is_infrastructure(obj)
        ended = status.get("phase") in ("Succeeded", "Failed")
        troubles = of_pod(obj) if gpus or infra else ()
        if not (gpus or infra) or (ended and not troubles):
            return None
        labels = meta.get("labels") or {}
        owner: Object = next((r for r in meta.get("ownerReferences") or [] if r.get("controller")), {})
        job, kind = _job_of(labels, owner)
        # a pod of several GPUs starts several ranks; its index, or one RANK, names none of them
        rank = _rank_of(meta, spec, job) if gpus == 1 else None
        facts = {
            "uid": str(meta["uid"]),
            "gpus": str(gpus),
            "job_kind": kind[:100],
            "queue": str(labels.get(QUEUE_LABEL, ""))[:200],
            OPT_OUT: _opted_out(meta),
            **_recipe(spec),
        }
        if infra and meta.get("deletionTimestamp"):
            facts["image"] = ""  # its successor's counts, which may be there already
        name = job or owner.get("name")
        # a pod of a ReplicaSet or of a job that is being deleted does not tell the uid of the job to come
        is_its_own = owner.get("name") == name and not meta.get("deletionTimestamp")
        uid = str(owner.get("uid") or "") if is_its_own else ""
        placed, serves = bool(gpus) and not ended, str(owner.get("name") or "") if infra else ""
        return _Pod(spec.get("nodeName") or None, name, rank, tuple(facts.items()), uid, troubles, placed, serves)

    def _gpus(self, spec: Object) -> int:
        return sum(
            int(count)
            for c in spec.get("containers") or []
            for resource, count in ((c.get("resources") or {}).get("limits") or {}).items()
            if self._is_gpu(resource)
        )

    def _is_gpu(self, resource: str) -> bool:
        """A whole GPU, a share of one (`nvidia.com/gpu.shared`: time-slicing and MPS, renamed), or a MIG instance
        (`nvidia.com/mig-1g.10gb`), as NVIDIA's device plugin names them."""
        whole = self._settings.labels.gpu_resource
        return resource == whole or resource.startswith((f"{whole}.", f"{whole.partition('/')[0]}/mig-"))

    # into the inventory

    def _place_node(self, name: str, node: _Node | None, inventory: Inventory, now_s: float) -> None:
        subject = Subject(_K.NODE, name)
        relations: _Relations = []
        if node is not None:
            relations.append((subject, inventory.cluster))
            if node.rack:
                relations.append((subject, Subject(_K.RACK, node.rack)))
            if node.domain:
                relations.append((subject, Subject(_K.NVLINK_DOMAIN, node.domain)))
            facts = dict(node.facts)
            if facts["unschedulable"] == "false" and inventory.fact(subject, "unschedulable") != "false":
                facts[TAKES_WORK_SINCE] = str(now_s)
            if inventory.fact(subject, "uid") not in (None, facts["uid"], self._uids.get(name)):
                facts["uid"] = NAMED_ALIKE
            self._uids[name] = dict(node.facts)["uid"]
            inventory.describe(subject, **facts)
        else:
            # its relations end below; the fact stays, for who asks why a node's signals are missing
            inventory.describe(subject, ready="gone")
        self._replace(f"node {name}", relations, inventory, now_s)

    def _place_pod(self, name: str, pod: _Pod | None, inventory: Inventory, now_s: float) -> None:
        namespace, _, short = name.partition("/")
        subject = pod_subject(namespace, short)
        relations: _Relations = []
        if pod is not None:
            if pod.node:
                relations.append((subject, Subject(_K.NODE, pod.node)))
            if pod.job:
                job = Subject(_K.JOB, f"{namespace}/{pod.job}")
                relations.append((subject, job))
                if pod.job_uid:  # the same name submitted anew is another job
                    inventory.describe(job, uid=pod.job_uid)
                if pod.rank is not None:
                    rank = rank_of(job, pod.rank)
                    relations += [(rank, subject), (rank, job)]
            inventory.describe(subject, **dict(pod.facts))
        self._replace(f"pod {name}", relations, inventory, now_s)

    def _replace(self, key: str, relations: _Relations, inventory: Inventory, now_s: float) -> None:
        inventory.exchange(self._held.pop(key, ()), relations, now_s, AUTHORITY)
        if relations:
            self._held[key] = relations


def _facts_of(pod: _Pod | None, name: str) -> dict[str, str]:
    """What a line on a pod says of it, beside what is wrong: its inventory may be gone by the time it is read."""
    if pod is None:
        return {}
    namespace = name.partition("/")[0]
    job = f"{namespace}/{pod.job}" if pod.job and not pod.infra else ""
    return {"job": job, "node": pod.node or "", "serves": pod.infra}


def _subject(kind: str, name: str) -> Subject:
    if kind == "Pod":
        return pod_subject(*name.split("/", 1))
    return Subject(_K.NODE if kind == "Node" else _K.JOB, name)


def _versions(told: Object, labels: Object) -> dict[str, str]:
    """Versions that the kubelet reports, and GPU feature discovery's of CUDA; those that are there."""
    found = {name: str(version)[:200] for name, key in VERSIONS.items() if (version := told.get(key))}
    if version := labels.get(CUDA_LABEL):
        found["cuda"] = str(version)[:200]
    return found


def _job_of(labels: Mapping[str, str], owner: Object) -> tuple[str | None, str]:
    """(name, kind) of a pod's job, by the labels of its operator; the kind alone where only an owner tells."""
    label = next((name for name in JOB_LABELS if labels.get(name)), None)
    if label is None:
        return None, str(owner.get("kind", ""))
    kind = JOB_LABELS[label]
    if label == "ray.io/originated-from-cr-name":
        kind = labels.get("ray.io/originated-from-crd") or kind
    # one operator serves several kinds under one label, MPIJobs among them
    if label == "training.kubeflow.org/job-name" and str(owner.get("apiVersion", "")).startswith("kubeflow.org/"):
        kind = str(owner.get("kind", kind))
    return labels[label], kind


def _rank_of(meta: Object, spec: Object, job: str | None) -> int | None:
    """The rank of a pod of one GPU: its index in an indexed Job, else the RANK of a container's environment."""
    index = _index_of(meta, job)
    if index.isdigit():
        return int(index)
    variables = chain.from_iterable(container.get("env") or [] for container in spec.get("containers") or [])
    # a `valueFrom` has no value here; what the pod will be given is not known to the API server
    told = (variable.get("value") or "" for variable in variables if variable.get("name") == "RANK")
    return next((int(text) for text in told if text.isdecimal() and len(text) < 7), None)


def _recipe(spec: Object) -> dict[str, str]:
    """What a workload's runs have in common, of the container that is started first: its image, and the batch that
    its arguments or its environment name."""
    container: Object = next(iter(spec.get("containers") or []), {})
    words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
    words += [f"{each.get('name')}={each.get('value')}" for each in container.get("env") or () if each.get("value")]
    batch = dict.fromkeys(_BATCH.findall(" ".join(words)))
    return {"image": str(container.get("image") or "")[:300], "batch": " ".join(batch)[:100]}


def _index_of(meta: Object, job: str | None) -> str:
    """The completion index of a pod whose own Job is the job: a JobSet's replicated Jobs each count from 0."""
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    if job is None or job != labels.get("batch.kubernetes.io/job-name", labels.get("job-name")):
        return ""
    return str(labels.get(INDEX_LABEL) or notes.get(INDEX_LABEL) or "")


def _opted_out(meta: Object) -> str:
    return _word("true" in ((meta.get("labels") or {}).get(OPT_OUT), (meta.get("annotations") or {}).get(OPT_OUT)))


def _word(value: bool) -> str:
    return "true" if value else "false"
