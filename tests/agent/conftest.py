"""A clock, and stores that tests copy: of a daemon that has run once, to save the first start, and empty ones."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.agent.store.database import Database
from tests.agent.forks import run_in_process
from tests.agent.incidents import ManualClock
from tests.agent.killed import go_on


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


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


@pytest.fixture(scope="session", autouse=True)
def migrated_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A SQLite file that is not there yet begins as a copy of one that the migrations have made (0.1 s each)."""
    blank = tmp_path_factory.mktemp("blank") / "store.sqlite"
    Database(f"sqlite:///{blank}").close()
    migrate = Database._migrate

    def copied_and_migrated(database: Database) -> None:
        path = Path(str(database.url.database))
        if database.is_sqlite and not path.exists():
            with contextlib.suppress(OSError):  # then migrating says what is wrong
                shutil.copyfile(blank, path)
        migrate(database)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "_migrate", copied_and_migrated)
        yield
