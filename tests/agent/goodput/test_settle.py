"""Exact by construction: whatever is claimed, every GPU-second is in one account."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.agent.goodput.accounts import Account
from nightshift.agent.goodput.settle import (
    GpuGroup,
    GpuHold,
    JobTime,
    LedgerEntry,
    PlaceMark,
    PlaceState,
    Segment,
    settle,
)

TIME = st.floats(-50.0, 250.0)
SPAN = st.tuples(TIME, TIME).map(lambda pair: (min(pair), max(pair)))
MARK = st.builds(lambda span, state: PlaceMark(*span, state), SPAN, st.sampled_from(PlaceState))
SHARE = st.sampled_from([float("nan"), 1 / 7, 3 / 7, 1.0])
HOLD = st.builds(lambda span, job, share: GpuHold(*span, job, share), SPAN, st.sampled_from("abc"), SHARE)
GROUP = st.builds(
    GpuGroup,
    st.integers(1, 8),
    st.sampled_from(["n1", "n2"]),
    st.lists(SPAN, min_size=1, max_size=1).map(tuple),
    st.lists(HOLD, max_size=4).map(tuple),
    st.lists(MARK, max_size=5).map(tuple),
)
PARTS = st.sampled_from(
    [
        ((Account.UNATTRIBUTED, 1.0),),
        ((Account.PRODUCTIVE, 0.7), (Account.DATA_WAIT, 0.3)),
        ((Account.HUNG, 1.0),),
        ((Account.INITIALISING, 1.0),),
        ((Account.RECOMPUTED, 1.0),),
    ]
)


@st.composite
def job_times(draw: st.DrawFn) -> JobTime:
    edges = sorted(draw(st.lists(TIME, max_size=12, unique=True)))
    pairs = zip(edges[::2], edges[1::2], strict=False)
    return JobTime(tuple(Segment(a, b, draw(PARTS)) for a, b in pairs), draw(st.booleans()))


@given(st.lists(GROUP, max_size=4), st.dictionaries(st.sampled_from("abc"), job_times()))
def test_accounts_sum_to_wall_time_times_gpus(groups: list[GpuGroup], jobs: dict[str, JobTime]) -> None:
    wall = sum(
        group.count * max(0.0, min(end_s, 200.0) - max(start_s, 0.0))
        for group in groups
        for start_s, end_s in group.present
    )
    sums = settle(groups, jobs, 0.0, 200.0)
    assert sum(sums.values()) == pytest.approx(wall, rel=1e-9, abs=1e-6)
    assert all(spent >= 0 for spent in sums.values())


@given(GROUP, job_times(), st.floats(1.0, 199.0))
def test_two_halves_are_the_whole(group: GpuGroup, time: JobTime, cut_s: float) -> None:
    whole = settle([group], {"a": time}, 0.0, 200.0)
    halves = [settle([group], {"a": time}, *window) for window in ((0.0, cut_s), (cut_s, 200.0))]
    for entry in {*whole, *halves[0], *halves[1]}:
        assert sum(half.get(entry, 0.0) for half in halves) == pytest.approx(whole.get(entry, 0.0), abs=1e-6)


def one(group: GpuGroup, jobs: dict[str, JobTime] | None = None) -> dict[LedgerEntry, float]:
    return settle([group], jobs or {}, 0.0, 70.0)


def test_mig_instances_take_their_sevenths_and_leave_the_rest_free() -> None:
    holds = (GpuHold(0.0, 70.0, "a", 3 / 7), GpuHold(0.0, 70.0, "b", 1 / 7))
    sums = one(GpuGroup(1, "n", ((0.0, 70.0),), holds))
    assert {(e.account, e.job): round(v, 6) for e, v in sums.items()} == {
        (Account.NO_STEPS, "a"): 30.0,
        (Account.NO_STEPS, "b"): 10.0,
        (Account.FREE, ""): 30.0,
    }


def test_time_slices_are_shared_equally_while_they_overlap() -> None:
    holds = (GpuHold(0.0, 70.0, "a"), GpuHold(35.0, 70.0, "b"))
    sums = one(GpuGroup(1, "n", ((0.0, 70.0),), holds))
    assert {e.job: v for e, v in sums.items()} == {"a": 52.5, "b": 17.5}


def test_a_job_without_steps_is_never_productive_and_idle_is_seen() -> None:
    marks = (PlaceMark(20.0, 50.0, PlaceState.IDLE),)
    sums = one(GpuGroup(1, "n", ((0.0, 70.0),), (GpuHold(0.0, 70.0, "a"),), marks))
    assert {e.account: v for e, v in sums.items()} == {Account.NO_STEPS: 40.0, Account.IDLE_HELD: 30.0}


def test_a_fault_on_a_gpu_that_still_steps_costs_nothing() -> None:
    marks = (PlaceMark(0.0, 70.0, PlaceState.FAULT, "xid"),)
    time = JobTime((Segment(0.0, 70.0, ((Account.UNATTRIBUTED, 1.0),)),), True)
    sums = one(GpuGroup(1, "n", ((0.0, 70.0),), (GpuHold(0.0, 70.0, "a"),), marks), {"a": time})
    assert [e.account for e in sums] == [Account.UNATTRIBUTED]
