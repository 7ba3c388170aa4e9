"""Custom resources: what a CustomResourceDefinition makes the server serve."""

from __future__ import annotations

from .resources import Resource
from .storage import Object


def serve(resources: dict[tuple[str, str], Resource], definition: Object, *, gone: bool = False) -> None:
    """Adds the served versions of a definition to the resources, or takes them away."""
    spec = definition["spec"]
    for version in spec["versions"]:
        schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        parts = dict(schema.get("properties", {}))
        resource = Resource(
            spec["group"],
            version["name"],
            spec["names"]["plural"],
            spec["names"]["kind"],
            namespaced=spec["scope"] == "Namespaced",
            status="status" in (version.get("subresources") or {}),
            unconditional_update=False,
            custom=True,
            schema=tuple(parts.items()),
        )
        if gone:
            resources.pop(resource.key, None)
        elif version.get("served"):
            resources[resource.key] = resource
