"""A node's machine is given back to what made it, after its gangs left it; and a cloud begins maintenance."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import NotFoundException

from nightshift.collectors.base import Permanent
from nightshift.collectors.kubernetes.makers import REPLACED_BY, maker
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import (
    Action,
    ActionKind,
    BlastRadius,
    OutcomeStatus,
    Precondition,
    UnderWay,
    Undo,
)
from nightshift.controllers.actuators.kube_rights import RIGHTS
from nightshift.controllers.actuators.kubernetes import KubernetesActuatorSettings
from tests.controllers.kube_scenes import Patient, client_with, finished, job, rules_of, stop_pods
from tests.kubernetes_api.cluster import Cluster

S, A, K = OutcomeStatus, ActionKind, SubjectKind
STATUS = "cloud.google.com/report-and-replace-status"


def made_by(cluster: Cluster, sort: str, node: str, of: str = "") -> tuple[Any, ...]:
    """A node's maker with the fields that its controller writes; the arguments that name it to the API."""
    custom: Any = client.CustomObjectsApi(cluster.api)
    if sort == "gke":
        cluster.core.patch_node(node, {"metadata": {"labels": {"cloud.google.com/gke-nodepool": "a3"}}})
        return ()
    if sort == "karpenter":
        cluster.define("karpenter.sh", "v1", "NodeClaim", scope="Cluster")
        body = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": f"claim-{node}"}}
        place: tuple[Any, ...] = ("karpenter.sh", "v1", "nodeclaims")
        uid = custom.create_cluster_custom_object(*place, body)["metadata"]["uid"]
        status = {"status": {"nodeName": of or node}}
        custom.patch_cluster_custom_object_status(*place, f"claim-{node}", status)
        owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": f"claim-{node}", "uid": uid}
        cluster.core.patch_node(node, {"metadata": {"ownerReferences": [owner]}})
        return (*place, f"claim-{node}")
    cluster.define("cluster.x-k8s.io", "v1beta2", "Machine")
    body = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": {"name": f"machine-{node}"}}
    place = ("cluster.x-k8s.io", "v1beta2", cluster.namespace, "machines")
    custom.create_namespaced_custom_object(*place, body)
    status = {"status": {"nodeRef": {"name": of or node}}}
    custom.patch_namespaced_custom_object_status(*place, f"machine-{node}", status)
    notes = {
        "cluster.x-k8s.io/machine": f"machine-{node}",
        "cluster.x-k8s.io/cluster-namespace": cluster.namespace,
        "cluster.x-k8s.io/owner-kind": "MachineSet",
    }
    cluster.core.patch_node(node, {"metadata": {"annotations": notes}})
    return (*place, f"machine-{node}")


def plan(cluster: Cluster, node: str, jobs: tuple[str, ...] = (), kind: ActionKind = A.REPLACE_NODE) -> Action:
    target, told = Subject(K.NODE, node), cluster.core.read_node(node)
    conditions = (
        Precondition(target, REPLACED_BY, maker(cluster.api.sanitize_for_serialization(told))),
        Precondition(target, "uid", told.metadata.uid),
    )
    reach = BlastRadius(jobs=jobs, nodes=(node,))
    return Action("act-1", kind, target, "", reach, Undo(False, ""), 2e9, {"reason": "XID"}, conditions)


def actuator(cluster: Cluster, kind: ActionKind = A.REPLACE_NODE) -> Patient:
    """With no more rights than its kind of action has."""
    settings = KubernetesActuatorSettings(drain={"grace_s": 0, "evict_unmanaged": True})
    return Patient(settings, client_with(cluster, rules_of(RIGHTS[kind])))


def exists(cluster: Cluster, place: tuple[Any, ...]) -> bool:
    custom: Any = client.CustomObjectsApi(cluster.api)
    get = custom.get_cluster_custom_object if len(place) == 4 else custom.get_namespaced_custom_object
    with suppress(NotFoundException):
        get(*place)
        return True
    return False


@pytest.mark.parametrize("sort", ["karpenter", pytest.param("cluster_api", marks=pytest.mark.full)])
def test_the_machine_goes_once_its_gang_has_left_and_is_started_elsewhere(cluster: Cluster, sort: str) -> None:
    node = cluster.node()
    place, gang = made_by(cluster, sort, node), job(cluster, "gang", [node, cluster.node()])
    action, act = plan(cluster, node, (gang,)), actuator(cluster)
    assert act.changed(action) == []
    with pytest.raises(UnderWay, match="stopping"):
        act.execute(action)
    assert exists(cluster, place), "nothing is given back while a gang is on it"
    batch = client.BatchV1Api(cluster.api)

    def between() -> None:
        stop_pods(cluster, "gang")()
        if not exists(cluster, place):
            assert batch.read_namespaced_job("gang", cluster.namespace).spec.suspend is False
            with suppress(NotFoundException):  # as its controller does once the machine has ended
                cluster.core.delete_node(node)

    outcome = finished(lambda: act.execute(action), between)
    assert outcome.status is S.ALREADY_DONE
    assert act.read(action).status is S.DONE


def test_gke_is_told_why_and_our_cordon_ends_once_gke_has_taken_the_report(cluster: Cluster) -> None:
    node = cluster.node()
    made_by(cluster, "gke", node)
    cluster.core.patch_node(node, {"metadata": {"labels": {STATUS: "OperationDone"}}})  # of an earlier report
    action, act = plan(cluster, node), actuator(cluster)
    for _ in range(2):
        with pytest.raises(UnderWay):
            act.execute(action)
    told = cluster.core.read_node(node)
    assert told.metadata.labels["cloud.google.com/fault-behavior"] == "XID"
    assert told.spec.unschedulable is True
    assert act.read(action).status is S.UNDER_WAY
    cluster.core.patch_node(node, {"metadata": {"labels": {STATUS: "OperationRUNNING"}}})
    assert act.execute(action).status is S.DONE
    assert not cluster.core.read_node(node).spec.unschedulable, "GKE's own taint keeps pods away from here on"
    assert act.read(action).status is S.DONE


def test_a_report_that_gke_does_not_take_leaves_the_node_cordoned(cluster: Cluster) -> None:
    node = cluster.node()
    made_by(cluster, "gke", node)
    action, act = plan(cluster, node), actuator(cluster)
    with pytest.raises(UnderWay):
        act.execute(action)
    cluster.core.patch_node(node, {"metadata": {"labels": {STATUS: "ERROR"}}})
    outcome = act.execute(action)
    assert (outcome.status, outcome.left_cordoned) == (S.FAILED, True)


def nothing(cluster: Cluster, node: str) -> None:
    """The Machine is in a management cluster: annotations alone name it here."""
    notes = {
        "cluster.x-k8s.io/machine": "far",
        "cluster.x-k8s.io/cluster-namespace": "elsewhere",
        "cluster.x-k8s.io/owner-kind": "MachineSet",
    }
    cluster.core.patch_node(node, {"metadata": {"annotations": notes}})


def claim_of_another(cluster: Cluster, node: str) -> None:
    made_by(cluster, "karpenter", node, of="another")


def machine_of_another(cluster: Cluster, node: str) -> None:
    made_by(cluster, "cluster_api", node, of="another")


@pytest.mark.parametrize("maker_of", [nothing, claim_of_another, machine_of_another])
def test_what_cannot_be_given_back_here_is_not_even_drained(
    cluster: Cluster, maker_of: Callable[[Cluster, str], None]
) -> None:
    node = cluster.node()
    maker_of(cluster, node)
    with pytest.raises(Permanent):
        actuator(cluster).execute(plan(cluster, node))
    assert not cluster.core.read_node(node).spec.unschedulable


def test_after_a_crash_behind_the_deletion_its_node_is_waited_for(cluster: Cluster) -> None:
    node = cluster.node()
    group, version, space, plural, name = made_by(cluster, "cluster_api", node)
    action = plan(cluster, node)
    with pytest.raises(UnderWay, match="gives"):
        actuator(cluster).execute(action)
    assert not exists(cluster, (group, version, space, plural, name))
    again = actuator(cluster)  # of another process
    with pytest.raises(UnderWay, match="gives"):
        again.execute(action)
    assert again.read(action).status is S.UNDER_WAY
    cluster.core.delete_node(node)
    assert again.execute(action).status is S.ALREADY_DONE


def test_another_machine_under_the_name_is_left_alone(cluster: Cluster) -> None:
    node = cluster.node()
    made_by(cluster, "gke", node)
    action = plan(cluster, node)
    cluster.core.delete_node(node)
    cluster.core.create_node({"metadata": {"name": node, "labels": {"cloud.google.com/gke-nodepool": "a3"}}})
    cluster.cleanup(cluster.core.delete_node, node)
    assert actuator(cluster).execute(action).status is S.ALREADY_DONE
    told = cluster.core.read_node(node)
    assert "cloud.google.com/fault-behavior" not in told.metadata.labels
    assert not told.spec.unschedulable


def test_maintenance_is_asked_for_once_and_not_after_its_notice_was_withdrawn(cluster: Cluster) -> None:
    node = cluster.node()
    made_by(cluster, "gke", node)
    action, act = plan(cluster, node, kind=A.START_MAINTENANCE), actuator(cluster, A.START_MAINTENANCE)
    with pytest.raises(Permanent, match="no longer announces"):
        act.execute(action)
    assert "cloud.google.com/perform-maintenance" not in cluster.core.read_node(node).metadata.labels
    due = {"cloud.google.com/scheduled-maintenance-time": "1900000000"}
    cluster.core.patch_node(node, {"metadata": {"labels": due}})
    assert [act.execute(action).status for _ in range(2)] == [S.DONE, S.ALREADY_DONE]
    assert cluster.core.read_node(node).metadata.labels["cloud.google.com/perform-maintenance"] == "true"
    assert act.read(action).status is S.DONE


def test_a_drain_releases_the_spares_that_its_plan_names(cluster: Cluster) -> None:
    """Only their own taint goes; one that is gone by then is no obstacle."""
    node, spare = cluster.node(), cluster.node()
    others = [{"key": "other", "value": "x", "effect": "NoSchedule"}]
    taints = [*others, {"key": "nightshift.dev/spare", "value": "warm", "effect": "NoSchedule"}]
    cluster.core.patch_node(spare, {"spec": {"taints": taints}})
    action = replace(plan(cluster, node, kind=A.DRAIN), params={"releases": f"gone-node {spare}"})
    assert finished(lambda: actuator(cluster, A.DRAIN).execute(action)).status is S.DONE
    left = cluster.core.read_node(spare).spec.taints
    assert [taint.key for taint in left] == ["other"]
