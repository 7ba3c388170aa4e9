"""The stand-ins on the wire. Faults befall the next calls: `limited` (429), `broken` (503), `html` (a
proxy's page), `lost_request`, `lost_answer`."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from examples.answering import AnsweringHandler
from examples.ticket_stand_in.systems import JiraStandIn, ServiceNowStandIn, WebhookStandIn

System = JiraStandIn | ServiceNowStandIn | WebhookStandIn


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed leaves a broken connection; that is no fault of the server."""


class StandIn:
    """One system on loopback. `at` is called before and after each request with the moment and its line."""

    def __init__(self, system: System, at: Callable[[str, str], None] = lambda moment, line: None) -> None:
        self.system, self.at = system, at
        self.faults: deque[str] = deque()
        self.calls: list[str] = []
        self._lock = threading.Lock()
        self._http = _Server(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> StandIn:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _handler(stand_in) -> type[BaseHTTPRequestHandler]:
        class Handler(AnsweringHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._do()

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

            def _do(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                place = urllib.parse.urlsplit(self.path)
                line = f"{self.command} {place.path}"
                stand_in.calls.append(line)
                kind = stand_in.faults.popleft() if stand_in.faults else ""
                if kind == "lost_request":
                    self.close_connection = True
                    return
                if kind == "limited":
                    return self._send(429, {"error": "rate limit"}, {"Retry-After": "30"})
                if kind == "broken":
                    return self._send(503, {})
                if kind == "html":
                    return self._send(200, "<html>Sign in</html>", {"Content-Type": "text/html"})
                query = dict(urllib.parse.parse_qsl(place.query))
                stand_in.at("before", line)
                with stand_in._lock:
                    status, answer = stand_in.system.answer(
                        self.command, urllib.parse.unquote(place.path), query, dict(self.headers), body
                    )
                stand_in.at("after", line)
                if kind == "lost_answer":
                    self.close_connection = True
                    return
                self._send(status, answer)

            def _send(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
                text = answer if isinstance(answer, str) else json.dumps(answer)
                body = b"" if answer is None else text.encode()
                self.send_all(status, body, headers)

        return Handler
