"""What the stand-ins of other people's services answer with."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from typing import Any


class AnsweringHandler(BaseHTTPRequestHandler):
    """A request handler that sends a whole answer, and prints nothing."""

    def send_all(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """JSON, unless `headers` say another type."""
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass
