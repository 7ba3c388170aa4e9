"""Leader election by a Kubernetes Lease, as the cluster's own controllers do it; `kubectl get lease` shows it.

The protocol is client-go's (k8s.io/client-go/tools/leaderelection): a holder renews `renewTime`; another replica
may take the Lease once it has seen no change of it for `leaseDurationSeconds` *on its own clock*, never by
comparing the times in it, since clocks of machines differ; every write holds only for the version that was read, so
of two that take it at once one fails. Which replica may act is not decided here: see `agent.store.lease`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from nightshift.collectors.kubernetes.api import Busy, Refused
from nightshift.controllers.actuators.kube_client import KubeClient, NotFound, Object
from nightshift.controllers.actuators.kube_rights import LEASE_RIGHTS as RIGHTS

__all__ = ["RIGHTS", "KubeLease"]
_CONFLICT = 409


class KubeLease:
    """One replica's stand for one Lease object. Used by one thread."""

    def __init__(
        self,
        kube: KubeClient,
        namespace: str,
        name: str,
        holder: str,
        lease_s: float,
        *,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`lease_s`: a whole number of seconds at least 1 (the object's own unit)."""
        self._kube, self._holder, self._now_s, self._monotonic_s = kube, holder, now_s, monotonic_s
        self._lease_s = max(1, round(lease_s))
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._version = ""
        self._seen_s = float("-inf")
        """When the present version was first seen, on the monotonic clock."""

    def hold(self) -> bool:
        """Takes or renews the Lease; False while another holds it. Raises Busy where the server does not answer,
        Refused where it does not permit."""
        try:
            lease = self._kube.get(f"{self._all}/{self._name}")
        except NotFound:
            return self._write("POST", self._all, {"metadata": {"name": self._name}, "spec": self._mine(0)})
        spec, version = lease.get("spec") or {}, lease["metadata"]["resourceVersion"]
        if version != self._version:
            self._version, self._seen_s = version, self._monotonic_s()
        holder = spec.get("holderIdentity") or ""
        transitions = int(spec.get("leaseTransitions") or 0)
        if holder == self._holder:
            renewed = {**spec, "renewTime": self._stamp(), "leaseDurationSeconds": self._lease_s}
            return self._write("PUT", f"{self._all}/{self._name}", {**lease, "spec": renewed})
        ends_s = self._seen_s + float(spec.get("leaseDurationSeconds") or self._lease_s)
        if holder and self._monotonic_s() < ends_s:
            return False
        return self._write("PUT", f"{self._all}/{self._name}", {**lease, "spec": self._mine(transitions + 1)})

    def release(self) -> None:
        """Gives the Lease back if it is ours, so that nobody waits for its end. Raises like `hold`."""
        try:
            lease = self._kube.get(f"{self._all}/{self._name}")
        except NotFound:
            return
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") == self._holder:
            free = {**spec, "holderIdentity": "", "renewTime": self._stamp(), "leaseDurationSeconds": 1}
            self._write("PUT", f"{self._all}/{self._name}", {**lease, "spec": free})

    def _mine(self, transitions: int) -> Object:
        now = self._stamp()
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": self._lease_s,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    def _write(self, method: str, path: str, body: Object) -> bool:
        """False where somebody else wrote first. An answer that was lost is found out by the next `hold`."""
        full = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **body}
        try:
            written = self._kube.request(method, path, body=full)
        except (Busy, Refused) as error:
            if error.status != _CONFLICT:
                raise
            return False
        self._version, self._seen_s = written["metadata"]["resourceVersion"], self._monotonic_s()
        return True

    def _stamp(self) -> str:
        """A MicroTime (RFC 3339 with six decimals, which the API server's decoder asks for)."""
        return datetime.fromtimestamp(self._now_s(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
