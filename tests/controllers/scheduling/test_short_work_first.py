"""A peer: short predicted work first, but no job is passed over beyond its patience."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.controllers.lab.scheduling import shapes, trace
from nightshift.controllers.lab.scheduling.simulate import SchedulingWorld, Simulation
from nightshift.controllers.scheduling import policies
from nightshift.controllers.scheduling.predict import KEEP, Durations, Present
from nightshift.controllers.scheduling.state import QueueState, Start

ADA = ("ada", "train", 8)


@pytest.mark.full
@given(st.sampled_from(shapes.NAMES), st.integers(0, 10_000), st.floats(0.5, 1.5))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_where_all_are_due_it_is_plain_backfill_job_by_job(name: str, seed: int, load: float) -> None:
    jobs = trace.at_load(shapes.drawn(name, 120, seed), 64, load)
    plain = Simulation(jobs, SchedulingWorld(), seed).run(policies.backfill)
    ours = Simulation(jobs, SchedulingWorld(), seed).run(policies.ShortWorkFirst(patience=0.0))
    np.testing.assert_allclose(ours.wait_s, plain.wait_s, rtol=0, atol=1e-3)


class _Watched:
    """Holds every start of the order against what it owes to who is due."""

    def __init__(self) -> None:
        self.order, self.passed = policies.ShortWorkFirst(), 0

    def __call__(self, state: QueueState) -> None:
        due = self.order.due(state)
        queue = self.order.order(state)
        assert queue[: len(due)] == sorted(due)
        rest = queue[len(due) :]
        self.passed += rest != sorted(rest)
        assert all(state.waited_s(job) < policies.PATIENCE * state.long_wait_s() for job in rest)
        first, widths = (queue[0] if due else None), state.width.copy()
        free = state.cluster.free().sum(1)
        begin = state.begin

        def watch(start: Start) -> None:
            # who is due first and fits starts, whoever else is shorter
            if first is not None and widths[first] <= state.cluster.shape.per_node and free.max() >= widths[first]:
                assert first == start.job or first not in state.queue
            begin(start)

        state.begin = watch
        self.order(state)
        state.begin = begin


@given(st.sampled_from(shapes.NAMES), st.integers(0, 10_000), st.floats(0.9, 1.5))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_who_is_due_comes_first_as_it_was_submitted(name: str, seed: int, load: float) -> None:
    jobs = trace.at_load(shapes.drawn(name, 120, seed), 64, load)
    Simulation(jobs, SchedulingWorld(), seed).run(_Watched())


def test_short_work_goes_before_long_work_that_has_not_waited_long() -> None:
    jobs = trace.at_load(shapes.drawn("pai", 200, 1), 64, 1.2)
    watched = _Watched()
    Simulation(jobs, SchedulingWorld(), 1).run(watched)
    assert watched.passed > 0


def waiting(*submitted_s: float, waits_s: list[float]) -> QueueState:
    jobs = [
        trace.TraceJob(str(n), at_s, 1, 60.0, shapes.load_of("vision", np.random.default_rng(0)), user=f"u{n}")
        for n, at_s in enumerate(submitted_s)
    ]
    state = Simulation(jobs, SchedulingWorld()).state
    state.queue, state.now_s, state.waits_s = list(range(len(jobs))), 1000.0, deque(waits_s)
    return state


def test_patience_is_half_of_what_one_in_a_hundred_has_waited() -> None:
    order = policies.ShortWorkFirst()
    assert order.due(waiting(0.0, 990.0, waits_s=[2100.0] * 300)) == set()
    assert order.due(waiting(0.0, 990.0, waits_s=[1900.0] * 300)) == {0}
    assert order.due(waiting(0.0, 990.0, waits_s=[])) == {0}


def test_peoples_priority_comes_before_the_order_and_before_who_is_due() -> None:
    state = waiting(0.0, 990.0, 995.0, waits_s=[])
    state.priority = [0, 0, 5]
    assert policies.ShortWorkFirst().order(state)[0] == 2


def test_a_burst_is_told_by_those_of_it_that_ended_and_by_those_that_still_run() -> None:
    durations = Durations()
    for at_s in range(20):
        durations.learn(*ADA[:1], ADA[2], float(at_s), 3600.0, ADA[1])
    (unknown,) = durations.alike(ADA, [Present(1e6)])
    assert 1800.0 < unknown < 7200.0
    for at_s in (1e6, 1e6 + 2):
        durations.learn(*ADA[:1], ADA[2], at_s, 60.0, ADA[1])
    (short,) = durations.alike(ADA, [Present(1e6 + 1)])
    assert short < unknown / 4
    long, *_ = durations.alike(ADA, [Present(2e6), Present(2e6 + 1, 1e6), Present(2e6 + 2, 1e6)])
    assert long > 4 * short


@given(
    st.lists(st.tuples(st.floats(0, 1e7), st.floats(0.1, 1e6)), max_size=KEEP + 20),
    st.lists(st.tuples(st.floats(0, 1e7), st.just(math.nan) | st.floats(0, 1e6)), min_size=1, max_size=30),
)
@settings(max_examples=40, deadline=None)
def test_every_expected_length_is_finite_and_in_the_order_asked(
    ended: list[tuple[float, float]], present: list[tuple[float, float]]
) -> None:
    durations = Durations()
    for submit_s, lasted_s in ended:
        durations.learn("ada", 8, submit_s, lasted_s, "train")
    found = durations.alike(ADA, [Present(*one) for one in present])
    assert len(found) == len(present)
    assert all(math.isfinite(lasts_s) and lasts_s > 0 for lasts_s in found)


def test_a_liar_gains_nothing_once_the_others_are_due() -> None:
    """Jobs under a name that is known to be short go first, until who waits is due; then as they came."""
    state = waiting(0.0, 100.0, 990.0, waits_s=[1700.0] * 200)
    state.durations.learn("u2", 1, 0.0, 5.0)
    assert policies.ShortWorkFirst().order(state) == [0, 1, 2]
    state.waits_s = deque([5000.0] * 200)
    assert policies.ShortWorkFirst().order(state)[0] == 2
