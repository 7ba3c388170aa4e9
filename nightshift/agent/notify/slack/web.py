"""Calls to Slack's Web API, with what each failure means (`agent.notify.delivery`). The `reason` of a
refusal is Slack's error code (docs.slack.dev/reference/methods).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web import SlackResponse

from nightshift.agent.notify.delivery import DeliveryRefused, NoAnswer, RateLimited
from nightshift.agent.notify.slack.blocks import ChatImage, ChatMessage, problems
from nightshift.agent.rca.summary import plain

EVENT_TYPE = "nightshift_message"
_OURS = 200
_TRANSIENT = frozenset(
    {"internal_error", "fatal_error", "service_unavailable", "request_timeout", "ratelimited", "team_added_to_org"}
)
# Refusals of the token itself, whatever is asked (docs.slack.dev/reference/methods/auth.test).
_TOKEN = frozenset({"account_inactive", "invalid_auth", "not_authed", "token_expired", "token_revoked"})
# Refusals that concern one channel; another one may do.
UNREACHABLE_CHANNEL = frozenset(
    {
        "channel_not_found",
        "not_in_channel",
        "is_archived",
        "restricted_action",
        "restricted_action_read_only_channel",
    }
)
GONE = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})
"""Refusals of an edit whose message a person deleted, or that a workspace's policy no longer lets us edit."""


# Refusals that the next message meets, too; every other (`invalid_blocks`, `msg_too_long`) is of one message.
OF_A_PLACE = (
    UNREACHABLE_CHANNEL
    | _TOKEN
    | {"missing_scope", "not_allowed_token_type", "no_permission", "access_denied", "ekm_access_denied"}
    | {"org_login_required", "team_access_not_granted", "accesslimited", "deprecated_endpoint", "method_deprecated"}
)


class Opener(WebClient):
    """Opens sockets with the app-level token as its file has it now: one that was revoked is replaced without a
    restart, whenever the socket's client connects again (docs.slack.dev, apps.connections.open)."""

    def __init__(self, like: WebClient, renew: Callable[[], str]) -> None:
        super().__init__(base_url=like.base_url, proxy=like.proxy, timeout=like.timeout, retry_handlers=[])
        self._app_token = renew

    def apps_connections_open(self, *, app_token: str, **more: Any) -> SlackResponse:
        return super().apps_connections_open(app_token=self._app_token() or app_token, **more)


class SlackWeb:
    """The few methods that we use. No retries: the courier decides what a failure means for a message."""

    def __init__(
        self, token: str, api_url: str, proxy: str, timeout_s: float, renew: Callable[[], str] = lambda: ""
    ) -> None:
        """`renew`: the token as its file has it now, asked where Slack refuses the one that we have."""
        self._renew = renew
        # slack_sdk joins by urljoin, which drops the last part of an address without a slash.
        base = api_url if api_url.endswith("/") else f"{api_url}/"
        self.client = WebClient(
            token, base_url=base, proxy=proxy or None, timeout=max(1, round(timeout_s)), retry_handlers=[]
        )

    def whoami(self) -> tuple[str, str]:
        """(workspace id, our bot's user id)."""
        with self._meaning():
            answer = self.client.auth_test()
        return str(answer["team_id"]), str(answer["user_id"])

    def post(
        self, channel: str, key: str, message: ChatMessage | ChatImage, thread: str | None, broadcast: bool = False
    ) -> str:
        """Puts a message into a channel or thread, or a picture into a thread; returns its timestamp, or the
        file's id. `key` finds it again."""
        if isinstance(message, ChatImage):
            return self._upload(channel, key, message, thread)
        arguments: dict[str, Any] = {"reply_broadcast": True} if broadcast and thread else {}
        with self._meaning():
            answer = self.client.chat_postMessage(
                channel=channel,
                thread_ts=thread,
                metadata={"event_type": EVENT_TYPE, "event_payload": {"key": key}},
                # Slack would fetch the console's pages to preview them, and post what it gets.
                unfurl_links=False,
                unfurl_media=False,
                **_content(message),
                **arguments,
            )
        return str(answer["ts"])

    def update(self, channel: str, ts: str, key: str, message: ChatMessage) -> None:
        metadata = {"event_type": EVENT_TYPE, "event_payload": {"key": key}}
        with self._meaning():
            self.client.chat_update(channel=channel, ts=ts, metadata=metadata, **_content(message))

    def delete(self, channel: str, ts: str) -> None:
        with self._meaning():
            self.client.chat_delete(channel=channel, ts=ts)

    def find(self, channel: str, key: str, thread: str | None, oldest_s: float) -> list[str]:
        """Timestamps of our messages with a key, the oldest first."""
        found: list[str] = []
        cursor: str | None = None
        while True:
            arguments: dict[str, Any] = {
                "channel": channel,
                "oldest": f"{oldest_s:.6f}",
                "include_all_metadata": True,
                "limit": _OURS,
                "cursor": cursor,
            }
            with self._meaning():
                if thread:
                    answer = self.client.conversations_replies(ts=thread, **arguments)
                else:
                    answer = self.client.conversations_history(**arguments)
            for item in answer.get("messages") or ():
                metadata = item.get("metadata") or {}
                ours = metadata.get("event_type") == EVENT_TYPE
                files = {file.get("name") for file in item.get("files") or ()}
                # A file carries no metadata: it is found by its name, which has the key.
                if (ours and metadata.get("event_payload", {}).get("key") == key) or _file_name(key) in files:
                    found.append(str(item["ts"]))
            cursor = (answer.get("response_metadata") or {}).get("next_cursor")
            if not cursor:
                return sorted(found)

    def whisper(self, channel: str, user: str, message: ChatMessage, thread: str | None = None) -> None:
        """Tells one person alone."""
        with self._meaning():
            self.client.chat_postEphemeral(channel=channel, user=user, thread_ts=thread, **_content(message))

    def open_view(self, trigger_id: str, view: dict[str, Any]) -> None:
        with self._meaning():
            self.client.views_open(trigger_id=trigger_id, view=view)

    def member(self, user: str) -> dict[str, Any]:
        """What the workspace knows of a user."""
        with self._meaning():
            return dict(self.client.users_info(user=user)["user"])

    def is_in(self, channel: str) -> bool:
        """Whether our bot is in a channel, so that it may post and look there."""
        with self._meaning():
            return bool(self.client.conversations_info(channel=channel)["channel"].get("is_member"))

    def _upload(self, channel: str, key: str, picture: ChatImage, thread: str | None) -> str:
        """The external upload flow: files.getUploadURLExternal, the bytes, files.completeUploadExternal."""
        title = plain(picture.title, 150)
        with self._meaning():
            answer = self.client.files_upload_v2(
                channel=channel,
                thread_ts=thread,
                filename=_file_name(key),
                title=title,
                alt_txt=title,
                content=picture.png,
            )
        # An upload has no timestamp of its own before Slack has shared it; the id is what is known.
        return str(answer["files"][0]["id"])

    @contextmanager
    def _meaning(self) -> Iterator[None]:
        try:
            with _said():
                yield
        except DeliveryRefused as refused:
            token = self._renew() if refused.reason in _TOKEN else ""
            # The same token: the refusal stands, and asking again would only be refused again.
            if not token or token == self.client.token:
                raise
            self.client.token = token
            raise RateLimited(f"{refused}; its file has another token now", 0.1) from refused


def _file_name(key: str) -> str:
    return f"nightshift-{key.replace('/', '-')}.png"


def _content(message: ChatMessage) -> dict[str, Any]:
    content = {"text": message.text, "blocks": list(message.blocks)}
    broken = problems(content)
    if broken:
        raise DeliveryRefused(f"the message exceeds Slack's limits: {broken[0]}")
    return content


@contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except SlackApiError as error:
        response = error.response
        status = getattr(response, "status_code", 0)
        reason = str(response.get("error") or status) if hasattr(response, "get") else str(response)[:100]
        if status == 429 or reason == "ratelimited":
            raise RateLimited("Slack limits the call rate", _retry_after(response)) from error
        if status >= 500 or reason in _TRANSIENT:
            raise NoAnswer(f"Slack answered {status} {reason}") from error
        raise DeliveryRefused(reason) from error
    except (SlackClientError, OSError, HTTPException, ValueError) as error:
        raise NoAnswer(f"Slack did not answer: {type(error).__name__}: {error}"[:300]) from error


def _retry_after(response: Any) -> float:
    headers = {str(name).lower(): value for name, value in (getattr(response, "headers", None) or {}).items()}
    try:
        value = headers.get("retry-after", "1")
        return min(max(float(value[0] if isinstance(value, list) else value), 0.1), 3600.0)
    except (TypeError, ValueError):
        return 1.0
