"""A console over a small story, at an address of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.setup.console import build_console
from tests.agent.story import Story


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    story = Story(tmp_path)
    yield story
    story.store.close()


@pytest.fixture
def url(story: Story) -> Iterator[str]:
    server = Server(build_console(story.parts, Settings()), "127.0.0.1", 0)
    server.start()
    yield server.url
    server.stop()
