"""The stand-in's workspace: channels, messages, people, and what each Web API method does to them.

Shapes and errors follow docs.slack.dev/reference/methods; what is not written down there is not imitated. A method
that Nightshift does not use answers `unknown_method`.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nightshift.agent.notify.slack.blocks import problems

TEAM = "T0NIGHT"
BOT = "U0BOT"
Answer = dict[str, Any]


class Failed(Exception):
    """The method answers `ok: false` with this error."""

    def __init__(self, error: str, **more: Any) -> None:
        super().__init__(error)
        self.answer: Answer = {"ok": False, "error": error, **more}


@dataclass
class Upload:
    """A file on its way: its address was given out, its bytes may have come."""

    name: str
    content: bytes = b""


@dataclass
class Workspace:
    """Everything that people of the workspace can see. Thread-safe by one lock."""

    users: dict[str, Answer] = field(default_factory=dict)
    channels: dict[str, list[Answer]] = field(default_factory=dict)
    archived: set[str] = field(default_factory=set)
    """Channels in which nothing is written any more; what stands there can be read."""
    whispers: list[Answer] = field(default_factory=list)
    """Messages that one person alone has seen: chat.postEphemeral and response URLs."""
    views: list[Answer] = field(default_factory=list)
    uploads: dict[str, Upload] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def add_user(self, user: str, email: str, **more: Any) -> None:
        """`more` overrides fields of the user object, such as `deleted=True`."""
        self.users[user] = {
            "id": user,
            "team_id": TEAM,
            "deleted": False,
            "is_bot": False,
            "is_restricted": False,
            "is_ultra_restricted": False,
            "is_email_confirmed": True,
            "profile": {"email": email},
        } | more

    def call(self, method: str, arguments: Mapping[str, Any], base_url: str) -> Answer:
        """The answer of a Web API method."""
        does: Callable[..., Answer] | None = getattr(self, "_" + method.replace(".", "_"), None)
        if does is None:
            return {"ok": False, "error": "unknown_method"}
        with self.lock:
            try:
                return {"ok": True} | does(arguments, base_url)
            except Failed as failed:
                return failed.answer

    def messages(self, channel: str) -> list[Answer]:
        """What stands in the channel itself, the oldest first."""
        with self.lock:
            return [m for m in self.channels[channel] if m.get("thread_ts", m["ts"]) == m["ts"]]

    def thread(self, channel: str, ts: str) -> list[Answer]:
        """The replies to a message, the oldest first."""
        with self.lock:
            return [m for m in self.channels[channel] if m.get("thread_ts") == ts and m["ts"] != ts]

    # Methods ----------------------------------------------------------------------------------------------------

    def _auth_test(self, _a: Mapping[str, Any], _url: str) -> Answer:
        return {"team_id": TEAM, "team": "night", "user_id": BOT, "user": "nightshift", "bot_id": "B0BOT"}

    def _chat_postMessage(self, a: Mapping[str, Any], _url: str) -> Answer:
        room = self._written(a)
        message = self._message(a)
        message["ts"] = f"{time.time():.3f}{next(self._numbers) % 1000:03d}"
        if a.get("thread_ts"):
            message["thread_ts"] = str(a["thread_ts"])
            message["broadcast"] = _true(a.get("reply_broadcast"))
        room.append(message)
        return {"channel": a["channel"], "ts": message["ts"], "message": message}

    def _chat_update(self, a: Mapping[str, Any], _url: str) -> Answer:
        self._written(a)
        old = self._find(a)
        new = self._message(a)
        old.update(text=new["text"], blocks=new["blocks"], edits=old.get("edits", 0) + 1)
        if new.get("metadata"):
            old["metadata"] = new["metadata"]
        return {"channel": a["channel"], "ts": old["ts"], "text": old["text"]}

    def _chat_delete(self, a: Mapping[str, Any], _url: str) -> Answer:
        self._room(a).remove(self._find(a))
        return {"channel": a["channel"], "ts": a["ts"]}

    def _chat_postEphemeral(self, a: Mapping[str, Any], _url: str) -> Answer:
        self._room(a)
        if a.get("user") not in self.users:
            raise Failed("user_not_in_channel")
        self.whispers.append(self._message(a) | {"user": a["user"], "channel": a["channel"]})
        return {"message_ts": f"{time.time():.6f}"}

    def _conversations_history(self, a: Mapping[str, Any], _url: str) -> Answer:
        room = [m for m in self._room(a) if m.get("thread_ts", m["ts"]) == m["ts"] or m.get("broadcast")]
        return self._paged(a, sorted(room, key=lambda m: m["ts"], reverse=True))

    def _conversations_replies(self, a: Mapping[str, Any], _url: str) -> Answer:
        room = [m for m in self._room(a) if a["ts"] in (m["ts"], m.get("thread_ts"))]
        if not room:
            raise Failed("thread_not_found")
        return self._paged(a, sorted(room, key=lambda m: m["ts"]))

    def _conversations_info(self, a: Mapping[str, Any], _url: str) -> Answer:
        self._room(a)
        return {"channel": {"id": a["channel"], "is_member": True, "is_archived": False}}

    def _users_info(self, a: Mapping[str, Any], _url: str) -> Answer:
        if a.get("user") not in self.users:
            raise Failed("user_not_found")
        return {"user": self.users[str(a["user"])]}

    def _views_open(self, a: Mapping[str, Any], _url: str) -> Answer:
        view = a["view"] if isinstance(a["view"], dict) else json.loads(a["view"])
        broken = problems(view)
        if broken:
            raise Failed("invalid_arguments", response_metadata={"messages": broken})
        stored = view | {"id": f"V{next(self._numbers)}"}
        self.views.append(stored)
        return {"view": stored}

    def _files_getUploadURLExternal(self, a: Mapping[str, Any], url: str) -> Answer:
        name = f"F{next(self._numbers)}"
        self.uploads[name] = Upload(str(a["filename"]))
        return {"upload_url": f"{url}/upload/{name}", "file_id": name}

    def _files_completeUploadExternal(self, a: Mapping[str, Any], _url: str) -> Answer:
        files = a["files"] if isinstance(a["files"], list) else json.loads(a["files"])
        room = self.channels.get(str(a.get("channel_id", "")))
        if room is None:
            raise Failed("channel_not_found")
        for file in files:
            if not self.uploads[file["id"]].content:
                raise Failed("file_not_found")
            message: Answer = {"ts": f"{time.time():.3f}{next(self._numbers) % 1000:03d}", "text": "", "blocks": []}
            named = {"name": self.uploads[file["id"]].name, "title": file.get("title", "")}
            message |= {"files": [{"id": file["id"]} | named]}
            if a.get("thread_ts"):
                message["thread_ts"] = str(a["thread_ts"])
            room.append(message)
        return {"files": files}

    # Shared -----------------------------------------------------------------------------------------------------

    def _room(self, a: Mapping[str, Any]) -> list[Answer]:
        room = self.channels.get(str(a.get("channel", "")))
        if room is None:
            raise Failed("channel_not_found")
        return room

    def _written(self, a: Mapping[str, Any]) -> list[Answer]:
        """The room, if it may be written to (chat.postMessage, chat.update: `is_archived`)."""
        if a.get("channel") in self.archived:
            raise Failed("is_archived")
        return self._room(a)

    def _find(self, a: Mapping[str, Any]) -> Answer:
        for message in self._room(a):
            if message["ts"] == a.get("ts"):
                return message
        raise Failed("message_not_found")

    def _message(self, a: Mapping[str, Any]) -> Answer:
        blocks = a.get("blocks") or []
        blocks = json.loads(blocks) if isinstance(blocks, str) else blocks
        broken = problems({"text": str(a.get("text", "")), "blocks": blocks})
        if broken:
            raise Failed("invalid_blocks", response_metadata={"messages": broken})
        if not blocks and not a.get("text"):
            raise Failed("no_text")
        metadata = a.get("metadata")
        metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
        return {"text": str(a.get("text", "")), "blocks": blocks, "metadata": metadata, "user": BOT}

    def _paged(self, a: Mapping[str, Any], found: list[Answer]) -> Answer:
        found = [m for m in found if float(m["ts"]) >= float(a.get("oldest") or 0)]
        start, limit = int(a.get("cursor") or 0), min(int(a.get("limit") or 100), 999)
        page = found[start : start + limit]
        if not _true(a.get("include_all_metadata")):
            page = [{k: v for k, v in m.items() if k != "metadata"} for m in page]
        more = start + limit < len(found)
        cursor = {"next_cursor": str(start + limit) if more else ""}
        return {"messages": page, "has_more": more, "response_metadata": cursor}


def _true(value: object) -> bool:
    return value in (True, 1, "1", "true", "True")
