"""Node agents that run as a DaemonSet, found through the API server by their pods. Needs `list` on pods.

Pods come and go with nodes, so their addresses are asked for again and again; those that are known go on while the
API server is away. An address alone proves nothing: the certificate that an agent shows has to be of its own pod,
and its name is made from a pattern here and checked by TLS.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, field_validator

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.frame import Reason
from nightshift.collectors.kubernetes.api import ACCESS, Access, AccessSettings, KubeApi, Object

# The node logs of this tick wait for the answer; agents that are known are read without it.
ASK_S = 5.0
# How often the agents' addresses are asked for: one small list per cluster.
REFRESH_S = 15.0


class Settings(BaseModel):
    """Finds `nightshift node` by its pods."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    access: Access = Field(default_factory=AccessSettings, description=ACCESS)
    namespace: str = Field(min_length=1, description="Namespace of the agents' pods")
    selector: str = Field(min_length=1, description="Label selector of the agents' pods")
    port: int = Field(9400, ge=1, le=65535, description="Port of the agents")
    certificate_name: str = Field(
        "{pod}.{namespace}.pod", description="Name in an agent's certificate, of {pod}, {node} and {namespace}"
    )

    @field_validator("certificate_name")
    @classmethod
    def _is_a_pattern(cls, name: str) -> str:
        try:
            name.format(pod="p", node="n", namespace="s")
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"{error} is none of pod, node, namespace") from error
        return name


@dataclass(frozen=True, slots=True)
class AgentPod:
    """An agent that runs. `place` is host and port as they stand in a URL."""

    node: str
    pod: str
    place: str
    certificate_name: str


class AgentPods:
    """The agents of a cluster, as the API server told them last."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._timer = settings, clock
        self._kube: KubeApi | None = None
        self._asked_s = float("-inf")
        self.found: tuple[AgentPod, ...] = ()
        self.fault: tuple[Reason, str] | None = None
        """Why the API server did not tell them the last time; `found` is then what it told before."""

    def refresh(self) -> None:
        """Asks the API server, unless it told them less than `refresh_s` ago."""
        settings, now_s = self._settings, self._timer()
        if now_s - self._asked_s < REFRESH_S:
            return
        try:
            if self._kube is None:
                self._kube = KubeApi.connect(settings.access, within_s=ASK_S)
            path = f"/api/v1/namespaces/{settings.namespace}/pods"
            pods = self._kube.list(path, labelSelector=settings.selector)
        except (Temporary, Permanent) as error:
            status = getattr(error, "status", None)
            reason = Reason.UNAUTHORISED if status in (401, 403) else Reason.UNREACHABLE
            self.fault = (reason, str(error)[:300])
            return
        self._asked_s, self.fault = now_s, None
        self.found = tuple(agent for pod in pods if (agent := self._agent(pod)) is not None)

    def claimed_twice(self) -> dict[str, str]:
        """Nodes on which more than one agent runs, and which pods those are."""
        twice = {node for node, count in Counter(agent.node for agent in self.found).items() if count > 1}
        return {node: ", ".join(sorted(a.pod for a in self.found if a.node == node)) for node in twice}

    def _agent(self, pod: Object) -> AgentPod | None:
        meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
        ip, node = status.get("podIP"), spec.get("nodeName")
        if not ip or not node or meta.get("deletionTimestamp") or status.get("phase") != "Running":
            return None
        settings = self._settings
        host = f"[{ip}]" if ":" in ip else ip
        name = settings.certificate_name.format(pod=meta["name"], node=node, namespace=meta["namespace"])
        return AgentPod(str(node), str(meta["name"]), f"{host}:{settings.port}", name)
