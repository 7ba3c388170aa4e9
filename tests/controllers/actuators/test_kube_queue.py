"""Gates, boosts and holds on an API server with Kueue's resources, ours or a real one, without its controllers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from kubernetes import client

from nightshift.collectors.base import Permanent
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_queue import (
    BOOST,
    CONTROLLER,
    GATED_BY,
    HOLD_UNTIL,
    GangGate,
    KubernetesQueue,
    QueueSettings,
)
from nightshift.controllers.scheduling.steer import SteerVerb
from tests.kubernetes_api.cluster import Cluster

GROUP, VERSION = "kueue.x-k8s.io", "v1beta1"
IMAGE = {"name": "c", "image": "registry.invalid/none"}


@pytest.fixture
def kueue(cluster: Cluster) -> Cluster:
    """Kueue's resources, a queue that evicts nobody and one that does, and an admission check of ours."""
    for kind, scope in (
        ("Workload", "Namespaced"), ("LocalQueue", "Namespaced"),
        ("AdmissionCheck", "Cluster"), ("ClusterQueue", "Cluster"),
    ):  # fmt: skip
        cluster.define(GROUP, VERSION, kind, scope=scope)
    make(cluster, "AdmissionCheck", "ours", {"controllerName": CONTROLLER})
    make(cluster, "AdmissionCheck", "theirs", {"controllerName": "example.com/other"})
    make(cluster, "ClusterQueue", "mild", {"preemption": {"withinClusterQueue": "Never"}})
    make(cluster, "ClusterQueue", "harsh", {"preemption": {"withinClusterQueue": "LowerPriority"}})
    for name in ("mild", "harsh"):
        make(cluster, "LocalQueue", name, {"clusterQueue": name})
    return cluster


def make(cluster: Cluster, kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> None:
    custom, plural = client.CustomObjectsApi(cluster.api), f"{kind.lower()}s"
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}
    if kind in ("AdmissionCheck", "ClusterQueue"):
        custom.create_cluster_custom_object(GROUP, VERSION, plural, body)
    else:
        custom.create_namespaced_custom_object(GROUP, VERSION, cluster.namespace, plural, body)


def workload(
    cluster: Cluster,
    name: str,
    queue: str = "mild",
    *,
    quota: bool = True,
    podSets: list[dict[str, Any]] | None = None,
    **annotations: str,
) -> str:
    make(cluster, "Workload", name, {"queueName": queue, "podSets": podSets or []}, annotations=annotations)
    checks = [
        {"name": check, "state": "Pending", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for check in ("theirs", "ours")
    ]
    conditions = [{"type": "QuotaReserved", "status": "True" if quota else "False"}]
    status = {"status": {"admissionChecks": checks, "conditions": conditions}}
    place = (GROUP, VERSION, cluster.namespace, "workloads")
    client.CustomObjectsApi(cluster.api).patch_namespaced_custom_object_status(*place, name, status)
    return f"{cluster.namespace}/{name}"


def read(cluster: Cluster, name: str) -> Any:
    place = (GROUP, VERSION, cluster.namespace, "workloads")
    return client.CustomObjectsApi(cluster.api).get_namespaced_custom_object(*place, name)


def queue_of(cluster: Cluster, *, now_s: float | None = None) -> KubernetesQueue:
    settings = QueueSettings(longest_hold_s=600.0)
    return KubernetesQueue(
        KubeClient(cluster.transport), settings, now_s=lambda: time.time() if now_s is None else now_s
    )


def mine(cluster: Cluster, gates: list[GangGate]) -> list[GangGate]:
    """On a real cluster others may have gates too."""
    return [gate for gate in gates if gate.name.startswith(f"{cluster.namespace}/")]


def gated_pod(cluster: Cluster, name: str) -> None:
    gates = [{"name": f"{CONTROLLER}-start"}, {"name": "example.com/quota"}]
    body = {"metadata": {"name": name}, "spec": {"containers": [IMAGE], "schedulingGates": gates}}
    cluster.core.create_namespaced_pod(cluster.namespace, body)


def gated_job(cluster: Cluster, name: str) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [IMAGE]}}
    metadata = {"name": name, "annotations": {GATED_BY: f"example.com/a, {CONTROLLER}"}}
    body = {"metadata": metadata, "spec": {"suspend": True, "template": template}}
    client.BatchV1Api(cluster.api).create_namespaced_job(cluster.namespace, body)


def test_our_check_turns_ready_and_nobody_elses_is_touched(kueue: Cluster) -> None:
    workload(kueue, "a")
    queue = queue_of(kueue)
    (gate,) = mine(kueue, queue.gates())
    assert (gate.kind, gate.name) == ("check", f"{kueue.namespace}/a")
    assert queue.open(gate)
    states = {state["name"]: state for state in read(kueue, "a")["status"]["admissionChecks"]}
    assert states["ours"]["state"] == "Ready"
    assert states["theirs"] == {
        "name": "theirs", "state": "Pending", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    assert not queue.open(gate), "a repeat finds it open"
    assert queue.read_back(gate).verb is SteerVerb.START


def test_our_name_comes_off_the_jobs_list_and_others_stay(cluster: Cluster) -> None:
    gated_job(cluster, "j")
    queue = queue_of(cluster)
    (gate,) = mine(cluster, queue.gates())
    assert queue.open(gate)
    found = client.BatchV1Api(cluster.api).read_namespaced_job("j", cluster.namespace)
    assert found.metadata.annotations[GATED_BY] == "example.com/a"
    assert not queue.open(gate)


def test_only_gates_with_our_prefix_are_taken_off_a_pod(cluster: Cluster) -> None:
    gated_pod(cluster, "p")
    queue = queue_of(cluster)
    (gate,) = mine(cluster, queue.gates())
    assert queue.open(gate)
    found = cluster.core.read_namespaced_pod("p", cluster.namespace)
    assert [g.name for g in found.spec.scheduling_gates] == ["example.com/quota"]


def test_what_a_dead_daemon_held_is_found_by_the_objects_alone_and_opened(kueue: Cluster) -> None:
    workload(kueue, "a")
    gated_pod(kueue, "p")
    gated_job(kueue, "j")
    before = queue_of(kueue)
    gates = mine(kueue, before.gates())
    assert {gate.kind for gate in gates} == {"check", "annotation", "pod"}
    for gate in gates:
        before.hold(gate, time.time() + 120.0)
        assert before.read_back(gate).verb is SteerVerb.HOLD
    assert mine(kueue, before.overdue()) == []
    del before  # it dies here
    after = queue_of(kueue, now_s=time.time() + 200.0)
    assert len(mine(kueue, after.release_overdue())) == 3
    assert mine(kueue, after.gates()) == []


def test_a_gate_that_nobody_ever_held_opens_by_its_age(cluster: Cluster) -> None:
    gated_pod(cluster, "p")
    assert mine(cluster, queue_of(cluster).overdue()) == []
    assert len(mine(cluster, queue_of(cluster, now_s=time.time() + 601.0).overdue())) == 1


def test_a_hold_longer_than_allowed_is_refused_and_a_garbled_one_counts_as_ended(cluster: Cluster) -> None:
    gated_pod(cluster, "p")
    queue = queue_of(cluster)
    (gate,) = mine(cluster, queue.gates())
    with pytest.raises(Permanent, match="longest_hold_s"):
        queue.hold(gate, time.time() + 10_000.0)
    garbled = {"metadata": {"annotations": {HOLD_UNTIL: "tomorrow"}}}
    cluster.core.patch_namespaced_pod("p", cluster.namespace, garbled)
    assert len(mine(cluster, queue.overdue())) == 1


def test_a_waiting_workload_is_boosted_and_given_back(kueue: Cluster) -> None:
    name = workload(kueue, "a", quota=False)
    queue = queue_of(kueue)
    assert queue.boost(name, 7) == ""
    assert read(kueue, "a")["metadata"]["annotations"][BOOST] == "7"
    assert queue.boost(name, 0) == ""
    assert BOOST not in (read(kueue, "a")["metadata"].get("annotations") or {})


@pytest.mark.parametrize(
    ("queue_name", "quota", "annotations", "said"),
    [
        ("harsh", False, {}, "evicts"),
        ("none", False, {}, "evicts"),
        ("mild", True, {}, "quota already"),
        ("mild", False, {BOOST: "40"}, "another client"),
    ],
)
def test_no_boost_that_could_evict_anybody_and_none_over_a_persons_own(
    kueue: Cluster, queue_name: str, quota: bool, annotations: dict[str, str], said: str
) -> None:
    name = workload(kueue, "a", queue_name, quota=quota, **annotations)
    assert said in queue_of(kueue).boost(name, 7)
    assert (read(kueue, "a")["metadata"].get("annotations") or {}).get(BOOST) == annotations.get(BOOST)


def test_without_kueue_there_are_only_pods_and_jobs(cluster: Cluster) -> None:
    assert mine(cluster, queue_of(cluster).gates()) == []
