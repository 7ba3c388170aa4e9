"""A job's steps as stretches and pauses: order, repeats, restarts of ours and rewinds of the job."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.agent.goodput.steps import StepPoint, StepStretch, StepTrack


def regular(first: int, count: int, start_s: float = 0.0, step_s: float = 10.0, run: str = "a") -> list[StepPoint]:
    return [StepPoint(start_s + step_s * (n + 1), first + n, run) for n in range(count)]


def taken(points: list[StepPoint]) -> StepTrack:
    track = StepTrack()
    track.take("rank", points)
    return track


def seconds(stretches: list[StepStretch], again: bool) -> float:
    return sum(s.length_s for s in stretches if s.again is again)


@given(st.permutations(range(40)), st.integers(1, 7))
def test_the_order_in_which_points_come_does_not_matter(order: list[int], batch: int) -> None:
    points = regular(1, 40)
    track = StepTrack()
    for start in range(0, 40, batch):
        track.take("rank", [points[n] for n in order[start : start + batch]])
    assert track.timeline() == taken(points).timeline()


@given(st.lists(st.integers(0, 59), max_size=8), st.integers(0, 60))
def test_a_restart_of_ours_changes_nothing(lost: list[int], cut: int) -> None:
    """Folded, stored as JSON and loaded half-way, with points lost between: steps count, not lines."""
    points = [p for n, p in enumerate(regular(1, 60)) if n < 12 or n == 59 or n not in lost]
    whole = taken(points)
    part = taken(points[:cut])
    part.fold(math.inf)
    part = StepTrack.load(json.loads(json.dumps(part.saved())))
    part.take("rank", points[cut:])
    stretches, pauses = part.timeline()
    assert seconds(stretches, False) == pytest.approx(600.0)
    assert pauses == []
    assert seconds(whole.timeline()[0], False) == pytest.approx(600.0)


@given(
    st.lists(st.tuples(st.floats(0.1, 100.0), st.integers(-30, 30), st.booleans()), min_size=1, max_size=60),
)
def test_no_moment_is_in_two_places(steps: list[tuple[float, int, bool]]) -> None:
    """Whatever a job prints (rewinds, jumps, new runs), stretches and pauses follow each other."""
    t_s, step, run, points = 0.0, 100, 0, []
    for took_s, ahead, other in steps:
        t_s, step, run = t_s + took_s, max(0, step + ahead), run + other
        points.append(StepPoint(t_s, step, str(run)))
    stretches, pauses = taken(points).timeline()
    spans = sorted([(s.start_s, s.end_s) for s in stretches] + [(p.start_s, p.end_s) for p in pauses])
    for (_, end_s), (start_s, _) in itertools.pairwise(spans):
        assert start_s >= end_s - 1e-9


def test_steps_computed_again_end_at_the_highest_step() -> None:
    points = regular(1, 100) + regular(81, 60, 1300.0, run="b")
    stretches, pauses = taken(points).timeline()
    assert seconds(stretches, True) == pytest.approx(200.0)
    assert seconds(stretches, False) == pytest.approx(1000.0 + 400.0)
    assert [(p.start_s, p.end_s, p.restart, p.back) for p in pauses] == [(1000.0, 1300.0, True, True)]


def test_a_log_that_counts_anew_in_each_epoch_computes_nothing_again() -> None:
    stretches, _ = taken(regular(1, 50) + regular(1, 50, 500.0)).timeline()
    assert seconds(stretches, True) == 0.0


def test_a_crash_before_the_first_checkpoint_computes_everything_again() -> None:
    stretches, _ = taken(regular(1, 50) + regular(1, 80, 800.0, run="b")).timeline()
    assert seconds(stretches, True) == pytest.approx(500.0)


def test_the_same_name_a_day_later_is_another_training() -> None:
    stretches, _ = taken(regular(1, 50) + regular(1, 80, 90_000.0, run="b")).timeline()
    assert seconds(stretches, True) == 0.0


def test_slow_steps_are_no_pauses() -> None:
    points = regular(1, 50) + regular(51, 50, 500.0, step_s=16.0)
    stretches, pauses = taken(points).timeline()
    assert pauses == []
    assert seconds(stretches, False) == pytest.approx(1300.0)


def test_a_checkpoint_is_a_pause_beside_a_saved_step() -> None:
    points = [*regular(1, 20), StepPoint(235.0, 21, "a", saved=True), *regular(22, 5, 235.0)]
    _, (pause,) = taken(points).timeline()
    assert (pause.start_s, pause.end_s, pause.saved) == (200.0, 225.0, True)


def test_another_rank_leads_once_the_first_is_silent() -> None:
    track = StepTrack()
    track.take("0", regular(1, 20))
    assert track.take("1", regular(1, 20)) == 0
    assert track.take("1", regular(28, 10, 270.0)) == 10
    assert seconds(track.timeline()[0], False) == pytest.approx(370.0)


def test_a_point_older_than_what_is_folded_is_counted_and_dropped() -> None:
    track = taken(regular(1, 20))
    track.fold(150.0)
    track.take("rank", [StepPoint(33.0, 3, "a")])
    assert track.late == 1


def test_measured_parts_that_overlap_leave_communication_the_rest() -> None:
    point = StepPoint(20.0, 2, "a", 10.0, compute_s=9.0, data_s=0.5, comm_s=4.0)
    (_, stretch), _ = taken([StepPoint(10.0, 1, "a", 10.0), point]).timeline()
    assert (stretch.compute_s, stretch.data_s, stretch.comm_s) == (9.0, 0.5, 0.5)
