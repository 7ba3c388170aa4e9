"""Which detector needs which signal, which of them this Prometheus has, and how to get the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from nightshift.collectors.subject import SubjectKind
from nightshift.collectors.telemetry.metrics import METRICS
from nightshift.detectors.ecc.counters import RETIRED, RETIRED_UNCORRECTED
from nightshift.detectors.ecc.sku import cannot_have, family_of

_EQUIPMENT = "BMCs and fabric telemetry"
LOGS = {
    "divergence": "training logs (loss)",
    "straggler": "training logs with each rank's own times",
    "local_gradients": "training logs with each rank's own gradient norms",
    "hang": "training logs (steps)",
    "stall": "training logs (steps)",
    "nccl_watchdog": "training logs (steps)",
    "job_crash": "training logs",
    "cluster": "Kubernetes' own objects",
    "kernel_events": "the kernel log",
    "equipment": _EQUIPMENT,
    "source": "Nightshift's own looks",  # no source to name: they are there as soon as it runs
}
"""What no Prometheus holds, by detector."""
_KERNEL_LOG = "run `nightshift node` on the node, or name a `node_log` source"
_TRAINING_LOGS = "name a `training_logs` source; a Prometheus does not hold it"
NEEDS = {
    "ecc": (
        "gpu_ecc_sbe_total",
        "gpu_ecc_dbe_total",
        "gpu_remapped_rows_correctable",
        "gpu_remapped_rows_uncorrectable",
        "gpu_row_remap_failure",
        "gpu_row_remap_pending",
    ),
    "gpu_lost": ("gpu_memory_used_bytes",),
    "interconnect": (
        "gpu_pcie_replay_total",
        "gpu_pcie_link_width",
        "gpu_nvlink_crc_errors_total",
    ),
    "memory_leak": (
        "gpu_memory_used_bytes",
        "gpu_memory_free_bytes",
        "container_memory_anonymous_bytes",
        "container_memory_limit_bytes",
    ),
    "serving": ("server_requests_waiting", "server_requests_running", "server_generated_tokens_total"),
    "throttle": ("gpu_sm_clock_mhz", "gpu_throttle_reasons", "gpu_utilization_percent"),
    "xid": ("gpu_xid_last", "gpu_recovery_action"),
}
CORDONS = "kube_node_spec_unschedulable"
READY = "kube_node_status_condition"


@dataclass(frozen=True)
class Blind:
    """A signal that is not there, the detectors that miss it, and what to do."""

    signal: str
    detectors: tuple[str, ...]
    how: str
    line: str = ""
    """What to add, literally, where `how` is to add a line."""


def blind_signals(series: Mapping[str, int], own_record: bool | None, models: Collection[str] = ()) -> list[Blind]:
    """series: how many series of each of our metrics were found. One of which that could not be read is not called
    blind, and so with own_record None: it is told with what was not read. models: the GPUs' that were seen; what
    none of them has is no blind spot, and what only old ones have is asked of them."""
    absent, needs_of = cannot_have(models), dict(NEEDS)
    # GPUs before Ampere retire pages, later ones remap rows: each is asked for what it has
    if any(family is not None and RETIRED in family.signals for family in map(family_of, models)):
        needs_of["ecc"] += (RETIRED, RETIRED_UNCORRECTED)
    found = [
        Blind(metric, tuple(name for name, needs in needs_of.items() if metric in needs), *how_to_enable(metric))
        for metric in dict.fromkeys(name for needs in needs_of.values() for name in needs)
        if series.get(metric) == 0 and metric not in absent
    ]
    found += _blind_logs()
    if own_record is False:
        how = "scrape kube-state-metrics: without it your cordons and their times are unknown"
        found.append(Blind(CORDONS, ("this look-back",), how))
    return found


def _blind_logs() -> list[Blind]:
    """The logs that no Prometheus holds, each once with all detectors that need it."""
    needed: dict[str, list[str]] = {}
    for detector, log in LOGS.items():
        if detector != "source":
            needed.setdefault(log, []).append(detector)
    how = {"the kernel log": _KERNEL_LOG, _EQUIPMENT: "name a `redfish` or an `equipment` source"}
    return [Blind(log, tuple(names), how.get(log, _TRAINING_LOGS)) for log, names in needed.items()]


def how_to_enable(metric: str) -> tuple[str, str]:
    """One sentence for an operator, and the line that it speaks of where it speaks of one."""
    known = next(m for m in METRICS if m.name == metric)
    if known.kind is SubjectKind.GPU:
        how = (
            "add these lines to dcgm-exporter's counters file "
            "(helm/nightshift/files/dcgm-counters.csv is a whole one), or run `nightshift node`"
        )
        return how, f"{known.exported_as}, {known.type}, {known.help}"
    if known.kind is SubjectKind.SERVER:
        how = f"name an `inference` source with the server's metrics page, which exports `{known.exported_as}`"
        return how, ""
    if known.kind is SubjectKind.CONTAINER:
        return f"scrape the kubelet's /metrics/cadvisor, which exports `{known.exported_as}`", ""
    return f"scrape node-exporter, which exports `{known.exported_as}`", ""
