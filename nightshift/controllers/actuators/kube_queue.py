"""Steers waiting jobs through what Kueue and Kubernetes offer for it; stops nothing that runs.

Three gates, each put there by the job's owner or the queue's, and each only ever opened by us:

    AdmissionCheck      of Kueue, whose `spec.controllerName` is ours: its state on a Workload goes from Pending to
                        Ready. Never Retry or Rejected: Kueue evicts an admitted Workload for those.
    admission-gated-by  annotation `kueue.x-k8s.io/admission-gated-by` on the job: our name is taken off the list.
                        It can be put there at creation only (KEP-6915), so it is always the owner's own doing.
    scheduling gates    of a pod, those whose name begins with ours; gates of others are left alone. Before they
                        come off, the pod can be made to prefer nodes (`kube_place`).

A *hold* writes nothing but its end (`nightshift.dev/hold-until`) on the gated object, so that whoever looks can
see until when. `overdue` finds what is gated past that, or past `longest_hold_s` since creation, by the objects
alone: a process that knows nothing of the one that died opens them. *Boosts* are the annotation
`kueue.x-k8s.io/priority-boost` of a Workload without quota (KEP-7990: effective priority = priority + boost); a
boost that is not ours is never touched, and none is set in a ClusterQueue that evicts for priority.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.kubernetes.api import Busy
from nightshift.collectors.seal import fingerprint
from nightshift.controllers.actuators.kube_client import KubeClient, NotFound, Object
from nightshift.controllers.actuators.kube_jobs import KINDS, JobKind
from nightshift.controllers.actuators.kube_place import placed, placement
from nightshift.controllers.actuators.kubernetes import FIELD_MANAGER
from nightshift.controllers.scheduling.steer import Steer, SteerVerb

CONTROLLER = "nightshift.dev/scheduling"
"""Our controllerName, our name in admission-gated-by, and what our pod gates begin with."""
HOLD_UNTIL = "nightshift.dev/hold-until"
BOOSTED = "nightshift.dev/boosted"
GATED_BY = "kueue.x-k8s.io/admission-gated-by"
BOOST = "kueue.x-k8s.io/priority-boost"
VOLCANO_QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"
_GROUP = "/apis/kueue.x-k8s.io"
T = TypeVar("T")


class QueueSettings(BaseModel):
    """Opens gates of waiting jobs and moves them in Kueue's queues."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kueue_version: Literal["v1beta1", "v1beta2"] = Field(
        default="v1beta1", description="Version of Kueue's API; unused without Kueue."
    )
    longest_hold_s: float = Field(
        default=3600.0,
        gt=0,
        description="Longest time from a job's creation until Nightshift opens its gate (s).",
    )


@dataclass(frozen=True)
class GangGate:
    """One shut gate of ours. `kind`: check, annotation or pod; `path` of the object that carries it."""

    kind: Literal["check", "annotation", "pod"]
    path: str
    name: str
    since_s: float
    until_s: float
    """End of its hold as written on it; 0 where nothing is."""


class KubernetesQueue:
    """Reads gates, opens them, writes holds and boosts. Every write holds only for the version that was read."""

    Settings = QueueSettings

    def __init__(
        self, kube: KubeClient, settings: QueueSettings | None = None, *, now_s: Callable[[], float] = time.time
    ) -> None:
        self._kube, self.settings, self._now_s = kube, settings or QueueSettings(), now_s
        self._kueue = f"{_GROUP}/{self.settings.kueue_version}"

    # What is gated -----------------------------------------------------------------------------------------------

    def gates(self) -> list[GangGate]:
        """Every shut gate of ours in the cluster. Kinds that the cluster lacks have none."""
        return [*self._checked(), *self._annotated(), *self._gated_pods()]

    def overdue(self, gates: Sequence[GangGate] | None = None) -> list[GangGate]:
        """Gates that nobody holds any more: past their hold's end, or past the longest hold altogether. `gates`:
        those that were seen already; none: the server is asked."""
        now_s, longest_s = self._now_s(), self.settings.longest_hold_s
        return [
            gate
            for gate in (self.gates() if gates is None else gates)
            # counted from the creation, which no hold moves: a policy that renews holds for ever is cut off here
            if now_s >= gate.since_s + longest_s or (gate.until_s and now_s >= gate.until_s)
        ]

    def release_overdue(self, gates: Sequence[GangGate] | None = None) -> list[GangGate]:
        """Opens them, at every start and on every turn. What changed meanwhile is left for the next turn."""
        overdue = self.overdue(gates)
        tried(overdue, self.open)
        return overdue

    def _checked(self) -> Iterator[GangGate]:
        ours = self._our_checks()
        for item in self._all(f"{self._kueue}/workloads") if ours else []:
            gate = check_gate(item, ours, self._kueue)
            if gate is not None:
                yield gate

    def _annotated(self) -> Iterator[GangGate]:
        for kind in KINDS:
            for item in self._all(f"/{kind.api}/{kind.plural}"):
                gate = annotation_gate(item, kind)
                if gate is not None:
                    yield gate

    def _gated_pods(self) -> Iterator[GangGate]:
        for item in self._all("/api/v1/pods"):
            gate = pod_gate(item)
            if gate is not None:
                yield gate

    def _our_checks(self) -> set[str]:
        return {name for item in self._all(f"{self._kueue}/admissionchecks") if (name := our_check(item))}

    def _all(self, path: str) -> list[Object]:
        try:
            return list(self._kube.list(path))
        except NotFound:
            return []

    # What is written ---------------------------------------------------------------------------------------------

    def open(self, gate: GangGate) -> bool:
        """Opens a gate; False where it was open or is gone."""
        item = self._kube.find(gate.path)
        if item is None:
            return False
        version = str(item["metadata"]["resourceVersion"])
        if gate.kind == "check":
            return self._pass_checks(gate.path, item, version)
        if gate.kind == "annotation":
            # names of others stay on the list: each opens its own gate
            others = [name for name in _listed(item) if name != CONTROLLER]
            if len(others) == len(_listed(item)):
                return False
            change: Object = {"metadata": {"annotations": {GATED_BY: ",".join(others) or None, HOLD_UNTIL: None}}}
        else:
            gates = (item.get("spec") or {}).get("schedulingGates") or []
            kept = [g for g in gates if not _is_ours(g)]
            if len(kept) == len(gates):
                return False
            change = {"metadata": {"annotations": {HOLD_UNTIL: None}}, "spec": {"schedulingGates": kept}}
        self._kube.merge(gate.path, change, version=version, manager=FIELD_MANAGER)
        return True

    def _pass_checks(self, path: str, item: Object, version: str) -> bool:
        ours, states = self._our_checks(), (item.get("status") or {}).get("admissionChecks") or []
        at = datetime.fromtimestamp(self._now_s(), UTC).isoformat(timespec="seconds")
        passed = {"state": "Ready", "message": "nightshift: may start", "lastTransitionTime": at}
        made = [
            # one that is Ready keeps the time at which it became so
            {**state, **passed} if state.get("name") in ours and state.get("state") == "Pending" else state
            for state in states
        ]
        if made == states:
            return False
        change = {"status": {"admissionChecks": made}}
        self._kube.merge(f"{path}/status", change, version=version, manager=FIELD_MANAGER)
        return True

    def hold(self, gate: GangGate, until_s: float) -> None:
        """Writes the end of a hold on what is gated. It shuts nothing: the gate is shut already, by its owner."""
        if until_s > gate.since_s + self.settings.longest_hold_s:
            raise Permanent(f"{gate.name}: a hold until {until_s:.0f} is longer than longest_hold_s allows")
        item = self._kube.find(gate.path)
        if item is None or (item["metadata"].get("annotations") or {}).get(HOLD_UNTIL) == f"{until_s:.0f}":
            return
        change = {"metadata": {"annotations": {HOLD_UNTIL: f"{until_s:.0f}"}}}
        version = str(item["metadata"]["resourceVersion"])
        self._kube.merge(gate.path, change, version=version, manager=FIELD_MANAGER)

    def prefer(self, gate: GangGate, prefer: Sequence[str], avoid: Sequence[str]) -> bool:
        """Makes a pod that carries our gate prefer some hosts and keep off others, before the gate comes off; False
        where it carries none any more. Raises Permanent for a gate that is not a pod's."""
        if gate.kind != "pod":
            raise Permanent(f"{gate.name}: a preference of nodes is written on pods only, not on a {gate.kind}")
        item = self._kube.find(gate.path)
        if item is None or pod_gate(item) is None:
            return False
        if placed(item) == (tuple(prefer), tuple(avoid)):
            return True
        change, version = placement(item, prefer, avoid), str(item["metadata"]["resourceVersion"])
        self._kube.merge(gate.path, change, version=version, manager=FIELD_MANAGER)
        return True

    def boost(self, workload: str, value: int) -> str:
        """Moves a waiting Workload (`namespace/name`) in its queue; returns why not, empty where it is done."""
        namespace, _, name = workload.partition("/")
        path = f"{self._kueue}/namespaces/{namespace}/workloads/{name}"
        item = self._kube.get(path)
        annotations = item["metadata"].get("annotations") or {}
        if holds_quota(item):
            return "it has quota already: a boost could only make others be evicted"
        # BOOSTED repeats what we wrote: another value was written since, by somebody else
        if BOOST in annotations and annotations.get(BOOSTED) != annotations[BOOST]:
            return "another client has set its boost"
        if annotations.get(BOOST) == str(value) or (value == 0 and BOOST not in annotations):
            return ""
        if value and self.evicts(item):
            return "its ClusterQueue evicts for priority"
        text = str(value) if value else None
        change = {"metadata": {"annotations": {BOOST: text, BOOSTED: text}}}
        version = str(item["metadata"]["resourceVersion"])
        self._kube.merge(path, change, version=version, manager=FIELD_MANAGER)
        return ""

    def tell(self, text: str) -> int:
        """One Event on every ClusterQueue of Kueue and every Queue of Volcano; returns how many were written. No
        field of theirs says when capacity comes back, and the right to patch a queue would be one over quotas."""
        told = 0
        for path, kind in ((f"{self._kueue}/clusterqueues", "ClusterQueue"), (VOLCANO_QUEUES, "Queue")):
            for queue in self._all(path) if self._kube.serves(path) else []:
                told += self._event(path, kind, queue["metadata"], text)
        return told

    def _event(self, path: str, kind: str, queue: Object, text: str) -> bool:
        """Written once: its name is made of what it says. It is in `default`, as of all that has no namespace."""
        at = datetime.fromtimestamp(self._now_s(), UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        about = {"apiVersion": "/".join(path.split("/")[2:4]), "kind": kind, "name": queue["name"]}
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"nightshift-{fingerprint([queue['uid'], text])[:20]}", "namespace": "default"},
            "involvedObject": {**about, "uid": queue["uid"]},
            "reason": "GPUsOutOfUse",
            "message": text[:1000],
            "type": "Normal",
            "source": {"component": FIELD_MANAGER},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        try:
            self._kube.request("POST", "/api/v1/namespaces/default/events", body=body)
        except Busy as error:
            if error.status != 409:
                raise
            return False
        return True

    def evicts(self, workload: Object) -> bool:
        """Whether a higher priority evicts in this Workload's ClusterQueue; not known is yes."""
        queue = (workload.get("spec") or {}).get("queueName")
        return self.queue_evicts(str(workload["metadata"]["namespace"]), str(queue or ""))

    def queue_evicts(self, namespace: str, queue: str) -> bool:
        """The same of a LocalQueue."""
        local = self._kube.find(f"{self._kueue}/namespaces/{namespace}/localqueues/{queue}") if queue else None
        if local is None:
            return True
        cluster_queue = self._kube.find(f"{self._kueue}/clusterqueues/{local['spec'].get('clusterQueue')}")
        if cluster_queue is None:
            return True
        # a rule that is not set is Never (Kueue's API reference, ClusterQueuePreemption)
        rules = (cluster_queue.get("spec") or {}).get("preemption") or {}
        return any(rules.get(key, "Never") != "Never" for key in ("withinClusterQueue", "reclaimWithinCohort"))

    def queue_shares(self, namespace: str, queue: str) -> bool:
        """Whether a LocalQueue carries `nightshift.dev/share: "true"`."""
        local = self._kube.find(f"{self._kueue}/namespaces/{namespace}/localqueues/{queue}")
        meta = {} if local is None else local["metadata"]
        return "true" in ((meta.get(each) or {}).get("nightshift.dev/share") for each in ("labels", "annotations"))

    def read_back(self, gate: GangGate) -> Steer:
        """What stands on the object now: a hold and its end, or open."""
        item = self._kube.find(gate.path)
        if item is None:
            return Steer(SteerVerb.START)
        match gate.kind:
            case "check":
                again = check_gate(item, self._our_checks(), self._kueue)
            case "pod":
                again = pod_gate(item)
            case _:
                again = None if CONTROLLER not in _listed(item) else _gate("annotation", gate.path, item)
        boost = (item["metadata"].get("annotations") or {}).get(BOOSTED, "0")
        value = int(boost) if boost.lstrip("-").isdecimal() else 0
        if again:
            return Steer(SteerVerb.HOLD, again.until_s, value)
        prefer, avoid = placed(item) if gate.kind == "pod" else ((), ())
        return Steer(SteerVerb.START, boost=value, prefer=prefer, avoid=avoid)


def tried(gates: Sequence[GangGate], write: Callable[[GangGate], T]) -> list[T]:
    """Writes each, whatever became of the others: one gate that cannot be written keeps no other shut. Then raises
    what the first failed with."""
    done, failed = list[T](), list[Temporary | Permanent]()
    for gate in gates:
        try:
            done.append(write(gate))
        except (Temporary, Permanent) as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return done


def our_check(item: Object) -> str:
    """Name of an AdmissionCheck that is ours, or empty."""
    return str(item["metadata"]["name"]) if item["spec"].get("controllerName") == CONTROLLER else ""


def check_gate(item: Object, checks: Set[str], kueue: str) -> GangGate | None:
    """The shut gate of a Workload that waits for one of our checks."""
    states = (item.get("status") or {}).get("admissionChecks") or []
    if any(s.get("name") in checks and s.get("state") == "Pending" for s in states):
        return _gate("check", f"{kueue}/namespaces/{_place(item, 'workloads')}", item)
    return None


def annotation_gate(item: Object, kind: JobKind) -> GangGate | None:
    """The shut gate of a job whose list has our name on it."""
    if CONTROLLER not in _listed(item):
        return None
    return _gate("annotation", f"/{kind.api}/namespaces/{_place(item, kind.plural)}", item)


def pod_gate(item: Object) -> GangGate | None:
    """The shut gate of a pod."""
    if not any(_is_ours(g) for g in (item.get("spec") or {}).get("schedulingGates") or []):
        return None
    return _gate("pod", f"/api/v1/namespaces/{_place(item, 'pods')}", item)


def _gate(kind: Literal["check", "annotation", "pod"], path: str, item: Object) -> GangGate:
    meta = item["metadata"]
    try:
        until_s = float((meta.get("annotations") or {}).get(HOLD_UNTIL, 0.0))
    except ValueError:
        until_s = math.nan
    if not math.isfinite(until_s):
        until_s = 1.0  # whatever stands there, it is no end: long past, so it opens
    return GangGate(kind, path, f"{meta['namespace']}/{meta['name']}", made_s(item), until_s)


def made_s(item: Object) -> float:
    """When an object was created (Unix s)."""
    return datetime.fromisoformat(str(item["metadata"]["creationTimestamp"]).replace("Z", "+00:00")).timestamp()


def _place(item: Object, plural: str) -> str:
    meta = item["metadata"]
    return f"{meta['namespace']}/{plural}/{meta['name']}"


def _listed(item: Object) -> list[str]:
    text = str((item["metadata"].get("annotations") or {}).get(GATED_BY, ""))
    return [name.strip() for name in text.split(",") if name.strip()]


def _is_ours(gate: Object) -> bool:
    return str(gate.get("name", "")).startswith(CONTROLLER)


def holds_quota(workload: Object) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "QuotaReserved" and c.get("status") == "True" for c in conditions)
