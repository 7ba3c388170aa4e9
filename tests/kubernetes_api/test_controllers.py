"""The controllers of the test API server go on, as real ones do, when what they want to write is refused."""

from __future__ import annotations

from typing import Any

from tests.kubernetes_api.api import Api, Options
from tests.kubernetes_api.cluster import eventually
from tests.kubernetes_api.storage import Object

MINE = Options("test")
LABELS = {"app": "exporter"}


def _create(api: Api, kind: str, namespace: str, name: str, **parts: Any) -> Object:
    return api.create(api.by_kind[kind], namespace, {"metadata": {"name": name}, **parts}, MINE)


def _found(api: Api, kind: str, namespace: str, name: str) -> Object | None:
    return api.storage.get(api.by_kind[kind], namespace, name)


def test_a_refused_write_is_tried_again_and_holds_nobody_up() -> None:
    """A pod is refused while its namespace has no service account: other namespaces are served, and it comes."""
    api = Api()
    api.controllers.lag_s = 0.01
    try:
        _create(api, "Namespace", "", "first")
        eventually(lambda: _found(api, "ServiceAccount", "first", "default"), "the account of the first")
        api.delete(api.by_kind["ServiceAccount"], "first", "default", {}, MINE)
        pod = {"containers": [{"name": "c", "image": "i"}], "tolerations": [{"operator": "Exists"}]}
        template = {"metadata": {"labels": LABELS}, "spec": pod}
        _create(
            api, "DaemonSet", "first", "exporter", spec={"selector": {"matchLabels": LABELS}, "template": template}
        )
        _create(api, "Node", "", "node-0", spec={})
        _create(api, "Namespace", "", "second")
        eventually(lambda: _found(api, "ServiceAccount", "second", "default"), "the account of the second")
        pods = api.by_kind["Pod"]
        assert not api.storage.all(pods, "first")
        _create(api, "ServiceAccount", "first", "default")
        eventually(lambda: api.storage.all(pods, "first"), "the pod of the daemon set")
    finally:
        api.controllers.close()
