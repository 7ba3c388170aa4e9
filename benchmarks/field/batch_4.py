"""Public reports collected on 2026-11-26 by search for symptoms, before any of them was run.

The right answers were written down with them. Lines are the reporters', shortened; hosts, addresses and process
numbers are replaced by drawn ones. A title is the thread's or says what the thread is about. None is in batch 1, 2 or 3.
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
    "Bumblebee-Project/Bumblebee#554",
    "GPU has fallen off the bus, with no Xid",
    r"fallen|bus|lost|not responding",
    _SRE,
    *[
        "NVRM: GPU at $pci.0 has fallen off the bus.",
        "NVRM: os_pci_init_handle: invalid context!",
        "NVRM: os_pci_init_handle: invalid context!",
    ]
    * 2,
    form=Form.DMESG,
)
_kernel(
    "leptonai/gpud#1160",
    "Xid 144 non-fatal, then 149 fatal",
    r"Xid 149|NVLink",
    _SRE,
    "NVRM: Xid (PCI:$pci): 144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 0x00000000 0x00000000 0x00000000 0x00000000)",
    "NVRM: Xid (PCI:$pci): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
)
_kernel(
    "NVIDIA/nccl#2241",
    "Xid 145 and 137 on a B200 whose collectives hang",
    r"Xid 145|Xid 137|NVLink",
    _SRE,
    "NVRM: GPU1 kbifCacheVFInfo_GB100: Unable to read NV_PF0_INITIAL_AND_TOTAL_VFS",
    "NVRM: Xid (PCI:$pci): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
    "NVRM: Xid (PCI:$pci): 137, RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error",
    form=Form.JOURNAL,
)
_kernel(
    "NVIDIA/open-gpu-kernel-modules#446",
    "Timeout waiting for RPC from GSP",
    r"Xid 119|GSP",
    _SRE,
    "NVRM: Xid (PCI:$pci): 119, pid=$pid, name=nvidia-smi, Timeout waiting for RPC from GSP! Expected function 103 (GSP_RM_ALLOC) (0x80 0x38).",
    "NVRM: Xid (PCI:$pci): 119, pid=$pid, name=nvidia-smi, Timeout waiting for RPC from GSP! Expected function 103 (GSP_RM_ALLOC) (0x2080 0x4).",
    "NVRM: Xid (PCI:$pci): 119, pid=$pid, name=nvidia-smi, Timeout waiting for RPC from GSP! Expected function 76 (GSP_RM_CONTROL) (0x20800110 0x84).",
    form=Form.DMESG_T,
)
_kernel(
    "stackhpc/ansible-slurm-appliance#287",
    "API mismatch, its line breaks escaped by rsyslog",
    r"mismatch|version|driver",
    _SRE,
    "NVRM: API mismatch: the client has the version 535.86.10, but#012NVRM: this kernel module has the version 530.41.03.  Please#012NVRM: make sure that this kernel module and all NVIDIA driver#012NVRM: components have the same version.",
)
_kernel(
    "ublue-os/bazzite#2668",
    "firmware of the GPU's processor not found",
    r"firmware|GSP|mismatch|[Ii]nitiali",
    _SRE,
    "nvidia $pci.0: Direct firmware load for nvidia/570.144/gsp_ga10x.bin failed with error -2",
    "NVRM: RmFetchGspRmImages: No firmware image found",
    "NVRM: GPU $pci.0: RmInitAdapter failed! (0x61:0x56:1770)",
    "NVRM: GPU $pci.0: rm_init_adapter failed, device minor number 0",
    form=Form.JOURNAL,
)
_kernel(
    "NVIDIA/cuda-samples#104",
    "RmInitAdapter failed, then a page fault in the kernel",
    r"RmInitAdapter|[Ii]nitiali|Oops|BUG|page fault",
    _SRE,
    "NVRM: GPU $pci.0: RmInitAdapter failed! (0x26:0x56:1463)",
    "BUG: unable to handle page fault for address: 0000000000003b14",
    "#PF: supervisor read access in kernel mode",
    "#PF: error_code(0x0000) - not-present page",
    "Oops: 0000 [#1] SMP NOPTI",
    "CPU: 7 PID: $pid Comm: nv_queue Tainted: P           OE     5.10.0-11-amd64 #1 Debian 5.10.92-1",
    form=Form.JOURNAL,
)
_kernel(
    "ROCm/legacy-rocm-build#1886",
    "uncorrectable hardware error of an MI50",
    r"uncorrect|GPU|reset|amdgpu|[Hh]ardware",
    _SRE,
    "amdgpu 0000:e3:00.0: amdgpu: MEM ECC is active.",
    "amdgpu 0000:e3:00.0: amdgpu: SRAM ECC is active.",
    "amdgpu 0000:e3:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
    "amdgpu 0000:e3:00.0: amdgpu: GPU reset begin!",
    "amdgpu 0000:e3:00.0: amdgpu: Failed to send message 0x26, response 0x0",
    form=Form.DMESG_T,
)
_kernel(
    "ROCm/legacy-rocm-build#4021",
    "uncorrectable hardware error of an MI300X while it trains",
    r"uncorrect|GPU|amdgpu|[Hh]ardware",
    _SRE,
    "amdgpu 0000:68:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
    "amdgpu 0000:9e:00.0: {1}[Hardware Error]: Accelerator Check Architecture events logged",
    "amdgpu 0000:9e:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0x98000800003e0000",
    "amdgpu 0000:9e:00.0: {1}[Hardware Error]: aca entry[00].ADDR=0x0000000000000000",
)
_kernel(
    "ROCm/legacy-rocm-build#5008",
    "Fatal error during GPU init of an MI300A",
    r"GPU|init|amdgpu|driver|load",
    _SRE,
    "amdgpu 0000:01:00.0: amdgpu: invalid ip discovery binary checksum",
    "amdgpu 0000:01:00.0: amdgpu: amdgpu_discovery_init failed",
    "amdgpu 0000:01:00.0: amdgpu: Fatal error during GPU init",
    "amdgpu 0000:01:00.0: amdgpu: amdgpu: finishing device.",
    "amdgpu: probe of 0000:01:00.0 failed with error -22",
    form=Form.JOURNAL,
)
_kernel(
    "ROCm/legacy-rocm-build#5724",
    "MES failed to respond, GPU reset begin",
    r"GPU|reset|amdgpu|MES",
    _SRE,
    "amdgpu 0000:c5:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE",
    "amdgpu 0000:c5:00.0: amdgpu: failed to remove hardware queue from MES, doorbell=0x1802",
    "amdgpu 0000:c5:00.0: amdgpu: MES might be in unrecoverable state, issue a GPU reset",
    "amdgpu 0000:c5:00.0: amdgpu: Failed to evict queue 1",
    "amdgpu 0000:c5:00.0: amdgpu: GPU reset begin!. Source:  3",
)
_kernel(
    "HabanaAI/Setup_and_Install#1",
    "Device is NOT usable after a timeout of its processor",
    r"[Hh]abana|Gaudi|accelerator|device|usable|[Ii]nitiali",
    _SRE,
    "habanalabs hl1: Successfully loaded firmware to device",
    "habanalabs hl2: Failed to communicate with Device CPU (CPU-CP timeout)",
    "habanalabs hl2: failed to initialize CPU H/W queues -5",
    "habanalabs hl2: failed to initialize the H/W",
    "habanalabs 0000:1a:00.0: Failed to initialize hl2. Device is NOT usable !",
)
# the host --------------------------------------------------------------------------------------------------------------
_kernel(
    "andikleen/mcelog#74",
    "an uncorrectable memory error that firmware reports first",
    r"memory|DIMM|ECC|uncorrect|[Hh]ardware",
    _SRE,
    "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 0",
    "{1}[Hardware Error]: event severity: recoverable",
    "{1}[Hardware Error]:   section_type: memory error",
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0xa1b677 offset:0x0 grain:32 -  err_code:0000:009f socket:0 imc:0 rank:0 bg:0 ba:3 row:dad3 col:3c0)",
)
_kernel(
    "radiasoft/devops#134",
    "one corrected error of the memory's scrubber",
    "",
    _NOBODY,
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC sbridge MC1: HANDLING MCE MEMORY ERROR",
    "EDAC sbridge MC1: CPU 1: Machine Check Event: 0 Bank 11: 8c00004f000800c2",
    "EDAC sbridge MC1: TSC 0",
    "EDAC MC1: 1 CE memory scrubbing error on CPU_SrcID#1_Ha#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0xee30a0 offset:0x0 grain:32 syndrome:0x0 -  area:DRAM err_code:0008:00c2 socket:1 ha:0 channel_mask:1 rank:0)",
    form=Form.JOURNAL,
)
_kernel(
    "openzfs/zfs#3997",
    "nfsd blocked for more than 120 seconds",
    rf"blocked|hung|hang|{STORAGE}|NFS",
    _SRE,
    "INFO: task nfsd:$pid blocked for more than 120 seconds.",
    '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
    "nfsd            D ffff88013fc127c0     0  $pid      2 0x00000000",
    "Call Trace:",
)
_kernel(
    "kubernetes/kubernetes#12905",
    "Aborting journal, Remounting filesystem read-only",
    STORAGE,
    _SRE,
    "Aborting journal on device dm-4-8.",
    "EXT4-fs error (device dm-4) in ext4_setattr:4562: Journal has aborted",
    "EXT4-fs error (device dm-4): ext4_journal_check_start:56: Detected aborted journal",
    "EXT4-fs (dm-4): Remounting filesystem read-only",
    form=Form.DMESG,
)
_kernel(
    "sonic-net/sonic-buildimage#23146",
    "write errors of a loop device whose disk is full",
    rf"{STORAGE}|write error",
    _SRE,
    "loop: Write error at byte offset 673251328, length 4096.",
    "I/O error, dev loop1, sector 1314944 op 0x1:(WRITE) flags 0x0 phys_seg 2 prio class 2",
    "EXT4-fs warning (device loop1): ext4_end_bio:343: I/O error 10 writing to inode 886 starting block 164368)",
    "Buffer I/O error on device loop1, logical block 164368",
    "EXT4-fs error (device loop1): ext4_check_bdev_write_error:217: comm rsyslogd: Error while async write back metadata",
)
_kernel(
    "docker/for-linux#1001",
    "the memory limit of a container kills python3 again and again",
    MEMORY,
    _OWNER,
    *[
        "Memory cgroup out of memory: Killed process $pid (python3) total-vm:11892kB, anon-rss:4292kB, file-rss:3428kB, shmem-rss:0kB",
        "oom_reaper: reaped process $pid (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    ]
    * 4,
    form=Form.DMESG,
)
_kernel(
    "raspberrypi/linux#4485",
    "transmit queue 3 timed out",
    r"NIC|network|transmit|queue|WATCHDOG",
    _SRE,
    "------------[ cut here ]------------",
    "WARNING: CPU: 3 PID: 0 at net/sched/sch_generic.c:443 dev_watchdog+0x308/0x30c",
    "NETDEV WATCHDOG: eth0 (bcmgenet): transmit queue 3 timed out",
)
_kernel(
    "amazonlinux/amazon-linux-2023#723",
    "Lustre cannot be mounted: rc = -5",
    rf"[Ll]ustre|{STORAGE}|mount",
    _SRE,
    "LustreError: 26110:0:(mgc_request.c:252:do_config_log_add()) MGC10.31.84.120@tcp: failed processing log, type 1: rc = -5",
    "LustreError: 15c-8: MGC10.31.84.120@tcp: Confguration from log jxlwlxxv-client failed from MGS -5. Communication error between node & MGS, a bad configuration, or other errors. See syslog for more info",
    "Lustre: Unmounted jxlwlxxv-client",
    "LustreError: 26110:0:(super25.c:187:lustre_fill_super()) llite: Unable to mount <unknown>: rc = -5",
    form=Form.DMESG_T,
)
_kernel(
    "pocopico/rp-ext#129",
    "mlx5_load_one failed with error code -22",
    r"NIC|mlx5|InfiniBand|network|probe",
    _SRE,
    "mlx5_core 0000:41:00.0: firmware version: 14.32.1010",
    "mlx5_core 0000:41:00.0: handle_hca_cap failed",
    "mlx5_core 0000:41:00.0: mlx5_load_one failed with error code -22",
    "mlx5_core: probe of 0000:41:00.0 failed with error -22",
)
_kernel(
    "pop-os/pop#775",
    "corrected PCIe errors of an NVMe without end",
    r"PCIe|AER|NVMe|link",
    _SRE,
    *[
        "pcieport 0000:00:1d.0: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
        "pcieport 0000:00:1d.0: AER:   device [8086:a330] error status/mask=00001000/00002000",
        "pcieport 0000:00:1d.0: AER:    [12] Timeout               ",
        "nvme 0000:03:00.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "nvme 0000:03:00.0: AER:   device [144d:a808] error status/mask=00000001/0000e000",
    ]
    * 40,
    form=Form.DMESG,
)
_kernel(
    "heidsoft/devops#83",
    "NIC Link is Up 10 Gbps",
    "",
    _NOBODY,
    "ixgbe 0000:19:00.0 enp25s0f0: NIC Link is Up 10 Gbps, Flow Control: RX/TX",
    "IPv6: ADDRCONF(NETDEV_CHANGE): enp25s0f0: link becomes ready",
)
_kernel(
    "oracle/oracle-linux#85",
    "lines of modules that load well",
    "",
    _NOBODY,
    "knem: loading out-of-tree module taints kernel.",
    "knem: module verification failed: signature and/or required key missing - tainting kernel",
    "knem 1.1.4.90mlnx1: initialized",
    "fuse: init (API version 7.31)",
)
_kernel(
    "NVIDIA/gpu-operator#649",
    "the network of a pod comes and goes",
    "",
    _NOBODY,
    "IPv6: ADDRCONF(NETDEV_UP): eth0: link is not ready",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "device dddd1c3ccc54a5b entered promiscuous mode",
    "device dddd1c3ccc54a5b left promiscuous mode",
)
# jobs ------------------------------------------------------------------------------------------------------------------
_HF = "{'loss': $loss, 'grad_norm': $norm, 'learning_rate': 2.04e-06, 'epoch': 0.01}"

_job(
    "yangjianxin1/Firefly#171",
    "exitcode -9 while the shards load",
    rf"SIGKILL|signal 9|{CRASH}",
    _OWNER,
    "Loading checkpoint shards:   0%|          | 0/2 [00:00<?, ?it/s]WARNING:torch.distributed.elastic.multiprocessing.api:Sending process $pid closing signal SIGTERM",
    "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process $pid closing signal SIGTERM",
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 4 (pid: $pid) of binary: /opt/conda/envs/ft/bin/python",
    "Traceback (most recent call last):",
    '  File "/opt/conda/envs/ft/bin/torchrun", line 33, in <module>',
)
_job(
    "XPixelGroup/BasicSR#737",
    "Watchdog caught collective operation timeout on three ranks",
    _HANG,
    _SRE,
    "[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.",
    "[rank1]:[E626 06:24:44.906457629 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (either an error or timeout) detected by watchdog at work: 808, last enqueued NCCL work: 811, last completed NCCL work: 807.",
    "[rank0]:[E626 06:24:44.159932949 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, Timeout(ms)=600000) ran for 600030 milliseconds before timing out.",
    "[rank2]:[E626 06:24:44.173078629 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.",
)
_job(
    "NVIDIA/nccl#2013",
    "ibv_modify_qp failed with 110 while a checkpoint is written",
    NETWORK,
    _SRE,
    "[2026-03-13 22:26:02] $host:$pid [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_4:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.21.4.12, remote GID ::ffff:10.21.6.14",
)
_job(
    "NVIDIA/nccl#1814",
    "Got completion from peer with status=12 and vendor err 129",
    NETWORK,
    _SRE,
    "$host:$pid:4122 [3] transport/net_ib.cc:1835 NCCL WARN NET/IB : Got completion from peer 10.87.4.182<55921> with status=12 opcode=1 len=0 vendor err 129 (Send) localGid ::ffff:10.87.4.221 remoteGids::ffff:10.87.88.182",
    "$host:$pid:4122 [3] NCCL INFO transport/net.cc:1160 -> 6",
    "$host:$pid:4122 [3] NCCL INFO proxy.cc:728 -> 6 [Progress Thread]",
    before=_HF,
)
_job(
    "uccl-project/uccl#641",
    "Failed to modify QP to RTR: Connection timed out",
    rf"{NETWORK}|QP|RDMA|RoCE",
    _SRE,
    *["Failed to modify QP to RTR: Connection timed out", "errno: 110"] * 4,
)
_job(
    "jade-hpc-gpu/jade-hpc-gpu.github.io#194",
    "uncorrectable ECC error encountered in every job of a node",
    r"ECC|memory",
    _SRE,
    "Traceback (most recent call last):",
    '  File "train.py", line 214, in <module>',
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1.",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
)
_job(
    "open-mmlab/mmsegmentation#1356",
    "Unexpected bus error in a loader of data",
    rf"[Bb]us error|shared memory|shm|{CRASH}",
    _OWNER,
    "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    "Traceback (most recent call last):",
    '  File "/opt/conda/lib/python3.7/site-packages/torch/utils/data/dataloader.py", line 990, in _try_get_data',
    "RuntimeError: DataLoader worker (pid $pid) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
    before="2022-03-08 11:02:31,912 - mmseg - INFO - Iter [$step/40000]\tlr: 9.9e-03, eta: 6:11:02, time: 0.562, data_time: 0.011, memory: 8411, decode.loss_ce: $loss, loss: $loss",
)
_job(
    "facebookresearch/ParlAI#4452",
    "CUDA out of memory on rank 3",
    MEMORY,
    _OWNER,
    "rank:  3 | 2022-04-03 18:44:26,615 CRITICAL | Traceback (most recent call last):",
    '  File "/mnt/lustre/parlai/utils/fp16.py", line 194, in backward',
    "RuntimeError: CUDA out of memory. Tried to allocate 21.06 GiB (GPU 3; 79.35 GiB total capacity; 63.19 GiB already allocated; 8.57 GiB free; 68.48 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
)
_job(
    "vpetren/gradnorm_tf#17",
    "loss: nan from one epoch on",
    NONFINITE,
    _OWNER,
    *["epoch: $step loss: nan"] * 8,
    before="epoch: $step loss: $loss",
)
_job(
    "babysor/MockingBird#774",
    "No space left while a checkpoint is saved",
    rf"{STORAGE}|[Ss]pace|[Cc]heckpoint",
    _SRE,
    "{| Epoch: 55/167 (996/1926) | Loss: 0.2907 | 0.93 steps/s | Step: 425k | }Traceback (most recent call last):",
    '  File "/env/lib/python3.9/site-packages/torch/serialization.py", line 379, in save',
    "    _save(obj, opened_zipfile, pickle_module, pickle_protocol)",
    "OSError: [Errno 28] No space left on device",
)
_job(
    "ZwwWayne/K-Net#30",
    "oom-kill events in a step of Slurm",
    rf"{MEMORY}|{CRASH}",
    _OWNER,
    "slurmstepd-$host: error: Detected 1 oom-kill event(s) in StepId=94$n.0. Some of your processes may have been killed by the cgroup out-of-memory handler.",
    "srun: error: $host: task 0: Out Of Memory",
    "srun: launch/slurm: _step_signal: Terminating StepId=94$n.0",
    "slurmstepd-$host: error: *** STEP 94$n.0 ON $host CANCELLED AT 2022-05-17T17:58:10 ***",
)
_job(
    "facebookincubator/submitit#1776",
    "Job not requeued because: timed-out and not checkpointable",
    rf"time|limit|requeue|{CRASH}",
    _OWNER,
    "submitit WARNING (2024-09-25 10:21:07,880) - Caught signal SIGUSR2 on $host: this job is timed-out.",
    "submitit INFO (2024-09-25 10:21:07,912) - Job not requeued because: timed-out and not checkpointable.",
)
_job(
    "hkust-nlp/simpleRL-reason#98",
    "The actor died unexpectedly",
    rf"actor|Ray|{CRASH}",
    _OWNER,
    "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.",
    "        class_name: create_colocated_worker_cls.<locals>.WorkerDict",
    "        pid: $pid",
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.",
)
_job(
    "alex-petrenko/sample-factory#285",
    "Stopping training due to lack of heartbeats",
    rf"heartbeat|{_HANG}|{CRASH}|[Ss]top",
    _OWNER,
    "[2023-09-18 21:35:46,519][$pid] No heartbeat for components: InferenceWorker_p0-w0 (337 seconds)",
    "[2023-09-18 21:35:46,519][$pid] Stopping training due to lack of heartbeats from InferenceWorker_p0-w0",
)
_job(
    "pytorch/pytorch#67978",
    "the launch timed out and was terminated",
    rf"CUDA|launch|{CRASH}",
    _SRE,
    "Traceback (most recent call last):",
    '  File "/opt/conda/lib/python3.8/site-packages/torch/nn/modules/conv.py", line 439, in _conv_forward',
    "RuntimeError: CUDA error: the launch timed out and was terminated",
    "terminate called after throwing an instance of 'c10::CUDAError'",
    "  what():  CUDA error: the launch timed out and was terminated",
)
_job(
    "vllm-project/vllm#12233",
    "MQLLMEngine is already dead",
    rf"[Ee]ngine|{CRASH}",
    _OWNER,
    "ERROR 01-22 00:13:32 client.py:282] RuntimeError('Engine process (pid $pid) died.')",
    "ERROR 01-22 00:13:32 client.py:282] NoneType: None",
    "CRITICAL 01-22 00:13:36 launcher.py:99] MQLLMEngine is already dead, terminating server process",
)
_job(
    "christopherowen/spark-vllm-mxfp4-docker#5",
    "EngineDeadError under the prefix of docker compose",
    rf"[Ee]ngine|illegal memory|{CRASH}",
    _OWNER,
    "vllm-mxfp4  | (APIServer pid=1)     raise self._format_exception(outputs) from None",
    "vllm-mxfp4  | (APIServer pid=1) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "vllm-mxfp4  | terminate called after throwing an instance of 'c10::AcceleratorError'",
    "vllm-mxfp4  |   what():  CUDA error: an illegal memory access was encountered",
)
_job(
    "sgl-project/sglang#5491",
    "Scheduler hit an exception",
    rf"[Ss]cheduler|exception|{CRASH}",
    _OWNER,
    "[2025-04-17 16:15:33 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/opt/conda/lib/python3.10/site-packages/sglang/srt/managers/scheduler.py", line 2070, in run_scheduler_process',
    "    scheduler.event_loop_normal()",
    "RuntimeError: The size of tensor a (8) must match the size of tensor b (4) at non-singleton dimension 0",
    "[2025-04-17 16:15:33] Received sigquit from a child process. It usually means the child failed.",
)
_job(
    "huggingface/text-generation-inference#446",
    "Download process was signaled to shutdown with signal 7",
    rf"signal 7|SIGBUS|[Bb]us error|{CRASH}",
    _OWNER,
    "2023-06-13T12:01:40.112233Z  INFO text_generation_launcher: Starting download process.",
    "Error: DownloadError",
    "2023-06-13T12:01:46.417021Z ERROR text_generation_launcher: Download process was signaled to shutdown with signal 7: ",
)
_job(
    "JiaquanYe/TableMASTER-mmocr#32",
    "grad_norm is nan in the first line of mixed precision (normal, says the author)",
    "",
    _NOBODY,
    "2021-11-22 01:31:20,502 - mmocr - INFO - Epoch [1][100/62598]\tlr: 1.000e-03, eta: 6 days, 15:22:46, time: 0.539, data_time: 0.051, memory: 7239, loss_ce: 1.2757, horizon_bbox_loss: 0.2828, vertical_bbox_loss: 0.3507, loss: 1.9091, grad_norm: nan",
    "2021-11-22 01:32:34,502 - mmocr - INFO - Epoch [1][200/62598]\tlr: 1.000e-03, eta: 7 days, 15:55:58, time: 0.705, data_time: 0.002, memory: 7239, loss_ce: 0.5921, horizon_bbox_loss: 0.2210, vertical_bbox_loss: 0.1055, loss: 0.9186, grad_norm: 3.9772",
    "2021-11-22 01:33:41,118 - mmocr - INFO - Epoch [1][300/62598]\tlr: 1.000e-03, eta: 7 days, 15:21:10, time: 0.699, data_time: 0.002, memory: 7239, loss_ce: 0.5611, horizon_bbox_loss: 0.2114, vertical_bbox_loss: 0.1002, loss: 0.8727, grad_norm: 3.6120",
)
_job(
    "SWivid/F5-TTS#728",
    "the owner stops a job with Ctrl-C",
    "",
    _NOBODY,
    "^CW0128 10:15:38.077000 126071620457536 torch/distributed/elastic/agent/server/api.py:741] Received Signals.SIGINT death signal, shutting down workers",
    "W0128 10:15:38.077000 126071620457536 torch/distributed/elastic/multiprocessing/api.py:851] Sending process $pid closing signal SIGINT",
)
_job(
    "GAIR-NLP/LIMO#29",
    "a sequence is preempted for want of cache (slower, not broken)",
    "",
    _NOBODY,
    "WARNING 03-06 11:20:41 scheduler.py:1754] Sequence group 221 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect the end-to-end performance. Increase gpu_memory_utilization or tensor_parallel_size to provide more KV cache memory. total_num_cumulative_preemption=101",
)
_job(
    "vllm-project/vllm#18115",
    "a cache that is nearly full in full service",
    "",
    _NOBODY,
    "INFO 07-28 06:40:59 [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 239.2 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 91.2%, Prefix cache hit rate: 0.0%",
    "INFO 07-28 06:41:09 [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 239.2 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 91.6%, Prefix cache hit rate: 0.0%",
    "INFO 07-28 06:41:19 [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 240.0 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 91.9%, Prefix cache hit rate: 0.0%",
)
_job(
    "wandb/wandb#1185",
    "the tracker's network fails for a while, the run goes on",
    "",
    _NOBODY,
    _HF,
    "wandb: Network error (ReadTimeout), entering retry loop.",
    _HF,
    _HF,
    "wandb: Network error resolved after 0:00:21.4, resuming normal operation.",
    _HF,
    before=_HF,
)
_job(
    "dredwardhyde/gpt-neo-fine-tuning-example#7",
    "the loss scale of DeepSpeed settles in its first steps",
    "",
    _NOBODY,
    "[2021-06-08 12:02:45,001] [INFO] [stage3.py:2323:_overflow_clean_up] [deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 16777216.0, reducing to 8388608.0",
    "[2021-06-08 12:02:47,123] [INFO] [stage3.py:2323:_overflow_clean_up] [deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 8388608.0, reducing to 4194304.0",
    "[2021-06-08 12:02:49,251] [INFO] [stage3.py:2323:_overflow_clean_up] [deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4194304.0, reducing to 2097152.0",
    "[2021-06-08 12:02:51,402] [INFO] [timer.py:157:stop] 0/10, SamplesPerSec=1.88",
)
# the exporter ----------------------------------------------------------------------------------------------------------
_page(
    "NVIDIA/dcgm-exporter#620",
    "Xid 94 on the gauge alone",
    r"Xid 94|ECC|memory",
    _SRE,
    'DCGM_FI_DEV_XID_ERRORS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA H800",Hostname="$host",err_code="94",err_msg="Contained ECC error"} 94',
)
_page(
    "NVIDIA/dcgm-exporter#190",
    "Xid 31 of a user's program",
    r"Xid 31",
    _OWNER,
    'DCGM_FI_DEV_XID_ERRORS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB",Hostname="$host"} 31',
)
_page(
    "NVIDIA/DCGM#263",
    "a GPU that waits for a reset after Xid 120",
    r"[Rr]eset|[Rr]ecovery|Xid 120|GSP",
    _SRE,
    'DCGM_FI_DEV_XID_ERRORS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="$host"} 120',
    'DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="$host"} 1',
)
_page(
    "utkuozdemir/nvidia_gpu_exporter#448",
    "nvidia_smi_gpu_recovery_action of another exporter",
    r"[Rr]eset|[Rr]ecovery",
    _SRE,
    'nvidia_smi_gpu_recovery_action{uuid="$n"} 1',
)
_page(
    "NVIDIA/dcgm-exporter#401",
    "uncorrectable ECC errors of the memory",
    r"ECC|memory|uncorrect",
    _SRE,
    'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA A800-SXM4-80GB",Hostname="$host"} 3',
)
_page(
    "leptonai/gpud#80",
    "rows wait to be remapped",
    r"[Rr]emap|memory|\brow",
    _SRE,
    'DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB",Hostname="$host"} 4',
    'DCGM_FI_DEV_ROW_REMAP_PENDING{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB",Hostname="$host"} 1',
)
_page(
    "canonical/hardware-observer-operator#307",
    "clocks halved by the hardware",
    r"[Tt]hrottl|slowdown|clock",
    _SRE,
    'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA A100 80GB PCIe",Hostname="$host"} 8',
)
_page(
    "run-ai/fake-gpu-operator#93",
    "idle GPUs of an exporter whose Hostname is its pod",
    "",
    _NOBODY,
    'DCGM_FI_DEV_FB_FREE{Hostname="nvidia-dcgm-exporter-5e5b02",UUID="GPU-$n",container="",device="nvidia1",gpu="1",modelName="nvidia-A100",namespace="",pod=""} 11441',
    'DCGM_FI_DEV_FB_USED{Hostname="nvidia-dcgm-exporter-5e5b02",UUID="GPU-$n",container="",device="nvidia1",gpu="1",modelName="nvidia-A100",namespace="",pod=""} 0',
    'DCGM_FI_DEV_GPU_UTIL{Hostname="nvidia-dcgm-exporter-5e5b02",UUID="GPU-$n",container="",device="nvidia1",gpu="1",modelName="nvidia-A100",namespace="",pod=""} 0',
)
_page(
    "NVIDIA/dcgm-exporter#250",
    "a healthy V100 at rest",
    "",
    _NOBODY,
    'DCGM_FI_DEV_POWER_MGMT_LIMIT{gpu="$gpu",UUID="GPU-$n",device="nvidia2",modelName="Tesla V100-SXM2-32GB",Hostname="$host"} 300.000000',
    'DCGM_FI_DEV_PCIE_REPLAY_COUNTER{gpu="$gpu",UUID="GPU-$n",device="nvidia2",modelName="Tesla V100-SXM2-32GB",Hostname="$host"} 0',
    'DCGM_FI_DEV_GPU_UTIL{gpu="$gpu",UUID="GPU-$n",device="nvidia2",modelName="Tesla V100-SXM2-32GB",Hostname="$host"} 0',
)
_page(
    "NVIDIA/DCGM#285",
    "moments at the power limit under load (false alarm of a check)",
    "",
    _NOBODY,
    'DCGM_FI_DEV_POWER_VIOLATION{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="$host"} 42',
    'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="$host"} 4',
)
# Kubernetes ------------------------------------------------------------------------------------------------------------


def _many(text: str, count: int) -> str:
    """An Event that was repeated."""
    return json.dumps(json.loads(text) | {"count": count})


_kubernetes(
    "kubernetes/kubernetes#130145",
    "requested number of devices unavailable",
    r"[Aa]dmission|device|nvidia.com/gpu|Allocat|reject",
    _SRE,
    pod(
        "Failed",
        {
            "reason": "UnexpectedAdmissionError",
            "message": "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 1, Available: 0, which is unexpected",
        },
    ),
    event(
        "UnexpectedAdmissionError",
        "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 1, Available: 0, which is unexpected",
    ),
)
_kubernetes(
    "Project-HAMi/HAMi#71",
    "the device plugin answers EOF",
    r"[Aa]dmission|device|Allocat|reject|plugin",
    _SRE,
    pod(
        "Failed",
        {
            "reason": "UnexpectedAdmissionError",
            "message": "Pod Allocate failed due to rpc error: code = Unavailable desc = error reading from server: EOF, which is unexpected",
        },
    ),
)
_kubernetes(
    "aws/karpenter-provider-aws#7029",
    "Kubelet stopped posting node status",
    r"[Rr]eady|[Kk]ubelet|node|heartbeat",
    _SRE,
    condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."),
)
_kubernetes(
    "kubernetes/kubernetes#91600",
    "evicted: low on resource: ephemeral-storage",
    r"[Ee]vict|storage|disk",
    _SRE,
    pod(
        "Failed",
        {
            "reason": "Evicted",
            "message": "The node was low on resource: ephemeral-storage. Container main was using 34260Ki, which exceeds its request of 0. ",
        },
    ),
    event(
        "Evicted",
        "The node was low on resource: ephemeral-storage. Container main was using 34260Ki, which exceeds its request of 0. ",
    ),
)
_kubernetes(
    "rancher/rancher#20485",
    "a volume cannot be mounted",
    r"[Mm]ount|volume|storage",
    _SRE,
    pod("Pending", container={"state": {"waiting": {"reason": "ContainerCreating"}}}),
    event(
        "FailedAttachVolume",
        'AttachVolume.Attach failed for volume "k8s-pod-data" : attachment timeout for volume k8s-pod-data',
        component="attachdetach-controller",
    ),
    event(
        "FailedMount",
        'MountVolume.SetUp failed for volume "k8s-pod-data" : rpc error: code = DeadlineExceeded desc = context deadline exceeded',
    ),
    _many(
        event(
            "FailedMount",
            'MountVolume.SetUp failed for volume "k8s-pod-data" : rpc error: code = Internal desc = mount failed: exit status 32',
        ),
        6,
    ),
)
_kubernetes(
    "kubernetes/kubernetes#96630",
    "Job has reached the specified backoff limit",
    rf"[Bb]ackoff|{CRASH}",
    _OWNER,
    pod("Failed", container={"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}),
    _event_of(
        "Job",
        "batch/v1",
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
        "job-controller",
        warning=True,
    ),
)
_kubernetes(
    "k3s-io/k3s#7746",
    "a trainer ends with exit code 137",
    rf"137|SIGKILL|{CRASH}",
    _OWNER,
    pod("Failed", container={"state": {"terminated": {"exitCode": 137, "reason": "Error"}}}),
)
_kubernetes(
    "kubernetes/node-problem-detector#617",
    "KernelDeadlock: task docker blocked for more than 300 seconds",
    r"[Kk]ernel|[Dd]eadlock|blocked|[Dd]ocker|condition",
    _SRE,
    condition("KernelDeadlock", "True", "DockerHung", "task docker:7 blocked for more than 300 seconds."),
)
_kubernetes(
    "operate-first/apps#1352",
    "pods of two nodes evicted for DiskPressure",
    r"[Dd]isk|DiskPressure|[Ee]vict|storage",
    _SRE,
    condition("DiskPressure", "True", "KubeletHasDiskPressure", "kubelet has disk pressure"),
    pod("Failed", {"reason": "Evicted", "message": "The node had condition: [DiskPressure]. "}),
)
_kubernetes(
    "microsoft/pai#4589",
    "Allocatable GPU number is 0",
    r"GPU|[Aa]llocat|capacity|device",
    _SRE,
    json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "$host"},
            "status": {
                "capacity": {"cpu": "192", "nvidia.com/gpu": "8"},
                "allocatable": {"cpu": "192", "nvidia.com/gpu": "0"},
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True",
                        "reason": "KubeletReady",
                        "message": "kubelet is posting ready status",
                    }
                ],
            },
        }
    ),
)
_kubernetes(
    "containerd/containerd#4604",
    "failed to reserve container name",
    r"container|runtime|start|creat",
    _SRE,
    pod(
        "Pending",
        container={
            "state": {
                "waiting": {
                    "reason": "CreateContainerError",
                    "message": 'failed to reserve container name "main_${pod}_ml_0": name "main_${pod}_ml_0" is reserved for "818fcfef0916"',
                }
            }
        },
    ),
    event("Failed", "Error: context deadline exceeded"),
    _many(
        event(
            "Failed",
            'Error: failed to reserve container name "main_${pod}_ml_0": name "main_${pod}_ml_0" is reserved for "818fcfef0916"',
        ),
        7,
    ),
)
_kubernetes(
    "NVIDIA/gpu-operator#1020",
    "403 Forbidden for an image",
    r"[Ii]mage|pull",
    _OWNER,
    pod(
        "Pending",
        container={
            "state": {
                "waiting": {
                    "reason": "ImagePullBackOff",
                    "message": 'Back-off pulling image "nvcr.io/nvidia/trainer:24.6"',
                }
            }
        },
    ),
    _many(
        event(
            "Failed",
            'Failed to pull image "nvcr.io/nvidia/trainer:24.6": failed to resolve reference "nvcr.io/nvidia/trainer:24.6": unexpected status from HEAD request to https://nvcr.io/v2/nvidia/trainer/manifests/24.6: 403 Forbidden',
        ),
        4,
    ),
    _many(event("Failed", "Error: ImagePullBackOff"), 6),
)
_kubernetes(
    "NVIDIA/NVSentinel#656",
    "GpuNvlinkWatch: errors on the links",
    r"NVLink|Nvlink|GPU|condition|link",
    _SRE,
    condition(
        "GpuNvlinkWatch",
        "True",
        "GpuNvlinkWatchIsNotHealthy",
        "ErrorCode:DCGM_FR_NVLINK_ERROR_CRITICAL GPU:$gpu Detected 7 nvlink_flit_crc_error_count_total NvLink errors on GPU $gpu's NVLink. Recommended Action=COMPONENT_RESET;",
    ),
)
_kubernetes(
    "NVIDIA-AI-Blueprints/rag#31",
    "Startup probe failed for 50 minutes",
    r"[Pp]robe|[Uu]nhealthy|not ready|start",
    _OWNER,
    pod("Running", container={"ready": False, "state": {"running": {"startedAt": "2026-11-25T00:00:00Z"}}}),
    _many(
        event(
            "Unhealthy",
            'Startup probe failed: Get "http://10.29.94.143:8000/v1/health/ready": dial tcp 10.29.94.143:8000: connect: connection refused',
        ),
        292,
    ),
)
_kubernetes(
    "vllm-project/aibrix#1054",
    "a server of a model restarts in a loop",
    r"CrashLoop|restart|[Bb]ack-?off",
    _OWNER,
    pod(
        "Running",
        container={
            "restartCount": 5,
            "state": {
                "waiting": {
                    "reason": "CrashLoopBackOff",
                    "message": "back-off 2m40s restarting failed container=vllm-openai pod=${pod}_ml(uid-$pod)",
                }
            },
        },
    ),
)
_kubernetes(
    "kubernetes/k8s.io#5291",
    "KernelDeadlock False: kernel has no deadlock",
    "",
    _NOBODY,
    condition("KernelDeadlock", "False", "KernelHasNoDeadlock", "kernel has no deadlock"),
    condition("ReadonlyFilesystem", "False", "FilesystemIsNotReadOnly", "Filesystem is not read-only"),
)
_kubernetes(
    "volcano-sh/volcano#3040",
    "a second job waits while the first holds the cluster",
    "",
    _NOBODY,
    pod("Pending"),
    event(
        "FailedScheduling",
        "0/8 nodes are available: 8 Insufficient nvidia.com/gpu.",
        component="volcano",
    ),
)
_kubernetes(
    "triton-inference-server/server#7154",
    "a readiness probe that fails while a server starts",
    "",
    _NOBODY,
    _many(
        event(
            "Unhealthy",
            'Readiness probe failed: Get "http://10.0.10.177:8000/v2/health/ready": dial tcp 10.0.10.177:8000: connect: connection refused',
        ),
        3,
    ),
    event("Started", "Started container triton-inference-server", warning=False),
    pod("Running", container={"ready": True, "state": {"running": {"startedAt": "2026-11-25T00:00:00Z"}}}),
)

BATCH: tuple[FieldReport, ...] = tuple(_REPORTS.reports)
