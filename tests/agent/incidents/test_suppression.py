"""Maintenance and silences keep every door quiet alike; what they cover is kept, listed, and told at the end."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from nightshift.agent.__main__ import app as command_line
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.clock import SteppedClock
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings as ConsoleSettings
from nightshift.agent.incidents.silence import Silences
from nightshift.agent.incidents.suppression import Suppressor
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.guard import MaintenanceWindow
from tests.agent.incidents import GPU, NODE, a_finding
from tests.agent.notify.outlets.ward import CRITICAL, a_ward
from tests.agent.notify.slack.chat import a_chat
from tests.agent.story import NOW_S, Story

RAE = Person("rae@example.org", frozenset({Role.RESPONDER}), "console")
HOUR_S = 3600.0


def window(start_s: float = 0.0, end_s: float = HOUR_S, **more: object) -> MaintenanceWindow:
    values = {"subjects": ("node:n1",), "start_s": start_s, "end_s": end_s, "owner": "facilities"}
    return MaintenanceWindow.model_validate(values | {"reason": "cooling works"} | more)


def place() -> Inventory:
    """GPU-1 stands in node n1: planned work on the node covers what its GPUs do."""
    inventory = Inventory("alpha")
    inventory.observe(GPU, NODE, 0.0)
    return inventory


def test_slack_is_told_when_maintenance_is_over_and_the_fault_still_stands(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.sqlite"
    with a_chat(tmp_path, url, windows=lambda: (window(),), inventory=place()) as chat:
        name = chat.opened()
        over = chat.store.open_incident("short", [a_finding()])
        chat.once()
        assert not chat.messages()
        assert chat.store.incident(name).is_open
        chat.store.move(over, *_closed(chat.store.incident(over).version))
        chat.clock.advance(HOUR_S)
        chat.once()
        assert [m["metadata"]["event_payload"]["key"] for m in chat.messages()] == [f"{name}/card"]


def test_the_pager_is_told_when_maintenance_is_over_and_the_fault_still_stands(tmp_path: Path) -> None:
    with a_ward(tmp_path, windows=lambda: (window(),), inventory=place()) as ward:
        name = ward.opened()
        over = ward.store.open_incident("short", [CRITICAL])
        ward.once(2)
        assert ward.services.calls == []
        ward.store.move(over, *_closed(ward.store.incident(over).version))
        ward.once()
        ward.clock.advance(HOUR_S)
        ward.once(2)
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]


def _closed(version: int) -> tuple[object, str, str, int]:
    from nightshift.agent.store.incident import Cause

    return Cause.CLOSED_BY_PERSON, "ann", "over", version


def test_the_console_lists_what_is_suppressed_as_such(tmp_path: Path) -> None:
    story = Story(tmp_path)
    name = story.tell()
    covers = window(NOW_S - 60, NOW_S + HOUR_S, subjects=("node:gpu-n1",))
    story.inventory.observe(Subject(SubjectKind.POD, "sft/sft-12-4"), Subject(SubjectKind.NODE, "gpu-n1"), 0.0)
    suppressor = Suppressor(story.store, story.clock, lambda: (covers,), story.inventory)
    server = Server(build_console(replace(story.parts, suppressor=suppressor), ConsoleSettings()), "127.0.0.1", 0)
    server.start()
    try:
        for path in ("/", "/incidents", f"/incidents/{name}"):
            text = httpx.get(server.url + path).text
            assert "maintenance: cooling works (facilities), until" in text, path
        story.clock.wait_until(NOW_S + 2 * HOUR_S)
        assert "maintenance: cooling" not in httpx.get(f"{server.url}/incidents").text
    finally:
        server.stop()
        story.store.close()


def test_the_command_line_and_slacks_list_say_what_is_suppressed(tmp_path: Path) -> None:
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/nightshift.db", windows=lambda: (window(),)) as chat:
        chat.store.open_incident("a node", [a_finding(subject=NODE)])
        message = chat.slack.desk._command("incidents", RAE)
        assert "suppressed: maintenance: cooling works (facilities)" in json.dumps(message.blocks)
    config = tmp_path / "nightshift.yaml"
    wide = {"subjects": ["node:*"], "start_s": 0, "end_s": 4e9, "owner": "ops", "reason": "move"}
    config.write_text(json.dumps({"state_dir": str(tmp_path), "guard": {"maintenance": [wide]}}))
    listed = CliRunner().invoke(command_line, ["incidents", "--config", str(config), "--json"])
    (row,) = json.loads(listed.output)
    assert row["suppressed"] == {"until_s": 4e9, "by": "ops", "why": "maintenance: move"}
    shown = CliRunner().invoke(command_line, ["show", row["id"], "--config", str(config)])
    assert "muted: maintenance: move (ops)" in shown.output


@pytest.mark.parametrize(
    ("matcher", "warning"),
    [
        ("node:n1", ""),
        ("node:n*", ""),
        ("node:n7", "Warning: No known node matches 'n7': it mutes nothing until one does. Known: n1.\n"),
        ("pod:ml/a-0", "Warning: No known pod matches 'ml/a-0': it mutes nothing until one does.\n"),
        ("fault:straggler", ""),
        ("namespace:ml", ""),
    ],
)
def test_a_silence_that_matches_nothing_known_says_so_and_holds(tmp_path: Path, matcher: str, warning: str) -> None:
    """The node may be away for now."""
    store = Store(f"sqlite:///{tmp_path}/nightshift.db", SteppedClock(NOW_S))
    store.save_memberships(place().memberships())
    config = tmp_path / "nightshift.yaml"
    config.write_text(json.dumps({"state_dir": str(tmp_path)}))
    done = CliRunner().invoke(command_line, ["silence", "add", matcher, "-r", "new fans", "-c", str(config)])
    assert (done.exit_code, done.stderr) == (0, warning)
    assert [silence.matcher for silence in Silences(store, SteppedClock(NOW_S)).standing()] == [matcher]
    store.close()


def test_a_silence_that_ends_tells_the_pager_too(tmp_path: Path) -> None:
    with a_ward(tmp_path) as ward:
        silences = Silences(ward.store, ward.clock)
        number = silences.add("gpu:GPU-*", 7200, RAE, "firmware").number
        name = ward.opened()
        ward.once()
        assert ward.services.calls == []
        silences.end(number, RAE)
        ward.once()
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]


def test_a_window_that_is_taken_back_tells_at_once(tmp_path: Path) -> None:
    windows = [window()]
    with a_ward(tmp_path, windows=lambda: windows, inventory=place()) as ward:
        name = ward.opened()
        ward.once()
        windows.clear()
        ward.outlets.courier._p.suppressor.look_again()
        ward.once()
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]


def test_an_incident_that_reaches_beyond_the_window_is_told(tmp_path: Path) -> None:
    with a_ward(tmp_path, windows=lambda: (window(),), inventory=place()) as ward:
        elsewhere = a_finding(subject=Subject(SubjectKind.GPU, "GPU-9"))
        ward.opened(CRITICAL, elsewhere)
        ward.once()
        assert len(ward.services.pages()) == 1


def test_a_relapse_during_maintenance_waits_for_its_end(tmp_path: Path) -> None:
    windows: list[MaintenanceWindow] = []
    with a_ward(tmp_path, windows=lambda: windows, inventory=place()) as ward:
        name = ward.opened()
        ward.once()
        ward.cleared(name)
        ward.once()
        windows.append(window(0.0, 50_000.0))
        ward.relapsed(name)
        ward.once(2)
        assert len(ward.services.pages()) == 1
        ward.clock.wait_until(50_001.0)
        ward.once(2)
        assert ward.services.pages() == [f"nightshift/alpha/{name}/{turn}" for turn in (1, 2)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"owner": ""}, "owner"),
        ({"end_s": float("inf")}, "end_s"),
        ({"end_s": -1.0}, "end_s must be after start_s"),
        ({"subjects": ()}, "subjects"),
        ({"zone": "Mars/Olympus"}, "not a time zone"),
        ({"every": "day", "end_s": 100_000.0}, "shorter"),
    ],
)
def test_a_window_without_an_end_or_an_owner_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        window(**change)
    for missing in ("owner", "end_s"):
        values = {"subjects": ("node:n1",), "start_s": 0.0, "end_s": 1.0, "owner": "ops"}
        del values[missing]
        with pytest.raises(ValidationError, match=missing):
            MaintenanceWindow.model_validate(values)


def test_a_window_comes_again_at_the_same_local_time_over_daylight_saving() -> None:
    """Saturdays 22:00 to 02:00 in Zurich; on 25 October 2026 the clocks go back at 03:00."""
    start = datetime(2026, 10, 17, 20, 0, tzinfo=UTC).timestamp()  # 22:00 in summer time
    weekly = window(start, start + 4 * HOUR_S, every="week", zone="Europe/Zurich")

    def holds(*at: int) -> bool:
        return weekly.holds_until(datetime(*at, tzinfo=UTC).timestamp()) is not None  # type: ignore[arg-type, misc]

    assert not holds(2026, 10, 10, 20, 30), "not before its first time"
    assert holds(2026, 10, 17, 20, 30)
    assert holds(2026, 10, 24, 20, 30)
    assert not holds(2026, 10, 24, 19, 30)
    assert not holds(2026, 10, 31, 20, 30), "21:30 in winter time"
    assert holds(2026, 10, 31, 21, 30)
    assert holds(2026, 11, 1, 0, 59)
    assert not holds(2026, 11, 1, 1, 1)
    assert not holds(2026, 11, 4, 21, 30)


def test_slacks_reminders_end_when_somebody_has_taken_it_on_and_mention_nobody_whom_the_pager_calls(
    tmp_path: Path,
) -> None:
    more = {"escalate_s": 120, "escalate_to": "S1"}
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/s.sqlite", **more) as chat:
        taken, waits = chat.opened(), chat.opened()
        chat.once()
        assert chat.store.acknowledge(taken, "Earline (pagerduty)", "taken on in pagerduty")
        for _ in range(5):
            chat.clock.advance(50)
            chat.once()
        assert not [said for said in chat.thread(taken) if "no decision yet" in said]
        assert [said for said in chat.thread(taken) if said.startswith("Taken on · Earline (pagerduty)")]
        assert len([said for said in chat.thread(waits) if "@S1" in said]) == 1
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/p.sqlite", pager=lambda incident: "pagerduty", **more) as chat:
        waits = chat.opened()
        for _ in range(6):
            chat.once()
            chat.clock.advance(50)
        assert len([said for said in chat.thread(waits) if "no decision yet" in said]) == 2
        assert not [said for said in chat.thread(waits) if "@S1" in said]
