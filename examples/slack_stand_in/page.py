"""The stand-in's workspace as a web page, so that the demo shows what Slack would: messages, threads, buttons.

Everything is text from the daemon and from outside; it is escaped, and there is no script.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.slack_stand_in.workspace import Answer, Workspace

REFRESH_S = 3
_STYLE = (Path(__file__).parent / "page.css").read_text()


def page(workspace: Workspace, channel: str, clicker: str) -> str:
    """The channel, the newest message last; buttons press as `clicker` (a user's id)."""
    person = html.escape(str(workspace.users[clicker]["profile"]["email"]))
    said = "".join(_message(workspace, channel, message) for message in workspace.messages(channel))
    whispers = [w for w in list(workspace.whispers) if w.get("user") == clicker][-3:]
    alone = "".join(f'<article class="text">{_text(w)}</article>' for w in whispers)
    only = f"<aside><small>Only visible to you</small>{alone}</aside>" if alone else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>#gpu-oncall</title>'
        f'<meta http-equiv="refresh" content="{REFRESH_S}"><style>{_STYLE}</style></head><body><main>'
        f"<h1># gpu-oncall</h1><p class=about>A stand-in for Slack on this machine. You click as {person}.</p>"
        f"{said or '<p>Nothing yet.</p>'}{only}</main></body></html>"
    )


def _message(workspace: Workspace, channel: str, message: Answer) -> str:
    edited = ' <span class="edited">(edited)</span>' if message.get("edits") else ""
    replies = workspace.thread(channel, message["ts"])
    thread = "".join(f"<article>{_body(workspace, reply)}</article>" for reply in replies)
    nested = f'<div class="thread" aria-label="Thread">{thread}</div>' if thread else ""
    head = '<header><b class="who">nightshift</b> <small class="app">APP</small></header>'
    return f"<article>{head}{_body(workspace, message)}{edited}{_buttons(channel, message)}{nested}</article>"


def _body(workspace: Workspace, message: Answer) -> str:
    files = "".join(
        f'<img src="/file/{html.escape(file["id"])}" alt="{html.escape(str(file.get("title", "")))}">'
        for file in message.get("files") or ()
        if file["id"] in workspace.uploads
    )
    return f'<div class="text">{_text(message)}</div>{files}'


def _text(message: Answer) -> str:
    parts = [piece for block in message.get("blocks") or () for piece in _rich(block)]
    return "".join(parts).strip() or html.escape(str(message.get("text", "")))


def _rich(value: Any) -> Iterator[str]:
    """Rich text elements as HTML; other blocks have nothing to read."""
    for element in value.get("elements") or () if value.get("type", "").startswith("rich_text") else ():
        kind = element.get("type")
        if kind == "text":
            said, style = html.escape(element["text"]), element.get("style") or {}
            said = f"<code>{said}</code>" if style.get("code") else said
            yield f"<b>{said}</b>" if style.get("bold") else said
        elif kind == "link":
            yield f"<u>{html.escape(element.get('text') or element['url'])}</u>"
        elif kind in ("user", "usergroup"):
            yield f"<mark>@{html.escape(element.get('user_id') or element.get('usergroup_id') or '')}</mark>"
        else:
            yield from _rich(element)


def _buttons(channel: str, message: Answer) -> str:
    shown = [e for b in message.get("blocks") or () if b.get("type") == "actions" for e in b["elements"]]
    return "".join(
        f'<form method="post" action="/press/{html.escape(channel)}/{html.escape(message["ts"])}/'
        f'{html.escape(e["action_id"])}"><button class="{html.escape(e.get("style", ""))}">'
        f"{html.escape(e['text']['text'])}</button></form>"
        for e in shown
    )
