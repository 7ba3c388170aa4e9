"""The collectors that there are: one line each."""

from __future__ import annotations

from typing import Final

from collectors.cadvisor import CadvisorCollector
from collectors.dcgm_exporter import DcgmExporterCollector
from collectors.node_log import NodeLogCollector
from collectors.prometheus import PrometheusCollector
from collectors.training_logs import TrainingLogsCollector

ALL: Final = (
    PrometheusCollector,
    DcgmExporterCollector,
    CadvisorCollector,
    NodeLogCollector,
    TrainingLogsCollector,
)
