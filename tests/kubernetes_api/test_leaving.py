"""How objects leave: evictions under budgets, graceful deletes and finalizers, as a real kube-apiserver answers."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.rest import ApiException

from tests.kubernetes_api.cluster import Cluster, eventually, refused


def budget(cluster: Cluster, app: str, **spec: Any) -> str:
    name = f"budget-{app}-{len(spec)}"
    body = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": app}}, **spec}}
    client.PolicyV1Api(cluster.api).create_namespaced_pod_disruption_budget(cluster.namespace, body)
    return name


def settled(cluster: Cluster, name: str, pods: int) -> None:
    """Waits until the disruption controller has counted the pods; where none runs, counts for it."""
    policy = client.PolicyV1Api(cluster.api)
    if not cluster.controlled:
        found = policy.read_namespaced_pod_disruption_budget(name, cluster.namespace)
        needed = found.spec.min_available
        counts = {"currentHealthy": pods, "desiredHealthy": needed, "expectedPods": pods}
        status = {**counts, "disruptionsAllowed": pods - needed, "observedGeneration": found.metadata.generation}
        policy.patch_namespaced_pod_disruption_budget_status(name, cluster.namespace, {"status": status})
        return

    def is_counted() -> bool:
        found = policy.read_namespaced_pod_disruption_budget(name, cluster.namespace)
        status = found.status
        current = status and status.observed_generation == found.metadata.generation
        return bool(current and status.expected_pods == pods == status.current_healthy)

    eventually(is_counted, f"budget {name} reconciled")


def evict(cluster: Cluster, pod: str, **options: Any) -> None:
    body = {"metadata": {"name": pod, "namespace": cluster.namespace}, **options}
    cluster.core.create_namespaced_pod_eviction(pod, cluster.namespace, body)


def test_an_eviction_that_a_budget_forbids_is_429_and_the_pod_stays(cluster: Cluster) -> None:
    pod = cluster.pod("a1", cluster.node(), labels={"app": "a"})
    settled(cluster, budget(cluster, "a", minAvailable=1), 1)
    with pytest.raises(ApiException) as error:
        evict(cluster, pod)
    refused(error, 429, "Cannot evict pod as it would violate the pod's disruption budget.")
    assert cluster.core.read_namespaced_pod(pod, cluster.namespace).metadata.deletion_timestamp is None


def test_an_eviction_within_the_budget_spends_it(cluster: Cluster) -> None:
    node = cluster.node()
    first, second = (cluster.pod(name, node, labels={"app": "b"}) for name in ("b1", "b2"))
    settled(cluster, budget(cluster, "b", minAvailable=1), 2)
    evict(cluster, first)
    pod = cluster.core.read_namespaced_pod(first, cluster.namespace)
    assert pod.metadata.deletion_timestamp is not None
    with pytest.raises(ApiException) as error:
        evict(cluster, second)
    assert error.value.status == 429


def test_an_eviction_of_a_pod_that_is_gone_is_404(cluster: Cluster) -> None:
    with pytest.raises(ApiException) as error:
        evict(cluster, "gone")
    assert error.value.status == 404


def test_a_pod_under_two_budgets_cannot_be_evicted(cluster: Cluster) -> None:
    pod = cluster.pod("c1", cluster.node(), labels={"app": "c"})
    settled(cluster, budget(cluster, "c", minAvailable=0), 1)
    settled(cluster, budget(cluster, "c", minAvailable=0, unhealthyPodEvictionPolicy="AlwaysAllow"), 1)
    with pytest.raises(ApiException) as error:
        evict(cluster, pod)
    refused(error, 500, "more than one PodDisruptionBudget")


def test_a_dry_run_eviction_leaves_the_pod(cluster: Cluster) -> None:
    pod = cluster.pod("d1", cluster.node())
    cluster.core.create_namespaced_pod_eviction(
        pod, cluster.namespace, {"metadata": {"name": pod, "namespace": cluster.namespace}}, dry_run="All"
    )
    assert cluster.core.read_namespaced_pod(pod, cluster.namespace).metadata.deletion_timestamp is None


def test_a_pod_on_a_node_is_deleted_gracefully_and_at_once_with_zero_grace(cluster: Cluster) -> None:
    pod = cluster.pod("e1", cluster.node())
    cluster.core.delete_namespaced_pod(pod, cluster.namespace)
    assert cluster.core.read_namespaced_pod(pod, cluster.namespace).metadata.deletion_grace_period_seconds == 30
    cluster.core.delete_namespaced_pod(pod, cluster.namespace, grace_period_seconds=0)
    with pytest.raises(ApiException) as error:
        cluster.core.read_namespaced_pod(pod, cluster.namespace)
    assert error.value.status == 404


def test_a_finalizer_holds_an_object_until_it_is_removed(cluster: Cluster) -> None:
    body = {"metadata": {"name": "held", "finalizers": ["nightshift.dev/hold"]}}
    cluster.core.create_namespaced_config_map(cluster.namespace, body)
    cluster.core.delete_namespaced_config_map("held", cluster.namespace)
    held = cluster.core.read_namespaced_config_map("held", cluster.namespace)
    assert held.metadata.deletion_timestamp is not None
    patch = [{"op": "remove", "path": "/metadata/finalizers"}]
    cluster.core.patch_namespaced_config_map("held", cluster.namespace, patch)
    with pytest.raises(ApiException) as error:
        cluster.core.read_namespaced_config_map("held", cluster.namespace)
    assert error.value.status == 404


def test_a_delete_with_another_uid_is_a_conflict(cluster: Cluster) -> None:
    cluster.core.create_namespaced_config_map(cluster.namespace, {"metadata": {"name": "mine"}})
    with pytest.raises(ApiException) as error:
        cluster.core.delete_namespaced_config_map(
            "mine", cluster.namespace, body={"preconditions": {"uid": "other"}}
        )
    refused(error, 409, "the UID in the precondition (other) does not match", "might have been deleted and then")


def test_a_jobs_status_that_no_controller_would_write_is_refused(cluster: Cluster) -> None:
    """A Job that has ended has no active pods, and the start of one that is not suspended stays."""
    batch = client.BatchV1Api(cluster.api)
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "registry.invalid/none"}]}}
    batch.create_namespaced_job(cluster.namespace, {"metadata": {"name": "runs"}, "spec": {"template": template}})
    if cluster.controlled:
        cluster.made_pods("batch.kubernetes.io/job-name=runs", 1)
    then = {"status": "True", "lastTransitionTime": "2026-11-21T12:00:00Z"}
    over = [{"type": kind, **then} for kind in ("FailureTarget", "Failed")]
    status = {"startTime": then["lastTransitionTime"], "active": 1, "conditions": over}
    with pytest.raises(ApiException) as error:
        batch.patch_namespaced_job_status("runs", cluster.namespace, {"status": status})
    refused(error, 422, "active>0 is invalid for finished job")
    if cluster.controlled:
        refused(error, 422, "startTime cannot be updated for unsuspended job")
