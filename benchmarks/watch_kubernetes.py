"""How a large cluster comes in through list and watch: `python -m benchmarks.watch_kubernetes`.

    start    5,000 nodes and 40,000 pods, from nothing to a filled inventory: seconds of wall and CPU, peak memory
    event    a change written at the API server to the collector's state: milliseconds over 400 changes

The API server of the tests runs in a process of its own, filled with objects of the sizes that kubelets and
operators write (a node 14 kB, a pod 5 kB of JSON); the collector in another, so that its memory is its own. The
server's own time to write JSON is part of the wall figures; the client's CPU is not shared with it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks/results/watch_kubernetes.json"
GPUS = 8


def a_node(number: int) -> dict[str, Any]:
    """As a kubelet and the GPU operator fill it: labels, conditions, images, managed fields."""
    name = f"gpu-{number:05d}"
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.F{n}": "true" for n in range(60)}
    labels |= {f"nvidia.com/gpu.x{n}": "value" for n in range(30)}
    labels |= {"topology.kubernetes.io/rack": f"r{number // 32}", "nvidia.com/gpu.clique": f"c{number // 9}"}
    images = [
        {
            "names": [f"registry.example/image-{n}@sha256:{'a' * 64}", f"registry.example/image-{n}:v1"],
            "sizeBytes": n,
        }
        for n in range(50)
    ]
    conditions = [
        {
            "type": kind,
            "status": "False",
            "reason": "r",
            "message": "m" * 40,
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
    ]
    status = {
        "conditions": [*conditions, {"type": "Ready", "status": "True"}],
        "images": images,
        "capacity": {"cpu": "192", "memory": "2113Gi", "nvidia.com/gpu": str(GPUS)},
        "nodeInfo": {"bootID": f"boot-{number}", "kubeletVersion": "v1.36.2"},
    }
    return {"metadata": {"name": name, "uid": f"n-{number}", "labels": labels}, "spec": {}, "status": status}


def a_pod(number: int, nodes: int) -> dict[str, Any]:
    """Most pods have no GPU; one in five is a rank of a job, eight to a node."""
    job, rank = divmod(number, 64)
    has_gpu = number % 5 == 0
    env = [{"name": f"VARIABLE_{n}", "value": "v" * 40} for n in range(25)]
    resources = {"limits": {"nvidia.com/gpu": "1", "memory": "200Gi"}} if has_gpu else {}
    container = {
        "name": "main",
        "image": f"registry.example/train@sha256:{'b' * 64}",
        "env": env,
        "resources": resources,
    }
    meta = {
        "name": f"train-{job}-{rank}",
        "namespace": f"team-{job % 20}",
        "uid": f"p-{number}",
        "labels": {"batch.kubernetes.io/job-name": f"train-{job}", "app": "train", "team": "x"},
        "annotations": {f"operator.example/a{n}": "x" * 80 for n in range(8)},
        "ownerReferences": [{"kind": "Job", "name": f"train-{job}", "controller": True, "uid": "u"}],
    }
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}] * 4, "podIP": "10.0.0.1"}
    spec = {"nodeName": f"gpu-{number % nodes:05d}", "containers": [container], "tolerations": [{"key": "k"}] * 4}
    return {"metadata": meta, "spec": spec, "status": status}


def serve(nodes: int, pods: int) -> None:
    """The API server's process: prints its kubeconfig, then writes one node for each line that it is sent."""
    from tests.kubernetes_api.server import ApiServer

    with ApiServer() as server:
        storage, kinds = server.api.storage, server.api.by_kind
        for number in range(nodes):
            storage.write(kinds["Node"], a_node(number))
        for number in range(pods):
            storage.write(kinds["Pod"], a_pod(number, nodes))
        gc.collect()
        gc.freeze()  # a full collection over so many objects takes half a second, and a real server has none
        print(json.dumps(server.kubeconfig()), flush=True)
        for line in sys.stdin:
            node = storage.get(kinds["Node"], "", f"gpu-{int(line):05d}")
            assert node is not None
            node["spec"]["unschedulable"] = not node["spec"].get("unschedulable", False)
            written = time.time()
            storage.write(kinds["Node"], node)
            print(written, flush=True)


def measure(nodes: int, pods: int, events: int) -> dict[str, Any]:
    from nightshift.collectors.kubernetes.nodes_and_pods import KubernetesCollector
    from nightshift.collectors.subject import Inventory, Subject, SubjectKind

    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.watch_kubernetes",
            "--serve",
            "--nodes",
            str(nodes),
            "--pods",
            str(pods),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(yaml.safe_dump(json.loads(server.stdout.readline())))
        file.flush()
        collector = KubernetesCollector(KubernetesCollector.Settings(kubeconfig=Path(file.name)))
        inventory = Inventory("big")
        before_mib, before_cpu_s = peak_mib(), time.process_time()
        started = time.monotonic()
        while True:
            collector.collect(time.time(), inventory, 1.0)
            if collector._nodes.count() == nodes and collector._pods.count() == -(-pods // 5):
                break
            assert time.monotonic() - started < 600
        collector.collect(time.time(), inventory, 1.0)
        start_s, cpu_s = time.monotonic() - started, time.process_time() - before_cpu_s
        peak = peak_mib()
        assert len(inventory.subjects(SubjectKind.NODE, time.time())) == nodes
        delays = []
        for number in range(events):
            node = Subject(SubjectKind.NODE, f"gpu-{number % nodes:05d}")
            before = inventory.fact(node, "unschedulable")
            server.stdin.write(f"{number % nodes}\n")
            server.stdin.flush()
            while inventory.fact(node, "unschedulable") == before:
                collector.collect(time.time(), inventory, 0.0)
                time.sleep(0.0005)
            seen = time.time()
            delays.append((seen - float(server.stdout.readline())) * 1000)
        collector.close()
    server.kill()
    server.wait()
    delays.sort()
    return {
        "nodes": nodes,
        "pods": pods,
        "start_s": round(start_s, 2),
        "start_cpu_s": round(cpu_s, 2),
        "peak_mib": round(peak, 1),
        "before_mib": round(before_mib, 1),
        "event_p50_ms": round(delays[len(delays) // 2], 2),
        "event_p95_ms": round(delays[int(0.95 * len(delays))], 2),
        "event_p99_ms": round(delays[int(0.99 * len(delays))], 2),
        "event_max_ms": round(delays[-1], 2),
        "events": events,
    }


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=40_000)
    parser.add_argument("--events", type=int, default=400)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.serve:
        serve(options.nodes, options.pods)
        return
    row = measure(options.nodes, options.pods, options.events)
    row["environment"] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }
    options.output.write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
