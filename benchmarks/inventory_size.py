"""What 99,000 GPU nodes cost a daemon that knows them alone: `python -m benchmarks.inventory_size`.

The nodes are objects as a kubelet and GPU feature discovery write them: 8 GPUs, 47 labels, 30 images, racks of 18.
A server of the test suite holds them in a process of its own and serves the same bytes to `nightshift run`, without
telemetry and pods. Measured: memory, and the time from a start until every node is in the inventory, at first and
after a restart, streamed and in pages; then a minute of kubelets that report every five minutes, 330 a second.
The same list read by a bare reader says what of the time is the server's. The daemon has one core, which it shares
with as many busy processes of equal priority as `--beside N` says. Beside each time are the processor seconds that
it took, and those that its busiest thread waited for the core. Where a machine does more, give the shell priority
before: its other sessions would take the core, too (`echo -20 >/proc/self/autogroup`, as root).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks.detect_held_out import commit
from benchmarks.idle_daemon import _cpu_s, _kib
from benchmarks.report import RESULTS, write
from nightshift.collectors.kubernetes.api import AccessSettings, KubeApi, Stop, ends_list
from tests.kubernetes_api.api import Api
from tests.kubernetes_api.handler import Handler
from tests.kubernetes_api.server import ApiServer
from tests.processes import free_port

ROOT = Path(__file__).resolve().parents[1]
NODES, GPUS, RACK = 99_000, 8, 18
LIMITS = {"peak_rss_mib": 1.1 * 1024, "restart_s": 60.0}
LONGEST_S = 900.0
HEARTBEATS_S, HEARTBEATS = 60.0, 330.0
"""Busy processes on the daemon's core until every node is known."""


def node(number: int) -> dict[str, Any]:
    """A node as a GPU cluster has them, about 9 KB of JSON."""
    name = f"gpu-{number // RACK:05d}-{number % RACK:02d}"
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.F{n:02d}": "true" for n in range(40)}
    labels |= {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": f"z{number % 3}",
        "topology.kubernetes.io/rack": f"rack-{number // RACK:05d}",
        "nvidia.com/gpu.clique": f"{number // RACK:08x}-0000-4000-8000-000000000000.1",
        "nvidia.com/gpu.product": "NVIDIA-GB200",
        "nvidia.com/gpu.count": str(GPUS),
        "nvidia.com/cuda.runtime-version.full": "13.0",
    }
    conditions = [
        {
            "type": kind,
            "status": "True" if kind == "Ready" else "False",
            "reason": f"Kubelet{kind}",
            "message": f"kubelet says of {kind} that all is well",
            "lastHeartbeatTime": "2026-11-01T00:00:00Z",
            "lastTransitionTime": "2026-10-01T00:00:00Z",
        }
        for kind in (
            "Ready",
            "MemoryPressure",
            "DiskPressure",
            "PIDPressure",
            "NetworkUnavailable",
            "KernelDeadlock",
        )
    ]
    amounts = {"cpu": "144", "memory": "960Gi", "nvidia.com/gpu": str(GPUS), "pods": "110"}
    images = [
        {"names": [f"registry.example/team-{n}/image@sha256:{n:064x}", f"registry.example/team-{n}/image:1.{n}"]}
        for n in range(30)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"{number:08x}-1111-4222-8333-444444444444",
            "resourceVersion": str(200 + number),
            "creationTimestamp": "2026-10-01T00:00:00Z",
            "labels": labels,
            "annotations": {"csi.volume.kubernetes.io/nodeid": json.dumps({"csi.example": name})},
        },
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"example:///{name}"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": conditions,
            "addresses": [
                {"type": "InternalIP", "address": f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"}
            ],
            "nodeInfo": {
                "machineID": f"{number:032x}",
                "bootID": f"{number:08x}-2222-4222-8333-444444444444",
                "kernelVersion": "6.8.0-1024-nvidia-64k",
                "osImage": "Ubuntu 24.04.2 LTS",
                "containerRuntimeVersion": "containerd://2.1.4",
                "kubeletVersion": "v1.34.1",
                "architecture": "arm64",
            },
            "images": images,
        },
    }


class _Encoded(dict[str, Any]):
    """An object with its bytes: the server must not be what is measured."""

    data: bytes


class Serving(Handler):
    """Answers the list of nodes from bytes that are made once; everything else as the test server does."""

    encoded: list[bytes]
    version: int

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/api/v1/nodes" and "watch=true" not in query:
            self._page(query)
        elif path == "/api/v1/nodes" and "sendInitialEvents=true" in query:
            self._stream()
        else:
            super().do_GET()

    def _page(self, query: str) -> None:
        asked = dict(part.split("=", 1) for part in query.split("&") if "=" in part)
        start, limit = int(asked.get("continue", 0)), int(asked.get("limit", 0)) or NODES
        items = self.encoded[start : start + limit]
        more = f', "continue": "{start + limit}"' if start + limit < len(self.encoded) else ""
        head = (
            f'{{"kind": "NodeList", "apiVersion": "v1", "metadata": {{"resourceVersion": "{self.version}"{more}}}'
        )
        data = head.encode() + b', "items": [' + b",".join(items) + b"]}"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self) -> None:
        """The list, its end, and then changes as the test server streams them."""
        self.start_stream()
        for data in self.encoded:
            line = b'{"type":"ADDED","object":' + data + b"}\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        meta = {"resourceVersion": str(self.version), "annotations": {"k8s.io/initial-events-end": "true"}}
        self.send_event("BOOKMARK", {"kind": "Node", "apiVersion": "v1", "metadata": meta})
        after = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": str(self.version)}
        self.start_stream = lambda: None  # type: ignore[method-assign]
        user = self.api_server.authenticate(self.headers.get("Authorization") or "")
        self.api_server.watch(self, self.api_server.permitted(user, "GET", "/api/v1/nodes", after), after)
        self._end_stream()


def serve(kubeconfig: Path, streams: bool) -> None:
    """Until it is ended: SIGUSR1 begins the heartbeats."""
    api = Api()
    resource = api.by_kind["Node"]
    server = ApiServer(api)
    server.streams = streams
    Serving.encoded = [json.dumps(node(number)).encode() for number in range(NODES)]
    Serving.version = api.storage.version = 200 + NODES
    Serving.api_server = server
    bound = type("Bound", (Serving,), {})
    if not streams:
        bound._stream = Handler.do_GET  # type: ignore[attr-defined]
    server._http.RequestHandlerClass = bound
    beat, over = threading.Event(), threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: beat.set())
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    with server:
        kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
        while not over.wait(0.1):
            if beat.is_set():
                beat.clear()
                _heartbeats(api, resource)


def _heartbeats(api: Api, resource: Any) -> None:
    began_s, sent = time.monotonic(), 0
    while (passed_s := time.monotonic() - began_s) < HEARTBEATS_S:
        for _ in range(int(passed_s * HEARTBEATS) - sent):
            changed = node(sent * 97 % NODES)
            changed["status"]["conditions"][0]["lastHeartbeatTime"] = (
                f"2026-11-01T00:{sent // 60 % 60:02d}:{sent % 60:02d}Z"
            )
            api.storage.write(resource, changed)
            sent += 1
        time.sleep(0.02)


@contextmanager
def one_core(daemon: subprocess.Popen[bytes], beside: int) -> Iterator[None]:
    """The daemon on the last core, with so many busy processes."""
    core = {max(os.sched_getaffinity(0))}
    os.sched_setaffinity(daemon.pid, core)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(beside)]
    try:
        for one in busy:
            os.sched_setaffinity(one.pid, core)
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


@contextmanager
def process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    # a restart finds the byte code that the first start wrote, as in a pod
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with log.open("ab") as out:
        started = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(60)


def bare(kubeconfig: Path, streams: bool) -> float:
    """Seconds of a reader that decodes each object and keeps none: the server's part, and the decoder's."""
    api, began_s = KubeApi.connect(AccessSettings(kubeconfig=kubeconfig)), time.monotonic()
    if streams:
        for event in api.watch("/api/v1/nodes", "", quiet_s=60.0, stop=Stop()):
            if ends_list(event):
                break
    else:
        count = sum(len(page["items"]) for page in api.pages("/api/v1/nodes"))
        assert count == NODES
    return time.monotonic() - began_s


def life(
    folder: Path, kubeconfig: Path, server: subprocess.Popen[bytes], beside: int, *, beats: bool
) -> dict[str, float]:
    """One life of the daemon on the same database."""
    port = free_port()
    config = folder / "nightshift.yaml"
    told = {
        "cluster": "size",
        "store": {"url": f"sqlite:///{folder / 'nightshift.db'}"},
        "console": {"port": port},
        "kubernetes": {"main": {"kubeconfig": str(kubeconfig)}},
        "sources": [{"type": "kubernetes", "access": "main"}],
    }
    config.write_text(yaml.safe_dump(told))
    began_s = time.monotonic()
    command = [sys.executable, "-m", "nightshift.agent", "run", "--config", str(config)]
    with process(command, folder / "daemon.log") as daemon:
        with one_core(daemon, beside):
            while _nodes(port) < NODES:
                assert daemon.poll() is None, (folder / "daemon.log").read_text()[-3000:]
                assert time.monotonic() - began_s < LONGEST_S, (folder / "daemon.log").read_text()[-3000:]
                time.sleep(0.5)
        figures = {"all_known_s": time.monotonic() - began_s, "cpu_s": _cpu_s(daemon.pid)}
        figures |= {"waited_for_a_core_s": _waited_s(daemon.pid), "load_average": os.getloadavg()[0]}
        time.sleep(15.0)
        figures["rss_mib"] = _kib(_status(daemon), "VmRSS") / 1024
        if beats:
            before_s, cpu_s = time.monotonic(), _cpu_s(daemon.pid)
            server.send_signal(signal.SIGUSR1)
            time.sleep(HEARTBEATS_S)
            figures["heartbeats_core_share"] = (_cpu_s(daemon.pid) - cpu_s) / (time.monotonic() - before_s)
            figures["heartbeats_rss_mib"] = _kib(_status(daemon), "VmRSS") / 1024
        figures["peak_rss_mib"] = _kib(_status(daemon), "VmHWM") / 1024
    return {name: round(value, 3) for name, value in figures.items()}


def _waited_s(pid: int) -> float:
    """Seconds that the busiest of a process's threads was ready to run and had no core (proc_schedstat)."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    spent = [tuple(map(int, file.read_text().split()[:2])) for file in threads]
    return max(waited for _, waited in spent) / 1e9


def _status(daemon: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{daemon.pid}/status").read_text()


def _nodes(port: int) -> int:
    """How many nodes the daemon has taken in, by its own status."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/status", timeout=30) as answer:
            told = json.load(answer)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return 0
    return max((s["samples"] for s in told["sources"] if s["name"] == "kubernetes nodes" and s["ok"]), default=0)


def measure(streams: bool, beside: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="nightshift-size-") as name:
        folder = Path(name)
        kubeconfig = folder / "kubeconfig"
        command = [sys.executable, "-m", "benchmarks.inventory_size", "--serve", str(kubeconfig)]
        with process([*command, *(["--streams"] if streams else [])], folder / "server.log") as server:
            while not kubeconfig.exists():
                assert server.poll() is None, (folder / "server.log").read_text()[-3000:]
                time.sleep(0.2)
            time.sleep(1.0)
            return {
                "commit": commit(),
                "bare_reader_s": round(bare(kubeconfig, streams), 1),
                "first": life(folder, kubeconfig, server, beside, beats=streams),
                "restart": life(folder, kubeconfig, server, beside, beats=False),
            }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--streams", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--only", choices=("streamed", "paged"), help="one way of listing; keeps the other's figures"
    )
    parser.add_argument("--beside", type=int, default=0, help="busy processes on the daemon's core")
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.streams)
        return 0
    file = RESULTS / "inventory_size.json"
    before = json.loads(file.read_text())["results"] if options.only else {}
    results: dict[str, Any] = {"nodes": NODES, "gpus": NODES * GPUS, "beside": options.beside}
    results["object_bytes"] = len(json.dumps(node(0)))
    for how in ("streamed", "paged"):
        results[how] = (
            before[how] if options.only not in (None, how) else measure(how == "streamed", options.beside)
        )
    lives = [results[how][which] for how in ("streamed", "paged") for which in ("first", "restart")]
    results["peak_rss_mib"] = max(figures["peak_rss_mib"] for figures in lives)
    results["restart_s"] = max(results[how]["restart"]["all_known_s"] for how in ("streamed", "paged"))
    results["limits"] = LIMITS
    results["within"] = {name: results[name] <= limit for name, limit in LIMITS.items()}
    write("inventory_size", results)
    return 0 if all(results["within"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
