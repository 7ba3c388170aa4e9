"""The collectors that there are: one line each."""

from __future__ import annotations

from typing import Final

from collectors.alertmanager import AlertmanagerCollector
from collectors.cadvisor import CadvisorCollector
from collectors.dcgm_exporter import DcgmExporterCollector
from collectors.inference import InferenceCollector
from collectors.kineto import KinetoCollector
from collectors.kube_events import KubernetesEventsCollector
from collectors.kubernetes import KubernetesCollector
from collectors.local_kernel_log import LocalKernelLogCollector
from collectors.node_agents import NodeAgentsCollector
from collectors.node_exporter import NodeExporterCollector
from collectors.node_log import NodeLogCollector
from collectors.nvml import NvmlCollector
from collectors.prometheus import PrometheusCollector
from collectors.replay import ReplayCollector
from collectors.tensorboard import TensorboardCollector
from collectors.training_logs import TrainingLogsCollector
from collectors.training_metrics import TrainingMetricsCollector

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
