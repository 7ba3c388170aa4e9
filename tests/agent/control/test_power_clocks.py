"""Locked SM clocks end to end: a decoding job that no power limit binds on, real node agents' leases, telemetry."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from nightshift.agent.control.power_interfaces import Around
from nightshift.agent.control.power_loop import PowerLoop
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.frame import Frame, SeriesIndex, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.actuators.power_leases import PowerLeases, Range
from nightshift.controllers.actuators.power_nodes import LeaseAnswer, NodeGpu, NodeStatus
from nightshift.controllers.decision import ControlDecision, Mode, Trust
from nightshift.controllers.power.limits import MARGIN_SHARE
from nightshift.controllers.power.settings import PowerSettings

pytestmark = pytest.mark.usefixtures("no_dwell")

MAX, MIN, FALLBACK, TOP_MHZ = 700_000, 400_000, 420_000, 1980
JOB = "team-a/decode"
GPUS = tuple(f"G{i}" for i in range(4))


def decode_time(share: float) -> float:
    """Time per token: memory-bound, and slower below three quarters of the clock."""
    return 0.1 / share + 0.9 * max(1.0, 0.75 / share)


def decode_draw_w(share: float) -> float:
    """Below the lowest limit's reach at any clock."""
    return 120.0 + 140.0 * share**2


@pytest.fixture(autouse=True)
def _nodes_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the range of their GPUs' limits is that of `MIN`."""
    monkeypatch.setattr("nightshift.agent.control.power_decision.LOWEST_MW", MIN)


@dataclass
class Node:
    """A node agent's leases on GPUs of its own."""

    names: tuple[str, ...]
    limit: dict[str, int] = field(init=False)
    lock: dict[str, int | None] = field(init=False)

    def __post_init__(self) -> None:
        self.limit, self.lock = dict.fromkeys(self.names, FALLBACK), dict.fromkeys(self.names)
        self.leases = PowerLeases(self, FALLBACK)

    def ranges(self) -> Mapping[str, Range]:
        return {u: Range(MIN, MAX, MAX, self.limit[u], TOP_MHZ, self.lock[u] or TOP_MHZ) for u in self.names}

    def set_limit(self, uuid: str, limit_mw: int) -> None:
        self.limit[uuid] = limit_mw

    def lock_clock(self, uuid: str, clock_mhz: int | None) -> None:
        self.lock[uuid] = clock_mhz


@dataclass
class World:
    """One job on the GPUs of two nodes, and the daemon's loop over both."""

    more: Mapping[str, Any] = field(default_factory=dict)
    act: bool = True
    enabled: bool = True
    budget_w: float = 4000.0
    mode: Mode = Mode.ACTIVE
    now_s: float = 1000.0
    next_s: float = 1000.0
    compute: bool = False
    silent: bool = False

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(4)
        self.nodes = {"n0": Node(GPUS[:2]), "n1": Node(GPUS[2:])}
        self.sent: list[Mapping[str, Mapping[str, Any]]] = []
        self.kept: dict[str, tuple[ControlDecision, float, bool]] = {}
        inventory, job = Inventory(), Subject(SubjectKind.JOB, JOB)
        for i, name in enumerate(GPUS):
            gpu, pod = Subject(SubjectKind.GPU, name), Subject(SubjectKind.POD, f"team-a/decode-{i}")
            inventory.observe(gpu, Subject(SubjectKind.NODE, f"n{i // 2}"), 0.0)
            inventory.observe(gpu, pod, 0.0)
            inventory.observe(pod, job, 0.0)
        settings = PowerSettings(
            enabled=True,
            act=self.act,
            racks={"r": {"nodes": ("n0", "n1"), "budget_w": self.budget_w, "host_w": 100.0}},
            nodes={"urls": {"n0": "https://n0:1", "n1": "https://n1:1"}},
            shield={"raise_w_per_min": 100_000.0},
            clocks={"enabled": self.enabled},
        )
        trust = Trust(self.mode, float(self.mode is Mode.ACTIVE), float(self.mode is Mode.ACTIVE))
        around = Around(self._keep, lambda: lambda _job, _opted, _now_s: trust, **self.more)
        self.loop = PowerLoop(settings, inventory, self, around)

    def _keep(self, made: Sequence[tuple[ControlDecision, float, bool]]) -> None:
        self.kept |= {one[0].id: one for one in made}

    # The nodes, as the loop reaches them

    def status(self) -> Mapping[str, NodeStatus]:
        found = {}
        for name, node in self.nodes.items():
            told = node.leases.status(self.now_s)
            gpus = {u: NodeGpu(**{k: g[k] for k in NodeGpu.__dataclass_fields__}) for u, g in told["gpus"].items()}
            found[name] = NodeStatus(gpus, told["left_s"], clocks_by_hand=frozenset(told["clocks_by_hand"]))
        return found

    def grant(self, leases: Mapping[str, Mapping[str, Any]]) -> Mapping[str, LeaseAnswer]:
        self.sent.append(leases)
        found = {}
        for name, lease in leases.items():
            try:
                self.nodes[name].leases.grant(json.dumps(lease).encode(), self.now_s)
                found[name] = LeaseAnswer(True, "ok")
            except (Temporary, Permanent) as error:
                found[name] = LeaseAnswer(False, str(error))
        return found

    def close(self) -> None:
        pass

    # The world

    def locks(self) -> set[int | None]:
        return {mhz for node in self.nodes.values() for mhz in node.lock.values()}

    def run(self, windows: int) -> None:
        for _ in range(windows):
            for _ in range(6):
                self.now_s += 5.0
                self.loop.take(self.tick())
            self.loop.turn(self.now_s)
            for node in self.nodes.values():
                node.leases.turn(self.now_s)

    def tick(self) -> Tick:
        clock = {u: mhz or TOP_MHZ for node in self.nodes.values() for u, mhz in node.lock.items()}
        limit = {u: mw for node in self.nodes.values() for u, mw in node.limit.items()}
        share = min(clock.values()) / TOP_MHZ
        draw = [decode_draw_w(share) * (1 + 0.01 * self.rng.normal()) for _ in GPUS]
        if self.compute:
            draw = [0.98 * limit[u] / 1000.0 for u in GPUS]
        rows = [[d, limit[u] / 1000.0, float(clock[u]), 0.0] for d, u in zip(draw, GPUS, strict=True)]
        index = SeriesIndex(SubjectKind.GPU, tuple(Subject(SubjectKind.GPU, u) for u in GPUS))
        names = ("gpu_power_w", "gpu_power_limit_w", "gpu_sm_clock_mhz", "gpu_throttle_reasons")
        at = np.full((1, len(names)), self.now_s)
        frame = Frame(self.now_s, index, names, np.array(rows), at, np.zeros(len(GPUS), dtype=np.int64))
        pace_s = 0.4 * decode_time(share) * (1.4 if self.compute else 1.0)
        found = []
        while self.next_s < self.now_s:
            found.append(self.next_s)
            self.next_s += pace_s * (1 + 0.01 * self.rng.normal())
        series = StepSeries(
            Subject(SubjectKind.RANK, f"{JOB}#0"), "r", np.arange(len(found), dtype=np.int64), np.array(found), {},
            "log",
        )  # fmt: skip
        return Tick(self.now_s, {SubjectKind.GPU: frame}, [] if self.silent else [series])


def decisions(w: World) -> list[ControlDecision]:
    return [decision for decision, _, _ in w.kept.values()]


def test_a_job_that_no_limit_binds_on_gets_its_clock_lowered_within_its_budget() -> None:
    """Its power limits stay the highest, each lock is read back, and receipts say all of it."""
    w = World()
    w.run(40)
    (lock,) = w.locks()
    assert lock is not None
    assert 0.5 <= lock / TOP_MHZ < 0.95
    assert decode_time(lock / TOP_MHZ) / decode_time(1.0) <= 1.05
    assert {mw for node in w.nodes.values() for mw in node.limit.values()} == {MAX}
    told = [d for d in decisions(w) if d.seen["lever"] == "clock"]
    assert any(d.executed.get("clocks_mhz") for d in told)
    assert all(not d.mismatch for d in told[:-1])
    json.dumps([d.to_json() for d in decisions(w)], allow_nan=False)


def test_off_nothing_of_clocks_is_sent() -> None:
    w = World(enabled=False)
    w.run(20)
    assert w.locks() == {None}
    assert not any("clocks_mhz" in lease for leases in w.sent for lease in leases.values())


def test_a_shadow_locks_nothing_and_says_what_it_would() -> None:
    for w in (World(act=False), World(mode=Mode.SHADOW)):
        for node in w.nodes.values():
            node.limit = dict.fromkeys(node.names, MAX)
            node.leases._set = dict(node.limit)
        w.run(16)
        assert w.locks() == {None}
        assert any(d.seen["lever"] == "clock" and d.proposed < 70 for d in decisions(w))


def test_a_daemon_that_dies_frees_the_clocks() -> None:
    w = World()
    w.run(25)
    assert w.locks() != {None}
    for node in w.nodes.values():
        node.leases.turn(w.now_s + 91.0)
    assert w.locks() == {None}


def test_what_it_locked_outlives_the_daemon() -> None:
    """The next daemon goes on from where it was: the same locks, the same beliefs."""
    state: list[bytes] = []
    w = World({"store": state.append, "recall": lambda: state[-1] if state else None})
    w.run(25)
    before = w.locks()
    again = World({"store": state.append, "recall": lambda: state[-1]}, now_s=w.now_s, next_s=w.next_s)
    again.nodes = w.nodes
    again.loop._take_over()
    assert again.loop._clocks.memory == w.loop._clocks.memory
    counts = [one.loop._clocks.gangs[JOB].jobs.windows.count for one in (w, again)]
    np.testing.assert_array_equal(*counts)
    again.run(1)
    assert again.loop._clocks.gangs.keys() == {JOB}
    assert before != {None}


def test_another_phase_frees_the_clock_and_power_is_tried_again() -> None:
    w = World()
    w.run(25)
    assert w.locks() != {None}
    w.compute = True
    w.run(4)
    assert w.locks() == {None}
    assert w.loop._clocks.gangs == {}
    w.run(10)
    assert decisions(w)[-1].seen["lever"] == "power"


def test_a_lock_that_a_killed_node_agent_left_is_freed_and_once() -> None:
    """Its next process knows of no lock, and NVML tells none; the agent remembers. What a person locks after that
    is theirs."""
    w = World()
    w.run(25)
    assert set(w.nodes["n0"].lock.values()) != {None}
    w.compute = True
    w.nodes["n0"].leases = PowerLeases(w.nodes["n0"], FALLBACK)
    w.run(4)
    assert w.locks() == {None}
    w.nodes["n0"].lock["G1"] = 1101
    w.run(6)
    assert w.nodes["n0"].lock == {"G0": None, "G1": 1101}


def test_an_incident_and_the_emergency_stop_suspend_it() -> None:
    """Locks stay as they are, renewed; nothing new is ordered."""
    ill, halted = [frozenset[str]()], [False]
    w = World({"ill_nodes": lambda: ill[0], "halted": lambda: halted[0]})
    w.run(14)
    for begin in (lambda: ill.__setitem__(0, frozenset({"n0"})), lambda: halted.__setitem__(0, True)):
        begin()
        before = w.locks()
        assert before != {None}
        w.run(4)
        assert w.locks() == before
        ill[0] = frozenset()


def test_a_person_who_takes_a_clock_over_keeps_it_until_it_is_given_back() -> None:
    given: dict[str, float] = {}
    w = World({"released": lambda: given})
    w.run(20)
    w.nodes["n0"].lock["G1"] = 1101
    w.run(6)
    assert w.nodes["n0"].lock == {"G0": None, "G1": 1101}
    assert w.loop._clocks.memory.manual == {"G1"}
    w.nodes["n0"].lock["G1"] = None
    given["G1"] = w.now_s
    w.run(25)
    assert w.loop._clocks.memory.manual == frozenset()


def test_without_the_jobs_speed_its_clock_is_free() -> None:
    w = World()
    w.run(20)
    w.silent = True
    w.run(6)
    assert w.locks() == {None}


def test_too_little_for_all_takes_the_gang_off_its_clock() -> None:
    """Limits alone share a scarce rack; what was locked is free."""
    w = World()
    w.run(20)
    assert w.locks() != {None}
    rack = w.loop.settings.racks["r"].model_copy(update={"budget_w": 2400.0})
    w.loop.settings = w.loop.settings.model_copy(update={"racks": {"r": rack}})
    w.run(2)
    assert w.locks() == {None}
    usable_mw = int((1 - MARGIN_SHARE) * 2_400_000) - 100_000
    assert sum(mw for node in w.nodes.values() for mw in node.limit.values()) <= usable_mw
    assert w.loop._clocks.memory.ordered_mhz == {}
