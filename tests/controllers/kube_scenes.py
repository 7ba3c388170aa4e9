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


def boots(cluster: Cluster, node: str, boot_id: str, *, ready: bool = True) -> None:
    """What a kubelet says of its node."""
    versions = dict.fromkeys(
        (
            "architecture",
            "containerRuntimeVersion",
            "kernelVersion",
            "kubeProxyVersion",
            "kubeletVersion",
            "machineID",
            "operatingSystem",
            "osImage",
            "systemUUID",
        ),
        "x",
    )
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    status = {"nodeInfo": {**versions, "bootID": boot_id}, "conditions": [condition]}
    cluster.core.patch_node_status(node, {"status": status})


def repair_jobs(cluster: Cluster) -> dict[str, Any]:
    found = client.BatchV1Api(cluster.api).list_namespaced_job(
        cluster.namespace, label_selector="app.kubernetes.io/part-of=nightshift"
    )
    return {item.metadata.name: item for item in found.items}


def repair_job_ends(cluster: Cluster, how: str = "Complete", *, suffix: str = "", said: str = "") -> None:
    """What the Job controller and a kubelet say of the newest repair Job whose name ends so."""
    names = [n for n in repair_jobs(cluster) if n.endswith("-check") == (suffix == "-check")]
    name = names[-1]
    now = "2026-11-21T12:00:00Z"
    if said:
        labels = {"batch.kubernetes.io/job-name": name}
        pod = cluster.pod(f"{name}-p", labels=labels, ready=False)
        state = {"terminated": {"exitCode": 3, "message": said}}
        container = {
            "name": "main",
            "image": "i",
            "imageID": "i",
            "ready": False,
            "restartCount": 0,
            "state": state,
        }
        status = {"phase": "Failed", "containerStatuses": [container]}
        cluster.core.patch_namespaced_pod_status(pod, cluster.namespace, {"status": status})
    before = [{"type": {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[how], "status": "True"}]
    conditions = [{**c, "lastTransitionTime": now} for c in [*before, {"type": how, "status": "True"}]]
    status = {"conditions": conditions, "startTime": now}
    status |= {"completionTime": now} if how == "Complete" else {}
    client.BatchV1Api(cluster.api).patch_namespaced_job_status(name, cluster.namespace, {"status": status})
