"""Garbage collection by owner UID (kubernetes.io/docs/concepts/architecture/garbage-collection)."""

from __future__ import annotations

from typing import Any

from .resources import Resource
from .storage import Object, Storage


def dependents(
    storage: Storage, resources: dict[tuple[str, str], Resource], owner: Object, policy: str
) -> list[tuple[Resource, Object, list[Any] | None]]:
    """What an owner that goes leaves behind: each object with the owners that it keeps, or None where it goes."""
    uid, found = owner["metadata"]["uid"], []
    for resource in list(resources.values()):
        for item in list(storage.all(resource)):
            references = item["metadata"].get("ownerReferences") or []
            if any(reference.get("uid") == uid for reference in references):
                kept = [r for r in references if r.get("uid") != uid]
                found.append((resource, item, kept if policy == "Orphan" else None))
    return found
