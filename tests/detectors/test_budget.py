"""The false-alarm budget holds per week and fleet, and silences nothing strong, nothing unmeasured and no event."""

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
from nightshift.detectors.alarms.budget import DAY_S, TICKET, Budget, BudgetSettings, is_ticket, words
from nightshift.detectors.alarms.populations import Population, PopulationRate, Unit
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


class Life:
    """A fleet that lives hour by hour under one budget; pages are counted as a rota counts them."""

    def __init__(self, stated: dict[str, StatedRate], gpus: int = 100, **settings: float) -> None:
        self.budget = Budget(BudgetSettings(**settings), stated)
        self.frames, self.at_s, self.made = gpu_tick(0.0, gpus).frames, 1e9, 0

    def hour(self, alarms: list[tuple[str, float, Severity]]) -> list[Finding]:
        """One hour in which these alarms come, each on a GPU of its own; those that page."""
        self.at_s += HOUR_S
        found = []
        for detector, score, severity in alarms:
            self.made += 1
            found.append(replace(alarm(detector, f"GPU-a{self.made}", self.at_s, score), severity=severity))
        told = self.budget.weigh(found, Tick(self.at_s, self.frames), Inventory())
        cleared = [replace(f, state=State.CLEAR) for f in found]
        self.budget.weigh(cleared, Tick(self.at_s, self.frames), Inventory())
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
    """Whatever the law of the scores and the rate, and however wrong the shipped tail: 16 weeks, nobody clicks."""
    rng, weeks = np.random.default_rng(seed), 16
    stated = {"a": MEASURED if measured else CLAIMED, "b": CLAIMED}
    life, pages, drains = Life(stated), 0, 0
    for _ in range(168 * weeks):
        came = [
            (name, noise) for name, noise in (("a", one), ("b", other)) for _ in range(rng.poisson(weekly / 168))
        ]
        severe = rng.uniform(size=len(came)) < 0.5
        paged = life.hour(
            [
                (name, float(NOISES[noise](rng, 1)[0]), Severity.CRITICAL if bad else Severity.WARNING)
                for (name, noise), bad in zip(came, severe.tolist(), strict=True)
            ]
        )
        pages += len(paged)
        drains += sum(f.severity is Severity.CRITICAL for f in paged)
    assert pages <= 3.0 + weeks <= 2.0 * weeks
    assert drains <= 1.0 + 0.1 * weeks <= 2.0 * 0.1 * weeks
    lines = life.budget.lines()
    assert sum(line.paged for line in lines) == pages
    assert all(line.realised == pytest.approx(1000.0 * line.paged / line.series_days) for line in lines)


def test_a_quiet_detector_is_not_silenced_by_a_noisy_one() -> None:
    """One detector alarms a hundred times a week; of the other's rare alarms most page all the same."""
    rng, heard, came = np.random.default_rng(5), 0, 0
    life = Life({"noisy": CLAIMED, "quiet": CLAIMED})
    for hour in range(168 * 40):
        found = [("noisy", 1.0 + float(rng.pareto(1.0)), Severity.WARNING) for _ in range(rng.poisson(100 / 168))]
        if hour % (168 * 3) == 84:
            found.append(("quiet", 2.0 + hour / 1e4, Severity.WARNING))
        paged = life.hour(found)
        heard += sum(f.detector == "quiet" for f in paged)
        came += sum(name == "quiet" for name, _, _ in found)
    assert came == 14
    assert heard >= 10


def test_true_alarms_that_somebody_acts_on_cost_nothing_and_keep_paging() -> None:
    """Ten faults a week for eight weeks, each acted on within the hour: all page, and the purse is full."""
    life, paged = Life({"a": CLAIMED}), 0
    for hour in range(168 * 8):
        told = life.hour([("a", 2.0, Severity.WARNING)] if hour % 16 == 0 else [])
        life.budget.confirm([f.episode for f in told])
        paged += len(told)
    (line,) = life.budget.lines()
    assert paged == line.alarms == line.confirmed == 84
    assert (line.realised, life.budget.left) == (0.0, 3.0)


def test_years_without_an_alarm_are_evidence_that_a_tail_of_others_is_too_cautious_here() -> None:
    """An alarm that the shipped tail prices over the share pages once this fleet has been quiet for long enough."""
    weak = TAIL.score(20.0)
    fresh, old = Life({"a": MEASURED}), Life({"a": MEASURED})
    assert fresh.hour([("a", weak, Severity.WARNING)]) == []
    for _ in range(168 * 20):
        old.hour([])
    assert len(old.hour([("a", weak, Severity.WARNING)])) == 1


def test_a_merged_or_flapping_alarm_cannot_page_for_ever_on_one_page() -> None:
    """An alarm that returns every 50 minutes pays again: what merges does not prolong what it merged with."""
    budget, frames, pages = Budget(BudgetSettings(), {"a": CLAIMED}), gpu_tick(0.0, 10).frames, 0
    for number in range(600):
        at_s = 1e9 + 3000.0 * number
        for state, later_s in ((State.FIRING, 0.0), (State.CLEAR, 60.0)):
            found = alarm("a", "GPU-1", at_s + later_s, 3.0, state, since_s=at_s)
            (told,) = budget.weigh([found], Tick(at_s + later_s, frames), Inventory())
            pages += told.pages and state is State.FIRING
    assert pages <= 2 * (3 + 3)


def test_a_strong_alarm_pages_while_the_purse_has_a_page_and_waits_told_while_it_has_none() -> None:
    """Weak alarms of a measured tail spend nothing; the fourth strong one at once waits, and says why."""
    life = Life({"a": MEASURED}, gpus=1000)
    assert life.hour([("a", 1.2, Severity.WARNING)] * 50) == []
    strong = [("a", 1e9 + n, Severity.WARNING) for n in range(4)]
    assert len(life.hour(strong)) == 3
    assert life.budget.left == pytest.approx(0.0, abs=0.02)
    held = alarm("a", "GPU-held", life.at_s, 1e12)
    (told,) = life.budget.weigh([held], Tick(life.at_s, life.frames), Inventory())
    assert not told.pages
    assert "used up" in life.budget.why(told.episode)
    assert "no stated false-alarm rate yet" in words(told)
    for _ in range(170):
        life.hour([])
    (told,) = life.budget.weigh([replace(held, at=Instant(life.at_s))], Tick(life.at_s, life.frames), Inventory())
    assert told.pages
    assert life.budget.why(told.episode) == ""


def test_an_event_and_what_is_certain_are_never_withheld() -> None:
    """A thousand at once: all page, none pays, and each event says what it is expected to cost."""
    budget = Budget(BudgetSettings(false_pages_per_week=0.01), {"claim": CLAIMED, "event": EVENT})
    found = [alarm(name, f"GPU-{n}", 1e9, CERTAIN) for n in range(500) for name in ("claim", "event")]
    told = budget.weigh(found, gpu_tick(1e9, 100), Inventory())
    assert all(f.pages for f in told)
    assert {round(f.budget_cost, 6) for f in told} == {0.0, 0.07}
    assert budget.left == 3.0
    assert "expected per week" in words(told[1])


def test_a_weak_alarm_is_held_until_it_is_strong_and_then_pages_once() -> None:
    """Withheld is not lost: the same episode pages when its score rises, and counts as one alarm."""
    budget = Budget(BudgetSettings(), {"a": MEASURED})
    at_s = 1e9
    pages, waiting = [], []
    for number, score in enumerate((1.1, 1.2, 500.0, 1.1)):
        (told,) = budget.weigh(
            [alarm("a", "GPU-1", at_s + 5 * number, score, since_s=at_s)],
            gpu_tick(at_s + 5 * number, 1000),
            Inventory(),
        )
        pages.append(told.pages)
        waiting.append([finding.score for finding, why in budget.waiting() if why])
    assert pages == [False, False, True, True]
    assert waiting == [[1.1], [1.2], [], []]
    (line,) = budget.lines()
    assert (line.alarms, line.withheld) == (1, 0)


def test_only_what_can_drain_a_node_is_held_to_the_tenth() -> None:
    """Of equal strength, a critical alarm of hardware is withheld where one of a job pages."""
    told = {}
    for fault in (Fault.ANOMALY, Fault.GPU_MEMORY_LEAK):
        budget = Budget(BudgetSettings(), {"a": MEASURED})
        share = TAIL.score(0.5 * 1000.0 / (100 * 7))
        found = replace(alarm("a", "GPU-1", 1e9, share), fault=fault, severity=Severity.CRITICAL)
        (weighed,) = budget.weigh([found], gpu_tick(1e9, 100), Inventory())
        told[fault] = weighed.pages
    assert told == {Fault.ANOMALY: False, Fault.GPU_MEMORY_LEAK: True}


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
    budget = Budget(BudgetSettings(), {"a": MEASURED})
    for number in range(100):
        budget.weigh(
            [alarm("a", "GPU-1", 1e9 + 60 * number, 1e9, since_s=1e9)], gpu_tick(1e9 + 60 * number, 10), Inventory()
        )
    resumed = Budget(BudgetSettings(), {"a": MEASURED})
    resumed.restore(budget.snapshot())
    resumed.weigh([alarm("a", "GPU-1", 1e9 + 6000, 1e9, since_s=1e9)], gpu_tick(1e9 + 6000, 10), Inventory())
    (line,) = resumed.lines()
    assert line.alarms == 1
    assert line.series_days == pytest.approx(10 * 6000 / DAY_S)
    assert line.realised == pytest.approx(1000.0 / line.series_days)
    for broken in (b"", b"{}", b"[]", b'{"version": 99}', budget.snapshot()[:-9]):
        with pytest.raises(SnapshotError):
            Budget(BudgetSettings(), {"a": MEASURED}).restore(broken)


def test_the_state_of_the_previous_version_goes_on() -> None:
    """Version 1 had a bucket per detector: days, alarms and open episodes go on; one page is left, not a burst."""
    first = alarm("a", "GPU-1", 1e9, 3.0)
    old = {
        "version": 1,
        "accounts": {"a": [500.0, 7, 2, None], "gone": [1.0, 1, 0, 2.0]},
        "open": {first.episode: True, "other": False},
        "paged": [["a/anomaly", "gpu:GPU-1", 1e9]],
        "at_s": 1e9,
    }
    budget = Budget(BudgetSettings(), {"a": CLAIMED})
    budget.restore(json.dumps(old).encode())
    (told,) = budget.weigh([first], gpu_tick(1e9 + 5.0, 10), Inventory())
    (line,) = budget.lines()
    assert told.pages
    assert (line.alarms, line.withheld, line.paged, budget.left) == (7, 2, 0, pytest.approx(1.0, abs=1e-4))
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


def _pod_of(gpu: Subject, pod: str) -> Inventory:
    known = Inventory()
    known.observe(gpu, Subject(SubjectKind.POD, pod), 0.0)
    return known


@pytest.mark.parametrize(
    ("detector", "pod", "own", "weeks", "lane"),
    [
        ("memory_leak", "ml/chat-0", False, 0.0, None),  # measured on serving pods
        ("memory_leak", "", False, 0.0, TICKET),
        ("memory_leak", "", True, 0.0, None),  # calibrated
        ("memory_leak", "", False, 1.1, None),  # watched for a week here
        ("throttle", "ml/chat-0", False, 0.0, TICKET),
    ],
)
def test_an_alarm_off_the_population_of_its_rate_is_a_ticket_until_this_fleet_is_measured(
    detector: str, pod: str, own: bool, weeks: float, lane: str | None
) -> None:
    """A ticket still opens its incident; what the hardware says of itself is none, whatever the population."""
    budget = Budget(BudgetSettings(), {detector: replace(CLAIMED, own=own)})
    frames, at_s = gpu_tick(0.0, 4).frames, 1e9
    for _ in range(int(weeks * 7 * 24) + 1):
        at_s += HOUR_S
        budget.weigh([], Tick(at_s, frames), Inventory())
    gpu = Subject(SubjectKind.GPU, "GPU-1")
    known = _pod_of(gpu, pod) if pod else Inventory()
    alarms = [alarm(detector, "GPU-1", at_s, 5.0), alarm(detector, "GPU-2", at_s, CERTAIN)]
    weak, sure = budget.weigh(alarms, Tick(at_s, frames), known)
    assert weak.facts.get("lane") == lane
    assert ("a ticket, no page" in words(weak)) is (lane is not None)
    assert sure.pages
    assert "lane" not in sure.facts
    assert is_ticket([weak]) is (lane is not None)
    assert not is_ticket([weak, sure])
    cleared = budget.weigh([replace(weak, state=State.CLEAR, facts={})], Tick(at_s, frames), known)
    assert cleared[0].facts.get("lane") == lane


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
