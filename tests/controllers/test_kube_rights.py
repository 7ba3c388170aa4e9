"""The actuator knows, without acting, what its identity may not do."""

from __future__ import annotations

from kubernetes import client, config

from controllers.actuators.kube_client import KubeClient
from controllers.actuators.kubernetes import KubernetesActuator, KubernetesSettings
from tests.kubernetes_api.cluster import Cluster


def identity(cluster: Cluster, rules: list[dict[str, list[str]]]) -> KubernetesActuator:
    """An actuator with a service account that has just these rules in the whole cluster."""
    name = cluster.name("nightshift")
    cluster.core.create_namespaced_service_account(cluster.namespace, {"metadata": {"name": name}})
    rbac = client.RbacAuthorizationV1Api(cluster.api)
    rbac.create_cluster_role({"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    rbac.create_cluster_role_binding({"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    request = {"spec": {"audiences": [], "expirationSeconds": 3600}}
    token = cluster.core.create_namespaced_service_account_token(name, cluster.namespace, request).status.token
    kubeconfig = {**cluster.kubeconfig, "users": [{"name": "test", "user": {"token": token}}]}
    names = [user["name"] for user in cluster.kubeconfig["users"]]
    kubeconfig["users"][0]["name"] = names[0]
    api = config.new_client_from_config_dict(kubeconfig)
    return KubernetesActuator(KubernetesSettings(), KubeClient(api))


def test_an_administrator_lacks_nothing(cluster: Cluster) -> None:
    """The whole list is permitted, so doctor says that it works."""
    assert KubernetesActuator(KubernetesSettings(), KubeClient(cluster.api)).refused() == []


def test_what_a_role_leaves_out_is_named(cluster: Cluster) -> None:
    """A role that may look and cordon, and no more, is told what it lacks, verb and resource."""
    rules = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    ]
    lacks = identity(cluster, rules).refused()
    assert lacks == ["patch pods", "delete pods", "create pods/eviction", "get jobs", "patch jobs"]
