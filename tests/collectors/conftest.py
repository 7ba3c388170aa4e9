"""A server of pages that can also be slow, cut short, silent or hostile, over real sockets."""

from __future__ import annotations

import ctypes
import gzip
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pynvml
import pytest

Respond = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class PageServer:
    """`pages` maps a path to what it answers: bytes, or a function that writes to the handler itself."""

    url: str
    server: ThreadingHTTPServer
    pages: dict[str, bytes | Respond] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def at(self, path: str) -> str:
        return self.url + path


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    """Registers collectors to be closed at the end of the test."""
    collectors: list[Any] = []

    def register(collector: Any) -> Any:
        collectors.append(collector)
        return collector

    yield register
    for collector in collectors:
        collector.close()


def answer(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def page_server() -> Iterator[PageServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        form = b""

        def do_GET(self) -> None:
            served.requests.append((self.path, dict(self.headers)))
            self.form = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            page = served.pages.get(self.path.partition("?")[0])
            try:
                if page is None:
                    answer(self, b"no", 404)
                elif isinstance(page, bytes):
                    answer(self, page)
                else:
                    page(self)
            except (ConnectionError, TimeoutError):
                self.close_connection = True

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.over = over = threading.Event()  # type: ignore[attr-defined]
    served = PageServer(f"http://127.0.0.1:{server.server_address[1]}", server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield served
    over.set()
    server.shutdown()
    server.server_close()
    thread.join()


def _over(handler: BaseHTTPRequestHandler, within_s: float) -> bool:
    """Whether the test ends within that time: what stalls does so to its end, so no patience outlasts it."""
    handler.close_connection = True
    return bool(handler.server.over.wait(within_s))  # type: ignore[attr-defined]


def _silent(handler: BaseHTTPRequestHandler) -> None:
    _over(handler, 300.0)


def _drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while not _over(handler, 0.05):
        handler.wfile.write(b"x")
        handler.wfile.flush()


def _drip_headers(handler: BaseHTTPRequestHandler) -> None:
    while not _over(handler, 0.05):
        handler.wfile.write(b"H")
        handler.wfile.flush()


def _cut(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"DCGM_FI_DEV_POWER_USAGE{")
    handler.close_connection = True


_BOMB = gzip.compress(b"a" * 20_000_000, 1)


def _bomb(handler: BaseHTTPRequestHandler) -> None:
    answer(handler, _BOMB, Content_Encoding="gzip")


def _endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(4000):
        handler.wfile.write(b"x" * 10_000)
    handler.close_connection = True


def _status(code: int) -> Respond:
    return lambda handler: answer(handler, b"refused", code)


def _redirect(handler: BaseHTTPRequestHandler) -> None:
    answer(handler, b"", 302, Location="http://127.0.0.1:1/")


FAULTS: dict[str, tuple[bytes | Respond | None, set[str]]] = {
    "silent": (_silent, {"timeout"}),
    "drip of the body": (_drip, {"timeout"}),
    "drip of the head": (_drip_headers, {"timeout"}),
    "cut": (_cut, {"truncated"}),
    "gzip bomb": (_bomb, {"too_large"}),
    "endless": (_endless, {"too_large"}),
    "unauthorised": (_status(401), {"unauthorised"}),
    "forbidden": (_status(403), {"unauthorised"}),
    "broken": (_status(500), {"http_status"}),
    "redirect": (_redirect, {"http_status"}),
    "absent": (None, {"not_found"}),
    "html": (b"<html><body>Sign in</body></html>\n", {"not_found", "malformed"}),
    "empty": (b"", {"truncated", "not_found", "malformed"}),
    "zeros": (b"\0" * 10_000, {"truncated", "not_found", "malformed"}),
    "broken gzip": (lambda h: answer(h, b"\x1f\x8bnot gzip", Content_Encoding="gzip"), {"malformed", "truncated"}),
}


@pytest.fixture(params=sorted(FAULTS))
def faulty(request: pytest.FixtureRequest, page_server: PageServer) -> tuple[PageServer, str, set[str], float]:
    """(server, path of the faulty page, reasons that may be told, seconds to wait for it)."""
    page, reasons = FAULTS[request.param]
    if page is not None:
        page_server.pages["/faulty"] = page
    return page_server, "/faulty", reasons, 0.5 if reasons == {"timeout"} else 60.0


_STUB = Path(__file__).parent / "nvml_stub" / "stub.c"
_loaded: list[ctypes.CDLL] = []
"""The stub, once this process has it: a fixture that another file imports is a second one to pytest."""


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The stub, loaded under NVIDIA's soname, so that pynvml's own loading finds it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("a C compiler is not installed")
        pytest.skip("a C compiler is not installed")
    if _loaded:
        return _loaded[0]
    if pynvml.nvmlLib is not None:
        pytest.skip("NVIDIA's own library is already loaded in this process")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(_STUB), "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run(command, check=True)
    _loaded.append(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))
    return _loaded[0]
