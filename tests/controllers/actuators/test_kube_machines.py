"""Nodes that go in the middle of a mitigation: deleted, or another machine under their name; and pods that stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kubernetes import client

from nightshift.collectors.base import Permanent
from nightshift.collectors.kubernetes.api import refusal
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import (
    Action,
    ActionKind,
    BlastRadius,
    OutcomeStatus,
    Precondition,
    Situation,
    UnderWay,
    Undo,
)
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_repair import KubernetesRepairActuator, RepairSettings
from nightshift.controllers.actuators.kubernetes import KubernetesActuator, KubernetesActuatorSettings
from nightshift.controllers.playbooks.plan import Economy, draw_up
from nightshift.detectors.base import Fault
from tests.controllers.kube_scenes import Patient, PatientRepair, boots, finished, job, stop_pods
from tests.kubernetes_api.cluster import MARK, Cluster

S, A, K = OutcomeStatus, ActionKind, SubjectKind


def gone(cluster: Cluster, node: str) -> None:
    cluster.core.delete_node(node)


def replaced(cluster: Cluster, node: str) -> None:
    cluster.core.delete_node(node)
    cluster.core.create_node({"metadata": {"name": node, "labels": {MARK: "node"}}})
    boots(cluster, node, "boot-of-another")


def act(cluster: Cluster, kind: ActionKind, node: str, jobs: tuple[str, ...] = ()) -> Action:
    target = Subject(K.GPU, "GPU-1") if kind is A.RESET_GPU else Subject(K.NODE, node)
    uid = Precondition(Subject(K.NODE, node), "uid", cluster.core.read_node(node).metadata.uid)
    reach = BlastRadius(jobs=jobs, nodes=(node,))
    return Action(
        f"m-{kind}".replace("_", "-"), kind, target, "", reach, Undo(False, ""), 2e9, {"node": node}, (uid,)
    )


def actuator_of(cluster: Cluster, kind: ActionKind) -> KubernetesActuator | KubernetesRepairActuator:
    how: dict[str, Any] = {"drain": {"grace_s": 0, "evict_unmanaged": True}}
    if kind is A.DRAIN:
        return Patient(KubernetesActuatorSettings(**how), KubeClient(cluster.transport))
    settings = RepairSettings(image="tools:1", namespace=cluster.namespace, **how)
    return PatientRepair(settings, KubeClient(cluster.transport), now_s=lambda: 1000.0)


@pytest.mark.parametrize("change", [gone, replaced])
@pytest.mark.parametrize("kind", [A.DRAIN, A.RESET_GPU, A.REBOOT_NODE])
def test_a_gang_that_was_stopped_is_started_again_though_its_node_goes_meanwhile(
    cluster: Cluster, kind: ActionKind, change: Callable[[Cluster, str], None]
) -> None:
    """And the machine that stands there by then is left alone: no cordon, no eviction, no repair Job."""
    node = cluster.node()
    boots(cluster, node, "boot-1")
    gang = job(cluster, "gang", [node, cluster.node()])
    action, actuator = act(cluster, kind, node, (gang,)), actuator_of(cluster, kind)
    with pytest.raises(UnderWay, match="stopping"):
        actuator.execute(action)
    change(cluster, node)
    assert actuator.read(action).status is S.UNDER_WAY, "carried on, not begun anew"
    outcome = finished(lambda: actuator.execute(action), stop_pods(cluster, "gang"))
    assert (outcome.status, gang in outcome.detail) == (S.REFUSED, True)
    batch = client.BatchV1Api(cluster.api)
    assert batch.read_namespaced_job("gang", cluster.namespace).spec.suspend is False
    assert len(batch.list_namespaced_job(cluster.namespace).items) == 1
    if change is replaced:
        found = cluster.core.read_node(node)
        assert not found.spec.unschedulable
        assert not [note for note in found.metadata.annotations or {} if note.startswith("nightshift.dev/")]
        assert actuator.changed(action), "who asks again is told that it is another machine"


@pytest.mark.parametrize("kind", [A.DRAIN, A.RESET_GPU, A.REBOOT_NODE, A.CORDON])
def test_a_node_that_is_gone_before_the_action_begins_is_said_to_be(cluster: Cluster, kind: ActionKind) -> None:
    node = cluster.node()
    action = act(cluster, kind, node)
    gone(cluster, node)
    actuator = actuator_of(cluster, A.DRAIN if kind is A.CORDON else kind)
    assert actuator.changed(action) == [f"node:{node} no longer exists"]
    try:
        outcome = actuator.execute(action)
        assert (outcome.status, "no longer exists" in outcome.detail) == (S.REFUSED, True)
    except Permanent as error:
        assert "not found" in str(error)  # noqa: PT017


def test_a_plan_is_for_the_machine_that_it_was_made_for() -> None:
    """Its uid is among what is read again before acting; for a GPU's plan, its node's."""
    inventory, node, gpu = Inventory(), Subject(K.NODE, "n1"), Subject(K.GPU, "GPU-1")
    inventory.observe(gpu, node, 0.0)
    situation = Situation("INC-1", Fault.XID, gpu, (), inventory, 10.0)
    how: dict[str, Any] = {"why": "", "undo": Undo(False, "")}
    known = Precondition(node, "uid", "u-1")
    assert draw_up(situation, Economy(), A.CORDON, node, nodes=(node,), **how).preconditions == ()
    inventory.describe(node, uid="u-1")
    assert draw_up(situation, Economy(), A.CORDON, node, nodes=(node,), **how).preconditions == (known,)
    assert draw_up(situation, Economy(), A.RESET_GPU, gpu, params={"node": "n1"}, **how).preconditions == (known,)


def test_a_pod_that_a_finalizer_holds_is_waited_for_and_the_finalizer_named(cluster: Cluster) -> None:
    """A drain does not take finalizers off: whoever set one has something left to do."""
    node = cluster.node()
    cluster.pod("held", node, ownerReferences=[cluster.owner()], finalizers=["example.com/backup"])
    drainer, action = actuator_of(cluster, A.DRAIN), act(cluster, A.DRAIN, node)
    for _ in range(2):
        with pytest.raises(UnderWay, match="held is terminating"):
            drainer.execute(action)
    with pytest.raises(UnderWay, match=r"held by example\.com/backup"):
        drainer.execute(action)
    cluster.core.patch_namespaced_pod("held", cluster.namespace, {"metadata": {"finalizers": None}})
    assert finished(lambda: drainer.execute(action)).status is S.DONE


class Throttled(KubeClient):
    """The API server sends evictions away for a while, as priority and fairness does."""

    def request(self, method: str, path: str, **how: Any) -> Any:
        if path.endswith("/eviction") and not (how["body"]["deleteOptions"].get("dryRun")):
            raise refusal(429, b'{"message": "too many requests"}', {"Retry-After": "42"}, f"{method} {path}")
        return super().request(method, path, **how)


def test_an_eviction_is_not_asked_for_again_before_the_servers_retry_after(cluster: Cluster) -> None:
    node = cluster.node()
    cluster.pod("busy", node, ownerReferences=[cluster.owner()])
    drainer = Patient(KubernetesActuatorSettings(drain={"grace_s": 0}), Throttled(cluster.transport))
    with pytest.raises(UnderWay, match="too many requests") as raised:
        drainer.execute(act(cluster, A.DRAIN, node))
    assert raised.value.retry_after_s == 42.0


def test_a_budget_that_no_pod_matches_holds_nobody_up(cluster: Cluster) -> None:
    node = cluster.node()
    cluster.pod("free", node, labels={"app": "a"}, ownerReferences=[cluster.owner()])
    budget = {"metadata": {"name": "empty"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "b"}}}}
    client.PolicyV1Api(cluster.api).create_namespaced_pod_disruption_budget(cluster.namespace, budget)
    drainer, action = actuator_of(cluster, A.DRAIN), act(cluster, A.DRAIN, node)
    assert finished(lambda: drainer.execute(action)).status is S.DONE


def test_mirror_pods_and_pods_of_unknown_owners_are_told_apart(cluster: Cluster) -> None:
    """A mirror pod stays; a pod whose controller is of a kind that we do not know is moved like any other."""
    node = cluster.node()
    cluster.pod(
        "static", node, annotations={"kubernetes.io/config.mirror": "x", "kubernetes.io/config.source": "file"}
    )
    strange = {**cluster.owner(), "apiVersion": "example.com/v7", "kind": "Oracle", "name": "delphi"}
    cluster.pod("foretold", node, ownerReferences=[strange])
    drainer = Patient(KubernetesActuatorSettings(drain={"grace_s": 0}), KubeClient(cluster.transport))
    action = replace(act(cluster, A.DRAIN, node), id="m-mirror")
    assert finished(lambda: drainer.execute(action)).status is S.DONE
    assert "static" in {pod.metadata.name for pod in cluster.core.list_namespaced_pod(cluster.namespace).items}
