"""A trial's coin: what the other arm would have led to is asked of the racks that it can reach, and no others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.controllers.power import shield
from nightshift.controllers.power.arms import Round, linked

HIGHEST, FALLBACK = 700_000, 420_000
GANGS = st.lists(st.sets(st.integers(0, 4), min_size=1, max_size=2), min_size=1, max_size=10)
"""Of each gang the racks that it stands in."""


def fleet(gangs: list[set[int]], seed: int) -> list[shield.Gpu]:
    """Two GPUs of each gang in each of its racks, and in each rack one that nobody uses; limits as they happen."""
    random = np.random.default_rng(seed)
    places = [(rack, f"team-a/j{i}") for i, racks in enumerate(gangs) for rack in sorted(racks) for _ in range(2)]
    places += [(rack, "") for rack in range(5)]
    return [
        shield.Gpu(
            f"G{i}", f"n{rack}", f"r{rack}", job, 200_000, HIGHEST, HIGHEST, FALLBACK,
            int(random.choice((300, 420, 550, 700))) * 1000, 0.0,
        )
        for i, (rack, job) in enumerate(places)
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_dwell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shield, "DWELL_S", 0.0)


def test_racks_hang_together_by_the_gangs_that_they_hold_in_common() -> None:
    gpus = fleet([{0, 1}, {1, 2}, {3}], 0)
    found = linked(gpus)
    assert {gpu.rack for gpu in found["r0"]} == {gpu.rack for gpu in found["r2"]} == {"r0", "r1", "r2"}
    assert [gpu.rack for gpu in found["r3"]] == ["r3"] * 3
    assert [gpu.job for gpu in found["r4"]] == [""]  # GPUs without a job are no gang, and link nothing


@given(GANGS, st.integers(0, 10_000), st.floats(0.5, 1.1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_asked_near_a_gang_the_other_arm_says_what_it_says_asked_of_all(
    gangs: list[set[int]], seed: int, share: float
) -> None:
    random = np.random.default_rng(seed)
    gpus, s, memory = fleet(gangs, seed), shield.Settings(), shield.LimitMemory()
    by_rack = {f"r{k}": sum(HIGHEST for gpu in gpus if gpu.rack == f"r{k}") for k in range(5)}
    racks = {name: shield.RackBudget(name, int(share * full), 0) for name, full in by_rack.items()}
    level = {gpu.job: float(random.choice((0.5, 0.7, 1.0))) for gpu in gpus}
    wishes = {gpu.uuid: level[gpu.job] * HIGHEST for gpu in gpus}
    orders = shield.decide_step(racks, gpus, wishes, memory, 100.0, s)
    asked = Round(racks, gpus, wishes, memory, 100.0, s, orders)
    for job in sorted(level.keys() - {""}):
        mine = [gpu.uuid for gpu in gpus if gpu.job == job]
        other = dict.fromkeys(mine, float(random.choice((0.5, 0.6, 1.0))) * HIGHEST)
        of_all = shield.decide_step(racks, gpus, wishes | other, memory, 100.0, s)
        same = all(of_all.limit_mw(uuid) == orders.limit_mw(uuid) for uuid in mine)
        assert asked.same_with(other, mine) == same
        assert {gpu.uuid for gpu in asked.near(mine)} == {gpu.uuid for gpu in linked(gpus)[_rack(gpus, mine[0])]}


def _rack(gpus: list[shield.Gpu], uuid: str) -> str:
    return next(gpu.rack for gpu in gpus if gpu.uuid == uuid)
