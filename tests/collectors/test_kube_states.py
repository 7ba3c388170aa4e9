"""What is wrong with nodes, pods and jobs by their own status: said once, and replaced by what follows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client

from nightshift.collectors.kubernetes.nodes_and_pods import KubernetesCollector, KubernetesSettings
from nightshift.collectors.kubernetes.states import Trouble, of_job, of_node, of_pod, read, written
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from tests.kubernetes_api.cluster import Cluster

GPU = "nvidia.com/gpu"
AT = "2026-11-25T10:00:00Z"
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": AT}


def node(*conditions: dict[str, Any], offered: int = 8, **rest: Any) -> dict[str, Any]:
    status = {"capacity": {GPU: "8"}, "allocatable": {GPU: str(offered)}, "conditions": [*conditions]}
    metadata = {"name": "n1", "creationTimestamp": "2026-11-01T00:00:00Z", **rest.pop("metadata", {})}
    return {"metadata": metadata, "spec": rest, "status": status}


def condition(kind: str, status: str, reason: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": AT}


def names(troubles: tuple[Trouble, ...] | None) -> list[tuple[str, str]]:
    return [(t.name, t.cause) for t in troubles or ()]


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        (condition("KernelDeadlock", "True", "DockerHung"), "KernelDeadlock"),
        (condition("ReadonlyFilesystem", "True", "FilesystemIsReadOnly"), "ReadonlyFilesystem"),
        (condition("GpuMemWatch", "True", "GpuMemWatchIsNotHealthy"), "GpuMemWatch"),
        (condition("AcceleratedHardwareReady", "False", "NvidiaXID79Error"), "AcceleratedHardwareReady"),
        (condition("IBLinkFlapping", "True", "IBLinkFlapping"), "IBLinkFlapping"),
        (condition("NebiusGPUError", "True", "GPUError"), "NebiusGPUError"),
        (condition("KernelDeadlock", "False", "KernelHasNoDeadlock"), None),
        (condition("AcceleratedHardwareReady", "True", "NvidiaGPUIsReady"), None),
        (condition("AcceleratedHardwareReady", "Unknown", ""), None),
        (condition("DiskPressure", "True", "KubeletHasDiskPressure"), "DiskPressure"),
        (condition("MemoryPressure", "False", "KubeletHasSufficientMemory"), None),
        (condition("EtcdIsVoter", "True", "MemberNotLearner"), None),
    ],
)
def test_a_condition_is_wrong_by_the_polarity_of_its_monitor(told: dict[str, Any], wrong: str | None) -> None:
    name = "pressure" if wrong and wrong.endswith("Pressure") else "condition"
    assert names(of_node(node(READY, told), GPU)) == ([(name, wrong)] if wrong else [])


def azure(message: str, kind: str = "VMEventScheduled") -> dict[str, Any]:
    return {**condition(kind, "True", "VMEventScheduled"), "message": message}


MORE = "For more information, see https://aka.ms/aks/scheduledevents. EventId: 40B7BD88-C56E-44E4-93F6-75CEDACE2869"
PREEMPT = f"Preempt Scheduled: Sat, 01 Aug 2026 05:41:02 GMT. {MORE}"
GKE_LABELS = {"cloud.google.com/scheduled-maintenance-time": "1733083200"}
AWS_TAINT = {"key": "aws-node-termination-handler/scheduled-maintenance", "value": "e1", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (node(READY, metadata={"labels": GKE_LABELS}), "maintenance of the host, due 2024-12-01T20:00:00Z"),
        (node(READY, azure(PREEMPT)), "preempt of the machine, due 2026-08-01T05:41:02Z"),
        (
            node(READY, azure(PREEMPT), azure(PREEMPT, "PreemptionScheduled")),
            "preempt of the machine, due 2026-08-01T05:41:02Z",
        ),
        (node(READY, azure(f"Redeploy Started. {MORE}")), "redeploy of the machine"),
        (node(READY, taints=[AWS_TAINT]), "maintenance of the host"),
        (node(READY, azure(f"Freeze Scheduled: Sat, 01 Aug 2026 05:41:02 GMT. {MORE}")), ""),
        (node(READY, azure(f"SpotRebalanceRecommendation Advisory. {MORE}", "PreemptionScheduled")), ""),
        (node(READY, {**azure(PREEMPT), "status": "False"}), ""),
        (node(READY, metadata={"labels": {next(iter(GKE_LABELS)): "soon"}}), ""),
    ],
)
def test_three_clouds_announce_what_they_do_to_a_machine(told: dict[str, Any], words: str) -> None:
    """The forms are those of GKE's labels, of AKS's node-problem-detector and of AWS's termination handler."""
    found = [t.words.partition(": ")[2] for t in of_node(told, GPU) if t.name == "notice"]
    assert found == ([words] if words else [])
    assert "condition" not in {t.name for t in of_node(told, GPU)}, "what is announced is no fault of the node"


def test_a_node_says_what_it_lacks_and_what_somebody_does_to_it() -> None:
    silent = condition("Ready", "Unknown", "NodeStatusUnknown")
    assert names(of_node(node(silent), GPU)) == [("not_ready", "Unknown")]
    assert names(of_node(node(READY, offered=7), GPU)) == [("gpus_missing", "7 of 8")]
    assert names(of_node(node(READY, offered=0), GPU)) == [("gpus_gone", "0 of 8")]
    assert names(of_node(node(READY, unschedulable=True), GPU)) == [("maintenance", "cordoned")]
    upgrade = {"labels": {"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"}}
    assert names(of_node(node(READY, metadata=upgrade), GPU))[0][0] == "maintenance"
    upgrade["labels"]["nvidia.com/gpu-driver-upgrade-state"] = "upgrade-failed"
    assert names(of_node(node(READY, metadata=upgrade), GPU))[0][0] == "condition"
    taints = [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]
    assert names(of_node(node(READY, taints=taints), GPU))[0] == ("maintenance", taints[0]["key"])
    own = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
    assert of_node(node(READY, taints=own), GPU) == ()
    plain = {**node(silent), "status": {"conditions": [silent]}}
    assert of_node(plain, GPU) == (), "a node without GPUs"


def pod(status: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "t-0"}, "spec": {"nodeName": "n1", "containers": [{"name": "main"}], **spec},
            "status": status}  # fmt: skip


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(
        {"phase": "Pending", "containerStatuses": [{"name": "main", "image": "reg.io/t:1", "state": state, **more}]}
    )


def ended(code: int) -> dict[str, Any]:
    return pod(
        {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": code}}}]}
    )


@pytest.mark.parametrize(
    ("obj", "wrong"),
    [
        (waiting("ImagePullBackOff", "Back-off pulling image"), ("image_pull", "reg.io/t:1")),
        (waiting("ErrImagePull", "dial tcp 10.0.0.1:443: i/o timeout"), ("registry", "reg.io")),
        (waiting("CreateContainerConfigError", 'configmap "a" not found'), ("config", 'configmap "a" not found')),
        (waiting("RunContainerError", "nvidia-container-cli: initialization error: nvml error"), ("runtime", "")),
        (waiting("CrashLoopBackOff", "back-off 10s", restartCount=1), None),
        (waiting("CrashLoopBackOff", "back-off 5m0s", restartCount=7, lastState={"terminated": {"exitCode": 1}}),
         ("crash_loop", "main, exit code 1")),
        (waiting("ContainerCreating"), None),
        (pod({"phase": "Failed", "reason": "UnexpectedAdmissionError", "startTime": AT, "message":
              "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy "
              "devices nvidia.com/gpu, which is unexpected"}), ("rejected", "no healthy devices present")),
        (pod({"phase": "Failed", "reason": "OutOfnvidia.com/gpu"}), ("rejected", "OutOfnvidia.com/gpu")),
        (pod({"phase": "Failed", "reason": "Evicted"}), ("evicted", "Evicted")),
        (pod({"phase": "Failed", "reason": "NodeShutdown"}), None),
        (ended(1), ("exited", "main, exit code 1")),
        (ended(143), None),
        (pod({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [
            {"name": "main", "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}),
         ("oom", "main")),
    ],
)  # fmt: skip
def test_a_pod_says_why_it_does_not_start_or_how_it_ended(
    obj: dict[str, Any], wrong: tuple[str, str] | None
) -> None:
    told = [(name, cause) for name, cause in names(of_pod(obj)) if name != "starting"]
    assert [name for name, _ in told] == ([wrong[0]] if wrong else [])
    assert not wrong or not wrong[1] or told[0][1] == wrong[1]


def job(kind: str, status: dict[str, Any], *, owner: str = "", gpus: bool = True) -> tuple[Trouble, ...] | None:
    limits = {"limits": {GPU if gpus else "cpu": "8"}}
    spec = {"replicas": {"Worker": {"template": {"spec": {"containers": [{"resources": limits}]}}}}}
    owners = [{"kind": owner, "controller": True}] if owner else []
    return of_job(kind, GPU, {"metadata": {"ownerReferences": owners}, "spec": spec, "status": status})


def test_a_job_says_that_its_controller_gave_up() -> None:
    failed = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}
    for kind in ("Job", "JobSet", "PyTorchJob", "MPIJob", "TrainJob"):
        assert names(job(kind, failed)) == [("job_failed", "BackoffLimitExceeded")]
    ray = {"jobStatus": "FAILED", "jobDeploymentStatus": "Failed", "reason": "AppFailed", "message": "exit code 1"}
    assert names(job("RayJob", ray)) == [("job_failed", "AppFailed")]
    assert job("Job", failed, gpus=False) is None
    assert job("Job", failed, owner="JobSet") is None, "the set may start it again"
    assert job("Job", failed, owner="CronJob") is not None
    assert job("Job", {"conditions": [{"type": "Complete", "status": "True"}]}) is None


@given(
    st.text(max_size=80), st.text(max_size=80), st.dictionaries(st.sampled_from(["job", "node"]), st.just("a/b-1"))
)
def test_a_line_is_read_as_it_was_written(cause: str, words: str, facts: dict[str, str]) -> None:
    """Whatever stands in a message, the object, its facts and the trouble come back."""
    subject = Subject(SubjectKind.POD, "ml/t-0")
    (line,) = written("Pod", "ml/t-0", facts, (Trouble("config", cause, words, 5.0),), subject, 10.0)
    told = read(line)
    assert told is not None
    thing, back, trouble = told
    assert (thing, back, trouble and trouble.name) == ("Pod ml/t-0", facts, "config")
    (over,) = written("Pod", "ml/t-0", facts, (), subject, 10.0)
    assert read(over) == ("Pod ml/t-0", facts, None)


@pytest.fixture
def collector(cluster: Cluster, tmp_path: Path) -> Iterator[KubernetesCollector]:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(cluster.kubeconfig))
    made = KubernetesCollector(KubernetesSettings(access={"kubeconfig": path}))
    yield made
    made.close()


def test_states_arrive_from_an_api_server_and_are_over_when_it_says_so(
    cluster: Cluster, collector: KubernetesCollector
) -> None:
    """What was wrong before the start is in the first look; a kind of job that is not installed is no error."""
    resources = {"limits": {GPU: "1"}}
    body = {
        "metadata": {"name": "stuck", "labels": {"job-name": "train"}},
        "spec": {"containers": [{"name": "main", "image": "reg.invalid/t:1", "resources": resources}],
                 "automountServiceAccountToken": False},
    }  # fmt: skip
    cluster.core.create_namespaced_pod(cluster.namespace, body)
    cluster.binds("stuck", cluster.node())

    def becomes(state: dict[str, Any], phase: str) -> None:
        one = {"name": "main", "image": "reg.invalid/t:1", "imageID": "", "ready": False, "restartCount": 0}
        status = {"phase": phase, "containerStatuses": [{**one, "state": state}]}
        cluster.core.patch_namespaced_pod_status("stuck", cluster.namespace, {"status": status})

    becomes({"waiting": {"reason": "ErrImagePull", "message": "not found"}}, "Pending")
    inventory = Inventory("prod-1")
    lines = [*collector.collect(time.time(), inventory, 30.0).logs]
    mine = f"Pod {cluster.namespace}/stuck"

    def said(word: str) -> bool:
        return any(r.text.startswith(mine) and word in r.text for r in lines)

    assert said("image_pull [reg.invalid/t:1]: ErrImagePull: not found")
    assert said(f"job={cluster.namespace}/train")
    assert any(r.text == "Pod *: ok" for r in lines)
    if cluster.server is not None:
        end, detail = time.monotonic() + 60.0, ""
        while "TrainJob (not installed)" not in detail or "(timeout)" in detail:
            assert time.monotonic() < end, detail
            time.sleep(0.02)
            detail = collector.collect(time.time(), inventory, 30.0).sources[1].detail
        assert "JobSet" in detail
        assert ": Job," not in detail, "the server's own kind is read"
    lines.clear()
    cluster.core.delete_namespaced_pod("stuck", cluster.namespace, grace_period_seconds=0)
    end = time.monotonic() + 60.0
    while not said(": ok"):
        assert time.monotonic() < end, "its end did not arrive"
        time.sleep(0.02)
        lines += collector.collect(time.time(), inventory, 30.0).logs


def test_a_failed_job_is_read_where_it_may_be(cluster: Cluster, collector: KubernetesCollector) -> None:
    spec = {"containers": [{"name": "main", "image": "reg.invalid/t:1", "resources": {"limits": {GPU: "1"}}}],
            "restartPolicy": "Never"}  # fmt: skip
    batch = client.BatchV1Api(cluster.api)
    body = {"metadata": {"name": "train"}, "spec": {"template": {"spec": spec}, "backoffLimit": 0, "suspend": True}}
    batch.create_namespaced_job(cluster.namespace, body)
    if cluster.server is None:
        pytest.skip("a real server's own controller decides when a Job has failed")
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "limit reached"}
    target = {**failed, "type": "FailureTarget"}
    status = {"startTime": "2026-11-21T12:00:00Z", "conditions": [target, failed]}
    batch.patch_namespaced_job_status("train", cluster.namespace, {"status": status})
    inventory, lines = Inventory("prod-1"), []
    end = time.monotonic() + 60.0
    while not any("job_failed [BackoffLimitExceeded]" in r.text for r in lines):
        assert time.monotonic() < end, "its end did not arrive"
        lines += collector.collect(time.time(), inventory, 30.0).logs
    told = next(r for r in lines if "job_failed" in r.text)
    assert told.subject == Subject(SubjectKind.JOB, f"{cluster.namespace}/train")
