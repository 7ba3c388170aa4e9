"""What Kubernetes says happened, and what was changed: events, cordons, taints, drivers, images, as dated lines.

An incident often begins with a change: a driver rolled out, a node cordoned by somebody else, an image replaced.
The API server keeps events for an hour and changes not at all, so both are read as they come. Who made a change is
told as far as the server tells it: the newest field manager of that field. Needs `list` and `watch` on events,
nodes, deployments and daemonsets.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Instant, LogRecord, Reason, SourceStatus
from nightshift.collectors.kubernetes.api import ACCESS, Access, AccessSettings, KubeApi, Object
from nightshift.collectors.kubernetes.follow import Follower
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch
from nightshift.collectors.training.workload import pod_subject

EVENTS, CHANGES = "kubernetes_events", "kubernetes_changes"
# Events carry whole seconds of whichever component wrote them.
CLOCK, UNSURE_S = "kubernetes", 1.0
NORMAL = frozenset(
    {"NodeReady", "NodeNotReady", "NodeSchedulable", "NodeNotSchedulable", "Rebooted", "Starting", "Killing",
     "Preempted", "Evicted", "RegisteredNode", "RemovingNode", "DeletingNode"}
)  # fmt: skip
"""Reasons that are kept although their type is Normal; every Warning is."""
LABELS = (
    "nvidia.com/cuda.driver-version.full",
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.count",
    "nvidia.com/mig.config",
)
"""Node labels of GPU feature discovery that tell of drivers and devices."""
VERSIONS = ("kubeletVersion", "kernelVersion", "containerRuntimeVersion", "osImage")
MAX_TEXT = 1000
_K = SubjectKind


# Not heard for so long, a list counts as lost: bookmarks come once a minute.
STALE_S = 180.0
# Most lines of one tick; the rest is counted.
MAX_LINES = 1000


class KubernetesEventsSettings(BaseModel):
    """Reads events and changes from the API server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    access: Access = Field(default_factory=AccessSettings, description=ACCESS)


@dataclass(frozen=True, slots=True)
class _Event:
    kind: str
    name: str
    namespace: str
    text: str
    t_s: float
    count: int


@dataclass(frozen=True, slots=True)
class _Thing:
    """What of an object is watched for changes, and who wrote each field last."""

    watched: tuple[tuple[str, str], ...]
    managers: tuple[tuple[str, str], ...]


class KubernetesEventsCollector:
    """Lines of the events and changes since the last tick."""

    plugin: ClassVar[str] = EVENTS
    Settings = KubernetesEventsSettings

    def __init__(self, settings: KubernetesEventsSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._events: Follower[_Event] = Follower(self._connect, "/api/v1/events", _event, clock)
        self._things: dict[str, Follower[_Thing]] = {
            "Node": Follower(self._connect, "/api/v1/nodes", _node, clock),
            "Deployment": Follower(self._connect, "/apis/apps/v1/deployments", _workload, clock),
            "DaemonSet": Follower(self._connect, "/apis/apps/v1/daemonsets", _workload, clock),
        }
        self._before: dict[tuple[str, str], _Thing] = {}
        self._based: set[str] = set()
        self._offset = itertools.count(1)
        self._started = False

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        followers: dict[str, Follower[Any]] = {"events": self._events, **self._things}
        if not self._started:
            self._started = True
            for follower in followers.values():
                follower.start()
        deadline = time.monotonic() + 0.8 * timeout_s
        for follower in followers.values():
            follower.synced.wait(max(0.0, deadline - time.monotonic()))
        lines = [*self._told(now_s, inventory), *self._changes(now_s, inventory)]
        dropped = max(0, len(lines) - MAX_LINES)
        status = [self._status(what, follower, now_s) for what, follower in followers.items()]
        if dropped:
            status[0] = SourceStatus(
                status[0].source, now_s, status[0].ok, status[0].reason, status[0].detail,
                samples=status[0].samples, rejected={Reason.TOO_LARGE: dropped},
            )  # fmt: skip
        return Batch(status, logs=lines[:MAX_LINES])

    def close(self) -> None:
        if self._started:
            self._events.close()
            for follower in self._things.values():
                follower.close()

    def _connect(self) -> KubeApi:
        settings = self._settings
        return KubeApi.connect(settings.access)

    def _status(self, what: str, follower: Follower[Any], now_s: float) -> SourceStatus:
        return follower.status(source_subject(self.plugin, what), what, now_s, STALE_S)

    def _told(self, now_s: float, inventory: Inventory) -> Iterator[LogRecord]:
        for event in self._events.take().values():
            if event is None:
                continue
            t_s = event.t_s if 0 < event.t_s <= now_s + 60 else now_s
            subject = _subject(event.kind, event.namespace, event.name, inventory)
            yield self._line(EVENTS, subject, Instant(t_s, UNSURE_S, CLOCK), event.text)

    def _changes(self, now_s: float, inventory: Inventory) -> Iterator[LogRecord]:
        """What differs from what was known. The first list of a kind is what there was, not a change."""
        for kind, follower in self._things.items():
            taken = follower.take()
            first = kind not in self._based and follower.health()[0] is not None
            for name, thing in sorted(taken.items()):
                before = self._before.pop((kind, name), None)
                if thing is not None:
                    self._before[kind, name] = thing
                if first or (before is None and thing is None):
                    continue
                namespace, _, short = name.rpartition("/")
                subject = _subject(kind, namespace, short, inventory)
                for text in _differences(before, thing):
                    at = Instant(now_s, UNSURE_S, CLOCK)
                    yield self._line(CHANGES, subject, at, f"{kind} {name}: {text}")
            if first:
                self._based.add(kind)

    def _line(self, source: str, subject: Subject, at: Instant, text: str) -> LogRecord:
        flat = " ".join(text.split())
        return LogRecord(at, f"{source} api", subject, flat[:MAX_TEXT], next(self._offset))


def _subject(kind: str, namespace: str, name: str, inventory: Inventory) -> Subject:
    """Whom a line is about: the node or pod; the cluster where it is anything else."""
    try:
        if kind == "Node":
            return Subject(_K.NODE, name)
        if kind == "Pod":
            return pod_subject(namespace, name)
        if kind in ("Job", "JobSet", "TrainJob", "PyTorchJob", "MPIJob", "RayJob"):
            return Subject(_K.JOB, f"{namespace}/{name}")
    except ValueError:
        pass  # a name that no subject can have: told of the cluster, where it harms nobody
    return inventory.cluster


def _event(obj: Object) -> _Event | None:
    reason, kind = str(obj.get("reason") or ""), str(obj.get("type") or "Normal")
    if kind != "Warning" and reason not in NORMAL:
        return None
    about = _first(obj, "involvedObject", "regarding") or {}
    count = int(_first(obj, "series.count", "count") or 1)
    by = _first(obj, "source.component", "reportingComponent") or "unknown"
    what, name = str(about.get("kind") or ""), str(about.get("name") or "")
    more = f" (×{count})" if count > 1 else ""
    text = f"{kind} {reason} {what} {name}: {_first(obj, 'message', 'note') or ''} [{by}]{more}"
    t_s = next((t for path in _TIMES if (t := _time(_first(obj, path))) is not None), 0.0)
    return _Event(what, name, str(about.get("namespace") or ""), text, t_s, count)


# Newest first: an event that repeats keeps its first times. Events of events.k8s.io/v1 have `series` and
# `eventTime`, those of v1 `lastTimestamp`; a component of another version may leave any of them null.
_TIMES = (
    "series.lastObservedTime", "lastTimestamp", "eventTime", "firstTimestamp", "metadata.creationTimestamp",
)  # fmt: skip


def _first(obj: Object, *paths: str) -> Any:
    """The first of these fields (`outer.inner`) that is set; the two APIs of events name the same thing twice."""
    for path in paths:
        value: Any = obj
        for key in path.split("."):
            value = (value or {}).get(key)
        if value:
            return value
    return None


def _node(obj: Object) -> _Thing:
    meta = obj["metadata"]
    watched = {"unschedulable": "yes" if _first(obj, "spec.unschedulable") else "no"}
    for taint in _first(obj, "spec.taints") or []:
        watched[f"taint {taint.get('key')}"] = str(taint.get("effect") or "")
    for condition in _first(obj, "status.conditions") or []:
        said = f"{condition.get('status')} ({condition.get('reason') or ''})"
        watched[f"condition {condition.get('type')}"] = said
    for names, path in ((LABELS, "metadata.labels"), (VERSIONS, "status.nodeInfo")):
        told = _first(obj, path) or {}
        watched |= {name: str(told[name]) for name in names if name in told}
    # devices only: a change of a node's allocatable memory explains no GPU incident
    allocatable = _first(obj, "status.allocatable") or {}
    watched |= {f"allocatable {k}": str(v) for k, v in allocatable.items() if "gpu" in k}
    fields = {
        "unschedulable": ("f:spec", "f:unschedulable"),
        "taint": ("f:spec", "f:taints"),
        "nvidia.com": ("f:metadata", "f:labels"),
    }
    return _Thing(tuple(sorted(watched.items())), _managers(meta, fields))


def _workload(obj: Object) -> _Thing:
    meta, spec = obj["metadata"], obj.get("spec") or {}
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or []
    watched = {f"image {c.get('name')}": str(c.get("image") or "") for c in containers}
    if "replicas" in spec:
        watched["replicas"] = str(spec["replicas"])
    fields = {"image": ("f:spec", "f:template"), "replicas": ("f:spec", "f:replicas")}
    return _Thing(tuple(sorted(watched.items())), _managers(meta, fields))


def _managers(meta: Mapping[str, Any], fields: Mapping[str, tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """By the beginning of a field's name, the manager that wrote it last."""
    entries = sorted(meta.get("managedFields") or [], key=lambda entry: str(entry.get("time") or ""))
    found = {}
    for entry in entries:
        written = entry.get("fieldsV1") or {}
        for name, (outer, inner) in fields.items():
            if inner in (written.get(outer) or {}):
                found[name] = str(entry.get("manager") or "unknown")
    return tuple(sorted(found.items()))


def _differences(before: _Thing | None, now: _Thing | None) -> Iterator[str]:
    if before is None or now is None:
        yield "created" if before is None else "deleted"
        return
    old, new, managers = dict(before.watched), dict(now.watched), dict(now.managers)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            by = next((who for field, who in managers.items() if name.startswith(field)), "")
            who = f", by {by}" if by else ""
            yield f"{name}: {old.get(name, 'absent')} -> {new.get(name, 'absent')}{who}"


def _time(text: object) -> float | None:
    if not isinstance(text, str) or not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
