"""Steps of a life that the tests of the lifecycle share: open, approve, clear; a lifecycle that runs meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.agent.store.incident import IncidentState
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, OutcomeStatus, UnderWay
from nightshift.controllers.actuators.simulated import SimulatedActuator
from nightshift.detectors.base import State
from tests.agent.incidents import NODE, ManualClock, a_finding
from tests.agent.world import ANN, World

_S, _A = IncidentState, ActionKind


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


def state_of(world: World, name: str) -> tuple[IncidentState, ActionKind | None]:
    read = world.store.incident(name)
    return read.state, None if read.action is None else read.action.kind


def is_cordoned(world: World) -> bool:
    return world.cluster.facts(NODE)["cordoned"] == "true"


def contained(world: World, lifecycle: Lifecycle) -> str:
    """An incident whose node was cordoned with a person's approval."""
    name = opened(world)
    assert lifecycle.wait_idle()
    approved(world, name)
    assert lifecycle.wait_idle()
    assert is_cordoned(world)
    return name


class SlowProbe(SimulatedActuator):
    """Its probe runs until it is told to end."""

    ended = False
    begun = False

    def execute(self, action: Action) -> ActionOutcome:
        if action.kind is _A.RETURN_NODE and not self.ended:
            self.begun = True
            raise UnderWay("the probe runs", retry_after_s=1.0)
        return super().execute(action)

    def read(self, action: Action) -> ActionOutcome:
        outcome = super().read(action)
        if action.kind is _A.RETURN_NODE and self.begun and outcome.status is OutcomeStatus.NOT_DONE:
            return ActionOutcome(OutcomeStatus.UNDER_WAY, "the probe runs", 0.0)
        return outcome
