"""The Kubernetes collector against an API server over HTTP: relations over time, and honest when it is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from nightshift.collectors.frame import Reason
from nightshift.collectors.kubernetes.nodes_and_pods import NAMED_ALIKE, KubernetesCollector, KubernetesSettings
from nightshift.collectors.subject import TAKES_WORK_SINCE, Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Batch
from tests.kubernetes_api.cluster import Cluster
from tests.kubernetes_api.server import ApiServer

K = SubjectKind
GPU_POD = [{"name": "main", "image": "registry.invalid/none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]


@pytest.fixture
def collector(cluster: Cluster, tmp_path: Path) -> Iterator[KubernetesCollector]:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(cluster.kubeconfig))
    made = KubernetesCollector(KubernetesSettings(access={"kubeconfig": path}))
    yield made
    made.close()


def gpu_pod(cluster: Cluster, name: str, node: str | None, **metadata: Any) -> Subject:
    spec: dict[str, Any] = {"containers": GPU_POD, "automountServiceAccountToken": False}
    body = {"metadata": {"name": name, **metadata}, "spec": spec | ({"nodeName": node} if node else {})}
    cluster.core.create_namespaced_pod(cluster.namespace, body)
    return Subject(K.POD, f"{cluster.namespace}/{name}")


def until(look: Callable[[], Batch], holds: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Collects until what the API server was told has arrived."""
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "the change did not arrive"
        time.sleep(0.02)
        look()


def test_nodes_and_gpu_pods_become_relations_with_rack_job_and_rank(
    cluster: Cluster, collector: KubernetesCollector
) -> None:
    labels = {"topology.kubernetes.io/rack": "r7", "nvidia.com/gpu.clique": "d1"}
    name = cluster.node(labels=labels, unschedulable=True)
    indexed = {
        "batch.kubernetes.io/job-name": "train",
        "batch.kubernetes.io/job-completion-index": "3",
    }
    pod = gpu_pod(cluster, "train-3-abcde", name, labels=indexed)
    cluster.pod("no-gpu", name)
    inventory = Inventory()
    batch = collector.collect(100.0, inventory, 30.0)
    assert [status.ok for status in batch.sources] == [True, True]
    node = Subject(K.NODE, name)
    assert inventory.above(node, K.RACK, 100.0) == Subject(K.RACK, "r7")
    assert inventory.above(node, K.NVLINK_DOMAIN, 100.0) == Subject(K.NVLINK_DOMAIN, "d1")
    assert inventory.fact(node, "unschedulable") == "true"
    job = Subject(K.JOB, f"{cluster.namespace}/train")
    assert inventory.above(pod, K.JOB, 100.0) == job
    assert inventory.above(pod, K.NODE, 100.0) == node
    assert inventory.parents(Subject(K.RANK, f"{job.name}#3"), 100.0) != []
    assert inventory.children(node, 100.0, K.POD) == [pod], "a pod without a GPU is not kept"


def test_no_plan_rests_on_a_node_whose_name_two_clusters_have(
    cluster: Cluster, collector: KubernetesCollector, tmp_path: Path
) -> None:
    """It gets a uid that no machine has. In one cluster, a new machine of that name replaces the old one."""
    name = cluster.node("n")
    node, inventory = Subject(K.NODE, name), Inventory()

    def renewed() -> str:
        cluster.core.delete_node(name)
        made = cluster.core.create_node({"metadata": {"name": name, "labels": {"nightshift.dev/test": "node"}}})
        return str(made.metadata.uid)

    collector.collect(100.0, inventory, 30.0)
    uid = renewed()
    until(lambda: collector.collect(101.0, inventory, 30.0), lambda: inventory.fact(node, "uid") == uid)
    with ApiServer() as other:
        path = tmp_path / "other"
        path.write_text(yaml.safe_dump(other.kubeconfig()))
        with config.new_client_from_config_dict(other.kubeconfig()) as api:
            client.CoreV1Api(api).create_node({"metadata": {"name": name}})
        second = KubernetesCollector(KubernetesSettings(access={"kubeconfig": path}))
        second.collect(102.0, inventory, 30.0)
        assert inventory.fact(node, "uid") == NAMED_ALIKE
        cluster.core.patch_node(name, {"spec": {"unschedulable": True}})
        seen = lambda: inventory.fact(node, "unschedulable") == "true"  # noqa: E731
        until(lambda: collector.collect(103.0, inventory, 30.0), seen)
        assert inventory.fact(node, "uid") == NAMED_ALIKE
        second.close()


def test_the_image_of_a_daemon_that_serves_the_gpus_is_a_version_of_its_node(
    cluster: Cluster, collector: KubernetesCollector
) -> None:
    inventory, node = Inventory(), cluster.node()
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "device-plugin", "uid": "u", "controller": True}
    for number, image in enumerate(("nvcr.io/k8s-device-plugin:v0.17.0", "nvcr.io/k8s-device-plugin:v0.18.0")):
        spec = {"containers": [{"name": "main", "image": image}], "nodeName": node}
        name = cluster.name(f"nvidia-device-plugin-{number}")
        body = {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec}
        cluster.core.create_namespaced_pod(cluster.namespace, body)
        expected = {**inventory.facts(Subject(K.NODE, node)), "image of device-plugin": image}.items()
        until(
            lambda: collector.collect(time.time(), inventory, 5.0),
            lambda expected=expected: expected <= inventory.facts(Subject(K.NODE, node)).items(),
        )


def test_a_jobs_own_uid_is_told_by_the_pods_that_it_made(cluster: Cluster, collector: KubernetesCollector) -> None:
    """Not by those of a job within a job set, whose uid is not the set's."""
    node, own, within = cluster.node(), cluster.owner(), cluster.owner()
    gpu_pod(cluster, "solo-0", node, ownerReferences=[own], labels={"job-name": own["name"]})
    gpu_pod(cluster, "set-0", node, ownerReferences=[within], labels={"jobset.sigs.k8s.io/jobset-name": "set"})
    inventory = Inventory()
    collector.collect(100.0, inventory, 30.0)
    assert inventory.fact(Subject(K.JOB, f"{cluster.namespace}/{own['name']}"), "uid") == own["uid"]
    assert inventory.fact(Subject(K.JOB, f"{cluster.namespace}/set"), "uid") is None


def test_a_change_arrives_by_watch_and_what_was_stays_known(
    cluster: Cluster, collector: KubernetesCollector
) -> None:
    name = cluster.node()
    pod = gpu_pod(cluster, "moves", name, labels={"job-name": "j"})
    inventory = Inventory()
    collector.collect(100.0, inventory, 30.0)
    cluster.core.patch_node(name, {"spec": {"unschedulable": True}})
    cluster.core.delete_namespaced_pod("moves", cluster.namespace, grace_period_seconds=0)

    def look() -> Batch:
        return collector.collect(200.0, inventory, 30.0)

    until(look, lambda: inventory.fact(Subject(K.NODE, name), "unschedulable") == "true")
    until(look, lambda: inventory.parents(pod, 200.0) == [])
    assert inventory.fact(Subject(K.NODE, name), TAKES_WORK_SINCE) == "100.0"
    cluster.core.patch_node(name, {"spec": {"unschedulable": None}})
    until(look, lambda: inventory.fact(Subject(K.NODE, name), TAKES_WORK_SINCE) == "200.0")
    assert inventory.above(pod, K.NODE, 150.0) == Subject(K.NODE, name), "who held it when"


def test_the_api_servers_word_on_a_job_outweighs_the_pods_name(
    cluster: Cluster, collector: KubernetesCollector
) -> None:
    pod = gpu_pod(cluster, "set-workers-0-1", cluster.node(), labels={"jobset.sigs.k8s.io/jobset-name": "set"})
    inventory = Inventory()
    collector.collect(100.0, inventory, 30.0)
    guessed = Subject(K.JOB, f"{cluster.namespace}/set-workers-0")
    inventory.observe(pod, guessed, 105.0)
    assert inventory.parents(pod, 105.0, K.JOB) == [Subject(K.JOB, f"{cluster.namespace}/set")]


def test_a_compacted_watch_lists_again_and_loses_nothing(cluster: Cluster, collector: KubernetesCollector) -> None:
    if cluster.server is None:
        pytest.skip("a real server compacts every five minutes, not on request")
    inventory = Inventory()
    gone, stays = cluster.node("gone"), cluster.node("stays")
    collector.collect(100.0, inventory, 30.0)
    collector.close()
    again = KubernetesCollector(KubernetesSettings(access=collector._settings.access))
    again._held = collector._held
    cluster.core.delete_node(gone)
    cluster.server.api.storage.compact()
    try:
        again.collect(200.0, inventory, 30.0)
        cluster.server.api.storage.compact()
        late = cluster.node("late")
        nodes = {s.name for s in inventory.subjects(K.NODE, 200.0)}
        assert stays in nodes
        until(
            lambda: again.collect(300.0, inventory, 30.0),
            lambda: late in {s.name for s in inventory.subjects(K.NODE, 300.0)},
        )
    finally:
        again.close()


def test_a_lost_server_is_a_status_with_a_reason_and_relations_stay(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(cluster.kubeconfig))
    now = [0.0]
    collector = KubernetesCollector(KubernetesSettings(access={"kubeconfig": path}), clock=lambda: now[0])
    try:
        inventory = Inventory()
        name = cluster.node()
        collector.collect(100.0, inventory, 30.0)
        now[0] = 1000.0
        batch = collector.collect(200.0, inventory, 30.0)
        assert [(s.ok, s.reason) for s in batch.sources] == [(False, Reason.STALE)] * 2
        assert inventory.parents(Subject(K.NODE, name), 200.0) == [inventory.cluster]
    finally:
        collector.close()


@pytest.mark.parametrize(("token", "reason"), [("forged", Reason.UNAUTHORISED)])
def test_a_refused_identity_is_told(cluster: Cluster, tmp_path: Path, token: str, reason: Reason) -> None:
    kubeconfig = {**cluster.kubeconfig, "users": [{"name": "x", "user": {"token": token}}]}
    context = {**cluster.kubeconfig["contexts"][0]["context"], "user": "x"}
    kubeconfig |= {"contexts": [{"name": "x", "context": context}], "current-context": "x"}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    collector = KubernetesCollector(KubernetesSettings(access={"kubeconfig": path}))
    try:
        batch = collector.collect(100.0, Inventory(), 30.0)
        assert [(s.ok, s.reason) for s in batch.sources] == [(False, reason)] * 2
        assert "401" in batch.sources[0].detail
    finally:
        collector.close()


OPERATORS = [
    ("Job", {"batch.kubernetes.io/job-name": "j"}, "Job"),
    ("JobSet", {"jobset.sigs.k8s.io/jobset-name": "j", "batch.kubernetes.io/job-name": "j-workers-0"}, "JobSet"),
    ("PyTorchJob", {"training.kubeflow.org/job-name": "j"}, "PyTorchJob"),
    ("RayJob", {"ray.io/originated-from-cr-name": "j", "ray.io/originated-from-crd": "RayJob"}, "RayJob"),
    (
        "RayService",
        {"ray.io/originated-from-cr-name": "j", "ray.io/originated-from-crd": "RayService"},
        "RayService",
    ),
    ("Kueue", {"kueue.x-k8s.io/pod-group-name": "j", "kueue.x-k8s.io/queue-name": "research"}, "PodGroup"),
]


@pytest.mark.parametrize(("name", "labels", "kind"), OPERATORS, ids=[o[0] for o in OPERATORS])
def test_every_operators_pods_are_of_their_job(
    cluster: Cluster, collector: KubernetesCollector, name: str, labels: dict[str, str], kind: str
) -> None:
    """By the outermost owner's label, with its kind and its Kueue queue."""
    pod = gpu_pod(cluster, f"{name.lower()}-pod", cluster.node(), labels=labels)
    inventory = Inventory()
    collector.collect(100.0, inventory, 30.0)
    assert inventory.above(pod, K.JOB, 100.0) == Subject(K.JOB, f"{cluster.namespace}/j")
    assert inventory.fact(pod, "job_kind") == kind
    assert inventory.fact(pod, "queue") == ("research" if name == "Kueue" else "")


@pytest.mark.parametrize(
    "resource", ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "nvidia.com/gpumem", "cpu"]
)
def test_a_pod_with_a_part_of_a_gpu_is_known_as_one_with_a_whole(
    cluster: Cluster, collector: KubernetesCollector, resource: str
) -> None:
    """Its uid and job are what a restart is bound to; without them a StatefulSet's pod was not restarted at all."""
    box = {"name": "main", "image": "registry.invalid/none", "resources": {"limits": {resource: "1"}}}
    body = {
        "metadata": {"name": "serve-0", "labels": {"batch.kubernetes.io/job-name": "serve"}},
        "spec": {"containers": [box], "automountServiceAccountToken": False},
    }
    made = cluster.core.create_namespaced_pod(cluster.namespace, body)
    pod, inventory = Subject(K.POD, f"{cluster.namespace}/serve-0"), Inventory()
    collector.collect(100.0, inventory, 30.0)
    is_one = resource in ("nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared")
    assert inventory.fact(pod, "uid") == (made.metadata.uid if is_one else None)
    assert (inventory.above(pod, K.JOB, 100.0) is not None) is is_one


def test_a_label_that_several_operators_use_does_not_hide_whose_job_it_is(
    cluster: Cluster, collector: KubernetesCollector
) -> None:
    cluster.define("kubeflow.org", "v2beta1", "MPIJob")
    body: dict[str, Any] = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "j"}}
    made: Any = client.CustomObjectsApi(cluster.api).create_namespaced_custom_object(
        "kubeflow.org", "v2beta1", cluster.namespace, "mpijobs", body
    )
    owner = {"apiVersion": body["apiVersion"], "kind": "MPIJob", "name": "j", "uid": made["metadata"]["uid"]}
    labels = {"training.kubeflow.org/job-name": "j"}
    owners = [{**owner, "controller": True}]
    pod = gpu_pod(cluster, "j-worker-0", cluster.node(), labels=labels, ownerReferences=owners)
    inventory = Inventory()
    collector.collect(100.0, inventory, 30.0)
    assert inventory.fact(pod, "job_kind") == "MPIJob"


def test_the_rank_that_an_operator_put_into_the_environment_is_told(
    cluster: Cluster, collector: KubernetesCollector
) -> None:
    box = GPU_POD[0] | {"env": [{"name": "RANK", "value": "5"}, {"name": "WORLD_SIZE", "value": "8"}]}
    body = {
        "metadata": {"name": "j-worker-4", "labels": {"training.kubeflow.org/job-name": "j"}},
        "spec": {"containers": [box], "automountServiceAccountToken": False},
    }
    cluster.core.create_namespaced_pod(cluster.namespace, body)
    inventory = Inventory()
    collector.collect(100.0, inventory, 30.0)
    assert inventory.parents(Subject(K.RANK, f"{cluster.namespace}/j#5"), 100.0) != []


def test_an_object_that_cannot_be_understood_is_counted_and_the_watch_goes_on(
    cluster: Cluster, collector: KubernetesCollector
) -> None:
    good = cluster.node()
    project = collector._nodes._project

    def broken(obj: Any) -> Any:
        return int("1k") if obj["metadata"]["name"].startswith("odd") else project(obj)

    collector._nodes._project = broken
    cluster.node("odd")
    inventory = Inventory()
    batch = collector.collect(100.0, inventory, 30.0)
    assert batch.sources[0].rejected.get(Reason.MALFORMED, 0) >= 1, "one, and each time that it is written to"
    assert good in {s.name for s in inventory.subjects(K.NODE, 100.0)}
    late = cluster.node("late")
    until(
        lambda: collector.collect(200.0, inventory, 30.0),
        lambda: late in {s.name for s in inventory.subjects(K.NODE, 200.0)},
    )
