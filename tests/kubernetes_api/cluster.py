"""The fixture behind every cluster test: our test API server, or the real cluster that a variable names."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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

    def owner(self) -> dict[str, Any]:
        """A reference to a controller that exists, since a real cluster collects what is owned by nobody; and of a
        kind that no controller works on, since that would release or remove a pod that it did not make."""
        name = f"owner-{uuid.uuid4().hex[:8]}"
        made = self.core.create_namespaced_config_map(self.namespace, {"metadata": {"name": name}})
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": made.metadata.uid, "controller": True}

    def daemon_pod(self, name: str, node: str) -> str:
        """A pod of a DaemonSet, as that one's controller would have made it: it keeps it where there is one."""
        mark = {"nightshift.dev/test-daemon": name}
        self.core.patch_node(node, {"metadata": {"labels": mark}})
        pod = {"nodeSelector": mark, "containers": [{"name": "main", "image": "registry.invalid/none"}]}
        spec = {
            "selector": {"matchLabels": mark},
            "updateStrategy": {"type": "OnDelete"},
            "template": {"metadata": {"labels": mark}, "spec": pod},
        }
        body = {"metadata": {"name": name}, "spec": spec}
        made = client.AppsV1Api(self.api).create_namespaced_daemon_set(self.namespace, body)
        if self.server is None:  # its controller makes the pod
            return self._made_by_controller(f"nightshift.dev/test-daemon={name}")
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": made.metadata.uid}
        return self.pod(name, node, labels=mark, ownerReferences=[{**owner, "controller": True}])

    def _made_by_controller(self, selector: str) -> str:
        for _ in range(100):
            found = self.core.list_namespaced_pod(self.namespace, label_selector=selector).items
            if found:
                return str(found[0].metadata.name)
            time.sleep(0.1)
        raise AssertionError(f"no controller made a pod {selector}")

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
    core = client.CoreV1Api(api)
    core.create_namespace({"metadata": {"name": namespace}})
    if server is None:
        _wait_for_account(core, namespace)
    return Cluster(kubeconfig, api, namespace, server)


def _wait_for_account(core: client.CoreV1Api, namespace: str) -> None:
    """A real server admits no pod before the service account controller has made `default`."""
    for _ in range(300):
        try:
            core.read_namespaced_service_account("default", namespace)
        except ApiException as error:
            if error.status != 404:
                raise
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"namespace {namespace} has no default service account")


def read_kubeconfig(path: Path) -> dict[str, Any]:
    """A kubeconfig with just its current context, and its files as absolute paths, so that it can be used
    anywhere."""
    kubeconfig: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    current = next(c for c in kubeconfig["contexts"] if c["name"] == kubeconfig["current-context"])
    used = {"clusters": current["context"]["cluster"], "users": current["context"]["user"]}
    for plural, name in used.items():
        (entry,) = (e for e in kubeconfig[plural] if e["name"] == name)
        body = entry[plural[:-1]]
        for key in ("certificate-authority", "client-certificate", "client-key", "tokenFile"):
            if key in body:
                body[key] = str((path.parent / body[key]).resolve())
        kubeconfig[plural] = [entry]
    kubeconfig["contexts"] = [current]
    return kubeconfig


@contextmanager
def _cluster(*, tls: bool) -> Iterator[Cluster]:
    path = os.environ.get(VARIABLE)
    with ExitStack() as stack:
        server = None
        if path:
            kubeconfig = read_kubeconfig(Path(path))
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
