"""Records a gang of N ranks with labelled faults, as `nightshift node` and our collectors see it.

    python -m benchmarks.gang_record --part ddp --out FOLDER      9.2 min, on a machine with N GPUs
    python -m benchmarks.gang_record --part fsdp --out FOLDER     9.4 min
    python -m benchmarks.gang_record --part ddp_quiet --out FOLDER      9.2 min, nearly all of it healthy
    python -m benchmarks.gang_record --part fsdp_quiet --out FOLDER     10 min, the same with one fault at its end
    python -m benchmarks.gang_record --part ddp --out FOLDER --device cpu --ranks 4 --scale 0.5     gloo, to try it

The gang is `benchmarks/gang_worker.py` under torchrun: one process for each GPU, one pod for each process. Every
fault is made in the running job, none in what is recorded: products that the GPU prefers for a share of the time
(`compute`), copies on the rank's own link (`copies`), twice as many spinning processes as the rank has cores
(`hog`), and in the rank's own program a slow or stalling loader, kept memory, gradients that are too large, a
collective that it does not call, SIGKILL. No clock, power limit or mode is touched; NVLink multicast stays off.

| minutes | ddp | fsdp |
|---|---|---|
| healthy, in 5 or 6 stretches | 3.8 | 3.1 |
| faults | 4.3 | 4.8 |
| benign | 0.4 | 0.7 |

20 healthy minutes and all faults need 38 minutes of the machine, with the quiet parts. A stretch that is replayed
four times as slowly (`benchmarks.gang_replay`) has the length that detectors wait for.

FOLDER/PART.nightshift.gz is the recording, PART.json the labels: for each phase its time, the time of the first
step with the fault, the rank. Also what NCCL's RAS answers, asked over its socket. Machine names are replaced.
PART.logs.tar.gz is what the gang printed and dumped, as it was. A call writes its part alone, and begins that part
again.
"""

from __future__ import annotations

import argparse
import gzip
import http.server
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.gang_worker import JOB, NAMESPACE
from benchmarks.record_h200 import PORT, ROOT, start_node
from benchmarks.report import environment
from nightshift.collectors.frame import Frame, SeriesIndex, SourceStatus
from nightshift.collectors.kernel_log.node_log import NodeLogCollector
from nightshift.collectors.merge import Merger
from nightshift.collectors.recording import RecordingWriter
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.dcgm_exporter import DcgmExporterCollector
from nightshift.collectors.telemetry.metrics import of_kind
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch
from nightshift.collectors.training.logs import TrainingLogsCollector
from nightshift.collectors.training.workload import container_subject, pod_subject, rank_of

TICK_S = 0.5
NODE, GANG = "gang-node", Subject(SubjectKind.JOB, f"{NAMESPACE}/{JOB}")
WORKER = Path(__file__).with_name("gang_worker.py")
TIMEOUT_S, DUMPED_S = 60.0, 10.0
"""NCCL's watchdog ends the job so long after a collective began; dumps are taken so long after it began to hang."""
RAS_PORT = 28028


@dataclass(frozen=True)
class GangPhase:
    """name: what the worker is ordered. is_: "fault", "benign" or "healthy". rank: of a gang, from its end."""

    name: str
    seconds: float
    is_: str = "healthy"
    rank: int | None = None
    share: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.name} {100 * self.share:.0f} %" if self.share else self.name


def _fault(name: str, seconds: float, rank: int, share: float = 0.0) -> GangPhase:
    return GangPhase(name, seconds, "fault", rank, share)


PARTS: dict[str, tuple[GangPhase, ...]] = {
    "ddp": (
        GangPhase("healthy", 85.0),
        _fault("compute", 45.0, -2, 0.30),
        GangPhase("healthy", 30.0),
        _fault("compute", 50.0, 0, 0.08),
        GangPhase("healthy", 30.0),
        _fault("loader", 45.0, -1),
        GangPhase("healthy", 30.0),
        GangPhase("batch", 25.0, "benign"),
        GangPhase("healthy", 20.0),
        _fault("compute", 50.0, 1, 0.04),
        GangPhase("healthy", 30.0),
        _fault("gradients", 25.0, -2),
        _fault("kill", 40.0, 1),
    ),
    "fsdp": (
        GangPhase("healthy", 75.0),
        _fault("hog", 45.0, 1),
        GangPhase("healthy", 30.0),
        _fault("copies", 45.0, -2),
        GangPhase("healthy", 30.0),
        GangPhase("evaluation", 20.0, "benign"),
        _fault("stall", 55.0, 0),
        GangPhase("healthy", 30.0),
        _fault("leak", 70.0, -1),
        GangPhase("checkpoint", 20.0, "benign"),
        GangPhase("healthy", 20.0),
        _fault("skip", 75.0, -2),
    ),
    "ddp_quiet": (
        GangPhase("healthy", 200.0),
        GangPhase("batch", 30.0, "benign"),
        GangPhase("healthy", 270.0),
    ),
    "fsdp_quiet": (
        GangPhase("healthy", 200.0),
        GangPhase("checkpoint", 30.0, "benign"),
        GangPhase("healthy", 170.0),
        GangPhase("evaluation", 30.0, "benign"),
        GangPhase("healthy", 70.0),
        _fault("stall", 60.0, 0),
    ),
}
"""By name; what stands before a name's `_` is how the gang trains."""


class ProcessPage(http.server.BaseHTTPRequestHandler):
    """Where there is no GPU, the rank's own process in its place, as dcgm-exporter would serve it: utilisation is
    its share of a core, memory its resident set. It draws no power."""

    pids: ClassVar[dict[int, int]] = {}
    before: ClassVar[dict[int, tuple[float, float]]] = {}

    def do_GET(self) -> None:
        lines = []
        for rank, pid in self.pids.items():
            labels = (
                f'{{gpu="{rank}",UUID="GPU-process-{rank}",modelName="process",Hostname="{NODE}",'
                f'namespace="{NAMESPACE}",pod="{JOB}-worker-{rank}",container="trainer"}}'
            )
            try:
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            busy_s, now_s = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK"), time.monotonic()
            last_s, last_busy_s = self.before.get(rank, (now_s - 1.0, busy_s))
            if now_s - last_s > 0.3:
                self.before[rank] = now_s, busy_s
            used = 100.0 * (busy_s - last_busy_s) / max(now_s - last_s, 1e-3)
            held_mib = int(words[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20
            lines += [
                f"DCGM_FI_DEV_GPU_UTIL{labels} {min(100.0, used):.1f}",
                f"DCGM_FI_DEV_FB_USED{labels} {held_mib:.1f}",
                f"DCGM_FI_DEV_FB_FREE{labels} {16384 - held_mib:.1f}",
            ]
        body = ("\n".join(lines) + "\n").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class GangRecorder:
    """Asks the collectors and writes what they bring."""

    def __init__(self, path: Path, logs: Path, ranks: Mapping[int, dict[str, Any]], on_gpu: bool) -> None:
        page, lines = f"http://127.0.0.1:{PORT}/metrics", f"http://127.0.0.1:{PORT}/kernel-log"
        self.collectors: list[Any] = [
            DcgmExporterCollector(DcgmExporterCollector.Settings(urls=[page])),
            TrainingLogsCollector(TrainingLogsCollector.Settings(directory=logs)),
        ]
        if on_gpu:
            self.collectors.append(
                NodeLogCollector(NodeLogCollector.Settings(urls=[lines], nodes={lines: platform.node()}))
            )
        self.ranks, self.on_gpu, self.began_s = ranks, on_gpu, time.time()
        self.inventory, self.merger = Inventory(), Merger()
        self.boxes = {r: container_subject(NAMESPACE, f"{JOB}-worker-{r}", "trainer") for r in ranks}
        self.index = SeriesIndex(SubjectKind.CONTAINER, tuple(self.boxes.values()))
        self.metrics = tuple(metric.name for metric in of_kind(SubjectKind.CONTAINER))
        self.writer = RecordingWriter(path, TICK_S, {"model": "transformer", "ranks": str(len(ranks))})
        self.next_s, self.ticks, self.late = time.time(), 0, 0
        self.step_s: dict[int, float] = {}

    def tick(self) -> None:
        """One look, at the next half of a second."""
        time.sleep(max(0.0, self.next_s - time.time()))
        now_s = time.time()
        self.late += now_s > self.next_s + TICK_S
        self.next_s = max(self.next_s + TICK_S, now_s)
        batches = [collector.collect(now_s, self.inventory, 1.0) for collector in self.collectors]
        batches.append(self._memory(now_s))
        self._relate(now_s)
        tick = self.merger.merge(batches, now_s, self.inventory)
        # the kernel's lines from before are the machine's, not the gang's
        logs = tuple(record for record in tick.logs if record.at.t_s >= self.began_s)
        events = tuple(event for event in tick.events if event.record.at.t_s >= self.began_s)
        self.writer.add(replace(tick, logs=logs, events=events), self.inventory)
        for series in tick.steps:
            if series.subject == rank_of(GANG, 0):
                self.step_s |= dict(zip(series.step.tolist(), series.t_s.tolist(), strict=True))
        self.ticks += 1

    def _relate(self, now_s: float) -> None:
        """What a Kubernetes API says of pods and devices."""
        for r, about in self.ranks.items():
            pod, rank = pod_subject(NAMESPACE, f"{JOB}-worker-{r}"), rank_of(GANG, r)
            uuid = str(about["uuid"])
            gpu = Subject(SubjectKind.GPU, f"GPU-process-{r}" if not uuid else f"GPU-{uuid.removeprefix('GPU-')}")
            for child, parent in ((pod, GANG), (self.boxes[r], pod), (rank, pod), (rank, GANG)):
                self.inventory.observe(child, parent, now_s)
            if gpu in self.inventory.subjects(SubjectKind.GPU, now_s):
                self.inventory.observe(gpu, pod, now_s)
                self.inventory.observe(gpu, rank, now_s)
        self.inventory.observe(pod_subject(NAMESPACE, JOB), GANG, now_s)

    def _memory(self, now_s: float) -> Batch:
        """Each rank's memory as the kernel tells it; where cAdvisor runs, its page says the same."""
        values = np.full((len(self.boxes), len(self.metrics)), np.nan)
        names = {"VmRSS": "container_memory_working_set_bytes", "RssAnon": "container_memory_anonymous_bytes"}
        for row, about in enumerate(self.ranks.values()):
            try:
                lines = Path(f"/proc/{about['pid']}/status").read_text().splitlines()
            except OSError:
                continue
            for line in lines:
                key, _, rest = line.partition(":")
                if key in names:
                    values[row, self.metrics.index(names[key])] = 1024.0 * int(rest.split()[0])
        when = np.full((1, len(self.metrics)), now_s)
        frame = Frame(now_s, self.index, self.metrics, values, when, np.zeros(len(self.boxes), dtype=np.int64))
        return Batch([SourceStatus(source_subject("proc", "gang"), now_s, True, samples=values.size)], [frame])

    def close(self) -> None:
        self.writer.close()
        for collector in self.collectors:
            collector.close()


@dataclass
class Gang:
    """The job: torchrun and its ranks, and the orders that they follow."""

    folder: Path
    mode: str
    device: str
    count: int
    process: subprocess.Popen[bytes] = field(init=False)
    orders: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        logs = self.folder / "logs"
        shutil.rmtree(self.folder, ignore_errors=True)
        logs.mkdir(parents=True)
        trace = logs / f"{NAMESPACE}_{JOB}-worker-0_nccl_trace_rank_"
        more = {
            "NCCL_NVLS_ENABLE": "0", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_DUMP_TEMP_FILE": str(trace), "OMP_NUM_THREADS": "1",
            "GANG_TIMEOUT_S": str(TIMEOUT_S if self.device == "cuda" else 300.0),
        }  # fmt: skip
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(self.count),
        ]
        with (logs / f"{NAMESPACE}_{JOB}_launcher.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, str(WORKER), str(self.folder), self.mode, self.device],
                stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **more},
            )  # fmt: skip

    def wait(self, limit_s: float = 180.0) -> dict[int, dict[str, Any]]:
        """What each rank says of itself, once the first steps are done. Raises RuntimeError."""
        until_s = time.monotonic() + limit_s
        while not (self.folder / "step").exists() or self.step() < 10:
            if self.process.poll() is not None or time.monotonic() > until_s:
                told = "".join(path.read_text()[-2000:] for path in sorted((self.folder / "logs").glob("*.log")))
                raise RuntimeError(f"the gang does not train:\n{told}")
            time.sleep(0.3)
        return {r: json.loads((self.folder / f"rank-{r}.json").read_text()) for r in range(self.count)}

    def step(self) -> int:
        try:
            return int((self.folder / "step").read_text() or "0")
        except OSError:
            return 0

    def order(self, steps_per_s: float, **order: Any) -> int:
        """The step from which it holds: about a second ahead, so that every rank has read it."""
        from_step = self.step() + 5 + int(1.5 * steps_per_s)
        self.orders.append({"from_step": from_step, **order})
        made = self.folder / "orders.partial"
        made.write_text(json.dumps(self.orders))
        made.replace(self.folder / "orders.json")
        return from_step

    def dump(self, ranks: Mapping[int, dict[str, Any]]) -> dict[str, str]:
        """Flight recorder, stacks and RAS, into the folder of the logs; what each source was."""
        (self.folder / "dump").touch()
        told = {"stacks": "faulthandler"}
        spy = shutil.which("py-spy", path=f"{os.environ.get('GANG_TOOLS', '')}:{os.environ['PATH']}")
        for r, about in ranks.items():
            out = self.folder / "logs" / f"{NAMESPACE}_{JOB}-worker-{r}_pyspy_rank_{r}.txt"
            done = (
                subprocess.run([spy, "dump", "--pid", str(about["pid"])], capture_output=True, check=False)
                if spy
                else None
            )
            if done is not None and done.returncode == 0:
                out.write_bytes(done.stdout)
                told["stacks"] = "py-spy"
                continue
            if done is not None:
                told["py-spy"] = done.stderr.decode(errors="replace")[-200:]
            os.kill(about["pid"], signal.SIGUSR1)
            time.sleep(0.2)
            out.write_bytes((self.folder / f"stack-{r}").read_bytes())
        told["ras"] = self.ras(self.folder / "logs" / f"{NAMESPACE}_{JOB}-worker-0_nccl_ras.txt")
        return told

    def ras(self, out: Path) -> str:
        """Asks the RAS of the gang's NCCL (2.24 on), which listens on this machine; says why where it fails."""
        if self.device == "cpu":
            return "no NCCL on a CPU: not asked"
        try:
            answer = ask_ras()
        except OSError as error:
            return f"port {RAS_PORT} of this machine: {error}. Is NCCL older than 2.24, or NCCL_RAS_ENABLE=0?"
        if b"Communicators..." not in answer:
            return f"no report: {answer[-200:].decode(errors='replace')}"
        out.write_bytes(answer)
        return f"{len(answer)} bytes"

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()


def ask_ras(timeout_s: float = 15.0) -> bytes:
    """The verbose report of NCCL's RAS thread, by the text protocol of `ncclras` (src/ras/client.cc of NCCL)."""
    with socket.create_connection(("127.0.0.1", RAS_PORT), timeout_s) as line, line.makefile("rwb") as stream:
        for order, answer in ((b"CLIENT PROTOCOL 2", b"SERVER PROTOCOL"), (b"TIMEOUT 5", b"OK")):
            stream.write(order + b"\n")
            stream.flush()
            if not (told := stream.readline()).startswith(answer):
                raise OSError(f"RAS answers {told[:80]!r} to {order!r}")
        stream.write(b"VERBOSE STATUS\n")
        stream.flush()
        return stream.read()


def record(part: str, given: argparse.Namespace) -> dict[str, Any]:
    work = given.out / f"work-{part}"
    gang = Gang(work, part.partition("_")[0], given.device, given.ranks)
    try:
        ranks = gang.wait()
        if given.device == "cpu":
            ProcessPage.pids = {r: about["pid"] for r, about in ranks.items()}
        recorder = GangRecorder(given.out / f"{part}.raw.gz", work / "logs", ranks, given.device == "cuda")
        labels = {"environment": environment(), "part": part, "ranks": given.ranks, "device": given.device,
                  "gpu": given.gpu, "tick_s": TICK_S, "phases": [], "dumps": {},
                  "uuids": {str(about["uuid"]): str(r) for r, about in ranks.items() if about["uuid"]}}  # fmt: skip
        try:
            for phase in PARTS[part]:
                labels["phases"].append(_phase(phase, gang, recorder, ranks, labels, given.scale))
                print(json.dumps(labels["phases"][-1]), flush=True)
                if gang.process.poll() is not None and phase is not PARTS[part][-1]:
                    raise RuntimeError(f"the gang ended in {phase.label}")
        except (RuntimeError, OSError, ValueError) as error:  # what was recorded before is still worth its minutes
            labels["failed"] = repr(error)
            print(labels["failed"], file=sys.stderr, flush=True)
        finally:
            recorder.close()
        labels |= {"ticks": recorder.ticks, "late_ticks": recorder.late}
    finally:
        gang.end()
    for phase in labels["phases"]:  # a fault begins with the step before it ends
        if phase["onset_s"] is None:
            phase["onset_s"] = recorder.step_s.get(phase["from_step"] - 1, phase["start_s"])
    return labels


def _phase(
    phase: GangPhase, gang: Gang, recorder: GangRecorder, ranks: Mapping[int, dict[str, Any]],
    labels: dict[str, Any], scale: float,
) -> dict[str, Any]:  # fmt: skip
    rank = None if phase.rank is None else phase.rank % len(ranks)
    # a hang takes as long as its detector waits, on any machine
    start_s, seconds = time.time(), phase.seconds * (1.0 if phase.name == "skip" else scale)
    recent = [t_s for t_s in recorder.step_s.values() if t_s > start_s - 15.0]
    rate = len(recent) / 15.0
    row = {
        "phase": phase.label,
        "is": phase.is_,
        "rank": rank,
        "start_s": start_s,
        "onset_s": None,
        "from_step": -1,
    }
    if phase.name == "kill":
        assert rank is not None
        row["onset_s"] = start_s
        os.kill(ranks[rank]["pid"], signal.SIGKILL)
    else:
        row["from_step"] = gang.order(rate, phase=phase.name, rank=rank, share=phase.share)
    if phase.is_ == "healthy" and "healthy" not in labels["dumps"]:
        labels["dumps"]["healthy"] = {"ras": gang.ras(gang.folder / "ras.txt")}
    while time.time() < start_s + seconds:
        recorder.tick()
        hangs_s = time.time() - max(recorder.step_s.values(), default=start_s)
        if phase.name == "skip" and "hang" not in labels["dumps"] and hangs_s > DUMPED_S:
            labels["dumps"]["hang"] = gang.dump(ranks)
    return row | {"end_s": time.time()}


def renamed(raw: Path, path: Path, uuids: Mapping[str, str]) -> None:
    """The recording without this machine's names and paths."""
    names = {
        **uuids,
        str(path.parent): "/record",
        platform.node(): NODE,
        str(ROOT): "/app",
        sys.prefix: "/usr",
        sys.base_prefix: "/usr",
    }
    with gzip.open(raw, "rt", encoding="utf-8") as source, gzip.open(path, "wt", encoding="utf-8") as target:
        for line in source:
            text = line.rstrip("\n").partition(" ")[2]
            for name, other in names.items():
                text = text.replace(name, other)
            target.write(f"{zlib.crc32(text.encode()):08x} {text}\n")
    raw.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=tuple(PARTS), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", type=int, default=0, help="0: one for each GPU")
    parser.add_argument("--scale", type=float, default=1.0, help="of every length of time but the hang's")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    given.out = given.out.resolve()
    given.gpu = "none"
    node: subprocess.Popen[bytes] | None = None
    if given.device == "cuda":
        import torch

        given.ranks, given.gpu = given.ranks or torch.cuda.device_count(), torch.cuda.get_device_name()
        node = start_node(False, given.out)
    else:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), ProcessPage)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    began_s = time.monotonic()
    try:
        labels = record(given.part, given)
    finally:
        if node is not None:
            node.terminate()
            node.wait(10)
    path = given.out / f"{given.part}.nightshift.gz"
    renamed(given.out / f"{given.part}.raw.gz", path, labels.pop("uuids"))
    (given.out / f"{given.part}.json").write_text(json.dumps(labels, indent=1) + "\n")
    shutil.make_archive(str(given.out / f"{given.part}.logs"), "gztar", given.out / f"work-{given.part}" / "logs")
    shutil.rmtree(given.out / f"work-{given.part}")
    size, took_s = path.stat().st_size, time.monotonic() - began_s
    print(f"{given.part}: {labels['ticks']} ticks, {size} bytes, {took_s:.0f} s", flush=True)
    return 1 if "failed" in labels else 0


if __name__ == "__main__":
    sys.exit(main())
