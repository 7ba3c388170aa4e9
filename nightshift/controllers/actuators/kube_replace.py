"""Gives a node's machine back to what made it, and has a cloud begin maintenance, by fields of Kubernetes alone.

    karpenter     the NodeClaim is deleted; Karpenter ends the machine and makes one for pods that wait
    cluster_api   the Machine is deleted; its MachineSet makes another
    gke           a label reports the host as faulty; GKE moves the node to another host

Before that the node is drained as by any plan: gangs stop whole and start elsewhere from their newest checkpoint.
What is deleted must name this very node, and is deleted by its uid. Where the node is gone, or another machine
bears its name, nothing is left to do, whoever did it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from nightshift.collectors.base import Permanent
from nightshift.collectors.kubernetes.makers import CLUSTER_API, GKE, GKE_DUE, GKE_START, KARPENTER, REASON, maker
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, OutcomeStatus, UnderWay
from nightshift.controllers.actuators import kube_nodes
from nightshift.controllers.actuators.kube_client import KubeClient, Object, named
from nightshift.controllers.actuators.kube_marks import MARKER, Marks
from nightshift.controllers.actuators.kube_workloads import POLL_S

_O = OutcomeStatus
_GKE_FAULT = "cloud.google.com/fault-behavior"
_GKE_STATUS = "cloud.google.com/report-and-replace-status"
_VERSIONS = {KARPENTER: ("karpenter.sh", ("v1",)), CLUSTER_API: ("cluster.x-k8s.io", ("v1beta2", "v1beta1"))}


class Emptying(Protocol):
    """Carries drains out and reads them back (`controllers.actuators.kubernetes.Drains`)."""

    def execute(self, action: Action) -> ActionOutcome: ...

    def read(self, action: Action) -> ActionOutcome: ...


class Replacements:
    """`drains`: carries drains out. `owns_cordon`: whether a node's cordon is ours alone."""

    def __init__(
        self,
        kube: KubeClient,
        marks: Marks,
        drains: Emptying,
        owns_cordon: Callable[[Object], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._kube, self._marks, self._drains = kube, marks, drains
        self._owns_cordon, self._now_s = owns_cordon, now_s

    def replace_node(self, action: Action) -> ActionOutcome:
        path, drain = kube_nodes.path(action.target.name), _drain_of(action)
        node = self._kube.find(path)
        if node is None or not _is_same(action, node):
            return self._gone(action, drain)
        made_by = maker(node)
        made = self._maker(made_by, action) if not made_by.startswith(f"{GKE} ") else None
        if made is not None and not made[1] and self._drains.read(drain).status is not _O.DONE:
            told = f"this API server has no {made_by}: ask its management cluster"
            raise Permanent(f"action {action.id}: {told}")
        if self._marks.phase(node, action) is None:
            emptied = self._drains.execute(drain)
            if emptied.status not in (_O.DONE, _O.ALREADY_DONE):
                return replace(emptied, detail=f"{action.target} is not emptied: {emptied.detail}")
        if made is None:
            return self._report(action, path)
        # one that is gone already was deleted before a crash: its node follows
        if made[1] and not made[1]["metadata"].get("deletionTimestamp"):
            body = {"preconditions": {"uid": made[1]["metadata"]["uid"]}}
            self._kube.request("DELETE", made[0], body=body)
        raise UnderWay(f"{made_by} gives {action.target.name} back", retry_after_s=POLL_S)

    def read(self, action: Action) -> ActionOutcome:
        node = self._kube.find(kube_nodes.path(action.target.name))
        drained = self._drains.read(_drain_of(action))
        if node is None or not _is_same(action, node):
            status = _O.UNDER_WAY if drained.status is _O.UNDER_WAY else _O.DONE
            return self._outcome(status, f"{action.target} is gone or another machine")
        if self._marks.phase(node, action) == "done":
            return self._outcome(_O.DONE, f"{action.target} is reported to GKE")
        begun = drained.status is not _O.NOT_DONE or self._marks.has(node, action)
        return self._outcome(_O.UNDER_WAY if begun else _O.NOT_DONE, f"{action.target} is this machine still")

    def start_maintenance(self, action: Action) -> ActionOutcome:
        path = kube_nodes.path(action.target.name)
        node = self._kube.get(path)
        labels = node["metadata"].get("labels") or {}
        if labels.get(GKE_START):
            return self._outcome(_O.ALREADY_DONE, f"{action.target} has the label {GKE_START}")
        # nothing takes the request back: a notice that was withdrawn since the approval ends the plan
        if not labels.get(GKE_DUE):
            told = f"Google Cloud no longer announces maintenance of {action.target.name}"
            raise Permanent(f"action {action.id}: {told}")
        self._marks.patch(path, node, action, {"metadata": {"labels": {GKE_START: "true"}}})
        return self._outcome(_O.DONE, f"GKE is asked to maintain the host of {action.target.name} now")

    def _gone(self, action: Action, drain: Action) -> ActionOutcome:
        """Starts again what was stopped for a node that is not there any longer."""
        again = ""
        if self._drains.read(drain).status is _O.UNDER_WAY:
            again = f"; {self._drains.execute(drain).detail}"
        return self._outcome(_O.ALREADY_DONE, f"{action.target} is gone or another machine{again}")

    def _maker(self, made_by: str, action: Action) -> tuple[str, Object]:
        """The path and the object that is deleted, empty where it is not here. Raises Permanent where it is not of
        this node."""
        sort, _, name = made_by.partition(" ")
        if sort not in _VERSIONS:
            raise Permanent(f"action {action.id}: nothing here gives {action.target.name} back")
        group, versions = _VERSIONS[sort]
        space, _, short = name.rpartition("/")
        tail = f"namespaces/{named(space)}/machines/{named(short)}" if space else f"nodeclaims/{named(short)}"
        for path in (f"/apis/{group}/{version}/{tail}" for version in versions):
            found = self._kube.find(path) if self._kube.serves(path) else None
            if found is None:
                continue
            status = found.get("status") or {}
            told = status.get("nodeName") if sort == KARPENTER else (status.get("nodeRef") or {}).get("name")
            if told != action.target.name:
                raise Permanent(f"action {action.id}: {made_by} is of {told}, not {action.target.name}")
            return path, found
        return "", {}

    def _report(self, action: Action, path: str) -> ActionOutcome:
        """Reports the host to GKE; done once GKE has taken the report. Our cordon ends then: GKE keeps pods away
        by a taint until the node is on another host, and nothing would uncordon it there."""
        node = self._kube.get(path)
        phase = self._marks.phase(node, action)
        if phase is None:
            labels = {_GKE_FAULT: str(action.params.get(REASON, "unspecified")), _GKE_STATUS: None}
            self._marks.patch(path, node, action, {"metadata": {"labels": labels}}, phase="reported")
            raise UnderWay(f"{action.target.name} is reported to GKE", retry_after_s=POLL_S)
        status = str((node["metadata"].get("labels") or {}).get(_GKE_STATUS, ""))
        if phase == "done":
            return self._outcome(_O.ALREADY_DONE, f"{action.id} reported it before")
        if status.lower() == "error":
            why = f"GKE does not take the report of {action.target.name}; the node stays cordoned"
            return ActionOutcome(_O.FAILED, why, self._now_s(), {"cordoned": "true"})
        if not status.lower().startswith("operation"):
            raise UnderWay(f"GKE empties {action.target.name}: {status or 'no status yet'}", retry_after_s=POLL_S)
        change: Object = {}
        if self._owns_cordon(node):
            annotations = {MARKER + ActionKind.DRAIN: None}
            change = {"spec": {"unschedulable": None}, "metadata": {"annotations": annotations}}
        self._marks.patch(path, node, action, change)
        return self._outcome(_O.DONE, f"GKE moves {action.target.name} to another host ({status})")

    def _outcome(self, status: OutcomeStatus, detail: str) -> ActionOutcome:
        return ActionOutcome(status, detail, self._now_s())


def _drain_of(action: Action) -> Action:
    return replace(action, id=f"{action.id}-drain", kind=ActionKind.DRAIN)


def _is_same(action: Action, node: Object) -> bool:
    """Whether a Node is the machine that the plan is about, as far as the plan names its uid."""
    uids = [p.expected for p in action.preconditions if (p.subject, p.fact) == (action.target, "uid")]
    return all(uid == node["metadata"].get("uid") for uid in uids)
