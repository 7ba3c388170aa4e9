"""How a repair ends on a Kubernetes API server: whose cordon stays, and that what was paused comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nightshift.collectors.kubernetes.api import Object, Refused
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import ActionKind, OutcomeStatus
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_repair import AGENT_PAUSED, KubernetesRepairActuator, RepairSettings
from nightshift.controllers.actuators.kubernetes import KubernetesActuatorSettings
from tests.controllers.kube_scenes import Patient, PatientRepair, boots, repair_job_ends
from tests.controllers.repair_scenes import Clock, cordoned_by_us, plan, reboot, repairer, reset, waits
from tests.kubernetes_api.cluster import Cluster

S = OutcomeStatus
PLUGIN = "nvidia.com/gpu.deploy.device-plugin"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def actuator(cluster: Cluster, clock: Clock) -> KubernetesRepairActuator:
    return repairer(cluster, clock)


@pytest.mark.parametrize("by", ["a person", "this incident", "another incident"])
def test_the_cordon_of_a_person_or_another_incident_outlives_the_repair_and_ours_does_not(
    cluster: Cluster, actuator: KubernetesRepairActuator, by: str
) -> None:
    """One GPU was reset: what else is wrong with the node, and cordoned it, still is."""
    node = cluster.node(unschedulable=by == "a person")
    action = replace(reset(node), id="inc-70000-reset-gpu-1")
    ours = plan(ActionKind.CORDON, Subject(SubjectKind.NODE, node), node)
    if by != "a person":
        ours = replace(ours, id=f"inc-7000{'0' if by == 'this incident' else ''}-cordon-1")
        Patient(KubernetesActuatorSettings(), KubeClient(cluster.transport)).execute(ours)
    waits(actuator, action, "works on")
    repair_job_ends(cluster)
    waits(actuator, action, "-check")
    repair_job_ends(cluster, suffix="-check")
    outcome = actuator.execute(action)
    assert outcome.status is S.DONE
    assert bool(cluster.core.read_node(node).spec.unschedulable) is (by != "this incident")
    assert (f"stays cordoned for {ours.id}" in outcome.detail) is (by == "another incident")


def test_after_a_reboot_another_incident_can_still_give_its_node_back(
    cluster: Cluster, actuator: KubernetesRepairActuator
) -> None:
    """Its cordon alone is left: the mark of the drain that came before the reboot is not."""
    node = cluster.node()
    boots(cluster, node, "boot-1")
    back = cordoned_by_us(cluster, node)
    action = replace(reboot(node), id="inc-70000-reboot-node-1")
    waits(actuator, action, "not come back")
    boots(cluster, node, "boot-2")
    waits(actuator, action, "-check")
    repair_job_ends(cluster, suffix="-check")
    assert actuator.execute(action).status is S.DONE
    assert cluster.core.read_node(node).spec.unschedulable
    own = replace(back, params={"probe": ""})
    assert [said for said in actuator.changed(own) if "cordon" in said] == []


@pytest.mark.parametrize("kind", [ActionKind.RESET_GPU, ActionKind.REBOOT_NODE])
def test_a_node_that_another_tool_claims_during_the_repair_stays_out_of_use(
    cluster: Cluster, actuator: KubernetesRepairActuator, kind: ActionKind
) -> None:
    """NVSentinel only annotates a node that is cordoned already, and counts on the cordon."""
    node = cluster.node()
    boots(cluster, node, "boot-1")
    action = reset(node) if kind is ActionKind.RESET_GPU else reboot(node)
    waits(actuator, action, "works on" if kind is ActionKind.RESET_GPU else "not come back")
    cluster.core.patch_node(node, {"metadata": {"annotations": {"quarantineHealthEvent": "GPU 3 fell off"}}})
    if kind is ActionKind.RESET_GPU:
        repair_job_ends(cluster)
    else:
        boots(cluster, node, "boot-2")
    waits(actuator, action, "-check")
    repair_job_ends(cluster, suffix="-check")
    outcome = actuator.execute(action)
    assert (outcome.status, cluster.core.read_node(node).spec.unschedulable) == (S.DONE, True)
    assert "stays cordoned" in outcome.detail
    assert AGENT_PAUSED not in cluster.core.read_node(node).metadata.labels, "the rest is brought back"


class Forbids(KubeClient):
    """An admission webhook that denies privileged Jobs."""

    def request(self, method: str, path: str, **how: Any) -> Object:
        if method == "POST" and path.endswith("/jobs"):
            raise Refused("admission webhook denied the request: privileged", 403)
        return super().request(method, path, **how)


def test_what_was_paused_comes_back_where_the_repair_may_not_run(cluster: Cluster, clock: Clock) -> None:
    """Else the node has no device plugin, no telemetry and no node agent any more, for want of an admission."""
    node = cluster.node(labels={PLUGIN: "true"})
    settings = RepairSettings(image="tools:1", namespace=cluster.namespace, drain={"evict_unmanaged": True})
    forbidden = PatientRepair(settings, Forbids(cluster.transport), now_s=clock)
    outcome = forbidden.execute(reset(node))
    assert (outcome.status, "webhook denied" in outcome.detail) == (S.FAILED, True)
    found = cluster.core.read_node(node)
    assert (found.metadata.labels[PLUGIN], AGENT_PAUSED in found.metadata.labels) == ("true", False)
    assert found.spec.unschedulable, "not repaired, so not given back"


def test_what_was_paused_comes_back_where_a_person_uncordons_during_the_repair(
    cluster: Cluster, actuator: KubernetesRepairActuator
) -> None:
    node = cluster.node(labels={PLUGIN: "true"})
    action = reset(node)
    waits(actuator, action, "works on")
    cluster.core.patch_node(node, {"spec": {"unschedulable": None}})
    outcome = actuator.execute(action)
    assert (outcome.status, "uncordoned it since" in outcome.detail) == (S.FAILED, True)
    assert "stays cordoned" not in outcome.detail
    labels = cluster.core.read_node(node).metadata.labels
    assert (labels[PLUGIN], AGENT_PAUSED in labels) == ("true", False)
    assert not cluster.core.read_node(node).spec.unschedulable


def test_holders_that_do_not_leave_are_named_and_everything_comes_back(
    cluster: Cluster, actuator: KubernetesRepairActuator, clock: Clock
) -> None:
    node = cluster.node(labels={PLUGIN: "true"})
    cluster.pod("plugin-x", node, labels={"app": "nvidia-device-plugin-daemonset"})
    action = reset(node)
    waits(actuator, action, "plugin-x hold handles")
    clock.now_s += 599
    waits(actuator, action, "plugin-x hold handles")
    clock.now_s += 2
    outcome = actuator.execute(action)
    assert (outcome.status, "plugin-x" in outcome.detail) == (S.FAILED, True)
    labels = cluster.core.read_node(node).metadata.labels
    assert (labels[PLUGIN], AGENT_PAUSED in labels) == ("true", False)
