"""Writes to a Kubernetes API server, on top of the reads of `collectors.kube_api`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collectors.kube_api import KubeApi, NotFound, Object

__all__ = ["KubeClient", "NotFound", "Object"]
MERGE = "application/merge-patch+json"


class KubeClient(KubeApi):
    """Reads and writes with one identity."""

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """One call; returns the answer's JSON object."""
        return self._request(method, path, body=body, query=query, content_type=content_type)

    def merge(self, path: str, changes: Object, *, version: str, manager: str) -> Object:
        """A merge patch that holds only for the version that was read: anything newer is a Temporary conflict."""
        meta = {**changes.get("metadata", {}), "resourceVersion": version}
        body = {**changes, "metadata": meta}
        return self.request("PATCH", path, body=body, query={"fieldManager": manager}, content_type=MERGE)
