"""Reads of the stored objects: one, or a list in pages that all come from one snapshot."""

from __future__ import annotations

import base64
import secrets

from .errors import ApiError, not_found
from .resources import Resource
from .selectors import Match, fields, labels
from .storage import Object, Storage

_MAX_CONTINUES = 200


class Reading:
    """The verbs get and list over a `Storage`."""

    def __init__(self) -> None:
        self.storage = Storage()
        self._continues: dict[str, tuple[list[Object], int]] = {}

    def read(self, resource: Resource, namespace: str, name: str) -> Object:
        found = self.storage.get(resource, namespace, name)
        if found is None:
            raise not_found(resource.qualified, name)
        return found

    def match(self, resource: Resource, query: dict[str, str]) -> Match:
        by_label, by_field = (
            labels(query.get("labelSelector", "")),
            fields(resource.kind, query.get("fieldSelector", "")),
        )
        return lambda obj: by_label(obj) and by_field(obj)

    def list(self, resource: Resource, namespace: str | None, query: dict[str, str]) -> Object:
        """A consistent list: pages that follow a `continue` token come from the first page's snapshot."""
        token = query.get("continue", "")
        with self.storage.lock:
            if token:
                if token not in self._continues:
                    raise ApiError(
                        "Expired",
                        "The provided continue parameter is too old to display a consistent list "
                        "result. You can start a new list without the continue parameter, or use the continue "
                        "token in this response to retrieve the remainder of the results.",
                    )
                items, version = self._continues[token]
            else:
                matches = self.match(resource, query)
                items = [o for o in self.storage.all(resource, namespace) if matches(o)]
                version = self.storage.version
            limit = int(query.get("limit", "0") or 0)
            meta: Object = {"resourceVersion": str(version)}
            if limit and len(items) > limit:
                rest = items[limit:]
                while len(self._continues) >= _MAX_CONTINUES:
                    self._continues.pop(next(iter(self._continues)))
                following = base64.urlsafe_b64encode(secrets.token_bytes(24)).decode()
                self._continues[following] = (rest, version)
                meta |= {"continue": following, "remainingItemCount": len(rest)}
                items = items[:limit]
            shown = [
                {k: v for k, v in o.items() if resource.custom or k not in ("kind", "apiVersion")} for o in items
            ]
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": meta,
            "items": shown,
        }

    def forget_continues(self) -> None:
        """As compaction does to unfinished lists."""
        with self.storage.lock:
            self._continues.clear()
