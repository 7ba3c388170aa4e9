"""Giving a node back on a Kubernetes API server: probed as it stands, uncordoned where the cordon is ours alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

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
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_marks import MARKER
from nightshift.controllers.actuators.kube_probe import ProbeJob
from nightshift.controllers.actuators.kube_repair import KubernetesRepairActuator, RepairSettings
from nightshift.controllers.actuators.kubernetes import KubernetesActuatorSettings
from nightshift.controllers.cordon import CORDON_OF, cordon_ids
from tests.controllers.kube_scenes import Patient, PatientRepair, repair_job_ends, repair_jobs
from tests.kubernetes_api.cluster import MARK, Cluster

S, A = OutcomeStatus, ActionKind
_numbers = itertools.count()
Change = Callable[[Cluster, str], object]


@pytest.fixture
def actuator(cluster: Cluster) -> KubernetesRepairActuator:
    probes = {"nccl": ProbeJob(image="nccl-tests:1")}
    settings = RepairSettings(image="tools:1", namespace=cluster.namespace, probes=probes)
    return PatientRepair(settings, KubeClient(cluster.transport), now_s=lambda: 1000.0)


def act(kind: ActionKind, node: str, *ids: str, **params: str) -> Action:
    target = Subject(SubjectKind.NODE, node)
    holds = (Precondition(target, CORDON_OF, cordon_ids(ids)),) if ids else ()
    number = next(_numbers)
    return Action(f"inc-{number}-{kind}", kind, target, "", BlastRadius(), Undo(False, ""), 2e9, params, holds)


def ours(cluster: Cluster, kind: ActionKind = A.CORDON) -> tuple[str, Action]:
    """A node that we took out of use, and the plan to give it back."""
    node = cluster.node()
    taken = act(kind, node)
    Patient(KubernetesActuatorSettings(), KubeClient(cluster.transport)).execute(taken)
    return node, act(A.RETURN_NODE, node, taken.id, probe="nccl")


def is_cordoned(cluster: Cluster, node: str) -> bool:
    return bool(cluster.core.read_node(node).spec.unschedulable)


def by_kubectl(cluster: Cluster, node: str, cordoned: bool) -> None:
    body = {"spec": {"unschedulable": True if cordoned else None}}
    cluster.core.patch_node(node, body, field_manager="kubectl")


@pytest.mark.parametrize("kind", [A.CORDON, A.DRAIN])
def test_a_node_is_probed_and_then_uncordoned_once(
    cluster: Cluster, actuator: KubernetesRepairActuator, kind: ActionKind
) -> None:
    """The probe of its fault runs on the cordoned node; where it passes, one write uncordons and takes our marks
    off, so that a later cordon of a person's is not taken for ours."""
    node, action = ours(cluster, kind)
    action = replace(action, params={**action.params, "as_spare": kind is A.DRAIN})
    assert actuator.changed(action) == []
    assert actuator.read(action).status is S.NOT_DONE
    with pytest.raises(UnderWay, match="-check works on"):
        actuator.execute(action)
    assert actuator.read(action).status is S.UNDER_WAY
    assert is_cordoned(cluster, node), "not before the probe"
    (made,) = repair_jobs(cluster).values()
    assert made.spec.template.spec.node_name == node
    assert made.spec.template.spec.containers[0].image == "nccl-tests:1"
    repair_job_ends(cluster, suffix="-check", said="Avg bus bandwidth : 352.1")
    outcome = actuator.execute(action)
    assert (outcome.status, "the nccl probe passed: Avg bus" in outcome.detail) == (S.DONE, True)
    assert not is_cordoned(cluster, node)
    taints = {taint.key for taint in cluster.core.read_node(node).spec.taints or []}
    assert ("nightshift.dev/spare" in taints) is (kind is A.DRAIN), "as a warm spare where the plan says so"
    assert not {MARKER + A.CORDON, MARKER + A.DRAIN} & set(cluster.core.read_node(node).metadata.annotations)
    assert actuator.read(action).status is S.DONE
    assert actuator.execute(action).status is S.ALREADY_DONE


def test_a_probe_that_fails_leaves_the_node_cordoned_and_is_not_run_again(
    cluster: Cluster, actuator: KubernetesRepairActuator
) -> None:
    """Its last words are told; a repeat says the same."""
    node, action = ours(cluster)
    with pytest.raises(UnderWay):
        actuator.execute(action)
    repair_job_ends(cluster, "Failed", suffix="-check", said="Out of bounds values : 12 FAILED")
    for _ in range(2):
        outcome = actuator.execute(action)
        assert (outcome.status, "12 FAILED" in outcome.detail) == (S.FAILED, True)
    assert is_cordoned(cluster, node)
    assert len(repair_jobs(cluster)) == 1


def a_person_cordons_anew(cluster: Cluster, node: str) -> None:
    by_kubectl(cluster, node, False)
    by_kubectl(cluster, node, True)


def a_person_uncordons(cluster: Cluster, node: str) -> None:
    by_kubectl(cluster, node, False)


def the_mark_is_gone(cluster: Cluster, node: str) -> None:
    cluster.core.patch_node(node, {"metadata": {"annotations": {MARKER + A.CORDON: None, MARKER + A.DRAIN: None}}})


def another_cordons(cluster: Cluster, node: str) -> None:
    Patient(KubernetesActuatorSettings(), KubeClient(cluster.transport)).execute(act(A.DRAIN, node))


def a_person_applies_the_cordon_too(cluster: Cluster, node: str) -> None:
    """Server-side apply of what stands: nothing changes but that the field is theirs as well."""
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": {"unschedulable": True}}
    KubeClient(cluster.transport).request(
        "PATCH",
        f"/api/v1/nodes/{node}",
        body=body,
        query={"fieldManager": "gitops"},
        content_type="application/apply-patch+yaml",
    )


def nvsentinel_counts_on_it(cluster: Cluster, node: str) -> None:
    said = {"quarantineHealthEvent": "[]", "quarantineHealthEventIsCordoned": "True"}
    cluster.core.patch_node(node, {"metadata": {"annotations": said}})


def the_node_is_replaced(cluster: Cluster, node: str) -> None:
    """Another machine under the same name, which its people have cordoned until it is ready."""
    cluster.core.delete_node(node)
    body = {"metadata": {"name": node, "labels": {MARK: "node"}}, "spec": {"unschedulable": True}}
    cluster.core.create_node(body, field_manager="kubelet")


CHANGES = [
    a_person_cordons_anew,
    a_person_uncordons,
    the_mark_is_gone,
    another_cordons,
    a_person_applies_the_cordon_too,
    nvsentinel_counts_on_it,
    the_node_is_replaced,
]


@pytest.mark.parametrize("during", [pytest.param(False, marks=pytest.mark.full), True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_node_whose_cordon_is_not_just_ours_is_left_as_it_is(
    cluster: Cluster, actuator: KubernetesRepairActuator, change: Change, during: bool
) -> None:
    """Whoever cordoned it since, whoever took our mark, another incident's drain: before the probe or during it."""
    node, action = ours(cluster)
    if during:
        with pytest.raises(UnderWay):
            actuator.execute(action)
        repair_job_ends(cluster, suffix="-check")
    change(cluster, node)
    before = is_cordoned(cluster, node)
    assert actuator.changed(action) != []
    assert actuator.execute(action).status in (S.REFUSED, S.FAILED)
    assert is_cordoned(cluster, node) is before
    assert len(repair_jobs(cluster)) == during


@pytest.mark.parametrize("kind", [A.CORDON, pytest.param(A.DRAIN, marks=pytest.mark.full)])
@pytest.mark.parametrize("change", [c for c in CHANGES if c not in (a_person_uncordons, another_cordons)])
def test_neither_is_it_uncordoned_by_an_undo_or_an_uncordon(
    cluster: Cluster, actuator: KubernetesRepairActuator, change: Change, kind: ActionKind
) -> None:
    """The same cordons, for everything else that could take one back."""
    node = cluster.node()
    taken = replace(act(kind, node), undo=Undo(True, "uncordon"))
    nodes = Patient(KubernetesActuatorSettings(), KubeClient(cluster.transport))
    nodes.execute(taken)
    change(cluster, node)
    assert nodes.undo(taken).status is S.REFUSED
    assert nodes.execute(act(A.UNCORDON, node)).status is S.REFUSED
    assert is_cordoned(cluster, node)


def test_what_two_of_our_actions_hold_is_uncordoned_by_the_last(cluster: Cluster) -> None:
    """Taking one back leaves the other's node out of use."""
    node = cluster.node()
    first, second = (replace(act(kind, node), undo=Undo(True, "uncordon")) for kind in (A.CORDON, A.DRAIN))
    nodes = Patient(KubernetesActuatorSettings(), KubeClient(cluster.transport))
    for action in (first, second):
        nodes.execute(action)
    outcome = nodes.undo(first)
    assert (outcome.status, f"stays cordoned for {second.id}" in outcome.detail) == (S.DONE, True)
    assert is_cordoned(cluster, node)
    assert nodes.undo(second).status is S.DONE
    assert not is_cordoned(cluster, node)


def test_a_cordon_that_a_person_had_set_before_ours_is_theirs(
    cluster: Cluster, actuator: KubernetesRepairActuator
) -> None:
    """A drain of ours on a node that was cordoned already does not make the cordon ours."""
    node = cluster.node(unschedulable=True)
    drained = act(A.DRAIN, node)
    Patient(KubernetesActuatorSettings(), KubeClient(cluster.transport)).execute(drained)
    (said,) = actuator.changed(act(A.RETURN_NODE, node, drained.id, probe="nccl"))
    assert "another client" in said


def test_nothing_is_given_back_on_a_check_that_proves_nothing(
    cluster: Cluster, actuator: KubernetesRepairActuator
) -> None:
    """Without an image for the fault's probe, and with no check of the operator's own, it is not even proposed."""
    node, _ = ours(cluster)
    (mark,) = [v for k, v in cluster.core.read_node(node).metadata.annotations.items() if k == MARKER + A.CORDON]
    action = act(A.RETURN_NODE, node, mark.split('"')[3], probe="dcgm")
    assert actuator.changed(action) == ["the dcgm probe cannot run: no image is set for it"]
    own = RepairSettings(image="tools:1", namespace=cluster.namespace, check_command=("dcgmi", "diag", "-r", "2"))
    assert KubernetesRepairActuator(own, KubeClient(cluster.transport)).changed(action) == []
