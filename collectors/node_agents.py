"""The kernel log of every node whose agent runs as a DaemonSet: found through the API server, read by mutual TLS.

Pods come and go with nodes, so their addresses are asked for again and again; a node keeps its cursor when its
agent gets another address. The certificate that an agent shows has to be that of its own pod, whatever the
address says: the name is made from a pattern and checked by TLS. Needs `list` on pods.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from collectors.base import Permanent, Temporary
from collectors.frame import Reason, SourceStatus
from collectors.http import HttpSettings
from collectors.kube_api import KubeApi, Object
from collectors.node_log import NodeAddress, NodeLogCollector
from collectors.pages import source_subject
from collectors.subject import Inventory
from collectors.tick import Batch


class NodeAgentsCollector:
    """New kernel log lines of all nodes that run our agent, and the events among them."""

    plugin: ClassVar[str] = "node_agents"

    class Settings(BaseModel):
        """Finds `nightshift node` by its pods and reads the kernel log of their nodes."""

        model_config = ConfigDict(extra="forbid")

        kubeconfig: Path | None = Field(None, description="kubeconfig file; none: the pod's service account")
        context: str | None = Field(None, description="Context of the kubeconfig; none: its current one")
        namespace: str = Field(min_length=1, description="Namespace of the agents' pods")
        selector: str = Field(min_length=1, description="Label selector of the agents' pods")
        port: int = Field(9400, ge=1, le=65535, description="Port of the agents")
        tls: bool = Field(False, description="Whether they are reached by TLS")
        certificate_name: str = Field(
            "{pod}.{namespace}.pod", description="Name in an agent's certificate, of {pod}, {node} and {namespace}"
        )
        refresh_s: float = Field(15.0, gt=0, description="How often their addresses are asked for (s)")
        timeout_s: float = Field(5.0, gt=0, description="Longest wait for the API server (s)")
        http: HttpSettings = Field(default_factory=HttpSettings, description="Credentials and TLS")

        @model_validator(mode="after")
        def _name_is_a_pattern(self) -> NodeAgentsCollector.Settings:
            try:
                self.certificate_name.format(pod="p", node="n", namespace="s")
            except (KeyError, IndexError, ValueError) as error:
                raise ValueError(f"certificate_name: {error} is none of pod, node, namespace") from error
            return self

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._timer = settings, clock
        inner = NodeLogCollector.Settings(urls=["http://127.0.0.1"], http=settings.http)
        self._logs = NodeLogCollector(inner, clock=clock)
        self._logs.retarget(())
        self._kube: KubeApi | None = None
        self._asked_s = float("-inf")
        self._fault: tuple[Reason, str] | None = None
        self._count = 0

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        started = self._timer()
        if started - self._asked_s >= self._settings.refresh_s:
            self._refresh(started)
        left_s = max(0.1, timeout_s - (self._timer() - started))
        batch = self._logs.collect(now_s, inventory, left_s)
        reason, detail = self._fault or (None, f"{self._count} node agents")
        found = SourceStatus(
            source_subject(self.plugin, "pods"), now_s, reason is None, reason, detail, samples=self._count
        )
        return Batch([found, *batch.sources], logs=batch.logs, events=batch.events)

    def close(self) -> None:
        self._logs.close()

    def _refresh(self, now_s: float) -> None:
        settings = self._settings
        try:
            if self._kube is None:
                self._kube = KubeApi.connect(settings.kubeconfig, settings.context, timeout_s=settings.timeout_s)
            path = f"/api/v1/namespaces/{settings.namespace}/pods"
            pods = self._kube.list(path, labelSelector=settings.selector)
        except (Temporary, Permanent) as error:
            status = getattr(error, "status", None)
            reason = Reason.UNAUTHORISED if status in (401, 403) else Reason.UNREACHABLE
            self._fault = (reason, str(error)[:300])  # those that are known go on
            return
        self._asked_s, self._fault = now_s, None
        found = [address for pod in pods if (address := self._address(pod)) is not None]
        self._count = len(found)
        self._logs.retarget(found)

    def _address(self, pod: Object) -> NodeAddress | None:
        meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
        ip, node = status.get("podIP"), spec.get("nodeName")
        if not ip or not node or meta.get("deletionTimestamp") or status.get("phase") != "Running":
            return None
        settings = self._settings
        host = f"[{ip}]" if ":" in ip else ip
        name = settings.certificate_name.format(pod=meta["name"], node=node, namespace=meta["namespace"])
        scheme = "https" if settings.tls else "http"
        url = f"{scheme}://{host}:{settings.port}/kernel-log"
        return NodeAddress(url, str(node), name if settings.tls else None)
