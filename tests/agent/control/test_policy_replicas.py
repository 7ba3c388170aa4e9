"""The whole way of a learned policy on PostgreSQL with two real daemons, whose leader is killed in the middle of a
turn, frozen and woken: no step is taken twice, no decision or outcome is lost, a budget event takes it down."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.kernel_gate import ProposalState
from nightshift.agent.approvals.policy import ApprovalSettings
from nightshift.agent.approvals.policy_gate import PolicyGate
from nightshift.agent.clock import SteppedClock
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.receipts import Receipts
from nightshift.agent.store.tables import decisions
from nightshift.collectors.seal import Signer
from nightshift.controllers.decision import Mode
from nightshift.controllers.policy_file import write
from tests.agent.control.test_policy_path import ANN, CRITERIA, LOOK_S, Fleet, a_policy
from tests.agent.policy_replica import serve

pytestmark = pytest.mark.usefixtures("no_dwell")

_FORKS = multiprocessing.get_context("forkserver")
START_S = 10_000.0
GPUS = 104


@dataclass
class Pair:
    """Two replicas by name, driven in step; whoever leads looks."""

    settings: dict[str, Any]
    folder: Path
    fleet: Fleet
    gate: PolicyGate
    receipts: Receipts
    clock: SteppedClock
    processes: dict[str, Any] = field(default_factory=dict)
    orders: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, Any] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    led: list[str] = field(default_factory=list)
    generation: int = 0

    def start(self, name: str) -> None:
        (self.folder / name).mkdir(exist_ok=True)
        settings = {**self.settings, "state_dir": str(self.folder / name), "replica": name}
        orders, calls = _FORKS.Pipe(), _FORKS.Pipe()
        process = _FORKS.Process(target=serve, args=(orders[1], calls[1], settings, self.clock.now_s()))
        process.start()
        for _, theirs in (orders, calls):
            theirs.close()
        self.processes[name], self.orders[name], self.calls[name] = process, orders[0], calls[0]
        assert self.hear(name) == "ready"

    def ask(self, name: str, *order: Any) -> Any:
        self.orders[name].send(order)
        return self.hear(name)

    def hear(self, name: str) -> Any:
        """What a daemon answers; until then, the fleet does what it asks. None once the daemon is dead."""
        orders, calls = self.orders[name], self.calls[name]
        while ready := wait([orders, calls], 150.0):
            try:
                if orders in ready:
                    return orders.recv()
                method, arguments = calls.recv()
                calls.send(getattr(self.fleet, method)(*arguments))
            except (EOFError, ConnectionError):
                return None
        raise AssertionError(f"{name} did not answer")

    def look(self) -> None:
        """One look by whoever leads, once somebody does: a loaded machine may change the lead at any moment."""
        deadline = time.monotonic() + 120.0
        while not any(self.looked(name) for name in self.in_order()):
            assert time.monotonic() < deadline, "nobody leads"
            time.sleep(0.1)
        self.clock.wait_until(self.clock.now_s() + LOOK_S)

    def in_order(self) -> list[str]:
        """Who led last first."""
        return sorted(self.orders.keys() - self.frozen, key=lambda name: (name not in self.led[-1:], name))

    def looked(self, name: str) -> bool:
        leads = bool(self.ask(name, "look", self.clock.now_s())[0])
        if leads and self.led[-1:] != [name]:
            self.led.append(name)
        return leads

    def looks(self, count: int) -> None:
        for _ in range(count):
            self.look()

    @property
    def leader(self) -> str:
        return self.led[-1]

    def kill(self) -> str:
        """The leader, with SIGKILL, in its next turn: receipts are stored, leases are not sent."""
        for _ in range(20):
            name = self.leader
            self.ask(name, "die")
            if self.ask(name, "look", self.clock.now_s()) is None:
                break
            self.ask(name, "live")  # it had just lost the lead, or has it anew and no turn is due
            self.look()
        self.processes[name].join(120.0)
        assert self.processes[name].exitcode == -signal.SIGKILL
        del self.orders[name]
        self.clock.wait_until(self.clock.now_s() + LOOK_S)
        return name

    def gather(self, at_most: int = 10) -> Any:
        """Generations of jobs until a step waits for people; its plan."""
        for _ in range(at_most):
            self.generation += 1
            self.fleet.renew_jobs(self.generation, self.clock.now_s())
            self.looks(8)
            waiting = [p for p in self.gate.proposals() if p.state is ProposalState.WAITING]
            if waiting:
                return waiting[0].action
        standing = self.gate.standing("power")
        raise AssertionError(f"no step waits in {standing.mode}: {standing.evidence and standing.evidence.words}")

    def approve(self, plan: Any) -> None:
        assert self.gate.approve(plan.id, plan.plan_sha256, ANN).ok

    def mode(self) -> Mode:
        return self.gate.standing("power").mode


@pytest.fixture
def pair(tmp_path: Path, postgres_url: str) -> Iterator[Pair]:
    signer = Signer.generate()
    (tmp_path / "key.pub").write_text(signer.public.public_bytes(Encoding.Raw, PublicFormat.Raw).hex())
    write(tmp_path / "policy.json", a_policy(), signer)
    fleet = Fleet(GPUS)
    fleet.renew_jobs(0, START_S)
    settings = {
        "console": {"enabled": False},
        "sources": [],
        "store": {"url": postgres_url},
        "tick_s": LOOK_S,
        "power": {
            "enabled": True,
            "racks": {"r": {"nodes": sorted({fleet.node(u) for u in fleet.limit}), "budget_w": 1000.0 * GPUS}},
            "opted_in": ["team-a"],
            "policy_keys": [str(tmp_path / "key.pub")],
            "policy_file": str(tmp_path / "policy.json"),
            "shield": {"raise_w_per_min": 1e6},
        },
    }
    clock = SteppedClock(START_S)
    store = Store(postgres_url, clock)
    gate = PolicyGate(Gate(store, ApprovalSettings(), clock), store, clock, "cluster", CRITERIA)
    made = Pair(settings, tmp_path, fleet, gate, Receipts(store.database), clock)
    yield made
    for name, process in made.processes.items():
        if process.is_alive():
            os.kill(process.pid, signal.SIGCONT)
            made.ask(name, "stop")
            process.join(30.0)
        process.kill()
        process.join()
    store.close()


@pytest.mark.full
def test_two_daemons_on_postgresql_take_each_step_once_over_kills_and_a_frozen_leader(pair: Pair) -> None:
    pair.start("a")
    pair.start("b")
    pair.looks(4)
    open_before = _count(pair, decisions.c.reward.is_(None) & decisions.c.void.is_(None))
    assert open_before
    killed = pair.kill()  # in shadow, in the middle of a turn
    in_flight = _open(pair)
    pair.looks(2)
    assert pair.leader != killed
    assert not in_flight & _open(pair), "what the dead one left open was given up, with the reason"
    pair.start(killed)
    still = _open(pair)
    assert still <= _open(pair), "a replica that only stands by gives up nothing"
    pair.approve(pair.gather())
    pair.looks(2)
    assert pair.mode() is Mode.TRIAL

    plan = pair.gather()  # the trial's evidence; the leader is frozen before anybody approves
    frozen = pair.leader
    os.kill(pair.processes[frozen].pid, signal.SIGSTOP)
    pair.frozen.add(frozen)
    pair.approve(plan)
    pair.looks(2)
    assert pair.leader != frozen
    assert pair.mode() is Mode.CANARY
    term = pair.fleet.term
    os.kill(pair.processes[frozen].pid, signal.SIGCONT)
    pair.frozen.clear()
    again = pair.looked(frozen)  # by a new lead, if at all
    pair.looks(2)
    assert pair.fleet.term > term or not again, "it acted by the lead that it had before it was frozen"

    pair.approve(pair.gather())
    killed = pair.kill()  # with the approval given and the step not taken, or just taken
    pair.looks(2)
    assert pair.mode() is Mode.ACTIVE
    pair.looks(2)
    pair.fleet.hot = True
    pair.looks(2)
    assert pair.mode() is Mode.SHADOW
    assert "budget" in pair.gate.standing("power").demotion

    standing = pair.gate.standing("power")
    assert [c.after for c in standing.history] == [Mode.TRIAL, Mode.CANARY, Mode.ACTIVE, Mode.SHADOW]
    kinds = Counter(record.kind for record in pair.gate.store.audit.records())
    assert (kinds["policy_promoted"], kinds["policy_demoted"], kinds["policy_stands"]) == (3, 1, 1)
    assert pair.gate.store.audit.verify().ok
    twice = [
        key for key, n in Counter((d.unit, d.at_s) for d in pair.receipts.newest("power", 100_000)).items() if n > 1
    ]
    assert twice == [], "decided twice"
    old = (
        (decisions.c.at_s < pair.clock.now_s() - 600.0) & decisions.c.reward.is_(None) & decisions.c.void.is_(None)
    )
    assert _count(pair, old) == 0, "a decision that nobody ever says the outcome of"


def _count(pair: Pair, where: sa.ColumnElement[bool]) -> int:
    with pair.gate.store.database.read() as connection:
        return int(connection.execute(sa.select(sa.func.count()).where(where)).scalar_one())


def _open(pair: Pair) -> set[str]:
    query = sa.select(decisions.c.id).where(decisions.c.reward.is_(None) & decisions.c.void.is_(None))
    with pair.gate.store.database.read() as connection:
        return set(connection.execute(query).scalars())
