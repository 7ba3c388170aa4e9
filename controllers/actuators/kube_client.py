"""A thin way to a Kubernetes API server: raw JSON over the official client, errors in the house's terms.

Raw objects serve built-in and custom resources alike. Which failures are worth trying again is decided here, once:

    Temporary   no answer, 408, 409 (somebody else wrote first), 429 (with Retry-After), 5xx
    Permanent   every other refusal, in the server's own words
    NotFound    a Permanent that callers may expect
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from collectors.base import Permanent, Temporary

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_AGAIN = frozenset({408, 409, 429})


class NotFound(Permanent):
    """The object does not exist."""


class KubeClient:
    """Requests to one API server with one identity, each bounded by `timeout_s` of wall time."""

    def __init__(self, api: Any, *, timeout_s: float = 10.0) -> None:
        """`api`: a `kubernetes.client.ApiClient`."""
        self._api, self._timeout_s = api, timeout_s

    @classmethod
    def connect(cls, kubeconfig: Path | None, context: str | None, *, timeout_s: float = 10.0) -> KubeClient:
        """From a kubeconfig file, or from the pod's own service account where none is named."""
        from kubernetes import client, config

        try:
            if kubeconfig is None:
                config.load_incluster_config()  # type: ignore[no-untyped-call]
                return cls(client.ApiClient(), timeout_s=timeout_s)
            api = config.new_client_from_config(str(kubeconfig), context=context)  # type: ignore[no-untyped-call]
            return cls(api, timeout_s=timeout_s)
        except config.ConfigException as error:
            place = kubeconfig or "the pod's service account"
            raise Permanent(f"kubernetes: cannot use {place}: {error}") from error

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
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json"} | ({"Content-Type": content_type} if body is not None else {})
        target = f"{method} {path}"
        try:
            call = self._api.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = self._api.call_api(*call, _request_timeout=self._timeout_s)
            data = answer.read()
        except (HTTPError, OSError) as error:
            raise Temporary(f"kubernetes: no answer to {target}: {type(error).__name__}: {error}") from error
        if 200 <= answer.status < 300:
            return self._decode(data, target)
        raise self._refusal(answer.status, data, answer.headers, target)

    def _decode(self, data: bytes, target: str) -> Object:
        try:
            decoded = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise Temporary(f"kubernetes: the answer to {target} is not JSON: {error}") from error
        if not isinstance(decoded, dict):
            raise Temporary(f"kubernetes: the answer to {target} is not an object")
        return decoded

    def _refusal(self, status: int, data: bytes, headers: Mapping[str, str], target: str) -> Exception:
        try:
            message = str(orjson.loads(data)["message"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            message = data[:200].decode(errors="replace")
        text = f"kubernetes: {target}: {status}: {message}"
        if status == 404:
            return NotFound(text)
        if status in _AGAIN or status >= 500:
            retry = headers.get("Retry-After", "")
            return Temporary(text, float(retry) if retry.isdigit() else None)
        return Permanent(text)

    def get(self, path: str) -> Object:
        return self.request("GET", path)

    def find(self, path: str) -> Object | None:
        """The object, or None where it does not exist (or its kind is not served)."""
        try:
            return self.get(path)
        except NotFound:
            return None

    def list(self, path: str, **query: str) -> list[Object]:
        """Every item, page by page."""
        items: list[Object] = []
        page: Object = {}
        while True:
            page = self.request("GET", path, query={"limit": "500", **query})
            items += page.get("items", [])
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return items
            query["continue"] = token

    def merge(self, path: str, changes: Object, *, version: str, manager: str) -> Object:
        """A merge patch that holds only for the version that was read: anything newer is a Temporary conflict."""
        meta = {**changes.get("metadata", {}), "resourceVersion": version}
        body = {**changes, "metadata": meta}
        return self.request("PATCH", path, body=body, query={"fieldManager": manager}, content_type=MERGE)
