"""The collectors that there are: one line each."""

from __future__ import annotations

from typing import Final

from nightshift.collectors.alertmanager import AlertmanagerCollector
from nightshift.collectors.cadvisor import CadvisorCollector
from nightshift.collectors.dcgm_exporter import DcgmExporterCollector
from nightshift.collectors.inference import InferenceCollector
from nightshift.collectors.kineto import KinetoCollector
from nightshift.collectors.kube_events import KubernetesEventsCollector
from nightshift.collectors.kubernetes import KubernetesCollector
from nightshift.collectors.local_kernel_log import LocalKernelLogCollector
from nightshift.collectors.node_agents import NodeAgentsCollector
from nightshift.collectors.node_exporter import NodeExporterCollector
from nightshift.collectors.node_log import NodeLogCollector
from nightshift.collectors.nvml import NvmlCollector
from nightshift.collectors.prometheus import PrometheusCollector
from nightshift.collectors.replay import ReplayCollector
from nightshift.collectors.tensorboard import TensorboardCollector
from nightshift.collectors.training_logs import TrainingLogsCollector
from nightshift.collectors.training_metrics import TrainingMetricsCollector

ALL: Final = (
    PrometheusCollector,
    KubernetesCollector,
    KubernetesEventsCollector,
    NvmlCollector,
    LocalKernelLogCollector,
    DcgmExporterCollector,
    CadvisorCollector,
    NodeExporterCollector,
    InferenceCollector,
    NodeLogCollector,
    NodeAgentsCollector,
    TrainingLogsCollector,
    TensorboardCollector,
    TrainingMetricsCollector,
    AlertmanagerCollector,
    KinetoCollector,
    ReplayCollector,
)
