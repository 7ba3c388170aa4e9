"""GPU reset and node reboot on a Kubernetes API server: emptied and released first, done once, checked, given
back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
from kubernetes import client

from collectors.base import Permanent
from collectors.kube_api import Object, Refused
from collectors.subject import Subject, SubjectKind
from controllers.action import (
    Action,
    ActionKind,
    Actuator,
    BlastRadius,
    Outcome,
    OutcomeStatus,
    Precondition,
    UnderWay,
    Undo,
)
from controllers.actuators.kube_client import KubeClient
from controllers.actuators.kube_probe import ProbeJob, Probes
from controllers.actuators.kube_repair import (
    AGENT_PAUSED,
    PAUSED,
    KubernetesRepairActuator,
    RepairSettings,
    job_name,
)
from controllers.actuators.kube_repair_jobs import why_failed
from controllers.actuators.kube_rights import OWN_RIGHTS, RIGHTS, Right
from controllers.actuators.kubernetes import KubernetesSettings
from controllers.cordon import CORDON_OF
from tests.controllers.kube_scenes import (
    Patient,
    PatientRepair,
    boots,
    client_with,
    job,
    repair_job_ends,
    repair_jobs,
    rules_of,
    stop_pods,
)
from tests.controllers.kube_scenes import finished as scenes_finished
from tests.kubernetes_api.cluster import Cluster

S = OutcomeStatus
PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
_numbers = itertools.count()


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def actuator(cluster: Cluster, clock: Clock) -> KubernetesRepairActuator:
    settings = RepairSettings(
        image="tools:1", namespace=cluster.namespace, drain_grace_s=0, evict_unmanaged=True, job_timeout_s=600
    )
    return PatientRepair(settings, KubeClient(cluster.api), now_s=clock)


def plan(kind: ActionKind, target: Subject, node: str, *, jobs: tuple[str, ...] = ()) -> Action:
    return Action(
        id=f"inc-{next(_numbers)}-{kind}",
        kind=kind,
        target=target,
        why="because",
        blast_radius=BlastRadius(jobs=jobs),
        undo=Undo(False, "never"),
        expires_at_s=2e9,
        params={"node": node},
    )


def reset(node: str, *jobs: str) -> Action:
    return plan(ActionKind.RESET_GPU, Subject(SubjectKind.GPU, "GPU-7"), node, jobs=jobs)


def reboot(node: str) -> Action:
    return plan(ActionKind.REBOOT_NODE, Subject(SubjectKind.NODE, node), node)


def cordoned_by_us(cluster: Cluster, node: str) -> Action:
    """The plan to give back a node that we cordoned."""
    ours = plan(ActionKind.CORDON, Subject(SubjectKind.NODE, node), node)
    Patient(KubernetesSettings(), KubeClient(cluster.api)).execute(ours)
    back = plan(ActionKind.RETURN_NODE, ours.target, node)
    holds = (Precondition(ours.target, CORDON_OF, ours.id),)
    return replace(back, params={"probe": "dcgm"}, preconditions=holds)


def waits(actuator: KubernetesRepairActuator, action: Action, match: str) -> None:
    with pytest.raises(UnderWay, match=match):
        actuator.execute(action)
    assert actuator.read(action).status is S.UNDER_WAY


def finished(actuator: KubernetesRepairActuator, action: Action, between: Callable[[], None]) -> Outcome:
    return scenes_finished(lambda: actuator.execute(action), between)


def test_it_fulfils_the_actuator_contract(actuator: KubernetesRepairActuator) -> None:
    assert isinstance(actuator, Actuator)
    assert actuator.kinds() == {ActionKind.RESET_GPU, ActionKind.REBOOT_NODE, ActionKind.RETURN_NODE}


def test_a_gpu_is_emptied_and_released_before_it_is_reset_and_checked_before_it_is_given_back(
    cluster: Cluster, actuator: KubernetesRepairActuator
) -> None:
    """Its job stops whole; the device plugin, which was on, is paused and waited for; what was off stays off;
    after reset and check everything is as before."""
    node = cluster.node(labels={PLUGIN: "true", "nvidia.com/gpu.deploy.dcgm": "false"})
    held = job(cluster, "train", [node])
    plugin = cluster.pod("plugin", node, labels={"app": "nvidia-device-plugin-daemonset"})
    action = reset(node, held)
    assert actuator.read(action).status is S.NOT_DONE
    waits(actuator, action, "train is stopping")
    assert cluster.core.read_node(node).spec.unschedulable
    stop_pods(cluster, "train")()
    waits(actuator, action, f"{cluster.namespace}/plugin hold")
    labels = cluster.core.read_node(node).metadata.labels
    assert (labels[PLUGIN], labels["nvidia.com/gpu.deploy.dcgm"], labels[AGENT_PAUSED]) == (PAUSED, "false", "true")
    assert repair_jobs(cluster) == {}, "no reset while somebody holds handles"
    cluster.remove_pod(plugin)
    waits(actuator, action, "works on")
    waits(actuator, action, "works on")
    assert len(repair_jobs(cluster)) == 1
    repair_job_ends(cluster)
    waits(actuator, action, "-check works on")
    assert cluster.core.read_node(node).spec.unschedulable, "not before the check"
    repair_job_ends(cluster, suffix="-check")
    assert actuator.execute(action).status is S.DONE
    found = cluster.core.read_node(node)
    assert not found.spec.unschedulable
    assert found.metadata.labels[PLUGIN] == "true"
    assert AGENT_PAUSED not in found.metadata.labels
    assert actuator.read(action).status is S.DONE
    assert actuator.execute(action).status is S.ALREADY_DONE
    assert len(repair_jobs(cluster)) == 2
    resumed = client.BatchV1Api(cluster.api).read_namespaced_job("train", cluster.namespace)
    assert resumed.spec.suspend is False


def test_a_gpu_that_somebody_holds_is_not_reset_and_the_holder_is_named(
    cluster: Cluster, actuator: KubernetesRepairActuator
) -> None:
    """The Job's words reach the person; components come back, the node stays out of use."""
    node = cluster.node(labels={PLUGIN: "true"})
    action = reset(node)
    waits(actuator, action, "works on")
    repair_job_ends(cluster, "Failed", said="held by 4242, python train.py;")
    outcome = actuator.execute(action)
    assert outcome.status is S.FAILED
    assert "held by 4242, python train.py" in outcome.detail
    assert "stays cordoned" in outcome.detail
    found = cluster.core.read_node(node)
    assert found.spec.unschedulable
    assert found.metadata.labels[PLUGIN] == "true"
    assert actuator.read(action).status is S.FAILED
    assert actuator.execute(action).status is S.FAILED, "a repeat does not try again"


def test_a_failed_check_keeps_the_node_out_of_use(cluster: Cluster, actuator: KubernetesRepairActuator) -> None:
    node = cluster.node()
    action = reset(node)
    waits(actuator, action, "works on")
    repair_job_ends(cluster)
    waits(actuator, action, "-check works on")
    repair_job_ends(cluster, "Failed", suffix="-check")
    outcome = actuator.execute(action)
    assert (outcome.status, "the check failed" in outcome.detail) == (S.FAILED, True)
    assert cluster.core.read_node(node).spec.unschedulable


def test_the_probe_of_the_fault_runs_in_its_image_and_its_last_words_are_told(
    cluster: Cluster, clock: Clock
) -> None:
    """A link fault is proved mended by NCCL's test; a probe without an image is said, not skipped in silence."""
    probe = ProbeJob(image="registry.invalid/nccl-tests:1", command=("run",))
    settings = RepairSettings(
        image="tools:1",
        namespace=cluster.namespace,
        drain_grace_s=0,
        evict_unmanaged=True,
        probes=Probes(nccl=probe),
    )
    actuator = PatientRepair(settings, KubeClient(cluster.api), now_s=clock)
    for name, told in (
        ("nccl", "the nccl probe passed: Avg bus bandwidth : 352.1"),
        ("dcgm", "checked by nvidia-smi; the dcgm probe was not run: no image is set for it"),
    ):
        action = reset(cluster.node())
        action = replace(action, params={**action.params, "probe": name})
        waits(actuator, action, "works on")
        made = job_name(action)
        repair_job_ends(cluster, name=made)
        waits(actuator, action, "-check works on")
        check = repair_jobs(cluster)[f"{made}-check"].spec.template.spec.containers[0]
        assert (check.image, check.command) == (
            (probe.image, ["run"]) if name == "nccl" else ("tools:1", ["nvidia-smi"])
        )
        repair_job_ends(cluster, name=f"{made}-check", said="Avg bus bandwidth : 352.1")
        outcome = actuator.execute(action)
        assert outcome.status is S.DONE
        assert told in outcome.detail


def test_a_node_is_drained_rebooted_once_and_proved_by_its_boot_id(
    cluster: Cluster, actuator: KubernetesRepairActuator, clock: Clock
) -> None:
    """The pod that asks for the reboot dies with it, which proves nothing: another boot id and readiness do."""
    node = cluster.node()
    boots(cluster, node, "boot-1")
    cluster.pod("single", node)
    action = reboot(node)
    waits(actuator, action, "single")
    assert repair_jobs(cluster) == {}
    waits(actuator, action, "another boot id")
    (made,) = repair_jobs(cluster).values()
    env = {e.name: e.value for e in made.spec.template.spec.containers[0].env}
    assert env["BOOT_ID"] == "boot-1"
    repair_job_ends(cluster, "Failed")
    waits(actuator, action, "another boot id")
    boots(cluster, node, "boot-2", ready=False)
    waits(actuator, action, "not ready")
    boots(cluster, node, "boot-2")
    waits(actuator, action, "-check works on")
    repair_job_ends(cluster, suffix="-check")
    assert actuator.execute(action).status is S.DONE
    assert not cluster.core.read_node(node).spec.unschedulable
    assert len(repair_jobs(cluster)) == 2


def test_a_node_that_does_not_reboot_is_given_to_a_person(
    cluster: Cluster, actuator: KubernetesRepairActuator, clock: Clock
) -> None:
    node = cluster.node()
    boots(cluster, node, "boot-1")
    action = reboot(node)
    waits(actuator, action, "another boot id")
    repair_job_ends(cluster, "Failed", said="nsenter: cannot open /proc/1/ns/ipc")
    waits(actuator, action, "another boot id")
    clock.now_s += 601
    outcome = actuator.execute(action)
    assert (outcome.status, "nsenter" in outcome.detail) == (S.FAILED, True)
    assert cluster.core.read_node(node).spec.unschedulable


def test_a_reboot_that_could_not_be_proved_is_refused(cluster: Cluster, actuator: KubernetesRepairActuator) -> None:
    """Without a boot id before, there would be no telling afterwards."""
    with pytest.raises(Permanent, match="boot id"):
        actuator.execute(reboot(cluster.node()))


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
        Patient(KubernetesSettings(), KubeClient(cluster.api)).execute(ours)
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
    settings = RepairSettings(image="tools:1", namespace=cluster.namespace, evict_unmanaged=True)
    repairer = PatientRepair(settings, Forbids(cluster.api), now_s=clock)
    outcome = repairer.execute(reset(node))
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


def test_a_job_of_that_name_that_is_not_ours_is_left_alone(
    cluster: Cluster, actuator: KubernetesRepairActuator
) -> None:
    node = cluster.node()
    action = reset(node)
    with pytest.raises(UnderWay):
        actuator.execute(action)
    (name,) = repair_jobs(cluster)
    notes = {"metadata": {"annotations": {"nightshift.dev/action-id": "other"}}}
    client.BatchV1Api(cluster.api).patch_namespaced_job(name, cluster.namespace, notes)
    outcome = actuator.execute(action)
    assert (outcome.status, "is not ours" in outcome.detail) == (S.FAILED, True)
    assert AGENT_PAUSED not in cluster.core.read_node(node).metadata.labels


def test_the_jobs_are_valid_and_pinned(cluster: Cluster, actuator: KubernetesRepairActuator) -> None:
    """Kubernetes' schema accepts them strictly; they run on the cordoned node, once, for a bounded time, without a
    token."""
    node = cluster.node()
    with pytest.raises(UnderWay):
        actuator.execute(reset(node))
    (made,) = repair_jobs(cluster).values()
    body = cluster.api.sanitize_for_serialization(made)
    body["apiVersion"], body["kind"] = "batch/v1", "Job"
    body.pop("status", None)
    body["metadata"] = {k: v for k, v in body["metadata"].items() if k in ("name", "namespace", "labels")}
    kubernetes_validate.validate(body, "1.36", strict=True)
    assert made.spec.backoff_limit == 0
    assert made.spec.active_deadline_seconds == 600
    pod = made.spec.template.spec
    assert (pod.node_name, pod.automount_service_account_token, pod.restart_policy) == (node, False, "Never")


@pytest.mark.parametrize("kind", KubernetesRepairActuator.TARGETS)
def test_a_repair_needs_just_its_rights(cluster: Cluster, clock: Clock, kind: ActionKind) -> None:
    """Those of its kind, and Jobs in its own namespace; each one was used, save those on operators' kinds of
    jobs."""
    if cluster.server is None:
        pytest.skip("needs to see what was asked")
    other = Cluster(cluster.kubeconfig, cluster.api, "elsewhere", cluster.server)
    cluster.core.create_namespace({"metadata": {"name": "elsewhere"}})
    kube = client_with(cluster, rules_of(RIGHTS[kind]), rules_of(OWN_RIGHTS[kind]))
    probes = Probes(dcgm=ProbeJob(image="dcgm:1"))
    settings = RepairSettings(
        image="tools:1", namespace=cluster.namespace, drain_grace_s=0, evict_unmanaged=True, probes=probes
    )
    actuator = KubernetesRepairActuator(settings, kube, now_s=clock)
    assert actuator.refused() == [] or kind is not ActionKind.REBOOT_NODE
    node, beside = cluster.node(), cluster.node()
    boots(cluster, node, "boot-1")
    held = job(other, "train", [node, beside])
    other.pod("alone", node)
    action = reset(node, held) if kind is ActionKind.RESET_GPU else reboot(node)
    radius = BlastRadius(jobs=action.blast_radius.jobs, pods=("elsewhere/alone",))
    action = replace(action, blast_radius=radius)
    if kind is ActionKind.RETURN_NODE:
        action = cordoned_by_us(cluster, node)
    assert actuator.changed(action) == []

    def happens() -> None:
        stop_pods(other, "train")()
        made = repair_jobs(cluster)
        if made:
            boots(cluster, node, "boot-2")
            repair_job_ends(cluster, suffix="-check" if any(name.endswith("-check") for name in made) else "")

    assert finished(actuator, action, happens).status is S.DONE
    actuator.read(action)
    asked = [a for user, a in cluster.server.requests if user.name.startswith("system:serviceaccount:")]
    asked = [a for a in asked if not a.resource.endswith("reviews")]
    own = {Right(a.verb, a.group, a.resource, a.subresource) for a in asked if a.namespace == cluster.namespace}
    wide = {Right(a.verb, a.group, a.resource, a.subresource) for a in asked if a.namespace != cluster.namespace}
    assert own - RIGHTS[kind] <= OWN_RIGHTS[kind]
    assert own >= OWN_RIGHTS[kind]
    assert wide <= RIGHTS[kind]
    assert {right for right in RIGHTS[kind] - wide if right.group in ("", "batch")} == set()


def test_a_job_that_never_had_a_pod_says_what_keeps_pods_away(cluster: Cluster) -> None:
    """Pod Security admission lets the Job in and refuses its pods; the Job then ends by its deadline."""
    ended = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "Job was active too long"}
    said = why_failed(KubeClient(cluster.api), cluster.namespace, "none-of-this-name", ended)
    assert "never had a pod (DeadlineExceeded Job was active too long)" in said
    assert "admit privileged pods" in said
