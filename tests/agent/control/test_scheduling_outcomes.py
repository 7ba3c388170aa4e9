"""Scheduling's outcomes reach what promotes: hours are settled in the store, each one draw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.policy import ApprovalSettings
from nightshift.agent.approvals.policy_gate import PolicyGate
from nightshift.agent.control.policy_watch import PolicyWatch
from nightshift.agent.control.scheduling_loads import Loads
from nightshift.agent.control.scheduling_loop import SchedulingLoop, Surroundings
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.receipts import Receipts
from nightshift.collectors.subject import Inventory
from nightshift.controllers.decision import Mode
from nightshift.controllers.scheduling.controller import Snapshot
from nightshift.controllers.scheduling.epochs import EPOCH_S
from nightshift.controllers.scheduling.settings import SchedulingSettings
from tests.agent.incidents import ManualClock
from tests.controllers.scheduling.test_scheduling_epochs import CROWD, SHADOW, Known, Town


class View(Town):
    """A town as the loop sees it (`QueueView`, `GangDoors`)."""

    def gates(self) -> list[object]:
        return []

    def evicts(self, namespace: str, queue: str) -> bool:
        return False

    def shares(self, namespace: str, queue: str) -> bool:
        return False

    def close(self) -> None: ...


@pytest.fixture
def watch(tmp_path: Path, clock: ManualClock) -> Iterator[PolicyWatch]:
    store = Store(f"sqlite:///{tmp_path}/s.sqlite", clock)
    gate = PolicyGate(Gate(store, ApprovalSettings(), clock), store, clock, "lab")
    yield PolicyWatch(gate, Receipts(store.database))
    store.close()


def loop_of(watch: PolicyWatch, town: View) -> SchedulingLoop:
    class Seen:
        def snapshot(self, now_s: float, *_: Any, **__: Any) -> Snapshot:
            return town.snapshot()

        def gates(self) -> list[object]:
            return []

    around = Surroundings(
        watch.receipts.keep,
        trusts=lambda: watch.trusts("scheduling"),
        happened=lambda now_s, told: watch.happened("scheduling", now_s, told.stretches, told.samples, ()),
    )
    settings = SchedulingSettings(enabled=True, act=True)
    loop = SchedulingLoop(settings, Seen(), town, Loads(Inventory("c")), around)  # type: ignore[arg-type]
    loop.controller.durations = Known({name: lasts_s for name, _, _, lasts_s in town.jobs})
    watch.begin("scheduling", loop.policy, loop.policy_sha256)
    return loop


def days(count: int) -> list[tuple[str, int, float, float]]:
    """The crowd again every three hours."""
    return [
        (f"{name}-{k}", gpus, at_s + k * 3 * EPOCH_S, min(lasts_s, 3600.0))
        for k in range(count)
        for name, gpus, at_s, lasts_s in CROWD
    ]


def test_hours_are_settled_in_the_store_as_one_draw_each_and_a_restart_voids_only_the_open_one(
    watch: PolicyWatch, clock: ManualClock
) -> None:
    town = View(days(3), lambda _at_s: SHADOW)
    loop = loop_of(watch, town)
    since_s = watch.gate.standing("scheduling").since_s - 1e9
    while town.now_s < 6.8 * EPOCH_S:
        loop.turn(town.now_s)
        free = 8 - sum(sum(job.nodes.values()) for job in town.snapshot().jobs)
        for job in town.snapshot().jobs:
            if not job.nodes and job.name in town.opened and job.gpus <= free:
                town.began_s[job.name], free = town.now_s, free - job.gpus
        town.now_s += 60.0
    found = watch.receipts.gathered("scheduling", loop.policy, Mode.SHADOW, since_s)
    assert {turn.job for turn in found.turns} >= {"epoch/0", "epoch/3"}
    assert found.jobs == len(found.turns) == watch.receipts.jobs("scheduling", loop.policy, Mode.SHADOW, since_s)
    assert all(abs(turn.slowdown - turn.predicted) < 0.1 for turn in found.turns)
    assert loop.epochs._open is not None
    clock.wait_until(town.now_s)
    watch.lead()  # another took over, or this one again
    again = watch.receipts.gathered("scheduling", loop.policy, Mode.SHADOW, since_s)
    assert again.turns == found.turns
    assert again.waiting == 0
