"""A thin way to read a Kubernetes API server: raw JSON, errors in the house's terms.

Raw objects serve built-in and custom resources alike. Which failures are worth trying again is decided here, once:

    Busy      (Temporary) no answer, 408, 409 (somebody else wrote first), 429 (with Retry-After), 5xx, the 403 of a
              namespace that is going, and what something between us and the API server says in its stead
    Quiet     (Temporary) a watch on which nothing was heard
    Expired   (Temporary) 410: the resource version is too old; list again
    Refused   (Permanent) every other refusal, in the server's own words
    NotFound  (Permanent) a refusal that callers may expect

`controllers.actuators.kube_client` adds the writes; nothing else may. The transport tries nothing again by itself:
urllib3 would sleep for a Retry-After inside a call that has a limit, and send a PUT or DELETE twice.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic_settings import NoDecode

from nightshift import spans
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.kubernetes.transport import Transport, of_kubeconfig, of_the_pod
from nightshift.collectors.shared_settings import entry_of

Object = dict[str, Any]
MAX_EVENT_BYTES = 8 * 2**20
# An answer that comes more slowly than this, beyond the limit of a call, is given up.
SLOWEST_BYTES_PER_S = 2**16
# Objects of a list that are decoded together: five hundred leave a processor's cache, and cost twice the time each.
PAGE = 100
INITIAL_END = "k8s.io/initial-events-end"
# How long an answer of discovery is used (s): operators are installed rarely.
DISCOVERY_S = 600.0
_AGAIN = frozenset({408, 409, 429})
# Of a kind that is not served (k8s.io/apiserver, pkg/util/notfoundhandler): plain text, and no Status.
_NO_SUCH_PATH = b"404 page not found"


class Busy(Temporary):
    """Trying again may work. `status` is None where there was no answer."""

    def __init__(self, message: str, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s)
        self.status = status


class KubeSilent(Busy):
    """Nothing was heard on a watch for a while. Events are served without bookmarks (kubernetes/kubernetes#96052,
    #120348), so of itself that is no fault."""


class Expired(Busy):
    """The resource version that was asked for is gone."""


class Refused(Permanent):
    """The server will not."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class NotFound(Refused):
    """The object does not exist."""


_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")


def named(name: str) -> str:
    """A name from outside as a part of a path. Raises NotFound for one that no object can have (an RFC 1123
    subdomain is asked of nodes, pods and jobs): `n2/status`, `x/../n2` or `n2?dryRun=All` is another request.

    >>> named("n2")
    'n2'
    >>> named("x/../n2")
    Traceback (most recent call last):
        ...
    nightshift.collectors.kubernetes.api.NotFound: kubernetes: no object can be named 'x/../n2'
    """
    if not _NAME.fullmatch(name):
        raise NotFound(f"kubernetes: no object can be named {name[:253]!r}", 404)
    return name


ANSWER_S = 10.0
"""Longest wait for one answer of the API server (s), beside the time that its length takes."""


class AccessSettings(BaseModel):
    """One identity at one API server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kubeconfig: Path | None = Field(None, description="kubeconfig file; none: the pod's service account")
    context: str | None = Field(None, description="Context of the kubeconfig; none: its current one")
    namespaces: tuple[str, ...] = Field(
        (), description="Namespaces with pods and jobs that its role covers, for `doctor`; none: all"
    )


Access = Annotated[AccessSettings, entry_of("kubernetes"), WithJsonSchema({"type": "string"}), NoDecode]
"""A part's access: in a configuration, the name of an entry of `kubernetes`. Each part may have an identity of its
own, with the rights that it needs."""
ACCESS = "Entry of `kubernetes` to reach the API server by; none: the pod's service account"


class KubeApi:
    """Reads from one API server with one identity. Each has `timeout_s` of wall time, and so much more as its
    answer is long: a drip of a byte now and then keeps nobody."""

    def __init__(
        self, transport: Transport, *, timeout_s: float = ANSWER_S, renew: Callable[[], Transport] | None = None
    ) -> None:
        """`renew` makes another transport from what the files say now: after a 401 or a failed TLS handshake, since
        tokens, kubeconfigs and authorities are replaced in their files."""
        self._transport, self._timeout_s, self._renew = transport, timeout_s, renew
        self._discovered: dict[str, tuple[float, frozenset[str]]] = {}
        """By path: when discovery was asked there (s), and the versions of groups, or the kinds, that it named."""

    @classmethod
    def connect(cls, access: AccessSettings, *, within_s: float = math.inf) -> Self:
        """`within_s`: for a caller that may wait no longer, whatever its access allows."""
        kubeconfig = access.kubeconfig
        renew = of_the_pod if kubeconfig is None else partial(of_kubeconfig, kubeconfig, access.context)
        return cls(renew(), timeout_s=min(ANSWER_S, within_s), renew=renew)

    @property
    def host(self) -> str:
        """Address of the API server."""
        return self._transport.host

    def get(self, path: str) -> Object:
        return self._request("GET", path)

    def find(self, path: str) -> Object | None:
        """The object, or None where it does not exist (or its kind is not served)."""
        try:
            return self.get(path)
        except NotFound:
            return None

    def serves(self, path: str, *, within_s: float = DISCOVERY_S) -> bool:
        """Whether the server has the kind of a path: by its discovery, asked at most once in `within_s` seconds.
        What may not be discovered is taken for served. Raises Temporary.

        A kind without its operator would else be asked for at each look, and answer 404 each time."""
        match path.strip("/").split("/"):
            case ["apis", group, version, "namespaces", _, plural, *_] | ["apis", group, version, plural, *_]:
                api = f"{group}/{version}"
            case _:
                return True
        try:
            if api not in self._names("/apis", within_s):
                return False
            return plural in self._names(f"/apis/{api}", within_s)
        except Permanent:
            return True

    def _names(self, path: str, within_s: float) -> frozenset[str]:
        asked_s, names = self._discovered.get(path, (-math.inf, frozenset()))
        if time.monotonic() - asked_s >= within_s:
            found = self.get(path)
            versions = [v for group in found.get("groups") or [] for v in group.get("versions") or []]
            kinds = [str(kind.get("name")) for kind in found.get("resources") or []]
            names = frozenset([*kinds, *(str(version.get("groupVersion")) for version in versions)])
            self._discovered[path] = time.monotonic(), names
        return names

    def list(self, path: str, **query: str) -> list[Object]:
        """Every item, page by page; in one answer where the pages expired meanwhile, as client-go's pager does."""
        try:
            return [item for page in self._pages(path, 500, query) for item in page.get("items") or []]
        except Expired:
            return [item for page in self._pages(path, 0, query) for item in page.get("items") or []]

    def text(self, path: str, **query: str) -> str:
        """What is served as plain text, such as a pod's log; bytes that are no text are replaced."""
        return self._raw("GET", path, query=query).decode(errors="replace")

    def pages(self, path: str, *, limit: int = PAGE) -> Iterator[Object]:
        """Every page of a list, one snapshot over all of them; `limit` 0: the whole of it is one page. Raises
        Expired where the snapshot was compacted away between two pages (after about five minutes)."""
        return self._pages(path, limit, {})

    def _pages(self, path: str, limit: int, query: Mapping[str, str]) -> Iterator[Object]:
        asked = {**({"limit": str(limit)} if limit else {}), **query}
        while True:
            page = self._request("GET", path, query=asked)
            yield page
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            asked["continue"] = token

    def watch(
        self, path: str, version: str, *, quiet_s: float, stop: Stop, opened: Callable[[], None] = lambda: None
    ) -> Iterator[Object]:
        """Events after a resource version, bookmarks among them, until the server ends the stream. Without a
        version the list itself comes first, each object as ADDED, and ends with a bookmark that `ends_list` tells
        (KEP-3157). A server that streams no lists refuses: a version match was never valid for a watch.

        `opened` is called once the server has said yes. Raises Quiet where nothing is heard for `quiet_s`, Expired
        on 410 (which arrives inside the stream), Busy where it breaks off or brings what is no event, and returns
        as soon as `stop` is called from another thread.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": "300",
        }
        if not version:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        answer = self._call("GET", path, query=query, timeout=(self._timeout_s, quiet_s))
        if answer.status != 200:
            raise refusal(answer.status, answer.read(), answer.headers, f"watch of {path}")
        opened()
        with stop.guarding(answer):
            for line in _lines(answer, stop, path):
                event = _decode(line, f"watch of {path}")
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    code = int(status.get("code") or 500)
                    text = f"kubernetes: watch of {path}: {code}: {status.get('message')}"
                    raise (Expired if code == 410 else Busy)(text, code)
                if not isinstance(event.get("object"), dict) or "metadata" not in event["object"]:
                    raise Busy(f"kubernetes: watch of {path}: a line is no event: {line[:100]!r}")
                yield event

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        data = self._raw(method, path, body=body, query=query, content_type=content_type)
        return _of_a_kind(_decode(data, f"{method} {path}"), f"{method} {path}")

    def _raw(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        from urllib3.exceptions import HTTPError

        target = f"{method} {path}"
        answer = self._call(
            method, path, body=body, query=query, content_type=content_type, timeout=self._timeout_s
        )
        try:
            data = self._read(answer, target)
        except (HTTPError, OSError) as error:
            raise Busy(f"kubernetes: the answer to {target} broke off: {error}") from error
        self._heed(answer.headers.get("Warning", ""))
        if 200 <= answer.status < 300:
            return data
        raise refusal(answer.status, data, answer.headers, target)

    def _read(self, response: Any, target: str) -> bytes:
        """The whole of an answer. A read timeout alone counts from byte to byte."""
        data, began_s = bytearray(), time.monotonic()
        try:
            while chunk := response.read1(2**16):
                data += chunk
                if time.monotonic() - began_s > self._timeout_s + len(data) / SLOWEST_BYTES_PER_S:
                    raise Busy(f"kubernetes: the answer to {target} comes too slowly: {len(data)} bytes by now")
        except BaseException:
            response.close()  # what is left of it is not to be taken for the next answer
            raise
        response.release_conn()
        return bytes(data)

    def _heed(self, warnings: str) -> None:
        """What an answer's `Warning` headers say; who only reads leaves it."""

    def _call(
        self,
        method: str,
        path: str,
        *,
        timeout: float | tuple[float, float],
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        from urllib3.exceptions import HTTPError, SSLError

        headers = {"Accept": "application/json", "User-Agent": "nightshift"}
        data = None if body is None else orjson.dumps(body)
        if data is not None:
            headers["Content-Type"] = content_type
        try:
            with spans.api_call(method, path) as opened:
                answer = self._transport.call(
                    method, path, query=query or {}, headers=headers, body=data, timeout=timeout
                )
                spans.answered(opened, answer.status)
        except (HTTPError, OSError) as error:
            # the cluster's authority was replaced: its new certificate is in the file by now
            if isinstance(error, SSLError):
                self._take_up_renewed()
            raise Busy(f"kubernetes: no answer to {method} {path}: {type(error).__name__}: {error}") from error
        if answer.status == 401:
            self._take_up_renewed()
        return answer

    def _take_up_renewed(self) -> None:
        """For the next call; where the files are no good just now, the present client stays."""
        if self._renew is not None:
            with contextlib.suppress(Permanent, OSError, ValueError):
                self._transport = self._renew()


def ends_list(event: Object) -> bool:
    """Whether an event is the bookmark after which a streamed list is complete."""
    notes = event["object"]["metadata"].get("annotations") or {}
    return event.get("type") == "BOOKMARK" and notes.get(INITIAL_END) == "true"


class Stop:
    """Ends a watch from another thread, even while it waits for bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._response: Any = None
        self.called = threading.Event()

    def guarding(self, response: Any) -> _Guard:
        return _Guard(self, response)

    def __call__(self) -> None:
        with self._lock:
            self.called.set()
            # the reader sits in recv: only shutting the socket down wakes it
            if self._response is not None:
                _end(self._response)


class _Guard:
    def __init__(self, stop: Stop, response: Any) -> None:
        self._stop, self._response = stop, response

    def __enter__(self) -> None:
        with self._stop._lock:
            self._stop._response = self._response
            if self._stop.called.is_set():
                _end(self._response)

    def __exit__(self, *_: object) -> None:
        with self._stop._lock:
            self._stop._response = None
        self._response.close()


def _end(response: Any) -> None:
    """Wakes whoever reads the response; one that was read to its end, or broke, needs no waking."""
    # OSError: the server's end closed the socket between the reader's last byte and this call
    with contextlib.suppress(ValueError, RuntimeError, OSError):
        response.shutdown()


def _lines(response: Any, stop: Stop, path: str) -> Iterator[bytes]:
    from urllib3.exceptions import HTTPError, ReadTimeoutError

    rest = b""
    try:
        for chunk in response.stream(2**16):
            rest += chunk
            if len(rest) > MAX_EVENT_BYTES and b"\n" not in rest:
                raise Busy(f"kubernetes: watch of {path}: an event of more than {MAX_EVENT_BYTES} bytes")
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if stop.called.is_set():
                    return
                if line:
                    yield line
    except (HTTPError, OSError, ValueError) as error:
        if stop.called.is_set():
            return
        if isinstance(error, ReadTimeoutError):
            raise KubeSilent(f"kubernetes: watch of {path}: nothing was heard") from error
        raise Busy(f"kubernetes: watch of {path} broke off: {type(error).__name__}: {error}") from error


def _decode(data: bytes, target: str) -> Object:
    try:
        decoded = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Busy(f"kubernetes: the answer to {target} is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise Busy(f"kubernetes: the answer to {target} is not an object")
    return decoded


def _of_a_kind(answer: Object, target: str) -> Object:
    """Every object and list of the API says its kind. A gateway's JSON does not, and as a list it would be one
    without items: an empty node."""
    if not isinstance(answer.get("kind"), str):
        raise Busy(f"kubernetes: the answer to {target} is no Kubernetes object: {str(answer)[:100]}")
    return answer


def refusal(status: int, data: bytes, headers: Mapping[str, str], target: str) -> Exception:
    """The exception that an answer other than 2xx is, with the causes that its Status names."""
    said, causes = _status(data)
    message = str(said.get("message") or data[:200].decode(errors="replace"))
    more = [text for cause in causes if (text := str(cause.get("message") or "")) and text not in message]
    text = f"kubernetes: {target}: {status}: {message}" + (f" ({'; '.join(more)[:500]})" if more else "")
    if status == 404:
        # a load balancer without a backend says 404 too: taken for "no such node", a drain would go on
        absent = said.get("kind") == "Status" or data.strip() == _NO_SUCH_PATH
        return NotFound(text, status) if absent else Busy(f"{text}: not the API server's own answer", status)
    if status == 403 and said.get("kind") != "Status":  # so does one that guards it, and nothing was done
        return Busy(f"{text}: not the API server's own answer", status)
    if status == 410:
        return Expired(text, status)
    if _passes(status, causes):
        retry = headers.get("Retry-After", "")
        return Busy(text, status, float(retry) if retry.isdigit() else None)
    return Refused(text, status)


def _passes(status: int, causes: Sequence[Object]) -> bool:
    """Whether the same request may be answered later. A namespace that is going says 403, and comes back."""
    return status in _AGAIN or status >= 500 or any(c.get("reason") == "NamespaceTerminating" for c in causes)


def _status(data: bytes) -> tuple[Object, list[Object]]:
    """The Status object of an answer and its causes (API conventions, "Response Status Kind"); a proxy's page or a
    bare "404 page not found" is none."""
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}, []
    if not isinstance(said, dict):
        return {}, []
    details = said.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return said, [cause for cause in causes or [] if isinstance(cause, dict)]
