"""Slack as one part: listens for the desk, lets the courier post, and starts and stops with the App.

A Slack that is away, or refuses our token, never keeps the daemon from starting or from acting: it is said in the
log, on /metrics and by `nightshift doctor`, and tried again.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import re
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from slack_bolt import Ack, App, BoltRequest, Respond
from slack_bolt.adapter.socket_mode import SocketModeHandler
from slack_bolt.authorization import AuthorizeResult
from slack_sdk import WebClient
from slack_sdk.errors import SlackClientError
from slack_sdk.signature import SignatureVerifier
from starlette.concurrency import run_in_threadpool

from nightshift.agent.notify.delivery import DeliveryRefused
from nightshift.agent.notify.outlets.web import secret_of
from nightshift.agent.notify.slack.blocks import ChatMessage
from nightshift.agent.notify.slack.card import said
from nightshift.agent.notify.slack.clicks import ACTIONS, REASON_VIEW, Click, Desk, reason_of
from nightshift.agent.notify.slack.messages import ChatCourier
from nightshift.agent.notify.slack.settings import TIMEOUT_S, Settings
from nightshift.agent.notify.slack.web import Opener, SlackWeb
from nightshift.collectors.base import Permanent, Temporary

PATH = "/slack/events"
MAX_BODY_BYTES = 1_000_000
_CONNECT_AGAIN_S = (1.0, 30.0)
_MOST_TAKEN = 2000
_MOST_ASKED = 4000
_BUSY = "Too many clicks wait; nothing was done. Use the CLI or the console."


class Slack:
    """Posts incidents and takes clicks while it runs."""

    def __init__(
        self, settings: Settings, web: SlackWeb, courier: ChatCourier, desk: Desk, ready: threading.Event
    ) -> None:
        """`ready` is set once the token and the workspace are proven. Raises Permanent where a secret's file cannot
        be read."""
        self._settings, self.web, self.courier, self.desk, self._ready = settings, web, courier, desk, ready
        self._log = structlog.get_logger("slack")
        self._stopping = threading.Event()
        # Read at the start, so that a missing file is said then, and not at the first click.
        self._app_token, self._signing_secret = "", ""
        if settings.mode == "socket":
            self._app_token = secret_of("slack.app_token_file", settings.app_token_file)
        else:
            self._signing_secret = secret_of("slack.signing_secret_file", settings.signing_secret_file)
        self._taken: OrderedDict[str, None] = OrderedDict()
        self._mutex = threading.Lock()
        self._bot_user = ""
        self._bolt = self._build_bolt()
        self._socket: SocketModeHandler | None = None
        self._greeter = threading.Thread(target=self._greet, name="slack-greet", daemon=True)
        self.problem = "not connected yet"

    # Life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.desk.start()
        self.courier.start()
        self._greeter.start()

    def wake(self) -> None:
        self.courier.wake()

    def stop(self) -> None:
        self._stopping.set()
        if self._greeter.is_alive():
            self._greeter.join(TIMEOUT_S + 1)
        if self._socket is not None:
            client = self._socket.client
            # Else its monitor opens a new socket for the one that is closed next.
            client.auto_reconnect_enabled = False
            line = client.current_session.sock if client.current_session is not None else None
            if line is not None:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)  # else closing waits out the three seconds of its reader
            self._socket.close()  # type: ignore[no-untyped-call]
        self.courier.stop()
        self.desk.stop()

    def add_to(self, console: FastAPI) -> None:
        """In HTTP mode, takes Slack's requests at `PATH` of the console's port."""
        if self._settings.mode == "http":
            console.post(PATH, response_model=None)(self._from_http)

    def _greet(self) -> None:
        """Proves the token and the workspace, then opens the socket; again until both stand."""
        wait_s, most_s = _CONNECT_AGAIN_S
        while not self._stopping.is_set():
            try:
                workspace, self._bot_user = self.web.whoami()
                if workspace != self._settings.workspace:
                    raise DeliveryRefused(
                        f"the bot token belongs to workspace {workspace}, not {self._settings.workspace}"
                    )
                self._ready.set()
                if self._settings.mode == "socket":
                    self._connect()
                self.problem = ""
                self._log.info("slack connected", workspace=workspace, mode=self._settings.mode)
                self.courier.wake()
                return
            except (Temporary, Permanent, SlackClientError, OSError) as error:
                self.problem = str(error)[:300]
                self._log.error("slack connection failed", error=self.problem, again_in_s=wait_s)
                self._stopping.wait(max(wait_s, getattr(error, "retry_after_s", None) or 0.0))
                # Slack limits how often apps.connections.open is called; a token that is wrong stays wrong.
                wait_s = min(most_s, 2 * wait_s)

    def _connect(self) -> None:
        opener = Opener(self.web.client, lambda: secret_now("slack.app_token_file", self._settings.app_token_file))
        self._socket = SocketModeHandler(
            self._bolt, self._app_token, web_client=opener, proxy=self._settings.proxy or None
        )
        self._socket.connect()  # type: ignore[no-untyped-call]

    # Requests ---------------------------------------------------------------------------------------------------

    def _build_bolt(self) -> App:
        def authorize(team_id: str | None = None, enterprise_id: str | None = None) -> AuthorizeResult:
            return AuthorizeResult(
                enterprise_id=enterprise_id,
                team_id=team_id,
                bot_token=self.web.client.token,
                bot_user_id=self._bot_user,
            )

        logger = logging.getLogger("nightshift.slack")
        bolt = App(
            logger=logger,
            signing_secret="unused: what comes over HTTP is verified before it comes here",
            request_verification_enabled=False,
            authorize=authorize,
            client=WebClient(base_url=self.web.client.base_url),  # answers go to response URLs: no token needed
        )
        # Exactly ours: a pattern without ends would take `approve_all`, too.
        bolt.action(re.compile(rf"\A({'|'.join(ACTIONS)})\Z"))(self._on_button)
        bolt.action("reject")(self._on_reject)
        bolt.view(REASON_VIEW)(self._on_reason)
        bolt.command("/nightshift")(self._on_command)
        bolt.event("app_mention")(self._on_mention)
        bolt.event("message")(self._on_reply)
        return bolt

    def _on_button(self, ack: Ack, body: dict[str, Any], respond: Respond) -> None:
        ack()
        action = body["actions"][0]
        self._take(body, str(action["action_id"]), str(action.get("value", "")), respond)

    def _on_reject(self, ack: Ack, body: dict[str, Any], respond: Respond) -> None:
        ack()
        if self._is_again(body):
            return

        def tell(message: ChatMessage) -> None:
            _alone(respond, message.text, list(message.blocks))

        channel = str((body.get("channel") or {}).get("id", ""))
        if not self.desk.ask_reason(
            str(body["trigger_id"]), str(body["actions"][0].get("value", "")), channel, tell
        ):
            _busy(respond)

    def _on_reason(self, ack: Ack, body: dict[str, Any], view: dict[str, Any]) -> None:
        ack()
        if self._is_again(body):
            return
        channel, value, reason = reason_of(view)
        user, workspace = _who(body)

        def tell(message: ChatMessage) -> None:
            self.web.whisper(channel, user, message)

        self.desk.take(Click(user, workspace, "reject", f"{value}\n{reason}", channel, tell))

    def _on_command(self, ack: Ack, body: dict[str, Any], respond: Respond) -> None:
        ack()
        self._take(body, "command", str(body.get("text", ""))[:1000], respond)

    def _on_mention(self, body: dict[str, Any]) -> None:
        """A question in an incident's thread. Bolt acknowledges events by itself."""
        event = body["event"]
        # bots mention us too, and would be answered for ever
        if event.get("bot_id") or self._is_again(body):
            return
        user, channel = str(event.get("user", "")), str(event.get("channel", ""))

        def tell(message: ChatMessage) -> None:
            self.web.whisper(channel, user, message)

        value = f"{event.get('thread_ts', '')}\n{str(event.get('text', ''))[:_MOST_ASKED]}"
        if not self.desk.take(Click(user, str(body.get("team_id", "")), "ask", value, channel, tell)):
            tell(said(_BUSY))

    def _on_reply(self, body: dict[str, Any]) -> None:
        """What a person writes in a thread without naming us: a question, or words for people."""
        event = body["event"]
        text, thread = str(event.get("text", "")), str(event.get("thread_ts", ""))
        # a bot, an edit, a message outside threads, ours, one with a mention: that is another event, or for others
        if (
            event.get("bot_id")
            or event.get("subtype")
            or not thread
            or event.get("user") in ("", None, self._bot_user)
        ):
            return
        if "<@" in text or not text.rstrip().endswith("?") or self._is_again(body):
            return
        user, channel = str(event["user"]), str(event.get("channel", ""))

        def tell(message: ChatMessage) -> None:
            self.web.whisper(channel, user, message)

        value = f"{thread}\n{text[:_MOST_ASKED]}"
        self.desk.take_reply(Click(user, str(body.get("team_id", "")), "reply", value, channel, tell))

    def _take(self, body: Mapping[str, Any], what: str, value: str, respond: Respond) -> None:
        if self._is_again(body):
            return
        user, workspace = _who(body)
        channel = body.get("channel")
        name = str(channel.get("id", "")) if isinstance(channel, Mapping) else str(body.get("channel_id", ""))

        def tell(message: ChatMessage) -> None:
            _alone(respond, message.text, list(message.blocks))

        if not self.desk.take(Click(user, workspace, what, value, name, tell)):
            _busy(respond)

    def _is_again(self, body: Mapping[str, Any]) -> bool:
        """Whether Slack delivers again what it delivered before: it does so where the acknowledgement did not reach
        it, and each request of a person has a trigger (each event an id) of its own."""
        trigger = str(body.get("trigger_id") or body.get("event_id") or "")
        if not trigger:
            return False
        with self._mutex:
            again = trigger in self._taken
            self._taken[trigger] = None
            # Bounded: a repeat comes within minutes, so the oldest are the ones to forget.
            while len(self._taken) > _MOST_TAKEN:
                self._taken.popitem(last=False)
        return again

    def _is_signed(self, text: str, headers: dict[str, str]) -> bool:
        """By the secret that we have, or by the one that its file has by now."""
        if SignatureVerifier(self._signing_secret).is_valid_request(text, headers):
            return True
        found = secret_now("slack.signing_secret_file", self._settings.signing_secret_file)
        if found in ("", self._signing_secret) or not SignatureVerifier(found).is_valid_request(text, headers):
            return False
        self._signing_secret = found
        return True

    def _say_if_late(self, text: str, headers: Mapping[str, str]) -> None:
        """Where only the time is wrong it is a copy of an old request, or one of the two clocks is: then nobody can
        click, and Slack says no more than that we did not answer."""
        sent, given = (headers.get(f"x-slack-{name}", "") for name in ("request-timestamp", "signature"))
        if not (sent.isascii() and sent.isdecimal() and len(sent) < 13):
            return
        right = SignatureVerifier(self._signing_secret).generate_signature(timestamp=sent, body=text) or ""
        if hmac.compare_digest(right.encode(), given.encode(errors="replace")):
            off_s = round(time.time() - int(sent))
            self._log.error("slack request with wrong clock refused", off_s=off_s)

    async def _from_http(self, request: Request) -> Response:
        """Reads a bounded body and checks the signature and its age (5 minutes) before anything is parsed
        (docs.slack.dev/authentication/verifying-requests-from-slack)."""
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                return Response("too large", 413)
        headers = dict(request.headers.items())
        try:
            text = body.decode()
            if not self._is_signed(text, headers):
                self._say_if_late(text, headers)
                return Response("the signature does not hold, or is too old", 401)
            # Bolt wants lists, since HTTP allows a header twice.
            many: dict[str, str | Sequence[str]] = {name: [value] for name, value in headers.items()}
            asked = BoltRequest(body=text, query=request.url.query, headers=many)
        except (ValueError, RecursionError):
            return Response("not a request of Slack's", 400)
        # Bolt is synchronous: on the event loop it would hold up every page of the console.
        answer = await run_in_threadpool(self._bolt.dispatch, asked)
        plain = {name: values[0] for name, values in answer.headers.items() if values}
        return Response(answer.body, answer.status, headers=plain)


def try_out(settings: Settings) -> str:
    """Asks Slack whether the token, the workspace and the default channel do, and says what answered. Raises
    Permanent, naming what does not, or Temporary."""
    web = SlackWeb(secret_of("slack.bot_token_file", settings.bot_token_file), settings.api_url, settings.proxy,
              TIMEOUT_S)  # fmt: skip
    workspace, _ = web.whoami()
    if workspace != settings.workspace:
        raise Permanent(f"slack.workspace: the token belongs to {workspace}, not to {settings.workspace}")
    channels = [settings.channel, *(route.channel for route in settings.routes)]
    for channel in dict.fromkeys(channels):
        if not web.is_in(channel):
            raise Permanent(f"slack.channel {channel}: the app is not in it: /invite it there")
    return f"workspace {workspace}, {len(set(channels))} channels"


def _who(body: Mapping[str, Any]) -> tuple[str, str]:
    """(user id, their workspace's id) as Slack's envelope has them."""
    user = body.get("user")
    if isinstance(user, Mapping):
        team = body.get("team")
        home = user.get("team_id") or (team.get("id") if isinstance(team, Mapping) else "")
        return str(user.get("id", "")), str(home or "")
    return str(body.get("user_id", "")), str(body.get("team_id", ""))


def _alone(respond: Respond, text: str, blocks: list[dict[str, Any]] | None = None) -> None:
    """Tells the clicker alone, and leaves the message that they clicked as it is."""
    respond(text=text, blocks=blocks, response_type="ephemeral", replace_original=False)


def _busy(respond: Respond) -> None:
    _alone(respond, _BUSY)


def secret_now(setting: str, path: Path | None) -> str:
    """A secret as its file has it now; empty where that is no good just now, which is said."""
    try:
        return secret_of(setting, path)
    except Permanent as error:
        structlog.get_logger("slack").error("secret read failed", error=str(error))
        return ""
