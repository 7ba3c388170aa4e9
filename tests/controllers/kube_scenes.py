"""Jobs and their pods for tests of actions that take several calls: with the cluster's own Job controller, ours or
a real one, or without any."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kubernetes import client

from nightshift.collectors.base import Temporary
from nightshift.collectors.kubernetes.api import Busy
from nightshift.controllers.action import Action, ActionOutcome
from nightshift.controllers.actuators import kube_rights
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_repair import KubernetesRepairActuator
from nightshift.controllers.actuators.kube_rights import Right
from nightshift.controllers.actuators.kubernetes import KubernetesActuator
from tests.kubernetes_api.cluster import MARK, PATIENCE_S, Cluster, eventually, transport_of


class Patient(KubernetesActuator):
    """Comes again where the object was written meanwhile, as the lifecycle does: on a real cluster controllers
    write to nodes and jobs, too."""

    def execute(self, action: Action) -> ActionOutcome:
        return _unconflicted(lambda: KubernetesActuator.execute(self, action))

    def undo(self, action: Action) -> ActionOutcome:
        return _unconflicted(lambda: KubernetesActuator.undo(self, action))


class PatientRepair(KubernetesRepairActuator):
    """The same for repairs."""

    def execute(self, action: Action) -> ActionOutcome:
        return _unconflicted(lambda: KubernetesRepairActuator.execute(self, action))


def _unconflicted(act: Callable[[], ActionOutcome], tries: int = 8) -> ActionOutcome:
    for _ in range(tries - 1):
        try:
            return act()
        except Busy as error:
            if error.status != 409:
                raise
    return act()


def finished(act: Callable[[], Any], between: Callable[[], None] = lambda: None) -> Any:
    """Calls until the action is no longer under way."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return act()
        except Temporary:
            if time.monotonic() > end:
                raise
            between()
            time.sleep(0.02)


def job(cluster: Cluster, name: str, nodes: list[str], **spec: Any) -> str:
    """A Job whose pods run on the given nodes: its controller makes them, and we are scheduler and kubelets."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "registry.invalid/none"}]}}
    body = {
        "metadata": {"name": name},
        "spec": {"parallelism": len(nodes), "completions": len(nodes), "template": template, **spec},
    }
    made = client.BatchV1Api(cluster.api).create_namespaced_job(cluster.namespace, body)
    labels = {"batch.kubernetes.io/job-name": name}
    if cluster.controlled:
        pods = cluster.made_pods(f"batch.kubernetes.io/job-name={name}", len(nodes))
        for pod, node in zip(pods, nodes, strict=True):
            cluster.binds(pod, node)
        return f"{cluster.namespace}/{name}"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": made.metadata.uid, "controller": True}
    for rank, node in enumerate(nodes):
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
    meta = {"name": name, "labels": {MARK: "role"}}
    rbac.create_cluster_role({"metadata": meta, "rules": rules})
    rbac.create_cluster_role_binding({"metadata": meta, "roleRef": role, "subjects": [subject]})
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
    kube = KubeClient(transport_of(kubeconfig))
    for rule, namespace in [
        *((rule, "") for rule in rules[-1:]),
        *((rule, cluster.namespace) for rule in (own or [])[-1:]),
    ]:
        plural, _, sub = rule["resources"][-1].partition("/")
        right = Right(rule["verbs"][-1], rule["apiGroups"][0], plural, sub)
        eventually(lambda: kube_rights.is_allowed(kube, right, namespace), f"{right} permitted")  # noqa: B023
    return kube


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


ENDS = ("-check", "-evidence")
"""How the Jobs that repair nothing are named."""


def repair_jobs(cluster: Cluster) -> dict[str, Any]:
    found = client.BatchV1Api(cluster.api).list_namespaced_job(
        cluster.namespace, label_selector="app.kubernetes.io/part-of=nightshift"
    )
    return {item.metadata.name: item for item in found.items}


def repair_job_ends(
    cluster: Cluster, how: str = "Complete", *, suffix: str = "", said: str = "", name: str = ""
) -> None:
    """What the Job controller and a kubelet say of a repair Job; unnamed, of the one whose name ends so."""
    names = [n for n in repair_jobs(cluster) if (n.rpartition("-")[2] if n.endswith(ENDS) else "") == suffix[1:]]
    name = name or names[-1]
    now = "2026-11-21T12:00:00Z"
    batch = client.BatchV1Api(cluster.api)
    if cluster.controlled:
        (pod,) = cluster.made_pods(f"batch.kubernetes.io/job-name={name}", 1)
        _pod_ends(cluster, pod, {"Complete": "Succeeded", "Failed": "Failed"}[how], said)

        def has_ended() -> bool:
            found = batch.read_namespaced_job(name, cluster.namespace).status.conditions or []
            return any(c.type == how and c.status == "True" for c in found)

        eventually(has_ended, f"Job {name} {how}")
        return
    if said:
        pod = cluster.pod(f"{name}-p", labels={"batch.kubernetes.io/job-name": name}, ready=False)
        _pod_ends(cluster, pod, {"Complete": "Succeeded", "Failed": "Failed"}[how], said)
    before = [{"type": {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[how], "status": "True"}]
    conditions = [{**c, "lastTransitionTime": now} for c in [*before, {"type": how, "status": "True"}]]
    status = {"conditions": conditions, "startTime": now}
    status |= {"completionTime": now} if how == "Complete" else {}
    batch.patch_namespaced_job_status(name, cluster.namespace, {"status": status})


def _pod_ends(cluster: Cluster, pod: str, phase: str, said: str) -> None:
    """What a kubelet says of a pod that has ended, and what its container left as its last word."""
    state = {"terminated": {"exitCode": 0 if phase == "Succeeded" else 3, "message": said}}
    found = cluster.core.read_namespaced_pod(pod, cluster.namespace).spec.containers[0]
    container = {"name": found.name, "image": found.image, "imageID": "i", "ready": False, "restartCount": 0}
    status = {"phase": phase, "containerStatuses": [{**container, "state": state}]}
    cluster.core.patch_namespaced_pod_status(pod, cluster.namespace, {"status": status})


def served(cluster: Cluster, name: str = "server", replicas: int = 3, **annotations: str) -> str:
    """`namespace/ReplicaSet` of a Deployment, as its controller made it, or as it would have."""
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "registry.invalid/none"}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    body = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
    apps = client.AppsV1Api(cluster.api)
    made = apps.create_namespaced_deployment(cluster.namespace, body, field_manager="alice")
    if not cluster.controlled:
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": made.metadata.uid}
        meta = {"name": f"{name}-1", "labels": labels, "ownerReferences": [{**owner, "controller": True}]}
        apps.create_namespaced_replica_set(cluster.namespace, {"metadata": meta, "spec": spec})

    def look() -> list[Any]:
        return list(apps.list_namespaced_replica_set(cluster.namespace, label_selector=f"app={name}").items)

    (found,) = eventually(look, f"the ReplicaSet of {name}")
    return f"{cluster.namespace}/{found.metadata.name}"
