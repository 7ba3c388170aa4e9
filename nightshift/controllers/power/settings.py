"""Settings of power control. Off by default; when on, it only watches (`act: false`) until an operator says
more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.kubernetes.api import Access
from nightshift.collectors.shared_settings import stated_once
from nightshift.controllers.actuators.power_nodes import Settings as NodesSettings
from nightshift.controllers.power.clocks import Settings as ClockSettings
from nightshift.controllers.power.shield import Settings as ShieldSettings

# Telemetry that one decision rests on: six ticks of 5 s, or two readings of an exporter scraped every 15 s.
WINDOW_S = 30.0
# A node falls back this long after the last renewal: three windows, so that one late turn ends no lease.
LEASE_S = 90.0


class RackSettings(BaseModel):
    """One feed with a budget: the nodes behind it, and what they draw beside their GPUs."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    nodes: tuple[str, ...] = Field(min_length=1, description="Names of its nodes")
    budget_w: float = Field(gt=0, description="What the rack may draw in all (W)")
    host_w: float = Field(0.0, ge=0, description="What everything but the GPUs draws at most, all nodes (W)")


class PowerSettings(BaseModel):
    """Power limits chosen by policy, within racks' budgets and jobs' slowdown budgets."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    enabled: bool = Field(False, description="Look, propose and keep receipts")
    act: bool = Field(False, description="Also order limits through the nodes' leases; else everything is a shadow")
    racks: dict[str, RackSettings] = Field(default_factory=dict, description="Racks by name")
    nodes: NodesSettings = Field(
        default_factory=NodesSettings, description="How nodes that take leases are reached"
    )
    shield: ShieldSettings = Field(default_factory=ShieldSettings, description="What is never done")
    access: Access | None = Field(
        None,
        description="Entry of `kubernetes`, to check whether a silent node's Node object is deleted; none: the "
        "draw of its rack is unknown",
    )
    clocks: ClockSettings = Field(
        default_factory=ClockSettings, description="SM clock locks where no power limit can bind"
    )
    slowdown_of: dict[str, Annotated[float, Field(gt=0, lt=1)]] = Field(
        default_factory=dict, description="Slowdown budget by namespace, where it is not `shield.slowdown` (share)"
    )
    opted_in: SkipJsonSchema[frozenset[str]] = stated_once("trial_namespaces", frozenset)
    max_w: float = Field(700.0, gt=0, description="Highest limit of a GPU until its node answers (W)")
    policy_file: Path | None = Field(None, description="Learned policy; none: the heuristic, which ships")
    policy_keys: tuple[Path, ...] = Field((), description="Public keys that a policy file may be signed by")

    @model_validator(mode="after")
    def _fits(self) -> PowerSettings:
        seen: dict[str, str] = {}
        for name, rack in self.racks.items():
            for node in rack.nodes:
                if node in seen:
                    raise ValueError(f"racks: node {node} is listed in {seen[node]} and in {name}")
                seen[node] = name
        if self.act and not (self.racks and (self.nodes.urls or self.nodes.agents)):
            raise ValueError("act: needs racks, and nodes.urls or nodes.agents")
        return self
