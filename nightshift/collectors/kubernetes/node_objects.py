"""Which machines are Nodes of the cluster, as the API server says. Needs `list` on nodes.

Silence is no proof that a machine is gone; a Node object that was deleted is.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.kubernetes.api import KubeApi

_PATH = "/api/v1/nodes"
_ONE_BY_ONE = 16


class Settings(BaseModel):
    """Asks the API server for Node objects."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kubeconfig: Path | None = Field(None, description="kubeconfig file; none: the pod's service account")
    context: str | None = Field(None, description="Context of the kubeconfig; none: its current one")
    timeout_s: float = Field(5.0, gt=0, description="Longest wait for the API server (s)")


class NodeObjects:
    """Asked from one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kube: KubeApi | None = None

    def standing(self, names: Collection[str]) -> frozenset[str]:
        """Those of the names that are Nodes now. Raises Temporary or Permanent where the API server is no help."""
        if self._kube is None:
            s = self._settings
            self._kube = KubeApi.connect(s.kubeconfig, s.context, timeout_s=s.timeout_s)
        if len(names) > _ONE_BY_ONE:
            found = self._kube.list(_PATH)
        else:
            found = [n for name in names for n in self._kube.list(_PATH, fieldSelector=f"metadata.name={name}")]
        return frozenset(str(node["metadata"]["name"]) for node in found) & frozenset(names)
