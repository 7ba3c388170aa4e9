"""A click in Slack is what the gate says it is, for whoever the workspace says clicked; told to them alone."""

from __future__ import annotations

import hashlib
import hmac
import json
import queue
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from structlog.testing import capture_logs
from websockets.exceptions import ConnectionClosed

from examples.slack_stand_in.server import Acknowledged
from nightshift.agent.approvals.answer import GateAnswer
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.approvals.questions import Questions
from nightshift.agent.console.server import Server
from nightshift.agent.notify.ledger import DeliveryLedger
from nightshift.agent.notify.slack.card import Ticket
from nightshift.agent.notify.slack.service import MAX_BODY_BYTES, PATH
from nightshift.agent.store.diagnosis import LOG, Answer, Evidence, Quote, ReadingState
from nightshift.agent.store.incident import Cause, IncidentState
from tests.agent.incidents import contested
from tests.agent.notify.slack.chat import ANN, BOB, CHANNEL, VIC, Chat, a_chat, buttons_of, started, text_of, until

BOTH = pytest.mark.parametrize("mode", ["socket", "http"])
SOCKET = pytest.mark.parametrize("mode", ["socket"])


@pytest.fixture
def mode() -> str:
    return "http"


@pytest.fixture
def chat(tmp_path: Path, mode: str) -> Iterator[Chat]:
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/store.sqlite", mode=mode) as made, started(made):
        yield made


@pytest.fixture
def to(chat: Chat, mode: str) -> Iterator[str]:
    """The request URL that Slack calls; empty where it uses the socket."""
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
    """An incident with its message in the channel, and the message's timestamp, which our ledger has stored."""
    name = chat.opened()
    chat.slack.wake()
    card = until(lambda: [m for m in chat.messages() if "approve" in buttons_of(m)], "the message with its buttons")
    ledger = DeliveryLedger(chat.store.database)
    until(lambda: ledger.card_of(CHANNEL, card[0]["ts"]), "Slack's answer is stored")
    return name, card[0]["ts"]


def _told(chat: Chat, count: int = 1) -> str:
    until(lambda: len(chat.stand_in.workspace.whispers) >= count, "the clicker is told")
    return chat.whispers()[-1]


def _fine(ack: Acknowledged) -> None:
    """Acknowledged at all is acknowledged without the gate: the stand-in waits 10 s, one that hangs far longer."""
    assert ack.status == 200


@BOTH
def test_an_approver_approves_and_alone_is_told(chat: Chat, to: str) -> None:
    name, ts = _shown(chat)
    _fine(chat.stand_in.click(ANN, CHANNEL, ts, "approve", to=to))
    assert _told(chat) == "Approved: restart_job job:team/job starts now.\n"
    assert chat.stand_in.workspace.whispers[-1]["user"] == ANN
    (approval,) = chat.gate.approvals(name)
    assert (approval.person, approval.channel) == ("ann@example.org", "slack")
    until(lambda: "approve" not in buttons_of(chat.card(name)), "the button is gone")
    assert len(chat.messages()) == 1


def test_whoever_acknowledges_has_it_and_who_calls_it_no_fault_closes_it(chat: Chat, to: str) -> None:
    name, ts = _shown(chat)
    chat.stand_in.click(ANN, CHANNEL, ts, "take", to=to)
    assert _told(chat) == f"{name} is yours.\n"
    until(lambda: "take" not in buttons_of(chat.card(name)), "the button is gone")
    chat.stand_in.click(VIC, CHANNEL, ts, "not_a_fault", to=to)
    assert "You are viewer" in _told(chat, 2)
    chat.stand_in.click(BOB, CHANNEL, ts, "not_a_fault", to=to)
    assert _told(chat, 3) == f"{name} is closed as not a fault.\n"
    incident = chat.store.incident(name)
    assert (incident.state, incident.history[-1].cause) == (IncidentState.RESOLVED, Cause.NOT_A_FAULT)


def test_a_double_click_and_a_second_approver_have_one_outcome(chat: Chat, to: str) -> None:
    name, ts = _shown(chat)
    value = next(e["value"] for b in chat.card(name)["blocks"] if b["type"] == "actions" for e in b["elements"])
    for count, (user, said) in enumerate(
        [(ANN, "Approved: "), (ANN, "You approved this already"), (BOB, "Approved already by ann@example.org")], 1
    ):
        chat.stand_in.click(user, CHANNEL, ts, "approve", to=to, value=value)
        assert _told(chat, count).startswith(said)
    assert len(chat.gate.approvals(name)) == 1


BOOTER = "NVRM: GPU0 kgspExecuteBooterUnloadIfNeeded: failed to execute Booter Unload: 0x62"


def test_a_contested_plan_is_shown_with_its_quote_and_confirmed_by_the_same_approver(chat: Chat, to: str) -> None:
    name, ts = _shown(chat)
    contested(chat.store, name, BOOTER)
    chat.slack.wake()
    card = until(lambda: [m for m in chat.messages() if BOOTER in text_of(m)], "the quote stands in the message")
    assert "The reset will fail." in text_of(card[0])
    assert "approve" in buttons_of(card[0])
    chat.stand_in.click(ANN, CHANNEL, ts, "approve", to=to)
    assert BOOTER in _told(chat)
    assert chat.store.incident(name).state is IncidentState.AWAITING_APPROVAL
    chat.clock.advance(2.0)
    chat.stand_in.click(ANN, CHANNEL, ts, "approve", to=to)
    assert _told(chat, 2).startswith("Approved: ")
    assert len(chat.gate.approvals(name)) == 1


def test_a_click_after_expiry_is_refused(chat: Chat, to: str) -> None:
    name, ts = _shown(chat)
    chat.clock.advance(5_000)
    chat.stand_in.click(ANN, CHANNEL, ts, "approve", to=to)
    assert "has expired" in _told(chat)
    assert chat.store.incident(name).state is IncidentState.AWAITING_APPROVAL


@BOTH
def test_rejecting_asks_for_a_reason_and_keeps_it(chat: Chat, to: str) -> None:
    name, ts = _shown(chat)
    _fine(chat.stand_in.click(ANN, CHANNEL, ts, "reject", to=to))
    until(lambda: chat.stand_in.workspace.views, "the dialog is open")
    assert chat.store.incident(name).state is IncidentState.AWAITING_APPROVAL
    _fine(chat.stand_in.submit(ANN, "the job ends in an hour", to=to))
    assert "Rejected" in _told(chat)
    assert chat.store.incident(name).history[-1].note == "the job ends in an hour"


@pytest.mark.parametrize(
    ("user", "more", "said"),
    [
        (VIC, {}, "You are viewer"),
        ("U9GONE", {"deleted": True}, "deactivated"),
        ("U9BOT", {"is_bot": True}, "Bots decide nothing"),
        ("U9GUEST", {"is_ultra_restricted": True}, "Guests decide nothing"),
        ("U9OTHER", {"team_id": "T9"}, "another workspace"),
        ("U9MAIL", {"is_email_confirmed": False}, "not confirmed"),
        ("U9NOBODY", None, "does not know you"),
    ],
)
def test_who_may_not_approve_does_not(
    chat: Chat, to: str, user: str, more: dict[str, Any] | None, said: str
) -> None:
    name, ts = _shown(chat)
    if user != VIC and more is not None:
        chat.stand_in.workspace.add_user(user, "ann@example.org", **more)
    chat.stand_in.click(user, CHANNEL, ts, "approve", to=to)
    assert said in _told(chat)
    assert chat.store.incident(name).state is IncidentState.AWAITING_APPROVAL


def test_a_click_from_another_workspace_is_refused(chat: Chat, to: str) -> None:
    """A channel shared between organisations shows the buttons to strangers too."""
    name, ts = _shown(chat)
    chat.stand_in.click(ANN, CHANNEL, ts, "approve", to=to, workspace="T9")
    assert "another workspace" in _told(chat)
    assert not chat.gate.approvals(name)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "{}",
        "[" * 300,
        '{"i": "INC-1", "p": "' + "0" * 64 + '"}',
        '{"i": "INC-1", "p": 7}',
        '{"i": "../../etc", "p": "x"}',
        '{"i": "INC-999", "p": "x"}',
        '{"i": "INC-1", "p": "x", "by": "ada@example.org"}',
        "x" * 1900,
    ],
)
def test_a_forged_button_does_nothing(chat: Chat, to: str, value: str) -> None:
    name, ts = _shown(chat)
    chat.stand_in.click(ANN, CHANNEL, ts, "approve", to=to, value=value)
    assert _told(chat)
    assert not chat.gate.approvals(name)
    assert chat.store.incident(name).state is IncidentState.AWAITING_APPROVAL


def test_evidence_is_shown_to_the_one_who_asked(chat: Chat, to: str) -> None:
    _, ts = _shown(chat)
    chat.stand_in.click(VIC, CHANNEL, ts, "evidence", to=to)
    told = _told(chat)
    assert "[E1] kernel_log n1" in told
    assert "NVRM: Xid" in told


def test_snoozing_keeps_reminders_away(chat: Chat, to: str) -> None:
    name, ts = _shown(chat)
    chat.stand_in.click(ANN, CHANNEL, ts, "snooze", to=to)
    assert "No reminders of" in _told(chat)
    chat.clock.advance(1_000)
    chat.slack.courier.once()
    assert not [said for said in chat.thread(name) if "no decision yet" in said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("status", "1 open incidents, 1 of them wait"),
        ("incidents", "INC-1"),
        ("approve INC-1", "restart the job once"),
        ("approve INC-77", "there is no INC-77"),
        ("approve ../x", "is not an incident"),
        ("silence node:n* 2h firmware", "Silence 1: muted node:n*"),
        ("silence node:typo 2h x", "No known node matches 'typo'"),
        ("silence * 2h all", "is not KIND:PATTERN"),
        ("silence node:* 2h all", "hides the next fault"),
        ("silence node:n1 99999d x", "lasts up to 30 days"),
        ("unsilence 4", "No silence 4"),
        ("halt bad firmware", "Halted"),
        ("dance", "/nightshift status"),
    ],
)
def test_commands_say_and_do_what_they_name(chat: Chat, to: str, text: str, said: str) -> None:
    _shown(chat)
    _fine(chat.stand_in.command(ANN, text, CHANNEL, to=to))
    assert said in _told(chat)
    assert chat.gate.halted().halted is text.startswith("halt")


def test_the_status_under_a_stop_names_what_it_holds_half_way(chat: Chat, to: str) -> None:
    name, _ = _shown(chat)
    action = chat.store.incident(name).action
    assert action is not None
    chat.gate.approve(name, action.plan_sha256, Person("root", frozenset({Role.APPROVER}), "cli"))
    chat.store.move(name, Cause.INTENT_STORED, "lifecycle", "", chat.store.incident(name).version)
    _fine(chat.stand_in.command(ANN, "halt", CHANNEL, to=to))
    _told(chat, 1)  # commands are carried out beside each other
    _fine(chat.stand_in.command(ANN, "status", CHANNEL, to=to))
    assert f"Paused: {name} (restart job of job:team/job; stays stopped" in _told(chat, 2)


def test_a_viewer_can_neither_halt_nor_silence(chat: Chat, to: str) -> None:
    for count, text in enumerate(("halt", "silence node:n1 1h x", "resume"), 1):
        chat.stand_in.command(VIC, text, CHANNEL, to=to)
        assert "You are viewer" in _told(chat, count)
    assert not chat.gate.halted().halted


def test_the_answer_of_approve_carries_the_button_that_binds_the_plan(chat: Chat, to: str) -> None:
    name, _ = _shown(chat)
    chat.stand_in.command(ANN, f"approve {name}", CHANNEL, to=to)
    _told(chat)
    plan = chat.store.incident(name).action
    assert plan is not None
    shown = json.dumps(chat.stand_in.workspace.whispers[-1]["blocks"])
    assert plan.plan_sha256 in shown
    assert chat.store.incident(name).state is IncidentState.AWAITING_APPROVAL


@BOTH
def test_a_store_that_hangs_delays_no_acknowledgement(chat: Chat, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ts = _shown(chat)
    works = threading.Event()

    def hang(*_: object) -> GateAnswer:
        works.wait(30)
        return GateAnswer(False, "late")

    monkeypatch.setattr(chat.gate, "approve", hang)
    for _ in range(12):
        _fine(chat.stand_in.click(ANN, CHANNEL, ts, "approve", to=to))
    works.set()
    assert _told(chat, 12) == "late\n"


class TestHttp:
    """What reaches the request URL without being Slack's."""

    def test_forged_stale_and_unsigned_requests_are_refused_before_they_are_parsed(
        self, chat: Chat, to: str
    ) -> None:
        name, ts = _shown(chat)
        now = time.time()
        wrong: list[dict[str, Any]] = [{"secret": "guess"}, {"signed_s": now - 400}, {"signed_s": now + 400}]
        for more in wrong:
            with capture_logs() as logs:
                assert chat.stand_in.click(ANN, CHANNEL, ts, "approve", to=to, **more).status == 401
            said = [entry["off_s"] for entry in logs if "clock" in entry["event"]]
            assert [round(abs(off_s), -2) for off_s in said] == ([400] if "signed_s" in more else [])
        assert not chat.gate.approvals(name)

    def test_a_replayed_request_changes_nothing_more(self, chat: Chat, to: str) -> None:
        name, ts = _shown(chat)
        value = next(e["value"] for b in chat.card(name)["blocks"] if b["type"] == "actions" for e in b["elements"])
        for count in (1, 2, 3):
            chat.stand_in.click(ANN, CHANNEL, ts, "approve", to=to, value=value)
            _told(chat, count)
        assert len(chat.gate.approvals(name)) == 1

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            (b"x" * (MAX_BODY_BYTES + 1), 413),
            (b"payload=" + b"%5B" * 100_000, 400),
            (b"\xff\xfe", 400),
            (b"payload=%7B%7D", 404),
        ],
    )
    def test_a_bomb_is_refused_with_a_right_signature_too(
        self, chat: Chat, to: str, body: bytes, status: int
    ) -> None:
        stamp = str(int(time.time()))
        signed = f"v0:{stamp}:".encode() + body
        signature = hmac.new(chat.stand_in.signing_secret.encode(), signed, hashlib.sha256).hexdigest()
        headers = {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={signature}"}
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        assert httpx.post(to, content=body, headers=headers).status_code == status


def _opened_since(chat: Chat, before: int) -> bool:
    """The client may open more than one for one goodbye; the last of them stays."""
    return chat.stand_in.opened > before and bool(chat.stand_in.connected)


def _answered(chat: Chat, ts: str) -> bool:
    try:
        chat.stand_in.click(ANN, CHANNEL, ts, "evidence")
    except (queue.Empty, StopIteration, ConnectionClosed):
        return False  # the socket that was chosen has just been replaced: people click again
    return True


@SOCKET
def test_the_socket_is_opened_again_when_slack_closes_it(chat: Chat, to: str) -> None:
    _, ts = _shown(chat)
    for reason in ("refresh_requested", "warning"):
        before = chat.stand_in.opened
        chat.stand_in.disconnect(reason)
        until(partial(_opened_since, chat, before), "the socket is open again")
    until(partial(_answered, chat, ts), "a click is acknowledged")
    assert _told(chat)
    assert text_of(chat.messages()[0])


@BOTH
def test_a_question_in_an_incidents_thread_is_answered_there(chat: Chat, to: str) -> None:
    name, ts = _shown(chat)
    questions = Questions(chat.store.database, chat.clock)
    chat.stand_in.mention(VIC, CHANNEL, ts, "did the switch &lt;leaf3&gt; fail first?", to=to)
    (asked,) = until(lambda: questions.of(name), "stored")
    assert (asked.text, asked.by, asked.channel) == (
        "did the switch <leaf3> fail first?",
        "vic@example.org",
        "slack",
    )
    chat.stand_in.deliver_again(to=to)
    chat.stand_in.mention(VIC, CHANNEL, "1.1", "and here?", to=to)
    until(lambda: any("Ask in the thread" in said for said in chat.whispers()), "told where to ask")
    chat.stand_in.command(VIC, f"ask {name} which rank?", CHANNEL, to=to)
    until(lambda: len(questions.of(name)) == 2, "asked by command")
    text = b"1.000\tleaf3 <!channel> port down\n"
    item = Evidence("E1", "kernel log", "node:n1", 0.0, 1.0, LOG, text, "log of n1")
    found, note = (Quote("E1", "leaf3 <!channel> port down"),), "no language model is configured"
    questions.answered(asked, Answer(ReadingState.DONE, found=found, evidence=(item,), note=note), 0, 0.0)
    chat.slack.wake()
    until(lambda: any("port down" in said for said in chat.thread(name)), "answered in the thread")
    (answer,) = [said for said in chat.thread(name) if "port down" in said]
    for part in ("did the switch <leaf3> fail first?", "no language model is configured", "[E1]"):
        assert part in answer


def test_nobody_of_another_workspace_and_no_bot_asks(chat: Chat, to: str) -> None:
    name, ts = _shown(chat)
    chat.stand_in.mention(VIC, CHANNEL, ts, "why?", to=to, workspace="T9")
    chat.stand_in.mention("U9", CHANNEL, ts, "why?", to=to)
    until(lambda: any("another workspace" in said for said in chat.whispers()), "refused")
    assert Questions(chat.store.database, chat.clock).of(name) == []


def test_a_question_in_an_incidents_own_thread_needs_no_mention(chat: Chat, to: str) -> None:
    name, ts = _shown(chat)
    questions = Questions(chat.store.database, chat.clock)
    chat.stand_in.reply(VIC, CHANNEL, ts, "did the switch fail?", to=to)
    until(lambda: len(questions.of(name)) == 1, "asked by a reply")
    for words, more in (
        ("a bot asks?", {"bot_id": "B1"}),
        ("an edit?", {"subtype": "message_changed"}),
        ("<@U7> can you look?", {}),
        ("thanks, that is all", {}),
    ):
        chat.stand_in.reply(VIC, CHANNEL, ts, words, to=to, **more)
    chat.stand_in.reply("U0BOT", CHANNEL, ts, "our own words?", to=to)
    chat.stand_in.reply("U9", CHANNEL, ts, "from a stranger?", to=to)
    chat.stand_in.reply(VIC, CHANNEL, "1.1", "another thread?", to=to)
    chat.stand_in.reply(VIC, CHANNEL, ts, "another workspace?", to=to, workspace="T9")
    whispers = len(chat.whispers())
    chat.stand_in.reply(VIC, CHANNEL, ts, "and which port?", to=to)
    chat.stand_in.deliver_again(to=to)
    until(lambda: len(chat.whispers()) > whispers, "heard")
    assert [asked.text for asked in questions.of(name)] == ["did the switch fail?", "and which port?"]
    chat.stand_in.reply(ANN, CHANNEL, ts, "and since when?", to=to)
    until(lambda: len(questions.of(name)) == 3, "another person asks")


def test_a_diagnosis_is_judged_by_a_button(chat: Chat, to: str) -> None:
    name, ts = _shown(chat)
    value = Ticket(name, "").value()
    chat.stand_in.click(VIC, CHANNEL, ts, "right", to=to, value=value)
    assert "needs the role responder" in _told(chat)
    chat.stand_in.click(ANN, CHANNEL, ts, "wrong", to=to, value=value)
    assert f"the diagnosis of {name} is wrong" in _told(chat, 2)
    assert chat.store.incident(name).history[-1].cause == Cause.JUDGED_WRONG
    thread = chat.stand_in.workspace.thread
    until(lambda: ["right", "wrong"] in [buttons_of(m) for m in thread(CHANNEL, ts)], "the thread asks")
