"""Slack at its worst, over real HTTP and WebSocket: tokens revoked and renewed, dialogs that come too late,
deliveries that are repeated, late or broken off, limits on every method: nothing is lost, nothing happens twice."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from websockets.exceptions import ConnectionClosed

from examples.slack_stand_in.server import Fault
from nightshift.agent.console.server import Server
from nightshift.agent.notify import courier as courier_module
from nightshift.agent.notify.slack.service import PATH
from nightshift.agent.store.incident import IncidentState
from tests.agent.notify.slack.chat import ANN, BOB, CHANNEL, Chat, a_chat, buttons_of, started, until

pytestmark = pytest.mark.full
SOCKET = pytest.mark.parametrize("mode", ["socket"])


@pytest.fixture
def mode() -> str:
    return "http"


@pytest.fixture
def quiet(tmp_path: Path, mode: str) -> Iterator[Chat]:
    """A chat that is not started: a test compares by itself."""
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/store.sqlite", mode=mode) as made:
        made.slack._ready.set()
        yield made


@pytest.fixture
def wall(quiet: Chat, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the courier's wall clock."""
    now = [1_000_000.0]
    courier: Any = quiet.slack.courier
    monkeypatch.setattr(courier, "_p", replace(courier._p, wall_s=lambda: now[0]))

    def move(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(courier_module, "_CLOCK_SKEW_S", 2e9)  # the stand-in's timestamps are the machine's
    return move


@pytest.fixture
def chat(tmp_path: Path, mode: str) -> Iterator[Chat]:
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/store.sqlite", mode=mode) as made, started(made):
        yield made


@pytest.fixture
def to(chat: Chat, mode: str) -> Iterator[str]:
    if mode == "socket":
        until(lambda: chat.stand_in.connected, "the socket is open")
        yield ""
        return
    site = FastAPI()
    chat.slack.add_to(site)
    server = Server(site, "127.0.0.1", 0)
    server.start()
    yield f"{server.url}{PATH}"
    server.stop()


def _shown(chat: Chat) -> tuple[str, str]:
    name = chat.opened()
    chat.slack.wake()
    card = until(lambda: [m for m in chat.messages() if "approve" in buttons_of(m)], "the message with its buttons")
    return name, card[0]["ts"]


def _told(chat: Chat, count: int = 1) -> str:
    until(lambda: len(chat.stand_in.workspace.whispers) >= count, "the clicker is told")
    return chat.whispers()[-1]


@pytest.mark.parametrize("error", ["token_revoked", "account_inactive", "invalid_auth"])
def test_a_revoked_token_loses_no_message_and_a_new_one_in_its_file_is_taken_up_without_a_restart(
    quiet: Chat, wall: Callable[[float], None], tmp_path: Path, error: str
) -> None:
    first = quiet.opened()
    quiet.once()
    quiet.stand_in.revoked["xoxb-1"] = error
    second = quiet.opened()
    for _ in range(3):
        quiet.once()
        wall(61.0)
    assert error in quiet.slack.courier.problem
    assert len(quiet.messages()) == 1
    (tmp_path / "bot").write_text("xoxb-2")
    for _ in range(4):
        quiet.once()
        wall(61.0)
    assert not quiet.slack.courier.problem
    assert len(quiet.messages()) == 2
    assert buttons_of(quiet.card(first)) == buttons_of(quiet.card(second))


@SOCKET
def test_a_new_app_level_token_in_its_file_is_taken_up_without_a_restart(
    chat: Chat, to: str, tmp_path: Path
) -> None:
    """The old one was revoked, which ends the socket; the next one is opened with what the file says then."""
    _, ts = _shown(chat)
    before = chat.stand_in.opened
    (tmp_path / "app").write_text("xapp-2")
    chat.stand_in.revoked["xapp-1"] = "token_revoked"
    chat.stand_in.disconnect()
    until(lambda: chat.stand_in.opened > before and chat.stand_in.connected, "the socket is open again")
    until(lambda: _clicked(chat, ts), "a click is acknowledged")
    assert _told(chat)


def test_a_new_signing_secret_in_its_file_is_taken_up_without_a_restart(
    chat: Chat, to: str, tmp_path: Path
) -> None:
    """Nothing that a secret of another file signs is let in, before or after."""
    old, new = chat.stand_in.signing_secret, "regenerated"
    _, ts = _shown(chat)
    chat.stand_in.signing_secret = new
    assert chat.stand_in.click(ANN, CHANNEL, ts, "evidence", to=to).status == 401
    (tmp_path / "signing").write_text(new)
    assert chat.stand_in.click(ANN, CHANNEL, ts, "evidence", to=to).status == 200
    assert _told(chat)
    chat.stand_in.signing_secret = old
    assert chat.stand_in.click(ANN, CHANNEL, ts, "evidence", to=to).status == 401


def test_a_token_that_is_revoked_from_the_start_is_said_and_tried_again(tmp_path: Path) -> None:
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/store.sqlite", mode="http") as chat:
        chat.stand_in.revoked["xoxb-1"] = "account_inactive"
        chat.slack.start()
        until(lambda: "account_inactive" in chat.slack.problem, "the refusal is said")
        chat.stand_in.revoked.clear()
        until(lambda: not chat.slack.problem, "connected")
        chat.slack.stop()


@pytest.mark.parametrize(
    ("mode", "error"),
    [("socket", "expired_trigger_id"), ("http", "exchanged_trigger_id"), ("http", "token_revoked")],
)
def test_a_dialog_that_does_not_open_is_told_to_the_clicker_and_rejects_nothing(
    chat: Chat, to: str, error: str
) -> None:
    name, ts = _shown(chat)
    chat.stand_in.faults["views.open"].append(Fault("refused", error=error))
    assert chat.stand_in.click(ANN, CHANNEL, ts, "reject", to=to).status == 200
    said = _told(chat)
    assert error in said
    assert "Nothing was rejected" in said
    assert chat.store.incident(name).state is IncidentState.AWAITING_APPROVAL
    chat.stand_in.click(ANN, CHANNEL, ts, "reject", to=to)  # a second click works
    until(lambda: chat.stand_in.workspace.views, "the dialog")


@pytest.mark.parametrize(
    ("mode", "verb"), [("socket", "approve"), ("socket", "silence"), ("http", "snooze"), ("http", "reject")]
)
def test_what_slack_delivers_again_happens_once_and_is_answered_once(chat: Chat, to: str, verb: str) -> None:
    """The same request in another envelope, as where the first acknowledgement was lost."""
    name, ts = _shown(chat)
    if verb == "silence":
        chat.stand_in.command(ANN, "silence node:n7 2h firmware", CHANNEL, to=to)
    else:
        chat.stand_in.click(ANN, CHANNEL, ts, verb, to=to)
    for _ in range(2):
        assert chat.stand_in.deliver_again(to=to).status == 200
    if verb == "reject":
        until(lambda: chat.stand_in.workspace.views, "the dialog")
        chat.stand_in.submit(ANN, "not now", to=to)
        chat.stand_in.deliver_again(to=to)
    _told(chat)
    chat.stand_in.command(ANN, "status", CHANNEL, to=to)
    _told(chat, 2)
    assert len(chat.whispers()) == 2, "one answer for the request, one for what came after it"
    assert len(chat.gate.approvals(name)) == (verb == "approve")
    assert len(chat.slack.courier._p.suppressor.silences.standing()) == (verb == "silence")
    assert len(chat.stand_in.workspace.views) == (verb == "reject")


def test_an_approval_that_arrives_after_the_plan_changed_or_was_rejected_counts_for_nothing(
    chat: Chat, to: str
) -> None:
    name, ts = _shown(chat)
    old = next(e["value"] for b in chat.card(name)["blocks"] if b["type"] == "actions" for e in b["elements"])
    plan = chat.store.incident(name).action
    assert plan is not None
    chat.stand_in.click(BOB, CHANNEL, ts, "reject", to=to)
    until(lambda: chat.stand_in.workspace.views, "the dialog")
    chat.stand_in.submit(BOB, "another way", to=to)
    _told(chat)
    chat.stand_in.click(ANN, CHANNEL, ts, "approve", to=to, value=old)  # clicked before, delivered after
    _told(chat, 2)
    assert not chat.gate.approvals(name)
    assert chat.store.incident(name).state is not IncidentState.APPROVED


@SOCKET
def test_a_socket_that_breaks_before_the_acknowledgement_neither_loses_nor_doubles_the_click(
    chat: Chat, to: str
) -> None:
    name, ts = _shown(chat)
    chat.stand_in.closes_before_ack = True
    before = chat.stand_in.opened
    chat.stand_in.click(ANN, CHANNEL, ts, "approve")
    chat.stand_in.closes_before_ack = False
    until(lambda: chat.stand_in.opened > before and chat.stand_in.connected, "the socket is open again")
    until(partial(_delivered, chat), "the same click is acknowledged")
    _told(chat)
    assert len(chat.gate.approvals(name)) == 1


def _delivered(chat: Chat) -> bool:
    try:
        return chat.stand_in.deliver_again().status == 200
    except (queue.Empty, StopIteration, ConnectionClosed):
        return False  # the socket that was chosen has just been replaced: Slack delivers once more


@SOCKET
def test_a_socket_that_may_not_be_opened_for_a_while_is_opened_in_the_end(chat: Chat, to: str) -> None:
    """The app's token is refused and limited while the client connects again."""
    _, ts = _shown(chat)
    before = chat.stand_in.opened
    refused = Fault("refused", error="token_revoked")
    chat.stand_in.faults["apps.connections.open"].extend([refused, Fault("limited", 0.2)])
    chat.stand_in.disconnect()
    until(lambda: chat.stand_in.opened > before and chat.stand_in.connected, "the socket is open again")
    chat.stand_in.faults.clear()
    until(lambda: _clicked(chat, ts), "a click is acknowledged")
    assert _told(chat)


def _clicked(chat: Chat, ts: str) -> bool:
    try:
        return chat.stand_in.click(ANN, CHANNEL, ts, "evidence").status == 200
    except (queue.Empty, StopIteration, ConnectionClosed):
        return False


@pytest.mark.parametrize(
    "method",
    ["chat.postMessage", "chat.update", "conversations.history", "files.getUploadURLExternal",
     "files.completeUploadExternal", "conversations.replies"],
)  # fmt: skip
def test_a_limit_on_any_method_of_the_courier_is_waited_out_and_the_story_is_whole(
    quiet: Chat, wall: Callable[[float], None], method: str
) -> None:
    """Not called again before its Retry-After; then everything is there once."""
    stand_in = quiet.stand_in
    name = quiet.opened()
    stand_in.faults["chat.postMessage"].append(Fault("lost_answer"))  # so that it has to look
    for _ in range(2):
        stand_in.faults[method].append(Fault("limited", 30.0))
    for _ in range(60):
        quiet.once()
        wall(3.5)
        if name and not stand_in.faults[method]:
            break
    for _ in range(20):
        quiet.once()
        wall(16.0)
    assert len(quiet.messages()) == 1
    assert len(set(quiet.thread(name))) == len(quiet.thread(name)) >= 1
    assert not quiet.slack.courier.problem


@pytest.mark.parametrize("method", ["users.info", "views.open", "chat.postEphemeral"])
def test_a_limit_on_any_method_of_a_click_is_told_or_waited_out(chat: Chat, to: str, method: str) -> None:
    name, ts = _shown(chat)
    chat.stand_in.faults[method].append(Fault("limited", 0.2))
    chat.stand_in.click(ANN, CHANNEL, ts, "reject", to=to)
    if method == "views.open":
        assert "Nothing was rejected" in _told(chat)
        chat.stand_in.click(ANN, CHANNEL, ts, "reject", to=to)
    until(lambda: chat.stand_in.workspace.views, "the dialog")
    chat.stand_in.submit(ANN, "not now", to=to)
    seen: dict[str, Any] = {"views.open": 2}
    said = _told(chat, seen.get(method, 1))
    if method == "users.info":  # who clicked cannot be said now: nothing is done, and they are told
        assert "Retry" in said
        assert chat.store.incident(name).state is IncidentState.AWAITING_APPROVAL
    else:
        until(lambda: chat.store.incident(name).state is not IncidentState.AWAITING_APPROVAL, "rejected")


def test_a_limit_on_the_greeting_is_waited_out(tmp_path: Path) -> None:
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/store.sqlite", mode="http") as chat:
        chat.stand_in.faults["auth.test"].append(Fault("limited", 2.0))
        began_s = time.time()
        chat.slack.start()
        until(lambda: not chat.slack.problem, "connected")
        (answered_s,) = [at_s for at_s, method in chat.stand_in.calls if method == "auth.test"]
        assert answered_s - began_s > 1.9
        chat.slack.stop()
