"""Metrics of hosts and their fabric: containers, nodes, network and InfiniBand ports, disks and filesystems.

Sources: cAdvisor's docs/storage/prometheus.md; node_exporter's collectors (pressure, meminfo, vmstat, diskstats,
filesystem, netclass, netdev, infiniband, timex) at v1.9; the kernel's Documentation/accounting/psi.rst (pressure),
admin-guide/iostats.rst (disk times) and ABI/stable/sysfs-class-infiniband (port counters: data words × 4 are bytes,
which node_exporter has multiplied already).
"""

from __future__ import annotations

from nightshift.collectors.subject import SubjectKind
from nightshift.collectors.telemetry.metric import Derived, Metric, MetricType

_G, _C = MetricType.GAUGE, MetricType.COUNTER
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
    name: str, unit: str, kind: MetricType, text: str, *exported: str, zero_is_missing: bool = False
) -> Metric:
    first, *others = (f"node_{one}" for one in exported)
    return Metric(
        f"nic_{name}", _NIC, unit, kind, text, first, zero_is_missing=zero_is_missing, aliases=tuple(others)
    )


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
    _container("cpu_throttled_s_total", "s", _C, "Held back by its CPU quota", "cpu_cfs_throttled_seconds_total"),
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
        *("transmit_drops_total", "packets", _C, "Not sent for want of room", "network_transmit_drop_total"),
        "infiniband_port_discards_transmitted_total",
    ),
    _nic(
        *("link_down_total", "events", _C, "The link went down", "network_carrier_down_changes_total"),
        "infiniband_link_downed_total",
    ),
    _nic("link_recoveries_total", "events", _C, "The link trained anew", "infiniband_link_error_recovery_total"),
    _nic("symbol_errors_total", "errors", _C, "Symbol errors", "infiniband_symbol_error_total"),
    _nic(
        *("integrity_errors_total", "errors", _C, "Bursts of physical errors beyond the port's threshold"),
        "infiniband_local_link_integrity_errors_total",
    ),
    _nic("wait_ticks_total", "ticks", _C, "Had data and no credits to send", "infiniband_port_transmit_wait_total"),
    # RoCE (mlx5's hw_counters): exported by node_exporter since it reads them; one without has no data
    _nic(
        *("ecn_marked_total", "packets", _C, "RoCE packets received that a switch marked for congestion"),
        "infiniband_np_ecn_marked_roce_packets_received_total",
    ),
    _nic("cnp_sent_total", "packets", _C, "Congestion told to senders", "infiniband_np_cnp_packets_sent_total"),
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
        *("no_buffer_drops_total", "packets", _C, "Dropped for want of a posted receive"),
        "infiniband_out_of_buffer_drops_total",
    ),
    _nic("is_up", "bool", _G, "Carries data", "network_carrier"),
    _nic("port_state", "code", _G, "InfiniBand's port state; 4 is active", "infiniband_state_id"),
    _nic(
        *("speed_bytes_per_s", "bytes/s", _G, "Link speed", "network_speed_bytes"),
        "infiniband_rate_bytes_per_second",
        zero_is_missing=True,
    ),
    _disk("reads_total", "operations", _C, "Reads done", "disk_reads_completed_total"),
    _disk("writes_total", "operations", _C, "Writes done", "disk_writes_completed_total"),
    _disk("read_bytes_total", "bytes", _C, "Read", "disk_read_bytes_total"),
    _disk("written_bytes_total", "bytes", _C, "Written", "disk_written_bytes_total"),
    _disk("read_time_s_total", "s", _C, "Summed over all reads", "disk_read_time_seconds_total"),
    _disk("write_time_s_total", "s", _C, "Summed over all writes", "disk_write_time_seconds_total"),
    _disk("busy_s_total", "s", _C, "With an operation under way", "disk_io_time_seconds_total"),
    _disk("size_bytes", "bytes", _G, "Size of the filesystem", "filesystem_size_bytes"),
    _disk("available_bytes", "bytes", _G, "Left to users on the filesystem", "filesystem_avail_bytes"),
    _disk("is_read_only", "bool", _G, "Mounted (or fallen back to) read-only", "filesystem_readonly"),
    _disk("has_error", "bool", _G, "The filesystem does not answer", "filesystem_device_error"),
)

HOST_DERIVED: tuple[Derived, ...] = (
    Derived("container_oom_events_per_s", _BOX, "events/s", "OOM kills", "container_oom_events_total"),
    Derived("container_cpu_cores", _BOX, "cores", "CPU in use", "container_cpu_s_total"),
    Derived(
        "container_cpu_throttled_ratio", _BOX, "ratio", "Held back by quota", "container_cpu_throttled_s_total"
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
    Derived("disk_busy_ratio", _DISK, "ratio", "With an operation under way", "disk_busy_s_total"),
    Derived("disk_read_latency_s", _DISK, "s", "Mean time of a read", "disk_read_time_s_total", "disk_reads_total"),
    Derived(
        "disk_write_latency_s", _DISK, "s", "Mean time of a write", "disk_write_time_s_total", "disk_writes_total"
    ),
)
