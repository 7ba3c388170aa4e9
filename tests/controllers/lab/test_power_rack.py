"""A rack below what its jobs would draw: the divider lifts the worst job, and no fault lifts the rack's draw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.base import Permanent
from nightshift.controllers.lab.power.rack_run import (
    Believed,
    Bools,
    CommonCap,
    Scene,
    TrueShares,
    fill,
    oracle,
    rack,
)
from nightshift.controllers.power.belief import TOP, Bank, Ints, LevelWindows
from nightshift.controllers.power.curves import LEVELS, Curve, Floats, synthetic
from nightshift.controllers.power.share import RANGE, Claims, Sharing, divide, share_out

CURVES = [c for c in synthetic(300, np.random.default_rng(99)) if c.draw_w[-1] >= 0.75 and c.min_w <= 0.505]
BANK = Bank.make(256, steep=RANGE)


class Wild:
    """Wishes anything at all, and sometimes nothing that is a level."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def start(self, lowest: int, gpus: int, budget: float) -> Ints:
        return np.full(gpus, TOP)

    def step(self, level: Ints, speed: Floats, draw: Floats, fresh: Bools) -> Ints:
        return self.rng.integers(-20, TOP + 40, len(level))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.7, 0.8, 0.9]))
def test_whatever_is_wished_the_budget_holds_and_would_hold_if_everything_died(seed: int, share: float) -> None:
    scene = Scene.make(CURVES, share, seed, 16, 30)
    found = rack(scene, Wild(seed), seed)
    assert found.over == 0.0
    assert found.unsafe == 0.0


def test_the_divider_lifts_the_worst_job_and_loses_nothing_on_the_mean() -> None:
    """Beside the same shield's common cap, on the same jobs, arrivals and sensor faults."""
    scene = Scene.make(CURVES, 0.7, 0, 16, 80)
    ours, common, best = rack(scene, Believed(BANK), 0), rack(scene, CommonCap(), 0), oracle(scene)
    assert ours.over == ours.unsafe == 0.0
    assert ours.mean > common.mean - 0.005
    assert common.worst < ours.worst < best.worst


def test_without_the_shield_the_usual_controller_is_over_the_budget_at_times() -> None:
    scene = Scene.make(CURVES, 0.7, 0, 16, 120)
    assert rack(scene, CommonCap(), 0, shielded=False).over > 0.0


def test_a_budget_below_the_lowest_limits_is_refused() -> None:
    with pytest.raises(Permanent, match="lowest limit"):
        Scene.make(CURVES, 0.3, 0, 16, 10)


@given(st.integers(0, 10_000), st.floats(0.0, 1.0))
@settings(max_examples=30, deadline=None)
def test_filling_keeps_the_budget_and_no_other_division_helps_the_slowest(seed: int, part: float) -> None:
    rng = np.random.default_rng(seed)
    steps = np.cumsum(rng.uniform(0.001, 0.02, (5, len(LEVELS))), axis=1)
    time = 1.0 + steps[:, ::-1] - steps[:, :1]
    cost, lowest = np.broadcast_to(LEVELS, time.shape), np.zeros(5, dtype=np.int64)
    budget = 5 * (LEVELS[0] + part * (1 - LEVELS[0]))
    level, rows = fill(time, cost, lowest, budget), np.arange(5)
    assert cost[rows, level].sum() <= budget + 1e-9
    slowest = int(np.where(level < TOP, time[rows, level], 0.0).argmax())
    if level[slowest] < TOP:  # one level more for it would have to come from one that is then slower
        for other in set(rows) - {slowest}:
            if level[other] > 0 and level[slowest] < TOP:
                assert time[other, level[other] - 1] >= time[slowest, level[slowest]] - 1e-9


def test_a_job_that_more_power_does_not_help_gives_its_part_away() -> None:
    time = np.ones((2, len(LEVELS)))
    time[1] = np.linspace(2.0, 1.0, len(LEVELS))
    lowest, highest = np.zeros(2, dtype=np.int64), np.full(2, TOP)
    assert share_out(time, np.full(2, 0.01), lowest, highest, 1.3, Sharing()).tolist() == [0, TOP]


@given(st.integers(0, 10_000), st.floats(0.0, 1.2), st.floats(1.0, 30.0))
@settings(max_examples=40, deadline=None)
def test_what_is_shared_keeps_the_room_and_everybodys_bounds_and_leaves_no_useful_level(
    seed: int, part: float, aversion: float
) -> None:
    rng = np.random.default_rng(seed)
    time = np.sort(1.0 + rng.uniform(0.0, 1.0, (6, len(LEVELS))), axis=1)[:, ::-1]
    cost, lowest = np.asarray(rng.integers(1, 17, 6) * 0.01, dtype=np.float64), rng.integers(0, 30, 6)
    ceiling = lowest + rng.integers(0, TOP - 29, 6)
    low, high = (float((LEVELS[x] * 100 * cost).sum()) for x in (lowest, ceiling))
    room = low + part * (high - low)
    level = share_out(time, cost, lowest, ceiling, room, Sharing(aversion=aversion, least=0.0))
    assert (level >= lowest).all()
    assert (level <= ceiling).all()
    left = room - float((LEVELS[level] * 100 * cost).sum())
    assert left >= -1e-6
    assert (level == ceiling).all() or left < cost.max() + 1e-6


def test_a_job_that_was_never_seen_unlimited_is_asked_for_its_reference_and_once() -> None:
    """At most `probes` at a time, only while the room allows it, and no longer than `tries` windows."""
    n, s = 4, Sharing(probes=1, tries=2)
    windows = LevelWindows.empty(n)
    rows = np.arange(n)
    windows.add(rows, np.full(n, 40), np.ones(n), np.full(n, 0.7))
    none, cost, at = np.zeros(n, np.int64), np.full(n, 0.01), np.full(n, 40)

    def asked() -> Claims:
        return Claims.of(BANK, windows, at, none, np.full(n, TOP), none, s.noise)

    level, probed = divide(asked(), cost, 2.8, s)
    assert len(probed) == 1
    assert level[probed[0]] == TOP
    windows.add(probed, np.full(1, TOP), np.ones(1) * 1.2, np.full(1, 0.9))
    assert divide(asked(), cost, 2.8, s)[1] != probed
    assert len(divide(asked(), cost, 1.3, s)[1]) == 0
    assert len(divide(replace(asked(), tried=np.full(n, 2)), cost, 2.8, s)[1]) == 0
    assert len(divide(replace(asked(), ceiling=np.full(n, 60)), cost, 2.8, s)[1]) == 0


def test_who_is_told_every_curve_is_faster_behind_the_same_shield() -> None:
    """What belief costs can be told apart from what the shield costs."""
    scene = Scene.make(CURVES, 0.7, 0, 16, 80)
    told, ours = rack(scene, TrueShares(scene), 0), rack(scene, Believed(BANK), 0)
    assert told.over == told.unsafe == 0.0
    assert told.mean > ours.mean


def test_a_curve_that_draws_more_than_its_limit_counts_at_its_limit() -> None:
    rough = Curve("g", "w", np.array([0.4, 1.0]), np.array([1.2, 1.0]), np.array([0.5, 1.1]))
    scene = Scene.make([rough], 0.8, 0, 4, 5)
    assert (scene.draw <= LEVELS + 1e-12).all()
    assert replace(scene, budget=1.0).budget == 1.0
