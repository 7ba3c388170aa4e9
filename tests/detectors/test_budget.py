"""The false-alarm budget rations pages, not incidents: only what was found false makes a later alarm a ticket."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.populations import SHIPPED, populations
from nightshift.collectors.frame import Frame, Instant, SeriesIndex, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.budget import DAY_S, Budget, BudgetSettings, words
from nightshift.detectors.alarms.lanes import (
    LANES,
    Haste,
    Lane,
    Proof,
    WaitingGpus,
    haste_of,
    lane_of,
    proof_of,
    widest,
)
from nightshift.detectors.alarms.promise import Population, PopulationRate, Unit
from nightshift.detectors.alarms.tail import Tail, fit
from nightshift.detectors.base import CERTAIN, Fault, Finding, RateBasis, Severity, SnapshotError, State, StatedRate

TAIL = Tail(1.0, 100.0, 0.5, 0.2, 50, 500.0, "test")
MEASURED = StatedRate(100.0, RateBasis.STATISTICAL, "test", tail=TAIL)
CLAIMED = StatedRate(1.0, RateBasis.STATISTICAL, "test")
EVENT = StatedRate(0.5, RateBasis.EVENT, "test", precision=0.8)


def gpu_tick(at_s: float, gpus: int) -> Tick:
    index = SeriesIndex(SubjectKind.GPU, tuple(Subject(SubjectKind.GPU, f"GPU-{g}") for g in range(gpus)))
    frame = Frame(
        at_s, index, ("gpu_power_w",), np.ones((gpus, 1)), np.full((1, 1), at_s), np.zeros(gpus, dtype=np.int64)
    )
    return Tick(at_s, {SubjectKind.GPU: frame})


def alarm(
    detector: str, subject: str, at_s: float, score: float, state: State = State.FIRING, since_s: float = 0.0
) -> Finding:
    return Finding(
        detector,
        Fault.ANOMALY,
        Subject(SubjectKind.GPU, subject),
        state,
        Instant(since_s or at_s),
        Instant(at_s),
        Severity.WARNING,
        "odd",
        score,
        1.0,
    )


HOUR_S = 3600.0


def in_a_job(at_s: float, gpus: int = 64) -> Inventory:
    """One job that holds every GPU that a test names, and some more: what is wrong with one costs all."""
    known, job = Inventory(), Subject(SubjectKind.JOB, "ml/wide")
    for name in [f"GPU-{g}" for g in range(gpus)]:
        known.observe(Subject(SubjectKind.GPU, name), job, at_s)
    return known


class Life:
    """A fleet that lives hour by hour under one budget; every alarm is of a job of 64 GPUs, and its rate counts."""

    def __init__(self, stated: dict[str, StatedRate], gpus: int = 100, **settings: float) -> None:
        own = {name: replace(rate, own=True) for name, rate in stated.items()}
        self.budget = Budget(BudgetSettings(**settings), own)
        self.frames, self.at_s, self.made = gpu_tick(0.0, gpus).frames, 1e9, 0

    def hour(self, alarms: list[tuple[str, float]], judged: bool | None = None) -> list[Finding]:
        """One hour in which these alarms come and clear, each in a place of its own; those that page. `judged`:
        what is found of all of them at its end; None: nobody answers, and nothing shows it."""
        self.at_s += HOUR_S
        found = []
        for detector, score in alarms:
            self.made += 1
            found.append(replace(alarm(detector, f"GPU-a{self.made}", self.at_s, score), facts={"lost_share": 8.0}))
            found[-1] = replace(found[-1], subject=Subject(SubjectKind.JOB, f"ml/{self.made}"))
        inventory = Inventory()
        for f in found:
            for rank in range(16):
                inventory.observe(Subject(SubjectKind.RANK, f"{f.subject.name}#{rank}"), f.subject, 0.0)
        told = self.budget.weigh(found, Tick(self.at_s, self.frames), inventory)
        cleared = [replace(f, state=State.CLEAR) for f in found]
        self.budget.weigh(cleared, Tick(self.at_s, self.frames), inventory)
        for f in found:
            if judged is not None:
                (self.budget.confirm if judged else self.budget.refute)([f.episode])
        return [f for f in told if f.pages]


NOISES = {
    "light": lambda rng, n: 1.0 + rng.exponential(0.1, n),
    "pareto, no mean": lambda rng, n: 1.0 + rng.pareto(0.5, n),
    "pareto, hardly a tail index": lambda rng, n: np.minimum(1.0 + rng.pareto(0.05, n), 1e12),
    "lognormal": lambda rng, n: 1.0 + rng.lognormal(2.0, 3.0, n),
    "cauchy": lambda rng, n: 1.0 + np.abs(rng.standard_cauchy(n)),
    "all equal": lambda rng, n: np.full(n, 7.0),
}


@pytest.mark.full
@given(
    st.sampled_from(sorted(NOISES)),
    st.sampled_from(sorted(NOISES)),
    st.floats(0.05, 300.0),
    st.booleans(),
    st.integers(0, 2**31),
)
@settings(max_examples=10)
def test_no_stationary_noise_costs_more_than_the_budget_over_its_double(
    one: str, other: str, weekly: float, measured: bool, seed: int
) -> None:
    """Whatever the law of the scores and the rate, and however wrong the shipped tail: 16 weeks in which each alarm
    is found false within the hour. Two detectors have a page each beyond the burst."""
    rng, weeks = np.random.default_rng(seed), 16
    life, pages = Life({"a": MEASURED if measured else CLAIMED, "b": CLAIMED}), 0
    for _ in range(168 * weeks):
        came = [
            (name, float(NOISES[noise](rng, 1)[0]))
            for name, noise in (("a", one), ("b", other))
            for _ in range(rng.poisson(weekly / 168))
        ]
        for each in came:  # one after the other: what comes at once is judged at once
            pages += len(life.hour([each], judged=False))
        life.hour([])
    assert pages <= 3.0 + 2.0 + weeks <= 2.0 * weeks
    lines = life.budget.lines()
    assert sum(line.paged for line in lines) == sum(line.false for line in lines) == pages
    assert all(line.realised == pytest.approx(1000.0 * line.false / line.series_days) for line in lines)


def test_a_detector_gone_mad_is_named_and_mutes_no_other() -> None:
    """One detector alarms a hundred times a week and nobody answers: after a dozen its pages stop, with its name as
    the reason. All of the other's rare alarms page."""
    rng, quiet, mad = np.random.default_rng(5), 0, []
    life = Life({"mad": CLAIMED, "quiet": CLAIMED})
    for hour in range(168 * 6):
        found = [("mad", 1.0 + float(rng.pareto(1.0))) for _ in range(rng.poisson(100 / 168))]
        if hour % (168 * 3) == 420:
            found.append(("quiet", 2.0))
        for paged in life.hour(found):
            quiet += paged.detector == "quiet"
            mad += [hour] * (paged.detector == "mad")
    assert quiet == 2
    assert len(mad) <= 12
    assert max(mad) < 168
    assert list(life.budget.noisy()) == ["mad"]
    assert "detector mad is noisy: alarms in" in life.budget.noisy()["mad"]


def test_pages_that_nobody_answers_never_make_the_next_one_a_ticket() -> None:
    """Eight faults a week for ten weeks while everybody sleeps: all page, and the balance is full."""
    life, paged = Life({"a": CLAIMED}), 0
    for hour in range(168 * 10):
        paged += len(life.hour([("a", 2.0)] if hour % 21 == 0 else []))
    (line,) = life.budget.lines()
    assert paged == line.alarms == line.paged == 80
    assert (line.confirmed, line.false, line.realised, life.budget.left) == (0, 0, 0.0, 3.0)


def test_only_pages_that_were_found_false_use_the_balance_up_and_it_fills_again() -> None:
    """Three false pages at once: the fourth alarm is a ticket that says so, and pages a week later. True ones cost
    nothing."""
    life = Life({"a": CLAIMED})
    assert len(life.hour([("a", 2.0 + n) for n in range(3)], judged=True)) == 3
    assert life.budget.left == 3.0
    assert len(life.hour([("a", 5.0 + n) for n in range(3)], judged=False)) == 3
    assert life.budget.left == pytest.approx(0.0, abs=0.01)
    assert life.hour([("a", 1e9)]) == []
    life.hour([])
    for _ in range(170):
        life.hour([])
    assert len(life.hour([("a", 1e9)])) == 1


def test_years_without_an_alarm_are_evidence_that_a_tail_of_others_is_too_cautious_here() -> None:
    """An alarm that the shipped tail prices over the share pages once this fleet has been quiet for long enough."""
    weak = TAIL.score(20.0)
    fresh, old = Life({"a": MEASURED}), Life({"a": MEASURED})
    assert fresh.hour([("a", weak)]) == []
    for _ in range(168 * 20):
        old.hour([])
    assert len(old.hour([("a", weak)])) == 1


def test_an_event_what_is_certain_and_a_near_fact_page_whatever_the_balance_holds() -> None:
    """A thousand critical ones at once: all page, none costs, and each event says what it is expected to cost."""
    stated = {"claim": CLAIMED, "event": EVENT, "hang": replace(CLAIMED, own=True)}
    budget = Budget(BudgetSettings(false_pages_per_week=0.01), stated)
    spent = replace(alarm("hang", "GPU-0", 1e9, 2.0), fault=Fault.HANG, severity=Severity.CRITICAL)
    for number in range(3):
        first = replace(spent, since=Instant(1e9 + number))
        budget.weigh([first], gpu_tick(1e9 + number, 100), Inventory())
        budget.refute([first.episode])
    assert sum(line.false for line in budget.lines()) == 3
    found = [
        replace(alarm(name, f"GPU-{n}", 1e9 + 5, CERTAIN), severity=Severity.CRITICAL)
        for n in range(500)
        for name in ("claim", "event")
    ]
    told = budget.weigh([*found, replace(spent, since=Instant(1e9 + 5))], gpu_tick(1e9 + 5, 100), Inventory())
    assert all(lane_of(f) is Lane.PAGE for f in told)
    assert {round(f.budget_cost, 6) for f in told[:-1]} == {0.0, 0.07}
    assert "expected per week" in words(told[1])
    unmeasured = Budget(BudgetSettings(), {"hang": CLAIMED}).weigh([spent], gpu_tick(1e9, 100), Inventory())
    assert lane_of(unmeasured[0]) is Lane.TICKET


def test_a_weak_alarm_is_a_ticket_until_it_is_strong_and_then_pages_once() -> None:
    """The same episode pages when its score rises, stays a page, and counts as one alarm."""
    budget = Budget(BudgetSettings(), {"a": replace(MEASURED, own=True)})
    at_s = 1e9
    lanes, waiting = [], []
    for number, score in enumerate((1.1, 1.2, 500.0, 1.1)):
        found = replace(alarm("a", "GPU-1", at_s + 5 * number, score, since_s=at_s), facts={"lost_share": 1.0})
        (told,) = budget.weigh([found], gpu_tick(at_s + 5 * number, 1000), in_a_job(at_s))
        lanes.append(lane_of(told))
        waiting.append([finding.score for finding, why in budget.waiting() if "part of the budget" in why])
    assert lanes == [Lane.TICKET, Lane.TICKET, Lane.PAGE, Lane.PAGE]
    assert waiting == [[1.1], [1.2], [], []]
    (line,) = budget.lines()
    assert (line.alarms, line.tickets, line.paged) == (1, 0, 1)


@pytest.mark.parametrize(
    ("fault", "severity", "facts", "gpus", "proof", "lane"),
    [
        (Fault.STRAGGLER, Severity.WARNING, {"lost_share": 0.02}, 8, Proof.RARE, Lane.TICKET),
        (Fault.STRAGGLER, Severity.WARNING, {"lost_share": 0.02}, 1024, Proof.RARE, Lane.PAGE),
        (Fault.LOSS_DIVERGED, Severity.CRITICAL, {}, 4, Proof.RARE, Lane.TICKET),
        (Fault.LOSS_DIVERGED, Severity.WARNING, {}, 8, Proof.RARE, Lane.PAGE),
        (Fault.GPU_MEMORY_LEAK, Severity.WARNING, {"eta_s": 40 * 3600.0}, 64, Proof.RARE, Lane.TICKET),
        (Fault.GPU_MEMORY_LEAK, Severity.WARNING, {"eta_s": 1.1 * 3600.0}, 1024, Proof.RARE, Lane.TICKET),
        (Fault.GPU_MEMORY_LEAK, Severity.WARNING, {"eta_s": 0.7 * 3600.0}, 8, Proof.RARE, Lane.PAGE),
        (Fault.GPU_MEMORY_LEAK, Severity.WARNING, {"eta_s": 300.0}, 8, Proof.RARE, Lane.TICKET),
        (Fault.LOSS_DIVERGED, Severity.CRITICAL, {}, 4, Proof.NEAR_FACT, Lane.TICKET),
        (Fault.LOSS_DIVERGED, Severity.CRITICAL, {}, 8, Proof.NEAR_FACT, Lane.PAGE),
        (Fault.HANG, Severity.CRITICAL, {}, 1, Proof.NEAR_FACT, Lane.PAGE),
        (Fault.XID, Severity.CRITICAL, {}, 0, Proof.FACT, Lane.PAGE),
        (Fault.XID, Severity.WARNING, {}, 1, Proof.FACT, Lane.TICKET),
        (Fault.XID, Severity.WARNING, {}, 8, Proof.FACT, Lane.PAGE),
        (Fault.STRAGGLER, Severity.CRITICAL, {"lost_share": 0.5}, 1024, Proof.COMMON, Lane.TICKET),
        (Fault.STRAGGLER, Severity.CRITICAL, {"lost_share": 0.5}, 1024, Proof.NOISY, Lane.TICKET),
        (Fault.THROTTLE, Severity.WARNING, {"lost_share": 0.05}, 1, Proof.COMMON, Lane.DIGEST),
        (Fault.THROTTLE, Severity.WARNING, {"lost_share": float("nan")}, 0, Proof.UNMEASURED, Lane.TICKET),
    ],
)
def test_cost_and_proof_decide_the_lane_and_no_detectors_word(
    fault: Fault, severity: Severity, facts: dict[str, float], gpus: int, proof: Proof, lane: Lane
) -> None:
    """A critical word counts only where it is a catalogue's."""
    found = replace(alarm("a", "GPU-0", 1e9, 2.0), fault=fault, severity=severity, facts=facts)
    assert LANES[proof][haste_of(found, proof, gpus)] is lane


def test_the_table_has_a_lane_for_everything_and_pages_only_where_it_is_sure_and_urgent() -> None:
    assert {(proof, haste) for proof in LANES for haste in LANES[proof]} == {(p, h) for p in Proof for h in Haste}
    pages = {(p, h) for p in Proof for h in Haste if LANES[p][h] is Lane.PAGE}
    assert pages == {(p, Haste.NOW) for p in (Proof.FACT, Proof.NEAR_FACT, Proof.RARE)}


def test_memory_that_is_about_to_be_full_pages_until_too_many_of_its_pages_were_false() -> None:
    budget, lanes = Budget(BudgetSettings(), {"a": replace(CLAIMED, own=True)}), []
    for number in range(12):
        at_s = 1e9 + 60.0 * number
        found = replace(alarm("a", f"GPU-{number}", at_s, 2.0), facts={"pages_because": "full within the hour"})
        found = replace(found, fault=Fault.GPU_MEMORY_LEAK, severity=Severity.CRITICAL)
        (weighed,) = budget.weigh([found], gpu_tick(at_s, 100), in_a_job(at_s))
        lanes.append(lane_of(weighed))
        budget.refute([found.episode])
    assert lanes == [Lane.PAGE] * 11 + [Lane.TICKET]
    assert "detector a is noisy" in str(weighed.facts["lane_reason"])


def test_what_waits_for_a_fault_is_the_whole_job_of_whatever_is_at_fault() -> None:
    """A GPU, a rank, the node of one of them: the job's 64 GPUs. A GPU that nobody holds is itself; of a job that
    only its log tells of, ranks count."""
    known = in_a_job(0.0)
    node, spare = Subject(SubjectKind.NODE, "n1"), Subject(SubjectKind.GPU, "GPU-spare")
    for gpu in [*(Subject(SubjectKind.GPU, f"GPU-{g}") for g in range(8)), spare]:
        known.observe(gpu, node, 0.0)
    told_of = Subject(SubjectKind.JOB, "ml/log")
    for rank in range(16):
        known.observe(Subject(SubjectKind.RANK, f"ml/log#{rank}"), told_of, 0.0)
    reach = WaitingGpus(known, 1.0)
    gpu = Subject(SubjectKind.GPU, "GPU-3")
    assert [reach.gpus(s) for s in (gpu, node, spare, told_of)] == [64, 64, 1, 16]
    assert reach.gpus(Subject(SubjectKind.NODE, "never seen")) == 0


def test_ranks_are_counted_while_they_step_and_no_longer() -> None:
    """Series of a detector of runs are those with a step within the last hour, whatever others do meanwhile."""
    stated = StatedRate(1000.0, RateBasis.STATISTICAL, "test", series=SubjectKind.RANK)
    budget = Budget(BudgetSettings(), {"runs": stated})

    def step(rank: int, at_s: float) -> Tick:
        subject = Subject(SubjectKind.RANK, f"ml/a#{rank}")
        one = np.ones(1, dtype=np.int64)
        return Tick(at_s, steps=(StepSeries(subject, "run", one, np.array([at_s]), {}, "log"),))

    for rank in range(5):
        budget.weigh([], step(rank, 1e9 + rank), Inventory())
    assert budget.lines()[0].series == 5
    for number in range(100):
        budget.weigh([], step(0, 1e9 + 7 + 61 * number), Inventory())
    assert budget.lines()[0].series == 1
    assert budget.lines()[0].share == pytest.approx(1.0)


def test_a_restart_goes_on_with_what_was_said_and_spent() -> None:
    """After a restore an open episode is not counted again, and the realised rate goes on."""
    stated, job = {"a": replace(MEASURED, own=True)}, in_a_job(1e9)

    def later(elapsed_s: float) -> tuple[list[Finding], Tick, Inventory]:
        found = replace(alarm("a", "GPU-1", 1e9 + elapsed_s, 1e9, since_s=1e9), facts={"lost_share": 1.0})
        return [found], gpu_tick(1e9 + elapsed_s, 10), job

    budget = Budget(BudgetSettings(), stated)
    for number in range(100):
        budget.weigh(*later(60.0 * number))
    resumed = Budget(BudgetSettings(), stated)
    resumed.restore(budget.snapshot())
    (found,) = resumed.weigh(*later(6000.0))
    resumed.refute([found.episode])
    (line,) = resumed.lines()
    assert (line.alarms, line.paged, line.false) == (1, 1, 1)
    assert line.series_days == pytest.approx(10 * 6000 / DAY_S)
    assert line.realised == pytest.approx(1000.0 / line.series_days)
    for broken in (b"", b"{}", b"[]", b'{"version": 99}', budget.snapshot()[:-9]):
        with pytest.raises(SnapshotError):
            Budget(BudgetSettings(), {"a": MEASURED}).restore(broken)


def test_the_state_of_the_previous_version_goes_on() -> None:
    """Version 2 took unanswered alarms for false: days, counts and open pages go on, and none counts as false."""
    first = alarm("a", "GPU-1", 1e9, 3.0)
    history = [500.0, 3.0, [[2.0, 1e9], [3.0, 1e9], [4.0, 1e9]], {}]
    old = {
        "version": 2,
        "accounts": {"a": [500.0, 7, 2, 5, 1, history], "gone": [1.0, 1, 0, 0, 0, [1.0, 0.0, [], {}]]},
        "left": [1.0, 0.2],
        "open": {first.episode: 2, "other": 0},
        "spent": {first.episode: ["a", 2, 1e9]},
        "paged": [["a/anomaly", "gpu:GPU-1", 1e9]],
        "at_s": 1e9,
    }
    budget = Budget(BudgetSettings(), {"a": CLAIMED})
    budget.restore(json.dumps(old).encode())
    (told,) = budget.weigh([first], gpu_tick(1e9 + 5.0, 10), Inventory())
    (line,) = budget.lines()
    assert told.pages
    assert (line.alarms, line.tickets, line.paged, line.confirmed, line.false) == (7, 2, 5, 1, 0)
    assert budget.left == pytest.approx(1.0, abs=1e-4)
    assert budget._accounts["a"].history.stronger(1.0, 1e9) == 0.0
    assert line.series_days == pytest.approx(500.0, abs=0.01)


@pytest.mark.parametrize("shape", [0.0, 0.25, 0.5])
def test_a_tail_tells_rates_beyond_its_data(shape: float) -> None:
    """Fitted on 400 scores of a known law, the rate of a once-in-5,000 score is right within a factor of 2.5 in the
    median of nine draws."""
    beyond, off = 5000.0, []
    true_score = 2.0 + (math.log(beyond) if shape == 0 else (beyond**shape - 1.0) / shape)
    for seed in range(9):
        drawn = np.random.default_rng(seed).uniform(size=400)
        scores = 2.0 + (-np.log(drawn) if shape == 0 else (drawn**-shape - 1.0) / shape)
        tail = fit(scores, 400.0, 2.0, "drawn")
        off.append(tail.rate(true_score) / (1000.0 / beyond))
    assert 0.4 < float(np.median(off)) < 2.5
    assert tail.rate(tail.score(0.2)) == pytest.approx(0.2)
    assert tail.measured_to == pytest.approx(40.0)
    assert fit(np.zeros(0), 10.0, 1.0, "none").rate(1.0) == pytest.approx(100.0)
    with pytest.raises(ValueError, match="series-days"):
        fit(scores, 0.0, 1.0, "none")


@pytest.mark.parametrize(
    ("detector", "pod", "own", "weeks", "proof"),
    [
        ("memory_leak", "ml/chat-0", False, 0.0, None),  # measured on serving pods
        ("memory_leak", "", False, 0.0, Proof.UNMEASURED),
        ("memory_leak", "", True, 0.0, Proof.RARE),  # calibrated
        ("memory_leak", "", False, 1.1, Proof.RARE),  # watched for a week here
        ("throttle", "ml/chat-0", False, 0.0, Proof.UNMEASURED),
    ],
)
def test_an_alarm_off_the_population_of_its_rate_is_a_ticket_until_this_fleet_is_measured(
    detector: str, pod: str, own: bool, weeks: float, proof: Proof | None
) -> None:
    """A ticket's reason names the population; what the hardware says of itself is sure, whatever the population."""
    budget = Budget(BudgetSettings(), {detector: replace(CLAIMED, own=own)})
    frames, at_s = gpu_tick(0.0, 4).frames, 1e9
    for _ in range(int(weeks * 7 * 24) + 1):
        at_s += HOUR_S
        budget.weigh([], Tick(at_s, frames), Inventory())
    known = Inventory()
    for number in range(16):  # in a pod all of them wait for one; in a node only that one does
        held = Subject(SubjectKind.POD, pod) if pod else Subject(SubjectKind.NODE, "n1")
        known.observe(Subject(SubjectKind.GPU, f"GPU-{number}"), held, 0.0)
    alarms = [alarm(detector, "GPU-1", at_s, 5.0), alarm(detector, "GPU-2", at_s, CERTAIN)]
    alarms = [replace(f, facts={"lost_share": 1.0}) for f in alarms]
    alarms[1] = replace(alarms[1], severity=Severity.CRITICAL)
    weak, sure = budget.weigh(alarms, Tick(at_s, frames), known)
    assert proof_of(weak) is proof
    assert ("a ticket, no page: its false-alarm rate" in words(weak)) is (proof is Proof.UNMEASURED)
    assert ("a ticket, no page: waiting costs 1 GPU-hours" in words(weak)) is (proof is Proof.RARE)
    assert sure.pages
    assert "lane" not in sure.facts
    assert widest([weak]) is (Lane.PAGE if proof is None else Lane.TICKET)
    assert widest([weak, sure]) is Lane.PAGE
    cleared = budget.weigh([replace(weak, state=State.CLEAR)], Tick(at_s, frames), known)
    assert proof_of(cleared[0]) is proof


def test_the_shipped_rates_by_population_are_those_of_the_committed_results() -> None:
    """A result that changes changes what may page."""
    shipped = json.loads(SHIPPED.read_text(encoding="utf-8"))
    made = json.loads(json.dumps(populations()))
    assert shipped == made, "run `python -m benchmarks.populations` and `python docs/generate.py`"


@pytest.mark.parametrize(
    ("unit", "exposure", "alarms", "high", "measured", "holds"),
    [
        (Unit.DAYS, 1000.0, 10, 0.02, True, True),
        (Unit.DAYS, 1000.0, 11, 0.02, True, False),  # above twice the stated rate
        (Unit.DAYS, 299.0, 0, 0.01, False, False),  # none says nothing of so few days
        (Unit.RUNS, 47.0, 0, 0.06, True, True),
        (Unit.RUNS, 10.0, 0, 0.26, False, False),
        (Unit.RUNS, 10.0, 3, 0.61, True, False),
    ],
)
def test_a_rate_holds_on_telemetry_that_can_tell_it_from_twice_as_much(
    unit: Unit, exposure: float, alarms: int, high: float, measured: bool, holds: bool
) -> None:
    rate = PopulationRate("x", Population.TRAINING, "t", unit, exposure, alarms, 0.0, high, 5.0, ())
    assert (rate.measured, rate.holds) == (measured, holds)
