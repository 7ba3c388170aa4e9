"""One connection: HTTP in, answers and events out, and the faults that are planned for it."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from . import protobuf
from .errors import ApiError, NoSuchPath
from .faults import STATUS, STRANGERS, THROTTLED, WARNING, Fault
from .query import is_true
from .rbac import denied
from .storage import Object

if TYPE_CHECKING:
    from .server import ApiServer


class Handler(BaseHTTPRequestHandler):
    """One connection. HTTP/1.1 with chunked watches, as the real server."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    api_server: ApiServer

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: `ApiServer.requests` holds what was asked."""

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def do_PATCH(self) -> None:
        self._serve("PATCH")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        media = (self.headers.get("Content-Type") or "application/json").partition(";")[0].strip()
        if "fieldManager" not in query and media != "application/apply-patch+yaml":
            query["_agent"] = (self.headers.get("User-Agent") or "unknown").partition("/")[0]
        token = token_of(self.headers.get("Authorization") or "")
        fault = self.api_server.faults.take(method, url.path, token)
        if fault is Fault.DISCONNECT:
            self._hang_up()
            return
        if fault is Fault.TOO_MANY:
            self._answer(429, THROTTLED, retry="1")
            return
        if fault in STRANGERS:
            self._answer(*STRANGERS[fault])
            return
        try:
            if fault in STATUS:
                raise ApiError(*STATUS[fault])
            user = self.api_server.authenticate(self.headers.get("Authorization") or "")
            if fault is Fault.DENIED:
                raise denied(user, self.api_server.asked(method, url.path, query))
            if method == "GET" and is_true(query, "watch"):
                route = self.api_server.permitted(user, method, url.path, query)
                self.api_server.watch(self, route, query)
                self._end_stream()
                return
            body = _parse(raw, media)
            code, answer = self.api_server.respond(method, url.path, query, user, body, media)
        except ApiError as error:
            code, answer = error.code, error.message if isinstance(error, NoSuchPath) else error.status()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
            return
        if self.api_server.latency_s:
            time.sleep(self.api_server.latency_s)
        if fault is Fault.SLOW:
            time.sleep(self.api_server.faults.slow_s)
        if fault is Fault.LOST_REPLY:
            self._hang_up()
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._answer(code, answer, warns=fault is Fault.WARN)

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, code: int, answer: Any, *, warns: bool = False, retry: str | None = None) -> None:
        self.api_server.answers[code] += 1
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        if isinstance(answer, dict) and code == 429:
            retry = answer.get("details", {}).get("retryAfterSeconds")
        if retry is not None:
            self.send_header("Retry-After", str(retry))
        if warns:
            self.send_header("Warning", WARNING)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def start_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def send_event(self, kind: str, obj: Object) -> None:
        data = json.dumps({"type": kind, "object": obj}).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


def token_of(header: str) -> str:
    """The bearer token of an Authorization header; the scheme is written either way (RFC 9110, 11.1)."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else header.strip()


def _parse(raw: bytes, media: str) -> Any:
    if not raw:
        return None
    if media == protobuf.MEDIA:
        return protobuf.decode(raw)
    try:
        return yaml.safe_load(raw) if media.endswith("yaml") else json.loads(raw)
    except (ValueError, yaml.YAMLError) as error:
        raise ApiError("BadRequest", f"the object provided is unrecognized: {error}") from error
