"""Every public kind of fault as a drawn generator: values, hosts, times, wording, form and trainer are drawn by seed.

`draw("xid_48", seed)` gives a report that no batch holds. A name of `KINDS` is what the coverage table cites. The
wordings are those of the programs that write them (the NVIDIA driver, Linux, PyTorch, NCCL, Slurm, vLLM, the
kubelet); several releases of one program are several wordings of its kind. In a wording, `<int:1:9>` is a drawn
number, `<hex:8>` so many hexadecimal digits and `<a|b>` one of the words.
"""

# ruff: noqa: E501 -- log lines are as long as they are
from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.field.report import Channel, FieldReport, Form, Paged, condition, event, pod

_SRE, _OWNER, _NOBODY = Paged.SRE, Paged.OWNER, Paged.NOBODY
_MEMORY = r"memory|OOM"
_CRASH = r"crash|exit|ended|killed|fail|died"
_NETWORK = r"NCCL|network|InfiniBand|\bIB\b|connection|peer|socket|connect"
_STORAGE = r"storage|disk|NVMe|nvme|file.?system|I/O|read-only"
_NONFINITE = r"nan|NaN|non-finite|not a number|infinite|loss|grad"
_DRAWN = re.compile(r"<(int:\d+:\d+|hex:\d+|[^<>]*\|[^<>]*)>")
_FORMS = (Form.RSYSLOG, Form.DMESG, Form.DMESG_T, Form.JOURNAL)
_SYSLOG = (Form.RSYSLOG, Form.JOURNAL)
"""Where other programs than the kernel write: dmesg has none of their lines."""

Wording = tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """words: a pattern that title, headline or a finding's summary has to match. repeats: how often the last line
    comes, a tick each."""

    channel: Channel
    words: str
    paged: Paged
    wordings: tuple[Wording, ...]
    program: str = "kernel"
    repeats: int = 1
    trainers: tuple[str, ...] = ()


TRAINERS: Mapping[str, str] = {
    "hf": "{'loss': $loss, 'grad_norm': $norm, 'learning_rate': 2.04e-06, 'epoch': 0.01}",
    "megatron": " iteration     $step/  250000 | consumed samples:        43408 | elapsed time per iteration (ms): 4247.9 | learning rate: 2.999E-04 | global batch size:     8 | lm loss: ${loss}E+00 | loss scale: 1.0 | grad norm: $norm | number of skipped iterations:   0 | number of nan iterations:   0 |",
    "nanotron": "10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: $step / 378950 | consumed_tokens: 85.8G | elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 11.4K | global_batch_size: 64 | lm_loss: $loss | lr: 1e-05 | model_tflops_per_gpu: 38.3 | grad_norm: $norm",
    "maxtext": "completed step: $step, seconds: 10.228, TFLOP/s/device: 350.869, Tokens/s/device: 19222.175, total_weights: 1572864, loss: $loss",
    "nemo": "Training epoch 0, iteration $step/14900 | lr: 3e-05 | consumed_samples: 121 | global_batch_size: 1 | global_step: $step | reduced_train_loss: $loss | train_step_timing in s: 0.03146",
    "nanogpt": "iter $step: loss $loss, time 561.94ms",
    "torchtitan": "[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: $step  loss:  $loss  grad_norm:  $norm  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%",
    "mmengine": "10/30 22:18:02 - mmengine - INFO - Epoch(train) [1][$step/7350000]  lr: 1.9870e-04  eta: 2:46:39  time: 2.8906  data_time: 0.0042  memory: 10762  loss: $loss  grad_norm: $norm",
    "detectron2": "[11/01 20:14:15 d2.utils.events]: eta: 5:41:49  iter: $step  total_loss: $loss  loss_cls: 1.184  loss_box_reg: 0.475  time: 0.2293  data_time: 0.0033  lr: 0.003796  max_mem: 3782M",
    "fairseq": "| epoch 001:    $step / 137400 loss=$loss, ppl=20899.56, wps=49604, ups=0, wpb=277035.016, bsz=8563.074, num_updates=$step, lr=4.84525e-06, gnorm=$norm, clip=0.000, oom=0.000, loss_scale=0.062, wall=1061, train_wall=945",
    "verl": "step:$step - global_seqlen/min:2780.000 - critic/kl:-0.000 - critic/vf_loss:$loss - actor/entropy_loss:0.442 - actor/pg_loss:$loss - actor/ppo_kl:0.000 - actor/grad_norm:$norm - actor/lr:0.000 - critic/score/mean:0.594",
    "kohya": "steps:   1%|█         | $step/160000 [00:51<2:10:33,  4.92s/it, avr_loss=$loss]",
    "llm.c": "step  $step/19073 | loss: $loss | lr 6.0000e-04 | norm: $norm | dt: 250.00ms | tok/sec: 1000",
}
"""A healthy step of each trainer."""


def _xid(text: str, *codes: int, paged: Paged = _SRE) -> dict[str, Kind]:
    return {
        f"xid_{code}": Kind(
            Channel.KERNEL,
            rf"Xid {code}\b",
            paged,
            (
                (f"NVRM: Xid (PCI:$pci): {code}, pid=$pid, name=<python|python3|pt_main_thread>, {text}",),
                (f"NVRM: Xid (PCI:$pci): {code}, {text}",),
                (
                    "NVRM: GPU at PCI:$pci: GPU-<hex:8>-<hex:4>-<hex:4>-<hex:4>-<hex:12>",
                    "NVRM: GPU Board Serial Number: <int:1000:9999>",
                    f"NVRM: Xid (PCI:$pci): {code}, pid='<unknown>', name=<unknown>, {text}".replace(
                        "<unknown>", "(unknown)"
                    ),
                ),
            ),
        )
        for code in codes
    }


def _kernel(words: str, *wordings: Wording, program: str = "kernel", repeats: int = 1) -> Kind:
    return Kind(Channel.KERNEL, words, _SRE, wordings, program, repeats)


def _job(words: str, paged: Paged, *wordings: Wording) -> Kind:
    return Kind(Channel.JOB, words, paged, wordings)


def _figures(words: str, change: Mapping[str, str], *trainers: str) -> Kind:
    """Twelve steps in which these figures went wrong. change: a figure's placeholder and what is printed instead."""
    wordings = []
    for name in trainers:
        line = TRAINERS[name]
        for figure, printed in change.items():
            line = line.replace("${loss}E+00" if figure == "$loss" and "${loss}" in line else figure, printed)
        wordings.append((line,))
    return Kind(Channel.JOB, words, _OWNER, tuple(wordings), repeats=12, trainers=trainers)


_PORT = "pcieport 0000:<hex:2>:<00|01|03>.<int:0:7>"
_MLX = "mlx5_core 0000:<hex:2>:00.<0|1>"
_NVME = "nvme<int:0:15>"
_ELASTIC = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "

KINDS: Mapping[str, Kind] = {
    **_xid("Ch <hex:8>, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_<int:0:9> faulted @ 0x<hex:4>_<hex:8>. Fault is of type FAULT_<PDE|PTE> ACCESS_TYPE_VIRT_<READ|WRITE>", 31, paged=_OWNER),
    **_xid("Graphics SM Warp Exception on (GPC <int:0:7>, TPC <int:0:7>, SM <0|1>): <Out Of Range Address|Illegal Instruction Parameter|Misaligned Address>", 13, paged=_OWNER),
    **_xid("Reset Channel Verif Error <hex:8>", 43, paged=_OWNER),
    **_xid("An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition <int:0:15>, subpartition <0|1>.", 48),
    **_xid("<hex:8> <hex:8> <hex:8> <hex:8> 00000000 00000000", 62),
    **_xid("Row Remapper: Error: remapping failed for bank 0x<hex:4>", 64),
    **_xid("NVLink: fatal error detected on link <int:0:17>(0x<hex:5>, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)", 74),
    **_xid("GPU has fallen off the bus.", 79),
    **_xid("Contained: <SM (0x1)|CE (0x4)>. RST: No, D-RST: No".replace(" (", " ("), 94),
    **_xid("Uncontained: <LTC TAG|MMU HSHUB|FBHUB> (0x<hex:2>). RST: Yes, D-RST: No", 95),
    **_xid("Ch <hex:8>, errorString CTX SWITCH TIMEOUT, Info 0x<hex:5>", 109),
    **_xid("Timeout after <int:6:60>s of waiting for RPC response from GPU<int:0:7> GSP! Expected function <int:10:200> (GSP_RM_CONTROL) (0x<hex:8> 0x4).", 119),
    **_xid("GSP task exception: load access page fault (cause:0xd) @ pc:0x<hex:7>, partition:4#0, task:3", 120),
    **_xid("SPI PMU RPC read failure", 122),
    **_xid("unrecoverable ECC error (DED) in <L2|SM|DRAM>", 140),
    **_xid("NETIR_LINK_EVT Fatal XC0 i0 Link <int:10:17> (0x<hex:8> 0x0 0x0 0x0 0x0 0x0)", 149),
    **_xid("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", 154),
    "sxid_fatal": _kernel(
        r"SXid",
        ("nvidia-nvswitch<int:0:5>: SXid (PCI:0000:<hex:2>:00.0): <12028|14004|19084|20009|22012|24007>, Fatal, Link <int:0:35> <egress non-posted PRIV error|ingress invalid ACL|AN1 Heartbeat Timeout Error> (First)",),
    ),
    "gpu_off_bus": _kernel(
        r"fallen off|fell off|GPU lost|not responding",
        ("NVRM: The NVIDIA GPU $pci.0", "NVRM: (PCI ID: 10de:<hex:4>) installed in this system has", "NVRM: fallen off the bus and is not responding to commands."),
        ("NVRM: GPU $pci.0: GPU has fallen off the bus.",),
    ),
    "gpu_adapter_init": _kernel(
        r"RmInitAdapter|initiali[sz]|adapter",
        ("NVRM: GPU $pci.0: RmInitAdapter failed! (0x<hex:2>:0x<hex:2>:<int:900:1800>)", "NVRM: GPU $pci.0: rm_init_adapter failed, device minor number <int:0:7>"),
        ("NVRM: RmInitAdapter failed! (0x<hex:2>:0xffff:<int:900:1800>)", "NVRM: rm_init_adapter failed for device bearing minor number <int:0:7>"),
    ),
    "gsp_heartbeat": _kernel(
        r"GSP|heartbeat",
        ("NVRM: GPU$gpu _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs <int:100000:999999> heartbeat <int:10000:99999> diff <int:5201:9000> timeout 5200",),
    ),
    "driver_mismatch": _kernel(
        r"mismatch|version",
        ("NVRM: API mismatch: the client has the version 5<int:35:90>.<int:10:99>.0<int:1:9>, but\nNVRM: this kernel module has the version 5<int:35:90>.<int:100:199>.06.  Please\nNVRM: make sure that this kernel module and all NVIDIA driver\nNVRM: components have the same version.",),
    ),
    "driver_load": _kernel(r"driver|adapter|init|load", ("NVRM: No NVIDIA graphics adapter found!", "NVRM: NVIDIA init module failed!")),
    "nvlink_discovery": _kernel(r"NVLink", ("NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer<int:0:7>'s postRxDetLinkMask failed!",)),
    "fabric_manager": _kernel(
        r"[Ff]abric",
        ("nvidia-fabricmanager.service: Main process exited, code=killed, status=<9/KILL|6/ABRT|11/SEGV>", "nvidia-fabricmanager.service: Failed with result 'signal'."),
        ("nvidia-fabricmanager.service: Main process exited, code=exited, status=1/FAILURE", "nvidia-fabricmanager.service: Failed with result 'exit-code'."),
        program="systemd[1]",
    ),
    "pcie_uncorrected": _kernel(
        r"PCIe|AER|bus error",
        (f"{_PORT}: AER: Uncorrected (<Fatal|Non-Fatal>) error received: 0000:<hex:2>:00.0", f"{_PORT}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)"),
        (f"{_PORT}: AER: Multiple Uncorrectable (Fatal) error message received from 0000:<hex:2>:00.0", f"{_PORT}: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Data Link Layer, (Receiver ID)"),
    ),
    "pcie_containment": _kernel(
        r"PCIe|DPC|contain|link",
        (f"{_PORT}: DPC: containment event, status:0x1f01 source:0x0000", f"{_PORT}: DPC: unmasked uncorrectable error detected"),
    ),
    "pcie_hotplug": _kernel(
        r"PCIe|link|slot|hotplug",
        (f"{_PORT}: pciehp: Slot(<int:1:40>): Link Down",),
        (f"{_PORT}: pciehp: Slot(<int:1:40>): Card not present", f"{_PORT}: pciehp: Slot(<int:1:40>): Link Down"),
    ),
    "iommu_fault": _kernel(
        r"IOMMU|IO_PAGE_FAULT|AMD-Vi|DMA",
        ("nvidia $pci.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x00<hex:2> address=0x<hex:8> flags=0x0020]",),
        ("DMAR: [DMA <Read|Write>] Request device [<hex:2>:00.0] fault addr 0x<hex:9> [fault reason 06] PTE Read access is not set",),
        repeats=8,
    ),
    "host_memory_corrected": _kernel(
        r"memory|DIMM|EDAC|ECC",
        ("EDAC MC<int:0:7>: <int:20:900> CE memory <read|scrubbing> error on CPU_SrcID#<0|1>_Ha#0_Chan#<int:0:3>_DIMM#<0|1> (channel:1 slot:0 page:0x<hex:7> offset:0x940 grain:32 syndrome:0x0 -  OVERFLOW area:DRAM err_code:0001:0091 socket:0 ha:0 channel_mask:2 rank:1)",),
        repeats=6,
    ),
    "host_memory_uncorrected": _kernel(
        r"memory|DIMM|EDAC|uncorrect",
        ("EDAC MC<int:0:7>: 1 UE memory read error on CPU_SrcID#<0|1>_MC#<0|1>_Chan#<int:0:3>_DIMM#<0|1> (channel:2 slot:0 page:0x<hex:7> offset:0xdc0 grain:32 -  recoverable)",),
    ),
    "machine_check": _kernel(
        r"[Mm]achine check|MCE|[Hh]ardware",
        ("mce: [Hardware Error]: Machine check events logged", "mce: [Hardware Error]: CPU <int:0:191>: Machine Check: 0 Bank <int:0:20>: b<hex:15>", "mce: [Hardware Error]: TSC 0 ADDR <hex:9> "),
        ("mce: [Hardware Error]: CPU <int:0:191>: Machine Check Exception: 5 Bank <int:0:20>: b<hex:15>", "Kernel panic - not syncing: Fatal machine check"),
    ),
    "nic_link": _kernel(
        r"[Ll]ink|port|NIC",
        (f"{_MLX} mlx5_<int:0:9>: Port: 1 Link DOWN",),
        (f"{_MLX} ens<int:1:20>np0: Link down",),
    ),
    "nic_cable": _kernel(r"[Ll]ink|port|NIC|cable", (f"{_MLX}: Port module event[error]: module <int:0:3>, Cable error, <Bus stuck|High Temperature|Bad or shorted cable/module>",)),
    "nic_firmware": _kernel(
        r"NIC|mlx5|health|firmware|[Nn]etwork",
        (f"{_MLX}: device's health compromised - reached miss count",),
        (f"{_MLX}: poll_health:<int:700:900>:(pid 0): Fatal error 1 detected",),
    ),
    "nic_probe": _kernel(r"NIC|mlx5|network|probe", (f"{_MLX}: mlx5_load_one failed with error code -<12|16|22|110>", "mlx5_core: probe of 0000:<hex:2>:00.0 failed with error -22")),
    "nic_transmit": _kernel(
        r"NIC|network|transmit|queue|TX|tx",
        ("NETDEV WATCHDOG: <eth0|ens5|eno1> (<mlx5_core|bnxt_en|ice>): transmit queue <int:0:63> timed out",),
        ("mlx5_core 0000:<hex:2>:00.0 eth<int:0:7>: NETDEV WATCHDOG: CPU: <int:0:99>: transmit queue <int:0:63> timed out <int:5000:9000> ms",),
    ),
    "nvme_timeout": _kernel(
        _STORAGE,
        (f"nvme {_NVME}: I/O <int:1:900> QID <int:1:60> timeout, <reset controller|disable controller>", f"nvme {_NVME}: Device not ready; aborting reset, CSTS=0x1"),
        (f"nvme {_NVME}: I/O tag <int:1:900> (<hex:4>) opcode 0x2 (I/O Cmd) QID <int:1:60> timeout, reset controller",),
    ),
    "disk_io_error": _kernel(
        _STORAGE,
        ("I/O error, dev nvme<int:0:9>n1, sector <int:1000:999999> op 0x<0:(READ)|1:(WRITE)> flags 0x80700 phys_seg 25 prio class 0", "Buffer I/O error on device nvme<int:0:9>n1p1, logical block <int:1000:999999>"),
        ("blk_update_request: I/O error, dev nvme<int:0:9>n1, sector <int:1000:999999> op 0x1:(WRITE) flags 0x800 phys_seg 8 prio class 0",),
        repeats=3,
    ),
    "filesystem_error": _kernel(
        _STORAGE,
        ("EXT4-fs error (device nvme<int:0:9>n1p<int:1:3>): __ext4_find_entry:1<int:100:999>: inode #<int:10:9999>: comm python: reading directory lblock 0",),
        ("EXT4-fs (nvme<int:0:9>n1p<int:1:3>): Remounting filesystem read-only",),
        ("XFS (nvme<int:0:9>n1): Corruption of in-memory data (0x8) detected at xfs_trans_cancel. Shutting down filesystem.",),
    ),
    "lustre_lost": _kernel(
        rf"Lustre|{_STORAGE}",
        ("Lustre: scratch-OST00<hex:2>-osc-ffff<hex:12>: Connection to scratch-OST00<hex:2> (at 10.0.<int:0:255>.<int:1:254>@o2ib) was lost; in progress operations using this service will wait for recovery to complete",),
    ),
    "nfs_silent": _kernel(rf"NFS|nfs|{_STORAGE}", ("nfs: server <filer|nas|10.1.2.3> not responding, <still trying|timed out>",)),
    "hung_task": _kernel(r"hung|blocked|stuck|task", ("INFO: task <python|pt_main_thread|kworker/u4:2|jbd2/nvme0n1p1>:$pid blocked for more than <120|122|241> seconds.", "      Not tainted 5.15.0-<int:50:150>-generic #1")),
    "soft_lockup": _kernel(r"lockup", ("watchdog: BUG: soft lockup - CPU#<int:0:191> stuck for <int:22:90>s! [<python|kworker/3:1|nvidia-smi>:$pid]",)),
    "hard_lockup": _kernel(r"lockup|LOCKUP", ("<NMI watchdog|watchdog>: Watchdog detected hard LOCKUP on cpu <int:0:191>",)),
    "oom_kill": _kernel(
        _MEMORY,
        ("<python|train|uwsgi> invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=<int:0:999>", "Memory cgroup out of memory: Killed process $pid (python) total-vm:<int:100000:9999999>kB, anon-rss:<int:100000:9999999>kB, file-rss:52176kB, shmem-rss:92kB, UID:0 pgtables:1372kB oom_score_adj:986"),
        ("Out of memory: Killed process $pid (<python|python3>) total-vm:<int:100000:9999999>kB, anon-rss:<int:100000:9999999>kB, file-rss:0kB, shmem-rss:0kB",),
    ),
    "lustre_evicted": _kernel(rf"Lustre|{_STORAGE}", ("LustreError: 167-0: scratch-MDT0000-mdc-ffff<hex:12>: This client was evicted by scratch-MDT0000; in progress operations using this service will fail.",)),
    "cifs_silent": _kernel(rf"CIFS|{_STORAGE}", ("CIFS: VFS: \\\\\\\\nas<int:1:9> has not responded in 180 seconds. Reconnecting...",)),
    "ceph_silent": _kernel(rf"Ceph|{_STORAGE}", ("libceph: mon<int:0:4> (1)10.0.<int:0:9>.<int:1:254>:6789 session lost, hunting for new mon",)),
    "mount_failed": _kernel(rf"mount|{_STORAGE}", ("data.mount: Mount process exited, code=exited, status=<32|1>/n/a", "data.mount: Failed with result 'exit-code'."), program="systemd[1]"),
    "disk_smart": _kernel(rf"SMART|{_STORAGE}", ("Device: /dev/nvme<int:0:9>, Critical Warning (0x0<1|4|8>): <Reliability|Available_Spare>",), ("Device: /dev/sd<a|b|c> [SAT], <int:1:90> Currently unreadable (pending) sectors",), program="smartd[812]"),
    "disk_scsi": _kernel(
        _STORAGE,
        ("sd <int:0:9>:0:0:0: [sd<a|b|c>] tag#<int:0:30> Sense Key : <Medium|Hardware> Error [current]",),
        ("sd <int:0:9>:0:0:0: [sd<a|b|c>] tag#<int:0:30> FAILED Result: hostbyte=DID_<NO_CONNECT|BAD_TARGET|TIME_OUT> driverbyte=DRIVER_OK",),
    ),
    "disk_raid": _kernel(rf"RAID|{_STORAGE}", ("md/raid1:md<int:0:9>: Disk failure on sd<a|b|c>1, disabling device.",), ("md/raid:md<int:0:9>: read error not correctable (sector <int:1000:9999> on sd<a|b|c>1).",)),
    "disk_controller": _kernel(r"storage|controller|disk", ("megaraid_sas 0000:<hex:2>:00.0: <int:100:999> (7s/0x0020/CRIT) - Controller encountered a fatal error and was reset",), ("mpt3sas_cm<int:0:3>: fault_state(0x<hex:4>)!",)),
    "host_stall": _kernel(r"processor|RCU|stall|lockup", ("rcu: INFO: rcu_<sched|preempt> <self-detected stall on CPU|detected stalls on CPUs/tasks:>",), ("BUG: workqueue lockup - pool cpus=<int:0:99> node=0 flags=0x0 nice=0 stuck for <int:31:90>s!",)),
    "host_oops": _kernel(r"kernel|crash", ("general protection fault, probably for non-canonical address 0x<hex:12>: 0000 [#1] PREEMPT SMP NOPTI",), ("BUG: kernel NULL pointer dereference, address: 00000000000000<hex:2>",), ("Unable to handle kernel paging request at virtual address ffff<hex:12>",)),
    "host_nmi": _kernel(r"NMI|[Hh]ardware|interrupt", ("NMI: PCI system error (SERR) for reason b1 on CPU <int:0:99>.",)),
    "host_management": _kernel(
        r"power supply|memory|fan|hot|processor|drive|bus",
        ("<int:1:99>, Nov-05-2025, 16:10:00, DIMM_A<int:1:8>, Memory, Critical, Assertion Event, Uncorrectable ECC",),
        ("<int:1:99>, Nov-05-2025, 16:10:00, CPU<int:0:1>, Processor, Critical, Assertion Event, <IERR|Thermal Trip>",),
        ("<int:1:99>, Nov-05-2025, 16:10:00, FAN<int:1:8>, Fan, Critical, Assertion Event, Lower Critical going low",),
        program="ipmiseld",
    ),
    "host_heat": _kernel(r"therm|temperature|hot|throttl", ("<CPU|mce: CPU><int:0:99>: <Core|Package> temperature above threshold, cpu clock throttled (total events = <int:1:9999>)",), ("CPU<int:0:99>: Package temperature is above threshold, cpu clock is throttled (total events = <int:1:9999>)",)),
    "host_page": _kernel(r"memory|machine check", ("Memory failure: 0x<hex:6>: recovery action for <dirty LRU page|free buddy page>: <Failed|Ignored>",), ("[Hardware Error]: Uncorrected, software restartable error.",)),
    "pcie_reset": _kernel(r"PCIe", ("<nvme|nvidia|mlx5_core> 0000:<hex:2>:00.0: not ready 65535ms after <FLR|bus reset>; giving up",), (f"{_PORT}: AER: device recovery failed",)),
    "iommu_arm": _kernel(r"IOMMU|memory", ("arm-smmu-v3 arm-smmu-v3.<int:0:9>.auto: event 0x10 received:",), repeats=4),
    "nic_adapter": _kernel(
        r"[Nn]etwork|port|NIC",
        ("ice 0000:<hex:2>:00.0: Firmware recovery mode detected. Limiting functionality.",),
        ("ixgbe 0000:<hex:2>:00.0 eth<int:0:7>: Detected Tx Unit Hang",),
        ("<bnxt_en|igb|i40e>: probe of 0000:<hex:2>:00.0 failed with error -<5|12|22>",),
        ("ena 0000:00:05.0 ens5: Keep alive watchdog timeout.",),
    ),
    "nic_table": _kernel(r"drops packets|ARP|connection table", ("nf_conntrack: nf_conntrack: table full, dropping packet",), ("neighbour: arp_cache: neighbor table overflow!",), repeats=5),
    "gpu_services": _kernel(
        r"IMEX|DCGM|persistence|InfiniBand",
        ("<nvidia-imex|nvidia-persistenced|nvidia-dcgm|openibd>.service: Main process exited, code=exited, status=1/FAILURE", "<nvidia-imex|nvidia-persistenced|nvidia-dcgm|openibd>.service: Failed with result 'exit-code'."),
        program="systemd[1]",
    ),
    "power_supply": _kernel(
        r"[Pp]ower",
        ("<int:1:99>, Nov-05-2026, 16:10:<int:10:59>, <PS1|PS2|Power Supply 2 PS2> Status, Power Supply, Critical, Assertion Event, <Power Supply Failure detected|Power Supply input lost (AC/DC)>",),
        program="ipmiseld",
    ),
    "network_teardown": _kernel(r"unregister_netdevice|namespace|network|stuck", ("unregister_netdevice: waiting for <veth|eth><hex:6> to become free. Usage count = <int:1:4>",), repeats=8),
    # jobs that end
    "job_exit": _job(
        _CRASH, _OWNER,
        ("E0325 20:57:27.620000 $pid site-packages/torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: <1|2|255>) local_rank: <int:0:7> (pid: $pid) of binary: /usr/bin/python",),
        (_ELASTIC, "train.py FAILED", "Root Cause (first observed failure):", "[0]:", "  rank      : $gpu (local_rank: $gpu)", "  exitcode  : <1|2> (pid: $pid)"),
        ("srun: error: $host: task <int:0:63>: Exited with exit code <1|2>",),
    ),
    "job_signal": _job(
        rf"SIG|signal|{_CRASH}", _SRE,
        (_ELASTIC, "train.py FAILED", "Root Cause (first observed failure):", "[0]:", "  rank      : $gpu (local_rank: $gpu)", "  exitcode  : -<9|11|6> (pid: $pid)", "  traceback : Signal <9 (SIGKILL)|11 (SIGSEGV)|6 (SIGABRT)> received by PID $pid"),
        ("srun: error: $host: task <int:0:63>: Segmentation fault (core dumped)",),
    ),
    "nccl_timeout": _job(
        r"hang|NCCL|collective|stuck|stopped", _SRE,
        ("[rank$gpu]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:<607|616|632|683>] [Rank $gpu] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=$n, OpType=<ALLREDUCE|_REDUCE_SCATTER_BASE|_ALLGATHER_BASE>, NumelIn=<int:1000:9999>, NumelOut=<int:1000:9999>, Timeout(ms)=600000) ran for <int:600000:601000> milliseconds before timing out.",),
    ),
    "nccl_peer": _job(
        _NETWORK, _SRE,
        ("$host:$pid:$pid [$gpu] misc/socket.cc:<46|49|71> NCCL WARN socketProgress: Connection closed by remote peer 10.0.<int:0:9>.<int:1:254><int:30000:60000>",),
        ("$host:$pid:$pid [$gpu] misc/socket.cc:518 NCCL WARN Net : Call to recv from 10.0.<int:0:9>.<int:1:254> failed : <Broken pipe|Connection reset by peer>",),
    ),
    "nccl_ib": _job(
        _NETWORK, _SRE,
        ("$host:$pid:$pid [$gpu] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.<int:1:254> with <error|status=><12|5|4>, opcode <int:0:9999>, len 0, vendor err <81|129> (<Send|Recv>)",),
        ("$host:$pid:$pid [$gpu] transport/net_ib.cc:<93|101> NCCL WARN NET/IB : Got async event : <port error|local catastrophic error>",),
        ("$host:$pid:$pid [$gpu] transport/net_ib.cc:154 NCCL WARN NET/IB : mlx5_<int:0:9>:1 async fatal event on QP (0x<hex:12>): <invalid request local work queue error|local work queue catastrophic error>",),
    ),
    "nccl_remote": _job(
        _NETWORK, _SRE,
        ("torch.distributed.DistBackendError: NCCL error in: /opt/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:<int:1000:2000>, remote process exited or there was a network error, NCCL version 2.1<4.3|8.1|9.3>", "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."),
    ),
    "job_ecc": _job(
        r"ECC", _SRE,
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered",),
        ("[rank$gpu]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",),
    ),
    "job_nvlink": _job(r"NVLink", _SRE, ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",)),
    "gpu_not_ready": _job(
        r"802|not yet initialized|fabric|CUDA|usable|GPU", _SRE,
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",),
        ("RuntimeError: No CUDA GPUs are available",),
        ("RuntimeError: CUDA error: no CUDA-capable device is detected",),
        ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",),
    ),
    "gpu_memory": _job(
        _MEMORY, _OWNER,
        ("[rank$gpu]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate <int:100:900>.00 MiB. GPU $gpu has a total capacity of 79.<int:10:99> GiB of which <int:10:99>.75 MiB is free.",),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate <int:1:9>.06 GiB",),
        ("W tensorflow/core/framework/op_kernel.cc:968] Resource exhausted: OOM when allocating tensor with shape[<int:10:256>,832,7,7]",),
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate <int:100000:999999> bytes.",),
    ),
    "slurm_memory": _job(
        _MEMORY, _OWNER,
        ("slurmstepd: error: Detected <int:1:9> oom_kill events in StepId=$n.0. Some of the step tasks have been OOM Killed.", "srun: error: $host: task <int:0:63>: Out Of Memory"),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=$n.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.",),
    ),
    "slurm_time_limit": _job(r"[Tt]ime limit|TIME LIMIT", _OWNER, ("slurmstepd: error: *** <JOB|STEP> $n.0 ON $host CANCELLED AT 2026-11-20T09:09:37 DUE TO TIME LIMIT ***",)),
    "slurm_node": _job(r"[Nn]ode", _SRE, ("slurmstepd: error: *** <JOB|STEP> $n.0 ON $host CANCELLED AT 2026-11-20T09:09:37 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",)),
    "disk_full": _job(
        r"quota|space|disk|storage", _SRE,
        ("OSError: [Errno 28] No space left on device",),
        ("OSError: [Errno 122] Disk quota exceeded",),
        ('safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })',),
    ),
    "rendezvous": _job(
        r"connect|rendezvous|c10d|TCPStore|peer", _SRE,
        ("[E socket.cpp:860] [c10d] The client socket has timed out after <int:60:900>s while trying to connect to $host:<int:20000:40000>",),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes",),
        ("torch.distributed.DistStoreError: Timed out after <int:60:900> seconds waiting for clients. <int:1:7>/8 clients joined.",),
    ),
    "shared_memory": _job(
        r"shared memory|[Bb]us error|shm", _OWNER,
        ("RuntimeError: DataLoader worker (pid $pid) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",),
        ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",),
    ),
    "gpu_code": _job(
        rf"illegal|assert|launch failure|GPU code|{_CRASH}", _OWNER,
        ("RuntimeError: CUDA error: <an illegal memory access was encountered|device-side assert triggered|unspecified launch failure|misaligned address>",),
        ("torch.AcceleratorError: CUDA error: an illegal instruction was encountered",),
    ),
    "server_engine": _job(
        rf"engine|{_CRASH}", _SRE,
        ("ERROR 10-27 08:12:01 [core_client.py:564] Engine core proc EngineCore_DP<int:0:7> died unexpectedly, shutting down client.",),
        ("(EngineCore_DP0 pid=$pid) ERROR 02-24 00:11:22 [core.py:<int:700:999>] EngineCore failed to start.",),
        ("(APIServer pid=1) ERROR 11-03 23:14 [async_llm.py:525] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",),
        ("[2026-08-08 09:09:09 TP<int:0:7>] Scheduler hit an exception: Traceback (most recent call last):", '  File "/sglang/srt/managers/scheduler.py", line 1825, in run_scheduler_process', "[2026-08-08 09:09:09] Received sigquit from a child process. It usually means the child failed."),
        ("terminate called after throwing an instance of 'std::<bad_alloc|runtime_error>'", "Signal (6) received."),
    ),
    "actor_died": _job(
        rf"actor|worker|node|heartbeat|{_CRASH}", _OWNER,
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",),
        ("ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.",),
        ("E external/xla/coordination_service.cc:954] /job:jax_worker/replica:0/task:<int:0:63> has been set to ERROR in coordination service: UNAVAILABLE: Task /job:jax_worker/replica:0/task:<int:0:63> heartbeat timeout. This indicates that the remote task has failed, got preempted, or crashed unexpectedly.",),
    ),
    "job_exception": _job(
        rf"exception|{_CRASH}", _OWNER,
        ("Traceback (most recent call last):", '  File "/work/train.py", line <int:10:900>, in <module>', "    main()", "<ValueError: too many values to unpack|KeyError: 'input_ids'|FileNotFoundError: [Errno 2] No such file or directory: 'data'|TypeError: forward() got an unexpected keyword argument 'labels'|AttributeError: 'NoneType' object has no attribute 'shape'|AssertionError: hidden_size must be divisible by num_heads|RuntimeError: The size of tensor a (1024) must match the size of tensor b (512) at non-singleton dimension 1|ZeroDivisionError: division by zero|NameError: name 'args' is not defined|OSError: [Errno 22] Invalid argument|PermissionError: [Errno 13] Permission denied: 'ckpt'|ImportError: cannot import name 'FusedAdam'|ModuleNotFoundError: No module named 'apex'|SyntaxError: invalid syntax|IndexError: list index out of range|argparse.ArgumentError: argument --lr: conflicting option string: --lr>"),
    ),
    "load_error": _job(
        rf"exception|{_CRASH}", _OWNER,
        ("Traceback (most recent call last):", "<RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:|OSError: Error no file named pytorch_model.bin found in directory ckpt|safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge>"),
        ("Traceback (most recent call last):", "<datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset|pyarrow.lib.ArrowInvalid: JSON parse error: Invalid value. in row 0>"),
    ),
    "loader_killed": _job(
        rf"loader|signal|exception|{_MEMORY}|{_CRASH}", _OWNER,
        ("Traceback (most recent call last):", "RuntimeError: DataLoader worker (pid $pid) is killed by signal: <Killed|Terminated|Segmentation fault>. "),
        ("Traceback (most recent call last):", "RuntimeError: DataLoader worker (pid(s) $pid) exited unexpectedly"),
    ),
    "service_connection": _job(
        rf"connect|exception|{_CRASH}", _OWNER,
        ("Traceback (most recent call last):", "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='<metrics.corp|api.wandb.ai|alerts.corp>', port=443): Max retries exceeded with url: /<graphql|report> (Caused by NewConnectionError('Failed to establish a new connection: [Errno <110|111|101>]'))"),
        ("Traceback (most recent call last):", "<ConnectionResetError: [Errno 104] Connection reset by peer|ConnectionRefusedError: [Errno 111] Connection refused|urllib3.exceptions.ProtocolError: ('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))>"),
    ),
    "launcher_exit": _job(
        rf"SIG|signal|{_CRASH}", _OWNER,
        ("[2026-11-25 10:10:10,123] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py'] exits with return code = <1|-9|-11>",),
        ("mpirun noticed that process rank <int:0:63> with PID 0 on node $host exited on signal <9 (Killed)|11 (Segmentation fault)|6 (Aborted)>.",),
        ("MPI_ABORT was invoked on rank <int:0:63> in communicator MPI_COMM_WORLD with errorcode <1|2>.",),
        ("/var/spool/slurmd/job$n/slurm_script: line <int:10:99>: $pid <Killed|Aborted>                  python3 main.py",),
    ),
    "server_start": _job(
        rf"engine|server|{_CRASH}", _SRE,
        ("2026-11-25T10:10:10.123456Z ERROR text_generation_launcher: Shard <int:0:7> failed to start",),
        ("error: creating server: Internal - failed to load all models",),
        ("[TensorRT-LLM][ERROR] Assertion failed: Invalid SM version (<int:70:90>)",),
        ("ERROR:    Application startup failed. Exiting.",),
    ),
    "library_exception": _job(
        rf"exception|{_CRASH}", _OWNER,
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: <int:200000:300000>, Hardware limit: 232448",),
        ("torch._dynamo.exc.Unsupported: Unsupported method call",),
        ("lightning_fabric.utilities.exceptions.MisconfigurationException: No supported gpu backend found!",),
    ),
    "fabric_network": _job(
        _NETWORK, _SRE,
        ("$host:$pid:$pid [$gpu] NCCL WARN NET/OFI Request 0x<hex:12> completed with error. RC: 113. Error: <int:1:20> (unresponsive receiver)",),
        ("[1729.<int:100:999>] [$host:$pid:0] UCX  ERROR ib_mlx5_log.c:179 Transport retry count exceeded on mlx5_<int:0:9>:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)",),
    ),
    "loss_scale": _job(
        rf"loss scale|overflow|{_NONFINITE}|{_CRASH}", _OWNER,
        ("[2026-06-07 22:24:46,260] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 2, reducing to 1", "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."),
        ("| WARNING: overflow detected, setting loss scale to: 0.0001220703125", "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate, using gradient clipping or increasing the batch size."),
        ("FloatingPointError: Loss became infinite or NaN at iteration=<int:10:9000>!",),
    ),
    "loss_not_finite": _figures(_NONFINITE, {"$loss": "nan"}, *(name for name in TRAINERS if name != "megatron")),
    "gradient_not_finite": _figures(_NONFINITE, {"$norm": "nan"}, *(name for name, line in TRAINERS.items() if "$norm" in line)),
    "loss_zero": _figures(_NONFINITE + r"|zero", {"$loss": "0.0"}, "hf"),
    # the exporter
    "xid_gauge": Kind(Channel.EXPORTER, r"Xid <code>", _SRE, (('DCGM_FI_DEV_XID_ERRORS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA H100",Hostname="$host"} <31|43|48|63|74|79|94|95|119>',),)),
    "xid_count": Kind(Channel.EXPORTER, r"Xid <code>", _SRE, (('DCGM_EXP_XID_ERRORS_COUNT{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA H100",Hostname="$host",window_size_in_ms="300000",xid="<31|43|48|63|74|79|94|95|119>"} <int:1:3>',),)),
}  # fmt: skip


def _kubernetes(words: str, paged: Paged, *wordings: Wording) -> Kind:
    return Kind(Channel.KUBERNETES, words, paged, wordings)


def _failed(reason: str, message: str) -> Wording:
    return event(reason, message), pod("Failed", {"reason": reason, "message": message})


def _waiting(reason: str, message: str, **container: Any) -> str:
    return pod("Pending", container={"state": {"waiting": {"reason": reason, "message": message}}, **container})


_REJECTED = "UnexpectedAdmissionError"
KUBERNETES: Mapping[str, Kind] = {
    "pod_rejected": _kubernetes(
        r"admi|reject|allocat|device plugin|GPU is lost|unhealthy", _SRE,
        _failed(_REJECTED, "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected"),
        _failed(_REJECTED, "Pod Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = Unable to retrieve list of available devices: error creating nvml.Device <int:0:7>: nvml: GPU is lost, which is unexpected"),
        _failed(_REJECTED, "Pod Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: <int:1:8>, Available: 0, which is unexpected"),
    ),
    "pod_evicted": _kubernetes(
        rf"evict|ephemeral|disk|storage|{_MEMORY}", _SRE,
        _failed("Evicted", "The node was low on resource: <ephemeral-storage|memory>. Container main was using <int:1000:99999>Ki, which exceeds its request of 0. "),
        _failed("Evicted", "The node had condition: [<DiskPressure|MemoryPressure>]. "),
    ),
    "node_not_ready": _kubernetes(r"[Nn]ode|NotReady|not ready|kubelet", _SRE, (condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."),), (condition("Ready", "False", "KubeletNotReady", "container runtime is down"),)),
    "node_condition": _kubernetes(
        r"therm|GPU|condition|[Dd]eadlock|kernel|[Nn]ode|file|NVLink|XID|Xid", _SRE,
        (condition("KernelDeadlock", "True", "DockerHung", "task docker:<int:1:9> blocked for more than <int:120:600> seconds."),),
        (condition("ReadonlyFilesystem", "True", "FilesystemIsReadOnly", "Remounting filesystem read-only"),),
        (condition("GpuThermalWatch", "True", "GpuThermalWatchIsNotHealthy", "ErrorCode:DCGM_FR_CLOCK_THROTTLE_THERMAL GPU:<int:0:7> Recommended Action=NONE;"),),
        (condition("AcceleratedHardwareReady", "False", "NvidiaXID<48|79|95>Error", "XID error detected on GPU <int:0:7>"),),
    ),
    "volume_mount": _kubernetes(r"mount|volume", _OWNER, (_waiting("ContainerCreating", ""), event("FailedMount", "MountVolume.SetUp failed for volume \"data\" : <mount failed: exit status 32|rpc error: code = Internal desc = timed out waiting for the condition>"))),
    "image_pull": _kubernetes(r"image|pull", _OWNER, (_waiting("<ImagePullBackOff|ErrImagePull>", 'Back-off pulling image "registry/train:<int:1:99>"'), event("Failed", 'Failed to pull image "registry/train": <not found|unauthorized>'))),
    "crash_loop": _kubernetes(
        rf"CrashLoop|restart|{_CRASH}|{_MEMORY}", _OWNER,
        (_waiting("CrashLoopBackOff", "back-off <40s|5m0s> restarting failed container", restartCount=6, lastState={"terminated": {"reason": "<OOMKilled|Error>", "exitCode": 137}}), event("BackOff", "Back-off restarting failed container main in pod $pod")),
    ),
}  # fmt: skip
ALL: Mapping[str, Kind] = {**KINDS, **KUBERNETES}


def _fill(text: str, choice: random.Random) -> str:
    def value(match: re.Match[str]) -> str:
        name, _, rest = match.group(1).partition(":")
        if name == "int":
            low, _, high = rest.partition(":")
            return str(choice.randrange(int(low), int(high) + 1))
        if name == "hex":
            return "".join(choice.choice("0123456789abcdef") for _ in range(int(rest)))
        return choice.choice(match.group(1).split("|"))

    return _DRAWN.sub(value, text)


def draw(name: str, seed: int) -> FieldReport:
    """A report of that kind. Raises KeyError for no kind."""
    kind, choice = ALL[name], random.Random(f"{name}:{seed}")
    number = choice.randrange(len(kind.wordings))
    lines = [_fill(line, choice) for line in kind.wordings[number]]
    lines += lines[-1:] * (kind.repeats - 1)
    before = ""
    if kind.channel is Channel.JOB:
        before = TRAINERS[kind.trainers[number] if kind.trainers else choice.choice(list(TRAINERS))]
    words = kind.words
    if "<code>" in words:
        xid = re.search(r'xid="(\d+)"', lines[0])
        words = words.replace("<code>", xid.group(1) if xid else lines[0].rpartition(" ")[2])
    form = {
        Channel.KERNEL: choice.choice(_FORMS if kind.program == "kernel" else _SYSLOG),
        Channel.JOB: Form.POD,
        Channel.EXPORTER: Form.PAGE,
    }.get(kind.channel, Form.API)
    return FieldReport(
        f"{name}#{seed}",
        kind.channel,
        tuple(lines),
        kind.paged is not _NOBODY,
        words,
        before,
        kind.program,
        form,
        kind.paged,
        name,
    )
