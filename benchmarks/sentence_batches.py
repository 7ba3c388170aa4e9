"""Sentences as a language model writes them over real lines: right ones and wrong ones, in batches.

Each batch was committed before the rules of `nightshift.agent.rca.sentences` were run on it; what they did at the
first try stands in `results/sentence_traps.json`. All are written by hand; no language model was asked. The lines
are those of drivers, NCCL, PyTorch, Slurm and Kubernetes, from public reports. A wrong sentence has a true quote.
From the fifth batch on, no test had used the lines before.
"""

# ruff: noqa: E501 -- lines of logs are as long as they are
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.agent.rca.figures import Ungrounded
from nightshift.agent.rca.sentences import quote_under
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
    at_first: Mapping[str, int]
    """What the rules showed at the first try: `right` and `wrong` by the rules as they were when it was written, of
    these with no mark `right_unmarked` and `wrong_unmarked`; `earlier_right` and `earlier_wrong` by the rules before:
    those of decision 062, from the fifth batch on those of decision 064."""

    def outcome(self, sentence: str, name: str, quote: str) -> str | tuple[str, ...]:
        """Why a sentence is not shown; where it is, the words that are marked as its own."""
        try:
            return quote_under(sentence, quote, name, self.evidence, self.context).beyond
        except Ungrounded as reason:
            return str(reason)


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
    at_first={"right": 25, "wrong": 17, "earlier_right": 25, "earlier_wrong": 17},
)  # fmt: skip

ECC = "NVRM: Xid (PCI:0000:c1:00): 48, pid=90211, name=python, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 4, subpartition 1."
REMAP = "NVRM: Xid (PCI:0000:c1:00): 63, pid=90211, name=python, Row Remapper: New row (0x0000000000012345) marked for remapping, reset gpu to activate."
SXID = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 20034, Fatal, Link 44 LTSSM Fault Up"
FABRIC = "nvidia-fabricmanager.service: Main process exited, code=exited, status=1/FAILURE"
LUSTRE = "LustreError: 11-0: scratch-OST0007-osc-ffff: operation ost_read to node 10.0.8.17@o2ib failed: rc = -107"
LOST = "Lustre: scratch-OST0007-osc-ffff: Connection to scratch-OST0007 (at 10.0.8.17@o2ib) was lost; in progress operations using this service will wait for recovery to complete"
RESTORED = "Lustre: scratch-OST0007-osc-ffff: Connection restored to 10.0.8.17@o2ib (at 10.0.8.17@o2ib)"
LOCKUP = "watchdog: BUG: soft lockup - CPU#12 stuck for 23s! [kworker/12:1:3311]"
HUNG = "INFO: task python3:58112 blocked for more than 120 seconds."
MCE = "mce: [Hardware Error]: Machine check events logged"
EDAC = "EDAC skx MC2: HANDLING MCE MEMORY ERROR: CPU 24: Machine Check Event: 0x0 Bank 17: 9c00004000010090, 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0"
HEAT = "CPU12: Package temperature above threshold, cpu clock throttled (total events = 231)"
POWER = (
    "mlx5_core 0000:19:00.0: mlx5_pcie_event:301:(pid 4171): Detected insufficient power on the PCIe slot (27W)."
)
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
STORE = "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (gpu-m01, 29500)."
SOCKET = "gpu-m02:771:940 [3] NCCL WARN socketProgress: Connection closed by remote peer gpu-m03<48122>"
ENGINE = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."
ACTOR = "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task. The actor is dead because its node has died."
HEADER = "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"
SPACE = "OSError: [Errno 28] No space left on device: '/ckpt/step-2500/model.pt'"
KEY = "KeyError: 'attention_mask'"
EXIT = "[E] torch.distributed.elastic.multiprocessing.api: failed (exitcode: -9) local_rank: 5 (pid: 66120) of binary: /usr/bin/python3"
NOT_READY = "Kubelet stopped posting node status."
SANDBOX = 'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "nvidia" is configured'
EVICTED = "The node was low on resource: ephemeral-storage. Container main was using 212Gi, request is 100Gi, has larger consumption of ephemeral-storage."
PENDING = 'persistentvolumeclaim "data-ssd" not found'
CONDITION = '"reason":"NodeStatusUnknown"'
SLOW = "rank 6 needs 1.41 s a step, its peers 1.08 s, since step 2310"

SECOND = Batch(
    evidence=(
        log("E1", "gpu-m01", "kernel events of gpu-m01", (0, ECC), (1, REMAP), (10, SXID), (11, FABRIC), (40, LUSTRE), (41, LOST),
            (101, RESTORED), (130, LOCKUP), (150, HUNG)),
        log("E2", "gpu-m02", "kernel events of gpu-m02", (20, MCE), (21, EDAC), (60, HEAT), (70, POWER)),
        log("E3", "ml/gpt", "log of ml/gpt", (200, ILLEGAL), (210, STORE), (220, SOCKET), (230, ENGINE), (240, ACTOR), (250, HEADER),
            (260, SPACE), (270, KEY), (280, EXIT)),
        log("E4", "pod:ml/gpt-5", "what Kubernetes says of ml/gpt-5", (300, NOT_READY), (310, SANDBOX), (320, EVICTED), (330, PENDING)),
        facts("E5", FACTS, "gpu-m04", "what Kubernetes says of gpu-m04", {"driver": "570.86.15", "ready": "Unknown", "reason": "NodeStatusUnknown"}),
        facts("E6", FACTS, "who held what", "topology", {"above": {
            "gpu:GPU-0c1": ["job:ml/gpt", "node:gpu-m01", "pod:ml/gpt-0"], "pod:ml/gpt-3": ["job:ml/gpt", "node:gpu-m02"],
            "pod:ml/gpt-4": ["job:ml/gpt", "node:gpu-m03"], "pod:ml/gpt-5": ["job:ml/gpt", "node:gpu-m04"],
            "rank:ml/gpt#5": ["job:ml/gpt", "node:gpu-m02"], "rank:ml/gpt#6": ["job:ml/gpt", "node:gpu-m03"]}}),
        facts("E7", FACTS, "findings", "what the detectors said", {"summary": SLOW}),
    ),
    context="GPU memory error · GPU 0000:c1:00 of node gpu-m01",
    right=(
        ("GPU 0000:c1:00 on gpu-m01 hit an uncorrectable double-bit ECC error in its framebuffer (Xid 48), so its memory can no longer be trusted.", "E1", ECC),
        ("The memory fault sits in partition 4, subpartition 1 of that GPU.", "E1", ECC),
        ("The driver has set aside one row for remapping; the remapping only takes effect once the GPU is reset.", "E1", REMAP),
        ("A GPU reset is still pending: the new row is marked but not active yet.", "E1", REMAP),
        ("NVSwitch 3 reported a fatal fault on link 44 (SXid 20034).", "E1", SXID),
        ("The fabric manager service quit with exit status 1.", "E1", FABRIC),
        ("Reads from Lustre target scratch-OST0007 fail with rc -107, i.e. the client is not connected.", "E1", LUSTRE),
        ("gpu-m01 lost its connection to the Lustre server 10.0.8.17 at 01:00:41, and I/O to it blocks until recovery.", "E1", LOST),
        ("The Lustre connection was restored at 01:01:41.", "E1", RESTORED),
        ("CPU 12 has been stuck in the kernel for 23 seconds in a kworker.", "E1", LOCKUP),
        ("python3 (58112) has hung in the kernel for over two minutes.", "E1", HUNG),
        ("The process did not make progress for more than 120 s, probably waiting on storage.", "E1", HUNG),
        ("The CPU on gpu-m02 logged machine check events, which indicates a hardware fault.", "E2", MCE),
        ("A DIMM on channel 1 of gpu-m02's second socket returned an uncorrected read error.", "E2", EDAC),
        ("Host memory is failing: one uncorrectable error was reported for DIMM 0.", "E2", EDAC),
        ("The processor package ran too hot and was throttled; this has happened 231 times.", "E2", HEAT),
        ("The PCIe slot of the NIC at 0000:19:00.0 supplies too little power (27 W).", "E2", POWER),
        ("A CUDA kernel touched memory it should not have, which is usually a bug in the program.", "E3", ILLEGAL),
        ("The program made an illegal memory access on the GPU.", "E3", ILLEGAL),
        ("After 10 minutes the worker gave up connecting to the rendezvous store on gpu-m01:29500.", "E3", STORE),
        ("The rank could not reach gpu-m01 on port 29500.", "E3", STORE),
        ("gpu-m03 closed its NCCL connection to gpu-m02, so the trouble likely began on gpu-m03.", "E3", SOCKET),
        ("The peer on gpu-m03 went away while gpu-m02 was talking to it.", "E3", SOCKET),
        ("vLLM's engine core died.", "E3", ENGINE),
        ("A Ray actor was lost because the node it ran on died.", "E3", ACTOR),
        ("The safetensors file is incomplete: its header does not cover the whole file.", "E3", HEADER),
        ("The checkpoint appears to be truncated.", "E3", HEADER),
        ("The checkpoint of step 2500 could not be written since the disk is full.", "E3", SPACE),
        ("Writing model.pt failed with ENOSPC (errno 28).", "E3", SPACE),
        ("The training script crashed on a missing key, 'attention_mask'.", "E3", KEY),
        ("Local rank 5 was killed with SIGKILL (exit code -9), possibly by the OOM killer.", "E3", EXIT),
        ("The process with pid 66120 ended with exit code -9.", "E3", EXIT),
        ("The kubelet no longer reports the node's status.", "E4", NOT_READY),
        ("The pod cannot start, as no container runtime named nvidia is configured on its node.", "E4", SANDBOX),
        ("ml/gpt-5 was evicted: it used 212 GiB of ephemeral storage, more than twice the 100 GiB it requested.", "E4", EVICTED),
        ("The node ran low on ephemeral storage.", "E4", EVICTED),
        ("The claim data-ssd that the pod refers to does not exist.", "E4", PENDING),
        ("Kubernetes does not know the state of gpu-m04 any more.", "E5", CONDITION),
        ("Rank 6 is about 30 % slower than its peers (1.41 s against 1.08 s per step).", "E7", SLOW),
        ("The slowdown of rank 6 began at step 2310.", "E7", SLOW),
    ),
    wrong=(
        ("The double-bit error was corrected by ECC.", "E1", ECC),
        ("The memory error is on gpu-m02.", "E1", ECC),
        ("The framebuffer error was caused by a driver upgrade.", "E1", ECC),
        ("The GPU has already been reset and the row is remapped.", "E1", REMAP),
        ("Row remapping failed.", "E1", REMAP),
        ("The NVSwitch fault on link 44 is non-fatal.", "E1", SXID),
        ("Link 4 of the NVSwitch failed.", "E1", SXID),
        ("Fabric manager was stopped by an operator.", "E1", FABRIC),
        ("Fabric manager is running again.", "E1", FABRIC),
        ("The Lustre read was retried and then succeeded.", "E1", LUSTRE),
        ("The Lustre server's disk is full.", "E1", LUSTRE),
        ("The connection to the Lustre server was lost for good.", "E1", RESTORED),
        ("The connection loss stopped no operation.", "E1", LOST),
        ("CPU 23 was stuck for 12 seconds.", "E1", LOCKUP),
        ("The soft lockup resolved itself after 23 seconds.", "E1", LOCKUP),
        ("python3 was killed after 120 seconds.", "E1", HUNG),
        ("The machine check was a software error.", "E2", MCE),
        ("The DIMM error was correctable.", "E2", EDAC),
        ("All DIMMs of gpu-m02 are healthy.", "E2", EDAC),
        ("The CPU temperature is back below its threshold.", "E2", HEAT),
        ("The GPU is throttled because of its temperature.", "E2", HEAT),
        ("The power supply of the node has failed.", "E2", POWER),
        ("The illegal access was caused by faulty GPU memory.", "E3", ILLEGAL),
        ("The client connected to the store after 600 seconds.", "E3", STORE),
        ("The rendezvous store on gpu-m02 is not reachable.", "E3", STORE),
        ("gpu-m02 closed the connection to gpu-m03.", "E3", SOCKET),
        ("The NCCL connection to gpu-m03 is intact.", "E3", SOCKET),
        ("The engine core ran out of GPU memory.", "E3", ENGINE),
        ("The actor finished its task before it died.", "E3", ACTOR),
        ("The actor was killed by the OOM killer.", "E3", ACTOR),
        ("The checkpoint file loads without problems.", "E3", HEADER),
        ("The checkpoint of step 2500 was written completely.", "E3", SPACE),
        ("The write failed because of missing permissions.", "E3", SPACE),
        ("Every rank crashed on the missing key.", "E3", KEY),
        ("Local rank 5 exited cleanly.", "E3", EXIT),
        ("Local rank 9 was killed.", "E3", EXIT),
        ("The kubelet stopped because the disk was full.", "E4", NOT_READY),
        ("The pod was evicted because the node was out of memory.", "E4", EVICTED),
        ("The claim data-ssd is bound.", "E4", PENDING),
        ("Rank 6 is faster than its peers.", "E7", SLOW),
    ),
    at_first={"right": 27, "wrong": 11, "earlier_right": 30, "earlier_wrong": 26},
)  # fmt: skip

OFF = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
CRASH_LOG = "NVRM: A GPU crash dump has been created. If possible, please run nvidia-bug-report.sh as root to collect this data before the NVIDIA kernel module is unloaded."
MMU = "NVRM: Xid (PCI:0000:5e:00): 31, pid=31337, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2a_10000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
VERSION = "NVRM: API mismatch: the client has the version 550.90.07, but NVRM: this kernel module has the version 550.54.15."
RAID = "md/raid1:md0: Disk failure on nvme0n1p2, disabling device."
XFS = "XFS (dm-3): Corruption of in-memory data detected. Shutting down filesystem"
READONLY = "EXT4-fs (sdb1): Remounting filesystem read-only"
NFS_SLOW = "nfs: server 10.3.0.9 not responding, timed out"
DMAR = "DMAR: [DMA Write] Request device [5e:00.0] PASID ffffffff fault addr 7c220000 [fault reason 05] PTE Write access is not set"
CORRECTABLE = "EDAC MC1: 3 CE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#1"
IB_DOWN = "mlx5_core 0000:c3:00.0 ibp195s0: Port module event: module 0, Cable unplugged"
IB_UP = "mlx5_core 0000:c3:00.0 ibp195s0: Port module event: module 0, Cable plugged"
ABORT = "[rank4]: RuntimeError: NCCL communicator was aborted on rank 4. Original reason for failure was: [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=880, OpType=ALLGATHER, Timeout(ms)=1800000) ran for 1800944 milliseconds before timing out."
UNHEALTHY = "iteration 8120/ 50000 | consumed samples: 4157440 | elapsed time per iteration (ms): 1032.8 | lm loss: 9.874321E+00 | loss scale: 1.0 | grad norm: 812.334 | number of skipped iterations: 0 | number of nan iterations: 0 |"
SCALE = "Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 1.0"
SIGTERM = "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 5150 closing signal SIGTERM"
SEGV = "exitcode  : -11 (pid: 5151)"
CKPT_OK = "successfully saved checkpoint at iteration 8000 to /ckpt"
VLLM_KV = "ValueError: To serve at least one request with the models's max seq len (131072), 16.00 GiB KV cache is needed, which is larger than the available KV cache memory (11.24 GiB)."
HUB = "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url"
IMPORT = "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"
BACKOFF = "Back-off restarting failed container trainer in pod bert-2"
OOM_K8S = '"reason":"OOMKilled","exit_code":137'
PLUGIN = "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 8, Available: 7, which is unexpected"
TAINT = '"taints":"node.kubernetes.io/disk-pressure"'
POWER_CAP = '"clocks_event_reasons":"hw_thermal_slowdown"'
ROSE = "gpu_memory_used_bytes of pod:ml/bert-1 [bytes] rose from 2.1e+10 to 7.9e+10 in 14400 s; least 2.09e+10, most 7.91e+10, 400 points"
QUIET = "gpu_power_watts of gpu:GPU-05e [watts] fell from 640 to 88 in 300 s; least 84, most 655, 60 points"

THIRD = Batch(
    evidence=(
        log("E1", "gpu-k07", "kernel events of gpu-k07", (0, OFF), (1, CRASH_LOG), (5, MMU), (6, DMAR), (20, RAID), (21, XFS), (22, READONLY),
            (30, NFS_SLOW), (40, VERSION)),
        log("E2", "gpu-k08", "kernel events of gpu-k08", (50, CORRECTABLE), (60, IB_DOWN), (75, IB_UP)),
        log("E3", "ml/bert", "log of ml/bert", (90, UNHEALTHY), (91, SCALE), (100, ABORT), (101, SIGTERM), (102, SEGV), (103, CKPT_OK),
            (110, VLLM_KV), (111, HUB), (112, IMPORT)),
        log("E4", "pod:ml/bert-2", "what Kubernetes says of ml/bert-2", (120, BACKOFF), (130, PLUGIN)),
        facts("E5", FACTS, "pod:ml/bert-1", "how ml/bert-1 ended", {"reason": "OOMKilled", "exit_code": 137, "memory_limit": "64Gi"}),
        facts("E6", FACTS, "gpu-k09", "what Kubernetes says of gpu-k09", {"taints": "node.kubernetes.io/disk-pressure", "clocks_event_reasons": "hw_thermal_slowdown"}),
        facts("E7", FACTS, "who held what", "topology", {"above": {
            "gpu:GPU-05e": ["job:ml/bert", "node:gpu-k07", "pod:ml/bert-0"], "pod:ml/bert-1": ["job:ml/bert", "node:gpu-k08"],
            "pod:ml/bert-2": ["job:ml/bert", "node:gpu-k09"], "rank:ml/bert#4": ["job:ml/bert", "node:gpu-k08"]}}),
        facts("E8", SERIES, "gpu_memory_used_bytes{pod:ml/bert-1}", "GPU memory of ml/bert-1", {"summary": ROSE}),
        facts("E9", SERIES, "gpu_power_watts{gpu:GPU-05e}", "power of GPU-05e", {"summary": QUIET}),
    ),
    context="GPU lost · GPU 0000:3b:00 of node gpu-k07",
    right=(
        ("One GPU on gpu-k07 (0000:3b:00) dropped off the PCIe bus at 01:00:00.", "E1", OFF),
        ("The driver can no longer talk to that GPU, so anything running on it is lost.", "E1", OFF),
        ("This is Xid 79, typically a hardware, power or PCIe link problem rather than a software bug.", "E1", OFF),
        ("The driver has written a crash dump of the GPU.", "E1", CRASH_LOG),
        ("Process 31337 (python) caused an MMU fault by reading an unmapped address on the GPU at 0000:5e:00.", "E1", MMU),
        ("Xid 31 usually means a bug in the application's CUDA code.", "E1", MMU),
        ("User-space libraries are at 550.90.07 while the kernel module is still 550.54.15.", "E1", VERSION),
        ("The two driver versions do not match; probably the driver was upgraded without a reboot.", "E1", VERSION),
        ("A disk of the mirror md0, nvme0n1p2, failed and was disabled.", "E1", RAID),
        ("XFS found corrupt in-memory data on dm-3 and shut the file system down.", "E1", XFS),
        ("sdb1 is read-only now.", "E1", READONLY),
        ("The NFS server at 10.3.0.9 is unreachable.", "E1", NFS_SLOW),
        ("The IOMMU blocked a DMA write by device 5e:00.0.", "E1", DMAR),
        ("gpu-k08 logged three corrected memory errors on one DIMM, which are not yet a reason to act.", "E2", CORRECTABLE),
        ("Someone or something pulled the cable of ibp195s0 on gpu-k08 at 01:01:00.", "E2", IB_DOWN),
        ("The cable was back 15 seconds later, at 01:01:15.", "E2", IB_UP),
        ("Rank 4 timed out in an all-gather after 30 minutes, and NCCL aborted its communicator.", "E3", ABORT),
        ("At iteration 8120 the loss is 9.87 with a gradient norm of 812, which suggests that training is diverging.", "E3", UNHEALTHY),
        ("The loss scaler is down to 1.0 because of gradient overflows.", "E3", SCALE),
        ("The launcher then terminated process 5150 with SIGTERM.", "E3", SIGTERM),
        ("Process 5151 segfaulted (signal 11).", "E3", SEGV),
        ("The last good checkpoint is iteration 8000.", "E3", CKPT_OK),
        ("vLLM cannot start: its KV cache needs 16 GiB but only 11.24 GiB are available.", "E3", VLLM_KV),
        ("About 5 GiB of memory is missing for the KV cache at a sequence length of 131072.", "E3", VLLM_KV),
        ("The Hugging Face hub rate-limited the download (HTTP 429).", "E3", HUB),
        ("The CUDA runtime library libcudart.so.12 is missing in the image.", "E3", IMPORT),
        ("Container trainer of bert-2 keeps failing and is restarted with back-off.", "E4", BACKOFF),
        ("The pod asked for 8 GPUs, but the device plugin offers only 7.", "E4", PLUGIN),
        ("ml/bert-1 was OOM-killed at its memory limit of 64 GiB (exit code 137).", "E5", OOM_K8S),
        ("gpu-k09 is under disk pressure.", "E6", TAINT),
        ("The clocks of gpu-k09 are held down by a thermal slowdown.", "E6", POWER_CAP),
        ("GPU memory of ml/bert-1 climbed from 21 GB to 79 GB within four hours.", "E8", ROSE),
        ("The steady growth looks like a leak.", "E8", ROSE),
        ("The power draw of GPU-05e dropped from 640 W to 88 W, so it has been idle since.", "E9", QUIET),
    ),
    wrong=(
        ("The GPU at 0000:5e:00 fell off the bus.", "E1", OFF),
        ("The GPU fell off the bus because python leaked memory.", "E1", OFF),
        ("The GPU was brought back on the bus by the driver.", "E1", OFF),
        ("The crash dump shows that the power supply failed.", "E1", CRASH_LOG),
        ("Process 31337 wrote to an address that it may not write.", "E1", MMU),
        ("The MMU fault was caused by bad HBM.", "E1", MMU),
        ("The kernel module is newer than the libraries: 550.90.07.", "E1", VERSION),
        ("The client and the kernel module have the same version.", "E1", VERSION),
        ("Both disks of md0 have failed.", "E1", RAID),
        ("The array md0 has been rebuilt.", "E1", RAID),
        ("XFS repaired the corrupt data.", "E1", XFS),
        ("The file system on dm-3 is still mounted and usable.", "E1", XFS),
        ("An administrator remounted sdb1 read-only.", "E1", READONLY),
        ("The NFS server rebooted.", "E1", NFS_SLOW),
        ("The DMA write of 5e:00.0 went through.", "E1", DMAR),
        ("The memory error of gpu-k08 is uncorrectable.", "E2", CORRECTABLE),
        ("gpu-k07's memory had three corrected errors.", "E2", CORRECTABLE),
        ("The cable of ibp195s0 was unplugged after it had been plugged.", "E2", IB_DOWN),
        ("The cable is plugged in.", "E2", IB_DOWN),
        ("Rank 4 finished its all-gather in 30 minutes.", "E3", ABORT),
        ("Rank 4 waited for rank 2, which had crashed.", "E3", ABORT),
        ("There were nan iterations at step 8120.", "E3", UNHEALTHY),
        ("The training is stable at a loss of 9.87.", "E3", UNHEALTHY),
        ("The step was taken in spite of the overflow.", "E3", SCALE),
        ("Process 5150 ignored SIGTERM.", "E3", SIGTERM),
        ("Process 5151 was killed by the OOM killer.", "E3", SEGV),
        ("The checkpoint of iteration 8000 is damaged.", "E3", CKPT_OK),
        ("16 GiB of KV cache are available.", "E3", VLLM_KV),
        ("The download finished after 429 requests.", "E3", HUB),
        ("The library is present but has the wrong version.", "E3", IMPORT),
        ("The pod asked for 7 GPUs and 8 are available.", "E4", PLUGIN),
        ("ml/bert-1 ended normally with exit code 137.", "E5", OOM_K8S),
        ("GPU memory of ml/bert-1 fell from 79 GB to 21 GB.", "E8", ROSE),
        ("GPU-05e drew 640 W at the end.", "E9", QUIET),
    ),
    at_first={"right": 21, "wrong": 15, "earlier_right": 23, "earlier_wrong": 24},
)  # fmt: skip

CONTAIN = "NVRM: Xid (PCI:0000:87:00): 94, pid=70211, name=python3, Contained: SM (0x1). RST: No, D-RST: No"
NVLINK = "NVRM: Xid (PCI:0000:87:00): 74, pid=70211, name=python3, NVLink: fatal error detected on link 9(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
RLIMIT = "nvidia-smi: Unable to determine the device handle for GPU3: 0000:87:00.0: Unknown Error"
THROTTLED = "mce: CPU44: Package temperature above threshold, cpu clock throttled (total events = 18)"
NORMAL = "mce: CPU44: Package temperature/speed normal"
IO = "blk_update_request: I/O error, dev sdc, sector 7814037160 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 0"
CEPH = "ceph: mds0 hung"
SOCKET_IB = "NCCL WARN NET/IB : Got completion from peer 10.2.1.14<48211> with status=12 opcode=0 len=0 vendor err 129 (Recv)"
ABORTED = "[rank11]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled cuda error, NCCL version 2.21.5"
ASSERT = "../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [411,0,0], thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
TIMES = "step 900: forward 0.41 s, backward 0.83 s, data 2.65 s, total 3.9 s"
PREEMPT = "slurmstepd: error: *** STEP 5512.0 ON gpu-q02 CANCELLED AT 2026-01-01T01:05:10 DUE TO PREEMPTION ***"
UNSCHED = "node gpu-q03: spec.unschedulable set to true by ann@example.com"
QUOTA = 'pods "eval-7" is forbidden: exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=4, used: requests.nvidia.com/gpu=28, limited: requests.nvidia.com/gpu=30'
MEMLOW = "The node was low on resource: memory. Threshold quantity: 1Gi, available: 612Mi."
FINE = "Successfully pulled image registry.local/train:9 in 12.4s"

FOURTH = Batch(
    evidence=(
        log("E1", "gpu-q01", "kernel events of gpu-q01", (0, CONTAIN), (2, NVLINK), (9, RLIMIT), (30, THROTTLED), (95, NORMAL), (120, IO), (130, CEPH)),
        log("E2", "ml/moe", "log of ml/moe", (140, SOCKET_IB), (141, ABORTED), (150, ASSERT), (160, TIMES), (170, PREEMPT)),
        log("E3", "pod:ml/moe-3", "what Kubernetes says of ml/moe-3", (200, UNSCHED), (210, QUOTA), (220, MEMLOW), (230, FINE)),
        facts("E4", FACTS, "who held what", "topology", {"above": {
            "gpu:GPU-087": ["job:ml/moe", "node:gpu-q01", "pod:ml/moe-1"], "pod:ml/moe-2": ["job:ml/moe", "node:gpu-q02"],
            "pod:ml/moe-3": ["job:ml/moe", "node:gpu-q03"], "rank:ml/moe#11": ["job:ml/moe", "node:gpu-q02"]}}),
    ),
    context="NVLink error · GPU 0000:87:00 of node gpu-q01",
    right=(
        ("The GPU at 0000:87:00 on gpu-q01 raised a contained error (Xid 94), so only the process that hit it is affected.", "E1", CONTAIN),
        ("The error was contained to python3 (pid 70211).", "E1", CONTAIN),
        ("NVLink 9 of that GPU reported a fatal error (Xid 74).", "E1", NVLINK),
        ("The fault is on link 9, which could be the NVLink bridge, the switch or the GPU itself.", "E1", NVLINK),
        ("nvidia-smi can no longer open GPU3.", "E1", RLIMIT),
        ("CPU 44 overheated and was throttled; it is the 18th such event.", "E1", THROTTLED),
        ("The CPU's temperature is back to normal since 01:01:35.", "E1", NORMAL),
        ("Disk sdc returned an I/O error on a read at sector 7814037160, so it may be failing.", "E1", IO),
        ("The Ceph metadata server mds0 hangs.", "E1", CEPH),
        ("NCCL's InfiniBand transport got an error completion (status 12) from 10.2.1.14.", "E2", SOCKET_IB),
        ("Status 12 usually means that retries were exhausted because the peer did not answer.", "E2", SOCKET_IB),
        ("Rank 11 aborted with an unhandled CUDA error inside NCCL 2.21.5.", "E2", ABORTED),
        ("An index was out of range in an embedding lookup, typically a token id beyond the vocabulary.", "E2", ASSERT),
        ("The assertion in Indexing.cu shows a bug in the input data or the model, not a broken GPU.", "E2", ASSERT),
        ("At step 900 loading data took 2.65 of 3.9 seconds: the job is input-bound.", "E2", TIMES),
        ("About two thirds of each step are spent waiting for data.", "E2", TIMES),
        ("Slurm preempted step 5512.0 on gpu-q02 at 01:05:10.", "E2", PREEMPT),
        ("ann@example.com cordoned gpu-q03, so no new pods are placed there.", "E3", UNSCHED),
        ("eval-7 was rejected because the namespace's GPU quota is used up: 28 of 30 are taken and it wants 4.", "E3", QUOTA),
        ("The node had only 612 MiB of memory left, below its eviction threshold of 1 GiB.", "E3", MEMLOW),
        ("The image was pulled without problems in 12.4 seconds.", "E3", FINE),
        ("Someone should check the NVLink connection of GPU 0000:87:00 before it gets new work.", "E1", NVLINK),
    ),
    wrong=(
        ("The error of Xid 94 spread to other processes.", "E1", CONTAIN),
        ("The GPU needs no attention, the error was harmless.", "E1", CONTAIN),
        ("Link 10 of the NVLink failed.", "E1", NVLINK),
        ("The NVLink error was corrected by a retry.", "E1", NVLINK),
        ("GPU3 answers nvidia-smi.", "E1", RLIMIT),
        ("GPU3 was removed from the chassis.", "E1", RLIMIT),
        ("CPU 44 was throttled because a fan broke.", "E1", THROTTLED),
        ("CPU 44 still overheats.", "E1", NORMAL),
        ("Disk sdc failed on a write.", "E1", IO),
        ("Disk sdd has an I/O error.", "E1", IO),
        ("The metadata server responds again.", "E1", CEPH),
        ("The peer 10.2.1.14 rebooted.", "E2", SOCKET_IB),
        ("Rank 12 aborted with a CUDA error.", "E2", ABORTED),
        ("NCCL handled the CUDA error.", "E2", ABORTED),
        ("The index check passed.", "E2", ASSERT),
        ("The backward pass takes most of the step.", "E2", TIMES),
        ("Loading data took 0.83 s.", "E2", TIMES),
        ("The step was cancelled because its time was up.", "E2", PREEMPT),
        ("gpu-q03 accepts pods again.", "E3", UNSCHED),
        ("The quota allows four more GPUs.", "E3", QUOTA),
        ("The node ran out of disk space.", "E3", MEMLOW),
        ("The image could not be pulled.", "E3", FINE),
    ),
    at_first={"right": 16, "wrong": 5, "earlier_right": 14, "earlier_wrong": 10},
)  # fmt: skip

# The fifth batch: lines of public reports that nothing else here uses. kubernetes-sigs/dra-driver-nvidia-gpu#982,
# NVIDIA/nccl-tests#206, NVIDIA/nccl#563, aws/aws-ofi-nccl#715, ai4d-iasc/trixie#45 and #35, clustervision/trinity#332,
# awslabs/awsome-distributed-ai#185, stackhpc/ansible-role-openhpc#95, deepspeedai/DeepSpeed#8500,
# modelscope/ms-swift#6141, etcd-io/etcd#8722 and #2276, rocm-arch/rocm-arch#829, ROCm/xformers#14,
# csrutil/OpenWrt-NIC-Drivers#11, TIGRLab/admin#311, openzfs/zfs#8332 and #7118, quantum/esos#180,
# ray-project/ray#27710 and #21445, NVIDIA/nvidia-docker#1648, triton-inference-server/server#1546.
RESET = "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2827"
RING = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=502589, emitted seq=502591"
BEGIN = "amdgpu 0000:0c:00.0: amdgpu: GPU reset begin!"
SUSPEND = "amdgpu: Failed to suspend process 0x800c"
RESUME = "amdgpu 0000:2b:00.0: amdgpu: GPU reset succeeded, trying to resume"
VRAM = "[drm] VRAM is lost due to GPU reset!"
QUEUE = "r8125 0000:22:04.0 eth4: NETDEV WATCHDOG: CPU: 3: transmit queue 0 timed out 5010 ms"
MEGA = "sd 2:2:3:0: [sdd] megasas: RESET cmd=28 retries=0"
MEGA_OK = "megasas: reset successful"
SOFT = "sd 1:0:1:0: [sdb] tag#20 FAILED Result: hostbyte=DID_SOFT_ERROR driverbyte=DRIVER_OK"
TASK_ABORT = "sd 14:0:152:0: task abort: SUCCESS scmd(ffff94f8c94d2448)"
NOTIFY = "mpt2sas_cm0: _base_event_notification: timeout"
REG_MR = "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
OFI = "ip-10-0-87-143:149:298 [5] register_mr_buffers:465 NCCL WARN NET/OFI Unable to register memory (type = 1) for device 0. RC: 12, Error: Cannot allocate memory"
TAG = "NET/OFI Received an invalid tag 0 for device 0"
STEPD = "error: *** STEP 63532.0 STEPD TERMINATED ON cn106 AT 2026-01-01T01:04:56 DUE TO JOB NOT ENDING WITH SIGNALS ***"
EPILOG = "slurmd[13562]: spank-epilog: error: pyxis: mkdir: cannot create directory '/opt/dlami/nvme/tmp/enroot/data': Permission denied"
SRUN = "srun: error: cn125: task 0: Segmentation fault (core dumped)"
CONF = "error: Node c001 appears to have a different slurm.conf than the slurmctld. This could cause issues with communication and functionality."
COUNT = "error: Node c001 has low socket*core*thread count (1 < 20)"
DUPLICATE = "slurmctld[26180]: fatal: Duplicated NodeHostName nrel-hpc-0 in config file"
UNPICKLE = "_pickle.UnpicklingError: Weights only load failed. Unsupported global: GLOBAL deepspeed.runtime.zero.config.ZeroStageEnum"
EOF = "[rank6]: EOFError: Ran out of input"
CUBLAS = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
SYNC = "etcd[911]: sync duration of 1.034111027s, expected less than 1s"
LEADER = "raft.node: e1bef91ecd5c6c4d elected leader fe6b67e59f6636d7 at term 4"
ETCD = "etcd[1234]: got unexpected response error (etcdserver: request timed out)"
MISSED = "The node with node id: 870b6809c74a and address: 10.0.3.49 has been marked dead because the detector has missed too many heartbeats from it."
SPILL = "(raylet, ip=10.0.3.189) Spilled 65574 MiB, 16512 objects, write throughput 428 MiB/s."
MISTAKEN = "Exiting because this node manager has mistakenly been marked as dead by the GCS: GCS didn't receive heartbeats from this node for 30000 ms."
HOOK = "nvidia-container-cli: initialization error: driver rpc error: timed out: unknown"
RESOURCE = "resources: cpu 93% memory 41% of ml/sort-head"

FIFTH = Batch(
    evidence=(
        log("E1", "gpu-r01", "kernel events of gpu-r01", (0, RESET), (20, RING), (21, BEGIN), (22, SUSPEND), (40, QUEUE)),
        log("E2", "gpu-r02", "kernel events of gpu-r02", (30, RESUME), (31, VRAM), (50, MEGA), (52, MEGA_OK), (60, SOFT), (70, TASK_ABORT), (80, NOTIFY)),
        log("E3", "ml/sort", "log of ml/sort", (100, REG_MR), (101, OFI), (110, TAG), (120, UNPICKLE), (130, EOF), (140, CUBLAS), (150, MISSED),
            (160, SPILL), (170, MISTAKEN)),
        log("E4", "slurm", "what the Slurm controller says", (200, STEPD), (210, EPILOG), (220, SRUN), (230, CONF), (231, COUNT), (240, DUPLICATE)),
        log("E5", "etcd", "log of etcd on cp-1", (300, SYNC), (310, ETCD), (320, LEADER)),
        log("E6", "pod:ml/sort-2", "what Kubernetes says of ml/sort-2", (330, HOOK)),
        facts("E7", FACTS, "who held what", "topology", {"above": {
            "gpu:GPU-0r1": ["job:ml/sort", "node:gpu-r01", "pod:ml/sort-0"], "pod:ml/sort-1": ["job:ml/sort", "node:gpu-r02"],
            "pod:ml/sort-2": ["job:ml/sort", "node:gpu-r03"], "rank:ml/sort#6": ["job:ml/sort", "node:gpu-r02"]}}),
        facts("E8", FACTS, "findings", "what the detectors said", {"summary": RESOURCE}),
    ),
    context="Anomaly · node gpu-r01",
    right=(
        ("A GPU on gpu-r01 is in a state where the driver demands a reset (NV_ERR_RESET_REQUIRED, 0x62).", "E1", RESET),
        ("Channel setup failed in kernel_channel.c because the GPU must be reset first.", "E1", RESET),
        ("Until someone resets this GPU, new CUDA work on it will most likely fail.", "E1", RESET),
        ("The AMD GPU's graphics ring gfx_0.0.0 hung: two submitted jobs (502590 and 502591) never finished.", "E1", RING),
        ("amdgpu reported a ring timeout on gpu-r01 at 01:00:20.", "E1", RING),
        ("The driver then started resetting GPU 0000:0c:00.0.", "E1", BEGIN),
        ("A GPU reset is under way on 0000:0c:00.0.", "E1", BEGIN),
        ("Process 0x800c could not be suspended, so the reset may not go through cleanly.", "E1", SUSPEND),
        ("The network interface eth4 stopped sending: its transmit queue 0 made no progress for about 5 seconds.", "E1", QUEUE),
        ("The kernel's watchdog fired for NIC eth4 (r8125), which points to a hung adapter or driver.", "E1", QUEUE),
        ("The GPU at 0000:2b:00.0 was reset successfully.", "E2", RESUME),
        ("After the reset the driver tries to resume GPU 0000:2b:00.0.", "E2", RESUME),
        ("Everything in the GPU's memory was lost through the reset, so processes that used it probably have to be restarted.", "E2", VRAM),
        ("The reset wiped VRAM.", "E2", VRAM),
        ("The RAID controller reset disk sdd at 01:00:50.", "E2", MEGA),
        ("The megasas reset went well.", "E2", MEGA_OK),
        ("A command to sdb failed with DID_SOFT_ERROR, a transport-level problem rather than bad media perhaps.", "E2", SOFT),
        ("Disk sdb returned a failed result although the driver itself reports OK.", "E2", SOFT),
        ("The SCSI command on 14:0:152:0 was aborted successfully.", "E2", TASK_ABORT),
        ("The SAS controller mpt2sas_cm0 did not answer the event notification in time.", "E2", NOTIFY),
        ("NCCL could not register memory with the InfiniBand adapter: the kernel refused the allocation.", "E3", REG_MR),
        ("ibv_reg_mr_iova2 failed for lack of memory, often a too low locked-memory limit (ulimit -l).", "E3", REG_MR),
        ("On ip-10-0-87-143 the OFI plugin was unable to register buffers with device 0 (error 12, out of memory).", "E3", OFI),
        ("Memory registration failed on GPU 5's process, likely because of the memlock limit.", "E3", OFI),
        ("The OFI transport got a message with an unexpected tag, 0.", "E3", TAG),
        ("An invalid tag was received on device 0, which may be a mismatch between plugin and NCCL versions.", "E3", TAG),
        ("The checkpoint cannot be loaded: PyTorch's weights-only mode rejects DeepSpeed's ZeroStageEnum.", "E3", UNPICKLE),
        ("Unpickling stopped at an unsupported global from deepspeed.", "E3", UNPICKLE),
        ("This is a software incompatibility, not a fault of a GPU or node.", "E3", UNPICKLE),
        ("Rank 6 read an empty or truncated file: unpickling hit the end of the input.", "E3", EOF),
        ("On rank 6 the file ended before the object was complete.", "E3", EOF),
        ("cuBLAS could not be initialized, frequently a sign that the GPU has no free memory left.", "E3", CUBLAS),
        ("Creating the cuBLAS handle failed.", "E3", CUBLAS),
        ("Ray declared node 10.0.3.49 dead since it had missed too many heartbeats.", "E3", MISSED),
        ("The raylet on 10.0.3.49 went silent; it may have crashed, been preempted or been overloaded.", "E3", MISSED),
        ("10.0.3.189 spilled 64 GiB of objects to disk.", "E3", SPILL),
        ("16512 objects were written out at 428 MiB/s, so the object store was full.", "E3", SPILL),
        ("The node manager shut itself down after the GCS had wrongly considered it dead.", "E3", MISTAKEN),
        ("GCS received no heartbeat from the node for 30 s.", "E3", MISTAKEN),
        ("Slurm had to terminate the step daemon of 63532.0 on cn106, as the job did not react to signals.", "E4", STEPD),
        ("The job's processes on cn106 could not be killed; they may be stuck in uninterruptible I/O.", "E4", STEPD),
        ("Step 63532.0 ignored its termination signals.", "E4", STEPD),
        ("The epilog failed: pyxis may not create its enroot data directory.", "E4", EPILOG),
        ("/opt/dlami/nvme/tmp/enroot/data has wrong permissions for the job's epilog.", "E4", EPILOG),
        ("A permission problem on the local NVMe scratch stops the epilog, which is likely why the node drains.", "E4", EPILOG),
        ("Task 0 on cn125 crashed with a segmentation fault.", "E4", SRUN),
        ("The program on cn125 segfaulted and left a core dump.", "E4", SRUN),
        ("Node c001 runs with another slurm.conf than the controller.", "E4", CONF),
        ("The configuration of c001 is out of sync with slurmctld, which can break communication.", "E4", CONF),
        ("c001 offers fewer cores than configured: 1 instead of 20.", "E4", COUNT),
        ("Slurm sees a single CPU on c001 where 20 are expected.", "E4", COUNT),
        ("slurmctld refuses to start because nrel-hpc-0 is listed twice in its configuration.", "E4", DUPLICATE),
        ("The controller died of a configuration error: a duplicate node name.", "E4", DUPLICATE),
        ("etcd's disk is slow: a sync took 1.03 s, more than the expected second.", "E5", SYNC),
        ("Writing to disk took etcd just over one second, which suggests a storage problem on the control plane.", "E5", SYNC),
        ("etcd requests are timing out.", "E5", ETCD),
        ("The API server may be unavailable for a while because etcd answered a request with a timeout.", "E5", ETCD),
        ("The etcd members elected fe6b67e59f6636d7 as leader in term 4.", "E5", LEADER),
        ("etcd has a leader again.", "E5", LEADER),
        ("The container cannot start: nvidia-container-cli got no answer from the driver in time.", "E6", HOOK),
        ("The NVIDIA container hook timed out while it initialized the driver, so pod ml/sort-2 has no GPU.", "E6", HOOK),
        ("The driver on the node hangs or is very slow, judging by the RPC timeout.", "E6", HOOK),
        ("CPU use of ml/sort-head is high at 93 %.", "E8", RESOURCE),
        ("Memory is not the bottleneck: only 41 % is used.", "E8", RESOURCE),
    ),
    wrong=(
        ("The GPU was reset and is ready for work.", "E1", RESET),
        ("The assertion passed, no reset is needed.", "E1", RESET),
        ("A reset is required on gpu-r02.", "E1", RESET),
        ("The GPU needs a reset because its memory has a double-bit error.", "E1", RESET),
        ("The ring finished all its jobs before the timeout.", "E1", RING),
        ("The hang was triggered by an overheated GPU.", "E1", RING),
        ("Twelve jobs were outstanding on the ring.", "E1", RING),
        ("The reset of 0000:0c:00.0 succeeded.", "E1", BEGIN),
        ("GPU 0000:2b:00.0 began its reset.", "E1", BEGIN),
        ("Process 0x800c was suspended.", "E1", SUSPEND),
        ("The operator killed process 0x800c.", "E1", SUSPEND),
        ("Receive queue 0 of eth4 timed out.", "E1", QUEUE),
        ("eth4 lost its cable.", "E1", QUEUE),
        ("The transmit queue was stuck for 50 seconds.", "E1", QUEUE),
        ("The interface eth0 timed out.", "E1", QUEUE),
        ("The reset of the GPU failed.", "E2", RESUME),
        ("The GPU has resumed and its jobs run again.", "E2", RESUME),
        ("The contents of VRAM survived the reset.", "E2", VRAM),
        ("VRAM was lost because of a power failure.", "E2", VRAM),
        ("Disk sdd has failed and must be replaced.", "E2", MEGA),
        ("The controller reset disk sdc.", "E2", MEGA),
        ("The controller needed 28 retries.", "E2", MEGA),
        ("The reset of the RAID controller failed.", "E2", MEGA_OK),
        ("The command to sdb completed without error.", "E2", SOFT),
        ("sdb has unreadable sectors.", "E2", SOFT),
        ("The task abort failed, so the disk hangs.", "E2", TASK_ABORT),
        ("The SAS controller answered the notification.", "E2", NOTIFY),
        ("The controller's firmware crashed.", "E2", NOTIFY),
        ("NCCL registered its memory with the adapter.", "E3", REG_MR),
        ("The GPU ran out of HBM while it registered memory.", "E3", REG_MR),
        ("The InfiniBand cable is faulty.", "E3", REG_MR),
        ("Device 12 could not register memory.", "E3", OFI),
        ("All ranks failed to register memory.", "E3", OFI),
        ("Registration worked at the second attempt.", "E3", OFI),
        ("The tag 0 is valid for device 0.", "E3", TAG),
        ("The packet was corrupted by a bad switch.", "E3", TAG),
        ("The checkpoint was loaded with weights only.", "E3", UNPICKLE),
        ("The checkpoint file is corrupt on disk.", "E3", UNPICKLE),
        ("Rank 0 hit the end of the file.", "E3", EOF),
        ("Rank 6 ran out of GPU memory.", "E3", EOF),
        ("The job finished since it had no more input to train on.", "E3", EOF),
        ("cuBLAS initialized on all GPUs.", "E3", CUBLAS),
        ("The driver is too old for cuBLAS.", "E3", CUBLAS),
        ("Node 10.0.3.189 was marked dead.", "E3", MISSED),
        ("The node was powered off by its owner.", "E3", MISSED),
        ("The detector received every heartbeat of 10.0.3.49.", "E3", MISSED),
        ("Spilling failed as the disk was full.", "E3", SPILL),
        ("65574 objects were spilled.", "E3", SPILL),
        ("The GCS was right: the node had really died.", "E3", MISTAKEN),
        ("The node sent heartbeats every 30 seconds.", "E3", MISTAKEN),
        ("Step 63532.0 ended when it got its signal.", "E4", STEPD),
        ("cn106 rebooted during the step.", "E4", STEPD),
        ("The step was terminated on cn125.", "E4", STEPD),
        ("The epilog created the enroot directory.", "E4", EPILOG),
        ("The NVMe drive is full, so the directory could not be made.", "E4", EPILOG),
        ("cn125 ran out of memory and killed task 0.", "E4", SRUN),
        ("Task 0 exited normally.", "E4", SRUN),
        ("c001 has the same configuration as the controller.", "E4", CONF),
        ("c001 has 20 sockets too many.", "E4", COUNT),
        ("slurmctld ignored the duplicate name and started.", "E4", DUPLICATE),
        ("The sync took 10 seconds.", "E5", SYNC),
        ("etcd lost its leader in term 4.", "E5", LEADER),
        ("The driver answered nvidia-container-cli.", "E6", HOOK),
        ("ml/sort-head uses 93 % of its memory.", "E8", RESOURCE),
    ),
    at_first={"right": 57, "right_unmarked": 14, "wrong": 25, "wrong_unmarked": 9, "earlier_right": 34, "earlier_wrong": 22},
)  # fmt: skip

# The sixth batch, written when the rules of decision 075 were made and before they ran on it; lines of
# stackhpc/ansible-slurm-appliance#114, clustervision/trinity#759, c3nl-neuraldynamics/c3nl_cluster#62,
# esm-tools/esm_tools#1367, sgl-project/sglang#30532, #26357 and #14972, projectcalico/calico#6550, #6425 and #2040,
# opsnull/follow-me-install-kubernetes-cluster#584, ayaka14732/llama-2-jax#20, jax-ml/jax#23599,
# openshift-metal3/dev-scripts#363, canonical/hotsos#302, billimek/k8s-gitops#3, red-hat-storage/ocs-ci#6636,
# clearlinux/distribution#2907, intel/compute-runtime#132, GPUOpen-LibrariesAndSDKs/MxGPU-Virtualization#17,
# NVIDIA/gpu-monitoring-tools#188, NVIDIA/gpu-operator#414, NVIDIA/dcgm-exporter#46.
MUNGE = "error: Munge decode failed: Expired credential"
ENCODED = "auth/munge: _print_cred: ENCODED: Wed Sep 22 01:11:11 2021, DECODED: Wed Sep 22 14:11:30 2021"
CREDENTIAL = "slurmctld[15918]: error: slurm_receive_msg: MESSAGE_NODE_REGISTRATION_STATUS has authentication error: Invalid credential"
LAUNCH = "srun: error: Task launch for 1466614.0 failed on node compute-0-1: Job credential expired"
PMIX = "mpi/pmix_v3: _direct_conn_establish: prod-137 [5]: pmixp_server.c:1285: Connection reject from 6(prod-141)"
POOL = "[full] total=464256, available=768, evictable=432960, protected=30464, session_held=0, uncached=0"
SCHEDULER = "[TP5] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"
SIGQUIT = "SIGQUIT received. signum=None, frame=None. It usually means one child failed."
DECODE = "[TP0] Decode batch, #running-req: 6, #token: 1920, token usage: 0.94, cuda graph: True, gen throughput (token/s): 446.45, #queue-req: 5"
EXPIRED = 'failed to fetch node resource error=Get "https://10.233.0.1:443/api/v1/nodes": x509: certificate has expired or is not yet valid: current time 2022-08-12T19:18:19Z is after 2022-08-10T19:20:45Z'
AUTHORITY = 'error adding pod to CNI network "k8s-pod-network": error getting ClusterInformation: x509: certificate signed by unknown authority'
NODENAME = "NetworkPlugin cni failed to set up pod network: stat /var/lib/calico/nodename: no such file or directory: check that the calico/node container is running and has mounted /var/lib/calico/"
BARRIER = "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task names: /job:jax_worker/replica:0/task:1"
COORDINATION = "/job:jax_worker/replica:0/task:37 has been set to ERROR in coordination service: UNAVAILABLE: heartbeat timeout. This indicates that the remote task has failed, got preempted, or crashed unexpectedly."
SLOW_OPS = "cluster [WRN] Health check update: 3 slow ops, oldest one blocked for 65 sec, daemons [osd.12,osd.22,osd.6] have slow ops. (SLOW_OPS)"
CLEARED = "cluster [INF] Health check cleared: SLOW_OPS (was: 2 slow ops, oldest one blocked for 262925 sec, mon.b has slow ops)"
OSD = "cluster [INF] osd.1 failed (root=default,host=k8s-2) (2 reporters from different host after 23.000089 >= grace 20.000000)"
SKEW = "[WRN] MON_CLOCK_SKEW: mon.b clock skew 0.386898s > max 0.05s (latency 0.00237396s)"
HANG = "i915 0000:00:02.0: [drm] GPU HANG: ecode 12:1:0020fffe, in xdg-desktop-por [1676]"
ENGINE_RESET = "i915 0000:00:02.0: [drm] *ERROR* GT0: GUC: Engine reset failed on 0:0 (rcs0) because 0x00000000"
RCS = "i915 0000:00:02.0: Resetting rcs0 after gpu hang"
GIM = "gim error:(wait_cmd_complete:1681) wait_cmd_complete -- time out after 0.101896997 sec"
STALE = 'level=error msg="Failed to collect metrics with error: Error getting the latest value for fields: Host engine connection invalid/disconnected"'
HOSTENGINE = 'level=fatal msg="Error connecting to nv-hostengine: Host engine connection invalid/disconnected"'
NVML = "Error: Failed to initialize NVML"
HEALTHY_PG = "pgs: 300 active+clean"
FAN = "gpu_fan_speed_percent of gpu:GPU-0s1 [percent] rose from 38 to 96 in 600 s; least 37, most 97, 40 points"

SIXTH = Batch(
    evidence=(
        log("E1", "slurm", "what the Slurm controller says", (0, MUNGE), (1, ENCODED), (10, CREDENTIAL), (20, LAUNCH), (30, PMIX)),
        log("E2", "ml/serve", "log of ml/serve", (40, POOL), (41, SCHEDULER), (46, SIGQUIT), (20, DECODE), (100, BARRIER), (110, COORDINATION)),
        log("E3", "pod:ml/serve-3", "what Kubernetes says of ml/serve-3", (120, EXPIRED), (130, AUTHORITY), (140, NODENAME)),
        log("E4", "ceph", "log of ceph", (150, SLOW_OPS), (160, CLEARED), (170, OSD), (180, SKEW), (190, HEALTHY_PG)),
        log("E5", "gpu-s05", "kernel events of gpu-s05", (200, HANG), (201, ENGINE_RESET), (202, RCS), (210, GIM)),
        log("E6", "gpu-s06", "log of dcgm-exporter on gpu-s06", (220, STALE), (230, HOSTENGINE), (240, NVML)),
        facts("E7", SERIES, "gpu_fan_speed_percent{gpu:GPU-0s1}", "fan speed of GPU-0s1", {"summary": FAN}),
        facts("E8", FACTS, "who held what", "topology", {"above": {
            "gpu:GPU-0s1": ["job:ml/serve", "node:gpu-s05", "pod:ml/serve-1"], "pod:ml/serve-3": ["job:ml/serve", "node:gpu-s07"],
            "rank:ml/serve#5": ["job:ml/serve", "node:gpu-s05"]}}),
    ),
    context="Anomaly · job ml/serve",
    right=(
        ("Slurm's authentication fails because the munge credential has expired, typically a sign of clocks that differ.", "E1", MUNGE),
        ("Munge rejected the credential as expired.", "E1", MUNGE),
        ("The credential was encoded at 01:11:11 and decoded at 14:11:30, so the two machines' clocks are 13 hours apart.", "E1", ENCODED),
        ("A node's registration was refused by slurmctld on account of an invalid credential.", "E1", CREDENTIAL),
        ("Nodes cannot register with the controller: authentication error.", "E1", CREDENTIAL),
        ("Different munge keys on node and controller may explain the invalid credential.", "E1", CREDENTIAL),
        ("Task 1466614.0 could not be launched on compute-0-1, as its job credential had expired.", "E1", LAUNCH),
        ("srun failed to start the step on compute-0-1.", "E1", LAUNCH),
        ("prod-137 refused a PMIx connection from prod-141.", "E1", PMIX),
        ("The connection between prod-141 and prod-137 was rejected in pmix_v3.", "E1", PMIX),
        ("The KV pool is nearly exhausted: 768 of 464256 tokens are available.", "E2", POOL),
        ("Most of the pool, 432960 tokens, could be evicted but was not.", "E2", POOL),
        ("The scheduler of TP5 made no progress for 300 seconds and hit its watchdog.", "E2", SCHEDULER),
        ("TP rank 5 hung; SGLang's watchdog fired after five minutes.", "E2", SCHEDULER),
        ("The server received SIGQUIT, which usually means that a child process failed.", "E2", SIGQUIT),
        ("One of the server's processes has probably died.", "E2", SIGQUIT),
        ("At that time 94 % of the token capacity was in use and 5 requests were queued.", "E2", DECODE),
        ("The engine was still generating about 446 tokens per second with 6 running requests.", "E2", DECODE),
        ("calico-node cannot talk to the API server: the certificate expired on 2022-08-10.", "E3", EXPIRED),
        ("The TLS certificate of the API server at 10.233.0.1:443 is out of date.", "E3", EXPIRED),
        ("A certificate that ran out two days earlier blocks the request to the API server.", "E3", EXPIRED),
        ("The pod could not join the network k8s-pod-network since its certificate comes from an unknown authority.", "E3", AUTHORITY),
        ("TLS verification fails in the CNI plugin, perhaps after a rotation of the cluster's CA.", "E3", AUTHORITY),
        ("The CNI plugin finds no /var/lib/calico/nodename, so calico-node is likely not running on this node.", "E3", NODENAME),
        ("The pod's network could not be set up.", "E3", NODENAME),
        ("The JAX workers did not all reach the barrier PjRT_Client_Connect in time; task 1 is missing.", "E2", BARRIER),
        ("Task 1 never connected.", "E2", BARRIER),
        ("The distributed start-up of JAX timed out at a barrier.", "E2", BARRIER),
        ("JAX task 37 stopped sending heartbeats.", "E2", COORDINATION),
        ("The coordination service lost task 37; it failed, was preempted or crashed.", "E2", COORDINATION),
        ("Ceph reports 3 slow operations, the oldest blocked for 65 seconds.", "E4", SLOW_OPS),
        ("OSDs 6, 12 and 22 are slow, which could mean failing or overloaded disks.", "E4", SLOW_OPS),
        ("I/O to the Ceph cluster is delayed by more than a minute.", "E4", SLOW_OPS),
        ("The slow operations are gone: Ceph cleared its SLOW_OPS warning.", "E4", CLEARED),
        ("Ceph's monitor b had two slow operations, which have been cleared.", "E4", CLEARED),
        ("osd.1 on host k8s-2 was declared failed after 23 s without an answer, beyond its grace of 20 s.", "E4", OSD),
        ("Two reporters said that osd.1 was gone.", "E4", OSD),
        ("The clock of mon.b is off by 0.39 s, far more than the permitted 0.05 s.", "E4", SKEW),
        ("Time synchronization on mon.b is broken or not configured.", "E4", SKEW),
        ("All 300 placement groups are active and clean.", "E4", HEALTHY_PG),
        ("The Intel GPU at 0000:00:02.0 hung in process xdg-desktop-por (1676).", "E5", HANG),
        ("A GPU hang was detected on gpu-s05.", "E5", HANG),
        ("The reset of the render engine rcs0 failed.", "E5", ENGINE_RESET),
        ("The driver was not able to reset engine rcs0, so the node probably needs a reboot.", "E5", ENGINE_RESET),
        ("The kernel resets rcs0 after a GPU hang.", "E5", RCS),
        ("The driver tried to recover by resetting the render engine.", "E5", RCS),
        ("A command to the virtual GPU did not complete within 0.1 s.", "E5", GIM),
        ("The GIM module timed out while it waited for a command.", "E5", GIM),
        ("dcgm-exporter has lost its connection to the host engine and collects no metrics.", "E6", STALE),
        ("The metrics of this node are possibly stale, as the exporter cannot read the latest values.", "E6", STALE),
        ("dcgm-exporter cannot connect to nv-hostengine.", "E6", HOSTENGINE),
        ("The host engine is most likely not running.", "E6", HOSTENGINE),
        ("The exporter stopped with a fatal error.", "E6", HOSTENGINE),
        ("NVML could not be initialized on gpu-s06.", "E6", NVML),
        ("The failure to initialize NVML suggests that the driver is not loaded or a GPU is in an error state.", "E6", NVML),
        ("The fan of GPU-0s1 went from 38 % to 96 % within ten minutes.", "E7", FAN),
        ("The rising fan speed points to a cooling problem.", "E7", FAN),
        ("Fan speed peaked at 97 %.", "E7", FAN),
        ("The pod ml/serve-3 has no network.", "E3", NODENAME),
        ("The engine's memory pool was full of evictable entries.", "E2", POOL),
        ("The hang is in the graphics stack, not in the network.", "E5", HANG),
        ("Authentication between the nodes' MPI processes is failing.", "E1", PMIX),
    ),
    wrong=(
        ("The munge credential is valid.", "E1", MUNGE),
        ("Munge is not installed on the node.", "E1", MUNGE),
        ("The clocks of the two machines agree.", "E1", ENCODED),
        ("The credential was decoded at 01:11:11.", "E1", ENCODED),
        ("The node registered successfully with the controller.", "E1", CREDENTIAL),
        ("The controller ran out of memory during registration.", "E1", CREDENTIAL),
        ("The task was launched on compute-0-1.", "E1", LAUNCH),
        ("The task failed on compute-0-2.", "E1", LAUNCH),
        ("The job's time limit had expired.", "E1", LAUNCH),
        ("prod-137 accepted the connection from prod-141.", "E1", PMIX),
        ("A firewall between the nodes dropped the connection.", "E1", PMIX),
        ("432960 tokens are available.", "E2", POOL),
        ("The pool has plenty of room.", "E2", POOL),
        ("The pool is full because of a memory leak.", "E2", POOL),
        ("The scheduler of TP3 timed out.", "E2", SCHEDULER),
        ("The watchdog timeout is 30 seconds.", "E2", SCHEDULER),
        ("The scheduler recovered before the watchdog fired.", "E2", SCHEDULER),
        ("An operator sent SIGQUIT to stop the server.", "E2", SIGQUIT),
        ("All child processes failed.", "E2", SIGQUIT),
        ("Six requests were waiting in the queue.", "E2", DECODE),
        ("The engine was idle.", "E2", DECODE),
        ("CUDA graphs were disabled.", "E2", DECODE),
        ("The certificate is valid until 2022-08-12.", "E3", EXPIRED),
        ("The API server is down.", "E3", EXPIRED),
        ("An attacker replaced the certificate.", "E3", AUTHORITY),
        ("The certificate was signed by a trusted authority.", "E3", AUTHORITY),
        ("The pod was added to the network.", "E3", AUTHORITY),
        ("The disk of the node is full, so nodename could not be written.", "E3", NODENAME),
        ("calico-node is running and has mounted /var/lib/calico/.", "E3", NODENAME),
        ("All tasks reached the barrier.", "E2", BARRIER),
        ("Task 0 did not reach the barrier.", "E2", BARRIER),
        ("The barrier failed since a GPU fell off the bus.", "E2", BARRIER),
        ("Task 37 is healthy.", "E2", COORDINATION),
        ("Task 37 was killed by the OOM killer.", "E2", COORDINATION),
        ("Task 38 missed its heartbeats.", "E2", COORDINATION),
        ("Ceph has 65 slow operations.", "E4", SLOW_OPS),
        ("osd.12 has been replaced.", "E4", SLOW_OPS),
        ("Ceph has no slow operations.", "E4", SLOW_OPS),
        ("The slow operations continue on mon.b.", "E4", CLEARED),
        ("The health check failed again.", "E4", CLEARED),
        ("osd.1 answered within its grace period.", "E4", OSD),
        ("osd.2 failed on host k8s-2.", "E4", OSD),
        ("The disk under osd.1 has bad sectors.", "E4", OSD),
        ("The clock of mon.b is within its limit.", "E4", SKEW),
        ("The clock of mon.c is skewed.", "E4", SKEW),
        ("Some placement groups are degraded.", "E4", HEALTHY_PG),
        ("The GPU hang was caused by overheating.", "E5", HANG),
        ("The GPU at 0000:03:00.0 hung.", "E5", HANG),
        ("The process 1676 was killed.", "E5", HANG),
        ("The engine was reset without problems.", "E5", ENGINE_RESET),
        ("The reset of engine vcs1 failed.", "E5", ENGINE_RESET),
        ("The reset failed because the firmware is outdated.", "E5", ENGINE_RESET),
        ("rcs0 was reset before the hang.", "E5", RCS),
        ("The command completed after 0.1 s.", "E5", GIM),
        ("The virtual machine was migrated.", "E5", GIM),
        ("The exporter collects fresh metrics.", "E6", STALE),
        ("Prometheus dropped the metrics.", "E6", STALE),
        ("dcgm-exporter is connected to nv-hostengine.", "E6", HOSTENGINE),
        ("The exporter's pod was evicted.", "E6", HOSTENGINE),
        ("NVML was initialized.", "E6", NVML),
        ("The fan slowed down to 38 %.", "E7", FAN),
        ("The fan of GPU-0s1 has failed.", "E7", FAN),
    ),
    at_first={"right": 50, "right_unmarked": 19, "wrong": 25, "wrong_unmarked": 7, "earlier_right": 42, "earlier_wrong": 14},
)  # fmt: skip

# The seventh batch, written when the rules of decision 075 marked what they could not check. Lines of
# NVIDIA/gpu-operator#274, NVIDIA/nvtrust#51, NVIDIA/k8s-device-plugin#941, volcano-sh/volcano#4479 and #4311,
# openucx/ucx#6000 and #2973, triton-inference-server/tensorrtllm_backend#66, NVIDIA/TensorRT-LLM#2440,
# triton-inference-server/server#7950, systemd/systemd#42321, #2200 and #19149, coreos/bugs#334, wandb/wandb#4409 and #3329.
NULL = "BUG: unable to handle kernel NULL pointer dereference at 00000000000000b1"
RIP = "RIP: 0010:_nv031695rm+0x79/0x940 [nvidia]"
CPU_33 = "CPU: 33 PID: 4564 Comm: sbatchd Kdump: loaded Tainted: P OE 4.18.0-305.3.1.el8_4.x86_64"
GPF = "general protection fault, probably for non-canonical address 0x25b5f6bb1a24827e: 0000 [#1] SMP NOPTI"
GANG = "0/0 tasks in gang unschedulable: pod group is not ready, 1 minAvailable"
QUEUE_QUOTA = "queue resource quota insufficient"
PODS = "pod group is not ready, 1 Pending, 1 minAvailable; Pending: 1 Unschedulable"
RETRY = "[compute001:31180:0:31180] ib_mlx5_log.c:143  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)"
UCX = "[ast1815:6807 :0:6807] ib_mlx5_log.c:115  FATAL: Error on mlx5_3:1 QP 0xe6d7 wqe[7821]: Transport retry count exceeded (synd 0x15 vend 0x81) opcode SEND"
BACKEND = "failed to load 'tensorrt_llm' version 2: Invalid argument: unable to find 'tensorrtllm/model.py' for model 'tensorrt_llm', in /opt/tritonserver/backends/tensorrtllm"
ENSEMBLE = "Invalid argument: ensemble 'ensemble' depends on 'tensorrt_llm' which has no loaded version. Model 'tensorrt_llm' loading failed with error: version 1 is at UNAVAILABLE state"
EMPTY = "[TensorRT-LLM][ERROR] Assertion failed: Both encoder and decoder model paths are empty"
CREATING = "error: creating server: Internal - failed to load all models"
UNLOADED = "successfully unloaded 'postprocessing' version 1"
INFLIGHT = "Timeout 30: Found 0 model versions that have in-flight inferences"
PRESSURE = "systemd-oomd[659]: Memory pressure for /system.slice is 85.03% > 80.00% for > 2s with reclaim activity"
OOMD = "systemd[1]: systemd-journald.service: systemd-oomd killed 1 process(es) in this unit."
JOURNALD = "systemd[1]: systemd-journald.service watchdog timeout!"
JOURNAL = "systemd-journal[29620]: Permanent journal is using 640.0M (max allowed 4.0G, trying to leave 4.0G free of 32.2G available → current limit 4.0G)."
MOTD = "systemd[1]: motdgen.service: Main process exited, code=exited, status=1/FAILURE"
UNITS = "motdgen[5604]: Failed to list units: Connection timed out"
STALE_HANDLE = "OSError: [Errno 116] Stale file handle"
OPEN_FILES = "OSError: [Errno 24] Too many open files: '/tmp/wandb-cache/artifact.bin'"
READS = "disk reads of node gpu-t01 fell from 940 MB/s to 12 MB/s in 300 s; least 11, most 955, 60 points"

SEVENTH = Batch(
    evidence=(
        log("E1", "gpu-t01", "kernel events of gpu-t01", (0, NULL), (0.1, CPU_33), (0.2, RIP), (300, PRESSURE), (302, OOMD), (310, JOURNALD), (330, JOURNAL),
            (340, UNITS), (341, MOTD)),
        log("E2", "gpu-t02", "kernel events of gpu-t02", (5, GPF)),
        log("E3", "ml/mix", "log of ml/mix", (60, RETRY), (61, UCX), (70, STALE_HANDLE), (75, OPEN_FILES)),
        log("E4", "ml/triton", "log of ml/triton", (80, BACKEND), (81, EMPTY), (82, ENSEMBLE), (85, INFLIGHT), (86, UNLOADED), (90, CREATING)),
        log("E5", "pod:ml/mix-1", "what Kubernetes says of ml/mix-1", (100, GANG), (110, QUEUE_QUOTA), (120, PODS)),
        facts("E6", FACTS, "findings", "what the detectors said", {"summary": READS}),
        facts("E7", FACTS, "who held what", "topology", {"above": {
            "gpu:GPU-0t1": ["job:ml/mix", "node:gpu-t01", "pod:ml/mix-0"], "pod:ml/mix-1": ["job:ml/mix", "node:gpu-t02"],
            "pod:ml/triton-0": ["job:ml/triton", "node:gpu-t03"]}}),
    ),
    context="Anomaly · node gpu-t01",
    right=(
        ("The kernel of gpu-t01 crashed on a NULL pointer at 01:00:00.", "E1", NULL),
        ("The kernel dereferenced a NULL pointer (address 0xb1), a bug in kernel code or a driver.", "E1", NULL),
        ("The crash happened inside the NVIDIA kernel module, in _nv031695rm.", "E1", RIP),
        ("The faulting instruction belongs to the nvidia driver, so this points to a driver bug.", "E1", RIP),
        ("Process sbatchd (pid 4564) was running on CPU 33 when the kernel crashed.", "E1", CPU_33),
        ("The kernel is tainted by proprietary and out-of-tree modules.", "E1", CPU_33),
        ("gpu-t02 hit a general protection fault.", "E2", GPF),
        ("The kernel of gpu-t02 accessed a non-canonical address, which usually means corrupted memory or a bad pointer.", "E2", GPF),
        ("No task of the gang can be scheduled, as the pod group is not ready.", "E5", GANG),
        ("Volcano holds the gang back until at least one task is available.", "E5", GANG),
        ("The queue's quota is too small for the job.", "E5", QUEUE_QUOTA),
        ("The job waits since its queue has no quota left.", "E5", QUEUE_QUOTA),
        ("One pod of the group is pending and cannot be scheduled.", "E5", PODS),
        ("On compute001 the RoCE link mlx5_0:1 exceeded its transport retries.", "E3", RETRY),
        ("Packets sent over mlx5_0 were not acknowledged, so the peer or the network path is likely down.", "E3", RETRY),
        ("The RDMA transport on compute001 gave up after too many retries (syndrome 0x15).", "E3", RETRY),
        ("UCX hit a fatal error on mlx5_3 port 1: a SEND was never acknowledged.", "E3", UCX),
        ("ast1815 could not send over its queue pair 0xe6d7.", "E3", UCX),
        ("Reading failed with a stale file handle, typically because the file was replaced or the NFS export changed on the server.", "E3", STALE_HANDLE),
        ("A file on network storage became stale (errno 116).", "E3", STALE_HANDLE),
        ("The process has reached its limit of open files.", "E3", OPEN_FILES),
        ("Too many files are open, perhaps a leak of file descriptors.", "E3", OPEN_FILES),
        ("Triton could not load version 2 of tensorrt_llm, since tensorrtllm/model.py does not exist.", "E4", BACKEND),
        ("The backend folder /opt/tritonserver/backends/tensorrtllm lacks model.py; the image is likely the wrong one.", "E4", BACKEND),
        ("TensorRT-LLM found no path for the encoder or the decoder model.", "E4", EMPTY),
        ("The model paths are empty, which is a configuration mistake.", "E4", EMPTY),
        ("The ensemble cannot start because tensorrt_llm is unavailable.", "E4", ENSEMBLE),
        ("Model tensorrt_llm failed to load, and the ensemble needs it.", "E4", ENSEMBLE),
        ("Triton exited: it was not able to load all its models.", "E4", CREATING),
        ("The server could not be created.", "E4", CREATING),
        ("The model postprocessing was unloaded without error.", "E4", UNLOADED),
        ("No inference was in flight when the server stopped.", "E4", INFLIGHT),
        ("The system slice of gpu-t01 was under memory pressure of 85 %, above the limit of 80 %.", "E1", PRESSURE),
        ("Memory on gpu-t01 ran short: pressure stayed over 80 % for more than two seconds.", "E1", PRESSURE),
        ("systemd-oomd killed a process of systemd-journald.", "E1", OOMD),
        ("journald was killed for lack of memory at 01:05:02.", "E1", OOMD),
        ("systemd-journald did not answer its watchdog.", "E1", JOURNALD),
        ("The journal daemon hung.", "E1", JOURNALD),
        ("The journal takes 640 MB of the 4 GB that it may use.", "E1", JOURNAL),
        ("motdgen timed out when it tried to list systemd's units.", "E1", UNITS),
        ("systemd on gpu-t01 did not respond to motdgen.", "E1", UNITS),
        ("motdgen.service failed with status 1.", "E1", MOTD),
        ("Disk reads on gpu-t01 collapsed from 940 MB/s to 12 MB/s within five minutes.", "E6", READS),
        ("The drop in read throughput suggests a storage problem.", "E6", READS),
        ("Reads are now about 1 % of what they were.", "E6", READS),
        ("The node's kernel must be considered unreliable until it is rebooted.", "E1", NULL),
        ("The nvidia module was involved in the crash.", "E1", RIP),
        ("The gang of ml/mix-1 is unschedulable.", "E5", GANG),
        ("The RoCE fabric between the nodes should be checked.", "E3", RETRY),
        ("mlx5_0 may have lost its link or its peer.", "E3", RETRY),
        ("The fault is in the serving image or its model repository, not in the GPU.", "E4", BACKEND),
        ("Version 1 of tensorrt_llm is unavailable.", "E4", ENSEMBLE),
        ("journald used 640 MB at 01:05:30.", "E1", JOURNAL),
        ("wandb's cache file could not be opened.", "E3", OPEN_FILES),
        ("The training process exhausted its file descriptors (errno 24).", "E3", OPEN_FILES),
        ("The protection fault was the first on this kernel ([#1]).", "E2", GPF),
        ("The pod group needs at least one pod.", "E5", GANG),
        ("The retransmissions on compute001 were used up.", "E3", RETRY),
        ("Memory pressure was the reason for the kill, judging by systemd-oomd.", "E1", OOMD),
        ("A bug in the NVIDIA driver took down sbatchd's system call.", "E1", RIP),
    ),
    wrong=(
        ("The kernel handled the NULL pointer without a crash.", "E1", NULL),
        ("A cosmic ray flipped a bit of the pointer.", "E1", NULL),
        ("The crash is in the mlx5 driver.", "E1", RIP),
        ("The nvidia module was unloaded before the crash.", "E1", RIP),
        ("CPU 33 is defective.", "E1", CPU_33),
        ("The process with pid 33 crashed.", "E1", CPU_33),
        ("gpu-t01 hit a general protection fault.", "E2", GPF),
        ("The address 0x25b5f6bb1a24827e is canonical.", "E2", GPF),
        ("Faulty GPU memory caused the protection fault.", "E2", GPF),
        ("The gang was scheduled.", "E5", GANG),
        ("The pod group is ready.", "E5", GANG),
        ("Eight tasks of the gang are unschedulable.", "E5", GANG),
        ("The queue's quota is sufficient.", "E5", QUEUE_QUOTA),
        ("An administrator lowered the queue's quota.", "E5", QUEUE_QUOTA),
        ("The pod is pending because its image is missing.", "E5", PODS),
        ("The transport on compute002 exceeded its retries.", "E3", RETRY),
        ("The packets were acknowledged after a retry.", "E3", RETRY),
        ("A broken cable on mlx5_0 made the retries fail.", "E3", RETRY),
        ("The adapter mlx5_1 exceeded its retry count.", "E3", RETRY),
        ("The SEND completed on mlx5_3.", "E3", UCX),
        ("An RDMA READ failed on mlx5_3.", "E3", UCX),
        ("The switch dropped the packets because its buffers were full.", "E3", UCX),
        ("The file handle is valid.", "E3", STALE_HANDLE),
        ("The disk is full, hence the stale handle.", "E3", STALE_HANDLE),
        ("The NFS server was rebooted.", "E3", STALE_HANDLE),
        ("The process may open more files.", "E3", OPEN_FILES),
        ("The disk quota of /tmp is exhausted.", "E3", OPEN_FILES),
        ("tensorrt_llm version 2 was loaded.", "E4", BACKEND),
        ("Version 1 of tensorrt_llm lacks its model.py.", "E4", BACKEND),
        ("The GPU has too little memory for tensorrt_llm.", "E4", BACKEND),
        ("The decoder path is set, the encoder path is empty.", "E4", EMPTY),
        ("The assertion passed.", "E4", EMPTY),
        ("The ensemble was loaded although tensorrt_llm was not.", "E4", ENSEMBLE),
        ("Model tensorrt_llm is available.", "E4", ENSEMBLE),
        ("The server was created and serves requests.", "E4", CREATING),
        ("Triton crashed with a segmentation fault.", "E4", CREATING),
        ("The model preprocessing was unloaded.", "E4", UNLOADED),
        ("The model postprocessing could not be unloaded.", "E4", UNLOADED),
        ("30 inferences were in flight.", "E4", INFLIGHT),
        ("Memory pressure was 80 %, below the limit of 85 %.", "E1", PRESSURE),
        ("The memory pressure went away by itself.", "E1", PRESSURE),
        ("A training job leaked memory on gpu-t01.", "E1", PRESSURE),
        ("systemd-oomd killed the training process.", "E1", OOMD),
        ("systemd-oomd killed 659 processes.", "E1", OOMD),
        ("journald survived the memory pressure.", "E1", OOMD),
        ("journald answered its watchdog.", "E1", JOURNALD),
        ("The journal's disk failed.", "E1", JOURNALD),
        ("The journal has used up its limit of 4 GB.", "E1", JOURNAL),
        ("The journal takes 32.2 GB.", "E1", JOURNAL),
        ("motdgen listed the units.", "E1", UNITS),
        ("motdgen.service exited cleanly.", "E1", MOTD),
        ("motdgen.service was killed by the OOM killer.", "E1", MOTD),
        ("Disk reads rose from 12 MB/s to 940 MB/s.", "E6", READS),
        ("Disk writes fell to 12 MB/s.", "E6", READS),
        ("Disk reads of gpu-t02 fell.", "E6", READS),
        ("The drop lasted 60 seconds.", "E6", READS),
        ("The read throughput has recovered.", "E6", READS),
        ("Kdump failed to load.", "E1", CPU_33),
        ("The pod group needs 12 pods.", "E5", GANG),
        ("The kernel was upgraded to 4.18 just before.", "E1", CPU_33),
    ),
    at_first={"right": 56, "right_unmarked": 20, "wrong": 25, "wrong_unmarked": 7, "earlier_right": 47, "earlier_wrong": 11},
)  # fmt: skip

# The eighth batch, written when the rules of decision 075 were finished. Lines of
# longhorn/longhorn#8091, #12474, #1074 and #687, openshift/sriov-network-operator#635, treydock/infiniband_exporter#26,
# horovod/horovod#457, minio/minio#17555 and #12972, oxidecomputer/propolis#328, e2b-dev/infra#638, cilium/cilium#10359
# and #20498.
REBUILD = 'Failed rebuilding replica with Address 10.42.2.195:10000: failed to add replica for volume: rpc error: code = Unavailable desc = connection error: desc = "transport: Error while dialing: dial tcp 10.42.2.195:10000: i/o timeout"'
UNKNOWN = "Updated the non-error instance manager to state unknown due to node down or deleted node=shuo-cluster-2"
INSTANCE = "Instance pvc-95cf9142-r-49f9dbb3 crashed on Instance Manager instance-manager-r-6edaf9ec at node3, try to get log"
MONITOR = "Backend tcp://10.42.0.188:10000 monitoring failed, mark as ERR: EOF"
MODE_RW = "Set replica tcp://10.42.1.19:10000 to mode RW"
DISABLED = (
    "link mlx5_1/1 subnet_prefix fe80:0000:0000:0000 lid 65535 sm_lid 0 lmc 0 state DOWN physical_state DISABLED"
)
ACTIVE = "link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 3 sm_lid 1 lmc 0 state ACTIVE physical_state LINK_UP"
MAD = "ibwarn: [298726] mad_rpc_open_port: client_register for mgmt 1 failed"
SUBSET = "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds."
STALLED = "Stalled ops: v0/tower_0/HorovodAllreduce_v0_tower_0_gradients_AddN_37_0 [missing ranks: 815]"
DRIVES = "Error: Write failed. Insufficient number of drives online (*errors.errorString)"
OFFLINE = "Error: Marking http://minio-pool0-1:9000/minio/storage/export6/v39 temporary offline; caused by Post: lookup minio-pool0-1 on 10.96.0.10:53: no such host"
TSC = "clocksource: timekeeping watchdog on CPU2: Marking clocksource 'tsc' as unstable because the skew is too large:"
SWITCHED = "clocksource: Switched to clocksource acpi_pm"
RCU = "rcu: INFO: rcu_preempt self-detected stall on CPU"
HINFO = (
    "[ERROR] plugin/errors: 2 5064704634509029259. HINFO: read udp 10.100.0.108:55662->10.180.1.2:53: i/o timeout"
)
UNSYNCED = "[WARNING] plugin/kubernetes: starting server with unsynced Kubernetes API"
TRAFFIC = "ib_port_receive_bytes of nic:gpu-u02/mlx5_1 [bytes] fell from 2.1e+10 to 0 in 120 s; least 0, most 2.2e+10, 60 points"

EIGHTH = Batch(
    evidence=(
        log("E1", "longhorn", "log of longhorn-manager", (0, REBUILD), (10, UNKNOWN), (20, INSTANCE), (30, MONITOR), (40, MODE_RW)),
        log("E2", "gpu-u02", "what rdma says on gpu-u02", (50, DISABLED), (50.5, ACTIVE), (52, MAD)),
        log("E3", "ml/tf", "log of ml/tf", (60, SUBSET), (61, STALLED)),
        log("E4", "minio", "log of minio", (70, DRIVES), (75, OFFLINE)),
        log("E5", "gpu-u05", "kernel events of gpu-u05", (80, TSC), (81, SWITCHED), (95, RCU)),
        log("E6", "coredns", "log of coredns", (100, HINFO), (101, UNSYNCED)),
        facts("E7", SERIES, "ib_port_receive_bytes{nic:gpu-u02/mlx5_1}", "received bytes of mlx5_1 on gpu-u02", {"summary": TRAFFIC}),
        facts("E8", FACTS, "who held what", "topology", {"above": {
            "gpu:GPU-0u5": ["job:ml/tf", "node:gpu-u05", "pod:ml/tf-0"], "nic:gpu-u02/mlx5_1": ["node:gpu-u02"],
            "pod:ml/tf-1": ["job:ml/tf", "node:gpu-u02"]}}),
    ),
    context="Anomaly · node gpu-u02",
    right=(
        ("Longhorn cannot rebuild the replica at 10.42.2.195: connecting to it timed out.", "E1", REBUILD),
        ("The replica at 10.42.2.195:10000 is unreachable, so the volume stays without its full redundancy.", "E1", REBUILD),
        ("Rebuilding failed on a dial timeout, which suggests a network problem or a node that is down.", "E1", REBUILD),
        ("Node shuo-cluster-2 is down or was deleted, and its instance manager is in an unknown state.", "E1", UNKNOWN),
        ("Longhorn lost sight of the instance manager on shuo-cluster-2.", "E1", UNKNOWN),
        ("A Longhorn instance on node3 crashed.", "E1", INSTANCE),
        ("The replica 49f9dbb3 of volume pvc-95cf9142 went down on node3.", "E1", INSTANCE),
        ("The backend at 10.42.0.188 stopped responding to monitoring and was marked as faulty.", "E1", MONITOR),
        ("Longhorn marked backend 10.42.0.188:10000 as ERR after its connection ended (EOF).", "E1", MONITOR),
        ("The replica at 10.42.1.19 is writable again.", "E1", MODE_RW),
        ("Replica 10.42.1.19:10000 was switched to read-write.", "E1", MODE_RW),
        ("Port mlx5_1/1 on gpu-u02 is down: its physical state is disabled.", "E2", DISABLED),
        ("mlx5_1 has no subnet manager (sm_lid 0) and no valid LID, because the port is disabled.", "E2", DISABLED),
        ("Someone may have disabled the port mlx5_1 by configuration.", "E2", DISABLED),
        ("mlx5_0 works: it is active and its link is up.", "E2", ACTIVE),
        ("The port of mlx5_0 has LID 3.", "E2", ACTIVE),
        ("The InfiniBand tool could not open the MAD port: registering the client failed.", "E2", MAD),
        ("Client registration for management class 1 failed.", "E2", MAD),
        ("Horovod is stalled: only some ranks submitted their tensors, the others have been missing for over a minute.", "E3", SUBSET),
        ("Some ranks wait for the remaining ones for more than 60 s.", "E3", SUBSET),
        ("The ranks may be out of step, for instance if one of them crashed or runs other code.", "E3", SUBSET),
        ("Rank 815 is missing from the allreduce.", "E3", STALLED),
        ("The stalled operation AddN_37 waits for rank 815, so the trouble is likely on that rank or its node.", "E3", STALLED),
        ("MinIO rejects writes since too few drives are online.", "E4", DRIVES),
        ("There are not enough drives for a write.", "E4", DRIVES),
        ("MinIO took the drive export6 on minio-pool0-1 offline for the time being.", "E4", OFFLINE),
        ("The name minio-pool0-1 cannot be resolved by the DNS server 10.96.0.10.", "E4", OFFLINE),
        ("The cause is DNS: the host minio-pool0-1 was not found.", "E4", OFFLINE),
        ("The kernel of gpu-u05 no longer trusts the TSC clock source because of too much skew.", "E5", TSC),
        ("CPU 2's watchdog marked tsc as unstable.", "E5", TSC),
        ("An unstable TSC often comes from firmware settings or virtualization.", "E5", TSC),
        ("The kernel fell back to the clock source acpi_pm.", "E5", SWITCHED),
        ("Timekeeping now uses acpi_pm, which is slower to read than the TSC.", "E5", SWITCHED),
        ("A CPU of gpu-u05 was stalled, as RCU noticed at 01:01:35.", "E5", RCU),
        ("RCU reports a stall on a CPU, perhaps caused by a long interrupt or a hung driver.", "E5", RCU),
        ("CoreDNS got no answer from its upstream 10.180.1.2.", "E6", HINFO),
        ("DNS queries from 10.100.0.108 to 10.180.1.2 on port 53 time out.", "E6", HINFO),
        ("The upstream resolver is unreachable or drops UDP packets.", "E6", HINFO),
        ("CoreDNS started although it was not yet in sync with the Kubernetes API.", "E6", UNSYNCED),
        ("The Kubernetes API was not synchronized when CoreDNS started.", "E6", UNSYNCED),
        ("The traffic received by mlx5_1 on gpu-u02 dropped to zero within two minutes.", "E7", TRAFFIC),
        ("mlx5_1 receives nothing any more.", "E7", TRAFFIC),
        ("Before, the port received about 21 GB.", "E7", TRAFFIC),
        ("The adapter went silent, which fits a port that was shut.", "E7", TRAFFIC),
        ("The volume's redundancy cannot be restored until 10.42.2.195 answers.", "E1", REBUILD),
        ("A network partition to node shuo-cluster-2 is possible.", "E1", UNKNOWN),
        ("The crash of the instance on node3 should be looked into in its own log.", "E1", INSTANCE),
        ("The other port, mlx5_0, is healthy.", "E2", ACTIVE),
        ("One rank out of many holds up the whole job.", "E3", STALLED),
        ("An allreduce of gradients is blocked.", "E3", STALLED),
        ("Checkpoints written to MinIO will fail for now.", "E4", DRIVES),
        ("The drive v39 of export6 was marked as temporarily offline.", "E4", OFFLINE),
        ("The clock of gpu-u05 may have jumped.", "E5", TSC),
        ("The clock source was changed at 01:01:21.", "E5", SWITCHED),
        ("The lookup failed with an I/O timeout.", "E6", HINFO),
        ("Name resolution in the cluster is disturbed.", "E6", HINFO),
        ("The monitoring connection to 10.42.0.188 was closed.", "E1", MONITOR),
        ("Reduce, gather or broadcast operations are stuck.", "E3", SUBSET),
        ("mlx5_1 on gpu-u02 is administratively disabled.", "E2", DISABLED),
        ("The process with pid 298726 got the warning.", "E2", MAD),
    ),
    wrong=(
        ("The replica was rebuilt.", "E1", REBUILD),
        ("The replica at 10.42.2.196 timed out.", "E1", REBUILD),
        ("The rebuild failed because the disk is full.", "E1", REBUILD),
        ("Node shuo-cluster-2 is up.", "E1", UNKNOWN),
        ("Node shuo-cluster-3 was deleted.", "E1", UNKNOWN),
        ("The instance manager ran out of memory.", "E1", UNKNOWN),
        ("The instance runs on node3 without trouble.", "E1", INSTANCE),
        ("The instance on node2 crashed.", "E1", INSTANCE),
        ("A kernel panic took node3 down.", "E1", INSTANCE),
        ("Monitoring of the backend succeeded.", "E1", MONITOR),
        ("The backend's certificate has expired.", "E1", MONITOR),
        ("The replica is read-only.", "E1", MODE_RW),
        ("The replica 10.42.1.19 failed.", "E1", MODE_RW),
        ("Port mlx5_1 is active.", "E2", DISABLED),
        ("Port mlx5_0 is disabled.", "E2", DISABLED),
        ("mlx5_1 is down because its cable is broken.", "E2", DISABLED),
        ("mlx5_1 has LID 3.", "E2", DISABLED),
        ("The link of mlx5_0 is down.", "E2", ACTIVE),
        ("mlx5_0 has no subnet manager.", "E2", ACTIVE),
        ("The MAD port was opened.", "E2", MAD),
        ("The adapter's firmware crashed.", "E2", MAD),
        ("All ranks submitted their tensors.", "E3", SUBSET),
        ("The ranks waited for 6 seconds.", "E3", SUBSET),
        ("The tensors contain NaN.", "E3", SUBSET),
        ("Rank 37 is missing.", "E3", STALLED),
        ("815 ranks are missing.", "E3", STALLED),
        ("Rank 815 was killed by the OOM killer.", "E3", STALLED),
        ("The allreduce finished.", "E3", STALLED),
        ("The write succeeded.", "E4", DRIVES),
        ("Enough drives are online.", "E4", DRIVES),
        ("Three drives have failed.", "E4", DRIVES),
        ("MinIO was restarted by an operator.", "E4", DRIVES),
        ("The drive export6 is defective.", "E4", OFFLINE),
        ("The DNS server 10.96.0.10 is down.", "E4", OFFLINE),
        ("minio-pool0-1 was found by DNS.", "E4", OFFLINE),
        ("The drive is online again.", "E4", OFFLINE),
        ("The TSC is stable.", "E5", TSC),
        ("CPU 5 marked the clock source as unstable.", "E5", TSC),
        ("The CPU overheated.", "E5", TSC),
        ("The kernel switched to the TSC.", "E5", SWITCHED),
        ("The kernel kept its clock source.", "E5", SWITCHED),
        ("The GPU stalled.", "E5", RCU),
        ("The stall ended after 10 seconds.", "E5", RCU),
        ("No CPU is stalled.", "E5", RCU),
        ("The upstream 10.180.1.2 answered.", "E6", HINFO),
        ("Queries to 10.180.1.3 time out.", "E6", HINFO),
        ("A network policy blocks the queries.", "E6", HINFO),
        ("CoreDNS was killed.", "E6", HINFO),
        ("CoreDNS is in sync with the Kubernetes API.", "E6", UNSYNCED),
        ("The Kubernetes API is down.", "E6", UNSYNCED),
        ("The received traffic rose.", "E7", TRAFFIC),
        ("The traffic of mlx5_0 fell.", "E7", TRAFFIC),
        ("The transmitted bytes fell to zero.", "E7", TRAFFIC),
        ("The traffic fell within 20 minutes.", "E7", TRAFFIC),
        ("The traffic fell to 21 GB.", "E7", TRAFFIC),
        ("The volume was deleted.", "E1", REBUILD),
        ("The port was disabled after the traffic had stopped.", "E2", DISABLED),
        ("Both ports of gpu-u02 are down.", "E2", DISABLED),
        ("The stall was resolved.", "E3", SUBSET),
        ("The drives were replaced.", "E4", DRIVES),
    ),
    at_first={"right": 52, "right_unmarked": 12, "wrong": 25, "wrong_unmarked": 3, "earlier_right": 41, "earlier_wrong": 16},
)  # fmt: skip

BATCHES: Mapping[str, Batch] = {
    "first": FIRST, "second": SECOND, "third": THIRD, "fourth": FOURTH,
    "fifth": FIFTH, "sixth": SIXTH, "seventh": SEVENTH, "eighth": EIGHTH,
}  # fmt: skip
