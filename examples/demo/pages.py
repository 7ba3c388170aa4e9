"""The pages that a node serves, as production's exporters write them: dcgm-exporter, cAdvisor, the node agent.

Labels and number formats follow dcgm-exporter 4 (github.com/NVIDIA/dcgm-exporter) with the counters file that adds
ECC and profiling rows, and kubelet's /metrics/cadvisor (samples carry a time stamp in ms).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from examples.demo.job import DEVICE_BYTES, RESERVED_BYTES
from examples.demo.recording import Cell
from examples.demo.scenario import MIB, GpuPlan


@dataclass(slots=True)
class GpuView:
    """One GPU as its page shows it."""

    plan: GpuPlan
    cell: Cell
    memory_bytes: float
    energy_mj: float
    corrected: int
    uncorrected: int
    remapped_corrected: int
    remapped_uncorrected: int
    pending: bool
    last_xid: int
    pod: tuple[str, str] | None
    """Namespace and pod that holds it."""
    pcie_replays: int = 0
    nvlink_crc: int = 0


_Value = Callable[[GpuView], float | int]
_ROWS: tuple[tuple[str, str, str, _Value], ...] = (
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", lambda g: int(g.cell.sm_clock_mhz)),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", lambda g: int(g.cell.memory_clock_mhz)),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", lambda g: int(g.cell.temperature_c) + 6),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", lambda g: int(g.cell.temperature_c)),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", lambda g: g.cell.power_w),
    ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "gauge", "Enforced power limit (in W).", lambda g: 700.0),
    (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Total energy consumption since boot (in mJ).",
        lambda g: int(g.energy_mj),
    ),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries.", lambda g: g.pcie_replays),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", lambda g: int(g.cell.utilization_percent)),
    (
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "gauge",
        "Memory utilization (in %).",
        lambda g: int(g.cell.memory_utilization_percent),
    ),
    (
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        "gauge",
        "Current clock throttle reasons (bitmask).",
        lambda g: g.cell.throttle_reasons,
    ),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.", lambda g: g.last_xid),
    (
        "DCGM_FI_DEV_FB_FREE",
        "gauge",
        "Framebuffer memory free (in MiB).",
        lambda g: int((DEVICE_BYTES - RESERVED_BYTES - g.memory_bytes) / MIB),
    ),
    (
        "DCGM_FI_DEV_FB_USED",
        "gauge",
        "Framebuffer memory used (in MiB).",
        lambda g: int(g.memory_bytes / MIB),
    ),
    (
        "DCGM_FI_DEV_FB_RESERVED",
        "gauge",
        "Framebuffer memory reserved (in MiB).",
        lambda g: int(RESERVED_BYTES / MIB),
    ),
    (
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "counter",
        "Total number of single-bit volatile ECC errors.",
        lambda g: g.corrected,
    ),
    (
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "counter",
        "Total number of double-bit volatile ECC errors.",
        lambda g: g.uncorrected,
    ),
    (
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Number of remapped rows for uncorrectable errors",
        lambda g: g.remapped_uncorrected,
    ),
    (
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Number of remapped rows for correctable errors",
        lambda g: g.remapped_corrected,
    ),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed", lambda g: 0),
    (
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
        "gauge",
        "Whether remapping of rows is pending",
        lambda g: int(g.pending),
    ),
    (
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "counter",
        "Total number of NVLink flow-control CRC errors.",
        lambda g: g.nvlink_crc,
    ),
    (
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "gauge",
        "Ratio of time the graphics engine is active.",
        lambda g: g.cell.engine_active_ratio,
    ),
    (
        "DCGM_FI_PROF_SM_ACTIVE",
        "gauge",
        "Ratio of cycles an SM has at least 1 warp.",
        lambda g: g.cell.sm_active_ratio,
    ),
    (
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "gauge",
        "Ratio of cycles the tensor (HMMA) pipe is active.",
        lambda g: g.cell.tensor_active_ratio,
    ),
    (
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "gauge",
        "Ratio of cycles the memory interface is active.",
        lambda g: g.cell.dram_active_ratio,
    ),
)


def dcgm_page(gpus: Iterable[GpuView]) -> bytes:
    """One node's dcgm-exporter page. A value that was not recorded is left out, as DCGM leaves it out."""
    labelled = []
    for gpu in gpus:
        plan = gpu.plan
        held = ""
        if gpu.pod is not None:
            held = f',container="trainer",namespace="{gpu.pod[0]}",pod="{gpu.pod[1]}"'
        labels = (
            f'{{gpu="{plan.index}",UUID="{plan.uuid}",pci_bus_id="00000000:{plan.pci_bus.upper()}:00.0",'
            f'device="nvidia{plan.index}",modelName="NVIDIA H200",Hostname="{plan.node}",'
            f'DCGM_FI_DRIVER_VERSION="580.159.04"{held}}} '
        )
        labelled.append((labels, gpu))
    parts = []
    for name, kind, text, value in _ROWS:
        parts.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
        for labels, gpu in labelled:
            number = value(gpu)
            if not math.isnan(number):
                shown = f"{number:.6f}" if isinstance(number, float) else str(number)
                parts.append(f"{name}{labels}{shown}\n")
    return "".join(parts).encode()


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container as cAdvisor shows it; `uid` is its pod's, `started_s` its start."""

    namespace: str
    pod: str
    container: str
    uid: str
    anonymous_bytes: float
    cache_bytes: float
    limit_bytes: float
    started_s: float
    oom_events: int = 0


def cadvisor_page(containers: Iterable[ContainerView], at_s: float) -> bytes:
    """One node's /metrics/cadvisor page: the machine's root, each pod's own cgroup, and each container."""
    stamp = int(at_s * 1000)
    rows: list[tuple[str, ContainerView]] = []
    for c in containers:
        slice_id = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{c.uid}.slice"
        outer = f'{{container="",id="{slice_id}",image="",name="",namespace="{c.namespace}",pod="{c.pod}"}}'
        inner = (
            f'{{container="{c.container}",id="{slice_id}/cri-containerd-{c.uid}.scope",'
            f'image="registry.local/{c.container}:2026.2",name="{c.uid}",namespace="{c.namespace}",pod="{c.pod}"}}'
        )
        rows += [(outer, c), (inner, c)]
    families: tuple[tuple[str, str, str, Callable[[ContainerView], float]], ...] = (
        ("container_memory_cache", "gauge", "Number of bytes of page cache memory.", lambda c: c.cache_bytes),
        ("container_memory_rss", "gauge", "RSS in bytes.", lambda c: c.anonymous_bytes),
        (
            "container_memory_working_set_bytes",
            "gauge",
            "Current working set in bytes.",
            lambda c: c.anonymous_bytes + 0.4 * c.cache_bytes,
        ),
        ("container_spec_memory_limit_bytes", "gauge", "Memory limit for the container.", lambda c: c.limit_bytes),
        (
            "container_oom_events_total",
            "counter",
            "Count of out of memory events observed.",
            lambda c: c.oom_events,
        ),
        (
            "container_start_time_seconds",
            "gauge",
            "Start time of the container since unix epoch in seconds.",
            lambda c: c.started_s,
        ),
    )
    parts = []
    for name, kind, text, value in families:
        parts.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
        parts += [f"{name}{labels} {_go(value(view))} {stamp}\n" for labels, view in rows]
    return "".join(parts).encode()


def _go(number: float) -> str:
    """As Go prints a float in an exposition: an exponent from 1e21 on or, by %g, where it is shorter."""
    whole = int(number)
    if whole < 1_000_000:
        return str(whole)
    digits, exponent = f"{whole:.15e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e+{int(exponent):02d}"


@dataclass(frozen=True, slots=True)
class KernelLine:
    cursor: int
    t_s: float
    text: str

    def to_json(self) -> str:
        return json.dumps({"cursor": self.cursor, "t_s": self.t_s, "text": self.text})


def kernel_page(lines: Iterable[KernelLine]) -> bytes:
    """The node agent's answer: one JSON object per line."""
    return "".join(line.to_json() + "\n" for line in lines).encode()
