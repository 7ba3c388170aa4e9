"""Which machines are Nodes of the cluster, as the API server says. Needs `list` on nodes.

Silence is no proof that a machine is gone; a Node object that was deleted is.
"""

from __future__ import annotations

from collections.abc import Collection

from nightshift.collectors.kubernetes.api import AccessSettings, KubeApi

_PATH = "/api/v1/nodes"
_ONE_BY_ONE = 16
# A turn of power control waits for the answer; without one, silent machines count as drawing.
ASK_S = 5.0


class NodeObjects:
    """Asked from one thread at a time."""

    def __init__(self, access: AccessSettings) -> None:
        self._access = access
        self._kube: KubeApi | None = None

    def standing(self, names: Collection[str]) -> frozenset[str]:
        """Those of the names that are Nodes now. Raises Temporary or Permanent where the API server is no help."""
        if self._kube is None:
            self._kube = KubeApi.connect(self._access, within_s=ASK_S)
        if len(names) > _ONE_BY_ONE:
            found = self._kube.list(_PATH)
        else:
            found = [n for name in names for n in self._kube.list(_PATH, fieldSelector=f"metadata.name={name}")]
        return frozenset(str(node["metadata"]["name"]) for node in found) & frozenset(names)
