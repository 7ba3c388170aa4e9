"""What stands in the chat is what the incidents are: once each, up to date, whatever fails on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.slack_stand_in.server import Fault
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.incidents.silence import Silences
from nightshift.agent.notify import courier as courier_module
from nightshift.agent.notify.delivery import DeliveryRefused, NoAnswer
from nightshift.agent.notify.slack.blocks import ChatImage, problems
from nightshift.agent.store.incident import Cause, HistoryStep, IncidentState, unanswered_since_s
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.alarms.lanes import Lane, Proof, in_lane
from nightshift.detectors.base import Severity
from tests.agent.incidents import a_finding
from tests.agent.notify.slack.chat import CHANNEL, Chat, a_chat, buttons_of, text_of
from tests.agent.notify.slack.render import with_a_series

RESPONDER = Person("rae@example.org", frozenset({Role.RESPONDER}), "slack")
PERSON = Person("ann@example.org", frozenset({Role.APPROVER}), "slack")


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chat]:
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/store.sqlite") as made:
        yield made


@pytest.fixture
def wall(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the courier's wall clock."""
    now = [1_000_000.0]
    courier: Any = chat.slack.courier
    monkeypatch.setattr(courier, "_p", replace(courier._p, wall_s=lambda: now[0]))

    def move(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(courier_module, "_CLOCK_SKEW_S", 2e9)  # the stand-in's timestamps are the machine's
    return move


def test_one_message_per_incident_updated_in_place_with_its_story_in_the_thread(chat: Chat) -> None:
    name = chat.opened()
    chat.once()
    first = chat.card(name)
    assert buttons_of(first) == ["approve", "reject", "take", "snooze", "evidence", "not_a_fault"]
    assert "restart the job once: team/job" in text_of(first)
    plan = chat.store.incident(name).action
    assert plan is not None
    assert chat.gate.approve(name, plan.plan_sha256, PERSON).ok
    chat.once()
    chat.recovered(name)
    chat.once()
    chat.once()
    assert len(chat.messages()) == 1
    assert buttons_of(chat.card(name)) == ["evidence"]
    assert chat.card(name)["ts"] == first["ts"]
    thread = chat.thread(name)
    assert any(said.startswith("Why: GPU memory leak") for said in thread)
    assert any("Approved · ann@example.org" in said for said in thread)
    (recovery,) = [said for said in thread if said.startswith("Recovered")]
    assert "clear since 00:17:40 UTC" in recovery
    assert len(thread) == len(set(thread))


@pytest.mark.parametrize("lost", [False, True])
def test_the_deciding_signal_stands_in_the_thread_once_as_an_image(
    chat: Chat, wall: Callable[[float], None], lost: bool
) -> None:
    if lost:
        chat.stand_in.faults["files.completeUploadExternal"].append(Fault("lost_answer"))
    name = chat.store.open_incident("leak", [a_finding()])
    chat.store.save_diagnosis(chat.store.incident(name), with_a_series(), by="rules")
    for _ in range(6):
        chat.once()
        wall(3.5)
    thread = chat.stand_in.workspace.thread(CHANNEL, chat.card(name)["ts"])
    (shown,) = [m for m in thread if m.get("files")]
    assert "GPU-1" in shown["files"][0]["title"]
    assert chat.stand_in.workspace.uploads[shown["files"][0]["id"]].content.startswith(b"\x89PNG")


def test_nothing_is_sent_again_when_nothing_changed(chat: Chat) -> None:
    chat.opened()
    chat.once()
    chat.once()
    before = len(chat.stand_in.calls)
    for _ in range(3):
        chat.once()
    assert len(chat.stand_in.calls) == before


@pytest.mark.parametrize("kind", ["limited", "broken", "lost_request", "lost_answer", "slow"])
def test_whatever_befalls_a_post_the_message_is_there_once(
    chat: Chat, wall: Callable[[float], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "slow":
        monkeypatch.setattr(chat.slack.web.client, "timeout", 1)
    name = chat.opened()
    chat.stand_in.faults["chat.postMessage"].append(Fault(kind, 1.5))
    for _ in range(12):
        chat.once()
        wall(3.5)
    assert len(chat.messages()) == 1
    assert buttons_of(chat.card(name)) == ["approve", "reject", "take", "snooze", "evidence", "not_a_fault"]
    assert len(chat.thread(name)) == 1


def test_a_copy_that_arrives_late_is_deleted_within_a_minute(chat: Chat, wall: Callable[[float], None]) -> None:
    name = chat.opened()
    chat.stand_in.faults["chat.postMessage"].append(Fault("lost_request"))
    for _ in range(4):
        chat.once()
        wall(3.5)
    mine = chat.card(name)
    late = dict(mine) | {"ts": f"{float(mine['ts']) + 1:.6f}"}
    chat.stand_in.workspace.channels[CHANNEL].append(late)
    for _ in range(8):
        wall(10)
        chat.once()
    assert [m["ts"] for m in chat.messages()] == [mine["ts"]]


@pytest.mark.parametrize("sent", [False, True])
def test_a_crash_around_a_post_is_settled_by_looking(
    chat: Chat, wall: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    """The process dies after the post was written down: before it was sent, or before its answer was noted."""
    name = chat.opened()
    web = chat.slack.web
    real = web.post

    def die(*arguments: Any, **more: Any) -> str:
        if sent:
            real(*arguments, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(web, "post", die)
    with pytest.raises(KeyboardInterrupt):
        chat.once()
    monkeypatch.setattr(web, "post", real)
    assert len(chat.messages()) == sent
    for _ in range(4):
        wall(3.5)
        chat.once()
    assert len(chat.messages()) == 1
    assert buttons_of(chat.card(name))[0] == "approve"


def test_a_message_that_somebody_deleted_is_posted_again(chat: Chat) -> None:
    name = chat.opened()
    chat.once()
    chat.stand_in.workspace.channels[CHANNEL].clear()
    chat.gate.reject(name, chat.store.incident(name).action.plan_sha256, PERSON, "not now")  # type: ignore[union-attr]
    chat.once()
    assert "approve" not in buttons_of(chat.card(name))


def test_a_channel_that_slack_refuses_does_not_lose_the_incident(tmp_path: Path) -> None:
    owners = [{"team": "night", "namespaces": ["team"], "slack_channel": "CGONE"}]
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/s.sqlite", owners=owners) as chat:
        name = chat.opened()
        chat.once()
        chat.once()
        assert buttons_of(chat.card(name))[0] == "approve"


def test_an_incident_whose_channel_is_archived_is_told_in_the_default_one(tmp_path: Path) -> None:
    """Once, with its present state and its buttons gone or there as they should be; and it stays there."""
    owners = [{"team": "night", "namespaces": ["team"], "slack_channel": "CTEAM"}]
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/s.sqlite", owners=owners) as chat:
        chat.stand_in.workspace.channels["CTEAM"] = []
        name = chat.opened()
        chat.once()
        assert len(chat.stand_in.workspace.messages("CTEAM")) == 1
        assert not chat.stand_in.workspace.messages(CHANNEL)
        chat.stand_in.workspace.archived.add("CTEAM")
        chat.gate.reject(name, chat.store.incident(name).action.plan_sha256, PERSON, "not now")  # type: ignore[union-attr]
        chat.once()
        (told,) = chat.stand_in.workspace.messages(CHANNEL)
        assert "approve" not in buttons_of(told)
        chat.stand_in.workspace.archived.clear()
        chat.clock.advance(10)
        chat.store.attach(name, a_finding(at_s=2_000.0))
        chat.once()
        assert len(chat.stand_in.workspace.messages(CHANNEL)) == 1
        assert len(chat.stand_in.workspace.messages("CTEAM")) == 1


def test_a_storms_message_that_somebody_deleted_is_posted_again(chat: Chat, wall: Callable[[float], None]) -> None:
    for i in range(30):
        chat.store.open_incident(f"{i}", [a_finding(subject=Subject(SubjectKind.GPU, f"GPU-{i}"))])
    chat.once()
    (storm,) = [m for m in chat.messages() if "Storm" in m["text"]]
    chat.stand_in.workspace.channels[CHANNEL].remove(storm)
    chat.store.open_incident("one more", [a_finding(subject=Subject(SubjectKind.GPU, "GPU-late"))])
    wall(60.0)
    chat.once()
    wall(60.0)
    chat.once()
    (again,) = [m for m in chat.messages() if "Storm" in m["text"]]
    assert again["ts"] != storm["ts"]


def test_routes_come_before_owners_and_owners_before_the_default(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "owners": [{"team": "night", "namespaces": ["te*"], "slack_channel": "C2"}],
        "routes": [{"channel": "C3", "severities": ["critical"]}],
    }
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/s.sqlite", **more) as chat:
        owned = chat.opened()
        grave = chat.opened(a_finding(severity=Severity.CRITICAL))
        nobody = chat.store.open_incident("a node", [a_finding(subject=Subject(SubjectKind.NODE, "n1"))])
        chat.once()
        assert chat.card(owned, "C2")
        assert chat.card(grave, "C3")
        assert chat.card(nobody, CHANNEL)


def test_a_storm_is_a_few_messages_and_no_incident_is_lost(chat: Chat) -> None:
    gpus = [Subject(SubjectKind.GPU, f"GPU-{i}") for i in range(300)]
    names = [chat.store.open_incident(f"Xid on {gpu.name}", [a_finding(subject=gpu)]) for gpu in gpus]
    for _ in range(3):
        chat.once()
    assert len(chat.stand_in.workspace.channels[CHANNEL]) <= 10
    (storm,) = [m for m in chat.messages() if "Storm" in m["text"]]
    own = [m for m in chat.messages() if m is not storm]
    assert f"Storm: {300 - len(own)} incidents" in text_of(storm)
    assert all(chat.store.incident(name).is_open for name in names)


def test_after_a_storm_new_incidents_have_their_own_message_again(chat: Chat) -> None:
    for i in range(5):
        chat.store.open_incident(f"{i}", [a_finding(subject=Subject(SubjectKind.GPU, f"GPU-{i}"))])
    chat.once()
    chat.clock.advance(400)
    later = chat.opened()
    chat.once()
    assert buttons_of(chat.card(later))


def test_quiet_hours_hold_what_is_not_grave_until_they_end(tmp_path: Path) -> None:
    """1970-01-01T00:16:40 is within 22:00–07:00."""
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/s.sqlite", quiet_hours={"start": "22:00", "end": "07:00"}) as chat:
        warning = chat.opened()
        grave = chat.opened(a_finding(severity=Severity.CRITICAL))
        chat.once()
        assert chat.card(grave)
        assert len(chat.messages()) == 1
        chat.clock.advance(7 * 3600)
        chat.once()
        assert chat.card(warning)


def test_what_becomes_grave_in_quiet_hours_is_told_at_once(tmp_path: Path) -> None:
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/s.sqlite", quiet_hours={"start": "22:00", "end": "07:00"}) as chat:
        name = chat.opened()
        chat.once()
        assert not chat.messages()
        chat.clock.advance(5)
        chat.store.attach(name, a_finding(subject=Subject(SubjectKind.GPU, "GPU-9"), severity=Severity.CRITICAL))
        chat.once()
        assert chat.card(name)


def test_a_silence_holds_messages_until_it_ends_or_is_ended(chat: Chat) -> None:
    silences = Silences(chat.store, chat.clock)
    number = silences.add("gpu:GPU-*", 7200, RESPONDER, "firmware").number
    name = chat.opened()
    chat.once()
    assert not chat.messages()
    assert chat.store.incident(name).is_open
    silences.end(number, RESPONDER)
    chat.once()
    assert chat.card(name)


def test_a_silence_of_one_gpu_does_not_hide_an_incident_that_reaches_beyond_it(chat: Chat) -> None:
    Silences(chat.store, chat.clock).add("gpu:GPU-1", 7200, RESPONDER, "")
    name = chat.store.open_incident("two", [a_finding(), a_finding(subject=Subject(SubjectKind.NODE, "n1"))])
    chat.once()
    assert chat.card(name)


def test_silence_of_people_is_reminded_once_and_escalated_once(tmp_path: Path) -> None:
    more: dict[str, Any] = {"escalate_s": 120, "escalate_to": "S1"}
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/s.sqlite", **more) as chat:
        name = chat.opened()
        for _ in range(6):
            chat.once()
            chat.clock.advance(50)
        told = [said for said in chat.thread(name) if "no decision yet" in said]
        assert len(told) == 2
        assert "@S1" not in told[0]
        assert "@S1" in told[1]


def test_an_unanswered_page_climbs_to_the_second_person_and_the_team_whatever_its_plan_does(tmp_path: Path) -> None:
    """By time since the page, in any state, until somebody acknowledges it. A ticket never climbs."""
    more: dict[str, Any] = {"escalate_s": 120, "escalate_to": ["U2", "S1"]}
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/s.sqlite", **more) as chat:
        page, ticket = chat.opened(), chat.opened(in_lane(a_finding(), Lane.TICKET, Proof.COMMON, "weak"))
        chat.once()
        assert "Ticket, no page: weak" in text_of(chat.card(ticket))
        assert "no page" not in text_of(chat.card(page))
        chat.store.move(page, Cause.EXPIRED, "nightshift", "", chat.store.incident(page).version)
        for _ in range(6):
            chat.clock.advance(50)
            chat.once()
        told = [said for said in chat.thread(page) if "not acknowledged" in said]
        assert [("@U2" in said, "@S1" in said) for said in told] == [(False, False), (True, False), (False, True)]
        assert not [said for said in chat.thread(ticket) if "no decision yet" in said]
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/t.sqlite", **more) as chat:
        page = chat.opened()
        chat.once()
        assert chat.store.acknowledge(page, "ann", "acknowledged in Slack")
        chat.clock.advance(500)
        chat.once()
        assert not [said for said in chat.thread(page) if "no decision yet" in said]


def test_the_digest_is_one_message_and_a_storm_of_tickets_hides_no_page(chat: Chat) -> None:
    """What becomes more urgent leaves the digest for a message of its own."""
    noisy = [
        in_lane(a_finding(), lane, Proof.NOISY, "detector mad is noisy") for lane in (Lane.DIGEST, Lane.TICKET)
    ]
    names = [chat.store.open_incident("odd", [noisy[0]]) for _ in range(5)]
    chat.once()
    (digest,) = chat.messages()
    assert "Digest: 5 incidents" in text_of(digest)
    for _ in range(8):
        chat.store.open_incident("odd", [noisy[1]])
    page = chat.store.open_incident("hang", [a_finding()])
    chat.once()
    chat.once()
    assert len([m for m in chat.messages() if "Ticket, no page: detector mad is noisy" in text_of(m)]) == 3
    assert "no page" not in text_of(chat.card(page))
    chat.clock.advance(400)
    chat.store.update_finding(names[0], replace(a_finding(), at=Instant(9e9)), louder=True)
    chat.once()
    assert "no page" not in text_of(chat.card(names[0]))


@pytest.mark.parametrize(
    ("causes", "since_s"),
    [
        ("opened", 0.0),
        ("opened plan_proposed expired plan_proposed", 0.0),
        ("opened plan_proposed approved", None),
        ("opened plan_proposed approved world_changed plan_proposed", 4.0),
        ("opened acknowledged plan_proposed", None),
        ("opened acknowledged stage_failed", 2.0),
        ("opened closed_by_person", None),
        ("opened not_a_fault relapsed", 2.0),
    ],
)
def test_a_page_is_unanswered_since_people_were_called(causes: str, since_s: float | None) -> None:
    """An expired plan answers nothing; whoever took it on is not called by its plan, only by its failure."""
    after = {"stage_failed": IncidentState.ESCALATED, "closed_by_person": IncidentState.RESOLVED}
    after["not_a_fault"] = IncidentState.RESOLVED
    steps = [
        HistoryStep(float(n), IncidentState.OPEN, after.get(cause, IncidentState.OPEN), cause, "ann")
        for n, cause in enumerate(causes.split())
    ]
    assert unanswered_since_s(steps) == since_s


def test_a_relapse_is_told_loudly_in_the_same_thread(chat: Chat) -> None:
    name = chat.opened()
    chat.once()
    plan = chat.store.incident(name).action
    assert plan is not None
    chat.gate.approve(name, plan.plan_sha256, PERSON)
    chat.recovered(name)
    chat.once()
    chat.clock.advance(10)
    chat.store.attach(name, a_finding(at_s=2_000.0))
    chat.once()
    (back,) = [
        m for m in chat.stand_in.workspace.thread(CHANNEL, chat.card(name)["ts"]) if "It is back" in text_of(m)
    ]
    assert back["broadcast"]


HOSTILE = st.text(max_size=4000) | st.sampled_from(
    [
        "<!channel> <@U1ANN>",
        "<https://evil.example|Approve>",
        "*_~`:fire:",
        "\u202eevil",
        "@here\n*Approved by ann*",
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hostile=HOSTILE)
def test_text_from_outside_is_shown_and_never_interpreted(tmp_path: Path, hostile: str) -> None:
    """Titles, findings and quotes reach Slack as text elements of rich text, within every limit."""
    from nightshift.agent.notify.slack.card import card, event, story
    from tests.agent.notify.slack.render import an_incident

    incident = an_incident(hostile)
    for message in (card(incident, 1_000.0, "", 3600.0), story(incident), event(incident, incident.history[-1])):
        assert message is not None
        assert problems({"text": message.text, "blocks": list(message.blocks)}) == []
        assert "<" not in message.text
        kinds = {e["type"] for b in message.blocks if b["type"] == "rich_text" for s in b["elements"]
                 for e in s["elements"]}  # fmt: skip
        assert kinds <= {"text"}


def test_a_daemon_that_does_not_lead_says_nothing(chat: Chat) -> None:
    chat.opened()
    chat.slack.courier.start()  # the connection is not proven, so it does not lead either
    chat.slack.courier.wake()
    time.sleep(0.3)
    chat.slack.courier.stop()
    assert not chat.messages()
    assert not chat.stand_in.calls


def test_an_escalated_incident_says_so_to_the_whole_channel(chat: Chat) -> None:
    name = chat.opened()
    chat.once()
    chat.gate.approve(name, chat.store.incident(name).action.plan_sha256, PERSON)  # type: ignore[union-attr]
    chat.store.move(name, Cause.GUARD_REFUSED, "guard", "8 of 8 nodes out", chat.store.incident(name).version)
    chat.once()
    told = chat.stand_in.workspace.thread(CHANNEL, chat.card(name)["ts"])
    assert [m["broadcast"] for m in told if "Denied by the guard" in text_of(m)] == [True]


@pytest.mark.parametrize("reason", ["invalid_blocks", "no answer"])
def test_a_message_that_slack_will_not_have_keeps_no_other_back(
    chat: Chat, wall: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """The oldest incident's message fails again and again; whoever comes after it is told all the same."""
    bad, web = chat.opened(), chat.slack.courier._p.web
    post = web.post

    def strict(channel: str, key: str, *how: Any) -> str:
        if key == f"{bad}/card":
            raise NoAnswer("500 internal_error") if reason == "no answer" else DeliveryRefused(reason)
        return post(channel, key, *how)

    monkeypatch.setattr(web, "post", strict)
    names = [chat.opened() for _ in range(2)]
    for _ in range(6):
        chat.once()
        wall(10.0)
        chat.clock.advance(70)  # nobody takes it for a storm
    assert all(buttons_of(chat.card(name)) for name in names)
    monkeypatch.setattr(web, "post", post)
    for _ in range(4):
        wall(70.0)
        chat.clock.advance(70)
        chat.once()
    assert buttons_of(chat.card(bad))


def test_a_workspace_that_takes_no_files_is_told_in_words(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app without files:write, or an administrator who forbids them: once tried, and the story goes on."""
    web, tried = chat.slack.courier._p.web, []
    post = web.post

    def strict(channel: str, key: str, message: Any, *how: Any) -> str:
        if isinstance(message, ChatImage):
            tried.append(key)
            raise DeliveryRefused("missing_scope")
        return post(channel, key, message, *how)

    monkeypatch.setattr(web, "post", strict)
    names = [chat.store.open_incident("leak", [a_finding()]) for _ in range(2)]
    for name in names:
        chat.store.save_diagnosis(chat.store.incident(name), with_a_series(), by="rules")
    for _ in range(3):
        chat.once()
    assert all(chat.thread(name) for name in names)
    assert len(tried) == len(set(tried)) == 2
    assert not chat.slack.courier.problem
