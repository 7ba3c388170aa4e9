"""Power control end to end: real leases on the NVML stub over mutual TLS, a job that slows as it is capped."""

from __future__ import annotations

import ctypes
import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightshift.agent.app import App
from nightshift.agent.approvals.policy_gate import PolicyGate
from nightshift.agent.clock import SteppedClock
from nightshift.agent.control.power_decision import load
from nightshift.agent.control.power_interfaces import Around
from nightshift.agent.control.power_loop import PowerLoop, PowerState
from nightshift.agent.settings import Settings
from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import Frame, SeriesIndex, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.actuators.power_nodes import LeaseAnswer, NodeGpu, NodeStatus, PowerNodes
from nightshift.controllers.actuators.power_nodes import Settings as NodeSettings
from nightshift.controllers.decision import ControlDecision, Mode, Trust
from nightshift.controllers.power.curves import Curve
from nightshift.controllers.power.limits import MARGIN_SHARE
from nightshift.controllers.power.settings import PowerSettings
from tests.agent.power_node import serving
from tests.collectors.conftest import nvml_library  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_dwell")

MAX, MIN, FALLBACK = 700_000, 200_000, 420_000
EASY = Curve("g", "w", np.array([200.0, 400.0, 700.0]), np.array([1.3, 1.02, 1.0]), np.array([199.0, 390.0, 600.0]))
JOB = "team-a/train"


@dataclass
class Cluster:
    """Eight GPUs of two nodes and one job, as they are; leases as the nodes keep them."""

    limit: dict[str, int] = field(default_factory=lambda: {f"G{i}": FALLBACK for i in range(8)})
    mine: dict[str, int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    lying: set[str] = field(default_factory=set)
    closed: bool = False
    sent: list[Mapping[str, Any]] = field(default_factory=list)

    def node(self, uuid: str) -> str:
        return f"n{int(uuid[1:]) // 4}"

    def status(self) -> Mapping[str, NodeStatus]:
        gpus = {u: NodeGpu(MIN, MAX, MAX, FALLBACK, mw, 1980) for u, mw in self.limit.items()}
        return {
            n: NodeStatus(error="timeout") if n in self.silent
            else NodeStatus({u: g for u, g in gpus.items() if self.node(u) == n}, 60.0)
            for n in ("n0", "n1")
        }  # fmt: skip

    def grant(self, leases: Mapping[str, Mapping[str, Any]]) -> Mapping[str, LeaseAnswer]:
        self.sent.append(leases)
        for node, lease in leases.items():
            if node in self.silent or node in self.lying:
                continue
            self.limit.update(lease["limits_mw"])
        return {n: LeaseAnswer(n not in self.silent, "timeout" if n in self.silent else "ok") for n in leases}

    def close(self) -> None:
        self.closed = True


@dataclass
class World:
    cluster: Cluster
    loop: PowerLoop
    inventory: Inventory
    kept: list[tuple[ControlDecision, float, bool]]
    around: Around
    now_s: float = 1000.0
    next_s: float = 1000.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))
    blind: bool = False
    hot: bool = False
    """Its GPUs are slowed by heat, and say so."""

    def run(self, windows: int, curve: Curve = EASY) -> None:
        for _ in range(windows):
            self.look(6, curve)
            self.loop.turn(self.now_s)

    def look(self, times: int, curve: Curve = EASY) -> None:
        for _ in range(times):
            self.now_s += 5.0
            self.loop.take(self.tick(curve))

    def tick(self, curve: Curve) -> Tick:
        gpus = [Subject(SubjectKind.GPU, f"G{i}") for i in range(8)]
        limits = np.array([self.cluster.limit[g.name] for g in gpus]) / 1000.0
        draw = np.array([float(curve.draw(w)) for w in limits]) * (1 + 0.01 * self.rng.normal(size=8))
        values = np.column_stack([draw, np.full(8, math.nan) if self.blind else limits])
        index = SeriesIndex(SubjectKind.GPU, tuple(gpus))
        names = ("gpu_power_w", "gpu_power_limit_w", "gpu_throttle_reasons")
        values = np.column_stack([values, np.full(8, 0x40 if self.hot else 0)])
        at = np.full((1, 3), self.now_s)
        frame = Frame(self.now_s, index, names, values, at, np.zeros(8, dtype=np.int64))
        pace_s = 0.5 * float(1.0 + curve.slowdown(limits.min())) * (1.5 if self.hot else 1.0)
        found = []
        while self.next_s < self.now_s:
            found.append(self.next_s)
            self.next_s += pace_s * (1 + 0.01 * self.rng.normal())
        times = np.array(found)
        numbers = np.arange(len(times), dtype=np.int64)
        series = StepSeries(Subject(SubjectKind.RANK, f"{JOB}#0"), "r", numbers, times, {}, "log")
        return Tick(self.now_s, {SubjectKind.GPU: frame}, [] if self.blind else [series])


def world(
    *, act: bool = True, mode: tuple[Mode, float] = (Mode.ACTIVE, 1.0), budget_w: float = 6000.0, **more: Any
) -> World:
    inventory = Inventory()
    job = Subject(SubjectKind.JOB, JOB)
    for i in range(8):
        gpu, pod = Subject(SubjectKind.GPU, f"G{i}"), Subject(SubjectKind.POD, f"team-a/train-{i}")
        inventory.observe(gpu, Subject(SubjectKind.NODE, f"n{i // 4}"), 0.0)
        inventory.observe(gpu, pod, 0.0)
        inventory.observe(pod, job, 0.0)
    cluster = Cluster()
    kept: list[tuple[ControlDecision, float, bool]] = []

    def keep(made: Sequence[tuple[ControlDecision, float, bool]]) -> None:
        for decision, chance, treated in made:
            mine = [k for k, known in enumerate(kept) if known[0].id == decision.id]
            if mine:  # the same receipt again: with what was read back
                kept[mine[0]] = (decision, *kept[mine[0]][1:])
            else:
                kept.append((decision, chance, treated))

    trust = Trust(mode[0], mode[1], mode[1])
    around = Around(keep=keep, trusts=lambda: lambda _job, _opted, _now_s: trust, **more)
    settings = PowerSettings(
        enabled=True,
        act=act,
        racks={"r": {"nodes": ("n0", "n1"), "budget_w": budget_w, "host_w": 100.0}},
        nodes={"urls": {"n0": "https://n0:1", "n1": "https://n1:1"}},
        shield={"raise_w_per_min": 100_000.0},
    )
    return World(cluster, PowerLoop(settings, inventory, cluster, around), inventory, kept, around)


def test_a_shadow_orders_nothing_and_leaves_receipts() -> None:
    w = world(act=False)
    w.run(4)
    assert w.cluster.sent == []
    assert len(w.kept) == 4
    assert {d.unit for d, _, _ in w.kept} == {JOB}
    json.dumps([d.to_json() for d, _, _ in w.kept], allow_nan=False)


def test_it_takes_a_job_down_and_keeps_it_within_its_budget() -> None:
    """From the fallback to the reference, and down from there; each order is read back."""
    w = world()
    w.run(60)
    limits = set(w.cluster.limit.values())
    assert len(limits) == 1, "a gang has one limit"
    limit_w = limits.pop() / 1000.0
    assert limit_w < 600.0
    assert float(EASY.slowdown(limit_w)) <= 0.05
    assert all(not d.mismatch for d, _, _ in w.kept[:-1])


def test_the_racks_budget_holds_at_every_moment() -> None:
    w = world(budget_w=4200.0)
    for _ in range(20):
        w.run(1)
        assert sum(w.cluster.limit.values()) + 100_000 <= 4_200_000 * (1 - MARGIN_SHARE)


def test_without_the_jobs_speed_the_fallback_controls_and_says_so() -> None:
    w = world()
    w.run(3)
    w.blind = True
    w.run(6)
    w.loop.close()
    assert "missing" in w.kept[-1][0].fallback
    assert w.kept[-1][0].policy == "highest"


def test_the_emergency_stop_freezes_what_is() -> None:
    halted = [False]
    w = world(halted=lambda: halted[0])
    w.run(12)
    before, orders = dict(w.cluster.limit), len(w.kept)
    halted[0] = True
    w.run(5)
    assert w.cluster.limit == before
    assert len(w.kept) <= orders + 1
    assert w.cluster.sent[-1], "leases are renewed"


def test_a_persons_limit_wins() -> None:
    """It is ordered no more, and its gang holds."""
    w = world()
    w.run(15)
    w.cluster.limit["G3"] = 333_000
    w.run(5)
    assert w.cluster.limit["G3"] == 333_000
    assert "G3" not in w.cluster.sent[-1]["n0"]["limits_mw"]


def test_a_node_that_lies_is_locked_out() -> None:
    w = world()
    w.run(3)
    w.cluster.lying.add("n1")
    w.run(20)
    assert "n1" not in w.cluster.sent[-1]
    assert any(c.constraint == "lockout" for d, _, _ in w.kept for c in d.clips)


def test_what_a_person_gives_back_is_controlled_again_and_once() -> None:
    """A GPU with a limit of theirs, and a node that was locked out; also over a restart of the daemon."""
    given: dict[str, float] = {}
    state: list[bytes] = []
    w = world(released=lambda: given, store=state.append)
    w.run(3)
    w.cluster.lying.add("n1")
    w.run(20)
    assert "n1" not in w.cluster.sent[-1]
    w.cluster.lying.clear()
    w.cluster.limit["G3"] = 333_000
    w.run(3)
    assert "G3" in w.loop._memory.manual
    given |= {"G3": w.now_s, "n1": w.now_s}
    w.run(3)
    assert "G3" in w.cluster.sent[-1]["n0"]["limits_mw"]
    assert "n1" in w.cluster.sent[-1]
    w.cluster.limit["G3"] = 333_000
    w.run(5)
    assert "G3" not in w.cluster.sent[-1]["n0"]["limits_mw"]  # what was given back once is not given back for ever
    again = world(released=lambda: given, recall=lambda: state[-1])
    again.run(2)
    assert again.loop._memory.manual == {"G3"}


def test_an_open_incident_on_a_node_suspends_it() -> None:
    ill: list[frozenset[str]] = [frozenset()]
    w = world(ill_nodes=lambda: ill[0])
    w.run(10)
    ill[0] = frozenset({"n0"})
    before = dict(w.cluster.limit)
    w.run(4)
    assert w.cluster.limit == before
    assert any(c.constraint == "incident" for d, _, _ in w.kept for c in d.clips)


@pytest.mark.parametrize("error", [KeyError("a defect of ours"), Permanent("store: refused")])
def test_its_thread_outlives_any_turn_that_fails(error: Exception) -> None:
    failed, turned = threading.Semaphore(0), threading.Event()
    w = world(count=lambda outcome: failed.release() if outcome == "failed" else turned.set())
    keep = w.around.keep
    w.around.keep = lambda _made: (_ for _ in ()).throw(error)
    w.loop.start()
    try:
        w.look(7)
        assert failed.acquire(timeout=30.0)
        w.around.keep = keep
        w.look(7)
        assert turned.wait(30.0), "the next turn is made as if nothing had been"
    finally:
        w.loop.close()


def test_what_was_learnt_outlives_the_daemon() -> None:
    state: list[bytes] = []
    w = world(store=state.append)
    w.run(25)
    again = world(recall=lambda: state[-1])
    again.loop._take_over()
    gang = again.loop._beliefs.gangs[JOB]
    assert int(gang.jobs.looks[0]) == int(w.loop._beliefs.gangs[JOB].jobs.looks[0])
    np.testing.assert_array_equal(gang.jobs.windows.count, w.loop._beliefs.gangs[JOB].jobs.windows.count)
    broken = world(recall=lambda: b'{"memory": {"x": 1}, "gangs": {}}')
    broken.run(1)


def test_a_policy_file_that_is_none_keeps_the_daemon_from_starting(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_bytes(b"\x80\x04pickle")
    settings = PowerSettings(enabled=True, policy_file=file)
    with pytest.raises(Permanent, match="pickle"):
        load(settings)


@pytest.fixture
def node(nvml_library: ctypes.CDLL, tmp_path: Path) -> Iterator[tuple[NodeSettings, ctypes.CDLL]]:  # noqa: F811
    with serving(nvml_library, tmp_path, FALLBACK) as agent:
        yield agent.settings, agent.library


def test_a_lease_travels_to_a_real_node_agent_and_back(node: tuple[NodeSettings, ctypes.CDLL]) -> None:
    """Ranges and fallback are told, limits and clocks are set through NVML, what is refused says why."""
    settings, library = node
    nodes = PowerNodes(settings)
    told = nodes.status()["n0"]
    assert told.error == ""
    uuid = next(iter(told.gpus))
    assert (told.gpus[uuid].max_mw, told.gpus[uuid].fallback_mw) == (MAX, FALLBACK)
    lease = {"id": "power", "term": 3, "ttl_s": 60.0, "limits_mw": {uuid: 500_000}, "clocks_mhz": {uuid: 1200}}
    assert nodes.grant({"n0": lease})["n0"].ok
    assert nodes.status()["n0"].gpus[uuid].now_mw == 500_000
    assert library.stub_clock(0) == 1200
    refused = nodes.grant({"n0": {**lease, "term": 2}, "n9": lease})
    assert "term 2 is over" in refused["n0"].said
    assert "no address" in refused["n9"].said
    nodes.close()


def test_leases_without_mutual_tls_are_not_sent() -> None:
    with pytest.raises(Permanent, match="mutual TLS"):
        PowerNodes(NodeSettings(urls={"n0": "https://localhost:1"}))
    with pytest.raises(ValueError, match="https"):
        NodeSettings(urls={"n0": "http://localhost:1"})


def test_a_daemon_with_power_control_shadows_and_stands_its_policy_up(tmp_path: Path) -> None:
    """Off: no part of it is built. On: it takes looks in, turns in its own thread, and sends nothing."""
    base = {"state_dir": tmp_path, "console": {"enabled": False}, "sources": []}
    off = App(Settings(**base), clock=SteppedClock(1000.0))
    assert off.power is None
    off.start()
    off.stop()
    app = App(Settings(**base, power={"enabled": True}), clock=SteppedClock(1000.0))
    app.start()
    try:
        assert app.power is not None
        stands = PolicyGate(app.gate, app.store, app.clock, "cluster").standing("power")
        assert (stands.policy, stands.mode) == ("descent", Mode.SHADOW)
        app.power.take(Tick(1000.0))
        app.power.take(Tick(1031.0))
    finally:
        app.stop()
    assert app.metrics.registry.get_sample_value("nightshift_power_decisions_total", {"outcome": "failed"}) is None


def test_a_card_throttled_by_heat_teaches_nothing_and_is_not_blamed_on_its_limit() -> None:
    w = world()
    w.run(30)
    gang, lowest = w.loop._beliefs.gangs[JOB], min(w.cluster.limit.values())
    taken = gang.jobs.windows.count.sum()
    w.hot = True
    w.run(6)
    assert gang.jobs.windows.count.sum() == taken
    assert w.kept[-1][0].seen["throttled"] is True
    w.hot = False
    reached = []
    for _ in range(8):  # one of them may be a look at the reference
        w.run(1)
        reached.append(min(w.cluster.limit.values()))
    assert gang.jobs.windows.count.sum() > taken, "it continues as before"
    assert not w.loop._memory.locked_until_s
    assert min(reached) <= lowest + 7_000


def test_the_next_run_of_a_workload_starts_from_its_last_one_over_a_restart() -> None:
    state: list[bytes] = []
    w = world(store=state.append)
    w.run(40)
    gang = w.loop._beliefs.gangs[JOB]
    assert gang.memorable
    beliefs = w.loop._beliefs
    beliefs._remember({})  # its job is gone
    (key,) = beliefs.workloads
    assert key.startswith("team-a/train|")
    w.loop._keep_state()
    again = PowerState.read(state[-1])
    assert list(again.workloads) == [key]
    window = replace(w.loop._windows.peek(w.now_s)[0], job="team-a/train-2", workload=key)
    begun = beliefs._begun([window], int(gang.jobs.lowest[0]))
    assert int(begun.jobs.last[0]) == int(gang.jobs.home[0])
    assert begun.jobs.past.count.sum() > 0
    assert not beliefs._begun([window], int(gang.jobs.lowest[0]) + 1).jobs.past.count.any(), "another kind of GPU"
