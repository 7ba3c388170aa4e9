"""Canonical metric names with units, and what DCGM, NVML and other exporters call them.

GPUs and links stand here, hosts in `host_metrics`, inference servers in `server_metrics`. Sources: DCGM field
identifiers (docs.nvidia.com/datacenter/dcgm, dcgm_fields.h), NVML API reference.
"""

from __future__ import annotations

from nightshift.collectors.subject import SubjectKind
from nightshift.collectors.telemetry.host_metrics import HOST_DERIVED, HOST_METRICS
from nightshift.collectors.telemetry.metric import Derived, Metric, MetricType
from nightshift.collectors.telemetry.server_metrics import SERVER_DERIVED, SERVER_METRICS

__all__ = ["Derived", "Metric", "MetricType"]

_G, _C = MetricType.GAUGE, MetricType.COUNTER
_GPU, _LINK = SubjectKind.GPU, SubjectKind.LINK
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
        "gpu_throttle_reasons",
        _GPU,
        "bit mask",
        _G,
        "Clock event reasons",
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        aliases=("DCGM_FI_DEV_CLOCKS_EVENT_REASONS",),  # since DCGM 3.3
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
    Metric(
        "gpu_remap_banks_none",
        _GPU,
        "banks",
        _G,
        "Memory banks without a spare row",
        "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_NONE",
    ),
    Metric(
        "gpu_remap_banks_low",
        _GPU,
        "banks",
        _G,
        "Memory banks with few spare rows",
        "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_LOW",
    ),
    Metric("gpu_retired_pages_sbe_total", _GPU, "pages", _C, "Retired, corrected", "DCGM_FI_DEV_RETIRED_SBE"),
    Metric("gpu_retired_pages_dbe_total", _GPU, "pages", _C, "Retired, uncorrected", "DCGM_FI_DEV_RETIRED_DBE"),
    Metric("gpu_retired_pages_pending", _GPU, "pages", _G, "Wait for a reset", "DCGM_FI_DEV_RETIRED_PENDING"),
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
        "gpu_pcie_link_width", _GPU, "lanes", _G, "PCIe lanes in use", "DCGM_FI_DEV_PCIE_LINK_WIDTH", low=1, high=32
    ),
    Metric(
        "gpu_pcie_link_generation",
        _GPU,
        "generation",
        _G,
        "PCIe generation in use; idle links slow down",
        "DCGM_FI_DEV_PCIE_LINK_GEN",
        low=1,
        high=16,
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
    *HOST_METRICS,
    *SERVER_METRICS,
)

BOARD = frozenset(
    name
    for metric in METRICS
    if metric.name.startswith(
        ("gpu_ecc_", "gpu_remap", "gpu_row_remap_", "gpu_retired_", "gpu_pcie_", "gpu_nvlink_")
    )
    or metric.name == "gpu_xid_last"
    for name in (metric.exported_as, *metric.aliases)
)
"""Health of the whole board, by exported names: in MIG mode exporters repeat it on each instance's row. Power,
clocks and temperature are the board's too, but of all who share it: no job's GPUs are compared by them."""

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
    "gpu_remap_banks_none": "nvmlDeviceGetRowRemapperHistogram none",
    "gpu_remap_banks_low": "nvmlDeviceGetRowRemapperHistogram low",
    "gpu_pcie_replay_total": "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
    "gpu_nvlink_crc_errors_total": "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "gpu_sm_active_ratio": "GPM SM_UTIL",
    "gpu_tensor_active_ratio": "GPM ANY_TENSOR_UTIL",
    "gpu_dram_active_ratio": "GPM DRAM_BW_UTIL",
    "gpu_engine_active_ratio": "GPM GRAPHICS_UTIL",
}
"""Where `collectors.telemetry.nvml` reads a metric: an NVML function, a field identifier, or a GPM metric (in
percent)."""


DERIVED: tuple[Derived, ...] = (
    Derived("gpu_mean_power_w", _GPU, "W", "Draw averaged between two looks", "gpu_energy_j"),
    Derived("gpu_ecc_sbe_per_s", _GPU, "errors/s", "Corrected errors", "gpu_ecc_sbe_total"),
    Derived("gpu_pcie_replays_per_s", _GPU, "events/s", "PCIe replays", "gpu_pcie_replay_total"),
    Derived("gpu_nvlink_crc_errors_per_s", _GPU, "errors/s", "NVLink CRC errors", "gpu_nvlink_crc_errors_total"),
    Derived("link_crc_errors_per_s", _LINK, "errors/s", "Flit CRC errors of one NVLink", "link_crc_errors_total"),
    Derived("link_replay_errors_per_s", _LINK, "errors/s", "Retries of one NVLink", "link_replay_errors_total"),
    *HOST_DERIVED,
    *SERVER_DERIVED,
)
"""What `collectors.telemetry.derived_metrics` adds to a frame that has the counters."""


def of_kind(kind: SubjectKind) -> tuple[Metric, ...]:
    """The metrics of one kind of subject, in table order: the columns of its frames."""
    return tuple(metric for metric in METRICS if metric.kind is kind)


def derived_of_kind(kind: SubjectKind) -> tuple[Derived, ...]:
    """What is worked out of the counters of one kind of subject."""
    return tuple(derived for derived in DERIVED if derived.kind is kind)


BY_NAME: dict[str, Metric | Derived] = {m.name: m for m in METRICS} | {d.name: d for d in DERIVED}
BY_EXPORTED = {name: metric for metric in METRICS for name in (metric.exported_as, *metric.aliases)}


def table() -> str:
    """The reference page of telemetry: every metric, its unit, and its names elsewhere."""
    lines = [
        "# Telemetry",
        "",
        "What collectors read, in our names and units: value [unit] = exported × scale. A value out of range",
        "is refused and reads as missing; so do DCGM's blanks. MIG instances have the GPU's metrics; what they say",
        "of the board's health (memory errors, Xid, bus) is their GPU's as well, the highest where they differ.",
        "A rate is missing over a restart of its counter, a reboot, a gap of over five minutes, and at first.",
    ]
    for kind in dict.fromkeys(metric.kind for metric in METRICS):
        title = str(kind).upper() if kind in (_GPU, SubjectKind.NIC) else str(kind).capitalize()
        lines += ["", f"## {title}", ""]
        lines += [
            "| metric | unit | type | what | exported as | scale | NVML | range |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for m in of_kind(kind):
            scale = "2^20" if m.scale == _MIB else f"{m.scale:g}"
            high = "∞" if m.high >= 1e18 else f"{m.high:g}"
            names = ", ".join(f"`{name}`" for name in (m.exported_as, *m.aliases))
            lines.append(
                f"| `{m.name}` | {m.unit} | {m.type} | {m.help} | {names} | {scale} | "
                f"{NVML.get(m.name, '')} | {m.low:g} to {high} |"
            )
        if derived := derived_of_kind(kind):
            lines += ["", "| worked out | unit | what | from |", "|---|---|---|---|"]
            lines += [f"| `{d.name}` | {d.unit} | {d.help} | `{d.formula}` |" for d in derived]
    return "\n".join(lines) + "\n"
