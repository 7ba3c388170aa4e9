"""The false-alarm budget holds per week and fleet, and silences nothing strong, nothing unmeasured and no event."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.frame import Frame, Instant, SeriesIndex, StepSeries
from collectors.subject import Inventory, Subject, SubjectKind
from collectors.tick import Tick
from detectors.base import Fault, Finding, RateBasis, Severity, SnapshotError, State, StatedRate
from detectors.calibrate import DAY_S, Budget, BudgetSettings, words
from detectors.tail import Tail, fit

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


def test_a_fleet_that_lives_for_years_gets_no_more_false_pages_than_the_budget_allows() -> None:
    """Alarms drawn from the detector's own tail: pages per week stay under the budget's double, on any fleet."""
    rng = np.random.default_rng(3)
    for gpus in (16, 1000):
        budget = Budget(BudgetSettings(false_pages_per_week=1.0), {"a": MEASURED, "b": MEASURED})
        pages, weeks = 0, 60
        for day in range(7 * weeks):
            at_s = 1e9 + day * DAY_S
            found = []
            for name in ("a", "b"):
                for number in range(rng.poisson(0.1 * gpus)):
                    score = TAIL.score(100.0 * float(rng.uniform()))
                    found.append(alarm(name, f"GPU-{number}-{day}", at_s, score))
            told = budget.weigh(found, gpu_tick(at_s, gpus), Inventory())
            assert [f.episode for f in told] == [f.episode for f in found]
            pages += sum(f.pages for f in told)
        assert 0.3 * weeks < pages < 1.5 * weeks, gpus
        assert sum(budget.shares().values()) == pytest.approx(1.0)


@given(st.lists(st.floats(1.0, 1e6), max_size=40), st.integers(1, 100_000))
@settings(max_examples=60, deadline=None)
def test_a_strong_alarm_always_pages_whatever_came_before(scores: list[float], gpus: int) -> None:
    """Weak alarms in any number cannot spend what a strong one needs."""
    budget = Budget(BudgetSettings(), {"a": MEASURED})
    tick = Tick(1e9, gpu_tick(1e9, min(gpus, 50)).frames)
    budget.weigh([alarm("a", f"GPU-w{n}", 1e9, s) for n, s in enumerate(scores)], tick, Inventory())
    (told,) = budget.weigh([alarm("a", "GPU-strong", 1e9, 1e30)], tick, Inventory())
    assert told.pages


def test_what_is_not_measured_and_what_is_an_event_is_never_withheld() -> None:
    """A thousand at once: all page, and each says what it is expected to cost."""
    budget = Budget(BudgetSettings(false_pages_per_week=0.01), {"claim": CLAIMED, "event": EVENT})
    found = [alarm(name, f"GPU-{n}", 1e9, 1.0) for n in range(500) for name in ("claim", "event")]
    told = budget.weigh(found, gpu_tick(1e9, 100), Inventory())
    assert all(f.pages for f in told)
    assert {round(f.budget_cost, 6) for f in told} == {0.7, 0.07}
    assert "expected per week" in words(told[0])


def test_a_weak_alarm_is_held_until_it_is_strong_and_then_pages_once() -> None:
    """Withheld is not lost: the same episode pages when its score rises, and counts as one alarm."""
    budget = Budget(BudgetSettings(), {"a": MEASURED})
    at_s = 1e9
    pages = []
    for number, score in enumerate((1.1, 1.2, 500.0, 1.1)):
        (told,) = budget.weigh(
            [alarm("a", "GPU-1", at_s + 5 * number, score, since_s=at_s)],
            gpu_tick(at_s + 5 * number, 1000),
            Inventory(),
        )
        pages.append(told.pages)
    assert pages == [False, False, True, True]
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
    assert budget.lines()[0].expected == pytest.approx(7.0)


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
