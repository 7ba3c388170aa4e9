"""Power leases to node agents that are pods: found by the API server, believed by their certificate, never sent to
another node. Real agents over mutual TLS, each at an address of its own; only their GPUs are stand-ins."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.agent.node_agent import answer_lease, tell_lease
from nightshift.collectors.http import HttpSettings
from nightshift.collectors.kernel_log.local import LocalKernelLogCollector
from nightshift.collectors.kubernetes import agent_pods
from nightshift.collectors.subject import Inventory
from nightshift.collectors.telemetry.exporter import NodeExporter
from nightshift.collectors.telemetry.exporter import Settings as ExporterSettings
from nightshift.collectors.telemetry.nvml import NvmlCollector
from nightshift.collectors.tick import Batch
from nightshift.controllers.actuators.power_leases import PowerLeases, Range
from nightshift.controllers.actuators.power_nodes import PowerNodes, Settings
from nightshift.controllers.power.settings import PowerSettings
from tests.certificates import Authority
from tests.kubernetes_api.cluster import Cluster

FALLBACK, ASKED = 420_000, 500_000
FIRST, SECOND = "127.0.0.1", "127.0.0.2"


@pytest.fixture(autouse=True)
def _refresh_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.collectors.kubernetes.agent_pods.REFRESH_S", 1e-9)


@dataclass
class Gpus:
    """The GPUs of one machine (`power_leases.PowerDevice`)."""

    limits_mw: dict[str, int]
    orders: list[tuple[str, int]] = field(default_factory=list)

    def ranges(self) -> Mapping[str, Range]:
        return {u: Range(200_000, 700_000, 700_000, mw, 1980) for u, mw in self.limits_mw.items()}

    def set_limit(self, uuid: str, limit_mw: int) -> None:
        self.orders.append((uuid, limit_mw))
        self.limits_mw[uuid] = limit_mw

    def lock_clock(self, uuid: str, clock_mhz: int | None) -> None: ...


class NoGpus(NvmlCollector):
    """Loads no library: what this machine has is not asked."""

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        return Batch([])


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no silent node."""
    monkeypatch.setattr("nightshift.controllers.actuators.power_nodes.TIMEOUT_S", 30.0)


class World:
    """Agents as pods of the cluster. All listen on one port, as a DaemonSet's do."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.authority = Authority.new()
        (folder / "ca.crt").write_bytes(self.authority.pem)
        self.put("client", *self.authority.issue("nightshift", client=True))
        (folder / "kubeconfig").write_text(yaml.safe_dump(cluster.kubeconfig))
        self.nodes = [cluster.node(), cluster.node()]
        self.port = 0
        self._running: list[tuple[NodeExporter, threading.Thread]] = []

    def put(self, name: str, certificate: bytes, key: bytes) -> tuple[Path, Path]:
        paths = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        paths[0].write_bytes(certificate)
        paths[1].write_bytes(key)
        return paths

    def name(self, pod: str) -> str:
        return f"{pod}.{self.cluster.namespace}.pod"

    def listen(self, host: str, gpus: Gpus, certified: str, says: str = "") -> None:
        """An agent with a certificate of that name; `says`: the node that it takes itself for."""
        certificate, key = self.put(host, *self.authority.issue(certified))
        leases = PowerLeases(gpus, FALLBACK)
        gpus.orders.clear()
        settings = ExporterSettings(
            host=host,
            port=self.port,
            certificate_file=certificate,
            key_file=key,
            client_ca_file=self.folder / "ca.crt",
        )
        exporter = NodeExporter(
            settings,
            NoGpus(NvmlCollector.Settings()),
            LocalKernelLogCollector(LocalKernelLogCollector.Settings()),
            takes=("/power-lease", lambda body: answer_lease(leases, body)),
            tells=lambda: tell_lease(leases, says),
        )
        self.port = exporter.port
        serving = threading.Thread(target=exporter.serve, daemon=True)
        serving.start()
        self._running.append((exporter, serving))

    def pod(self, name: str, node: str, ip: str) -> None:
        self.cluster.pod(name, node, labels={"app": "agent"})
        status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}
        self.cluster.core.patch_namespaced_pod_status(name, self.cluster.namespace, {"status": status})

    def client(self, **changes: Any) -> PowerNodes:
        agents = {
            "access": {"kubeconfig": self.folder / "kubeconfig"},
            "namespace": self.cluster.namespace,
            "selector": "app=agent",
            "port": self.port,
            **changes.pop("agents", {}),
        }
        settings = Settings(
            agents=agent_pods.Settings(**agents),
            connection=HttpSettings(
                ca_file=self.folder / "ca.crt",
                certificate_file=self.folder / "client.crt",
                key_file=self.folder / "client.key",
            ),
            **changes,
        )
        return PowerNodes(settings, self.nodes)

    def close(self) -> None:
        for exporter, serving in self._running:
            exporter.stop()
            serving.join(10.0)


@pytest.fixture
def world(cluster: Cluster, tmp_path: Path) -> Iterator[World]:
    made = World(cluster, tmp_path)
    yield made
    made.close()


def lease(uuid: str) -> dict[str, Any]:
    return {"id": "power", "term": 1, "ttl_s": 60.0, "limits_mw": {uuid: ASKED}}


def test_an_agent_that_moves_gets_the_next_lease_where_it_is(world: World) -> None:
    """Another pod on the same node, at another address; an agent outside of the racks is not asked at all."""
    first, second = Gpus({"G0": FALLBACK}), Gpus({"G0": FALLBACK})
    node = world.nodes[0]
    world.listen(FIRST, first, world.name("a"), node)
    world.pod("a", node, FIRST)
    world.pod("stray", world.cluster.node(), "192.0.2.1")
    nodes = world.client()
    told = nodes.status()
    assert set(told) == set(world.nodes)
    assert set(told[node].gpus) == {"G0"}
    assert nodes.grant({node: lease("G0")})[node].ok
    assert first.orders == [("G0", ASKED)]
    world.cluster.remove_pod("a")
    world.listen(SECOND, second, world.name("b"), node)
    world.pod("b", node, SECOND)
    assert nodes.status()[node].error == ""
    assert nodes.grant({node: lease("G0")})[node].ok
    assert (len(first.orders), second.orders) == (1, [("G0", ASKED)])
    assert "no agent runs there (pods app=agent" in nodes.grant({world.nodes[1]: lease("G0")})[world.nodes[1]].said
    nodes.close()


def test_of_two_agents_that_claim_one_node_none_gets_a_lease(world: World) -> None:
    """Nobody guesses which is right; as soon as one is gone the other is served."""
    gpus = [Gpus({"G0": FALLBACK}), Gpus({"G0": FALLBACK})]
    node = world.nodes[0]
    for host, pod, mine in zip((FIRST, SECOND), "ab", gpus, strict=True):
        world.listen(host, mine, world.name(pod), node)
        world.pod(pod, node, host)
    nodes = world.client()
    assert "more than one agent runs there, none is believed: a, b" in nodes.status()[node].error
    refused = nodes.grant({node: lease("G0")})[node]
    assert not refused.ok
    assert f"{node}: more than one agent" in refused.said
    assert [g.orders for g in gpus] == [[], []]
    world.cluster.remove_pod("b")
    assert nodes.status()[node].error == ""
    assert nodes.grant({node: lease("G0")})[node].ok
    nodes.close()


def test_an_agent_with_another_nodes_certificate_gets_no_lease(world: World) -> None:
    """Also where the connection was good a moment ago: the address passes to another pod, and nothing is sent over
    a connection that was checked for the pod before."""
    gpus = Gpus({"G0": FALLBACK})
    world.listen(FIRST, gpus, world.name("a"))
    world.pod("a", world.nodes[0], FIRST)
    nodes = world.client()
    assert nodes.status()[world.nodes[0]].error == ""
    world.cluster.remove_pod("a")
    world.pod("b", world.nodes[1], FIRST)
    said = nodes.status()[world.nodes[1]].error
    assert f"b at https://{FIRST}:{world.port}" in said
    assert "certificate" in said
    refused = nodes.grant({world.nodes[1]: lease("G0")})[world.nodes[1]]
    assert not refused.ok
    assert "certificate" in refused.said
    assert gpus.orders == []
    nodes.close()


def test_under_a_shared_certificate_an_agent_still_has_to_be_its_nodes(world: World) -> None:
    """It says that it is another node's, or names a GPU that the machine does not have: refused, nothing is set."""
    gpus = Gpus({"G0": FALLBACK})
    world.listen(FIRST, gpus, "node.svc", world.nodes[1])
    world.pod("a", world.nodes[0], FIRST)
    nodes = world.client(agents={"certificate_name": "node.svc"})
    wrong = f"says that it is the agent of {world.nodes[1]}"
    assert wrong in nodes.status()[world.nodes[0]].error
    assert wrong in nodes.grant({world.nodes[0]: lease("G0")})[world.nodes[0]].said
    nodes.close()
    older = world.client(urls={world.nodes[0]: f"https://{FIRST}:{world.port}"})
    assert older._addresses[world.nodes[0]].pod == "", "an address that is configured goes before what is found"
    older.close()
    assert gpus.orders == []


def test_two_agents_that_tell_the_same_gpu_get_no_lease(world: World) -> None:
    """Not even once one of them is silent; only when its pod is gone."""
    gpus = [Gpus({"G0": FALLBACK, "G1": FALLBACK}), Gpus({"G1": FALLBACK})]
    for host, pod, node, mine in zip((FIRST, SECOND), "ab", world.nodes, gpus, strict=True):
        world.listen(host, mine, world.name(pod), node)
        world.pod(pod, node, host)
    nodes = world.client()
    told = nodes.status()
    first, second = sorted(world.nodes)
    assert all(f"G1 is reported by {first} and by {second}" in told[node].error for node in world.nodes)
    refused = nodes.grant({node: lease("G1") for node in world.nodes})
    assert [grant.ok for grant in refused.values()] == [False, False]
    exporter, serving = world._running.pop()
    exporter.stop()
    serving.join(10.0)
    assert "G1 is reported by" in nodes.status()[world.nodes[0]].error
    assert [g.orders for g in gpus] == [[], []]
    world.cluster.remove_pod("b")
    assert nodes.status()[world.nodes[0]].error == ""
    nodes.close()


def test_known_agents_go_on_while_the_api_server_is_away(world: World) -> None:
    """And where it never answered, every node says why it has no agent."""
    gpus = Gpus({"G0": FALLBACK})
    node = world.nodes[0]
    world.listen(FIRST, gpus, world.name("a"), node)
    world.pod("a", node, FIRST)
    nodes = world.client()
    assert nodes.status()[node].error == ""
    assert nodes._pods is not None
    nodes._pods._kube = None
    (world.folder / "kubeconfig").write_text("{}")
    told = nodes.status()
    assert told[node].error == ""
    assert "its agent was not found: kubernetes: " in told[world.nodes[1]].error
    assert nodes.grant({node: lease("G0")})[node].ok
    nodes.close()


def test_power_that_acts_needs_agents_from_somewhere() -> None:
    """Racks, and either addresses or how to find them; a name that is no pattern is refused by its place."""
    racks = {"r": {"nodes": ("n0",), "budget_w": 1000.0}}
    agents = {"namespace": "ops", "selector": "app=agent"}
    assert PowerSettings(act=True, racks=racks, nodes={"agents": agents}).act
    with pytest.raises(ValueError, match=r"nodes\.urls or nodes\.agents"):
        PowerSettings(act=True, racks=racks)
    with pytest.raises(ValueError, match=r"(?s)agents\.certificate_name.*none of pod, node, namespace"):
        PowerSettings(nodes={"agents": {**agents, "certificate_name": "{host}"}})
