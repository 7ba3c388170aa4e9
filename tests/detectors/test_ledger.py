"""The ledger: alarms by rank of their strength, fading with time, and pages that are counted whatever they cost."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.detectors.alarms.history import DAY_S, JUDGED_S, KEPT, MEMORY_S, AlarmHistory, Purse, spend

SCORES = st.lists(st.floats(1.0, 1e6), max_size=30)


def told(scores: list[float], series: int = 10) -> AlarmHistory:
    """One alarm a day of these scores, each a day later of age."""
    history = AlarmHistory()
    for number, score in enumerate(scores):
        history.heard(f"e{number}", score, number * DAY_S)
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


def test_an_alarm_counts_as_false_once_a_day_went_by_and_not_if_it_was_confirmed_before() -> None:
    """Young alarms count for nothing; what is confirmed in time never does; half a year later less is left."""
    history = AlarmHistory()
    history.heard("true", 5.0, 0.0)
    history.heard("false", 4.0, 0.0)
    history.heard("false", 9.0, 60.0)
    history.heard("false", 2.0, 120.0)
    assert history.stronger(1.0, 60.0) == 0.0
    history.confirmed("true")
    history.watch(1.0, 60.0, JUDGED_S + 1.0)
    assert history.stronger(8.0, JUDGED_S) == pytest.approx(1.0)
    assert history.stronger(9.5, JUDGED_S) == 0.0
    history.watch(1.0, MEMORY_S, MEMORY_S)
    assert history.stronger(8.0, MEMORY_S) == pytest.approx(math.exp(-1.0), rel=0.02)


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
    history.heard("young", 3.0, at_s)
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
def test_no_more_is_spent_than_was_there_and_came_in(moments: list[tuple[float, bool]], weekly: float) -> None:
    """Of two purses that are spent together neither is overdrawn, and all of it is bounded by pace and start."""
    one, other, spent, days = Purse(weekly, 3.0, 3.0), Purse(weekly / 10, 1.0, 1.0), 0, 0.0
    for waited_days, both in moments:
        for purse in (one, other):
            purse.fill(waited_days * DAY_S)
        days += waited_days
        before = (one.left, other.left)
        if spend([one, other] if both else [one]):
            spent += 1
        else:
            assert (one.left, other.left) == before
        assert min(one.left, other.left) >= -1e-6
    assert spent <= 3.0 + weekly * days / 7.0 + 1e-6
