"""Enough of /openapi/v3 for clients that ask whether the server validates fields itself.

kubectl and Helm look for a PATCH of the kind with a `fieldValidation` parameter
(kubernetes.io/docs/reference/using-api, "Server-side field validation") and then leave validation to the server.
Schemas are not served."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import NoSuchPath
from .resources import Resource


def answer(path: str, resources: Iterable[Resource]) -> dict[str, Any]:
    """The index, or the document of one group and version."""
    by_root: dict[str, list[Resource]] = {}
    for resource in resources:
        by_root.setdefault(_root(resource), []).append(resource)
    if path == "/openapi/v3":
        return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in by_root}}
    found = by_root.get(path.removeprefix("/openapi/v3/"))
    if found is None:
        raise NoSuchPath
    info = {"title": "Kubernetes", "version": "v1.36.2"}
    return {"openapi": "3.0.0", "info": info, "paths": {_item(r): {"patch": _patch(r)} for r in found}}


def _root(resource: Resource) -> str:
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"


def _item(resource: Resource) -> str:
    place = "namespaces/{namespace}/" if resource.namespaced else ""
    return f"/{_root(resource)}/{place}{resource.plural}/{{name}}"


def _patch(resource: Resource) -> dict[str, Any]:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    return {
        "operationId": f"patch{resource.kind}",
        "parameters": [parameter],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-group-version-kind": kind,
    }
