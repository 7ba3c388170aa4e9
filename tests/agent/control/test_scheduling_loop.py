"""Scheduling in the daemon: followed from an API server, decided, written to gates, read back; or only watching."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from kubernetes import client

from nightshift.agent.app import App
from nightshift.agent.clock import WallClock
from nightshift.agent.control.scheduling_loads import Loads
from nightshift.agent.control.scheduling_loop import SchedulingLoop, Surroundings
from nightshift.agent.metrics import Metrics
from nightshift.agent.settings import Settings
from nightshift.collectors.kubernetes.api import AccessSettings
from nightshift.collectors.subject import Inventory
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_queue import BOOST, CONTROLLER, HOLD_UNTIL, KubernetesQueue
from nightshift.controllers.actuators.kube_queue_follow import GangDoors, QueueView, StaleView
from nightshift.controllers.actuators.kube_rights import Right, scheduling_rights
from nightshift.controllers.decision import ControlDecision, Mode, Trust
from nightshift.controllers.scheduling.epochs import UNIT
from nightshift.controllers.scheduling.settings import SchedulingSettings
from tests.controllers.actuators.test_kube_queue import kueue, read, workload  # noqa: F401  a fixture
from tests.controllers.kube_scenes import client_with, rules_of
from tests.kubernetes_api.cluster import Cluster, eventually

GPU = "nvidia.com/gpu"
ACTIVE = Trust(Mode.ACTIVE, 1.0, 0.95)


@pytest.fixture
def resource(cluster: Cluster) -> str:
    """A resource of this test alone: on a real cluster other GPUs are nobody's business here."""
    return f"nightshift.dev/{cluster.name('gpu')}"


def gpu_node(cluster: Cluster, resource: str, gpus: int) -> str:
    name = cluster.node()
    ready = [{"type": "Ready", "status": "True", "reason": "t", "message": "m"}]
    status = {
        "status": {"allocatable": {resource: str(gpus)}, "capacity": {resource: str(gpus)}, "conditions": ready}
    }
    cluster.core.patch_node_status(name, status)

    def untainted() -> bool:  # what the node lifecycle controller does once a kubelet says Ready
        cluster.core.patch_node(name, {"spec": {"taints": None}})
        return not cluster.core.read_node(name).spec.taints

    eventually(untainted, "the node takes pods")
    return name


def pod(cluster: Cluster, name: str, resource: str, gpus: int, *, gated: bool = True, **spec: Any) -> None:
    metadata = {"name": name, **spec.pop("metadata", {})}
    amount = {resource: str(gpus)}
    container = {"name": "c", "image": "registry.invalid/none", "resources": {"limits": amount, "requests": amount}}
    gates = [{"name": CONTROLLER}, {"name": "example.com/quota"}] if gated else []
    body = {"metadata": metadata, "spec": {"containers": [container], "schedulingGates": gates, **spec}}
    cluster.core.create_namespaced_pod(cluster.namespace, body)


def gates(cluster: Cluster, name: str) -> list[str]:
    return [g.name for g in cluster.core.read_namespaced_pod(name, cluster.namespace).spec.scheduling_gates or []]


@contextmanager
def loop_on(
    cluster: Cluster,
    resource: str,
    kube: KubeClient | None = None,
    *,
    with_kueue: bool = False,
    trust: Trust = ACTIVE,
    act: bool = True,
    **around: Any,
) -> Iterator[tuple[SchedulingLoop, list[ControlDecision]]]:
    kept: list[ControlDecision] = []

    def keep(decision: ControlDecision, *, chance: float = 0.0, treated: bool = False) -> None:
        if decision.unit != UNIT:  # the hour's own receipt: tests/controllers/scheduling/test_scheduling_epochs.py
            kept.append(decision)

    settings = SchedulingSettings(enabled=True, act=act, kueue=with_kueue, labels={"gpu_resource": resource})
    kube = kube or KubeClient(cluster.transport)
    view = QueueView(lambda: kube, settings)
    doors = GangDoors(KubernetesQueue(kube, settings.queue), view)
    surroundings = Surroundings(keep, lambda: lambda _job, _opted, _now_s: trust, **around)
    loop = SchedulingLoop(settings, view, doors, Loads(Inventory("c")), surroundings)
    view.start(30.0)
    try:
        yield loop, kept
    finally:
        loop.close()


def seen(loop: SchedulingLoop, *jobs: str) -> Callable[[], bool]:
    """Whether the view has heard of these jobs (their last part)."""

    def look() -> bool:
        try:
            known = {job.name.rpartition("/")[2] for job in loop.view.snapshot(time.time()).jobs}
        except StaleView:
            return False
        return set(jobs) <= known

    return look


def test_it_opens_what_fits_holds_the_rest_with_an_end_and_leaves_others_gates(
    cluster: Cluster, resource: str
) -> None:
    gpu_node(cluster, resource, 8)
    for name in ("a", "b"):
        pod(cluster, name, resource, 8)
    with loop_on(cluster, resource) as (loop, kept):
        eventually(seen(loop, "a", "b"), "both jobs seen")
        loop.turn(time.time())
    shut = [name for name in ("a", "b") if CONTROLLER in gates(cluster, name)]
    assert len(shut) == 1
    assert all("example.com/quota" in gates(cluster, name) for name in ("a", "b"))
    held = cluster.core.read_namespaced_pod(shut[0], cluster.namespace)
    assert float(held.metadata.annotations[HOLD_UNTIL]) > time.time()
    by_job = {decision.job.rpartition("/")[2]: decision for decision in kept}
    assert by_job[shut[0]].read_back["verb"] == "hold"
    assert by_job[({"a", "b"} - set(shut)).pop()].read_back["verb"] == "start"


def test_a_gang_is_one_job_and_its_gates_open_together(cluster: Cluster, resource: str) -> None:
    gpu_node(cluster, resource, 8)
    for rank in range(2):
        labels = {"batch.kubernetes.io/job-name": "gang"}
        pod(cluster, f"gang-{rank}", resource, 4, metadata={"labels": labels})
    with loop_on(cluster, resource) as (loop, kept):
        eventually(seen(loop, "gang"), "the gang seen")
        eventually(lambda: len(loop.view.gates()) == 2, "both gates seen")
        loop.turn(time.time())
    assert [decision.seen["gpus"] for decision in kept[:1]] == [8.0]
    assert all(CONTROLLER not in gates(cluster, f"gang-{rank}") for rank in range(2))


def test_watching_writes_nothing_and_needs_no_verb_that_writes(cluster: Cluster, resource: str) -> None:
    gpu_node(cluster, resource, 8)
    for name in ("a", "b"):
        pod(cluster, name, resource, 8)
    pod(cluster, "ungated", resource, 8, gated=False)
    reads = scheduling_rights(act=False, kueue=False, kinds=("Job",))
    assert {right.verb for right in reads} == {"list", "watch"}
    kube = client_with(cluster, rules_of(reads))
    with loop_on(cluster, resource, kube, act=False) as (loop, kept):
        eventually(seen(loop, "a", "b", "ungated"), "all jobs seen")
        loop.turn(time.time())
        count = len(kept)
        loop.turn(time.time())
    assert count == 3
    assert len(kept) == count, "nothing changed its mind"
    assert all(CONTROLLER in gates(cluster, name) for name in ("a", "b"))


def test_acting_needs_just_its_rights_and_uses_each(cluster: Cluster, resource: str) -> None:
    gpu_node(cluster, resource, 8)
    for name in ("a", "b"):
        pod(cluster, name, resource, 8)
    gated_job(cluster, "j", resource)
    queue, text = volcano_queue(cluster), f"8 GPUs are out of use: {cluster.name('n')}"
    wanted = scheduling_rights(act=True, kueue=False, kinds=("Job",))
    kube = client_with(cluster, rules_of(wanted))
    if cluster.server is not None:
        cluster.server.requests.clear()
    with loop_on(cluster, resource, kube) as (loop, _kept):
        eventually(seen(loop, "a", "b", "j"), "all jobs seen")
        loop.around.coming = lambda: text
        for _ in range(2):
            loop.turn(time.time())
            assert loop.controller.failures == {}
    told = [e for e in cluster.core.list_namespaced_event("default").items if e.message == text]
    for event in told:
        cluster.cleanup(cluster.core.delete_namespaced_event, event.metadata.name, "default")
    assert [(e.involved_object.kind, e.involved_object.name) for e in told] == [("Queue", queue)], "told once"
    if cluster.server is not None:
        asked = asked_by_us(cluster)
        assert asked <= wanted
        # a server that streams its lists is asked for none; an older one is
        assert {right.verb for right in wanted - asked} <= {"list"}


def volcano_queue(cluster: Cluster) -> str:
    cluster.define("scheduling.volcano.sh", "v1beta1", "Queue", scope="Cluster")
    name = cluster.name("queue")
    body = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": {}}
    custom: Any = client.CustomObjectsApi(cluster.api)
    custom.create_cluster_custom_object("scheduling.volcano.sh", "v1beta1", "queues", body)
    return name


def asked_by_us(cluster: Cluster) -> set[Right]:
    """What service accounts asked the server for."""
    assert cluster.server is not None
    return {
        Right(what.verb, what.group, what.resource, what.subresource)
        for user, what in cluster.server.requests
        if "serviceaccount" in str(user)
    }


def gated_job(cluster: Cluster, name: str, resource: str) -> None:
    amount = {resource: "4"}
    container = {"name": "c", "image": "registry.invalid/none", "resources": {"limits": amount, "requests": amount}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    metadata = {"name": name, "annotations": {"kueue.x-k8s.io/admission-gated-by": CONTROLLER}}
    body = {
        "metadata": metadata,
        "spec": {"suspend": True, "parallelism": 2, "completions": 2, "template": template},
    }
    client.BatchV1Api(cluster.api).create_namespaced_job(cluster.namespace, body)


def test_work_stays_off_gpus_that_detectors_call_ill_and_off_cordoned_nodes(
    cluster: Cluster, resource: str
) -> None:
    ill, cordoned = gpu_node(cluster, resource, 8), gpu_node(cluster, resource, 8)
    cluster.core.patch_node(cordoned, {"spec": {"unschedulable": True}})
    pod(cluster, "a", resource, 8)
    with loop_on(cluster, resource, ill=lambda: {ill: 1}) as (loop, kept):
        eventually(seen(loop, "a"), "the job seen")
        eventually(lambda: not loop.view._nodes[cordoned].takes if seen(loop, "a")() else False, "the cordon seen")
        loop.turn(time.time())
    assert CONTROLLER in gates(cluster, "a")
    assert kept[0].executed["verb"] == "hold"
    assert kept[0].seen["healthy_gpus"] == 7.0


def preferred(cluster: Cluster, name: str) -> list[tuple[str, list[str]]]:
    spec = cluster.core.read_namespaced_pod(name, cluster.namespace).spec
    kinds = spec.affinity and spec.affinity.node_affinity
    terms = (kinds and kinds.preferred_during_scheduling_ignored_during_execution) or []
    return [(each.operator, each.values) for term in terms for each in term.preference.match_expressions]


def host_of(cluster: Cluster, node: str) -> str:
    return str((cluster.core.read_node(node).metadata.labels or {}).get("kubernetes.io/hostname", node))


def test_a_pod_prefers_the_node_of_our_order_and_keeps_off_one_with_an_incident(
    cluster: Cluster, resource: str
) -> None:
    ill, well = gpu_node(cluster, resource, 8), gpu_node(cluster, resource, 8)
    pod(cluster, "a", resource, 8)
    with loop_on(cluster, resource, ill=lambda: {ill: 1}) as (loop, kept):
        eventually(seen(loop, "a"), "the job seen")
        eventually(lambda: len(loop.view.snapshot(time.time()).names) == 2, "both nodes seen")
        loop.turn(time.time())
        assert loop.controller.failures == {}
    assert CONTROLLER not in gates(cluster, "a")
    wanted = [("In", [host_of(cluster, well)]), ("NotIn", [host_of(cluster, ill)])]
    assert preferred(cluster, "a") == wanted
    assert kept[-1].executed["prefer"] == kept[-1].read_back["prefer"] == [host_of(cluster, well)]
    assert kept[-1].mismatch == ""


@pytest.mark.parametrize(
    ("strategy", "host", "guest"),
    [
        ("time-slicing", "host", "guest"),
        ("none", "host", "guest"),
        ("time-slicing", "host", "host"),
        ("time-slicing", "", "guest"),
    ],
)
def test_on_a_node_that_shares_its_gpus_a_job_starts_beside_one_that_it_does_not_slow_much(
    cluster: Cluster, resource: str, strategy: str, host: str, guest: str
) -> None:
    """And on one that does not, or where an owner did not opt in, it waits: its neighbour stays a suggestion."""
    shared, other = gpu_node(cluster, resource, 8), gpu_node(cluster, resource, 4)
    labels = {"nvidia.com/gpu.sharing-strategy": strategy, "nvidia.com/gpu.replicas": "2"}
    cluster.core.patch_node(shared, {"metadata": {"labels": labels}})
    count = 4 if strategy == "time-slicing" else 8
    may = (strategy, host, guest) == ("time-slicing", "host", "guest")
    as_host, as_guest = ({"annotations": {"nightshift.dev/share": said}} if said else {} for said in (host, guest))
    pod(cluster, "mild", resource, count, gated=False, nodeName=shared, metadata=as_host)
    pod(cluster, "unlike", resource, 4, gated=False, nodeName=other)
    pod(cluster, "next-2", resource, count, metadata=as_guest)
    light, heavy = np.asarray([0.45, 0.04, 0.04, 0.2]), np.asarray([1.0, 0.9, 0.9, 0.9])
    with loop_on(cluster, resource) as (loop, kept):
        means = loop.loads._means
        means[f"{cluster.namespace}/mild"], means[f"{cluster.namespace}/unlike"] = light, heavy
        loop.loads._newest[f"{cluster.namespace}/next"] = light  # as an earlier repeat of it was measured
        eventually(seen(loop, "mild", "unlike", "next-2"), "all jobs seen")
        eventually(lambda: bool(loop.view.snapshot(time.time()).shares) == (count == 4), "the label seen")
        loop.turn(time.time())
        assert loop.controller.failures == {}
    (receipt,) = [each for each in kept if each.job.endswith("/next-2")][-1:]
    assert f"{cluster.namespace}/mild on {shared}" in receipt.seen["beside"]
    assert receipt.seen["shares"] == may
    assert (CONTROLLER not in gates(cluster, "next-2")) == may
    assert preferred(cluster, "next-2") == ([("In", [host_of(cluster, shared)])] if may else [])


def test_whoever_people_put_first_goes_first_and_who_opted_out_goes_at_once(
    cluster: Cluster, resource: str
) -> None:
    gpu_node(cluster, resource, 8)
    name = cluster.name("urgent")
    classes = client.SchedulingV1Api(cluster.api)
    classes.create_priority_class({"metadata": {"name": name}, "value": 1000})
    cluster.cleanup(classes.delete_priority_class, name)
    pod(cluster, "early", resource, 8)
    pod(cluster, "urgent", resource, 8, priorityClassName=name, priority=1000)
    pod(cluster, "out", resource, 8, metadata={"labels": {"nightshift-opt-out": "true"}})
    with loop_on(cluster, resource) as (loop, _kept):
        eventually(seen(loop, "early", "urgent", "out"), "all jobs seen")
        loop.turn(time.time())
    shut = {each for each in ("early", "urgent", "out") if CONTROLLER in gates(cluster, each)}
    assert shut == {"early"}


def test_halted_or_not_promoted_every_gate_opens_as_if_nobody_steered(cluster: Cluster, resource: str) -> None:
    gpu_node(cluster, resource, 8)
    for name in ("a", "b"):
        pod(cluster, name, resource, 8)
    with loop_on(cluster, resource, halted=lambda: True) as (loop, _kept):
        eventually(seen(loop, "a", "b"), "both jobs seen")
        loop.turn(time.time())
    assert not any(CONTROLLER in gates(cluster, name) for name in ("a", "b"))


def test_a_workload_of_kueue_is_let_in_by_our_check_moved_in_its_queue_and_seen_once(
    kueue: Cluster,  # noqa: F811
    resource: str,
) -> None:
    gpu_node(kueue, resource, 8)
    amount = {resource: "8"}
    container = {"name": "c", "image": "registry.invalid/none", "resources": {"limits": amount, "requests": amount}}
    sets = [{"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}]
    for name in ("first", "second"):
        workload(kueue, name, podSets=sets, quota=False)
    wanted = scheduling_rights(act=True, kueue=True, kinds=("Job",))
    kube = client_with(kueue, rules_of(wanted))
    if kueue.server is not None:
        kueue.server.requests.clear()
    with loop_on(kueue, resource, kube, with_kueue=True) as (loop, kept):
        eventually(seen(loop, "first", "second"), "both workloads seen")
        eventually(lambda: len(loop.view.gates()) == 2, "both gates seen")
        loop.turn(time.time())
        assert loop.controller.failures == {}
    states = {
        name: {s["name"]: s["state"] for s in read(kueue, name)["status"]["admissionChecks"]}
        for name in ("first", "second")
    }
    assert sorted(state["ours"] for state in states.values()) == ["Pending", "Ready"]
    assert {state["theirs"] for state in states.values()} == {"Pending"}
    held = next(name for name, state in states.items() if state["ours"] == "Pending")
    assert float(read(kueue, held)["metadata"]["annotations"][HOLD_UNTIL]) > time.time()
    assert {decision.seen["gpus"] for decision in kept} == {8.0}
    assert int(read(kueue, held)["metadata"]["annotations"][BOOST]) > 0
    assert not any(clip.constraint == "boost" for decision in kept for clip in decision.clips)
    if kueue.server is not None:
        assert asked_by_us(kueue) <= wanted
        # pods and jobs that are gated themselves: the test above opens their gates
        unused = {right for right in wanted - asked_by_us(kueue) if right.group == "kueue.x-k8s.io"}
        assert {right.verb for right in unused} <= {"list"}


def test_a_view_that_heard_nothing_decides_nothing() -> None:
    def nobody() -> KubeClient:
        return KubeClient.connect(AccessSettings(kubeconfig=Path("/nowhere/kubeconfig")))

    view = QueueView(nobody, SchedulingSettings(enabled=True))
    view.start(5.0)
    with pytest.raises(StaleView, match="nodes"):
        view.snapshot(0.0)
    view.close()


def test_the_daemon_runs_it_with_receipts_in_its_store(cluster: Cluster, resource: str, tmp_path: Path) -> None:
    gpu_node(cluster, resource, 8)
    pod(cluster, "a", resource, 8)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(cluster.kubeconfig))
    source = {"type": "kubernetes", "access": "mine"}
    settings = Settings(
        state_dir=tmp_path / "state",
        console={"enabled": False},
        sources=(source,),
        tick_s=1.0,
        scheduling={
            "enabled": True,
            "act": True,
            "every_s": 1.0,
            "access": "mine",
        },
        kubernetes={"mine": {"kubeconfig": kubeconfig}},
        labels={"gpu_resource": resource},
    )  # type: ignore[arg-type]
    app = App(settings, clock=WallClock())
    app.start()
    try:
        assert app.scheduling is not None
        name = f"{cluster.namespace}/a"

        def opened() -> bool:
            app.tick()
            return CONTROLLER not in gates(cluster, "a")

        eventually(opened, "the gate opened: nobody has promoted the order, so as without us")

        def kept() -> ControlDecision | None:
            found = [d for d in app.policies.receipts.newest("scheduling") if d.job == name and d.read_back]
            return found[0] if found else None

        decision = eventually(kept, "its receipt stored")
        assert decision.executed["verb"] == "start"
        assert b"nightshift_scheduling_decisions_total" in app.metrics_page()
    finally:
        app.stop()


def test_off_by_default() -> None:
    assert not Settings().scheduling.enabled
    assert Metrics("t").scheduling_gates is not None
