"""The HTTP front: routes, identities, watches and discovery.

    with ApiServer() as server:
        client = kubernetes.config.new_client_from_config_dict(server.kubeconfig())

What has no route answers 501 NotImplemented and says so.
"""

from __future__ import annotations

import base64
import re
import ssl
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.certificates import self_signed

from . import openapi
from .api import Api, Options, timestamp
from .errors import ApiError, NoSuchPath
from .faults import Faults
from .handler import Handler, token_of
from .query import delete_options, is_true
from .query import options as options_of
from .rbac import ADMIN, Attributes, Authorizer, User, service_account
from .resources import Resource
from .storage import Change, Object

BOOKMARK_INTERVAL_S = 60.0
_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+))?(?:/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?)?"
)
_PARTS = ("group", "plural", "sub", "namespace", "name")
VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2",
    "gitCommit": "0" * 40,
    "gitTreeState": "clean",
    "buildDate": "2026-06-01T00:00:00Z",
    "goVersion": "go1.26",
    "compiler": "gc",
    "platform": "linux/amd64",
}
_REVIEWS = ("selfsubjectaccessreviews", "subjectaccessreviews", "selfsubjectreviews")
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


_SHORT = {"persistentvolumeclaims": ["pvc"], "pods": ["po"], "nodes": ["no"]}
"""Names that `kubectl` also takes."""


@dataclass(frozen=True)
class Route:
    resource: Resource
    namespace: str
    name: str
    subresource: str


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that went away is no news
            super().handle_error(request, client_address)


class ApiServer:
    """A server on a loopback port; `admin_token` may do everything."""

    admin_token = "admin"

    def __init__(self, api: Api | None = None, *, tls: bool = False, port: int = 0, latency_s: float = 0.0) -> None:
        """`tls`: serve by TLS with a certificate of its own; client-go sends tokens over nothing else.
        `latency_s`: how long each answer takes."""
        self.api = api or Api()
        self.authorizer = Authorizer(self.api.storage, self.api.by_kind, self.api.is_seen)
        self.tokens: dict[str, tuple[User, datetime | None]] = {self.admin_token: (ADMIN, None)}
        self._bound: dict[str, tuple[str, str, str]] = {}
        self.requests: list[tuple[User, Attributes]] = []
        self.answers: Counter[int] = Counter()
        """Of each status, how many."""
        self.faults = Faults()
        self.logs: dict[tuple[str, str], str] = {}
        self.latency_s = latency_s
        self.streams = True
        """Whether lists are streamed by watches: those of Kubernetes before 1.32 are not, by default."""
        self.stopping = threading.Event()
        self._http = _Http(("127.0.0.1", port), self._handler())
        self._authority = ""
        if tls:
            self._authority = self._serve_tls()
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http{'s' if self._authority else ''}://127.0.0.1:{self._http.server_address[1]}"

    def _serve_tls(self) -> str:
        """Returns the authority to trust, as a kubeconfig holds it."""
        certificate, key = self_signed("127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "server.pem"
            path.write_bytes(certificate + key)
            context.load_cert_chain(path)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        return base64.b64encode(certificate).decode()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stopping.set()
        with self.api.storage.changed:
            self.api.storage.changed.notify_all()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self.api.controllers.close()

    def kubeconfig(self, token: str | None = None) -> dict[str, Any]:
        trust = {"certificate-authority-data": self._authority} if self._authority else {}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, **trust}}],
            "users": [{"name": "test", "user": {"token": token or self.admin_token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
            "current-context": "test",
        }

    # requests

    def authenticate(self, header: str) -> User:
        token = token_of(header)
        user, expires = self.tokens.get(token, (None, None))
        ended = expires is not None and self.api.clock() >= expires
        if user is None or ended or not self._is_bound_to_what_is_there(token):
            raise ApiError("Unauthorized", "Unauthorized")
        return user

    def _is_bound_to_what_is_there(self, token: str) -> bool:
        """A token that names an object ends with it (TokenRequestSpec, boundObjectRef)."""
        namespace, name, uid = self._bound.get(token, ("", "", ""))
        secrets = self.api.storage.all(self.api.by_kind["Secret"], namespace) if name else []
        return not name or any(s["metadata"]["name"] == name and s["metadata"]["uid"] == uid for s in secrets)

    def route(self, path: str) -> Route:
        found = _PATH.fullmatch(path)
        group = (found["group"] or "") if found else ""
        version = (found["core"] or found["version"]) if found else ""
        if found is None or (found["plural"] is None and not found["namespace"]):
            raise NoSuchPath
        namespace, plural, name, sub = (
            found["namespace"] or "",
            found["plural"],
            found["name"] or "",
            found["sub"] or "",
        )
        if plural is None or (namespace and plural in ("status", "finalize") and not name):
            namespace, plural, name, sub = "", "namespaces", namespace, plural or ""
        resource = self.api.resources.get((group, plural))
        if resource is None or resource.version != version:
            raise NoSuchPath
        return Route(resource, namespace, name, sub)

    def permitted(self, user: User, method: str, path: str, query: dict[str, str]) -> Route:
        """What a request is about. Who has no right on a kind is refused it before it is seen that no operator
        serves it (k8s.io/apiserver, DefaultBuildHandlerChain)."""
        asked = self.asked(method, path, query)
        self.requests.append((user, asked))
        self.authorizer.check(user, asked)
        return self.route(path)

    def asked(self, method: str, path: str, query: dict[str, str]) -> Attributes:
        """The right that a request takes. Raises NoSuchPath."""
        found = _PATH.fullmatch(path)
        try:
            route = self.route(path)
            what = route.resource.group, route.resource.plural, route.subresource, route.namespace, route.name
        except NoSuchPath:
            if found is None or found["plural"] is None:
                raise
            what = tuple(found[part] or "" for part in _PARTS)
        verb, name = _VERBS[method], what[-1]  # of _PARTS
        if not name and method in ("GET", "DELETE"):
            verb = "deletecollection" if method == "DELETE" else "watch" if is_true(query, "watch") else "list"
        return Attributes(verb, *what)

    def respond(
        self, method: str, path: str, query: dict[str, str], user: User, body: Any, media: str
    ) -> tuple[int, Any]:
        special = self._special(method, path, user, body)
        if special is not None:
            return special
        route = self.permitted(user, method, path, query)
        api, resource, options = self.api, route.resource, options_of(query)
        where = (route.resource, route.namespace)
        match method, route.subresource:
            case ("GET", "" | "status") if route.name:
                return 200, api.read(*where, route.name)
            case "GET", "":
                return 200, api.list(resource, route.namespace or None, query)
            case ("POST", "") if not route.name:
                return 201, api.create(*where, body, options)
            case ("GET", "log") if resource.kind == "Pod":
                return 200, self._log(route, query)
            case ("POST", "eviction") if resource.kind == "Pod":
                return 201, api.evict(route.namespace, route.name, body, options)
            case ("POST", "token") if resource.kind == "ServiceAccount":
                return 201, self._token(route, body)
            case ("POST", "binding") if resource.kind == "Pod":
                return 201, self._bind(route, body, options)
            case "PUT", "" | "status":
                return 200, api.update(*where, route.name, body, options, route.subresource)
            case "PATCH", "" | "status":
                return api.patch(*where, route.name, body, media, options, route.subresource)
            case ("DELETE", "") if route.name:
                return 200, api.delete(*where, route.name, delete_options(query, body), options_of(query, body))
            case "DELETE", "":
                how = delete_options(query, body)
                return 200, api.delete_collection(resource, route.namespace or None, query, how, options)
        raise ApiError("NotImplemented", f"the test API server does not implement {method} {path}")

    def _special(self, method: str, path: str, user: User, body: Any) -> tuple[int, Any] | None:
        if method == "GET":
            path = path.rstrip("/")
            match path:
                case "/version":
                    return 200, VERSION
                case "/readyz" if self.authorizer.warming_up:
                    return 500, "[-]informer-sync failed: reason withheld\nreadyz check failed\n"
                case "/healthz" | "/readyz" | "/livez":
                    return 200, "ok"
                case "/api":
                    return 200, {"kind": "APIVersions", "versions": ["v1"]}
                case "/apis":
                    return 200, self._groups()
            if path.startswith("/openapi/v3"):
                return 200, openapi.answer(path, self.api.resources.values())
            if found := re.fullmatch(r"/api/(v1)|/apis/([^/]+)/([^/]+)", path):
                return 200, self._discovery(found[2] or "", found[1] or found[3])
        if method == "POST" and path.rpartition("/")[2] in _REVIEWS:
            return 201, self._review(path, user, body)
        return None

    def _groups(self) -> Object:
        versions: dict[str, set[str]] = {}
        for resource in self.api.resources.values():
            if resource.group:
                versions.setdefault(resource.group, set()).add(resource.version)
        groups = [
            {
                "name": group,
                "versions": [{"groupVersion": f"{group}/{v}", "version": v} for v in sorted(found)],
                "preferredVersion": {"groupVersion": f"{group}/{min(found)}", "version": min(found)},
            }
            for group, found in sorted(versions.items())
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def _discovery(self, group: str, version: str) -> Object:
        verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
        found = [r for r in self.api.resources.values() if (r.group, r.version) == (group, version)]
        if not found:
            raise NoSuchPath
        listed = []
        for r in found:
            entry = {"name": r.plural, "singularName": r.kind.lower(), "namespaced": r.namespaced, "kind": r.kind}
            short = {"shortNames": _SHORT[r.plural]} if r.plural in _SHORT else {}
            listed.append(entry | short | {"verbs": verbs})
            if r.status:
                listed.append(entry | {"name": f"{r.plural}/status", "verbs": ["get", "patch", "update"]})
        name = f"{group}/{version}" if group else version
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": listed}

    def _review(self, path: str, user: User, body: Any) -> Object:
        plural = path.rpartition("/")[2]
        if plural == "selfsubjectreviews":
            return {**(body or {}), "status": {"userInfo": {"username": user.name, "groups": list(user.groups)}}}
        spec = body["spec"]
        if plural == "subjectaccessreviews":
            user = User(spec.get("user", ""), tuple(spec.get("groups") or ()))
        asked = spec.get("resourceAttributes") or {}
        what = Attributes(
            asked.get("verb", ""),
            asked.get("group", ""),
            asked.get("resource", ""),
            asked.get("subresource", ""),
            asked.get("namespace", ""),
            asked.get("name", ""),
        )
        return {**body, "status": {"allowed": self.authorizer.allowed(user, what)}}

    def _token(self, route: Route, body: Object) -> Object:
        self.api.read(route.resource, route.namespace, route.name)
        seconds = (body.get("spec") or {}).get("expirationSeconds") or 3600
        expires = self.api.clock() + timedelta(seconds=seconds)
        token = f"sa-{uuid.uuid4().hex}"
        self.tokens[token] = (service_account(route.namespace, route.name), expires)
        bound = (body.get("spec") or {}).get("boundObjectRef") or {}
        if bound.get("kind") == "Secret":
            self._bound[token] = route.namespace, bound["name"], bound.get("uid", "")
        status = {"token": token, "expirationTimestamp": timestamp(expires)}
        return {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "status": status}

    def _log(self, route: Route, query: dict[str, str]) -> str:
        """What `logs` holds for a pod, as its kubelet would give it."""
        pod = self.api.read(route.resource, route.namespace, route.name)
        if not (pod.get("status") or {}).get("startTime"):
            message = f'container "{query.get("container", "main")}" in pod "{route.name}" is waiting to start'
            raise ApiError("BadRequest", f"{message}: ContainerCreating")
        text = self.logs.get((route.namespace, route.name), "")
        return text[: int(query.get("limitBytes", len(text)))]

    def _bind(self, route: Route, body: Object, options: Options) -> Object:
        pod = self.api.read(route.resource, route.namespace, route.name)
        if pod["spec"].get("nodeName"):
            message = (
                f'Operation cannot be fulfilled on pods/binding "{route.name}": pod is already assigned to node'
            )
            raise ApiError("Conflict", f'{message} "{pod["spec"]["nodeName"]}"')
        pod["spec"]["nodeName"] = body["target"]["name"]
        self.api.controllers.react("Pod", self.api.storage.write(route.resource, pod))
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    # watching

    def watch(self, handler: Handler, route: Route, query: dict[str, str]) -> None:
        """Streams events; a version that was compacted away is a 410 ERROR event inside a 200 stream."""
        api, resource, storage = self.api, route.resource, self.api.storage
        matches = api.match(resource, query)
        timeout = float(query.get("timeoutSeconds") or 1800)
        deadline = time.monotonic() + timeout
        # events are served without watch cache, and so without bookmarks (kubernetes/kubernetes#96052, #120348)
        bookmarks = is_true(query, "allowWatchBookmarks") and resource.kind != "Event"
        asked = query.get("resourceVersion", "")
        initial = is_true(query, "sendInitialEvents") or asked in ("", "0")
        if not self.streams and ("sendInitialEvents" in query or "resourceVersionMatch" in query):
            text = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            raise ApiError("Invalid", f"sendInitialEvents: Forbidden: {text}")
        if asked and not asked.isdigit():
            raise ApiError("BadRequest", f'resourceVersion: Invalid value: "{asked}"')
        handler.start_stream()
        with storage.lock:
            current = [o for o in storage.all(resource, route.namespace or None) if matches(o)] if initial else []
            version = storage.version if initial else int(asked)
        if not initial and storage.too_old(version):
            gone = ApiError("Expired", f"too old resource version: {version} ({storage.version})")
            handler.send_event("ERROR", gone.status())
            return
        for obj in current:
            handler.send_event("ADDED", obj)
        if is_true(query, "sendInitialEvents") and bookmarks:
            handler.send_event("BOOKMARK", self._bookmark(resource, version, initial_end=True))
        next_bookmark = min(time.monotonic() + BOOKMARK_INTERVAL_S, deadline - 2.0)
        while not self.stopping.is_set():
            until = min(deadline, next_bookmark) if bookmarks and next_bookmark > time.monotonic() else deadline
            for change in storage.follow(
                resource,
                version,
                lambda until=until: until - time.monotonic(),
                self.stopping.is_set,  # type: ignore[misc]
            ):
                if change is None:
                    break
                version = change.version
                event = _event_for(change, matches, route.namespace)
                if event is not None:
                    handler.send_event(event, change.after)
                if time.monotonic() >= deadline:
                    break
            if time.monotonic() >= deadline:
                return
            if bookmarks and time.monotonic() >= next_bookmark:
                with storage.lock:
                    if not storage.since(resource, version):
                        version = max(version, storage.version)
                handler.send_event("BOOKMARK", self._bookmark(resource, version))
                next_bookmark = time.monotonic() + BOOKMARK_INTERVAL_S

    def _bookmark(self, resource: Resource, version: int, *, initial_end: bool = False) -> Object:
        meta: Object = {"resourceVersion": str(version)}
        if initial_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        return {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}

    def _handler(self) -> type[Handler]:
        server = self

        class Bound(Handler):
            api_server = server

        return Bound


def _event_for(change: Change, matches: Any, namespace: str) -> str | None:
    """What a selective watch sees of a change: an object that leaves the selection is DELETED for it."""

    def seen(obj: Object | None) -> bool:
        return obj is not None and (not namespace or obj["metadata"].get("namespace") == namespace) and matches(obj)

    if change.type == "DELETED":
        return "DELETED" if seen(change.before) else None
    was, now = seen(change.before), seen(change.after)
    return ("MODIFIED" if was else "ADDED") if now else ("DELETED" if was else None)
