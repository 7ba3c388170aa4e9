"""What the driver and the host say in the kernel log without an Xid: one row per kind of line.

A row names the words that only this kind of line has, the fault that they tell (`detectors.base.Fault`, by its
value), how grave it is, what is about (a GPU, a port, a disk, the node), what to do where the line itself settles
that, and where the wording stands. A kind that a healthy machine writes now and then has `least`: so many within
`detectors.hardware.kernel_events.QUIET_S` make one event.

Sources. `nvrm`: NVIDIA/open-gpu-kernel-modules (src/nvidia, kernel-open) of 535 to 580. `fm`: NVIDIA Fabric Manager
User Guide, "Log Messages". `linux:PATH`: the file of Linux 6.x that prints the line. What follows the words (codes,
sizes, names) is read only where a row has a group for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from re import _parser  # type: ignore[attr-defined]  # what `re.compile` itself reads patterns with
from typing import Any


@dataclass(frozen=True, slots=True)
class MessageKind:
    """One kind of line. `about`: gpu, nic, disk or node; `recovery` is an action of the Xid catalogue, empty where
    the line calls for none by itself."""

    name: str
    first_word: str
    """The letters that the line begins with."""
    pattern: str
    fault: str
    severity: str
    meaning: str
    source: str
    about: str = "gpu"
    recovery: str = ""
    least: int = 1


_D, _H, _P, _N, _L = "driver_error", "host_error", "pcie_degraded", "network_degraded", "nvlink_degraded"
_W, _C = "warning", "critical"
_RESET, _REBOOT = "reset_gpu", "reboot_node"
_FW, _MLX, _DISK, _NODE, _NIC = "fm", "linux:drivers/net/ethernet/mellanox/mlx5", "disk", "node", "nic"
_NVME, _MCE = "linux:drivers/nvme/host/pci.c", "linux:arch/x86/kernel/cpu/mce/core.c"


_row = MessageKind

KINDS: tuple[MessageKind, ...] = (
    _row("dcgm_health", "DCGM", r"^DCGM health watch .*failed", _D, _W,
         "DCGM's health watch of the GPU failed", "dcgm-exporter: DCGM_EXP_GPU_HEALTH_STATUS"),
    # NVIDIA's kernel driver
    _row("reset_required", "NVRM", r"NV_ERR_RESET_REQUIRED|status=0x0*62\b|RmInitAdapter failed! \(0x62:", _D, _C,
         "The driver says that the GPU must be reset", "nvrm", recovery=_RESET),
    _row("init_failed", "NVRM", r"RmInitAdapter failed|rm_init_adapter failed", _D, _C,
         "The driver cannot initialise the GPU", "nvrm", recovery=_RESET),
    _row("gsp_heartbeat", "NVRM", r"_kgspIsHeartbeatTimedOut: Heartbeat timed out", _D, _C,
         "The GPU's system processor (GSP) stopped", "nvrm", recovery=_RESET),
    _row("gsp_timeout", "NVRM", r"_kgspLogRpcTimeout|\*+ GSP Timeout \*+|_issueRpcAndWait.*timed? ?out", _D, _C,
         "The GPU's system processor (GSP) does not answer", "nvrm", recovery=_RESET),
    _row("gsp_crash", "NVRM", r"GSP-CrashCat Report|GSP task exception|\*+ GSP Failure \*+", _D, _C,
         "The GPU's system processor (GSP) crashed", "nvrm", recovery=_RESET),
    _row("gsp_booter", "NVRM", r"[Bb]ooter.{0,80}(?:[Ff]ailed|error)|failed to execute Booter", _D, _C,
         "The GPU's firmware loader (Booter) failed", "nvrm", recovery=_RESET),
    _row("gsp_firmware", "NVRM", r"No firmware image found|(?:failed|unable) to load (?:the )?GSP firmware", _D, _C,
         "The driver finds no GSP firmware of its version", "nvrm"),
    _row("gsp_init", "NVRM", r"cannot bootstrap riscv/gsp|kgspBootstrap\w*: .*(?:fail|timed out)"
         r"|kgspInitRm\w*: .*fail|WPR2 already up|[Cc]annot initialize GSP firmware RM"
         r"|cannot proceed with booting GSP", _D, _C,
         "The GPU's system processor (GSP) did not start", "nvrm", recovery=_RESET),
    _row("api_mismatch", "NVRM", r"API mismatch: the client", _D, _C,
         "The driver's library and kernel module have different versions", "nvrm", about=_NODE),
    _row("gpu_is_lost", "NVRM", r"NV_ERR_GPU_IS_LOST|GPU (?:is )?lost from the bus", "gpu_lost", _C,
         "The driver has lost the GPU", "nvrm", recovery=_REBOOT),
    _row("probe_failed", "NVRM", r"NVIDIA probe routine (?:failed|was not called) for \d", _D, _C,
         "The driver did not take over every GPU", "nvrm", about=_NODE),
    _row("no_gpu_found", "NVRM", r"No NVIDIA (?:graphics adapter|GPU|devices?) (?:was |were )?(?:found|probed)"
         r"|NVIDIA init module failed|None of the NVIDIA (?:devices|graphics adapters) were initiali[sz]ed", _D, _W,
         "The driver was loaded and took over no GPU", "nvrm", about=_NODE),
    _row("power_cables", "NVRM", r"does not have the necessary power cables connected", _D, _C,
         "The GPU's power cables are not connected", "nvrm", recovery="contact_support"),
    _row("bar_invalid", "NVRM", r"This PCI I/O region assigned to your NVIDIA device is invalid|BAR\d is 0M @",
         _D, _C,
         "The firmware gave the GPU no memory window (BAR)", "nvrm", recovery=_REBOOT),
    _row("vbios", "NVRM", r"failed to copy vbios to system memory", _D, _C,
         "The driver cannot read the GPU's firmware", "nvrm", recovery=_REBOOT),
    _row("fabric_probe", "NVRM", r"[Ff]abric ?(?:[Pp]robe|registration).{0,60}(?:fail|timed? ?out)", _L, _C,
         "The GPU did not join the NVLink fabric", "nvrm"),
    _row("power_state", "nvidia", r"(?:can't|[Uu]nable to) change power state from \S+ to D0", "gpu_lost", _C,
         "The GPU cannot be woken: it does not answer on PCIe", "linux:drivers/pci/pci.c", recovery=_REBOOT),
    # NVSwitch and the fabric manager
    _row("fabric_fatal", "nv-fabricmanager", r"detected NVSwitch fatal error", _L, _C,
         "An NVSwitch has a fatal error", _FW, about=_NODE),
    _row("fabric_nonfatal", "nv-fabricmanager", r"detected NVSwitch non-fatal error", _L, _W,
         "An NVSwitch has an error", _FW, about=_NODE, least=3),
    _row("fabric_version", "nv-fabricmanager", r"don't match with driver version|version mismatch", _D, _C,
         "Fabric manager and driver have different versions", _FW, about=_NODE),
    _row("fabric_training", "nv-fabricmanager", r"(?:NVLink|link) .*(?:training|initialization) fail"
         r"|fail.*to train", _L, _C, "NVLinks of the fabric did not train", _FW, about=_NODE),
    _row("fabric_start", "nv-fabricmanager", r"(?:failed|unable) to (?:initialize|start|configure)|not supported on"
         r"|request to .* failed", _D, _C, "The fabric manager cannot start", _FW, about=_NODE),
    # how systemd says that a service ended by an error: a stop, and a restart by a person, are another result
    *(
        _row(f"{name}_service", "systemd", rf"{unit}\S*\.service: (?:Failed with result '"
             r"|Main process exited, code=(?:dumped|killed, status=(?!15/TERM|2/INT|1/HUP)))", fault, _C, meaning,
             "systemd:src/core/service.c", about=_NODE)
        for name, unit, fault, meaning in (
            ("fabric_manager", "nvidia-fabricmanager", _L, "The fabric manager ended by an error"),
            ("imex", "nvidia-imex", _L, "The IMEX daemon, by which nodes share NVLink memory, ended by an error"),
            ("persistence", "nvidia-persistenced", _D, "The driver's persistence daemon ended by an error"),
            ("dcgm", "(?:nvidia-)?dcgm", _D, "DCGM ended by an error: its exporters have no values"),
        )
    ),
    # network ports
    _row("mlx_health", "mlx", r"health compromised|reached miss count", _N, _C,
         "The port's adapter stopped answering its driver", f"{_MLX}/core/health.c", about=_NIC),
    _row("mlx_fatal", "mlx", r"[Ff]atal error \d+ detected|handling bad device here|health recovery failed", _N, _C,
         "The port's adapter has a fatal error", f"{_MLX}/core/health.c", about=_NIC),
    _row("mlx_command", "mlx", r"timeout\. Will cause a leak of a command resource", _N, _C,
         "The port's adapter does not take commands", f"{_MLX}/core/cmd.c", about=_NIC),
    _row("mlx_module", "mlx", r"Port module event\[error\]|Port module event: .*"
         r"(?:[Cc]able (?:error|unplugged|shorted)|[Bb]us stuck|[Hh]igh temperature|EEPROM)", _N, _W,
         "The port's cable or transceiver has an error", f"{_MLX}/core/events.c", about=_NIC),
    _row("mlx_temperature", "mlx", r"High temperature on sensors", _N, _W,
         "The port's adapter is too hot", f"{_MLX}/core/events.c", about=_NIC),
    _row("mlx_power", "mlx", r"insufficient power on the PCIe slot", _N, _W,
         "The port's adapter gets too little power", f"{_MLX}/core/events.c", about=_NIC),
    _row("mlx_transmit", "mlx", r"TX timeout (?:detected|on queue)", _N, _W,
         "The port's transmit queue is stuck", f"{_MLX}/core/en_main.c", about=_NIC),
    _row("mlx_completion", "mlx", r"[Ee]rror cqe on cqn|CQ error on CQN", _N, _W,
         "The port's adapter completes work with errors", f"{_MLX}/core/en/txrx.h", about=_NIC, least=3),
    _row("mlx_pci", "mlx", r"mlx5_pci_err_detected", _N, _C,
         "The port's adapter has a PCIe error", f"{_MLX}/core/main.c", about=_NIC),
    _row("mlx_link", "mlx", r": Link down$", _N, _W,
         "The port's link goes down again and again", f"{_MLX}/core/en_main.c", about=_NIC, least=3),
    _row("transmit_queue", "NETDEV", r"transmit queue \d+ timed out", _N, _W,
         "The port's transmit queue is stuck", "linux:net/sched/sch_generic.c", about=_NIC),
    _row("bond_member", "bond", r"link status definitely down", _N, _W,
         "A bond's member goes down again and again", "linux:drivers/net/bonding/bond_main.c", about=_NIC, least=3),
    *(
        _row(f"{driver}_link", word, r"(?:NIC )?[Ll]ink (?:is|status:?) [Dd]own", _N, _W,
             "The port's link goes down again and again", f"linux:drivers/net/ethernet ({driver})", about=_NIC,
             least=3)
        for driver, word in (
            ("bnxt_en", "bnxt_en"), ("ice", "ice"), ("i40e", "i"), ("ixgbe", "ixgbe"), ("igb", "igb")
        )
    ),
    # PCI Express
    _row("dpc", "pcieport", r"DPC: (?:containment event|ERR_FATAL|unmasked uncorrectable)", _P, _C,
         "A PCIe port cut off what is below it (DPC)", "linux:drivers/pci/pcie/dpc.c"),
    _row("slot_down", "pcieport", r"pciehp: Slot\([^)]*\): (?:Link Down|Card not present)", _P, _C,
         "A PCIe slot lost its card", "linux:drivers/pci/hotplug/pciehp_ctrl.c"),
    _row("slot_power", "pcieport", r"pciehp: Slot\([^)]*\): Power fault", _P, _C,
         "A PCIe slot has a power fault", "linux:drivers/pci/hotplug/pciehp_hpc.c"),
    _row("recovery_failed", "pcieport", r"AER: device recovery failed", _P, _C,
         "The kernel could not recover a PCIe device", "linux:drivers/pci/pcie/err.c"),
    _row("gpu_recovery_failed", "nvidia", r"AER: can't recover", _P, _C,
         "The kernel could not recover the GPU's PCIe link", "linux:drivers/pci/pcie/err.c"),
    _row("retraining", "pcieport", r"retraining non-functional downstream link", _P, _W,
         "A PCIe link was trained at a lower speed", "linux:drivers/pci/quirks.c"),
    _row("hotplug_timeout", "pcieport", r"pciehp: Timeout on hotplug command", _P, _W,
         "A PCIe slot does not take commands", "linux:drivers/pci/hotplug/pciehp_hpc.c", least=3),
    _row("dma_fault", "DMAR", r"Request device \[.*fault addr", _P, _W,
         "A device reached for memory that is not its own", "linux:drivers/iommu/intel/dmar.c", least=3),
    _row("io_page_fault", "AMD-Vi", r"IO_PAGE_FAULT", _P, _W,
         "A device reached for memory that is not its own", "linux:drivers/iommu/amd/iommu.c", least=3),
    # the host's memory and processors
    _row("memory_uncorrected", "EDAC", r"\b\d+ UE\b", _H, _C,
         "Host memory has an uncorrected error", "linux:drivers/edac/edac_mc.c", about=_NODE),
    _row("memory_corrected", "EDAC", r"\b\d+ CE\b", _H, _W,
         "Host memory corrects errors again and again", "linux:drivers/edac/edac_mc.c", about=_NODE, least=10),
    _row("machine_check", "mce", r"Machine Check Exception|Machine check: Processor context corrupt", _H, _C,
         "The processor had a machine check", _MCE, about=_NODE),
    _row("memory_poison", "mce", r"Uncorrected hardware memory error", _H, _C,
         "Host memory has an uncorrected error", _MCE, about=_NODE),
    _row("machine_check_logged", "mce", r"Machine check events logged", _H, _W,
         "The processor logs machine checks again and again", _MCE, about=_NODE, least=5),
    _row("machine_check_storm", "mce", r"CMCI storm detected", _H, _W,
         "The processor has a storm of machine checks", _MCE, about=_NODE),
    _row("firmware_fatal", "Hardware", r"event severity: fatal", _H, _C,
         "The firmware reports a fatal hardware error", "linux:drivers/firmware/efi/cper.c", about=_NODE),
    _row("firmware_recoverable", "Hardware", r"event severity: recoverable", _H, _C,
         "The firmware reports a hardware error", "linux:drivers/firmware/efi/cper.c", about=_NODE),
    _row("firmware_corrected", "Hardware", r"event severity: corrected", _H, _W,
         "The firmware reports corrected errors again and again", "linux:drivers/firmware/efi/cper.c", about=_NODE,
         least=10),
    _row("page_poison", "Memory", r"Memory failure: 0x[0-9a-f]+: .*(?:Failed|Ignored|unhandlable|Killing)", _H, _C,
         "A page of host memory is broken and in use", "linux:mm/memory-failure.c", about=_NODE),
    _row("page_offlined", "soft_offline", r": 0x[0-9a-f]+: .*(?:failed|isolation)", _H, _W,
         "A page of host memory is broken", "linux:mm/memory-failure.c", about=_NODE),
    _row("throttled_core", "CPU", r"(?:Core|Package) temperature (?:is )?above threshold", _H, _W,
         "The processor is too hot and slows down", "linux:drivers/thermal/intel/therm_throt.c",
         about=_NODE, least=3),
    _row("critical_temperature", "thermal", r"critical temperature reached", _H, _C,
         "The host is too hot and shuts down", "linux:drivers/thermal/thermal_core.c", about=_NODE),
    _row("soft_lockup", "watchdog", r"BUG: soft lockup - CPU#\d+ stuck", _H, _W,
         "A processor hangs in the kernel", "linux:kernel/watchdog.c", about=_NODE),
    _row("hard_lockup", "watchdog", r"[Ww]atchdog detected hard LOCKUP", _H, _C,
         "A processor hangs with interrupts off", "linux:kernel/watchdog_perf.c", about=_NODE),
    _row("nmi_lockup", "NMI", r"BUG: soft lockup - CPU#\d+ stuck|[Ww]atchdog detected hard LOCKUP", _H, _W,
         "A processor hangs in the kernel", "linux:kernel/watchdog.c (before 4.18)", about=_NODE),
    _row("rcu_stall", "rcu", r"(?:detected stalls on CPUs/tasks|self-detected stall on CPU)", _H, _W,
         "A processor does not come out of the kernel", "linux:kernel/rcu/tree_stall.h", about=_NODE),
    _row("kernel_bug", "BUG", r"unable to handle (?:kernel |page fault)|kernel NULL pointer dereference", _H, _C,
         "The kernel crashed in part", "linux:arch/x86/mm/fault.c", about=_NODE),
    _row("kernel_assertion", "kernel", r"^kernel BUG at ", _H, _C,
         "The kernel crashed in part", "linux:lib/bug.c", about=_NODE),
    _row("panic", "Kernel", r"^Kernel panic - not syncing", _H, _C,
         "The kernel panicked", "linux:kernel/panic.c", about=_NODE),
    # the host's power, as the readers of the management controller's event log write it
    _row("power_supply", "ipmi", r"^(?!.*[Dd]eassert).*Power Supply\b.*(?:[Ff]ailure detected|input lost|AC lost"
         r"|[Rr]edundancy [Ll]ost|out-of-range)", _H, _W,
         "A power supply of the host failed or has no input", "IPMI 2.0, table 42-3: sensor type 08h", about=_NODE),
    # disks and file systems
    _row("nvme_down", "nvme", r"controller is down; will reset|Device not ready; aborting", _H, _C,
         "An NVMe disk does not answer", _NVME, about=_DISK),
    _row("nvme_timeout", "nvme", r"I/O (?:tag )?\d+ .*timeout", _H, _W,
         "An NVMe disk answers too late", _NVME, about=_DISK),
    _row("nvme_removed", "nvme", r"Removing after probe failure|Disabling device after reset failure", _H, _C,
         "An NVMe disk is lost", _NVME, about=_DISK),
    _row("nvme_error", "nvme", r"I/O Error \(sct", _H, _W,
         "An NVMe disk has errors", "linux:drivers/nvme/host/core.c", about=_DISK),
    _row("medium_error", "critical", r"critical (?:medium|target) error, dev", _H, _C,
         "A disk cannot read what it holds", "linux:block/blk-core.c", about=_DISK),
    *(
        _row(f"io_error_{number}", word, r"I/O error,? (?:on )?dev", _H, _W,
             "A disk has errors", source, about=_DISK)
        for number, (word, source) in enumerate(
            (("I/O", "linux:block/blk-mq.c"), ("blk_update_request", "linux:block/blk-core.c (before 5.16)"),
             ("Buffer", "linux:fs/buffer.c"))
        )
    ),
    _row("ext_error", "EXT", r"EXT\d-fs error \(device", _H, _C,
         "A file system is damaged", "linux:fs/ext4/super.c", about=_DISK),
    _row("ext_read_only", "EXT", r"Remounting filesystem read-only", _H, _C,
         "A file system became read-only", "linux:fs/ext4/super.c", about=_DISK),
    _row("journal_aborted", "Aborting", r"Aborting journal on device", _H, _C,
         "A file system's journal was given up", "linux:fs/jbd2/journal.c", about=_DISK),
    _row("xfs_error", "XFS", r"[Cc]orruption (?:of|detected|warning)|metadata I/O error|log I/O error"
         r"|[Ss]hutting down filesystem|has been shut down", _H, _C,
         "A file system is damaged", "linux:fs/xfs", about=_DISK),
    _row("btrfs_error", "BTRFS", r"BTRFS (?:error|critical) \(device", _H, _C,
         "A file system is damaged", "linux:fs/btrfs/messages.c", about=_DISK),
    _row("raid_failure", "md/raid", r"Disk failure on", _H, _C,
         "A disk of a RAID failed", "linux:drivers/md", about=_DISK),
    _row("ata_error", "ata", r"failed command: |SError: |exception Emask", _H, _W,
         "A SATA disk has errors", "linux:drivers/ata/libata-eh.c", about=_DISK, least=3),
    _row("path_failed", "device-mapper", r"multipath: .*Failing path", _H, _W,
         "A path to storage failed", "linux:drivers/md/dm-mpath.c", about=_DISK),
)  # fmt: skip

BY_NAME: Mapping[str, MessageKind] = {kind.name: kind for kind in KINDS}
_FIRST_WORD = re.compile(r"(?:\{\d+\})?\[?([A-Za-z](?:[A-Za-z_/-]*[A-Za-z])?)")
_INTERFACE = re.compile(r"^\S+ [0-9a-f:.]{7,14} ([a-z][a-z0-9_]{1,14}): |NETDEV WATCHDOG: (\S+) |slave ([\w.-]+)\)")
_DEVICE = re.compile(r"\bdev(?:ice)? ((?:nvme|sd|md|dm-|vd)[\w-]*)|\(((?:nvme|sd|md|dm-|vd)[\w-]*)\)"
                     r"|^nvme (nvme\d+):|^(nvme\d+n\d+):|failure on ([\w-]+),")  # fmt: skip
_PCI = re.compile(
    r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?\b|\[([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\]"
)
_ENOUGH = 6
"""Letters that few other lines have together."""
_GPU_INDEX = re.compile(r"^NVRM: GPU(\d{1,2}) ")


def _needed(pattern: str) -> tuple[str, ...]:
    r"""Plain texts of which every line that matches has at least one; they cost a tenth of the pattern.

    >>> _needed(r"Xid \d+: (?:failed|has [Vv]anished)|health compromised")
    ('failed', 'anished', 'health compromised')
    """
    return _texts(_parser.parse(pattern))


def _texts(parts: Iterable[tuple[Any, Any]]) -> tuple[str, ...]:
    """The texts of a sequence: those of its last part with enough letters (an end tells good lines from bad)."""
    choices: list[tuple[str, ...]] = [("",)]
    run = ""
    for kind, what in parts:
        if kind is _parser.LITERAL:
            run += chr(what)
            choices.append((run,))
            continue
        run = ""
        if kind is _parser.SUBPATTERN:
            choices.append(_texts(what[-1]))
        elif kind is _parser.BRANCH:
            choices.append(tuple(text for branch in what[1] for text in _texts(branch)))
    # of equals `max` takes the first: the last part, at its longest
    return max(reversed(choices), key=lambda texts: min(*map(len, texts), _ENOUGH))


_Row = tuple[tuple[str, ...], re.Pattern[str], MessageKind]


def _by_first_letters() -> dict[str, tuple[_Row, ...]]:
    """The rows by the first two characters of their lines; hardware errors begin with `[` or `{1}[`."""
    found: dict[str, tuple[_Row, ...]] = {}
    for kind in KINDS:
        word, row = kind.first_word, (_needed(kind.pattern), re.compile(kind.pattern), kind)
        heads = [word[:2]] if len(word) > 1 else [f"{word}{digit}" for digit in range(10)]
        for head in (*heads, f"[{word[0]}", *(f"{{{digit}" for digit in range(10))):
            found[head] = (*found.get(head, ()), row)
    return found


_ROWS = _by_first_letters()
FIRST_LETTERS = frozenset(_ROWS)
"""How a line of any kind begins: most lines of a log are passed over by them alone."""


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """What a line of a known kind says: whose it is, where the line tells that."""

    kind: MessageKind
    pci_address: str | None = None
    gpu_index: str = ""
    device: str = ""
    """The port's or disk's name."""


def _kind_of(text: str) -> MessageKind | None:
    for texts, pattern, kind in _ROWS.get(text[:2], ()):
        for needed in texts:  # a loop, not `any`: no generator for each line
            if needed in text:
                if pattern.search(text) is not None and _begins_with(text, kind.first_word):
                    return kind
                break
    return None


def _begins_with(text: str, word: str) -> bool:
    match = _FIRST_WORD.match(text)
    return match is not None and match.group(1) == word


def read_message(text: str) -> KernelMessage | None:
    """The kind of a kernel line (without its stamp), or None where it is of none.

    >>> message = read_message("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x22:0x56:884)")
    >>> message.kind.name, message.kind.recovery, message.pci_address
    ('init_failed', 'reset_gpu', '0000:3b:00.0')
    >>> read_message("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86") is None
    True
    """
    kind = _kind_of(text)
    if kind is None:
        return None
    pci, index = _PCI.search(text), _GPU_INDEX.match(text)
    name = {"nic": _INTERFACE, "disk": _DEVICE}.get(kind.about)
    device = name.search(text) if name is not None else None
    return KernelMessage(
        kind,
        None if pci is None else pci.group(1) or pci.group(0),
        "" if index is None else index.group(1),
        "" if device is None else next(group for group in device.groups() if group),
    )
