"""What the server fills in where a new object leaves it out (kubernetes.io, API reference of each kind)."""

from __future__ import annotations

from .resources import Resource
from .storage import Object


def fill_in(resource: Resource, obj: Object) -> None:
    """Changes the object."""
    spec = obj.get("spec") or {}
    match resource.kind:
        case "Pod":
            for key, value in (
                ("restartPolicy", "Always"),
                ("terminationGracePeriodSeconds", 30),
                ("schedulerName", "default-scheduler"),
                ("serviceAccountName", "default"),
                ("dnsPolicy", "ClusterFirst"),
            ):
                spec.setdefault(key, value)
            obj["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
        case "Namespace":
            obj["spec"] = {"finalizers": ["kubernetes"]}
            obj["status"] = {"phase": "Active"}
            obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
        case "Job":
            for key, value in (
                ("parallelism", 1),
                ("completions", 1),
                ("backoffLimit", 6),
                ("suspend", False),
                ("completionMode", "NonIndexed"),
            ):
                spec.setdefault(key, value)
        case "CustomResourceDefinition":
            obj["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
    if resource.status and spec:
        obj["spec"] = spec
