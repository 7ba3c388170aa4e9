"""The fixture behind every cluster test: our test API server, or the real cluster that a variable names."""

from __future__ import annotations

import os
import tempfile
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

from nightshift.collectors.kubernetes.transport import Transport, of_kubeconfig
from tests.kubernetes_api.server import ApiServer

VARIABLE = "NIGHTSHIFT_TEST_KUBECONFIG"


MARK = "nightshift.dev/test"
"""Label of everything that tests leave outside of a namespace: what an earlier run left is swept away by it."""
LEFTOVER_S = 3600.0
PATIENCE_S = 60.0


def eventually(look: Callable[[], Any], what: str) -> Any:
    """What `look` gives once it is true of the world; a real cluster's controllers and caches take their time."""
    end = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < end, f"within {PATIENCE_S:.0f} s it did not come: {what}"
        time.sleep(0.05)
    return found


def gone(delete: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Deletes what may be gone already."""
    try:
        delete(*arguments, **options)
    except ApiException as error:
        if error.status != 404:
            raise


def refused(error: pytest.ExceptionInfo[ApiException], status: int, *words: str) -> None:
    """The answer's code and what its body says."""
    assert error.value.status == status
    for word in words:
        assert word in error.value.body


def transport_of(kubeconfig: dict[str, Any]) -> Transport:
    """Our transport by a kubeconfig."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(kubeconfig, file)
        return of_kubeconfig(Path(file.name), None)


@dataclass
class Cluster:
    """A cluster with a namespace of its own. `server` is None on a real one: a test that needs it says so."""

    kubeconfig: dict[str, Any]
    api: client.ApiClient
    namespace: str
    server: ApiServer | None
    controlled: bool = True
    """Whether kube-controller-manager runs: without it, what it would write is written here."""
    _nodes: list[str] = field(default_factory=list)
    _cleanups: list[tuple[Callable[..., Any], tuple[Any, ...]]] = field(default_factory=list)

    @property
    def transport(self) -> Transport:
        """Ours, with the kubeconfig's identity."""
        return transport_of(self.kubeconfig)

    @property
    def core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api)

    def name(self, stem: str) -> str:
        """A cluster-wide name that no other test uses."""
        return f"{stem}-{uuid.uuid4().hex[:8]}"

    def node(self, stem: str = "node", **spec: Any) -> str:
        labels = {**spec.pop("labels", {}), MARK: "node"}
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
            self.runs(name)
        return name

    def runs(self, pod: str) -> None:
        """What a kubelet says of a pod that runs."""
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.core.patch_namespaced_pod_status(pod, self.namespace, {"status": status})

    def binds(self, pod: str, node: str) -> None:
        """What a scheduler and a kubelet do with a pod that a controller made."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"metadata": {"name": pod}, "target": target}
        try:
            self.core.create_namespaced_pod_binding(pod, self.namespace, body, _preload_content=False)
        except ApiException as error:  # where a scheduler runs, it may have been faster
            if error.status != 409:
                raise
            assert self.core.read_namespaced_pod(pod, self.namespace).spec.node_name == node
        self.runs(pod)

    def made_pods(self, selector: str, count: int) -> list[str]:
        """The pods that a controller has made."""

        def look() -> list[str]:
            found = self.core.list_namespaced_pod(self.namespace, label_selector=selector).items
            names = [str(p.metadata.name) for p in found if p.metadata.deletion_timestamp is None]
            return names if len(names) >= count else []

        return list(eventually(look, f"{count} pods {selector}"))

    def owner(self) -> dict[str, Any]:
        """A reference to a controller that exists, since a real cluster collects what is owned by nobody; and of a
        kind that no controller works on, since that would release or remove a pod that it did not make."""
        name = f"owner-{uuid.uuid4().hex[:8]}"
        made = self.core.create_namespaced_config_map(self.namespace, {"metadata": {"name": name}})
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": made.metadata.uid, "controller": True}

    def daemon_pod(self, name: str, node: str) -> str:
        """A pod of a DaemonSet. It tolerates everything: its controller makes no pod for a node that is not ready,
        as none is that no kubelet speaks for."""
        mark = {"nightshift.dev/test-daemon": name}
        self.core.patch_node(node, {"metadata": {"labels": mark}})
        pod = {
            "nodeSelector": mark,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "registry.invalid/none"}],
        }
        spec = {
            "selector": {"matchLabels": mark},
            "updateStrategy": {"type": "OnDelete"},
            "template": {"metadata": {"labels": mark}, "spec": pod},
        }
        body = {"metadata": {"name": name}, "spec": spec}
        made = client.AppsV1Api(self.api).create_namespaced_daemon_set(self.namespace, body)
        if self.controlled:
            (pod_name,) = self.made_pods(f"nightshift.dev/test-daemon={name}", 1)
            self.binds(pod_name, node)
            return pod_name
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": made.metadata.uid}
        return self.pod(name, node, labels=mark, ownerReferences=[{**owner, "controller": True}])

    def remove_pod(self, name: str) -> None:
        """What a kubelet does in the end with a pod that is terminating; until it is really gone."""
        gone(self.core.delete_namespaced_pod, name, self.namespace, grace_period_seconds=0)

        def is_gone() -> bool:
            selector = f"metadata.name={name}"
            return not self.core.list_namespaced_pod(self.namespace, field_selector=selector).items

        eventually(is_gone, f"pod {name} gone")

    def define(self, group: str, version: str, kind: str, *, scope: str = "Namespaced") -> None:
        """A custom resource as an operator would define it, without that operator. Where the cluster has it already
        its operator would take part: the test is skipped, and says so."""
        plural = f"{kind.lower()}s"
        name, extensions = f"{plural}.{group}", client.ApiextensionsV1Api(self.api)
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}}
        names = {"plural": plural, "singular": kind.lower(), "kind": kind}
        served = {
            "name": version,
            "served": True,
            "storage": True,
            "schema": schema,
            "subresources": {"status": {}},
        }
        spec = {"group": group, "scope": scope, "names": names, "versions": [served]}
        meta = {"name": name, "labels": {MARK: "definition"}}
        try:
            extensions.create_custom_resource_definition({"metadata": meta, "spec": spec})
        except ApiException as error:
            if error.status == 409:
                pytest.skip(
                    f"this cluster has {name} already, and with it perhaps an operator that would take part"
                )
            raise
        self.cleanup(extensions.delete_custom_resource_definition, name)
        custom = client.CustomObjectsApi(self.api)

        def is_served() -> bool:
            try:
                if scope == "Cluster":
                    custom.list_cluster_custom_object(group, version, plural)
                else:
                    custom.list_namespaced_custom_object(group, version, self.namespace, plural)
            except ApiException as error:
                if error.status in (404, 429, 503):
                    return False
                raise
            return True

        eventually(is_served, f"{name} served")

    def cleanup(self, delete: Callable[..., Any], *arguments: Any) -> None:
        """Calls this at the end: what belongs to no namespace does not go with ours."""
        self._cleanups.append((delete, arguments))

    def close(self) -> None:
        for delete, arguments in reversed(self._cleanups):
            gone(delete, *arguments)
        if self.server is None:
            background = {"propagation_policy": "Background"}
            client.BatchV1Api(self.api).delete_collection_namespaced_job(self.namespace, **background)
            client.AppsV1Api(self.api).delete_collection_namespaced_daemon_set(self.namespace, **background)
            # without kubelets nobody else ends them, and the namespace would not go
            self.core.delete_collection_namespaced_pod(self.namespace, grace_period_seconds=0)
            self.core.delete_namespace(self.namespace)
        for name in self._nodes:
            gone(self.core.delete_node, name)


def _connect(kubeconfig: dict[str, Any], server: ApiServer | None) -> Cluster:
    api = config.new_client_from_config_dict(kubeconfig)
    namespace = f"nightshift-test-{uuid.uuid4().hex[:8]}"
    core = client.CoreV1Api(api)
    labels = {MARK: "namespace", "pod-security.kubernetes.io/enforce": "privileged"}
    core.create_namespace({"metadata": {"name": namespace, "labels": labels}})
    controlled = server is not None or _has_account(core, namespace)
    return Cluster(kubeconfig, api, namespace, server, controlled)


_KNOWN: dict[str, bool] = {}
"""By host: whether the service account controller, and so kube-controller-manager, was seen to work."""


def _has_account(core: client.CoreV1Api, namespace: str) -> bool:
    """A real server admits no pod before the service account controller has made `default`; where none runs, it is
    made here."""
    host = core.api_client.configuration.host
    end = time.monotonic() + (PATIENCE_S if _KNOWN.get(host) else 0.0 if host in _KNOWN else 15.0)
    while True:
        try:
            core.read_namespaced_service_account("default", namespace)
        except ApiException as error:
            if error.status != 404:
                raise
        else:
            _KNOWN[host] = True
            return True
        if time.monotonic() >= end:
            assert not _KNOWN.get(host), f"namespace {namespace} has no default service account"
            _KNOWN[host] = False
            core.create_namespaced_service_account(namespace, {"metadata": {"name": "default"}})
            return False
        time.sleep(0.1)


def _sweep(api: client.ApiClient) -> None:
    """Removes what a run of long ago left, because it was killed; a run beside this one is left alone."""
    core, rbac = client.CoreV1Api(api), client.RbacAuthorizationV1Api(api)
    extensions = client.ApiextensionsV1Api(api)
    for listing, delete in (
        (core.list_node, core.delete_node),
        (core.list_namespace, core.delete_namespace),
        (rbac.list_cluster_role_binding, rbac.delete_cluster_role_binding),
        (rbac.list_cluster_role, rbac.delete_cluster_role),
        (extensions.list_custom_resource_definition, extensions.delete_custom_resource_definition),
    ):
        for item in listing(label_selector=MARK).items:
            if time.time() - item.metadata.creation_timestamp.timestamp() < LEFTOVER_S:
                continue
            if listing == core.list_namespace:
                core.delete_collection_namespaced_pod(item.metadata.name, grace_period_seconds=0)
            gone(delete, item.metadata.name)


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


_SWEPT: list[bool] = []


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
        if server is None and not _SWEPT:
            with config.new_client_from_config_dict(kubeconfig) as api:
                _sweep(api)
            _SWEPT.append(True)
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
