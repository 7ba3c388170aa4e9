"""Answers of two scripted readers, written by hand: none of them comes from a language model.

The good reader names the right cause at its place, in the words of different people. The bad one names another
cause, denies the right one, follows the red herring, lists everything, stays vague, or names another place.
`$place` is the incident's place. The scorer was not fitted to them: `HELD_OUT` was written after it and is scored
by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from benchmarks.rca_evals.cases import Case

GOOD: Mapping[str, tuple[str, ...]] = {
    "gpu_off_bus": (
        "A GPU of $place has fallen off the bus; the driver cannot reach it any more.",
        "On $place the driver lost contact: one GPU is gone from the PCIe bus.",
        "The card vanished: $place no longer sees one of its GPUs, so what ran there was killed.",
    ),
    "gpu_memory": (
        "The memory of a GPU on $place is failing: the driver reports an uncorrectable ECC error.",
        "$place has bad GPU memory. An uncorrected memory error ended the work there; it is not a bug of the job.",
        "Faulty device memory on $place: an ECC error that could not be corrected.",
    ),
    "gpu_firmware": (
        "The GSP firmware of a GPU on $place stopped answering the driver.",
        "On $place the GPU's system processor (GSP) crashed, so every call to it timed out.",
        "$place: the firmware on the card hangs. Nothing else on the node is ill.",
    ),
    "gpu_init": (
        "The NVIDIA driver could not initialize a GPU for $place.",
        "On $place the driver failed to bring up the GPU, which is why no work can start there.",
        "GPU initialization fails on $place; the adapter never came up.",
    ),
    "driver_mismatch": (
        "$place runs a kernel module of another version than the driver's libraries: a version mismatch.",
        "The driver's client and its kernel module on $place do not match in version.",
        "On $place the user-space driver and the module differ; an upgrade without a reboot explains it.",
    ),
    "gpu_hang": (
        "A context switch on the GPU of $place timed out: the GPU hangs.",
        "$place: the graphics engine is stuck and makes no progress on its channel.",
        "The GPU on $place hung during a context switch.",
    ),
    "app_fault": (
        "The program on $place made an illegal memory access on the GPU: a bug in its code, not in the hardware.",
        "A CUDA kernel of $place read or wrote an invalid address and the driver stopped it.",
        "An access out of bounds in the job's own GPU code crashed it on $place.",
    ),
    "nvlink": (
        "An NVLink of $place reported a fatal error.",
        "$place: the NVLink between its GPUs failed; the log names the link.",
        "The NVSwitch side of $place is broken: an NVLink error, not a PCIe one.",
    ),
    "gpu_service": (
        "The fabric manager service on $place failed.",
        "On $place nvidia-fabricmanager exited, so its NVSwitch fabric is without a manager.",
        "$place: fabric manager is not running after an error of its own.",
    ),
    "gpu_throttle": (
        "The GPU of $place is throttled: its clocks are held down.",
        "$place: a hardware slowdown keeps the GPU below its clock.",
        "Clocks on the GPU of $place were reduced by throttling.",
    ),
    "pcie": (
        "$place had an uncorrectable PCIe error.",
        "A PCIe link on $place failed: the root port reports a fatal error.",
        "On $place the PCIe bus reports an error that was not corrected.",
    ),
    "iommu": (
        "The IOMMU of $place blocked a device's DMA: a remapping fault.",
        "$place: DMA to an address that is not mapped, so the IOMMU raised a fault.",
        "A device on $place got a DMA fault from the remapping unit (DMAR or AMD-Vi).",
    ),
    "host_memory": (
        "A memory module of $place has errors: EDAC reports them for a DIMM.",
        "$place has a bad DIMM; its ECC errors come from host memory, not from a GPU.",
        "Host memory on $place fails: the memory controller logged an error.",
    ),
    "machine_check": (
        "The processor of $place raised a machine check.",
        "$place: a CPU machine check exception, that is a hardware error of the host.",
        "A fatal hardware error of the CPU on $place, as its machine check bank says.",
    ),
    "lockup": (
        "A CPU of $place is stuck in the kernel: a lockup.",
        "$place: the watchdog found a processor that does not schedule any more, a lockup.",
        "One core of $place hangs inside the kernel and the watchdog told of it.",
    ),
    "hung_task": (
        "A task on $place has been blocked in the kernel for minutes.",
        "$place: a process hangs in uninterruptible sleep and waits.",
        "The kernel of $place reports a hung task: it did not run for over two minutes.",
    ),
    "host_oops": (
        "The kernel of $place crashed with an oops.",
        "$place: a kernel bug, an invalid pointer was dereferenced.",
        "A kernel oops on $place: the kernel used a bad address.",
    ),
    "host_oom": (
        "$place ran out of host memory, and the OOM killer ended a process.",
        "On $place memory was exhausted, so a process was killed for it.",
        "The process exceeded its memory limit on $place and was OOM-killed; GPU memory has nothing to do with it.",
    ),
    "host_heat": (
        "The CPU of $place is too hot and throttles.",
        "$place: processor temperature above its threshold, clock throttled.",
        "Overheating of the processor package on $place.",
    ),
    "power_supply": (
        "$place does not get enough power: its power supply has a fault.",
        "A power supply problem on $place; it reports insufficient or failed power.",
        "Power on $place failed: a supply is out or delivers too little.",
    ),
    "nic": (
        "The network link of $place went down: its NIC or cable is bad.",
        "On $place the mlx5 network adapter reports a fault, and its port is down.",
        "$place lost a network port; the adapter or its cable failed.",
    ),
    "nccl_network": (
        "NCCL on $place lost the network connection to a peer.",
        "A network error between the ranks of $place: the connection to the remote peer failed.",
        "$place: the InfiniBand or socket transport of NCCL broke, so the remote side was lost.",
    ),
    "collective": (
        "A collective of $place timed out: one rank did not arrive.",
        "$place hangs in a collective operation, and the watchdog ended the wait.",
        "The ranks of $place wait for each other in an NCCL operation that never finishes.",
    ),
    "rendezvous": (
        "The ranks of $place could not connect to each other at the rendezvous.",
        "$place: the TCPStore of the master cannot be reached, so the ranks never joined.",
        "Rendezvous of $place failed: a client lost or never got its connection to the c10d store.",
    ),
    "disk_full": (
        "$place has no disk space left.",
        "The disk that $place writes to is full.",
        "Storage of $place ran out: no space, a full volume or quota.",
    ),
    "disk_fault": (
        "A disk of $place fails: I/O errors and timeouts.",
        "$place: the storage device does not complete its I/O, an input/output error.",
        "The NVMe drive or disk behind $place is broken, its I/O fails.",
    ),
    "filesystem": (
        "The file system on $place is corrupt and was shut down or reports errors.",
        "$place: errors in the file system's metadata.",
        "File system error on $place: its structure on disk is damaged or inconsistent (corruption).",
    ),
    "remote_storage": (
        "The remote storage of $place does not answer: its file server connection was lost.",
        "$place lost its connection to the file server (Lustre, NFS or Ceph).",
        "A mount of $place hangs since the Lustre, NFS or Ceph server stopped responding.",
    ),
    "gpu_oom": (
        "$place ran out of GPU memory: CUDA could not allocate.",
        "GPU out of memory in $place; the batch or model is too large for the card.",
        "The device memory was exhausted by $place itself, an out of memory error and no hardware fault.",
    ),
    "shm": (
        "$place ran out of shared memory (/dev/shm), which killed its data loader.",
        "The shared memory of $place is too small.",
        "Insufficient shm for the DataLoader workers of $place.",
    ),
    "time_limit": (
        "Slurm ended $place at its time limit.",
        "$place reached the wall time of its allocation.",
        "The job's time was up: time limit of $place.",
    ),
    "node_failure": (
        "A node of $place failed, and Slurm cancelled it.",
        "$place was ended since its node died.",
        "Node failure under $place: the machine went down.",
    ),
    "numerics": (
        "Training of $place broke numerically: loss or gradients are NaN, infinite or zero.",
        "$place: the loss is no longer finite.",
        "The gradients of $place overflowed and the training diverged.",
    ),
    "job_exception": (
        "The code of $place raised an exception and exited.",
        "$place ended by an error in its own script.",
        "An unhandled Python exception in the trainer of $place.",
    ),
    "job_signal": (
        "A process of $place was killed by a signal.",
        "$place: a worker died on a signal (SIGKILL, SIGSEGV or SIGHUP).",
        "The launcher of $place saw one of its processes end by a signal.",
    ),
    "engine": (
        "The inference engine of $place died.",
        "$place: the server's engine process crashed or hangs and was shut down.",
        "The serving engine in $place failed, so the API server stopped.",
    ),
    "actor": (
        "A Ray actor or remote worker of $place died.",
        "$place lost one of its remote workers, which stopped its heartbeat.",
        "A worker task of $place is dead; the coordination saw it go.",
    ),
    "load": (
        "$place could not load its checkpoint or dataset: the file is missing, damaged or does not match.",
        "A model file of $place is corrupt or incomplete.",
        "Loading weights or data failed in $place, since the archive is invalid.",
    ),
    "loader": (
        "A DataLoader worker of $place was killed.",
        "$place: a data loader process exited unexpectedly.",
        "The loader worker under $place died by a signal.",
    ),
    "service": (
        "An external service refused or dropped the connection of $place.",
        "$place could not reach a remote API (connection failed or too many requests).",
        "The endpoint that $place calls refused it or did not answer.",
    ),
    "leak_gpu": (
        "GPU memory of $place leaks: it grows step by step.",
        "$place keeps device memory that is never freed, a leak.",
        "A memory leak on the GPU of $place.",
    ),
    "leak_host": (
        "Host memory of $place leaks: it rises all the time.",
        "$place has a host memory leak in its container.",
        "The system memory that $place holds keeps growing.",
    ),
    "learning_rate": (
        "The learning rate of $place jumped.",
        "$place: its learning rate left the schedule and rose.",
        "A raised learning rate made the loss of $place explode.",
    ),
    "stall": (
        "$place waits for data: its input pipeline stalls.",
        "Data loading is slow in $place, so the steps wait for it.",
        "The data loader starves $place.",
    ),
    "straggler": (
        "One rank of $place is slower than its peers.",
        "A straggler holds back $place.",
        "$place has a slow rank that is behind the others.",
    ),
    "pod_rejected": (
        "The node rejected $place because the device plug-in reports no healthy GPU.",
        "$place was refused at admission: the device plug-in could not allocate.",
        "Allocation of the device for $place failed in the kubelet's device plug-in.",
    ),
    "node_not_ready": (
        "$place is not ready: its kubelet or container runtime stopped.",
        "The kubelet of $place stopped posting its status.",
        "The container runtime on $place is down.",
    ),
    "volume": (
        "The volume of $place cannot be mounted.",
        "Mounting the data volume for $place failed or timed out.",
        "$place waits for a volume whose attach or mount fails.",
    ),
    "image": (
        "The image of $place cannot be pulled.",
        "$place does not start since its image is missing or the registry denied it.",
        "Image pull for $place fails.",
    ),
    "crash_loop": (
        "The container of $place crashes and restarts again and again.",
        "$place is in a crash loop: its process exits each time.",
        "Its container keeps crashing, so $place is restarted with back-off.",
    ),
    "runtime": (
        "The container runtime could not create the sandbox or container of $place.",
        "$place: containers fail to start in the runtime.",
        "The OCI runtime of $place fails, its nvidia runtime is missing or broken.",
    ),
}

BAD: Mapping[str, tuple[str, ...]] = {
    "gpu_off_bus": (
        "The job on $place has a bug in its own code, an unhandled Python exception.",
        "A full disk stopped $place; the GPU did not fall off the bus.",
    ),
    "gpu_memory": (
        "$place lost its network link because of a bad cable.",
        "The loss of $place became NaN; its GPU memory shows no ECC error.",
    ),
    "gpu_firmware": (
        "$place ran out of host memory and the OOM killer struck.",
        "The GSP is healthy. A bad DIMM of $place explains everything.",
    ),
    "gpu_init": (
        "The learning rate of $place jumped.",
        "$place reached its time limit; the driver initialized fine.",
    ),
    "driver_mismatch": ("$place has a bad DIMM.", "Not a version mismatch on $place but a cable fault of its NIC."),
    "gpu_hang": (
        "$place has no space left on its disk.",
        "The network adapter of $place failed, the GPU never hung.",
    ),
    "app_fault": (
        "GPU memory of $place is defective: an uncorrectable ECC error.",
        "A power supply of $place failed. The code made no illegal access.",
    ),
    "nvlink": ("$place ran out of disk space.", "The NVLink is fine on $place; the OOM killer ended its process."),
    "gpu_service": (
        "An image of $place cannot be pulled.",
        "Fabric manager works; $place has a corrupt file system.",
    ),
    "gpu_throttle": (
        "$place lost its NFS server.",
        "The GPU of $place is not throttled, a DataLoader worker died.",
    ),
    "pcie": (
        "The training of $place diverged to NaN.",
        "No PCIe error on $place, only a slow rank that lags behind.",
    ),
    "iommu": ("The disk of $place is full.", "$place: the IOMMU did not fault, its GPU memory has ECC errors."),
    "host_memory": ("The GPU of $place fell off the bus.", "All DIMMs of $place are fine. It lost its NFS server."),
    "machine_check": ("NFS of $place stopped responding.", "No machine check on $place: a cable was unplugged."),
    "lockup": (
        "$place has a version mismatch of its driver.",
        "CPUs of $place are fine; a disk fails with I/O errors.",
    ),
    "hung_task": (
        "The GPU memory of $place has an ECC error.",
        "No task of $place was blocked, its image is missing.",
    ),
    "host_oops": ("The disk of $place is full.", "No kernel oops on $place: the job reached its time limit."),
    "host_oom": (
        "The NIC of $place lost its link.",
        "Memory was not exhausted on $place. A GPU fell off the bus.",
    ),
    "host_heat": ("A DIMM of $place has errors.", "The CPU of $place is not too hot; its NVLink failed."),
    "power_supply": (
        "The file system of $place is corrupt.",
        "Power of $place is fine. An ECC error of a GPU did it.",
    ),
    "nic": (
        "A GPU of $place has uncorrectable ECC errors.",
        "The link of $place never went down; its loss became NaN.",
    ),
    "nccl_network": (
        "$place ran out of GPU memory.",
        "Not the network: the disk of $place is full.",
    ),
    "collective": (
        "$place ran out of disk space.",
        "No collective of $place timed out; an image pull failed.",
    ),
    "rendezvous": ("GPU memory of $place has ECC errors.", "The rendezvous of $place worked; its disk is full."),
    "disk_full": ("A GPU of $place fell off the bus.", "The disk of $place is not full, its NIC lost the link."),
    "disk_fault": ("The loss of $place is NaN.", "The disk of $place has no I/O error. The GSP firmware hangs."),
    "filesystem": (
        "The NIC of $place lost its link.",
        "The file system of $place is clean; a GPU fell off the bus.",
    ),
    "remote_storage": ("$place has a bad DIMM.", "The file server answers $place. GPU memory ran out."),
    "gpu_oom": (
        "The GPU of $place has defective memory: an uncorrectable ECC error.",
        "GPU memory of $place did not run out; NCCL lost its network connection.",
    ),
    "shm": (
        "The GPU of $place fell off the bus.",
        "Shared memory of $place is sufficient. The image cannot be pulled.",
    ),
    "time_limit": ("The GPU of $place fell off the bus.", "No time limit was reached by $place, its disk is full."),
    "node_failure": ("The loss of $place became NaN.", "The node of $place did not fail; its code raised a bug."),
    "numerics": (
        "The GPU of $place fell off the bus.",
        "The loss of $place is finite. Its file system is corrupt.",
    ),
    "job_exception": (
        "The GPU of $place fell off the bus.",
        "$place raised no exception, the NFS server went silent.",
    ),
    "job_signal": ("The loss of $place became NaN.", "No process of $place was killed. NVLink failed."),
    "engine": ("The disk of $place is full.", "The engine of $place is alive; a cable is bad."),
    "actor": ("GPU memory of $place has ECC errors.", "No actor of $place died. The disk is full."),
    "load": ("The NIC of $place lost its link.", "The checkpoint of $place is intact, the GPU fell off the bus."),
    "loader": (
        "The NVLink of $place failed.",
        "No loader worker of $place died; its driver has a version mismatch.",
    ),
    "service": (
        "GPU memory of $place has an ECC error.",
        "The API answered $place. A CPU locked up: a soft lockup.",
    ),
    "leak_gpu": ("The NIC of $place lost its link.", "GPU memory of $place does not leak; a PCIe error hit it."),
    "leak_host": ("The NIC of $place lost its link.", "Host memory of $place does not leak; NVLink failed."),
    "learning_rate": (
        "The disk of $place is full.",
        "The learning rate of $place never changed. ECC errors of HBM.",
    ),
    "stall": ("A GPU of $place fell off the bus.", "Data never stalled in $place; its NVLink failed."),
    "straggler": ("$place ran out of disk space.", "No rank of $place is slow; the kernel had an oops."),
    "pod_rejected": ("The loss of $place became NaN.", "$place was not rejected; its disk has I/O errors."),
    "node_not_ready": (
        "GPU memory of $place has an ECC error.",
        "The kubelet of $place runs. The loss became NaN.",
    ),
    "volume": ("The GPU of $place fell off the bus.", "The volume of $place is mounted; NaN in its loss."),
    "image": ("The GPU of $place fell off the bus.", "The image of $place was pulled. Its NVLink failed."),
    "crash_loop": (
        "The NVLink of $place failed.",
        "The container of $place never crashed, its image cannot be pulled.",
    ),
    "runtime": ("The loss of $place became NaN.", "The runtime of $place is fine; NFS stopped responding."),
}

EVERYTHING = (
    "$place: it could be GPU memory (ECC), a GPU off the bus, NVLink, a bad cable, the NIC, the disk, a full disk,"
    " the NFS server, host memory out, GPU out of memory, a NaN loss, a collective timeout, the driver version, the"
    " kernel, PCIe, a signal, the engine, the image, the volume, the runtime or the code of the job."
)
VAGUE = (
    "Something is wrong with $place. A person should look at it.",
    "$place shows an anomaly; hardware or software may be the reason.",
)
ELSEWHERE = "node gpu-z99"
"""The place that the bad reader names where it gets only the place wrong."""

HELD_OUT: tuple[tuple[str, str, bool], ...] = (
    ("gpu_off_bus", "One accelerator on $place stopped answering over PCIe and dropped off the bus.", True),
    ("gpu_off_bus", "The bus is fine and $place still sees its GPU; the trainer simply segfaulted.", False),
    ("gpu_off_bus", "We suspect either a GPU off the bus, a dead power supply or a kernel oops on $place.", False),
    ("gpu_memory", "HBM on $place took a double-bit hit, which is why the run aborted.", True),
    ("gpu_memory", "Nothing wrong with HBM on $place; NCCL's watchdog timeout came from a lost cable.", False),
    ("gpu_firmware", "GSP went silent on $place, so RPCs expired one after another.", True),
    ("gpu_firmware", "The GSP timeouts on $place are a symptom: the power supply failed first.", False),
    ("gpu_init", "nvidia.ko could not initialise the adapter of $place at start.", True),
    ("driver_mismatch", "Libraries on $place are newer than the loaded kernel module, a mismatch.", True),
    ("app_fault", "Out-of-bounds indexing in a custom kernel of $place triggered the MMU fault.", True),
    ("app_fault", "No out-of-bounds access at all: $place has worn HBM with uncorrectable ECC errors.", False),
    ("nvlink", "Link 4 of the NVLink mesh on $place died with a fatal error.", True),
    ("nvlink", "The NVLink of $place did not fail.", False),
    ("pcie", "Root port above the device on $place logged an uncorrectable fatal AER event.", True),
    ("pcie", "AER noise on $place is a red herring, the disk is full.", False),
    ("host_memory", "A DIMM in $place throws ECC errors.", True),
    ("host_memory", "The DIMM errors on $place are harmless; the NIC's cable is bad.", False),
    ("lockup", "CPU 12 of $place spun in the kernel until the soft-lockup detector fired.", True),
    ("host_oom", "The cgroup of the job on $place hit its limit and the kernel OOM-killed python.", True),
    (
        "host_oom",
        "No memory shortage on $place, python was OOM-free; it lost its NFS mount, the filer not responding.",
        False,
    ),
    ("nic", "Port 1 of mlx5_3 on $place flapped, cable error.", True),
    ("nic", "It was not the cable of $place. GPU memory ran out.", False),
    ("nccl_network", "A peer closed its socket, so NCCL on $place aborted.", True),
    ("collective", "Rank 3 never reached the all-reduce, and the others in $place waited until the timeout.", True),
    ("collective", "The all-reduce of $place finished; a data loader worker was killed.", False),
    ("rendezvous", "Workers of $place could not reach the c10d master and gave up.", True),
    ("disk_full", "ENOSPC: the scratch volume under $place filled up, no space.", True),
    ("disk_full", "Plenty of space on $place, its checkpoint is corrupt.", False),
    ("disk_fault", "nvme0 under $place stopped completing commands, I/O timeout after I/O timeout.", True),
    ("filesystem", "XFS on $place shut itself down over corrupt metadata.", True),
    ("remote_storage", "The Lustre client of $place got evicted.", True),
    ("remote_storage", "Lustre and NFS are healthy for $place; its GPU fell off the bus.", False),
    ("gpu_oom", "The batch did not fit: CUDA out of memory in $place.", True),
    ("gpu_oom", "It may be CUDA out of memory, a NaN loss, a bad cable or an ECC error in $place.", False),
    ("time_limit", "$place simply used up its wall clock allotment under Slurm.", True),
    ("numerics", "From one step to the next the gradient norm in $place turned NaN.", True),
    ("numerics", "Gradients in $place stayed finite, and a rank segfaulted.", False),
    (
        "job_exception",
        "The training script of $place exited with an uncaught KeyError, an exception of its own.",
        True,
    ),
    ("job_signal", "A rank of $place received SIGKILL.", True),
    ("engine", "vLLM's EngineCore in $place crashed.", True),
    ("actor", "A Ray actor of $place died with its node.", True),
    ("load", "safetensors header of the checkpoint for $place is truncated.", True),
    ("loader", "One DataLoader worker in $place got killed.", True),
    ("service", "The hub answered 429 (too many requests) to $place.", True),
    ("pod_rejected", "Kubelet refused to admit $place, since its device plugin saw only unhealthy GPUs.", True),
    ("image", "The registry has no such tag, the image for $place cannot be pulled.", True),
    ("image", "The image of $place is there; its volume mount fails.", False),
    ("volume", "CSI could not attach the volume of $place in time.", True),
    ("node_not_ready", "Kubelet on $place went silent and the node is NotReady.", True),
    ("runtime", "containerd has no nvidia runtime, the sandbox for $place cannot be created.", True),
    ("leak_gpu", "Allocated device memory in $place climbs every step, a leak.", True),
    ("straggler", "Rank 3 of $place is 30 percent slower and everybody waits for it.", True),
    # the second half, after the scorer had learned from two misses in the first
    ("gpu_off_bus", "PCIe link to one card on $place is dead; the driver says the GPU is gone from the bus.", True),
    ("gpu_off_bus", "I would look at the checkpoint of $place, which is truncated. GPUs are all present.", False),
    ("gpu_memory", "Row remapping failed on $place, the HBM stack is worn out.", True),
    ("gpu_firmware", "GPU System Processor on $place no longer answers RPCs.", True),
    ("gpu_hang", "The compute ring of the GPU in $place stalled and was reset.", True),
    ("app_fault", "A device-side assert in the model code of $place aborted the run.", True),
    ("app_fault", "The assert in $place came from corrupted weights: its checkpoint is damaged.", False),
    ("nvlink", "Fatal SXid from an NVSwitch in $place.", True),
    ("pcie", "The slot of the device in $place lost its PCIe link.", True),
    ("machine_check", "$place logged an uncorrected machine check on socket 0.", True),
    ("lockup", "RCU stall on $place, a core never left the kernel.", True),
    ("hung_task", "docker on $place sat in D state for over five minutes.", True),
    ("host_oom", "$place: memory pressure, and the kernel chose python as its victim.", True),
    ("host_oom", "$place had memory to spare; slurm ended it at its time limit.", False),
    ("nic", "The InfiniBand port of $place lost carrier.", True),
    ("collective", "An allgather in $place never completed since a rank was missing.", True),
    ("rendezvous", "Two of eight workers never joined the store of $place.", True),
    ("disk_fault", "Reads from nvme3 on $place time out, so the controller was reset.", True),
    ("remote_storage", "$place: NFS went away for minutes.", True),
    ("gpu_oom", "VRAM of $place is exhausted.", True),
    ("numerics", "Loss scale of $place sank to its minimum after repeated overflows.", True),
    ("engine", "The serving engine of $place hit its watchdog and went down.", True),
    ("image", "$place waits on ImagePullBackOff: the registry refuses the image.", True),
    ("crash_loop", "The container in $place exits with 137 and is restarted over and over.", True),
)
"""(cause, answer, whether it is right), each half written after the scorer. What it read rightly at the first try
stands in the result."""
HELD_OUT_AT_FIRST = 70
"""Of them, read rightly before the scorer learned from its misses: 50 of 52, then 20 of 24."""


OWN: Mapping[str, str] = {
    "leptonai/gpud#46": "The program on $place ran an illegal instruction on the GPU, probably its own bug.",
    "k3s-io/k3s#7746": "The container of $place crashed with exit code 137; it is probably in a crash loop.",
    "nic_firmware#46000023": "The device's health on $place is compromised: the firmware of its mlx5 network"
    " adapter likely hangs or failed.",
    "pcie_hotplug#46000017": "The PCIe slot of the device on $place lost its link.",
}


def good(case: Case, place: str, again: int = 0) -> str:
    """The right answer, by the case's number; the next one `again`. Where a case's lines say less than the answers
    of its family, it has its own."""
    texts = (OWN[case.name],) if case.name in OWN else GOOD[case.cause]
    return Template(texts[(case.number + again) % len(texts)]).substitute(place=place)


def bad(case: Case, place: str) -> str:
    """One of seven ways to be wrong, by the case's number."""
    way, texts = case.number % 7, BAD[case.cause]
    if way == 0:
        return Template(EVERYTHING).substitute(place=place)
    if way == 1:
        return Template(VAGUE[case.number % len(VAGUE)]).substitute(place=place)
    if way == 2:
        return good(case, ELSEWHERE)
    if way == 3 and case.herring is not None:
        return Template(GOOD[case.herring.cause][0]).substitute(place=place)
    return Template(texts[way % len(texts)]).substitute(place=place)
