"""What each action asks of the API server, and what the actuator's identity may not do, asked without doing it.

`RIGHTS` is the one list, read from the table of action kinds: the Helm chart grants it
(`helm/nightshift/files/rights.yaml`, held equal by a test), doctor asks for it, and a test compares it with the
requests that an API server sees. SelfSubjectAccessReview (authorization.k8s.io/v1) answers for the caller, and
every authenticated user may ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nightshift.controllers.action import KINDS as ACTION_KINDS
from nightshift.controllers.action import WHOLE_JOBS, ActionKind
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_jobs import KINDS


class Right(NamedTuple):
    """One verb on one resource of a group (empty: core). Nodes, Karpenter's claims, Volcano's queues and
    Kueue's checks and cluster queues belong to no namespace."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    @property
    def namespaced(self) -> bool:
        return self.resource not in ("nodes", "nodeclaims", "admissionchecks", "clusterqueues", "queues")

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f"/{self.subresource}" if self.subresource else "")


def _rights(verbs: str, resource: str, group: str = "", subresource: str = "") -> frozenset[Right]:
    return frozenset(Right(verb, group, resource, subresource) for verb in verbs.split())


_JOBS = frozenset(
    Right(verb, kind.api.split("/")[1], kind.plural) for kind in KINDS for verb in ("get", "patch")
) | _rights("list patch", "workloads", "kueue.x-k8s.io")
"""Whole jobs, of every kind; a kind without its operator is asked for too, and answers 404 rather than 403."""

SOURCE_RIGHTS: Mapping[str, frozenset[Right]] = {
    "kubernetes": _rights("list watch", "nodes")
    | _rights("list watch", "pods")
    | frozenset(right for kind in KINDS for right in _rights("list watch", kind.plural, kind.api.split("/")[1])),
    "kubernetes_events": _rights("list watch", "nodes")
    | _rights("list watch", "events")
    | _rights("list watch", "deployments", "apps")
    | _rights("list watch", "daemonsets", "apps"),
    "node_agents": _rights("list", "pods"),
}
"""What each source asks for that reads the API server, by its `type`; of jobs the kinds that the cluster has."""
POWER_RIGHTS = _rights("list", "nodes")
"""What power control asks for: which machines are Nodes (`collectors.kubernetes.node_objects`)."""


def _all(texts: Iterable[str]) -> frozenset[Right]:
    """Rights as `kubectl auth can-i` writes them: `get patch nodes`, `create pods/eviction`, `get jobs.batch`."""
    found: frozenset[Right] = frozenset()
    for text in texts:
        *verbs, what = text.split()
        name, _, subresource = what.partition("/")
        plural, _, group = name.partition(".")
        found |= _JOBS if text == WHOLE_JOBS else _rights(" ".join(verbs), plural, group, subresource)
    return found


RIGHTS: Mapping[ActionKind, frozenset[Right]] = {
    kind: _all(row.rights) for kind, row in ACTION_KINDS.items() if row.rights is not None
}
OWN_RIGHTS: Mapping[ActionKind, frozenset[Right]] = {
    kind: _all(row.own_rights) for kind, row in ACTION_KINDS.items() if row.own_rights
}
"""Beside those, in the one namespace where repairs and searches run as Jobs."""
LEASE_RIGHTS = _rights("get create update", "leases", "coordination.k8s.io")
"""Electing a leader by a Lease, in the release's own namespace (`controllers.actuators.kube_lease`)."""


SEE_QUEUE_RIGHTS = _rights("list watch", "nodes") | _rights("list watch", "pods")
"""Following what scheduling sees (`controllers.actuators.kube_queue_follow`); no verb that writes."""
SEE_KUEUE_RIGHTS = _rights("list watch", "workloads", "kueue.x-k8s.io") | _rights(
    "list watch", "admissionchecks", "kueue.x-k8s.io"
)
STEER_RIGHTS = (
    _rights("get patch", "pods")
    | _rights("list", "queues", "scheduling.volcano.sh")
    | _rights("list", "clusterqueues", "kueue.x-k8s.io")
    | _rights("create", "events")
)
"""Opening gates of pods and writing holds on them, and telling queues what comes back, beside seeing; so too of
Kueue's and of jobs if followed."""
STEER_KUEUE_RIGHTS = (
    _rights("get patch", "workloads", "kueue.x-k8s.io")
    | _rights("patch", "workloads", "kueue.x-k8s.io", "status")
    | _rights("get", "localqueues", "kueue.x-k8s.io")
    | _rights("get", "clusterqueues", "kueue.x-k8s.io")
)


def scheduling_rights(*, act: bool, kueue: bool, kinds: Iterable[str]) -> frozenset[Right]:
    """What scheduling asks of the API server with these settings (`controllers.scheduling.settings`)."""
    found = SEE_QUEUE_RIGHTS | (SEE_KUEUE_RIGHTS if kueue else frozenset())
    if act:
        found |= STEER_RIGHTS | (STEER_KUEUE_RIGHTS if kueue else frozenset())
    wanted = set(kinds)
    for kind in KINDS:
        if kind.kind in wanted:
            verbs = "list watch get patch" if act else "list watch"
            found |= _rights(verbs, kind.plural, kind.api.split("/")[1])
    return found


def needed(kinds: Iterable[ActionKind]) -> list[Right]:
    """The rights of these kinds together, in the catalogue's order, each once."""
    return list(dict.fromkeys(right for kind in kinds for right in sorted(RIGHTS[kind])))


def refused(
    kube: KubeClient, kinds: Sequence[ActionKind], *, namespaces: Sequence[str] = (), own_namespace: str = ""
) -> list[str]:
    """What is not permitted, such as `patch nodes`: in these namespaces (none: in all) what belongs to one, and in
    the own one where repairs run; of jobs only Kubernetes's own kind is asked for, since others need their
    operator. Raises Temporary or Permanent."""
    native = ("", KINDS[0].api.split("/")[1], "apps", "autoscaling")
    wanted = [
        (right, place)
        for right in needed(kinds)
        if right.group in native
        for place in ((namespaces or ("",)) if right.namespaced else ("",))
    ]
    wanted += [(right, own_namespace) for kind in kinds for right in sorted(OWN_RIGHTS.get(kind, frozenset()))]
    lacks = [pair for pair in dict.fromkeys(wanted) if not is_allowed(kube, *pair)]
    return [f"{right} in {place}" if place else str(right) for right, place in lacks]


def is_allowed(kube: KubeClient, right: Right, namespace: str = "") -> bool:
    """Asks the API server whether this identity has a right. Raises Temporary or Permanent."""
    return bool(kube.review({**right._asdict(), "namespace": namespace}).get("allowed"))
