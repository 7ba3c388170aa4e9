"""Leaks beside what only looks like one: tides of the day, and telemetry that is wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Finding, State
from nightshift.detectors.memory.climb import falls_back
from nightshift.detectors.memory.leak import MemoryLeak

LIMIT = 80e9
HOUR_S, DAY_S = 3600.0, 86400.0
ONE, BOX = Subject(SubjectKind.GPU, "GPU-0"), Subject(SubjectKind.CONTAINER, "ml/web/main")


def told(
    share: Callable[[float], float],
    until_s: float,
    step_s: float,
    one: Callable[[float], Subject] = lambda _: ONE,
    clock: Callable[[float], float] = float,
) -> list[Finding]:
    """What is said of a GPU or container that holds `share` of its memory at each time (s), without peers; NaN is
    no sample. clock: the time that its page states."""
    detector, inventory, found = MemoryLeak(), Inventory(), []
    for t in np.arange(0.0, until_s, step_s).tolist():
        used = LIMIT * share(t)
        index = SeriesIndex(one(t).kind, (one(t),))
        box = one(t).kind is SubjectKind.CONTAINER
        values = np.array([[used, LIMIT if box else LIMIT - used]])
        metrics = (
            ("container_memory_anonymous_bytes", "container_memory_limit_bytes")
            if box
            else ("gpu_memory_used_bytes", "gpu_memory_free_bytes")
        )
        at_s = 1e9 + clock(t)
        frame = Frame(at_s, index, metrics, values, np.full((1, 2), at_s), np.zeros(1, dtype=np.int64))
        found += detector.update(Tick(at_s, {index.kind: frame}), inventory)
    return [f for f in found if f.state is State.FIRING]


def tide(t: float) -> float:
    """Between 55 and 95 % of the memory, highest once a day; it begins on the way down."""
    return 0.75 + 0.2 * float(np.cos(2 * np.pi * t / DAY_S))


@pytest.mark.full
def test_a_tide_of_the_day_is_no_leak_and_a_leak_under_one_is() -> None:
    assert told(tide, 2.2 * DAY_S, 300.0) == []
    low = told(lambda t: 0.5 * tide(t) + 0.55 * max(t / DAY_S - 1.0, 0.0), 1.95 * DAY_S, 300.0)
    assert low
    assert low[0].at.t_s - 1e9 < 1.85 * DAY_S


@pytest.mark.full
def test_host_memory_is_about_to_be_full_only_where_no_climb_like_it_came_down() -> None:
    """A tide that reaches 97 % of the limit, higher on its third day, pages on none; a leak of hours after a quiet
    day does, in its last hour."""
    high = told(
        lambda t: 0.83 + (0.1 + 0.02 * (t // DAY_S)) * np.sin(2 * np.pi * t / DAY_S), 2.3 * DAY_S, 300.0, box
    )
    assert not [f for f in high if "pages_because" in f.facts]
    leak = told(lambda t: 0.7 + 0.3 * max(t - 1.1 * DAY_S, 0.0) / (0.2 * DAY_S), 1.3 * DAY_S, 300.0, box)
    paged = [f for f in leak if "pages_because" in f.facts]
    assert paged
    assert 600.0 < 1e9 + 1.3 * DAY_S - paged[0].at.t_s <= HOUR_S + 600.0


def box(_: float) -> Subject:
    return BOX


def test_a_climb_is_compared_with_falls_of_its_own_size_alone() -> None:
    past, limit = np.array([[1.0, 2.0, 1.0, 1.1]]), np.array([100.0])
    assert falls_back(past, np.array([1.2]), np.array([2.1]), limit).tolist() == [True]
    assert falls_back(past, np.array([9.0]), np.array([2.1]), limit).tolist() == [False]
    assert falls_back(np.full((1, 4), np.nan), np.array([9.0]), np.array([2.1]), limit).tolist() == [False]


@pytest.mark.parametrize(("minutes", "base"), [(10.0, 0.02), (20.0, 0.3), (30.0, 0.1)])
@pytest.mark.parametrize("step_s", [15.0, 60.0])
def test_a_leak_of_minutes_is_told_two_minutes_before_the_end(minutes: float, base: float, step_s: float) -> None:
    end_s = HOUR_S + 60.0 * minutes
    found = told(lambda t: base + (1 - base) * max(t - HOUR_S, 0.0) / (60.0 * minutes), end_s, step_s)
    assert found
    assert end_s - (found[0].at.t_s - 1e9) >= 120.0


def test_weights_that_are_loaded_and_stay_are_no_leak() -> None:
    assert told(lambda t: 0.02 + 0.6 * min(max(t - HOUR_S, 0.0) / 300.0, 1.0), 2 * HOUR_S, 15.0) == []


def test_what_cannot_have_been_seen_is_no_leak() -> None:
    """A sensor that sticks or is often away, a clock that is an hour off for a while, a name that is new at each
    restart, and MIG instances that come and go."""
    stuck = told(lambda t: 0.4 if t > HOUR_S else 0.2 + 0.2 * t / HOUR_S, 5 * HOUR_S, 60.0)
    gone = told(lambda t: float("nan") if (t // HOUR_S) % 2 else 0.3 + 0.02 * (t // HOUR_S), 5 * HOUR_S, 60.0)
    off = told(
        lambda t: 0.4 + 0.02 * np.sin(t / 900.0), 4 * HOUR_S, 60.0,
        clock=lambda t: t + HOUR_S * (2 * HOUR_S <= t < 2.5 * HOUR_S),
    )  # fmt: skip
    renamed = told(
        lambda t: 0.3 + 0.1 * (t % HOUR_S) / HOUR_S, 5 * HOUR_S, 60.0,
        lambda t: Subject(SubjectKind.GPU, f"GPU-{t // HOUR_S:.0f}"),
    )  # fmt: skip
    instances = told(
        lambda t: 0.1 + 0.08 * (7 * (t // 600.0) % 10), 4 * HOUR_S, 60.0,
        lambda t: Subject(SubjectKind.MIG, f"MIG-{t // 600.0 % 2:.0f}"),
    )  # fmt: skip
    assert (stuck, gone, off, renamed, instances) == ([], [], [], [], [])


def test_a_leak_that_was_there_before_the_first_look_is_told_by_what_was_seen() -> None:
    found = told(lambda t: 0.5 + 0.5 * t / (2 * HOUR_S), 2 * HOUR_S, 60.0)
    assert found
    for finding in found:
        assert finding.since.t_s >= 1e9 - 300.0
        assert float(finding.facts["growth_bytes"]) <= 0.5 * LIMIT * (finding.at.t_s - 1e9) / (2 * HOUR_S)


@pytest.mark.full
def test_three_jumps_alike_with_a_flat_level_between_are_a_leak_and_a_wandering_level_is_none() -> None:
    def stairs(t: float) -> float:
        return 0.2 + 0.06 * min((t - 4 * HOUR_S) // (3.5 * HOUR_S) + 1, 3) * (t >= 4 * HOUR_S)

    (first, *_) = told(stairs, 15 * HOUR_S, 300.0)
    assert first.facts["shape"] == "stairs"
    assert first.at.t_s - 1e9 < 12 * HOUR_S
    # the same floor at its lowest, but the level leaves it for most of the time
    wave = np.random.default_rng(3).uniform(0.02, 0.08, 400)
    assert told(lambda t: stairs(t) + wave[int(t // 300)] * (t % 3600 >= 900), 13 * HOUR_S, 300.0) == []


@pytest.mark.full
def test_over_a_day_a_climb_that_its_own_noise_makes_by_chance_is_none() -> None:
    noise = np.cumsum(np.random.default_rng(11).normal(0.0, 0.008, 300))
    walk = 0.6 + 0.35 * (noise - noise.min()) / np.ptp(noise)
    found = told(lambda t: float(walk[int(t // 300)]), 24 * HOUR_S, 300.0, box)
    assert all(f.facts["growth_bytes"] / f.facts["slope_bytes_per_h"] < 8.0 for f in found)


def two_climbs(first: float, second: float, noise: float = 0.0) -> set[str]:
    """Episodes of a GPU whose memory climbs for four hours, levels off, and four hours later climbs again; each by
    such a share of what was free. noise: of the level in the first ten hours."""
    away = np.random.default_rng(5).random(120)

    def share(t: float) -> float:
        level = 0.2 + (noise * float(away[int(t // 300)]) if t < 10 * HOUR_S else 0.0)
        for size, from_h in ((first, 4.0), (second, 12.0)):
            level += (1.0 - level) * size * float(np.clip(t / HOUR_S - from_h, 0.0, 4.0)) / 4.0
        return level

    return {f.episode for f in told(share, 20 * HOUR_S, 300.0)}


@pytest.mark.full
def test_after_a_climb_that_levelled_off_by_itself_only_a_stronger_one_is_told() -> None:
    assert [len(two_climbs(0.3, second)) for second in (0.12, 0.5)] == [1, 2]


def test_after_a_climb_with_noise_a_climb_without_is_told() -> None:
    assert len(two_climbs(0.3, 0.12, 0.03)) == 2


@pytest.mark.parametrize(("fall_h", "expected"), [(0.05, True), (4.0, False)])
def test_a_steady_climb_is_compared_with_falls_of_hours_and_not_with_bursts(fall_h: float, expected: bool) -> None:
    """A level of 78 % comes down to 70 % at once or in hours, and rises to 76 % in half a day."""

    def share(t: float) -> float:
        hours = t / HOUR_S
        return 0.7 + 0.08 * float(np.clip(1.0 - (hours - 6.0) / fall_h, 0.0, 1.0)) + 0.005 * max(hours - 12.0, 0.0)

    assert bool(told(share, 24 * HOUR_S, 300.0)) is expected


def test_a_burst_of_requests_hides_no_climb_of_half_a_day() -> None:
    def share(t: float) -> float:
        burst = 0.1 if 6 * HOUR_S <= t < 6.7 * HOUR_S else 0.0
        return 0.6 + burst + 0.09 * max(t - 12 * HOUR_S, 0.0) / (12 * HOUR_S)

    assert told(share, 24 * HOUR_S, 300.0)
