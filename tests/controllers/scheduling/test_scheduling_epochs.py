"""What an order is worth, by epochs of the whole queue: right where jobs hinder each other, where coins of single
jobs are wrong."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from nightshift.controllers.decision import ControlDecision, Mode, Trust
from nightshift.controllers.estimate import TrialTurn, doubly_robust
from nightshift.controllers.lab.scheduling import trace
from nightshift.controllers.lab.scheduling.simulate import SchedulingWorld, Simulation
from nightshift.controllers.outcome import Joiner, ReceiptOutcome, Stretch
from nightshift.controllers.promotion import Criteria, PolicyStanding, trust_of
from nightshift.controllers.scheduling.cluster import ClusterShape
from nightshift.controllers.scheduling.controller import JobSeen, SchedulingController, Snapshot
from nightshift.controllers.scheduling.epochs import EPOCH_S, EpochOutcomes, Epochs, epoch_of
from nightshift.controllers.scheduling.policies import backfill
from nightshift.controllers.scheduling.predict import Durations
from nightshift.controllers.scheduling.steer import Steer, SteerVerb
from nightshift.controllers.scheduling.whatif import PlayedJob, starts_s

ACTIVE, SHADOW = Trust(Mode.ACTIVE, 1.0, 0.95), Trust()
TRIAL = {arm: Trust(Mode.TRIAL, float(arm), 0.5) for arm in (False, True)}


class Known(Durations):
    """Tells true lengths."""

    def __init__(self, lasts_s: dict[str, float]) -> None:
        super().__init__()
        self.lasts_s = lasts_s

    def learn(self, user: str, gpus: int, submit_s: float, duration_s: float, name: str = "") -> None: ...

    def quantile(
        self, user: str, gpus: int, submit_s: float, q: float, age_s: float = 0.0, name: str = ""
    ) -> float:
        return max(self.lasts_s[name], age_s + 1.0)


def test_a_play_of_plain_backfill_starts_every_job_when_the_simulator_does() -> None:
    jobs = [replace(job, name=job.id) for job in trace.at_load(trace.draw(60, 4, widest=8), 16, 1.0)]
    lasts_s = {job.id: job.duration_s for job in jobs}
    shape = ClusterShape(2, 8, 2)
    simulation = Simulation(jobs, SchedulingWorld(shape))
    simulation.state.durations = Known(lasts_s)
    result = simulation.run(backfill)
    parts = [PlayedJob(job.id, job.gpus, job.submit_s, job.submit_s, job.duration_s) for job in jobs]
    found = starts_s(shape, {}, parts, 0.0)
    there = {job.id: job.submit_s + wait_s for job, wait_s in zip(jobs, result.wait_s, strict=True)}
    assert found == pytest.approx(there)
    assert max(result.wait_s) > 0


@dataclass
class Town:
    """A cluster whose own scheduler starts whoever has no gate, first come first served where it fits. `jobs`:
    (name, GPUs, submitted, how long it runs)."""

    jobs: Sequence[tuple[str, int, float, float]]
    trust: Callable[[float], Trust]
    shape: ClusterShape = field(default_factory=lambda: ClusterShape(1, 8, 1))
    now_s: float = -60.0
    opened: set[str] = field(default_factory=set)
    began_s: dict[str, float] = field(default_factory=dict)
    kept: dict[str, tuple[ControlDecision, float, bool]] = field(default_factory=dict)
    told: list[EpochOutcomes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.controller = SchedulingController(
            self, self.keep, np.random.default_rng(0), lambda _job: self.trust(self.now_s),
            durations=Known({name: lasts_s for name, _, _, lasts_s in self.jobs}), bound_s=8 * 3600.0,
        )  # fmt: skip
        self.epochs = Epochs(self.keep_epoch, "steering", "as_without_us", 9 * 3600.0)

    def keep(self, decision: ControlDecision, *, chance: float = 0.0, treated: bool = False) -> None:
        assert chance in (0.0, 1.0), "a single job's turn is never drawn"

    def keep_epoch(self, decision: ControlDecision, *, chance: float = 0.0, treated: bool = False) -> None:
        self.kept[decision.id] = decision, chance, treated

    def release_overdue(self) -> Sequence[object]:
        return ()

    def open(self, gate: object) -> bool:
        self.opened.add(str(gate))
        return True

    def hold(self, gate: object, until_s: float) -> None: ...

    def boost(self, workload: str, value: int) -> str:
        return ""

    def read_back(self, gate: object) -> Steer:
        return Steer(SteerVerb.START if gate in self.opened else SteerVerb.HOLD)

    def snapshot(self) -> Snapshot:
        seen = []
        for name, gpus, at_s, lasts_s in self.jobs:
            began_s = self.began_s.get(name, math.inf)
            if at_s > self.now_s or began_s + lasts_s <= self.now_s:
                continue
            runs = began_s <= self.now_s
            gate = None if runs or name in self.opened else name
            nodes = {0: gpus} if runs else {}
            seen.append(
                JobSeen(name, "q", "ada", at_s, gpus, gate, nodes, began_s if runs else math.nan, label=name)
            )
        return Snapshot(self.now_s, self.shape, seen)

    def run(self, until_s: float, step_s: float = 60.0) -> Town:
        while self.now_s < until_s:
            snapshot = self.snapshot()
            self.controller.turn(snapshot)
            trust = self.trust(self.now_s)
            self.told.append(self.epochs.turn(snapshot, trust, self.controller.durations, self.controller.differed))
            free = self.shape.gpus - sum(sum(job.nodes.values()) for job in snapshot.jobs)
            for job in snapshot.jobs:
                if not job.nodes and job.name in self.opened and job.gpus <= free:
                    self.began_s[job.name] = self.now_s
                    free -= job.gpus
            self.now_s += step_s
        return self

    def outcomes(self) -> dict[str, ReceiptOutcome]:
        joiner = Joiner()
        for told in self.told:
            for sample in told.samples:
                joiner.saw(sample)
            for stretch in told.stretches:
                joiner.decided(stretch)
        return {self.kept[found.id][0].job: found for found in joiner.settle(self.now_s)}


# eight GPUs, taken for half an hour; then a job on four of them, a long one and eight short ones want the rest
CROWD = [("first", 8, 0.0, 1800.0), ("second", 4, 30.0, 240.0), ("long", 4, 60.0, 7200.0)] + [
    (f"short-{k}", 4, 120.0 + k, 240.0) for k in range(8)
]


def test_letting_the_short_go_first_is_worth_something_and_what_it_costs_the_long_one_is_in_it() -> None:
    """The policy holds the long job for one short one: that job's own outcome is worse, the queue's is better."""
    arms = {arm: Town(CROWD, lambda _at_s, arm=arm: TRIAL[arm]).run(2.2 * EPOCH_S) for arm in (True, False)}  # type: ignore[misc]
    mine, theirs = (arms[arm].outcomes()["epoch/0"] for arm in (True, False))
    assert arms[True].began_s["long"] > arms[False].began_s["long"]
    assert mine.reward > theirs.reward + 0.02
    assert abs(theirs.reward) < 0.01, "as without us is worth what plain backfill is"
    assert mine.slowdown < theirs.slowdown


def test_a_receipt_is_made_at_the_same_moment_in_either_arm_and_says_both() -> None:
    found = {}
    for arm in (True, False):
        town = Town(CROWD, lambda _at_s, arm=arm: TRIAL[arm]).run(1200.0)  # type: ignore[misc]
        ((decision, chance, treated),) = town.kept.values()
        assert (chance, treated, decision.arm) == (0.5, arm, "policy" if arm else "baseline")
        assert decision.job == "epoch/0"
        found[arm] = decision
    assert found[True].at_s == found[False].at_s
    assert found[True].seen == found[False].seen
    assert found[True].prediction["slowdown"] == found[False].prediction["slowdown"]
    assert found[False].prediction["slowdown_executed"] == 1.0
    assert found[True].executed != found[False].executed


def test_where_both_would_do_the_same_there_is_no_receipt_and_no_outcome() -> None:
    town = Town([("a", 4, 0.0, 600.0), ("b", 4, 60.0, 600.0)], lambda _at_s: ACTIVE).run(2 * EPOCH_S)
    assert town.kept == {}
    assert not any(told.stretches or told.samples for told in town.told)


def test_a_queue_too_long_to_play_has_no_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.controllers.scheduling.epochs.MOST_JOBS", 2)
    town = Town(CROWD, lambda _at_s: TRIAL[True]).run(1200.0)
    assert town.kept == {}


def test_an_hour_in_which_the_daemon_began_has_no_receipt_since_its_arms_have_parted_before() -> None:
    town = Town(CROWD, lambda _at_s: TRIAL[True], now_s=1200.0).run(1.5 * EPOCH_S)
    assert {decision.job for decision, _, _ in town.kept.values()} <= {"epoch/1"}
    assert town.kept


def test_in_shadow_the_baseline_is_settled_and_its_slowdown_was_predicted() -> None:
    town = Town(CROWD, lambda _at_s: SHADOW).run(2.2 * EPOCH_S)
    (decision, chance, treated), *_ = town.kept.values()
    assert (chance, treated) == (0.0, False)
    outcome = town.outcomes()["epoch/0"]
    assert outcome.slowdown == pytest.approx(decision.prediction["slowdown_executed"], abs=0.05)


@pytest.mark.parametrize("what", ["gap", "trust", "back"])
def test_an_hour_that_was_not_followed_whole_or_under_another_trust_has_no_outcome(what: str) -> None:
    def trust(at_s: float) -> Trust:
        return SHADOW if what == "trust" and at_s > 1500.0 else TRIAL[True]

    town = Town(CROWD, trust).run(1200.0)
    if what != "trust":
        town.now_s += 900.0 if what == "gap" else -600.0
    town.run(1.2 * EPOCH_S)
    town.now_s += 600.0
    outcome = town.outcomes()["epoch/0"]
    assert outcome.void
    assert math.isnan(outcome.reward)


def test_a_gate_of_ours_past_the_bound_on_waiting_is_a_violation_of_a_treated_hour() -> None:
    town = Town(CROWD, lambda _at_s: TRIAL[True])
    town.epochs.overdue_s = 600.0
    town.run(1.1 * EPOCH_S)
    assert town.outcomes()["epoch/0"].violated


def test_the_coin_of_an_hour_is_one_for_all_jobs_and_a_canary_is_a_share_of_the_hours() -> None:
    standing, criteria = PolicyStanding("scheduling", "steering", "0" * 64, Mode.TRIAL), Criteria(block_s=math.inf)
    hours = [k * EPOCH_S for k in range(2000)]
    drawn = [trust_of(standing, epoch_of(at_s), True, at_s, criteria).chance for at_s in hours]
    again = [trust_of(standing, epoch_of(at_s + 3599.0), True, at_s + 3599.0, criteria).chance for at_s in hours]
    assert drawn == again
    assert 0.45 < np.mean(drawn) < 0.5  # half of what is no holdout
    canary = replace(standing, mode=Mode.CANARY)
    share = np.mean([trust_of(canary, epoch_of(at_s), True, at_s, criteria).chance for at_s in hours])
    assert 0.08 < share < 0.11


# statistics


def queue_world(seed: int, epochs: int = 150, servers: int = 4) -> tuple[list[TrialTurn], list[TrialTurn]]:
    """A queue of equal jobs in which treated ones go before others: whoever gains, another loses as much, so the
    policy is worth exactly nothing. Returns turns by epoch (one coin an epoch) and by job (a coin each)."""
    random = np.random.default_rng((seed, 23))
    lasts_s, found = 600.0, []
    for by_job in (False, True):
        busy, order = [0.0] * servers, itertools.count()
        gaps = random.exponential(lasts_s / (0.95 * servers), int(epochs * EPOCH_S / lasts_s * servers))
        comes = np.cumsum(gaps)
        hours = random.random(epochs + 200) < 0.5
        coins = random.random(len(comes)) < 0.5
        waiting: list[tuple[float, int, int]] = []
        waits_s, lengths, at = np.full(len(comes), np.nan), np.zeros(len(comes)), 0
        while at < len(comes) or waiting:
            free_s = heapq.heappop(busy)
            if not waiting:
                free_s = max(free_s, float(comes[at]))
            while at < len(comes) and comes[at] <= free_s:
                first = bool(coins[at]) if by_job else bool(hours[int(comes[at] // EPOCH_S)])
                key = -float(at) if first else float(at)  # newest first among those, and before all others
                lengths[at] = len(waiting)
                heapq.heappush(waiting, (key, next(order), at))
                at += 1
            job = heapq.heappop(waiting)[2]
            waits_s[job] = free_s - comes[job]
            heapq.heappush(busy, free_s + lasts_s)
        number = (comes // EPOCH_S).astype(int)
        if by_job:
            rows = [
                TrialTurn(str(n), bool(coins[n]), 0.5, -waits_s[n] / lasts_s, 1.0, features=(lengths[n],))
                for n in range(len(comes))
            ]
        else:  # the queue's own cost in the hour: who waits, summed over time
            begins = comes + waits_s
            rows = []
            for hour in range(min(epochs, int(number.max()))):
                low, high = hour * EPOCH_S, (hour + 1) * EPOCH_S
                cost = np.clip(np.minimum(begins, high) - np.maximum(comes, low), 0.0, None).sum() / EPOCH_S
                before = float(((comes < low) & (begins > low)).sum())
                rows.append(TrialTurn(f"epoch/{hour}", bool(hours[hour]), 0.5, -cost, 1.0, features=(before,)))
        found.append(rows)
    return found[0], found[1]


@pytest.mark.full
def test_with_coins_by_epoch_a_policy_that_only_takes_from_others_is_seen_and_with_coins_by_job_it_is_not() -> None:
    """The bound by epoch lies above the truth (nothing) in about one world of twenty; by job nearly always."""
    worlds = [queue_world(seed) for seed in range(100)]
    assert sum(doubly_robust(by_epoch).low > 0 for by_epoch, _ in worlds) <= 10  # 5, and two standard errors
    assert sum(doubly_robust(by_job).low > 0 for _, by_job in worlds) >= 80


def lasting_world(seed: int, epochs: int, carry: float) -> tuple[list[TrialTurn], float]:
    """Hours of one cluster whose load wanders (autocorrelation 0.9), with an effect that depends on it, and where
    an arm adds `carry` to the next hour. Returns the truth: mean effect of the hours' own arms."""
    random = np.random.default_rng((seed, 29))
    load, before, turns, effects = 0.0, False, [], []
    for hour in range(epochs):
        load = 0.9 * load + random.normal(0.0, 0.1)
        arm = bool(random.random() < 0.5)
        effect = 0.03 + 0.05 * load
        reward = -load + effect * arm + carry * before + random.normal(0.0, 0.05) * (1.0 + abs(load))
        turns.append(TrialTurn(f"epoch/{hour}", arm, 0.5, reward, 1.0, features=(load + random.normal(0.0, 0.1),)))
        effects.append(effect)
        before = arm
    return turns, float(np.mean(effects))


@pytest.mark.full
@pytest.mark.parametrize("carry", [0.0, 0.1, -0.1])
def test_hours_that_follow_from_each_other_do_not_break_the_bound(carry: float) -> None:
    """Neither a load that wanders nor what an arm leaves to the next hour: each hour's coin is drawn afresh."""
    worlds = [lasting_world(seed, 200, carry) for seed in range(150)]
    covered = np.mean([doubly_robust(turns).low <= truth for turns, truth in worlds])
    assert 0.91 <= covered <= 1.0


def test_stretches_end_with_their_epoch() -> None:
    town = Town(CROWD, lambda _at_s: ACTIVE).run(1.5 * EPOCH_S)
    made = [stretch for told in town.told for stretch in told.stretches]
    assert made[0] == Stretch(made[0].id, "queue", "epoch/0", made[0].from_s, EPOCH_S)
    assert 0.0 < made[0].from_s < EPOCH_S
