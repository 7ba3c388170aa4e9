"""Jobs of operators' kinds are stopped whole and started again from the right checkpoint, by their own fields."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client

from collectors.base import Permanent
from collectors.subject import Subject, SubjectKind
from controllers.action import Action, ActionKind, BlastRadius, OutcomeStatus, Undo
from controllers.actuators.kube_client import KubeClient
from controllers.actuators.kube_jobs import KINDS, RESUME_STEP, JobKind, find
from controllers.actuators.kubernetes import KubernetesSettings
from tests.controllers.kube_scenes import Patient, finished
from tests.kubernetes_api.cluster import Cluster

OPERATORS = [kind for kind in KINDS if kind.kind != "Job"]


def place(cluster: Cluster, kind: JobKind) -> tuple[str, str, str, str]:
    _, group, version = kind.api.split("/")
    return group, version, cluster.namespace, kind.plural


def made(cluster: Cluster, kind: JobKind, name: str, **spec: Any) -> Subject:
    """A job of an operator's kind with two running pods on two nodes, and no operator."""
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
    actuator = Patient(KubernetesSettings(), KubeClient(cluster.api))
    kube = KubeClient(cluster.api)
    seen: list[bool] = []

    def operator_stops_its_pods() -> None:
        found = find(kube, target)
        assert found is not None
        seen.append(found.suspended)
        for rank in range(2):
            cluster.remove_pod(f"train-{rank}")

    action = restart(target, checkpoint_step=84_000, keep_checkpoints=True)
    assert finished(lambda: actuator.execute(action), operator_stops_its_pods).status is OutcomeStatus.DONE
    assert seen[0], "stopped as a whole"
    found = find(kube, target)
    assert found is not None
    assert not found.suspended
    assert found.annotations[RESUME_STEP] == "84000"
    assert found.object["spec"]["other"] == {"kept": 1}, "nothing else of it is touched"
    assert actuator.execute(action).status is OutcomeStatus.DONE, "a repeat does not stop it again"


@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.kind)
def test_one_that_somebody_stopped_is_theirs_to_start(cluster: Cluster, kind: JobKind) -> None:
    held: Any = True
    for part in reversed(kind.suspend[1:]):
        held = {part: held}
    target = made(cluster, kind, "held", **held)
    with pytest.raises(Permanent, match="suspended by somebody else"):
        Patient(KubernetesSettings(), KubeClient(cluster.api)).execute(restart(target))
