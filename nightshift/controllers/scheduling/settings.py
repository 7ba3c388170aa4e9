"""Settings of scheduling in the daemon. Off by default; when on, it only watches (`act: false`) until an operator
says otherwise."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.kubernetes.api import ACCESS, Access, AccessSettings
from nightshift.collectors.kubernetes.nodes_and_pods import ClusterLabels, LabelSettings
from nightshift.collectors.shared_settings import stated_once
from nightshift.controllers.actuators.kube_queue import QueueSettings

# Time between two turns: a gate opens that much later at most, and each turn reads what changed since the last.
EVERY_S = 15.0


class SchedulingSettings(BaseModel):
    """Order of waiting jobs, within bounds on waiting; nothing that runs is ever stopped."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(False, description="Look, propose and keep receipts; writes nothing")
    act: bool = Field(
        False, description="Also open gates and write holds and boosts; while false, Nightshift's gates stay shut"
    )
    access: Access = Field(default_factory=AccessSettings, description=ACCESS)
    kueue: bool = Field(False, description="Follow Kueue's Workloads and AdmissionChecks, too")
    kinds: tuple[Literal["Job", "JobSet", "PyTorchJob", "RayJob"], ...] = Field(
        ("Job",), description="Kinds of jobs that may carry `kueue.x-k8s.io/admission-gated-by`"
    )
    queue: QueueSettings = Field(default_factory=QueueSettings, description="How gates are opened")
    labels: ClusterLabels = stated_once("labels", LabelSettings)
    gpu_watts: SkipJsonSchema[float] = stated_once("power.max_w", lambda: 700.0)
    """What a GPU's start adds to its rack's draw at most (W)."""
    slope_w: float | None = Field(
        None, gt=0, description="Rise of the draw that starts may cause in a minute (W); none: no limit"
    )
    opted_in: SkipJsonSchema[frozenset[str]] = stated_once("trial_namespaces", frozenset)
