"""Steps of a life that the tests of the lifecycle share: open, approve, clear; a lifecycle that runs meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agent.incident import IncidentState
from agent.lifecycle import Lifecycle
from detectors.base import State
from tests.agent.incidents import ManualClock, a_finding
from tests.agent.world import ANN, World

_S = IncidentState


@contextmanager
def running(world: World, **changes: object) -> Iterator[Lifecycle]:
    lifecycle = world.lifecycle(**changes)
    lifecycle.start()
    try:
        yield lifecycle
    finally:
        lifecycle.close()


def opened(world: World, **finding: object) -> str:
    return world.store.open_incident("leak", [a_finding(**finding)])  # type: ignore[arg-type]


def causes_of(world: World, name: str) -> list[str]:
    return [step.cause for step in world.store.incident(name).history]


def approved(world: World, name: str) -> None:
    action = world.store.incident(name).action
    assert action is not None
    assert world.gate.approve(name, action.plan_sha256, ANN).changed


def cleared(world: World, clock: ManualClock, name: str) -> None:
    world.store.update_finding(name, a_finding(state=State.CLEAR))
    clock.advance(11)
