"""What the driver and the host say in the kernel log without an Xid: one row per kind of line.

A row names the words that only this kind of line has, the fault that they tell (`detectors.base.Fault`, by its
value), how grave it is, what is about (a GPU, a port, a disk, the node), what to do where the line itself settles
that, and where the wording stands. A kind that a healthy machine writes now and then has `least`: so many within
`detectors.hardware.kernel_events.QUIET_S` make one event; a line that counts errors itself (group `n`) weighs as
many. What a later line takes back (a link that comes up again) has `lasts_s` and `over`. The words may stand behind
the device that the kernel's `dev_err` and `netdev_err` put first (`ice 0000:3b:00.0 ens1f0: NETDEV WATCHDOG: …`);
a row with the first word `*` is one of every such driver, and one without a first word may stand behind any word.
A group `node` names the node that the line is about, where a scheduler's own machine writes of others.

Sources. `nvrm`: NVIDIA/open-gpu-kernel-modules (src/nvidia, kernel-open) of 535 to 580. `fm`: NVIDIA Fabric Manager
User Guide, "Log Messages". `linux:PATH`: the file of Linux 6.x that prints the line. What follows the words (codes,
sizes, names) is read only where a row has a group for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
    lasts_s: float = 0.0
    """A line of which a healthy machine takes back what it said is a fault once nothing did so for this long (s),
    or once it came `least` times."""
    over: str = ""
    """A pattern of the line that takes it back."""


_D, _H, _P, _N, _L = "driver_error", "host_error", "pcie_degraded", "network_degraded", "nvlink_degraded"
_W, _C = "warning", "critical"
_RESET, _REBOOT = "reset_gpu", "reboot_node"
_FW, _MLX, _DISK, _NODE, _NIC = "fm", "linux:drivers/net/ethernet/mellanox/mlx5", "disk", "node", "nic"
_FIRST_WORD = re.compile(r"(?:\{\d+\})?\[?([A-Za-z](?:[A-Za-z_/-]*[A-Za-z])?)")
_LASTS_S = 60.0
_NIC_DRIVERS = (
    "bnxt_en",
    "ice",
    "i40e",
    "ixgbe",
    "igb",
    "igc",
    "ena",
    "tg3",
    "gve",
    "idpf",
    "qede",
    "cxgb4",
    "atlantic",
)
_NVME, _MCE = "linux:drivers/nvme/host/pci.c", "linux:arch/x86/kernel/cpu/mce/core.c"


_row = MessageKind


def _letters(driver: str) -> str:
    """The first word of a driver's lines: its name up to a digit."""
    match = _FIRST_WORD.match(driver)
    assert match is not None
    return match.group(1)


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
    _row("gsp_timeout", "NVRM", r"_kgspLogRpcTimeout|\*+ GSP Timeout \*+"
         # status 0x0f is NV_ERR_GPU_IS_LOST, a row of its own
         r"|_issueRpc\w*: .*(?:timed? ?out|failed(?! with status 0x0*[fF]\b))", _D, _C,
         "The GPU's system processor (GSP) does not answer", "nvrm", recovery=_RESET),
    _row("gsp_crash", "NVRM", r"GSP-CrashCat Report|GSP task exception|\*+ GSP Failure \*+", _D, _C,
         "The GPU's system processor (GSP) crashed", "nvrm", recovery=_RESET),
    _row("gsp_booter", "NVRM", r"[Bb]ooter.{0,80}(?:[Ff]ailed|error)|failed to execute Booter", _D, _C,
         "The GPU's firmware loader (Booter) failed", "nvrm", recovery=_RESET),
    _row("gsp_firmware", "NVRM", r"No firmware image found|(?:failed|unable) to load (?:the )?GSP firmware", _D, _C,
         "The driver finds no GSP firmware of its version", "nvrm"),
    _row("gsp_init", "NVRM", r"cannot bootstrap riscv/gsp|kgspBootstrap\w*: .*(?:fail|timed out)"
         r"|kgspInitRm\w*: .*fail|WPR2 already up|[Cc]annot initialize GSP firmware RM"
         r"|cannot proceed with booting GSP|FWSEC \w+ cmd failed|may need to be reset", _D, _C,
         "The GPU's system processor (GSP) did not start", "nvrm", recovery=_RESET),
    _row("fsp", "NVRM", r"\bkfsp\w+: .*(?:[Tt]imed? ?out|[Ff]ail)"
         r"|FSP (?:command|boot)\b.*(?:timed? ?out|fail)", _D, _C,
         "The GPU's boot processor (FSP) does not answer", "nvrm", recovery=_RESET),
    _row("unsupported_gpu", "NVRM", r"installed in this (?:vGPU host )?system is\s+"
         r"(?:not supported|supported through)", _D, _W,
         "The driver does not support this GPU", "nvrm", about=_NODE),
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
    _row("vbios", "NVRM", r"failed to copy vbios to system memory|VBIOS image not found", _D, _C,
         "The driver cannot read the GPU's firmware", "nvrm", recovery=_REBOOT),
    _row("fabric_probe", "NVRM", r"[Ff]abric ?(?:[Pp]robe|registration).{0,60}(?:fail|timed? ?out)", _L, _C,
         "The GPU did not join the NVLink fabric", "nvrm"),
    _row("power_state", "nvidia", r"(?:can't|[Uu]nable to) change power state from \S+ to D0", "gpu_lost", _C,
         "The GPU cannot be woken: it does not answer on PCIe", "linux:drivers/pci/pci.c", recovery=_REBOOT),
    _row("uvm_fatal", "NVRM", r"uvm encountered global fatal error", _D, _C,
         "The driver's memory manager (UVM) had a fatal error", "nvrm", about=_NODE, recovery=_REBOOT),
    _row("interrupts_unhandled", "NVRM", r"RM unhandled interrupt threshold|request_irq\(\) failed"
         r"|Can't find an IRQ for your NVIDIA", _D, _C, "The driver loses the GPU's interrupts", "nvrm"),
    _row("locked_up", "NVRM", r"GPU is probably locked|[Pp]ossible bad register read|NV_ERR_TIMEOUT"
         r"|Seconds without a Watchdog", _D, _W, "The driver gets no answer from the GPU", "nvrm", least=3),
    _row("device_failed", "NVRM", r"RmInitNvDevice failed|kbusVerifyBar2\w*: .*failed|BAR mapped above"
         r"|Device start failed for|Failed to re-allocate BAR1|Fatal Error while attempting to resize PCIe BARs"
         r"|\*\*\* Cannot (?:attach|initialize)|Failed to enable MSI", _D, _C,
         "The driver cannot initialise the GPU", "nvrm", recovery=_RESET),
    _row("device_reserved", "nvidia", r"BAR \d.*can't reserve", _D, _C,
         "The driver cannot initialise the GPU: its memory window is taken", "linux:drivers/pci/pci.c"),
    _row("memory_online", "NVRM", r"Memory (?:add|remove) failed|GPU memory onlining|auto onlining failed", _D, _C,
         "The kernel did not take the GPU's memory online", "nvrm"),
    _row("security_fault", "NVRM", r"SEC_FAULT|SPDM: Fatal heartbeat|attestation failed|[Kk]ey rotation failed", _D,
         _C, "The GPU's security processor locked it", "nvrm", recovery=_RESET),
    _row("removed_in_use", "NVRM", r"Attempting to remove device \S+ with non-zero usage|Failed removal of device",
         _D, _C, "A GPU was removed while it was in use", "nvrm", recovery=_REBOOT),
    _row("modeset", "nvidia-modeset", r"Error while waiting for GPU progress|engine channel state: \S*:0x0*[fF]\b",
         _D, _W, "The driver gets no answer from the GPU", "nvrm"),
    _row("drm_device", "drm", r"\[nvidia-drm\].*Failed to (?:allocate|initiali[sz]e)", _D, _C,
         "The driver cannot initialise the GPU", "nvrm"),
    _row("module_version", "nvidia", r"disagrees about version of symbol|version magic '"
         r"|Unknown symbol \w+ \(err -",
         _D, _C, "The driver's module does not fit this kernel", "linux:kernel/module", about=_NODE),
    *(
        _row(f"module_unsigned_{word.lower()}", word, pattern, _D, _W,
             "The kernel refuses a driver's module: it is not signed", source, about=_NODE)
        for word, pattern, source in (
            ("Loading", r"module (?:with unavailable key )?is rejected", "linux:kernel/module/signing.c"),
            ("Lockdown", r"unsigned module loading is restricted", "linux:security/lockdown"),
        )
    ),
    _row("switch_driver", "nvidia-nvswitch", r"Timeout while|[Ff]ailed|HALTED|[Ff]ault while", _L, _W,
         "An NVSwitch's driver reports errors", "nvrm", about=_NODE, least=3),
    # NVSwitch and the fabric manager
    _row("fabric_fatal", "nv-fabricmanager", r"detected NVSwitch fatal error", _L, _C,
         "An NVSwitch has a fatal error", _FW, about=_NODE),
    _row("fabric_nonfatal", "nv-fabricmanager", r"detected NVSwitch non-fatal error", _L, _W,
         "An NVSwitch has an error", _FW, about=_NODE, least=3),
    _row("fabric_version", "nv-fabricmanager", r"match with driver version|version mismatch", _D, _C,
         "Fabric manager and driver have different versions", _FW, about=_NODE),
    _row("fabric_training", "nv-fabricmanager", r"(?:NVLink|link) .*(?:training|initialization) fail"
         r"|fail.*to train|failed to find the GPU handle",
         _L, _C, "NVLinks of the fabric did not train", _FW, about=_NODE),
    _row("fabric_start", "nv-fabricmanager", r"(?:failed|unable) to (?:initialize|start|configure)|not supported on"
         r"|request to .* failed|don't match with any supported system topology",
         _D, _C, "The fabric manager cannot start", _FW, about=_NODE),
    # how systemd says that a service ended by an error: a stop, and a restart by a person, are another result
    *(
        _row(f"{name}_service", "systemd", rf"{unit}\S*\.service: (?:Failed with result '"
             r"|Main process exited, code=(?:dumped|killed, status=(?!15/TERM|2/INT|1/HUP)))"
             rf"|Failed to start .*{unit}", fault, _C, meaning, "systemd:src/core/service.c", about=_NODE)
        for name, unit, fault, meaning in (
            ("fabric_manager", "(?:nvidia-fabricmanager|NVIDIA fabric manager)", _L,
             "The fabric manager ended by an error"),
            ("imex", "nvidia-imex", _L, "The IMEX daemon, by which nodes share NVLink memory, ended by an error"),
            ("persistence", "(?:nvidia-persistenced|NVIDIA Persistence)", _D,
             "The driver's persistence daemon ended by an error"),
            ("dcgm", "(?:nvidia-)?dcgm", _D, "DCGM ended by an error: its exporters have no values"),
            ("openib", "openibd|opensm\\S*|rdma-\\S+", _N, "The InfiniBand service ended by an error"),
        )
    ),
    _row("node_agent_service", "systemd", r"(?:kubelet|containerd|docker|crio"
         r"|slurmd)\.service: Failed with result '",
         _H, _W, "The service that runs the node's jobs ends by errors", "systemd:src/core/service.c", about=_NODE,
         least=3),
    _row("node_agent_memory", "systemd", r"(?:kubelet|containerd|docker|crio"
         r"|slurmd)\.service: A process of this unit "
         r"has been killed by the OOM killer", _H, _W, "The service that runs the node's jobs is out of memory",
         "systemd:src/core/service.c", about=_NODE),
    # what the schedulers' own daemons say of a node
    _row("kubelet_runtime", "kubelet", r"PLEG is not healthy|container runtime is down", _H, _C,
         "The node's container runtime does not answer the kubelet (PLEG)", "kubernetes:pkg/kubelet", about=_NODE),
    _row("kubelet_ended", "kubelet", r"[Ff]ailed to run Kubelet", _H, _C,
         "The node's kubelet cannot start", "kubernetes:cmd/kubelet", about=_NODE, least=3),
    _row("kubelet_devices", "kubelet", r"Failed to allocate device plugin resource|no healthy devices present",
         _D, _W,
         "The kubelet cannot give GPUs to pods", "kubernetes:pkg/kubelet/cm/devicemanager", about=_NODE),
    _row("kubelet_evicts", "kubelet", r"must evict pod|unable to evict any pods", _H, _W,
         "The node has too little disk or memory: the kubelet evicts pods", "kubernetes:pkg/kubelet/eviction",
         about=_NODE),
    *(
        _row(f"{word}_gpus", word, r"nvidia-container-cli: \w+ error|failed to discover GPU", _D, _C,
             "NVIDIA's container runtime fails: containers get no GPU", "nvidia-container-toolkit", about=_NODE)
        for word in ("containerd", "dockerd", "kubelet", "crio")
    ),
    _row("slurmd_devices", "slurmd", r"count reported lower than configured|can't stat gres.conf file", _D, _C,
         "Slurm finds fewer GPUs than the node has", "slurm:src/slurmd", about=_NODE),
    _row("slurmd_controller", "slurmd", r"Unable to (?:contact slurm controller|register)", _H, _W,
         "The node's slurmd does not reach its controller", "slurm:src/slurmd", about=_NODE, least=3),
    _row("slurmd_failed", "slurmd", r"fatal: |[Pp]rolog failed|Kill task failed", _H, _C,
         "Slurm cannot use the node: its slurmd failed", "slurm:src/slurmd", about=_NODE),
    _row("slurm_lost", "slurmctld", r"Nodes? (?P<node>[\w.-]+) not responding, setting DOWN"
         r"|on failed node (?P<node1>[\w.-]+)|Node (?P<node2>[\w.-]+) unexpectedly rebooted", _H, _C,
         "Slurm lost the node", "slurm:src/slurmctld", about=_NODE),
    _row("slurm_drained", "slurmctld", r"[Ss]etting node (?P<node>[\w.-]+) (?:state )?to (?:DRAIN|DOWN|INVAL)"
         r"|on node\(s\)=(?P<node1>[\w.-]+): (?:Kill task|Prolog)"
         r"|node (?P<node2>[\w.-]+) reason set to: (?:Kill task failed|Prolog error|gres/gpu)"
         r"|Node (?P<node3>[\w.-]+) has low real_memory", _H, _C,
         "Slurm took the node out of service", "slurm:src/slurmctld", about=_NODE),
    _row("mount_failed", "systemd", r"\.mount: (?:Failed with result '"
         r"|Mount process (?:exited, code=exited, status=[1-9]"
         r"|timed out))|Failed to mount /|Timed out waiting for device /dev/", _H, _W,
         "A file system could not be mounted", "systemd:src/core/mount.c", about=_NODE),
    _row("imex_log", "nvidia-imex", r"\[ERROR\]|[Ff]ailed to |[Cc]onnection .*\blost\b", _L, _W,
         "The IMEX daemon, by which nodes share NVLink memory, has errors", "NVIDIA IMEX Service guide",
         about=_NODE,
         least=3),
    _row("persistence_log", "nvidia-persistenced", r"[Ff]ailed to (?:query|open|initialize|enable)", _D, _W,
         "The driver's persistence daemon cannot open a GPU", "nvidia-persistenced", about=_NODE),
    _row("mcelog_uncorrected", "mcelog", r"Uncorrected error|memory error count exceeded threshold", _H, _C,
         "Host memory has errors", "mcelog", about=_NODE),
    *(
        _row(f"rasdaemon_{name}", "rasdaemon", pattern, _H, severity, meaning, "rasdaemon", about=_NODE,
             least=least)
        for name, pattern, severity, least, meaning in (
            ("uncorrected", r"\b(?:Uncorrected|Fatal)\b", _C, 1, "The host's hardware has an uncorrected error"),
            ("corrected", r"\bCorrected error", _W, 10, "The host's hardware corrects errors again and again"),
        )
    ),
    _row("amdgpu", "amdgpu", r"ring \S+ timeout|GPU reset(?: begin|.*failed)"
         r"|[Uu]ncorrectable(?: hardware error|.*detected)|GPU fault detected|device lost from bus"
         r"|GPU recovery failed|[Pp]oison (?:is created|consumption)|in bad status|unrecoverable state"
         r"|wait loop timeout|not done with your previous command", _D, _C,
         "The GPU's driver resets a GPU that hangs or failed", "linux:drivers/gpu/drm/amd/amdgpu"),
    _row("amdgpu_queues", "kfd", r"Failed to (?:evict|suspend)", _D, _C,
         "The GPU's driver resets a GPU that hangs or failed", "linux:drivers/gpu/drm/amd/amdkfd"),
    _row("amdgpu_drm", "drm", r"\[amdgpu\].*ring \S+ timeout", _D, _C,
         "The GPU's driver resets a GPU that hangs or failed", "linux:drivers/gpu/drm/amd/amdgpu"),
    _row("amdgpu_page", "amdgpu", r"page fault \(src_id", _D, _W,
         "A program on the GPU reached for memory that is not its own: a page fault",
         "linux:drivers/gpu/drm/amd/amdgpu"),
    _row("amdgpu_init", "amdgpu", r"Fatal error during GPU init|amdgpu_device_ip_init failed|failed to load ucode"
         r"|invalid ip discovery binary", _D, _C,
         "The driver cannot initialise the GPU", "linux:drivers/gpu/drm/amd/amdgpu"),
    *(
        _row(f"{driver}_hang", driver, pattern, _D, _W, "The GPU's driver reports that a GPU hangs", source)
        for driver, pattern, source in (
            ("radeon", r"ring \d+ stalled for|GPU lockup", "linux:drivers/gpu/drm/radeon"),
            ("xe", r"\[drm\].*(?:Engine reset|device wedged)|GPU HANG", "linux:drivers/gpu/drm/xe"),
        )
    ),
    _row("habanalabs", "habanalabs", r"Device is NOT usable|[Dd]evice (?:heartbeat|CPU).*(?:failed|timeout)"
         r"|[Ff]ailed to (?:initialize the H/W|communicate with Device CPU)|H/W (?:reset|hang)\b.*fail", _D, _C,
         "The accelerator does not answer its driver", "linux:drivers/accel/habanalabs"),
    # network ports
    _row("mlx_probe", "mlx", r"mlx[45]_(?:load|init)_one\S* failed|mlx5_init_once failed|handle_hca_cap failed"
         r"|Firmware over \d+ MS in (?:pre-)?initializing state|[Ff]ailed (?:to )?init(?:ialize)? HCA"
         r"|wait_fw_init\S*: .*(?:fail|time)", _N, _C,
         "The NIC did not start: its driver's probe failed", f"{_MLX}/core/main.c", about=_NIC),
    _row("mlx_health", "mlx", r"health compromised|irisc not responding|FW fatal error"
         r"|Health issue observed, .*severity\([0-3]\)"
         r"|Driver is in error state", _N, _C,
         "The NIC stopped answering its driver", f"{_MLX}/core/health.c", about=_NIC),
    _row("mlx_fatal", "mlx", r"[Ff]atal error \d+ detected|handling bad device here|(?:health"
         r"|device) recovery failed"
         r"|health recovery flow aborted|Internal error detected|sync reset timeout|Failed unloading", _N, _C,
         "The NIC has a fatal error", f"{_MLX}/core/health.c", about=_NIC),
    _row("mlx_command", "mlx", r"timeout\. Will cause a leak of a command resource|Timeout waiting for \d"
         r"|failed to allocate command entry|No done completion|timed out \(go bit not cleared", _N, _C,
         "The NIC does not take commands", f"{_MLX}/core/cmd.c", about=_NIC),
    _row("mlx_module", "mlx", r"Port module event(?:\[error\]|: .*(?:[Cc]able error|[Cc]able unplugged"
         r"|[Cc]able shorted|[Bb]us stuck|[Hh]igh temperature|EEPROM))", _N, _W,
         "The port's cable or transceiver has an error", f"{_MLX}/core/events.c", about=_NIC),
    _row("mlx_temperature", "mlx", r"High temperature on sensors", _N, _W,
         "The NIC is too hot", f"{_MLX}/core/events.c", about=_NIC),
    _row("mlx_power", "mlx", r"insufficient power on the PCIe slot", _N, _W,
         "The NIC gets too little power", f"{_MLX}/core/events.c", about=_NIC),
    _row("mlx_transmit", "mlx", r"TX timeout", _N, _W,
         "The port's transmit queue is stuck", f"{_MLX}/core/en_main.c", about=_NIC),
    _row("mlx_completion", "mlx", r"[Ee]rror cqe on cqn|CQ error on CQN|dump error cqe|SQ recovery failed", _N, _W,
         "The NIC completes work with errors", f"{_MLX}/core/en/txrx.h", about=_NIC, least=3),
    _row("infiniband_completion", "infiniband", r"dump error cqe|CQ error on CQN", _N, _W,
         "The NIC completes work with errors", "linux:drivers/infiniband/hw/mlx5", about=_NIC, least=3),
    # a port of a restricted function may not read registers: it says so every few seconds and is well
    _row("mlx_refused", "mlx", r"mlx5_cmd_out_err:\d+:?\(pid \d+\): (?!ACCESS_REG)\w+\(.*failed, status",
         _N, _W, "The NIC refuses commands", f"{_MLX}/core/cmd.c", about=_NIC, least=3),
    _row("mlx_pci", "mlx", r"mlx5_pci_err_detected", _N, _C,
         "The NIC has a PCIe error", f"{_MLX}/core/main.c", about=_NIC),
    _row("mlx_link", "mlx", r"(?:: |Port: \d+ )Link (?:down|DOWN|Down|up|Up|UP|ACTIVE)\b", _N, _W,
         "The port's link is down, or goes down again and again", f"{_MLX}/core/en_main.c", about=_NIC, least=3,
         lasts_s=_LASTS_S, over=r"Link (?:up|Up|UP|ACTIVE)"),
    _row("transmit_queue", "NETDEV", r"transmit queue \d+ timed out", _N, _W,
         "The port's transmit queue is stuck", "linux:net/sched/sch_generic.c", about=_NIC),
    _row("bond_member", "bond", r"link status (?:definitely down|up|definitely up)", _N, _W,
         "A bond's member is down, or goes down again and again", "linux:drivers/net/bonding/bond_main.c",
         about=_NIC, least=3, lasts_s=_LASTS_S, over=r"link status (?:definitely )?up"),
    _row("bond_down", "bond", r"without any active interface|new active one|[Aa]ctive interface up", _N, _C,
         "A bond has no member left that works", "linux:drivers/net/bonding/bond_main.c", about=_NODE, least=3,
         lasts_s=_LASTS_S, over=r"new active one|[Aa]ctive interface up"),
    *(
        row
        for driver in _NIC_DRIVERS
        for row in (
            _row(f"{driver}_link", _letters(driver), r"(?:NIC )?[Ll]ink (?:is|status:?) (?:[Dd]own|[Uu]p)", _N, _W,
                 "The port's link is down, or goes down again and again", f"linux:drivers/net/ethernet ({driver})",
                 about=_NIC, least=3, lasts_s=_LASTS_S, over=r"[Ll]ink (?:is|status:?) [Uu]p"),
            _row(f"{driver}_transmit", _letters(driver), r"Detected Tx Unit Hang|(?i:tx[_ ](?:timeout|hang))"
                 r"|initiating reset due to tx timeout|[Kk]eep ?alive watchdog timeout"
                 r"|lost tx completions is above the threshold", _N, _W,
                 "The port's transmit queue is stuck", f"linux:drivers/net/ethernet ({driver})", about=_NIC),
            _row(f"{driver}_errors", _letters(driver), r"[Ff]irmware error detected", _N, _W,
                 "The NIC reports errors of its firmware", f"linux:drivers/net/ethernet ({driver})",
                 about=_NIC, least=3),
            _row(f"{driver}_firmware", _letters(driver), r"[Ff]irmware (?:recovery mode detected"
         r"|not responding|hung"
                 r"|reset (?:aborted|failed))|Adapter removed|FW (?:fatal|error)|PF [Rr]eset failed"
                 r"|Reset attempt failed|Error \(timeout: \d+\) msg|[Ff]atal error detected"
         r"|[Dd]evice (?:reset failed|failed to reset)", _N,
                 _C,
                 "The NIC has failed", f"linux:drivers/net/ethernet ({driver})", about=_NIC),
        )
    ),
    _row("ipoib_transmit", "ib", r"transmit timeout: latency|tx_timeout|timing out; \d+ sends", _N, _W,
         "The InfiniBand port's transmit queue is stuck", "linux:drivers/infiniband/ulp/ipoib", about=_NIC,
         least=3),
    _row("hfi_link", "hfi", r"[Ll]ink down(?:ed)? reason|set_link_state: .*OFFLINE|[Ll]ink (?:Unexpectedly|went) ",
         _N, _W, "The Omni-Path port's link is down", "linux:drivers/infiniband/hw/hfi1", about=_NIC),
    *(
        _row(f"{driver}_queue_pair", driver, r"[Ff]ailed to (?:modify|create) (?:HW )?QP|abnormal AEQ", _N, _W,
             "The port's RDMA driver has errors", f"linux:drivers/infiniband/hw/{driver}", about=_NIC, least=3)
        for driver in ("bnxt_re", "irdma")
    ),
    _row("conntrack_full", "nf_conntrack", r"table full, dropping packet", _N, _W,
         "The host drops packets: its connection table is full", "linux:net/netfilter/nf_conntrack_core.c",
         about=_NODE, least=3),
    _row("neighbour_full", "neighbour", r"neighbou?r table overflow", _N, _W,
         "The host cannot reach its neighbours: its ARP table is full", "linux:net/core/neighbour.c", about=_NODE,
         least=3),
    _row("tcp_memory", "TCP", r"out of memory -- consider tuning tcp_mem", _N, _W,
         "The host has no memory left for TCP", "linux:net/ipv4/tcp.c", about=_NODE, least=3),
    _row("namespace_stuck", "unregister_netdevice", r"waiting for \S+ to become free", _H, _W,
         "A network namespace is stuck in its teardown (unregister_netdevice)", "linux:net/core/dev.c", about=_NODE,
         least=3),
    # drivers that did not take their device over; of others a healthy host's probes fail at boot
    *(
        _row(f"{driver}_probe", _letters(driver), rf"(?:^{driver}: probe of \S+|probe with driver {driver}) failed "
             r"with error -(?!517\b)", fault, _C,
             f"The probe of a {what} failed: its driver {driver} did not start it",
             "linux:drivers/base/dd.c", about=_NODE)
        for drivers, fault, what in (
            (("mlx5_core", "mlx4_core", "efa", *_NIC_DRIVERS), _N, "network adapter"),
            (("nvidia",), _D, "GPU"),
            (("nvme", "megaraid_sas", "mpt3sas", "smartpqi"), _H, "storage device"),
        )
        for driver in drivers
    ),
    # PCI Express
    _row("dpc", "pcieport", r"DPC: (?:containment event|ERR_FATAL|unmasked uncorrectable|RP PIO error)", _P, _C,
         "A PCIe port cut off what is below it (DPC)", "linux:drivers/pci/pcie/dpc.c"),
    *(
        row
        # before 4.20 the service driver's own name came first
        for suffix, word in (("", "pcieport"), ("_old", "pciehp"))
        for row in (
            _row(f"slot_down{suffix}", word, r"[Ss]lot\([^)]*\): (?:Link Down|Card not present)"
                 r"|Card not present on Slot", _P, _C,
                 "A PCIe slot lost its link or card", "linux:drivers/pci/hotplug/pciehp_ctrl.c"),
            _row(f"slot_power{suffix}", word, r"[Ss]lot\([^)]*\): Power fault|Power fault (?:on slot|bit)", _P, _C,
                 "A PCIe slot has a power fault", "linux:drivers/pci/hotplug/pciehp_hpc.c"),
            _row(f"slot_link{suffix}", word, r"Cannot train link|Data Link Layer Link Active not set"
         r"|retraining failed"
                 r"|Failed to check link status", _P, _C,
                 "A PCIe slot's link does not come up", "linux:drivers/pci/hotplug/pciehp_hpc.c"),
            _row(f"hotplug_timeout{suffix}", word, r"Timeout on hotplug command", _P, _W,
                 "A PCIe slot does not take commands", "linux:drivers/pci/hotplug/pciehp_hpc.c", least=3),
        )
    ),
    _row("recovery_failed", "*", r"AER: (?:(?:device recovery|subordinate device reset) failed|can't recover)",
         _P, _C,
         "The kernel could not recover a PCIe device", "linux:drivers/pci/pcie/err.c"),
    _row("not_ready", "*", r"not ready \d+ms after .*; giving up", _P, _C,
         "A PCIe device does not come back after its reset", "linux:drivers/pci/pci.c"),
    _row("inaccessible", "*", r"(?:can't|[Uu]nable to) change power state from \S+ to D0.*inaccessible", _P, _C,
         "A PCIe device does not answer", "linux:drivers/pci/pci.c"),
    _row("eeh_frozen", "EEH", r"Frozen P(?:E|HB)#|has failed \d+ times|Unable to recover", _P, _C,
         "The kernel froze a PCIe device after an error (EEH)", "linux:arch/powerpc/kernel/eeh.c"),
    _row("retraining", "pcieport", r"retraining non-functional downstream link", _P, _W,
         "A PCIe link was trained at a lower speed", "linux:drivers/pci/quirks.c"),
    *(
        _row(f"dma_fault_{word}", word, r"Request device \[.*fault (?:addr|index)", _P, _W,
             "IOMMU fault: a device reached for memory that is not its own", "linux:drivers/iommu/intel/dmar.c",
             least=3)
        for word in ("DMAR", "dmar")
    ),
    _row("io_page_fault", "AMD-Vi", r"\[?(?:IO_PAGE_FAULT|ILLEGAL_DEV_TABLE_ENTRY|INVALID_DEVICE_REQUEST"
         r"|DEV_TAB_HARDWARE_ERROR|PAGE_TAB_HARDWARE_ERROR|IOTLB_INV_TIMEOUT)", _P, _W,
         "IOMMU fault: a device reached for memory that is not its own", "linux:drivers/iommu/amd/iommu.c",
         least=3),
    _row("iommu_stuck", "AMD-Vi", r"Completion-Wait loop timed out|COMMAND_HARDWARE_ERROR", _P, _C,
         "The IOMMU does not answer", "linux:drivers/iommu/amd/iommu.c", about=_NODE, least=3),
    *(
        _row(f"smmu_fault_{number}", word, r"event: F_|event 0x[01][0-9a-f] received|[Uu]nhandled context fault",
             _P, _W, "IOMMU fault: a device reached for memory that is not its own", "linux:drivers/iommu/arm",
             least=3)
        for number, word in enumerate(("arm-smmu-v", "arm-smmu"))
    ),
    # the host's memory and processors
    _row("memory_uncorrected", "EDAC", r"\bMC\d*: (?:\d+ )?UE\b", _H, _C,
         "Host memory has an uncorrected error", "linux:drivers/edac/edac_mc.c", about=_NODE),
    _row("memory_corrected", "EDAC", r"\bMC\d*: (?:(?P<n>\d+) )?CE\b", _H, _W,
         "Host memory corrects errors again and again (EDAC)", "linux:drivers/edac/edac_mc.c", about=_NODE,
         least=10),
    _row("machine_check", "mce", r"Machine Check Exception|Machine check: Processor context corrupt"
         # bit 61 of the bank's status: not corrected
         r"|Machine [Cc]heck(?: Event)?: \d+ Bank \d+: [abefABEF][0-9a-fA-F]{15}", _H, _C,
         "The processor had a machine check", _MCE, about=_NODE),
    _row("machine_check_corrected", "mce", r"Machine [Cc]heck(?: Event)?: \d+ Bank \d+: [89cdCD][0-9a-fA-F]{15}",
         _H, _W, "The processor corrects machine checks again and again", _MCE, about=_NODE, least=10),
    _row("machine_check_decoded", "Hardware", r"Uncorrected(?:,| error)|MC\d+_STATUS\[[^\]]*\|UE\b"
         r"|Machine Check Exception", _H, _C,
         "The processor had a machine check", "linux:drivers/edac/mce_amd.c", about=_NODE),
    _row("memory_corrected_amd", "Hardware", r"MC\d+ Error.*: DRAM ECC error detected", _H, _W,
         "Host memory corrects errors again and again (DRAM ECC)", "linux:drivers/edac/mce_amd.c", about=_NODE,
         least=3),
    _row("machine_check_deferred", "Hardware", r"Deferred error", _H, _W,
         "The processor put an uncorrected error off", "linux:drivers/edac/mce_amd.c", about=_NODE, least=3),
    _row("machine_check_amd", "Hardware", r"Corrected error, no action required", _H, _W,
         "The processor corrects machine checks again and again", "linux:drivers/edac/mce_amd.c", about=_NODE,
         least=10),
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
    _row("page_poison", "Memory", r"Memory failure: 0x[0-9a-f]+: .*(?:Failed|Ignored|unhandlable|Killing"
         r"|Sending SIGBUS)", _H, _C,
         "A page of host memory is broken and in use", "linux:mm/memory-failure.c", about=_NODE),
    _row("page_killed", "MCE", r"Killing .* due to hardware memory corruption", _H, _C,
         "A page of host memory is broken and in use", "linux:mm/memory-failure.c (before 4.17)", about=_NODE),
    *(
        _row(f"page_offlined{suffix}", word, r": 0x[0-9a-f]+: .*(?:failed|isolation)", _H, _W,
             "A page of host memory is broken", "linux:mm/memory-failure.c", about=_NODE)
        for suffix, word in (("", "soft_offline"), ("_old", "soft"))
    ),
    *(
        _row(f"throttled_{word.lower()}", word, r"(?:Core|Package) temperature(?: is|/speed)? (?:above threshold"
             r"|normal)", _H, _W, "The processor is too hot and slows down: thermal throttling",
             "linux:drivers/thermal/intel/therm_throt.c", about=_NODE, least=100, lasts_s=_LASTS_S,
             over=r"temperature/speed normal|temperature normal")
        for word in ("CPU", "mce")
    ),
    *(
        _row(f"critical_temperature_{number}", word, r"[Cc]ritical temperature reached", _H, _C,
             "The host is too hot and shuts down", "linux:drivers/thermal/thermal_core.c", about=_NODE)
        for number, word in enumerate(("thermal", "critical", "Critical", "ACPI"))
    ),
    _row("nmi_error", "NMI", r"PCI system error \(SERR\)|IOCK error|memory parity error", _H, _C,
         "The host's hardware raised an error interrupt (NMI)", "linux:arch/x86/kernel/nmi.c", about=_NODE),
    _row("nmi_unknown", "Uhhuh", r"NMI received for unknown reason", _H, _W,
         "The host's hardware raises interrupts of unknown reason (NMI)", "linux:arch/x86/kernel/nmi.c",
         about=_NODE, least=3),
    _row("soft_lockup", "watchdog", r"BUG: soft lockup - CPU#\d+ stuck", _H, _W,
         "A processor hangs in the kernel (soft lockup)", "linux:kernel/watchdog.c", about=_NODE),
    _row("hard_lockup", "watchdog", r"[Ww]atchdog detected hard LOCKUP", _H, _C,
         "A processor hangs with interrupts off (hard lockup)", "linux:kernel/watchdog_perf.c", about=_NODE),
    _row("nmi_lockup", "NMI", r"BUG: soft lockup - CPU#\d+ stuck", _H, _W,
         "A processor hangs in the kernel (soft lockup)", "linux:kernel/watchdog.c (before 4.18)", about=_NODE),
    _row("nmi_hard_lockup", "NMI", r"[Ww]atchdog detected hard LOCKUP", _H, _C,
         "A processor hangs with interrupts off (hard lockup)", "linux:kernel/watchdog_perf.c", about=_NODE),
    *(
        _row(f"rcu_stall_{word.lower()}", word, r"(?:detected stalls? on CPUs/tasks|self-detected stall on CPU"
             r"|detected expedited stalls on CPUs/tasks|kthread starved for \d+ jiffies)", _H, _W,
             "A processor does not come out of the kernel (RCU stall)", "linux:kernel/rcu/tree_stall.h",
             about=_NODE)
        for word in ("rcu", "INFO")
    ),
    _row("kernel_lockup", "BUG", r"BUG: (?:soft lockup - CPU#\d+|workqueue lockup - pool .*) stuck for", _H, _W,
         "A processor hangs in the kernel (lockup)", "linux:kernel/workqueue.c", about=_NODE),
    _row("kernel_bug", "BUG", r"unable to handle (?:kernel |page fault)|kernel NULL pointer dereference"
         r"|BUG: (?:scheduling while atomic|Bad page (?:state|map)|KASAN)", _H, _C,
         "The kernel crashed in part", "linux:arch/x86/mm/fault.c", about=_NODE),
    *(
        _row(f"kernel_oops_{number}", word, pattern, _H, _C, "The kernel crashed in part", source, about=_NODE)
        for number, (word, pattern, source) in enumerate(
            (("general", r"^general protection fault.*\[#\d+\]", "linux:arch/x86/kernel/traps.c"),
             ("Oops", r"^Oops: .*\[#\d+\]", "linux:arch/x86/kernel/dumpstack.c"),
             ("invalid", r"^invalid opcode: .*\[#\d+\]", "linux:arch/x86/kernel/traps.c"),
             ("Internal", r"^Internal error: .*\[#\d+\]", "linux:arch/arm64/kernel/traps.c"),
             ("Unable", r"^Unable to handle kernel ", "linux:arch/arm64/mm/fault.c"),
             ("divide", r"^divide error: .*\[#\d+\]", "linux:arch/x86/kernel/traps.c"),
             ("double", r"^double fault: .*\[#\d+\]", "linux:arch/x86/kernel/traps.c"),
             ("stack", r"^stack segment: .*\[#\d+\]", "linux:arch/x86/kernel/traps.c"),
             ("SError", r"^SError Interrupt on CPU", "linux:arch/arm64/kernel/traps.c"))
        )
    ),
    _row("kernel_assertion", "kernel", r"^kernel BUG at ", _H, _C,
         "The kernel crashed in part", "linux:lib/bug.c", about=_NODE),
    _row("panic", "Kernel", r"^Kernel panic - not syncing", _H, _C,
         "The kernel panicked", "linux:kernel/panic.c", about=_NODE),
    _row("no_victim", "Out", r"no killable processes", _H, _C,
         "The host is out of memory and has nothing to kill", "linux:mm/oom_kill.c", about=_NODE),
    _row("irq_off", "irq", r"nobody cared", _H, _W,
         "The kernel turned off an interrupt that no driver handles", "linux:kernel/irq/spurious.c", about=_NODE),
    _row("file_handles", "VFS", r"file-max limit \d+ reached", _H, _W,
         "The host has no file handles left", "linux:fs/file_table.c", about=_NODE),
    # the host's power, as the readers of the management controller's event log write it
    _row("power_supply", "ipmi", r"^(?!.*[Dd]eassert).*Power Supply\b.*(?:[Ff]ailure detected|input lost|AC lost"
         r"|[Rr]edundancy [Ll]ost|out-of-range)", _H, _W,
         "A power supply of the host failed or has no input", "IPMI 2.0, table 42-3: sensor type 08h", about=_NODE),
    *(
        _row(f"ipmi_{name}", "ipmi", rf"^(?!.*[Dd]eassert).*{pattern}", _H, severity, meaning,
             "IPMI 2.0, table 42-3", about=_NODE)
        for name, severity, meaning, pattern in (
            ("memory", _C, "Host memory has an uncorrected error", r"Uncorrectable (?:ECC|memory)"),
            ("processor", _C, "A processor of the host failed", (r"Processor\b.*(?:\bIERR|Thermal Trip"
            r"|Machine Check)")),
            ("bus", _C, "The host's bus has a fatal error",
             r"Critical Interrupt.*(?:Bus (?:Fatal|Uncorrectable)|PCI [SP]ERR|\bNMI)"),
            ("heat", _C, "The host is too hot", r"Temperature\b.*(?:Critical|Non-recoverable) going high"),
            ("fan", _W, "A fan of the host failed", (r"Fan\b.*(?:(?:Critical|Non-recoverable) going low"
            r"|[Ff]ailure)")),
            ("drive", _W, "A drive of the host failed", (r"Drive (?:Fault|Failure)|Drive Slot.*(?:Fault"
            r"|Predictive)")),
        )
    ),
    # disks and file systems
    _row("nvme_down", "nvme", r"controller is down; will reset|Device not ready; aborting"
         r"|frozen state error detected|[Ii]dentify [Cc]ontroller failed|resetting controller due to", _H, _C,
         "An NVMe disk does not answer", _NVME, about=_DISK),
    _row("nvme_timeout", "nvme", r"I/O (?:tag )?\d+ .*timeout", _H, _W,
         "An NVMe disk answers too late", _NVME, about=_DISK),
    _row("nvme_removed", "nvme", r"Removing after probe failure|Disabling device after reset failure", _H, _C,
         "An NVMe disk is lost", _NVME, about=_DISK),
    _row("nvme_fabric", "nvme", r"starting error recovery|[Kk]eep[ -]?[Aa]live (?:failed|interval elapsed|timer)"
         r"|Reconnecting in \d+ seconds", _H, _W,
         "A remote NVMe disk's connection is lost", "linux:drivers/nvme/host/fabrics.c", about=_DISK, least=3),
    _row("no_nvme_path", "block", r"no (?:available|usable) path", _H, _C,
         "A remote NVMe disk has no path left", "linux:drivers/nvme/host/multipath.c", about=_DISK),
    _row("beyond_end", "", r"attempt to access beyond end of device", _H, _W,
         "A file system reads beyond the end of its disk", "linux:block/blk-core.c", about=_NODE),
    _row("nvme_error", "nvme", r"I/O Error \(sct|Error \(sct 0x[23]", _H, _W,
         "An NVMe disk has errors", "linux:drivers/nvme/host/core.c", about=_DISK),
    _row("medium_error", "critical", r"critical (?:medium|target|space allocation) error, dev", _H, _C,
         "A disk cannot read what it holds", "linux:block/blk-core.c", about=_DISK),
    *(
        _row(f"io_error_{number}", word, r"(?:I/O|critical medium"
         r"|critical target) error,? (?:on )?dev(?:ice)? (?!fd|sr|loop)", _H, _W,
             "A disk has errors", source, about=_DISK)
        for number, (word, source) in enumerate(
            (("I/O", "linux:block/blk-mq.c"), ("blk_update_request", "linux:block/blk-core.c (before 5.16)"),
             ("Buffer", "linux:fs/buffer.c"))
        )
    ),
    _row("ext_error", "EXT", r"EXT\d-fs error \(device|: Delayed block allocation failed", _H, _C,
         "A file system is damaged", "linux:fs/ext4/super.c", about=_DISK),
    _row("ext_io", "EXT", r"EXT\d-fs.*: I/O error \S*(?: ?while)?|failed to convert unwritten extents"
         r"|previous I/O error to superblock|unable to read superblock", _H, _C,
         "A file system cannot write to its disk", "linux:fs/ext4/page-io.c", about=_DISK),
    _row("ext_marked", "EXT", r"mounting fs with errors|error count since last fsck", _H, _W,
         "A file system is marked as damaged", "linux:fs/ext4/super.c", about=_DISK),
    _row("ext_read_only", "EXT", r"Remounting filesystem read-only", _H, _C,
         "A file system became read-only", "linux:fs/ext4/super.c", about=_DISK),
    _row("journal_aborted", "Aborting", r"Aborting journal on device", _H, _C,
         "A file system's journal was given up", "linux:fs/jbd2/journal.c", about=_DISK),
    _row("journal_error", "JBD", r"Error -\d+ (?:detected )?(?:when|on)|I/O error|Detected IO errors", _H, _C,
         "A file system's journal cannot be written", "linux:fs/jbd2/journal.c", about=_DISK),
    _row("xfs_error", "XFS", r"[Cc]orruption (?:of|detected|warning)|metadata I/O error|[Ll]og I/O [Ee]rror"
         r"|[Ss]hutting down filesystem|has been shut down|xfs_do_force_shutdown|Internal error "
         r"|run xfs_repair|writeback error on|log mount/recovery failed|xfs_log_force: error"
         r"|rectify the problem", _H, _C,
         "A file system is damaged", "linux:fs/xfs", about=_DISK),
    _row("xfs_memory", "XFS", r"possible memory allocation deadlock", _H, _W,
         "A file system waits for memory", "linux:fs/xfs/kmem.c", about=_DISK, least=3),
    _row("btrfs_error", "BTRFS", r"BTRFS:? (?:error|critical) \(device|forced readonly|lost page write", _H, _C,
         "A file system is damaged", "linux:fs/btrfs/messages.c", about=_DISK),
    _row("btrfs_checksum", "BTRFS", r"BTRFS warning \(device .*(?:csum|checksum) (?:failed|error)", _H, _W,
         "A file system finds damaged data", "linux:fs/btrfs/inode.c", about=_DISK),
    _row("zfs_suspended", "WARNING", r"Pool '.*' has encountered an uncorrectable I/O failure", _H, _C,
         "A storage pool stopped after an I/O error", "openzfs:module/zfs/spa_misc.c", about=_NODE),
    _row("raid_failure", "md/raid", r"Disk failure on|read error not correctable|unrecoverable I/O"
         r"|not enough operational (?:devices|mirrors)|cannot continue operation", _H, _C,
         "A disk of a RAID failed", "linux:drivers/md", about=_DISK),
    _row("raid_superblock", "md", r"super_written gets error", _H, _W,
         "A disk of a RAID has errors", "linux:drivers/md/md.c", about=_NODE),
    _row("raid_event", "mdadm", r"(?:Fail|DegradedArray|DeviceDisappeared)\w* event (?:detected )?on", _H, _C,
         "A disk of a RAID failed", "mdadm:Monitor.c", about=_NODE),
    _row("ata_error", "ata", r"failed command: |SError: |exception Emask|COMRESET failed", _H, _W,
         "A SATA disk has errors", "linux:drivers/ata/libata-eh.c", about=_DISK, least=3),
    _row("scsi_error", "sd", r"FAILED Result: hostbyte=DID_(?!OK)|rejecting I/O to (?:offline|dead) device"
         r"|Sense Key : (?:Medium|Hardware) Error|Device offlined", _H, _W,
         "A disk has errors", "linux:drivers/scsi/scsi_logging.c", about=_DISK),
    *(
        _row(f"{name}_controller", name, pattern, _H, _C, "A storage controller failed",
             f"linux:drivers/scsi/{name}",
             about=_NODE)
        for name, pattern in (
            ("megaraid_sas", (r"/(?:FATAL|CRIT)\) - |FW in FAULT state|[Ff]atal firmware error|Adapter is (?:dead"
            r"|DEAD)")),
            ("mpt", (r"fault_state\(0x|SAS host is non-operational|Host adapter is non-operational"
            r"|diag reset: FAILED")),
            ("smartpqi", r"controller (?:is )?offline|controller lockup"),
            ("hpsa", r"[Cc]ontroller lockup detected|controller is offline"),
            ("aacraid", r"[Aa]dapter (?:kernel )?panic|Adapter health - -\d+|adapter dead"),
        )
    ),
    _row("smart_failed", "smartd", r"FAILED SMART self-check|SMART Failure:|Critical Warning \(0x(?!00\))|"
         r"\b[1-9]\d* (?:Currently unreadable|Offline uncorrectable|Total offline uncorrectable)", _H, _W,
         "A disk says that it fails (SMART)", "smartmontools:src/smartd.cpp", about=_NODE),
    _row("thin_pool_full", "device-mapper", r"thin: .*(?:out-of-data-space|no free (?:data|metadata) space)"
         r"|switching pool to (?:read-only|failure) mode", _H, _C,
         "A storage pool is full or failed", "linux:drivers/md/dm-thin.c", about=_NODE),
    _row("no_path", "multipathd", r"remaining active paths: 0\b|[Ff]ail(?:ing)? all paths|checker failed path",
         _H, _C,
         "A disk has no path left", "multipath-tools:multipathd/main.c", about=_NODE),
    _row("path_failed", "device-mapper", r"multipath: .*Failing path", _H, _W,
         "A path to storage failed", "linux:drivers/md/dm-mpath.c", about=_DISK),
    # remote storage, beside the servers' silence that `lines` reads
    _row("lustre_evicted", "LustreError", r"This client was evicted by|\bLBUG\b|ASSERTION\(", _H, _C,
         "Remote storage (Lustre) threw this client out", "lustre-release:lustre/ptlrpc/import.c", about=_NODE),
    _row("lustre_mount", "LustreError", r"[Uu]nable to mount|onfi?guration from log \S+ failed", _H, _C,
         "Remote storage (Lustre) cannot be mounted", "lustre-release:lustre/obdclass/obd_mount.c", about=_NODE),
    _row("lustre_request", "Lustre", r"Request sent has (?:failed due to network error|timed out)", _H, _W,
         "Remote storage (Lustre) does not answer", "lustre-release:lustre/ptlrpc/client.c", about=_NODE, least=3),
    _row("lustre_operation", "LustreError", r"operation \w+ to node \S+ failed|Communicating with \S+, operation",
         _H, _W, "Remote storage (Lustre) does not answer", "lustre-release:lustre/ptlrpc/client.c", about=_NODE,
         least=3),
    *(
        _row(f"lustre_network_{word.lower()}", word, r"Timed out tx|[Nn]o route to|Connection to \S+ .*(?:failed"
             r"|lost)"
             r"|peer \S+ (?:not alive|is down)|recovery failed", _H, _W,
             "Remote storage's network (LNet) has errors", "lustre-release:lnet", about=_NODE, least=3)
        for word in ("LNet", "LNetError")
    ),
    _row("nfs_state", "NFS", r"state manager: .* failed|reclaim\w*:? .*(?:failed|unhandled error)", _H, _W,
         "Remote storage (NFS) lost this client's state", "linux:fs/nfs/nfs4state.c", about=_NODE, least=3),
    _row("nfs_locks", "nfs", r"Lock reclaim failed", _H, _W,
         "Remote storage (NFS) lost this client's state", "linux:fs/nfs/nfs4state.c", about=_NODE, least=3),
    _row("cifs_silent", "CIFS", r"has not responded in \d+ seconds", _H, _W,
         "Remote storage (CIFS) does not answer", "linux:fs/smb/client/connect.c", about=_NODE),
    _row("ceph_lost", "libceph", r"session lost, hunting|session established|mon\d+ .*(?:connect error"
         r"|socket closed)", _H, _W,
         "Remote storage (Ceph) does not answer", "linux:net/ceph/mon_client.c", about=_NODE, least=10,
         lasts_s=_LASTS_S, over="session established"),
    _row("ceph_evicted", "ceph", r"(?:mds\d+ )?(?:session (?:blocklisted|blacklisted)|reconnect denied"
         r"|rejected session)",
         _H, _C, "Remote storage (Ceph) threw this client out", "linux:fs/ceph/mds_client.c", about=_NODE),
    _row("beegfs", "beegfs", r"Communication error|Connect failed|Receive timed out|Retrying communication", _H, _W,
         "Remote storage (BeeGFS) does not answer", "beegfs:client_module", about=_NODE, least=3),
    _row("gpfs", "mmfs", r"MMFS_(?:SYSTEM_UNMOUNT|PHOENIX|FSSTRUCT|DISKFAIL|ABNORMAL_SHUTDOWN)|\[[EX]\]"
         r"|6027-\d+ \[[EX]\]",
         _H, _W, "Remote storage (GPFS) has an error", "IBM Storage Scale: Error logs and MMFS events",
         about=_NODE),
)  # fmt: skip

STORAGE_SILENT = _row(
    "storage_silent", "", "", _H, _W, "Remote storage does not answer",
    "linux:net/sunrpc/clnt.c, fs/ceph; Lustre", about=_NODE, lasts_s=_LASTS_S,
)  # fmt: skip
HUNG_TASK = _row(
    "hung_task", "", "", _H, _W, "A process is stuck in the kernel (hung task)", "linux:kernel/hung_task.c",
    about=_NODE, least=120,
)  # fmt: skip
"""What `lines` reads with names and times: of hung tasks the seconds are counted, 120 in all are a fault."""
BMC_LOG = _row(
    "bmc_log", "", "", _H, _W, "The BMC logged a hardware event", "DMTF DSP2046: LogEntry", about=_NODE,
)  # fmt: skip
"""What `collectors.telemetry.redfish` reads of a BMC's log."""
BY_NAME: Mapping[str, MessageKind] = {kind.name: kind for kind in (*KINDS, STORAGE_SILENT, HUNG_TASK, BMC_LOG)}
_INTERFACE = re.compile(
    r"^\S+ [0-9a-f:.]{7,14} ([a-z][a-z0-9_]{1,14}): |NETDEV WATCHDOG: (\S+) |slave ([\w.-]+)\)"
    r"|for interface ([\w.-]+),"
)
_DEVICE = re.compile(r"\bdev(?:ice)? ((?:nvme|sd|md|dm-|vd)[\w-]*)|\(((?:nvme|sd|md|dm-|vd)[\w-]*)\)"
                     r"|^nvme (nvme\d+):|^(nvme\d+n\d+):|failure on ([\w-]+),|\[(sd[a-z]+)\]")  # fmt: skip
_PCI = re.compile(
    r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?\b|\[([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\]"
)
_DISK_NAME = re.compile(r"((?:sd|vd)[a-z]+)|(nvme\d+)(n\d+)?")
_ANY = "*"
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


_Row = tuple[re.Pattern[str], MessageKind]


def _by_first_letters() -> dict[str, tuple[tuple[str, tuple[_Row, ...]], ...]]:
    """The rows by the first two characters of their lines (hardware errors begin with `[` or `{1}[`) and by a text
    that the line has to hold: of most lines a few searches for plain texts say that they are of no kind."""
    found: dict[str, dict[str, tuple[_Row, ...]]] = {}
    for kind in KINDS:
        word, row = kind.first_word, (re.compile(kind.pattern), kind)
        marks: tuple[str, ...] = (f"[{word[0]}",) if word in ("Hardware", "drm") else ()
        if word == "Hardware":
            marks += tuple(f"{{{digit}" for digit in range(10))
        heads = [f"{word}{digit}" for digit in range(10)] if len(word) == 1 and word != _ANY else [word[:2]]
        for head in (*heads, *marks):
            of_head = found.setdefault(head, {})
            for text in dict.fromkeys(_needed(kind.pattern)):
                of_head[text] = (*of_head.get(text, ()), row)
    return {head: tuple(texts.items()) for head, texts in found.items()}


_ROWS = _by_first_letters()
_ORDER = {kind: number for number, kind in enumerate(KINDS)}
_STEMS = ("ailed", "rror", "ime", "fatal", "tuck")
"""What lines of errors have in common and few others hold: one search for such a part does for many texts."""


def _fewest(texts: Sequence[str]) -> tuple[str, ...]:
    """Plain texts, as few as may be, of which a line that holds any of `texts` has at least one.

    >>> _fewest(["command failed", "Failed to start", "rror cqe on", "Cable unplugged"])
    ('ailed', 'rror cqe on', 'Cable unplugged')
    """
    found = list(texts)
    for stem in _STEMS:
        if sum(stem in text for text in found) > 1:
            found = [stem if stem in text else text for text in found]
    unique = dict.fromkeys(found)
    return tuple(text for text in unique if not any(other in text for other in unique if other != text))


NEEDED: Mapping[str, tuple[str, ...]] = {head: _fewest([text for text, _ in rows]) for head, rows in _ROWS.items()}
"""How a line of any kind begins, and what else it holds: most lines of a log are passed over by these alone."""


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """What a line of a known kind says: whose it is, where the line tells that."""

    kind: MessageKind
    pci_address: str | None = None
    gpu_index: str = ""
    device: str = ""
    """The port's or disk's name."""
    is_over: bool = False
    """The line takes back what an earlier one of its kind said."""
    errors: int = 1
    """How many the line itself counts."""
    node: str = ""
    """The node that the line names, where it is about another than its own."""


def _kind_of(text: str) -> MessageKind | None:
    kind = _row_of(text, text[:2])
    if kind is None and is_of_device(text):
        rest = _rest(text)
        if rest[:2] in _ROWS:
            kind = _row_of(rest, rest[:2])
        if kind is None:
            kind = _row_of(rest, _ANY)
    return kind or _row_of(text, "")


def is_of_device(text: str) -> bool:
    """Whether the second word looks like a PCI address, in the time that a line of no kind may take.

    >>> is_of_device("ice 0000:3b:00.0 ens1f0: NETDEV WATCHDOG"), is_of_device("audit: type=1400 audit(17952:1)")
    (True, False)
    """
    space = text.find(" ", 0, 24)
    return text[space + 5 : space + 9 : 3] == "::"


def may_tell_of_device(text: str) -> bool:
    """Whether what follows the device that this line begins with may be of a kind."""
    rest = text[text.find(": ", text.find(" ") + 8) + 2 :]  # as `_rest`, for each line of a device
    for needed in NEEDED.get(rest[:2], ()):  # loops, not `any`: no generators
        if needed in rest:
            return True
    for needed in NEEDED[_ANY]:  # noqa: SIM110
        if needed in rest:
            return True
    return False


def _rest(text: str) -> str:
    """What follows the device that a line begins with."""
    return text[text.find(": ", text.find(" ") + 8) + 2 :]


def _row_of(text: str, head: str) -> MessageKind | None:
    """Of the rows of this head the first in `KINDS` that the line matches."""
    found = [
        kind
        for needed, rows in _ROWS.get(head, ())
        if needed in text
        for pattern, kind in rows
        if pattern.search(text) is not None and (head in (_ANY, "") or _begins_with(text, kind.first_word))
    ]
    return min(found, key=_ORDER.__getitem__) if found else None


def _begins_with(text: str, word: str) -> bool:
    match = _FIRST_WORD.match(text)
    return match is not None and match.group(1) == word


def _whole_disk(name: str) -> str:
    """The disk of a partition, a journal or an NVMe controller: one broken disk speaks under all their names.

    >>> _whole_disk("nvme0n1p1-8"), _whole_disk("nvme0"), _whole_disk("sdb1"), _whole_disk("dm-3")
    ('nvme0n1', 'nvme0n1', 'sdb', 'dm-3')
    """
    match = _DISK_NAME.match(name)
    if match is None:
        return name
    return match.group(1) if match.group(1) else f"{match.group(2)}{match.group(3) or 'n1'}"


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
    groups: Mapping[str, str | None] = {}
    if "(?P<n" in kind.pattern and (match := re.search(kind.pattern, text)) is not None:
        groups = match.groupdict()
    named = "" if device is None else next(group for group in device.groups() if group)
    return KernelMessage(
        kind,
        None if pci is None else pci.group(1) or pci.group(0),
        "" if index is None else index.group(1),
        _whole_disk(named) if kind.about == "disk" else named,
        bool(kind.over) and re.search(kind.over, text) is not None,
        int(groups.get("n") or 1),
        next((value for key, value in groups.items() if key.startswith("node") and value), ""),
    )
