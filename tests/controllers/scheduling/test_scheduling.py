"""The scheduling simulator, its policies and what they may know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.base import Permanent
from nightshift.controllers.lab.scheduling import shapes, trace
from nightshift.controllers.lab.scheduling.bound import least_mean_jct_s
from nightshift.controllers.lab.scheduling.preemptive import Preemptive, least_attained
from nightshift.controllers.lab.scheduling.simulate import Faults, Ramp, SchedulingWorld, Simulation
from nightshift.controllers.lab.scheduling.trace import TraceJob
from nightshift.controllers.scheduling import policies
from nightshift.controllers.scheduling.cluster import Cluster, ClusterShape, SharingRules
from nightshift.controllers.scheduling.interference import (
    KINDS,
    MEASURED,
    QUANTILE,
    Experience,
    columns,
    fit,
    load_of,
)
from nightshift.controllers.scheduling.predict import Durations
from nightshift.controllers.scheduling.state import QueueState

RECORDING = Path(__file__).parents[2] / "recordings" / "h200_interference.csv"
JOBS = trace.at_load(trace.draw(150, 3), 64, 1.0)
NOBODY_KNOWS = np.full(200, -1)
STEADY = {
    "fifo": policies.fifo,
    "backfill": policies.backfill,
    "shortest": policies.shortest,
    "steering": policies.Steering(),
}


def test_the_interference_model_is_the_fit_of_the_recording() -> None:
    assert fit(RECORDING) == MEASURED
    assert QUANTILE == 0.9


def test_a_slowdown_that_is_not_known_is_infinite_and_never_fits() -> None:
    random = np.random.default_rng(0)
    known = columns([load_of("vision", random)])[0]
    unknown = np.full(6, np.nan)
    assert np.isinf(MEASURED.slowdown(known, unknown))
    assert not MEASURED.fits_memory(known, unknown)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 3, 4, 8, 11, 16]), st.booleans()), max_size=60)
)
@settings(max_examples=60, deadline=None)
def test_gangs_sit_whole_two_a_gpu_at_most_small_ones_in_one_node_and_never_on_closed_gpus(
    turns: list[tuple[int, int, bool]],
) -> None:
    cluster = Cluster(ClusterShape(4, 4, 2))
    cluster.close(np.asarray([5, 11]))
    random = np.random.default_rng(1)
    loads = columns([load_of(str(random.choice(["language", "simulation", "vision"])), random) for _ in range(61)])
    width: dict[int, int] = {}
    for job, gpus, leaves in turns:
        if job in cluster.held:
            if leaves:
                cluster.take(job)
                del width[job]
            continue
        found = cluster.alone(gpus)
        if found is None:
            seat = cluster.shared(job, gpus, loads, NOBODY_KNOWS, Experience(MEASURED), SharingRules())
            found = None if seat is None else seat.gpus
        if found is not None:
            cluster.put(job, found)
            width[job] = gpus
        for sitting, seats in cluster.held.items():
            assert len(seats) == width[sitting] == (cluster.tenants == sitting).sum()
            assert not set(seats.tolist()) & {5, 11}
            if width[sitting] <= 4:
                assert len({seat // 4 for seat in seats.tolist()}) == 1
            assert len(cluster.neighbours(sitting)) <= width[sitting]


@pytest.mark.parametrize("name", sorted(STEADY))
def test_every_job_ends_runs_at_least_its_duration_and_is_never_stopped(name: str) -> None:
    simulation = Simulation(JOBS, SchedulingWorld(), twin=True)
    result = simulation.run(STEADY[name] if name != "steering" else policies.Steering())
    assert np.isfinite(result.jct_s).all()
    assert (result.wait_s >= 0).all()
    assert (result.slowed >= 1 - 1e-9).all()
    assert result.stops == 0
    assert not simulation.state.cluster.held


class _Recorder:
    """Notes every start until a time, and stops there."""

    def __init__(self, policy: policies.Policy, until_s: float) -> None:
        self.policy, self.until_s, self.seen = policy, until_s, list[tuple[float, int, tuple[int, ...]]]()

    def __call__(self, state: QueueState) -> None:
        self.policy(state)
        self.seen += [
            (state.now_s, job, tuple(gpus.tolist())) for job, gpus in state.cluster.held.items()
            if state.now_s < self.until_s
        ]  # fmt: skip


@pytest.mark.parametrize("name", ["backfill", "shortest", "steering"])
def test_no_policy_knows_a_duration_before_its_end(name: str) -> None:
    until_s = JOBS[100].submit_s
    first = Simulation(JOBS, SchedulingWorld(), twin=True)
    recorder = _Recorder(policies.Steering() if name == "steering" else STEADY[name], until_s)
    first.run(recorder)
    other = [
        job if end_s < until_s else replace(job, duration_s=job.duration_s * 7.0)
        for job, end_s in zip(JOBS, first.end_s, strict=True)
    ]
    again = _Recorder(policies.Steering() if name == "steering" else STEADY[name], until_s)
    Simulation(other, SchedulingWorld(), twin=True).run(again)
    assert [s for s in again.seen if s[0] < until_s] == recorder.seen


def test_sharing_pays_with_complementary_jobs_and_is_refused_where_memory_does_not_fit() -> None:
    random = np.random.default_rng(0)
    loads = columns([load_of("language", random), load_of("simulation", random)])
    cluster = Cluster(ClusterShape(1, 8))
    cluster.put(0, np.arange(8))
    assert cluster.shared(1, 8, loads, NOBODY_KNOWS, Experience(MEASURED), SharingRules()) is not None
    loads[1, 5] = 0.9
    assert cluster.shared(1, 8, loads, NOBODY_KNOWS, Experience(MEASURED), SharingRules()) is None


def test_a_job_that_the_baseline_would_have_started_goes_first() -> None:
    quiet = load_of("language", np.random.default_rng(0))
    jobs = [TraceJob("wide", 0.0, 64, 1000.0, quiet), TraceJob("late", 1.0, 64, 10.0, quiet)]
    jobs += [TraceJob(f"small-{k}", 2.0 + k, 1, 10.0, quiet) for k in range(40)]
    simulation = Simulation(jobs, SchedulingWorld(), twin=True)
    result = simulation.run(policies.Steering(share=False))
    plain = Simulation(jobs, SchedulingWorld()).run(policies.backfill)
    assert result.wait_s.max() <= plain.wait_s.max() + 60.0


def test_a_preemptive_order_pays_for_every_stop() -> None:
    world = SchedulingWorld(tick_s=3600.0, restart_s=100.0)
    simulation = Simulation(JOBS, world)
    result = simulation.run(Preemptive(simulation, least_attained))
    assert result.stops > 0
    assert np.isfinite(result.jct_s).all()


def test_a_gpu_that_fails_takes_its_jobs_back_to_their_checkpoint_and_takes_nobody_until_repaired() -> None:
    result = Simulation(JOBS, SchedulingWorld(faults=Faults(500.0)), 1, twin=True).run(policies.Steering())
    assert result.stops > 0
    assert np.isfinite(result.jct_s).all()


def test_what_has_run_long_is_expected_to_run_longer() -> None:
    known = Durations()
    for duration_s in (10.0, 20.0, 50.0, 4000.0, 9000.0) * 4:
        known.learn("ada", 8, 0.0, duration_s)
    guesses = [known.quantile("ada", 8, 0.0, 0.5, age_s) for age_s in (0.0, 30.0, 5000.0, 20000.0)]
    assert guesses == sorted(guesses)
    assert guesses[-1] >= 40000.0 * 0.99


def test_a_trace_offers_the_load_asked_for_and_loses_one_part() -> None:
    jobs = trace.draw(200, 1)
    assert trace.offered_load(trace.at_load(jobs, 64, 0.9), 64) == pytest.approx(0.9)
    left = trace.without_part(jobs, 2, 5)
    assert {job.id for job in jobs} - {job.id for job in left} == {job.id for job in jobs[80:120]}
    assert [job.submit_s for job in left] == sorted(job.submit_s for job in left)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpus,submit_s,duration_s\n8,0,nan\n", "line 2: duration_s is 'nan'"),
        ("gpus,submit_s,duration_s\n0,0,5\n", "line 2: gpus is '0'"),
        ("a,b\n1,2\n", "line 1: neither"),
        ("gpus,submit_s,duration_s,kind\n1,0,5,odd\n", "kind 'odd'"),
        ("gpus,submit_s,duration_s\n", "no jobs"),
    ],
)
def test_a_bad_trace_names_file_line_and_field(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(Permanent, match=r"t\.csv") as error:
        trace.read(path)
    assert said in str(error.value)


def test_the_declared_number_of_iterations_is_never_read(tmp_path: Path) -> None:
    head = "job_id,num_gpu,submit_time,iterations,model_name,duration,iteration_time"
    head += ",resource_time_0,resource_time_1,resource_time_2"
    rows = ["a,8,0,{},bert,60000,100,1,90,20", "b,8,1000,{},dqn,60000,100,90,2,0"]
    read = []
    for count in (1, 10**9):
        path = tmp_path / f"{count}.csv"
        path.write_text("\n".join([head, *(row.format(count) for row in rows)]))
        read.append(trace.read(path))
    assert read[0] == read[1]
    assert read[0][0].load.gpu_duty == pytest.approx(0.9)


def test_what_sharing_was_seen_to_cost_moves_the_model_for_those_kinds_only_and_narrows_it() -> None:
    random = np.random.default_rng(0)
    known, (mine, theirs) = Experience(MEASURED), columns([load_of("language", random), load_of("vision", random)])
    own, other = KINDS.index("language"), KINDS.index("vision")
    before = float(known.shift(own, other, upper=True))
    assert before == pytest.approx(MEASURED.upper, rel=1e-9)
    true = float(MEASURED.slowdown(mine, theirs, -0.3))
    for _ in range(20):
        known.see(own, other, mine, theirs, true)
    assert -0.4 < float(known.shift(own, other, upper=False)) < -0.2
    assert float(known.shift(own, other, upper=True)) < 0.0
    assert float(known.shift(other, own, upper=True)) == before
    known.see(-1, other, mine, theirs, 9.0)
    known.see(own, other, np.full(6, np.nan), theirs, 9.0)
    assert float(known.shift(own, other, upper=False)) < -0.2


def test_sharing_stops_while_more_wait_than_would_without_it() -> None:
    simulation = Simulation(JOBS, SchedulingWorld(), twin=True)
    state, policy = simulation.state, policies.Steering(margin=2.0, from_pressure=0.0)
    assert policy._pays(state)
    state.queue = [0, 1, 2]
    assert not policy._pays(state)
    assert state.twin is not None
    state.twin._state.queue = [0]
    assert policy._pays(state)
    state.cluster.put(5, np.arange(4))
    state.rate[5] = 0.5
    assert not policy._pays(state)


def test_nobody_shares_where_little_is_to_be_won_and_sharing_is_bolder_where_much_is() -> None:
    simulation = Simulation(JOBS, SchedulingWorld(), twin=True)
    state, policy = simulation.state, policies.Steering(from_pressure=3.0, bold_pressure=4.0)
    assert state.twin is not None
    state.done_s[0] = 1000.0
    for waited_s, pays, care in ((2900.0, False, policies.CAREFULLY), (3100.0, True, policies.CAREFULLY),
                                 (4100.0, True, policies.BOLDLY)):  # fmt: skip
        state.twin._waited_s = waited_s
        assert policy._pays(state) == pays
        assert state.care == care


@pytest.mark.parametrize("name", shapes.NAMES)
def test_a_drawn_trace_is_its_seeds_and_has_the_shape_it_says(name: str) -> None:
    jobs = shapes.drawn(name, 1500, 3)
    assert jobs == shapes.drawn(name, 1500, 3)
    assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)
    duration_s, width = np.asarray([job.duration_s for job in jobs]), np.asarray([job.gpus for job in jobs])
    assert duration_s.mean() > 2 * np.median(duration_s)
    assert (width == 1).mean() > 0.2
    area = np.sort(duration_s * width)
    assert area[-len(area) // 10 :].sum() > 0.5 * area.sum()


def test_an_unknown_shape_is_named() -> None:
    with pytest.raises(Permanent, match="shape 'x' is none of philly, helios, pai, ours"):
        shapes.drawn("x", 10, 1)


def test_a_repeated_name_is_predicted_from_its_own_runs() -> None:
    known = Durations()
    for _ in range(30):
        known.learn("ada", 8, 0.0, 100.0, "short")
        known.learn("ada", 8, 0.0, 50000.0, "long")
    assert known.quantile("ada", 8, 1e6, 0.5, name="short") < 200.0
    assert known.quantile("ada", 8, 1e6, 0.5, name="long") > 20000.0


@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.9, 1.5]))
@settings(max_examples=15, deadline=None)
def test_no_policy_beats_the_bound(seed: int, load: float) -> None:
    jobs = trace.at_load(trace.draw(60, seed), 64, load)
    for policy in (policies.backfill, policies.shortest):
        result = Simulation(jobs, SchedulingWorld()).run(policy)
        assert result.jct_s.mean() >= least_mean_jct_s(jobs, 64) * (1 - 1e-9)
    shared = Simulation(jobs, SchedulingWorld(), twin=True).run(policies.Steering())
    assert shared.jct_s.mean() >= least_mean_jct_s(jobs, 64, gain=2.0) * (1 - 1e-9)


def test_the_bound_of_one_queue_of_whole_machine_jobs_is_shortest_first() -> None:
    quiet = load_of("language", np.random.default_rng(0))
    jobs = [TraceJob(str(k), 0.0, 64, 100.0 * (k + 1), quiet) for k in range(3)]
    assert least_mean_jct_s(jobs, 64) == pytest.approx((100 + 300 + 600) / 3)


@given(
    st.lists(st.tuples(st.floats(0.0, 90.0), st.integers(0, 8), st.integers(1, 24)), min_size=1, max_size=25),
    st.floats(500.0, 9000.0),
)
@settings(max_examples=40, deadline=None)
def test_no_racks_draw_rises_faster_than_its_slope_but_by_a_gang_that_starts_alone(
    starts: list[tuple[float, int, int]], slope_w: float
) -> None:
    ramp, now_s = Ramp(ClusterShape(6, 4, 3), slope_w=slope_w), 0.0
    begun: list[tuple[float, dict[int, float]]] = []
    for gap_s, first, count in starts:
        now_s += gap_s
        gpus = np.arange(first, min(first + count, 24))
        at_s = ramp.begins_s(now_s, gpus)
        assert at_s >= now_s
        begun.append((at_s, {rack: 500.0 * int((gpus // 12 == rack).sum()) for rack in (0, 1)}))
    for rack in (0, 1):
        mine = [(at_s, added[rack]) for at_s, added in begun if added[rack]]
        for at_s, _ in mine:
            within = [w for t_s, w in mine if t_s <= at_s < t_s + 60.0]
            assert len(within) == 1 or sum(within) <= slope_w + 1e-6


def test_a_slope_flattens_the_simulated_racks_rise_and_every_job_still_ends() -> None:
    steep = Simulation(JOBS, SchedulingWorld(), 1).run(policies.backfill)
    flat = Simulation(JOBS, SchedulingWorld(slope_w=4000.0), 1).run(policies.backfill)
    assert flat.figures()["p99_rise_w"] < steep.figures()["p99_rise_w"]
    assert np.isfinite(flat.jct_s).all()
    assert (flat.slowed > 0.999).all()
