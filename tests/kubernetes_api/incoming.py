"""What a create or an update brings, before it is judged: kind and namespace as in the URL, unknown fields pruned.

Source: kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions ("Field pruning").
"""

from __future__ import annotations

import copy
from typing import Any

from . import validate
from .errors import ApiError
from .resources import Resource
from .storage import Object


def incoming(resource: Resource, namespace: str, body: Any) -> Object:
    if not isinstance(body, dict):
        raise ApiError("BadRequest", "the body of the request is not an object")
    if body.get("kind") not in (None, "", resource.kind) or body.get("apiVersion") not in (
        None,
        "",
        resource.api_version,
    ):
        raise ApiError(
            "BadRequest",
            f"{body.get('apiVersion')}, Kind={body.get('kind')} in the body does not match "
            f"{resource.api_version}, Kind={resource.kind} of the URL",
        )
    obj = {"kind": resource.kind, "apiVersion": resource.api_version} | copy.deepcopy(body)
    obj |= {"kind": resource.kind, "apiVersion": resource.api_version}
    meta = obj["metadata"] = obj.get("metadata") or {}
    if resource.namespaced:
        if meta.get("namespace") not in (None, "", namespace):
            raise ApiError(
                "BadRequest",
                "the namespace of the provided object does not match the namespace sent on the request",
            )
        meta["namespace"] = namespace
    return prune(resource, obj) if resource.custom else obj


def prune(resource: Resource, obj: Object) -> Object:
    schemas: dict[str, Any] = dict(resource.schema)
    kept = {k: v for k, v in obj.items() if k in ("kind", "apiVersion", "metadata") or k in schemas or not schemas}
    return {k: validate.prune(schemas[k], v) if k in schemas else v for k, v in kept.items()}
