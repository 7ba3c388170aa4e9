"""What makes a node again once its machine is given up, by the Node object alone; and what its cloud announces.

    karpenter     the NodeClaim that owns the Node (kubernetes-sigs/karpenter, pkg/utils/nodeclaim)
    cluster_api   the Machine that annotations name (kubernetes-sigs/cluster-api, api/core common_types.go)
    gke           GKE itself, by a label on the Node ("Report faulty hosts through GKE")
    eks, aks      a managed pool that only the cloud's own API reaches

Announcements (`notices`): labels of GKE ("Manage GKE node disruption for GPUs and TPUs"), conditions that AKS's
node-problem-detector sets from Azure's Scheduled Events, taints of AWS Node Termination Handler (pkg/node/node.go).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from nightshift.collectors.kubernetes.api import Object

REPLACED_BY = "replaced_by"
"""A fact of a node: `karpenter NAME`, `cluster_api NAMESPACE/NAME`, `gke POOL`, `eks POOL` or `aks POOL`."""
REASON = "reason"
"""A parameter of a plan: why a node is replaced, in the words of GKE's label `fault-behavior`."""
KARPENTER, CLUSTER_API, GKE = "karpenter", "cluster_api", "gke"
MACHINE, MACHINE_NAMESPACE = "cluster.x-k8s.io/machine", "cluster.x-k8s.io/cluster-namespace"
OWNER_KIND = "cluster.x-k8s.io/owner-kind"
GKE_POOL, GKE_START = "cloud.google.com/gke-nodepool", "cloud.google.com/perform-maintenance"
GKE_DUE, GKE_ACTIVE = "cloud.google.com/scheduled-maintenance-time", "cloud.google.com/active-node-maintenance"
_POOLS = (
    (GKE_POOL, GKE),
    ("eks.amazonaws.com/nodegroup", "eks"),
    ("kubernetes.azure.com/agentpool", "aks"),
)
_OWN_METAL = ("metal3://", "tinkerbell://", "maas://", "byoh://")
"""Providers of Cluster API that would install the same machine again."""
AZURE_CONDITIONS = frozenset({"VMEventScheduled", "PreemptionScheduled"})
"""A preemption sets both of them."""
_AZURE = re.compile(
    r"\s*(Reboot|Redeploy|Terminate|Preempt) (?:Scheduled|Started)"
    r"(?::\s*(\w{3}, +\d\d? \w{3} \d{4} [\d:]{7,8} (?:GMT|UTC)))?"
)
"""`EVENT STATUS[: NOT BEFORE]. For more information…`; a freeze lasts seconds, and AKS does nothing about it."""
_AWS = {
    "aws-node-termination-handler/scheduled-maintenance": "maintenance of the host",
    "aws-node-termination-handler/spot-itn": "the end of a spot instance",
}
NOTICE = "notice"
"""The trouble of a node (`collectors.kubernetes.states`), and the fact `trouble` of its finding."""
DUE = re.compile(r", due (\S+Z)$")
"""How the words of a notice end where its time is known."""


def maker(node: Object) -> str:
    """What makes a Node again; empty where its object does not say.

    >>> maker({"metadata": {"labels": {"cloud.google.com/gke-nodepool": "a3"}}})
    'gke a3'
    """
    meta = node["metadata"]
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    for owner in meta.get("ownerReferences") or ():
        if owner.get("kind") == "NodeClaim" and str(owner.get("apiVersion")).startswith("karpenter.sh/"):
            return f"{KARPENTER} {owner.get('name')}"
    machine, space = notes.get(MACHINE), notes.get(MACHINE_NAMESPACE)
    provider = str((node.get("spec") or {}).get("providerID") or "")
    if machine and space and notes.get(OWNER_KIND) == "MachineSet" and not provider.startswith(_OWN_METAL):
        return f"{CLUSTER_API} {space}/{machine}"
    return next((f"{sort} {labels[label]}" for label, sort in _POOLS if labels.get(label)), "")


def notices(node: Object) -> Iterator[tuple[str, str]]:
    """What the cloud announces of a Node's machine: (who announces it, words).

    >>> labels = {"cloud.google.com/scheduled-maintenance-time": "1790000000"}
    >>> list(notices({"metadata": {"labels": labels}}))
    [('Google Cloud', 'maintenance of the host, due 2026-09-21T14:13:20Z')]
    """
    due = str((node["metadata"].get("labels") or {}).get(GKE_DUE, ""))
    if due.isdecimal() and len(due) < 12:
        yield "Google Cloud", f"maintenance of the host{_due(datetime.fromtimestamp(int(due), UTC))}"
    yield from dict.fromkeys(_of_azure((node.get("status") or {}).get("conditions") or ()))
    for taint in (node.get("spec") or {}).get("taints") or ():
        if words := _AWS.get(str(taint.get("key"))):
            yield "AWS", words


def _of_azure(conditions: Iterable[Object]) -> Iterator[tuple[str, str]]:
    for condition in conditions:
        if condition.get("type") in AZURE_CONDITIONS and condition.get("status") == "True":
            told = _AZURE.match(str(condition.get("message") or ""))
            if told is not None:
                due = _due(parsedate_to_datetime(told[2])) if told[2] else ""
                yield "Azure", f"{told[1].lower()} of the machine{due}"


def _due(at: datetime) -> str:
    return f", due {at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
