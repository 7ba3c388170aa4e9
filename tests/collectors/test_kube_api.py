"""What a real API server does to a reader over days: throttles it, forgets its lists, renews its token, is silent,
closes watches at once."""

from __future__ import annotations

import base64
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from nightshift.collectors.kubernetes import transport
from nightshift.collectors.kubernetes.api import AccessSettings, Busy, Expired, KubeApi, Object, Refused
from nightshift.collectors.kubernetes.follow import Follower
from tests.kubernetes_api.api import Api, Options
from tests.kubernetes_api.cluster import Cluster, eventually
from tests.kubernetes_api.faults import Fault
from tests.kubernetes_api.rbac import ADMIN
from tests.kubernetes_api.server import ApiServer

PATIENCE_S = 60.0


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(Api()) as made:
        yield made


def connected(server: ApiServer, tmp_path: Path, kind: type[KubeApi] = KubeApi) -> KubeApi:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(server.kubeconfig()))
    return kind.connect(AccessSettings(kubeconfig=path))


@pytest.mark.parametrize("fault", [Fault.TOO_MANY, Fault.UNAVAILABLE, Fault.DISCONNECT, Fault.PAGE, Fault.STRANGE])
def test_the_transport_asks_once_and_leaves_the_waiting_to_its_caller(
    server: ApiServer, tmp_path: Path, fault: Fault
) -> None:
    """urllib3 of itself would sleep for a Retry-After, inside a call that has a limit, and send again."""
    kube = connected(server, tmp_path)
    server.faults.plan(fault, times=1)
    with pytest.raises(Busy) as error:
        kube.get("/api/v1/nodes")
    assert error.value.retry_after_s == (1.0 if fault is Fault.TOO_MANY else None)
    assert kube.get("/api/v1/nodes")["items"] == [], "the one fault met the one call"


def test_absent_is_what_the_server_itself_says_is_absent(server: ApiServer, tmp_path: Path) -> None:
    """An object that is not there, a kind that is not served; never a gateway's own 404 or its empty JSON, by which
    a node would be gone, a pod deleted and a drain done."""
    kube, jobs = connected(server, tmp_path), "/apis/batch/v1/namespaces/default/jobs"
    assert kube.find("/api/v1/nodes/gone") is None
    assert kube.find("/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/gone") is None
    for fault, ask in itertools.product((Fault.PAGE, Fault.STRANGE), (kube.find, kube.list)):
        server.faults.plan(fault, times=1)
        with pytest.raises(Busy):
            ask(jobs)
        assert kube.list(jobs) == []


class Slow(KubeApi):
    """Takes longer over a list than the server keeps its pages."""

    server: ApiServer

    def _request(self, method: str, path: str, *, query: Mapping[str, str] | None = None, **how: Any) -> Object:
        if "continue" in (query or {}):
            self.server.api.forget_continues()
        return super()._request(method, path, query=query, **how)


def test_a_list_whose_pages_expired_is_asked_for_in_one_answer(server: ApiServer, tmp_path: Path) -> None:
    """A 410 between two pages ends neither a reader's list nor a follower's."""
    kube = cast(Slow, connected(server, tmp_path, Slow))
    kube.server = server
    for number in range(501):
        body = {"metadata": {"name": f"n{number}"}}
        server.api.create(server.api.by_kind["Node"], "", body, Options("test"))
    assert len(kube.list("/api/v1/nodes")) == 501
    follower: Follower[str] = Follower(
        lambda: kube, "/api/v1/nodes", lambda o: str(o["metadata"]["name"]), time.monotonic
    )
    follower.start()
    try:
        assert follower.synced.wait(PATIENCE_S)
        assert follower.health()[1] is None
        assert len(follower.take()) == 501
    finally:
        follower.close()


def test_a_renewed_token_is_read_from_its_file_at_the_first_401(server: ApiServer, tmp_path: Path) -> None:
    """A kubeconfig in a mounted Secret; nobody restarts the daemon for it."""
    kube = connected(server, tmp_path)
    assert kube.get("/api/v1/nodes")["items"] == []
    server.tokens["new"] = server.tokens.pop(server.admin_token)
    config = server.kubeconfig("new")
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    with pytest.raises(Refused):
        kube.get("/api/v1/nodes")
    assert kube.get("/api/v1/nodes")["items"] == []


def test_the_pods_own_token_is_read_again_before_it_ends_and_at_a_401(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bound tokens last an hour; the kubelet renews the file. kubernetes.io, "Managing Service Accounts"."""
    with ApiServer(Api(), tls=True) as server:
        host, _, port = server.url.removeprefix("https://").rpartition(":")
        token, authority = tmp_path / "token", tmp_path / "ca.crt"
        config = server.kubeconfig()
        authority.write_bytes(base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        monkeypatch.setattr(transport, "ACCOUNT", tmp_path)
        server.tokens["one"] = server.tokens["two"] = (ADMIN, None)
        token.write_text("one")
        kube = KubeApi.connect(AccessSettings())
        assert kube.get("/api/v1/nodes")["items"] == []
        token.write_text("two")
        del server.tokens["one"]
        with pytest.raises(Refused, match="401"):
            kube.get("/api/v1/nodes")
        assert kube.get("/api/v1/nodes")["items"] == []


def test_a_quiet_watch_is_no_fault(server: ApiServer, tmp_path: Path) -> None:
    """Events are served without bookmarks: on a quiet night nothing is heard for long, and nothing is wrong."""
    kube = connected(server, tmp_path)
    follower: Follower[str] = Follower(lambda: kube, "/api/v1/events", lambda o: "x", time.monotonic, quiet_s=1.0)
    follower.start()

    def watched() -> int:
        return sum("watch" in str(request) for request in server.requests)

    try:
        eventually(lambda: watched() >= 3, "the watch is opened anew")
        assert follower.health()[1] is None
    finally:
        follower.close()


class Waits(threading.Event):
    """Notes how long a follower waits instead of waiting; ends it after some."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.waited: list[float] = []
        self._count = count

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        if len(self.waited) == self._count:
            self.set()
        return self.is_set()


class Scripted:
    """An API whose watches end as told."""

    def __init__(self, events: list[Object] | Exception, page: Object | None = None) -> None:
        self.events = events
        self.page = page or {"metadata": {"resourceVersion": "7"}, "items": None}

    def serves(self, path: str) -> bool:
        return True

    def pages(self, path: str, limit: int = 500) -> Iterator[Object]:
        yield self.page

    def watch(self, *_: Any, **__: Any) -> Iterator[Object]:
        if isinstance(self.events, Exception):
            raise self.events
        yield from self.events


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([], None),
        (Expired("410", 410), None),
        (Busy("503", 503), "503"),
        ([{"type": "ADDED", "object": {"metadata": {}}}], "without a name"),
        ([{"type": "ADDED", "object": {"metadata": {"name": "n"}}}], "no resourceVersion"),
    ],
)
def test_a_watch_that_ends_at_once_is_opened_slower_and_slower(events: Any, fault: str | None) -> None:
    """Whatever a server, or a proxy before it, answers at once: it is asked in no tight loop, and none ends us."""
    api = cast(KubeApi, Scripted(events))
    follower: Follower[str] = Follower(lambda: api, "/api/v1/nodes", lambda o: "x", lambda: 0.0)
    waits = Waits(4)
    follower._stop.called = waits
    follower._run()
    assert waits.waited in ([1.0, 2.0, 4.0, 8.0], [1.0] * 4)
    assert fault is None or fault in str(follower.health()[1])


@pytest.mark.parametrize(
    ("events", "page"),
    [
        ([{"type": "ADDED", "object": {"metadata": "m"}}], None),
        ([], {"metadata": ["m"], "items": []}),
        ([], {"metadata": {"resourceVersion": "7"}, "items": 5}),
        (ValueError("an ERROR event whose code is no number"), None),
    ],
)
def test_what_no_api_server_says_is_a_fault_and_not_the_followers_end(events: Any, page: Object | None) -> None:
    """Its thread would have ended, and the cluster been silent until the daemon's next start."""
    api = Scripted(events, page)
    follower: Follower[str] = Follower(lambda: cast(KubeApi, api), "/api/v1/nodes", lambda o: "x", lambda: 0.0)
    follower._stop.called = waits = Waits(3)
    follower._run()
    assert len(waits.waited) == 3
    fault = follower.health()[1]
    assert fault is None or "as no API server does" in fault[1]


def test_what_a_stranger_streams_is_no_event(cluster: Cluster) -> None:
    """A line without an object is said, with its words."""
    if cluster.server is None:
        pytest.skip("a real server streams events only")
    from nightshift.collectors.kubernetes import api

    class Response:
        status, headers = 200, {}

        def __init__(self) -> None:
            self.response = self

        def stream(self, size: int) -> Iterator[bytes]:
            yield b'{"hello": 1}\n'

        def close(self) -> None: ...

        def shutdown(self) -> None: ...

    class Odd(KubeApi):
        def _call(self, *_: Any, **__: Any) -> Any:
            return Response()

    with pytest.raises(Busy, match="a line is no event"):
        next(Odd(cluster.transport).watch("/api/v1/nodes", "1", quiet_s=1.0, stop=api.Stop()))


@pytest.mark.parametrize("error", [OSError(9, "Bad file descriptor"), ValueError(), RuntimeError()])
def test_stopping_a_watch_that_has_just_ended_is_no_error(error: Exception) -> None:
    """The reader's thread closes the socket between its last byte and the moment when it says so."""
    from nightshift.collectors.kubernetes import api

    class Ended:
        def shutdown(self) -> None:
            raise error

        def close(self) -> None: ...

    stop = api.Stop()
    with stop.guarding(Ended()):
        stop()
    assert stop.called.is_set()


def dripping(body: bytes, pause_s: float) -> Iterator[int]:
    """A proxy that hands an answer on byte by byte."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(2**16)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
                    for byte in body:
                        connection.sendall(bytes([byte]))
                        time.sleep(pause_s)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.mark.parametrize(("pause_s", "limit_s", "comes"), [(0.05, 1.0, False), (0.0, 60.0, True)])
def test_an_answer_that_drips_ends_at_the_limit_of_its_call(pause_s: float, limit_s: float, comes: bool) -> None:
    """Each byte comes within the read timeout; all of them would take a hundred seconds."""
    body = b'{"kind": "Node", "a": "' + b"x" * 2_000 + b'"}'
    with contextlib.contextmanager(dripping)(body, pause_s) as port:
        kube = KubeApi(transport.Transport(f"http://127.0.0.1:{port}"), timeout_s=limit_s)
        began_s = time.monotonic()
        if comes:
            assert len(kube.get("/api/v1/nodes/n1")["a"]) == 2_000
            return
        with pytest.raises(Busy, match="comes too slowly"):
            kube.get("/api/v1/nodes/n1")
        assert time.monotonic() - began_s < 50.0


@pytest.mark.parametrize("streams", [True, False])
def test_a_list_is_streamed_where_the_server_does_so_and_comes_in_pages_elsewhere(
    server: ApiServer, tmp_path: Path, streams: bool
) -> None:
    """Either way nothing is missed between list and watch; a server without it is asked for a stream once."""
    server.streams = streams
    kube = connected(server, tmp_path)

    def node(name: str) -> None:
        server.api.create(server.api.by_kind["Node"], "", {"metadata": {"name": name}}, Options("test"))

    for number in range(3):
        node(f"n{number}")
    follower: Follower[str] = Follower(
        lambda: kube, "/api/v1/nodes", lambda o: str(o["metadata"]["name"]), time.monotonic
    )
    follower.start()
    try:
        assert follower.synced.wait(PATIENCE_S)
        assert sorted(follower.take()) == ["n0", "n1", "n2"]
        node("n3")
        eventually(lambda: "n3" in follower.take(), "what comes after the list")
        follower._stop.called.set()
    finally:
        follower.close()
    listed = [asked for _, asked in server.requests if (asked.verb, asked.resource) == ("list", "nodes")]
    assert len(listed) == (0 if streams else 1)


def test_a_stream_that_breaks_off_before_its_end_is_no_list(server: ApiServer, tmp_path: Path) -> None:
    """Half of a list would be a cluster with half of its nodes gone."""
    for number in range(3):
        body = {"metadata": {"name": f"n{number}"}}
        server.api.create(server.api.by_kind["Node"], "", body, Options("test"))

    class Torn(KubeApi):
        def watch(self, path: str, version: str, **how: Any) -> Iterator[Object]:
            events = super().watch(path, version, **how)
            return events if version else itertools.islice(events, 2)

    kube = connected(server, tmp_path, Torn)
    follower: Follower[str] = Follower(
        lambda: kube, "/api/v1/nodes", lambda o: str(o["metadata"]["name"]), time.monotonic
    )
    follower.start()
    try:
        assert follower.synced.wait(PATIENCE_S)
        assert sorted(follower.take()) == ["n0", "n1", "n2"]
        assert follower.health()[1] is None
    finally:
        follower.close()
