"""What stops a mitigation half-way: no job stays stopped, nothing is done twice, what stays out of use is said."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from kubernetes import client

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.kubernetes.api import NotFound, refusal
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, BlastRadius, OutcomeStatus, UnderWay, Undo
from nightshift.controllers.actuators import kube_nodes
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_jobs import SAVES_ON_REQUEST
from nightshift.controllers.actuators.kube_repair import KubernetesRepairActuator, RepairSettings
from nightshift.controllers.actuators.kube_repair_jobs import said, why_failed
from nightshift.controllers.actuators.kubernetes import KubernetesActuator, KubernetesActuatorSettings
from tests.controllers.kube_scenes import Patient, PatientRepair, boots, finished, job, stop_pods
from tests.kubernetes_api.cluster import Cluster, eventually

A, K, S = ActionKind, SubjectKind, OutcomeStatus


class Strict(KubeClient):
    """The API server forbids what `forbids` matches, as a role or an admission webhook does; dry runs pass."""

    forbids = staticmethod(lambda method, path: False)
    lost = staticmethod(lambda method, path, body: False)
    """Calls whose answer is lost, although they were carried out; each once."""

    def request(self, method: str, path: str, **how: Any) -> Any:
        dry = "dryRun" in ((how.get("body") or {}).get("deleteOptions") or {})
        if not dry and self.forbids(method, path):
            raise refusal(403, b'{"kind": "Status", "message": "forbidden: not by you"}', {}, f"{method} {path}")
        answer = super().request(method, path, **how)
        if self.lost(method, path, how.get("body")):
            self.lost = lambda *_: False  # type: ignore[method-assign]
            raise refusal(504, b"gateway timeout", {}, f"{method} {path}")
        return answer


def act(kind: ActionKind, target: str, subject: SubjectKind = K.NODE, *, id_: str = "", **params: Any) -> Action:
    jobs = tuple(params.pop("jobs", ()))
    name = id_ or f"half-{kind}".replace("_", "-")
    reach = BlastRadius(jobs=jobs)
    return Action(name, kind, Subject(subject, target), "", reach, Undo(True, ""), 2e9, params)


def of(kube: KubeClient, **drain: Any) -> KubernetesActuator:
    settings = KubernetesActuatorSettings(drain={"grace_s": 0, "evict_unmanaged": True, **drain})
    return Patient(settings, kube, now_s=lambda: 1000.0)


def is_suspended(cluster: Cluster, name: str) -> bool:
    return client.BatchV1Api(cluster.api).read_namespaced_job(name, cluster.namespace).spec.suspend is True


def test_a_person_who_uncordons_during_a_drain_gets_the_stopped_jobs_back(cluster: Cluster) -> None:
    """The drain goes no further; what it had stopped by then would otherwise stay stopped for good."""
    node, actuator = cluster.node(), of(KubeClient(cluster.transport))
    gang = job(cluster, "gang", [node, cluster.node()])
    action = act(A.DRAIN, node, jobs=(gang,))
    with pytest.raises(UnderWay, match="stopping"):
        actuator.execute(action)
    cluster.core.patch_node(node, {"spec": {"unschedulable": None}})
    assert actuator.read(action).status is S.UNDER_WAY, "an approval that ends meanwhile must not leave it so"
    outcome = finished(lambda: actuator.execute(action), stop_pods(cluster, "gang"))
    assert (outcome.status, "a person has uncordoned" in outcome.detail) == (S.REFUSED, True)
    assert f"started again: {gang}" in outcome.detail
    assert not is_suspended(cluster, "gang")
    assert actuator.read(action).status is S.NOT_DONE


@pytest.mark.parametrize("ranks", ["all", "this node's"])
def test_a_job_that_ends_while_it_saves_holds_up_no_other_of_the_drain(cluster: Cluster, ranks: str) -> None:
    """Whether its controller has said yet that the job has ended, or not."""
    node, other = cluster.node(), cluster.node()
    stopped, saving = job(cluster, "stopped", [node, other]), job(cluster, "saving", [node, other])
    batch = client.BatchV1Api(cluster.api)
    saves = {"metadata": {"annotations": {SAVES_ON_REQUEST: "true"}}}
    batch.patch_namespaced_job("saving", cluster.namespace, saves)
    actuator, action = (
        of(KubeClient(cluster.transport), save_wait_s=300.0),
        act(A.DRAIN, node, jobs=(stopped, saving)),
    )
    with pytest.raises(UnderWay, match="asked to save"):
        actuator.execute(action)
    mark = cluster.core.read_node(node).metadata.annotations["nightshift.dev/action.drain"]
    assert json.loads(mark)["phase"] == "cordoned", "not done"
    ended = [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}]
    now = "2026-11-21T12:00:00Z"
    here = {} if ranks == "all" else {"field_selector": f"spec.nodeName={node}"}
    found = cluster.core.list_namespaced_pod(cluster.namespace, label_selector="job-name=saving", **here)
    for pod in found.items:
        cluster.core.patch_namespaced_pod_status(
            pod.metadata.name, cluster.namespace, {"status": {"phase": "Succeeded"}}
        )
    if not cluster.controlled and ranks == "all":
        conditions = [{**c, "lastTransitionTime": now} for c in ended]
        status = {"conditions": conditions, "startTime": now, "completionTime": now}
        batch.patch_namespaced_job_status("saving", cluster.namespace, {"status": status})
    outcome = finished(lambda: actuator.execute(action), stop_pods(cluster, "stopped"))
    assert outcome.status is S.DONE
    assert not is_suspended(cluster, "stopped")
    assert actuator.read(action).status is S.DONE


class Counting(KubeClient):
    """Notes what is asked for and is not there."""

    def _raw(self, method: str, path: str, **how: Any) -> bytes:
        try:
            return super()._raw(method, path, **how)
        except NotFound:
            self.__dict__.setdefault("absent", []).append(path)
            raise


def test_no_kind_of_jobs_is_asked_for_whose_operator_is_absent(cluster: Cluster) -> None:
    """What the server has, its discovery says; a drain that waits asks it every ten minutes."""
    node, kube = cluster.node(), Counting(cluster.transport)
    gang, actuator = job(cluster, "gang", [node, cluster.node()]), of(kube)
    action = act(A.DRAIN, node, jobs=(gang,))
    for _ in range(3):
        with pytest.raises(UnderWay):
            actuator.execute(action)
        assert actuator.read(action).status is S.UNDER_WAY
    assert kube.__dict__.get("absent", []) == []


def test_a_job_that_its_owner_has_just_suspended_holds_up_no_drain(cluster: Cluster) -> None:
    """Its pods are still going; it is neither stopped nor started."""
    node = cluster.node()
    job(cluster, "theirs", [node, cluster.node()])
    held = {"metadata": {"finalizers": ["example.com/log"]}}
    for pod in cluster.core.list_namespaced_pod(cluster.namespace).items:
        cluster.core.patch_namespaced_pod(pod.metadata.name, cluster.namespace, held)
    suspend = {"spec": {"suspend": True}}
    client.BatchV1Api(cluster.api).patch_namespaced_job("theirs", cluster.namespace, suspend)
    actuator, action = of(KubeClient(cluster.transport)), act(A.DRAIN, node)
    with pytest.raises(UnderWay):
        actuator.execute(action)
    for pod in cluster.core.list_namespaced_pod(cluster.namespace).items:
        freed = {"metadata": {"finalizers": None}}
        cluster.core.patch_namespaced_pod(pod.metadata.name, cluster.namespace, freed)
    assert finished(lambda: actuator.execute(action), stop_pods(cluster, "theirs")).status is S.DONE
    assert is_suspended(cluster, "theirs")


def test_an_eviction_that_is_forbidden_in_the_middle_leaves_no_job_stopped_and_the_cordon_is_told(
    cluster: Cluster,
) -> None:
    """Permitted when it was asked as a dry run: a role or a webhook has changed since."""
    node, kube = cluster.node(), Strict(cluster.transport)
    gang = job(cluster, "gang", [node, cluster.node()])
    cluster.pod("kept", node, ownerReferences=[cluster.owner()])
    kube.forbids = lambda method, path: path.endswith("/eviction")  # type: ignore[method-assign,assignment]
    actuator, action = of(kube), act(A.DRAIN, node, jobs=(gang,))
    with pytest.raises(UnderWay, match="stopping"):
        actuator.execute(action)
    outcome = finished(lambda: actuator.execute(action), stop_pods(cluster, "gang"))
    assert (outcome.status, outcome.observed.get("cordoned")) == (S.FAILED, "true")
    assert all(word in outcome.detail for word in ("kept", "not by you", "stays cordoned"))
    assert not is_suspended(cluster, "gang")


@pytest.mark.parametrize("lost", ["the mark", "the workload"])
def test_a_job_that_kueue_has_started_again_is_not_stopped_a_second_time(cluster: Cluster, lost: str) -> None:
    """Whichever of the two last writes loses its answer: Kueue has its Workload back exactly once."""
    cluster.define("kueue.x-k8s.io", "v1beta1", "Workload")
    target = job(cluster, "queued", [cluster.node()])
    batch, place = client.BatchV1Api(cluster.api), ("kueue.x-k8s.io", "v1beta1", cluster.namespace, "workloads")
    label = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}}
    uid = batch.patch_namespaced_job("queued", cluster.namespace, label).metadata.uid
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "queued", "uid": uid}
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "w", "ownerReferences": [owner]},
        "spec": {"active": True},
    }
    client.CustomObjectsApi(cluster.api).create_namespaced_custom_object(*place, body)
    kube, told = Strict(cluster.transport), []
    actuator, action = of(kube), act(A.RESTART_JOB, target, K.JOB)
    with pytest.raises(Temporary, match="1 pods left"):
        actuator.execute(action)
    batch.patch_namespaced_job("queued", cluster.namespace, {"spec": {"suspend": True}})
    stop_pods(cluster, "queued")()

    def is_last(method: str, path: str, sent: Any) -> bool:
        if "workloads" in path and method == "PATCH":
            told.append(sent["spec"]["active"])
            batch.patch_namespaced_job("queued", cluster.namespace, {"spec": {"suspend": False}})  # Kueue admits it
            return lost == "the workload"
        return lost == "the mark" and "jobs/" in path and bool(told)

    kube.lost = is_last  # type: ignore[method-assign,assignment]
    for _ in range(6):
        with suppress(Temporary):
            actuator.execute(action)
    assert actuator.execute(action).status is S.DONE
    assert told == [True]
    found: Any = client.CustomObjectsApi(cluster.api).get_namespaced_custom_object(*place, "w")
    assert found["spec"]["active"] is True


def keeps_schedulable(kind: str, obj: Any) -> None:
    if kind == "Node":
        obj["spec"].pop("unschedulable", None)


def keeps_running(kind: str, obj: Any) -> None:
    if kind == "Job":
        obj["spec"]["suspend"] = False


def strips_notes(kind: str, obj: Any) -> None:
    if kind == "Node":
        obj["metadata"].pop("annotations", None)


@pytest.mark.parametrize(
    ("webhook", "kind", "field"),
    [
        (keeps_schedulable, A.CORDON, "spec.unschedulable"),
        (keeps_schedulable, A.DRAIN, "spec.unschedulable"),
        (strips_notes, A.DRAIN, "metadata.annotations.nightshift.dev/action.drain"),
        (keeps_running, A.RESTART_JOB, "spec.suspend"),
        (keeps_running, A.DRAIN, "spec.suspend"),
    ],
)
def test_what_a_webhook_undoes_in_the_very_write_is_not_said_to_be_done(
    cluster: Cluster, webhook: Any, kind: ActionKind, field: str
) -> None:
    """The server takes the write and answers 200: a node would be told as cordoned that takes work, and a job be
    waited for that nobody has stopped. An operator's older kind, whose field is pruned, is the same."""
    if cluster.server is None:
        pytest.skip("no webhook of ours stands in a real server")
    node = cluster.node()
    gang = job(cluster, "gang", [node, cluster.node()])
    cluster.server.api.webhooks.append(webhook)
    action = act(kind, gang, K.JOB) if kind is A.RESTART_JOB else act(kind, node, jobs=(gang,))
    with pytest.raises(Permanent, match=f"was accepted, but without {field}"):
        of(KubeClient(cluster.transport)).execute(action)
    assert not is_suspended(cluster, "gang")
    assert of(KubeClient(cluster.transport)).read(action).status is not S.DONE


@pytest.mark.parametrize("kind", [A.DRAIN, A.RESTART_JOB])
def test_a_job_that_somebody_starts_again_while_it_stops_is_theirs(cluster: Cluster, kind: ActionKind) -> None:
    """A person, or a tool that keeps it as its repository has it: its pods would be waited for until the action's
    time is over, and then be told as left half-way."""
    node, actuator = cluster.node(), of(KubeClient(cluster.transport))
    gang = job(cluster, "gang", [node, cluster.node()])
    action = act(kind, gang, K.JOB) if kind is A.RESTART_JOB else act(kind, node, jobs=(gang,))
    with pytest.raises(UnderWay, match="stopping"):
        actuator.execute(action)
    client.BatchV1Api(cluster.api).patch_namespaced_job("gang", cluster.namespace, {"spec": {"suspend": False}})
    said = "gang was restarted by another client while it stopped; it keeps running"
    if kind is A.RESTART_JOB:
        with pytest.raises(Permanent, match=said):
            actuator.execute(action)
        assert actuator.read(action).status is not S.UNDER_WAY
    else:
        outcome = actuator.execute(action)
        assert (outcome.status, outcome.left_cordoned, said in outcome.detail) == (S.FAILED, True, True)
    assert not is_suspended(cluster, "gang")


def test_a_static_pod_is_not_said_to_be_restarted(cluster: Cluster) -> None:
    """Its mirror's owner is the Node; deleting the mirror restarts no container, and the kubelet makes another."""
    node = cluster.node()
    uid = cluster.core.read_node(node).metadata.uid
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    notes = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.source": "file"}
    cluster.pod("static", node, annotations=notes, ownerReferences=[owner])
    pod = cluster.core.read_namespaced_pod("static", cluster.namespace)
    action = act(A.RESTART_POD, f"{cluster.namespace}/static", K.POD, uid=pod.metadata.uid)
    outcome = of(KubeClient(cluster.transport)).execute(action)
    assert (outcome.status, "kubelet" in outcome.detail) == (S.REFUSED, True)
    assert cluster.core.read_namespaced_pod("static", cluster.namespace).metadata.deletion_timestamp is None


def test_a_cordon_that_a_person_ended_is_no_part_of_the_next_one(cluster: Cluster) -> None:
    """Else the node would be kept out of use for an incident that is long over."""
    node, actuator = cluster.node(), of(KubeClient(cluster.transport))
    first, second = act(A.DRAIN, node, id_="inc-1-drain"), act(A.CORDON, node, id_="inc-2-cordon")
    assert actuator.execute(first).status is S.DONE
    cluster.core.patch_node(node, {"spec": {"unschedulable": None}})
    assert actuator.execute(second).status is S.DONE
    assert actuator.cordon_of(KubeClient(cluster.transport).get(f"/api/v1/nodes/{node}")) == "inc-2-cordon"
    assert actuator.undo(first).status is S.REFUSED
    assert actuator.undo(second).status is S.DONE
    assert not cluster.core.read_node(node).spec.unschedulable


def repairer(cluster: Cluster, kube: KubeClient) -> KubernetesRepairActuator:
    settings = RepairSettings(
        image="tools:1", namespace=cluster.namespace, drain={"grace_s": 0, "evict_unmanaged": True}
    )
    return PatientRepair(settings, kube, now_s=lambda: 1000.0)


def test_a_repair_that_a_person_cancels_by_uncordoning_starts_the_stopped_job_again(cluster: Cluster) -> None:
    node = cluster.node()
    boots(cluster, node, "boot-1")
    gang, actuator = job(cluster, "gang", [node, cluster.node()]), repairer(cluster, KubeClient(cluster.transport))
    action = act(A.RESET_GPU, "GPU-1", K.GPU, jobs=(gang,), node=node)
    with pytest.raises(UnderWay, match="stopping"):
        actuator.execute(action)
    cluster.core.patch_node(node, {"spec": {"unschedulable": None}})
    outcome = finished(lambda: actuator.execute(action), stop_pods(cluster, "gang"))
    assert (outcome.status, "uncordoned it since" in outcome.detail) == (S.FAILED, True)
    assert "cordoned" not in outcome.observed
    assert not is_suspended(cluster, "gang")


def test_a_repair_goes_on_though_a_job_that_it_would_stop_was_deleted(cluster: Cluster) -> None:
    """A finished Job goes by its TTL: there is nothing of it to stop."""
    node = cluster.node()
    boots(cluster, node, "boot-1")
    action = act(A.RESET_GPU, "GPU-1", K.GPU, jobs=(f"{cluster.namespace}/gone",), node=node)
    with pytest.raises(UnderWay, match="works on"):
        repairer(cluster, KubeClient(cluster.transport)).execute(action)


def test_a_repair_that_may_not_stop_its_job_says_that_the_node_stays_cordoned(cluster: Cluster) -> None:
    """And its outcome says so to whoever counts what is out of use."""
    node, kube = cluster.node(), Strict(cluster.transport)
    boots(cluster, node, "boot-1")
    gang = job(cluster, "gang", [node, cluster.node()])
    kube.forbids = lambda method, path: "/jobs/" in path and method == "PATCH"  # type: ignore[method-assign,assignment]
    outcome = finished(
        lambda: repairer(cluster, kube).execute(act(A.RESET_GPU, "GPU-1", K.GPU, jobs=(gang,), node=node))
    )
    assert (outcome.status, outcome.observed.get("cordoned")) == (S.FAILED, "true")
    assert all(word in outcome.detail for word in ("not by you", "stays cordoned"))


class Blind(KubeClient):
    """A role that may make Jobs and not see their pods."""

    def list(self, path: str, **query: str) -> Any:
        raise refusal(403, b'{"kind": "Status", "message": "forbidden"}', {}, f"GET {path}")


def test_a_repair_whose_pods_may_not_be_seen_ends_as_its_job_did(cluster: Cluster) -> None:
    """The last words are for people: done, and marked so, it is not told as refused for want of them."""
    kube, name = Blind(cluster.transport), "nightshift-return-node-x"
    assert said(kube, cluster.namespace, name) == ""
    why = why_failed(kube, cluster.namespace, name, {"reason": "BackoffLimitExceeded"})
    assert "may not be seen: BackoffLimitExceeded" in why


def ours(cluster: Cluster, node: str) -> tuple[Any, ...]:
    """What our actions write on a node; controllers write there, too."""
    found = cluster.core.read_node(node)
    notes = {**(found.metadata.labels or {}), **(found.metadata.annotations or {})}
    taints = [taint.key for taint in found.spec.taints or []]
    written = {key: value for key, value in notes.items() if key.startswith("nightshift.dev/")}
    return written, bool(found.spec.unschedulable), kube_nodes.TAINT in taints


@pytest.mark.parametrize("kind", [A.CORDON, A.TAINT, A.DRAIN, A.REBOOT_NODE])
@pytest.mark.parametrize("name", ["{}?dryRun=All", "{}/status", "x/../{}", "{}#", "..", "%2e%2e", "{} "])
def test_a_name_from_telemetry_is_no_path_to_another_object(cluster: Cluster, kind: ActionKind, name: str) -> None:
    """An exporter names the node; what the guard was asked about is what is acted on, or nothing is."""
    node = cluster.node()
    boots(cluster, node, "boot-1")
    before = ours(cluster, node)
    kube, action = KubeClient(cluster.transport), act(kind, name.format(node))
    actuator = repairer(cluster, kube) if kind is A.REBOOT_NODE else of(kube)
    with pytest.raises(NotFound, match="no object can be named"):
        actuator.execute(action)
    assert ours(cluster, node) == before


@pytest.mark.parametrize("name", ["{}/../{}/train", "{}/train?dryRun=All", "{}/train/status"])
def test_neither_is_a_jobs_or_a_pods(cluster: Cluster, name: str) -> None:
    job(cluster, "train", [cluster.node()])
    told = name.format(*[cluster.namespace] * name.count("{}"))
    for action in (act(A.RESTART_JOB, told, K.JOB), act(A.RESTART_POD, told, K.POD, uid="u")):
        with pytest.raises(Permanent):
            of(KubeClient(cluster.transport)).execute(action)
    assert not is_suspended(cluster, "train")


def test_a_pod_that_no_kubelet_ends_is_named(cluster: Cluster) -> None:
    """On a dead machine it stays Terminating; who reads why nothing goes on has to know which machine that is."""
    node = cluster.node()
    gang = job(cluster, "gang", [node, cluster.node()])
    cluster.pod("single", node, ownerReferences=[cluster.owner()])
    settings = KubernetesActuatorSettings(drain={"evict_unmanaged": True})
    actuator = Patient(settings, KubeClient(cluster.transport), now_s=lambda: time.time() + 600.0)
    action = act(A.DRAIN, node, jobs=(gang,))
    for _ in range(2):
        with pytest.raises(UnderWay):
            actuator.execute(action)

    def told() -> bool:
        try:
            actuator.execute(action)
        except UnderWay as error:
            said = str(error)
        return all(f"{pod} on {node} should have ended" in said for pod in waiting())

    def waiting() -> list[str]:
        pods = cluster.core.list_namespaced_pod(cluster.namespace, field_selector=f"spec.nodeName={node}").items
        return [f"{cluster.namespace}/{pod.metadata.name}" for pod in pods]

    assert len(waiting()) == 2
    eventually(told, "both are named")
    assert kube_nodes.overdue([{"metadata": {"name": "p", "namespace": "n"}}], 9e9) == ""


def test_a_job_that_came_after_the_plan_is_told_and_started_again_though_the_node_goes(cluster: Cluster) -> None:
    """The plan cannot name it, and the node's mark, which does, goes with the node."""
    node, actuator = cluster.node(), of(KubeClient(cluster.transport))
    late, action = job(cluster, "late", [node, cluster.node()]), act(A.DRAIN, node)
    outcome = finished(lambda: actuator.execute(action), stop_pods(cluster, "late"))
    assert (outcome.status, late in outcome.detail) == (S.DONE, True)
    again, other = cluster.node(), act(A.DRAIN, node, id_="half-other")
    other = replace(other, target=Subject(K.NODE, again))
    job(cluster, "later", [again, cluster.node()])
    with pytest.raises(UnderWay, match="stopping"):
        actuator.execute(other)
    cluster.core.delete_node(again)
    assert actuator.read(other).status is S.UNDER_WAY
    assert finished(lambda: actuator.execute(other), stop_pods(cluster, "later")).status is S.REFUSED
    assert not is_suspended(cluster, "later")
