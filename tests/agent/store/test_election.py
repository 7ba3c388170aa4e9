"""A Lease elects, the store's row fences: who stands for the lead when, and what two that both believe may do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.policy import ApprovalSettings
from nightshift.agent.clock import WallClock
from nightshift.agent.config_file import ConfigError
from nightshift.agent.store.database import Database
from nightshift.agent.store.election import Settings, build
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.lease import Leadership
from nightshift.collectors.base import Temporary
from nightshift.controllers.actuators.simulated import SimulatedCluster
from tests.agent.forks import FORKS
from tests.agent.incidents import a_finding
from tests.agent.replicas import replica
from tests.agent.world import ANN
from tests.kubernetes_api.cluster import Cluster

LEASE_S = 60.0
_S = IncidentState


@dataclass
class Scripted:
    """An election that answers what the test says; `None`: it does not answer."""

    answer: bool | None = True
    released: int = 0

    def hold(self) -> bool:
        if self.answer is None:
            raise Temporary("no answer")
        return self.answer

    def release(self) -> None:
        self.released += 1


@dataclass
class Replicas:
    """Replicas of one database, on a clock that the test moves."""

    url: str
    now_s: float = 1000.0
    databases: list[Database] = field(default_factory=list)

    def one(self, name: str, election: Scripted) -> Leadership:
        database = Database(self.url)
        self.databases.append(database)
        return Leadership(database, name, lease_s=LEASE_S, election=election, monotonic_s=lambda: self.now_s)


@pytest.fixture
def replicas(postgres_url: str) -> Iterator[Replicas]:
    Store(postgres_url, WallClock()).close()
    made = Replicas(postgres_url)
    yield made
    for database in made.databases:
        database.close()


def test_only_the_elected_leads_and_yields_as_soon_as_another_is(replicas: Replicas) -> None:
    """The row follows the election without a wait for the row's own end."""
    first, second = Scripted(True), Scripted(False)
    a, b = replicas.one("a", first), replicas.one("b", second)
    assert (a.claim(), b.claim()) == (True, False)
    first.answer, second.answer = False, True
    assert not b.claim()  # elected, but a's row stands until a has heard of it
    assert not a.claim()
    assert not a.leads
    assert b.claim()
    assert b.term == a.term + 1


def test_two_that_both_believe_in_their_election_never_lead_together(replicas: Replicas) -> None:
    """A split election is fenced by the row."""
    a, b = replicas.one("a", Scripted(True)), replicas.one("b", Scripted(True))
    for _ in range(5):
        assert [a.claim(), b.claim()] == [True, False]
        assert [a.leads, b.leads] == [True, False]
        replicas.now_s += 10.0


def test_a_leader_that_hears_nothing_leads_to_the_end_of_its_mandate_and_stands_back(replicas: Replicas) -> None:
    """So that a replica which still reaches the API server may take over at once."""
    election, other = Scripted(True), Scripted(False)
    a, b = replicas.one("a", election), replicas.one("b", other)
    assert a.claim()
    election.answer = None
    replicas.now_s += 0.8 * LEASE_S
    assert a.claim()
    replicas.now_s += 0.2 * LEASE_S
    assert not a.claim()
    other.answer = True
    assert b.claim()


def test_where_nobody_hears_anything_for_long_the_row_decides(replicas: Replicas) -> None:
    """With its API server away a cluster still has one on-call engineer, and one only."""
    a, b = replicas.one("a", Scripted(None)), replicas.one("b", Scripted(None))
    assert (a.claim(), b.claim()) == (False, False)
    replicas.now_s += 3.5 * LEASE_S
    assert (a.claim(), b.claim()) == (True, False)


def test_elected_without_its_database_it_passes_the_mandate_on(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would lead although another replica still reaches the database."""
    election = Scripted(True)
    a = replicas.one("a", election)
    monkeypatch.setattr(a, "_take", _away)
    with pytest.raises(Temporary):
        a.claim()
    assert election.released == 1
    assert not a.claim()  # and does not take it again at once
    monkeypatch.undo()
    replicas.now_s += LEASE_S
    assert a.claim()


def _away(*_: object) -> None:
    raise Temporary("the database is away")


def test_given_back_both_are_free(replicas: Replicas) -> None:
    election = Scripted(True)
    a, b = replicas.one("a", election), replicas.one("b", Scripted(True))
    assert a.claim()
    a.release()
    assert election.released == 1
    assert b.claim()


def test_a_lease_over_a_sqlite_file_is_refused_with_the_settings_name() -> None:
    with pytest.raises(ConfigError, match=r"election\.by"):
        build(Settings(by="kubernetes"), "a", is_sqlite=True)


def test_outside_a_pod_the_namespace_has_to_be_named(tmp_path: Path, cluster: Cluster) -> None:
    with pytest.raises(Exception, match=r"election\.namespace"):
        build(
            Settings(by="kubernetes", access={"kubeconfig": _kubeconfig(tmp_path, cluster)}), "a", is_sqlite=False
        )


def _kubeconfig(folder: Path, cluster: Cluster) -> Path:
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(cluster.kubeconfig))
    return path


def test_a_killed_leaders_drain_is_taken_over_and_nothing_is_done_twice(
    postgres_url: str, tmp_path: Path, cluster: Cluster
) -> None:
    """Two daemons elect through a Lease on an API server; the leader is killed with an action in its hands."""
    store = Store(postgres_url, WallClock())
    settings = Settings(
        by="kubernetes", namespace=cluster.namespace, access={"kubeconfig": _kubeconfig(tmp_path, cluster)}
    )
    (tmp_path / "hold-act-a").touch()
    start: Callable[[str], Any] = lambda name: _started(postgres_url, tmp_path, name, settings)  # noqa: E731
    a = start("a")
    b = None
    try:
        name = store.open_incident("leak", [a_finding()])
        _until(lambda: store.incident(name).state is _S.AWAITING_APPROVAL)
        action = store.incident(name).action
        assert action is not None
        assert Gate(store, ApprovalSettings(), WallClock()).approve(name, action.plan_sha256, ANN).changed
        _until(lambda: f"{a.pid} checks {action.id}" in (tmp_path / "notes").read_text())
        b = start("b")
        _until(lambda: f"{b.pid} follows b" in (tmp_path / "notes").read_text())
        os.kill(a.pid, signal.SIGKILL)
        _until(lambda: store.incident(name).state is _S.CONFIRMING)
        assert [effect.action_id for effect in SimulatedCluster(tmp_path / "cluster.sqlite").effects()] == [
            action.id
        ]
        assert store.audit.verify().ok
    finally:
        (tmp_path / "stop").touch()
        for process in (a, b):
            if process is not None:
                process.join(20)
                process.kill()
                process.join()
        store.close()


def _started(url: str, folder: Path, name: str, settings: Settings) -> Any:
    process = FORKS.Process(target=replica, args=(url, str(folder), name), kwargs={"election": settings})
    process.start()
    return process


def _until(condition: Callable[[], object], timeout_s: float = 120.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - began
