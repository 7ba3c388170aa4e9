"""Right or wrong: a person's word on a diagnosis moves nothing, and is exported with the evidence."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from starlette.testclient import TestClient
from typer.testing import CliRunner

from nightshift.agent.__main__ import app
from nightshift.agent.approvals.policy import Person, Role, RoleGrant
from nightshift.agent.console.settings import Settings
from nightshift.agent.presentation.incident_text import incident_text
from nightshift.agent.rca.feedback import judged
from nightshift.agent.rca.summary import as_text, in_short, summarise
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.incident import Cause
from nightshift.agent.store.incident_store import NoSuchIncident
from tests.agent.story import NOW_S, TOKEN, Story

ADA = Person("ada", frozenset({Role.RESPONDER}), "console")


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_a_judgement_moves_nothing_and_the_later_word_of_a_person_counts(story: Story) -> None:
    name = story.tell()
    before = story.store.incident(name)
    assert story.gate.judge(name, ADA, right=True).message == f"Noted: the diagnosis of {name} is right."
    assert not story.gate.judge(name, ADA, right=True).changed
    assert story.gate.judge(name, ADA, right=False, note="it was the loader").ok
    story.gate.judge(name, Person("bob", frozenset({Role.RESPONDER}), "slack"), right=True)
    after = story.store.incident(name)
    assert (after.state, after.version) == (before.state, before.version)
    assert [step.cause for step in after.history[-3:]] == [
        Cause.JUDGED_RIGHT,
        Cause.JUDGED_WRONG,
        Cause.JUDGED_RIGHT,
    ]
    state = [line for line in as_text(summarise(after, NOW_S)).split("\n") if line.startswith("State")]
    assert state == [line for line in as_text(summarise(before, NOW_S)).split("\n") if line.startswith("State")]
    (case,) = judged(story.store)
    words = {one["by"]: one for one in case["feedback"]}
    assert (words["ada"]["right"], words["bob"]["right"]) == (False, True)
    assert words["ada"]["note"].endswith("it was the loader")
    assert case["evidence"][0]["id"] == "E1"


def test_a_judgement_is_no_second_end_in_the_history(story: Story) -> None:
    """The terminal and the page say what was judged, and when the incident really ended."""
    name = story.tell()
    story.gate.close(name, ADA, "the loader was fixed")
    story.clock.wait_until(NOW_S + 3_600)
    story.gate.judge(name, ADA, right=True)
    shown = StringIO()
    Console(file=shown, width=120).print(incident_text(story.store.incident(name), NOW_S + 3_600))
    assert shown.getvalue().count("  resolved (ada)") == 1
    assert shown.getvalue().count("  judged right (ada)") == 1
    web = TestClient(build_console(story.parts, Settings()), base_url="http://127.0.0.1")
    page = web.get(f"/incidents/{name}", headers={"Authorization": f"Bearer {TOKEN}"}).text
    assert page.count("<b>Resolved</b>") == 1
    assert "<b>Judged right</b>" in page


def test_how_long_a_fault_lasted_is_the_same_after_a_later_word(story: Story) -> None:
    name = story.tell()
    story.gate.close(name, ADA, "the loader was fixed")
    ended = in_short(story.store.incident(name), NOW_S)
    story.clock.wait_until(NOW_S + 3_600)
    assert story.gate.judge(name, ADA, right=True).ok
    assert in_short(story.store.incident(name), NOW_S + 7_200) == ended
    assert "lasted 15 min" in ended


def test_only_who_may_close_it_judges_it(story: Story) -> None:
    name = story.tell()
    assert not story.gate.judge(name, Person("vic", frozenset({Role.VIEWER}), "slack"), right=True).ok
    stranger = Person("eve", frozenset(), "slack", grants=(RoleGrant(Role.RESPONDER, ("other",)),))
    with pytest.raises(NoSuchIncident):
        story.gate.judge(name, stranger, right=True)
    bare = story.store.open_incident("x", [story.finding()])
    assert story.gate.judge(bare, ADA, right=True).message == f"{bare} has no diagnosis yet."
    assert list(judged(story.store)) == []


def test_the_page_and_the_api_judge(story: Story) -> None:
    name = story.tell()
    web = TestClient(build_console(story.parts, Settings()), base_url="http://127.0.0.1", follow_redirects=False)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    path = f"/api/v1/incidents/{name}/feedback"
    assert web.post(path, json={"right": True}, headers=bearer).json()["changed"]
    assert web.post(path, json={"right": "yes"}, headers=bearer).status_code == 422
    assert web.post(path, json={"right": True}).status_code == 401
    web.post("/sign-in", data={"token": TOKEN})
    page = web.get(f"/incidents/{name}").text
    form = page.split('name="form" value="')[1].split('"')[0]
    assert "Was this diagnosis right?" in page
    assert web.post(f"/incidents/{name}/judge", data={"form": "0" * 64, "verdict": "wrong"}).status_code == 403
    told = web.post(f"/incidents/{name}/judge", data={"form": form, "verdict": "wrong", "note": "the loader"})
    assert told.status_code == 303
    (case,) = judged(story.store)
    assert [(one["right"], one["by"]) for one in case["feedback"]] == [(False, "ada")]


def test_the_command_line_judges_and_exports(story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = story.tell()
    monkeypatch.setenv("NIGHTSHIFT_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("NIGHTSHIFT_STORE__URL", f"sqlite:///{tmp_path / 'story.db'}")
    run = CliRunner().invoke
    assert run(app, ["feedback", name, "--wrong", "--note", "a switch"]).exit_code == 0
    told = run(app, ["feedback", "--export", str(tmp_path / "out.jsonl")])
    assert "1 judged diagnoses" in told.output
    (row,) = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert (row["incident"], row["feedback"][0]["right"]) == (name, False)
    for wrong in (["feedback", name], ["feedback", "--right"], ["feedback", name, "--export", "x", "--right"]):
        assert run(app, wrong).exit_code == 2
    story.store.close()
