"""The whole product on a cluster: `nightshift run` as a process on a clock that runs ahead, telemetry of two nodes,
a wire to the API server that can be cut, and hands that play kubelets and scheduler."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import sqlalchemy as sa
import yaml
from kubernetes import client
from kubernetes.client.rest import ApiException

from nightshift.agent import app, daemon
from nightshift.agent.clock import WallClock
from nightshift.agent.console.sign_in import operator_token
from nightshift.agent.store.database import Database
from nightshift.agent.store.tables import intents
from tests.agent.fleet import Exporter
from tests.agent.forks import FORKS
from tests.controllers.kube_scenes import boots, job, repair_job_ends, repair_jobs
from tests.kubernetes_api.cluster import MARK, Cluster, gone

PACE = 20.0
"""Seconds of the daemon's clock in one of the machine's."""
PATIENCE_S = 150.0
"""What a test waits for something, in the machine's time."""
ANSWER_S = 0.6
"""What the daemon waits for an answer of the API server, in the machine's time: no clock of ours shortens it."""


_CONTAINER = {"name": "c", "image": "registry.invalid/none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
_OF_A_RULE = ("apiGroups", "resources", "verbs")
WITH_A_GPU = {"spec": {"restartPolicy": "Never", "containers": [_CONTAINER]}}


class QuickClock(WallClock):
    """Runs ahead of the machine's at one pace in every process, and jumps as its file says."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._began_s = path, float(json.loads(path.read_text())["began_s"])

    def now_s(self) -> float:
        passed_s = time.time() - self._began_s
        return self._began_s + PACE * passed_s + float(json.loads(self._path.read_text())["ahead_s"])

    def wait_until(self, t_s: float) -> bool:
        while (left_s := t_s - self.now_s()) > 0:
            if self._woken.wait(min(left_s / PACE, 0.2)):
                self._woken.clear()
                return False
        return True


def run(configuration: str, clock: str, log: str) -> None:
    """`nightshift run` in this process, as the command does it; only its clock is another."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
    app.WallClock = lambda: QuickClock(Path(clock))  # type: ignore[assignment, misc]
    daemon.run(Path(configuration))


class Daemon:
    """A replica in a process of its own."""

    def __init__(self, folder: Path, clock: Path, values: Mapping[str, Any]) -> None:
        self.state, self._clock = folder / "state", clock
        self._configuration, self._log = folder / "nightshift.yaml", folder / "log"
        folder.mkdir()
        self._configuration.write_text(yaml.safe_dump({**values, "state_dir": str(self.state)}))
        self._process: Any = None
        self._read_from = 0

    def start(self) -> None:
        self._read_from = len(self.log)
        arguments = str(self._configuration), str(self._clock), str(self._log)
        self._process = FORKS.Process(target=run, args=arguments)
        self._process.start()

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def url(self) -> str:
        def look() -> str:
            assert self._process.exitcode is None, self.log
            found = re.findall(r"console=(http://\S+?)(?:\x1b|\s)", self.log[self._read_from :])
            return str(found[-1]) if found else ""

        return str(until(look, "the console's address"))

    def is_running(self) -> bool:
        """False once it was killed. One that ended by itself is a failure."""
        code = None if self._process is None else self._process.exitcode
        assert code in (None, -signal.SIGKILL), self.log
        return code is None

    def leads(self) -> bool:
        return self.is_running() and self.log.count("leadership acquired") > self.log.count("leadership lost")

    def ask(self, method: str, path: str, **what: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {operator_token(self.state, None)}"}
        return httpx.request(method, f"{self.url()}/api/v1{path}", headers=headers, **what)

    def page(self, incident: str) -> str:
        """What a person reads of an incident on the console's page."""
        with httpx.Client(base_url=self.url()) as web:
            web.post("/sign-in", data={"token": operator_token(self.state, None)})
            answer = web.get(f"/incidents/{incident}")
        assert answer.status_code == 200, answer.text
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())

    def kill(self) -> None:
        if self._process is not None and self._process.exitcode is None:
            os.kill(self._process.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.join()


class Wire:
    """A relay to the API server. `down`: connections end and none is made; `frozen`: they stay, and nothing comes
    through."""

    def __init__(self, server: str) -> None:
        found = urlsplit(server)
        self._to = str(found.hostname), int(found.port or (443 if found.scheme == "https" else 80))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open, self._down, self._ended = threading.Event(), False, False
        self._open.set()
        self._sockets: set[socket.socket] = set()
        self.port = self._listener.getsockname()[1]
        self.url = f"{found.scheme}://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._ended:
            with contextlib.suppress(OSError):
                near, _ = self._listener.accept()
                if self._down:
                    near.close()
                    continue
                far = socket.create_connection(self._to)
                self._sockets |= {near, far}
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                self._open.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            self._sockets.discard(end)

    def set(self, how: str) -> None:
        """`open`, `down` or `frozen`."""
        self._down = how == "down"
        (self._open.clear if how == "frozen" else self._open.set)()
        if how != "frozen":  # what froze does not come through late: the other end has gone by then
            for end in list(self._sockets):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._ended = True
        self.set("down")
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Telemetry(Exporter):
    """Each node's GPU as dcgm-exporter shows it; `xid` is what the first one's driver logged last."""

    def __init__(self, nodes: list[str], pods: list[str], namespace: str) -> None:
        self._places, self._namespace, self.xid = list(zip(nodes, pods, strict=True)), namespace, 0
        super().__init__(gpus=len(nodes))

    def _labels(self, i: int) -> str:
        node, pod = self._places[i]
        return (
            f'gpu="0",UUID="GPU-{i:08x}-0000-0000-0000-000000000000",pci_bus_id="00000000:01:00.0",'
            f'device="nvidia0",modelName="NVIDIA H200",Hostname="{node}",container="c",'
            f'namespace="{self._namespace}",pod="{pod}"'
        )

    def page(self) -> bytes:
        xids = [f"DCGM_FI_DEV_XID_ERRORS{{{self._labels(i)}}} {0 if i else self.xid}" for i in range(2)]
        return super().page() + ("\n".join(xids) + "\n").encode()


def until(look: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < end, f"it did not come: {what}"
        time.sleep(0.05)
    return found


@dataclass
class Scene:
    """A job of two pods on two nodes and a service of two, each under a disruption budget; a spare node; one daemon
    or two."""

    cluster: Cluster
    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    store: str = ""
    replicas: int = 1
    by_token: bool = False
    """Whether the daemon is a service account with a token in a file, rather than the kubeconfig's person."""
    keeps_pods: bool = True
    """Whether kubelets let no pod go yet: the drain then stays in its middle."""
    restart_store: Callable[[], None] = lambda: None
    boots: int = 1
    troubles: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        cluster = self.cluster
        self.batch, self.policy = client.BatchV1Api(cluster.api), client.PolicyV1Api(cluster.api)
        self.node, self.other, self.spare = (cluster.node(stem) for stem in ("sick", "well", "spare"))
        for node in (self.node, self.other, self.spare):
            boots(cluster, node, "boot-1")
        self.uid = cluster.core.read_node(self.node).metadata.uid
        self.job = job(cluster, "train", [self.node, self.other], template=WITH_A_GPU)
        for number, node in enumerate((self.node, self.other)):
            cluster.pod(f"api-{number}", node, labels={"app": "api"}, ownerReferences=[cluster.owner()])
        self.budget("train", {"batch.kubernetes.io/job-name": "train"}, 1)
        self.budget("api", {"app": "api"}, 1)
        pods = cluster.core.list_namespaced_pod(
            cluster.namespace, label_selector="batch.kubernetes.io/job-name=train"
        )
        held = {pod.spec.node_name: pod.metadata.name for pod in pods.items}
        nodes = [self.node, self.other]
        self.telemetry = Telemetry(nodes, [held[node] for node in nodes], cluster.namespace)
        self.clock = self.folder / "clock.json"
        self._ahead_s = 0.0
        self.jump(0.0)
        self.token_file = self.folder / "token"
        if self.by_token:
            self._account()
        self.wires = [Wire(cluster.api.configuration.host) for _ in range(self.replicas)]
        self.daemons = [self._daemon(number) for number in range(self.replicas)]
        self._ended = threading.Event()
        self._hands = threading.Thread(target=self._play, daemon=True)
        self._hands.start()

    # What is there ----------------------------------------------------------------------------------------------

    def budget(self, name: str, labels: Mapping[str, str], least: int) -> None:
        spec = {"minAvailable": least, "selector": {"matchLabels": dict(labels)}}
        space, body = self.cluster.namespace, {"metadata": {"name": name}, "spec": spec}
        gone(self.policy.delete_namespaced_pod_disruption_budget, name, space)
        self.policy.create_namespaced_pod_disruption_budget(space, body)
        if not self.cluster.controlled:
            return

        def counted() -> bool:
            found = self.policy.read_namespaced_pod_disruption_budget(name, space).status
            return bool(found) and found.current_healthy == 2

        until(counted, f"the budget {name} counted")

    def _account(self) -> None:
        name, space, rbac = self.cluster.name("ours"), self.cluster.namespace, client.RbacAuthorizationV1Api
        self.cluster.core.create_namespaced_service_account(space, {"metadata": {"name": "ours"}})
        who = {"kind": "ServiceAccount", "name": "ours", "namespace": space}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        meta, everything = {"name": name, "labels": {MARK: "role"}}, {key: ["*"] for key in _OF_A_RULE}
        roles = rbac(self.cluster.api)
        roles.create_cluster_role({"metadata": meta, "rules": [everything]})
        roles.create_cluster_role_binding({"metadata": meta, "roleRef": role, "subjects": [who]})
        self.cluster.cleanup(roles.delete_cluster_role, name)
        self.cluster.cleanup(roles.delete_cluster_role_binding, name)
        self.new_token("first")

    def new_token(self, secret: str) -> None:
        """Writes one that holds for as long as the Secret of that name is there."""
        core, space = self.cluster.core, self.cluster.namespace
        made = core.create_namespaced_secret(space, {"metadata": {"name": secret}})
        bound = {"kind": "Secret", "apiVersion": "v1", "name": secret, "uid": made.metadata.uid}
        request = {"spec": {"audiences": [], "expirationSeconds": 3600, "boundObjectRef": bound}}
        token = core.create_namespaced_service_account_token("ours", space, request).status.token
        waiting = self.token_file.with_suffix(".new")
        waiting.write_text(token)
        waiting.replace(self.token_file)

    def kubeconfig(self, number: int) -> Path:
        """By the replica's own wire; the certificate's name stays that of the server."""
        path, given = self.folder / f"kubeconfig-{number}", json.loads(json.dumps(self.cluster.kubeconfig))
        entry = given["clusters"][0]["cluster"]
        if entry["server"].startswith("https"):
            entry["tls-server-name"] = urlsplit(entry["server"]).hostname
        entry["server"] = self.wires[number].url
        if self.by_token:
            given["users"][0]["user"] = {"tokenFile": str(self.token_file)}
        path.write_text(yaml.safe_dump(given))
        return path

    def _daemon(self, number: int) -> Daemon:
        access, drain = {"kubeconfig": str(self.kubeconfig(number)), "timeout_s": ANSWER_S}, {"grace_s": 0}
        values = {
            "replica": f"replica-{number}",
            "console": {"port": 0},
            "kubernetes": {"own": access},
            "sources": [
                {"type": "dcgm_exporter", "urls": [self.telemetry.url]},
                {"type": "kubernetes", "access": "own"},
            ],
            # the wire is cut on purpose; what that itself means is another test's
            "detectors": {"disabled": ["source", "cluster", "job_crash"]},
            "drain": drain,
            "actuators": [
                {"type": "kubernetes", "access": "own"},
                {
                    "type": "kubernetes_repair",
                    "access": "own",
                    "image": "registry.invalid/tools:1",
                    "namespace": self.cluster.namespace,
                },
            ],
            "guard": {"cluster_fraction": 1.0},
            "approval": {"kinds": {"reboot_node": "one"}, "fresh_sign_in": []},
            "lifecycle": {"quiet_s": 20.0},
            **({"store": {"url": self.store}} if self.store else {}),
            **self.settings,
        }
        if "election" in values:
            values["election"] = {**values["election"], "access": "own", "namespace": self.cluster.namespace}
        return Daemon(self.folder / f"replica-{number}", self.clock, values)

    def jump(self, seconds: float) -> None:
        self._ahead_s += seconds
        began_s = json.loads(self.clock.read_text())["began_s"] if self.clock.exists() else time.time()
        waiting = self.clock.with_suffix(".new")
        waiting.write_text(json.dumps({"began_s": began_s, "ahead_s": self._ahead_s}))
        waiting.replace(self.clock)

    def passes(self, seconds: float) -> None:
        """Lets so much of the daemon's time pass."""
        time.sleep(seconds / PACE)

    # What kubelets, a scheduler and the Job controller do --------------------------------------------------------

    def _play(self) -> None:
        while not self._ended.wait(0.05):
            try:
                self._turn()
            except ApiException as error:
                if error.status not in (404, 409, 422):
                    self.troubles.append(error)
            except BaseException as error:  # noqa: BLE001  told at the end
                self.troubles.append(error)

    def _turn(self) -> None:
        cluster, now = self.cluster, datetime.now(UTC)
        if cluster.server is None and now.second % 5 == 0:  # a real cluster's controllers wait for heartbeats
            ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now.strftime("%Y-%m-%dT%H:%M:%SZ")}
            for node in (self.node, self.other, self.spare):
                with contextlib.suppress(ApiException):
                    cluster.core.patch_node_status(node, {"status": {"conditions": [ready]}})
        for pod in cluster.core.list_namespaced_pod(cluster.namespace).items:
            name = pod.metadata.name
            if pod.metadata.deletion_timestamp is not None and not self.keeps_pods:
                gone(cluster.core.delete_namespaced_pod, name, cluster.namespace, grace_period_seconds=0)
            elif not pod.spec.node_name and "train" in name:
                cluster.binds(name, self.spare)
        for name, made in repair_jobs(cluster).items():
            if not (made.status and made.status.conditions):
                if not name.endswith(("-check", "-evidence")) and self.boots == 1:
                    self.boots = 2
                    boots(cluster, self.node, "boot-2")
                repair_job_ends(cluster, name=name)

    # How it goes ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A GPU falls off the bus, a person approves, and the drain is in its middle: the node takes no work, the
        job is stopped and its pods are not gone."""
        for each in self.daemons:
            each.start()
        until(lambda: any(each.leads() for each in self.daemons), "a leader")
        until(self._is_seen, "a page of a healthy GPU, and the pods")
        self.telemetry.xid = 79
        until(lambda: self.state() == "awaiting_approval", "a plan")
        plan = self.incident()["plan_sha256"]
        answer = self.leader.ask("POST", "/incidents/INC-1/approve", json={"plan_sha256": plan})
        assert answer.json()["changed"], answer.text
        until(self.is_in_the_middle, "the middle of the drain")

    def _is_seen(self) -> bool:
        page = httpx.get(f"{self.leader.url()}/metrics").text
        return 'nightshift_sources{state="up"} 3.0' in page and 'nightshift_subjects{kind="gpu"} 2.0' in page

    def is_in_the_middle(self) -> bool:
        node = self.cluster.core.read_node(self.node)
        stopped = self.batch.read_namespaced_job("train", self.cluster.namespace).spec.suspend
        leaving = [
            pod.metadata.name
            for pod in self.cluster.core.list_namespaced_pod(self.cluster.namespace).items
            if pod.metadata.deletion_timestamp is not None and "train" in pod.metadata.name
        ]
        return bool(node.spec.unschedulable and stopped and (leaving or not self.keeps_pods))

    @property
    def leader(self) -> Daemon:
        """The replica that leads, or while none does, one that runs."""
        running = [each for each in self.daemons if each.is_running()]
        return next((each for each in running if each.leads()), running[-1])

    def incident(self) -> dict[str, Any]:
        answer = self.leader.ask("GET", "/incidents/INC-1")
        found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return found

    def state(self) -> str:
        with contextlib.suppress(httpx.HTTPError):
            return str(self.incident().get("state"))
        return ""

    def ends(self) -> str:
        """The state in which it comes to rest, once kubelets let pods go."""
        self.keeps_pods = False

        def rests() -> str:
            state = self.state()
            if state == "confirming":  # an Xid's episode ends after ten minutes of silence
                self.jump(60.0)
            return state if state in ("resolved", "escalated") else ""

        return str(until(rests, "an end"))

    # What is left -----------------------------------------------------------------------------------------------

    def left(self) -> set[str]:
        """What of ours is on the cluster still."""
        found = set[str]()
        for item in self.batch.list_namespaced_job(self.cluster.namespace).items:
            found |= {f"suspended {item.metadata.name}"} if item.spec.suspend else set()
        for node in self.cluster.core.list_node(label_selector="nightshift.dev/test").items:
            if node.metadata.name not in (self.node, self.other, self.spare):
                continue
            who = {self.node: "sick", self.other: "well", self.spare: "spare"}[node.metadata.name]
            found |= {f"cordon of {who}"} if node.spec.unschedulable else set()
            found |= {f"taint of {who}" for taint in node.spec.taints or [] if "nightshift" in taint.key}
            ours = {key for key in node.metadata.labels or {} if key.startswith("nightshift.dev/")}
            found |= {f"label {key} of {who}" for key in ours if not key.startswith("nightshift.dev/test")}
        return found

    def repairs(self) -> list[str]:
        """How often each Job of ours was made: their names are the action's, so twice is another name. The one
        that collects evidence aside: it repairs nothing."""
        names = [name for name in repair_jobs(self.cluster) if not name.endswith("-evidence")]
        return sorted("check" if name.endswith("-check") else "reboot" for name in names)

    def stops_of_job(self) -> int:
        """How often the job was stopped and started: each is a generation of its spec."""
        selector = "metadata.name=train"
        found = self.batch.list_namespaced_job(self.cluster.namespace, field_selector=selector).items
        return sum(int(item.metadata.generation) - 1 for item in found)

    def open_intents(self) -> list[str]:
        url = self.store or f"sqlite:///{self.daemons[0].state}/nightshift.db"
        database = Database(url)
        try:
            with database.read() as connection:
                rows = sa.select(intents.c.action_id).where(intents.c.ended_s.is_(None))
                return list(connection.execute(rows).scalars())
        finally:
            database.close()

    def close(self) -> None:
        for each in self.daemons:
            each.kill()
        self._ended.set()
        self._hands.join()
        for wire in self.wires:
            wire.close()
        self.telemetry.close()
        for item in self.cluster.core.list_namespaced_pod(self.cluster.namespace).items:
            if item.metadata.finalizers:
                body = {"metadata": {"finalizers": None}}
                self.cluster.core.patch_namespaced_pod(item.metadata.name, self.cluster.namespace, body)


@contextlib.contextmanager
def scene(cluster: Cluster, folder: Path, **how: Any) -> Iterator[Scene]:
    made = Scene(cluster, folder, **how)
    try:
        yield made
    finally:
        made.close()


def as_admin(url: str, *statements: str, on: str = "postgres") -> None:
    """Runs statements on a PostgreSQL server, beside the daemon; `NAME` in them is its database."""
    address, _, name = url.replace("+psycopg", "").rpartition("/")
    with psycopg.connect(f"{address}/{on.replace('NAME', name)}", autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.replace("NAME", name))  # type: ignore[arg-type]
