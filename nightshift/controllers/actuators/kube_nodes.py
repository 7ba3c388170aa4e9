"""Nodes as mitigations see them: cordoned or not, which pods a drain must move, which GPUs are quarantined.

A drain leaves what `kubectl drain` leaves: mirror pods, pods of a DaemonSet and pods that have ended. It refuses
what that refuses: pods that no controller would make again, and, if so set, pods whose data on the node's disk
would go with them (kubernetes.io/docs/tasks/administer-cluster/safely-drain-node, kubectl's pkg/drain/filters.go).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from nightshift.collectors.base import Temporary
from nightshift.collectors.topology import SPARE_TAINT
from nightshift.controllers.actuators.kube_client import KubeClient, NotFound, Object, named

QUARANTINE = "nightshift.dev/quarantined-gpus"
"""Annotation of a node: UUIDs separated by commas."""
QUARANTINE_LABEL = "nightshift.dev/quarantined"
"""Label of a node with at least one quarantined GPU, and key of the taint that keeps new pods off it: a device
plugin does not know of the quarantine and would give that GPU to the next pod."""

TAINT = "nightshift.dev/degraded"
"""Key of our taint; its value names the fault, its effect is NoSchedule."""
REPAIR_LABEL = "nightshift.dev/repair"
"""Label of our own repair Jobs and their pods."""
CLAIMS = ("quarantineHealthEvent", "quarantineHealthEventIsCordoned", "k8saas.nvidia.com/cordon-by")
"""Annotations and labels by which NVSentinel's fault-quarantine says that it keeps a node out of use
(github.com/NVIDIA/NVSentinel, fault-quarantine/pkg/common). On a node that is cordoned already it writes these
alone, and counts on the cordon."""

_DRAW_NAMES = frozenset(
    {("apps", "ReplicaSet"), ("v1", "ReplicationController"), ("batch", "Job"), ("apps", "DaemonSet")}
)


def path(name: str) -> str:
    return f"/api/v1/nodes/{named(name)}"


def is_cordoned(node: Object) -> bool:
    return (node.get("spec") or {}).get("unschedulable") is True


def cordoned_by(node: Object) -> set[str]:
    """The field managers that have written the cordon which stands; empty where the API server does not say
    (kubernetes.io/docs/reference/using-api/server-side-apply, "Field management")."""
    found = set()
    for entry in node["metadata"].get("managedFields") or []:
        if "f:unschedulable" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            found.add(str(entry.get("manager", "")))
    return found


def claimed(node: Object, claims: Iterable[str]) -> bool:
    """Whether another tool says of a node that it keeps it out of use, by an annotation or a label of its own."""
    meta = node["metadata"]
    said = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
    return any(str(said.get(key, "")).lower() not in ("", "false") for key in claims)


def is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def taints(node: Object) -> list[Object]:
    return list((node.get("spec") or {}).get("taints") or [])


def is_tainted(node: Object) -> bool:
    """By us, or by somebody with our key."""
    return any(taint.get("key") == TAINT for taint in taints(node))


def taint_patch(node: Object, value: str | None) -> Object:
    return {"spec": _tainted(node, TAINT, value)}


def spare_patch(node: Object, *, warm: bool) -> Object:
    """The change that makes a node a warm spare, or releases it."""
    return _tainted(node, SPARE_TAINT, "warm" if warm else None)


def is_spare(node: Object) -> bool:
    return any(taint.get("key") == SPARE_TAINT for taint in taints(node))


def _tainted(node: Object, key: str, value: str | None) -> Object:
    """All of a node's taints with this one, or without it if the value is None: a merge patch replaces the list."""
    kept = [taint for taint in taints(node) if taint.get("key") != key]
    ours = [] if value is None else [{"key": key, "value": value, "effect": "NoSchedule"}]
    return {"taints": kept + ours or None}


def quarantined(node: Object) -> list[str]:
    text = (node["metadata"].get("annotations") or {}).get(QUARANTINE, "")
    return [uuid for uuid in text.split(",") if uuid]


def quarantine_patch(node: Object, uuids: list[str]) -> Object:
    # None takes a key away in a merge patch (RFC 7386); an empty annotation would stay behind
    label = "true" if uuids else None
    meta = {"annotations": {QUARANTINE: ",".join(uuids) or None}, "labels": {QUARANTINE_LABEL: label}}
    return {"metadata": meta, "spec": _tainted(node, QUARANTINE_LABEL, label)}


def node_that_quarantines(kube: KubeClient, uuid: str) -> str | None:
    for node in kube.list("/api/v1/nodes", labelSelector=f"{QUARANTINE_LABEL}=true"):
        if uuid in quarantined(node):
            return str(node["metadata"]["name"])
    return None


def evictable(kube: KubeClient, node: str) -> list[Object]:
    """Pods that a drain has to move."""
    return [pod for pod in pods_on(kube, node) if _must_move(pod)]


def pods_on(kube: KubeClient, node: str) -> list[Object]:
    return kube.list("/api/v1/pods", fieldSelector=f"spec.nodeName={node}")


def _must_move(pod: Object) -> bool:
    meta = pod["metadata"]
    if REPAIR_LABEL in (meta.get("labels") or {}):
        return False  # the pod that repairs this very node
    if is_mirror(pod):
        return False
    # its DaemonSet tolerates the cordon and would make it again on this node at once
    if any(r.get("controller") and r["kind"] == "DaemonSet" for r in meta.get("ownerReferences") or []):
        return False
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def is_mirror(pod: Object) -> bool:
    """Whether it stands for a static pod, which only its node's kubelet starts and stops (kubernetes.io, "Static
    Pods"). Its owner is the Node, as a controller's would be."""
    return "kubernetes.io/config.mirror" in (pod["metadata"].get("annotations") or {})


def unmanaged(pod: Object) -> bool:
    """Whether nobody makes the pod again once it is gone."""
    return not any(r.get("controller") for r in pod["metadata"].get("ownerReferences") or [])


def has_successor_of_its_name(pod: Object) -> bool:
    """Whether its controller may make the pod again under the same name, as a StatefulSet does, and Volcano's Job;
    the built-in ones named here draw a new name each time."""
    owners = pod["metadata"].get("ownerReferences") or []
    owner: Object = next((r for r in owners if r.get("controller")), {})
    group = str(owner.get("apiVersion", "")).partition("/")[0]
    return (group, owner.get("kind")) not in _DRAW_NAMES


def has_local_data(pod: Object) -> bool:
    """Whether an emptyDir on the node's disk goes with the pod; one in memory (shared memory of NCCL) does not
    count."""
    volumes = (pod.get("spec") or {}).get("volumes") or []
    return any("emptyDir" in v and (v["emptyDir"] or {}).get("medium") != "Memory" for v in volumes)


def pod_name(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def held_by(pod: Object) -> str:
    """Who keeps a pod that should go, by its finalizers; empty where nobody does."""
    held = ", ".join(str(finalizer) for finalizer in pod["metadata"].get("finalizers") or [])
    return f", held by {held}" if held else ""


NO_DRY_RUN = "does not support dry run"
"""Of an admission webhook that was asked for its opinion (k8s.io/apiserver, admission/plugin/webhook/errors)."""
OVERDUE_S = 60.0


def overdue(pods: Iterable[Object], now_s: float) -> str:
    """Names pods that should have ended by now: no kubelet that answers lets one outlast its grace period, and none
    that does not ever ends one (kubernetes.io, "Non-graceful node shutdown handling")."""
    said = []
    for pod in pods:
        due = str(pod["metadata"].get("deletionTimestamp") or "")
        late_s = now_s - datetime.fromisoformat(due).timestamp() if due else 0.0
        if late_s > OVERDUE_S and not pod["metadata"].get("finalizers"):
            node = (pod.get("spec") or {}).get("nodeName", "no node")
            said.append(f"{pod_name(pod)} on {node} should have ended {late_s:.0f} s ago: its kubelet may be gone")
    return "".join(f"; {text}" for text in said[:3])


@dataclass(frozen=True)
class Wait:
    """What is waited for, and how long the API server asks not to be asked again (`Retry-After`)."""

    text: str
    retry_after_s: float = 0.0
    refused: bool = False
    """The server will not: waiting alone does not help."""


def evict(kube: KubeClient, pod: Object, grace_s: int | None, *, dry_run: bool = False) -> Wait | None:
    """Asks for one eviction (policy/v1) of this very pod; returns what is waited for, None where it is gone. A
    budget's 429, several budgets' 500, and the 403 of a namespace that is going are waits."""
    meta, name = pod["metadata"], pod_name(pod)
    if meta.get("deletionTimestamp"):
        return Wait(f"pod {name} is terminating{held_by(pod)}")
    options: Object = {"preconditions": {"uid": meta["uid"]}}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    if dry_run:
        options["dryRun"] = ["All"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        "deleteOptions": options,
    }
    try:
        kube.request("POST", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction", body=body)
    except NotFound:
        return None  # it ended by itself since it was listed
    except Temporary as error:
        return Wait(f"pod {name} waits: {error}", error.retry_after_s or 0.0)
    return Wait(f"pod {name} is terminating")
