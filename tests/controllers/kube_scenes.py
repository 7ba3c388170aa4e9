"""Jobs and their pods on a cluster without a Job controller, for tests of actions that take several calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kubernetes import client

from collectors.base import Temporary
from tests.kubernetes_api.cluster import Cluster


def finished(act: Callable[[], Any], between: Callable[[], None] = lambda: None, rounds: int = 5) -> Any:
    """Calls until the action is no longer under way."""
    for _ in range(rounds):
        try:
            return act()
        except Temporary:
            between()
    raise AssertionError(f"still under way after {rounds} calls")


def job(cluster: Cluster, name: str, nodes: list[str]) -> str:
    """A Job whose pods run on the given nodes, without a Job controller."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "registry.invalid/none"}]}}
    body = {
        "metadata": {"name": name},
        "spec": {"parallelism": len(nodes), "completions": len(nodes), "template": template},
    }
    made = client.BatchV1Api(cluster.api).create_namespaced_job(cluster.namespace, body)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": made.metadata.uid, "controller": True}
    for rank, node in enumerate(nodes):
        labels = {"batch.kubernetes.io/job-name": name}
        cluster.pod(f"{name}-{rank}", node, labels=labels, ownerReferences=[owner])
    return f"{cluster.namespace}/{name}"


def stop_pods(cluster: Cluster, name: str) -> Callable[[], None]:
    """What the Job controller and kubelets do once a job is suspended."""

    def stop() -> None:
        if client.BatchV1Api(cluster.api).read_namespaced_job(name, cluster.namespace).spec.suspend:
            cluster.core.delete_collection_namespaced_pod(
                cluster.namespace, label_selector=f"batch.kubernetes.io/job-name={name}", grace_period_seconds=0
            )

    return stop
