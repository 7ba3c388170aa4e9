"""The weekly report: one message on Monday, once, in Slack's limits; none for a week without books."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from nightshift.agent.goodput.accounts import Account
from nightshift.agent.goodput.report import make
from nightshift.agent.notify.slack.blocks import problems
from nightshift.agent.notify.slack.weekly import WEEK_S, message
from nightshift.agent.store.tables import goodput
from tests.agent.notify.slack.chat import CHANNEL, Chat, a_chat, text_of

MONDAY_S = 1_789_948_800.0  # 2026-09-21 00:00 UTC
HOUR_S = 3600.0


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/store.sqlite") as made:
        with made.store.database.write() as connection:
            for account, job, cause, spent in (
                (Account.UNATTRIBUTED, "ml/llm", "", 8e6),
                (Account.HUNG, "ml/llm", "xid", 1e6),
                (Account.FREE, "", "", 1e6),
            ):
                row = {"account": account, "job": job, "node": "n1", "cause": cause, "incident": "", "team": ""}
                at_s = MONDAY_S - 2 * 86_400.0
                connection.execute(sa.insert(goodput).values(**row, start_s=at_s, span_s=HOUR_S, gpu_s=spent))
        yield made


def looked(chat: Chat, at_s: float) -> list[str]:
    """What the channel has after one comparison at a time (Unix s)."""
    chat.clock.advance(at_s - chat.clock.now_s())
    courier: Any = chat.slack.courier._p
    courier.weekly._looked_s = float("-inf")
    chat.once()
    return [text_of(message) for message in chat.messages()]


def test_it_is_sent_once_on_monday_morning(chat: Chat) -> None:
    assert looked(chat, MONDAY_S + 7 * HOUR_S) == []
    (text,) = looked(chat, MONDAY_S + 8 * HOUR_S)
    for words in ("week 2026-W38", "88.9 %", "Hung: 10.0 %", "Xid: 0 incidents, 278 GPU-h lost"):
        assert words in text
    assert looked(chat, MONDAY_S + 9 * HOUR_S) == [text]
    assert looked(chat, MONDAY_S + 2 * 86_400.0) == [text]
    # a week later nothing was booked
    assert looked(chat, MONDAY_S + WEEK_S + 9 * HOUR_S) == [text]
    assert CHANNEL == "C1"


def test_its_money_follows_the_price(chat: Chat) -> None:
    with chat.store.database.read() as connection:
        report = make(connection, MONDAY_S - WEEK_S, MONDAY_S, 2.5)
    content = message(report, "2026-W38", "https://night.example")
    assert problems({"text": content.text, "blocks": list(content.blocks)}) == []
    assert "694 at 2.5 a GPU-hour" in text_of({"blocks": list(content.blocks)})
