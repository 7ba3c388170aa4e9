"""The actuator knows, without acting, what its identity may not do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from kubernetes import client

from nightshift.collectors.kubernetes.api import Busy, Refused, refusal
from nightshift.collectors.kubernetes.events import KubernetesEventsCollector
from nightshift.collectors.kubernetes.nodes_and_pods import KubernetesCollector
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Precondition, Undo
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_jobs import KINDS, JobKind
from nightshift.controllers.actuators.kube_rights import RIGHTS, SOURCE_RIGHTS, Right
from nightshift.controllers.actuators.kubernetes import KubernetesActuator, KubernetesActuatorSettings
from tests.controllers.actuators.test_kube_replace import made_by
from tests.controllers.kube_scenes import Patient, client_with, finished, job, rules_of, served, stop_pods
from tests.kubernetes_api.cluster import Cluster
from tests.kubernetes_api.faults import Fault


def identity(cluster: Cluster, rules: list[dict[str, list[str]]]) -> KubernetesActuator:
    """An actuator with a service account that has just these rules in the whole cluster."""
    return Patient(
        KubernetesActuatorSettings(drain={"grace_s": 0, "evict_unmanaged": True}), client_with(cluster, rules)
    )


def test_an_administrator_lacks_nothing(cluster: Cluster) -> None:
    """The whole list is permitted, so doctor says that it works."""
    assert KubernetesActuator(KubernetesActuatorSettings(), KubeClient(cluster.transport)).refused() == []


def scene(cluster: Cluster, kind: ActionKind) -> tuple[Action, Callable[[], None]]:
    """An action of this kind with something to act on, and what controllers do while it is under way."""
    node = cluster.node()
    target, params = Subject(SubjectKind.NODE, node), {}
    fact, wanted = "cordoned", "false"
    after: Callable[[], None] = lambda: None  # noqa: E731
    match kind:
        case ActionKind.UNCORDON:
            action = scene_action(ActionKind.CORDON, target, {}, fact, wanted)
            Patient(KubernetesActuatorSettings(), KubeClient(cluster.transport)).execute(action)
            cluster_cordoned = Subject(SubjectKind.NODE, node)
            return scene_action(kind, cluster_cordoned, {}, fact, "true"), after
        case ActionKind.TAINT:
            fact = "tainted"
        case ActionKind.START_MAINTENANCE:
            made_by(cluster, "gke", node)
            due = {"cloud.google.com/scheduled-maintenance-time": "1900000000"}
            cluster.core.patch_node(node, {"metadata": {"labels": due}})
            return replace(scene_action(kind, target, {}, fact, wanted), preconditions=()), after
        case ActionKind.REPLACE_NODE:
            made_by(cluster, "karpenter", node)
            job(cluster, "gang", [node, cluster.node()])
            cluster.pod("single", node)
            action = replace(scene_action(kind, target, {}, fact, wanted), preconditions=())
            return action, stop_pods(cluster, "gang")
        case ActionKind.SUGGEST_SCALING:
            target = Subject(SubjectKind.JOB, served(cluster))
            return replace(scene_action(kind, target, {}, fact, wanted), preconditions=()), after
        case ActionKind.DRAIN:
            job(cluster, "gang", [node, cluster.node()])
            cluster.pod("single", node)
            fact, after = "drained", stop_pods(cluster, "gang")
        case ActionKind.QUARANTINE_GPU:
            target, params, fact = Subject(SubjectKind.GPU, "GPU-1"), {"node": node}, "quarantined"
        case ActionKind.RESTART_POD:
            name = job(cluster, "owner", [node]).split("/")[1]
            (pod,) = cluster.made_pods(f"batch.kubernetes.io/job-name={name}", 1)
            target, fact, wanted = Subject(SubjectKind.POD, f"{cluster.namespace}/{pod}"), "running", "true"
            after = lambda: cluster.remove_pod(pod)  # noqa: E731
        case ActionKind.RESTART_JOB:
            target = Subject(SubjectKind.JOB, job(cluster, "train", [node]))
            fact, wanted, after = "running", "true", stop_pods(cluster, "train")
    return scene_action(kind, target, params, fact, wanted), after


def scene_action(kind: ActionKind, target: Subject, params: dict[str, str], fact: str, wanted: str) -> Action:
    return Action(
        id=f"act-{kind}",
        kind=kind,
        target=target,
        why="because",
        blast_radius=BlastRadius(),
        undo=Undo(True, "undo it"),
        expires_at_s=2e9,
        params=params,
        preconditions=(Precondition(target, fact, wanted),),
    )


@pytest.mark.parametrize("kind", KubernetesActuator.TARGETS)
def test_each_action_needs_just_its_rights(cluster: Cluster, kind: ActionKind) -> None:
    """With nothing but the rights of its kind an action is checked, carried out, read back and taken back; and
    on a server that we can look into, each right was used, save those on operators' kinds of jobs that this
    cluster has not."""
    action, after = scene(cluster, kind)
    actuator = identity(cluster, rules_of(RIGHTS[kind]))
    assert actuator.changed(action) == []
    finished(lambda: actuator.execute(action), after)
    actuator.read(action)
    actuator.undo(action)
    if cluster.server is None:
        return
    used = asked_by_us(cluster)
    assert used <= RIGHTS[kind]
    assert {right for right in RIGHTS[kind] - used if right.group in ("", "batch", "apps", "autoscaling")} == set()


@pytest.mark.parametrize("kind", [ActionKind.RESTART_JOB, ActionKind.DRAIN])
def test_each_right_on_whole_jobs_is_used(cluster: Cluster, kind: ActionKind) -> None:
    """Of every operator's kind, and of Kueue's Workloads; the test above uses those on Kubernetes's own."""
    if cluster.server is None:
        pytest.skip("needs to see what was asked")
    targets = []
    node, actuator = cluster.node(), identity(cluster, rules_of(RIGHTS[kind]))
    for number, operator in enumerate(KINDS[1:]):
        group, version = operator.api.split("/")[1:]
        cluster.define(group, version, operator.kind)
        targets.append(operators_job(cluster, operator, f"job-{number}", node))
    targets.append(queued_job(cluster, "queued", node))
    actions = [scene_action(kind, target, {}, "running", "true") for target in targets]
    if kind is ActionKind.DRAIN:
        actions = [scene_action(kind, Subject(SubjectKind.NODE, node), {}, "drained", "false")]
    for number, action in enumerate(actions):
        act = partial(actuator.execute, replace(action, id=f"a-{number}"))
        finished(act, lambda: stop_as_told(cluster, "queued"))
    assert asked_by_us(cluster) <= RIGHTS[kind]
    assert {right for right in RIGHTS[kind] - asked_by_us(cluster) if right.group not in ("", "batch")} == set()


def operators_job(cluster: Cluster, kind: JobKind, name: str, node: str) -> Subject:
    """A job of an operator's kind with one running pod, and no operator."""
    _, group, version = kind.api.split("/")
    spec = {"shutdownAfterJobFinishes": True} if kind.kind == "RayJob" else {}
    body = {"apiVersion": f"{group}/{version}", "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
    custom: Any = client.CustomObjectsApi(cluster.api)
    made = custom.create_namespaced_custom_object(group, version, cluster.namespace, kind.plural, body)
    owner = {"apiVersion": f"{group}/{version}", "kind": kind.kind, "name": name, "uid": made["metadata"]["uid"]}
    labels = {kind.pods: name} | ({"ray.io/originated-from-crd": "RayJob"} if kind.kind == "RayJob" else {})
    cluster.pod(f"{name}-0", node, labels=labels, ownerReferences=[{**owner, "controller": True}])
    return Subject(SubjectKind.JOB, f"{cluster.namespace}/{name}")


def queued_job(cluster: Cluster, name: str, node: str) -> Subject:
    """A Job with one pod that Kueue manages, without Kueue."""
    cluster.define("kueue.x-k8s.io", "v1beta1", "Workload")
    target = Subject(SubjectKind.JOB, job(cluster, name, [node], backoffLimit=0))
    uid = client.BatchV1Api(cluster.api).read_namespaced_job(name, cluster.namespace).metadata.uid
    meta = {"name": name, "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}]}
    body = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "metadata": meta, "spec": {"active": True}}
    custom: Any = client.CustomObjectsApi(cluster.api)
    custom.create_namespaced_custom_object("kueue.x-k8s.io", "v1beta1", cluster.namespace, "workloads", body)
    return target


def stop_as_told(cluster: Cluster, queued: str) -> None:
    """What Kueue, the operators and kubelets do meanwhile."""
    custom: Any = client.CustomObjectsApi(cluster.api)
    where = ("kueue.x-k8s.io", "v1beta1", cluster.namespace, "workloads", queued)
    stopped = not custom.get_namespaced_custom_object(*where)["spec"]["active"]
    client.BatchV1Api(cluster.api).patch_namespaced_job(queued, cluster.namespace, {"spec": {"suspend": stopped}})
    cluster.core.delete_collection_namespaced_pod(cluster.namespace, grace_period_seconds=0)


def asked_by_us(cluster: Cluster) -> set[Right]:
    """What service accounts asked the server for."""
    assert cluster.server is not None
    asked = [a for user, a in cluster.server.requests if user.name.startswith("system:serviceaccount:")]
    return {Right(a.verb, a.group, a.resource, a.subresource) for a in asked}


@pytest.mark.parametrize("source", ["kubernetes", "kubernetes_events"])
def test_each_source_that_reads_the_api_server_needs_just_its_rights_and_uses_each(
    cluster: Cluster, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every kind of jobs defined, on a server that streams no lists: there `list` is needed."""
    if cluster.server is not None:
        cluster.server.streams = False
    for operator in KINDS[1:]:
        group, version = operator.api.split("/")[1:]
        cluster.define(group, version, operator.kind)
    kube = client_with(cluster, rules_of(SOURCE_RIGHTS[source]))
    plugin = {kind.plugin: kind for kind in (KubernetesCollector, KubernetesEventsCollector)}[source]
    monkeypatch.setattr(plugin, "_connect", lambda _: kube)
    collector = plugin(plugin.Settings())
    try:
        until(lambda: all(status.ok for status in collector.collect(time.time(), Inventory(), 5.0).sources))
        if cluster.server is not None:
            until(lambda: asked_by_us(cluster) == SOURCE_RIGHTS[source])
    finally:
        collector.close()


def until(happens: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_a_role_leaves_out_is_named(cluster: Cluster) -> None:
    """A role that may look and cordon, and no more, is told what it lacks, verb and resource."""
    rules = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    ]
    lacks = identity(cluster, rules).refused()
    scaling = {"get replicasets", "get deployments", "list horizontalpodautoscalers"}
    assert set(lacks) == {"patch pods", "delete pods", "create pods/eviction", "get jobs", "patch jobs"} | scaling


def test_a_role_held_to_namespaces_lacks_nothing_there_and_names_where_else_it_does(cluster: Cluster) -> None:
    """As the chart grants it with `rbac.namespaces`: nodes everywhere, pods and jobs in some namespaces alone."""
    kinds = tuple(kind for kind in RIGHTS if kind in KubernetesActuator.TARGETS)
    everything = frozenset[Right]().union(*(RIGHTS[kind] for kind in kinds))
    spaced = frozenset(right for right in everything if right.namespaced)
    kube = client_with(cluster, rules_of(everything - spaced), own=rules_of(spaced))
    held = KubernetesActuatorSettings(access={"namespaces": (cluster.namespace,)})
    assert KubernetesActuator(held, kube).refused() == []
    wider = KubernetesActuatorSettings(access={"namespaces": (cluster.namespace, "elsewhere")})
    lacks = KubernetesActuator(wider, kube).refused()
    assert "patch pods in elsewhere" in lacks
    assert all(entry.endswith(" in elsewhere") for entry in lacks)
    assert "patch pods" in KubernetesActuator(KubernetesActuatorSettings(), kube).refused()


def test_a_granted_right_that_is_refused_is_waited_for(cluster: Cluster) -> None:
    """While a server starts it denies what its roles grant, in reviews of access, too, and is not ready; so does a
    gateway in its stead, in its own words. What a ready server denies in a review is missing, at once."""
    if cluster.server is None:
        pytest.skip("faults are planned on our own API server")
    kube = client_with(cluster, rules_of(frozenset({Right("list", "", "nodes")})))
    cluster.server.authorizer.warming_up = True
    with pytest.raises(Busy, match="cannot list resource") as busy:
        kube.list("/api/v1/nodes")
    assert busy.value.retry_after_s == 60.0
    cluster.server.authorizer.warming_up = False
    for fault in (Fault.DENIED, Fault.FORBIDDEN):
        cluster.server.faults.plan(fault)
        with pytest.raises(Busy):
            kube.list("/api/v1/nodes")
    assert kube.list("/api/v1/nodes") == []
    with pytest.raises(Refused, match="cannot list resource"):
        kube.list("/api/v1/pods")
    html = b"<html>403 Forbidden</html>"
    assert isinstance(refusal(403, html, {}, "PATCH /api/v1/nodes/n1"), Busy)
