"""Follows what scheduling has to see (nodes, GPU pods, gated jobs, Kueue's Workloads) and makes a `Snapshot` of it.

Lists once and watches from there, so a turn costs the API server nothing. A job is seen once, whatever objects
stand for it: its pods, itself, its Workload. What cannot be known stays unknown (0 GPUs), and then the baseline
decides. A view that is stale is no view: `snapshot` raises, and the turn is left out; what is past its time opens.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.kubernetes.api import KubeApi, Object
from nightshift.collectors.kubernetes.follow import Follower
from nightshift.collectors.kubernetes.nodes_and_pods import JOB_LABELS, OPT_OUT, QUEUE_LABEL
from nightshift.controllers.actuators.kube_jobs import KINDS, JobKind
from nightshift.controllers.actuators.kube_place import HOST
from nightshift.controllers.actuators.kube_queue import (
    GangGate,
    KubernetesQueue,
    annotation_gate,
    check_gate,
    holds_quota,
    made_s,
    our_check,
    pod_gate,
    tried,
)
from nightshift.controllers.scheduling.cluster import ClusterShape
from nightshift.controllers.scheduling.controller import JobSeen, Snapshot
from nightshift.controllers.scheduling.interference import UNKNOWN, Load
from nightshift.controllers.scheduling.settings import SchedulingSettings
from nightshift.controllers.scheduling.steer import Steer, SteerVerb

_NUMBER = re.compile(r"([-_.][0-9]+|[-_.][a-z0-9]{5}|[0-9]+)+$")
EVICTS_S = 300.0
SHARE, SHARES = "nightshift.dev/share", ("host", "guest")
"""Label or annotation by which an owner allows another job beside this one (`host`), and this one also to be the
guest, which may be stopped and started again (`guest`)."""
_GFD = "nvidia.com/gpu"


# Not heard for so long, the API server counts as lost: bookmarks come once a minute.
STALE_S = 180.0


class StaleView(Temporary):
    """The API server was not heard for too long to decide on what is known."""


@dataclass(frozen=True, slots=True)
class _Node:
    rack: str
    gpus: int
    takes: bool
    host: str = ""
    shares: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """What one object says of a job. `gpus`: 0 where it does not say; `node`: empty while it waits."""

    job: str
    gpus: int
    queue: str
    priority: int
    made_s: float
    opted_out: bool
    gate: GangGate | None = None
    node: str = ""
    started_s: float = math.nan
    workload: str = ""
    waits: bool = True
    share: str = ""
    """`SHARE` of the object, one of `SHARES` where its owner opted in."""


@dataclass
class QueueView:
    """`connect` gives a client of its own to each follower."""

    connect: Callable[[], KubeApi]
    settings: SchedulingSettings
    timer: Callable[[], float] = time.monotonic
    _nodes: dict[str, _Node] = field(default_factory=dict, init=False)
    _parts: dict[str, dict[str, _Part]] = field(default_factory=lambda: defaultdict(dict), init=False)
    _workloads: dict[str, Object] = field(default_factory=dict, init=False)
    _checks: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        kueue = f"/apis/kueue.x-k8s.io/{self.settings.queue.kueue_version}"
        self._kueue = kueue
        follow: dict[str, tuple[str, Callable[[Object], Any]]] = {
            "nodes": ("/api/v1/nodes", self._node),
            "pods": ("/api/v1/pods", self._pod),
        }
        resource = self.settings.labels.gpu_resource
        for kind in KINDS:
            if kind.kind in self.settings.kinds:
                follow[kind.plural] = (f"/{kind.api}/{kind.plural}", _annotated(kind, resource))
        if self.settings.kueue:
            follow["admissionchecks"] = (f"{kueue}/admissionchecks", lambda item: our_check(item) or None)
            follow["workloads"] = (f"{kueue}/workloads", _waiting)
        self._followers: dict[str, Follower[Any]] = {
            name: Follower(self.connect, path, project, self.timer) for name, (path, project) in follow.items()
        }
        self._started = False

    def start(self, wait_s: float = 0.0) -> None:
        """Begins to follow; waits at most so long for the first lists."""
        if not self._started:
            self._started = True
            for follower in self._followers.values():
                follower.start()
        end_s = time.monotonic() + wait_s
        for follower in self._followers.values():
            follower.synced.wait(max(0.0, end_s - time.monotonic()))

    def close(self) -> None:
        if self._started:
            for follower in self._followers.values():
                follower.close()

    # What is known now -------------------------------------------------------------------------------------------

    def gates(self) -> list[GangGate]:
        """Every shut gate of ours, as last heard."""
        self._take()
        return [part.gate for part in self._all() if part.gate is not None]

    def snapshot(
        self,
        now_s: float,
        ill: Mapping[str, int] | None = None,
        loads: Callable[[str], Load] = lambda _job: UNKNOWN,
        evicts: Callable[[str, str], bool] = lambda _namespace, _queue: True,
        shares: Callable[[str, str], bool] = lambda _namespace, queue: not queue,
    ) -> Snapshot:
        """`ill`: GPUs of a node that detectors call degraded, -1 for all of them; `loads`: what a job
        (NAMESPACE/NAME) does to its GPUs; `evicts`: whether a LocalQueue's (namespace, name) priorities evict;
        `shares`: whether its administrator opted in to sharing. Raises StaleView."""
        self._fresh()
        self._take()
        names = sorted(self._nodes, key=lambda name: (self._nodes[name].rack, name))
        if not names:
            raise StaleView("no node with GPUs is known")
        shape = self._shape()
        place = {name: at for at, name in enumerate(names)}
        sick = _by_place(ill or {}, place)
        nodes = [self._nodes[name] for name in names]
        slope_w = math.inf if self.settings.slope_w is None else self.settings.slope_w
        return Snapshot(
            now_s,
            shape,
            [_shared(job, shares) for job in self._jobs(place, loads, evicts)],
            _closed(nodes, shape.per_node, sick),
            slope_w,
            tuple(names),
            tuple(node.host for node in nodes),
            frozenset(at for at, node in enumerate(nodes) if node.shares and node.takes),
            frozenset(at for at in sick if nodes[at].takes),
        )

    def _shape(self) -> ClusterShape:
        """As if every node were as large as the largest, and every rack: what is not there counts as closed."""
        racks = Counter(node.rack for node in self._nodes.values())
        per_node = max(node.gpus for node in self._nodes.values())
        return ClusterShape(len(self._nodes), per_node, max(racks.values()))

    def _jobs(
        self, place: Mapping[str, int], loads: Callable[[str], Load], evicts: Callable[[str, str], bool]
    ) -> list[JobSeen]:
        by_job: dict[str, list[_Part]] = defaultdict(list)
        for part in self._all():
            by_job[part.job].append(part)
        found = []
        for job, parts in sorted(by_job.items()):
            running = [part for part in parts if part.node]
            waiting = [part for part in parts if not part.node and part.waits]
            for group, suffix in ((running, ""), (waiting, "+rest" if running else "")):
                if group:
                    seen = self._job(job + suffix, group, place, loads(job))
                    moved = bool(seen.workload) and not seen.nodes
                    found.append(replace(seen, evicts=not moved or evicts(seen.user, seen.queue)))
        return found

    def _job(self, name: str, parts: list[_Part], place: Mapping[str, int], load: Load) -> JobSeen:
        said = _gpus_said(parts)
        gates = tuple(sorted((part.gate for part in parts if part.gate is not None), key=lambda gate: gate.path))
        started = [part.started_s for part in parts if math.isfinite(part.started_s)]
        namespace, _, short = name.partition("/")
        return JobSeen(
            name,
            _first([part.queue for part in parts]) or namespace,
            namespace,
            min(part.made_s for part in parts),
            said,
            gates or None,
            _held(parts, place),
            min(started, default=math.nan),
            load=load,
            watts=said * self.settings.gpu_watts,
            label=unnumbered(short),
            priority=max(part.priority for part in parts),
            opted_in=not any(part.opted_out for part in parts),
            workload=_first([part.workload for part in parts]),
            placeable={gate.kind for gate in gates} == {"pod"},
            share=min((part.share for part in parts), key=("", *SHARES).index),
            kueue_queue=_first([part.queue for part in parts]),
        )

    def _all(self) -> list[_Part]:
        made = [part for parts in self._parts.values() for part in parts.values()]
        resource = self.settings.labels.gpu_resource
        return [
            *made,
            *(_of_workload(item, self._checks, self._kueue, resource) for item in self._workloads.values()),
        ]

    def _take(self) -> None:
        for name, follower in self._followers.items():
            for key, found in follower.take().items():
                kept: dict[str, Any] = self._workloads
                if name == "nodes":
                    kept = self._nodes
                elif name == "admissionchecks":
                    (self._checks.discard if found is None else self._checks.add)(key.rpartition("/")[2])
                    continue
                elif name != "workloads":
                    kept = self._parts[name]
                if found is None:
                    kept.pop(key, None)
                else:
                    kept[key] = found

    def _fresh(self) -> None:
        for name, follower in self._followers.items():
            silent_s, fault = follower.health()
            if silent_s is None or silent_s > STALE_S:
                why = fault[1] if fault else "no answer yet"
                raise StaleView(f"{name}: {why}")

    # What is kept of an object -----------------------------------------------------------------------------------

    def _node(self, item: Object) -> _Node | None:
        meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
        gpus = int((status.get("allocatable") or {}).get(self.settings.labels.gpu_resource, 0))
        if not gpus:
            return None
        ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or [])
        shut = any(
            t.get("effect") in ("NoSchedule", "NoExecute") and _is_trouble(t) for t in spec.get("taints") or []
        )
        labels = meta.get("labels") or {}
        rack, times = str(labels.get(self.settings.labels.rack_label, "")), _replicas(labels)
        takes, host = ready and not spec.get("unschedulable") and not shut, str(labels.get(HOST) or meta["name"])
        return _Node(rack, max(gpus // times, 1), takes, host, times > 1)

    def _pod(self, item: Object) -> _Part | None:
        meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
        gpus = _gpus(spec, self.settings.labels.gpu_resource)
        if not gpus or status.get("phase") in ("Succeeded", "Failed"):
            return None
        labels = meta.get("labels") or {}
        owner: Object = next((r for r in meta.get("ownerReferences") or [] if r.get("controller")), {})
        job = next((labels[name] for name in JOB_LABELS if labels.get(name)), owner.get("name") or meta["name"])
        started = status.get("startTime")
        return _Part(
            f"{meta['namespace']}/{job}",
            gpus,
            str(labels.get(QUEUE_LABEL, "")),
            int(spec.get("priority") or 0),
            made_s(item),
            _opted_out(meta),
            pod_gate(item),
            str(spec.get("nodeName") or ""),
            made_s({"metadata": {"creationTimestamp": started}}) if started else math.nan,
            share=_shared_as(meta),
        )


def _closed(nodes: Sequence[_Node], per_node: int, sick: Mapping[int, int]) -> dict[int, int]:
    """GPUs that take nobody, by node's place: those that a smaller node does not have, and its ill ones."""
    closed = {}
    for at, node in enumerate(nodes):
        ill = sick.get(at, 0)
        usable = 0 if ill < 0 or not node.takes else max(node.gpus - ill, 0)
        if usable < per_node:
            closed[at] = per_node - usable
    return closed


def _gpus_said(parts: Sequence[_Part]) -> int:
    """A job's GPUs. Its pods and its Workload say them twice over: the pods count, where there are any."""
    pods = [part.gpus for part in parts if not part.workload]
    return sum(pods) or max(part.gpus for part in parts)


def _by_place(ill: Mapping[str, int], place: Mapping[str, int]) -> dict[int, int]:
    """Of the nodes that are known, those with ill GPUs."""
    return {place[name]: gpus for name, gpus in ill.items() if name in place and gpus}


def _held(parts: Sequence[_Part], place: Mapping[str, int]) -> dict[int, int]:
    """GPUs that a job holds, by the place of the node."""
    nodes = Counter[int]()
    for part in parts:
        if part.node in place:
            nodes[place[part.node]] += part.gpus
    return dict(nodes)


def _shared(job: JobSeen, shares: Callable[[str, str], bool]) -> JobSeen:
    """What its owner allows holds only where its queue's administrator opted in too."""
    return job if not job.share or shares(job.user, job.kueue_queue) else replace(job, share="")


def _first(texts: Sequence[str]) -> str:
    """The first that says anything."""
    return next((text for text in texts if text), "")


def unnumbered(name: str) -> str:
    """A job's name without what tells its repeats apart."""
    return _NUMBER.sub("", name)


def _annotated(kind: JobKind, resource: str) -> Callable[[Object], _Part | None]:
    def project(item: Object) -> _Part | None:
        gate = annotation_gate(item, kind)
        if gate is None:
            return None
        meta, spec = item["metadata"], item.get("spec") or {}
        queue = str((meta.get("labels") or {}).get(QUEUE_LABEL, ""))
        gpus = 0
        if kind.kind == "Job":
            gpus = int(spec.get("parallelism") or 1) * _gpus(
                (spec.get("template") or {}).get("spec") or {}, resource
            )
        return _Part(gate.name, gpus, queue, 0, made_s(item), _opted_out(meta), gate)

    return project


def _waiting(item: Object) -> Object | None:
    """A Workload that neither runs nor has ended, without what is not asked of it."""
    conditions = {c.get("type"): c.get("status") for c in (item.get("status") or {}).get("conditions") or []}
    if conditions.get("Finished") == "True" or conditions.get("Admitted") == "True":
        return None
    return {key: item.get(key) for key in ("metadata", "spec", "status")}


def _of_workload(item: Object, ours: set[str], kueue: str, resource: str) -> _Part:
    meta, spec = item["metadata"], item.get("spec") or {}
    owner: Object = next(iter(meta.get("ownerReferences") or []), {})
    sets = spec.get("podSets") or []
    gpus = sum(
        int(s.get("count") or 1) * _gpus((s.get("template") or {}).get("spec") or {}, resource) for s in sets
    )
    gate, name = check_gate(item, ours, kueue), f"{meta['namespace']}/{meta['name']}"
    part = _Part(
        f"{meta['namespace']}/{owner.get('name') or meta['name']}",
        gpus,
        str(spec.get("queueName") or ""),
        int(spec.get("priority") or 0),
        made_s(item),
        _opted_out(meta),
        gate,
        workload=name,
    )
    return replace(part, waits=gate is not None or not holds_quota(item))


def _gpus(spec: Object, resource: str) -> int:
    limits = [((c.get("resources") or {}).get("limits") or {}) for c in spec.get("containers") or []]
    return sum(int(limit.get(resource, 0)) for limit in limits)


def _replicas(labels: Mapping[str, str]) -> int:
    """How many pods a node gives one GPU to, as NVIDIA's GPU feature discovery says it (time slices or MPS)."""
    text = str(labels.get(f"{_GFD}.replicas", "1"))
    is_shared = labels.get(f"{_GFD}.sharing-strategy") in ("time-slicing", "mps")
    return int(text) if is_shared and text.isdecimal() and int(text) > 1 else 1


def _is_trouble(taint: Object) -> bool:
    """A taint that keeps ordinary GPU jobs away; the device's own, which they tolerate, does not."""
    return str(taint.get("key", "")).startswith(("node.kubernetes.io/", "nightshift.dev/"))


def _shared_as(meta: Object) -> str:
    said = (meta.get("annotations") or {}).get(SHARE) or (meta.get("labels") or {}).get(SHARE)
    return said if said in SHARES else ""


def _opted_out(meta: Object) -> bool:
    return "true" in ((meta.get("labels") or {}).get(OPT_OUT), (meta.get("annotations") or {}).get(OPT_OUT))


@dataclass
class GangDoors:
    """The gates of a gang as one (`controllers.scheduling.controller.QueueDoors`): opened all, held all, and a
    gang is held as long as one of its gates is shut. `view`: gates as they are followed."""

    queue: KubernetesQueue
    view: QueueView
    _asked: dict[tuple[str, str, str], tuple[float, bool]] = field(default_factory=dict)

    def evicts(self, namespace: str, queue: str) -> bool:
        """Whether a higher priority evicts in this LocalQueue; not known is yes."""
        return self._of_queue("evicts", self.queue.queue_evicts, namespace, queue, unknown=True)

    def shares(self, namespace: str, queue: str) -> bool:
        """Whether this LocalQueue's administrator opted in to two jobs on a GPU; not known is no. Jobs without a
        queue have none to ask: the node's administrator set its GPUs up to be shared."""
        return not queue or self._of_queue("shares", self.queue.queue_shares, namespace, queue, unknown=False)

    def _of_queue(
        self, name: str, ask: Callable[[str, str], bool], namespace: str, queue: str, *, unknown: bool
    ) -> bool:
        """Asked anew every `EVICTS_S`."""
        now_s, key = self.view.timer(), (name, namespace, queue)
        known = self._asked.get(key)
        if known is None or now_s - known[0] > EVICTS_S:
            try:
                known = self._asked[key] = (now_s, ask(namespace, queue))
            except (Temporary, Permanent):
                return unknown
        return known[1]

    def release_overdue(self) -> Sequence[object]:
        return self.queue.release_overdue(self.view.gates())

    def tell(self, text: str) -> int:
        return self.queue.tell(text)

    def open(self, gate: object) -> bool:
        return any(tried(_each(gate), self.queue.open))

    def hold(self, gate: object, until_s: float) -> None:
        tried(_each(gate), lambda each: self.queue.hold(each, until_s))

    def prefer(self, gate: object, prefer: Sequence[str], avoid: Sequence[str]) -> None:
        tried(_each(gate), lambda each: self.queue.prefer(each, prefer, avoid))

    def boost(self, workload: str, value: int) -> str:
        return self.queue.boost(workload, value)

    def read_back(self, gate: object) -> Steer:
        found = [self.queue.read_back(each) for each in _each(gate)]
        return next((steer for steer in found if steer.verb is SteerVerb.HOLD), found[0])


def _each(gate: object) -> tuple[GangGate, ...]:
    assert isinstance(gate, tuple)
    return gate
