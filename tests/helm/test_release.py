"""Install, upgrade, roll back and remove, by Helm's own library on an API server: ours, or the real cluster that
NIGHTSHIFT_TEST_KUBECONFIG names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from kubernetes.client.rest import ApiException

from tests.helm.chart import CHART, SETS, helm_python, objects
from tests.kubernetes_api.cluster import Cluster


@pytest.fixture
def helm(tls_cluster: Cluster, tmp_path: Path) -> Iterator[Any]:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(tls_cluster.kubeconfig))
    with helm_python.Config(namespace=tls_cluster.namespace, kubeconfig_path=str(path)) as config:
        yield config


def verbs(cluster: Cluster) -> set[str]:
    role = client.RbacAuthorizationV1Api(cluster.api).read_cluster_role(f"{cluster.namespace}-nightshift")
    return {verb for rule in role.rules for verb in rule.verbs}


def made(cluster: Cluster) -> set[str]:
    """Kinds of the release that stand in the namespace."""
    core, apps, net = (
        client.CoreV1Api(cluster.api),
        client.AppsV1Api(cluster.api),
        client.NetworkingV1Api(cluster.api),
    )
    policy, selector = client.PolicyV1Api(cluster.api), {"label_selector": "app.kubernetes.io/instance=nightshift"}
    found = {
        "ConfigMap": core.list_namespaced_config_map(cluster.namespace, **selector),
        "Service": core.list_namespaced_service(cluster.namespace, **selector),
        "ServiceAccount": core.list_namespaced_service_account(cluster.namespace, **selector),
        "StatefulSet": apps.list_namespaced_stateful_set(cluster.namespace, **selector),
        "DaemonSet": apps.list_namespaced_daemon_set(cluster.namespace, **selector),
        "NetworkPolicy": net.list_namespaced_network_policy(cluster.namespace, **selector),
        "PodDisruptionBudget": policy.list_namespaced_pod_disruption_budget(cluster.namespace, **selector),
    }
    return {kind for kind, answer in found.items() if answer.items}


def until(holds: Callable[[], bool]) -> None:
    """A real cluster's garbage collector takes its time."""
    for _ in range(300):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("it did not become so")


def test_a_release_lives_from_install_to_removal(tls_cluster: Cluster, helm: Any) -> None:
    """Installed it may only look; upgraded to act it may write and has what was added; rolled back it may only
    look again and what was added is gone; removed, nothing is left but claims."""
    cluster = tls_cluster
    release = helm.install(CHART, "nightshift", values=SETS["prometheus"])
    assert release["status"] == "deployed"
    assert verbs(cluster) == {"list", "watch"}
    plain = made(cluster)
    assert plain == {i["kind"] for i in objects(SETS["prometheus"]) if "namespace" in i["metadata"]} - {"Pod"}
    upgraded = {**SETS["act"], **SETS["three replicas"], "node": {"enabled": True}}
    helm.upgrade(CHART, "nightshift", values=upgraded)
    assert {"patch", "create", "delete"} <= verbs(cluster)
    assert made(cluster) == plain | {"DaemonSet", "PodDisruptionBudget"}
    agent = client.AppsV1Api(cluster.api).read_namespaced_stateful_set("nightshift", cluster.namespace)
    assert agent.spec.replicas == 3
    helm.rollback("nightshift", version=1)
    assert verbs(cluster) == {"list", "watch"}
    until(lambda: made(cluster) == plain)
    assert [entry["status"] for entry in helm.history("nightshift")] == ["superseded", "superseded", "deployed"]
    helm.uninstall("nightshift")
    until(lambda: made(cluster) == set())
    with pytest.raises(ApiException, match="404"):
        verbs(cluster)


def test_a_refused_upgrade_changes_nothing(tls_cluster: Cluster, helm: Any) -> None:
    """Values that the schema refuses never reach the cluster; the release stays what it was."""
    helm.install(CHART, "nightshift", values={})
    with pytest.raises(helm_python.HelmError, match="PostgreSQL"):
        helm.upgrade(CHART, "nightshift", values={"replicas": 2})
    agent = client.AppsV1Api(tls_cluster.api).read_namespaced_stateful_set("nightshift", tls_cluster.namespace)
    assert agent.spec.replicas == 1
    assert [entry["status"] for entry in helm.history("nightshift")] == ["deployed"]
    helm.uninstall("nightshift")
