"""A promotion at the gate is one message with what an approver has to see; its buttons bind what was shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.slack_stand_in.server import Fault
from examples.slack_stand_in.workspace import TEAM
from nightshift.agent.approvals.kernel_gate import KernelGate, ProposalState, promotion
from nightshift.agent.approvals.kernel_search import evidence, keep_view
from nightshift.agent.notify.slack.blocks import problems
from nightshift.agent.notify.slack.clicks import Click
from nightshift.agent.notify.slack.proposals import PlanTicket
from nightshift.controllers.action import ActionKind
from nightshift.kernels.certification.evidence import UNKNOWN
from tests.agent.notify.slack.chat import ANN, BOB, CHANNEL, VIC, Chat, a_chat, buttons_of, text_of
from tests.kernel_certificates import RECORD, predicate, view_of

EVIDENCE: dict[str, str | float] = {
    "verdict": "faster",
    "speed-up": "1.31 (99 %: 1.27 to 1.35)",
    "device": "NVIDIA H200",
    "errors": "0.8 of eager's own",
}


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/store.sqlite") as made:
        yield made


def gate_of(chat: Chat, family: str = "kernel") -> KernelGate:
    return KernelGate(chat.gate, chat.store, chat.clock, family=family)


def proposed(chat: Chat, certificate: str = "c" * 64, **evidence: str | float) -> str:
    plan = promotion("prod-1", certificate, "rmsnorm_4096", "canary", EVIDENCE | evidence, chat.clock.now_s())
    return gate_of(chat).propose(plan, record=RECORD).id


def looked(chat: Chat) -> None:
    """One comparison, however soon after the last."""
    teller: Any = chat.slack.courier._p
    teller.promotions._looked_s = 0.0
    chat.once()


def clicked(chat: Chat, user: str, what: str, value: str) -> str:
    """What the desk tells the clicker."""
    told: list[str] = []
    chat.slack.desk._answer(Click(user, TEAM, what, value, CHANNEL, lambda m: told.append(text_of(vars_of(m)))))
    return told[0].strip()


def vars_of(message: Any) -> dict[str, Any]:
    return {"text": message.text, "blocks": list(message.blocks)}


def button_value(message: dict[str, Any], action: str) -> str:
    (found,) = [
        e["value"] for b in message["blocks"] if b["type"] == "actions" for e in b["elements"]
        if e["action_id"] == action
    ]  # fmt: skip
    return str(found)


def test_a_promotion_that_waits_is_one_message_with_what_has_to_be_seen(chat: Chat) -> None:
    proposed(chat)
    for _ in range(3):
        looked(chat)
    (message,) = chat.messages()
    said = text_of(message)
    for part in (
        "rmsnorm_4096 → canary",
        "1.27 to 1.35",
        "Risk: ",
        "shadow checks",
        "Undo: demote it",
        "waits until",
    ):
        assert part in said, part
    assert buttons_of(message) == ["approve", "reject"]
    assert problems({"text": message["text"], "blocks": message["blocks"]}) == []


def test_a_click_approves_what_was_shown_and_the_message_says_so(chat: Chat) -> None:
    name = proposed(chat)
    looked(chat)
    (message,) = chat.messages()
    value = button_value(message, "approve")
    assert "needs the role" in clicked(chat, VIC, "approve", value)
    first = clicked(chat, ANN, "approve", value)
    answer = first if "Approved" in first else clicked(chat, BOB, "approve", value)
    assert answer.startswith("Approved")
    looked(chat)
    (after,) = chat.messages()
    assert after["ts"] == message["ts"]
    assert buttons_of(after) == []
    assert "approved by ann@example.org" in text_of(after)
    assert gate_of(chat).proposal(name).state is ProposalState.APPROVED  # type: ignore[union-attr]


def test_other_evidence_needs_another_click(chat: Chat) -> None:
    proposed(chat)
    looked(chat)
    old = button_value(chat.messages()[0], "approve")
    proposed(chat, device="NVIDIA H100")
    assert "changed since you saw it" in clicked(chat, ANN, "approve", old)
    looked(chat)
    (message,) = chat.messages()
    assert "NVIDIA H100" in text_of(message)
    assert button_value(message, "approve") != old


def test_a_promotion_whose_driver_changed_since_shows_the_reason_and_no_button_to_approve(chat: Chat) -> None:
    shown = evidence(predicate(), UNKNOWN, (), chat.clock.now_s())
    plan = promotion("prod-1", "c" * 64, "softmax", "canary", shown, chat.clock.now_s())
    gate_of(chat).propose(plan, record=RECORD)
    looked(chat)
    (message,) = chat.messages()
    said = text_of(message)
    for part in (
        "GPU: NVIDIA H200",
        "Driver: 580.65.06",
        "Baselines met: eager, torch.compile",
        "Not checked: sizes",
        "2.000 [1.900, 2.100]: 20.0 µs against 40.0 µs",
        "no job has reported this kernel",
    ):
        assert part in said, part
    value = button_value(message, "approve")
    keep_view(chat.store, view_of("c" * 64, chat.clock.now_s(), driver=("590.1",)))
    assert clicked(chat, ANN, "approve", value).startswith("Not promotable: jobs run with another driver")
    looked(chat)
    (message,) = chat.messages()
    assert "Refused: not promotable: jobs run with another driver" in text_of(message)
    assert buttons_of(message) == ["reject"]
    assert problems({"text": message["text"], "blocks": message["blocks"]}) == []


def test_a_rejection_carries_its_reason(chat: Chat) -> None:
    proposed(chat)
    looked(chat)
    value = button_value(chat.messages()[0], "reject")
    assert clicked(chat, ANN, "reject", f"{value}\nnot on this driver") == "Rejected."
    looked(chat)
    assert "rejected: not on this driver" in text_of(chat.messages()[0])


def test_a_policys_step_goes_the_same_way(chat: Chat) -> None:
    plan = promotion("prod-1", "d" * 64, "power", "canary", EVIDENCE, chat.clock.now_s())
    from dataclasses import replace

    params = {"policy": "descent@dd", "to": "canary", "look": 1}
    step = replace(plan, id="policy/power/dddd/canary", kind=ActionKind.PROMOTE_POLICY, params=params)
    gate_of(chat, "policy").propose(step)
    looked(chat)
    (message,) = chat.messages()
    assert "descent@dd → canary" in text_of(message)
    assert clicked(chat, ANN, "reject", f"{button_value(message, 'reject')}\nlater") == "Rejected."


@pytest.mark.parametrize("kind", ["lost_request", "lost_answer", "limited"])
def test_whatever_befalls_the_post_the_message_is_there_once(
    chat: Chat, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time
    from dataclasses import replace

    from nightshift.agent.notify import courier as courier_module

    now = [time.time()]
    courier: Any = chat.slack.courier
    monkeypatch.setattr(courier, "_p", replace(courier._p, wall_s=lambda: now[0]))
    monkeypatch.setattr(courier_module, "_CLOCK_SKEW_S", 2e9)
    proposed(chat)
    chat.stand_in.faults["chat.postMessage"].append(Fault(kind))
    for _ in range(8):
        looked(chat)
        now[0] += 5.0
    assert len(chat.messages()) == 1
    assert buttons_of(chat.messages()[0]) == ["approve", "reject"]


def test_a_message_that_somebody_deleted_is_posted_again(chat: Chat) -> None:
    proposed(chat)
    looked(chat)
    chat.stand_in.workspace.channels[CHANNEL].clear()
    proposed(chat, device="NVIDIA H100")
    looked(chat)
    looked(chat)
    assert "NVIDIA H100" in text_of(chat.messages()[0])


def test_one_that_expired_has_no_buttons(chat: Chat) -> None:
    proposed(chat)
    looked(chat)
    value = button_value(chat.messages()[0], "approve")
    chat.clock.advance(8 * 86_400)
    looked(chat)
    assert "expired" in text_of(chat.messages()[0])
    assert buttons_of(chat.messages()[0]) == []
    assert "expired" in clicked(chat, ANN, "approve", value)


def test_the_command_lists_what_waits_and_shows_it_with_its_buttons(chat: Chat) -> None:
    name = proposed(chat)
    assert name in clicked(chat, ANN, "command", "promotions")
    assert "rmsnorm_4096 → canary" in clicked(chat, ANN, "command", f"show {name}")
    assert "There is no promotion" in clicked(chat, ANN, "command", "show kernel/none")


def test_promotions_go_to_their_own_channel_where_one_is_set(tmp_path: Path) -> None:
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/s.sqlite", promotions_channel="C3") as chat:
        proposed(chat)
        looked(chat)
        assert not chat.messages()
        assert len(chat.messages("C3")) == 1
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/n.sqlite", promotions=False) as chat:
        proposed(chat)
        looked(chat)
        assert not chat.messages()


@pytest.mark.parametrize(
    "value", ['{"k": 1, "p": "x"}', '{"k": "kernel/x", "p": "' + "a" * 65 + '"}', "[]", "x" * 700]
)
def test_a_forged_value_is_no_ticket(value: str) -> None:
    assert PlanTicket.of(value) is None


def test_a_forged_plan_is_refused(chat: Chat) -> None:
    assert "no such plan" in clicked(chat, ANN, "approve", PlanTicket("kernel/none", "a" * 64).value())
    assert "not a button" in clicked(chat, ANN, "approve", PlanTicket("halt", "a" * 64).value())
    assert "not a button" in clicked(chat, ANN, "snooze", PlanTicket("kernel/x", "a" * 64).value())
