"""Public reports collected on 2026-11-26 by search for symptoms, before any of them was run.

The right answers were written down with them. Lines are the reporters', shortened; hosts, addresses and process
numbers are replaced by drawn ones. A title is the thread's or says what the thread is about. None is in batches 1 to 4,
but for another minute of NVIDIA/open-gpu-kernel-modules#1230.
"""

# ruff: noqa: E501 -- log lines are as long as they are
from __future__ import annotations

from benchmarks.field.collected import MEMORY, NETWORK, NONFINITE, STORAGE, Batch
from benchmarks.field.report import FieldReport, Form, Paged, condition, event, pod

_SRE, _OWNER, _NOBODY = Paged.SRE, Paged.OWNER, Paged.NOBODY

_REPORTS = Batch()
_kernel, _job, _page, _kubernetes = _REPORTS.kernel, _REPORTS.job, _REPORTS.page, _REPORTS.kubernetes

# the driver ------------------------------------------------------------------------------------------------------------
_kernel(
    "NVIDIA/open-gpu-kernel-modules#1230",
    "GSP timeout: WPR2 already up",
    r"GSP|[Ii]nitiali|[Rr]eset",
    _SRE,
    "NVRM: GPU6 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
    "NVRM: GPU6 _kgspBootGspRm: (the GPU is likely in a bad state and may need to be reset)",
    "NVRM: GPU6 RmInitAdapter: Cannot initialize GSP firmware RM",
    "NVRM: GPU $pci.0: RmInitAdapter failed! (0x62:0x40:2168)",
    "NVRM: GPU $pci.0: rm_init_adapter failed, device minor number 7",
)
_kernel(
    "NVIDIA/nvtrust#77",
    "Broken GPU: no answer from its boot processor",
    r"GSP|FSP|[Ii]nitiali|boot processor",
    _SRE,
    "NVRM: kfspDumpDebugState_GH100: NV_PFSP_FALCON_COMMON_SCRATCH_GROUP_2(3) = 0x5",
    "NVRM: nvCheckOkFailedNoLog: Check failed: Ran out of a critical resource, other than memory [NV_ERR_INSUFFICIENT_RESOURCES] (0x0000001A) returned from kfspSendBootCommands_HAL(pGpu, pKernelFsp) @ kernel_gsp_gh100.c:756",
    "NVRM: gpuHandleSanityCheckRegReadError_GH100: Possible bad register read: addr: 0x110804,  regvalue: 0xbadf4100,  error code: Unknown SYS_PRI_ERROR_CODE",
    "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
    "NVRM: GPU $pci.0: RmInitAdapter failed! (0x62:0x1a:1792)",
    "NVRM: kfspPollForQueueEmpty_IMPL: Timed out waiting for FSP command queue to be empty.",
)
_kernel(
    "NVIDIA/nvtrust#128",
    "lines of four GPUs that start well",
    "",
    _NOBODY,
    "ACPI Warning: \\_SB.PCI0.S60.S00._DSM: Argument #4 type mismatch - Found [Buffer], ACPI requires [Package] (20230628/nsarguments-61)",
    "NVRM: gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it.",
    "NVRM: kgspCheckGspRmCcCleanup_GH100: CC secret cleanup successful!",
    "[drm] Initialized nvidia-drm 0.0.0 20160202 for 0000:02:00.0 on minor 1",
    "nvidia 0000:02:00.0: [drm] No compatible format found",
    "nvidia 0000:02:00.0: [drm] Cannot find any crtc or sizes",
)
_kernel(
    "NVIDIA/open-gpu-kernel-modules#402",
    "an assertion of the driver at each ACPI event, without effect",
    "",
    _NOBODY,
    *[
        "acer_wmi: Unknown function number - 4 - 0",
        "NVRM nvAssertFailedNoLog: Assertion failed: 0 @ osapi.c:1688",
    ]
    * 4,
    form=Form.JOURNAL,
)
_kernel(
    "NVIDIA/open-gpu-kernel-modules#1098",
    "an empty line while the driver loads",
    "",
    _NOBODY,
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 237",
    "",
    "nvidia 0000:07:00.0: vgaarb: VGA decodes changed: olddecodes=io+mem,decodes=none:owns=none",
    form=Form.JOURNAL,
)
_kernel(
    "data-infra/cube-studio#29",
    "nvidia-fabricmanager cannot start",
    r"[Ff]abric",
    _SRE,
    "nvidia-fabricmanager.service: Control process exited, code=exited, status=1/FAILURE",
    "nvidia-fabricmanager.service: Failed with result 'exit-code'.",
    "Failed to start nvidia-fabricmanager.service - NVIDIA fabric manager service.",
    form=Form.JOURNAL,
    program="systemd[1]",
)
_kernel(
    "NixOS/nixpkgs#30188",
    "rings of a Radeon stall",
    r"GPU|ring|stall|driver|lockup",
    _SRE,
    *[
        "radeon $pci.0: ring 4 stalled for more than 13024msec",
        "radeon $pci.0: ring 3 stalled for more than 13024msec",
        "radeon $pci.0: GPU lockup (current fence id 0x00000000000000b3 last fence id 0x000000000000010e on ring 3)",
    ]
    * 3,
    form=Form.JOURNAL,
)
_kernel(
    "ROCm/legacy-rocm-build#2533",
    "ring sdma0 timeout, GPU reset",
    r"GPU|ring|reset",
    _SRE,
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=16060, emitted seq=16062",
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* Process information: process  pid 0 thread  pid 0",
    "amdgpu $pci.0: amdgpu: GPU reset begin!",
    "amdgpu: failed to remove hardware queue from MES, doorbell=0x1002",
    "amdgpu: MES might be in unrecoverable state, issue a GPU reset",
)
_kernel(
    "ROCm/legacy-rocm-build#1584",
    "queues that cannot be taken from the GPU",
    r"GPU|reset|queue",
    _SRE,
    "amdgpu: qcm fence wait loop timeout expired",
    "amdgpu: The cp might be in an unrecoverable state due to an unsuccessful queues preemption",
    "amdgpu: Failed to evict process queues",
    "amdgpu: Failed to quiesce KFD",
    "amdgpu $pci.0: amdgpu: GPU reset begin!",
    "amdgpu $pci.0: amdgpu: GPU reset succeeded, trying to resume",
    form=Form.JOURNAL,
)
_kernel(
    "ROCm/legacy-rocm-build#6273",
    "ring gfx timeout, its reset failed",
    r"GPU|ring|reset",
    _SRE,
    "amdgpu $pci.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=2662395, emitted seq=2662397",
    "amdgpu $pci.0: amdgpu: Starting gfx_0.0.0 ring reset",
    "amdgpu $pci.0: amdgpu: Ring gfx_0.0.0 reset failed",
    "amdgpu $pci.0: amdgpu: GPU reset begin!",
    "amdgpu $pci.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE",
)
_kernel(
    "ROCm/legacy-rocm-build#2196",
    "the GPU's management processor does not answer",
    r"GPU|SMU|answer|firmware|driver",
    _SRE,
    *[
        "amdgpu $pci.0: amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x00000012 SMN_C2PMSG_82:0x00000005",
        "amdgpu $pci.0: amdgpu: Failed to export SMU metrics table!",
    ]
    * 3,
)
_kernel(
    "pop-os/cosmic-epoch#3764",
    "ring gfx timeout and GPU reset",
    r"GPU|ring|reset",
    _SRE,
    "amdgpu $pci.0: Dumping IP State Completed",
    "amdgpu $pci.0: ring gfx_0.0.0 timeout, signaled seq=57638, emitted seq=57641",
    "amdgpu $pci.0: Ring gfx_0.0.0 reset failed",
    "amdgpu $pci.0: GPU reset begin!. Source:  1",
    "amdgpu $pci.0: GPU reset succeeded, trying to resume",
    "amdgpu $pci.0: VRAM is lost due to GPU reset!",
)
_kernel(
    "ROCm/ROCR-Runtime#180",
    "OpenCL buffers cause a ring timeout",
    r"GPU|ring|reset",
    _SRE,
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=1255, emitted seq=1257",
    "amdgpu $pci.0: amdgpu: GPU reset begin!",
    "amdgpu: Failed to suspend process 0x8010",
    "amdgpu $pci.0: amdgpu: MODE2 reset",
    "[drm] VRAM is lost due to GPU reset!",
)
# the host --------------------------------------------------------------------------------------------------------------
_kernel(
    "coolsnowwolf/lede#5117",
    "the adapter's firmware reports errors without end",
    r"NIC|firmware|network|adapter|port",
    _SRE,
    *[
        "ixgbe 0000:01:00.1: Warning firmware error detected FWSM: 0x00000000",
        "ixgbe 0000:01:00.0: Warning firmware error detected FWSM: 0x00000000",
    ]
    * 6,
)
_kernel(
    "snu-csl/nvmevirt#44",
    "an NVMe disk times out",
    rf"NVMe|{STORAGE}",
    _SRE,
    *[f"nvme nvme3: I/O {number} (I/O Cmd) QID 14 timeout, aborting" for number in range(193, 197)],
)
_kernel(
    "lxc/incus-os#1255",
    "a processor stalls",
    r"stall|lockup|RCU|hang|processor",
    _SRE,
    "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
    "rcu: \t10-...0: (1 GPs behind) idle=c5dc/1/0x4000000000000002 softirq=37828505/37828505 fqs=12593",
    "rcu: \t(detected by 5, t=60002 jiffies, g=144349993, q=5479 ncpus=12)",
    "Sending NMI from CPU 5 to CPUs 10:",
    "NMI backtrace for cpu 10",
    form=Form.JOURNAL,
)
_kernel(
    "sophgo/linux-riscv#92",
    "a processor locks up under load",
    r"stall|lockup|RCU|hang|NVMe",
    _SRE,
    "nvme nvme0: I/O 309 (Write) QID 1 timeout, aborting  ",
    "nvme nvme0: Abort status: 0x0",
    "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
    "rcu:     41-...0: (1 GPs behind) idle=7b24/1/0x4000000000000000 softirq=3305695/3305728 fqs=1979",
    "watchdog: BUG: soft lockup - CPU#49 stuck for 22s! [migration/49:314]",
)
_kernel(
    "Bumblebee-Project/Bumblebee#502",
    "soft lockup",
    r"lockup|hang|stuck",
    _SRE,
    "BUG: soft lockup - CPU#3 stuck for 22s! [Xorg:4333]",
)
_kernel(
    "sonic-net/sonic-buildimage#17358",
    "soft lockup, then a panic",
    r"lockup|hang|panic|stuck",
    _SRE,
    "watchdog: BUG: soft lockup - CPU#2 stuck for 23s! [kworker/2:1:25629]",
    "Kernel panic - not syncing: softlockup: hung tasks",
    "CPU: 2 PID: 25629 Comm: kworker/2:1 Tainted: G OEL 5.10.0-18-2-amd64 #1 Debian 5.10.140-1",
)
_kernel(
    "xobs/novena-linux#3",
    "soft lockup of an old kernel",
    r"lockup|hang|stuck",
    _SRE,
    "fec 2188000.ethernet eth0: MDIO read timeout",
    "NMI watchdog: BUG: soft lockup - CPU#2 stuck for 23s! [clInfo:994]",
    "CPU: 2 PID: 994 Comm: clInfo Not tainted 3.17.0-rc5-00217-gfd79638 #276",
)
_kernel(
    "andikleen/mcelog#91",
    "machine checks logged once in a year",
    "",
    _NOBODY,
    "mce: Using 22 MCE banks",
    "mce: [Hardware Error]: Machine check events logged",
    form=Form.DMESG_T,
)
_kernel(
    "andikleen/mcelog#80",
    "mcelog on a processor that it does not support",
    "",
    _NOBODY,
    "Started Machine Check Exception Logging Daemon.",
    "mcelog.service: Main process exited, code=exited, status=1/FAILURE",
    "mcelog.service: Failed with result 'exit-code'.",
    "Condition check resulted in Machine Check Exception Logging Daemon being skipped.",
    form=Form.JOURNAL,
    program="systemd[1]",
)
_kernel(
    "minisforum-docs/MS-02-Ultra#10",
    "uncorrectable PCIe errors, no recovery",
    r"PCIe|AER|recover",
    _SRE,
    "pcieport 0000:80:1b.4: AER: Uncorrectable (Non-Fatal) error message received from 0000:80:1b.4",
    "pcieport 0000:80:1b.4: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (Receiver ID)",
    "pcieport 0000:80:1b.4:   device [8086:7f44] error status/mask=00200000/00000000",
    "thunderbolt 0000:84:00.0: AER: can't recover (no error_detected callback)",
    "pcieport 0000:80:1b.4: AER: device recovery failed",
    form=Form.JOURNAL,
)
_kernel(
    "Dasharo/dasharo-issues#641",
    "two faults of the IOMMU at boot, once",
    "",
    _NOBODY,
    "DMAR: [DMA Read NO_PASID] Request device [00:02.0] fault addr 0x7cd80000 [fault reason 0x01] Present bit in root entry is clear",
    "DMAR: DRHD: handling fault status reg 3",
    "DMAR: [DMA Read NO_PASID] Request device [00:02.0] fault addr 0x7cd87000 [fault reason 0x01] Present bit in root entry is clear",
)
_kernel(
    "intel/intel-device-plugins-for-kubernetes#1836",
    "the IOMMU's lines at boot",
    "",
    _NOBODY,
    "ACPI: Reserving DMAR table memory at [mem 0x777e0000-0x777e0517]",
    "DMAR: IOMMU enabled",
    "DMAR: Enable scalable mode if hardware supports",
    "DMAR: DRHD base: 0x000000d97fc000 flags: 0x0",
    "DMAR: dmar0: reg_base_addr d97fc000 ver 6:0 cap 19ed008c40780c66 ecap 3ee9e86f050df",
)
_kernel(
    "openzfs/zfs#8994",
    "a Lustre server deadlocks",
    rf"[Ll]ustre|blocked|hung|{STORAGE}",
    _SRE,
    "Lustre: f2-OST0035-osc-MDT0001: Connection to f2-OST0035 (at 10.10.33.50@o2ib2) was lost; in progress operations using this service will wait for recovery to complete",
    "INFO: task txg_quiesce:40218 blocked for more than 120 seconds.",
    '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
)
_kernel(
    "openzfs/zfs#1790",
    "the NFS server does not answer",
    rf"blocked|hung|hang|{STORAGE}",
    _SRE,
    "INFO: task nfsd:6108 blocked for more than 120 seconds.",
    '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
    "nfsd          D 0000000000000000     0  6108      2 0x00000080",
    "Call Trace:",
    form=Form.JOURNAL,
)
_kernel(
    "whamcloud/integrated-manager-for-lustre#329",
    "ll_cfg_requeue is blocked",
    r"blocked|hung|hang|stuck",
    _SRE,
    "INFO: task ll_cfg_requeue:4037 blocked for more than 120 seconds.",
    "ll_cfg_requeue  D 0000000000000001     0  4037      2 0x00000080",
    "Call Trace:",
)
_kernel(
    "xcat2/xcat-core#1175",
    "xfs_log_force: error -5 returned",
    rf"XFS|{STORAGE}",
    _SRE,
    *["XFS (dm-0): xfs_log_force: error -5 returned."] * 8,
)
_kernel(
    "siderolabs/talos#8733",
    "XFS shut down after an error of its log",
    rf"XFS|{STORAGE}",
    _SRE,
    "XFS (sdb6): log I/O error -5",
    "XFS (sdb6): Filesystem has been shut down due to log error (0x2).",
    "XFS (sdb6): Please unmount the filesystem and rectify the problem(s).",
)
_kernel(
    "scylladb/scylla-tools-java#217",
    "metadata CRC error of XFS",
    rf"XFS|{STORAGE}",
    _SRE,
    'XFS (nvme0n1p1): metadata I/O error in "xfs_trans_read_buf_map" at daddr 0x8e8c20 len 8 error 74',
    "XFS (nvme0n1p1): Metadata CRC error detected at xfs_dir3_block_read_verify+0xc8/0xf0 [xfs], xfs_dir3_block block 0x8e8c20 ",
    form=Form.JOURNAL,
)
_kernel(
    "DDMAL/Rodan#1197",
    "dockerd is killed: out of memory",
    MEMORY,
    _SRE,
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/system.slice/docker.service,task=dockerd,pid=306726,uid=0",
    "Out of memory: Killed process 306726 (dockerd) total-vm:53352328kB, anon-rss:40354124kB, file-rss:1552kB, shmem-rss:0kB, UID:0 pgtables:79344kB oom_score_adj:-500",
)
_kernel(
    "aws-samples/eks-workshop-v2#447",
    "PLEG is not healthy, in the kubelet's log",
    r"PLEG|runtime|kubelet",
    _SRE,
    *[
        'E0413 10:53:52.844381    3263 kubelet.go:2055] "Skipping pod synchronization" err="PLEG is not healthy: pleg was last seen active 2h33m12.704970756s ago; threshold is 3m0s"',
    ]
    * 2,
    form=Form.JOURNAL,
    program="kubelet[3263]",
)
# jobs ------------------------------------------------------------------------------------------------------------------
_HF = "{'loss': $loss, 'grad_norm': $norm, 'learning_rate': 9.77e-06, 'epoch': 0.53}"

_job(
    "vllm-project/speculators#1115",
    "one rank fails, the others are killed",
    r"exception|exit ?code 1|SIGKILL|signal 9",
    _OWNER,
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "============================================================",
    "/root/speculators/scripts/train.py FAILED",
    "Failures:",
    "  rank      : 0 (local_rank: 0)",
    "  exitcode  : -9 (pid: 14689)",
    "  traceback : Signal 9 (SIGKILL) received by PID 14689",
    "Root Cause (first observed failure):",
    "[0]:",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : 1 (pid: 14690)",
)
_job(
    "pytorch/pytorch#79847",
    "NCCL error: internal error",
    r"NCCL",
    _SRE,
    "Traceback (most recent call last):",
    '  File "ini.py", line 51, in demo_basic',
    "    ddp_model = DDP(model, device_ids=[rank])",
    "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:891, internal error, NCCL version 21.0.3",
    "ncclInternalError: Internal check failed. This is either a bug in NCCL or due to memory corruption",
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: $pid) of binary: /data/anaconda3/envs/th110/bin/python",
)
_job(
    "NVIDIA/nccl#1241",
    "NCCL error: invalid usage",
    r"NCCL",
    _OWNER,
    "RuntimeError: NCCL error in: /opt/pytorch/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1287, invalid usage, NCCL version 2.17.1",
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    "Last error:",
)
_job(
    "facebookresearch/MetaICL#8",
    "CHILD PROCESS FAILED WITH NO ERROR_FILE",
    r"exception|exit ?code 1|own code",
    _OWNER,
    "**********************************************************************",
    "               CHILD PROCESS FAILED WITH NO ERROR_FILE                ",
    "**********************************************************************",
    "CHILD PROCESS FAILED WITH NO ERROR_FILE",
    "Child process 17057 (local_rank 0) FAILED (exitcode 1)",
    "Error msg: Process failed with exitcode 1",
    "Without writing an error file to <N/A>.",
)
_job(
    "NovaSky-AI/SkyRL#797",
    "EngineCore encountered a fatal error",
    r"[Ee]ngine|CUDA|GPU code",
    _SRE,
    "[AsyncVLLMInferenceEngine pid=1308262] [EngineCore_DP0 pid=1308664] ERROR 12-18 15:51:23 [v1/engine/core.py:710] EngineCore encountered a fatal error.",
    "[AsyncVLLMInferenceEngine pid=1308262] [EngineCore_DP0 pid=1308664] ERROR 12-18 15:51:23 [v1/engine/core.py:710] Traceback (most recent call last):",
    '  File "/data/lib/python3.13/site-packages/vllm/v1/engine/core.py", line 701, in run_engine_core',
    "    engine_core.run_busy_loop()",
)
_job(
    "vllm-project/vllm#37159",
    "device-side assert while a model is served",
    r"GPU code|assert|[Ee]ngine|CUDA",
    _OWNER,
    "(EngineCore pid=128) ERROR 03-16 08:31:22 [core.py:1090]     self.prepare_inputs_event.synchronize()",
    "(EngineCore pid=128) ERROR 03-16 08:31:22 [core.py:1090] torch.AcceleratorError: CUDA error: device-side assert triggered",
    "(EngineCore pid=128) Process EngineCore:",
    "(EngineCore pid=128) Traceback (most recent call last):",
    "(APIServer pid=7) ERROR 03-16 08:31:23 [async_llm.py:708] AsyncLLM output_handler failed.",
)
_job(
    "vllm-project/vllm#49101",
    "Failed: Cuda error in custom_all_reduce.cuh",
    r"CUDA|Cuda|GPU|[Ee]ngine",
    _OWNER,
    "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'",
    "(APIServer pid=9502) Traceback (most recent call last):",
    '(APIServer pid=9502)   File "/usr/local/lib64/python3.11/site-packages/vllm/entrypoints/openai/api_server.py", line 136, in build_async_engine_client_from_engine_args',
    "(APIServer pid=9502)     async_llm = AsyncLLM.from_vllm_config(",
    "(APIServer pid=9502) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
)
_job(
    "Time-MoE/Time-MoE#31",
    "loss 0.0 and gradients that are no numbers",
    NONFINITE,
    _OWNER,
    *["{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.54}"] * 12,
    before=_HF,
)
_job(
    "LaVi-Lab/VG-LLM#21",
    "grad_norm is nan and the loss is abnormal",
    NONFINITE,
    _OWNER,
    "{'loss': 1.7018, 'grad_norm': nan, 'learning_rate': 1.3513513513513515e-06, 'epoch': 0.01}",
    "  1%|          | 11/1233 [08:34<16:24:43, 48.35s/it]",
    "  1%|          | 12/1233 [09:16<15:42:22, 46.31s/it]",
    "{'loss': 1.1469, 'grad_norm': nan, 'learning_rate': 2.702702702702703e-06, 'epoch': 0.02}",
    "  2%|1         | 21/1233 [15:21<13:40:52, 40.64s/it]",
    *["{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 4.05e-06, 'epoch': 0.03}"] * 6,
    before=_HF,
)
_job(
    "Time-MoE/Time-MoE#71",
    "a gradient norm that is NaN now and then: mixed precision",
    "",
    _NOBODY,
    "{'loss': 0.1474, 'grad_norm': nan, 'learning_rate': 0.0001, 'epoch': 0.04}",
    "{'loss': 0.1549, 'grad_norm': 0.1899697184562683, 'learning_rate': 0.0001, 'epoch': 0.08}",
    "{'loss': 0.1864, 'grad_norm': 1.0229653120040894, 'learning_rate': 0.0001, 'epoch': 0.12}",
    "{'loss': 0.1819, 'grad_norm': nan, 'learning_rate': 0.0001, 'epoch': 0.15}",
    "{'loss': 0.1558, 'grad_norm': 0.7023305296897888, 'learning_rate': 0.0001, 'epoch': 0.19}",
    "{'loss': 0.1568, 'grad_norm': 1.4903326034545898, 'learning_rate': 0.0001, 'epoch': 0.23}",
    "{'loss': 0.1471, 'grad_norm': 0.27313581109046936, 'learning_rate': 0.0001, 'epoch': 0.27}",
)
_job(
    "LilyDaytoy/OpenPVSG#17",
    "srun cannot authenticate: munge is down",
    r"munge|[Mm]unge|scheduler|authenticat",
    _SRE,
    "+ srun -p super_priority --job-name=psg --gres=gpu:1 python -u tools/train.py --launcher=slurm",
    "srun: error: If munged is up, restart with --num-threads=10",
    'srun: error: Munge encode failed: Failed to access "/var/run/munge/munge.socket.2": No such file or directory',
    "srun: error: slurm_send_node_msg: auth_g_create: REQUEST_RESOURCE_ALLOCATION has authentication error",
    "srun: error: Srun communication socket apparently being written to by something other than Slurm",
)
_job(
    "snakemake/snakemake-executor-plugin-slurm#225",
    "Unable to layout tasks on given cpus",
    r"launch|start|scheduler",
    _SRE,
    "srun: error: JobId=125452 failed to distribute tasks (bind_type:threads,mask_cpu,one_thread) - this should never happen",
    "srun: error: Task launch for StepId=125452.4 failed on node $host: Unable to layout tasks on given cpus",
    "srun: error: Application launch failed: Unable to layout tasks on given cpus",
    "srun: Job step aborted",
)
_job(
    "DragonHPC/dragon#61",
    "Unable to create step",
    r"start|scheduler|step|launch",
    _SRE,
    "srun: error: Unable to create step for job 17627941: Requested node configuration is not available",
)
_job(
    "ArjunaCluster/ArjunaUsers#21",
    "slurm_script: No such file or directory",
    r"start|execve|not found|No such|own code",
    _SRE,
    "slurmstepd: error: execve(): /tmp/slurmd/job2997814/slurm_script: No such file or directory",
)
_job(
    "NVIDIA/nccl#1710",
    "async event: local access violation",
    NETWORK,
    _SRE,
    "$host:127799:127863 [0] transport/net_ib.cc:101 NCCL WARN NET/IB : mlx5_0:1 Got async event : local access violation work queue error",
    "$host:10214:10303 [0] transport/net_ib.cc:1909 NCCL WARN NET/IB : Got completion from peer 10.1.3.201<33057> with status=9 opcode=0 len=0 vendor err 138 (Send) localGid ::ffff:10.206.1.23 remoteGids::ffff:10.206.1.11",
    "$host:10214:10303 [0] NCCL INFO transport/net.cc:1137 -> 6",
    before="step=$step loss=$loss",
)
_job(
    "NVIDIA/nccl#1737",
    "completion with error 5",
    NETWORK,
    _SRE,
    *[
        "$host:7038:7053 [0] ib_plugin.c:1007 NCCL WARN NET/IB : Got completion from peer 10.1.32.3<54891> with error 5, opcode 0, len 0, vendor err 249",
        "$host:7038:7053 [0] NCCL INFO proxy.cc:872 -> 6 [Progress Thread]",
    ]
    * 3,
)
_job(
    "deepspeedai/DeepSpeed#4000",
    "exits with return code = -7",
    r"SIGBUS|[Bb]us error|shared memory|signal 7",
    _OWNER,
    "[2023-07-20 15:45:13,980] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 3966",
    "[2023-07-20 15:45:13,981] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 3967",
    "[2023-07-20 15:45:13,982] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', '-u', 'main.py', '--local_rank=1', '--deepspeed', 'deepspeed.json'] exits with return code = -7",
)
_job(
    "sgl-project/sglang#33393",
    "Scheduler watchdog timeout",
    r"watchdog|hang|stuck",
    _SRE,
    "[2026-08-03 07:12:31 DP1 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
    "[2026-08-03 07:12:36] Received sigquit from a child process. It usually means the child failed.",
)
_job(
    "NVIDIA/Megatron-LM#1880",
    "failed (exitcode: -11)",
    r"SIGSEGV|[Ss]egmentation|signal 11",
    _OWNER,
    "setting training iterations to 122070",
    "WARNING: could not find the metadata file checkpoints/",
    "E1021 11:37:54.000 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -11) local_rank: 0 (pid: $pid) of binary: /usr/bin/python",
)
_job(
    "NVIDIA/Megatron-LM#602",
    "iterations that run as they should",
    "",
    _NOBODY,
    *[
        f" iteration        {number}/ 2753818 | consumed samples:            {8 * number} | elapsed time per iteration (ms): 1119.{number} | learning rate: 1.000E-07 | global batch size:     8 | loss scale: 16384.0 | number of skipped iterations:   1 | number of nan iterations:   0 |"
        for number in range(1, 9)
    ],
)
_job(
    "facebookresearch/mmf#870",
    "progress of a run that trains",
    "",
    _NOBODY,
    *[
        f"2021-04-12T14:55:45 | mmf.trainers.callbacks.logistics: progress: {number}/22000, train/total_loss: 0.5{number % 97}, train/total_loss/avg: 0.5325, max mem: 4378.0, experiment: run, epoch: 2, num_updates: {number}, iterations: {number}, max_updates: 22000, lr: 0.00001, ups: 0.72, time: 02m 18s 331ms, time_since_start: 53m 30s 477ms, eta: 08h 20m 05s 546ms"
        for number in range(2100, 2900, 100)
    ],
)
_job(
    "jax-ml/jax#12456",
    "a segmentation fault on a TPU pod",
    r"SIGSEGV|[Ss]egmentation|signal 11",
    _OWNER,
    "UserWarning: TPU backend initialization is taking more than 60.0 seconds. Did you run your code on all TPU hosts?",
    "*** SIGSEGV (@(nil)), see gl__________41#s15 received by PID 11743 (TID 12350) on cpu 17; stack trace: ***",
    "PC: @     0x7facba4a8de2  (unknown)  (unknown)",
    "    @     0x7facbd838294        976  (unknown)",
)
_job(
    "pytorch/xla#7138",
    "SIGABRT while a TPU trains",
    r"SIGABRT|[Aa]bort|signal 6",
    _OWNER,
    "E0531 07:47:31.003927   10044 coredump_hook.cc:470] RAW: Remote crash data gathering hook invoked.",
    "E0531 07:47:31.003936   10044 coredump_hook.cc:509] RAW: Skipping coredump since rlimit was 0 at process start.",
    "*** SIGABRT received by PID 9361 (TID 9361) on cpu 40 from PID 9361; stack trace: ***",
    "PC: @     0x7f47cc096a7c  (unknown)  pthread_kill",
)
_job(
    "pytorch/xla#3024",
    "Check failed: session is not found",
    r"exception|RuntimeError|Session|Check failed",
    _OWNER,
    "RuntimeError: tensorflow/compiler/xla/xla_client/xrt_computation_client.cc:421 : Check failed: session->session()->Run(session_work->feed_inputs, session_work->outputs_handles, &outputs) == ::tensorflow::Status::OK() (Aborted: Session 018370a5591ff66c is not found. vs. OK)",
    "*** Begin stack trace ***",
    "\ttensorflow::CurrentStackTrace()",
    "*** End stack trace ***",
    before="step=$step loss=$loss",
)
_job(
    "ray-project/ray#53123",
    "ActorDiedError",
    r"[Aa]ctor|worker|Ray",
    _OWNER,
    "2025-06-19 10:35:10,319 ERROR tune_controller.py:1331 -- Trial task failed for trial XGBoostTrainer_e82c1_00000",
    "Traceback (most recent call last):",
    '  File "/home/rayenv/lib/python3.10/site-packages/ray/_private/worker.py", line 931, in get_objects',
    "    raise value",
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    "The actor is dead because its worker process has died.",
)
_job(
    "ray-project/ray#47461",
    "a worker died by an unexpected system error",
    r"worker|[Oo]ut of|memory|OOM",
    _SRE,
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check the logs for the dead worker. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage.",
    "(TorchTrainer pid=89392) Worker 0 has failed.",
    "2024-09-03 01:27:26,208   ERROR tune_controller.py:1331 -- Trial task failed for trial TorchTrainer_551a2_00000",
)
_job(
    "zunxbt/gensyn-testnet#10",
    "process group has NOT been destroyed",
    "",
    _NOBODY,
    "[rank0]:[W403 11:42:02.380967152 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group to ensure that any pending NCCL operations have finished in this process. In rare cases this process can exit before this point and block the progress of another member of the process group. This constraint has always been present,  but this warning has only been added since PyTorch 2.4 (function operator())",
)
_job(
    "anhvth/opensloth#17",
    "destroy_process_group() was not called before program exit",
    "",
    _NOBODY,
    "[rank0]:[W730 15:32:17.841273251 ProcessGroupNCCL.cpp:1479] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. For more info, please see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())",
    before="step=$step loss=$loss",
)
_job(
    "ByteDance-Seed/Bagel#86",
    "failed (exitcode: 1), its error is not shown",
    r"exception|exit ?code 1|own code",
    _OWNER,
    "wandb: Find logs at: wandb/offline-run-20250529_073900-run-run0/logs",
    "[rank0]:[W529 07:39:12.617444815 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.",
    "E0529 07:39:13.791000 10689 site-packages/torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 10754) of binary: /usr/local/bin/python3.10",
    "Traceback (most recent call last):",
    '  File "/usr/local/bin/torchrun", line 8, in <module>',
)
_job(
    "Ksuriuri/index-tts-vllm#93",
    "Application startup failed",
    r"start|[Ee]ngine|server",
    _OWNER,
    "frame #46: <unknown function> + 0x29d90 (0x7ff114366d90 in /usr/lib/x86_64-linux-gnu/libc.so.6)",
    "ERROR:    Application startup failed. Exiting.",
    ">> GPT weights restored from: /app/assets/checkpoints/gpt.pth",
)
_job(
    "NVIDIA/nvidia-container-toolkit#1227",
    "containers lose their GPUs after a daemon-reload",
    r"GPU|NVML|driver",
    _SRE,
    "Failed to initialize NVML: Unknown Error",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 304: OS call failed or operation not supported on this OS",
    before="step=$step loss=$loss",
)
_job(
    "facebookresearch/detectron2#384",
    "DataLoader worker exited unexpectedly",
    r"exception|DataLoader|RuntimeError|shared memory|worker",
    _OWNER,
    "Traceback (most recent call last):",
    '  File "train.py", line 210, in <module>',
    "RuntimeError: DataLoader worker (pid(s) 25) exited unexpectedly",
    before="step=$step loss=$loss",
)
_job(
    "hezhangsprinter/DCPDN#12",
    "DataLoader worker is killed by signal: Killed",
    r"SIGKILL|Killed|memory|signal 9",
    _OWNER,
    "Traceback (most recent call last):",
    '  File "train.py", line 210, in <module>',
    '  File "/envs/pic/lib/python2.7/site-packages/torch/utils/data/dataloader.py", line 175, in handler',
    "    _error_if_any_worker_fails()",
    "RuntimeError: DataLoader worker (pid 19597) is killed by signal: Killed.",
    before="step=$step loss=$loss",
)
_job(
    "ultralytics/yolov3#1151",
    "DataLoader worker is killed by signal: Bus error",
    r"[Bb]us error|shared memory",
    _OWNER,
    "Traceback (most recent call last):",
    '  File "train.py", line 267, in train',
    "RuntimeError: DataLoader worker (pid 3855) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
    before="step=$step loss=$loss",
)
# exporters -------------------------------------------------------------------------------------------------------------
_page(
    "utkuozdemir/nvidia_gpu_exporter#406",
    "an Xid of another exporter",
    r"Xid 79",
    _SRE,
    'nvidia_smi_xid_errors_total{uuid="1c67088e-9ecb-4564-bb97-6151ecc2ef64",xid="79"} 1',
)
_page(
    "ROCm/device-metrics-exporter#259",
    "counters of errors that stand at 0",
    "",
    _NOBODY,
    *[
        f'gpu_ecc_uncorrect_{block}{{card_model="",container="",gpu_compute_partition_type="none",gpu_id="0",gpu_partition_id="NA",hostname="$host",namespace="",pod="",serial_number=""}} 0'
        for block in ("hdp", "ih", "jpeg", "mca")
    ],
)
_page(
    "NVIDIA/dcgm-exporter#345",
    "memory busy 1 % while the GPU idles",
    "",
    _NOBODY,
    'DCGM_FI_DEV_MEM_COPY_UTIL{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="Tesla V100-PCIE-32GB",Hostname="$host"} 1',
    'DCGM_FI_DEV_GPU_UTIL{gpu="$gpu",UUID="GPU-$n",device="nvidia0",modelName="Tesla V100-PCIE-32GB",Hostname="$host"} 10',
)
# Kubernetes ------------------------------------------------------------------------------------------------------------
_kubernetes(
    "NVIDIA/k8s-device-plugin#231",
    "GPU is lost: its node admits no GPU pod",
    r"GPU is lost|reject|device|[Aa]dmission",
    _SRE,
    pod(
        "Failed",
        {
            "reason": "UnexpectedAdmissionError",
            "message": "Pod Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = Unable to retrieve list of available devices: error creating nvml.Device 3: nvml: GPU is lost, which is unexpected",
        },
    ),
)
_kubernetes(
    "Project-HAMi/volcano-vgpu-device-plugin#93",
    "device number not matched",
    r"reject|device|[Aa]dmission|Allocat",
    _SRE,
    pod(
        "Failed",
        {
            "reason": "UnexpectedAdmissionError",
            "message": "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = device number not matched, which is unexpected",
        },
    ),
)
_kubernetes(
    "AliyunContainerService/gpushare-scheduler-extender#42",
    "unknown device id: no-gpu-has-2MiB-to-run",
    r"device|runtime|GPU",
    _SRE,
    pod(
        "Pending",
        container={
            "state": {
                "waiting": {
                    "reason": "RunContainerError",
                    "message": 'failed to start container "binpack-1": Error response from daemon: oci runtime error: container_linux.go:235: starting container process caused "process_linux.go:339: running prestart hook 0 caused \\"error running hook: exit status 1, stdout: , stderr: nvidia-container-cli: device error: unknown device id: no-gpu-has-2MiB-to-run"',
                }
            }
        },
    ),
)
_kubernetes(
    "NVIDIA/gpu-operator#2168",
    "no runtime for nvidia is configured",
    r"sandbox|runtime",
    _SRE,
    pod("Pending", container={"state": {"waiting": {"reason": "ContainerCreating"}}}),
    event(
        "FailedCreatePodSandBox",
        'Failed to create pod sandbox: rpc error: code = Unknown desc = unable to get OCI runtime for sandbox "a5b1e58fbff7a57c494bf8d022252ba7d195fe4cb86134584bdf8045198d03ad": no runtime for "nvidia" is configured',
    ),
)
_kubernetes(
    "nds-org/jupyter-et#13",
    "PLEG is not healthy for 16 hours",
    r"[Rr]eady|PLEG|node",
    _SRE,
    condition(
        "Ready",
        "False",
        "KubeletNotReady",
        "PLEG is not healthy: pleg was last seen active 16h17m50.791825508s ago; threshold is 3m0s",
    ),
)
_kubernetes(
    "gesiscss/orc#21",
    "a node went down",
    r"[Rr]eady|PLEG|node",
    _SRE,
    condition(
        "Ready",
        "False",
        "KubeletNotReady",
        "PLEG is not healthy: pleg was last seen active 10m18.040734348s ago; threshold is 3m0s",
    ),
)
_kubernetes(
    "kubernetes/kubernetes#72533",
    "container runtime is down",
    r"[Rr]eady|runtime|node",
    _SRE,
    condition(
        "Ready",
        "False",
        "KubeletNotReady",
        "container runtime is down,PLEG is not healthy: pleg was last seen active 3m35s ago; threshold is 3m0s",
    ),
)
_kubernetes(
    "kubernetes/kubernetes#61117",
    "conditions of a node that is well",
    "",
    _NOBODY,
    condition("NetworkUnavailable", "False", "CalicoIsUp", "Calico is running on this node"),
    condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
)
_kubernetes(
    "Tanguille/cluster#4104",
    "TaskHung, an event of node-problem-detector",
    r"TaskHung|blocked|hung",
    _SRE,
    event(
        "TaskHung",
        "task khungtest:1 blocked for more than 120 seconds.",
        kind="Node",
        component="kernel-monitor",
    ),
)
_kubernetes(
    "yandex-cloud/k8s-csi-s3#185",
    "timed out waiting for a mount",
    r"[Vv]olume|mount",
    _SRE,
    pod("Pending", container={"state": {"waiting": {"reason": "ContainerCreating"}}}),
    event(
        "FailedMount",
        'MountVolume.MountDevice failed for volume "dify-plugin-daemon-minio-pv" : rpc error: code = Unknown desc = Timeout waiting for mount',
    ),
    event(
        "FailedMount",
        "Unable to attach or mount volumes: unmounted volumes=[webroot], unattached volumes=[webroot kube-api-access-sn6rt]: timed out waiting for the condition",
    ),
)
_kubernetes(
    "NVIDIA/k8s-device-plugin#106",
    "a container that has done its work is started again: no fault",
    "",
    _NOBODY,
    pod(
        "Running",
        container={
            "restartCount": 2,
            "state": {
                "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s restarting failed container"}
            },
            "lastState": {"terminated": {"exitCode": 0, "reason": "Completed"}},
        },
    ),
)
_kubernetes(
    "canonical/microk8s#1370",
    "pods evicted",
    r"[Ee]vict",
    _SRE,
    pod("Failed", {"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage. "}),
)

BATCH: tuple[FieldReport, ...] = tuple(_REPORTS.reports)
