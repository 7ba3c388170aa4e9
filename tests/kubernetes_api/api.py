"""What each verb does to the stored objects: create, read, list, update, patch, apply, delete, evict."""

from __future__ import annotations

import copy
import json
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from . import apply, disruption, patches, validate
from .controllers import Controllers, admit
from .custom import serve
from .defaults import fill_in
from .errors import ApiError, invalid, modified, not_found, other_object, terminating
from .garbage import dependents
from .incoming import incoming, prune
from .reading import Reading
from .resources import BUILT_IN, Resource
from .storage import Object

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_DRAWS = random.Random(0)  # its own: a test that seeds `random` again would get a name twice
_WITHOUT_GENERATION = {"Node", "ConfigMap", "Secret", "ServiceAccount", "Event", "Namespace", "Lease"}


@dataclass(frozen=True)
class Options:
    """The query parameters of a write."""

    manager: str = "unknown"
    dry_run: bool = False
    force: bool = False


def timestamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


class Api(Reading):
    """Verbs over `Storage`. `clock` gives the server's time (UTC), so that tests can move it; with `lag_s`
    controllers and caches are late, as a real cluster's are."""

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC), *, lag_s: float = 0.0) -> None:
        super().__init__()
        self.clock = clock
        self.resources: dict[tuple[str, str], Resource] = {r.key: r for r in BUILT_IN}
        self.by_kind = {r.kind: r for r in BUILT_IN}
        self.controllers = Controllers(self, lag_s)
        self.webhooks: list[Callable[[str, Object], None]] = []  # mutating ones of changes: (kind, object)
        self._seen_from: dict[str, float] = {}
        for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            self.create(self.by_kind["Namespace"], "", {"metadata": {"name": name}}, Options("kube-apiserver"))

    @property
    def now(self) -> str:
        return timestamp(self.clock())

    # writing

    def create(self, resource: Resource, namespace: str, body: Object, options: Options) -> Object:
        with self.storage.lock:
            obj = incoming(resource, namespace, body)
            meta = obj["metadata"]
            if meta.get("resourceVersion"):
                raise ApiError("BadRequest", "resourceVersion should not be set on objects to be created")
            if resource.namespaced:
                self._check_namespace(namespace)
            if not meta.get("name") and meta.get("generateName"):
                meta["name"] = meta["generateName"] + "".join(_DRAWS.choices(_SUFFIX, k=5))
            validate.metadata(resource, obj)
            if self.storage.get(resource, namespace, meta["name"]) is not None:
                raise ApiError(
                    "AlreadyExists",
                    f'{resource.qualified} "{meta["name"]}" already exists',
                    details={"name": meta["name"], "kind": resource.plural},
                )
            meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": self.now}
            for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"):
                meta.pop(field, None)
            if resource.kind not in _WITHOUT_GENERATION:
                meta["generation"] = 1
            if resource.status and not resource.keeps_status_on_create:
                obj.pop("status", None)
            fill_in(resource, obj)
            admit(resource.kind, obj)
            self._check_account(resource, namespace, obj)
            validate.content(resource, obj, None)
            apply.track_update(resource.kind, None, obj, options.manager, self.now)
            if self.controllers.lag_s and resource.group == "rbac.authorization.k8s.io":
                self._seen_from[obj["metadata"]["uid"]] = time.monotonic() + self.controllers.lag_s
            return self._store(resource, obj, options)

    def update(
        self, resource: Resource, namespace: str, name: str, body: Object, options: Options, subresource: str = ""
    ) -> Object:
        with self.storage.lock:
            before = self.read(resource, namespace, name)
            after = incoming(resource, namespace, body)
            if after["metadata"].get("name", name) != name:
                raise ApiError(
                    "BadRequest",
                    f"the name of the object ({after['metadata'].get('name')}) does not match "
                    f"the name on the URL ({name})",
                )
            version = after["metadata"].get("resourceVersion")
            if not version and not (resource.unconditional_update and not resource.custom):
                raise invalid(
                    resource.kind,
                    name,
                    ("metadata.resourceVersion", "Invalid value: 0: must be specified for an update"),
                )
            self._check_version(resource, before, after)
            return self._replace(resource, before, after, options, subresource)

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Any,
        content_type: str,
        options: Options,
        subresource: str = "",
    ) -> tuple[int, Object]:
        with self.storage.lock:
            if content_type == "application/apply-patch+yaml":
                return self._apply(resource, namespace, name, body, options, subresource)
            before = self.read(resource, namespace, name)
            match content_type:
                case "application/json-patch+json":
                    after = patches.json_patch(before, body)
                case "application/merge-patch+json":
                    after = patches.merge_patch(before, body)
                case "application/strategic-merge-patch+json" if not resource.custom:
                    after = patches.strategic_patch(resource.kind, before, body)
                case _:
                    supported = (
                        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
                    )
                    raise ApiError(
                        "UnsupportedMediaType",
                        f"the body of the request was in an unknown format - accepted "
                        f"media types include: {supported}",
                    )
            self._check_version(resource, before, after)
            return 200, self._replace(resource, before, after, options, subresource)

    def _apply(
        self, resource: Resource, namespace: str, name: str, body: Any, options: Options, subresource: str
    ) -> tuple[int, Object]:
        if not isinstance(body, dict) or not body.get("apiVersion") or not body.get("kind"):
            raise ApiError("BadRequest", "apply: the body must be an object with apiVersion and kind")
        if options.manager == "unknown":
            raise invalid(
                "PatchOptions.meta.k8s.io", "", ("fieldManager", "Required value: is required for apply patch")
            )
        if (body.get("metadata") or {}).get("managedFields"):
            raise ApiError("BadRequest", "metadata.managedFields must be nil")
        applied = copy.deepcopy(body)
        applied.setdefault("metadata", {}).setdefault("name", name)
        before = self.storage.get(resource, namespace, name)
        if before is None:
            if subresource:
                raise not_found(resource.qualified, name)
            created = incoming(resource, namespace, applied)
            self._check_namespace(namespace) if resource.namespaced else None
            validate.metadata(resource, created)
            created["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": self.now}
            if resource.kind not in _WITHOUT_GENERATION:
                created["metadata"]["generation"] = 1
            fill_in(resource, created)
            admit(resource.kind, created)
            self._check_account(resource, namespace, created)
            validate.content(resource, created, None)
            merged = apply.apply(resource.kind, None, applied, options.manager, options.force, self.now)
            created["metadata"]["managedFields"] = merged["metadata"]["managedFields"]
            return 201, self._store(resource, created, options)
        self._check_version(resource, before, applied | {"metadata": applied["metadata"]})
        after = apply.apply(resource.kind, before, applied, options.manager, options.force, self.now, subresource)
        managed = after["metadata"]["managedFields"]
        return 200, self._replace(resource, before, after, options, subresource, managed)

    def _replace(
        self,
        resource: Resource,
        before: Object,
        after: Object,
        options: Options,
        subresource: str,
        managed: list[Object] | None = None,
    ) -> Object:
        """Stores a changed object: only the part that the (sub)resource owns, and nothing where nothing changed."""
        name = before["metadata"]["name"]
        after = copy.deepcopy(after)
        meta, old = after.setdefault("metadata", {}), before["metadata"]
        if meta.get("uid") not in (None, old["uid"]):
            raise ApiError(
                "Conflict",
                f'Operation cannot be fulfilled on {resource.qualified} "{name}": Precondition '
                f"failed: UID in precondition: {meta['uid']}, UID in object meta: {old['uid']}",
            )
        if subresource == "status":
            after = {**before, "status": after.get("status", {}), "metadata": {**old}}
            meta = after["metadata"]
        elif resource.status:
            after = {k: v for k, v in after.items() if k != "status"}
            if "status" in before:
                after["status"] = before["status"]
        for field in (
            "uid",
            "creationTimestamp",
            "generation",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "name",
            "namespace",
            "resourceVersion",
        ):
            if field in old:
                meta[field] = old[field]
            elif field != "resourceVersion":
                meta.pop(field, None)
        after |= {"apiVersion": before["apiVersion"], "kind": before["kind"]}
        if resource.custom and not subresource:
            after = prune(resource, after)
        for webhook in self.webhooks if not subresource else ():
            webhook(resource.kind, after)
        validate.metadata(resource, after)
        validate.content(resource, after, before)
        changed = {k: v for k, v in after.items() if k not in ("metadata", "status")} != {
            k: v for k, v in before.items() if k not in ("metadata", "status")
        }
        if changed and "generation" in old:
            meta["generation"] = old["generation"] + 1
        if managed is not None:
            meta["managedFields"] = managed
        else:
            apply.track_update(resource.kind, before, after, options.manager, self.now, subresource)
        if _without_managed(after) == _without_managed(before) and managed in (None, old.get("managedFields")):
            return before
        if (
            old.get("deletionTimestamp")
            and not meta.get("finalizers")
            and not old.get("deletionGracePeriodSeconds")
        ):
            return self._remove(resource, after, options)
        return self._store(resource, after, options)

    def delete(self, resource: Resource, namespace: str, name: str, body: Object, options: Options) -> Object:
        """Graceful for a pod that runs on a node, held by finalizers, with its dependents as the policy says."""
        with self.storage.lock:
            obj = self.read(resource, namespace, name)
            wanted = body.get("preconditions") or {}
            for field, word, how in (
                ("uid", "UID", "deleted and then recreated"),
                ("resourceVersion", "ResourceVersion", "modified"),
            ):
                if wanted.get(field) and wanted[field] != obj["metadata"][field]:
                    raise other_object(resource, name, word, wanted[field], obj["metadata"][field], how)
            if options.dry_run:
                return obj
            policy = body.get("propagationPolicy") or ("Orphan" if resource.kind == "Job" else "Background")
            for item_resource, item, kept in dependents(self.storage, self.resources, obj, policy):
                meta = item["metadata"]
                if kept is not None:
                    self._store(item_resource, {**item, "metadata": {**meta, "ownerReferences": kept}}, options)
                else:
                    self.delete(item_resource, meta.get("namespace", ""), meta["name"], {}, options)
            grace = self._grace_s(resource, obj, body.get("gracePeriodSeconds"))
            if grace or obj["metadata"].get("finalizers"):
                if (
                    not obj["metadata"].get("deletionTimestamp")
                    or grace < obj["metadata"]["deletionGracePeriodSeconds"]
                ):
                    obj["metadata"]["deletionTimestamp"] = timestamp(self.clock() + timedelta(seconds=grace))
                    obj["metadata"]["deletionGracePeriodSeconds"] = grace
                    obj = self._store(resource, obj, options)
                return obj
            if resource.kind == "Namespace" and self.controllers.lag_s:
                obj["metadata"].setdefault("deletionTimestamp", self.now)
                return self._store(resource, {**obj, "status": {"phase": "Terminating"}}, options)
            self._remove(resource, obj, options)
            details = {"name": name, "kind": resource.plural, "uid": obj["metadata"]["uid"]}
            if resource.group:
                details["group"] = resource.group
            success = {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            }
            return obj if resource.kind == "Pod" else success

    def _grace_s(self, resource: Resource, obj: Object, asked: int | None) -> int:
        """pkg/registry/core/pod/strategy.go, CheckGracefulDelete."""
        if resource.kind != "Pod":
            return 0
        spec, phase = obj["spec"], (obj.get("status") or {}).get("phase")
        if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
            return 0
        return int(asked if asked is not None else spec.get("terminationGracePeriodSeconds", 30))

    def delete_collection(
        self, resource: Resource, namespace: str | None, query: dict[str, str], body: Object, options: Options
    ) -> Object:
        with self.storage.lock:
            matches = self.match(resource, query)
            for obj in [o for o in self.storage.all(resource, namespace) if matches(o)]:
                meta = obj["metadata"]
                self.delete(resource, meta.get("namespace", ""), meta["name"], body, options)
            return {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": {}, "items": []}

    def evict(self, namespace: str, name: str, body: Object, options: Options) -> Object:
        """policy/v1 Eviction of a pod: 201 with a Status, or 404, 429, 500."""
        pods, budgets = self.by_kind["Pod"], self.by_kind["PodDisruptionBudget"]
        with self.storage.lock:
            self._check_namespace(namespace)
            pod = self.read(pods, namespace, name)
            how = body.get("deleteOptions") or {}
            dry = options.dry_run or "All" in (how.get("dryRun") or [])
            disruption.check_eviction(self.storage, pods, budgets, pod, self.now, dry_run=dry)
            self.delete(pods, namespace, name, how, Options(options.manager, dry))
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    # what happens around a write

    def _check_namespace(self, namespace: str) -> None:
        found = self.storage.get(self.by_kind["Namespace"], "", namespace)
        if found is None:
            raise not_found("namespaces", namespace)
        if found["metadata"].get("deletionTimestamp"):
            raise terminating(namespace)

    def _check_version(self, resource: Resource, before: Object, after: Object) -> None:
        version = (after.get("metadata") or {}).get("resourceVersion")
        if version and version != before["metadata"]["resourceVersion"]:
            raise modified(resource.qualified, before["metadata"]["name"])

    def _store(self, resource: Resource, obj: Object, options: Options) -> Object:
        if options.dry_run:
            return obj
        stored = self.storage.write(resource, obj)
        self._react(resource, stored)
        return stored

    def _remove(self, resource: Resource, obj: Object, options: Options) -> Object:
        if options.dry_run:
            return obj
        gone = self.storage.remove(resource, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        self._react(resource, gone)
        if resource.kind == "Namespace":
            for other in list(self.resources.values()):
                for item in list(self.storage.all(other, gone["metadata"]["name"])) if other.namespaced else []:
                    self.storage.remove(other, item["metadata"]["namespace"], item["metadata"]["name"])
        if resource.kind == "CustomResourceDefinition":
            serve(self.resources, gone, gone=True)
        return gone

    def _react(self, resource: Resource, obj: Object) -> None:
        if resource.kind == "CustomResourceDefinition":
            serve(self.resources, obj)
        if not resource.custom:
            self.controllers.react(resource.kind, obj)

    def add(self, kind: str, namespace: str, body: Object, manager: str) -> Object:
        """A create by a controller."""
        return self.create(self.by_kind[kind], namespace, body, Options(manager))

    def take(self, kind: str, namespace: str, name: str, manager: str, resource: Resource | None = None) -> Object:
        """A delete by a controller."""
        return self.delete(resource or self.by_kind[kind], namespace, name, {}, Options(manager))

    def is_seen(self, obj: Object) -> bool:
        """Whether the authorizer's cache has this role or binding already."""
        return time.monotonic() >= self._seen_from.get(obj["metadata"]["uid"], 0.0)

    def _check_account(self, resource: Resource, namespace: str, obj: Object) -> None:
        """The ServiceAccount admission plugin: no pod before its account."""
        if resource.kind != "Pod":
            return
        name = obj["spec"]["serviceAccountName"]
        if self.storage.get(self.by_kind["ServiceAccount"], namespace, name) is None:
            message = (
                f'pods "{obj["metadata"]["name"]}" is forbidden: error looking up service account '
                f'{namespace}/{name}: serviceaccount "{name}" not found'
            )
            raise ApiError("Forbidden", message)


def _without_managed(obj: Object) -> str:
    meta = {k: v for k, v in obj["metadata"].items() if k not in ("managedFields", "resourceVersion")}
    return json.dumps({**obj, "metadata": meta}, sort_keys=True)
