"""A rack that has too little for all, in the daemon's own loop: shared by belief, gangs whole, budget kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from nightshift.agent.control.power_interfaces import Around
from nightshift.agent.control.power_loop import PowerLoop
from nightshift.collectors.frame import Frame, SeriesIndex, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.decision import ControlDecision, Mode, Trust
from nightshift.controllers.power.curves import Curve
from nightshift.controllers.power.gang import level_of
from nightshift.controllers.power.limits import MARGIN_SHARE
from nightshift.controllers.power.settings import PowerSettings
from tests.agent.control.test_power_loop import EASY, FALLBACK, MAX, Cluster

STEEP = Curve("g", "w", np.array([200.0, 400.0, 700.0]), np.array([2.6, 1.5, 1.0]), np.array([200.0, 400.0, 700.0]))
HUNGRY = Curve("g", "w", EASY.limit_w, EASY.time, np.array([200.0, 400.0, 650.0]))
USABLE = 1.0 - MARGIN_SHARE
BUDGET_W = 8 * 500.0 / USABLE + 100.0


@dataclass
class Rack:
    """Eight GPUs on two nodes; jobs come and go. Telemetry every 5 s, a turn every 30 s."""

    jobs: dict[str, tuple[range, Curve]] = field(default_factory=dict)
    budget_w: float = BUDGET_W
    cluster: Cluster = field(default_factory=Cluster)
    inventory: Inventory = field(default_factory=Inventory)
    now_s: float = 1000.0
    next_s: dict[str, float] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))
    most_mw: int = 0
    receipts: list[ControlDecision] = field(default_factory=list)
    state: list[bytes] = field(default_factory=list)
    mode: Mode = Mode.SHADOW

    def __post_init__(self) -> None:
        for i in range(8):
            self.inventory.observe(Subject(SubjectKind.GPU, f"G{i}"), Subject(SubjectKind.NODE, f"n{i // 4}"), 0.0)
        settings = PowerSettings(
            enabled=True,
            act=True,
            racks={"r": {"nodes": ("n0", "n1"), "budget_w": self.budget_w, "host_w": 100.0}},
            nodes={"urls": {"n0": "https://n0:1", "n1": "https://n1:1"}},
        )
        trust = Trust(self.mode, float(self.mode is not Mode.SHADOW), float(self.mode is not Mode.SHADOW))
        around = Around(
            keep=lambda made: self.receipts.extend(decision for decision, _, _ in made),
            trusts=lambda: lambda _job, _opted, _now_s: trust,
            store=self.state.append,
            recall=lambda: self.state[-1] if self.state else None,
        )
        self.loop = PowerLoop(settings, self.inventory, self.cluster, around)

    def start(self, job: str, gpus: range, curve: Curve) -> None:
        self.jobs[job] = gpus, curve
        for i in gpus:
            pod = Subject(SubjectKind.POD, f"{job}-{i}")
            self.inventory.observe(Subject(SubjectKind.GPU, f"G{i}"), pod, self.now_s)
            self.inventory.observe(pod, Subject(SubjectKind.JOB, job), self.now_s)

    def end(self, job: str) -> None:
        gpus, _ = self.jobs.pop(job)
        for i in gpus:
            self.inventory.end(
                Subject(SubjectKind.GPU, f"G{i}"), Subject(SubjectKind.POD, f"{job}-{i}"), self.now_s
            )

    def limits(self, job: str) -> set[int]:
        return {self.cluster.limit[f"G{i}"] for i in self.jobs[job][0]}

    def run(self, windows: int) -> None:
        for _ in range(windows):
            for look in range(6):
                self.now_s += 5.0
                self.loop.take(self.tick())
                if look < 5:
                    self.loop.follow(self.now_s)
                self.count()
            self.loop.turn(self.now_s)
            self.count()

    def count(self) -> None:
        self.most_mw = max(self.most_mw, sum(self.cluster.limit.values()) + 100_000)
        for job in self.jobs:
            assert len(self.limits(job)) == 1, "a gang has one limit"

    def tick(self) -> Tick:
        gpus = [Subject(SubjectKind.GPU, f"G{i}") for i in range(8)]
        limits = np.array([self.cluster.limit[g.name] for g in gpus]) / 1000.0
        draw = np.full(8, 80.0)
        series = []
        for job, (mine, curve) in self.jobs.items():
            at_w = min(limits[i] for i in mine)
            for i in mine:
                draw[i] = float(curve.draw(limits[i])) * (1 + 0.01 * self.rng.normal())
            pace_s, times = 0.5 * float(1.0 + curve.slowdown(at_w)), []
            while self.next_s.setdefault(job, self.now_s - 5.0) < self.now_s:
                times.append(self.next_s[job])
                self.next_s[job] += pace_s * (1 + 0.01 * self.rng.normal())
            found, numbers = np.array(times), np.arange(len(times), dtype=np.int64)
            series.append(StepSeries(Subject(SubjectKind.RANK, f"{job}#0"), "r", numbers, found, {}, "log"))
        index = SeriesIndex(SubjectKind.GPU, tuple(gpus))
        values, at = np.column_stack([draw, limits]), np.full((1, 2), self.now_s)
        names = ("gpu_power_w", "gpu_power_limit_w")
        frame = Frame(self.now_s, index, names, values, at, np.zeros(8, dtype=np.int64))
        return Tick(self.now_s, {SubjectKind.GPU: frame}, series)


def both(rack: Rack) -> Rack:
    rack.start("team-a/steep", range(4), STEEP)
    rack.start("team-b/easy", range(4, 8), HUNGRY)
    return rack


def test_the_job_that_is_slowed_most_gets_most_and_the_budget_holds_at_every_look() -> None:
    rack = both(Rack())
    rack.run(25)
    (steep,), (easy,) = rack.limits("team-a/steep"), rack.limits("team-b/easy")
    assert rack.most_mw <= rack.budget_w * 1000 * USABLE
    assert steep > easy + 100_000
    speeds = [1 / (1 + float(c.slowdown(w / 1000))) for c, w in ((STEEP, steep), (HUNGRY, easy))]
    common = [1 / (1 + float(c.slowdown(500.0))) for c in (STEEP, HUNGRY)]
    assert min(speeds) > min(common) + 0.05
    clips = {c.constraint for d in rack.receipts for c in d.clips}
    assert "rack" in clips
    last = rack.receipts[-1]
    assert math.isfinite(last.seen["rack_room"]) and math.isfinite(last.seen["rack_slope"])  # noqa: PT018


def test_each_gang_is_seen_as_high_as_the_rack_can_and_a_restart_does_not_ask_again() -> None:
    rack = both(Rack())
    rack.run(12)
    gangs = rack.loop._beliefs.gangs
    # with the other gang at its fallback there are 580 W for one
    assert all(gang.jobs.windows.count[0, level_of(0.8) :].sum() >= 1 for gang in gangs.values())
    asked = {job: gang.tried for job, gang in gangs.items()}
    rack.__post_init__()
    rack.run(3)
    assert {job: gang.tried for job, gang in rack.loop._beliefs.gangs.items()} == asked


def test_jobs_come_and_go_and_what_one_leaves_goes_to_the_others() -> None:
    """An idle GPU goes to its fallback; a job that comes later is given its part, others lowered first."""
    rack = Rack()
    rack.start("team-a/steep", range(4), STEEP)
    rack.run(6)
    (alone,) = rack.limits("team-a/steep")
    rack.start("team-b/steep", range(4, 8), STEEP)
    rack.run(20)
    (one,), (other,) = rack.limits("team-a/steep"), rack.limits("team-b/steep")
    assert alone > one
    assert abs(one - other) < 60_000
    rack.end("team-b/steep")
    rack.run(6)
    (after,) = rack.limits("team-a/steep")
    assert {rack.cluster.limit[f"G{i}"] for i in range(4, 8)} == {FALLBACK}
    assert after > one + 50_000
    assert rack.most_mw <= rack.budget_w * 1000 * USABLE


def test_a_persons_limit_and_a_silent_node_are_counted_and_the_rest_is_shared() -> None:
    rack = both(Rack())
    rack.run(10)
    rack.cluster.limit["G0"] = 300_000
    kept = {f"G{i}": rack.cluster.limit[f"G{i}"] for i in range(1, 4)}
    rack.jobs["team-a/steep"] = range(1, 4), STEEP  # what is one limit from now on
    rack.run(6)
    assert rack.cluster.limit["G0"] == 300_000
    assert {u: rack.cluster.limit[u] for u in kept} == kept, "its gang holds"
    assert rack.most_mw <= rack.budget_w * 1000 * USABLE


def test_where_there_is_enough_for_all_nobody_is_divided() -> None:
    rack = both(Rack(budget_w=8 * 700.0 / USABLE + 200.0))
    rack.run(8)
    assert rack.limits("team-a/steep") == rack.limits("team-b/easy") == {MAX}
    assert not {c.constraint for d in rack.receipts for c in d.clips} & {"rack"}


def test_a_job_that_the_rack_slows_is_not_locked_out_as_if_its_policy_had() -> None:
    rack = both(Rack(mode=Mode.ACTIVE))
    rack.run(25)
    assert not rack.loop._memory.locked_until_s
    assert rack.most_mw <= rack.budget_w * 1000 * USABLE
