"""Sixty-odd public reports, collected on 2026-11-25 by search for symptoms, before any of them was run.

The right answers were written down with them. Lines are shortened, in our own words where the wording is not the
fact, and all values are drawn anew. `benchmarks/results/field_batch_1.json` holds the first try.
"""

# ruff: noqa: E501 -- log lines are as long as they are
from __future__ import annotations

from benchmarks.field.report import FieldReport, job, kernel

_HF = "{'loss': $loss, 'grad_norm': $norm, 'learning_rate': 2.04e-06, 'epoch': 0.01}"
_MEGATRON = (
    " iteration     $step/  250000 | consumed samples:        43408 | elapsed time per iteration (ms): 4247.9 "
    "| learning rate: 2.999E-04 | global batch size:     8 | lm loss: ${loss}E+00 | loss scale: 1.0 "
    "| grad norm: $norm | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
_MEGATRON_NAN = (
    " iteration     $step/  250000 | consumed samples:        43416 | elapsed time per iteration (ms): 4225.8 "
    "| learning rate: 2.999E-04 | global batch size:     8 | loss scale: 1.0 | grad norm: nan "
    "| number of skipped iterations:   0 | number of nan iterations:   0 |"
)
_NANOTRON = (
    "10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: $step / 378950 | consumed_tokens: 85.8G "
    "| elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 11.4K "
    "| global_batch_size: 64 | lm_loss: $loss | lr: 1e-05 | model_tflops_per_gpu: 38.3 | grad_norm: $norm"
)
_MAXTEXT = (
    "I0811 21:55:06.119312 138304841739136 metric_logger.py:226] completed step: $step, seconds: 10.228, "
    "TFLOP/s/device: 350.869, Tokens/s/device: 19222.175, total_weights: 1572864, loss: $loss, lm_loss: $loss, "
    "perplexity: 433463.719"
)
_NEMO = (
    "Training epoch 0, iteration $step/14900 | lr: 3e-05 | consumed_samples: 121 | global_batch_size: 1 "
    "| global_step: $step | reduced_train_loss: $loss | train_step_timing in s: 0.03146 | val_loss: 4.106"
)
_NANOGPT = "iter $step: loss $loss, time 561.94ms"
_ELASTIC = (
    "E0325 20:57:27.620000 $pid site-packages/torch/distributed/elastic/multiprocessing/api.py:869] failed "
    "(exitcode: $code) local_rank: 5 (pid: $pid) of binary: /opt/conda/bin/python"
)
_WATCHDOG = (
    "[rank$gpu]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank $gpu] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=$n, OpType=$op, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for "
    "600060 milliseconds before timing out."
)
_HANG = r"hang|NCCL|collective|stuck|stopped"
_CRASH = r"crash|exit|ended|killed|fail"


def _elastic(code: int) -> str:
    return _ELASTIC.replace("$code", str(code))


def _watchdog(operation: str) -> str:
    return _WATCHDOG.replace("$op", operation)


BATCH: tuple[FieldReport, ...] = (
    # the driver ------------------------------------------------------------------------------------------------------
    kernel(
        "NVIDIA/NVSentinel#155",
        r"fallen off|fell off|GPU lost|not responding",
        "NVRM: The NVIDIA GPU $pci.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    ),
    kernel(
        "leptonai/gpud#1209",
        r"fallen off|fell off|GPU lost|not responding",
        "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link INIT",
        "EXT4-fs (md127p3): re-mounted 0f3cd65a-338b-4574-bba3-ecef214e1917 r/w. Quota mode: none.",
        "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE",
        "NVRM: The NVIDIA GPU $pci.0\n               NVRM: (PCI ID: 10de:2901) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.",
    ),
    kernel(
        "NVIDIA/open-gpu-kernel-modules#789",
        r"RmInitAdapter|initiali[sz]|GSP",
        "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
        "NVRM: GPU $pci.0: RmInitAdapter failed! (0x62:0x65:1792)",
        "NVRM: GPU $pci.0: rm_init_adapter failed, device minor number 0",
    ),
    kernel(
        "NVIDIA/gpu-operator#1146",
        r"RmInitAdapter|initiali[sz]",
        *[
            "NVRM: GPU $pci.0: RmInitAdapter failed! (0x24:0x72:1568)",
            "NVRM: GPU $pci.0: rm_init_adapter failed, device minor number 5",
        ]
        * 4,
    ),
    kernel(
        "Bumblebee-Project/Bumblebee#722",
        r"RmInitAdapter|initiali[sz]|adapter",
        "NVRM: RmInitAdapter failed! (0x26:0xffff:1375)",
        "NVRM: rm_init_adapter failed for device bearing minor number 0",
        "NVRM: nvidia_frontend_open: minor 0, module->open() failed, error -5",
    ),
    kernel(
        "ValveSoftware/SteamOS#209",
        r"driver|adapter|init|load",
        "NVRM: No NVIDIA graphics adapter found!",
        "NVRM: NVIDIA init module failed!",
    ),
    kernel(
        "tinygrad/open-gpu-kernel-modules#47",
        r"mismatch|version",
        "NVRM: API mismatch: the client has the version 570.195.03, but\n"
        "NVRM: this kernel module has the version 570.124.06.  Please\n"
        "NVRM: make sure that this kernel module and all NVIDIA driver\n"
        "NVRM: components have the same version.",
    ),
    kernel(
        "NVIDIA/nvidia-docker#1553",
        r"Xid 79|fallen off",
        "NVRM: GPU at PCI:$pci: GPU-26fba6b2-9e52-006e-68db-4ce18382a5ea",
        "NVRM: GPU Board Serial Number:",
        "NVRM: Xid (PCI:$pci): 79, pid=0, GPU has fallen off the bus.",
        "NVRM: GPU $pci.0: GPU has fallen off the bus.",
        "NVRM: A GPU crash dump has been created. If possible, please run\n"
        "NVRM: nvidia-bug-report.sh as root to collect this data before\n"
        "NVRM: the NVIDIA kernel module is unloaded.",
        "pcieport 0000:00:01.1: AER: Corrected error received: 0000:00:00.0",
        "pcieport 0000:00:01.1: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)",
    ),
    kernel(
        "leptonai/gpud#500",
        r"Xid 119|GSP",
        "NVRM: Xid (PCI:$pci): 119, pid=$pid, name=python, Timeout after 45s of waiting for RPC response from GPU4 GSP! "
        "Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x4).",
        "NVRM: Xid (PCI:$pci): 119, pid=28232, name=cache_mgr_main, Timeout after 45s of waiting for RPC response from "
        "GPU4 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20810108 0x3e0).",
    ),
    kernel(
        "NVIDIA/open-gpu-kernel-modules#1230, its first minute",
        r"GSP|heartbeat",
        "NVRM: GPU$gpu _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 812751949 heartbeat 1899482 "
        "heartbeatWithOffsetMs 812745879 diff 6070 timeout 5200",
        "NVRM: GPU$gpu _threadNodeCheckTimeout: _threadNodeCheckTimeout: Timeout was set to: 4000 msecs!",
        "NVRM: GPU$gpu _kgspLogRpcTimeout: ********************************* GSP Timeout **********************",
    ),
    kernel(
        "NVIDIA/open-gpu-kernel-modules#1230, its second minute",
        r"GSP|reset|RmInitAdapter|initiali[sz]",
        "NVRM: GPU$gpu _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
        "NVRM: GPU$gpu _kgspBootGspRm: (the GPU is likely in a bad state and may need to be reset)",
        "NVRM: GPU$gpu RmInitAdapter: Cannot initialize GSP firmware RM",
    ),
    kernel(
        "NVIDIA/open-gpu-kernel-modules#829",
        r"Xid 120|GSP",
        "NVRM: kgspHealthCheck_TU102: ****************************** GSP-CrashCat Report **************************",
        "NVRM: Xid (PCI:$pci): 120, GSP task exception: load access page fault (cause:0xd) @ pc:0x140ca4a, "
        "partition:4#0, task:3",
        "NVRM:     Reported by libos partition:4#5 kernel v3.1 [0] @ ts:2",
    ),
    kernel(
        "leptonai/gpud#1174, fatal",
        r"Xid 149|NVLink",
        "NVRM: Xid (PCI:$pci): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000 "
        "0x00000000 0x00000000)",
    ),
    kernel(
        "leptonai/gpud#1174, contained",
        r"Xid 94|[Cc]ontained",
        "NVRM: Xid (PCI:$pci): 94, pid=$pid, name=python3, Contained ECC error",
    ),
    kernel(
        "wtdcode/vllm-backport#62",
        r"Xid 48|Xid 94|uncorrect|double",
        "NVRM: Xid (PCI:$pci): 48, pid=$pid, name=python3, An uncorrectable double bit error (DBE) has been detected on "
        "GPU in the framebuffer at partition 9, subpartition 1.",
        "NVRM: Xid (PCI:$pci): 63, pid=$pid, name=python3, Row Remapper: New row marked for remapping, reset gpu to "
        "activate.",
        "NVRM: Xid (PCI:$pci): 94, pid=$pid, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
        "NVRM: Xid (PCI:$pci): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
    ),
    kernel(
        "NVIDIA/open-gpu-kernel-modules#1150",
        r"Xid 149|NVLink",
        "NVRM: Xid (PCI:$pci): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x0 0x0 0x0 0x0 0x0)",
        "NVRM: Xid (PCI:$pci): 45, pid=$pid, name=python3, Ch 00000001 caused by previous Xid 149",
        "NVRM: Xid (PCI:$pci): 45, pid=$pid, name=python3, Ch 00000002 caused by previous Xid 149",
    ),
    kernel(
        "leptonai/gpud#46",
        r"Xid 13|Xid 109|illegal|CTX",
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
        "NVRM: Xid (PCI:$pci): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): "
        "Illegal Instruction Parameter",
        "NVRM: Xid (PCI:$pci): 109, pid=$pid, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info "
        "0x58005",
    ),
    kernel(
        "leptonai/gpud#338",
        r"SXid 12028",
        "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Fatal, Link 12 egress non-posted PRIV error (First)",
        "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Severity 1 Engine instance 12 Sub-engine instance 00",
        "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Data {0x000001c0, 0x00bd5c8a, 0x00000500, 0x00000064}",
    ),
    kernel(
        "NVIDIA/gpu-operator#610",
        r"[Ff]abric",
        "request to query NVSwitch device information from NVSwitch driver failed with error:WARNING Nothing to do "
        "[NV_WARN_NOTHING_TO_DO]",
        program="nv-fabricmanager[$pid]",
    ),
    kernel(
        "NVIDIA/NVSentinel#883",
        r"[Ff]abric",
        "nvidia-fabricmanager.service: Main process exited, code=killed, status=9/KILL",
        "nvidia-fabricmanager.service: Failed with result 'signal'.",
        program="systemd[1]",
    ),
    # the host --------------------------------------------------------------------------------------------------------
    kernel(
        "rwth-i6/returnn#1500",
        r"PCIe|AER|bus error",
        "pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:00:03.0",
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
        "pcieport 0000:00:03.0:   device [8086:6f08] error status/mask=00004020/00000000",
        "pcieport 0000:00:03.0:    [14] CmpltTO                (First)",
        "nvidia $pci.0: AER: can't recover (no error_detected callback)",
        "pcieport 0000:00:03.0: AER: device recovery failed",
    ),
    kernel(
        "pop-os/pop#3363, four corrected errors",
        "",
        *[
            "pcieport 0000:00:03.1: AER: Correctable error message received from 0000:00:00.0",
            "pcieport 0000:00:03.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
        ]
        * 4,
        opens=False,
    ),
    kernel(
        "leptonai/gpud#1164",
        "",
        *[
            "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid $pid): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x9a6171), err(-22)"
        ]
        * 3,
        opens=False,
    ),
    kernel(
        "geerlingguy/arm-nas#16",
        "",
        "mlx5_core 0004:01:00.0: firmware version: 16.27.2048",
        "mlx5_core 0004:01:00.0: 63.008 Gb/s available PCIe bandwidth (8.0 GT/s PCIe x8 link)",
        "mlx5_core 0004:01:00.0: Port module event: module 0, Cable plugged",
        "mlx5_core 0004:01:00.0: mlx5_pcie_event:294:(pid 542): PCIe slot advertised sufficient power (75W).",
        opens=False,
    ),
    kernel(
        "NVIDIA/NVSentinel#1236",
        r"[Ll]ink|port|NIC",
        "mlx5_core 0000:a1:00.0 mlx5_3: Port: 1 Link DOWN",
        "mlx5_core 0000:a1:00.0: mlx5_port_module_event: Port module event[error]: module 0, Cable error, Bus stuck",
    ),
    kernel(
        "oxidecomputer/propolis#578",
        r"NVMe|nvme|disk|storage",
        "nvme nvme1: I/O $n QID 2 timeout, aborting",
        "nvme nvme1: Abort status: 0x6",
        "nvme nvme1: I/O $n QID 2 timeout, reset controller",
        "nvme nvme1: Device not ready; aborting reset, CSTS=0x1",
        "nvme nvme1: Removing after probe failure status: -19",
    ),
    kernel(
        "linux-nvme/nvme-cli#151",
        r"NVMe|nvme|disk|storage",
        "nvme nvme2: I/O 0 QID 0 timeout, reset controller",
        "nvme nvme2: Device not ready; aborting reset",
        "nvme nvme2: Removing after probe failure status: -19",
        "nvme2n1: detected capacity change from 800166076416 to 0",
    ),
    kernel(
        "Cosmos-OpenSSD/OCSSD-plus#5",
        r"NVMe|nvme|disk|storage",
        *["nvme nvme0: I/O $n QID 1 timeout, disable controller"] * 5,
    ),
    kernel(
        "raspberrypi/linux#6661, a clean unmount",
        "",
        "EXT4-fs (nvme0n1p3): mounted filesystem 08870205-494a-4ccd-a77b-5d0acea2400f r/w with ordered data mode.",
        "EXT4-fs (nvme0n1p3): unmounting filesystem 08870205-494a-4ccd-a77b-5d0acea2400f.",
        opens=False,
    ),
    kernel(
        "madMAx43v3r/chia-plotter#535",
        r"lockup",
        "watchdog: BUG: soft lockup - CPU#$n stuck for 22s! [chia_plot:$pid]",
    ),
    kernel(
        "deepspeedai/DeepSpeed#925",
        r"lockup",
        "[UFW BLOCK] IN=enp6s0 OUT= MAC=01:00:5e:00:00:01 SRC=0.0.0.0 DST=224.0.0.1 LEN=32 PROTO=2",
        "watchdog: BUG: soft lockup - CPU#7 stuck for 23s! [pytest:$pid]",
        "Modules linked in: xt_recent bluetooth ecc xt_nat veth edac_mce_amd nvidia_uvm(OE)",
    ),
    kernel(
        "Open-CAS/ocf#408",
        r"lockup|LOCKUP",
        "NMI watchdog: Watchdog detected hard LOCKUP on cpu 79",
    ),
    kernel(
        "reportportal/kubernetes#203",
        r"memory|OOM",
        "uwsgi invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=986",
        "Memory cgroup out of memory: Killed process $pid (python) total-vm:3149468kB, anon-rss:164992kB, "
        "file-rss:52176kB, shmem-rss:92kB, UID:0 pgtables:1372kB oom_score_adj:986",
        "oom_reaper: reaped process $pid (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:92kB",
    ),
    # jobs that end ---------------------------------------------------------------------------------------------------
    job(
        "OpenBMB/MiniCPM-V#770",
        rf"SIGKILL|signal 9|out of memory|{_CRASH}",
        _elastic(-9),
        "Traceback (most recent call last):",
        '  File "/opt/conda/bin/torchrun", line 8, in <module>',
        "    sys.exit(main())",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        before=_HF,
    ),
    job(
        "lzhxmu/CPPO#6",
        rf"SIGKILL|signal 9|out of memory|{_CRASH}",
        "    raise ChildFailedError(",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "============================================================",
        "src/open_r1/grpo.py FAILED",
        "------------------------------------------------------------",
        "Failures:",
        "  <NO_OTHER_FAILURES>",
        "------------------------------------------------------------",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2025-05-21_15:43:03",
        "  host      : $host",
        "  rank      : 0 (local_rank: 0)",
        "  exitcode  : -9 (pid: $pid)",
        "  error_file: <N/A>",
        "  traceback : Signal 9 (SIGKILL) received by PID $pid",
        "============================================================",
        before=_HF,
    ),
    job(
        "pytorch/pytorch#175254",
        rf"SIGSEGV|signal 11|segmentation|{_CRASH}",
        _elastic(-11),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "train.py FAILED",
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : $gpu (local_rank: $gpu)",
        "  exitcode  : -11 (pid: $pid) (SIGSEGV)",
        "  traceback : Signal 11 (SIGSEGV) received by PID $pid",
        before=_HF,
    ),
    job(
        "Facico/Chinese-Vicuna#113",
        _CRASH,
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: $pid) of binary: "
        "/opt/conda/bin/python",
        "Traceback (most recent call last):",
        '  File "/opt/conda/bin/torchrun", line 8, in <module>',
        "    sys.exit(main())",
    ),
    job("hiyouga/LlamaFactory#7396", _HANG, _watchdog("ALLREDUCE"), before=_HF),
    job("hiyouga/LlamaFactory#6269", _HANG, _watchdog("_REDUCE_SCATTER_BASE"), before=_HF),
    job(
        "pytorch/pytorch#118369",
        _HANG,
        "Epoch 0:   6%|██       | 32040/500150 [6:28:43<94:39:17,  1.37it/s, loss=2.6, v_num=95nc, "
        "reduced_train_loss=2.590, global_step=3.2e+4][E ProcessGroupNCCL.cpp:458] [Rank 0] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=$n, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 25624887 milliseconds "
        "before timing out.",
    ),
    job(
        "sgl-project/sglang#1693",
        _HANG,
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [PG 3 Rank $gpu] Process group watchdog thread terminated with exception: [Rank $gpu] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=9141, OpType=_ALLGATHER_BASE, NumelIn=19008, NumelOut=152064, "
        "Timeout(ms)=600000) ran for 600020 milliseconds before timing out.",
    ),
    job(
        "kohya-ss/sd-scripts#1434",
        r"ECC",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.",
        "[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable "
        "ECC error encountered",
    ),
    job(
        "NVIDIA/semantic-segmentation#33",
        r"ECC",
        "RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at "
        "/pytorch/aten/src/THC/THCCachingHostAllocator.cpp:265",
        "terminate called without an active exception",
    ),
    job(
        "nagadit/DeepFaceLab_Linux#89",
        r"ECC",
        "F tensorflow/stream_executor/lib/statusor.cc:34] Attempting to fetch value instead of handling error Internal: "
        "failed initializing StreamExecutor for CUDA device ordinal 0: Internal: failed call to "
        "cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered",
    ),
    job(
        "hkchengrex/STCN#132",
        r"shared memory|[Bb]us error|shm",
        "RuntimeError: DataLoader worker (pid $pid) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit.",
    ),
    job(
        "msr-fiddle/pipedream#28",
        r"shared memory|[Bb]us error|shm",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "Traceback (most recent call last):",
        "RuntimeError: DataLoader worker (pid $pid) is killed by signal: Bus error.",
    ),
    job(
        "ZettaAI/zetta_utils#671",
        r"[Tt]ime limit|TIME LIMIT",
        "srun: Job step aborted: Waiting up to 47 seconds for job step to finish.",
        "slurmstepd: error: *** JOB $n ON $host CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***",
        before=_HF,
    ),
    job(
        "desihub/desitarget#628",
        r"[Tt]ime limit|TIME LIMIT",
        "srun: Force Terminated job $n",
        "slurmstepd: error: *** STEP $n.0 ON $host CANCELLED AT 2020-07-03T02:59:56 DUE TO TIME LIMIT ***",
        "srun: error: $host: tasks 2,4-5,7: Terminated",
    ),
    job(
        "NVIDIA/nccl#1405",
        r"NCCL|network|InfiniBand|IB",
        "kp-ddp-worker-0:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer "
        "10.216.210.236<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fd00::ff22 remoteGidsfd00::ff1f",
        "kp-ddp-worker-0:3468:3905 [4] NCCL INFO transport/net.cc:1302 -> 6",
        before=_HF,
    ),
    job(
        "NVIDIA/nccl#928",
        r"NCCL|network|InfiniBand|IB",
        "H100-2:19989:20082 [1] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
        "fe80::966d:ae03:8b:df78%ib0<53249> with error 4, opcode 32564, len 32564, vendor err 81 (Send)",
    ),
    job(
        "ultralytics/ultralytics#19744",
        r"busy|unavailable",
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.",
    ),
    job(
        "databrickslabs/dolly#139",
        r"space|disk|storage",
        "2023-04-29 06:01:12.977 [177/train/578 (pid $pid)] Traceback (most recent call last):",
        "2023-04-29 06:01:12.977 [177/train/578 (pid $pid)]     zip_file.write_record(name, storage.data_ptr(), num_bytes)",
        "2023-04-29 06:01:12.977 [177/train/578 (pid $pid)] OSError: [Errno 28] No space left on device",
        before=_HF,
    ),
    job(
        "hiyouga/LlamaFactory#5155",
        r"space|disk|storage",
        'safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No '
        'space left on device" })',
        before=_HF,
    ),
    job(
        "open-mmlab/mmdetection#12069",
        r"quota|space|disk|storage",
        "12/09 06:49:23 - mmengine - INFO - Saving checkpoint at 14 epochs",
        "Traceback (most recent call last):",
        '  File "tools/train.py", line 122, in <module>',
        "    main()",
        "OSError: [Errno 122] Disk quota exceeded",
    ),
    job(
        "pytorch/pytorch#107021",
        r"connect|rendezvous|c10d|C10d",
        "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to $host:29500",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. "
        "See inner exception for details.",
    ),
    job(
        "kubeflow/website#4186",
        r"connect|rendezvous|c10d|TCPStore|peer",
        "[W822 03:54:49.636977195 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=15, addr=[node-0-1]:60560, "
        "remote=[node-0-0]:29500): failed to recv, got 0 bytes",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    ),
    job(
        "huggingface/trl#3436",
        r"out of memory|memory",
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 388.00 MiB. GPU 0 has a total capacity of "
        "79.68 GiB of which 95.75 MiB is free. Including non-PyTorch memory, this process has 79.54 GiB memory in use.",
    ),
    job(
        "Lightning-AI/litgpt#303",
        r"out of memory|memory",
        "Traceback (most recent call last):",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.06 GiB. GPU 1 has a total capacty of 23.70 "
        "GiB of which 1.60 GiB is free.",
        before="iter $step step 53: loss $loss, iter time: 400.10ms",
    ),
    job(
        "vllm-project/vllm#28028",
        rf"illegal memory|engine|{_CRASH}",
        "(Worker_TP0 pid=$pid) ERROR 11-03 23:14 [multiproc_executor.py:671] torch.AcceleratorError: CUDA error: an illegal "
        "memory access was encountered",
        "(EngineCore_DP0 pid=$pid) ERROR 11-03 23:14 [core.py:710] EngineCore encountered a fatal error.",
        "(APIServer pid=1) ERROR 11-03 23:14 [async_llm.py:525] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
        "encountered an issue. See stack trace (above) for the root cause.",
    ),
    job(
        "vllm-project/vllm#18045",
        rf"illegal instruction|engine|{_CRASH}",
        "(VllmWorker rank=3 pid=$pid) RuntimeError: CUDA error: an illegal instruction was encountered",
        "INFO 05-12 19:01:18 [async_llm.py:324] Request chatcmpl-3dd5c7cd failed (engine dead).",
    ),
    job(
        "vllm-project/vllm#27549",
        rf"engine|{_CRASH}",
        "ERROR 10-27 08:12:01 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
    ),
    # jobs with figures that show it ----------------------------------------------------------------------------------------
    job(
        "hiyouga/LlamaFactory#8261",
        r"loss|nan|non-finite|zero|grad",
        *["{'loss': 0.0, 'grad_norm': 1.4142135381698608, 'learning_rate': 4.3e-06, 'epoch': 0.01}"] * 12,
        before=_HF,
    ),
    job(
        "bigscience-workshop/Megatron-DeepSpeed#396",
        r"nan|NaN|non-finite|not a number|grad",
        *[_MEGATRON_NAN] * 12,
        before=_MEGATRON,
    ),
    job(
        "karpathy/nanoGPT#167",
        r"nan|NaN|non-finite|not a number|loss",
        *["iter $step: loss nan, time 563.15ms"] * 6,
        before=_NANOGPT,
    ),
    job("NVIDIA-NeMo/Megatron-Bridge#4024, healthy lines", "", *[_MEGATRON] * 20, opens=False, before=_MEGATRON),
    job("huggingface/nanotron#390, healthy lines", "", *[_NANOTRON] * 20, opens=False, before=_NANOTRON),
    job("AI-Hypercomputer/maxtext#4847, healthy lines", "", *[_MAXTEXT] * 20, opens=False, before=_MAXTEXT),
    job("NVIDIA-BioNeMo/bionemo-recipes#740, healthy lines", "", *[_NEMO] * 20, opens=False, before=_NEMO),
    job("karpathy/nanoGPT#110, healthy lines", "", *[_NANOGPT] * 20, opens=False, before=_NANOGPT),
)
