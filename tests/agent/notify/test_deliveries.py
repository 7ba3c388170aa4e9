"""One courier and one ledger for Slack and the pagers: rows of earlier schemas, crashes, and silences outgrown."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.slack_stand_in.server import Fault
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.incidents.silence import Silences
from nightshift.agent.notify import courier as courier_module
from nightshift.agent.notify.ledger import Delivery, DeliveryLedger
from nightshift.agent.store.database import Database
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.base import Severity
from tests.agent.incidents import ManualClock, a_finding
from tests.agent.notify.outlets.ward import CRITICAL, a_ward
from tests.agent.notify.slack.chat import a_chat, buttons_of

RAE = Person("rae@example.org", frozenset({Role.RESPONDER}), "slack")
EARLIER: dict[str, list[dict[str, Any]]] = {
    "chat_messages": [
        {"key": "INC-1/card", "kind": "card", "incident": 1, "channel": "C1", "ts": "17.5", "content_sha256": "ab",
         "posted_s": 5.0, "steps": 2, "seen_s": 6.0, "seen_version": 3, "snoozed_until_s": 9.0, "reminders": 1},
        {"key": "INC-1/step/1", "kind": "thread", "incident": 1, "channel": "C1", "thread": "17.5", "steps": 0,
         "tried_s": 8.0, "watch_until_s": 68.0, "reminders": 0},
        {"key": "storm/C1/7", "kind": "storm", "channel": "C1", "seen_s": 7.0, "steps": 0, "reminders": 0},
        {"key": "kernel/k1", "kind": "proposal", "channel": "C2", "ts": "18.5", "steps": 0, "reminders": 0},
    ],
    "outlet_alerts": [
        {"incident": 1, "outlet": "pagerduty", "form": "page", "turn": 2, "severity": "critical",
         "told": "acknowledged", "told_s": 4.0, "due_s": 3.0, "withdrawn": 1},
        {"incident": 1, "outlet": "opsgenie", "form": "shown", "turn": 2, "severity": "warning", "tried_s": 4.5,
         "due_s": 3.0, "withdrawn": 0},
    ],
    "outlet_rounds": [{"incident": 1, "seen_s": 6.0, "seen_version": 3, "held_until_s": 11.0, "looked_s": 0.0}],
}  # fmt: skip


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.sqlite"
    return str(request.getfixturevalue("postgres_url"))


def _back_to(url: str, schema: str) -> Database:
    database = Database(url, migrate=False)
    database.downgrade(schema)
    return database


def _rows(database: Database) -> dict[str, list[dict[str, Any]]]:
    """What the earlier tables hold, without what is null."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in EARLIER:
        with database.read() as connection:
            rows = connection.execute(sa.text(f"SELECT * FROM {name}")).mappings()
            found[name] = [{key: value for key, value in row.items() if value is not None} for row in rows]
    return found


def _ordered(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {name: sorted(rows, key=lambda row: str(sorted(row.items()))) for name, rows in tables.items()}


def test_rows_of_the_earlier_ledgers_are_taken_over_and_given_back_whole(url: str) -> None:
    store = Store(url, ManualClock())
    assert store.open_incident("leak", [a_finding()]) == "INC-1"
    store.close()
    earlier = _back_to(url, "0007")
    with earlier.write() as connection:
        for name, rows in EARLIER.items():
            for row in rows:
                names = ", ".join(row)
                statement = f"INSERT INTO {name} ({names}) VALUES ({', '.join(f':{key}' for key in row)})"
                connection.execute(sa.text(statement), row)
    earlier.close()
    database = Database(url)
    ledger = DeliveryLedger(database)
    card = Delivery("INC-1/card", "slack", "card", 1, "C1", ts="17.5", shows="ab", posted_s=5.0, steps=2,
                    seen_s=6.0, seen_version=3, snoozed_until_s=9.0, reminders=1)  # fmt: skip
    page = Delivery("pagerduty/INC-1/page", "pagerduty", "page", 1, shows="acknowledged", told_s=4.0, due_s=3.0,
                    turn=2, severity=Severity.CRITICAL, withdrawn=1)  # fmt: skip
    assert ledger.row(card.key) == card
    assert ledger.row(page.key) == page
    assert [row.key for row in ledger.unanswered("slack")] == ["INC-1/step/1"]
    held = ledger.row("INC-1/round")
    assert held is not None
    assert (held.held_until_s, held.seen_version) == (11.0, 3)
    database.close()
    earlier = _back_to(url, "0007")
    assert _ordered(_rows(earlier)) == _ordered(EARLIER)
    earlier.close()


def test_an_upgrade_of_the_ledger_neither_posts_nor_pages_a_second_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    with a_ward(tmp_path) as ward, a_chat(tmp_path, url) as chat:
        name = ward.opened()
        ward.once()
        chat.once()
        _back_to(url, "0007").close()
        Database(url).close()
        ward.once(3, 31.0)
        chat.once()
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]
        assert len(chat.messages()) == 1
        ward.cleared(name)
        ward.once()
        assert ward.services.pagerduty.alerts[f"nightshift/alpha/{name}/1"].state == "closed"


def test_an_incident_that_outgrows_its_silence_is_posted_and_paged_at_once(tmp_path: Path) -> None:
    """A silence covers an incident only as long as it covers all of it, in every outlet."""
    with a_ward(tmp_path) as ward, a_chat(tmp_path, f"sqlite:///{tmp_path}/store.sqlite") as chat:
        Silences(ward.store, ward.clock).add("gpu:GPU-*", 7200, RAE, "firmware")
        name = ward.opened(CRITICAL)
        ward.once()
        chat.once()
        assert (ward.services.pages(), chat.messages()) == ([], [])
        beyond = replace(CRITICAL, subject=Subject(SubjectKind.NODE, "n1"))
        ward.clock.advance(1)
        ward.store.attach(name, beyond)
        ward.once()
        chat.once()
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]
        assert len(chat.messages()) == 1


@pytest.fixture(autouse=True)
def _skewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_module, "_CLOCK_SKEW_S", 2e9)  # the stand-in's timestamps are the machine's


@pytest.mark.full
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    faults=st.lists(st.sampled_from(["", "limited", "broken", "lost_request", "lost_answer"]), max_size=5),
    crashes=st.sets(st.integers(0, 5)),
)
def test_no_order_of_faults_and_crashes_posts_twice_or_never(
    tmp_path_factory: pytest.TempPathFactory, faults: list[str], crashes: set[int]
) -> None:
    """Crashes before an answer is noted, beside lost answers: where a second send would be a second copy."""
    folder = tmp_path_factory.mktemp("chat")
    with a_chat(folder, f"sqlite:///{folder}/store.sqlite") as chat:
        name, courier, now = chat.opened(), chat.slack.courier, [1_000_000.0]
        courier._p = replace(courier._p, wall_s=lambda: now[0])
        chat.stand_in.faults["chat.postMessage"].extend(Fault(kind or "none", 0.1) for kind in faults)
        ledger: Any = courier._ledger
        real, calls = ledger.told, [0]

        def told(*arguments: Any) -> None:
            calls[0] += 1
            if calls[0] - 1 in crashes:
                raise KeyboardInterrupt
            real(*arguments)

        ledger.told = told
        for _ in range(30):
            with contextlib.suppress(KeyboardInterrupt):
                chat.once()
            now[0] += 31.0
        assert len(chat.messages()) == 1
        assert buttons_of(chat.card(name)) == ["approve", "reject", "take", "snooze", "evidence", "not_a_fault"]
        assert len(chat.thread(name)) == 1
