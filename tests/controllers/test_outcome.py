"""What came of a decision: telemetry that is late, double, out of order or missing never settles one wrongly."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.controllers.outcome import Joiner, JoinSettings, ReceiptOutcome, Sample, Stretch, shares_lost

WINDOW_S = 30.0


def stretch(number: int, job: str = "j", at_s: float | None = None) -> Stretch:
    return Stretch(f"{job}/{number}", job, job, number * WINDOW_S if at_s is None else at_s)


def sample(number: int, job: str = "j", reward: float | None = None, slowdown: float = 1.0) -> Sample:
    return Sample(
        job, number * WINDOW_S, (number + 1) * WINDOW_S, float(number) if reward is None else reward, slowdown
    )


def by_id(found: list[ReceiptOutcome]) -> dict[str, ReceiptOutcome]:
    assert len({outcome.id for outcome in found}) == len(found), "an outcome was told twice"
    return {outcome.id: outcome for outcome in found}


def test_a_window_that_was_seen_whole_settles_its_decision_as_soon_as_the_next_one_is_made() -> None:
    joiner = Joiner()
    joiner.decided(stretch(0))
    joiner.saw(sample(0, reward=0.25, slowdown=1.02))
    joiner.decided(stretch(1))
    assert joiner.settle(WINDOW_S) == [ReceiptOutcome("j/0", 0.25, 1.02)]
    assert [open_.id for open_ in joiner.open_receipts()] == ["j/1"]


@settings(deadline=None, derandomize=True)
@given(st.permutations(list(range(8))), st.lists(st.integers(0, 7), max_size=8))
def test_late_double_and_reordered_telemetry_gives_the_same_outcomes(order: list[int], again: list[int]) -> None:
    joiner = Joiner()
    for number in range(9):
        joiner.decided(stretch(number))
    for number in (*order, *again):
        joiner.saw(sample(number))
    found = by_id(joiner.settle(8 * WINDOW_S + 1.0))
    assert {name: outcome.reward for name, outcome in found.items()} == {f"j/{n}": float(n) for n in range(8)}


@settings(deadline=None, derandomize=True)
@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_missing_or_unknown_telemetry_is_void_after_the_grace_and_never_a_guess(
    missing: set[int], unknown: set[int]
) -> None:
    joiner = Joiner()
    for number in range(11):
        joiner.decided(stretch(number))
        if number < 10 and number not in missing:
            joiner.saw(sample(number, reward=math.nan if number in unknown else 1.0))
    early = by_id(joiner.settle(10 * WINDOW_S))
    late = by_id(joiner.settle(10 * WINDOW_S + JoinSettings().grace_s))
    assert not early.keys() & late.keys()
    for number in range(10):
        outcome = (early | late)[f"j/{number}"]
        good = number not in missing and number not in unknown
        assert (outcome.void == "") is good
        assert math.isfinite(outcome.reward) is good


def test_what_straddles_two_decisions_counts_for_neither() -> None:
    joiner = Joiner()
    joiner.decided(stretch(0))
    joiner.decided(stretch(1))
    joiner.saw(Sample("j", 15.0, 45.0, 1.0, 1.0))
    assert "0 s of 30 s" in joiner.settle(500.0)[0].void


def test_a_job_that_died_settles_on_what_was_seen_of_it_or_not_at_all() -> None:
    for seen_s, settled in ((20.0, True), (5.0, False)):
        joiner = Joiner()
        joiner.decided(stretch(0))
        joiner.saw(Sample("j", 0.0, seen_s, 0.5, 1.0))
        joiner.ended("j", 22.0)
        found = by_id(joiner.settle(200.0))["j/0"]
        assert (found.void == "") is settled
        assert settled or "the job ended" in found.void


def test_a_clock_that_steps_back_voids_what_was_open_and_one_that_leaps_ahead_settles_nothing_by_it() -> None:
    joiner = Joiner()
    joiner.decided(stretch(0, at_s=1000.0))
    joiner.settle(1000.0)
    assert joiner.settle(400.0) == [ReceiptOutcome("j/0", void="the clock stepped back")]
    joiner.decided(stretch(1, at_s=400.0))
    joiner.decided(stretch(2, at_s=90_000.0))
    joiner.saw(Sample("j", 400.0, 430.0, 1.0, 1.0))
    assert "of 3600 s were seen" in by_id(joiner.settle(90_000.0))["j/1"].void
    joiner.decided(stretch(3, at_s=89_999.0))
    assert by_id(joiner.settle(90_000.0))["j/2"].void == "the clock stepped back"


def test_a_decision_that_nothing_follows_does_not_stay_open_for_ever() -> None:
    joiner = Joiner(JoinSettings(longest_s=60.0))
    joiner.decided(stretch(0))
    joiner.decided(stretch(0))
    assert joiner.settle(59.0) == []
    assert len(joiner.settle(60.0 + 120.0)) == 1
    assert joiner.open_receipts() == []


def test_a_violation_is_kept_though_nothing_else_was_seen() -> None:
    joiner = Joiner()
    joiner.decided(stretch(0))
    joiner.saw(Sample("j", 0.0, 30.0, math.nan, math.nan, violated=True))
    joiner.decided(stretch(1))
    found = by_id(joiner.settle(500.0))["j/0"]
    assert found.violated
    assert found.void


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("decide"), st.integers(0, 3)),
            st.tuples(st.just("see"), st.integers(-3, 1)),
            st.tuples(st.just("pass"), st.integers(-40, 400)),
            st.tuples(st.just("end"), st.integers(0, 3)),
        ),
        max_size=60,
    )
)
def test_whatever_happens_every_decision_gets_one_outcome_and_nothing_is_kept(steps: list[tuple[str, int]]) -> None:
    """Of four jobs, under any order of decisions, samples, ends and clock steps."""
    joiner, now_s, made, found = Joiner(), 0.0, 0, list[ReceiptOutcome]()
    for what, number in steps:
        job = f"j{abs(number) % 4}"
        if what == "decide":
            joiner.decided(Stretch(str(made), job, job, now_s))
            made += 1
        elif what == "see":
            joiner.saw(Sample(job, now_s + number * 10.0, now_s + number * 10.0 + 10.0, 1.0, 1.0))
        elif what == "end":
            joiner.ended(job, now_s)
        else:
            now_s += number
            found += joiner.settle(now_s)
    found += joiner.settle(now_s + 10_000.0)
    found += joiner.settle(now_s + 20_000.0)
    assert sorted(by_id(found)) == sorted(map(str, range(made)))
    assert joiner.open_receipts() == []
    assert not joiner._seen


@pytest.mark.parametrize(("rows", "shares"), [([], (0.0, 0.0)), ([(True, True), (True, False)], (0.5, 0.0))])
def test_lost_outcomes_are_told_by_arm(rows: list[tuple[bool, bool]], shares: tuple[float, float]) -> None:
    assert shares_lost(rows) == shares
