"""Policies in the console: a stranger sees what was decided and why; who may, takes a policy back there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from nightshift.agent.approvals.policy_gate import PolicyGate
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.control.policy_watch import PolicyWatch
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.receipts import Receipts
from nightshift.controllers.decision import Clip, Mode
from tests.agent.killed_policy import CRITERIA, KIND, a_receipt, climb
from tests.agent.story import TOKEN, Story


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def web(story: Story) -> Iterator[httpx.Client]:
    server = Server(build_console(story.parts, Settings()), "127.0.0.1", 0)
    server.start()
    with httpx.Client(base_url=server.url, follow_redirects=False) as client:
        yield client
    server.stop()


def test_a_decision_is_told_whole_and_what_it_names_is_text(story: Story, web: httpx.Client) -> None:
    """Seen, proposed, clipped by which constraint, executed, the baseline's answer and what came of it."""
    receipts = Receipts(story.store.database)
    clip = Clip("starvation", "hold", "start", "<script>alert(1)</script>")
    receipts.keep(replace(a_receipt(7), clips=(clip,)), chance=0.5, treated=True)
    receipts.settle(f"{7:016x}", reward=0.25, slowdown=1.01)
    page = web.get(f"/policies/decisions/{7:016x}").text
    for words in ("waiting = 3.0", "hold (probability 0.5)", "starvation: hold", "start by fifo", "reward 0.2500"):
        assert words in page
    assert "<script>alert" not in page
    assert web.get("/policies/decisions/ffff").status_code == 404


def test_a_policy_is_taken_back_by_a_form_by_who_may(story: Story, web: httpx.Client) -> None:
    gate = PolicyGate(story.gate, story.store, story.clock, "lab", CRITERIA)
    climb(PolicyWatch(gate, Receipts(story.store.database)), Mode.TRIAL)
    assert "Revert" not in web.get("/policies").text  # nobody has signed in
    assert web.post("/policies/take-back", data={"form": "x", "kind": KIND}).status_code == 401
    web.post("/sign-in", data={"token": TOKEN})
    page = web.get("/policies").text
    assert "Revert to shadow" in page
    found = re.search(r'name="form" value="([0-9a-f]+)"', page)
    assert found is not None
    data = {"form": found[1], "kind": KIND, "reason": "odd waits"}
    assert web.post("/policies/take-back", data={**data, "kind": "cooling"}).status_code == 404
    assert web.post("/policies/take-back", data=data).status_code == 303
    assert (gate.standing(KIND).mode, gate.standing(KIND).demotion) == (Mode.SHADOW, "odd waits")
    assert "Moved down: odd waits" in web.get("/policies").text
