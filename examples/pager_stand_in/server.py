"""The stand-ins on the wire, and PagerDuty's webhooks. Faults are asked for by service, as of Slack's stand-in."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import threading
import time
import urllib.parse
import uuid
from collections import defaultdict, deque
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from examples.answering import AnsweringHandler
from examples.pager_stand_in.services import GENIE_KEY, REST_TOKEN, Answer, Opsgenie, PagerDuty
from examples.slack_stand_in.server import Fault


class StandIn:
    """Both services on loopback: `url` for the clients; `acknowledge` is a person in PagerDuty."""

    def __init__(self, webhook_secret: str = "hook") -> None:
        self.pagerduty, self.opsgenie = PagerDuty(), Opsgenie()
        self.webhook_secret = webhook_secret
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        """By service: what befalls its next calls."""
        self.away: set[str] = set()
        """Services that close every connection without an answer."""
        self.calls: list[str] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> StandIn:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def pages(self) -> list[str]:
        """Keys for which a person was called, by either service."""
        return [*self.pagerduty.pages, *self.opsgenie.pages]

    def webhook(
        self, to: str, key: str, who: str, *, kind: str = "incident.acknowledged", secret: str | None = None,
        at_s: float | None = None, body: bytes | None = None,
    ) -> int:  # fmt: skip
        """Tells `to` what a person did, signed as PagerDuty signs (v1, HMAC-SHA256); returns the status."""
        at = datetime.fromtimestamp(time.time() if at_s is None else at_s, UTC)
        event = {
            "id": uuid.uuid4().hex,
            "event_type": kind,
            "resource_type": "incident",
            "occurred_at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "agent": {"id": "PLH1HKV", "summary": who, "type": "user_reference"},
            "data": {"id": "PGR0VU2", "type": "incident", "status": "acknowledged", "incident_key": key},
        }
        sent = json.dumps({"event": event}).encode() if body is None else body
        digest = hmac.new((secret or self.webhook_secret).encode(), sent, hashlib.sha256).hexdigest()
        place = urllib.parse.urlsplit(to)
        connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=10)
        headers = {"Content-Type": "application/json", "X-PagerDuty-Signature": f"v1={'0' * 64},v1={digest}"}
        connection.request("POST", place.path, sent, headers)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    def answer(self, method: str, path: str, query: dict[str, str], headers: Any, body: Any) -> Answer:
        """One request, worked on."""
        if path == "/v2/enqueue":
            return self.pagerduty.enqueue(body)
        if path == "/v2/change/enqueue":
            return self.pagerduty.change(body)
        if path in ("/incidents", "/abilities"):
            if headers.get("Authorization") != f"Token token={REST_TOKEN}":
                return 401, {"error": {"message": "Unauthorized"}}
            return self.pagerduty.incidents(query.get("incident_key", "")) if path == "/incidents" else (200, {})
        if not path.startswith("/v2/alerts"):
            return 404, {}
        if headers.get("Authorization") != f"GenieKey {GENIE_KEY}":
            return 401, {"message": "Could not authenticate"}
        alias, _, verb = path.removeprefix("/v2/alerts").strip("/").partition("/")
        alias = urllib.parse.unquote(alias)
        if method == "POST":
            return self.opsgenie.create(body) if not alias else self.opsgenie.act(alias, verb)
        if alias == "count":
            return 200, {"data": {"count": len(self.opsgenie.alerts)}}
        return self.opsgenie.get(alias)

    def _handler(stand_in) -> type[BaseHTTPRequestHandler]:
        class Handler(AnsweringHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._do(None)

            def do_POST(self) -> None:
                self._do(json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}"))

            def _do(self, body: Any) -> None:
                place = urllib.parse.urlsplit(self.path)
                service = "opsgenie" if place.path.startswith("/v2/alerts") else "pagerduty"
                stand_in.calls.append(f"{service} {self.command} {place.path}")
                faults = stand_in.faults[service]
                fault = faults.popleft() if faults else None
                kind = "lost_request" if service in stand_in.away else fault.kind if fault else ""
                if kind == "limited":
                    retry = {"Retry-After": f"{fault.seconds:g}" if fault else "1"}
                    self._send(429, {"message": "too many"}, retry)
                elif kind == "broken":
                    self._send(503, {})
                elif kind == "refused":
                    self._send(403, {"message": "forbidden"})
                elif kind == "lost_request":
                    self.close_connection = True
                else:
                    query = dict(urllib.parse.parse_qsl(place.query))
                    status, answer = stand_in.answer(self.command, place.path, query, self.headers, body)
                    if kind == "lost_answer":
                        self.close_connection = True
                        return
                    self._send(status, answer)

            def _send(self, status: int, answer: dict[str, Any], headers: dict[str, str] | None = None) -> None:
                body = json.dumps(answer).encode()
                self.send_all(status, body, headers)

        return Handler
