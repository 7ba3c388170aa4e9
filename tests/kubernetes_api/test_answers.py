"""The test API server answers as a real kube-apiserver v1.36 did; the same tests run against a real cluster.

The wording and codes were recorded from a real server with its controller-manager and no kubelet.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException

from tests.kubernetes_api.cluster import MARK, Cluster, eventually, refused


def test_a_second_create_of_the_same_name_is_already_exists(cluster: Cluster) -> None:
    name = cluster.node()
    with pytest.raises(ApiException) as error:
        cluster.core.create_node({"metadata": {"name": name}})
    refused(error, 409, "AlreadyExists", f'nodes \\"{name}\\" already exists')


def test_a_name_that_is_not_a_subdomain_is_invalid(cluster: Cluster) -> None:
    with pytest.raises(ApiException) as error:
        cluster.core.create_node({"metadata": {"name": "BAD_NAME"}})
    refused(error, 422, "Invalid", "a lowercase RFC 1123 subdomain must consist of")


def test_a_label_value_beyond_63_characters_is_invalid(cluster: Cluster) -> None:
    with pytest.raises(ApiException) as error:
        cluster.core.create_node({"metadata": {"name": cluster.name("n"), "labels": {"a": "x" * 64}}})
    refused(error, 422, "metadata.labels")


def test_a_missing_object_is_not_found(cluster: Cluster) -> None:
    with pytest.raises(ApiException) as error:
        cluster.core.read_node("nope")
    refused(error, 404, 'nodes \\"nope\\" not found')


def test_an_object_in_a_namespace_that_is_not_there_is_not_found(cluster: Cluster) -> None:
    with pytest.raises(ApiException) as error:
        cluster.core.create_namespaced_config_map("no-such-namespace", {"metadata": {"name": "c"}})
    refused(error, 404, 'namespaces \\"no-such-namespace\\" not found')


def test_lists_select_by_label_and_page_with_continue(cluster: Cluster) -> None:
    mark = cluster.name("mark")
    names = sorted(cluster.node(labels={"set": mark}) for _ in range(3))
    cluster.node()
    first = cluster.core.list_node(label_selector=f"set={mark}", limit=2)
    assert [n.metadata.name for n in first.items] == names[:2]
    late = cluster.node("aaa", labels={"set": mark})
    rest = cluster.core.list_node(label_selector=f"set={mark}", limit=2, _continue=first.metadata._continue)
    assert [n.metadata.name for n in rest.items] == names[2:], f"{late} came after the snapshot"
    assert rest.metadata.resource_version == first.metadata.resource_version
    chosen = cluster.core.list_node(label_selector=f"set in ({mark}),!gone")
    assert len(chosen.items) == 4


def test_an_unsupported_field_selector_is_a_bad_request(cluster: Cluster) -> None:
    with pytest.raises(ApiException) as error:
        cluster.core.list_node(field_selector="spec.color=red")
    refused(error, 400, "field label not supported")


def test_a_strategic_patch_replaces_taints_and_merges_labels(cluster: Cluster) -> None:
    name = cluster.node(labels={"gpu": "h200"}, taints=[{"key": "a", "effect": "NoSchedule"}])
    body: dict[str, Any] = {
        "metadata": {"labels": {"x": "y"}},
        "spec": {"unschedulable": True, "taints": [{"key": "b", "effect": "NoSchedule"}]},
    }
    node = cluster.core.patch_node(name, body)
    assert node.spec.unschedulable is True
    assert "a" not in [taint.key for taint in node.spec.taints]
    assert node.metadata.labels["gpu"] == "h200"
    assert node.metadata.labels["x"] == "y"


def test_a_json_patch_whose_test_fails_changes_nothing(cluster: Cluster) -> None:
    name = cluster.node(labels={"x": "y"})
    patch = [
        {"op": "add", "path": "/metadata/labels/z", "value": "1"},
        {"op": "test", "path": "/metadata/labels/x", "value": "other"},
    ]
    with pytest.raises(ApiException) as error:
        cluster.core.patch_node(name, patch)
    assert error.value.status == 422
    assert "z" not in cluster.core.read_node(name).metadata.labels


def test_a_stale_put_is_a_conflict(cluster: Cluster) -> None:
    """On an object that no controller writes to."""
    core, place = cluster.core, ("stale", cluster.namespace)
    core.create_namespaced_config_map(cluster.namespace, {"metadata": {"name": "stale"}})
    first, second = core.read_namespaced_config_map(*place), core.read_namespaced_config_map(*place)
    first.data = {"k": "1"}
    core.replace_namespaced_config_map(*place, first)
    second.data = {"k": "2"}
    with pytest.raises(ApiException) as error:
        core.replace_namespaced_config_map(*place, second)
    refused(
        error, 409, "the object has been modified; please apply your changes to the latest version and try again"
    )


def test_a_put_that_changes_nothing_keeps_the_resource_version(cluster: Cluster) -> None:
    body = {"metadata": {"name": "same"}, "data": {"k": "1"}}
    made = cluster.core.create_namespaced_config_map(cluster.namespace, body)
    again = cluster.core.replace_namespaced_config_map("same", cluster.namespace, made)
    assert again.metadata.resource_version == made.metadata.resource_version


def test_the_status_subresource_keeps_the_spec_and_the_other_way_round(cluster: Cluster) -> None:
    name = cluster.node(unschedulable=True)
    heartbeat = "2026-01-01T00:00:00Z"
    condition = {"type": "GpuHealthy", "status": "False", "reason": "Xid", "lastHeartbeatTime": heartbeat}
    body: dict[str, Any] = {"status": {"conditions": [condition]}, "spec": {"unschedulable": False}}
    node = cluster.core.patch_node_status(name, body)
    assert [c.type for c in node.status.conditions] == ["GpuHealthy"]
    assert node.spec.unschedulable is True
    other = {"type": "Ready", "status": "True", "reason": "r", "lastHeartbeatTime": heartbeat}
    node = cluster.core.patch_node_status(name, {"status": {"conditions": [other]}})
    assert {c.type for c in node.status.conditions} >= {"GpuHealthy", "Ready"}
    pod = cluster.pod("still", ready=True)
    changed = cluster.core.patch_namespaced_pod(pod, cluster.namespace, {"status": {"phase": "Failed"}})
    assert changed.status.phase == "Running"


def test_a_running_pods_spec_cannot_be_changed(cluster: Cluster) -> None:
    pod = cluster.pod("fixed", cluster.node())
    with pytest.raises(ApiException) as error:
        cluster.core.patch_namespaced_pod(pod, cluster.namespace, {"spec": {"hostNetwork": True}})
    refused(error, 422, "pod updates may not change fields other than")


def config_map(cluster: Cluster, name: str, **labels: str) -> None:
    body = {"metadata": {"name": name, "labels": labels}}
    cluster.core.create_namespaced_config_map(cluster.namespace, body)


def test_a_watch_gives_what_changed_after_its_version(cluster: Cluster) -> None:
    core = cluster.core
    config_map(cluster, "watched")
    version = core.list_namespaced_config_map(cluster.namespace).metadata.resource_version

    def change() -> None:
        core.patch_namespaced_config_map("watched", cluster.namespace, {"data": {"later": "1"}})

    thread = threading.Thread(target=change)
    thread.start()
    seen, watching = [], watch.Watch()
    for event in watching.stream(
        core.list_namespaced_config_map, cluster.namespace, resource_version=version, timeout_seconds=120
    ):
        seen.append((event["type"], event["object"].metadata.name))
        if seen[-1] == ("MODIFIED", "watched"):
            watching.stop()
    thread.join()
    assert ("MODIFIED", "watched") in seen
    assert ("ADDED", "watched") not in seen


def test_a_watch_sees_an_object_leave_its_selection_as_deleted(cluster: Cluster) -> None:
    core = cluster.core
    config_map(cluster, "moves", set="chosen")
    version = core.list_namespaced_config_map(cluster.namespace).metadata.resource_version
    for value in ("other", "chosen"):
        core.patch_namespaced_config_map("moves", cluster.namespace, {"metadata": {"labels": {"set": value}}})
    watching = watch.Watch()
    stream = watching.stream(
        core.list_namespaced_config_map,
        cluster.namespace,
        resource_version=version,
        label_selector="set=chosen",
        timeout_seconds=60,
    )
    seen = []
    for event in stream:
        seen.append(event["type"])
        if len(seen) == 2:
            watching.stop()
    assert seen == ["DELETED", "ADDED"]


def test_a_watch_that_asks_for_them_gets_bookmarks(cluster: Cluster) -> None:
    stream = watch.Watch().stream(
        cluster.core.list_namespaced_config_map,
        cluster.namespace,
        resource_version=cluster.core.list_namespaced_config_map(cluster.namespace).metadata.resource_version,
        allow_watch_bookmarks=True,
        timeout_seconds=3,
    )
    kinds = {event["type"] for event in stream}
    assert kinds <= {"BOOKMARK", "ADDED", "MODIFIED"}, "the namespace's own may come late"
    if cluster.server is not None:
        assert "BOOKMARK" in kinds


def test_a_watch_from_a_compacted_version_is_410_inside_the_stream(cluster: Cluster) -> None:
    if cluster.server is None:
        pytest.skip("a real server compacts every five minutes, not on request")
    version = cluster.core.list_node().metadata.resource_version
    cluster.node()
    cluster.server.api.storage.compact()
    with pytest.raises(ApiException) as error:
        list(watch.Watch().stream(cluster.core.list_node, resource_version=version, timeout_seconds=30))
    assert error.value.status == 410


def test_two_holders_of_one_lease_version_cannot_both_win(cluster: Cluster) -> None:
    leases = client.CoordinationV1Api(cluster.api)
    body = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    leases.create_namespaced_lease(cluster.namespace, body)
    first = leases.read_namespaced_lease("l", cluster.namespace)
    second = leases.read_namespaced_lease("l", cluster.namespace)
    first.spec.holder_identity, second.spec.holder_identity = "b", "c"
    leases.replace_namespaced_lease("l", cluster.namespace, first)
    with pytest.raises(ApiException) as error:
        leases.replace_namespaced_lease("l", cluster.namespace, second)
    refused(error, 409, "the object has been modified")


def applied(cluster: Cluster, manager: str, data: dict[str, str], *, force: bool = False) -> Any:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm"}, "data": data}
    return cluster.core.patch_namespaced_config_map(
        "cm",
        cluster.namespace,
        body,
        field_manager=manager,
        force=force,
        _content_type="application/apply-patch+yaml",
    )


def test_server_side_apply_conflicts_names_the_manager_and_the_field(cluster: Cluster) -> None:
    assert [m.manager for m in applied(cluster, "m1", {"k": "1"}).metadata.managed_fields] == ["m1"]
    with pytest.raises(ApiException) as error:
        applied(cluster, "m2", {"k": "2"})
    refused(error, 409, 'Apply failed with 1 conflict: conflict with \\"m1\\": .data.k')
    assert applied(cluster, "m2", {"k": "2"}, force=True).data == {"k": "2"}


def test_server_side_apply_removes_what_its_manager_no_longer_applies(cluster: Cluster) -> None:
    applied(cluster, "m1", {"k": "1", "j": "1"})
    applied(cluster, "m2", {"other": "1"})
    assert applied(cluster, "m1", {"k": "1"}).data == {"k": "1", "other": "1"}


def test_server_side_apply_removes_a_list_item_as_a_whole(cluster: Cluster) -> None:
    """A variable that its applier no longer names goes with its key; those beside it stay."""

    def env(*names: str) -> list[str]:
        container = {"name": "c", "image": "i", "env": [{"name": name, "value": "v"} for name in names]}
        spec = {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container]}},
        }
        body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}
        made = client.AppsV1Api(cluster.api).patch_namespaced_deployment(
            "d", cluster.namespace, body, field_manager="m1", _content_type="application/apply-patch+yaml"
        )
        return [variable.name for variable in made.spec.template.spec.containers[0].env]

    assert env("A", "B") == ["A", "B"]
    assert env("A") == ["A"]


def test_server_side_apply_shares_a_field_of_equal_value(cluster: Cluster) -> None:
    applied(cluster, "m1", {"k": "1"})
    applied(cluster, "m2", {"k": "1"})
    assert applied(cluster, "m1", {}).data == {"k": "1"}, "m2 still applies it"


def test_an_update_takes_a_field_from_its_applier(cluster: Cluster) -> None:
    applied(cluster, "m1", {"k": "1"})
    cluster.core.patch_namespaced_config_map("cm", cluster.namespace, {"data": {"k": "2"}}, field_manager="kubectl")
    with pytest.raises(ApiException) as error:
        applied(cluster, "m1", {"k": "1"})
    refused(error, 409, 'conflict with \\"kubectl\\"')


def served(cluster: Cluster, group: str) -> bool:
    custom = client.CustomObjectsApi(cluster.api)
    try:
        custom.list_namespaced_custom_object(group, "v1", cluster.namespace, "widgets")
    except ApiException as error:
        if error.status not in (404, 429, 503):
            raise
        return False
    return True


def test_a_custom_resource_is_held_to_its_schema_and_pruned(cluster: Cluster) -> None:
    group = f"{cluster.name('ex')}.io"
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "maximum": 10}}},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget"}
    version = {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}}}
    definition = {
        "metadata": {"name": f"widgets.{group}", "labels": {MARK: "definition"}},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": names,
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    extensions = client.ApiextensionsV1Api(cluster.api)
    extensions.create_custom_resource_definition(definition)
    cluster.cleanup(extensions.delete_custom_resource_definition, f"widgets.{group}")
    eventually(lambda: served(cluster, group), "the definition served")
    custom = client.CustomObjectsApi(cluster.api)
    place = (group, "v1", cluster.namespace, "widgets")
    body = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "w1"}, "status": {"s": 1}}
    made = custom.create_namespaced_custom_object(*place, {**body, "spec": {"n": 1, "unknown": 2}})
    assert made["spec"] == {"n": 1}
    assert "status" not in made
    with pytest.raises(ApiException) as error:
        custom.create_namespaced_custom_object(*place, {**body, "metadata": {"name": "w2"}, "spec": {"n": 99}})
    refused(error, 422, "spec.n in body should be less than or equal to 10")


def may_list(core: client.CoreV1Api, namespace: str) -> bool:
    try:
        core.list_namespaced_pod(namespace)
    except ApiException as error:
        if error.status != 403:
            raise
        return False
    return True


def test_a_service_account_may_do_only_what_its_role_says(cluster: Cluster) -> None:
    rbac = client.RbacAuthorizationV1Api(cluster.api)
    cluster.core.create_namespaced_service_account(cluster.namespace, {"metadata": {"name": "reader"}})
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
    rbac.create_namespaced_role(cluster.namespace, {"metadata": {"name": "read"}, "rules": [rule]})
    binding = {
        "metadata": {"name": "read"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "read"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": cluster.namespace}],
    }
    rbac.create_namespaced_role_binding(cluster.namespace, binding)
    request: dict[str, Any] = {"spec": {"expirationSeconds": 600, "audiences": None}}
    token = cluster.core.create_namespaced_service_account_token("reader", cluster.namespace, request).status.token
    kubeconfig = {**cluster.kubeconfig, "users": [{"name": "sa", "user": {"token": token}}]}
    context = {**cluster.kubeconfig["contexts"][0]["context"], "user": "sa"}
    kubeconfig |= {"contexts": [{"name": "sa", "context": context}], "current-context": "sa"}
    with config.new_client_from_config_dict(kubeconfig) as api:
        core = client.CoreV1Api(api)
        assert eventually(lambda: may_list(core, cluster.namespace), "the binding in the authorizer's cache")
        with pytest.raises(ApiException) as error:
            core.patch_node("n1", {"spec": {"unschedulable": True}})
        user = f"system:serviceaccount:{cluster.namespace}:reader"
        refused(
            error,
            403,
            f'User \\"{user}\\" cannot patch resource \\"nodes\\" in API group \\"\\" at the cluster scope',
        )
        review = {"spec": {"resourceAttributes": {"verb": "patch", "resource": "nodes"}}}
        allowed = client.AuthorizationV1Api(api).create_self_subject_access_review(review).status.allowed
        assert allowed is False


def test_an_unknown_token_is_unauthorized(cluster: Cluster) -> None:
    kubeconfig = {**cluster.kubeconfig, "users": [{"name": "x", "user": {"token": "forged"}}]}
    context = {**cluster.kubeconfig["contexts"][0]["context"], "user": "x"}
    kubeconfig |= {"contexts": [{"name": "x", "context": context}], "current-context": "x"}
    with config.new_client_from_config_dict(kubeconfig) as api, pytest.raises(ApiException) as error:
        client.CoreV1Api(api).list_node()
    assert error.value.status == 401


def test_what_is_not_implemented_answers_501(cluster: Cluster) -> None:
    if cluster.server is None:
        pytest.skip("a real server implements it")
    pod = cluster.pod("forward", cluster.node())
    with pytest.raises(ApiException) as error:
        cluster.core.connect_get_namespaced_pod_portforward(pod, cluster.namespace)
    assert error.value.status == 501
