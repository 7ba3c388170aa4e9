"""Who asks an API server, and where: kubeconfigs as people have them, plugins, certificates, proxies."""

from __future__ import annotations

import base64
import http.server
import json
import ssl
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.collectors.base import Permanent
from nightshift.collectors.kubernetes.api import AccessSettings, Busy, KubeApi, Refused
from nightshift.collectors.kubernetes.transport import Transport, of_kubeconfig, of_the_pod
from tests.certificates import Authority


class _Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        peer = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        self.server.asked.append((self.path, dict(self.headers), peer))  # type: ignore[attr-defined]
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/api")
        else:
            self.send_response(200)
        body = b'{"kind": "Node"}'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[Any]]]:
    """(URL, what was asked: path, headers, client certificate)."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answering)
    server.asked = []  # type: ignore[attr-defined]
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        scheme = "https" if tls else "http"
        yield f"{scheme}://127.0.0.1:{server.server_port}", server.asked  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()


def kubeconfig(folder: Path, cluster: Mapping[str, Any], user: Mapping[str, Any], **more: Any) -> Path:
    path = folder / "config"
    told = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": dict(cluster)}],
        "users": [{"name": "u", "user": dict(user)}],
    }
    path.write_text(yaml.safe_dump(told | more))
    return path


def plugin(
    folder: Path, status: Mapping[str, Any], version: str = "client.authentication.k8s.io/v1"
) -> dict[str, Any]:
    """A credential plugin beside the kubeconfig; it counts its runs and keeps what it was asked."""
    script = folder / "plugin"
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": dict(status)})
    script.write_text(
        f'#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" >> {folder}/asked\ntest "$1" = get || exit 3\n'
        f"test \"$ROLE\" = ops || exit 4\ncat <<'E'\n{answer}\nE\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {
        "apiVersion": version,
        "command": "./plugin",
        "args": ["get"],
        "env": [{"name": "ROLE", "value": "ops"}],
        "provideClusterInfo": True,
    }


def test_a_plugins_token_is_used_until_shortly_before_it_expires(tmp_path: Path) -> None:
    """As cloud providers' kubeconfigs are: the plugin is asked again before the end, and not at each request."""
    with serving() as (url, asked):
        soon = (datetime.now(UTC) + timedelta(seconds=31.5)).isoformat().replace("+00:00", "Z")
        user = {"exec": plugin(tmp_path, {"token": "abc", "expirationTimestamp": soon})}
        api = KubeApi.connect(AccessSettings(kubeconfig=kubeconfig(tmp_path, {"server": url}, user)))
        api.get("/api")
        api.get("/api")
        assert {headers["Authorization"] for _, headers, _ in asked} == {"Bearer abc"}
        assert (tmp_path / "asked").read_text().count("\n") == 1
        time.sleep(1.6)
        api.get("/api")
        told = (tmp_path / "asked").read_text().splitlines()
        assert len(told) == 2
        spec = json.loads(told[0])["spec"]
        assert spec == {"interactive": False, "cluster": {"server": url}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"args": ["other"]}, "exited 3"),
        ({"command": "no-such-plugin"}, "FileNotFoundError"),
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "v1alpha1"),
    ],
)
def test_a_plugin_that_fails_is_an_error_with_its_words(
    tmp_path: Path, change: Mapping[str, Any], words: str
) -> None:
    user = {"exec": {**plugin(tmp_path, {"token": "abc"}), **change}}
    with pytest.raises(Permanent, match=words):
        of_kubeconfig(kubeconfig(tmp_path, {"server": "http://127.0.0.1:1"}, user), None)


@pytest.mark.parametrize("inline", [True, False])
def test_a_client_certificate_is_shown_and_the_servers_is_checked(tmp_path: Path, inline: bool) -> None:
    """From data and from files beside the kubeconfig; a server of another authority is refused before a word."""
    authority, other = Authority.new(), Authority.new("another")
    certificate, key = authority.issue("127.0.0.1")
    mine, mine_key = authority.issue("operator", client=True)
    (tmp_path / "server.pem").write_bytes(certificate + key)
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
    context.load_cert_chain(tmp_path / "server.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    parts = {"certificate-authority": authority.pem, "client-certificate": mine, "client-key": mine_key}

    def fields(*names: str, **replaced: bytes) -> dict[str, str]:
        found = {}
        for name in names:
            data = replaced.get(name.replace("-", "_"), parts[name])
            if inline:
                found[f"{name}-data"] = base64.b64encode(data).decode()
            else:
                (tmp_path / f"{name}.pem").write_bytes(data)
                found[name] = f"{name}.pem"
        return found

    with serving(context) as (url, asked):
        user = fields("client-certificate", "client-key")
        for authorities, works in ((authority.pem, True), (other.pem, False)):
            cluster = {"server": url, **fields("certificate-authority", certificate_authority=authorities)}
            api = KubeApi.connect(AccessSettings(kubeconfig=kubeconfig(tmp_path, cluster, user)))
            if works:
                api.get("/api")
                assert asked[-1][2]["subject"] == ((("commonName", "operator"),),)
            else:
                with pytest.raises(Busy, match="certificate verify failed"):
                    api.get("/api")


def test_a_proxy_of_the_kubeconfig_is_used(tmp_path: Path) -> None:
    with serving() as (proxy, asked):
        cluster = {"server": "http://api.invalid:6443", "proxy-url": proxy}
        KubeApi.connect(AccessSettings(kubeconfig=kubeconfig(tmp_path, cluster, {}))).get("/api/v1/nodes/n1")
        assert asked[0][0] == "http://api.invalid:6443/api/v1/nodes/n1"


def test_a_proxy_of_the_environment_is_used_except_where_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as (proxy, through), serving() as (direct, asked):
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        far = kubeconfig(tmp_path, {"server": "http://api.invalid"}, {})
        KubeApi.connect(AccessSettings(kubeconfig=far)).get("/api")
        near = kubeconfig(tmp_path, {"server": direct}, {})
        KubeApi.connect(AccessSettings(kubeconfig=near)).get("/api")
        assert (len(through), len(asked)) == (1, 1)


def test_no_redirect_is_followed(tmp_path: Path) -> None:
    """It would carry the token to wherever an answer says."""
    with serving() as (url, asked):
        api = KubeApi.connect(AccessSettings(kubeconfig=kubeconfig(tmp_path, {"server": url}, {"token": "t"})))
        with pytest.raises(Refused, match="302"):
            api.get("/moved")
        assert [path for path, *_ in asked] == ["/moved"]


@pytest.mark.parametrize(
    ("user", "header", "value"),
    [
        ({"token": "t", "as": "ops@example.com"}, "Impersonate-User", "ops@example.com"),
        ({"username": "u", "password": "p"}, "Authorization", "Basic dTpw"),
        ({"token": "inline", "tokenFile": "token"}, "Authorization", "Bearer filed"),
    ],
)
def test_who_asks_is_who_the_kubeconfig_says(
    tmp_path: Path, user: Mapping[str, Any], header: str, value: str
) -> None:
    (tmp_path / "token").write_text("filed\n")
    with serving() as (url, asked):
        KubeApi.connect(AccessSettings(kubeconfig=kubeconfig(tmp_path, {"server": url}, user))).get("/api")
        assert asked[0][1][header] == value


def authority(data: str) -> dict[str, Any]:
    cluster = {"server": "https://a", "certificate-authority-data": data}
    return {"clusters": [{"name": "c", "cluster": cluster}]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"current-context": ""}, "has no current-context"),
        ({"current-context": "there"}, "has no context 'there'"),
        ({"clusters": []}, "has no cluster 'c'"),
        ({"users": [{"name": "u", "user": None}]}, "has no user 'u'"),
        ({"clusters": [{"name": "c", "cluster": {}}]}, "has no server"),
        ({"users": [{"name": "u", "user": {"auth-provider": {"name": "gcp"}}}]}, "auth-provider"),
        ({"users": [{"name": "u", "user": {"token": "t", "as-groups": ["g"]}}]}, "as-groups"),
        ({"users": [{"name": "u", "user": {"tokenFile": "absent"}}]}, "cannot read"),
        ({"users": [{"name": "u", "user": {"token": "a\r\nX-Evil: b"}}]}, "no text"),
        (
            {"clusters": [{"name": "c", "cluster": {"server": "https://a", "certificate-authority-data": "%"}}]},
            "base64",
        ),
        (
            {"clusters": [{"name": "c", "cluster": {"server": "https://a", "certificate-authority-data": "eA=="}}]},
            "used",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = kubeconfig(tmp_path, {"server": "http://127.0.0.1:1"}, {}, **change)
    with pytest.raises(Permanent, match=words):
        of_kubeconfig(path, None)


@pytest.mark.parametrize("text", ["", "[1]", "a: [", "- x"])
def test_what_is_no_kubeconfig_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(Permanent, match="kubernetes: "):
        of_kubeconfig(path, None)


def test_outside_a_pod_there_is_no_service_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(Permanent, match="not in a pod"):
        of_the_pod(tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(Permanent, match="cannot read"):
        of_the_pod(tmp_path)


@pytest.mark.parametrize(
    ("asked", "connect_s", "read_s"), [((10.0, 90.0), 10.0, 90.0), ((10.0, 0.05), 10.0, 0.05), (5.0, 5.0, 5.0)]
)
def test_a_watch_waits_for_lines_as_long_as_it_may_and_for_a_connection_no_longer_than_any(
    monkeypatch: pytest.MonkeyPatch, asked: float | tuple[float, float], connect_s: float, read_s: float
) -> None:
    transport, seen = Transport("http://127.0.0.1:9"), []
    monkeypatch.setattr(transport._pool, "request", lambda *_, **more: seen.append(more["timeout"]))
    transport.call("GET", "/", query={}, headers={}, body=None, timeout=asked)
    (limits,) = seen
    limits.start_connect()
    assert limits.connect_timeout == connect_s
    assert limits.read_timeout == pytest.approx(read_s, abs=1.0 if limits.total else 0.0)
