"""GPU reset and node reboot on a Kubernetes API server: emptied and released first, done once, checked, given
back."""

from __future__ import annotations

from dataclasses import replace

import kubernetes_validate
import pytest
from kubernetes import client

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import fingerprint
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import (
    Action,
    ActionKind,
    Actuator,
    BlastRadius,
    EvidenceSource,
    OutcomeStatus,
    UnderWay,
    traits_of,
)
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_probe import ProbeJob
from nightshift.controllers.actuators.kube_repair import (
    AGENT_PAUSED,
    PAUSED,
    KubernetesRepairActuator,
    RepairSettings,
)
from nightshift.controllers.actuators.kube_repair_jobs import job_name, why_failed
from nightshift.controllers.actuators.kube_rights import OWN_RIGHTS, RIGHTS, Right
from tests.controllers.kube_scenes import (
    PatientRepair,
    boots,
    client_with,
    job,
    repair_job_ends,
    repair_jobs,
    rules_of,
    stop_pods,
)
from tests.controllers.repair_scenes import Clock, cordoned_by_us, finished, plan, reboot, repairer, reset, waits
from tests.kubernetes_api.cluster import Cluster

S = OutcomeStatus
PLUGIN = "nvidia.com/gpu.deploy.device-plugin"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def actuator(cluster: Cluster, clock: Clock) -> KubernetesRepairActuator:
    return repairer(cluster, clock)


def test_it_fulfils_the_actuator_contract(actuator: KubernetesRepairActuator) -> None:
    assert isinstance(actuator, Actuator)
    assert isinstance(actuator, EvidenceSource)
    repairs = {ActionKind.RESET_GPU, ActionKind.REBOOT_NODE, ActionKind.RETURN_NODE}
    assert actuator.kinds() == repairs | {ActionKind.OPEN_RMA}


def test_evidence_comes_from_a_job_on_the_node_and_a_return_case_changes_nothing(
    cluster: Cluster, actuator: KubernetesRepairActuator
) -> None:
    """The Job is made once. Its parts are taken once the end is printed, though a command of it still hangs."""
    if cluster.server is None:
        pytest.skip("needs to say what a pod printed")
    node = cluster.node()
    case = plan(ActionKind.OPEN_RMA, Subject(SubjectKind.GPU, "GPU-7"), node)
    for _ in range(2):
        with pytest.raises(UnderWay):
            actuator.evidence(case)
    ((name, made),) = repair_jobs(cluster).items()
    assert name.endswith("-evidence")
    assert made.spec.active_deadline_seconds <= 60
    assert made.spec.template.spec.node_name == node
    prints(cluster, name, case, "nvidia-smi whole\nSerial Number : 7\n")
    assert actuator.evidence(case) == {"nvidia-smi": b"Serial Number : 7\n"}
    assert actuator.execute(case).status is S.DONE
    assert actuator.undo(case).status is S.DONE
    assert not cluster.core.read_node(node).spec.unschedulable
    assert len(repair_jobs(cluster)) == 1


def test_a_node_that_is_gone_has_no_evidence(cluster: Cluster, actuator: KubernetesRepairActuator) -> None:
    with pytest.raises(Permanent, match="has no node nowhere"):
        actuator.evidence(reset("nowhere"))


def prints(cluster: Cluster, name: str, action: Action, text: str) -> None:
    """What the evidence's Job has printed."""
    assert cluster.server is not None
    pod = cluster.pod(f"{name}-p", labels={"batch.kubernetes.io/job-name": name})
    status = {"status": {"startTime": "2026-11-21T12:00:00Z"}}
    cluster.core.patch_namespaced_pod_status(pod, cluster.namespace, status)
    mark = fingerprint([action.id, "evidence"])
    cluster.server.logs[cluster.namespace, pod] = f"\n{mark} {text}\n{mark} end\n"


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
        drain={"grace_s": 0, "evict_unmanaged": True},
        probes={"nccl": probe},
    )
    actuator = PatientRepair(settings, KubeClient(cluster.transport), now_s=clock)
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
    """Those of its kind, and Jobs in its own namespace; each one was used, save those on operators' kinds of jobs,
    which `test_kube_rights` uses."""
    if cluster.server is None:
        pytest.skip("needs to see what was asked")
    other = Cluster(cluster.kubeconfig, cluster.api, "elsewhere", cluster.server)
    cluster.core.create_namespace({"metadata": {"name": "elsewhere"}})
    kube = client_with(cluster, rules_of(RIGHTS[kind]), rules_of(OWN_RIGHTS[kind]))
    probes = {"dcgm": ProbeJob(image="dcgm:1")}
    settings = RepairSettings(
        image="tools:1", namespace=cluster.namespace, drain={"grace_s": 0, "evict_unmanaged": True}, probes=probes
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
    if kind is ActionKind.OPEN_RMA:
        action = plan(kind, Subject(SubjectKind.GPU, "GPU-7"), node)
    assert actuator.changed(action) == []
    if traits_of(kind).evidence:
        with pytest.raises(UnderWay):
            actuator.evidence(action)
        (name,) = repair_jobs(cluster)
        prints(cluster, name, action, "sel whole\n")
        assert actuator.evidence(action)
        client.BatchV1Api(cluster.api).delete_namespaced_job(name, cluster.namespace)

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
    said = why_failed(KubeClient(cluster.transport), cluster.namespace, "none-of-this-name", ended)
    assert "never had a pod (DeadlineExceeded Job was active too long)" in said
    assert "admit privileged pods" in said
