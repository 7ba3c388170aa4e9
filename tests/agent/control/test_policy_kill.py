"""A daemon killed at any statement while a policy is demoted, settled or promoted leaves it wholly before or wholly
after; told again after the restart, it is in shadow once and the audit log verifies."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from nightshift.controllers.decision import Mode
from tests.agent.forks import run_in_process
from tests.agent.killed_policy import DEEDS, KIND, a_watch, do_and_die, file_url, prepare

MOST = 60
"""More statements than any deed sends."""


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "prepared.sqlite"
    prepare(file_url(path))
    return path


def _check(url: str, deed: str) -> Mode:
    """After the restart: told again, then as it would have been without the kill. Returns the mode found."""
    store, watch = a_watch(url)
    found = watch.gate.standing(KIND).mode
    assert found in (Mode.CANARY, Mode.SHADOW, Mode.ACTIVE)
    assert store.audit.verify().ok
    DEEDS[deed](watch)
    watch.turn(2_000.0)
    standing = watch.gate.standing(KIND)
    assert standing.mode is (Mode.ACTIVE if deed == "approved step" else Mode.SHADOW)
    downs = [change for change in standing.history if change.after is Mode.SHADOW]
    ups = [change for change in standing.history if change.after is Mode.ACTIVE]
    assert (len(downs), len(ups)) == ((0, 1) if deed == "approved step" else (1, 0))
    kinds = [record.kind for record in store.audit.records()]
    assert kinds.count("policy_demoted") == len(downs)
    waiting = [plan for plan in watch.gate.proposals() if plan.state in ("waiting", "approved")]
    assert waiting == [], "a plan outlives what it rested on"
    if deed == "violation in an outcome":
        assert watch.receipts.came(f"{1:016x}").violated
    assert store.audit.verify().ok
    store.close()
    return found


def _kill_everywhere(url: str, deed: str, what: str, renew: object) -> set[Mode]:
    assert callable(renew)
    seen = set()
    for number in range(1, MOST):
        renew()
        code = run_in_process(do_and_die, url, deed, what.format(number))
        seen.add(_check(url, deed))
        if code == 0:
            assert number > 1, "nothing was ever killed"
            return seen
        assert code == -signal.SIGKILL
    raise AssertionError("more statements than expected")


@pytest.mark.full
def test_killed_around_every_commit_of_a_budget_event_it_is_demoted_once(prepared: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"

    def renew() -> None:
        for old in tmp_path.glob("s.sqlite*"):
            old.unlink()
        shutil.copy(prepared, path)

    seen = _kill_everywhere(file_url(path), "budget event", "commit {}", renew)
    assert len(seen) == 2, "killed both before and after it was stored"


@pytest.mark.full
@pytest.mark.parametrize(
    ("deed", "what"),
    [
        ("budget event", "statement {}"),
        ("approved step", "statement {}"),
        ("lock-outs", "commit {}"),
        ("violation in an outcome", "commit {} after"),
        ("taken back by a person", "commit {}"),
    ],
)
def test_killed_at_every_statement_and_commit_on_sqlite(
    deed: str, what: str, prepared: Path, tmp_path: Path
) -> None:
    path = tmp_path / "s.sqlite"

    def renew() -> None:
        for old in tmp_path.glob("s.sqlite*"):
            old.unlink()
        shutil.copy(prepared, path)

    _kill_everywhere(file_url(path), deed, what, renew)


@pytest.fixture(scope="session")
def postgres_prepared(postgres_server: str) -> str:
    with psycopg.connect(postgres_server.replace("+psycopg", "") + "/postgres", autocommit=True) as admin:
        admin.execute("CREATE DATABASE policy_prepared")
    prepare(f"{postgres_server}/policy_prepared")
    return "policy_prepared"


@pytest.fixture
def postgres_admin(postgres_server: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_server.replace("+psycopg", "") + "/postgres", autocommit=True) as admin:
        yield admin
        admin.execute("DROP DATABASE IF EXISTS policy_copy WITH (FORCE)")


@pytest.mark.full
@pytest.mark.parametrize("deed", DEEDS)
def test_killed_around_every_commit_on_postgresql(
    deed: str, postgres_prepared: str, postgres_server: str, postgres_admin: psycopg.Connection
) -> None:
    def renew() -> None:
        postgres_admin.execute("DROP DATABASE IF EXISTS policy_copy WITH (FORCE)")
        postgres_admin.execute(f"CREATE DATABASE policy_copy TEMPLATE {postgres_prepared}")  # type: ignore[arg-type]

    _kill_everywhere(f"{postgres_server}/policy_copy", deed, "commit {}", renew)
