"""A plan is shown as what it changes, and as what changed since the plan before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.presentation.plan_diff import DiffLine, against, effect
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.incident import Cause
from nightshift.controllers.action import ActionKind, kinds_where
from tests.agent.incidents import NODE, an_action
from tests.agent.story import Story


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    story = Story(tmp_path)
    yield story
    story.store.close()


def test_a_cordon_is_a_node_before_and_after() -> None:
    plan = replace(an_action(kind=ActionKind.CORDON, target=NODE), params={})
    assert effect(plan) == [DiffLine("-", "n1: takes new pods: yes"), DiffLine("+", "n1: takes new pods: no")]


def test_every_kind_that_acts_says_what_it_changes() -> None:
    silent = {kind for kind in ActionKind if not effect(an_action(kind=kind))}
    assert silent <= kinds_where(lambda row: row.harmless) | {ActionKind.KERNEL_JOB}


def test_only_what_differs_from_the_plan_before_is_shown() -> None:
    before = an_action()
    after = replace(before, params={**before.params, "checkpoint": "17100"})
    assert against(before, after) == [DiffLine("-", "Checkpoint: latest"), DiffLine("+", "Checkpoint: 17100")]
    assert against(before, before) == []


def test_the_page_shows_both(story: Story) -> None:
    name = story.tell()
    incident = story.store.incident(name)
    story.store.move(name, Cause.WORLD_CHANGED, "lifecycle", "", incident.version)
    again = story.action(id=f"{name}-2", why="The pod was moved; the leak goes on.")
    story.store.save_plan(story.store.incident(name), again, "", by="nightshift")
    server = Server(build_console(story.parts, Settings()), "127.0.0.1", 0)
    server.start()
    try:
        text = httpx.get(f"{server.url}/incidents/{name}").text
    finally:
        server.stop()
    assert "<del>- sft/sft-12-4: its processes: run on</del>" in text
    assert "<del>- Why: The leak ends with its process" in text
    assert "<ins>+ Why: The pod was moved; the leak goes on.</ins>" in text
