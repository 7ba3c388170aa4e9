"""Records a labelled run of one GPU through `nightshift node`, and how co-located loads disturb each other.

    python benchmarks/record_h200.py --out FOLDER              on a machine with an NVIDIA GPU
    python benchmarks/record_h200.py --out FOLDER --device cpu --scale 0.1 --nvml-stub    to try the script

Part one starts `nightshift node` (real NVML, GPM and kernel log), trains a vision transformer with one fault or
benign look-alike per phase, and asks our own collectors four times a second; what they bring is one recording
(`vision.nightshift.gz`, replayed by `nightshift replay`) and `labels.json` with the start, onset and end of each
phase. Part two runs pairs of loads in two processes that share the GPU (time-sliced, as Kubernetes shares it) and
writes `interference.csv`: throughput alone and together, power from the energy counter, SM and HBM activity from
GPM over exactly the window measured. No setting of the card is changed. Results are written as they come.
"""

from __future__ import annotations

# ruff: noqa: E402  the root has to be on the path first
import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
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

TICK_S = 0.25
PORT = 19400
WORKLOADS = ROOT / "benchmarks" / "h200_workloads.py"
POD, JOB = pod_subject("ml", "vit-0"), Subject(SubjectKind.JOB, "ml/vit")
BOX = container_subject("ml", "vit-0", "trainer")
PHASES = (
    ("healthy", 12.0, "healthy"),
    ("dataloader_stall", 10.0, "fault"),
    ("co_tenant", 10.0, "fault"),
    ("gpu_leak", 12.0, "fault"),
    ("host_leak", 12.0, "fault"),
    ("eval_benign", 8.0, "benign"),
    ("resolution_benign", 8.0, "benign"),
    ("lr_spike", 10.0, "fault"),
    ("hang", 10.0, "fault"),
)
"""Name, length (s) and what it is. A fault begins after a fifth of its phase."""
KINDS = ("gemm", "copy", "decode", "attention", "small")
DUTIES = (0.25, 0.5, 1.0)
COLUMNS = (
    *("a", "a_duty", "a_units_per_s", "a_slowdown", "b", "b_duty", "b_units_per_s", "b_slowdown"),
    *("power_w", "sm_clock_mhz", "sm_active", "tensor_active", "dram_active"),
)


@dataclass
class Child:
    """A workload process that takes orders and replies, both JSON lines."""

    process: subprocess.Popen[str]
    waiting: bool = field(default=True)

    @classmethod
    def start(cls, *arguments: str) -> Child:
        command = [sys.executable, str(WORKLOADS), *arguments]
        return cls(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

    def order(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def reply(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the workload ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def has_replied(self) -> bool:
        import select

        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Recorder:
    """Asks the collectors and writes what they bring."""

    def __init__(self, out: Path, log_folder: Path, pid: int) -> None:
        self.path = out / "vision.nightshift.gz"
        page, lines = f"http://127.0.0.1:{PORT}/metrics", f"http://127.0.0.1:{PORT}/kernel-log"
        node = platform.node()
        self.collectors = [
            DcgmExporterCollector(DcgmExporterCollector.Settings(urls=[page])),
            NodeLogCollector(NodeLogCollector.Settings(urls=[lines], nodes={lines: node})),
            TrainingLogsCollector(TrainingLogsCollector.Settings(directory=log_folder)),
        ]
        self.inventory, self.merger, self.pid = Inventory(), Merger(), pid
        self.index = SeriesIndex(SubjectKind.CONTAINER, (BOX,))
        self.metrics = tuple(metric.name for metric in of_kind(SubjectKind.CONTAINER))
        self.writer = RecordingWriter(self.path, TICK_S, {"model": "vision transformer", "node": node})
        self.ticks = 0
        self.next_s = time.time()

    def tick(self) -> None:
        """One look, at the next quarter of a second."""
        time.sleep(max(0.0, self.next_s - time.time()))
        now_s = time.time()
        self.next_s = max(self.next_s + TICK_S, now_s)
        batches = [collector.collect(now_s, self.inventory, 1.0) for collector in self.collectors]
        batches.append(self._host(now_s))
        for gpu in self.inventory.subjects(SubjectKind.GPU, now_s):
            for parent in (POD, rank_of(JOB, 0)):
                self.inventory.observe(gpu, parent, now_s)
        self.inventory.observe(POD, JOB, now_s)
        self.inventory.observe(BOX, POD, now_s)
        self.writer.add(self.merger.merge(batches, now_s, self.inventory), self.inventory)
        self.ticks += 1

    def _host(self, now_s: float) -> Batch:
        """The trainer's memory as the kernel tells it; where cAdvisor runs, its page says the same."""
        found = {}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            key, _, rest = line.partition(":")
            if key in ("VmRSS", "RssAnon"):
                found[key] = 1024.0 * int(rest.split()[0])
        told = {
            "container_memory_working_set_bytes": found.get("VmRSS"),
            "container_memory_anonymous_bytes": found.get("RssAnon"),
        }
        values = np.array([[told.get(name) or np.nan for name in self.metrics]])
        when = np.full((1, 1), now_s)
        frame = Frame(now_s, self.index, self.metrics, values, when, np.zeros(1, dtype=np.int64))
        return Batch([SourceStatus(source_subject("proc", "trainer"), now_s, True, samples=2)], [frame])

    def close(self) -> None:
        self.writer.close()
        for collector in self.collectors:
            collector.close()


def record(out: Path, device: str, scale: float) -> None:
    """Part one."""
    folder = out / "training"
    folder.mkdir(exist_ok=True)
    log = folder / "ml_vit-0_trainer.log"
    log.touch()
    trainer, tenant = Child.start("train", device, str(log)), Child.start("load", device)
    pid = trainer.reply()["pid"]
    tenant.reply()
    recorder = Recorder(out, folder, pid)
    labels: list[dict[str, Any]] = []
    for name, full_s, kind in PHASES:
        seconds = scale * full_s
        trainer.order(phase=name, seconds=seconds)
        began, tenant_runs = time.time(), False
        while not trainer.has_replied():
            if name == "co_tenant" and not tenant_runs and time.time() - began > 0.2 * seconds:
                tenant.order(kind="gemm", duty=1.0, seconds=0.78 * seconds)
                tenant_runs = True
            recorder.tick()
        labels.append({**trainer.reply(), "is": kind} | ({"tenant": tenant.reply()} if tenant_runs else {}))
        (out / "labels.json").write_text(json.dumps({"tick_s": TICK_S, "phases": labels}, indent=1) + "\n")
        print(json.dumps(labels[-1]), flush=True)
    recorder.close()
    trainer.end()
    tenant.end()
    print(f"{recorder.ticks} ticks, {recorder.path.stat().st_size} bytes", flush=True)


class Meter:
    """Energy and GPM activity over a window, straight from NVML; NaN where the GPU does not tell."""

    def __init__(self) -> None:
        import pynvml

        self.nvml = pynvml
        pynvml.nvmlInit()
        from nightshift.collectors.telemetry.nvml import open_device

        self.device = open_device(0)
        self.before_s, self.before_mj = 0.0, 0

    def start(self) -> None:
        if self.device.gpm is not None:
            self.device.gpm.read(self.device.handle)
        self.before_s, self.before_mj = time.perf_counter(), self._energy_mj()

    def stop(self) -> dict[str, float]:
        joules, took_s = (self._energy_mj() - self.before_mj) / 1000, time.perf_counter() - self.before_s
        found = self.device.gpm.read(self.device.handle) if self.device.gpm is not None else {}
        clock = self.nvml.nvmlDeviceGetClockInfo(self.device.handle, self.nvml.NVML_CLOCK_SM)
        ratio = {
            f"{name}_active": found.get(f"gpu_{name}_active_ratio", np.nan) for name in ("sm", "tensor", "dram")
        }
        return {"power_w": joules / took_s, "sm_clock_mhz": clock, **ratio}

    def _energy_mj(self) -> int:
        return int(self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.device.handle))


def interference(out: Path, device: str, scale: float) -> None:
    """Part two: each load alone at each duty, then every pair at full duty, then compute × bandwidth at each."""
    children = [Child.start("load", device), Child.start("load", device)]
    for child in children:
        child.reply()
    meter = Meter()
    pairs: list[tuple[tuple[str, float], ...]] = [((kind, duty),) for kind in KINDS for duty in DUTIES]
    pairs += [((one, 1.0), (other, 1.0)) for n, one in enumerate(KINDS) for other in KINDS[n:]]
    pairs += [
        (("gemm", a), (other, b))
        for other in ("copy", "decode")
        for a in DUTIES
        for b in DUTIES
        if (a, b) != (1, 1)
    ]
    alone: dict[tuple[str, float], float] = {}
    seconds = 0.7 * scale
    with (out / "interference.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(COLUMNS)
        for loads in pairs:
            ran = list(zip(children, loads, strict=False))
            for child, (kind, duty) in ran:
                child.order(kind=kind, duty=duty, seconds=seconds)
            time.sleep(0.05 * seconds)
            meter.start()
            time.sleep(0.85 * seconds)
            measured = meter.stop()
            row: list[object] = []
            for child, load in ran:
                rate = float(child.reply()["units_per_s"])
                if len(loads) == 1:
                    alone[load] = rate
                row += [*load, f"{rate:.2f}", f"{alone[load] / rate:.4f}" if rate else ""]
            row += [""] * (8 - len(row)) + [f"{value:.5g}" for value in measured.values()]
            rows.writerow(row)
            stream.flush()
    for child in children:
        child.end()
    print(f"{len(pairs)} windows of {seconds:.2f} s", flush=True)


def start_node(stub: bool, out: Path) -> subprocess.Popen[bytes]:
    """`nightshift node`, serving. With the stub, the tests' stand-in for libnvidia-ml.so.1 is compiled first."""
    environment = dict(os.environ)
    if stub:
        library = out / "stub"
        library.mkdir(exist_ok=True)
        source = ROOT / "tests" / "collectors" / "nvml_stub" / "stub.c"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library / "libnvidia-ml.so.1"), str(source)]
        subprocess.run([*command, "-Wl,-soname,libnvidia-ml.so.1"], check=True)
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"] = str(library)
        import ctypes

        ctypes.CDLL(str(library / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
    command = [sys.executable, "-m", "nightshift.agent", "node", "--host", "127.0.0.1", "--port", str(PORT)]
    node = subprocess.Popen([*command, "--period-s", str(TICK_S)], cwd=ROOT, env=environment)
    for _ in range(150):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/healthz", timeout=1) as answer:
                if answer.status == 200:
                    return node
        except (urllib.error.URLError, OSError):
            pass  # not up yet
        if node.poll() is not None:
            raise RuntimeError(f"nightshift node ended with {node.returncode}")
        time.sleep(0.2)
    node.terminate()
    raise RuntimeError("nightshift node serves nothing after 30 s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", type=float, default=1.0, help="of every length of time")
    parser.add_argument("--nvml-stub", action="store_true", help="the tests' stand-in for the driver's library")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    node = start_node(given.nvml_stub, given.out)
    failed = []
    try:
        for part in (record, interference):
            try:
                part(given.out, given.device, given.scale)
            except (RuntimeError, OSError, ValueError, ImportError) as error:
                failed.append(f"{part.__name__}: {error!r}")
                print(failed[-1], file=sys.stderr, flush=True)
            print(f"{part.__name__}: {time.monotonic() - began:.1f} s", flush=True)
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=2) as answer:
            (given.out / "page.txt").write_bytes(answer.read())
    finally:
        node.terminate()
        node.wait(10)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
