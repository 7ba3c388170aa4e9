"""An action that failed with its node out of use: a person is told, nobody forgets it, and what is left counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.agent.approvals.policy import ApprovalSettings
from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.incident_store import number_of
from nightshift.agent.store.intents import commitments, standing_cordons
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, OutcomeStatus, traits_of
from nightshift.controllers.actuators.simulated import SimulatedActuator
from tests.agent.incidents import NODE, ManualClock, an_action
from tests.agent.lives import approved, cleared, opened, running, state_of
from tests.agent.world import UNDOABLE, World

_S, _A = IncidentState, ActionKind


class HalfWay(SimulatedActuator):
    """Cordons, and then cannot go on."""

    def execute(self, action: Action) -> ActionOutcome:
        if action.kind is _A.RETURN_NODE:
            return super().execute(action)
        super().execute(action)
        return ActionOutcome(OutcomeStatus.FAILED, "forbidden; n1 stays cordoned", 0.0, {"cordoned": "true"})


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path, clock: ManualClock) -> Iterator[World]:
    made = World(sqlite_url, tmp_path, clock, gives_back=True)
    made.gate.policy = ApprovalSettings(fresh_sign_in=frozenset())
    yield made
    made.store.close()


def failed(world: World, lifecycle: Lifecycle, kind: ActionKind) -> str:
    world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", kind, NODE, undo=UNDOABLE)
    name = opened(world)
    assert lifecycle.wait_idle()
    approved(world, name)
    assert lifecycle.wait_idle()
    return name


def out_of_use(world: World) -> list[ActionKind]:
    with world.store.database.read() as connection:
        return [
            item.action.kind
            for item in commitments(connection)
            if item.released_s is None and traits_of(item.action.kind).takes_capacity
        ]


def test_a_drain_that_failed_half_way_is_given_back_once_its_fault_is_gone(
    world: World, clock: ManualClock
) -> None:
    world.actuator = HalfWay(world.cluster.path, clock.now_s, probes=True)
    with running(world) as lifecycle:
        name = failed(world, lifecycle, _A.DRAIN)
        assert world.store.incident(name).history[-1].cause == "containment_kept"
        assert out_of_use(world) == [_A.DRAIN], "the guard counts what stands"
        with world.store.database.read() as connection:
            assert [action.kind for action in standing_cordons(connection, number_of(name))] == [_A.DRAIN]
        clock.advance(1)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        assert state_of(world, name) == (_S.AWAITING_APPROVAL, _A.RETURN_NODE)
        approved(world, name)
        assert lifecycle.wait_idle()
        assert out_of_use(world) == []


def test_an_incident_whose_repair_failed_stays_open_for_a_person(world: World, clock: ManualClock) -> None:
    """Its signals may well be clear: the node does no work, and nobody else would look."""
    world.actuator = HalfWay(world.cluster.path, clock.now_s, probes=True)
    with running(world) as lifecycle:
        name = failed(world, lifecycle, _A.REBOOT_NODE)
        cleared(world, clock, name)
        clock.advance(10_000)
        assert lifecycle.wait_idle()
        assert state_of(world, name)[0] is _S.ESCALATED
        assert out_of_use(world) == [_A.REBOOT_NODE]
