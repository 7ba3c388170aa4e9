"""Drains and restarts as a real cluster meets them: pods nobody makes again, jobs that an eviction would end, roles
that forbid, pods that go by themselves."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from kubernetes import client

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.kubernetes.api import Busy, Refused, refusal
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, BlastRadius, OutcomeStatus, Undo
from nightshift.controllers.actuators.kube_client import KubeClient, Object
from nightshift.controllers.actuators.kube_jobs import KINDS, FoundJob, owner_job
from nightshift.controllers.actuators.kube_rights import RIGHTS
from nightshift.controllers.actuators.kubernetes import KubernetesActuator, KubernetesActuatorSettings
from tests.controllers.kube_scenes import Patient, client_with, finished, job, rules_of, stop_pods
from tests.kubernetes_api.cluster import Cluster, eventually
from tests.kubernetes_api.faults import STATUS, Fault

S = OutcomeStatus
_numbers = itertools.count()


def act(kind: ActionKind, subject: SubjectKind, name: str, **params: str) -> Action:
    radius, undo = BlastRadius(), Undo(True, "undo it")
    return Action(f"d-{next(_numbers)}", kind, Subject(subject, name), "because", radius, undo, 2e9, params)


def drain(node: str) -> Action:
    return act(ActionKind.DRAIN, SubjectKind.NODE, node)


def actuator(cluster: Cluster, kube: KubeClient | None = None, **settings: Any) -> KubernetesActuator:
    return Patient(
        KubernetesActuatorSettings(drain={"grace_s": 0, **settings}), kube or KubeClient(cluster.transport)
    )


def cordoned(cluster: Cluster, node: str) -> bool:
    return bool(cluster.core.read_node(node).spec.unschedulable)


def pods(cluster: Cluster) -> set[str]:
    return {p.metadata.name for p in cluster.core.list_namespaced_pod(cluster.namespace).items}


def conditions_of(cluster: Cluster, name: str) -> set[str]:
    """Of a Job; none where no controller has looked at it."""
    status = client.BatchV1Api(cluster.api).read_namespaced_job(name, cluster.namespace).status
    return {c.type for c in (status.conditions if status else None) or [] if c.status == "True"}


def owned(cluster: Cluster, name: str, node: str, volumes: list[Any] | None = None) -> str:
    """A pod with a controller, and with volumes."""
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "registry.invalid/none"}], "nodeName": node}
    spec |= {"automountServiceAccountToken": False, "volumes": volumes or []}
    meta = {"name": name, "ownerReferences": [cluster.owner()]}
    cluster.core.create_namespaced_pod(cluster.namespace, {"metadata": meta, "spec": spec})
    cluster.runs(name)
    return name


def a_job(cluster: Cluster, name: str, node: str, **spec: Any) -> str:
    """A Job of one pod on one node; `spec` is set before its pod exists."""
    target = job(cluster, name, [node])
    client.BatchV1Api(cluster.api).patch_namespaced_job(name, cluster.namespace, {"spec": spec})
    return target


def test_a_pod_that_nobody_would_make_again_is_never_evicted_unasked(cluster: Cluster) -> None:
    """As `kubectl drain` without --force; and the node is left as it was."""
    node = cluster.node()
    owned(cluster, "kept", node)
    cluster.pod("bare", node)
    outcome = actuator(cluster).execute(drain(node))
    assert outcome.status is S.REFUSED
    assert "/bare has no controller" in outcome.detail
    assert not cordoned(cluster, node)
    assert pods(cluster) >= {"bare", "kept"}
    allowed = actuator(cluster, evict_unmanaged=True)
    action = drain(node)
    assert finished(lambda: allowed.execute(action)).status is S.DONE


def test_data_on_the_nodes_disk_is_kept_if_so_set_and_shared_memory_is_no_data(
    cluster: Cluster,
) -> None:
    node = cluster.node()
    owned(cluster, "scratch", node, [{"name": "s", "emptyDir": {}}])
    careful = actuator(cluster, evict_local_data=False)
    outcome = careful.execute(drain(node))
    assert outcome.status is S.REFUSED
    assert "/scratch has data on this node's disk" in outcome.detail
    other = cluster.node()
    owned(cluster, "nccl", other, [{"name": "shm", "emptyDir": {"medium": "Memory"}}])
    action = drain(other)
    assert finished(lambda: careful.execute(action)).status is S.DONE


def test_a_bare_pod_that_comes_during_a_drain_is_waited_for_and_named(cluster: Cluster) -> None:
    node = cluster.node()
    owned(cluster, "first", node)
    action, careful = drain(node), actuator(cluster)
    with pytest.raises(Temporary):
        careful.execute(action)
    cluster.pod("late", node)
    with pytest.raises(Temporary, match="late has no controller"):
        careful.execute(action)
    assert "late" in pods(cluster)


def test_a_job_that_an_eviction_would_end_is_stopped_whole_on_one_node_too(cluster: Cluster) -> None:
    """backoffLimit 0, as training jobs have: an evicted pod counts as a failure, a suspended one does not."""
    node = cluster.node()
    a_job(cluster, "brittle", node, backoffLimit=0)
    action, drainer = drain(node), actuator(cluster)
    with pytest.raises(Temporary, match="stopping"):
        drainer.execute(action)
    batch = client.BatchV1Api(cluster.api)
    assert batch.read_namespaced_job("brittle", cluster.namespace).spec.suspend
    assert finished(lambda: drainer.execute(action), stop_pods(cluster, "brittle")).status is S.DONE
    found = batch.read_namespaced_job("brittle", cluster.namespace)
    assert found.spec.suspend is False
    assert "Failed" not in conditions_of(cluster, "brittle")


@pytest.mark.parametrize(
    ("spec", "evicted", "loses"),
    [
        ({"backoffLimit": 0}, 1, True),
        ({"backoffLimit": 6}, 1, False),
        ({}, 7, True),
        ({"backoffLimit": 0, "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [
            {"type": "DisruptionTarget", "status": "True"}]}]}}, 4, False),
        ({"backoffLimit": 0, "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {
            "operator": "In", "values": [42]}}]}}, 1, True),
    ],
)  # fmt: skip
def test_an_eviction_counts_against_a_jobs_limit_unless_its_policy_ignores_it(
    spec: Object, evicted: int, loses: bool
) -> None:
    found = FoundJob(KINDS[0], "ns", "j", {"metadata": {"name": "j"}, "spec": spec})
    assert found.loses_by(evicted) is loses


def test_a_pod_whose_loss_would_end_its_job_is_not_restarted_alone(cluster: Cluster) -> None:
    node = cluster.node()
    a_job(cluster, "brittle", node, backoffLimit=0)
    (pod,) = pods(cluster)
    action = act(ActionKind.RESTART_POD, SubjectKind.POD, f"{cluster.namespace}/{pod}")
    outcome = actuator(cluster).execute(action)
    assert outcome.status is S.REFUSED
    assert "one more lost pod ends Job" in outcome.detail


class Vanishing(KubeClient):
    """Deletes a pod just before its eviction, or its own delete, arrives: it ended by itself."""

    cluster: Cluster

    def request(self, method: str, path: str, **how: Any) -> Object:
        if path.endswith("/eviction") or method == "DELETE":
            self.cluster.remove_pod(path.removesuffix("/eviction").rsplit("/", 1)[1])
        return super().request(method, path, **how)


def test_a_pod_that_ends_between_the_list_and_its_eviction_does_not_end_the_drain(cluster: Cluster) -> None:
    node = cluster.node()
    owned(cluster, "brief", node)
    kube = Vanishing(cluster.transport)
    kube.cluster = cluster
    action, drainer = drain(node), actuator(cluster, kube)
    assert finished(lambda: drainer.execute(action)).status is S.DONE
    assert drainer.read(action).status is S.DONE


def test_a_pod_that_ends_just_before_it_is_deleted_was_restarted(cluster: Cluster) -> None:
    owned(cluster, "brief", cluster.node())
    kube = Vanishing(cluster.transport)
    kube.cluster = cluster
    uid = cluster.core.read_namespaced_pod("brief", cluster.namespace).metadata.uid
    action = act(ActionKind.RESTART_POD, SubjectKind.POD, f"{cluster.namespace}/brief", uid=uid)
    restarter = actuator(cluster, kube)
    assert finished(lambda: restarter.execute(action)).status is S.DONE


def test_a_drain_whose_evictions_are_forbidden_changes_nothing(cluster: Cluster) -> None:
    """A role, or an admission webhook, that says no is asked before the cordon, by a dry run."""
    node = cluster.node()
    owned(cluster, "kept", node)
    rights = frozenset(right for right in RIGHTS[ActionKind.DRAIN] if right.subresource != "eviction")
    outcome = actuator(cluster, client_with(cluster, rules_of(rights))).execute(drain(node))
    assert outcome.status is S.REFUSED
    assert "nothing was changed" in outcome.detail
    assert not cordoned(cluster, node)
    assert "kept" in pods(cluster)


def test_a_webhook_that_takes_no_dry_run_is_asked_by_the_eviction_itself(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with side effects refuses every dry run (400), whatever it says of the eviction."""
    if cluster.server is None:
        pytest.skip("faults are planned on our own API server")
    node = cluster.node()
    owned(cluster, "moves", node)
    no_dry_run = 'admission webhook "owners.example" does not support dry run'
    monkeypatch.setitem(STATUS, Fault.INTERNAL, ("BadRequest", no_dry_run))
    cluster.server.faults.plan(Fault.INTERNAL, 1, lambda _, path: path.endswith("/eviction"))
    act = actuator(cluster)
    assert finished(lambda: act.execute(drain(node)), lambda: cluster.remove_pod("moves")).status is S.DONE


def test_a_namespace_that_is_going_is_waited_for_and_other_refusals_are_final() -> None:
    """kubernetes/kubernetes#93947: its 403 has the cause NamespaceTerminating. What is no Status is a gateway's."""
    cause = b'{"message": "no", "details": {"causes": [{"reason": "NamespaceTerminating", "message": "going"}]}}'
    assert isinstance(refusal(403, cause, {}, "POST x"), Busy)
    assert isinstance(refusal(403, b'{"kind": "Status", "message": "no"}', {}, "POST x"), Refused)
    for page in (b"404 page not found", b"[]", b'{"details": 1}', b'{"details": {"causes": [1]}}', b""):
        assert isinstance(refusal(403, page, {}, "GET x"), Busy)
        assert isinstance(refusal(422, page, {}, "GET x"), Refused)


def test_the_cause_of_a_refusal_is_told(cluster: Cluster) -> None:
    """Which budget, and how many it needs: what an on-call person needs to mend it."""
    node = cluster.node()
    cluster.pod("guarded", node, labels={"app": "a"}, ownerReferences=[cluster.owner()])
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    budget = {"metadata": {"name": "tight"}, "spec": spec}
    client.PolicyV1Api(cluster.api).create_namespaced_pod_disruption_budget(cluster.namespace, budget)
    with pytest.raises(Temporary, match="The disruption budget tight"):
        actuator(cluster).execute(drain(node))


def test_a_job_that_has_ended_is_not_said_to_have_been_started_again(cluster: Cluster) -> None:
    target = job(cluster, "over", [cluster.node()], backoffLimit=0)
    batch, now = client.BatchV1Api(cluster.api), "2026-11-21T12:00:00Z"
    (pod,) = pods(cluster)
    cluster.core.patch_namespaced_pod_status(pod, cluster.namespace, {"status": {"phase": "Failed"}})
    if cluster.controlled:
        eventually(lambda: "Failed" in conditions_of(cluster, "over"), "the Job failed")
    else:
        failed = {"status": "True", "reason": "BackoffLimitExceeded", "lastTransitionTime": now}
        conditions = [{"type": kind, **failed} for kind in ("FailureTarget", "Failed")]
        status = {"startTime": now, "conditions": conditions}
        batch.patch_namespaced_job_status("over", cluster.namespace, {"status": status})
    with pytest.raises(Permanent, match="has ended"):
        actuator(cluster).execute(act(ActionKind.RESTART_JOB, SubjectKind.JOB, target))
    assert not batch.read_namespaced_job("over", cluster.namespace).spec.suspend


def test_a_queue_label_without_kueue_is_no_obstacle(cluster: Cluster) -> None:
    target = job(cluster, "labelled", [cluster.node()])
    queue = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}}
    client.BatchV1Api(cluster.api).patch_namespaced_job("labelled", cluster.namespace, queue)
    action, restarter = act(ActionKind.RESTART_JOB, SubjectKind.JOB, target), actuator(cluster)
    assert finished(lambda: restarter.execute(action), stop_pods(cluster, "labelled")).status is S.DONE


@pytest.mark.parametrize("shuts_down", [True, False])
def test_a_rayjob_above_a_raycluster_is_stopped_whole_and_only_where_that_is_allowed(
    cluster: Cluster, shuts_down: bool
) -> None:
    """Its pods are a RayCluster's; suspending one that keeps its cluster would make it invalid."""
    ray = next(kind for kind in KINDS if kind.kind == "RayJob")
    cluster.define("ray.io", "v1", "RayJob")
    body = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "r"}}
    spec = {"shutdownAfterJobFinishes": shuts_down}
    place = ("ray.io", "v1", cluster.namespace, ray.plural)
    client.CustomObjectsApi(cluster.api).create_namespaced_custom_object(*place, body | {"spec": spec})
    node = cluster.node()
    labels = {"ray.io/originated-from-crd": "RayJob", ray.pods: "r", "ray.io/cluster": "r-x"}
    cluster.pod("head", node, labels=labels, ownerReferences=[cluster.owner()])
    found = owner_job(
        KubeClient(cluster.transport),
        cluster.api.sanitize_for_serialization(cluster.core.read_namespaced_pod("head", cluster.namespace)),
    )
    assert found is not None
    assert found.name == "r"
    action, drainer = drain(node), actuator(cluster)
    if not shuts_down:
        outcome = drainer.execute(action)
        assert outcome.status is S.REFUSED
        assert "shutdownAfterJobFinishes" in outcome.detail
        assert not cordoned(cluster, node)
        return
    with pytest.raises(Temporary, match="stopping"):
        drainer.execute(action)
    cluster.remove_pod("head")
    assert finished(lambda: drainer.execute(action)).status is S.DONE


def test_a_gang_that_has_left_by_itself_is_not_stopped_any_more(cluster: Cluster) -> None:
    """Between the node's mark, which names it, and its turn: its operator has moved it, or a person."""
    if cluster.server is None:
        pytest.skip("a real server fails at no call of our choice")
    node, elsewhere = cluster.node(), cluster.node()
    job(cluster, "gang", [node, elsewhere])
    action, drainer = drain(node), actuator(cluster)
    cluster.server.faults.plan(Fault.INTERNAL, 1, lambda method, path: (method, path[-5:]) == ("PATCH", "/gang"))
    with pytest.raises(Busy, match="500"):
        drainer.execute(action)
    assert cordoned(cluster, node)
    (moved,) = cluster.core.list_namespaced_pod(cluster.namespace, field_selector=f"spec.nodeName={node}").items
    cluster.remove_pod(moved.metadata.name)
    (new,) = set(cluster.made_pods("batch.kubernetes.io/job-name=gang", 2)) - {
        p.metadata.name
        for p in cluster.core.list_namespaced_pod(cluster.namespace).items
        if p.spec.node_name == elsewhere
    }
    cluster.binds(new, elsewhere)
    assert finished(lambda: drainer.execute(action)).status is S.DONE
    assert drainer.read(action).status is S.DONE
    found = client.BatchV1Api(cluster.api).read_namespaced_job("gang", cluster.namespace)
    assert found.metadata.generation == 1, "never stopped, never started"


def test_a_job_submitted_anew_is_not_stopped_for_the_last_pod_of_the_one_before(cluster: Cluster) -> None:
    """Its pod ends slowly on a node that is drained; the job that has its name now runs elsewhere."""
    node = cluster.node()
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "train",
        "uid": "of-the-one-before",
        "controller": True,
    }
    cluster.pod("train-old", node, ownerReferences=[owner], finalizers=["example.com/log"])
    cluster.core.delete_namespaced_pod("train-old", cluster.namespace, grace_period_seconds=0)
    job(cluster, "train", [cluster.node(), cluster.node()])
    action, drainer = drain(node), actuator(cluster)
    with pytest.raises(Temporary, match=r"train-old is terminating, held by example\.com/log"):
        drainer.execute(action)
    assert client.BatchV1Api(cluster.api).read_namespaced_job("train", cluster.namespace).spec.suspend is False
    cluster.core.patch_namespaced_pod("train-old", cluster.namespace, {"metadata": {"finalizers": None}})
    assert finished(lambda: drainer.execute(action)).status is S.DONE


def test_a_rayjob_submitted_anew_is_not_stopped_for_the_cluster_of_the_one_before(cluster: Cluster) -> None:
    """Its pods know their RayJob by name alone; which cluster is its own, its status says."""
    ray = next(kind for kind in KINDS if kind.kind == "RayJob")
    cluster.define("ray.io", "v1", "RayJob")
    place, custom = ("ray.io", "v1", cluster.namespace, ray.plural), client.CustomObjectsApi(cluster.api)
    spec = {"shutdownAfterJobFinishes": True}
    body: dict[str, Any] = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "r"}, "spec": spec}
    custom.create_namespaced_custom_object(*place, body)
    custom.patch_namespaced_custom_object_status(*place, "r", {"status": {"rayClusterName": "r-new"}})
    node = cluster.node()
    for name, of in (("old", "r-old"), ("new", "r-new")):
        labels = {"ray.io/originated-from-crd": "RayJob", ray.pods: "r", "ray.io/cluster": of}
        cluster.pod(name, node, labels=labels, ownerReferences=[cluster.owner()])
        pod = cluster.api.sanitize_for_serialization(cluster.core.read_namespaced_pod(name, cluster.namespace))
        assert (owner_job(KubeClient(cluster.transport), pod) is not None) is (name == "new")


def test_a_job_of_another_group_is_not_taken_for_the_clusters_own_of_its_name(cluster: Cluster) -> None:
    """Volcano's are called Job, too, and make a pod again under its name."""
    cluster.define("batch.volcano.sh", "v1alpha1", "Job")
    body = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "train"}, "spec": {}}
    place = ("batch.volcano.sh", "v1alpha1", cluster.namespace, "jobs")
    made: Any = client.CustomObjectsApi(cluster.api).create_namespaced_custom_object(*place, body)
    owner = {"apiVersion": body["apiVersion"], "kind": "Job", "name": "train", "uid": made["metadata"]["uid"]}
    cluster.pod("train-worker-0", cluster.node(), ownerReferences=[{**owner, "controller": True}])
    a_job(cluster, "train", cluster.node(), backoffLimit=0)
    pod = cluster.api.sanitize_for_serialization(
        cluster.core.read_namespaced_pod("train-worker-0", cluster.namespace)
    )
    assert owner_job(KubeClient(cluster.transport), pod) is None
    action = act(ActionKind.RESTART_POD, SubjectKind.POD, f"{cluster.namespace}/train-worker-0")
    outcome = actuator(cluster).execute(action)
    assert (outcome.status, "does not name its uid" in outcome.detail) == (S.REFUSED, True)
