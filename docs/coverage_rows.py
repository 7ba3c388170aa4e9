"""The failures that production papers count, and what finds each: the table behind `docs/reference/coverage.md`.

A row counts only where a drawn generator proves it (`benchmarks/field`): without one it stands with its reason, as
what cannot be seen does. Shares are the paper's own, of the incidents that it counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One cause of a paper. count: incidents, or per cent where the paper gives only those. finds: detector and
    rule. generator: the kind of `benchmarks/field` that proves it; empty: it does not count. why: the reason then,
    or what is not told of it."""

    cause: str
    count: float
    finds: str = ""
    generator: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper with a table of failures. total: what its counts are of. left_out: what is no failure."""

    title: str
    venue: str
    table: str
    total: float
    rows: Sequence[FailureRow]
    left_out: str = ""


_CRASH, _KERNEL, _CLUSTER = "`job_crash`", "`kernel_events`", "`cluster`"
_NO_GENERATOR = "a detector is there, and no drawn generator proves it"
_EVENT_LOG = "seen where the host's log has the events of the management controller (ipmiseld, ipmievd)"
_EXCEPTION = f"{_CRASH}: the exception that decides"
_R = FailureRow
PAPERS: Sequence[Paper] = (
    Paper(
        "The Llama 3 Herd of Models",
        "Meta, arXiv 2407.21783, 2024",
        "Table 5: 419 unexpected interruptions in 54 days on 16,384 H100",
        419,
        (
            _R("Faulty GPU", 148, "`xid` and `gpu_lost`: Xid 79, fallen off the bus", "xid_79"),
            _R("GPU HBM3 memory", 72, "`xid` and `ecc`: Xid 48, 64, 94, 95", "xid_48"),
            _R("Software bug", 54, f"{_CRASH}: the exception that decides", "job_exception"),
            _R(
                "Network switch or cable", 35, f"{_KERNEL}: link lines; {_CRASH}: NCCL's network errors", "nic_link"
            ),
            _R(
                "Host maintenance",
                32,
                f"{_CLUSTER}: node not ready",
                "node_not_ready",
                "of a node that was cordoned first nothing is said: that is meant",
            ),
            _R("GPU SRAM memory", 19, "`xid`: Xid 140", "xid_140"),
            _R("GPU system processor", 17, "`xid`: Xid 119, 120", "xid_119"),
            _R("NIC", 7, f"{_KERNEL}: mlx5 health and firmware", "nic_firmware"),
            _R("NCCL watchdog timeouts", 7, "`nccl_watchdog`", "nccl_timeout"),
            _R("Silent data corruption", 6, why="damage to the loss is seen, its cause is not"),
            _R(
                "GPU thermal interface and sensor",
                6,
                f"`throttle`; {_CLUSTER}: thermal conditions",
                "node_condition",
            ),
            _R("SSD", 3, f"{_KERNEL}: NVMe timeouts", "nvme_timeout"),
            _R("Power supply", 3, f"{_KERNEL}: a power supply that failed", "power_supply", _EVENT_LOG),
            _R(
                "Server chassis", 2, f"{_CLUSTER}: node not ready", "node_not_ready", "names the node, not the part"
            ),
            _R("IO expansion board", 2, f"{_KERNEL}: PCIe errors", "pcie_uncorrected"),
            _R("Dependency", 2, f"{_CRASH}: the exception that decides", "job_exception"),
            _R("CPU", 2, f"{_KERNEL}: machine checks", "machine_check"),
            _R("System memory", 2, f"{_KERNEL}: EDAC", "host_memory_uncorrected"),
        ),
    ),
    Paper(
        "Minder: Faulty Machine Detection for Large-scale Distributed Model Training",
        "NSDI 2025",
        "Table 1: fault types of seven months, in per cent",
        100,
        (
            _R("ECC error", 38.9, "`xid` and `ecc`: Xid 48", "xid_48"),
            _R("CUDA execution error", 14.6, f"{_CRASH}: a fault in GPU code", "gpu_code"),
            _R("GPU execution error", 7.7, "`xid`: Xid 13, 31, 109", "xid_13"),
            _R("PCIe downgrading", 6.6, "`interconnect`: a link narrower than it was", "pcie_width"),
            _R("Machine unreachable", 6.0, f"{_CLUSTER}: node not ready", "node_not_ready"),
            _R("NIC dropout", 5.7, f"{_KERNEL}: link lines", "nic_link"),
            _R("HDFS error", 5.7, f"{_CRASH}: its storage does not answer", "storage_client"),
            _R("GPU card drop", 2.0, "`gpu_lost`: fallen off the bus", "gpu_off_bus"),
            _R("NVLink error", 1.7, "`xid`: Xid 74", "xid_74"),
            _R("AOC error", 0.9, f"{_KERNEL}: cable lines", "nic_cable"),
            _R("Others", 10.2, why="the paper does not say what they are"),
        ),
    ),
    Paper(
        "Robust LLM Training Infrastructure at ByteDance (ByteRobust)",
        "SOSP 2025",
        "Table 1: incidents of three months in 778,135 jobs",
        45_783,
        (
            _R("CUDA error", 19_968, f"{_CRASH}: a fault in GPU code, or its GPU is not usable", "gpu_code"),
            _R(
                "CPU overload",
                6_095,
                why="no rule: a loaded host is no fault by itself, and its slow ranks are seen",
            ),
            _R("CPU out of memory", 5_567, f"{_KERNEL}: OOM kill; {_CLUSTER}: OOMKilled", "container_oom"),
            _R("Job hang", 5_506, "`hang` and `nccl_watchdog`", "nccl_timeout"),
            _R("Insufficient disk space", 2_755, f"{_CRASH}: no space left on its disk", "disk_full"),
            _R("InfiniBand error", 1_599, f"{_CRASH}: a network error between its ranks", "nccl_ib"),
            _R("Filesystem mount", 1_176, f"{_CLUSTER}: volume cannot be mounted", "volume_mount"),
            _R("HDFS error", 1_104, f"{_CRASH}: its storage does not answer", "storage_client"),
            _R("Container error", 781, f"{_CLUSTER}: container runtime, sandbox, crash loop", "container_runtime"),
            _R("MFU decline", 442, "`straggler`, where each rank's times are logged", why=_NO_GENERATOR),
            _R(
                "OS kernel panic",
                203,
                f"{_CLUSTER}: node not ready",
                "node_not_ready",
                "names the node, not the panic",
            ),
            _R("GPU memory error", 188, "`xid` and `ecc`", "xid_48"),
            _R("NaN value", 148, "`divergence`", "loss_not_finite"),
            _R("External service error", 128, why="the job's own log has no common words for it"),
            _R(
                "GPU unavailable", 76, f"{_CRASH}: its GPU is not usable; {_CLUSTER}: rejected pods", "pod_rejected"
            ),
            _R("Disk fault", 47, f"{_KERNEL}: I/O errors", "disk_io_error"),
        ),
        left_out="9,582 restarts by people for new code or data (17.3 %): they are no failures",
    ),
    Paper(
        "Characterization of Large Language Model Development in the Datacenter (Acme)",
        "Shanghai AI Laboratory and others, NSDI 2024",
        "Table 3: failures of jobs in six months, by number. The infrastructure's are 281 of them, and 82 % of the "
        "GPU time lost",
        2_575,
        (
            _R("Script: type error", 620, _EXCEPTION, "job_exception"),
            _R("Script: file not found", 568, _EXCEPTION, "job_exception"),
            _R("Script: OS error", 266, _EXCEPTION, "job_exception"),
            _R("Script: key error", 260, _EXCEPTION, "job_exception"),
            _R("Script: import error", 111, _EXCEPTION, "job_exception"),
            _R("Script: index, name, syntax, permission and argument errors", 61, _EXCEPTION, "job_exception"),
            _R("Script: called process error", 4, why="read as the launcher's own line, which names no cause"),
            _R("Framework: assertion error", 105, _EXCEPTION, "job_exception"),
            _R("Framework: model loading error", 104, _EXCEPTION, "load_error"),
            _R("Framework: attribute error", 67, _EXCEPTION, "job_exception"),
            _R("Framework: runtime error", 65, _EXCEPTION, "job_exception"),
            _R("Framework: value and zero division errors", 38, _EXCEPTION, "job_exception"),
            _R("Framework: out of memory", 14, f"{_CRASH}: out of GPU memory", "gpu_memory"),
            _R("Framework: dataloader killed", 6, f"{_CRASH}: a data loader's worker that died", "loader_killed"),
            _R("Framework: dataset loading error", 5, _EXCEPTION, "load_error"),
            _R(
                "Connection error",
                147,
                _EXCEPTION,
                "service_connection",
                "names the exception, not the service behind it",
            ),
            _R("NVLink error", 54, "`xid`: Xid 74", "xid_74"),
            _R("CUDA error", 21, f"{_CRASH}: a fault in GPU code", "gpu_code"),
            _R(
                "Node failure",
                16,
                f"{_CRASH} and the source `slurm`: NODE_FAIL",
                "slurm_node",
                "names the node, not the part",
            ),
            _R("ECC error", 12, "`xid` and `ecc`: Xid 48", "xid_48"),
            _R(
                "Network error",
                12,
                _EXCEPTION,
                "service_connection",
                "names the exception, not the service behind it",
            ),
            _R("S3 storage error", 10, f"{_CRASH}: its storage does not answer", "storage_client"),
            _R("NCCL timeout", 6, "`nccl_watchdog`", "nccl_timeout"),
            _R("NCCL remote error", 3, f"{_CRASH}: a network error between its ranks", "nccl_remote"),
        ),
    ),
    Paper(
        "Evolution of Aegis: Fault Diagnosis for AI Model Training Service in Production",
        "Alibaba, NSDI 2025",
        "Figure 2: types of failures, in per cent",
        100,
        (
            _R("CPU error", 13.7, f"{_KERNEL}: machine checks", "machine_check"),
            _R("GPU execution error", 13.1, "`xid`: Xid 13, 31, 109", "xid_13"),
            _R("PCIe error", 10.4, "`interconnect`: a link narrower than it was", "pcie_width"),
            _R("GPU ECC error", 10.2, "`xid` and `ecc`: Xid 48", "xid_48"),
            _R("NVLink error", 9.2, "`xid`: Xid 74", "xid_74"),
            _R("Memory error", 9.1, f"{_KERNEL}: EDAC", "host_memory_uncorrected"),
            _R("NIC error", 9.1, f"{_KERNEL}: mlx5 health and firmware", "nic_firmware"),
            _R("GPU memory error", 8.6, "`xid`: Xid 63, 64, 94, 95", "xid_94"),
            _R("Optic module and fiber error", 6.7, f"{_KERNEL}: cable lines", "nic_cable"),
            _R(
                "Power and fan error",
                3.7,
                f"{_KERNEL}: a power supply that failed",
                why="no rule for fans, and the paper does not split the two",
            ),
            _R("CUDA error", 3.3, f"{_CRASH}: a fault in GPU code", "gpu_code"),
            _R("Disk error", 1.6, f"{_KERNEL}: I/O errors", "disk_io_error"),
            _R("GPU driver error", 1.2, f"{_KERNEL}: the driver cannot initialize a GPU", "gpu_adapter_init"),
            _R("Rounding", 0.1, why="the figure's shares add up to 99.9"),
        ),
    ),
)
UNCOUNTED = (
    ("MegaScale (NSDI 2024)", "publishes examples and totals, no shares by cause"),
    ("C4 (Alibaba, HPCA 2025)", "no public copy of its table could be read to check its figures against"),
    ("Unicron (Alibaba, 2023)", "its shares stand in a figure of which no public copy could be read"),
)
"""Papers without rows, and why: they add nothing to the sum."""


def covered(paper: Paper) -> float:
    """The share of a paper's failures, in [0, 1], whose row has a generator."""
    return sum(row.count for row in paper.rows if row.generator) / paper.total


def coverage_page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Coverage of published failures\n"
    yield (
        "What production papers count most, and what finds it. A row counts only with a drawn generator that opens "
        "an incident for it (`benchmarks/field`). What cannot be seen counts as not covered. A generator proves "
        "that the published kind opens an incident, not that every instance of it does. The figures were read in "
        "public copies of each table, in November 2026.\n"
    )
    for paper in PAPERS:
        yield f"## {paper.title}\n"
        yield f"{paper.venue}, {paper.table}.{f' Left out: {paper.left_out}.' if paper.left_out else ''}\n"
        yield "| cause | published | found by | generator | not told, or why not |"
        yield "|---|---|---|---|---|"
        for row in paper.rows:
            share = f"{100 * row.count / paper.total:.1f} %"
            figure = share if paper.total == 100 else f"{row.count:,.0f} ({share})"
            made = f"`{row.generator}`" if row.generator else "none"
            yield f"| {row.cause} | {figure} | {row.finds or 'nothing'} | {made} | {row.why} |"
        yield f"\nCovered: {100 * covered(paper):.1f} %.\n"
    yield "## Papers without rows\n"
    yield from (f"- {title}: {why}." for title, why in UNCOUNTED)
    yield "\n## Sum\n"
    yield "| paper | covered |"
    yield "|---|---|"
    yield from (f"| {paper.title} | {100 * covered(paper):.1f} % |" for paper in PAPERS)
    mean = sum(map(covered, PAPERS)) / len(PAPERS)
    yield f"| **mean of the papers with rows** | **{100 * mean:.1f} %** |"
    yield from _drawn()


def _drawn() -> Iterator[str]:
    """What the generators of clusters gave, where they have been run."""
    path = RESULTS / "field_cluster.json"
    if path.exists():
        told = json.loads(path.read_text())["results"]
        yield (
            f"\nDrawn scenes of clusters (`python -m benchmarks.field.kinds_cluster`): {told['right']} of "
            f"{told['draws']} right, rollouts without a fault among them."
        )
