"""Canonical metric names with units, and what DCGM, NVML, cAdvisor and node-exporter call them.

Sources: DCGM field identifiers (docs.nvidia.com/datacenter/dcgm, dcgm_fields.h), NVML API reference, cAdvisor's
and node-exporter's metric documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from collectors.subject import SubjectKind


class MetricType(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """`value [unit] = exported × scale`, where `exported` is the series named in `dcgm` or `exported_as`."""

    name: str
    kind: SubjectKind
    unit: str
    type: MetricType
    help: str
    exported_as: str
    scale: float = 1.0
    low: float = 0.0
    high: float = 1e18
    """Values outside cannot be: they are refused, never shown as health."""
    zero_is_missing: bool = False
    """Where the exporter writes 0 for "none"."""


_G, _C = MetricType.GAUGE, MetricType.COUNTER
_GPU, _LINK = SubjectKind.GPU, SubjectKind.LINK
_BOX, _NODE = SubjectKind.CONTAINER, SubjectKind.NODE
_MIB = float(2**20)

METRICS: tuple[Metric, ...] = (
    Metric("gpu_memory_used_bytes", _GPU, "bytes", _G, "Framebuffer in use", "DCGM_FI_DEV_FB_USED", _MIB),
    Metric("gpu_memory_free_bytes", _GPU, "bytes", _G, "Framebuffer free", "DCGM_FI_DEV_FB_FREE", _MIB),
    Metric("gpu_power_w", _GPU, "W", _G, "Board draw", "DCGM_FI_DEV_POWER_USAGE"),
    Metric("gpu_power_limit_w", _GPU, "W", _G, "Enforced power limit", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"),
    Metric("gpu_energy_j", _GPU, "J", _C, "Energy since boot", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e-3),
    Metric("gpu_temperature_c", _GPU, "°C", _G, "GPU temperature", "DCGM_FI_DEV_GPU_TEMP", low=-40, high=200),
    Metric(
        "gpu_memory_temperature_c", _GPU, "°C", _G, "HBM temperature", "DCGM_FI_DEV_MEMORY_TEMP", low=-40, high=200
    ),
    Metric("gpu_sm_clock_mhz", _GPU, "MHz", _G, "SM clock", "DCGM_FI_DEV_SM_CLOCK"),
    Metric("gpu_memory_clock_mhz", _GPU, "MHz", _G, "Memory clock", "DCGM_FI_DEV_MEM_CLOCK"),
    Metric(
        "gpu_utilization_percent", _GPU, "%", _G, "Time with a kernel running", "DCGM_FI_DEV_GPU_UTIL", high=100
    ),
    Metric("gpu_memory_utilization_percent", _GPU, "%", _G, "Memory busy", "DCGM_FI_DEV_MEM_COPY_UTIL", high=100),
    Metric(
        "gpu_throttle_reasons", _GPU, "bit mask", _G, "Clock event reasons", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
    ),
    Metric("gpu_xid_last", _GPU, "code", _G, "Last Xid; never clears", "DCGM_FI_DEV_XID_ERRORS"),
    Metric("gpu_ecc_sbe_total", _GPU, "errors", _C, "Corrected, volatile", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"),
    Metric("gpu_ecc_dbe_total", _GPU, "errors", _C, "Uncorrected, volatile", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
    Metric(
        "gpu_remapped_rows_correctable",
        _GPU,
        "rows",
        _C,
        "Rows remapped after corrected errors",
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    ),
    Metric(
        "gpu_remapped_rows_uncorrectable",
        _GPU,
        "rows",
        _C,
        "Rows remapped after uncorrected errors",
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    ),
    Metric("gpu_row_remap_failure", _GPU, "bool", _G, "A remap failed", "DCGM_FI_DEV_ROW_REMAP_FAILURE"),
    Metric("gpu_row_remap_pending", _GPU, "bool", _G, "A remap waits for a reset", "DCGM_FI_DEV_ROW_REMAP_PENDING"),
    Metric("gpu_pcie_replay_total", _GPU, "events", _C, "PCIe replays", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
    Metric(
        "gpu_nvlink_crc_errors_total",
        _GPU,
        "errors",
        _C,
        "NVLink flit CRC errors",
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    ),
    Metric("gpu_sm_active_ratio", _GPU, "ratio", _G, "SM activity", "DCGM_FI_PROF_SM_ACTIVE", high=1.05),
    Metric(
        "gpu_tensor_active_ratio",
        _GPU,
        "ratio",
        _G,
        "Tensor activity",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        high=1.05,
    ),
    Metric("gpu_dram_active_ratio", _GPU, "ratio", _G, "HBM activity", "DCGM_FI_PROF_DRAM_ACTIVE", high=1.05),
    Metric(
        "gpu_engine_active_ratio", _GPU, "ratio", _G, "Graphics engine", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", high=1.05
    ),
    Metric(
        "link_crc_errors_total",
        _LINK,
        "errors",
        _C,
        "Flit CRC errors of one NVLink",
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT",
    ),
    Metric(
        "link_replay_errors_total",
        _LINK,
        "errors",
        _C,
        "Retries of one NVLink",
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT",
    ),
    Metric(
        "link_recovery_errors_total",
        _LINK,
        "errors",
        _C,
        "Recoveries of one NVLink",
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT",
    ),
    Metric(
        "container_memory_working_set_bytes",
        _BOX,
        "bytes",
        _G,
        "Memory that cannot be evicted",
        "container_memory_working_set_bytes",
    ),
    Metric("container_memory_anonymous_bytes", _BOX, "bytes", _G, "Anonymous memory", "container_memory_rss"),
    Metric("container_memory_cache_bytes", _BOX, "bytes", _G, "Page cache", "container_memory_cache"),
    Metric(
        "container_memory_limit_bytes",
        _BOX,
        "bytes",
        _G,
        "Memory limit",
        "container_spec_memory_limit_bytes",
        zero_is_missing=True,
    ),
    Metric("container_oom_events_total", _BOX, "events", _C, "OOM kills", "container_oom_events_total"),
    Metric("node_memory_total_bytes", _NODE, "bytes", _G, "Host memory", "node_memory_MemTotal_bytes"),
    Metric("node_memory_available_bytes", _NODE, "bytes", _G, "Host memory left", "node_memory_MemAvailable_bytes"),
)


NVML = {
    "gpu_memory_used_bytes": "nvmlDeviceGetMemoryInfo_v2 used",
    "gpu_memory_free_bytes": "nvmlDeviceGetMemoryInfo_v2 free",
    "gpu_power_w": "nvmlDeviceGetPowerUsage",
    "gpu_power_limit_w": "nvmlDeviceGetEnforcedPowerLimit",
    "gpu_energy_j": "nvmlDeviceGetTotalEnergyConsumption",
    "gpu_temperature_c": "nvmlDeviceGetTemperature",
    "gpu_memory_temperature_c": "NVML_FI_DEV_MEMORY_TEMP",
    "gpu_sm_clock_mhz": "nvmlDeviceGetClockInfo SM",
    "gpu_memory_clock_mhz": "nvmlDeviceGetClockInfo MEM",
    "gpu_utilization_percent": "nvmlDeviceGetUtilizationRates gpu",
    "gpu_memory_utilization_percent": "nvmlDeviceGetUtilizationRates memory",
    "gpu_throttle_reasons": "nvmlDeviceGetCurrentClocksEventReasons",
    "gpu_ecc_sbe_total": "nvmlDeviceGetTotalEccErrors corrected",
    "gpu_ecc_dbe_total": "nvmlDeviceGetTotalEccErrors uncorrected",
    "gpu_remapped_rows_correctable": "nvmlDeviceGetRemappedRows",
    "gpu_remapped_rows_uncorrectable": "nvmlDeviceGetRemappedRows",
    "gpu_row_remap_failure": "nvmlDeviceGetRemappedRows",
    "gpu_row_remap_pending": "nvmlDeviceGetRemappedRows",
    "gpu_pcie_replay_total": "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
    "gpu_nvlink_crc_errors_total": "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "gpu_sm_active_ratio": "GPM SM_UTIL",
    "gpu_tensor_active_ratio": "GPM ANY_TENSOR_UTIL",
    "gpu_dram_active_ratio": "GPM DRAM_BW_UTIL",
    "gpu_engine_active_ratio": "GPM GRAPHICS_UTIL",
}
"""Where `collectors.nvml` reads a metric: an NVML function, a field identifier, or a GPM metric (in percent)."""


def of_kind(kind: SubjectKind) -> tuple[Metric, ...]:
    """The metrics of one kind of subject, in table order: the columns of its frames."""
    return tuple(metric for metric in METRICS if metric.kind is kind)


BY_NAME = {metric.name: metric for metric in METRICS}
BY_EXPORTED = {metric.exported_as: metric for metric in METRICS}


def table() -> str:
    """The reference page of telemetry: every metric, its unit, and its names elsewhere."""
    lines = [
        "# Telemetry",
        "",
        "What collectors read, in our names and units: value [unit] = exported × scale. A value out of range",
        "is refused and reads as missing; so do DCGM's blanks. MIG instances have the GPU's metrics.",
    ]
    for kind in dict.fromkeys(metric.kind for metric in METRICS):
        lines += ["", f"## {str(kind).upper() if kind is _GPU else str(kind).capitalize()}", ""]
        lines += [
            "| metric | unit | type | what | exported as | scale | NVML | range |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for m in of_kind(kind):
            scale = "2^20" if m.scale == _MIB else f"{m.scale:g}"
            high = "∞" if m.high >= 1e18 else f"{m.high:g}"
            lines.append(
                f"| `{m.name}` | {m.unit} | {m.type} | {m.help} | `{m.exported_as}` | {scale} | "
                f"{NVML.get(m.name, '')} | {m.low:g} to {high} |"
            )
    return "\n".join(lines) + "\n"
