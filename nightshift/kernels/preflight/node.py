"""Preflight of the node that this runs on: each GPU in a process of its own, then what lies between them.

A test that fails by itself (no memory left, no library, no answer in time) says nothing of the node: BROKEN. Only
what CUDA names as the chip's own fault is one.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from nightshift.collectors.base import Temporary
from nightshift.kernels.preflight.gpu_tests import LEVELS, GpuRun, TestLevel, Wrong
from nightshift.kernels.preflight.results import PreflightResult, ResultFolder
from nightshift.kernels.preflight.verdict import GpuVerdict, PreflightState, judged

CHIP_ERRORS = (
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "hardware stack error",
    "GPU is lost",
)
"""What CUDA and NVML say of a chip that is broken (cudaGetErrorString, nvmlErrorString). All else may be ours."""
SPARE_S = 45.0
"""Beside the sweeps, a process has so long for everything else."""


class NvmlSensors:
    """One GPU by its UUID. Raises pynvml.NVMLError where the driver does not answer."""

    def __init__(self, uuid: str) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self._uuid = uuid

    def facts(self) -> Mapping[str, str]:
        nvml, handle = self._nvml, self._handle
        serial = self._uuid
        with suppress(nvml.NVMLError):  # consumer boards have none
            serial = nvml.nvmlDeviceGetSerial(handle)
        model, driver = nvml.nvmlDeviceGetName(handle), nvml.nvmlSystemGetDriverVersion()
        return {"serial": serial, "uuid": self._uuid, "model": model, "driver": driver}

    def temperature_c(self) -> float:
        return float(self._nvml.nvmlDeviceGetTemperature(self._handle, self._nvml.NVML_TEMPERATURE_GPU))

    def clock_mhz(self) -> float:
        return float(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))

    def others(self) -> int:
        """Processes of others that compute on it now."""
        found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        return sum(process.pid != os.getpid() for process in found)


def uuids() -> list[str]:
    """The GPUs of this node, or those of them that CUDA_VISIBLE_DEVICES names."""
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
    every = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not named:
        return every
    chosen = []
    for word in filter(None, named.split(",")):
        chosen += (
            [every[int(word)]]
            if word.isdecimal() and int(word) < len(every)
            else [uuid for uuid in every if uuid.startswith(word)]
        )
    return chosen


def present() -> dict[str, str]:
    """The GPUs of this node: UUID → serial number. Raises Temporary where the driver does not answer."""
    import pynvml

    try:
        return {uuid: NvmlSensors(uuid).facts()["serial"] for uuid in uuids()}
    except pynvml.NVMLError as error:
        raise Temporary(f"NVML: {error}") from error


def software(driver: str) -> str:
    """What decides how fast the same chip is: a new driver or compiler begins a new history."""
    from importlib.metadata import version

    return f"driver {driver}, torch {version('torch')}, triton {version('triton')}"


def gpu_program(uuid: str, level: str) -> None:
    """The program of one GPU's process: prints its run as one JSON line."""
    from nightshift.kernels.preflight.gpu_tests import GpuTests

    sensors = NvmlSensors(uuid)
    tests = GpuTests("cuda", sensors, LEVELS[level])
    try:
        run = tests.all()
    except Exception as error:  # noqa: BLE001  what the chip says of itself is a finding, anything else is ours
        words = f"{type(error).__name__}: {error}"
        run = tests.run
        if any(known.lower() in words.lower() for known in CHIP_ERRORS):
            run.wrong.append(Wrong(words.splitlines()[0][:200], 1, {}, float("nan"), 0.0))
        else:
            run.suspect = words[:500]
    print(json.dumps({"run": asdict(run)}))


def run_of(values: Mapping[str, Any]) -> GpuRun:
    """A run from its JSON values."""
    known = {f.name: values[f.name] for f in fields(GpuRun)}
    known["wrong"] = [
        Wrong(
            w["check"], w["count"], {int(k): v for k, v in w["places"].items()}, w["temperature_c"], w["moment_s"]
        )
        for w in values["wrong"]
    ]
    return GpuRun(**known)


def gpu_runs(ids: Sequence[str], level: TestLevel) -> list[GpuRun]:
    """Tests every GPU at once, each in its own process; one that does not answer in time is ended."""
    command = "import sys; from nightshift.kernels.preflight.node import gpu_program; gpu_program(*sys.argv[1:])"
    until_s = time.monotonic() + level.sweep_s + 2 * level.other_s + SPARE_S + 2.0 * level.patterns
    begun = []
    for uuid in ids:
        out = tempfile.TemporaryFile("w+")  # noqa: SIM115  it lives as long as the process
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}
        begun.append(
            (uuid, out, subprocess.Popen([sys.executable, "-c", command, uuid, level.name], stdout=out, env=env))
        )
    found = []
    for uuid, out, process in begun:
        try:
            process.wait(max(0.1, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
        out.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith('{"run"')]
        out.close()
        if lines:
            found.append(run_of(json.loads(lines[-1])["run"]))
        else:
            why = (
                f"no answer within {level.sweep_s + SPARE_S:.0f} s"
                if process.returncode in (None, -9)
                else f"exit {process.returncode}"
            )
            found.append(GpuRun({"serial": uuid, "uuid": uuid, "model": "", "driver": ""}, level.name, suspect=why))
    return found


def disk(folder: Path, size: int = 1 << 28) -> dict[str, float]:
    """Write and read speed of the folder's disk (B/s), past the page cache as far as the system allows."""
    block, path = os.urandom(1 << 20), folder / ".preflight-disk"
    try:
        began_s = time.perf_counter()
        with path.open("wb") as file:
            for _ in range(size >> 20):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        write_s = time.perf_counter() - began_s
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            began_s = time.perf_counter()
            while os.read(descriptor, 1 << 20):
                pass
            read_s = time.perf_counter() - began_s
        finally:
            os.close(descriptor)
    finally:
        path.unlink(missing_ok=True)
    return {"disk_write_bytes_per_s": size / write_s, "disk_read_bytes_per_s": size / read_s}


def network(root: Path = Path("/sys/class")) -> dict[str, float]:
    """Sum of the stated speeds of the links that are up (bit/s): Ethernet and InfiniBand ports."""
    total = 0.0
    for path in sorted((root / "net").glob("*/speed")) if (root / "net").is_dir() else []:
        with suppress(OSError, ValueError):
            if (path.parent / "device").exists() and (path.parent / "operstate").read_text().strip() == "up":
                total += max(0, int(path.read_text())) * 1e6
    for path in sorted((root / "infiniband").glob("*/ports/*/rate")) if (root / "infiniband").is_dir() else []:
        with suppress(OSError, ValueError, IndexError):
            if "ACTIVE" in (path.parent / "state").read_text():
                total += float(path.read_text().split()[0]) * 1e9
    return {"network_bits_per_s": total} if total else {}


def preflight(
    node: str, folder: ResultFolder, level: TestLevel, ids: Sequence[str], now_s: float
) -> list[PreflightResult]:
    """Tests the node's GPUs and what joins them, and keeps a signed result of each."""
    runs = gpu_runs(ids, level)
    shared = {**disk(folder.path), **network()}
    with broken_is_silent():
        shared |= links(ids)
    passes, results = folder.passes(), []
    for run in runs:
        run.figures |= shared
        used = software(run.facts.get("driver", ""))
        verdict: GpuVerdict = judged(run, used, passes)
        results.append(folder.add(node, run, verdict, used, now_s, level.valid_s))
    return results


@contextmanager
def broken_is_silent() -> Iterator[None]:
    """A test between GPUs that cannot run leaves its figures away: the node is not refused for it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        print(f"links not tested: {type(error).__name__}: {error}", file=sys.stderr)


def refused(results: Sequence[PreflightResult]) -> list[PreflightResult]:
    return [result for result in results if result.state is PreflightState.REFUSED]


# What joins GPUs -------------------------------------------------------------------------------------------------
#
# Copies between neighbours, and an all-reduce over the gang that will run. In a gang (RANK, WORLD_SIZE and
# MASTER_ADDR are set, as torchrun and job operators do) every process takes part with its own GPU. Else the GPUs of
# this node are the gang.

LINK_BYTES = 1 << 28
LINK_REPEATS = 9
LINKS_S = 60.0


def links(ids: Sequence[str], device: str = "cuda", size: int = LINK_BYTES) -> dict[str, float]:
    """peer_bytes_per_s (the slowest of neighbours) and all_reduce_bytes_per_s; empty with one GPU alone."""
    if "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return _asked([dict(os.environ)], device, size)
    if len(ids) < 2:
        return {}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": ",".join(ids),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    ranks = [{"RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": str(len(ids))} for n in range(len(ids))]
    return _asked([base | rank for rank in ranks], device, size)


def _asked(environments: list[dict[str, str]], device: str, size: int) -> dict[str, float]:
    program = f"from nightshift.kernels.preflight.node import rank_program; rank_program({device!r}, {size})"
    command = [sys.executable, "-c", program]
    began = [subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True) for env in environments]
    until_s = time.monotonic() + LINKS_S
    said = []
    try:
        for process in began:
            said.append(process.communicate(timeout=max(0.1, until_s - time.monotonic()))[0])
    finally:
        for process in began:
            process.kill()
    found: dict[str, float] = {}
    for text in said:
        for line in text.splitlines():
            if line.startswith('{"links"'):
                for name, value in json.loads(line)["links"].items():
                    found[name] = min(value, found.get(name, value))
    return found


def rank_program(device: str = "cuda", size: int = LINK_BYTES, repeats: int = LINK_REPEATS) -> None:
    """One rank: times copies to its neighbour and the all-reduce; prints them as one JSON line."""
    import torch
    import torch.distributed as dist

    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    data = torch.ones(size // 4, device=device)

    def timed(work: Any) -> float:
        taken = []
        for _ in range(repeats):
            dist.barrier()
            began_s = time.perf_counter()
            work()
            if on_gpu:
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - began_s)
        return sorted(taken)[repeats // 2]

    dist.all_reduce(data)
    reduce_s = timed(lambda: dist.all_reduce(data))
    other = torch.empty_like(data)

    def ring() -> None:
        ops = [dist.P2POp(dist.isend, data, (rank + 1) % count), dist.P2POp(dist.irecv, other, (rank - 1) % count)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    ring()
    ring_s = timed(ring)
    found = {"all_reduce_bytes_per_s": 2 * (count - 1) / count * size / reduce_s, "peer_bytes_per_s": size / ring_s}
    print(json.dumps({"links": found}), flush=True)
    dist.destroy_process_group()
