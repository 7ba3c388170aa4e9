"""How fast telemetry comes in, beside the peers, in one run: `python benchmarks/collectors_speed.py`.

    exposition   samples/s on one core, against prometheus_client's parser on the same pages
    tick         1,000, 10,000 and 100,000 GPUs × 24 metrics from a Prometheus-compatible API, merged, with the
                 counters' rates: CPU and wall seconds, peak memory; prometheus-api-client on the same answers where
                 it is installed
    frame        building a frame of 1k, 10k and 100k GPUs × 24: seconds and growth
    kernel log   lines/s through the parser, with one GPU event in a hundred lines
    tensorboard  scalars/s from event files, with their checksums
    nvml         share of a core and memory at 1 Hz for 8 GPUs on the compiled stand-in library

Each part runs in a process of its own, bound to one core (the API's server to the others), and writes its row to
`benchmarks/results/collectors_speed.json` with the environment. Seconds of CPU are what counts on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RESULT = ROOT / "benchmarks" / "results" / "collectors_speed.json"
N_METRICS = 24
NOW = 1_795_260_000.0


def best(call: Callable[[], object], repeats: int) -> float:
    """The least CPU seconds of some calls: what the work takes when nobody disturbs."""
    took = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        took.append(time.process_time() - started)
    return min(took)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def node_page(node: int, rng: random.Random) -> bytes:
    """A dcgm-exporter page of 8 GPUs × 40 metrics, about 75 kB."""
    rows = []
    for metric in range(40):
        name = f"DCGM_FI_DEV_METRIC_{metric}"
        rows += [f"# HELP {name} A metric.", f"# TYPE {name} gauge"]
        for gpu in range(8):
            uuid = f"GPU-{node:08d}-{gpu:04d}-2222-3333-444444444444"
            value = rng.randrange(10**6) if metric % 2 else round(rng.random(), 6)
            rows.append(
                f'{name}{{gpu="{gpu}",UUID="{uuid}",pci_bus_id="00000000:{gpu:02X}:00.0",device="nvidia{gpu}",'
                f'modelName="NVIDIA H200",Hostname="gpu-r12-n{node:05d}",DCGM_FI_DRIVER_VERSION="580.95.05",'
                f'container="trainer",namespace="research",pod="llama-70b-{node}"}} {value}'
            )
    return ("\n".join(rows) + "\n").encode()


def exposition() -> dict[str, Any]:
    from prometheus_client.parser import text_string_to_metric_families

    from nightshift.collectors.telemetry.exposition import PageParser

    rng = random.Random(1)
    pages = [[node_page(node, rng) for _ in range(2)] for node in range(200)]
    parsers = [PageParser() for _ in pages]
    first_s = best(lambda: [p.parse(pair[0]) for p, pair in zip(parsers, pages, strict=True)], 1)
    n_samples = 320 * len(pages)
    ours_s = best(lambda: [p.parse(pair[1]) for p, pair in zip(parsers, pages, strict=True)], 40)
    few = [pair[1].decode() for pair in pages[:10]]
    peer_s = best(lambda: [list(text_string_to_metric_families(page)) for page in few], 2)
    ours, peer = n_samples / ours_s, 320 * len(few) / peer_s
    return {
        "samples": n_samples,
        "bytes_per_sample": round(sum(len(p[1]) for p in pages) / n_samples),
        "ours_samples_per_s": round(ours),
        "ours_first_page_samples_per_s": round(n_samples / first_s),
        "prometheus_client_samples_per_s": round(peer),
        "ratio": round(ours / peer, 1),
        "goal": "≥ 2.5 M samples/s and ≥ 60 ×",
        "met": ours >= 2.5e6 and ours / peer >= 60,
    }


def tick(n_gpus: int) -> dict[str, Any]:
    from nightshift.collectors.merge import Merger
    from nightshift.collectors.prometheus.live import PrometheusCollector
    from nightshift.collectors.subject import Inventory, SubjectKind
    from nightshift.collectors.telemetry.metrics import of_kind

    command = [sys.executable, __file__, "--serve", str(n_gpus)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        bind(0)
        names = [metric.name for metric in of_kind(SubjectKind.GPU)][:N_METRICS]
        of = PrometheusCollector(PrometheusCollector.Settings(url=url, kinds=[SubjectKind.GPU], metrics=names))
        inventory, merger, rows = Inventory(), Merger(), []
        for _ in range(5):
            began_s, cpu_s = time.perf_counter(), time.process_time()
            batch = of.collect(time.time(), inventory, 60.0)
            frame = merger.merge([batch], time.time(), inventory).frames[SubjectKind.GPU]
            rows.append((time.process_time() - cpu_s, time.perf_counter() - began_s))
            assert batch.sources[0].ok, batch.sources[0]
            told = [frame.columns[name] for name in names]
            assert int((~np.isnan(frame.values[:, told])).sum()) == n_gpus * N_METRICS
        of.close()
        goal_s = 4.0 if n_gpus > 10_000 else 0.4
        cpu_s, wall_s = min(cpu for cpu, _ in rows[1:]), min(wall for _, wall in rows[1:])
        return {
            "gpus": n_gpus,
            "metrics": N_METRICS,
            "tick_cpu_s": round(cpu_s, 3),
            "tick_wall_s": round(wall_s, 3),
            "first_tick_with_labels_cpu_s": round(rows[0][0], 3),
            "peak_mib": round(peak_mib()),
            "prometheus_api_client_cpu_s": peer_tick(url, names) if n_gpus <= 10_000 else None,
            "goal": f"≤ {goal_s} s, ≤ 2 GiB",
            "met": cpu_s <= goal_s and peak_mib() <= 2048,
        }
    finally:
        server.kill()
        server.wait()


def peer_tick(url: str, names: list[str]) -> float | None:
    """The same queries through prometheus-api-client, to its rows of dictionaries (no columns)."""
    try:
        from prometheus_api_client import PrometheusConnect
    except ImportError:
        return None
    client = PrometheusConnect(url=url, disable_ssl=True, method="POST")
    return round(best(lambda: [client.custom_query(f"max by (UUID) ({name})") for name in names], 2), 3)


def frame() -> dict[str, Any]:
    from nightshift.collectors.subject import Subject, SubjectKind
    from nightshift.collectors.telemetry.metrics import of_kind
    from nightshift.collectors.telemetry.rows import Rows, cells

    metrics = of_kind(SubjectKind.GPU)[:N_METRICS]
    took: dict[str, float] = {}
    for n_gpus in (1_000, 10_000, 100_000):
        rows = Rows(SubjectKind.GPU, metrics)
        gpus = [Subject(SubjectKind.GPU, f"GPU-{n:08d}") for n in range(n_gpus)]
        where = [
            cells(SubjectKind.GPU, [(n, gpu, column, 1.0) for n, gpu in enumerate(gpus)])
            for column in range(N_METRICS)
        ]
        values, times = np.random.default_rng(1).uniform(0.001, 1, n_gpus), np.full(n_gpus, NOW - 2)

        def once(rows: Rows = rows, where: Any = where, values: Any = values, times: Any = times) -> None:
            for part in where:
                rows.put(part, values, times, NOW, blanks=True)
            rows.frame(NOW)

        once()
        took[str(n_gpus)] = round(best(once, 5), 5)
    growth = took["100000"] / took["10000"]
    return {"seconds": took, "growth_10k_to_100k": round(growth, 1), "goal": "linear", "met": growth < 15}


def kernel_log() -> dict[str, Any]:
    from nightshift.collectors.frame import Instant, LogRecord
    from nightshift.collectors.kernel_log.lines import KernelLogParser
    from nightshift.collectors.subject import Subject, SubjectKind

    node = Subject(SubjectKind.NODE, "n1")
    plain = [
        'audit: type=1400 audit(1795260000.123:456): apparmor="ALLOWED" operation="open" profile="/usr/bin/x"',
        "IPv6: ADDRCONF(NETDEV_CHANGE): cali1234567890a: link becomes ready",
        "perf: interrupt took too long (2506 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
        "mlx5_core 0000:9a:00.0: Port module event: module 0, Cable plugged",
        "EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode. Quota mode: none.",
        "cgroup: fork rejected by pids controller in /kubepods.slice/kubepods-burstable.slice",
    ]
    xid = "NVRM: Xid (PCI:0000:9b:00): 94, pid=7194, name=python, Ch 00000008, errorString CTX SWITCH TIMEOUT"
    lines = [xid if n % 100 == 0 else plain[n % len(plain)] for n in range(200_000)]
    records = [LogRecord(Instant(NOW), "kmsg", node, line, n) for n, line in enumerate(lines)]
    parser = KernelLogParser(node)
    found = parser.sift(records, len(records))[1]
    assert len(found) == 2_000
    rate = len(records) / best(lambda: parser.sift(records, len(records)), 5)
    return {"lines_per_s": round(rate), "goal": "≥ 300 k lines/s", "met": rate >= 300_000}


def tensorboard() -> dict[str, Any]:
    import struct

    from nightshift.collectors.training.tensorboard import EventFile, crc32c, masked

    def record(step: int) -> bytes:
        tag = b"\n\x0atrain/loss"
        value = tag + b"\x15" + struct.pack("<f", 2.0 / (step + 1))
        summary = b"\x0a" + bytes([len(value)]) + value
        event = b"\x09" + struct.pack("<d", NOW + step) + b"\x10" + _varint(step)
        event += b"\x2a" + bytes([len(summary)]) + summary
        head = struct.pack("<Q", len(event))
        sums = [struct.pack("<I", masked(crc32c(part))) for part in (head, event)]
        return head + sums[0] + event + sums[1]

    n = 50_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.out.tfevents.1"
        path.write_bytes(b"".join(map(record, range(n))))
        assert len(EventFile(path, 2**26).read().scalars) == n
        rate = n / best(lambda: EventFile(path, 2**26).read(), 3)
    return {
        "scalars_per_s": round(rate),
        "goal": "≥ 20 k scalars/s: 1,000 runs of 20 tags a second",
        "met": rate >= 2e4,
    }


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def nvml() -> dict[str, Any]:
    import ctypes

    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnvidia-ml.so.1"
        stub = ROOT / "tests" / "collectors" / "nvml_stub" / "stub.c"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", library, stub, "-Wl,-soname,libnvidia-ml.so.1"], check=True
        )
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        from nightshift.collectors.subject import Inventory
        from nightshift.collectors.telemetry.nvml import NvmlCollector

        of, inventory = NvmlCollector(NvmlCollector.Settings(node="n1")), Inventory()
        of.collect(time.time(), inventory, 1.0)
        n = 200
        cpu_s = time.process_time()
        for _ in range(n):
            of.collect(time.time(), inventory, 1.0)
        share = (time.process_time() - cpu_s) / n
        of.close()
    return {
        "gpus": 8,
        "core_share_at_1hz_percent": round(100 * share, 3),
        "peak_mib": round(peak_mib()),
        "goal": "< 1 % of a core, < 100 MB",
        "met": share < 0.01 and peak_mib() < 100,
    }


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "exposition": exposition,
    "tick_1k": lambda: tick(1_000),
    "tick_10k": lambda: tick(10_000),
    "tick_100k": lambda: tick(100_000),
    "frame": frame,
    "kernel_log": kernel_log,
    "tensorboard": tensorboard,
    "nvml": nvml,
}


def bind(core: int) -> None:
    available = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {available[core % len(available)]})


def environment() -> dict[str, str]:
    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "absent"

    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": model,
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    } | {
        name: of(name) for name in ("numpy", "orjson", "prometheus_client", "prometheus-api-client", "nvidia-ml-py")
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        from benchmarks.collectors_api import serve_api

        serve_api(given.serve, lambda port: print(port, flush=True))
        return 0
    if given.in_process:
        (name,) = given.part
        if not name.startswith("tick"):
            bind(0)
        print(json.dumps(PARTS[name]()))
        return 0
    rows: dict[str, Any] = json.loads(RESULT.read_text())["parts"] if RESULT.exists() else {}
    for name in given.part or PARTS:
        done = subprocess.run(
            [sys.executable, __file__, "--part", name, "--in-process"], stdout=subprocess.PIPE, check=True
        )
        rows[name] = json.loads(done.stdout)
        print(name, json.dumps(rows[name], ensure_ascii=False), flush=True)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(
        json.dumps({"environment": environment(), "parts": rows}, indent=1, ensure_ascii=False) + "\n"
    )
    return 0 if all(row["met"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
