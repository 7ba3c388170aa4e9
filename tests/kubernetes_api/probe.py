"""The calls whose answers were recorded from a real kube-apiserver 1.36 (`tests/recordings/kubernetes/`).

`answers(api)` asks the same of any server, in the same order, and gives what it said, a line for each call.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from kubernetes import client, watch
from kubernetes.client.rest import ApiException

NODE = {
    "metadata": {"name": "n1", "labels": {"gpu": "h200"}},
    "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
}
SPEC = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "maximum": 10}}}
FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
VERSION = {
    "name": "v1",
    "served": True,
    "storage": True,
    "subresources": {"status": {}},
    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC, "status": FREE}}},
}
DEFINITION = {
    "metadata": {"name": "widgets.ex.io"},
    "spec": {
        "group": "ex.io",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [VERSION],
    },
}
EVENT = {
    "metadata": {"generateName": "e-"},
    "involvedObject": {"kind": "Node", "name": "n1"},
    "reason": "X",
    "message": "m",
    "type": "Warning",
}


def answers(api: client.ApiClient) -> dict[str, str]:
    """By the name of the call: what it gave, or how it was refused (the recording cuts both)."""
    return {name: _said(call) for name, call in _calls(api)}


def _said(call: Callable[[], Any]) -> str:
    try:
        return str(call())[:150]
    except ApiException as error:
        body = json.loads(error.body)
        return f"HTTP {error.status} " + f"{body.get('reason')}: {body.get('message')}"[:140]
    except AttributeError as error:
        return f"AttributeError {str(error)[:140]}"


def _calls(api: client.ApiClient) -> Iterator[tuple[str, Callable[[], Any]]]:
    v1 = client.CoreV1Api(api)
    yield "version", lambda: client.VersionApi(api).get_code().git_version
    yield "create node", lambda: v1.create_node(NODE).metadata.name
    yield "create node again (409)", lambda: v1.create_node(NODE)
    yield "create node n2", lambda: v1.create_node({"metadata": {"name": "n2"}}).metadata.name
    yield "invalid node name (422)", lambda: v1.create_node({"metadata": {"name": "BAD_NAME"}})
    yield "get missing (404)", lambda: v1.read_node("nope")
    yield "list labelSelector", lambda: [n.metadata.name for n in v1.list_node(label_selector="gpu=h200").items]
    yield "list limit=1 continue", lambda: _page(v1.list_node(limit=1))
    yield (
        "strategic patch cordon",
        lambda: v1.patch_node("n1", {"spec": {"unschedulable": True}}).spec.unschedulable,
    )
    taints = {"spec": {"taints": [{"key": "b", "effect": "NoSchedule"}]}}
    yield "strategic patch merge taints by key", lambda: [t.key for t in v1.patch_node("n1", taints).spec.taints]
    label = [{"op": "add", "path": "/metadata/labels/x", "value": "y"}]
    yield "json-patch list body", lambda: v1.patch_node("n1", label).metadata.labels
    yield "optimistic lock, stale PUT (409)", lambda: _stale_put(v1)
    condition = {
        "type": "GpuHealthy",
        "status": "False",
        "reason": "Xid",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    }
    body = {"status": {"conditions": [condition]}, "spec": {"unschedulable": False}}
    yield "node status subresource patch", lambda: _conditions(v1.patch_node_status("n1", body))
    yield "watch from rv, server timeout 3s", lambda: _watch(v1)
    too_new = {"resource_version": "999999999", "timeout_seconds": 1}
    yield "watch rv=1 too old (410)", lambda: [e["type"] for e in watch.Watch().stream(v1.list_node, **too_new)]
    yield from _evictions(api, v1)
    yield from _others(api, v1)


def _evictions(api: client.ApiClient, v1: client.CoreV1Api) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name, app in (("p1", "a"), ("p2", "b")):
        spec = {
            "nodeName": "n1",
            "containers": [{"name": "c", "image": "x"}],
            "automountServiceAccountToken": False,
        }
        pod = {"metadata": {"name": name, "labels": {"app": app}}, "spec": spec}
        yield f"create pod {name}", lambda pod=pod: v1.create_namespaced_pod("default", pod).status.phase
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    set_status = v1.patch_namespaced_pod_status
    for name in ("p1", "p2"):
        yield f"{name} -> Running/Ready", lambda name=name: set_status(name, "default", status).status.phase
    on_node = {"field_selector": "spec.nodeName=n1"}
    yield (
        "list pods fieldSelector nodeName",
        lambda: [p.metadata.name for p in v1.list_pod_for_all_namespaces(**on_node).items],
    )
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    budget = {"metadata": {"name": "pdb-a"}, "spec": spec}
    policy = client.PolicyV1Api(api)
    yield (
        "create PDB minAvailable=1 app=a",
        lambda: policy.create_namespaced_pod_disruption_budget("default", budget).metadata.name,
    )

    def evict(name: str, **how: Any) -> Any:
        body = {"metadata": {"name": name, "namespace": "default"}, "deleteOptions": {"gracePeriodSeconds": 0}}
        return v1.create_namespaced_pod_eviction(name, "default", body, **how).status

    yield "evict p1 (PDB -> 429)", lambda: evict("p1")
    yield "evict p2 dryRun", lambda: evict("p2", dry_run="All")
    yield "evict p2 (ok)", lambda: evict("p2")
    yield "pods after", lambda: [_going(p) for p in v1.list_namespaced_pod("default").items]


def _others(api: client.ApiClient, v1: client.CoreV1Api) -> Iterator[tuple[str, Callable[[], Any]]]:
    leases, custom = client.CoordinationV1Api(api), client.CustomObjectsApi(api)
    yield "lease race (409 expected)", lambda: _lease_race(leases)
    extensions = client.ApiextensionsV1Api(api)
    yield "create CRD", lambda: extensions.create_custom_resource_definition(DEFINITION).metadata.name

    def widget(name: str, n: int) -> Any:
        body = {"apiVersion": "ex.io/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"n": n}}
        return custom.create_namespaced_custom_object("ex.io", "v1", "default", "widgets", body)["metadata"]["name"]

    yield "CR ok", lambda: widget("w1", 1)
    yield "CR schema violation (422)", lambda: widget("w2", 99)

    def apply(manager: str, value: str, *, force: bool = False) -> Any:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm"}, "data": {"k": value}}
        how = {"field_manager": manager, "force": force, "_content_type": "application/apply-patch+yaml"}
        return v1.patch_namespaced_config_map("cm", "default", body, **how)

    yield "SSA create by m1", lambda: [m.manager for m in apply("m1", "1").metadata.managed_fields]
    yield "SSA conflict m2 (409)", lambda: apply("m2", "2").data
    yield "SSA force m2", lambda: apply("m2", "2", force=True).data
    yield "events create", lambda: v1.create_namespaced_event("default", EVENT).metadata.name
    review = {"spec": {"resourceAttributes": {"verb": "patch", "resource": "nodes"}}}
    access = client.AuthorizationV1Api(api)
    yield "SAR can-i", lambda: access.create_self_subject_access_review(review).status.allowed


def _page(found: Any) -> tuple[int, bool]:
    return len(found.items), bool(found.metadata._continue)


def _conditions(node: Any) -> tuple[list[str], bool]:
    return [c.type for c in node.status.conditions], node.spec.unschedulable


def _going(pod: Any) -> tuple[str, bool]:
    return pod.metadata.name, bool(pod.metadata.deletion_timestamp)


def _stale_put(v1: client.CoreV1Api) -> Any:
    first, second = v1.read_node("n1"), v1.read_node("n1")
    first.metadata.annotations, second.metadata.annotations = {"k": "1"}, {"k": "2"}
    v1.replace_node("n1", first)
    return v1.replace_node("n1", second)


def _watch(v1: client.CoreV1Api) -> list[tuple[str, str]]:
    version = v1.list_node().metadata.resource_version

    def change() -> None:
        time.sleep(0.3)
        v1.patch_node("n2", {"metadata": {"labels": {"later": "1"}}})

    thread = threading.Thread(target=change)
    thread.start()
    stream = watch.Watch().stream(v1.list_node, resource_version=version, timeout_seconds=2)
    found = [(e["type"], e["object"].metadata.name) for e in stream]
    thread.join()
    return found


def _lease_race(leases: client.CoordinationV1Api) -> Any:
    body = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    leases.create_namespaced_lease("default", body)
    first, second = leases.read_namespaced_lease("l", "default"), leases.read_namespaced_lease("l", "default")
    first.spec.holder_identity, second.spec.holder_identity = "b", "c"
    leases.replace_namespaced_lease("l", "default", first)
    return leases.replace_namespaced_lease("l", "default", second)
