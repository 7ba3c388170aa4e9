"""A Deployment is never scaled: its owner, and the change that they would make, are said."""

from __future__ import annotations

import pytest
from kubernetes import client

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, BlastRadius, OutcomeStatus, Situation, Undo
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_workloads import decide
from nightshift.controllers.actuators.kubernetes import KubernetesActuator, KubernetesActuatorSettings
from nightshift.controllers.playbooks.suggest_scaling import SuggestScaling
from nightshift.detectors.base import Fault
from tests.controllers.kube_scenes import served
from tests.kubernetes_api.cluster import Cluster

DEPLOYMENT = {"metadata": {"namespace": "ml", "name": "chat"}, "spec": {"replicas": 4}}


def action(target: str) -> Action:
    subject = Subject(SubjectKind.JOB, target)
    return Action("a-1", ActionKind.SUGGEST_SCALING, subject, "why", BlastRadius(), Undo(False, "-"), 2e9)


def scaler(name: str, low: int, high: int, **labels: str) -> dict[str, object]:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    meta = {"namespace": "ml", "name": name, "labels": labels}
    return {"metadata": meta, "spec": {"scaleTargetRef": target, "minReplicas": low, "maxReplicas": high}}


def test_an_autoscaled_deployment_is_left_as_it_is_and_its_autoscaler_is_named(cluster: Cluster) -> None:
    """On an API server: the answer names the autoscaler and the change; not one field has changed."""
    target = served(cluster, "chat", replicas=4)
    scaling = client.AutoscalingV2Api(cluster.api)
    where = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    body = {"metadata": {"name": "chat"}, "spec": {"scaleTargetRef": where, "minReplicas": 4, "maxReplicas": 4}}
    scaling.create_namespaced_horizontal_pod_autoscaler(cluster.namespace, body)
    apps = client.AppsV1Api(cluster.api)
    before = apps.read_namespaced_deployment("chat", cluster.namespace).metadata.generation
    outcome = KubernetesActuator(KubernetesActuatorSettings(), KubeClient(cluster.transport)).execute(
        action(target)
    )
    assert outcome.status is OutcomeStatus.DONE
    place = f"HorizontalPodAutoscaler {cluster.namespace}/chat"
    assert f"scaled by an autoscaler ({place}, 4 to 4); nothing was changed" in outcome.detail
    assert "- minReplicas: 4 + minReplicas: 5 and - maxReplicas: 4 + maxReplicas: 5" in outcome.detail
    after = apps.read_namespaced_deployment("chat", cluster.namespace)
    assert (after.metadata.generation, after.spec.replicas) == (before, 4)


def test_what_no_deployment_stands_above_is_refused(cluster: Cluster) -> None:
    actuator = KubernetesActuator(KubernetesActuatorSettings(), KubeClient(cluster.transport))
    assert actuator.execute(action(f"{cluster.namespace}/none")).status is OutcomeStatus.REFUSED


def test_kedas_autoscaler_is_changed_in_its_scaled_object() -> None:
    found = decide(DEPLOYMENT, [scaler("keda-hpa-chat", 1, 8, **{"scaledobject.keda.sh/name": "chat-so"})], 1)
    assert found.owner == "KEDA (ScaledObject ml/chat-so, 1 to 8)"
    assert found.diff == ("ScaledObject ml/chat-so", "- minReplicaCount: 1", "+ minReplicaCount: 5")


@pytest.mark.parametrize(
    ("meta", "owner"),
    [
        ({"annotations": {"argocd.argoproj.io/tracking-id": "shop:apps/Deployment:ml/chat"}}, "Argo CD (shop:apps"),
        ({"labels": {"kustomize.toolkit.fluxcd.io/name": "apps"}}, "Flux (apps)"),
        ({"annotations": {"meta.helm.sh/release-name": "chat"}}, "Helm (chat)"),
        ({}, "no autoscaler that is known"),
        (
            {
                "managedFields": [
                    {"manager": "kubectl-create", "time": "1", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
                    {"manager": "kubectl-scale", "time": "2", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
                    {"manager": "kube-controller-manager", "time": "3", "fieldsV1": {"f:status": {}}},
                ]
            },
            "no autoscaler; its replicas were set last by kubectl-scale",
        ),
    ],
)
def test_gitops_and_people_own_by_their_marks(meta: dict[str, object], owner: str) -> None:
    deployment = {**DEPLOYMENT, "metadata": {**DEPLOYMENT["metadata"], **meta}}  # type: ignore[dict-item]
    other = scaler("other", 1, 2)
    other["spec"]["scaleTargetRef"]["name"] = "another"  # type: ignore[index]
    found = decide(deployment, [other], 1)
    assert found.owner.startswith(owner)
    assert found.diff[1:] == ("- replicas: 4", "+ replicas: 5")


def test_it_is_suggested_for_what_serves_and_for_nothing_else() -> None:
    inventory = Inventory()
    pod, job, gpu = (
        Subject(SubjectKind.POD, "ml/chat-1-x"),
        Subject(SubjectKind.JOB, "ml/chat-1"),
        Subject(SubjectKind.GPU, "GPU-1"),
    )
    for child, parent in ((gpu, pod), (pod, job)):
        inventory.observe(child, parent, 0.0)
    for kind, fits in (("ReplicaSet", True), ("Job", False)):
        inventory.describe(pod, job_kind=kind)
        situation = Situation("INC-1", Fault.OOM_KILL, pod, (), inventory, 10.0)
        proposal = SuggestScaling().propose(situation)
        assert (proposal.action is not None) is fits
        if proposal.action is not None:
            assert (proposal.action.target, proposal.action.needs_approval) == (job, False)
