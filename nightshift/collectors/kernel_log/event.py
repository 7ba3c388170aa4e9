"""What a kernel log line means, once parsed: the record that `collectors.kernel_log.lines` makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nightshift.collectors.frame import LogRecord
from nightshift.collectors.subject import Subject

KERNEL_LOGS = ("node_log", "kernel_log")
"""The plug-ins that bring kernel events, as their sources' names begin."""


class KernelEventKind(StrEnum):
    XID = "xid"
    SXID = "sxid"
    PCIE_AER = "pcie_aer"
    OOM_KILL = "oom_kill"
    FELL_OFF_BUS = "fell_off_bus"
    NVLINK = "nvlink"
    MESSAGE = "message"
    """A line of a kind that `collectors.kernel_log.messages` knows (`message`: its name; `subject`: whose it is,
    where the line names a port or a disk)."""
    STORAGE = "storage"
    """A remote file system's server is silent or answers again (`server`, `answers`), or a process waits in the
    kernel without end (`blocked_s`)."""
    BOOT = "boot"
    GAP = "gap"
    """Lines were lost: rotation, an overrun ring buffer or a rate limit."""


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One event. `code` is the Xid or SXid number, else None; `gpu` is None where the PCI address is unknown."""

    kind: KernelEventKind
    record: LogRecord
    node: Subject
    code: int | None = None
    gpu: Subject | None = None
    pci_address: str | None = None
    process: str | None = None
    pid: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Such as `recovery_action` of Xid 154, `victim` of an OOM kill, `row` and `bank` where a line gives them."""
