"""Node agents found through the API server and read by mutual TLS; certificates are renewed without a gap."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Reason
from nightshift.collectors.http import HttpSettings
from nightshift.collectors.kernel_log.event import KernelEventKind
from nightshift.collectors.kernel_log.local import LocalKernelLogCollector
from nightshift.collectors.kernel_log.node_agents import NodeAgentsCollector
from nightshift.collectors.subject import Inventory
from nightshift.collectors.telemetry.certificate_rotation import Renewed
from nightshift.collectors.telemetry.exporter import NodeExporter, Settings
from nightshift.collectors.telemetry.nvml import NvmlCollector
from tests.certificates import Authority
from tests.kubernetes_api.cluster import Cluster

XID = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."


def put(folder: Path, name: str, pair: tuple[bytes, bytes]) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    certificate.write_bytes(pair[0])
    key.write_bytes(pair[1])
    return certificate, key


class Agent:
    """`nightshift node` by mutual TLS on the stand-in library, as a pod of the cluster."""

    def __init__(self, folder: Path, authority: Authority, pod: str, node: str, namespace: str) -> None:
        self.log = folder / f"{node}.log"
        self.log.write_text("[1.0] start\n")
        self.certificate, self.key = put(folder, pod, authority.issue(f"{pod}.{namespace}.pod"))
        client_ca = folder / "ca.crt"
        client_ca.write_bytes(authority.pem)
        self.exporter = NodeExporter(
            Settings(
                host="127.0.0.1",
                port=0,
                period_s=0.1,
                certificate_file=self.certificate,
                key_file=self.key,
                client_ca_file=client_ca,
                client_names=("nightshift",),
            ),
            NvmlCollector(NvmlCollector.Settings(node=node)),
            LocalKernelLogCollector(LocalKernelLogCollector.Settings(node=node, source="file", path=self.log)),
        )
        self.thread = threading.Thread(target=self.exporter.serve, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.exporter.stop()
        self.thread.join(2.0)


@pytest.fixture
def authority() -> Authority:
    return Authority.new()


@pytest.fixture
def agent(
    tmp_path: Path, authority: Authority, nvml_library: ctypes.CDLL, cluster: Cluster
) -> Iterator[tuple[Agent, str]]:
    nvml_library.stub_reset()
    node = cluster.node()
    cluster.pod("agent-1", node, labels={"app": "agent"})
    status = {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
    cluster.core.patch_namespaced_pod_status("agent-1", cluster.namespace, {"status": status})
    started = Agent(tmp_path, authority, "agent-1", node, cluster.namespace)
    yield started, node
    started.stop()


@pytest.fixture(autouse=True)
def _refresh_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.collectors.kubernetes.agent_pods.REFRESH_S", 0.05)


def source(cluster: Cluster, folder: Path, authority: Authority, port: int, **changes: Any) -> NodeAgentsCollector:
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(cluster.kubeconfig))
    certificate, key = put(folder, "client", authority.issue("nightshift", client=True))
    http = HttpSettings(ca_file=folder / "ca.crt", certificate_file=certificate, key_file=key)
    settings = {
        "access": {"kubeconfig": kubeconfig},
        "namespace": cluster.namespace,
        "selector": "app=agent",
        "port": port,
    }
    return NodeAgentsCollector(NodeAgentsCollector.Settings(agents=settings, tls=True, connection=http, **changes))


def heard(collector: NodeAgentsCollector, count: int = 1, timeout_s: float = 90.0) -> list[Any]:
    events: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(events) < count:
        assert time.monotonic() < deadline
        events += check_collect(collector, time.time(), Inventory(), 30.0).events
        time.sleep(0.05)
    return events


def test_an_agent_is_found_by_its_pod_and_its_node_is_named(
    cluster: Cluster, agent: tuple[Agent, str], tmp_path: Path, authority: Authority, opened: Any
) -> None:
    started, node = agent
    collector = opened(source(cluster, tmp_path, authority, started.exporter.port))
    check_collect(collector, time.time(), Inventory(), 30.0, expect_ok=True)
    with started.log.open("a") as stream:
        stream.write(f"[2.0] {XID}\n")
    (event,) = heard(collector)
    assert (event.kind, event.node.name) == (KernelEventKind.XID, node)


def test_an_agent_with_another_pods_certificate_is_not_believed(
    cluster: Cluster, agent: tuple[Agent, str], tmp_path: Path, authority: Authority, opened: Any
) -> None:
    """Signed by the right authority for another pod: the name does not fit, so nothing is read."""
    started, _ = agent
    put(tmp_path, "agent-1", authority.issue(f"agent-2.{cluster.namespace}.pod"))
    collector = opened(source(cluster, tmp_path, authority, started.exporter.port))
    batch = check_collect(collector, time.time(), Inventory(), 30.0)
    reasons = {str(status.source): status.reason for status in batch.sources}
    assert Reason.UNREACHABLE in reasons.values()
    assert not batch.logs


@pytest.mark.parametrize("who", ["a stranger", "nobody", "another of the authority", "a node agent"])
def test_an_agent_answers_only_our_client(
    cluster: Cluster, agent: tuple[Agent, str], tmp_path: Path, authority: Authority, opened: Any, who: str
) -> None:
    """A client of another authority, without a certificate, or with one that the same authority gave to somebody
    else or to a server, gets nothing."""
    started, _ = agent
    collector = source(cluster, tmp_path, authority, started.exporter.port)
    http = collector._settings.connection
    if who == "a stranger":
        put(tmp_path, "client", Authority.new("other").issue("nightshift", client=True))
    elif who == "another of the authority":
        put(tmp_path, "client", authority.issue("other-app", client=True))
    elif who == "a node agent":
        put(tmp_path, "client", authority.issue("nightshift"))
    else:
        http = HttpSettings(ca_file=http.ca_file)
    changed = collector._settings.model_copy(update={"connection": http})
    collector = opened(NodeAgentsCollector(changed))
    batch = check_collect(collector, time.time(), Inventory(), 30.0)
    assert [s.ok for s in batch.sources if "pods" not in str(s.source)] == [False]


def test_certificates_are_renewed_without_a_gap(
    cluster: Cluster, agent: tuple[Agent, str], tmp_path: Path, authority: Authority, opened: Any
) -> None:
    """A new authority: first both trust old and new, then both show new certificates, then the old one goes.
    Every look in between is answered, nothing is restarted, and no line is read twice."""
    started, node = agent
    collector = opened(source(cluster, tmp_path, authority, started.exporter.port))
    fresh, trust = Authority.new("fresh"), tmp_path / "ca.crt"

    def line(number: int) -> None:
        with started.log.open("a") as stream:
            stream.write(f"[{number + 2}.0] {XID}\n")

    steps = [
        lambda: None,
        lambda: trust.write_bytes(authority.pem + fresh.pem),
        lambda: put(tmp_path, "agent-1", fresh.issue(f"agent-1.{cluster.namespace}.pod")),
        lambda: put(tmp_path, "client", fresh.issue("nightshift", client=True)),
        lambda: trust.write_bytes(fresh.pem),
    ]
    seen = []
    for number, step in enumerate(steps):
        step()
        batch = check_collect(collector, time.time(), Inventory(), 30.0, expect_ok=True)
        seen += batch.events
        line(number)
        while len(seen) <= number:
            batch = check_collect(collector, time.time(), Inventory(), 30.0, expect_ok=True)
            seen += batch.events
            time.sleep(0.05)
    assert len(seen) == len(steps)
    assert {event.node.name for event in seen} == {node}


def test_a_pod_that_moves_keeps_its_nodes_cursor(
    cluster: Cluster, agent: tuple[Agent, str], tmp_path: Path, authority: Authority, opened: Any
) -> None:
    """Another pod on the same node goes on where the one before was read to; one that ends is not asked any more
    more."""
    started, _ = agent
    collector = opened(source(cluster, tmp_path, authority, started.exporter.port))
    with started.log.open("a") as stream:
        stream.write(f"[2.0] {XID}\n")
    heard(collector)
    cluster.remove_pod("agent-1")
    time.sleep(0.1)
    batch = check_collect(collector, time.time(), Inventory(), 30.0)
    assert [str(s.source) for s in batch.sources] == ["source:node_agents pods"]
    assert batch.sources[0].detail == "0 node agents"


def test_a_half_written_renewal_is_not_taken_up(tmp_path: Path) -> None:
    """The value before goes on, and is told why; once the files are whole, they are taken up."""
    file = tmp_path / "file"
    file.write_text("1")
    renewed = Renewed([file], lambda: int(file.read_text()))
    file.write_text("half")
    assert (renewed.get(), bool(renewed.problem)) == (1, True)
    file.write_text("22")
    assert (renewed.get(), renewed.problem) == (22, "")
