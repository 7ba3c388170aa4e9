"""The fixture behind every cluster test: our test API server, or the real cluster that a variable names."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.rest import ApiException

from tests.kubernetes_api.server import ApiServer

VARIABLE = "NIGHTSHIFT_TEST_KUBECONFIG"


@dataclass
class Cluster:
    """A cluster with a namespace of its own. `server` is None on a real one: a test that needs it says so."""

    kubeconfig: dict[str, Any]
    api: client.ApiClient
    namespace: str
    server: ApiServer | None
    _nodes: list[str] = field(default_factory=list)
    _cleanups: list[tuple[Callable[..., Any], tuple[Any, ...]]] = field(default_factory=list)

    @property
    def core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api)

    def name(self, stem: str) -> str:
        """A cluster-wide name that no other test uses."""
        return f"{stem}-{uuid.uuid4().hex[:8]}"

    def node(self, stem: str = "node", **spec: Any) -> str:
        labels = spec.pop("labels", {})
        name = self.name(stem)
        self.core.create_node({"metadata": {"name": name, "labels": labels}, "spec": spec})
        self._nodes.append(name)
        return name

    def pod(self, name: str, node: str | None = None, *, ready: bool = True, **metadata: Any) -> str:
        """A pod that runs, as far as its status says: no kubelet is needed."""
        spec: dict[str, Any] = {"containers": [{"name": "main", "image": "registry.invalid/none"}]}
        spec |= {"automountServiceAccountToken": False} | ({"nodeName": node} if node else {})
        body = {"metadata": {"name": name, **metadata}, "spec": spec}
        self.core.create_namespaced_pod(self.namespace, body)
        if ready:
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            self.core.patch_namespaced_pod_status(name, self.namespace, {"status": status})
        return name

    def owner(self, kind: str = "ReplicaSet") -> dict[str, Any]:
        """A reference to a controller that exists: a real cluster collects what is owned by nobody. It makes
        no pods."""
        name = f"owner-{uuid.uuid4().hex[:8]}"
        template = {
            "metadata": {"labels": {"owner": name}},
            "spec": {"containers": [{"name": "c", "image": "registry.invalid/none"}]},
        }
        body: dict[str, Any] = {
            "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": {"owner": name}}, "template": template},
        }
        apps = client.AppsV1Api(self.api)
        if kind == "DaemonSet":
            template["spec"]["nodeSelector"] = {"nightshift.dev/no-such": "node"}
            made = apps.create_namespaced_daemon_set(self.namespace, body)
        else:
            body["spec"]["replicas"] = 0
            made = apps.create_namespaced_replica_set(self.namespace, body)
        return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": made.metadata.uid, "controller": True}

    def remove_pod(self, name: str) -> None:
        """What a kubelet does in the end with a pod that is terminating."""
        self.core.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)

    def cleanup(self, delete: Callable[..., Any], *arguments: Any) -> None:
        """Calls this at the end: what belongs to no namespace does not go with ours."""
        self._cleanups.append((delete, arguments))

    def close(self) -> None:
        for delete, arguments in self._cleanups:
            try:
                delete(*arguments)
            except ApiException as error:
                if error.status != 404:
                    raise
        for name in self._nodes:
            try:
                self.core.delete_node(name)
            except ApiException as error:
                if error.status != 404:
                    raise
        if self.server is None:
            self.core.delete_namespace(self.namespace)


def _connect(kubeconfig: dict[str, Any], server: ApiServer | None) -> Cluster:
    api = config.new_client_from_config_dict(kubeconfig)
    namespace = f"nightshift-test-{uuid.uuid4().hex[:8]}"
    client.CoreV1Api(api).create_namespace({"metadata": {"name": namespace}})
    return Cluster(kubeconfig, api, namespace, server)


@contextmanager
def _cluster(*, tls: bool) -> Iterator[Cluster]:
    path = os.environ.get(VARIABLE)
    with ExitStack() as stack:
        server = None
        if path:
            with open(path, encoding="utf-8") as file:
                kubeconfig = yaml.safe_load(file)
        else:
            server = stack.enter_context(ApiServer(tls=tls))
            kubeconfig = server.kubeconfig()
        found = _connect(kubeconfig, server)
        stack.callback(found.api.close)
        stack.callback(found.close)
        yield found


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster, ours or the real one, with a fresh namespace."""
    with _cluster(tls=False) as found:
        yield found


@pytest.fixture
def tls_cluster() -> Iterator[Cluster]:
    """The same by TLS, for clients that send tokens over nothing else."""
    with _cluster(tls=True) as found:
        yield found
