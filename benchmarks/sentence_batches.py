"""Sentences as a language model writes them over real lines: right ones and wrong ones, in batches.

Each batch was committed before the rules of `nightshift.agent.rca.sentences` were run on it; what they did at the
first try stands in `results/sentence_traps.json`. All are written by hand; no language model was asked. The lines
are those of drivers, NCCL, PyTorch, Slurm and Kubernetes, from public reports. A wrong sentence has a true quote.
"""

# ruff: noqa: E501 -- lines of logs are as long as they are
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.agent.store.diagnosis import FACTS, LOG, SERIES, Evidence

T_S = 1_767_229_200.0
"""01:00:00 UTC, the time of the first line."""


def log(name: str, query: str, title: str, *lines: tuple[float, str]) -> Evidence:
    content = "\n".join(f"{T_S + at:.3f}\t{text}" for at, text in lines).encode()
    return Evidence(name, f"log of {query}", query, T_S, T_S + 600, LOG, content, title)


def facts(name: str, media_type: str, query: str, title: str, value: Any) -> Evidence:
    content = json.dumps(value, separators=(",", ":")).encode()
    return Evidence(name, "inventory", query, T_S, T_S + 600, media_type, content, title)


@dataclass(frozen=True)
class Batch:
    """`right` and `wrong` are (sentence, evidence id, quote); `context` is what the rules say of the incident."""

    evidence: tuple[Evidence, ...]
    context: str
    right: Sequence[tuple[str, str, str]]
    wrong: Sequence[tuple[str, str, str]]


XID = "NVRM: Xid (PCI:0000:1b:00): 119, pid=2112, name=python3, Timeout after 45s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL)."
HEARTBEAT = "NVRM: GPU0 _kgspIsHeartbeatTimedOut: Heartbeat timed out, diff 6070 timeout 5200"
BOOTER = "NVRM: GPU0 kgspExecuteBooterUnloadIfNeeded: failed to execute Booter Unload: 0x62"
AER = "pcieport 0000:00:01.2: AER: Uncorrectable (Non-Fatal) error received from 0000:1b:00.0"
RECOVERY = "pcieport 0000:62:00.0: AER: device recovery failed"
NVME = "nvme nvme1: I/O 342 QID 7 timeout, aborting"
EXT4 = "EXT4-fs error (device nvme1n1p1): ext4_find_entry:1455: inode #2: comm kubelet: reading directory lblock 0"
OOM_KILL = "Memory cgroup out of memory: Killed process 48213 (python3) total-vm:91234560kB, anon-rss:62914560kB, file-rss:0kB, UID:1000 oom_score_adj:985"
FLAP, CARRIER = "mlx5_core 0000:9a:00.0 ens2f0np0: Link down", "mlx5_core 0000:9a:00.0 ens2f0np0: Link up"
CUDA_OOM = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 1 has a total capacity of 79.10 GiB of which 1.02 GiB is free."
QP = "gpu-n15:2201:2330 [0] NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out"
WATCHDOG_0 = "[rank0]:[E1125 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15021, OpType=ALLREDUCE, NumelIn=58720256, NumelOut=58720256, Timeout(ms)=600000) ran for 600011 milliseconds before timing out."
WATCHDOG_1 = "[rank1]:[E1125 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15020, OpType=REDUCE_SCATTER, NumelIn=58720256, NumelOut=58720256, Timeout(ms)=600000) ran for 600011 milliseconds before timing out."
NAN = "iteration 46100/ 100000 | elapsed time per iteration (ms): 912.4 | learning rate: 1.500000E-04 | global batch size: 512 | lm loss: NaN | grad norm: nan | number of skipped iterations: 0 | number of nan iterations: 1 |"
LIMIT = "slurmstepd: error: *** JOB 88123 ON gpu-n14 CANCELLED AT 2026-01-01T01:08:00 DUE TO TIME LIMIT ***"
LOADER = "RuntimeError: DataLoader worker (pid 7194) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit."
PULL = 'Failed to pull image "registry.example.com/ml/trainer:1": not found'
SCHEDULE = (
    "0/12 nodes are available: 3 Insufficient nvidia.com/gpu, 9 node(s) had untolerated taint {maintenance: true}."
)
MOUNT = 'MountVolume.SetUp failed for volume "data" : rpc error: code = DeadlineExceeded desc = context deadline exceeded'
PROBE = "Liveness probe failed: HTTP probe failed with statuscode: 503"
RUNTIME = '"message":"container runtime is down"'
DRIVER = '"driver":"550.54.15"'
LEAK = "GPU memory of pod ml/llama-2 grew 1.2 GiB an hour for 5 h; full in 7 h"

FIRST = Batch(
    evidence=(
        log("E1", "gpu-n14", "kernel events of gpu-n14", (0, HEARTBEAT), (1, XID), (2, BOOTER), (60, AER), (61, RECOVERY),
            (120, NVME), (121, EXT4), (200, OOM_KILL)),
        log("E2", "gpu-n15", "kernel events of gpu-n15", (30, FLAP), (34, CARRIER)),
        log("E3", "ml/llama", "log of ml/llama", (250, CUDA_OOM), (300, QP), (400, WATCHDOG_0), (401, WATCHDOG_1), (402, NAN),
            (480, LIMIT), (490, LOADER)),
        log("E4", "pod:ml/llama-2", "what Kubernetes says of ml/llama-2", (500, PULL), (510, SCHEDULE), (520, MOUNT), (530, PROBE)),
        facts("E5", FACTS, "gpu-n14", "what Kubernetes says of gpu-n14",
              {"driver": "550.54.15", "message": "container runtime is down", "ready": "False"}),
        facts("E6", FACTS, "who held what", "topology", {"above": {
            "gpu:GPU-0014": ["job:ml/llama", "node:gpu-n14", "pod:ml/llama-0"],
            "gpu:GPU-0015": ["job:ml/llama", "node:gpu-n15", "pod:ml/llama-1"],
            "pod:ml/llama-2": ["job:ml/llama", "node:gpu-n16"],
            "rank:ml/llama#0": ["job:ml/llama", "node:gpu-n14", "pod:ml/llama-0"],
            "rank:ml/llama#1": ["job:ml/llama", "node:gpu-n15", "pod:ml/llama-1"]}}),
        facts("E7", FACTS, "findings", "what the detectors said", {"summary": LEAK}),
        facts("E8", SERIES, "gpu_temperature_celsius{gpu:GPU-0014}", "gpu_temperature_celsius of GPU-0014",
              {"metric": "gpu_temperature_celsius", "subject": "gpu:GPU-0014", "t_s": [T_S, T_S + 60, T_S + 120],
               "unit": "celsius", "values": [61, 62, 88]}),
    ),
    context="GPU firmware hangs · GPU 0000:1b:00 of node gpu-n14",
    right=(
        ("GPU 0 on gpu-n14 (PCI 0000:1b:00) stopped responding: the driver waited 45 seconds for its GSP firmware and got no reply (Xid 119).", "E1", XID),
        ("The GPU's GSP firmware appears to have hung; python3 (pid 2112) was the process that noticed it.", "E1", XID),
        ("Since 01:00:01 UTC the firmware no longer answers RPCs from the driver.", "E1", XID),
        ("The GSP heartbeat was lost: 6070 elapsed against a limit of 5200.", "E1", HEARTBEAT),
        ("A plain reset will probably not succeed, because unloading the booter failed with status 0x62.", "E1", BOOTER),
        ("The driver was unable to execute Booter Unload on GPU0.", "E1", BOOTER),
        ("An uncorrectable but non-fatal PCIe error came from the GPU at 0000:1b:00.0.", "E1", AER),
        ("PCIe error recovery did not work for the device under port 0000:62:00.0.", "E1", RECOVERY),
        ("The NVMe drive nvme1 is not completing its I/O; request 342 on queue 7 was aborted after a timeout.", "E1", NVME),
        ("Kubelet could not read a directory on nvme1n1p1, which points to a damaged or failing disk.", "E1", EXT4),
        ("The kernel OOM-killed python3 (process 48213) because the cgroup's memory limit was reached.", "E1", OOM_KILL),
        ("At the time it was killed, the process held about 60 GiB of resident memory.", "E1", OOM_KILL),
        ("Interface ens2f0np0 on gpu-n15 dropped its link at 01:00:30.", "E2", FLAP),
        ("The port came back at 01:00:34, so this looks like a flapping link.", "E2", CARRIER),
        ("The network adapter at 0000:9a:00.0 lost carrier, most likely a cable or transceiver problem.", "E2", FLAP),
        ("Rank 1 ran out of GPU memory: it asked for 3.91 GiB when only 1.02 GiB of 79.1 GiB was free.", "E3", CUDA_OOM),
        ("This is an application problem (the model does not fit), not a hardware fault.", "E3", CUDA_OOM),
        ("The allocation of almost 4 GiB on GPU 1 failed.", "E3", CUDA_OOM),
        ("On gpu-n15, NCCL could not set up its InfiniBand queue pair; the connection timed out (error 110).", "E3", QP),
        ("NCCL's connection to its peer was never established on gpu-n15.", "E3", QP),
        ("Rank 0 was stuck in an all-reduce for ten minutes until the NCCL watchdog gave up.", "E3", WATCHDOG_0),
        ("Rank 0 waited in ALLREDUCE number 15021, while its timeout is 10 min.", "E3", WATCHDOG_0),
        ("Rank 1 was still in reduce-scatter 15020 when it timed out.", "E3", WATCHDOG_1),
        ("The loss and the gradient norm became NaN at iteration 46100.", "E3", NAN),
        ("Training went numerically unstable: the loss is not a number.", "E3", NAN),
        ("Slurm cancelled job 88123 at 01:08 since it had used up its time limit.", "E3", LIMIT),
        ("The job was ended by the scheduler and did not crash.", "E3", LIMIT),
        ("A DataLoader worker died with a bus error, likely because /dev/shm is too small.", "E3", LOADER),
        ("The worker processes of the data loader probably exhausted the shared memory.", "E3", LOADER),
        ("The image ml/trainer:1 does not exist in the registry, so pod ml/llama-2 cannot start.", "E4", PULL),
        ("The pod is stuck because its image could not be pulled.", "E4", PULL),
        ("None of the 12 nodes can take the pod: 3 have too few GPUs and 9 carry a maintenance taint.", "E4", SCHEDULE),
        ("Scheduling fails for lack of free GPUs and because of taints.", "E4", SCHEDULE),
        ("The volume data could not be mounted in time.", "E4", MOUNT),
        ("The storage backend did not respond before the deadline when volume data was to be mounted.", "E4", MOUNT),
        ("The container is unhealthy: its liveness probe receives HTTP 503.", "E4", PROBE),
        ("gpu-n14 is not ready; Kubernetes reports that its container runtime is down.", "E5", RUNTIME),
        ("The node runs NVIDIA driver 550.54.15.", "E5", DRIVER),
        ("GPU memory in ml/llama-2 keeps growing by about 1.2 GiB per hour, the pattern of a leak.", "E7", LEAK),
        ("At this pace the GPU will run out of memory in roughly seven hours.", "E7", LEAK),
    ),
    wrong=(
        ("The GSP firmware answered the RPC after 45 seconds.", "E1", XID),
        ("GPU 0 on gpu-n15 stopped responding to RPCs.", "E1", XID),
        ("The GPU fell off the bus after 45 seconds of waiting.", "E1", XID),
        ("The timeout was caused by a bug in python3.", "E1", XID),
        ("The heartbeat of the GSP is within its timeout.", "E1", HEARTBEAT),
        ("Unloading the booter worked, a reset will therefore be enough.", "E1", BOOTER),
        ("The PCIe error was corrected by the hardware.", "E1", AER),
        ("A fatal PCIe error took the GPU down.", "E1", AER),
        ("The device recovered after the AER event.", "E1", RECOVERY),
        ("nvme1 is in good condition and its I/O was merely slow for 342 ms.", "E1", NVME),
        ("The file system was remounted read-only.", "E1", EXT4),
        ("The host as a whole ran out of memory.", "E1", OOM_KILL),
        ("The kernel killed process 2112 because it was out of memory.", "E1", OOM_KILL),
        ("python3 exited on its own after it had freed its memory.", "E1", OOM_KILL),
        ("The switch port of ens2f0np0 was shut down by an administrator.", "E2", FLAP),
        ("The link of ens2f0np0 stays down until now.", "E2", CARRIER),
        ("The link of gpu-n14 went down at 01:00:30.", "E2", FLAP),
        ("Rank 0 ran out of GPU memory.", "E3", CUDA_OOM),
        ("Rank 1 had 3.91 GiB free when the allocation failed.", "E3", CUDA_OOM),
        ("GPU 1 has a defective memory cell.", "E3", CUDA_OOM),
        ("All ranks ran out of GPU memory.", "E3", CUDA_OOM),
        ("The queue pair was modified successfully on gpu-n15.", "E3", QP),
        ("NCCL failed since the firewall blocks port 110.", "E3", QP),
        ("Rank 0 was in REDUCE_SCATTER when it timed out.", "E3", WATCHDOG_0),
        ("Rank 1 hung first and made rank 0 wait.", "E3", WATCHDOG_1),
        ("Rank 0's all-reduce finished just before the timeout.", "E3", WATCHDOG_0),
        ("The all-reduce took 600 minutes.", "E3", WATCHDOG_0),
        ("The loss is finite, and no iteration was nan.", "E3", NAN),
        ("The learning rate was too high, which made the loss NaN.", "E3", NAN),
        ("Iterations were skipped, so the NaN was contained.", "E3", NAN),
        ("The job was cancelled by its user.", "E3", LIMIT),
        ("The job finished before its time limit.", "E3", LIMIT),
        ("The DataLoader worker was killed by the OOM killer.", "E3", LOADER),
        ("The shared memory of the DataLoader was large enough.", "E3", LOADER),
        ("The registry refused the credentials for the image.", "E4", PULL),
        ("Nine nodes have too few GPUs.", "E4", SCHEDULE),
        ("The volume data was mounted after a short delay.", "E4", MOUNT),
        ("The liveness probe succeeded with status 503.", "E4", PROBE),
        ("The container runtime of gpu-n15 is down.", "E5", RUNTIME),
        ("GPU memory of ml/llama-2 shrank by 1.2 GiB an hour.", "E7", LEAK),
    ),
)  # fmt: skip

BATCHES: Mapping[str, Batch] = {"first": FIRST}
