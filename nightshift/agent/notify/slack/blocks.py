"""Block Kit, built from rich text only: what comes from outside is a text element, which Slack shows and never
interprets. So no log line, label or name can become a link, a mention, an emoji or markup.

Limits: docs.slack.dev/reference/block-kit and docs.slack.dev/reference/methods/chat.postMessage, checked by
`problems` before anything is sent (the stand-in server of the tests checks them again).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.agent.rca.summary import plain
from nightshift.collectors.seal import fingerprint, sha256_hex

Block = dict[str, Any]
MAX_BLOCKS = 50
MAX_TEXT = 3000
_MAX_FALLBACK = 4000
_LENGTHS = {
    "block_id": 255,
    "action_id": 255,
    "callback_id": 255,
    "value": 2000,
    "url": 3000,
    "private_metadata": 3000,
    "accessibility_label": 75,
}
_COUNTS = {"actions": 25, "context": 10}
_TEXTS = {"button": 75, "header": 150, "section": MAX_TEXT}


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """What stands in a channel: blocks, and one plain line for notifications and screen readers."""

    text: str
    blocks: tuple[Block, ...]

    @property
    def sha256(self) -> str:
        """Of the content: a message is edited only when this changes."""
        return fingerprint({"text": self.text, "blocks": list(self.blocks)})


@dataclass(frozen=True, slots=True)
class ChatImage:
    """An image (PNG bytes) for a thread; `title` is what screen readers say."""

    title: str
    png: bytes

    @property
    def sha256(self) -> str:
        return sha256_hex(self.png)


def text(said: str, *, bold: bool = False, code: bool = False, limit: int = 600) -> Block:
    """Text from anywhere, shown as it is: one line, no control characters, nothing interpreted."""
    shown = plain(said.encode(errors="replace").decode(), limit)  # a lone surrogate has no place in JSON
    element: Block = {"type": "text", "text": shown or "\u2013"}
    style = {name: True for name, wanted in (("bold", bold), ("code", code)) if wanted}
    return element | ({"style": style} if style else {})


def link(url: str, said: str) -> Block:
    """A link of our own; the address is never from outside."""
    return {"type": "link", "url": url, "text": plain(said, 100)}


def mention(target: str) -> Block:
    """A user (`U…`, `W…`) or a user group (`S…`), from settings alone."""
    if target.startswith("S"):
        return {"type": "usergroup", "usergroup_id": target}
    return {"type": "user", "user_id": target}


def line(*elements: Block) -> Block:
    return {"type": "rich_text_section", "elements": [*elements, {"type": "text", "text": "\n"}]}


def paragraph(lines: Sequence[Block]) -> Block:
    return {"type": "rich_text", "elements": list(lines)}


def button(said: str, action: str, value: str, style: str = "") -> Block:
    """`style`: primary, danger, or none."""
    made: Block = {
        "type": "button",
        "text": {"type": "plain_text", "text": said, "emoji": False},
        "action_id": action,
        "value": value,
    }
    return made | ({"style": style} if style else {})


def actions(buttons: Sequence[Block]) -> Block:
    return {"type": "actions", "elements": list(buttons)}


def fallback(said: str) -> str:
    """The line for notifications: Slack's three control characters escaped
    (docs.slack.dev/messaging/formatting-message-text#escaping)."""
    return plain(said, 300).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def problems(payload: Mapping[str, Any]) -> list[str]:
    """How a message or a modal breaks Slack's published limits, each with its place; empty where it does not."""
    found = list(_walk("", payload))
    if len(str(payload.get("text", ""))) > _MAX_FALLBACK:
        found.append(f"text: longer than {_MAX_FALLBACK}")
    limit = 100 if payload.get("type") == "modal" else MAX_BLOCKS
    if len(payload.get("blocks", ())) > limit:
        found.append(f"blocks: {len(payload['blocks'])}, not more than {limit}")
    for name in ("title", "submit", "close"):
        if payload.get("type") == "modal" and len(payload.get(name, {}).get("text", "")) > 24:
            found.append(f"{name}: longer than 24")
    return found


def _walk(place: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        kind = value.get("type")
        for name, limit in _LENGTHS.items():
            if isinstance(value.get(name), str) and len(value[name]) > limit:
                yield f"{place}.{name}: {len(value[name])} characters, not more than {limit}"
        if kind in _COUNTS and not 1 <= len(value.get("elements", ())) <= _COUNTS[kind]:
            yield f"{place}.elements: {len(value.get('elements', ()))}, not 1 to {_COUNTS[kind]}"
        said = value.get("text")
        if kind in _TEXTS and isinstance(said, Mapping) and not 1 <= len(said.get("text", "")) <= _TEXTS[kind]:
            yield f"{place}.text: {len(said.get('text', ''))} characters, not 1 to {_TEXTS[kind]}"
        if kind in ("text", "mrkdwn", "plain_text") and not 1 <= len(str(said or "")) <= MAX_TEXT:
            yield f"{place}.text: {len(str(said or ''))} characters, not 1 to {MAX_TEXT}"
        for name, item in value.items():
            yield from _walk(f"{place}.{name}" if place else str(name), item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _walk(f"{place}[{number}]", item)
