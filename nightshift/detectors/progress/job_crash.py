"""A training or serving job that ended with an error, by the lines of its own log that decide why.

Two kinds of line speak of an end. Some prove it: a launcher's word on its processes, Slurm's on its step, a
server's on its engine. Others name a cause that the job may survive: an exception that is caught, a batch that is
retried. So a cause is reported once the end is proven, or where the job stays silent after it for `GRACE_S`:
neither a step nor any other notable line. Of several causes that a job names, the one that is furthest up `CAUSES`
decides: what the machine did comes before what the program says of it, and the bare exit code is last.

The words are those of torch.distributed.elastic (torch/distributed/elastic/multiprocessing/errors), c10d, NCCL,
CUDA's runtime (cudaGetErrorString), Slurm (slurmstepd, srun) and vLLM.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from nightshift.collectors import slurm
from nightshift.collectors.frame import LogRecord
from nightshift.collectors.kernel_log.event import KERNEL_LOGS
from nightshift.collectors.kubernetes.events import CHANGES, EVENTS
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, RateBasis, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.quiet_periods import QuietPeriods, exhibits
from nightshift.detectors.snapshot import pack, unpack

VERSION = 1
SETTLE_S = 15.0
"""An exit code comes before the block that names the first failure, and often before the failed rank's own file."""
GRACE_S = 60.0
"""A rank that survives an error steps again within a minute: restarts and long steps are told by other
detectors."""
TEAR_DOWN_S = 30.0
"""What a dying job still writes (closing signals, NCCL's aborts) ends within torchrun's own 30 s."""
QUIET_S = 600.0
MOST_LINES = 40
PLATFORM, OWNER = "platform", "owner"


@dataclass(frozen=True, slots=True)
class CrashCause:
    """One cause: `words` follow "Job ended: ". mended_by: who can change it. The line alone proves no end."""

    name: str
    words: str
    pattern: re.Pattern[str]
    mended_by: str
    severity: Severity = Severity.WARNING


def _cause(
    name: str, mended_by: str, words: str, *patterns: str, severity: Severity = Severity.WARNING
) -> CrashCause:
    return CrashCause(name, words, re.compile("|".join(patterns)), mended_by, severity)


_CRITICAL = Severity.CRITICAL
_NOT_STARTED = (
    r": (?:python\S*|torchrun|accelerate|deepspeed|mpirun|srun|ray|vllm): (?:command )?not found$"
    r"|execve\(\): .*No such file"
)
"""A script goes on after other commands that its image lacks (`sudo`, `nvidia-smi`)."""
# tqdm leaves its bar on the line on which the shell says how the process ended
_SHELL_LINE = r"^(?:\S+: line \d+: +\d+ |.{0,200}(?:it/s|s/it)\])?"
CAUSES: tuple[CrashCause, ...] = (
    _cause(
        "ecc",
        PLATFORM,
        "uncorrectable ECC error on its GPU",
        r"uncorrectable ECC error encountered",
        r"CUDA_ERROR_ECC_UNCORRECTABLE",
        severity=_CRITICAL,
    ),
    _cause(
        "nvlink",
        PLATFORM,
        "uncorrectable NVLink error",
        r"[Uu]ncorrectable NVLink error",
        r"CUDA_ERROR_NVLINK_UNCORRECTABLE",
        r"[Ii]nvalid access of peer GPU memory over nvlink",
        severity=_CRITICAL,
    ),
    _cause(
        "gpu_lost",
        PLATFORM,
        "its GPU is not usable",
        r"GPU is lost",
        r"no CUDA-capable device is detected",
        r"CUDA_ERROR_NO_DEVICE",
        r"No CUDA GPUs are available",
        r"CUDA driver initialization failed",
        # a container that lost its device nodes (a daemon-reload on the host), or may not read them
        r"Failed to initialize NVML(?!: Driver/library)|NVMLError_(?:GpuIsLost|Unknown|DriverNotLoaded)",
        r"couldn't communicate with the NVIDIA driver|Unable to determine the device handle",
        r"cudaGetDeviceCount\(\).* Error (?:[23]|100|101|999)\b|CUDA unknown error",
        r"No HIP GPUs are available|could not select device driver",
        severity=_CRITICAL,
    ),
    _cause(
        "fabric",
        PLATFORM,
        "CUDA is not ready (802): NVLink's fabric manager has not set up its GPUs",
        r"CUDA_ERROR_SYSTEM_NOT_READY",
        r"cudaErrorSystemNotReady",
        r"system not yet initialized",
        severity=_CRITICAL,
    ),
    _cause(
        "driver_version",
        PLATFORM,
        "its CUDA runtime does not fit the node's driver version",
        r"CUDA driver version is insufficient",
        r"NVIDIA driver on your system is too old",
        r"CUDA_ERROR_(?:SYSTEM_DRIVER_MISMATCH|COMPAT_NOT_SUPPORTED_ON_DEVICE)",
        r"system has unsupported display driver / cuda driver combination",
        r"[Dd]river/library version mismatch|NVML/RM version mismatch|forward compatibility was attempted",
        severity=_CRITICAL,
    ),
    _cause(
        "gpu_busy",
        PLATFORM,
        "its GPU is busy or unavailable",
        r"CUDA-capable device(?:\(s\)|s)? (?:is/)?are busy or unavailable",
    ),
    _cause(
        "node_failure",
        PLATFORM,
        "its node failed",
        r"DUE TO NODE FAILURE",
        r"[Nn]ode failure on ",
        severity=_CRITICAL,
    ),
    _cause(
        "launch",
        PLATFORM,
        "the scheduler could not start its tasks",
        r"srun: error: .*(?:[Ll]aunch (?:for \S+ )?failed|Unable to create step|credential)",
        r"slurmstepd: error: (?:pyxis: .*fail|task_\w+: |[Pp]rolog|.*\bcontainer\b.*fail)",
        r"srun: error: (?:Unable to allocate|Timed out waiting for job step|Munge|.*has authentication error)",
    ),
    _cause(
        "time_limit",
        OWNER,
        "the scheduler's time limit",
        r"DUE TO TIME LIMIT",
        r"\bjob is timed-out|timed-out and not checkpointable",
    ),
    _cause("preempted", PLATFORM, "preempted by the scheduler", r"DUE TO PREEMPTION"),
    _cause(
        "worker_lost",
        PLATFORM,
        "one of its workers stopped answering",
        r"has been set to ERROR in coordination service",
        r"\bheartbeat timeout\. This indicates",
        r"Owner's node has crashed",
        r"its node (?:has died|was terminated)",
        r"NodeDiedError|WorkerCrashedError|with node id: \S+ .*marked dead",
        r"Terminating process because .*(?:fatal errors|missing heartbeats)|due to lack of heartbeats",
        r"\(raylet\).* worker died or was killed",
        r"tried to connect with a different incarnation",
        r"(?:ORTE|PRTE) (?:has lost communication|was unable to reliably start)",
        r"(?:are|is) unhealthy \(stopped sending heartbeats\)",
    ),
    _cause(
        "cancelled",
        OWNER,
        "cancelled at the scheduler",
        r"slurmstepd: error: \*\*\* JOB \S+ ON \S+ CANCELLED",
        severity=Severity.INFO,
    ),
    _cause(
        "host_memory",
        OWNER,
        "out of host memory",
        r"oom[-_]kill event",
        r"Out Of Memory \(OOM\)",
        r"OUT_OF_MEMORY",
        r"srun: error: .*: Out Of Memory",
        r"killed due to memory pressure",
        r"std::bad_alloc",
        r"node running low on memory|[Ee]xceeded (?:job|step|its) memory limit",
        r"(?<!OutOf)\bMemoryError\b",
        r"DefaultCPUAllocator: can't allocate",
        r"\[Errno 12\]|[Cc]annot allocate memory$",
    ),
    _cause(
        "shared_memory",
        OWNER,
        "bus error: shared memory is too small",
        r"[Bb]us error",
        r"insufficient shared memory|out of shared memory|unable to write to file </torch",
        r"Signal 7 \(SIGBUS\)|shutdown with signal 7\b",
        r"exitcode\s*: ?-7\b",
    ),
    _cause(
        "disk_full",
        PLATFORM,
        "no space left on its disk",
        r"No space left on device",
        r"Disk quota exceeded",
        r"StorageFull",
        r"\[Errno (?:28|122)\]",
    ),
    _cause(
        "limits",
        OWNER,
        "too many open files or threads: a limit of its node",
        r"\[Errno 24\]|[Tt]oo many open files",
        r"can't start new thread|pthread_create failed|[Tt]hread creation failed|create new native thread",
        r"fork: .*Resource temporarily unavailable|unable to allocate necessary resources for OMP",
    ),
    _cause(
        "gpu_memory",
        OWNER,
        "out of GPU memory",
        r"CUDA out of memory",
        r"CUDA error: out of memory",
        r"Cuda failure (?:\d+ )?'out of memory'",
        r"OutOfMemoryError",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        r"RESOURCE_EXHAUSTED: Out of memory",
        r"OOM when allocating tensor",
        r"Free memory on device .* is less than desired",
        r"HIP out of memory|hipErrorOutOfMemory|cudaMalloc failed: out of memory|Failed to CUDA calloc",
        r"RESOURCE_EXHAUSTED: .*(?:allocat|memory)|HSA_STATUS_ERROR_OUT_OF_RESOURCES|unable to allocate CUDA\d",
        r"No available memory for the cache blocks|stored in KV cache \(",
        r"Not enough memory(?:\. Please try to increase --mem-fraction| to handle)",
    ),
    _cause(
        "network",
        PLATFORM,
        "a network error between its ranks",
        r"NCCL WARN NET/\S+ ?: ?Got completion from peer",
        r"NCCL WARN NET/.*async (?:\w+ )?event\b.*(?:error|fatal)",
        r"NCCL WARN NET/IB ?: (?:No device found|Unable to (?:open|query))|NCCL WARN Bootstrap ?: no socket",
        r"NCCL WARN .*(?:exceeded error retry count|no socket interface found|Couldn't open a fabric provider)",
        r"NCCL WARN .*(?:encountered progressing operation|GIN Error)",
        r"ncclRemoteError|ncclSystemError",
        r"NCCL WARN .*(?:Connection closed by remote peer|Call to (?:recv|connect|ibv_\w+).* failed)",
        r"NCCL WARN .*(?:Connect to \S+ failed|Failed to execute operation (?:Connect|Setup|\w*Init) from)",
        r"NCCL error: (?:remote process|unhandled system)|NCCL error in: .*unhandled system",
        r"NCCL WARN NET/OFI .*completed with error",
        r"[Ff]ailed to modify QP\b",
        r"UCX +ERROR .*(?:retry count exceeded|[Cc]onnection|unreachable|timed out|QP operation)",
        r"ssh: connect to host ",
        r"gloo/transport/\S+\] (?:Connection closed|Timed out|.*Connection reset)",
    ),
    _cause(
        "rendezvous",
        PLATFORM,
        "its ranks could not connect to each other",
        r"Rendezvous(?:Connection|Timeout|Closed)Error",
        r"client socket has timed out",
        r"Dist(?:Network|Store)Error",
        r"TCPStore\.cpp.*(?:recvValue|sendBytes) failed",
        r"\[c10d\].*[Cc]onnection (?:refused|reset)",
        # a retry alone is none: over IPv6 first, and before the first rank listens
        r"\[c10d\].*failed to connect to (?:any network address|.*timed out)",
        r"Timed out initializing process group|store->get\('.*got error",
    ),
    _cause(
        "barrier",
        PLATFORM,
        "one of its ranks did not reach a barrier in time",
        r"failed to pass monitoredBarrier|[Mm]onitored ?[Bb]arrier.*(?:failed|timed out)|Barrier timed out",
    ),
    _cause(
        "host_name",
        PLATFORM,
        "a host name does not resolve",
        r"[Nn]ame or service not known|failure in name resolution|gaierror|[Nn]odename nor servname",
    ),
    _cause(
        "port_in_use",
        OWNER,
        "its port is in use",
        r"[Aa]ddress already in use|EADDRINUSE",
    ),
    _cause(
        "gpu_fault",
        OWNER,
        "a fault in GPU code",
        r"an illegal (?:memory access|instruction)",
        r"misaligned address",
        r"device-side assert triggered",
        r"unspecified launch failure",
        r"CU(?:BLAS|DNN|SPARSE|FFT|SOLVER)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)",
        r"CUDA_ERROR_(?:ILLEGAL_|LAUNCH_FAILED|MISALIGNED|ASSERT)|hardware stack error|launch timed out and was",
        r"Memory access fault by GPU|HIP error: |HSA_STATUS_ERROR_",
    ),
    _cause(
        "nccl_cuda",
        PLATFORM,
        "NCCL cannot use CUDA between its GPUs",
        r"NCCL WARN (?:Cuda failure|failed to open CUDA IPC handle)",
        r"NCCL error in: .*(?:unhandled cuda error|internal error)|ncclInternalError",
        r"NCCL WARN (?:CUDA error \d|Failed to bind NVLink SHARP)",
    ),
    _cause(
        "nccl_usage",
        OWNER,
        "NCCL refuses how it is called: devices, versions or sizes do not fit",
        r"NCCL WARN .*(?:Duplicate GPU detected|version mismatch|Mismatched NCCL version|Message truncated)",
        r"NCCL error in: .*invalid usage|ncclInvalidUsage|Detected mismatch between collectives on ranks",
    ),
    _cause(
        "gpu_model",
        OWNER,
        "its CUDA code is not made for this GPU (no kernel image)",
        r"no kernel image is available",
    ),
    _cause(
        "storage",
        PLATFORM,
        "its storage does not answer",
        r"\[Errno (?:5|30|107|116|121)\]|[Rr]ead-only file system",
        r"PytorchStreamWriter failed|file write failed",
        r"Stale file handle|Transport endpoint is not connected|Remote I/O error",
        r"HdfsError|HDFS connection failed|hdfs\w+\(.*\): .*error",
        r"(?:EndpointConnection|ReadTimeout|ConnectTimeout)Error: .*endpoint URL",
        r"An error occurred \((?:SlowDown|InternalError|ServiceUnavailable|503)\) when calling the \w+ operation",
    ),
    _cause(
        "engine",
        PLATFORM,
        "the server's engine died",
        r"EngineDeadError",
        r"[Ee]ngine (?:is already )?dead",
        r"[Ee]ngine process \S+ \S+ died|[Ee]ngine core proc(?:ess)? \S+ died",
        r"EngineCore (?:encountered a fatal error|failed to start)",
        r"Engine core initialization failed",
        r"(?:Scheduler|Detokenizer|EngineCore) hit an exception|Application startup failed",
        r"Worker proc \S+ died unexpectedly|output_handler failed|scheduler died",
        r"[Ww]ebserver ?(?:[Cc]rashed|[Ff]ailed)|warmup error|[Ee]ngine process failed to start",
        # TGI, Triton's server and TensorRT-LLM
        r"ShardCannotStart|Shard \d+ (?:failed to start|crashed)",
        r"creating server: \w+ - |failed to load (?:all models|'\S+' version)",
        r"\[TensorRT-LLM\]\[ERROR\]|\[TRT-LLM\](?: \[RANK \d+\])? \[E\]",
    ),
    _cause(
        "checkpoint",
        OWNER,
        "its checkpoint or weights cannot be read",
        r"PytorchStreamReader failed|HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeaderDeserialization",
        r"invalid load key|inline_container\.cc.*unexpected pos",
    ),
    _cause(
        "web_service",
        PLATFORM,
        "a service on the network does not answer it (download or log-in)",
        r"HTTPS?ConnectionPool\(|Max retries exceeded|HfHubHTTPError|LocalEntryNotFoundError|urlopen error",
        r"wandb\S*\.CommError|Error communicating with wandb|Error: DownloadError|We couldn't connect to 'http",
    ),
    _cause(
        "library",
        OWNER,
        "a library or module is missing in its image",
        r"ModuleNotFoundError|cannot open shared object file|version `GLIBC\S*' not found|undefined symbol: ",
    ),
    _cause(
        "loss_scale",
        OWNER,
        "its loss scale fell to the least: gradients overflow",
        r"loss scale already at minimum",
        r"Minimum loss scale reached",
    ),
    _cause(
        "not_finite",
        OWNER,
        "its loss is not finite",
        r"Loss became infinite or NaN",
        r"[Ll]oss is (?:nan|inf),? stopping training",
        r"[Nn]on-?finite loss.{0,20}(?:ending|stopping|aborting)",
        r"(?:[Uu]nexpected result nan|found NaN in (?:local )?(?:grad|loss|param))",
    ),
    _cause(
        "actor",
        OWNER,
        "one of its Ray actors died",
        r"(?:ActorDied|RayActor|ActorUnavailable)Error: ",
        r"actor is dead because its (?:worker process|owner) has died",
    ),
    _cause(
        "heap",
        OWNER,
        "its memory is corrupt: the C library aborted it",
        r"^(?:corrupted (?:double-linked list|size)|malloc\(\): |malloc_consolidate\(\): |munmap_chunk\(\): "
        r"|free\(\): |double free or corruption)|sysmalloc: Assertion|stack smashing detected",
    ),
    _cause(
        "signal",
        PLATFORM,
        "killed by {signal}",
        r"Signal (?P<number1>\d+) \(SIG\w+\) received",
        r"exitcode\s*:? ?-(?P<number2>\d+)",
        r"killed by signal: (?P<name1>\w+)",
        # mpirun, DeepSpeed's and torch's launchers, UCX's handler, the shell
        r"exited on signal (?P<number3>\d+)",
        r"with return code = -(?P<number4>\d+)",
        r"died with <Signals\.(?P<name2>SIG\w+)|^\*\*\* (?P<name5>SIG[A-Z]+) (?:received|\(@)",
        r"terminated with signal (?P<name3>SIG\w+)",
        r"Caught signal (?P<number5>\d+) \(|\] Signal: [\w ]+ \((?P<number7>\d+)\)",
        r"(?:srun: error: .*: |Fatal Python error: )(?P<shell1>Killed|Aborted|Segmentation fault)",
        r"(?P<shell2>Illegal instruction|Floating point exception) \(core dumped\)",
        r"signaled to shutdown with signal (?P<number6>\d+)",
        rf"{_SHELL_LINE}(?P<shell>Killed|Aborted|Segmentation fault)\b(?!:)",
    ),
    _cause(
        "uncaught",
        OWNER,
        "an uncaught exception of its C++ code",
        r"terminate called after throwing an instance of",
    ),
    _cause(
        "exception",
        OWNER,
        "an exception in its own code{signal}",
        # as Python prints an uncaught exception: at the line's beginning, behind torch's rank, mpirun's stream,
        # Ray's worker, a stamp or a logger
        r"^(?:\[(?:default|rank)\d+\]:? ?|\[\d+,\d+\]<std\w+>: ?|\((?:\w+ )?[^)]*pid=\d+\) |\[[\d:,. -]+\] "
        r"|(?:ERROR|CRITICAL|FATAL) [^\]]{0,60}\] |Uncaught )*"
        r"(?:(?:[A-Za-z_]\w*\.)*(?P<error>[A-Z]\w*(?:Error|Exception|Interrupt)(?:\(\w+\))?|Exception)"
        # libraries keep those with other names in a module for them
        r"|(?:[a-z_]\w*\.)*(?:errors?|exc|exceptions?)\.(?P<error1>[A-Z]\w*)"
        r"|subprocess\.(?P<error2>TimeoutExpired))(?:: |$)",
        r"exitcode\s*:? ?[1-9]",
        r"srun: error: .*: Exited with exit code [1-9]",
        r"with return code = [1-9]|returned non-zero exit status [1-9]|exited with non-zero status",
        r"(?:ssh exited|command terminated) with exit code [1-9]|MPI_ABORT was invoked .* errorcode -?[1-9]",
        r"^thread '[^']*' panicked at |^panic: |^Error executing job with overrides",
        _NOT_STARTED,
        r"^[\w./-]+\.py: error: ",
    ),
    _cause(
        "traceback",
        OWNER,
        "a traceback that names no exception",
        r"Traceback \(most recent call last\):$",
    ),
    # what Slurm does with the rest of a step of which one task failed, too
    _cause(
        "step_cancelled",
        OWNER,
        "its step was cancelled at the scheduler",
        r"slurmstepd: error: \*\*\* STEP \S+ ON \S+ CANCELLED",
        severity=Severity.INFO,
    ),
)
"""The furthest up decides. A ChildFailedError is the launcher's own exception and names no cause."""
_UNNAMED = _cause("unnamed", PLATFORM, "an error that its log does not name", r"(?!)")
_ALL = (*CAUSES, _UNNAMED)
_TRACEBACK = "Traceback (most recent call last):"
_RANK = {cause.name: rank for rank, cause in enumerate(_ALL)}
_MAYBE = re.compile(
    r"[Ee]rror|ERROR|exit|[Ss]ignal|SIG|CUDA|NCCL|[Ee]ngine|No space|quota|c10d|CANCELLED|[Ff]ailure|Exit|lost|Stop"
    r"|OOM|RESOURCE_EXHAUSTED|[Ll]oss|driver|actor|bad_alloc|heartbeat|xception|return code|[Kk]illed|[Aa]bort|ault"
    r"|panic|Shard|failed|TRT-LLM|raylet|Terminating|startup|low on memory|memory limit|command not|execve|exc\."
    r"|TimeoutExpired|in use|UCX|NVML|incarnation|modify QP|timed-out|[Tt]oo many open|ORTE|PRTE|ssh: |HSA_|HIP"
    r"|NVIDIA driver|device handle|[Rr]ead-only|hit an|died|not known|name resolution|Barrier|Errno|Pool\("
    r"|Max retries|malloc|corrupt|munmap|free\(\)|smashing|shared object|undefined symbol|not found|invalid load"
    r"|Timed out|unhealthy|cache blocks|KV cache|Not enough memory|new thread|hread creation|OMP|unexpected pos"
    r"|NotFound|TooLarge|Incomplete|device driver|allocate|shared memory|terminate called"
)
_LAUNCHER = re.compile(r"ChildFailedError|multiprocessing\.errors\.|^Traceback|CalledProcessError(?!.*<Signals)")
_PROVES = re.compile(
    r"ChildFailedError|(?:failed|FAILED) \(exitcode|Root Cause \(first observed failure\)|exitcode\s+: -?\d+ \(pid"
    r"|traceback : Signal \d+|slurmstepd: error: \*\*\*|srun: error: .*(?:Exited|Terminated|Killed|Segmentation)"
    r"|torchelastic\.worker\.status\.FAILED|Received sigquit from a child proc|EngineCore failed to start"
    r"|EngineDeadError|[Ee]ngine (?:is already )?dead|[Ee]ngine core proc\S* \S+ died|terminate called"
    r"|Fatal Python error|[Ss]egmentation fault|core dumped"
    r"|with return code = -?[1-9]|non-zero (?:exit )?status|died with <Signals|exited on signal"
    r"|MPI_ABORT was invoked"
    r"|BAD TERMINATION OF|(?:ssh exited|command terminated) with exit code [1-9]|terminated with signal SIG"
    r"|process returned\s+a non-zero|Application startup failed|Check failure stack trace"
    r"|Terminating process because"
    r"|Scheduler hit an exception|ShardCannotStart|failed to load all models|double free or corruption"
    r"|died unexpectedly, shutting down|^\*\*\* SIG[A-Z]+ (?:received|\(@)"
    r"|Process received signal|corrupted (?:double-linked|size)|malloc\(\): "
    r"|munmap_chunk|sysmalloc: Assertion"
    r"|stack smashing detected|free\(\): invalid|execve\(\): .*No such file"
    rf"|{_SHELL_LINE}(?:Killed|Aborted)\b(?!:)|Application launch failed"
)
_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout|WorkNCCL\(|[Ww]atchdog timeout \(\S*watchdog_timeout="
)
"""The hang is the fault then; the abort that follows is how PyTorch ends it, with SIGABRT."""
_FIRST = re.compile(
    r"failed \(exitcode: -?\d+\) (?P<local>local_)rank: (?P<number>\d+) \(pid|process rank (?P<rank>\d+) with PID"
)
"""How torchrun and mpirun say which rank failed first, before they end the others."""
_OTHERS = (*KERNEL_LOGS, EVENTS, CHANGES, slurm.STATES, slurm.CHANGES, "alertmanager")
"""Sources that speak of pods and jobs from outside."""
_SOURCE_IS_JOBS = frozenset({SubjectKind.RANK, SubjectKind.JOB, SubjectKind.POD, SubjectKind.CONTAINER})


def cause_of(text: str) -> tuple[CrashCause, str] | None:
    """The cause that a line names, and its words.

    >>> cause_of("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.06 GiB.")[1]
    'out of GPU memory'
    >>> cause_of("  traceback : Signal 9 (SIGKILL) received by PID 4242")[1]
    'killed by SIGKILL'
    >>> cause_of("number of nan iterations: 0") is None
    True
    """
    is_launchers = _LAUNCHER.search(text) is not None and "exitcode" not in text
    if not text.endswith(_TRACEBACK) and (is_launchers or _MAYBE.search(text) is None):
        return None
    for cause in CAUSES:
        if (match := cause.pattern.search(text)) is not None:
            named = {name: value for name, value in match.groupdict().items() if value}
            said = next(((name, value) for name, value in named.items()), ("", ""))
            by = _signal(said[1]) if said[0].startswith("number") else _SHELL.get(said[1], said[1])
            if cause.name == "exception":  # its name says more than that there was one
                by = f": {by}" if by else ""
            return cause, cause.words.format(signal=by)
    return None


_SHELL = {
    "Killed": "SIGKILL",
    "Aborted": "SIGABRT",
    "Segmentation fault": "SIGSEGV",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
}


def _signal(number: str) -> str:
    try:
        return signal.Signals(int(number)).name
    except ValueError:
        return f"signal {number}"


@dataclass
class _End:
    """What a job's log said of its end. best: (place in `CAUSES`, words), the least so far. fired: it was told.
    first: the rank that failed first, where a launcher says it."""

    first_s: float
    records: list[LogRecord] = field(default_factory=list)
    best: tuple[int, str] = (len(CAUSES), _UNNAMED.words)
    proven: bool = False
    fired: bool = False
    news: bool = False
    first: str = ""

    def add(self, record: LogRecord, named: tuple[CrashCause, str] | None, proves: bool) -> None:
        # of several with one cause the first counts: the others follow from it
        is_better = named is not None and _RANK[named[0].name] < self.best[0]
        best = (_RANK[named[0].name], named[1]) if named is not None and is_better else self.best
        self.news |= best != self.best or not self.fired
        self.best, self.proven = best, self.proven or proves
        if not self.first and (match := _FIRST.search(record.text)) is not None:
            self.first = f"{'local ' if match['local'] else ''}rank {match['number'] or match['rank']}"
        if len(self.records) < MOST_LINES:
            self.records.append(record)

    def is_due(self, at_s: float) -> bool:
        waited_s = at_s - self.first_s
        weak = self.best[0] >= _RANK["signal"]
        return self.news and (waited_s >= GRACE_S or (self.proven and (not weak or waited_s >= SETTLE_S)))


class JobCrashSettings(BaseModel):
    """Nothing to set: what a job's log says of its end is taken at its word."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class JobCrash:
    """JOB_CRASH on the job (on its pod, where no job is known), with the lines that decide.

    >>> from nightshift.detectors.contract.testing import START_S, show, tick
    >>> lines = ["RuntimeError: CUDA error: uncorrectable ECC error encountered", "failed (exitcode: 1) rank: 0"]
    >>> show(JobCrash(), [tick(START_S, logs=["step 14 loss 2.1"]), tick(START_S + 5, logs=lines)])
    5 s: firing job_crash job:ml/train
        Job ended: uncorrectable ECC error on its GPU
    """

    plugin: ClassVar[str] = "job_crash"
    Settings = JobCrashSettings

    def __init__(self, settings: JobCrashSettings | None = None) -> None:
        self.settings = settings or JobCrashSettings()
        self._ends: dict[Subject, _End] = {}
        self._hung_s: dict[Subject, float] = {}
        self._episodes = Episodes(self.name)
        self._quiet = QuietPeriods(self._episodes, QUIET_S)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.JOB_CRASH,)

    @property
    def stated(self) -> StatedRate:
        return StatedRate(0.0, RateBasis.EVENT, "the job's own log says so", series=SubjectKind.JOB, precision=1.0)

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        stepped = {_job_of(s.subject, tick.at_s, inventory) for s in tick.steps if len(s.step)}
        findings: list[Finding] = []
        for job in stepped:  # steps of this tick were written before this tick's errors: they clear earlier ones
            self._ends.pop(job, None)
            done = self._episodes.clear(Fault.JOB_CRASH, job, tick.at_s, "Steps come again")
            findings += [done] if done else []
        for job, records in _by_job(tick, inventory).items():
            self._read(job, records, tick.at_s)
        due = [job for job, end in self._ends.items() if end.is_due(tick.at_s)]
        findings += [self._fire(job, self._ends[job], tick.at_s) for job in due]
        findings += self._quiet.rest(tick, inventory, {(Fault.JOB_CRASH, job) for job in due})
        self._ends = {job: end for job, end in self._ends.items() if tick.at_s - end.first_s < QUIET_S}
        self._hung_s = {job: at_s for job, at_s in self._hung_s.items() if tick.at_s - at_s < QUIET_S}
        return findings

    def _read(self, job: Subject, records: Iterable[LogRecord], at_s: float) -> None:
        for record in records:
            if _WATCHDOG.search(record.text):
                self._hung_s[job] = at_s
                self._ends.pop(job, None)
            if job in self._hung_s:
                continue
            named, proves = cause_of(record.text), _PROVES.search(record.text) is not None
            end = self._ends.get(job)
            if named is not None or proves:
                self._ends.setdefault(job, _End(at_s)).add(record, named, proves)
            elif end is not None and not end.proven and not end.fired and at_s - end.first_s > TEAR_DOWN_S:
                del self._ends[job]  # it still writes: a server that goes on after a failed request

    def _fire(self, job: Subject, end: _End, at_s: float) -> Finding:
        cause, words = _ALL[end.best[0]], end.best[1]
        words += f", {end.first} first" if end.first else ""
        known = self._episodes.get(Fault.JOB_CRASH, job)
        self._quiet.event(Fault.JOB_CRASH, job, at_s)
        end.fired, end.news = True, False
        deciding = [r for r in end.records if (found := cause_of(r.text)) and found[0] is cause][:2]
        others = [r for r in end.records if r not in deciding][:4]
        alarm = Alarm(
            Fault.JOB_CRASH,
            job,
            min((r.at.t_s for r in end.records), default=end.first_s),
            cause.severity,
            f"Job ended: {words}",
            score=1.0,
            threshold=0.0,
            evidence=exhibits(known, dict.fromkeys(deciding, "decides") | dict.fromkeys(others, "")),
            facts={"crash": cause.name, "ended_by": words, "mended_by": cause.mended_by},
        )
        return self._episodes.fire(alarm, at_s)

    def snapshot(self) -> bytes:
        meta = {
            "last": self._quiet.saved(),
            "episodes": self._episodes.saved(),
            "ends": [
                [str(job), e.first_s, _ALL[e.best[0]].name, e.best[1], e.proven, e.fired, e.news, e.first]
                for job, e in self._ends.items()
            ],
            "hung": {str(job): at_s for job, at_s in self._hung_s.items()},
        }
        return pack(self.name, VERSION, meta, {})

    def restore(self, state: bytes) -> None:
        _, meta, _ = unpack(state, self.name, (VERSION,))
        fresh = JobCrash(self.settings)
        try:
            fresh._quiet.load(meta["last"])
            fresh._episodes.load(meta["episodes"])
            for job, first_s, cause, words, proven, fired, news, *first in meta["ends"]:
                # until 2026-11 its place among the causes of that time was saved instead of its name
                best = (_RANK.get(str(cause), len(CAUSES)), str(words))
                fresh._ends[Subject.parse(job)] = _End(
                    float(first_s), [], best, bool(proven), bool(fired), bool(news), *map(str, first)
                )
            fresh._hung_s = {Subject.parse(job): float(at_s) for job, at_s in meta["hung"].items()}
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._quiet, self._episodes = fresh._quiet, fresh._episodes
        self._ends, self._hung_s = fresh._ends, fresh._hung_s


def _job_of(subject: Subject, at_s: float, inventory: Inventory) -> Subject:
    return inventory.above(subject, SubjectKind.JOB, at_s) or subject


def _by_job(tick: Tick, inventory: Inventory) -> dict[Subject, list[LogRecord]]:
    """The lines of jobs' own logs; what a kernel or Kubernetes says of a pod is read elsewhere."""
    found: dict[Subject, list[LogRecord]] = {}
    for record in tick.logs:
        if record.subject.kind in _SOURCE_IS_JOBS and not record.source.startswith(_OTHERS):
            found.setdefault(_job_of(record.subject, tick.at_s, inventory), []).append(record)
    return found
