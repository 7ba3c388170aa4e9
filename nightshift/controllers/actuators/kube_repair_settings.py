"""What resets and reboots of a Kubernetes cluster's nodes need to be told."""

from __future__ import annotations

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.shared_settings import stated_once
from nightshift.controllers.actuators.kube_probe import ProbeJob, ProbeName
from nightshift.controllers.actuators.kubernetes import KubernetesActuatorSettings

# The GPU operator's components that hold NVML handles: label of the node → `app` of its pods. Both names are the
# operator's own, whatever a release is called (gpu-operator, assets/state-*).
COMPONENTS = {
    "nvidia.com/gpu.deploy.device-plugin": "nvidia-device-plugin-daemonset",
    "nvidia.com/gpu.deploy.gpu-feature-discovery": "gpu-feature-discovery",
    "nvidia.com/gpu.deploy.dcgm-exporter": "nvidia-dcgm-exporter",
    "nvidia.com/gpu.deploy.dcgm": "nvidia-dcgm",
}


class RepairSettings(KubernetesActuatorSettings):
    """Resets GPUs and reboots nodes with privileged Jobs."""

    image: str = Field(min_length=1, description="Image with nvidia-smi, nsenter and a shell, from your registry")
    namespace: str = Field(min_length=1, description="Namespace of the Jobs; it must admit privileged pods")
    pull_secrets: SkipJsonSchema[tuple[str, ...]] = stated_once("pull_secrets", tuple)
    runtime_class: str = Field(default="", description="Runtime class that gives a container NVML; empty: none")
    check_image: str = Field(default="", description="Image of the check, e.g. NVIDIA's dcgm; empty: `image`")
    check_command: tuple[str, ...] = Field(
        default=("nvidia-smi",),
        min_length=1,
        description="Command that must succeed before the node takes work again, e.g. dcgmi, diag, -r, 2",
    )
    probes: dict[ProbeName, ProbeJob] = Field(
        default_factory=dict,
        description="Probes of what failed (dcgm, nccl, gemm), run in place of the check where their image is set",
    )
    job_timeout_s: int = Field(default=900, gt=0, description="A Job is given up after this (s)")
