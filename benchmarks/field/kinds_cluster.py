"""Faults that Kubernetes tells, and rollouts that are none, as drawn scenes on an API server.

`python -m benchmarks.field.kinds_cluster [--draws N] [--seed N]` writes `results/field_cluster.json`. Each draw is one
fresh daemon over an API server of ours and a training log; only its clock is stepped. A fault counts as right if one
incident opened within three minutes whose title matches; a healthy scene if none opened in fifteen. Names, images,
nodes, numbers and wordings are drawn by seed. The wordings are those of the kubelet, of containerd, of
node-problem-detector, of the operators (batch/v1, JobSet, Kubeflow, KubeRay) and of storage clients, as users posted
them: kubernetes/kubernetes#97131, NVIDIA/gpu-operator#413, NVIDIA/k8s-device-plugin#231, akash-network/support#249,
ray-project/kuberay#1942, kubernetes-sigs/jobset#1219.
"""

# ruff: noqa: E501 -- messages are as long as they are
from __future__ import annotations

import argparse
import random
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import write
from nightshift.agent.app import App
from nightshift.agent.clock import SteppedClock
from nightshift.agent.settings import Settings
from nightshift.version import commit
from tests.kubernetes_api.server import ApiServer

START_S, TICK_S = 1_795_500_000.0, 5.0
WITHIN_S, HEALTHY_S = 180.0, 900.0
WATCH_S = 0.15
"""Wall time in which a change at the API server reaches a watch on this machine."""
GPU = "nvidia.com/gpu"
Object = dict[str, Any]


@dataclass
class Scene:
    """What is there before, and what happens when: second → objects to write, names to delete (`-Kind name`) or lines
    of the job's log. title: what one incident's title has to match; empty: none may open."""

    title: str
    before: list[Object] = field(default_factory=list)
    then: dict[float, list[Object | str]] = field(default_factory=dict)
    page: Callable[[float], str] | None = None
    """dcgm-exporter's page so many seconds after the start."""


class Draw:
    """The values of one scene."""

    def __init__(self, seed: str) -> None:
        self.one = random.Random(seed)
        self.job = f"{self.one.choice(['llama', 'train', 'sft', 'eval'])}-{self.one.randrange(1000)}"
        self.image = (
            f"{self.one.choice(['ghcr.io', 'nvcr.io', 'reg.corp:5000'])}/ml/{self.job}:{self.one.randrange(99)}"
        )
        self.nodes = [f"gpu-{self.one.choice('abcdef')}{n:02d}" for n in self.one.sample(range(100), 8)]

    def node(self, number: int = 0, *, offered: int = 8, **spec: Any) -> Object:
        conditions = [
            {"type": "Ready", "status": spec.pop("ready", "True"), "reason": "KubeletReady", "message": ""}
        ]
        conditions += spec.pop("conditions", [])
        metadata = {"name": self.nodes[number], "labels": spec.pop("labels", {})}
        status = {"capacity": {GPU: "8"}, "allocatable": {GPU: str(offered)}, "conditions": conditions}
        return {"kind": "Node", "metadata": metadata, "spec": spec, "status": status}

    def pod(self, number: int, status: Object, *, daemon: str = "", phase: str = "Pending") -> Object:
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": daemon, "uid": "d", "controller": True}
        metadata: Object = {
            "name": f"{daemon or self.job}-{number}",
            "namespace": "gpu-operator" if daemon else "ml",
        }
        metadata |= {"ownerReferences": [owner]} if daemon else {"labels": {"job-name": self.job}}
        container: Object = {
            "name": "main",
            "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17" if daemon else self.image,
        }
        if not daemon:
            container["resources"] = {"limits": {GPU: "8", "memory": "512Gi"}}
        spec = {"nodeName": self.nodes[number % 8], "containers": [container]}
        return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase, **status}}

    def waiting(self, number: int, reason: str, message: str = "", daemon: str = "", **more: Any) -> Object:
        state = {"waiting": {"reason": reason, "message": message}}
        one = {"name": "main", "image": self.image, "ready": False, "restartCount": 0, "state": state, **more}
        return self.pod(number, {"containerStatuses": [one]}, daemon=daemon)

    def runs(self, number: int, daemon: str = "") -> Object:
        ready = [{"type": "Ready", "status": "True"}]
        return self.pod(number, {"conditions": ready}, daemon=daemon, phase="Running")

    def event(self, number: int, reason: str, message: str, kind: str = "Warning") -> Object:
        about = {"kind": "Pod", "namespace": "ml", "name": f"{self.job}-{number}"}
        name = f"{about['name']}.{self.one.randrange(1 << 30):x}"
        return {"kind": "Event", "metadata": {"name": name, "namespace": "ml"}, "involvedObject": about,
                "reason": reason, "message": message, "type": kind, "source": {"component": "kubelet"}}  # fmt: skip


def _image_gang(d: Draw) -> Scene:
    told = f'rpc error: code = NotFound desc = failed to pull and unpack image "{d.image}": not found'
    pods: list[Object | str] = [d.waiting(n, "ErrImagePull", told) for n in range(d.one.choice([8, 16, 32]))]
    return Scene(rf"Image {re.escape(d.image)} cannot be pulled", [d.node(n) for n in range(8)], {5.0: pods})


def _registry(d: Draw) -> Scene:
    host = d.image.partition("/")[0]
    told = d.one.choice([
        f'failed to do request: Head "https://{host}/v2/ml/manifests/1": dial tcp 10.0.0.1:443: i/o timeout',
        f'failed to do request: Get "https://{host}/v2/": dial tcp: lookup {host}: no such host',
        "toomanyrequests: You have reached your pull rate limit",
    ])  # fmt: skip
    other = Draw(f"{d.job} other")
    other.image, other.nodes = f"{host}/ml/other:1", d.nodes
    pods: list[Object | str] = [d.waiting(0, "ErrImagePull", told), other.waiting(1, "ErrImagePull", told)]
    return Scene(rf"Registry {re.escape(host)}", [d.node(n) for n in range(2)], {5.0: pods})


def _runtime(d: Draw) -> Scene:
    told = d.one.choice([
        "failed to create containerd task: OCI runtime create failed: nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
        "failed to generate spec: unresolvable CDI devices management.nvidia.com/gpu=all: unknown",
    ])  # fmt: skip
    return Scene("Container runtime fails", [d.node()], {5.0: [d.waiting(0, "RunContainerError", told)]})


def _sandbox(d: Draw) -> Scene:
    told = 'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "nvidia" is configured'
    waits: list[Object | str] = [d.waiting(0, "ContainerCreating")]
    return Scene("sandbox", [d.node()], {5.0: waits, 10.0: [d.event(0, "FailedCreatePodSandBox", told)]})


def _gpus_missing(d: Draw) -> Scene:
    left = d.one.randrange(0, 8)
    return Scene(rf"Node offers {left} of 8 GPUs .*{d.nodes[0]}", [d.node()], {5.0: [d.node(offered=left)]})


def _plugin_crash(d: Draw) -> Scene:
    daemon = d.one.choice(["nvidia-device-plugin-daemonset", "nvidia-driver-daemonset", "nvidia-dcgm-exporter"])
    ended = {"terminated": {"reason": "Error", "exitCode": 1}}
    told = "back-off 40s restarting failed container=main pod"
    many = range(d.one.randrange(2, 8))
    pods: list[Object | str] = [
        d.waiting(n, "CrashLoopBackOff", told, daemon, restartCount=4, lastState=ended) for n in many
    ]
    return Scene(f"GPU infrastructure {daemon}", [d.node(n) for n in range(8)], {5.0: pods})


def _oom(d: Draw) -> Scene:
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    one = {
        "name": "main",
        "image": d.image,
        "ready": True,
        "restartCount": 1,
        "state": {"running": {}},
        "lastState": ended,
    }
    ready = [{"type": "Ready", "status": "True"}]
    killed = d.pod(0, {"conditions": ready, "containerStatuses": [one]}, phase="Running")
    return Scene("Job ended: out of memory", [d.node(), d.runs(0)], {5.0: [killed]})


def _preempted(d: Draw) -> Scene:
    told = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": "default-scheduler: preempting to accommodate a higher priority pod"}  # fmt: skip
    pod = d.pod(0, {"conditions": [told]}, phase="Running")
    return Scene("Job ended: preempted", [d.node(), d.runs(0)], {5.0: [pod], 10.0: [f"-Pod {d.job}-0"]})


def _job_failed(d: Draw) -> Scene:
    reason, message = d.one.choice([
        ("BackoffLimitExceeded", "Job has reached the specified backoff limit"),
        ("DeadlineExceeded", "Job was active longer than specified deadline"),
        ("PodFailurePolicy", "Container main for pod ml/x-0 failed with exit code 42 matching FailJob rule at index 0"),
    ])  # fmt: skip
    template = {"spec": {"containers": [{"name": "main", "image": d.image, "resources": {"limits": {GPU: "8"}}}]}}
    job: Object = {"kind": "Job", "metadata": {"name": d.job, "namespace": "ml"}, "spec": {"template": template}}
    failed = {"type": "Failed", "status": "True", "reason": reason, "message": message}
    return Scene(rf"Job ended: Job {reason}", [job], {5.0: [{**job, "status": {"conditions": [failed]}}]})


def _storage_client(d: Draw) -> Scene:
    told = d.one.choice([
        f"OSError: [Errno 116] Stale file handle: '/mnt/ckpt/step_{d.one.randrange(9999)}'",
        "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/data'",
        f"OSError: HDFS connection failed: namenode{d.one.randrange(3)}:8020",
        "hdfs.util.HdfsError: Server is in safe mode",
        'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3.corp/ckpt"',
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation",
    ])  # fmt: skip
    code = "failed (exitcode: 1) local_rank: 0 (pid: 77) of binary: /usr/bin/python"
    return Scene("Job ended: its storage does not answer", [], {5.0: [told, code]})


def _pcie_width(d: Draw) -> Scene:
    """A link that trains at fewer lanes than it had, as a riser or a retimer does that fails."""
    bad, lanes, at_s = d.one.randrange(8), d.one.choice([1, 2, 4, 8]), 60.0

    def page(second: float) -> str:
        rows = []
        for gpu in range(8):
            labels = f'gpu="{gpu}",UUID="GPU-{d.job}-{gpu}",device="nvidia{gpu}",Hostname="{d.nodes[0]}"'
            width = lanes if gpu == bad and second >= at_s else 16
            rows += [f"DCGM_FI_DEV_PCIE_LINK_WIDTH{{{labels}}} {width}", f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 97"]
            rows.append(f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {d.one.uniform(600, 690):.1f}")
        return "\n".join(rows) + "\n"

    return Scene("PCIe", [d.node()], {at_s: []}, page)


def _node_pool(d: Draw) -> Scene:
    """Cordon, drain, not ready, gone; the next node joins without being ready. Upgrades of node pools do so."""
    key = d.one.choice(["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "kured.dev/upgrade"])
    taints = [{"key": key, "effect": d.one.choice(["NoSchedule", "NoExecute"])}]
    away = {"unschedulable": True, "taints": taints}
    evicted = d.pod(0, {"reason": "Evicted", "message": "Pod evicted by the Eviction API"}, phase="Failed")
    then: dict[float, list[Object | str]] = {
        20.0: [d.node(**away)],
        60.0: [evicted, d.node(offered=0, **away)],
        90.0: [d.node(offered=0, ready="Unknown", **away)],
        300.0: [f"-Node {d.nodes[0]}"],
        330.0: [d.node(1, offered=0, ready="False")],
        420.0: [d.node(1)],
    }
    return Scene("", [d.node(), d.runs(0)], then)


def _driver_upgrade(d: Draw) -> Scene:
    label = "nvidia.com/gpu-driver-upgrade-state"
    state = d.one.choice(["cordon-required", "pod-restart-required", "validation-required"])
    told = [{"type": "GPUMissing", "status": "True", "reason": "GPUMissing", "message": "expected 8, got 0"}]
    busy = {"labels": {label: state}}
    plugin = "nvidia-device-plugin-daemonset"
    ended = {"terminated": {"reason": "Error", "exitCode": 1}}
    crash = d.waiting(0, "CrashLoopBackOff", "back-off", plugin, restartCount=5, lastState=ended)
    then: dict[float, list[Object | str]] = {
        20.0: [d.node(**busy)],
        40.0: [d.node(offered=0, conditions=told, labels={label: state}), crash],
        300.0: [d.runs(0, plugin), d.node(offered=0, conditions=told, labels={label: "upgrade-done"})],
        360.0: [d.node(labels={label: "upgrade-done"})],
    }
    return Scene("", [d.node(), d.runs(0, plugin)], then)


def _plugin_rollout(d: Draw) -> Scene:
    plugin = "nvidia-device-plugin-daemonset"
    told = "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected"
    rejected = d.pod(0, {"reason": "UnexpectedAdmissionError", "message": told}, phase="Failed")
    ready_s = d.one.uniform(60, 240) // 5 * 5
    then: dict[float, list[Object | str]] = {
        20.0: [d.waiting(0, "ContainerCreating", daemon=plugin)],
        25.0: [d.node(offered=0), rejected],
        ready_s: [d.runs(0, plugin)],
        # a kubelet publishes a plug-in's devices with its next status, every ten seconds by default
        ready_s + d.one.uniform(10, 60) // 5 * 5: [d.node()],
    }
    return Scene("", [d.node(), d.runs(0, plugin)], then)


def _back_off(d: Draw) -> Scene:
    """A registry that answers the second time, a volume that comes late, a pod without GPUs that never starts."""
    plain = Draw(f"{d.job} plain").waiting(2, "ImagePullBackOff", "not found")
    plain["spec"]["containers"][0].pop("resources")
    waits: list[Object | str] = [
        d.waiting(0, "ErrImagePull", "i/o timeout"),
        d.waiting(1, "ContainerCreating"),
        plain,
    ]
    then: dict[float, list[Object | str]] = {
        5.0: waits,
        10.0: [d.event(1, "FailedMount", 'MountVolume.SetUp failed for volume "ckpt" : timed out waiting')],
        d.one.uniform(20, 55) // 5 * 5: [d.runs(0), d.runs(1)],
    }
    return Scene("", [d.node(n) for n in range(3)], then)


FAULTS: Mapping[str, Callable[[Draw], Scene]] = {
    "image_of_a_gang": _image_gang,
    "registry_down": _registry,
    "container_runtime": _runtime,
    "pod_sandbox": _sandbox,
    "gpus_missing": _gpus_missing,
    "gpu_infrastructure": _plugin_crash,
    "container_oom": _oom,
    "pod_preempted": _preempted,
    "job_failed": _job_failed,
    "storage_client": _storage_client,
    "pcie_width": _pcie_width,
}
HEALTHY: Mapping[str, Callable[[Draw], Scene]] = {
    "node_pool_upgrade": _node_pool,
    "driver_upgrade": _driver_upgrade,
    "plugin_rollout": _plugin_rollout,
    "back_off": _back_off,
}


class Stage:
    """An API server and a training log, and the daemon that reads both."""

    def __init__(self, home: Path, server: ApiServer, page_url: str = "") -> None:
        self._server, self._log = server, home / "logs" / "ml_train-0_main.log"
        self._log.parent.mkdir()
        self._log.write_text("step: 1 loss: 2.1\n")
        kubeconfig = home / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
        pages = [{"type": "dcgm_exporter", "urls": [page_url]}] if page_url else []
        self.settings = Settings.model_validate({
            "cluster": "field", "state_dir": str(home / "state"), "tick_s": TICK_S, "actuators": [],
            "console": {"port": 0}, "kubernetes": {"here": {"kubeconfig": str(kubeconfig)}},
            "sources": [{"type": "kubernetes", "access": "here"}, {"type": "kubernetes_events", "access": "here"},
                        {"type": "training_logs", "directory": str(self._log.parent)}, *pages],
        })  # fmt: skip

    def put(self, things: list[Object | str], at_s: float) -> None:
        for thing in things:
            if isinstance(thing, dict):
                self._write(thing, at_s)
            elif thing.startswith("-"):
                kind, name = thing[1:].split(" ")
                resource = self._server.api.by_kind[kind]
                self._server.api.storage.remove(resource, "ml" if kind == "Pod" else "", name)
            else:
                with self._log.open("a") as out:
                    out.write(f"{thing}\n")
        if things:
            time.sleep(WATCH_S)

    def _write(self, thing: Object, at_s: float) -> None:
        at = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        thing = yaml.safe_load(yaml.safe_dump(thing))
        if thing["kind"] == "Event":
            thing |= {"firstTimestamp": at, "lastTimestamp": at}
        for one in (thing.get("status") or {}).get("conditions", []):
            one["lastTransitionTime"] = at
        thing["metadata"] |= {"creationTimestamp": at, "uid": f"uid-{thing['metadata']['name']}"}
        self._server.api.storage.write(self._server.api.by_kind[thing["kind"]], thing)


class Page:
    """An exporter's page over HTTP that shows what it is set to."""

    def __init__(self) -> None:
        page = self
        self.text = ""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = page.text.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/metrics"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def _first_lists(app: App) -> None:
    """Waits for every source's first answer: a stepped clock would call a slow one lost within a second."""
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        look = app.tick()
        if look is not None and look.tick.sources and all(s.ok for s in look.tick.sources):
            return
        time.sleep(0.2)


def play(name: str, seed: int) -> Object:
    """One draw through a daemon."""
    scene = {**FAULTS, **HEALTHY}[name](Draw(f"{name}:{seed}"))
    lasts = WITHIN_S if scene.title else HEALTHY_S
    with tempfile.TemporaryDirectory() as folder, ApiServer() as server:
        page = Page() if scene.page else None
        stage = Stage(Path(folder), server, page.url if page else "")
        stage.put([*scene.before], START_S - 3600.0)
        clock = SteppedClock(START_S)
        app = App(stage.settings, clock=clock)
        try:
            app.start()
            _first_lists(app)
            for number in range(int((lasts + max(scene.then)) / TICK_S) + 1):
                if page is not None and scene.page is not None:
                    page.text = scene.page(number * TICK_S)
                stage.put(scene.then.get(number * TICK_S, []), clock.now_s())
                clock.wait_until(clock.now_s() + TICK_S)
                look = app.tick()
                if look is not None and look.decisions:
                    app.settle()
            titles = [app.store.incident(row.id).title for row in app.store.incidents()]
        finally:
            app.stop()
            if page is not None:
                page.close()
    right = len(titles) == 1 and bool(re.search(scene.title, titles[0])) if scene.title else not titles
    return {"kind": name, "seed": seed, "right": right, "titles": titles}


def _counted(rows: list[Object], names: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in names:
        mine = [row["right"] for row in rows if row["kind"] == name]
        yield name, f"{sum(mine)} of {len(mine)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Put drawn scenes of a cluster through the daemon")
    parser.add_argument("--draws", type=int, default=3, help="Draws of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", help="One kind only; writes no result")
    args = parser.parse_args()
    names = [args.kind] if args.kind else [*FAULTS, *HEALTHY]
    rows = [play(name, args.seed * 1000 + n) for name in names for n in range(args.draws)]
    wrong = [row for row in rows if not row["right"]]
    if args.kind:
        print(rows)
        return
    write(
        "field_cluster",
        {"commit": commit(), "data": "drawn scenes of our own, worded as public reports are", "seed": args.seed,
         "right": sum(row["right"] for row in rows), "draws": len(rows),
         "faults": dict(_counted(rows, FAULTS)), "healthy": dict(_counted(rows, HEALTHY)), "wrong": wrong},
    )  # fmt: skip


if __name__ == "__main__":
    main()
