"""Jobs of operators' kinds are stopped whole and started again from the right checkpoint, by their own fields."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client

from nightshift.collectors.base import Permanent
from nightshift.collectors.kubernetes.api import Refused
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, BlastRadius, OutcomeStatus, UnderWay, Undo
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_jobs import (
    KINDS,
    RESUME_STEP,
    SAVE_REQUEST,
    SAVED,
    SAVES_ON_REQUEST,
    FoundJob,
    JobKind,
    find,
)
from nightshift.controllers.actuators.kube_rights import Right
from nightshift.controllers.actuators.kubernetes import KubernetesActuatorSettings
from tests.controllers.kube_scenes import Patient, client_with, finished, job, rules_of
from tests.kubernetes_api.cluster import Cluster

OPERATORS = [kind for kind in KINDS if kind.kind != "Job"]


def place(cluster: Cluster, kind: JobKind) -> tuple[str, str, str, str]:
    _, group, version = kind.api.split("/")
    return group, version, cluster.namespace, kind.plural


def made(cluster: Cluster, kind: JobKind, name: str, **spec: Any) -> Subject:
    """A job of an operator's kind with two running pods on two nodes, and no operator."""
    spec = {"shutdownAfterJobFinishes": True, **spec} if kind.kind == "RayJob" else spec
    group, version, *_ = place(cluster, kind)
    cluster.define(group, version, kind.kind)
    body = {"apiVersion": f"{group}/{version}", "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
    client.CustomObjectsApi(cluster.api).create_namespaced_custom_object(*place(cluster, kind), body)
    for rank in range(2):
        cluster.pod(f"{name}-{rank}", cluster.node(), labels={kind.pods: name})
    return Subject(SubjectKind.JOB, f"{cluster.namespace}/{name}")


def restart(target: Subject, **params: Any) -> Action:
    radius, undo = BlastRadius(), Undo(False, "-")
    return Action("a-1", ActionKind.RESTART_JOB, target, "why", radius, undo, 2e9, params=params)


@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.kind)
def test_it_stops_whole_and_starts_from_the_step_before_the_onset(cluster: Cluster, kind: JobKind) -> None:
    """Its own suspend field is set, no pod is deleted by us; once they are gone it starts, told from which step."""
    target = made(cluster, kind, "train", other={"kept": 1})
    actuator = Patient(KubernetesActuatorSettings(), KubeClient(cluster.transport))
    kube = KubeClient(cluster.transport)
    seen: list[bool] = []

    def operator_stops_its_pods() -> None:
        seen.append(found(kube, target).suspended)
        for rank in range(2):
            cluster.remove_pod(f"train-{rank}")

    action = restart(target, checkpoint_step=84_000, keep_checkpoints=True)
    assert finished(lambda: actuator.execute(action), operator_stops_its_pods).status is OutcomeStatus.DONE
    assert seen[0], "stopped as a whole"
    after = found(kube, target)
    assert not after.suspended
    assert after.annotations[RESUME_STEP] == "84000"
    assert after.object["spec"]["other"] == {"kept": 1}, "nothing else of it is touched"
    assert actuator.execute(action).status is OutcomeStatus.DONE, "a repeat does not stop it again"


@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.kind)
def test_one_that_somebody_stopped_is_theirs_to_start(cluster: Cluster, kind: JobKind) -> None:
    held: Any = True
    for part in reversed(kind.suspend[1:]):
        held = {part: held}
    target = made(cluster, kind, "held", **held)
    with pytest.raises(Permanent, match="suspended by another client"):
        Patient(KubernetesActuatorSettings(), KubeClient(cluster.transport)).execute(restart(target))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


KIND = OPERATORS[0]


def saver(cluster: Cluster) -> tuple[Subject, Patient, KubeClient, Clock]:
    """A running job whose script saves on request, and an actuator that waits a minute for it."""
    target, clock, kube = made(cluster, KIND, "train"), Clock(), KubeClient(cluster.transport)
    answer(cluster, {SAVES_ON_REQUEST: "true", RESUME_STEP: "100"})
    return target, Patient(KubernetesActuatorSettings(drain={"save_wait_s": 60}), kube, now_s=clock), kube, clock


def answer(cluster: Cluster, notes: dict[str, str]) -> None:
    body = {"metadata": {"annotations": notes}}
    client.CustomObjectsApi(cluster.api).patch_namespaced_custom_object(*place(cluster, KIND), "train", body)


def found(kube: KubeClient, target: Subject) -> FoundJob:
    job = find(kube, target)
    assert job is not None
    return job


def test_a_job_that_saves_on_request_is_asked_first_and_resumes_from_what_it_saved(cluster: Cluster) -> None:
    """It goes on until it has answered for this very action; then it stops, and starts from the step it named."""
    target, actuator, kube, _ = saver(cluster)
    action = restart(target, checkpoint_step=84_000)
    with pytest.raises(UnderWay, match="asked to save"):
        actuator.execute(action)
    assert found(kube, target).annotations[SAVE_REQUEST] == action.id
    answer(cluster, {SAVED: "an-earlier-action/85000"})
    with pytest.raises(UnderWay, match="60 s left"):
        actuator.execute(action)
    assert actuator.read(action).status is OutcomeStatus.UNDER_WAY
    assert not found(kube, target).suspended
    answer(cluster, {SAVED: f"{action.id}/85211"})
    with pytest.raises(UnderWay, match="stopping"):
        actuator.execute(action)
    for rank in range(2):
        cluster.remove_pod(f"train-{rank}")
    assert actuator.execute(action).status is OutcomeStatus.DONE
    after = found(kube, target).annotations
    assert after[RESUME_STEP] == "85211"
    assert SAVE_REQUEST not in after


def test_a_job_that_does_not_answer_is_stopped_in_time_and_resumes_from_the_plans_step(cluster: Cluster) -> None:
    target, actuator, kube, clock = saver(cluster)
    action = restart(target, checkpoint_step=84_000)
    with pytest.raises(UnderWay, match="asked to save"):
        actuator.execute(action)
    clock.now_s += 61
    with pytest.raises(UnderWay, match="stopping"):
        actuator.execute(action)
    for rank in range(2):
        cluster.remove_pod(f"train-{rank}")
    assert actuator.execute(action).status is OutcomeStatus.DONE
    assert found(kube, target).annotations[RESUME_STEP] == "84000"


def test_damaged_weights_are_never_saved_first_and_a_later_answer_is_not_resumed_from(cluster: Cluster) -> None:
    """Where corruption is suspected: no request, and the step from before the onset stands."""
    target, actuator, kube, _ = saver(cluster)
    action = restart(target, checkpoint_step=80_000, save_first=False)
    with pytest.raises(UnderWay, match="stopping"):
        actuator.execute(action)
    assert SAVE_REQUEST not in found(kube, target).annotations
    answer(cluster, {SAVED: f"{action.id}/85211"})
    for rank in range(2):
        cluster.remove_pod(f"train-{rank}")
    assert actuator.execute(action).status is OutcomeStatus.DONE
    assert found(kube, target).annotations[RESUME_STEP] == "80000"


def test_a_restart_that_names_no_step_takes_an_earlier_ones_away(cluster: Cluster) -> None:
    """Else a drain weeks later would throw away all work since the last repair."""
    target, actuator, kube, _ = saver(cluster)
    action = restart(target, save_first=False)
    with pytest.raises(UnderWay, match="stopping"):
        actuator.execute(action)
    for rank in range(2):
        cluster.remove_pod(f"train-{rank}")
    assert actuator.execute(action).status is OutcomeStatus.DONE
    assert RESUME_STEP not in found(kube, target).annotations


def test_the_outermost_of_two_jobs_of_one_name_is_the_one(cluster: Cluster) -> None:
    """A TrainJob makes a JobSet of its own name, and would start it again."""
    inner, outer = (next(k for k in KINDS if k.kind == name) for name in ("JobSet", "TrainJob"))
    target = made(cluster, outer, "train")
    uid = found(KubeClient(cluster.transport), target).object["metadata"]["uid"]
    group, version, *_ = place(cluster, inner)
    cluster.define(group, version, inner.kind)
    owner = {"apiVersion": outer.api.removeprefix("apis/"), "kind": outer.kind, "name": "train", "uid": uid}
    meta = {"name": "train", "ownerReferences": [{**owner, "controller": True}]}
    body = {"apiVersion": f"{group}/{version}", "kind": inner.kind, "metadata": meta, "spec": {}}
    client.CustomObjectsApi(cluster.api).create_namespaced_custom_object(*place(cluster, inner), body)
    assert found(KubeClient(cluster.transport), target).kind is outer


def test_a_role_that_does_not_know_a_kind_finds_the_others(cluster: Cluster) -> None:
    """Written by hand for an earlier version; but where nothing is found, nobody says that nothing is there."""
    cluster.define("jobset.x-k8s.io", "v1alpha2", "JobSet")
    kube = client_with(cluster, rules_of(frozenset({Right("get", "batch", "jobs")})))
    job(cluster, "train", [cluster.node()])
    assert found(kube, Subject(SubjectKind.JOB, f"{cluster.namespace}/train")).kind.kind == "Job"
    with pytest.raises(Refused, match="jobsets"):
        find(kube, Subject(SubjectKind.JOB, f"{cluster.namespace}/none"))


def test_a_workload_that_a_person_activates_while_it_stops_stays_active(cluster: Cluster) -> None:
    """It was made inactive again at every look, for as long as they tried."""
    cluster.define("kueue.x-k8s.io", "v1beta1", "Workload")
    name, actuator = (
        job(cluster, "queued", [cluster.node()]),
        Patient(KubernetesActuatorSettings(), KubeClient(cluster.transport)),
    )
    uid = client.BatchV1Api(cluster.api).read_namespaced_job("queued", cluster.namespace).metadata.uid
    where = ("kueue.x-k8s.io", "v1beta1", cluster.namespace, "workloads")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "queued", "uid": uid}
    body = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "spec": {"active": True}}
    custom: Any = client.CustomObjectsApi(cluster.api)
    custom.create_namespaced_custom_object(*where, body | {"metadata": {"name": "w", "ownerReferences": [owner]}})
    action = restart(Subject(SubjectKind.JOB, name))
    for _ in range(2):
        with pytest.raises(UnderWay, match="1 pods left"):
            actuator.execute(action)
    custom.patch_namespaced_custom_object(*where, "w", {"spec": {"active": True}})
    with pytest.raises(Permanent, match="restarted by another client"):
        actuator.execute(action)
    assert custom.get_namespaced_custom_object(*where, "w")["spec"]["active"] is True
    assert actuator.read(action).status is OutcomeStatus.DONE, "nothing of it is stopped any more"
