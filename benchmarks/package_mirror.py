"""A mirror of Debian and of the Python index on this machine, and a proxy before them, signed by an authority of
their own: what the build of an image meets behind a company's walls. What was fetched once is kept in a folder."""

from __future__ import annotations

import hashlib
import html
import http.server
import os
import re
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.certificates import Authority

UPSTREAMS = {
    "debian": "http://deb.debian.org/debian",
    "debian-security": "http://deb.debian.org/debian-security",
    "simple": "https://pypi.org/simple",
}
FILES = "https://files.pythonhosted.org"
PORTS = 9_743, 9_744
PROXIED = ("deb.debian.org", "pypi.org", "files.pythonhosted.org")


@dataclass(frozen=True)
class Mirror:
    """Where it answers, who signs it (PEM), and what was asked of it by now, as `METHOD path` or `CONNECT host`."""

    url: str
    proxy: str
    authority: bytes
    requests: list[str]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Path
    wheels: Path | None
    seen: list[str]
    contexts: dict[str, ssl.SSLContext]

    def do_GET(self) -> None:
        self.seen.append(f"GET {self.path}")
        try:
            data, kind = self._answer(self.path)
        except urllib.error.HTTPError as error:
            data, kind = b"", ""
            self.send_response(error.code)
        else:
            self.send_response(200)
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_CONNECT(self) -> None:
        """Intercepts TLS, as companies' proxies do: the client meets our certificate for the host that it named."""
        host = self.path.partition(":")[0]
        self.seen.append(f"CONNECT {host}")
        if host not in self.contexts:
            self.send_error(403)
            return
        self.send_response(200)
        self.end_headers()
        inner: Any = type("Inner", (_Handler,), {"host": host})
        with self.contexts[host].wrap_socket(self.connection, server_side=True) as secured:
            inner(secured, self.client_address, self.server)
        self.close_connection = True

    host = ""

    def _answer(self, path: str) -> tuple[bytes, str]:
        """Of a mirror's path, a proxied URL, or a path of an intercepted host."""
        if self.host and not path.startswith(("/simple/", "/wheels/")):
            return _kept(self.store, f"https://{self.host}{path}")
        if path.startswith("http://"):
            return _kept(self.store, path)
        first, _, rest = path.lstrip("/").partition("/")
        if first == "files":
            return _kept(self.store, f"{FILES}/{rest}")
        if first == "wheels" and self.wheels is not None:
            return (self.wheels / Path(urllib.parse.unquote(rest)).name).read_bytes(), "application/zip"
        data, kind = _kept(self.store, f"{UPSTREAMS.get(first, FILES)}/{rest}")
        if first == "simple":
            own = self._own(rest.strip("/"))
            text = data.decode() if self.host else data.decode().replace(f"{FILES}/", "/files/")
            # of a name that lies here, nothing else is offered
            links = "".join(f'<a href="/wheels/{html.escape(name)}">{html.escape(name)}</a>' for name in own)
            return (links or text).encode(), "text/html"
        return data, kind

    def _own(self, project: str) -> list[str]:
        if self.wheels is None:
            return []
        names = (path.name for path in self.wheels.glob("*.whl"))
        return [urllib.parse.quote(n) for n in names if re.sub(r"[-_.]+", "-", n.split("-")[0]).lower() == project]

    def log_message(self, *_: object) -> None: ...


_LOCKS: dict[str, threading.Lock] = {}


def _kept(store: Path, url: str) -> tuple[bytes, str]:
    """The body and its type. What carries its hash or its version in its address never changes; an index may."""
    file = store / hashlib.sha256(url.encode()).hexdigest()
    with _LOCKS.setdefault(url, threading.Lock()):
        if not file.exists():
            request = urllib.request.Request(url, headers={"Accept": "text/html, */*"})
            with urllib.request.urlopen(request, timeout=120) as answer:
                body, kind = answer.read(), answer.headers.get("Content-Type", "application/octet-stream")
            whole = file.with_suffix(f".{os.getpid()}")
            whole.write_bytes(kind.encode() + b"\n" + body)
            whole.rename(file)
        kind_line, _, body = file.read_bytes().partition(b"\n")
    return body, kind_line.decode()


@contextmanager
def package_mirror(store: Path, wheels: Path | None) -> Iterator[Mirror]:
    """`store`: what was fetched before. `wheels`: a folder with wheels that go before the index's. The ports are
    the same each time, since a mirror's address is part of what a layer is cached by."""
    store.mkdir(parents=True, exist_ok=True)
    authority, seen = Authority.new("packages"), list[str]()
    folder = store / "certificates"
    folder.mkdir(exist_ok=True)

    def context(name: str) -> ssl.SSLContext:
        certificate, key = authority.issue(name)
        (folder / name).write_bytes(certificate + key)
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(folder / name)
        return made

    handler = type(
        "Handler",
        (_Handler,),
        {"store": store, "wheels": wheels, "seen": seen, "contexts": {name: context(name) for name in PROXIED}},
    )
    _Handler.store, _Handler.wheels, _Handler.seen = store, wheels, seen
    secured = http.server.ThreadingHTTPServer(("127.0.0.1", PORTS[0]), handler)
    secured.socket = context("127.0.0.1").wrap_socket(secured.socket, server_side=True)
    plain = http.server.ThreadingHTTPServer(("127.0.0.1", PORTS[1]), handler)
    for server in (secured, plain):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Mirror(
            f"https://127.0.0.1:{secured.server_port}",
            f"http://127.0.0.1:{plain.server_port}",
            authority.pem,
            seen,
        )
    finally:
        for server in (secured, plain):
            server.shutdown()
            server.server_close()
