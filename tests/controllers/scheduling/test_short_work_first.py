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
from nightshift.controllers.scheduling.cluster import I8, Cluster
from nightshift.controllers.scheduling.predict import KEEP, Durations, Present
from nightshift.controllers.scheduling.state import QueueState

ADA = ("ada", "train", 8)
LOAD = shapes.load_of("vision", np.random.default_rng(0))


def beside(jobs: list[TraceJob], seed: int = 0) -> Simulation:
    simulation = Simulation(jobs, SchedulingWorld(), seed)
    simulation.twin = simulation.state.twin = QuickTwin(simulation.state)
    return simulation


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


def test_the_quick_twin_learns_each_job_once_though_it_ends_some_by_prediction() -> None:
    jobs = trace.at_load(shapes.drawn("philly", 150, 2), 64, 1.5)
    simulation, predicted = beside(jobs, 2), set[int]()
    twin, order = simulation.twin, WithinTail(from_pressure=0.0)
    assert isinstance(twin, QuickTwin)

    def watched(state: QueueState) -> None:
        order(state)
        predicted.update(twin._unlearned)

    simulation.run(watched)
    twin._advance(math.inf)
    assert predicted
    assert not twin._unlearned
    assert set(twin.started_s) == set(range(len(jobs)))
    assert twin._state.durations.ended == len(jobs)


def one(number: int, submit_s: float, gpus: int, duration_s: float, user: str) -> TraceJob:
    return TraceJob(str(number), submit_s, gpus, duration_s, LOAD, user)


class _Told:
    """A twin that says what the test needs."""

    pressure, waiting, started_s, gpus = 10.0, 0, dict[int, float](), dict[int, I8]()

    def __init__(self, longest_wait_s: float) -> None:
        self.longest_wait_s = longest_wait_s

    def late(self) -> list[int]:
        return []

    def is_like(self, cluster: Cluster) -> bool:
        return False


def waiting(longest_wait_s: float) -> QueueState:
    """A long job on the first node for 1,000 s; a gang of all nodes, a short and a long job wait."""
    jobs = [
        one(0, 0.0, 8, 4000.0, "long"),
        one(1, 0.0, 64, 100.0, "gang"),
        one(2, 10.0, 8, 60.0, "short"),
        one(3, 5.0, 8, 4000.0, "long"),
    ]
    state = Simulation(jobs, SchedulingWorld()).state
    for user, lasts_s in (("long", 4000.0), ("short", 60.0)) * 40:
        state.durations.learn(user, 8, -1e6, lasts_s)
    state.cluster.put(0, np.arange(8))
    state.queue, state.now_s, state.twin = [1, 3, 2], 1000.0, _Told(longest_wait_s)
    state.done_s[0] = 1000.0
    return state


def test_held_nodes_admit_only_who_is_gone_in_time() -> None:
    """... by the upper quantile; before the gang is due nothing is held, and the least work goes first."""
    state, order, begun = waiting(1001.0), WithinTail(), list[int]()
    state.begin = lambda start: begun.append(start.job)
    order(state)
    assert begun == [2]
    assert order.held is not None
    assert order.held[0] == 1
    assert order.held[1].all()

    state, order, begun = waiting(5000.0), WithinTail(), list[int]()
    state.begin = lambda start: begun.append(start.job)
    order(state)
    assert begun == [2, 3]
    assert order.held is None


def test_a_gang_that_is_due_gets_its_nodes_though_short_jobs_never_cease() -> None:
    """Plain backfill puts jobs before the gang that outlast their prediction; firm nodes do not admit them."""
    gap_s = 40.0
    narrow = [one(n, n * gap_s, 8, 300.0, "ada") for n in range(300)]
    jobs = sorted([*narrow, one(999, 2000.0, 64, 60.0, "gang")], key=lambda job: job.submit_s)
    at = [job.user for job in jobs].index("gang")

    def without_bound(jobs: list[TraceJob]) -> SimulationResult:
        def order(state: QueueState) -> None:
            lasts_s = state.expected_s()
            for job in sorted(state.queue, key=lambda job: lasts_s[job] * float(state.width[job])):
                gpus = state.cluster.alone(int(state.width[job]))
                if gpus is not None:
                    state.start(job, gpus, "least work")

        return Simulation(jobs, SchedulingWorld()).run(order)

    plain = Simulation(jobs, SchedulingWorld()).run(policies.backfill)
    ours = beside(jobs).run(WithinTail(from_pressure=0.0))
    assert without_bound(jobs).wait_s[at] > 3.0 * plain.wait_s.max()
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
