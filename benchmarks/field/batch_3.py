"""Public reports collected on 2026-11-26 by search for symptoms, before any of them was run.

The right answers were written down with them. Lines are the reporters', shortened; hosts, addresses and process
numbers are replaced by drawn ones. A title is the thread's or says what the thread is about. None is in batch 1 or 2.
"""

# ruff: noqa: E501 -- log lines are as long as they are
from __future__ import annotations

import json

from benchmarks.field.collected import CRASH, MEMORY, NETWORK, NONFINITE, STORAGE, Batch
from benchmarks.field.report import FieldReport, Form, Paged, condition, event, pod

_SRE, _OWNER, _NOBODY = Paged.SRE, Paged.OWNER, Paged.NOBODY
_HANG = r"hang|NCCL|collective|stuck|timeout|timed out|stall"

_REPORTS = Batch()
_kernel, _job, _page, _kubernetes = _REPORTS.kernel, _REPORTS.job, _REPORTS.page, _REPORTS.kubernetes


def _event_of(kind: str, api: str, reason: str, message: str, component: str, warning: bool = False) -> str:
    """An Event about a namespaced object that is not a Pod."""
    made = json.loads(event(reason, message, warning=warning, component=component))
    made["involvedObject"] |= {"kind": kind, "apiVersion": api}
    return json.dumps(made)


# the driver ------------------------------------------------------------------------------------------------------------
_kernel(
    "NVIDIA/open-gpu-kernel-modules#1146",
    "Xid 109 CTX SWITCH TIMEOUT",
    r"Xid 109|CTX|[Cc]ontext",
    _SRE,
    "NVRM: Xid (PCI:$pci): 109, pid=$pid, name=RenderThread, channel 0x0000000d, CTX SWITCH TIMEOUT, Info 0x14c011",
    form=Form.JOURNAL,
)
_kernel(
    "Bumblebee-Project/Bumblebee#677",
    "Xid 32 and 31 of an old driver",
    r"Xid 32|Xid 31|push",
    _SRE,
    "NVRM: Xid (PCI:$pci): 32, Channel ID 00000000 intr 00004000",
    "NVRM: Xid (PCI:$pci): 32, Channel ID 00000000 intr 00004000",
    "NVRM: Xid (PCI:$pci): 31, Ch 00000003, engmask 00000101, intr 10000000",
)
_kernel(
    "NVIDIA/open-gpu-kernel-modules#1045",
    "Xid 38 and 109 while the module loads",
    r"Xid 38|Xid 109|firmware|[Cc]ontext",
    _SRE,
    "NVRM: GPU at PCI:$pci: GPU-3a8d1b5e-6f7e-1c2b-9a0d-5d0f1e2c3b4a",
    "NVRM: Xid (PCI:$pci): 38, pid=$pid, name=modprobe, channel 0x00000003 0000c597 00000000 00000000",
    "NVRM: Xid (PCI:$pci): 109, pid=$pid, name=modprobe, channel 0x00000007, errorString CTX SWITCH TIMEOUT, Info 0x74007",
    "NVRM: Xid (PCI:$pci): 109, pid=$pid, name=modprobe, channel 0x00000006, errorString CTX SWITCH TIMEOUT, Info 0x64006",
    "NVRM: Xid (PCI:$pci): 109, pid=$pid, name=modprobe, channel 0x00000005, errorString CTX SWITCH TIMEOUT, Info 0x54005",
    form=Form.JOURNAL,
)
_kernel(
    "beclab/Olares#3963",
    "GPU already bound to NovaCore",
    r"driver|probe|bound|[Ii]nitiali|load",
    _SRE,
    "NVRM: GPU $pci.0 is already bound to NovaCore.",
    "NVRM: No NVIDIA devices probed.",
)
_kernel(
    "NVIDIA/open-gpu-kernel-modules#322",
    "V100 is not supported by the open module",
    r"driver|support|GSP|load|[Ii]nitiali",
    _SRE,
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 237",
    "NVRM: The NVIDIA GPU $pci.0 (PCI ID: 10de:1db5)\n               NVRM: installed in this system is not supported by open\n"
    "               NVRM: nvidia.ko because it does not include the required GPU\n               NVRM: System Processor (GSP).\n"
    "               NVRM: Please see the 'Open Linux Kernel Modules' and 'GSP\n               NVRM: Firmware' sections in the driver README, available on\n"
    "               NVRM: the Linux graphics driver download page at\n               NVRM: www.nvidia.com.",
)
_kernel(
    "Mellanox/nv_peer_memory#120",
    "nv_get_p2p_free_callback:127 ERROR detected invalid context (harmless, says NVIDIA)",
    "",
    _NOBODY,
    *["nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"]
    * 4,
)
_kernel(
    "NVIDIA/gpu-operator#492",
    "BAR1 is 0M in a virtual machine",
    r"BAR|PCI|probe|driver|[Ii]nitiali",
    _SRE,
    "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n               NVRM: BAR1 is 0M @ 0x0 (PCI:$pci.0)",
    "nvidia: probe of $pci.0 failed with error -1",
    "NVRM: The NVIDIA probe routine failed for 2 device(s).",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  510.108.03  Thu Oct 20 05:10:45 UTC 2022",
)
_kernel(
    "pop-os/pop#3996",
    "Oops in nvidia_uvm",
    r"Oops|kernel|[Pp]anic|BUG",
    _SRE,
    "Oops: Oops: 0010 [#1] SMP NOPTI",
    "RIP: 0010:0x1297961b1077",
    "Code: Unable to access opcode bytes at 0x1297961b104d.",
    "CR2: 00001297961b1077",
    form=Form.JOURNAL,
)
_kernel(
    "ublue-os/bazzite#2763",
    "rpcSendMessage failed with status 0x00000011",
    r"GSP|RPC|[Dd]river",
    _SRE,
    *["NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x00000011 for fn 76!"] * 6,
    form=Form.JOURNAL,
)
_kernel(
    "NVIDIA/nvtrust#124",
    "SXid 22013 on many links and RmInitAdapter failed",
    r"SXid 22013|NVSwitch|RmInitAdapter|[Ii]nitiali",
    _SRE,
    "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt",
    "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44 Sub-engine instance 00",
    "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002c, 0x0000002c, 0x00000000, 0x0000002c, 0x80005302, 0x00000000, 0x00000000, 0x00000000, 0x00000000}",
    "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 45 Minion Link DLREQ interrupt",
    "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 45 Sub-engine instance 00",
    "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 46 Minion Link DLREQ interrupt",
    "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 46 Sub-engine instance 00",
    "NVRM: RmInitAdapter: osInitNvMapping failed, bailing out of RmInitAdapter",
    "NVRM: GPU $pci.0: RmInitAdapter failed! (0x22:0x3f:744)",
)
_kernel(
    "fgci-org/ansible-role-cuda#19",
    "Persistence mode is deprecated",
    "",
    _NOBODY,
    "NVRM: Persistence mode is deprecated and will be removed in a future release. Please use nvidia-persistenced instead.",
)
_kernel(
    "NVIDIA/k8s-device-plugin#480",
    "the lines of a driver that loads well",
    "",
    _NOBODY,
    "nvidia: loading out-of-tree module taints kernel.",
    "nvidia: module license 'NVIDIA' taints kernel.",
    "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 239",
    "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  525.147.05  Wed Oct 25 20:21:31 UTC 2023",
)
_kernel(
    "NVIDIA/open-gpu-kernel-modules#688",
    "GPU lost from the bus on a DGX Station A100",
    r"lost|bus|fallen|not responding|GSP",
    _SRE,
    *[
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned from rmStatus @ kernel_ce_gv100.c:106",
        "NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x0000000f for fn 76!",
        "NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x0000000f for fn 76!",
    ]
    * 3,
)
_kernel(
    "akash-network/support#244",
    "Xid 43 of a provider's tenant",
    r"Xid 43",
    _OWNER,
    "NVRM: GPU at PCI:$pci: GPU-5ba1a0b8-4e1c-9d7e-8c34-9a6f0e2d7b15",
    "NVRM: GPU Board Serial Number: 1650722012345",
    "NVRM: Xid (PCI:$pci): 43, pid=$pid, name=pt_main_thread, Ch 00000008",
    "NVRM: Xid (PCI:$pci): 43, pid=$pid, name=pt_main_thread, Ch 00000009",
    form=Form.DMESG_T,
)
_kernel(
    "NVIDIA/open-gpu-kernel-modules#1229",
    "uncorrectable PCIe error, then Xid 31",
    r"PCIe|AER|[Bb]us error|Xid 31",
    _SRE,
    "pcieport 0000:00:01.2: AER: Uncorrectable (Non-Fatal) error received from $pci.0",
    "snd_hda_intel $pci.1: PCIe Bus Error: Uncorrectable (Non-Fatal), type=Transaction Layer",
    "  [14] CmpltTO (Completion Timeout, First)   [18] MalfTLP",
    "  TLP Header: 0xffffffff 0xffffffff 0xffffffff 0xffffffff",
    "nvidia $pci.0: AER: can't recover (no error_detected callback)",
    "pcieport 0000:62:00.0: AER: device recovery failed",
    "NVRM: Xid (PCI:$pci): 31, name=plasmashell, MMU Fault: ENGINE GR_HOST0 HUBCLIENT_ESC0 ... FAULT_PDE",
    form=Form.JOURNAL,
)
_kernel(
    "NVIDIA/nvtrust#54",
    "FSP command timed out",
    r"FSP|GSP|firmware|boot|[Ii]nitiali|driver",
    _SRE,
    "NVRM: kfspPollForResponse_IMPL: FSP command timed out",
    "NVRM: kfspSendBootCommands_GH100: Sent following content to FSP: ",
    "NVRM: kfspSendBootCommands_GH100: version=0x1, size=0x35c, gspFmcSysmemOffset=0x12b040000",
)
_kernel(
    "ROCm/legacy-rocm-build#3580",
    "ring gfx_0.0.0 timeout",
    r"GPU|reset|amdgpu|ring|[Tt]imeout",
    _SRE,
    "amdgpu 0000:0a:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1226573, emitted seq=1226575",
    "amdgpu 0000:0a:00.0: amdgpu: Process information: process plasmashell pid $pid thread plasmashel:cs0 pid $pid",
    "amdgpu 0000:0a:00.0: amdgpu: GPU reset begin!",
    "amdgpu 0000:0a:00.0: amdgpu: Failed to evict queue 3",
    "amdgpu: Failed to suspend process 0x8015",
    form=Form.JOURNAL,
)
# the host --------------------------------------------------------------------------------------------------------------
_kernel(
    "kubernetes/node-problem-detector#845",
    "XFS shuts down a file system",
    rf"{STORAGE}|XFS",
    _SRE,
    "XFS (dm-4): Internal error xfs_iunlink_remove at line 2038 of file fs/xfs/xfs_inode.c.  Caller xfs_ifree+0x33/0x130 [xfs]",
    "XFS (dm-4): Corruption detected. Unmount and run xfs_repair",
    "XFS (dm-4): xfs_inactive_ifree: xfs_ifree returned error -117",
    "XFS (dm-4): xfs_do_force_shutdown(0x1) called from line 1788 of file fs/xfs/xfs_inode.c.  Return address = 000000009d022bf1",
    "XFS (dm-4): I/O Error Detected. Shutting down filesystem",
    "XFS (dm-4): Please umount the filesystem and rectify the problem(s)",
)
_kernel(
    "mikeizbicki/ucr-cs100#404",
    "DRAM ECC errors of an AMD host in an hour",
    r"memory|DRAM|ECC|[Hh]ardware|machine check",
    _SRE,
    *[
        "[Hardware Error]: MC4 Error (node 3): DRAM ECC error detected on the NB.",
        "[Hardware Error]: Error Status: Corrected error, no action required.",
        "[Hardware Error]: CPU:18 (10:9:1) MC4_STATUS[Over|CE|MiscV|-|AddrV|CECC]: 0xdc5c410004080a13",
        "[Hardware Error]: MC4_ADDR: 0x0000001891a88210",
        "[Hardware Error]: cache level: L3/GEN, mem/io: MEM, mem-tx: RD, part-proc: RES (no timeout)",
    ]
    * 3,
)
_kernel(
    "NVIDIA/NVSentinel#1334",
    "mlx5 TX timeout and a soft lockup",
    r"NIC|mlx5|transmit|TX|lockup|network",
    _SRE,
    "mlx5_core 0000:a3:00.0 enp163s0: TX timeout detected",
    "watchdog: BUG: soft lockup - CPU#12 stuck for 22690s! [ksoftirqd/12:$pid]",
)
_kernel(
    "leptonai/gpud#348",
    "insufficient power on the PCIe slot",
    r"power|PCIe|NIC",
    _SRE,
    "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid $pid): Detected insufficient power on the PCIe slot (27W).",
)
_kernel(
    "opencomputeproject/OpenNetworkLinux#897",
    "DMAR: PTE Write access is not set",
    r"DMA|IOMMU",
    _SRE,
    "dmar_fault: 2474 callbacks suppressed",
    *[
        "DMAR: DRHD: handling fault status reg 2",
        "DMAR: [DMA Write] Request device [00:12.0] fault addr 0 [fault reason 05] PTE Write access is not set",
    ]
    * 4,
)
_kernel(
    "thesofproject/sof-test#749",
    "one DMAR fault of the display at boot (filtered as a false alarm)",
    "",
    _NOBODY,
    "DMAR: [DMA Read NO_PASID] Request device [0x00:0x02.0] fault addr 0x70a28000 [fault reason 0x0c] non-zero reserved fields in PTE",
)
_kernel(
    "openzfs/zfs#3031",
    "rcu_sched self-detected stall",
    r"RCU|rcu|stall|lockup|CPU",
    _SRE,
    "INFO: rcu_sched self-detected stall on CPU { 17}  (t=15001 jiffies g=310464443 c=310464442 q=0)",
    "sending NMI to all CPUs:",
    "NMI backtrace for cpu 17",
)
_kernel(
    "pcyin/tranX#41",
    "Out of memory: Killed process (python3)",
    MEMORY,
    _SRE,
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=python3,pid=$pid,uid=0",
    "Out of memory: Killed process $pid (python3) total-vm:53312244kB, anon-rss:31451456kB, file-rss:74816kB, shmem-rss:12296kB, UID:0 pgtables:69068kB oom_score_adj:0",
    "oom_reaper: reaped process $pid (python3), now anon-rss:0kB, file-rss:74732kB, shmem-rss:12296kB",
)
_kernel(
    "pyavitz/debian-image-builder#98",
    "gpu-thermal: critical temperature reached",
    r"[Tt]herm|temperature|shut",
    _SRE,
    "thermal thermal_zone0: gpu-thermal: critical temperature reached, shutting down",
    "reboot: HARDWARE PROTECTION shutdown (Temperature too high)",
)
_kernel(
    "versity/scoutfs#210",
    "perf: interrupt took too long",
    "",
    _NOBODY,
    "perf: interrupt took too long (2507 > 2500), lowering kernel.perf_event_max_sample_rate to 79000",
)
_kernel(
    "ROCm/legacy-rocm-build#2927",
    "one corrected PCIe error from APEI",
    "",
    _NOBODY,
    "{359}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 512",
    "{359}[Hardware Error]: It has been corrected by h/w and requires no further action",
    "{359}[Hardware Error]: event severity: corrected",
    "{359}[Hardware Error]:  Error 0, type: corrected",
    "{359}[Hardware Error]:   section_type: PCIe error",
    "{359}[Hardware Error]:   port_type: 4, root port",
)
_kernel(
    "matrixorigin/matrixone#20374",
    "multi-bit ECC error from APEI",
    r"memory|ECC|DIMM|[Hh]ardware",
    _SRE,
    "{7}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 4",
    "{7}[Hardware Error]: event severity: recoverable",
    "{7}[Hardware Error]:  Error 0, type: recoverable",
    "{7}[Hardware Error]:  fru_text: B2",
    "{7}[Hardware Error]:   section_type: memory error",
    "{7}[Hardware Error]:   error_status: Storage error in DRAM memory (0x0000000000000400)",
    "{7}[Hardware Error]:   physical_address: 0x000000276aeb0180",
    "{7}[Hardware Error]:   error_type: 3, multi-bit ECC",
)
_kernel(
    "longhorn/longhorn#2775",
    "Medium Error of a disk",
    rf"{STORAGE}|[Mm]edium|read error",
    _SRE,
    "sd 4:0:0:1: [sdc] tag#0 FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_SENSE",
    "sd 4:0:0:1: [sdc] tag#0 Sense Key : Medium Error [current] ",
    "sd 4:0:0:1: [sdc] tag#0 Add. Sense: Unrecovered read error",
    "sd 4:0:0:1: [sdc] tag#0 CDB: Read(10) 28 00 00 79 e4 00 00 00 08 00",
    "print_req_error: critical medium error, dev sdc, sector 7988224",
)
_kernel(
    "openucx/ucx#7738",
    "CREATE_DCT timeout. Will cause a leak of a command resource",
    r"NIC|mlx5|command|firmware|InfiniBand|network",
    _SRE,
    *[
        "mlx5_core 0000:61:00.0: wait_func_handle_exec_timeout:1104:(pid $pid): cmd[22]: CREATE_DCT(0x710) No done completion",
        "mlx5_core 0000:61:00.0: wait_func:1132:(pid $pid): CREATE_DCT(0x710) timeout. Will cause a leak of a command resource",
    ]
    * 3,
)
_kernel(
    "ceph/ceph#65325",
    "ceph: mds0 reconnect denied",
    rf"[Cc]eph|{STORAGE}",
    _SRE,
    "libceph: mds0 172.21.5.114:6812 socket closed (con state OPEN)",
    "libceph: mds0 172.21.5.114:6812 connection reset",
    "libceph: reset on mds0",
    "ceph: mds0 closed our session",
    "ceph: mds0 reconnect start",
    "ceph: mds0 reconnect denied",
    "ceph:  dropping dirty+flushing Fw state for ffff8802dc150518 1099935956631",
)
_kernel(
    "Joshua-Riek/ubuntu-rockchip#155",
    "nvme controller is down",
    STORAGE,
    _SRE,
    "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS read failed (134)",
    "blk_update_request: I/O error, dev nvme0n1, sector 500118016 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 0",
    "nvme 0004:41:00.0: can't change power state from D3cold to D0 (config space inaccessible)",
    "nvme nvme0: Removing after probe failure status: -19",
    "Buffer I/O error on dev nvme0n1, logical block 62514752, async page read",
)
# launchers and schedulers ----------------------------------------------------------------------------------------------
_HF = "{'loss': $loss, 'grad_norm': $norm, 'learning_rate': 2.04e-06, 'epoch': 0.01}"
_MEGATRON = " [2026-02-03 11:20:14] iteration $step/ 5000 | consumed samples: 3072 | elapsed time per iteration (ms): 1913.4 | learning rate: 1.000000E-05 | global batch size: 1024 | lm loss: ${loss}E+00 | loss scale: 1.0 | grad norm: $norm | number of skipped iterations: 0 | number of nan iterations: 0 |"

_job(
    "pytorch/pytorch#76287",
    "RendezvousConnectionError of the keep-alive heartbeat",
    r"[Rr]endezvous|[Nn]ode|heartbeat|connect",
    _SRE,
    *[
        "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node '${host}_${pid}_0' has failed to send a keep-alive heartbeat to the rendezvous 'none' due to an error of type RendezvousConnectionError."
    ]
    * 4,
    before=_HF,
)
_job(
    "GanjinZero/RRHF#35",
    "SignalException: got signal: 1 after the terminal closed",
    rf"[Ss]ignal|SIGHUP|{CRASH}",
    _OWNER,
    "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers",
    "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process $pid closing signal SIGHUP",
    "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process $pid closing signal SIGHUP",
    "Traceback (most recent call last):",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process $pid got signal: 1",
    before="{'loss': $loss, 'learning_rate': 0.0002931, 'epoch': 0.24}",
)
_job(
    "MCG-NJU/RTD-Action#31",
    "the owner stops a job from the keyboard",
    "",
    _NOBODY,
    "WARNING:torch.distributed.elastic.agent.server.api:Received 2 death signal, shutting down workers",
    "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process $pid closing signal SIGINT",
)
_job(
    "ArjunaCluster/ArjunaUsers#46",
    "execve(): slurm_script: No such file or directory",
    rf"[Ss]lurm|script|{CRASH}|[Nn]ode",
    _SRE,
    "slurmstepd: error: execve(): /tmp/slurmd/job00089/slurm_script: No such file or directory",
)
_job(
    "c3nl-neuraldynamics/c3nl_cluster#61",
    "Job credential expired",
    rf"launch|credential|[Ss]lurm|[Nn]ode|{CRASH}",
    _SRE,
    "srun: error: Task launch for $n.0 failed on node $host: Job credential expired",
    "srun: error: Application launch failed: Job credential expired",
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
)
_job(
    "SystemsGenetics/GEMmaker#242",
    "CANCELLED DUE TO PREEMPTION (the scheduler does its work)",
    "",
    _NOBODY,
    "slurmstepd: error: *** JOB $n ON $host CANCELLED AT 2021-06-18T13:05:36 DUE TO PREEMPTION ***",
)
_job(
    "nebius/soperator#854",
    "salloc: error: Node failure",
    r"[Nn]ode",
    _SRE,
    "salloc: error: Node failure on $host",
)
_job(
    "deepspeedai/DeepSpeedExamples#626",
    "exits with return code = -11",
    rf"SIGSEGV|signal 11|[Ss]egmentation|{CRASH}",
    _OWNER,
    "[2023-07-10 04:26:05,876] [INFO] [launch.py:318:sigkill_handler] Killing subprocess $pid",
    "[2023-07-10 04:26:05,877] [INFO] [launch.py:318:sigkill_handler] Killing subprocess $pid",
    "[2023-07-10 04:26:35,999] [ERROR] [launch.py:324:sigkill_handler] ['/opt/conda/bin/python3.10', '-u', 'trainCLM.py', '--local_rank=1', '--deepspeed', 'ds_config.json'] exits with return code = -11",
    before=_HF,
)
_job(
    "deepspeedai/DeepSpeed#3232",
    "exits with return code = -9",
    rf"SIGKILL|signal 9|{MEMORY}|{CRASH}",
    _OWNER,
    "[2023-04-14 03:22:27,921] [INFO] [launch.py:428:sigkill_handler] Killing subprocess $pid",
    "[2023-04-14 03:22:31,245] [ERROR] [launch.py:434:sigkill_handler] ['/opt/conda/bin/python', '-u', 'main.py', '--local_rank=0', '--data_split', '2,4,4'] exits with return code = -9",
)
_job(
    "InternLandMark/LandMark#65",
    "the progress bar ends with Killed",
    rf"[Kk]illed|{MEMORY}|SIGKILL|{CRASH}",
    _OWNER,
    " 31%|███████████▊                          | 331/1063 [01:06<03:59,  3.06it/s]Killed",
)
_job(
    "SeanNaren/deepspeech.pytorch#172",
    "segmentation fault of train.py",
    rf"[Ss]egmentation|SIGSEGV|signal 11|{CRASH}",
    _OWNER,
    "[1]    $pid segmentation fault  python train.py --train_manifest  --val_manifest  --batch_size 64 --cuda",
    before="Epoch: [1][$step/1422]    Time 0.617 (0.398)      Data 0.021 (0.014)      Loss $loss (126.3911)",
)
# collectives -----------------------------------------------------------------------------------------------------------
_job(
    "NVIDIA/nccl#1562",
    "transport/nvls.cc Cuda failure 1 'invalid argument'",
    r"NCCL|NVLS|[Ff]abric|CUDA",
    _SRE,
    "$host:78367:78492 [0] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'",
    "$host:78367:78492 [0] NCCL INFO transport/nvls.cc:394 -> 1",
)
_job(
    "daydreamlive/scope#749",
    "Invalid access of peer GPU memory over NVLink or a hardware error",
    r"NVLink|nvlink|hardware|peer",
    _SRE,
    "scope.server.pipeline_processor - ERROR - Error processing chunk for longlive: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
    "torch.AcceleratorError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
)
_job(
    "pytorch/pytorch#85604",
    "The server socket has failed to listen (Address already in use)",
    rf"port|address|socket|c10d|[Rr]endezvous|connect|{CRASH}",
    _OWNER,
    "[W socket.cpp:401] [c10d] The server socket has failed to listen on [::]:47531 (errno: 98 - Address already in use).",
    "[W socket.cpp:401] [c10d] The server socket has failed to bind to 0.0.0.0:47531 (errno: 98 - Address already in use).",
    "[E socket.cpp:435] [c10d] The server socket has failed to listen on any local network address.",
    "Traceback (most recent call last):",
    "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to listen on [::]:47531 (errno: 98 - Address already in use). The server socket has failed to bind to 0.0.0.0:47531 (errno: 98 - Address already in use).",
)
_job(
    "pytorch/pytorch#152780",
    "enqueue.cc Cuda failure 700",
    rf"illegal memory|NCCL|CUDA|{CRASH}",
    _OWNER,
    "[2025-05-04 23:32:59] $host:940929:940929 [1] enqueue.cc:1556 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
    "$host:940929:940929 [1] NCCL INFO group.cc:241 -> 1",
    "terminate called after throwing an instance of 'c10::Error'",
    "  what():  CUDA error: an illegal memory access was encountered",
)
_job(
    "ray-project/ray_lightning#24",
    "failed to open CUDA IPC handle: peer access is not supported",
    rf"{NETWORK}|CUDA",
    _SRE,
    "(pid=$pid) $host:909608:910337 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported between these two devices",
    "(pid=$pid) RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:784, unhandled cuda error, NCCL version 2.7.8",
)
_job(
    "NVIDIA/nccl#352",
    "NCCL starts without InfiniBand and without a plugin",
    "",
    _NOBODY,
    "$host:17754:17754 [0] NCCL INFO Bootstrap : Using [0]lo:127.0.0.1<0>",
    "$host:17754:17754 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so).",
    "$host:17754:17754 [0] NCCL INFO NET/IB : No device found.",
    "$host:17754:17754 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>",
    "NCCL version 2.4.8+cuda10.1",
    *["step $step | loss $loss"] * 6,
)
_job(
    "OpenRLHF/OpenRLHF#1126",
    "flight recorder dump signal due to a collective timeout",
    _HANG,
    _SRE,
    "[rank5]:[E901 05:20:03.110823792 ProcessGroupNCCL.cpp:1685] [PG ID 0 PG GUID 0(default_pg) Rank 5] Observed flight recorder dump signal from another rank via TCPStore.",
    "[rank5]:[E901 05:20:03.110956967 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank 5] Received a dump signal due to a collective timeout from  rank 34 and we will try our best to dump the debug info. Last enqueued NCCL work: 460631, last completed NCCL work: 460630.This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order of collectives is not same for all ranks or the scheduled collective, for some reason, didn't run.",
)
_job(
    "horovod/horovod#1012",
    "Stalled ops: missing ranks",
    rf"{_HANG}|[Ss]tall|deadlock|\brank",
    _SRE,
    "[1,0]<stderr>:[2019-04-13 13:56:31.861697: W horovod/common/operations.cc:588] One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds. This may indicate that different ranks are trying to submit different tensors or that only subset of ranks is submitting tensors, which will cause deadlock. ",
    "[1,0]<stderr>:Stalled ops:HorovodBroadcast_dense_1_bias_0 [missing ranks: 1]",
    "[1,0]<stderr>:[2019-04-13 13:56:31.861761: W horovod/common/operations.cc:588] HorovodBroadcast_dense_1_kernel_0 [missing ranks: 1]",
)
_job(
    "jax-ml/jax#20055",
    "tried to connect with a different incarnation",
    rf"task|worker|restart|[Cc]oordination|{CRASH}",
    _SRE,
    "/job:jax_worker/replica:0/task:11 unexpectedly tried to connect with a different incarnation. It has likely restarted.",
)
# the device ------------------------------------------------------------------------------------------------------------
_job(
    "local-inference-lab/rtx6kpro#8",
    "CUDA driver initialization failed",
    r"CUDA|driver|GPU",
    _SRE,
    "Traceback (most recent call last):",
    "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
)
_job(
    "NVIDIA/nvidia-docker#1671",
    "Failed to initialize NVML: Unknown Error",
    r"NVML|GPU|driver|access",
    _SRE,
    "Failed to initialize NVML: Unknown Error",
)
_job(
    "pytorch/pytorch#124262",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    rf"CUBLAS|cuBLAS|CUDA|{CRASH}",
    _OWNER,
    "Traceback (most recent call last):",
    "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k, &falpha, a, CUDA_R_16BF, lda, b, CUDA_R_16BF, ldb, &fbeta, c, CUDA_R_16BF, ldc, CUDA_R_32F, CUBLAS_GEMM_DEFAULT_TENSOR_OP)`",
    before=_HF,
)
_job(
    "google-deepmind/jaxline#11",
    "RESOURCE_EXHAUSTED",
    rf"{MEMORY}|RESOURCE_EXHAUSTED",
    _OWNER,
    "Traceback (most recent call last):",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 285212672 bytes.",
)
# memory of the host, data, files ---------------------------------------------------------------------------------------
_job(
    "ray-project/ray#28776",
    "Task was killed due to the node running low on memory",
    MEMORY,
    _OWNER,
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    "Memory on the node (IP: 172.31.66.214, ID: 5d4a8f0b2f1c) where the task was running was 54.86GB / 57.60GB (0.952354), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: 2c1e0f7a9b3d) because it was the most recently scheduled task; to see more information about memory usage on this node, use `ray logs raylet.out -ip 172.31.66.214`.",
)
_job(
    "hiyouga/EasyR1#185",
    "Workers killed due to memory pressure",
    MEMORY,
    _OWNER,
    "(raylet) [2025-04-02 15:02:00,117 E $pid $pid] (raylet) node_manager.cc:3069: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 9b6f0d7e1a2c, IP: 172.17.0.4) over the last time period. To see more information about the Workers killed on this node, use `ray logs raylet.out -ip 172.17.0.4`",
)
_job(
    "ge-xing/Diff-UNet#23",
    "DataLoader worker is killed by signal: Killed",
    rf"DataLoader|data.?loader|killed|{MEMORY}",
    _OWNER,
    "Traceback (most recent call last):",
    "RuntimeError: DataLoader worker (pid $pid) is killed by signal: Killed. ",
)
_job(
    "apache/mxnet#18224",
    "Worker timed out after 120 seconds",
    rf"data|loader|timed out|[Tt]imeout|shared memory|{CRASH}",
    _OWNER,
    "Worker timed out after 120 seconds. This might be caused by ",
    "            - Slow transform. Please increase timeout to allow slower data loading in each worker.",
    "            - Insufficient shared_memory if `timeout` is large enough.",
    "            Please consider reduce `num_workers` or increase shared_memory in system.",
    "Traceback (most recent call last):",
    "multiprocessing.context.TimeoutError",
)
_job(
    "huggingface/datasets#5053",
    "Failed to read file: JSON parse error",
    rf"data|JSON|read|parse|{CRASH}",
    _OWNER,
    "Failed to read file 'zstd://12.jsonl::https://the-eye.eu/public/AI/pile/train/12.jsonl.zst' with error <class 'pyarrow.lib.ArrowInvalid'>: JSON parse error: Invalid value. in row 0",
    "Traceback (most recent call last):",
    '  File "ddp_script.py", line 1258, in <module>',
)
_job(
    "allenai/OLMo#550",
    "429 Client Error of the model hub",
    rf"429|Too Many|[Hh]ub|rate|{CRASH}",
    _OWNER,
    "[2024-04-18 15:55:06] CRITICAL [olmo.util:158, rank=6] Uncaught HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/datasets/glue/paths-info/bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c",
)
_job(
    "huggingface/transformers#9732",
    "Stale file handle while a checkpoint is written",
    rf"[Ss]tale|NFS|{STORAGE}",
    _SRE,
    "Traceback (most recent call last):",
    '    torch.save(self.optimizer.state_dict(), os.path.join(output_dir, "optimizer.pt"))',
    "OSError: [Errno 116] Stale file handle",
    before="{'loss': $loss, 'learning_rate': 4.5e-05, 'epoch': 0.31}",
)
_job(
    "MIC-DKFZ/nnUNet#1784",
    "Input/output error of the data set's folder",
    rf"{STORAGE}|Input/output",
    _SRE,
    "Traceback (most recent call last):",
    "OSError: [Errno 5] Input/output error: '/media/project/nnUNet/nnUNet_preprocessed/Dataset041_Pelvis/nnUNetPlans_3d_fullres/case_112.pkl'",
    "OSError: [Errno 5] Input/output error: '/media/project/nnUNet/nnUNet_preprocessed/Dataset041_Pelvis/nnUNetPlans_3d_fullres/case_207.pkl'",
)
_job(
    "hiyouga/LLaMA-Factory#6208",
    "failed reading zip archive of a checkpoint",
    rf"[Cc]heckpoint|archive|corrupt|{CRASH}",
    _OWNER,
    "Traceback (most recent call last):",
    '    state_dict = torch.load("saves/checkpoint-500/global_step500/mp_rank_00_model_states.pt", map_location="cpu")',
    "RuntimeError: PytorchStreamReader failed reading zip archive: not a ZIP archive",
)
_job(
    "lucidrains/unet-stylegan2#12",
    "size mismatch while a checkpoint is loaded",
    rf"state_dict|[Cc]heckpoint|mismatch|{CRASH}",
    _OWNER,
    "Traceback (most recent call last):",
    "RuntimeError: Error(s) in loading state_dict for StyleGAN2:",
    "\tsize mismatch for D.down_blocks.0.conv_res.weight: copying a param with shape torch.Size([32, 3, 1, 1]) from checkpoint, the shape in current model is torch.Size([16, 3, 1, 1]).",
)
_job(
    "bghira/SimpleTuner#1880",
    "CheckpointException of all ranks",
    rf"[Cc]heckpoint|{CRASH}",
    _OWNER,
    "2025-10-31 03:11:02,473 - SimpleTuner - INFO - [rank7]: Traceback (most recent call last): (RANK 0)",
    "2025-10-31 03:11:02,473 - SimpleTuner - INFO - [rank7]:     assert metadata is not None",
    "2025-10-31 03:11:02,474 - SimpleTuner - INFO - [rank7]: AssertionError",
    "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1, 2, 3, 4, 5, 6, 7])",
)
# numbers that are not finite -------------------------------------------------------------------------------------------
_job(
    "NVIDIA/Megatron-LM#5026",
    "rerun_state_machine: Unexpected result nan",
    NONFINITE,
    _OWNER,
    "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 3 at iteration #3 invocation #2 (message='found NaN in local grad norm for bucket #0 in backward pass before data-parallel communication collective')",
    "ERROR:megatron.core.rerun_state_machine:Rank 3, node $host, device 3, iteration #3: First rerun: unexpected result is reproducible within the tolerance (nan = nan). Need to rerun on a different GPU to verify correctness.",
)
_job(
    "alibaba/Pai-Megatron-Patch#366",
    "found NaN in local grad norm",
    rf"{NONFINITE}|{CRASH}",
    _OWNER,
    "Traceback (most recent call last):",
    "AssertionError: Rank 11: found NaN in local grad norm in backward pass before data-parallel communication collective. Device: 3, node: $host",
    before=_MEGATRON,
)
_job(
    "ultralytics/yolov5#673",
    "WARNING: non-finite loss, ending training",
    NONFINITE,
    _OWNER,
    "    16/999     7.38G   0.03433   0.01034         0   0.04467        13       640WARNING: non-finite loss, ending training  tensor([nan, nan, nan, nan], device='cuda:0')",
)
_job(
    "huggingface/trl#3452",
    "GRPO prints a loss of 0.0 (as it should)",
    "",
    _NOBODY,
    *[
        "{'loss': 0.0, 'grad_norm': $norm, 'learning_rate': 6.9e-06, 'completion_length': 232.825, 'rewards/format_reward2': 1.0, 'rewards/hint_reward': 0.717, 'reward': 1.717, 'reward_std': 0.570, 'kl': 0.00054, 'epoch': 0.31}"
    ]
    * 12,
)
# engines of inference, warnings, steps that go well --------------------------------------------------------------------
_BLOCK = "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache quantization)."
_job(
    "vllm-project/vllm#37250",
    "sample_tokens timed out and EngineDeadError",
    rf"[Ee]ngine|{_HANG}|{CRASH}",
    _OWNER,
    *[f"(EngineCore_DP0 pid=$pid) INFO 03-08 17:27:28 [shm_broadcast.py:548] {_BLOCK}"] * 5,
    "(EngineCore_DP0 pid=$pid) ERROR 03-08 17:32:28 [core.py:1100] TimeoutError: RPC call to sample_tokens timed out.",
    "(APIServer pid=$pid) ERROR 03-08 17:32:28 [async_llm.py:708] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
)
_job(
    "gpustack/gpustack#3888",
    "No available shared memory broadcast block while a model loads",
    "",
    _NOBODY,
    *[
        f"(EngineCore_DP0 pid=$pid) INFO 12-09 02:41:10 [shm_broadcast.py:466] {_BLOCK.replace(', weight/kv cache quantization', '')}"
    ]
    * 2,
)
_job(
    "sgl-project/sglang#3752",
    "Watchdog timeout of all ranks",
    rf"[Ww]atchdog|{_HANG}|{CRASH}",
    _SRE,
    "[2025-03-09 00:57:15 TP4] Watchdog timeout (self.watchdog_timeout=300)",
    "[2025-03-09 00:57:15 TP0] Watchdog timeout (self.watchdog_timeout=300)",
    "[2025-03-09 00:57:15 TP6] Watchdog timeout (self.watchdog_timeout=300)",
    "[2025-03-09 00:57:15 TP1] Watchdog timeout (self.watchdog_timeout=300)",
    "[2025-03-09 00:57:20] Received sigquit from a child proces. It usually means the child failed.",
    "Killed",
)
_job(
    "NVlabs/OmniDrive#13",
    "Token indices sequence length is longer than the maximum",
    "",
    _NOBODY,
    *["{'loss': $loss, 'grad_norm': $norm, 'learning_rate': 2.04e-06, 'epoch': 0.01}"] * 3,
    "Token indices sequence length is longer than the specified maximum sequence length for this model (2409 > 2048). Running this sequence through the model will result in indexing errors",
    *["{'loss': $loss, 'grad_norm': $norm, 'learning_rate': 2.04e-06, 'epoch': 0.02}"] * 3,
)
_job(
    "open-mmlab/mmpretrain#1632",
    "steps that go well, with an estimate of days",
    "",
    _NOBODY,
    *[
        "2023/06/09 22:53:31 - mmengine - INFO - Epoch(train) [156][$step/351]  lr: 2.3675e-03  eta: 5 days, 23:17:30  time: 1.0139  data_time: 0.0039  memory: 48596  loss: $loss"
    ]
    * 20,
)
# the exporter ----------------------------------------------------------------------------------------------------------
_page(
    "NVIDIA/NVSentinel#1666",
    "clocks event reason of the power brake",
    r"[Pp]ower|brake|[Tt]hrottl|slowdown|clock",
    _SRE,
    'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA GB200",Hostname="$host"} 128',
)
_page(
    "NVIDIA/dcgm-exporter#254",
    "clocks slowed down for heat by hardware and software",
    r"[Tt]herm|[Tt]hrottl|slowdown|temperature",
    _SRE,
    'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA T400 4GB",Hostname="$host"} 96',
    'DCGM_FI_EXP_CLOCK_THROTTLE_REASONS_COUNT{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA T400 4GB",Hostname="$host",DCGM_FI_DRIVER_VERSION="545.29.02",throttle_reason="sw_thermal",window_size_in_ms="300000"} 1',
    'DCGM_FI_EXP_CLOCK_THROTTLE_REASONS_COUNT{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA T400 4GB",Hostname="$host",DCGM_FI_DRIVER_VERSION="545.29.02",throttle_reason="hw_thermal",window_size_in_ms="300000"} 1',
)
_page(
    "NVIDIA/gpu-monitoring-tools#97",
    "memory temperature that the GPU does not have",
    "",
    _NOBODY,
    'DCGM_FI_DEV_MEMORY_TEMP{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="Tesla T4",Hostname="$host"} 9223372036854776000',
)
_page(
    "NVIDIA/dcgm-exporter#581",
    "link fields of a healthy GB200",
    "",
    _NOBODY,
    'DCGM_FI_DEV_C2C_LINK_STATUS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA GB200",Hostname="$host"} 1',
    'DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA GB200",Hostname="$host"} 0',
    'DCGM_FI_DEV_NVLINK_COUNT_TX_DISCARDS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA GB200",Hostname="$host"} 0',
)
_page(
    "NVIDIA/dcgm-exporter#95",
    "DCGM_FI_DEV_XID_ERRORS 43",
    r"Xid 43",
    _OWNER,
    'DCGM_FI_DEV_XID_ERRORS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",Hostname="$host"} 43',
)
_page(
    "aws/eks-node-monitoring-agent#245",
    "row remapping failed",
    r"[Rr]emap|memory|ECC|\brow",
    _SRE,
    'DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="$host"} 1',
)
# Kubernetes ------------------------------------------------------------------------------------------------------------
_kubernetes(
    "NVIDIA/gpu-operator#730",
    'no runtime for "nvidia" is configured',
    r"sandbox|runtime|nvidia",
    _SRE,
    pod("Pending", container={"state": {"waiting": {"reason": "ContainerCreating"}}}),
    event(
        "FailedCreatePodSandBox",
        'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "nvidia" is configured',
    ),
)
_kubernetes(
    "NVIDIA/nvidia-container-toolkit#223",
    "nvidia-container-cli: device error: unknown device",
    r"container|start|device|nvidia",
    _SRE,
    pod("Pending", container={"state": {"waiting": {"reason": "RunContainerError"}}}),
    event(
        "Failed",
        "Error: failed to start container \"binpack-2\": Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: error running hook #0: error running hook: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy' nvidia-container-cli: device error: no-gpu-has-128MiB-to-run: unknown device: unknown",
    ),
)
_kubernetes(
    "kubernetes-sigs/kueue#2376",
    "a workload waits, then is admitted",
    "",
    _NOBODY,
    _event_of(
        "Workload",
        "kueue.x-k8s.io/v1beta1",
        "Pending",
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor on-demand, 1 more needed. Pending the preemption of 1 workload(s)",
        "kueue-admission",
    ),
    _event_of(
        "Workload",
        "kueue.x-k8s.io/v1beta1",
        "QuotaReserved",
        "Quota reserved in ClusterQueue cluster-queue, wait time since queued was 1s",
        "kueue-admission",
    ),
    _event_of(
        "Workload",
        "kueue.x-k8s.io/v1beta1",
        "Admitted",
        "Admitted by ClusterQueue cluster-queue, wait time since reservation was 0s",
        "kueue-admission",
    ),
)
_kubernetes(
    "volcano-sh/volcano#520",
    "a gang waits for room",
    "",
    _NOBODY,
    pod("Pending"),
    event(
        "FailedScheduling",
        "10/6 tasks in gang unschedulable: pod group is not ready, 10 minAvailable, 6 Pending.",
        component="volcano",
    ),
)
_kubernetes(
    "ray-project/kuberay#3799",
    "readiness and liveness probes of a Ray worker fail for hours",
    r"[Pp]robe|[Uu]nhealthy|not ready|[Rr]eadiness|[Ll]iveness",
    _OWNER,
    pod("Running", container={"ready": False, "state": {"running": {"startedAt": "2026-11-25T00:00:00Z"}}}),
    json.dumps(json.loads(event("Unhealthy", "Readiness probe failed: ")) | {"count": 476}),
    json.dumps(json.loads(event("Unhealthy", "Liveness probe failed: ")) | {"count": 749}),
)
_kubernetes(
    "ray-project/kuberay#3897",
    "the head pod restarts without end",
    r"CrashLoop|restart|[Bb]ack-?off",
    _OWNER,
    pod(
        "Running",
        container={
            "restartCount": 938,
            "state": {
                "waiting": {
                    "reason": "CrashLoopBackOff",
                    "message": "back-off 5m0s restarting failed container=ray-head pod=${pod}_ml(uid-$pod)",
                }
            },
        },
    ),
    event("BackOff", "Back-off restarting failed container ray-head in pod $pod"),
)
_kubernetes(
    "llmos-ai/llmos#21",
    "Failed to garbage collect required amount of images",
    r"disk|image|garbage|space|storage",
    _SRE,
    event(
        "FreeDiskSpaceFailed",
        "Failed to garbage collect required amount of images. Attempted to free 4783028633 bytes, but only found 0 bytes eligible to free.",
        kind="Node",
    ),
    event(
        "ImageGCFailed",
        "Failed to garbage collect required amount of images. Attempted to free 4783028633 bytes, but only found 0 bytes eligible to free.",
        kind="Node",
    ),
)
_kubernetes(
    "kubernetes/kubernetes#93711",
    "kubelet has disk pressure",
    r"disk|DiskPressure|storage",
    _SRE,
    condition("DiskPressure", "True", "KubeletHasDiskPressure", "kubelet has disk pressure"),
)
_kubernetes(
    "aws/eks-node-monitoring-agent#266",
    "AcceleratedHardwareReady False: DCGMError",
    r"[Aa]ccelerated|DCGM|hardware|condition|GPU",
    _SRE,
    condition(
        "AcceleratedHardwareReady",
        "False",
        "DCGMError",
        "failed to initialize DCGM: Error connecting to nv-hostengine: Host engine connection invalid/disconnected",
    ),
)
_kubernetes(
    "Azure/AgentBaker#8797",
    "XIDError is not present",
    "",
    _NOBODY,
    condition("XIDError", "False", "XIDErrorIsNotPresent", "XID error status is good"),
)
_kubernetes(
    "kubernetes-sigs/karpenter#651",
    "DisruptionBlocked",
    "",
    _NOBODY,
    event(
        "DisruptionBlocked",
        'Cannot disrupt Node: Pod "ml/$pod" has "karpenter.sh/do-not-disrupt" annotation',
        kind="Node",
        warning=False,
        component="karpenter",
    ),
)
_kubernetes(
    "kubernetes/kubernetes#96142",
    "Multi-Attach error that passes by itself",
    "",
    _NOBODY,
    event(
        "FailedAttachVolume",
        'Multi-Attach error for volume "pvc-0d2a6c51" Volume is already exclusively attached to one node and can\'t be attached to another',
        component="attachdetach-controller",
    ),
    event(
        "SuccessfulAttachVolume",
        'AttachVolume.Attach succeeded for volume "pvc-0d2a6c51"',
        warning=False,
        component="attachdetach-controller",
    ),
    event("Started", "Started container main", warning=False),
    pod("Running", container={"ready": True, "state": {"running": {"startedAt": "2026-11-25T00:00:00Z"}}}),
)
_kubernetes(
    "kubeflow/trainer#2044",
    "PyTorchJobRestarting",
    rf"[Rr]estart|{CRASH}",
    _OWNER,
    pod(
        "Failed",
        container={"state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "exit status 1"}}},
    ),
    _event_of(
        "PyTorchJob",
        "kubeflow.org/v1",
        "PyTorchJobRestarting",
        "PyTorchJob kfto-01 is restarting because 1 Master replica(s) failed.",
        "pytorchjob-controller",
        warning=True,
    ),
    _event_of(
        "PyTorchJob",
        "kubeflow.org/v1",
        "ExitedWithCode",
        "Pod: ml.$pod exited with code 1",
        "pytorchjob-controller",
    ),
)

BATCH: tuple[FieldReport, ...] = tuple(_REPORTS.reports)
