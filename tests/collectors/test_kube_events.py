"""Kubernetes' events and changes as lines: who did what to which node or pod, and nothing before the first look."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from nightshift.collectors.frame import LogRecord, Reason, SourceStatus
from nightshift.collectors.kubernetes.events import (
    CHANGES,
    EVENTS,
    KubernetesEventsCollector,
    KubernetesEventsSettings,
)
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from tests.kubernetes_api.cluster import Cluster


class Follow:
    """The collector, and every line that it told of so far."""

    def __init__(self, path: Path) -> None:
        self.collector = KubernetesEventsCollector(KubernetesEventsSettings(access={"kubeconfig": path}))
        self.inventory = Inventory("prod-1")
        self.lines: list[LogRecord] = []
        self.statuses: list[SourceStatus] = []

    def look(self) -> None:
        batch = self.collector.collect(time.time(), self.inventory, 30.0)
        assert all(status.ok for status in batch.sources), batch.sources
        self.lines += batch.logs
        self.statuses += batch.sources

    def until(self, holds: Callable[[LogRecord], bool]) -> LogRecord:
        end = time.monotonic() + 60.0
        while not any(map(holds, self.lines)):
            assert time.monotonic() < end, "the line did not come"
            time.sleep(0.02)
            self.look()
        return next(filter(holds, self.lines))


@pytest.fixture
def follow(cluster: Cluster, tmp_path: Path) -> Iterator[Follow]:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(cluster.kubeconfig))
    made = Follow(path)
    yield made
    made.collector.close()


def happened(cluster: Cluster, kind: str, reason: str, about: dict[str, str], at: datetime, message: str) -> None:
    name, namespace = cluster.name("event"), about.get("namespace", "default")  # the server wants them to agree
    body = client.CoreV1Event(
        metadata=client.V1ObjectMeta(name=name, namespace=namespace),
        involved_object=client.V1ObjectReference(**about),
        reason=reason,
        type=kind,
        message=message,
        last_timestamp=at,
        count=3,
        source=client.V1EventSource(component="kubelet"),
    )
    cluster.core.create_namespaced_event(namespace, body)
    cluster.cleanup(cluster.core.delete_namespaced_event, name, namespace)


def test_warnings_are_lines_of_their_node_or_pod_at_the_time_that_they_tell(
    cluster: Cluster, follow: Follow
) -> None:
    at = datetime.fromtimestamp(int(time.time()) - 100, UTC)
    name = cluster.name("n")
    node, pod = {"kind": "Node", "name": name}, {"kind": "Pod", "name": "p", "namespace": cluster.namespace}
    happened(cluster, "Warning", "GpuUnhealthy", node, at, "GPU 3 is\nunhealthy")
    happened(cluster, "Warning", "FailedMount", pod, at, "no volume")
    happened(cluster, "Normal", "Pulled", pod, at, "an image")
    follow.look()
    line = follow.until(lambda r: f"GpuUnhealthy Node {name}" in r.text)
    assert (line.subject, line.at.t_s) == (Subject(SubjectKind.NODE, name), at.timestamp())
    assert line.text == f"Warning GpuUnhealthy Node {name}: GPU 3 is unhealthy [kubelet] (×3)"
    assert line.source.startswith(EVENTS)
    ours = Subject(SubjectKind.POD, f"{cluster.namespace}/p")
    follow.until(lambda r: "FailedMount Pod p: no volume" in r.text and r.subject == ours)
    assert not any("Pulled" in r.text for r in follow.lines)


def test_a_cordon_and_a_new_driver_are_told_with_what_was_before_and_who_did_it(
    cluster: Cluster, follow: Follow
) -> None:
    label = "nvidia.com/cuda.driver-version.full"
    name = cluster.node(labels={label: "570.1"})
    follow.look()
    assert not [r for r in follow.lines if name in r.text and label in r.text], "what there was is no change"
    cluster.core.patch_node(name, {"spec": {"unschedulable": True}}, field_manager="alice-kubectl")
    line = follow.until(lambda r: "unschedulable: no -> yes" in r.text)
    assert line.subject == Subject(SubjectKind.NODE, name)
    assert line.text == f"Node {name}: unschedulable: no -> yes, by alice-kubectl"
    assert line.source.startswith(CHANGES)
    cluster.core.patch_node(name, {"metadata": {"labels": {label: "580.159.04"}}}, field_manager="gfd")
    follow.until(lambda r: f"{label}: 570.1 -> 580.159.04, by gfd" in r.text)


def test_an_image_that_is_replaced_is_a_change_of_the_cluster(cluster: Cluster, follow: Follow) -> None:
    template = {
        "metadata": {"labels": {"app": "driver"}},
        "spec": {"containers": [{"name": "driver", "image": "driver:570"}]},
    }
    name = cluster.name("driver")
    body = {
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": "driver"}}, "template": template},
    }
    apps = client.AppsV1Api(cluster.api)
    apps.create_namespaced_daemon_set(cluster.namespace, body)
    follow.look()
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "driver", "image": "driver:580"}]}}}}
    apps.patch_namespaced_daemon_set(name, cluster.namespace, patch, field_manager="argocd")
    line = follow.until(lambda r: "driver:580" in r.text)
    assert line.text == f"DaemonSet {cluster.namespace}/{name}: image driver: driver:570 -> driver:580, by argocd"
    assert line.subject == follow.inventory.cluster


def test_events_that_cannot_be_understood_are_counted_and_the_watch_goes_on(
    cluster: Cluster, follow: Follow
) -> None:
    name, at = cluster.node(), datetime.fromtimestamp(int(time.time()), UTC)
    events = follow.collector._events
    project = events._project

    def broken(obj: Any) -> Any:
        return int("1k") if obj.get("reason") == "Odd" else project(obj)

    events._project = broken
    about = {"kind": "Node", "name": name}
    happened(cluster, "Warning", "Odd", about, at, "cannot be read")
    happened(cluster, "Warning", "KubeletHung", about, at, "can be read")
    follow.until(lambda r: "can be read" in r.text)
    assert sum(status.rejected.get(Reason.MALFORMED, 0) for status in follow.statuses) >= 1
