"""What is wrong with a node, pod or job by its own status, as dated lines: one set of lines replaces the last.

A status is a state: it is read whole whenever an object changes, so that what was wrong before the start is found
at the start, and what is over is said to be over (`ok`). A line reads
`Pod ml/t-0 (job=ml/t, node=n1): image_pull [reg/t:1]: ImagePullBackOff: Back-off pulling image`; what the brackets
hold is shared by all objects that one cause stops. Which of these troubles are faults, and after how long, is for
the detector (`detectors.cluster`) to say.

Conditions follow the polarity of node-problem-detector (True is a problem), but for types that end in `Ready`
(EKS's node monitoring agent). Waiting reasons are the kubelet's (pkg/kubelet/images, pkg/kubelet/container).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.kubernetes.api import Object
from nightshift.collectors.kubernetes.events import CLOCK, EVENTS, UNSURE_S
from nightshift.collectors.kubernetes.makers import AZURE_CONDITIONS, GKE_ACTIVE, NOTICE, notices
from nightshift.collectors.subject import Subject

STATES = f"{EVENTS} state"
"""Begins as events do: whoever reads those as evidence reads these, too."""
MAX_TEXT = 600
IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
     "ImageInspectError", "SignatureValidationFailed"}
)  # fmt: skip
_REJECTED = re.compile(
    r"no healthy devices present|requested number of devices unavailable|GPU is lost|not enough GPUs|"
    r"[Uu]nregistered device|[Uu]nknown [Dd]evice [Pp]lugin|rpc failed"
)
"""Why a kubelet's device manager (pkg/kubelet/cm/devicemanager) does not admit a pod that was placed on it."""
CREATE = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"})
_OF_THE_REGISTRY = re.compile(
    r"i/o timeout|connection refused|connection reset|no such host|TLS handshake|x509|toomanyrequests|"
    r"Too Many Requests|50[0-4] (?:Internal|Bad|Service|Gateway)|context deadline exceeded|network is unreachable"
)
_OF_THE_RUNTIME = re.compile(r"nvidia-container|nvidia-ctk|libnvidia|/dev/nvidia|unresolvable CDI|nvml", re.I)
_RUNTIME_SAYS = re.compile(r"(?:nvidia-container-cli|nvidia-ctk): (.+)")
_PLANNED = re.compile(
    r"ToBeDeletedByClusterAutoscaler|karpenter\.sh/disrupt|aws-node-termination-handler|ToBeDeleted|"
    r"cloudprovider\.kubernetes\.io/(?:shutdown|uninitialized)|upgrade|maintenance|rollout|impending-node-termination"
)
"""Taints by which autoscalers, termination handlers and upgrade controllers take a node away on purpose."""
# The node controller's own taints follow from the conditions that are read anyway.
_BY_CONDITION = "node.kubernetes.io/"
_UPGRADES = ("nvidia.com/gpu-driver-upgrade-state", "nvidia.com/ofed-driver-upgrade-state")
_UPGRADE_IDLE = frozenset({"", "upgrade-done", "upgrade-failed", "upgrade-required"})
"""States of the GPU and network operators in which nothing is under way; a required upgrade may wait for days."""
_MIG_STATE = "nvidia.com/mig.config.state"
_STANDARD = frozenset({"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"})
_PRESSURE = frozenset({"MemoryPressure", "DiskPressure", "PIDPressure"})
"""The kubelet evicts pods while one is True; it often passes."""
_MEANT = frozenset({0, 130, 143})
"""Exit codes of a process that ended well, or was asked to end (SIGINT, SIGTERM)."""
_NO_PROBLEM = AZURE_CONDITIONS | {"EtcdIsVoter", "DrainScheduled", "TerminationScheduled", "SuspendReady"}
"""Types whose True tells of a role or a plan: of k3s, draino and AKS."""
_HEALTHY = re.compile(r"IsHealthy$|IsReady$|^HealthChecksPassed$")
"""Reasons of monitors that say True where all is well."""
GPU_LABELS = ("nvidia.com/gpu.present", "nvidia.com/gpu.count", "cloud.google.com/gke-accelerator",
              "k8s.amazonaws.com/accelerator", "accelerator", "node.kubernetes.io/gpu")  # fmt: skip
_INFRASTRUCTURE = re.compile(
    r"nvidia|dcgm|gpu-operator|gpu-feature|node-problem|nvsentinel|mofed|doca|rdma|sriov|roce|neuron|multus", re.I
)
NEW = "new"
NEVER_READY_S = 60.0
"""A node that has not been Ready this long after it was made has never been: it still joins."""
RECENT_S = 1800.0
"""A pod or job that ended earlier than this before it was first read is history, not an incident."""
ENDS = frozenset(
    {"rejected", "evicted", "preempted", "oom", "exited", "job_failed"}
    | {"node_failed", "timed_out", "launch_failed", "requeued"}
)
"""Troubles that are the end of something, and that a status may show for days after it."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong. cause: what all objects with the same fault share; since_s: Unix s, 0 unknown."""

    name: str
    cause: str
    words: str
    since_s: float = 0.0


def recent(troubles: tuple[Trouble, ...], now_s: float) -> tuple[Trouble, ...]:
    """Those that go on, or ended a short while ago."""
    return tuple(t for t in troubles if t.name not in ENDS or now_s - (t.since_s or now_s) <= RECENT_S)


def written(
    kind: str,
    name: str,
    facts: Mapping[str, str],
    troubles: tuple[Trouble, ...],
    subject: Subject,
    now_s: float,
    *,
    source: str = STATES,
    clock: str = CLOCK,
) -> Iterator[LogRecord]:
    """The lines of one object, of the moment at which each trouble began; `ok` where there is none."""
    told = ", ".join(f"{key}={value}" for key, value in facts.items() if value)
    head = f"{kind} {name}" + (f" ({told})" if told else "")
    for number, trouble in enumerate(troubles):
        cause = re.sub(r"[\[\]\s]+", " ", trouble.cause)[:200]
        text = " ".join(f"{head}: {trouble.name} [{cause}]: {trouble.words}".split())[:MAX_TEXT]
        at_s = trouble.since_s if 0 < trouble.since_s <= now_s else now_s
        yield LogRecord(Instant(at_s, UNSURE_S, clock), source, subject, text, number)
    if not troubles:
        yield LogRecord(Instant(now_s, UNSURE_S, clock), source, subject, f"{head}: ok", 0)


_LINE = re.compile(
    r"(?P<kind>\w+) (?P<name>\S+)(?: \((?P<facts>[^)]*)\))?: "
    r"(?:ok|(?P<trouble>\w+) \[(?P<cause>[^\]]*)\]:(?: (?P<words>.*))?)$"
)


def read(record: LogRecord) -> tuple[str, dict[str, str], Trouble | None] | None:
    """(object, its facts, what is wrong or None) of a line that `written` made; None of any other.

    >>> from nightshift.collectors.subject import SubjectKind
    >>> pod, at = Subject(SubjectKind.POD, "ml/t-0"), 1_795_500_000.0
    >>> wrong = Trouble("image_pull", "reg/t:1", "ErrImagePull: not found", at)
    >>> (line,) = written("Pod", "ml/t-0", {"node": "n1"}, (wrong,), pod, at)
    >>> line.text
    'Pod ml/t-0 (node=n1): image_pull [reg/t:1]: ErrImagePull: not found'
    >>> read(line) == ("Pod ml/t-0", {"node": "n1"}, wrong)
    True
    """
    match = _LINE.match(record.text) if record.source.endswith(" state") else None
    if match is None:
        return None
    pairs = (part.partition("=") for part in (match["facts"] or "").split(", ") if part)
    facts = {key: value for key, _, value in pairs}
    wrong = None
    if match["trouble"]:
        wrong = Trouble(match["trouble"], match["cause"], match["words"] or "", record.at.t_s)
    return f"{match['kind']} {match['name']}", facts, wrong


def of_node(obj: Object, gpu_resource: str) -> tuple[Trouble, ...]:
    """Conditions, GPUs that are not offered, and what somebody does to the node on purpose (`maintenance`)."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels = meta.get("labels") or {}
    capacity, offered = (_count(status.get(key), gpu_resource) for key in ("capacity", "allocatable"))
    if not capacity and not any(labels.get(name) for name in GPU_LABELS):
        return ()
    found = [*_planned(meta, spec, status)]
    found += [Trouble(NOTICE, source, f"{source}: {words}") for source, words in notices(obj)]
    for label in (*_UPGRADES, _MIG_STATE):
        if str(labels.get(label, "")).endswith("failed"):
            found.append(Trouble("condition", label, f"{label} is {labels[label]}"))
    found += filter(None, map(_of_condition, status.get("conditions") or []))
    if offered < capacity:
        words = f"{offered} of {capacity} {gpu_resource} can be allocated"
        found.append(Trouble("gpus_missing" if offered else "gpus_gone", f"{offered} of {capacity}", words))
    return tuple(found)


def _of_condition(condition: Object) -> Trouble | None:
    kind, said = str(condition.get("type")), str(condition.get("status"))
    if kind == "Ready":
        name = "not_ready" if said != "True" else ""
    elif kind in _PRESSURE:
        name = "pressure" if said == "True" else ""
    elif said != ("False" if kind.endswith(("Ready", "Healthy")) else "True"):
        name = ""
    else:
        fine = kind in _STANDARD or kind in _NO_PROBLEM or _HEALTHY.search(str(condition.get("reason") or ""))
        name = "" if fine else "condition"
    if not name:  # the usual case, of every condition of every node: nothing else is read of it
        return None
    why = f"{condition.get('reason') or ''}: {condition.get('message') or ''}".strip(": ")
    return Trouble(name, said if kind == "Ready" else kind, f"{kind} is {said}: {why}", _time(condition))


def _planned(meta: Object, spec: Object, status: Object) -> Iterator[Trouble]:
    labels = meta.get("labels") or {}
    if spec.get("unschedulable"):
        yield Trouble("maintenance", "cordoned", "the node is cordoned")
    for label in _UPGRADES:
        if labels.get(label, "") not in _UPGRADE_IDLE:
            yield Trouble("maintenance", label, f"{label} is {labels[label]}")
    if labels.get(_MIG_STATE) in ("pending", "rebooting"):
        yield Trouble("maintenance", _MIG_STATE, f"{_MIG_STATE} is {labels[_MIG_STATE]}")
    if labels.get(GKE_ACTIVE):
        yield Trouble("maintenance", GKE_ACTIVE, f"{GKE_ACTIVE} is {labels[GKE_ACTIVE]}")
    for taint in spec.get("taints") or []:
        key = str(taint.get("key"))
        hard = taint.get("effect") == "NoExecute" and not key.startswith(_BY_CONDITION)
        if hard or _PLANNED.search(key):
            yield Trouble("maintenance", key, f"taint {key}:{taint.get('effect')}")
    if meta.get("deletionTimestamp"):
        yield Trouble("maintenance", "deleted", "the node is being deleted")
    ready: Object = {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Ready":
            ready = condition
            break
    if ready.get("status") != "True" and _time(ready) - _moment(meta.get("creationTimestamp")) < NEVER_READY_S:
        yield Trouble("maintenance", NEW, "the node has not been ready yet")


def of_pod(obj: Object) -> tuple[Trouble, ...]:
    """Of a pod that holds GPUs, or serves those that do: why it does not start, or how it ended."""
    status = _part(obj, "status")
    phase = status.get("phase")
    found = [*_preemption(status)]
    if phase == "Failed":
        found += _failure(status, _ended_s(obj["metadata"], status))
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        found += _of_container(container, obj)
    if (
        phase == "Failed"
        and not found
        and not status.get("reason")
        and not obj["metadata"].get("deletionTimestamp")
    ):
        found += _exits(status, _ended_s(obj["metadata"], status))
    if _part(obj, "spec").get("nodeName") and phase in ("Pending", "Running") and not _is_ready(status):
        found.append(Trouble("starting", str(phase), "it is not ready yet", _moment(status.get("startTime"))))
    # of several containers with one trouble the first tells it
    return tuple({(t.name, t.cause): t for t in reversed(found)}.values())[::-1]


def _part(obj: Object, *path: str) -> Object:
    """What lies below, empty where a part of the path is absent or null."""
    for name in path:
        obj = obj.get(name) or {}
    return obj


def _word(obj: Object, name: str) -> str:
    return str(obj.get(name) or "")


def _preemption(status: Object) -> Iterator[Trouble]:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("reason") == "PreemptionByScheduler":
            words = f"PreemptionByScheduler: {_word(condition, 'message')}"
            yield Trouble("preempted", "scheduler", words, _time(condition))


def _failure(status: Object, at_s: float) -> Iterator[Trouble]:
    """Of a pod that has failed as a whole: its kubelet did not admit it, or it was evicted."""
    reason, message = _word(status, "reason"), _word(status, "message")
    if reason in ("UnexpectedAdmissionError", "TopologyAffinityError") or reason.startswith("OutOf"):
        known = _REJECTED.search(message)
        yield Trouble("rejected", known[0] if known else reason, f"{reason}: {message}", at_s)
    elif reason in ("Evicted", "NodeLost"):
        yield Trouble("evicted", reason, f"{reason}: {message}", at_s)
    elif reason in ("Preempting", "Preempted"):
        yield Trouble("preempted", reason, f"{reason}: {message}", at_s)
    elif reason == "DeadlineExceeded":
        yield Trouble("exited", "its time limit: activeDeadlineSeconds", f"{reason}: {message}", at_s)


def _is_ready(status: Object) -> bool:
    """The pod's Ready condition decides; a pod without one is ready when all its containers are."""
    told = [c.get("status") == "True" for c in status.get("conditions") or [] if c.get("type") == "Ready"]
    containers = status.get("containerStatuses") or []
    return any(told) if told or not containers else all(c.get("ready") for c in containers)


def _exits(status: Object, at_s: float) -> Iterator[Trouble]:
    """Of a pod that failed by itself: the containers that ended with an error."""
    for container in status.get("containerStatuses") or ():
        ended = _part(container, "state", "terminated")
        code = ended.get("exitCode")
        if isinstance(code, int) and code not in _MEANT:
            cause = f"{_word(container, 'name')}, exit code {code}"
            yield Trouble("exited", cause, f"{ended.get('reason') or 'Error'}: {_word(ended, 'message')}", at_s)


def _of_container(container: Object, pod: Object) -> Iterator[Trouble]:
    """Why a container waits, or how it ended last."""
    waiting, name = _part(container, "state", "waiting"), _word(container, "name")
    reason, message = _word(waiting, "reason"), _word(waiting, "message")
    words = f"{reason}: {message}"
    ended = _part(container, "state", "terminated") or _part(container, "lastState", "terminated")
    own: Object = next((c for c in pod["spec"].get("containers") or [] if c.get("name") == name), {})
    if reason in IMAGE:
        image = _word(container, "image") or _word(own, "image") or name
        of_all = bool(_OF_THE_REGISTRY.search(message))  # a registry that does not answer stops every image of it
        yield Trouble("registry" if of_all else "image_pull", image.partition("/")[0] if of_all else image, words)
    elif reason in CREATE:
        yield Trouble(*maker(message, name), words)
    elif reason == "CrashLoopBackOff" and int(container.get("restartCount") or 0) >= CRASHES:
        code = f"exit code {ended.get('exitCode', 'unknown')}"
        told = f"{words} ({container.get('restartCount')} restarts, last {code}, {ended.get('reason')})"
        yield Trouble("crash_loop", f"{name}, {code}", told)
    elif ended.get("reason") in CREATE | {"ContainerCannotRun"}:
        said = _word(ended, "message")
        yield Trouble(*maker(said, name), f"{ended['reason']}: {said}")
    if ended.get("reason") == "OOMKilled":
        limit = _part(own, "resources", "limits").get("memory", "none")
        told = f"OOMKilled: container {name}, exit code {ended.get('exitCode')}, memory limit {limit}"
        yield Trouble("oom", name, told, _moment(ended.get("finishedAt")))


def maker(message: str, container: str) -> tuple[str, str]:
    """(trouble, cause) where a container was not made: NVIDIA's runtime is the platform's, the rest its owner's.

    >>> maker("runc create failed: nvidia-container-cli: device error: no-gpu-7: unknown device", "main")
    ('runtime', 'device error: no-gpu-…: unknown device')
    """
    if not _OF_THE_RUNTIME.search(message):
        return "config", _gist(message) or container
    said = _RUNTIME_SAYS.search(message)
    return "runtime", _gist(said.group(1) if said else message)


CRASHES = 3
"""Restarts until a back-off is a loop: the kubelet's waits of 10, 20 and 40 s have not helped."""


def _gist(message: str) -> str:
    """A message without what differs from pod to pod: identifiers, addresses and quoted names of pods."""
    return re.sub(r'"[^"]*-[^"]*"|[0-9a-f]{8,}|\d+', "…", message)[:80]


def of_job(kind: str, gpu_resource: str, obj: Object) -> tuple[Trouble, ...] | None:
    """The failure that a controller of GPU jobs reports; None while it runs, or where another job owns it."""
    meta, status = obj["metadata"], obj.get("status") or {}
    owners = [r.get("kind") for r in meta.get("ownerReferences") or [] if r.get("controller")]
    # what a JobSet or TrainJob starts again is not over: the outermost decides
    if any(owner in JOB_PATHS for owner in owners) or not _asks_for(obj.get("spec"), gpu_resource):
        return None
    told = [(c, "Failed") for c in status.get("conditions") or [] if c.get("type") == "Failed"]
    # a RayJob has no conditions but two words, its deployment's and its own
    if kind == "RayJob" and "FAILED" in (
        str(status.get("jobStatus")),
        str(status.get("jobDeploymentStatus")).upper(),
    ):
        told.append(({"status": "True", "lastTransitionTime": status.get("endTime"), **status}, "FAILED"))
    for condition, word in told:
        if condition.get("status") == "True":
            why = str(condition.get("reason") or word)
            return (
                Trouble("job_failed", why, f"{kind} {why}: {condition.get('message') or ''}", _time(condition)),
            )
    return None


JOB_PATHS = {
    "Job": "/apis/batch/v1/jobs",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
    "PyTorchJob": "/apis/kubeflow.org/v1/pytorchjobs",
    "MPIJob": "/apis/kubeflow.org/v2beta1/mpijobs",
    "RayJob": "/apis/ray.io/v1/rayjobs",
    "TrainJob": "/apis/trainer.kubeflow.org/v1alpha1/trainjobs",
}
"""What is followed of jobs, where the cluster has it and lets us."""


def is_infrastructure(obj: Object) -> bool:
    """Whether a pod serves the GPUs of its node: a DaemonSet's, whose name or image says so."""
    meta = obj["metadata"]
    owner: Object = next((r for r in meta.get("ownerReferences") or [] if r.get("controller")), {})
    images = [str(c.get("image")) for c in (obj.get("spec") or {}).get("containers") or []]
    named = " ".join([str(meta.get("name")), *images])
    return owner.get("kind") == "DaemonSet" and _INFRASTRUCTURE.search(named) is not None


def _asks_for(spec: Any, gpu_resource: str) -> bool:
    """Whether GPUs are asked for anywhere within a template, however deep its kind keeps it."""
    if isinstance(spec, Mapping):
        vendor = gpu_resource.partition("/")[0]
        own = any(str(key).startswith((gpu_resource, f"{vendor}/mig-")) for key in spec)
        return own or any(_asks_for(value, gpu_resource) for value in spec.values())
    return isinstance(spec, list) and any(_asks_for(value, gpu_resource) for value in spec)


def _count(resources: Any, gpu_resource: str) -> int:
    text = str((resources or {}).get(gpu_resource, "0"))
    return int(text) if text.isdecimal() else 0


def _ended_s(meta: Object, status: Object) -> float:
    """When a failed pod ended: its containers', else its admission's time."""
    ends = [
        _moment(((c.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for c in status.get("containerStatuses") or []
    ]
    return max([*ends, _moment(status.get("startTime")), _moment(meta.get("creationTimestamp"))])


def _time(condition: Object) -> float:
    return _moment(condition.get("lastTransitionTime"))


def _moment(text: Any) -> float:
    """Unix s of an RFC 3339 time; 0 where there is none."""
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else 0.0
    except ValueError:
        return 0.0
