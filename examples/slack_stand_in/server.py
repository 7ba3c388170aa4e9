"""The stand-in on the wire: the Web API over HTTP, Socket Mode over WebSocket, and people who click.

Faults are asked for per method: a 429 with Retry-After, a 5xx, an answer that is lost after the work was done, a
request that is lost before it, a slow answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import queue
import threading
import time
import urllib.parse
import uuid
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from examples.answering import AnsweringHandler
from examples.slack_stand_in.page import page
from examples.slack_stand_in.workspace import TEAM, Answer, Workspace

if TYPE_CHECKING:
    from websockets.sync.server import ServerConnection


_HTML = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; form-action 'self'",
}


@dataclass(frozen=True)
class Fault:
    """What befalls one call: `limited` (429), `broken` (503 before the work), `lost_answer` (the work is done, then
    the connection closed), `lost_request` (closed before the work), `slow` (answered after `seconds`), `refused`
    (`ok: false` with `error`)."""

    kind: str
    seconds: float = 1.0
    error: str = ""


@dataclass(frozen=True)
class Acknowledged:
    """How a request of a person was answered: HTTP status (200 for a WebSocket ack), and after how long."""

    status: int
    after_s: float
    body: str = ""


class StandIn:
    """A Slack on loopback. `api_url` for the client; `click`, `submit` and `command` are its people."""

    def __init__(self, signing_secret: str = "secret", *, sockets: bool = True) -> None:
        """`sockets`: offers Socket Mode (needs `websockets`); else apps are called at a request URL alone."""
        self.workspace = Workspace()
        self.signing_secret = signing_secret
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.revoked: dict[str, str] = {}
        """Tokens that are good no more → the error that every method answers."""
        self.delivered: tuple[str, dict[str, Any]] = ("", {})
        self.closes_before_ack = False
        """Whether a socket breaks just after something was sent on it."""
        self.calls: list[tuple[float, str]] = []
        self._sockets: set[ServerConnection] = set()
        self.opened = 0
        """Sockets that were ever open."""
        self._acks: dict[str, queue.Queue[Answer]] = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.api_url = f"{self.url}/api/"
        self.shown: tuple[str, str, str] | None = None
        """(channel, user, the app's request URL) of the page that a browser is shown at `/`; None: none is."""
        self._runs: list[Callable[[], None]] = [lambda: self._http.serve_forever(0.02)]
        self._ends: list[Callable[[], None]] = [self._http.shutdown, self._http.server_close]
        self.ws_url = ""
        if sockets:
            from websockets.sync.server import serve

            ws = serve(self._session, "127.0.0.1", 0)
            self.ws_url = f"ws://127.0.0.1:{ws.socket.getsockname()[1]}/"
            self._runs.append(ws.serve_forever)
            self._ends.insert(0, ws.shutdown)

    def __enter__(self) -> StandIn:
        for run in self._runs:
            threading.Thread(target=run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends:
            end()

    @property
    def connected(self) -> int:
        """Sockets that are open."""
        return len(self._sockets)

    def disconnect(self, reason: str = "refresh_requested") -> None:
        """Asks every socket to reconnect, as Slack does (docs.slack.dev/apis/events-api/using-socket-mode)."""
        from websockets.exceptions import ConnectionClosed

        for socket in list(self._sockets):
            with contextlib.suppress(ConnectionClosed):  # it was just being closed anyway
                socket.send(json.dumps({"type": "disconnect", "reason": reason}))
            socket.close()

    # People -----------------------------------------------------------------------------------------------------

    def click(
        self,
        user: str,
        channel: str,
        ts: str,
        action: str,
        *,
        to: str = "",
        value: str | None = None,
        workspace: str = TEAM,
        signed_s: float | None = None,
        secret: str | None = None,
    ) -> Acknowledged:
        """Clicks a button of a message; `to` is the app's request URL (empty: by the socket). `value` forges the
        button's value, `signed_s` and `secret` the signature."""
        message = next(m for m in self.workspace.channels[channel] if m["ts"] == ts)
        shown = [e for b in message["blocks"] if b["type"] == "actions" for e in b["elements"]]
        button = next((e for e in shown if e["action_id"] == action), None)
        if button is None and value is None:
            raise LookupError(f"the message has no button {action}")
        pressed = {"action_id": action, "type": "button", "block_id": "b", "action_ts": f"{time.time():.6f}"}
        pressed["value"] = str(button["value"]) if value is None and button is not None else str(value)
        payload = self._payload("block_actions", user, workspace) | {
            "channel": {"id": channel},
            "message": message,
            "actions": [pressed],
            "response_url": f"{self.url}/respond/{user}/{channel}",
            "container": {"type": "message", "message_ts": ts, "channel_id": channel},
        }
        return self._deliver("interactive", payload, to, signed_s, secret)

    def submit(self, user: str, reason: str, *, to: str = "", workspace: str = TEAM) -> Acknowledged:
        """Submits the newest dialog with a reason."""
        view = self.workspace.views[-1] | {"state": {"values": {"reason": {"reason": {"value": reason}}}}}
        payload = self._payload("view_submission", user, workspace) | {"view": view}
        return self._deliver("interactive", payload, to, None, None)

    def command(self, user: str, text: str, channel: str, *, to: str = "", workspace: str = TEAM) -> Acknowledged:
        """Types `/nightshift text`."""
        payload = {
            "command": "/nightshift",
            "text": text,
            "user_id": user,
            "team_id": workspace,
            "channel_id": channel,
            "trigger_id": uuid.uuid4().hex,
            "response_url": f"{self.url}/respond/{user}/{channel}",
            "api_app_id": "A0",
        }
        return self._deliver("slash_commands", payload, to, None, None)

    def mention(
        self, user: str, channel: str, thread: str, text: str, *, to: str = "", workspace: str = TEAM
    ) -> Acknowledged:
        """Mentions the app in a thread (docs.slack.dev/reference/events/app_mention)."""
        event = {"type": "app_mention", "user": user, "text": f"<@U0BOT> {text}", "channel": channel}
        event |= {"ts": f"{time.time():.6f}", "thread_ts": thread}
        payload = {"type": "event_callback", "team_id": workspace, "api_app_id": "A0", "event": event}
        return self._deliver("events_api", payload | {"event_id": f"Ev{uuid.uuid4().hex}"}, to, None, None)

    def reply(
        self, user: str, channel: str, thread: str, text: str, *, to: str = "", workspace: str = TEAM, **more: str
    ) -> Acknowledged:
        """Writes in a thread (docs.slack.dev/reference/events/message.channels)."""
        event = {"type": "message", "user": user, "text": text, "channel": channel, "channel_type": "channel"}
        event |= {"ts": f"{time.time():.6f}", "thread_ts": thread} | more
        payload = {"type": "event_callback", "team_id": workspace, "api_app_id": "A0", "event": event}
        return self._deliver("events_api", payload | {"event_id": f"Ev{uuid.uuid4().hex}"}, to, None, None)

    def _payload(self, kind: str, user: str, workspace: str) -> dict[str, Any]:
        person = {"id": user, "team_id": workspace}
        who = {"user": person, "team": {"id": TEAM}, "trigger_id": uuid.uuid4().hex}
        return {"type": kind, "api_app_id": "A0", "token": "unused", **who}

    def _deliver(
        self, kind: str, payload: dict[str, Any], to: str, signed_s: float | None, secret: str | None
    ) -> Acknowledged:
        self.delivered = (kind, payload)
        return self._by_http(kind, payload, to, signed_s, secret) if to else self._by_socket(kind, payload)

    def deliver_again(self, *, to: str = "") -> Acknowledged:
        """What a person did last, once more, as Slack does where no acknowledgement reached it."""
        return self._deliver(*self.delivered, to, None, None)

    def _by_http(
        self, kind: str, payload: dict[str, Any], to: str, signed_s: float | None, secret: str | None
    ) -> Acknowledged:
        form = payload if kind == "slash_commands" else {"payload": json.dumps(payload)}
        is_event = kind == "events_api"
        body = json.dumps(payload) if is_event else urllib.parse.urlencode(form)
        stamp = str(int(time.time() if signed_s is None else signed_s))
        key = (self.signing_secret if secret is None else secret).encode()
        digest = hmac.new(key, f"v0:{stamp}:{body}".encode(), hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/json" if is_event else "application/x-www-form-urlencoded",
            "X-Slack-Request-Timestamp": stamp,
            "X-Slack-Signature": f"v0={digest}",
        }
        place = urllib.parse.urlsplit(to)
        connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=10)
        began = time.monotonic()
        connection.request("POST", place.path, body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return Acknowledged(answer.status, time.monotonic() - began, text)

    def _by_socket(self, kind: str, payload: dict[str, Any]) -> Acknowledged:
        envelope = uuid.uuid4().hex
        waiting = self._acks[envelope] = queue.Queue()
        began = time.monotonic()
        socket = next(iter(self._sockets))
        accepts = kind == "interactive"
        socket.send(
            json.dumps(
                {"envelope_id": envelope, "type": kind, "payload": payload, "accepts_response_payload": accepts}
            )
        )
        if self.closes_before_ack:
            socket.close()
            return Acknowledged(0, time.monotonic() - began)
        answer = waiting.get(timeout=10)
        return Acknowledged(200, time.monotonic() - began, json.dumps(answer.get("payload", "")))

    def press(self, channel: str, ts: str, action: str) -> None:
        """The page's reader presses a button; a rejection gets a reason of its own."""
        if self.shown is None:
            return
        _, user, to = self.shown
        seen = len(self.workspace.views)
        self.click(user, channel, ts, action, to=to)
        if action == "reject":
            deadline = time.monotonic() + 3.0  # Slack's dialogs have to be opened within 3 s
            while len(self.workspace.views) == seen and time.monotonic() < deadline:
                time.sleep(0.02)
            self.submit(user, "rejected on the stand-in's page", to=to)

    # Wire -------------------------------------------------------------------------------------------------------

    def _session(self, socket: ServerConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        socket.send(json.dumps({"type": "hello", "num_connections": 1, "connection_info": {"app_id": "A0"}}))
        self._sockets.add(socket)
        self.opened += 1
        try:
            for text in socket:
                answer = json.loads(text)
                waiting = self._acks.pop(answer.get("envelope_id", ""), None)
                if waiting is not None:
                    waiting.put(answer)
        except ConnectionClosed:
            pass
        finally:
            self._sockets.discard(socket)

    def answer(self, method: str, arguments: dict[str, Any]) -> Answer:
        self.calls.append((time.time(), method))
        if method == "apps.connections.open":
            return {"ok": True, "url": self.ws_url}
        return self.workspace.call(method, arguments, self.url)

    def _handler(stand_in) -> type[BaseHTTPRequestHandler]:
        class Handler(AnsweringHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._do(b"")

            def do_POST(self) -> None:
                self._do(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

            def _do(self, body: bytes) -> None:
                place = urllib.parse.urlsplit(self.path)
                parts = place.path.strip("/").split("/")
                if stand_in.shown is not None and parts == [""]:
                    self.send_all(200, page(stand_in.workspace, *stand_in.shown[:2]).encode(), _HTML)
                    return
                if stand_in.shown is not None and parts[0] == "press" and len(parts) == 4 and self._is_ours():
                    stand_in.press(*parts[1:])
                    self.send_all(303, b"", {"Location": "/"})
                    return
                if parts[0] == "file" and parts[1:] and parts[1] in stand_in.workspace.uploads:
                    self.send_all(200, stand_in.workspace.uploads[parts[1]].content, {"Content-Type": "image/png"})
                    return
                if parts[0] == "upload":
                    stand_in.workspace.uploads[parts[1]].content = body
                    self.send_all(200, b"OK")
                elif parts[0] == "respond":
                    said = json.loads(body) | {"user": parts[1], "channel": parts[2]}
                    stand_in.workspace.whispers.append(said)
                    self.send_all(200, b"ok")
                elif parts[0] == "api":
                    self._api(parts[1], place.query, body)
                else:
                    self.send_all(404, b"")

            def _is_ours(self) -> bool:
                """Whether a form of the page itself was sent, by what browsers say (W3C Fetch Metadata)."""
                return self.command == "POST" and self.headers.get("Sec-Fetch-Site") == "same-origin"

            def _api(self, method: str, query: str, body: bytes) -> None:
                faults = stand_in.faults[method]
                fault = faults.popleft() if faults else None
                if fault is not None and fault.kind == "limited":
                    self.send_all(429, b'{"ok":false,"error":"ratelimited"}', {"Retry-After": f"{fault.seconds:g}"})
                    return
                if fault is not None and fault.kind == "broken":
                    self.send_all(503, b"upstream connect error")
                    return
                if fault is not None and fault.kind == "lost_request":
                    self.close_connection = True
                    return
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                error = stand_in.revoked.get(token, fault.error if fault is not None else "")
                if error:
                    self.send_all(200, json.dumps({"ok": False, "error": error}).encode())
                    return
                if not token.startswith("x"):
                    self.send_all(200, b'{"ok":false,"error":"not_authed"}')
                    return
                if body and "json" in self.headers.get("Content-Type", ""):
                    arguments = json.loads(body)
                else:
                    arguments = dict(urllib.parse.parse_qsl(body.decode() or query))
                answer = stand_in.answer(method, arguments)
                if fault is not None and fault.kind == "slow":
                    time.sleep(fault.seconds)
                if fault is not None and fault.kind == "lost_answer":
                    self.close_connection = True
                    return
                self.send_all(200, json.dumps(answer).encode())

        return Handler
