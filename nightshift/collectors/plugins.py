"""The collectors that there are: one line each."""

from __future__ import annotations

from typing import Final

from nightshift.collectors.kernel_log.local import LocalKernelLogCollector
from nightshift.collectors.kernel_log.node_agents import NodeAgentsCollector
from nightshift.collectors.kernel_log.node_log import NodeLogCollector
from nightshift.collectors.kubernetes.events import KubernetesEventsCollector
from nightshift.collectors.kubernetes.nodes_and_pods import KubernetesCollector
from nightshift.collectors.prometheus.alertmanager import AlertmanagerCollector
from nightshift.collectors.prometheus.live import PrometheusCollector
from nightshift.collectors.replay import ReplayCollector
from nightshift.collectors.slurm.nodes_and_jobs import SlurmCollector
from nightshift.collectors.telemetry.cadvisor import CadvisorCollector
from nightshift.collectors.telemetry.dcgm_exporter import DcgmExporterCollector
from nightshift.collectors.telemetry.equipment import EquipmentCollector
from nightshift.collectors.telemetry.inference import InferenceCollector
from nightshift.collectors.telemetry.node_exporter import NodeExporterCollector
from nightshift.collectors.telemetry.nvml import NvmlCollector
from nightshift.collectors.telemetry.redfish import RedfishCollector
from nightshift.collectors.topology import TopologyCollector
from nightshift.collectors.training.kineto import KinetoCollector
from nightshift.collectors.training.logs import TrainingLogsCollector
from nightshift.collectors.training.metrics import TrainingMetricsCollector
from nightshift.collectors.training.tensorboard import TensorboardCollector

ALL: Final = (
    PrometheusCollector,
    KubernetesCollector,
    KubernetesEventsCollector,
    SlurmCollector,
    NvmlCollector,
    LocalKernelLogCollector,
    DcgmExporterCollector,
    CadvisorCollector,
    NodeExporterCollector,
    EquipmentCollector,
    RedfishCollector,
    InferenceCollector,
    NodeLogCollector,
    NodeAgentsCollector,
    TrainingLogsCollector,
    TensorboardCollector,
    TrainingMetricsCollector,
    AlertmanagerCollector,
    KinetoCollector,
    ReplayCollector,
    TopologyCollector,
)
