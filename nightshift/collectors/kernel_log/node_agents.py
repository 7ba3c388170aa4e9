"""The kernel log of every node whose agent runs as a DaemonSet: found through the API server, read by mutual TLS.

How agents are found, and why an address alone is not believed: `agent_pods`. A node keeps its cursor when its agent
gets another address, while none runs, and over a restart of the daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.frame import SourceStatus
from nightshift.collectors.http import CONNECTION, Connection, HttpSettings
from nightshift.collectors.kernel_log.node_log import NodeAddress, NodeLogCollector
from nightshift.collectors.kubernetes import agent_pods
from nightshift.collectors.kubernetes.agent_pods import AgentPod, AgentPods
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.subject import Inventory
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch


class NodeAgentsCollector:
    """New kernel log lines of all nodes that run our agent, and the events among them."""

    plugin: ClassVar[str] = "node_agents"

    class Settings(BaseModel):
        """Finds `nightshift node` by its pods and reads the kernel log of their nodes."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        agents: SkipJsonSchema[agent_pods.Settings | None] = stated_once("node_agents", lambda: None)
        tls: bool = Field(False, description="Whether they are reached by TLS")
        state_file: SkipJsonSchema[Path | None] = Field(
            None, exclude=True, description="Keeps the cursors over restarts; set from `state_dir`"
        )
        connection: Connection = Field(default_factory=HttpSettings, description=CONNECTION)

        @model_validator(mode="after")
        def _finds_agents(self) -> NodeAgentsCollector.Settings:
            if self.agents is None:
                raise ValueError("requires the block `node_agents`, with the namespace and selector of their pods")
            return self

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._timer = settings, clock
        inner = NodeLogCollector.Settings(
            urls=["http://127.0.0.1"], connection=settings.connection, state_file=settings.state_file
        )
        self._logs = NodeLogCollector(inner, clock=clock)
        self._logs.retarget(())
        assert settings.agents is not None
        self._pods = AgentPods(settings.agents, clock=clock)

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        started = self._timer()
        self._pods.refresh()
        agents = {agent.node: agent for agent in self._pods.found}  # of two agents of a node, one
        self._logs.retarget(map(self._address, agents.values()))
        left_s = max(0.1, timeout_s - (self._timer() - started))
        batch = self._logs.collect(now_s, inventory, left_s)
        count, fault = len(self._pods.found), self._pods.fault
        reason, detail = fault or (None, f"{count} node agents")
        found = SourceStatus(
            source_subject(self.plugin, "pods"), now_s, reason is None, reason, detail, samples=count
        )
        return Batch([found, *batch.sources], logs=batch.logs, events=batch.events)

    def close(self) -> None:
        self._logs.close()

    def _address(self, agent: AgentPod) -> NodeAddress:
        tls = self._settings.tls
        url = f"{'https' if tls else 'http'}://{agent.place}/kernel-log"
        return NodeAddress(url, agent.node, agent.certificate_name if tls else None)
