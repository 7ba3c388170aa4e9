"""Scores and their intervals against brute force: what is undefined is NaN, and nothing is point-adjusted."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, poisson

from nightshift.detectors.contract.evaluate import (
    SECONDS_PER_DAY,
    AlarmAt,
    Evaluation,
    Event,
    exact_interval,
    garwood,
    score,
)

SERIES = ("a", "b", "c")
stretches = st.tuples(st.sampled_from(SERIES), st.integers(0, 60), st.integers(0, 25))
moments = st.tuples(st.sampled_from(SERIES), st.integers(0, 90))


@given(st.integers(0, 60), st.integers(0, 60), st.sampled_from((0.8, 0.95, 0.99)))
@settings(deadline=None)
def test_the_interval_of_a_proportion_is_clopper_and_pearsons(found: int, more: int, level: float) -> None:
    """scipy finds the same by root search of the binomial's tails."""
    of = found + more
    low, high = exact_interval(found, of, level)
    if of == 0:
        assert math.isnan(low)
        assert math.isnan(high)
        return
    known = binomtest(found, of).proportion_ci(level, "exact")
    assert (low, high) == pytest.approx((known.low, known.high), abs=1e-9)
    assert low <= found / of <= high


@given(st.integers(0, 200), st.floats(1e-3, 1e5), st.sampled_from((0.8, 0.95, 0.99)))
@settings(deadline=None)
def test_the_interval_of_a_rate_holds_exactly_its_tails(count: int, exposure: float, level: float) -> None:
    """At the lower limit so many or more come by half of the rest's chance, at the upper one so few or fewer."""
    low, high = garwood(count, exposure, level)
    tail = (1.0 - level) / 2.0
    assert low <= count / exposure <= high
    assert poisson.cdf(count, high * exposure) == pytest.approx(tail, rel=1e-6)
    if count:
        assert poisson.sf(count - 1, low * exposure) == pytest.approx(tail, rel=1e-6)
    else:
        assert low == 0.0


@given(st.lists(stretches, max_size=8), st.lists(moments, max_size=12))
@settings(deadline=None, max_examples=200)
def test_a_score_is_what_counting_second_by_second_gives(
    ills: list[tuple[str, int, int]], told: list[tuple[str, int]]
) -> None:
    """Overlapping, repeated and empty events; alarms at their very edges, twice, and in several at once."""
    events = [Event(name, float(start), float(start + length)) for name, start, length in ills]
    alarms = [AlarmAt(name, float(at)) for name, at in told]
    watched_s = {"a": 100.0, "b": 100.0, "c": 40.0}
    got = score(events, alarms, watched_s)
    first = [
        min((at for name, at in told if name == e.series and e.start_s <= at <= e.end_s), default=None)
        for e in events
    ]
    delays = [at - e.start_s for at, e in zip(first, events, strict=True) if at is not None]
    false = sum(not any(n == e.series and e.start_s <= at <= e.end_s for e in events) for n, at in told)
    ill = {n: {s for e in events if e.series == n for s in range(int(e.start_s), int(e.end_s))} for n in SERIES}
    healthy_s = sum(max(seconds - len(ill[name]), 0.0) for name, seconds in watched_s.items())
    assert (got.events, got.found, got.false_alarms) == (len(events), len(delays), false)
    assert got.healthy_days == pytest.approx(healthy_s / SECONDS_PER_DAY)
    _same(got.recall, len(delays) / len(events) if events else math.nan)
    _same(got.delay_median_s, float(np.median(delays)) if delays else math.nan)
    _same(got.delay_p90_s, float(np.quantile(delays, 0.9)) if delays else math.nan)
    _same(got.false_rate, 1000.0 * false / got.healthy_days if healthy_s else math.nan)


def _same(one: float, other: float) -> None:
    assert one == pytest.approx(other, nan_ok=True)


@given(st.floats(0.0, 1e5), st.integers(0, 40), st.floats(0.0, 1e5))
@settings(deadline=None)
def test_held_is_said_only_where_the_days_can_tell(stated: float, false: int, days: float) -> None:
    """Sixteen expected alarms tell a rate from its double; fewer say "extrapolated" unless it is surely broken."""
    got = score([], [AlarmAt("a", float(n)) for n in range(false)], {"a": days * SECONDS_PER_DAY})
    said = got.held(stated)
    if stated <= 0 or got.healthy_days <= 0:
        assert said == "not measurable"
    elif got.false_interval[0] > 2.0 * stated:
        assert said == "broken"
    elif stated * got.healthy_days < 16_000.0 * (1 - 1e-9):
        assert said == "extrapolated"
    elif stated * got.healthy_days > 16_000.0 * (1 + 1e-9):
        assert said == ("held" if got.false_rate <= 2.0 * stated else "broken")


def test_an_event_that_nobody_watched_is_missed() -> None:
    """What is not observed is no health: the event counts, and its time takes none of the healthy days."""
    got = score([Event("b", 0.0, 10.0)], [], {"a": SECONDS_PER_DAY})
    assert (got.events, got.found, got.recall, got.healthy_days) == (1, 0, 0.0, 1.0)


def test_firing_all_the_time_earns_no_point_adjusted_credit() -> None:
    """A score has no F1; a detector that fires at random within long events still pays for each alarm outside."""
    assert not any("f1" in field.name.lower() for field in dataclasses.fields(Evaluation))
    events = [Event("a", 1000.0, 2000.0)]
    got = score(events, [AlarmAt("a", float(at)) for at in range(0, 3000, 50)], {"a": 3000.0})
    assert (got.found, got.false_alarms) == (1, 39)
    assert got.delay_median_s == 0.0


@pytest.mark.parametrize(
    "made",
    [
        lambda: Event("a", 2.0, 1.0),
        lambda: Event("a", math.nan, 1.0),
        lambda: Event("a", 0.0, math.inf),
        lambda: AlarmAt("a", math.nan),
        lambda: exact_interval(3, 2),
        lambda: garwood(-1, 1.0),
        lambda: score([], [AlarmAt("b", 1.0)], {"a": 1.0}),
    ],
)
def test_what_cannot_be_scored_is_refused(made) -> None:  # type: ignore[no-untyped-def]
    """A stretch that ends before it begins, a time that is none, a series without days to be rare in."""
    with pytest.raises(ValueError):
        made()
