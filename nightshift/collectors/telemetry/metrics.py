"""Canonical metric names with units, and what DCGM, NVML and other exporters call them.

Sources, for GPUs and links: DCGM field identifiers (docs.nvidia.com/datacenter/dcgm, dcgm_fields.h), NVML API
reference. For hosts: cAdvisor's docs/storage/prometheus.md; node_exporter's collectors (pressure, meminfo, vmstat,
diskstats, filesystem, netclass, netdev, infiniband, timex) at v1.9; the kernel's Documentation/accounting/psi.rst
(pressure), admin-guide/iostats.rst (disk times) and ABI/stable/sysfs-class-infiniband (port counters: data words ×
4 are bytes, which node_exporter has multiplied already). Of a switch's
ports and modules: NVIDIA UFM Telemetry and NMX Telemetry (docs.nvidia.com/networking, "Low-Frequency (Secondary)
Telemetry Fields", "Cable Info"). Of a BMC's parts: ipmi_exporter's docs/metrics.md; `collectors.telemetry.redfish`
gives the same. For inference servers, one row per served model:
`collectors.telemetry.inference` maps what vLLM, SGLang and Triton say to one name each; a quantile is of the
requests that ended between two looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nightshift.collectors.subject import SubjectKind


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
    """Where the exporter writes 0, or less, for "none"."""
    aliases: tuple[str, ...] = ()
    """What other exporters, or other releases, call the same; in the same unit, but where the name says another."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A metric that is worked out of counters (`collectors.telemetry.derived_metrics`): the rate of `counter` (per
    s), divided by the rate of `per` where that is given; missing where `per` stood still."""

    name: str
    kind: SubjectKind
    unit: str
    help: str
    counter: str
    per: str = ""
    type: MetricType = MetricType.GAUGE

    @property
    def formula(self) -> str:
        return f"rate({self.counter})" + (f" / rate({self.per})" if self.per else "")


_G, _C, _PART = MetricType.GAUGE, MetricType.COUNTER, SubjectKind.PART
_BOX, _NODE, _NIC, _DISK = SubjectKind.CONTAINER, SubjectKind.NODE, SubjectKind.NIC, SubjectKind.DISK


def _container(
    name: str, unit: str, kind: MetricType, text: str, exported: str, zero_is_missing: bool = False
) -> Metric:
    return Metric(
        f"container_{name}", _BOX, unit, kind, text, f"container_{exported}", zero_is_missing=zero_is_missing
    )


def _node(name: str, unit: str, kind: MetricType, text: str, exported: str, low: float = 0.0) -> Metric:
    return Metric(f"node_{name}", _NODE, unit, kind, text, f"node_{exported}", low=low)


def _nic(
    name: str,
    unit: str,
    kind: MetricType,
    text: str,
    *exported: str,
    zero_is_missing: bool = False,
    fabric: tuple[str, ...] = (),
    low: float = 0.0,
) -> Metric:
    """`exported`: by node_exporter, `fabric`: by UFM Telemetry and NMX Telemetry."""
    first, *others = (*(f"node_{one}" for one in exported), *fabric)
    return Metric(
        *(f"nic_{name}", _NIC, unit, kind, text, first),
        low=low,
        zero_is_missing=zero_is_missing,
        aliases=tuple(others),
    )


def _part(name: str, unit: str, text: str, *exported: str, low: float = 0.0, high: float = 1e18) -> Metric:
    first, *others = (f"ipmi_{one}" for one in exported)
    return Metric(f"part_{name}", _PART, unit, _G, text, first, low=low, high=high, aliases=tuple(others))


def _disk(name: str, unit: str, kind: MetricType, text: str, exported: str) -> Metric:
    return Metric(f"disk_{name}", _DISK, unit, kind, text, f"node_{exported}")


HOST_METRICS: tuple[Metric, ...] = (
    _container(
        "memory_working_set_bytes", "bytes", _G, "Memory that cannot be evicted", "memory_working_set_bytes"
    ),
    _container("memory_anonymous_bytes", "bytes", _G, "Anonymous memory", "memory_rss"),
    _container("memory_cache_bytes", "bytes", _G, "Page cache", "memory_cache"),
    _container("memory_limit_bytes", "bytes", _G, "Memory limit", "spec_memory_limit_bytes", zero_is_missing=True),
    _container("oom_events_total", "events", _C, "OOM kills", "oom_events_total"),
    _container("cpu_s_total", "s", _C, "CPU time", "cpu_usage_seconds_total"),
    _container("cpu_throttled_s_total", "s", _C, "Throttled by its CPU quota", "cpu_cfs_throttled_seconds_total"),
    _container("cpu_pressure_s_total", "s", _C, "A task waited for a CPU", "pressure_cpu_waiting_seconds_total"),
    _container(
        "memory_pressure_s_total", "s", _C, "A task waited for memory", "pressure_memory_waiting_seconds_total"
    ),
    _container("io_pressure_s_total", "s", _C, "A task waited for I/O", "pressure_io_waiting_seconds_total"),
    _node("memory_total_bytes", "bytes", _G, "Host memory", "memory_MemTotal_bytes"),
    _node("memory_available_bytes", "bytes", _G, "Host memory left", "memory_MemAvailable_bytes"),
    _node("memory_anonymous_bytes", "bytes", _G, "Anonymous memory", "memory_AnonPages_bytes"),
    _node("memory_cache_bytes", "bytes", _G, "Page cache", "memory_Cached_bytes"),
    _node("memory_dirty_bytes", "bytes", _G, "Page cache not yet written", "memory_Dirty_bytes"),
    _node("oom_kills_total", "events", _C, "OOM kills", "vmstat_oom_kill"),
    _node("major_faults_total", "faults", _C, "Pages read back from disk", "vmstat_pgmajfault"),
    _node("cpu_pressure_s_total", "s", _C, "A task waited for a CPU", "pressure_cpu_waiting_seconds_total"),
    _node("memory_pressure_s_total", "s", _C, "A task waited for memory", "pressure_memory_waiting_seconds_total"),
    _node("memory_stall_s_total", "s", _C, "All tasks waited for memory", "pressure_memory_stalled_seconds_total"),
    _node("io_pressure_s_total", "s", _C, "A task waited for I/O", "pressure_io_waiting_seconds_total"),
    _node("io_stall_s_total", "s", _C, "All tasks waited for I/O", "pressure_io_stalled_seconds_total"),
    _node("load_1m", "tasks", _G, "Tasks running or waiting, one-minute mean", "load1"),
    _node("boot_time_s", "s", _G, "When the kernel started (Unix s)", "boot_time_seconds"),
    _node("clock_is_synchronised", "bool", _G, "The kernel's clock follows a reference", "timex_sync_status"),
    _node("clock_max_error_s", "s", _G, "The kernel's own bound of its clock's error", "timex_maxerror_seconds"),
    _nic(
        *("receive_bytes_total", "bytes", _C, "Received", "network_receive_bytes_total"),
        "infiniband_port_data_received_bytes_total",
    ),
    _nic(
        *("transmit_bytes_total", "bytes", _C, "Sent", "network_transmit_bytes_total"),
        "infiniband_port_data_transmitted_bytes_total",
    ),
    _nic(
        *("receive_errors_total", "packets", _C, "Received broken", "network_receive_errs_total"),
        "infiniband_port_errors_received_total",
    ),
    _nic("transmit_errors_total", "packets", _C, "Not sent for an error", "network_transmit_errs_total"),
    _nic("receive_drops_total", "packets", _C, "Received and dropped", "network_receive_drop_total"),
    _nic(
        *("transmit_drops_total", "packets", _C, "Not sent: no free buffer", "network_transmit_drop_total"),
        "infiniband_port_discards_transmitted_total",
    ),
    _nic(
        *("link_down_total", "events", _C, "The link went down", "network_carrier_down_changes_total"),
        "infiniband_link_downed_total",
        fabric=("LinkDownedCounterExtended", "LinkDownedCounter", "Link_Down_IB", "Link_Down", "link_down_counter"),
    ),
    _nic(
        *("link_recoveries_total", "events", _C, "Link retrainings", "infiniband_link_error_recovery_total"),
        fabric=("LinkErrorRecoveryCounterExtended", "LinkErrorRecoveryCounter"),
    ),
    _nic(
        *("symbol_errors_total", "errors", _C, "Symbol errors", "infiniband_symbol_error_total"),
        fabric=("SymbolErrorCounterExtended", "SymbolErrorCounter", "Symbol_Errors"),
    ),
    _nic(
        *("integrity_errors_total", "errors", _C, "Bursts of physical errors beyond the port's threshold"),
        "infiniband_local_link_integrity_errors_total",
        fabric=("LocalLinkIntegrityErrorsExtended", "LocalLinkIntegrityErrors"),
    ),
    _nic("wait_ticks_total", "ticks", _C, "Had data and no credits to send", "infiniband_port_transmit_wait_total"),
    # RoCE (mlx5's hw_counters): exported by node_exporter since it reads them; one without has no data
    _nic(
        *("ecn_marked_total", "packets", _C, "RoCE packets received that a switch marked for congestion"),
        "infiniband_np_ecn_marked_roce_packets_received_total",
    ),
    _nic("cnp_sent_total", "packets", _C, "Congestion notifications sent", "infiniband_np_cnp_packets_sent_total"),
    _nic(
        *("cnp_handled_total", "packets", _C, "Slowed down for a receiver's congestion"),
        "infiniband_rp_cnp_packets_handled_total",
    ),
    _nic(
        *("retransmits_total", "packets", _C, "RoCE's adaptive retransmissions"),
        "infiniband_roce_adp_retransmits_total",
    ),
    _nic(
        *("out_of_sequence_total", "packets", _C, "Received out of sequence: some were lost"),
        "infiniband_out_of_sequence_packets_received_total",
    ),
    _nic(
        *("sequence_errors_total", "packets", _C, "Receivers said that packets were lost"),
        "infiniband_packet_sequence_errors_total",
    ),
    _nic(
        *("ack_timeouts_total", "events", _C, "No acknowledgement came in time"),
        "infiniband_local_ack_timeout_errors_total",
    ),
    _nic(
        *("no_buffer_drops_total", "packets", _C, "Dropped: no posted receive"),
        "infiniband_out_of_buffer_drops_total",
    ),
    _nic("is_up", "bool", _G, "Carries data", "network_carrier"),
    _nic(
        *("port_state", "code", _G, "InfiniBand's port state; 4 is active", "infiniband_state_id"),
        fabric=("logical_state", "Logical_State", "port_logical_state"),
    ),
    _nic(
        *("module_temperature_c", "°C", _G, "Temperature of the cable's module"),
        fabric=("Module_Temperature", "module_temperature"),
    ),
    _nic(
        *("rx_power_dbm", "dBm", _G, "Light that the module receives, the weakest lane"),
        fabric=("rx_power_lane_0",),
        low=-60,
    ),
    _nic(
        *("speed_bytes_per_s", "bytes/s", _G, "Link speed", "network_speed_bytes"),
        "infiniband_rate_bytes_per_second",
        zero_is_missing=True,
    ),
    _part(
        *("health", "code", "State as its BMC reports it: 0 well, 1 warning, 2 critical", "sensor_state"),
        *("temperature_state", "fan_speed_state", "voltage_state", "current_state", "power_state"),
        high=2.0,
    ),
    _part("temperature_c", "°C", "Temperature", "temperature_celsius", low=-60.0, high=300.0),
    _part("fan_rpm", "1/min", "Speed of a fan", "fan_speed_rpm"),
    _part("power_w", "W", "Power", "power_watts"),
    _disk("reads_total", "operations", _C, "Reads done", "disk_reads_completed_total"),
    _disk("writes_total", "operations", _C, "Writes done", "disk_writes_completed_total"),
    _disk("read_bytes_total", "bytes", _C, "Read", "disk_read_bytes_total"),
    _disk("written_bytes_total", "bytes", _C, "Written", "disk_written_bytes_total"),
    _disk("read_time_s_total", "s", _C, "Summed over all reads", "disk_read_time_seconds_total"),
    _disk("write_time_s_total", "s", _C, "Summed over all writes", "disk_write_time_seconds_total"),
    _disk("busy_s_total", "s", _C, "With an operation in flight", "disk_io_time_seconds_total"),
    _disk("size_bytes", "bytes", _G, "Size of the filesystem", "filesystem_size_bytes"),
    _disk("available_bytes", "bytes", _G, "Left to users on the filesystem", "filesystem_avail_bytes"),
    _disk("is_read_only", "bool", _G, "Mounted (or fallen back to) read-only", "filesystem_readonly"),
    _disk("has_error", "bool", _G, "The filesystem does not answer", "filesystem_device_error"),
)

HOST_DERIVED: tuple[Derived, ...] = (
    Derived("container_oom_events_per_s", _BOX, "events/s", "OOM kills", "container_oom_events_total"),
    Derived("container_cpu_cores", _BOX, "cores", "CPU in use", "container_cpu_s_total"),
    Derived(
        "container_cpu_throttled_ratio", _BOX, "ratio", "Throttled by quota", "container_cpu_throttled_s_total"
    ),
    Derived("container_cpu_pressure_ratio", _BOX, "ratio", "Waited for a CPU", "container_cpu_pressure_s_total"),
    Derived(
        "container_memory_pressure_ratio", _BOX, "ratio", "Waited for memory", "container_memory_pressure_s_total"
    ),
    Derived("container_io_pressure_ratio", _BOX, "ratio", "Waited for I/O", "container_io_pressure_s_total"),
    Derived("node_oom_kills_per_s", _NODE, "events/s", "OOM kills", "node_oom_kills_total"),
    Derived("node_major_faults_per_s", _NODE, "faults/s", "Pages read back", "node_major_faults_total"),
    Derived("node_cpu_pressure_ratio", _NODE, "ratio", "A task waited for a CPU", "node_cpu_pressure_s_total"),
    Derived(
        "node_memory_pressure_ratio", _NODE, "ratio", "A task waited for memory", "node_memory_pressure_s_total"
    ),
    Derived("node_memory_stall_ratio", _NODE, "ratio", "All tasks waited for memory", "node_memory_stall_s_total"),
    Derived("node_io_pressure_ratio", _NODE, "ratio", "A task waited for I/O", "node_io_pressure_s_total"),
    Derived("node_io_stall_ratio", _NODE, "ratio", "All tasks waited for I/O", "node_io_stall_s_total"),
    Derived("nic_receive_bytes_per_s", _NIC, "bytes/s", "Received", "nic_receive_bytes_total"),
    Derived("nic_transmit_bytes_per_s", _NIC, "bytes/s", "Sent", "nic_transmit_bytes_total"),
    Derived("nic_receive_errors_per_s", _NIC, "packets/s", "Received broken", "nic_receive_errors_total"),
    Derived("nic_receive_drops_per_s", _NIC, "packets/s", "Received and dropped", "nic_receive_drops_total"),
    Derived("nic_transmit_drops_per_s", _NIC, "packets/s", "Not sent", "nic_transmit_drops_total"),
    Derived("nic_flaps_per_s", _NIC, "events/s", "The link went down", "nic_link_down_total"),
    Derived("nic_symbol_errors_per_s", _NIC, "errors/s", "Symbol errors", "nic_symbol_errors_total"),
    Derived("nic_wait_ticks_per_s", _NIC, "ticks/s", "No credits to send", "nic_wait_ticks_total"),
    Derived("disk_read_bytes_per_s", _DISK, "bytes/s", "Read", "disk_read_bytes_total"),
    Derived("disk_written_bytes_per_s", _DISK, "bytes/s", "Written", "disk_written_bytes_total"),
    Derived("disk_busy_ratio", _DISK, "ratio", "With an operation in flight", "disk_busy_s_total"),
    Derived("disk_read_latency_s", _DISK, "s", "Mean time of a read", "disk_read_time_s_total", "disk_reads_total"),
    Derived(
        "disk_write_latency_s", _DISK, "s", "Mean time of a write", "disk_write_time_s_total", "disk_writes_total"
    ),
)


def _of(name: str, unit: str, kind: MetricType, text: str, *exported: str, high: float = 1e18) -> Metric:
    first, *others = exported
    return Metric(f"server_{name}", SubjectKind.SERVER, unit, kind, text, first, high=high, aliases=tuple(others))


def _window(name: str, text: str, *histograms: str) -> tuple[Metric, ...]:
    """The median and the 99th percentile of a latency's histogram, by what each server calls it."""
    return tuple(
        _of(f"{name}_{short}_s", "s", _G, f"{text}, {words}", *(f"quantile({q:g}, {h})" for h in histograms))
        for short, q, words in (("p50", 0.5, "median"), ("p99", 0.99, "99th percentile"))
    )


SERVER_METRICS: tuple[Metric, ...] = (
    _of(
        *("requests_running", "requests", _G, "In the running batch", "vllm:num_requests_running"),
        *("sglang:num_running_reqs", "nv_trt_llm_request_metrics{request_type=active}"),
    ),
    _of(
        *("requests_waiting", "requests", _G, "In the queue", "vllm:num_requests_waiting", "sglang:num_queue_reqs"),
        *("nv_inference_pending_request_count", "nv_trt_llm_request_metrics{request_type=waiting}"),
    ),
    _of(
        *("kv_cache_used_ratio", "ratio", _G, "KV cache in use", "vllm:kv_cache_usage_perc"),
        *("vllm:gpu_cache_usage_perc", "sglang:token_usage"),
        "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
        high=1.05,
    ),
    _of(
        *("prompt_tokens_total", "tokens", _C, "Tokens of prompts", "vllm:prompt_tokens_total"),
        "sglang:prompt_tokens_total",
    ),
    _of(
        *("generated_tokens_total", "tokens", _C, "Tokens written", "vllm:generation_tokens_total"),
        "sglang:generation_tokens_total",
    ),
    _of(
        *("requests_done_total", "requests", _C, "Requests that succeeded", "vllm:request_success_total"),
        *("sglang:num_requests_total", "nv_inference_request_success"),
    ),
    _of("requests_failed_total", "requests", _C, "Requests that failed", "nv_inference_request_failure"),
    _of(
        *("preemptions_total", "requests", _C, "Put back into the queue", "vllm:num_preemptions_total"),
        "sglang:num_retracted_requests_total",
    ),
    _of(
        *("queue_time_s_total", "s", _C, "Time in the queue, summed", "nv_inference_queue_duration_us"),
        *("vllm:request_queue_time_seconds_sum", "sglang:queue_time_seconds_sum"),
    ),
    *_window(
        *("ttft", "Time to the first token", "vllm:time_to_first_token_seconds"),
        *("sglang:time_to_first_token_seconds", "nv_inference_first_response_histogram_ms"),
    ),
    *_window(
        *("tpot", "Time between two tokens", "vllm:inter_token_latency_seconds"),
        *("vllm:time_per_output_token_seconds", "sglang:inter_token_latency_seconds"),
        "sglang:time_per_output_token_seconds",
    ),
    *_window(
        *("latency", "Time of a whole request", "vllm:e2e_request_latency_seconds"),
        "sglang:e2e_request_latency_seconds",
    ),
    *_window(
        *("queue", "Time in the queue", "vllm:request_queue_time_seconds", "sglang:queue_time_seconds"),
    ),
)

_S = SubjectKind.SERVER
SERVER_DERIVED: tuple[Derived, ...] = (
    Derived("server_prompt_tokens_per_s", _S, "tokens/s", "Prompts read", "server_prompt_tokens_total"),
    Derived("server_generated_tokens_per_s", _S, "tokens/s", "Tokens written", "server_generated_tokens_total"),
    Derived("server_requests_per_s", _S, "requests/s", "Requests that succeeded", "server_requests_done_total"),
    Derived("server_failures_per_s", _S, "requests/s", "Requests that failed", "server_requests_failed_total"),
    Derived("server_preemptions_per_s", _S, "requests/s", "Put back into the queue", "server_preemptions_total"),
    Derived(
        *("server_mean_queue_time_s", _S, "s", "Mean time in the queue", "server_queue_time_s_total"),
        "server_requests_done_total",
    ),
)

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
    Metric(
        "gpu_recovery_action",
        _GPU,
        "code",
        _G,
        "What the driver says that the GPU needs (0: nothing)",
        "DCGM_FI_DEV_GPU_RECOVERY_ACTION",
        aliases=("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION",),  # before DCGM 4.3
    ),
    Metric("gpu_ecc_sbe_total", _GPU, "errors", _C, "Corrected, volatile", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"),
    Metric("gpu_ecc_dbe_total", _GPU, "errors", _C, "Uncorrected, volatile", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
    Metric("gpu_ecc_sbe_dram_total", _GPU, "errors", _C, "Corrected in DRAM", "DCGM_FI_DEV_ECC_SBE_VOL_DEV"),
    Metric("gpu_ecc_dbe_dram_total", _GPU, "errors", _C, "Uncorrected in DRAM", "DCGM_FI_DEV_ECC_DBE_VOL_DEV"),
    Metric("gpu_ecc_sbe_sram_total", _GPU, "errors", _C, "Corrected in SRAM", "DCGM_FI_DEV_ECC_SBE_VOL_SRM"),
    Metric("gpu_ecc_dbe_sram_total", _GPU, "errors", _C, "Uncorrected in SRAM", "DCGM_FI_DEV_ECC_DBE_VOL_SRM"),
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

# Health of the whole board, by exported names: in MIG mode exporters repeat it on each instance's row. Power,
# clocks and temperature are the board's too, but of all who share it: no job's GPUs are compared by them.
BOARD = frozenset(
    name
    for metric in METRICS
    if metric.name.startswith(
        ("gpu_ecc_", "gpu_remap", "gpu_row_remap_", "gpu_retired_", "gpu_pcie_", "gpu_nvlink_")
    )
    or metric.name in ("gpu_xid_last", "gpu_recovery_action")
    for name in (metric.exported_as, *metric.aliases)
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
    "gpu_ecc_sbe_dram_total": "nvmlDeviceGetMemoryErrorCounter corrected, DRAM",
    "gpu_ecc_dbe_dram_total": "nvmlDeviceGetMemoryErrorCounter uncorrected, DRAM",
    "gpu_ecc_sbe_sram_total": "nvmlDeviceGetMemoryErrorCounter corrected, SRAM",
    "gpu_ecc_dbe_sram_total": "nvmlDeviceGetMemoryErrorCounter uncorrected, SRAM",
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
    """The metrics of one kind of subject, in table order: the columns of its frames.

    >>> [metric.name for metric in of_kind(SubjectKind.LINK)]
    ['link_crc_errors_total', 'link_replay_errors_total', 'link_recovery_errors_total']
    """
    return tuple(metric for metric in METRICS if metric.kind is kind)


def derived_of_kind(kind: SubjectKind) -> tuple[Derived, ...]:
    """What is worked out of the counters of one kind of subject."""
    return tuple(derived for derived in DERIVED if derived.kind is kind)


BY_NAME: dict[str, Metric | Derived] = {m.name: m for m in METRICS} | {d.name: d for d in DERIVED}
NVIDIA_SMI: dict[str, tuple[str, float]] = {
    f"nvidia_smi_{name}": (as_dcgm, factor)
    for name, as_dcgm, factor in (
        ("memory_used_bytes", "DCGM_FI_DEV_FB_USED", 1 / _MIB),
        ("memory_free_bytes", "DCGM_FI_DEV_FB_FREE", 1 / _MIB),
        ("power_draw_watts", "DCGM_FI_DEV_POWER_USAGE", 1.0),
        ("enforced_power_limit_watts", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 1.0),
        ("energy_joules_total", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e3),
        ("temperature_gpu", "DCGM_FI_DEV_GPU_TEMP", 1.0),
        ("temperature_memory", "DCGM_FI_DEV_MEMORY_TEMP", 1.0),
        ("clocks_current_sm_clock_hz", "DCGM_FI_DEV_SM_CLOCK", 1e-6),
        ("clocks_current_memory_clock_hz", "DCGM_FI_DEV_MEM_CLOCK", 1e-6),
        ("utilization_gpu_ratio", "DCGM_FI_DEV_GPU_UTIL", 100.0),
        ("utilization_memory_ratio", "DCGM_FI_DEV_MEM_COPY_UTIL", 100.0),
        ("clocks_event_reasons_active", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 1.0),
        ("gpu_recovery_action", "DCGM_FI_DEV_GPU_RECOVERY_ACTION", 1.0),
        ("ecc_errors_corrected_volatile_total", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 1.0),
        ("ecc_errors_uncorrected_volatile_total", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1.0),
        ("ecc_errors_corrected_volatile_dram", "DCGM_FI_DEV_ECC_SBE_VOL_DEV", 1.0),
        ("ecc_errors_uncorrected_volatile_dram", "DCGM_FI_DEV_ECC_DBE_VOL_DEV", 1.0),
        ("ecc_errors_corrected_volatile_sram", "DCGM_FI_DEV_ECC_SBE_VOL_SRM", 1.0),
        ("ecc_errors_uncorrected_volatile_sram", "DCGM_FI_DEV_ECC_DBE_VOL_SRM", 1.0),
        ("remapped_rows_correctable", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 1.0),
        ("remapped_rows_uncorrectable", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 1.0),
        ("remapped_rows_failure", "DCGM_FI_DEV_ROW_REMAP_FAILURE", 1.0),
        ("remapped_rows_pending", "DCGM_FI_DEV_ROW_REMAP_PENDING", 1.0),
        ("xid_errors_total", "DCGM_EXP_XID_ERRORS_TOTAL", 1.0),
    )
}
"""What utkuozdemir/nvidia_gpu_exporter (docs/METRICS.md) calls DCGM's metrics, and the factor from its units."""

BY_EXPORTED = {name: metric for metric in METRICS for name in (metric.exported_as, *metric.aliases)}


def table() -> str:
    """The reference page of telemetry: every metric, its unit, and its names elsewhere."""
    lines = [
        "# Telemetry",
        "",
        "What collectors read, in our names and units: value [unit] = exported × scale. A value out of range",
        "is refused and reads as missing; so do DCGM's blanks. MIG instances have the GPU's metrics; what they say",
        "of the board's health (memory errors, Xid, bus) is their GPU's as well, the highest where they differ.",
        "A rate is missing at first, after a counter restart or reboot, and over gaps longer than five minutes.",
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
