"""A rack below what its jobs would draw: the divider lifts the worst job, and no fault lifts the rack's draw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.base import Permanent
from controllers.power.belief import TOP, Bank, Ints
from controllers.power.curves import LEVELS, Curve, Floats, synthetic
from controllers.power.rack import RANGE, Believed, Bools, CommonCap, fill
from controllers.power.rack_run import Scene, oracle, rack

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
    level = fill(time, np.broadcast_to(LEVELS, time.shape), np.zeros(2, dtype=np.int64), 1.3, worth=0.002)
    assert level.tolist() == [0, TOP]


def test_a_curve_that_draws_more_than_its_limit_counts_at_its_limit() -> None:
    rough = Curve("g", "w", np.array([0.4, 1.0]), np.array([1.2, 1.0]), np.array([0.5, 1.1]))
    scene = Scene.make([rough], 0.8, 0, 4, 5)
    assert (scene.draw <= LEVELS + 1e-12).all()
    assert replace(scene, budget=1.0).budget == 1.0
