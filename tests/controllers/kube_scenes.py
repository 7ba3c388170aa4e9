"""Jobs and their pods on a cluster without a Job controller, for tests of actions that take several calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kubernetes import client, config

from collectors.base import Temporary
from controllers.actuators.kube_client import KubeClient
from controllers.actuators.kube_rights import Right
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


def client_with(
    cluster: Cluster, rules: list[dict[str, list[str]]], own: list[dict[str, list[str]]] | None = None
) -> KubeClient:
    """A client with a service account that has just these rules: in the whole cluster, and in the test's
    namespace."""
    name = cluster.name("nightshift")
    cluster.core.create_namespaced_service_account(cluster.namespace, {"metadata": {"name": name}})
    rbac = client.RbacAuthorizationV1Api(cluster.api)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    rbac.create_cluster_role({"metadata": {"name": name}, "rules": rules})
    rbac.create_cluster_role_binding({"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    if own is not None:
        here = {**role, "kind": "Role"}
        rbac.create_namespaced_role(cluster.namespace, {"metadata": {"name": name}, "rules": own})
        body = {"metadata": {"name": name}, "roleRef": here, "subjects": [subject]}
        rbac.create_namespaced_role_binding(cluster.namespace, body)
    cluster.cleanup(rbac.delete_cluster_role, name)
    cluster.cleanup(rbac.delete_cluster_role_binding, name)
    request = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    token = cluster.core.create_namespaced_service_account_token(name, cluster.namespace, request).status.token
    names = [user["name"] for user in cluster.kubeconfig["users"]]
    kubeconfig = {**cluster.kubeconfig, "users": [{"name": names[0], "user": {"token": token}}]}
    return KubeClient(config.new_client_from_config_dict(kubeconfig))


def rules_of(rights: frozenset[Right]) -> list[dict[str, list[str]]]:
    return [
        {
            "apiGroups": [right.group],
            "resources": [right.resource + (f"/{right.subresource}" if right.subresource else "")],
            "verbs": [right.verb],
        }
        for right in sorted(rights)
    ]
