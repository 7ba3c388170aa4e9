"""What steering owes to plain backfill: without guests it is the same, and guests cost nobody more than is said."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.controllers.lab.scheduling import shapes, trace
from nightshift.controllers.lab.scheduling.simulate import SchedulingWorld, Simulation, SimulationResult
from nightshift.controllers.lab.scheduling.trace import TraceJob
from nightshift.controllers.scheduling import policies
from nightshift.controllers.scheduling.predict import KEEP, Durations, Lesson
from nightshift.controllers.scheduling.state import RUNS_ON, QueueState, Start

LOADS = (0.5, 0.9, 1.2)
CASES = [(name, seed, load) for name in shapes.NAMES for seed in (21, 22) for load in LOADS]


def jobs_of(name: str, count: int, seed: int, load: float) -> list[TraceJob]:
    return trace.at_load(shapes.drawn(name, count, seed), 64, load)


@given(st.sampled_from(shapes.NAMES), st.integers(0, 10_000), st.floats(0.5, 1.5))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_without_guests_every_job_starts_and_ends_when_plain_backfill_says(
    name: str, seed: int, load: float
) -> None:
    jobs = jobs_of(name, 120, seed, load)
    plain = Simulation(jobs, SchedulingWorld(), seed).run(policies.backfill)
    ours = Simulation(jobs, SchedulingWorld(), seed, twin=True).run(policies.Steering(share=False))
    np.testing.assert_allclose(ours.wait_s, plain.wait_s, rtol=0, atol=1e-3)
    np.testing.assert_allclose(ours.jct_s, plain.jct_s, rtol=0, atol=1e-3)


@pytest.mark.parametrize("seed", [12, *(pytest.param(s, marks=pytest.mark.full) for s in (15, 19))])
def test_nobody_starts_by_a_second_look_at_a_cluster_that_backfill_has_looked_at(seed: int) -> None:
    """Met on drawn traces: jobs that backfill had put in moved the first one's reservation, and asked again after
    them we started others, early; waits grew to 1.5 times backfill's without one guest."""
    jobs = jobs_of("pai", 500, seed, 0.9)
    plain = Simulation(jobs, SchedulingWorld(), seed).run(policies.backfill)
    ours = Simulation(jobs, SchedulingWorld(), seed, twin=True).run(policies.Steering(share=False))
    np.testing.assert_allclose(ours.wait_s, plain.wait_s, rtol=0, atol=1e-3)


@given(st.sampled_from(shapes.NAMES), st.integers(0, 10_000))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_the_twin_beside_us_is_plain_backfill_for_as_long_as_nobody_shares(name: str, seed: int) -> None:
    jobs = jobs_of(name, 100, seed, 1.0)
    plain = Simulation(jobs, SchedulingWorld(), seed)
    plain.run(policies.backfill)
    ours = Simulation(jobs, SchedulingWorld(), seed, twin=True)
    ours.run(policies.Steering(share=False))
    assert ours.state.twin is not None
    started_s = [ours.state.twin.started_s[job] for job in range(len(jobs))]
    np.testing.assert_allclose(started_s, plain.first_start_s, rtol=0, atol=1e-3)


@given(st.sampled_from(shapes.NAMES), st.integers(0, 10_000), st.sampled_from((0.0, 1.0)))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_once_all_has_ended_the_twin_is_plain_backfill_however_much_guests_slowed_anybody_here(
    name: str, seed: int, harsher: float
) -> None:
    jobs = jobs_of(name, 100, seed, 1.2)
    plain, ours = (
        Simulation(jobs, SchedulingWorld(), seed),
        Simulation(jobs, SchedulingWorld(harsher=harsher), seed, twin=True),
    )
    plain.run(policies.backfill)
    ours.run(policies.backfill_sharing)
    assert ours.state.twin is not None
    ours.state.twin._advance(1e12)
    started_s = [ours.state.twin.started_s[job] for job in range(len(jobs))]
    np.testing.assert_allclose(started_s, plain.first_start_s, rtol=0, atol=1e-3)


class _Watched(policies.Steering):
    """Notes of every guest what its hosts could spare and what it was expected to cost them."""

    def __init__(self, seen: list[tuple[float, float]]) -> None:
        super().__init__(from_pressure=0.0)
        self._seen = seen

    def __call__(self, state: QueueState) -> None:
        begin, late = state.begin, set(state.twin.late() if state.twin is not None else [])

        def noted(start: Start) -> None:
            if start.shared and start.job not in late:
                model, loads, known, kinds = state.known.model, state.loads, state.known, state.kinds
                for host in state.cluster.neighbours(start.job):
                    mine, theirs = int(kinds[start.job]), int(kinds[host])
                    up = float(model.slowdown(loads[host], loads[start.job], known.shift(theirs, mine, upper=True)))
                    own = float(
                        model.slowdown(loads[start.job], loads[host], known.shift(mine, theirs, upper=True))
                    )
                    stay_s = own * state.guess_s(start.job, state.care.certain)
                    self._seen.append(
                        (state.spare_s(host) - stay_s * (1.0 - 1.0 / up), state.left_s(host) * up - stay_s)
                    )
            begin(start)

        state.begin = noted
        try:
            super().__call__(state)
        finally:
            state.begin = begin


@pytest.mark.parametrize("name", shapes.NAMES)
def test_a_guest_is_expected_to_leave_before_its_hosts_and_to_cost_them_no_more_than_they_can_spare(
    name: str,
) -> None:
    seen: list[tuple[float, float]] = []
    Simulation(jobs_of(name, 200, 5, 1.2), SchedulingWorld(), 5, twin=True).run(_Watched(seen))
    assert seen
    assert min(spare for spare, _ in seen) >= -1e-6
    assert min(left for _, left in seen) >= -1e-6


def test_a_late_job_shares_only_where_that_is_expected_to_cost_less_than_waiting() -> None:
    simulation = Simulation(jobs_of("pai", 200, 3, 1.2), SchedulingWorld(), 3, twin=True)
    seen: list[float] = []
    for state in simulation.steps():
        policies.Steering(from_pressure=0.0)(state)
        for job in state.queue[:3]:
            seat = state.seat(job, late=True)
            if seat is not None:
                waits_s = state.reservation(job, state.gpu_ends_s())[0] - state.now_s
                seen.append(waits_s - (seat.own - 1.0) * state.guess_s(job, RUNS_ON))
    assert seen
    assert min(seen) >= 0.0


@pytest.mark.full
def test_nobody_becomes_a_guest_while_a_late_job_finds_no_place() -> None:
    simulation = Simulation(jobs_of("ours", 300, 4, 1.5), SchedulingWorld(harsher=1.0), 4, twin=True)
    state, policy, guests, behind = simulation.state, policies.Steering(from_pressure=0.0, bold_pressure=2.0), 0, 0
    begin = state.begin

    def noted(start: Start) -> None:
        nonlocal guests
        late = set(state.twin.late()) if state.twin is not None else set()
        if start.shared and "late" not in start.why:
            guests += 1
            assert not late & set(state.queue)
        begin(start)

    state.begin = noted
    for _ in simulation.steps():
        policy(state)
        behind += bool(state.twin is not None and state.twin.late())
    assert guests > 5
    assert behind > 10


@pytest.mark.full
def test_no_bold_guest_sits_where_the_first_of_the_queue_needs_whole_nodes() -> None:
    simulation = Simulation(jobs_of("ours", 300, 4, 1.5), SchedulingWorld(), 4, twin=True)
    policy, bold = policies.Steering(from_pressure=0.0), 0
    for state in simulation.steps():
        policy(state)
        per_node = state.cluster.shape.per_node
        if not state.queue or state.width[state.queue[0]] <= per_node:
            continue
        nodes = state.reservation(state.queue[0], state.gpu_ends_s())[1]
        for job in state.queue[1:9]:
            state.care = policies.CAREFULLY
            if state.seat(job) is None:
                state.care = policies.BOLDLY
                seat = state.seat(job)
                if seat is not None:
                    bold += 1
                    assert not nodes[seat.gpus // per_node].any()
    assert bold > 10


@cache
def both(name: str, seed: int, load: float) -> tuple[SimulationResult, SimulationResult]:
    jobs = jobs_of(name, 150, seed, load)
    plain = Simulation(jobs, SchedulingWorld(), seed).run(policies.backfill)
    return plain, Simulation(jobs, SchedulingWorld(), seed, twin=True).run(policies.Steering())


@pytest.mark.full
def test_on_fixed_traces_ours_is_no_worse_than_backfill_in_the_mean_of_each_figure() -> None:
    for figure in ("mean_jct_s", "p99_jct_s", "p99_wait_s", "longest_wait_s"):
        pairs = [(plain.figures()[figure], ours.figures()[figure]) for plain, ours in (both(*c) for c in CASES)]
        ratios = [(ours + 60.0) / (plain + 60.0) for plain, ours in pairs]
        assert np.mean(ratios) <= 1.01, (figure, ratios)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(1.0, 1e6)), min_size=KEEP, max_size=KEEP + 20))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_a_lesson_that_is_taken_back_leaves_predictions_as_they_were(lessons: list[tuple[str, float]]) -> None:
    durations, told, learned = Durations(), list[float](), list[Lesson]()
    for user, duration_s in lessons:
        told.append(durations.quantile(user, 1, 0.0, 0.5))
        learned.append(durations.learn(user, 1, 0.0, duration_s))
    for (user, _), before, lesson in zip(lessons[::-1], told[::-1], learned[::-1], strict=True):
        durations.take_back(lesson)
        assert durations.quantile(user, 1, 0.0, 0.5) == before
    assert durations.ended == 0
