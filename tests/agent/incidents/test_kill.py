"""Killed with SIGKILL at every arrow: after a restart the incident goes on, nothing is lost or happens twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from nightshift.agent.store.incident import REMARKS, TRANSITIONS, Cause, IncidentState
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.tables import intents
from nightshift.controllers.actuators.simulated import SimulatedCluster
from tests.agent.forks import run_in_process
from tests.agent.incidents import ManualClock
from tests.agent.killed import SCENARIOS, drive, go_on, move_and_die
from tests.covering import covering

_S = IncidentState
_WORLD = [f"world {method} {mode}" for method in ("execute", "undo") for mode in ("die_before", "die_after")]


def _cases() -> list[tuple[str, str]]:
    """Before and after every arrow that a scenario takes, each arrow in the first scenario that has it."""
    found: dict[str, str] = {}
    for name, scenario in SCENARIOS.items():
        for state, cause in scenario.arrows():
            for when in ("before", "after"):
                found.setdefault(f"{when} {state.value if state else 'none'} {cause}", name)
        if scenario.effects == (False, True):
            found |= dict.fromkeys(_WORLD, name)
        if scenario.gives_back:
            found |= {f"world execute {mode} return_node": name for mode in ("die_before", "die_after")}
    return [(name, place) for place, name in found.items()]


CASES = _cases()
_QUICK = (
    "after none opened",
    "before open diagnosis_stored",
    "after diagnosed plan_proposed",
    "after awaiting_approval approved",
    "before approved intent_stored",
    "after approved intent_stored",
    "before acting action_done",
    "before confirming not_confirmed",
    "before undoing undone",
    *_WORLD,
)
_QUICK_ON_POSTGRES = ("after approved intent_stored", "before acting action_done", "world execute die_after")
QUICK = [case for case in CASES if case[1] in _QUICK]
QUICK_ON_POSTGRES = [case for case in CASES if case[1] in _QUICK_ON_POSTGRES]
MOVES = [(state.value, cause.value, when) for state, cause in TRANSITIONS for when in ("before", "after")]
OTHERS_ON_POSTGRES = covering(
    (case for case in CASES if case not in QUICK_ON_POSTGRES),
    lambda case: case[1] if case[1] in _WORLD else case[1].rpartition(" ")[0],  # both sides of each state
    lambda case: case[1].rpartition(" ")[2],  # each cause
)
"""Every arrow is killed on SQLite. What PostgreSQL does differently is the transaction, which all arrows share."""
MOVES_ON_POSTGRES = covering(MOVES, lambda move: (move[0], move[2]), lambda move: move[1])
QUICK_MOVES = [("approved", "rejected", "before"), ("acting", "expired", "after")]


@pytest.fixture(scope="session")
def postgres_ran_once(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    with psycopg.connect(postgres_server.replace("+psycopg", "") + "/postgres", autocommit=True) as admin:
        admin.execute("CREATE DATABASE ran_once")
    folder = tmp_path_factory.mktemp("ran_once")
    assert run_in_process(go_on, f"{postgres_server}/ran_once", str(folder)) == 0
    return "ran_once"


@pytest.fixture
def postgres_copy(postgres_server: str, postgres_ran_once: str, tmp_path: Path) -> Iterator[str]:
    """A database of a daemon that has run once."""
    name = f"copy_{abs(hash(tmp_path))}"
    with psycopg.connect(postgres_server.replace("+psycopg", "") + "/postgres", autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {postgres_ran_once}")  # type: ignore[arg-type]
        yield f"{postgres_server}/{name}"
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]


def _effects_once(folder: Path) -> tuple[bool, ...]:
    """`undo` of every effect on the world, after checking that no action happened twice."""
    effects = SimulatedCluster(folder / "cluster.sqlite").effects()
    assert len({(effect.action_id, effect.undo) for effect in effects}) == len(effects)
    return tuple(effect.undo for effect in effects)


def _check(url: str, folder: Path, name: str) -> None:
    """The whole history is the scenario's, the world shows its effects once, the audit log holds."""
    scenario, store = SCENARIOS[name], Store(url, ManualClock())
    (summary,) = store.incidents()
    incident = store.incident(summary.id)
    moves = [step.cause for step in incident.history if step.cause not in REMARKS]
    assert moves == list(scenario.causes)
    assert incident.state is scenario.end
    assert _effects_once(folder) == scenario.effects
    assert store.audit.verify().ok
    with store.database.read() as connection:
        unended = connection.execute(sa.select(intents.c.action_id).where(intents.c.outcome.is_(None))).all()
    assert unended == []
    store.close()


def _kill_and_go_on(url: str, folder: Path, scenario: str, place: str) -> None:
    assert run_in_process(drive, url, str(folder), scenario, place) == -signal.SIGKILL, "the place was not reached"
    assert run_in_process(drive, url, str(folder), scenario, "") == 0
    _check(url, folder, scenario)


def _kill_in_a_move(url: str, folder: Path, state: str, cause: str, when: str) -> None:
    """One arrow by itself, from a state reached without a lifecycle; then a daemon goes on from what is stored."""
    assert run_in_process(move_and_die, url, str(folder), state, cause, when) == -signal.SIGKILL
    store = Store(url, ManualClock())
    left = store.incident("INC-1")
    moved = TRANSITIONS[IncidentState(state), Cause(cause)]
    assert left.state is (moved if when == "after" else IncidentState(state))
    assert store.audit.verify().ok
    assert run_in_process(go_on, url, str(folder)) == 0
    then = store.incident("INC-1")
    assert then.history[: len(left.history)] == left.history
    assert then.state not in (_S.OPEN, _S.DIAGNOSED, _S.APPROVED, _S.ACTING, _S.UNDOING)
    _effects_once(folder)
    assert store.audit.verify().ok
    store.close()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_ends_as_it_says_when_nobody_is_killed(sqlite_url: str, tmp_path: Path, scenario: str) -> None:
    assert run_in_process(drive, sqlite_url, str(tmp_path), scenario, "") == 0
    _check(sqlite_url, tmp_path, scenario)


@pytest.mark.parametrize(("scenario", "place"), QUICK)
def test_a_kill_loses_and_repeats_nothing_on_sqlite(
    sqlite_url: str, tmp_path: Path, scenario: str, place: str
) -> None:
    _kill_and_go_on(sqlite_url, tmp_path, scenario, place)


@pytest.mark.parametrize(("scenario", "place"), QUICK_ON_POSTGRES)
def test_a_kill_loses_and_repeats_nothing_on_postgres(
    postgres_copy: str, tmp_path: Path, scenario: str, place: str
) -> None:
    _kill_and_go_on(postgres_copy, tmp_path, scenario, place)


@pytest.mark.parametrize(("state", "cause", "when"), QUICK_MOVES)
def test_a_kill_in_a_rare_move_leaves_all_of_it_or_nothing(
    sqlite_url: str, tmp_path: Path, state: str, cause: str, when: str
) -> None:
    _kill_in_a_move(sqlite_url, tmp_path, state, cause, when)


@pytest.mark.full
@pytest.mark.parametrize(("scenario", "place"), [case for case in CASES if case not in QUICK])
def test_a_kill_at_any_other_arrow_on_sqlite(sqlite_url: str, tmp_path: Path, scenario: str, place: str) -> None:
    _kill_and_go_on(sqlite_url, tmp_path, scenario, place)


@pytest.mark.full
@pytest.mark.parametrize(("scenario", "place"), OTHERS_ON_POSTGRES)
def test_a_kill_at_another_arrow_of_each_state_and_cause_on_postgres(
    postgres_copy: str, tmp_path: Path, scenario: str, place: str
) -> None:
    _kill_and_go_on(postgres_copy, tmp_path, scenario, place)


@pytest.mark.full
@pytest.mark.parametrize(("state", "cause", "when"), [move for move in MOVES if move not in QUICK_MOVES])
def test_a_kill_in_any_move_leaves_all_of_it_or_nothing_on_sqlite(
    sqlite_url: str, tmp_path: Path, state: str, cause: str, when: str
) -> None:
    _kill_in_a_move(sqlite_url, tmp_path, state, cause, when)


@pytest.mark.full
@pytest.mark.parametrize(("state", "cause", "when"), MOVES_ON_POSTGRES)
def test_a_kill_in_a_move_of_each_state_and_cause_leaves_all_of_it_or_nothing_on_postgres(
    postgres_copy: str, tmp_path: Path, state: str, cause: str, when: str
) -> None:
    _kill_in_a_move(postgres_copy, tmp_path, state, cause, when)
