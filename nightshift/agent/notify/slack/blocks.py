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


def text(content: str, *, bold: bool = False, code: bool = False, limit: int = 600) -> Block:
    """Text from anywhere, shown as it is: one line, no control characters, nothing interpreted."""
    shown = plain(content.encode(errors="replace").decode(), limit)  # a lone surrogate has no place in JSON
    # Slack refuses an empty text, and the whole message with it.
    element: Block = {"type": "text", "text": shown or "\u2013"}
    style = {name: True for name, wanted in (("bold", bold), ("code", code)) if wanted}
    return element | ({"style": style} if style else {})


def link(url: str, content: str) -> Block:
    """A link of our own; the address is never from outside."""
    return {"type": "link", "url": url, "text": plain(content, 100)}


def mention(target: str) -> Block:
    """A user (`U…`, `W…`) or a user group (`S…`), from settings alone."""
    if target.startswith("S"):
        return {"type": "usergroup", "usergroup_id": target}
    return {"type": "user", "user_id": target}


def line(*elements: Block) -> Block:
    return {"type": "rich_text_section", "elements": [*elements, {"type": "text", "text": "\n"}]}


def paragraph(lines: Sequence[Block]) -> Block:
    return {"type": "rich_text", "elements": list(lines)}


def button(content: str, action: str, value: str, style: str = "") -> Block:
    """`style`: primary, danger, or none."""
    made: Block = {
        "type": "button",
        # Else Slack turns `:fire:` of a name from outside into a picture.
        "text": {"type": "plain_text", "text": content, "emoji": False},
        "action_id": action,
        "value": value,
    }
    return made | ({"style": style} if style else {})


def actions(buttons: Sequence[Block]) -> Block:
    return {"type": "actions", "elements": list(buttons)}


def fallback(content: str) -> str:
    """The line for notifications: Slack's three control characters escaped
    (docs.slack.dev/messaging/formatting-message-text#escaping)."""
    return plain(content, 300).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


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


def _measures(block: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int]]:
    """(name, how many characters or elements, the fewest, the most) of what Slack limits in one object."""
    kind, said = block.get("type"), block.get("text")
    for name, limit in _LENGTHS.items():
        if isinstance(block.get(name), str):
            yield name, len(block[name]), 0, limit
    if kind in _COUNTS:
        yield "elements", len(block.get("elements", ())), 1, _COUNTS[kind]
    # A block has its text in an object of its own, which is the next thing that is walked into.
    if kind in _TEXTS and isinstance(said, Mapping):
        yield "text", len(said.get("text", "")), 1, _TEXTS[kind]
    if kind in ("text", "mrkdwn", "plain_text"):
        yield "text", len(str(said or "")), 1, MAX_TEXT


def _walk(place: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, count, least, most in _measures(value):
            if not least <= count <= most:
                yield f"{place}.{name}: {count}, not {least} to {most}"
        for name, item in value.items():
            yield from _walk(f"{place}.{name}" if place else str(name), item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _walk(f"{place}[{number}]", item)
