"""What a budget rests on: false alarms by rank of their strength, fading with time, and a balance of pages."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.detectors.alarms.history import DAY_S, KEPT, MEMORY_S, OPEN_S, AlarmHistory, Balance

SCORES = st.lists(st.floats(1.0, 1e6), max_size=30)


def told(scores: list[float], series: int = 10) -> AlarmHistory:
    """One false alarm a day of these scores."""
    history = AlarmHistory()
    for number, score in enumerate(scores):
        history.alarm(f"e{number}", score, number * DAY_S)
        history.found_false(f"e{number}")
        history.watch(series, DAY_S, number * DAY_S)
    history.watch(series, DAY_S, (len(scores) + 2) * DAY_S)
    return history


@given(SCORES, st.floats(1.0, 1e6), st.floats(1.0, 1e6), st.floats(0.1, 1e4))
@settings(max_examples=100, deadline=None)
def test_a_stronger_alarm_never_costs_more_and_none_costs_nothing(
    scores: list[float], one: float, other: float, prior_days: float
) -> None:
    """Costs fall with strength, stay above zero, and count what was seen at least so strong."""
    history, at_s = told(scores), (len(scores) + 2) * DAY_S
    weak, strong = sorted((one, other))
    assert 0.0 < history.rate(strong, prior_days, at_s) <= history.rate(weak, prior_days, at_s)
    seen = sum(score >= strong for score in scores)
    assert history.stronger(strong, at_s) <= seen + 1e-9
    assert history.stronger(strong, at_s) >= seen * math.exp(-at_s / MEMORY_S) - 1e-9


def test_only_an_alarm_that_was_found_false_counts_once_by_its_strongest_moment() -> None:
    """What nothing has judged counts for nothing and is forgotten; half a year later less is left."""
    history = AlarmHistory()
    for episode, score, at_s in (("true", 5.0, 0.0), ("open", 7.0, 0.0), ("false", 4.0, 0.0), ("false", 9.0, 60.0)):
        history.alarm(episode, score, at_s)
    history.alarm("false", 2.0, 120.0)
    assert history.stronger(1.0, 120.0) == 0.0
    history.found_true("true")
    for episode in ("false", "false", "true", "unknown"):
        history.found_false(episode)
    assert (history.stronger(8.0, 120.0), history.stronger(9.5, 120.0)) == (1.0, 0.0)
    history.watch(1.0, OPEN_S, OPEN_S)
    history.found_false("open")
    history.watch(1.0, MEMORY_S - OPEN_S, MEMORY_S)
    assert history.stronger(6.0, MEMORY_S) == pytest.approx(math.exp(-1.0))


def test_only_the_strongest_are_kept_and_the_others_still_count() -> None:
    """Memory is bounded; an alarm weaker than all that is kept counts all."""
    history = told([float(n) for n in range(1, 4 * KEPT)])
    assert len(history.ripe) <= 2 * KEPT
    assert history.ripe[-1][0] == 4.0 * KEPT - 1.0
    assert history.stronger(0.5, 0.0) == history.weight > 100


@given(SCORES)
@settings(max_examples=50, deadline=None)
def test_a_saved_history_goes_on_alike(scores: list[float]) -> None:
    """Through JSON and back, every cost is the same."""
    history, at_s = told(scores), (len(scores) + 2) * DAY_S
    history.alarm("young", 3.0, at_s)
    back = AlarmHistory.load(json.loads(json.dumps(history.saved())))
    for one in (history, back):
        one.watch(5.0, DAY_S, at_s + 2 * DAY_S)
    assert back.saved() == history.saved()
    assert back.rate(2.0, 1.0, at_s) == history.rate(2.0, 1.0, at_s)
    for broken in (None, {}, [], [1.0, 2.0, [[1.0]], {}], [math.nan, 0.0, [], {}], ["x", 0.0, [], {}]):
        with pytest.raises((TypeError, ValueError)):
            AlarmHistory.load(broken)


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.booleans()), max_size=200), st.floats(0.01, 20.0))
@settings(max_examples=100, deadline=None)
def test_no_more_is_taken_than_was_there_and_came_in(moments: list[tuple[float, bool]], weekly: float) -> None:
    """Pages that are taken from a balance of at least one are bounded by pace and start; none is owed."""
    balance, pages, days = Balance(3.0), 0, 0.0
    for waited_days, taken in moments:
        balance.fill(weekly, 3.0, waited_days * DAY_S)
        days += waited_days
        if taken:
            pages += balance.left >= 1.0
            balance.take()
        assert 0.0 <= balance.left <= 3.0
    assert pages <= 3.0 + weekly * days / 7.0 + 1e-6
