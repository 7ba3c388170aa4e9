"""Stores of a daemon that has run once, copied for each test to save it the first start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.agent.forks import run_in_process
from tests.agent.killed import go_on


@pytest.fixture(scope="session")
def ran_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the store, the queue and the simulated cluster of a daemon that has run once."""
    folder = tmp_path_factory.mktemp("ran_once")
    assert run_in_process(go_on, f"sqlite:///{folder}/store.sqlite", str(folder)) == 0
    return folder


@pytest.fixture
def sqlite_url(tmp_path: Path, ran_once: Path) -> str:
    """A SQLite store of its own for the test."""
    for file in ran_once.iterdir():
        shutil.copy(file, tmp_path / file.name)
    return f"sqlite:///{tmp_path}/store.sqlite"
