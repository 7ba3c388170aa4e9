"""A restart is no event: detectors that are given their state back say nothing that they would not have said."""

from __future__ import annotations

from functools import cache

import pytest

from nightshift.collectors.subject import Inventory
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Detector, State
from nightshift.detectors.contract.streams import faults
from nightshift.detectors.contract.testing import run
from nightshift.detectors.contract.world import HealthyFleet
from nightshift.detectors.plugins import ALL

AWAY = {"5 s": 1, "1 min": 12, "10 min": 120}


@cache
def healthy() -> tuple[list[Tick], Inventory]:
    """35 minutes in which nothing is wrong."""
    world = HealthyFleet()
    return world.ticks(420), world.inventory()


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.plugin)
def test_a_restart_after_a_pause_brings_no_burst_of_alarms(kind: type[Detector]) -> None:
    """A detector over a healthy world, stopped for a while and restored: silent, as it was."""
    ticks, inventory = healthy()
    before = kind()
    assert run(before, ticks[:180], inventory) == []
    saved = before.snapshot()
    for name, away in AWAY.items():
        after = kind()
        after.restore(saved)
        found = [f for f in run(after, ticks[180 + away :], inventory) if f.state is State.FIRING]
        assert found == [], name


def test_open_alarms_go_on_after_a_restart_with_their_onset() -> None:
    """What fires before the restart fires after it, as the same episode: nothing is opened twice."""
    world = HealthyFleet()
    ticks, inventory = list(faults(world)), world.inventory()
    for kind in ALL:
        before, after = kind(), kind()
        known = {f.episode for f in run(before, ticks[:120], inventory)}
        after.restore(before.snapshot())
        told = {f.episode for f in after.update(ticks[121], inventory)}
        fresh = {f.episode for f in before.update(ticks[121], inventory)}
        assert told == fresh, kind.plugin
        assert len(told - known) <= 1, kind.plugin
