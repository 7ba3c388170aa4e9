"""Where an API server is, as whom to speak there, and one request to it: a kubeconfig, or a pod's service account.

Read by client-go's rules (kubernetes.io, "Organizing Cluster Access Using kubeconfig Files"; "Authenticating"): one
file, a context of it, paths relative to the file. A token in a file is read again after a minute, a plugin's before
it expires. Refused, since skipping it would change who asks: an `auth-provider`, which client-go removed in 1.26.
Nothing is tried again here, and no redirect is followed.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import yaml

from nightshift.collectors.base import Permanent

Entry = Mapping[str, Any]
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# A bound token is renewed in its file at four fifths of its life; client-go reads it again each minute.
TOKEN_READ_S = 60.0
EXEC_S = 60.0
_AGAIN_S = 5.0
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_POOL = 16


@dataclass(frozen=True)
class Credentials:
    """What a request is sent with: headers until a time (monotonic s), and a client certificate in PEM."""

    headers: Mapping[str, str] = field(default_factory=dict)
    certificate: tuple[bytes, bytes] | None = None
    until_s: float = float("inf")


class Transport:
    """Requests to one API server with one identity. Safe to share between threads."""

    def __init__(
        self,
        host: str,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        proxy: str | None = None,
        sign: Callable[[], Credentials] = Credentials,
    ) -> None:
        """`host`: its URL. `sign` is asked for headers again once those that it gave have expired."""
        import urllib3

        self.host = host.rstrip("/")
        proxy = proxy or _proxy_of(self.host)
        more: dict[str, Any] = {"server_hostname": server_name} if server_name else {}
        more |= {"maxsize": _POOL, "retries": False} | ({"ssl_context": tls} if tls else {})
        self._pool = urllib3.ProxyManager(proxy, **more) if proxy else urllib3.PoolManager(**more)
        self._sign, self._lock = sign, threading.Lock()
        self._credentials = sign()

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float | tuple[float, float],
    ) -> Any:
        """A `urllib3.HTTPResponse`, its body not read yet; `timeout`: of the whole, or of (connect, read) (s)."""
        from urllib3.util import Timeout

        with self._lock:
            if time.monotonic() >= self._credentials.until_s:
                self._credentials = self._renewed()
            signed = {**headers, **self._credentials.headers}
        parts = {"connect": timeout[0], "read": timeout[1]} if isinstance(timeout, tuple) else {"total": timeout}
        url = f"{self.host}{path}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        return self._pool.request(
            method, url, body=body, headers=signed, timeout=Timeout(**parts), preload_content=False, redirect=False
        )

    def _renewed(self) -> Credentials:
        """Where there are none just now, the present ones stay: the server says whether they still hold."""
        try:
            return self._sign()
        except Permanent:
            return replace(self._credentials, until_s=time.monotonic() + _AGAIN_S)


def _proxy_of(host: str) -> str | None:
    """By HTTPS_PROXY and NO_PROXY, as everything else on the machine."""
    parts = urlsplit(host)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


def of_the_pod(account: Path | None = None) -> Transport:
    """By the service account that the kubelet mounts. Raises Permanent outside a pod."""
    account = account or ACCOUNT
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    if not (host and port):
        raise Permanent("kubernetes: not in a pod: KUBERNETES_SERVICE_HOST is not set. Set `kubeconfig`.")
    place = f"[{host}]" if ":" in host else host
    tls = _tls(_read(account / "ca.crt"), None)
    return Transport(f"https://{place}:{port}", tls=tls, sign=lambda: _by_token_file(account / "token"))


def of_kubeconfig(path: Path, context: str | None) -> Transport:
    """By one context of a kubeconfig; None: its current one. Raises Permanent with the field that is wrong."""
    try:
        config = yaml.safe_load(_read(path))
    except yaml.YAMLError as error:
        raise Permanent(f"kubernetes: {path} is no YAML: {error}") from error
    if not isinstance(config, dict):
        raise Permanent(f"kubernetes: {path} is no kubeconfig")
    name = context or config.get("current-context")
    if not name:
        raise Permanent(f"kubernetes: {path} has no current-context. Set `context`.")
    chosen = _entry(config, "contexts", "context", name, path)
    cluster = _entry(config, "clusters", "cluster", chosen.get("cluster"), path)
    user = _entry(config, "users", "user", chosen["user"], path) if chosen.get("user") else {}
    server = cluster.get("server")
    if not server:
        raise Permanent(f"kubernetes: {path}: cluster {chosen.get('cluster')!r} has no server")
    if "auth-provider" in user:
        raise Permanent(f"kubernetes: {path}: `auth-provider` is not supported since Kubernetes 1.26. Use `exec`.")
    folder = path.absolute().parent

    def sign() -> Credentials:
        return _impersonating(user, _credentials(user, cluster, folder))

    tls = None
    if server.startswith("https"):
        tls = _tls(
            _data(cluster, "certificate-authority", folder),
            sign().certificate,
            verify=not cluster.get("insecure-skip-tls-verify", False),
        )
    return Transport(
        server, tls=tls, server_name=cluster.get("tls-server-name"), proxy=cluster.get("proxy-url"), sign=sign
    )


def _entry(config: Entry, plural: str, singular: str, name: object, path: Path) -> Entry:
    for entry in config.get(plural) or []:
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(singular), dict):
            found: Entry = entry[singular]
            return found
    raise Permanent(f"kubernetes: {path} has no {singular} {name!r}")


def _credentials(user: Entry, cluster: Entry, folder: Path) -> Credentials:
    """Of a kubeconfig's user: a certificate beside a plugin's token, a token, or a password."""
    certificate, key = (_data(user, name, folder) for name in ("client-certificate", "client-key"))
    pair = (certificate, key) if certificate and key else None
    if "exec" in user:
        return _by_plugin(user["exec"], cluster, folder, pair)
    # a token in a file goes before one in the kubeconfig (client-go, tools/clientcmd/client_config.go)
    if user.get("tokenFile"):
        found = _by_token_file(folder / user["tokenFile"])
        return Credentials(found.headers, pair, found.until_s)
    if user.get("token"):
        return Credentials(_bearer(user["token"]), pair)
    if "username" in user and "password" in user:
        secret = base64.b64encode(f"{user['username']}:{user['password']}".encode()).decode()
        return Credentials({"Authorization": f"Basic {secret}"}, pair)
    return Credentials({}, pair)


def _impersonating(user: Entry, found: Credentials) -> Credentials:
    """A kubeconfig's `as`: without it, its holder would act with more rights than it says."""
    more = {"Impersonate-User": user.get("as"), "Impersonate-Uid": user.get("as-uid")}
    headers = {**found.headers, **{name: str(value) for name, value in more.items() if value}}
    if user.get("as-groups"):
        raise Permanent("kubernetes: `as-groups` of a kubeconfig is not supported. Use an identity of its own.")
    return Credentials(headers, found.certificate, found.until_s)


def _by_token_file(path: Path) -> Credentials:
    return Credentials(_bearer(_read(path).decode().strip()), None, time.monotonic() + TOKEN_READ_S)


def _bearer(token: str) -> dict[str, str]:
    if not token or not token.isprintable():
        raise Permanent("kubernetes: a token is empty or no text")
    return {"Authorization": f"Bearer {token}"}


def _by_plugin(spec: Entry, cluster: Entry, folder: Path, pair: tuple[bytes, bytes] | None) -> Credentials:
    """A credential plugin's answer (ExecCredential). It asks no person: standard input is closed."""
    version, command = spec.get("apiVersion"), str(spec.get("command") or "")
    if version not in _EXEC_VERSIONS:
        raise Permanent(
            f"kubernetes: exec {command}: apiVersion {version!r} is none of {', '.join(_EXEC_VERSIONS)}"
        )
    info: dict[str, Any] = {"interactive": False}
    if spec.get("provideClusterInfo"):
        known = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
        info["cluster"] = {name: cluster[name] for name in known if name in cluster}
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": info}
    environment = os.environ | {str(pair["name"]): str(pair["value"]) for pair in spec.get("env") or []}
    environment["KUBERNETES_EXEC_INFO"] = json.dumps(asked)
    # a path with a slash is relative to the kubeconfig, as client-go reads it
    program = str(folder / command) if "/" in command else command
    try:
        ran = subprocess.run(
            [program, *map(str, spec.get("args") or [])],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=EXEC_S, check=True,
        )  # fmt: skip
        status = json.loads(ran.stdout)["status"]
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()[-300:]
        raise Permanent(f"kubernetes: exec {command} exited {error.returncode}: {said}") from error
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise Permanent(f"kubernetes: exec {command}: {type(error).__name__}: {error}") from error
    if status.get("clientCertificateData") and status.get("clientKeyData"):
        pair = status["clientCertificateData"].encode(), status["clientKeyData"].encode()
    headers = _bearer(status["token"]) if status.get("token") else {}
    return Credentials(headers, pair, _monotonic(status.get("expirationTimestamp")))


def _monotonic(expires: str | None) -> float:
    """When a plugin is asked again: half a minute before its credential expires (RFC 3339)."""
    if not expires:
        return float("inf")
    left_s = datetime.fromisoformat(expires.replace("Z", "+00:00")).timestamp() - time.time()
    return time.monotonic() + max(left_s - 30.0, 1.0)


def _data(entry: Entry, name: str, folder: Path) -> bytes | None:
    """`NAME-data` in base64, which goes before the file that NAME is."""
    if encoded := entry.get(f"{name}-data"):
        try:
            return base64.b64decode(encoded, validate=True)
        except ValueError as error:
            raise Permanent(f"kubernetes: {name}-data is no base64") from error
    return _read(folder / entry[name]) if entry.get(name) else None


def _read(path: Path) -> bytes:
    try:
        data = path.expanduser().read_bytes()
    except OSError as error:
        raise Permanent(f"kubernetes: cannot read {path}: {error.strerror}") from error
    if not data.strip():
        raise Permanent(f"kubernetes: {path} is empty")
    return data


def _tls(authority: bytes | None, pair: tuple[bytes, bytes] | None, *, verify: bool = True) -> ssl.SSLContext:
    """Trusts one authority; None: those of the machine."""
    try:
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if not verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if pair is not None:
            with tempfile.NamedTemporaryFile() as file:  # OpenSSL reads a certificate's chain from a file alone
                file.write(b"\n".join(pair))
                file.flush()
                context.load_cert_chain(file.name)
    except (ssl.SSLError, ValueError) as error:
        raise Permanent(f"kubernetes: a certificate or key cannot be used: {error}") from error
    return context
