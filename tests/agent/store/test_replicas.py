"""Two daemons on one PostgreSQL: one leads, one runner an incident, and a dead one's work is taken over in time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.policy import ApprovalSettings
from nightshift.agent.clock import WallClock
from nightshift.agent.store.database import Database, StoreBusy
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.lease import LEASE_S, Leadership
from nightshift.agent.store.tables import leases
from nightshift.controllers.actuators.simulated import SimulatedCluster
from tests.agent.forks import FORKS
from tests.agent.incidents import a_finding
from tests.agent.replicas import replica
from tests.agent.world import ANN

_S = IncidentState


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    opened = Store(postgres_url, WallClock())
    yield opened
    opened.close()


@pytest.fixture
def start(postgres_url: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts replicas; those still alive at the end are killed."""
    started: list[Any] = []

    def start_one(name: str, lease_s: float = LEASE_S) -> Any:
        process = FORKS.Process(target=replica, args=(postgres_url, str(tmp_path), name, lease_s))
        process.start()
        started.append(process)
        return process

    yield start_one
    for process in started:
        if process.is_alive():
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.join()


def _notes(folder: Path) -> list[tuple[float, int, str, str]]:
    path = folder / "notes"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(float(at), int(pid), what, of) for at, pid, what, of in (line.split() for line in lines)]


def _until(condition: Callable[[], object], timeout_s: float = 90.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - began


def _said(folder: Path, what: str, of: str, pid: int | None = None) -> bool:
    return any(n[2:] == (what, of) and pid in (None, n[1]) for n in _notes(folder))


def test_one_leads_and_no_incident_has_two_runners(store: Store, start: Callable[..., Any], tmp_path: Path) -> None:
    names = [store.open_incident(f"leak {i}", [a_finding(since_s=float(i))]) for i in range(12)]
    pids = {start(name, 60.0).pid for name in ("a", "b")}  # a lease that no busy machine lets lapse
    _until(lambda: {s.state for s in store.incidents()} == {_S.AWAITING_APPROVAL})
    (tmp_path / "stop").touch()
    notes = _notes(tmp_path)
    assert len({pid for _, pid, what, _ in notes if what == "begin"}) == 1  # the other stood by
    assert {pid for _, pid, _, _ in notes} == pids
    for name in names:
        assert [what for _, _, what, of in notes if of == name] == ["begin", "end"]


def test_of_two_replicas_that_make_the_first_lease_at_once_one_leads(store: Store, postgres_url: str) -> None:
    """The second finds no row, and its insert waits for the first one's."""
    other = Database(postgres_url)
    first, second = Leadership(store.database, "a"), Leadership(other, "b")
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with ThreadPoolExecutor(1) as beside:
        with store.database.write() as connection:
            assert first._take(connection) == 1
            claimed = beside.submit(second.claim)
            _until(lambda: connection.execute(waiting).scalar_one())
        assert not claimed.result()
    assert first.claim()
    assert not second.claim()
    other.close()


@pytest.mark.full
def test_a_killed_replicas_stage_is_taken_over(store: Store, start: Callable[..., Any], tmp_path: Path) -> None:
    """How soon is a figure of `benchmarks/failover.py`."""
    (tmp_path / "hold-a").touch()
    a = start("a")
    name = store.open_incident("leak", [a_finding()])
    _until(lambda: _said(tmp_path, "begin", name, a.pid))
    b = start("b")
    _until(lambda: _said(tmp_path, "follows", "b"))
    a.kill()
    _until(lambda: _said(tmp_path, "begin", name, b.pid))
    _until(lambda: store.incident(name).state is _S.AWAITING_APPROVAL)
    assert [step.cause for step in store.incident(name).history].count("diagnosis_stored") == 1
    assert store.audit.verify().ok


def test_a_leader_that_slept_through_its_lease_touches_nothing_when_it_wakes(
    store: Store, start: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "hold-act-a").touch()
    a = start("a", 1.5)
    name = store.open_incident("leak", [a_finding()])
    _until(lambda: store.incident(name).state is _S.AWAITING_APPROVAL)
    action = store.incident(name).action
    assert action is not None
    assert Gate(store, ApprovalSettings(), WallClock()).approve(name, action.plan_sha256, ANN).changed
    _until(lambda: _said(tmp_path, "checks", action.id, a.pid))
    start("b", 1.5)
    os.kill(a.pid, signal.SIGSTOP)
    _until(lambda: store.incident(name).state is _S.CONFIRMING)
    (tmp_path / "hold-act-a").unlink()
    os.kill(a.pid, signal.SIGCONT)
    _until(lambda: _said(tmp_path, "follows", "a"))
    time.sleep(1.0)
    (tmp_path / "stop").touch()
    assert len(SimulatedCluster(tmp_path / "cluster.sqlite").effects()) == 1
    causes = [step.cause for step in store.incident(name).history]
    assert (causes.count("intent_stored"), causes.count("action_done")) == (1, 1)
    assert store.audit.verify().ok


def test_a_leader_that_freezes_inside_a_transaction_does_not_keep_the_lead_by_its_lock(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had not committed is undone, and it is told to try again."""
    monkeypatch.setattr("nightshift.agent.store.database.IDLE_TIMEOUT_S", 1.0)
    frozen, other = Database(postgres_url), Database(postgres_url)
    assert Leadership(frozen, "a", lease_s=0.5).claim()

    def freeze() -> None:
        with frozen.write() as connection:
            connection.execute(sa.update(leases).values(expires_s=1e12))
            _until(lambda: _claims(Leadership(other, "b", lease_s=0.5)))
            connection.execute(sa.select(leases))

    with pytest.raises(StoreBusy):
        freeze()
    frozen.close()
    other.close()


def _claims(leadership: Leadership) -> bool:
    try:
        return leadership.claim()
    except StoreBusy:
        return False


def test_a_lease_is_one_holders_until_it_ends_and_each_holder_has_a_higher_term(postgres_url: str) -> None:
    database, now = Database(postgres_url), [100.0]
    first = Leadership(database, "a", lease_s=60.0, monotonic_s=lambda: now[0])
    second = Leadership(database, "a", lease_s=60.0)  # the same name restarted: another holder
    assert (first.claim(), second.claim()) == (True, False)
    assert (first.leads, second.leads) == (True, False)
    with database.write() as connection:
        connection.execute(sa.update(leases).values(expires_s=0.0))
    now[0] += 60.0
    assert second.claim()
    assert not first.leads
    assert (first.term, second.term) == (1, 2)
    assert not first.claim()
    second.release()
    assert first.claim()
    assert first.term == 3
    database.close()


def test_a_holder_stops_believing_before_the_lease_can_be_taken(postgres_url: str) -> None:
    database = Database(postgres_url)
    now = [100.0]
    holder = Leadership(database, "a", lease_s=6.0, monotonic_s=lambda: now[0])
    assert holder.claim()
    now[0] += 5.3
    assert holder.leads
    now[0] += 0.2
    assert not holder.leads
    database.close()
