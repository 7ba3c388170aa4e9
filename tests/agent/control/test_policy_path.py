"""The whole way of a learned policy in a real daemon over a simulated cluster: shadow, trial, canary, active, down.

The App is the daemon's, with its own store, threads, gate, watch and keeping; what is simulated is the cluster:
GPUs whose draw and whose jobs' speed follow the limits that they were leased, jobs that come and go, and the clock.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from numpy.typing import NDArray
from typer.testing import CliRunner

from nightshift.agent.__main__ import app as cli
from nightshift.agent.app import App
from nightshift.agent.approvals.kernel_gate import ProposalState
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.clock import SteppedClock
from nightshift.agent.notify.slack.proposals import Promotions, card
from nightshift.agent.settings import Settings
from nightshift.collectors.frame import Frame, SeriesIndex, SourceStatus, StepSeries
from nightshift.collectors.seal import Signer
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Batch
from nightshift.controllers.actuators.power_nodes import LeaseAnswer, NodeGpu, NodeStatus
from nightshift.controllers.decision import Mode
from nightshift.controllers.policy_file import Network, Normaliser, PolicyFile, write
from nightshift.controllers.power.features import ACTIONS, FEATURES, INTERFACE
from nightshift.controllers.promotion import Criteria, in_holdout

pytestmark = pytest.mark.usefixtures("no_dwell")

ANN = Person("ann@example.org", frozenset({Role.APPROVER}), "console", 1_000.0)
MAX_MW, MIN_MW, FALLBACK_MW = 700_000, 200_000, 420_000
LOOK_S, WINDOW_S = 30.0, 30.0
Measured = tuple[dict[str, str], NDArray[np.float64], NDArray[np.float64], list[tuple[str, NDArray[np.float64]]]]
CRITERIA = Criteria(
    looks=1, least_jobs=40, most_violations=0.1, p95_margin=0.05, p99_margin=0.06, holdout_share=0.1,
    canary_share=0.4, most_fallback=0.6, most_lost=0.3,
)  # fmt: skip


@dataclass
class Fleet:
    """One GPU a job. A collector, and the nodes that take leases. `hot`: GPUs that draw more than they may."""

    gpus: int
    limit: dict[str, int] = field(default_factory=dict)
    job: dict[str, str] = field(default_factory=dict)
    at_s: float = 0.0
    hot: bool = False
    term: int = 0
    name: str = "simulated"
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))
    _next_s: dict[str, float] = field(default_factory=dict)
    _told: dict[str, Subject] = field(default_factory=dict)  # GPU → its pod

    def __post_init__(self) -> None:
        self.limit = dict.fromkeys((f"G{i}" for i in range(self.gpus)), MAX_MW)

    def renew_jobs(self, generation: int, now_s: float) -> None:
        """Every GPU gets a new job."""
        for i, uuid in enumerate(self.limit):
            self.job[uuid] = f"team-a/g{generation}-{i}"
            self._next_s[self.job[uuid]] = now_s

    # collector

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        return self.batch(self.measure(now_s), self._told, now_s, inventory)

    def measure(self, now_s: float) -> Measured:
        """What there is to see since the last time: each GPU's job, limits and draw, and steps by job."""
        watts = np.array([mw / 1000.0 for mw in self.limit.values()])
        share = watts / 700.0
        draw = (600.0 * share**0.8 + 0.0) * (1 + 0.005 * self.rng.normal(size=len(watts)))
        if self.hot:
            draw = draw * 3.0
        steps = []
        for uuid, part in zip(self.limit, share, strict=True):
            pace_s = 0.5 * (1.0 + 0.08 * (1.0 - part) ** 2)
            times = []
            while self._next_s[self.job[uuid]] < now_s:
                times.append(self._next_s[self.job[uuid]])
                self._next_s[self.job[uuid]] += pace_s * (1 + 0.002 * self.rng.normal())
            steps.append((self.job[uuid], np.array(times)))
        return dict(self.job), watts, draw, steps

    @classmethod
    def batch(cls, measured: Measured, told: dict[str, Subject], now_s: float, inventory: Inventory) -> Batch:
        """As a collector gives it. `told`: GPU → its pod, as the inventory was told last."""
        jobs, watts, draw, paces = measured
        subjects = tuple(Subject(SubjectKind.GPU, uuid) for uuid in jobs)
        for gpu in subjects:
            pod = Subject(SubjectKind.POD, f"{jobs[gpu.name]}-0")
            inventory.observe(gpu, Subject(SubjectKind.NODE, cls.node(gpu.name)), now_s)
            if (old := told.get(gpu.name)) != pod:
                if old is not None:
                    inventory.end(gpu, old, now_s)
                inventory.observe(gpu, pod, now_s)
                inventory.observe(pod, Subject(SubjectKind.JOB, jobs[gpu.name]), now_s)
                told[gpu.name] = pod
        at = np.full((1, 2), now_s)
        frame = Frame(
            now_s, SeriesIndex(SubjectKind.GPU, subjects), ("gpu_power_w", "gpu_power_limit_w"),
            np.column_stack([draw, watts]), at, np.zeros(len(watts), dtype=np.int64),
        )  # fmt: skip
        steps = []
        for job, t in paces:
            rank = Subject(SubjectKind.RANK, f"{job}#0")
            steps.append(StepSeries(rank, "r", np.arange(len(t), dtype=np.int64), t, {}, "log"))
        source = SourceStatus(Subject(SubjectKind.SOURCE, "simulated"), now_s, True, samples=len(watts))
        return Batch([source], [frame], steps)

    # nodes

    @staticmethod
    def node(uuid: str) -> str:
        return f"n{int(uuid[1:]) // 8}"

    def status(self) -> Mapping[str, NodeStatus]:
        found: dict[str, dict[str, NodeGpu]] = {}
        for uuid, mw in self.limit.items():
            found.setdefault(self.node(uuid), {})[uuid] = NodeGpu(MIN_MW, MAX_MW, MAX_MW, FALLBACK_MW, mw, 1980)
        return {node: NodeStatus(gpus, 60.0) for node, gpus in found.items()}

    def grant(self, leases: Mapping[str, Mapping[str, Any]]) -> Mapping[str, LeaseAnswer]:
        said = {}
        for node, lease in leases.items():
            ok = lease["term"] >= self.term  # as a real node's: an earlier leader's is refused
            if ok:
                self.term = lease["term"]
                self.limit.update(lease["limits_mw"])
            said[node] = LeaseAnswer(ok, "ok" if ok else f"the present term is {self.term}")
        return said

    def close(self) -> None: ...


def a_policy() -> PolicyFile:
    """A network that steps down wherever it may, whatever it sees."""
    bias = np.full(len(ACTIONS), -40.0)
    bias[0] = 40.0
    layers = ((np.zeros((4, len(FEATURES))), np.zeros(4)), (np.zeros((len(ACTIONS), 4)), bias))
    n = len(FEATURES)
    training = {"environment_sha256": "ab" * 32, "seeds": [1]}
    return PolicyFile("down", INTERFACE, Network(Normaliser(np.zeros(n), np.ones(n)), layers), training, {})


@dataclass
class Daemon:
    """The App on the simulated fleet."""

    settings: Settings
    fleet: Fleet
    clock: SteppedClock
    app: App = field(init=False)
    generation: int = 0
    turned_s: float = math.nan
    """When power control's last turn that is over began."""

    def start(self) -> None:
        self.app = App(self.settings, clock=self.clock)
        self.app.policies.gate.criteria = CRITERIA
        assert self.app.power is not None
        self.app.power._nodes = self.fleet
        turn = self.app.power.turn

        def noted(now_s: float) -> Any:
            try:
                return turn(now_s)
            finally:
                self.turned_s = now_s

        self.app.power.turn = noted  # type: ignore[method-assign]
        self.app.start()
        assert self.app.settle()

    def windows(self, count: int) -> None:
        """Looks until so many turns of power control are over."""
        power = self.app.power
        assert power is not None
        for _ in range(int(count * WINDOW_S / LOOK_S)):
            due = WINDOW_S <= self.clock.now_s() - power._closed_s < math.inf
            deadline = time.monotonic() + 120.0
            while (look := self.app.tick()) is None:  # a loaded machine may lose the lead for a moment
                assert time.monotonic() < deadline
                time.sleep(0.05)
            while due and self.turned_s != look.tick.at_s and time.monotonic() < deadline:
                time.sleep(0.002)
            assert not due or self.turned_s == look.tick.at_s, "a turn of power control did not end"
            self.clock.wait_until(self.clock.now_s() + LOOK_S)

    def mode(self) -> Mode:
        return self.app.policies.gate.standing("power").mode

    def gather(self, windows: int = 8, at_most: int = 8) -> None:
        """Generations of jobs until the watch has put a step before people."""
        for _ in range(at_most):
            self.generation += 1
            self.fleet.renew_jobs(self.generation, self.clock.now_s())
            self.windows(windows)
            if self.waiting():
                return
        standing = self.app.policies.gate.standing("power")
        words = standing.evidence.words if standing.evidence else "never looked at"
        raise AssertionError(f"no step waits after {at_most} generations in {standing.mode}: {words}")

    def waiting(self) -> list[Any]:
        return [p for p in self.app.policies.gate.proposals() if p.state is ProposalState.WAITING]


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Daemon, Path]:
    signer = Signer.generate()
    (tmp_path / "key.pub").write_text(signer.public.public_bytes(Encoding.Raw, PublicFormat.Raw).hex())
    write(tmp_path / "policy.json", a_policy(), signer)
    fleet = Fleet(104)
    racks = {"r": {"nodes": sorted({fleet.node(u) for u in fleet.limit}), "budget_w": 1000.0 * fleet.gpus}}
    values = {
        "state_dir": str(tmp_path),
        "console": {"enabled": False},
        "sources": [],
        "store": {"url": f"sqlite:///{tmp_path}/s.sqlite"},
        "tick_s": LOOK_S,
        "power": {
            "enabled": True,
            "racks": racks,
            "opted_in": ["team-a"],
            "policy_keys": [str(tmp_path / "key.pub")],
            "shield": {"raise_w_per_min": 1e6},
        },
    }
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(values))
    made = Daemon(Settings(**values), fleet, SteppedClock(10_000.0))
    fleet.renew_jobs(0, 10_000.0)
    monkeypatch.setattr("nightshift.agent.app.build_collectors", lambda *_: [fleet])
    return made, config


@pytest.mark.full
def test_a_policy_goes_the_whole_way_and_down_at_once(daemon: tuple[Daemon, Path]) -> None:
    """Every step's evidence is from settled receipts, every approval by another door; then a budget event."""
    d, config = daemon
    d.start()  # once without: the heuristic stands
    d.windows(2)
    d.app.stop()

    def said(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(cli, ["policy", *words, "--config", str(config)])
        assert done.exit_code == code, done.output
        return str(done.output)

    assert "is in shadow" in said("ship", "power", str(config.with_name("policy.json")))
    d.start()
    try:
        gate = d.app.policies.gate
        assert gate.standing("power").policy.startswith("down@")
        d.gather()  # shadow → trial, by what the command line says
        words = said("promote", "power", code=1).split("approve with: nightshift policy ")[1].split()
        assert "approve with" not in said(*words)
        d.windows(2)
        assert d.mode() is Mode.TRIAL
        d.gather()  # trial → canary, by the chat
        chat = Promotions(d.app.gate, d.app.store, d.clock)
        plan = d.waiting()[0].action
        shown = card(d.waiting()[0], d.app.gate, d.clock.now_s(), "")
        assert any("gain" in json.dumps(block).lower() for block in shown.blocks)
        by_chat = chat.gate_of(plan.id)
        assert by_chat is not None
        assert by_chat.approve(plan.id, plan.plan_sha256, ANN).ok
        d.app.stop()  # a daemon that is away in between
        d.start()
        gate = d.app.policies.gate
        d.windows(2)
        assert d.mode() is Mode.CANARY
        d.gather()  # canary → active, by the console's gate
        plan = d.waiting()[0].action
        assert gate.approve(plan.id, plan.plan_sha256, ANN).ok
        d.windows(2)
        assert d.mode() is Mode.ACTIVE
        d.windows(9)
        standing = gate.standing("power")
        found = d.app.policies.receipts.gathered("power", standing.policy, Mode.ACTIVE, standing.since_s)
        drawn = [turn for turn in found.turns if 0 < turn.chance < 1]
        held = {turn.job for turn in drawn if not turn.treated}
        assert held, "the holdout goes on"
        assert all(in_holdout(job, "power", CRITERIA) for job in held)
        assert not any(turn.treated and in_holdout(turn.job, "power", CRITERIA) for turn in drawn)
        receipt = d.app.policies.receipts.newest("power", 1)[0]
        told = said("explain", receipt.id)
        for word in ("seen", "proposed", "executed", "baseline", "highest", "outcome"):
            assert word in told
        assert d.app.store.audit.verify().ok
        d.fleet.hot = True
        d.windows(1)
        assert d.mode() is Mode.SHADOW
        assert "budget" in gate.standing("power").demotion
        after = [r for r in d.app.policies.receipts.newest("power", 50) if r.at_s >= gate.standing("power").since_s]
        assert {r.arm for r in after} <= {"baseline"}
        assert "is shadow (1 budget events)" in said("list")
        assert "the baseline controls already" in said("undo", "power")
        assert math.isfinite(gate.standing("power").since_s)
    finally:
        d.app.stop()
