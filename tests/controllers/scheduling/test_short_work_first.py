"""A peer: short predicted work first, but within the longest wait of plain backfill."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.controllers.lab.scheduling import shapes, trace
from nightshift.controllers.lab.scheduling.simulate import SchedulingWorld, Simulation, SimulationResult
from nightshift.controllers.lab.scheduling.trace import TraceJob
from nightshift.controllers.lab.scheduling.twin import QuickTwin
from nightshift.controllers.lab.scheduling.within_tail import WithinTail
from nightshift.controllers.scheduling import policies
from nightshift.controllers.scheduling.predict import KEEP, Durations, Present
from nightshift.controllers.scheduling.state import QueueState

ADA = ("ada", "train", 8)
LOAD = shapes.load_of("vision", np.random.default_rng(0))


def beside(jobs: list[TraceJob], seed: int = 0) -> Simulation:
    simulation = Simulation(jobs, SchedulingWorld(), seed)
    simulation.twin = simulation.state.twin = QuickTwin(simulation.state)
    return simulation


def busy(seed: int, load: float = 1.5) -> list[TraceJob]:
    """Wide gangs among many narrow jobs, more than the cluster has room for."""
    return trace.at_load(shapes.drawn("philly", 150, seed), 64, load)


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("name", shapes.NAMES)
def test_below_its_pressure_it_is_plain_backfill_job_by_job(name: str, seed: int) -> None:
    """... and the quick twin is the exact one as long as the order keeps to its starts."""
    jobs = trace.at_load(shapes.drawn(name, 120, seed), 64, 1.2)
    plain = Simulation(jobs, SchedulingWorld(), seed).run(policies.backfill)
    simulation = beside(jobs, seed)
    ours = simulation.run(WithinTail(from_pressure=math.inf))
    np.testing.assert_allclose(ours.wait_s, plain.wait_s, rtol=0, atol=1e-3)
    assert simulation.twin is not None
    assert simulation.twin.longest_wait_s == pytest.approx(float(plain.wait_s.max()), abs=1e-3)


class _Watched:
    """Holds every decision against what the order owes to who is due."""

    def __init__(self) -> None:
        self.order, self.passed, self.firm = WithinTail(from_pressure=0.0), 0, 0

    def __call__(self, state: QueueState) -> None:
        assert state.twin is not None
        due, queue, held = self.order.due(state), list(state.queue), self.order.held
        assert due == sorted(due)
        assert all(state.waited_s(job) < 0.92 * state.twin.longest_wait_s for job in set(queue) - set(due))
        self.order(state)
        started = [job for job in queue if job not in state.queue]
        self.passed += any(other not in started and other < job for job in started for other in queue)
        if held is not None and self.order.held is not None and held[0] == self.order.held[0]:
            # who came onto the held nodes is sure to be gone in time, by its upper quantile
            self.firm += 1
            assert held[0] in state.queue
            nodes = self.order.held[1]
            late = [
                job
                for job in started
                if nodes[state.cluster.held[job] // state.cluster.shape.per_node].any() and job in due
            ]
            assert all(state.width[job] <= state.cluster.shape.gpus for job in late)


def test_short_work_passes_and_the_due_hold_firm_nodes() -> None:
    jobs = busy(2)
    watched = _Watched()
    beside(jobs, 2).run(watched)
    assert watched.passed > 0
    assert watched.firm > 0


def one(number: int, submit_s: float, gpus: int, duration_s: float, user: str) -> TraceJob:
    return TraceJob(str(number), submit_s, gpus, duration_s, LOAD, user)


def test_a_gang_that_is_due_gets_its_nodes_though_short_jobs_never_cease() -> None:
    """Plain backfill puts jobs before the gang that outlast their prediction; firm nodes do not admit them."""
    gap_s = 40.0
    narrow = [one(n, n * gap_s, 8, 300.0, "ada") for n in range(300)]
    jobs = sorted([*narrow, one(999, 2000.0, 64, 60.0, "gang")], key=lambda job: job.submit_s)
    at = [job.user for job in jobs].index("gang")

    def never(jobs: list[TraceJob]) -> SimulationResult:
        def order(state: QueueState) -> None:
            lasts_s = state.expected_s()
            for job in sorted(state.queue, key=lambda job: lasts_s[job] * float(state.width[job])):
                gpus = state.cluster.alone(int(state.width[job]))
                if gpus is not None:
                    state.start(job, gpus, "least work")

        return Simulation(jobs, SchedulingWorld()).run(order)

    plain = Simulation(jobs, SchedulingWorld()).run(policies.backfill)
    ours = beside(jobs).run(WithinTail(from_pressure=0.0))
    assert never(jobs).wait_s[at] > 3.0 * plain.wait_s.max()
    assert ours.wait_s[at] < 1.5 * plain.wait_s.max()


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
