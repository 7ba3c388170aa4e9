"""The nodes' HTTP side: each node answers on its own loopback port with the pages that the world last wrote."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from examples.demo.pages import KernelLine, kernel_page

DCGM, CADVISOR, KERNEL_LOG = "/metrics", "/metrics/cadvisor", "/kernel-log"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_MAX_LINES = 1_000


class NodeServer:
    """Serves one node. `pages` is replaced as a whole, so that no reader sees half of a tick."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.pages: dict[str, bytes] = {}
        self.kernel_log: list[KernelLine] = []
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name=f"node-{node}", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def log(self, t_s: float, text: str) -> None:
        self.kernel_log.append(KernelLine(len(self.kernel_log) + 1, t_s, text))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, owner: NodeServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        node = self.server.owner
        if url.path == KERNEL_LOG:
            self._answer(200, "application/x-ndjson", self._kernel_log(node, url.query))
        elif url.path in node.pages:
            self._answer(200, _TEXT, node.pages[url.path])
        else:
            self._answer(404, "text/plain", b"not found\n")

    @staticmethod
    def _kernel_log(node: NodeServer, query: str) -> bytes:
        after = parse_qs(query).get("after", ["0"])[0]
        cursor = int(after) if after.isdigit() else 0
        return kernel_page(node.kernel_log[cursor : cursor + _MAX_LINES])

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """The demo's terminal is not an access log."""
