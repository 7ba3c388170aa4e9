"""Writes to a Kubernetes API server, on top of the reads of `collectors.kubernetes.api`."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.kubernetes.api import Busy, KubeApi, NotFound, Object, Refused, named
from nightshift.collectors.kubernetes.transport import Transport

__all__ = ["KubeClient", "NotFound", "Object", "named"]
MERGE = "application/merge-patch+json"
_WARNING = re.compile(r'\b299 \S+ "((?:[^"\\]|\\.)*)"')
"""RFC 7234, 5.5; Kubernetes sends code 299 (KEP-1693): deprecated fields, admission webhooks, unknown fields."""
_MOST_WARNINGS, _LONGEST_WARNING = 5, 256
_DENIED = re.compile(
    r' cannot (?P<verb>\w+) resource "(?P<resource>[^"/]+)/?(?P<subresource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
"""The authorizer's 403 (k8s.io/apiserver, pkg/endpoints/handlers/responsewriters/errors.go, forbiddenMessage)."""
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
# Until what was refused and may pass is asked for again (s).
REFUSED_AGAIN_S = 60.0


class KubeClient(KubeApi):
    """Reads and writes with one identity. What the server warns a thread of is kept until it is asked for."""

    def __init__(self, transport: Transport, **more: Any) -> None:
        super().__init__(transport, **more)
        self._warned = threading.local()
        self._look = threading.local()

    def _heed(self, warnings: str) -> None:
        known = self._warnings()
        for text in _WARNING.findall(warnings):
            said = re.sub(r"\\(.)", r"\1", text)[:_LONGEST_WARNING]
            if said not in known and len(known) < _MOST_WARNINGS:
                known.append(said)

    def _warnings(self) -> list[str]:
        found: list[str] = self._warned.__dict__.setdefault("texts", [])
        return found

    def warnings(self) -> tuple[str, ...]:
        """What the server warned this thread of since it was last asked."""
        found = tuple(self._warnings())
        self._warnings().clear()
        return found

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Within it, equal reads of this thread are answered once, until it writes. What is written names the
        version that was read, so an answer that is some seconds old costs a conflict at most."""
        outer = getattr(self._look, "answers", None)
        self._look.answers = {} if outer is None else outer
        try:
            yield
        finally:
            self._look.answers = outer

    def _raw(self, method: str, path: str, **asked: Any) -> bytes:
        answers: dict[tuple[Any, ...], bytes] | None = getattr(self._look, "answers", None)
        if answers is None:
            return super()._raw(method, path, **asked)
        key = (path, *sorted((asked.get("query") or {}).items()))
        if method != "GET":
            answers.clear()  # before it: a write without an answer may have been made
        elif key in answers:
            return answers[key]
        data = super()._raw(method, path, **asked)
        if method == "GET":
            answers[key] = data
        return data

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """One call; returns the answer's JSON object."""
        return self._request(method, path, body=body, query=query, content_type=content_type)

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """A 401 is Busy here: a service account's token is renewed in its file before it ends, and read again by
        the client a little later. An action must not end half-way for that; one that stays refused runs out of
        time. So is a 403 of the authorizer that may pass: while a server starts, its roles are not read yet."""
        try:
            return super()._request(method, path, body=body, query=query, content_type=content_type)
        except Refused as error:
            if error.status == 401:
                raise Busy(f"{error}; waiting for a renewed token", 401) from error
            denied = _DENIED.search(str(error)) if error.status == 403 else None
            # a read that is refused in other words met a gateway: admission is asked of writes alone, and its no
            # stands
            final = method != "GET" if denied is None else self._is_denied(denied.groupdict(""))
            if error.status != 403 or final:
                raise
            raise Busy(f"{error}; may pass: will retry", 403, REFUSED_AGAIN_S) from error

    def _is_denied(self, right: Mapping[str, str]) -> bool:
        """Whether a right that was refused is missing: a server that is ready denies it in a review of access, too.
        While everything is refused, reviews as well, nothing is known of it: an action under way waits."""
        try:
            status = self.review(right)
        except (Temporary, Permanent):
            return False
        if status.get("allowed") or status.get("evaluationError"):
            return False
        try:
            self._raw("GET", "/readyz")
        except Temporary:  # not ready: neither the refusal nor the review counts
            return False
        except Permanent:  # it answers, though we may not ask for its state
            return True
        return True

    def review(self, right: Mapping[str, str]) -> Object:
        """The status of a SelfSubjectAccessReview (authorization.k8s.io/v1) of a right's attributes. Raises
        Temporary or Permanent."""
        spec = {"resourceAttributes": dict(right)}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
        return dict(super()._request("POST", REVIEW, body=body).get("status") or {})

    def merge(self, path: str, changes: Object, *, version: str, manager: str) -> Object:
        """A merge patch that holds only for the version that was read: anything newer is a Temporary conflict. What
        the server stored instead of it is Permanent: nothing rests on a write that was only said to be taken."""
        meta = {**changes.get("metadata", {}), "resourceVersion": version}
        body = {**changes, "metadata": meta}
        stored = self.request("PATCH", path, body=body, query={"fieldManager": manager}, content_type=MERGE)
        if lacks := sorted(_not_stored(changes, stored, "")):
            raise Permanent(
                f"kubernetes: PATCH {path} was accepted, but without {', '.join(lacks)}: an admission webhook "
                f"replaced it, or this kind lacks the field"
            )
        return stored


def _not_stored(asked: Object, stored: Object, place: str) -> Iterator[str]:
    """The fields of a merge patch that an object does not have as they were asked for."""
    for key, value in asked.items():
        found, field = stored.get(key), f"{place}.{key}".lstrip(".")
        if isinstance(value, dict):
            yield from _not_stored(value, found if isinstance(found, dict) else {}, field)
        elif isinstance(value, list):
            if any(item not in (found or []) for item in value):
                yield field
        elif found != value and (found or value):  # false may be left out
            yield field
