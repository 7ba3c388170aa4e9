"""A job that ends with an error: the end has to be proven or silent, and the deepest cause decides."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.frame import Instant, LogRecord, SourceStatus
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, LogExhibit, Severity, State
from nightshift.detectors.contract.testing import changes
from nightshift.detectors.contract.world import START_S, HealthyFleet
from nightshift.detectors.progress.job_crash import CAUSES, JobCrash, cause_of

RANK = Subject(SubjectKind.POD, "ml/train-3")
FAILED = (
    "E0325 20:57:27 api.py:869] failed (exitcode: 1) local_rank: 5 (pid: 2630) of binary: /opt/conda/bin/python"
)
OUT_OF_MEMORY = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 388.00 MiB. GPU 3 has 79 GiB"
)
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
WATCHDOG = (
    "[rank3]:[E] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
)
ABORTED = "E1121 04:11:03 api.py:869] failed (exitcode: -6) local_rank: 3 (pid: 77) of binary: /usr/bin/python"
EXAMPLES = {
    "ecc": ECC,
    "nvlink": "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
    "gpu_lost": "RuntimeError: No CUDA GPUs: CUDA error: no CUDA-capable device is detected",
    "fabric": "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
    "driver_version": "E0812 memory.cc:192] CUDA driver version is insufficient for CUDA runtime version",
    "gpu_busy": "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "node_failure": "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-11-21T04:11:00 DUE TO NODE FAILURE ***",
    "time_limit": "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-11-21T04:11:00 DUE TO TIME LIMIT ***",
    "preempted": "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-11-21T04:11:00 DUE TO PREEMPTION ***",
    "worker_lost": "E coordination_service.cc:954] UNAVAILABLE: Task 37 heartbeat timeout. This indicates a crash",
    "cancelled": "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-11-21T04:11:00 ***",
    "host_memory": "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks failed.",
    "shared_memory": "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error.",
    "disk_full": "OSError: [Errno 28] No space left on device",
    "gpu_memory": OUT_OF_MEMORY,
    "network": "n1:346:390 [4] net_ib.cc:1615 NCCL WARN NET/IB : Got completion from peer 10.0.0.2 with status=12",
    "rendezvous": "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection has failed.",
    "port_in_use": "OSError: [Errno 98] Address already in use",
    "gpu_fault": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "storage": "OSError: [Errno 116] Stale file handle: '/ckpt/step_100'",
    "engine": "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    "launch": "srun: error: Task launch for StepId=77.0 failed on node n1: Job credential expired",
    "nccl_cuda": "n1:7:8 [0] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'",
    "loss_scale": "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    "not_finite": "FloatingPointError: Loss became infinite or NaN at iteration=2137!",
    "actor": "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    "signal": "  traceback : Signal 9 (SIGKILL) received by PID 4242",
    "exception": "ValueError: expected 3 channels, got 4",
    "limits": "OSError: [Errno 24] Too many open files: '/data/shard-17.tar'",
    "barrier": "RuntimeError: Rank 0 failed to pass monitoredBarrier in 1800000 ms",
    "host_name": "socket.gaierror: [Errno -2] Name or service not known",
    "nccl_usage": "n1:7:8 [0] init.cc:892 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 on device 1",
    "gpu_model": "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "checkpoint": "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
    "web_service": "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='hub.example', port=443): timed out",
    "library": "ModuleNotFoundError: No module named 'flash_attn'",
    "heap": "malloc(): invalid size (unsorted)",
    "traceback": "[rank1]: Traceback (most recent call last):",
    "uncaught": "terminate called after throwing an instance of 'c10::Error'",
    "step_cancelled": "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-11-21T04:11:00 ***",
}
BENIGN = (
    " iteration 9/ 500 | lm loss: 2.0E+00 | number of skipped iterations:   0 | number of nan iterations:   0 |",
    "WARNING: could not import flash_attn, falling back (ImportError)",
    "INFO retrying after ConnectionResetError, attempt 2 of 5",
    "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB",
    "Saving checkpoint to /ckpt/step-100",
    "0 errors, 3 warnings",
    "INFO worker exited with return code = 0",
    "run.sh: line 13: sudo: command not found",
    "the request was killed by its client",
    " 12%|█▏   | 331/2700 [01:06<03:59,  3.06it/s]",
    "number of non-finite gradients: 0",
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
    "NCCL WARN NET/IB : mlx5_0:1 Got async event : client reregistration",
    "n1 [1] proxy.cc:1521 NCCL WARN [Proxy Service 1] Failed to execute operation Close from rank 1, retcode 3",
    "[W326 ProcessGroupNCCL.cpp:1487] Warning: destroy_process_group() was not called before program exit",
)


def at(number: int, *lines: str, ok: bool = True) -> Tick:
    at_s = START_S + 5.0 * number
    world = HealthyFleet()
    logs = tuple(LogRecord(Instant(at_s), "log", RANK, line, number) for line in lines)
    return Tick(at_s, logs=logs, sources=(SourceStatus(world.source, at_s, ok=ok, covers=(world.node,)),))


def steps(number: int) -> Tick:
    at_s = START_S + 5.0 * number
    return Tick(at_s, steps=HealthyFleet().steps(100 + number, at_s))


def ends(*ticks: Tick) -> list[tuple[State, str, str]]:
    found = changes(JobCrash(), list(ticks), HealthyFleet().inventory())
    return [(f.state, str(f.subject), f.summary) for f in found]


FINAL = {
    "exception": (
        "ERROR 10-27 08:12:01 [core.py:700] ValueError: The model's max seq len (131072) is too large",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 262144",
        "torch._dynamo.exc.Unsupported: Unsupported method call",
        "ray.exceptions.RayTaskError(ValueError): ray::train_loop() (pid=77, ip=10.0.0.1)",
        "lightning_fabric.utilities.exceptions.MisconfigurationException: No supported gpu backend found!",
        "[ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', 'train.py'] exits with return code = 1",
        "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD with errorcode 1.",
        "thread 'main' panicked at src/main.rs:12:5:",
        "run.sh: line 3: torchrun: command not found",
        "train.py: error: unrecognized arguments: --foo",
        "(pid=4711) RuntimeError: placement group is gone",
        "[1,3]<stderr>:ValueError: unsupported optimizer",
        "[2026-11-18 15:55:06] CRITICAL [olmo.util:158, rank=6] Uncaught OLMoConfigurationError: no such step",
    ),
    "signal": (
        "[ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python'] exits with return code = -9",
        "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).",
        "subprocess.CalledProcessError: Command '['train.py']' died with <Signals.SIGKILL: 9>.",
        "/var/spool/slurmd/job77/slurm_script: line 28: 8156 Killed                  python3 main.py",
        " 12%|█▏   | 331/2700 [01:06<03:59,  3.06it/s]Killed",
        "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL",
    ),
    "engine": (
        "2026-11-25T10:10:10.1Z ERROR text_generation_launcher: Shard 0 failed to start",
        "error: creating server: Internal - failed to load all models",
        "E1125 10:10:10.1 1 model_lifecycle.cc:630] failed to load 'ensemble' version 1: Internal: unexpected",
        "[TensorRT-LLM][ERROR] Assertion failed: Invalid SM version",
        "ERROR:    Application startup failed. Exiting.",
    ),
    "worker_lost": (
        "ray.exceptions.NodeDiedError: Task failed due to the node (where this task was running) was dead",
        "/job:jax_worker/replica:0/task:3 unexpectedly tried to connect with a different incarnation.",
        "F client.h:77] Terminating process because the coordinator detected missing heartbeats.",
    ),
    "gpu_lost": (
        "Failed to initialize NVML: Insufficient Permissions",
        "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
    ),
    "nvlink": ("CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",),
    "host_memory": (
        "(raylet) node_manager.cc:3069: 2 Workers (tasks / actors) killed due to memory pressure (OOM)",
    ),
    "gpu_memory": ("n1:7:8 [0] include/alloc.h:185 NCCL WARN Cuda failure 2 'out of memory'",),
    "not_finite": (
        "WARNING: non-finite loss, ending training  tensor([nan], device='cuda:0')",
        "ERROR:rerun_state_machine:Unexpected result nan on rank 1 (message='found NaN in local grad norm')",
    ),
    "network": (
        "n1:77:99 [0] NCCL WARN NET/OFI Request 0x7f completed with error. RC: 113. Error: unresponsive receiver",
        "[1729] UCX  ERROR ib_mlx5_log.c:179 Transport retry count exceeded on mlx5_0:1/IB (synd 0x15)",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]",
    ),
}
"""What launchers, servers and libraries write last."""


def test_the_last_words_of_launchers_and_servers_name_a_cause() -> None:
    told = {line: found[0].name if (found := cause_of(line)) else "" for lines in FINAL.values() for line in lines}
    assert told == {line: name for name, lines in FINAL.items() for line in lines}


def test_a_launchers_word_proves_the_end_and_the_deepest_cause_decides() -> None:
    found = changes(JobCrash(), [at(0, FAILED, ECC), at(1)], HealthyFleet().inventory())
    (first,) = found
    assert (first.fault, first.severity) == (Fault.JOB_CRASH, Severity.CRITICAL)
    assert first.subject.kind is SubjectKind.JOB
    assert first.summary == "Job ended: uncorrectable ECC error on its GPU, local rank 5 first"
    decides = [e.record.text for e in first.evidence if isinstance(e, LogExhibit) and e.note == "decides"]
    assert decides == [ECC]


def test_a_cause_without_proof_is_told_after_a_minute_of_silence() -> None:
    quiet = [at(n) for n in range(1, 13)]
    assert ends(at(0, OUT_OF_MEMORY), *quiet[:11]) == []
    assert [words for _, _, words in ends(at(0, OUT_OF_MEMORY), *quiet)] == ["Job ended: out of GPU memory"]


def test_a_job_that_steps_on_has_survived_its_error() -> None:
    assert ends(at(0, OUT_OF_MEMORY), steps(3), *[at(n) for n in range(4, 40)]) == []


def test_a_server_that_writes_on_after_a_failed_request_has_not_ended() -> None:
    assert ends(at(0, OUT_OF_MEMORY), at(8, "ERROR request 77 failed"), *[at(n) for n in range(9, 40)]) == []


def test_the_abort_after_a_watchdogs_word_is_the_hangs_own() -> None:
    assert ends(at(0, WATCHDOG), at(1, ABORTED), *[at(n) for n in range(2, 30)]) == []


def test_a_better_cause_corrects_the_first_word_and_a_worse_one_does_not() -> None:
    detector, inventory = JobCrash(), HealthyFleet().inventory()
    ticks = [at(0, FAILED), *[at(n) for n in range(1, 4)], at(4, ECC), at(5, "ValueError: torn down"), at(6)]
    told = [f.summary for tick in ticks for f in detector.update(tick, inventory)]
    assert (told[0], told[-1]) == (
        "Job ended: an exception in its own code, local rank 5 first",
        "Job ended: uncorrectable ECC error on its GPU, local rank 5 first",
    )


def test_a_step_that_slurm_cancels_for_a_failed_task_names_the_task() -> None:
    told = ends(at(0, "srun: error: n1: task 3: Bus error", EXAMPLES["step_cancelled"]), at(1))
    assert [words for _, _, words in told] == ["Job ended: bus error: shared memory is too small"]


def test_steps_after_the_end_clear_it() -> None:
    assert [state for state, _, _ in ends(at(0, FAILED, ECC), steps(30))] == [State.FIRING, State.CLEAR]


def test_an_end_without_a_cause_is_told_as_such() -> None:
    told = ends(at(0, "terminate called without an active exception"), *[at(n) for n in range(1, 6)])
    assert [words for _, _, words in told] == ["Job ended: an error that its log does not name"]


def test_every_cause_is_found_by_its_own_line_and_benign_lines_name_none() -> None:
    assert {name: found[0].name for name, line in EXAMPLES.items() if (found := cause_of(line))} == {
        cause.name: cause.name for cause in CAUSES
    }
    assert [line for line in BENIGN if cause_of(line) is not None] == []


@given(st.lists(st.sampled_from([*EXAMPLES.values(), *BENIGN, FAILED]), min_size=1, max_size=6), st.integers(0, 6))
def test_a_restored_detector_says_what_the_running_one_says(lines: list[str], cut: int) -> None:
    """Saved between any two ticks: the pending end, its cause and what was told survive."""
    ticks = [*(at(n, line) for n, line in enumerate(lines)), *(at(n) for n in range(len(lines), len(lines) + 16))]
    inventory = HealthyFleet().inventory()
    running, saved = JobCrash(), JobCrash()
    one = [f.summary for tick in ticks for f in running.update(tick, inventory)]
    other = []
    for number, tick in enumerate(ticks):
        if number == cut:
            state = saved.snapshot()
            saved = JobCrash()
            saved.restore(state)
        other += [f.summary for f in saved.update(tick, inventory)]
    assert one == other
