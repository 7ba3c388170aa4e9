"""Objects with resource versions, and the log of changes that watches read."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .resources import Resource

Object = dict[str, Any]
Key = tuple[str, str]


@dataclass(frozen=True)
class Change:
    version: int
    type: str
    after: Object
    before: Object | None


class Storage:
    """etcd's part: one revision counter for everything, and a bounded history for each resource."""

    def __init__(self, history: int = 20_000) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.version = 200
        self._objects: dict[tuple[str, str], dict[Key, Object]] = {}
        self._changes: dict[tuple[str, str], deque[Change]] = {}
        self._history = history
        self._compacted = 0

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        found = self._objects.get(resource.key, {}).get((namespace, name))
        return copy.deepcopy(found) if found is not None else None

    def all(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        """Sorted by namespace and name, as etcd's keys are; not copied: callers must not change them."""
        objects = self._objects.get(resource.key, {})
        return [objects[key] for key in sorted(objects) if namespace is None or key[0] == namespace]

    def write(self, resource: Resource, after: Object) -> Object:
        """Stores an object under the next resource version and tells the watches."""
        with self.changed:
            key = (after["metadata"].get("namespace", ""), after["metadata"]["name"])
            objects = self._objects.setdefault(resource.key, {})
            before = objects.get(key)
            self.version += 1
            after = copy.deepcopy(after)
            after["metadata"]["resourceVersion"] = str(self.version)
            objects[key] = after
            self._record(resource, "MODIFIED" if before else "ADDED", after, before)
            return copy.deepcopy(after)

    def remove(self, resource: Resource, namespace: str, name: str) -> Object:
        with self.changed:
            before = self._objects[resource.key].pop((namespace, name))
            self.version += 1
            gone = copy.deepcopy(before)
            gone["metadata"]["resourceVersion"] = str(self.version)
            self._record(resource, "DELETED", gone, before)
            return gone

    def _record(self, resource: Resource, kind: str, after: Object, before: Object | None) -> None:
        log = self._changes.setdefault(resource.key, deque())
        log.append(Change(self.version, kind, after, before))
        while len(log) > self._history:
            self._compacted = max(self._compacted, log.popleft().version)
        self.changed.notify_all()

    def compact(self) -> None:
        """Forgets all history: a watch from before now is answered 410 (etcd compaction, every 5 minutes)."""
        with self.changed:
            self._compacted = self.version
            for log in self._changes.values():
                log.clear()
            self.changed.notify_all()

    def too_old(self, version: int) -> bool:
        return version < self._compacted

    def since(self, resource: Resource, version: int) -> list[Change]:
        return [change for change in self._changes.get(resource.key, ()) if change.version > version]

    def follow(
        self, resource: Resource, version: int, wait_s: Callable[[], float], stopped: Callable[[], bool]
    ) -> Iterator[Change | None]:
        """Changes after a version as they come; None once `wait_s()` has run out, or the server stops."""
        while True:
            with self.changed:
                found = self.since(resource, version)
                if not found:
                    remaining = wait_s()
                    if remaining <= 0 or stopped():
                        yield None
                        return
                    self.changed.wait(min(remaining, 0.5))
                    continue
            for change in found:
                version = change.version
                yield change
