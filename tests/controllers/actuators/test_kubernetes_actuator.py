"""Mitigations on a Kubernetes API server, ours or a real one: done once, read back, and never somebody else's."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from kubernetes import client

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.kubernetes.transport import Transport
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import (
    Action,
    ActionKind,
    Actuator,
    BlastRadius,
    OutcomeStatus,
    Precondition,
    Undo,
)
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_jobs import RESUME_STEP
from nightshift.controllers.actuators.kubernetes import KubernetesActuator, KubernetesActuatorSettings
from tests.controllers.kube_scenes import Patient, finished, job, stop_pods
from tests.kubernetes_api.cluster import Cluster, eventually
from tests.kubernetes_api.faults import Fault
from tests.kubernetes_api.test_leaving import settled

_numbers = itertools.count()
S = OutcomeStatus


@pytest.fixture
def actuator(cluster: Cluster) -> KubernetesActuator:
    return Patient(
        KubernetesActuatorSettings(drain={"grace_s": 0, "evict_unmanaged": True}),
        KubeClient(cluster.transport),
        now_s=lambda: 1000.0,
    )


def plan(kind: ActionKind, target: str, subject: SubjectKind, **params: Any) -> Action:
    return Action(
        id=f"act-{next(_numbers)}",
        kind=kind,
        target=Subject(subject, target),
        why="because",
        blast_radius=BlastRadius(),
        undo=Undo(True, "undo it"),
        expires_at_s=2000.0,
        params=params,
    )


def on_node(kind: ActionKind, node: str) -> Action:
    return plan(kind, node, SubjectKind.NODE)


def schedulable(cluster: Cluster, node: str) -> bool:
    return not cluster.core.read_node(node).spec.unschedulable


def test_it_fulfils_the_actuator_contract(actuator: KubernetesActuator) -> None:
    assert isinstance(actuator, Actuator)
    assert actuator.kinds() == frozenset(KubernetesActuator.TARGETS)


def test_a_cordon_happens_once_is_read_back_and_taken_back(cluster: Cluster, actuator: KubernetesActuator) -> None:
    node = cluster.node()
    action = on_node(ActionKind.CORDON, node)
    assert actuator.read(action).status is S.NOT_DONE
    assert actuator.execute(action).status is S.DONE
    assert not schedulable(cluster, node)
    assert actuator.execute(action).status is S.ALREADY_DONE
    assert actuator.read(action).status is S.DONE
    assert actuator.undo(action).status is S.DONE
    assert schedulable(cluster, node)
    assert actuator.undo(action).status is S.ALREADY_DONE


def test_what_the_api_server_warns_of_stands_in_the_outcome(cluster: Cluster, actuator: KubernetesActuator) -> None:
    """Of the tries that failed, too, each text once; an action that was not warned of says nothing."""
    if cluster.server is None:
        pytest.skip("a real server does not warn on request")
    node, quiet = cluster.node(), cluster.node()
    action = on_node(ActionKind.CORDON, node)
    faults = cluster.server.faults
    faults.plan(Fault.WARN, 1, lambda method, path: method == "GET" and path.endswith(node))
    faults.plan(Fault.INTERNAL, 1, lambda method, path: method == "PATCH" and path.endswith(node))
    faults.plan(Fault.WARN, 1, lambda method, path: method == "PATCH" and path.endswith(node))
    with pytest.raises(Temporary):
        KubernetesActuator.execute(actuator, action)
    said = actuator.execute(action).detail
    assert said.count('the webhook "owners" says: this node belongs to team-b') == 1
    assert said.count("v1beta9 Node is deprecated") == 1
    assert "warns" not in actuator.execute(on_node(ActionKind.CORDON, quiet)).detail


def test_what_a_person_cordoned_is_never_uncordoned(cluster: Cluster, actuator: KubernetesActuator) -> None:
    node = cluster.node(unschedulable=True)
    action = on_node(ActionKind.CORDON, node)
    assert "another client" in actuator.execute(action).detail
    assert actuator.undo(action).status is S.REFUSED
    assert actuator.execute(on_node(ActionKind.UNCORDON, node)).status is S.REFUSED
    assert not schedulable(cluster, node)


def test_a_person_who_uncordons_has_the_last_word(cluster: Cluster, actuator: KubernetesActuator) -> None:
    node = cluster.node()
    action = on_node(ActionKind.CORDON, node)
    actuator.execute(action)
    cluster.core.patch_node(node, {"spec": {"unschedulable": None}})
    assert actuator.execute(action).status is S.REFUSED
    assert actuator.read(action).status is S.NOT_DONE
    assert schedulable(cluster, node)


def test_our_cordon_can_be_uncordoned_by_another_action(cluster: Cluster, actuator: KubernetesActuator) -> None:
    node = cluster.node()
    actuator.execute(on_node(ActionKind.CORDON, node))
    assert actuator.execute(on_node(ActionKind.UNCORDON, node)).status is S.DONE
    assert schedulable(cluster, node)


def test_a_node_that_changed_since_it_was_read_is_not_written(
    cluster: Cluster, actuator: KubernetesActuator, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.node()
    reading: Callable[..., Any] = KubeClient.get

    def meddle(self: KubeClient, path: str) -> Any:
        found = reading(self, path)
        cluster.core.patch_node(node, {"metadata": {"labels": {"writer": cluster.name("other")}}})
        return found

    monkeypatch.setattr(KubeClient, "get", meddle)
    with pytest.raises(Temporary, match="the object has been modified"):
        actuator.execute(on_node(ActionKind.CORDON, node))
    assert schedulable(cluster, node)


def test_preconditions_that_no_longer_hold_are_named(cluster: Cluster, actuator: KubernetesActuator) -> None:
    node = Subject(SubjectKind.NODE, cluster.node(unschedulable=True))
    gone = Subject(SubjectKind.NODE, "gone")
    action = on_node(ActionKind.CORDON, node.name)
    conditions = (Precondition(node, "cordoned", "false"), Precondition(gone, "cordoned", "false"))
    changed = actuator.changed(replace(action, preconditions=conditions))
    assert changed == [f"{node}: cordoned is true, expected false", "node:gone no longer exists"]


def test_a_drain_of_a_node_that_a_person_cordoned_leaves_it_cordoned(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    """It is emptied; the cordon was theirs and stays, undone or uncordoned."""
    node = cluster.node(unschedulable=True)
    cluster.pod("plain", node)
    action = on_node(ActionKind.DRAIN, node)
    assert finished(lambda: actuator.execute(action)).status is S.DONE
    assert actuator.undo(action).status is S.REFUSED
    assert actuator.execute(on_node(ActionKind.UNCORDON, node)).status is S.REFUSED
    assert not schedulable(cluster, node)


def test_a_taint_stands_beside_others_and_only_ours_is_taken_off(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    node = cluster.node(taints=[{"key": "theirs", "effect": "NoSchedule"}])
    action = plan(ActionKind.TAINT, node, SubjectKind.NODE, value="throttle")

    def taints() -> dict[str, str | None]:
        return {t.key: t.value for t in cluster.core.read_node(node).spec.taints or []}

    assert actuator.read(action).status is S.NOT_DONE
    assert actuator.execute(action).status is S.DONE
    assert {"theirs": None, "nightshift.dev/degraded": "throttle"}.items() <= taints().items()
    assert schedulable(cluster, node), "what tolerates it may start"
    assert actuator.execute(action).status is S.ALREADY_DONE
    assert actuator.read(action).status is S.DONE
    other = plan(ActionKind.TAINT, node, SubjectKind.NODE, value="other")
    assert actuator.execute(other).status is S.ALREADY_DONE
    assert actuator.undo(other).status is S.REFUSED
    assert actuator.undo(action).status is S.DONE
    assert "theirs" in taints()
    assert "nightshift.dev/degraded" not in taints()


def test_a_taint_that_somebody_took_off_stays_off(cluster: Cluster, actuator: KubernetesActuator) -> None:
    node = cluster.node()
    action = plan(ActionKind.TAINT, node, SubjectKind.NODE, value="throttle")
    actuator.execute(action)
    cluster.core.patch_node(node, {"spec": {"taints": []}})
    assert actuator.execute(action).status is S.REFUSED
    assert actuator.read(action).status is S.NOT_DONE


def test_a_drain_moves_what_must_move_and_leaves_the_rest(cluster: Cluster, actuator: KubernetesActuator) -> None:
    node = cluster.node()
    stay = cluster.daemon_pod("daemon", node)
    cluster.pod("plain", node)
    cluster.pod("elsewhere", cluster.node())
    action = on_node(ActionKind.DRAIN, node)
    assert finished(lambda: actuator.execute(action)).status is S.DONE
    left = {p.metadata.name for p in cluster.core.list_namespaced_pod(cluster.namespace).items}
    assert left == {stay, "elsewhere"}
    assert actuator.read(action).status is S.DONE


def test_a_drain_waits_for_a_disruption_budget_and_says_so(cluster: Cluster, actuator: KubernetesActuator) -> None:
    node = cluster.node()
    cluster.pod("guarded", node, labels={"app": "a"})
    body = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}}
    policy = client.PolicyV1Api(cluster.api)
    policy.create_namespaced_pod_disruption_budget(cluster.namespace, body)
    settled(cluster, "b", 1)
    action = on_node(ActionKind.DRAIN, node)
    with pytest.raises(Temporary, match="would violate the pod's disruption budget"):
        actuator.execute(action)
    assert actuator.read(action).status is S.UNDER_WAY
    policy.delete_namespaced_pod_disruption_budget("b", cluster.namespace)
    assert finished(lambda: actuator.execute(action)).status is S.DONE


def test_a_job_is_stopped_whole_and_resumes_from_the_named_step(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    target = job(cluster, "train", [cluster.node(), cluster.node()])
    action = plan(ActionKind.RESTART_JOB, target, SubjectKind.JOB, checkpoint_step=84000)
    with pytest.raises(Temporary, match="stopping"):
        actuator.execute(action)
    with pytest.raises(Temporary, match="pods left"):
        actuator.execute(action)
    assert actuator.read(action).status is S.UNDER_WAY
    assert finished(lambda: actuator.execute(action), stop_pods(cluster, "train")).status is S.DONE
    found = client.BatchV1Api(cluster.api).read_namespaced_job("train", cluster.namespace)
    assert found.spec.suspend is False
    assert found.metadata.annotations[RESUME_STEP] == "84000"
    assert actuator.read(action).status is S.DONE
    assert actuator.execute(action).status is S.DONE, "a repeat does not stop it again"
    assert client.BatchV1Api(cluster.api).read_namespaced_job("train", cluster.namespace).spec.suspend is False


def test_a_job_that_somebody_suspended_is_not_started(cluster: Cluster, actuator: KubernetesActuator) -> None:
    target = job(cluster, "held", [cluster.node()])
    client.BatchV1Api(cluster.api).patch_namespaced_job("held", cluster.namespace, {"spec": {"suspend": True}})
    with pytest.raises(Permanent, match="suspended by another client"):
        actuator.execute(plan(ActionKind.RESTART_JOB, target, SubjectKind.JOB))


@pytest.mark.parametrize("labels", [{"kueue.x-k8s.io/queue-name": "q"}, {}], ids=["queue named", "none named"])
def test_a_job_under_kueue_is_stopped_through_its_workload(
    cluster: Cluster, actuator: KubernetesActuator, labels: dict[str, str]
) -> None:
    """Without a label, too, where Kueue manages every job: it would start one again that is suspended past it."""
    cluster.define("kueue.x-k8s.io", "v1beta1", "Workload")
    target = job(cluster, "queued", [cluster.node()])
    queue = {"metadata": {"labels": labels}}
    found = client.BatchV1Api(cluster.api).patch_namespaced_job("queued", cluster.namespace, queue)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "queued", "uid": found.metadata.uid}
    place = ("kueue.x-k8s.io", "v1beta1", cluster.namespace, "workloads")
    custom = client.CustomObjectsApi(cluster.api)
    meta = {"name": "job-queued", "ownerReferences": [owner]}
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": meta,
        "spec": {"active": True},
    }
    custom.create_namespaced_custom_object(*place, workload)
    action = plan(ActionKind.RESTART_JOB, target, SubjectKind.JOB)
    with pytest.raises(Temporary, match="1 pods left"):
        actuator.execute(action)
    assert custom.get_namespaced_custom_object(*place, "job-queued")["spec"]["active"] is False
    client.BatchV1Api(cluster.api).patch_namespaced_job("queued", cluster.namespace, {"spec": {"suspend": True}})
    assert finished(lambda: actuator.execute(action), stop_pods(cluster, "queued")).status is S.DONE
    assert custom.get_namespaced_custom_object(*place, "job-queued")["spec"]["active"] is True


def test_a_drain_stops_a_gang_once_and_not_rank_by_rank(cluster: Cluster, actuator: KubernetesActuator) -> None:
    sick, well = cluster.node(), cluster.node()
    job(cluster, "gang", [sick, sick, well])
    action = on_node(ActionKind.DRAIN, sick)
    with pytest.raises(Temporary, match="stopping"):
        actuator.execute(action)
    found = client.BatchV1Api(cluster.api).read_namespaced_job("gang", cluster.namespace)
    assert found.spec.suspend, "stopped as a whole"
    assert finished(lambda: actuator.execute(action), stop_pods(cluster, "gang")).status is S.DONE
    assert client.BatchV1Api(cluster.api).read_namespaced_job("gang", cluster.namespace).spec.suspend is False


def test_a_job_that_was_submitted_anew_under_its_name_is_another_one(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    """Its owner has done by hand what was proposed: approved afterwards, that would stop the new one."""
    batch = client.BatchV1Api(cluster.api)
    node = cluster.node()
    name = job(cluster, "train", [node])
    subject = Subject(SubjectKind.JOB, name)
    uid = batch.read_namespaced_job("train", cluster.namespace).metadata.uid
    restart = plan(ActionKind.RESTART_JOB, name, SubjectKind.JOB)
    bound = replace(restart, preconditions=(Precondition(subject, "uid", uid),))
    assert actuator.changed(bound) == []
    batch.delete_namespaced_job("train", cluster.namespace, propagation_policy="Background")
    eventually(lambda: not job_exists(cluster, "train"), "the job is gone")
    assert "no longer exists" in actuator.changed(bound)[0]
    for pod in cluster.core.list_namespaced_pod(cluster.namespace).items:
        with suppress(client.ApiException):  # collected with its job meanwhile
            cluster.remove_pod(pod.metadata.name)
    job(cluster, "train", [node])
    (said,) = actuator.changed(bound)
    assert "uid is" in said
    assert f"expected {uid}" in said


def job_exists(cluster: Cluster, name: str) -> bool:
    jobs = client.BatchV1Api(cluster.api).list_namespaced_job(cluster.namespace).items
    return name in [found.metadata.name for found in jobs]


def test_a_missing_job_and_a_bare_pod_are_refused(cluster: Cluster, actuator: KubernetesActuator) -> None:
    with pytest.raises(Permanent, match="does not exist"):
        actuator.execute(plan(ActionKind.RESTART_JOB, f"{cluster.namespace}/none", SubjectKind.JOB))
    cluster.pod("bare", cluster.node())
    outcome = actuator.execute(plan(ActionKind.RESTART_POD, f"{cluster.namespace}/bare", SubjectKind.POD))
    assert outcome.status is S.REFUSED
    assert "would not come back" in outcome.detail


def test_a_pod_with_a_controller_is_deleted_once(cluster: Cluster, actuator: KubernetesActuator) -> None:
    cluster.pod("owned", cluster.node(), ownerReferences=[cluster.owner()])
    uid = cluster.core.read_namespaced_pod("owned", cluster.namespace).metadata.uid
    action = plan(ActionKind.RESTART_POD, f"{cluster.namespace}/owned", SubjectKind.POD, uid=uid)
    with pytest.raises(Temporary, match="terminating"):
        actuator.execute(action)
    cluster.remove_pod("owned")
    assert actuator.execute(action).status is S.DONE


def test_what_keeps_a_pod_that_is_restarted_is_told(cluster: Cluster) -> None:
    """A finalizer that nobody takes off, or a machine that is down: it was terminating, and no more was said."""
    node, later_s = cluster.node(), time.time() + 600.0
    actuator = Patient(KubernetesActuatorSettings(), KubeClient(cluster.transport), now_s=lambda: later_s)
    for name, finalizers, said in (
        ("held", ["example.com/log"], r"terminating, held by example\.com/log"),
        ("lost", [], rf"lost on {node} should have ended \d+ s ago: its kubelet may be gone"),
    ):
        cluster.pod(name, node, ownerReferences=[cluster.owner()], finalizers=finalizers)
        uid = cluster.core.read_namespaced_pod(name, cluster.namespace).metadata.uid
        action = plan(ActionKind.RESTART_POD, f"{cluster.namespace}/{name}", SubjectKind.POD, uid=uid)
        for told in ("terminating", said):
            with pytest.raises(Temporary, match=told):
                actuator.execute(action)
    cluster.core.patch_namespaced_pod("held", cluster.namespace, {"metadata": {"finalizers": None}})


def test_a_pod_whose_successor_has_its_name_is_not_restarted_where_the_plan_names_no_uid(
    cluster: Cluster, actuator: KubernetesActuator
) -> None:
    """A StatefulSet makes the pod again under the same name: without a uid that one would be deleted, too, and the
    next."""
    owner = cluster.owner()
    cluster.pod("serve-0", cluster.node(), ownerReferences=[owner])
    action = plan(ActionKind.RESTART_POD, f"{cluster.namespace}/serve-0", SubjectKind.POD)
    outcome = actuator.execute(action)
    assert (outcome.status, "uid" in outcome.detail) == (S.REFUSED, True)
    uid = cluster.core.read_namespaced_pod("serve-0", cluster.namespace).metadata.uid
    bound = replace(action, id="bound", params={"uid": uid})
    with pytest.raises(Temporary, match="terminating"):
        actuator.execute(bound)
    cluster.remove_pod("serve-0")
    cluster.pod("serve-0", cluster.node(), ownerReferences=[owner])
    assert actuator.execute(bound).status is S.ALREADY_DONE
    assert "serve-0" in [p.metadata.name for p in cluster.core.list_namespaced_pod(cluster.namespace).items]


def test_a_gpu_is_quarantined_beside_others_and_taken_back(cluster: Cluster, actuator: KubernetesActuator) -> None:
    node = cluster.node()
    first = plan(ActionKind.QUARANTINE_GPU, "GPU-1", SubjectKind.GPU, node=node)
    second = plan(ActionKind.QUARANTINE_GPU, "GPU-2", SubjectKind.GPU, node=node)
    assert actuator.execute(first).status is S.DONE
    assert actuator.execute(second).status is S.DONE
    meta = cluster.core.read_node(node).metadata
    assert meta.annotations["nightshift.dev/quarantined-gpus"] == "GPU-1,GPU-2"
    assert meta.labels["nightshift.dev/quarantined"] == "true"

    def keeps_pods_off() -> bool:
        taints = cluster.core.read_node(node).spec.taints or []
        return ("nightshift.dev/quarantined", "NoSchedule") in [(taint.key, taint.effect) for taint in taints]

    assert keeps_pods_off()
    assert actuator.undo(first).status is S.DONE
    assert keeps_pods_off(), "for the second"
    assert actuator.undo(second).status is S.DONE
    assert not keeps_pods_off()
    assert "nightshift.dev/quarantined" not in (cluster.core.read_node(node).metadata.labels or {})


def test_a_server_that_is_away_is_temporary(cluster: Cluster) -> None:
    away = KubernetesActuator(KubernetesActuatorSettings(), KubeClient(Transport("http://127.0.0.1:1")))
    with pytest.raises(Temporary, match="no answer to GET"):
        away.execute(on_node(ActionKind.CORDON, "n1"))


def test_equal_reads_of_one_look_are_one_request_until_it_writes(cluster: Cluster) -> None:
    """What is read after a write, or by another look, is the world's word and not a remembered one."""
    if cluster.server is None:
        pytest.skip("needs to see what was asked")
    kube, node = KubeClient(cluster.transport), cluster.node()
    path = f"/api/v1/nodes/{node}"

    def asked() -> int:
        assert cluster.server is not None
        return sum((a.verb, a.resource) == ("get", "nodes") for _, a in cluster.server.requests)

    before = asked()
    with kube.one_look():
        first = kube.get(path)
        cluster.core.patch_node(node, {"metadata": {"labels": {"changed": "elsewhere"}}})
        assert kube.get(path) == first
        assert asked() == before + 1
        version = first["metadata"]["resourceVersion"]
        with pytest.raises(Temporary, match="409"):
            kube.merge(path, {"metadata": {"labels": {"a": "b"}}}, version=version, manager="t")
        assert kube.get(path)["metadata"]["labels"]["changed"] == "elsewhere"
    for _ in range(2):
        kube.get(path)
    assert asked() == before + 4
