"""Giving a node back under the stops that hold for all: maintenance, opt-out, emergency stop, observing only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nightshift.agent.store.incident import Incident, IncidentState
from nightshift.collectors.base import Permanent
from nightshift.controllers.action import Action, ActionKind, Actuator
from nightshift.controllers.guard import Commitment, GuardRuling, MaintenanceWindow, Settings, rule
from tests.agent.incidents import NODE, ManualClock, an_action
from tests.agent.lives import SlowProbe, approved, causes_of, cleared, contained, is_cordoned, running, state_of
from tests.agent.world import ANN, BOB, UNDOABLE, World

_S, _A = IncidentState, ActionKind
BREAK = MaintenanceWindow(subjects=("node:n1",), start_s=1_000.5, end_s=2_000.0, owner="racks", reason="new cables")


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path, clock: ManualClock) -> Iterator[World]:
    made = World(sqlite_url, tmp_path, clock, gives_back=True)
    made.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", _A.CORDON, NODE, undo=UNDOABLE)
    yield made
    made.store.close()


class Watchman:
    """The guard by settings that change under way."""

    def __init__(self, world: World, clock: ManualClock) -> None:
        self._world, self._clock, self.settings = world, clock, Settings()

    def __call__(self, action: Action, begun: Sequence[Commitment]) -> GuardRuling:
        return rule(action, begun, self._world.inventory, self._clock.now_s(), self.settings)


def test_nobody_is_asked_while_people_work_on_the_node(world: World, clock: ManualClock) -> None:
    """In a maintenance window nothing is proposed; once it is over, it is."""
    guard = Watchman(world, clock)
    with running(world, guard=guard) as lifecycle:
        name = contained(world, lifecycle)
        guard.settings = Settings(maintenance=(BREAK,))
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.DIAGNOSED
        clock.advance(1_000)
        assert lifecycle.wait_idle()
        assert state_of(world, name) == (_S.AWAITING_APPROVAL, _A.RETURN_NODE)
    assert is_cordoned(world)


def test_a_node_that_has_opted_out_since_is_left_to_its_people(world: World, clock: ManualClock) -> None:
    """It stays cordoned, and the end of the incident says why."""
    guard = Watchman(world, clock)
    with running(world, guard=guard) as lifecycle:
        name = contained(world, lifecycle)
        guard.settings = Settings(opt_out=("node:n1",))
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
    last = world.store.incident(name).history[-1]
    assert (last.cause, "n1 is not given back by us: node:n1 opted out" in last.note) == ("cleared_by_itself", True)
    assert is_cordoned(world)


@pytest.mark.parametrize("settings", [Settings(maintenance=(BREAK,)), Settings(opt_out=("node:n1",))])
def test_who_comes_to_work_on_the_node_while_its_probe_runs_finds_it_cordoned(
    world: World, clock: ManualClock, settings: Settings
) -> None:
    """The probe may end well: the node is theirs now, and a person is told."""
    guard, slow = Watchman(world, clock), SlowProbe(world.cluster.path, clock.now_s, probes=True)
    world.actuator = slow
    with running(world, guard=guard) as lifecycle:
        name = contained(world, lifecycle)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        approved(world, name)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.ACTING
        guard.settings, slow.ended = settings, True
        clock.advance(6)
        assert lifecycle.wait_idle()
    assert causes_of(world, name)[-1] == "containment_kept"
    assert is_cordoned(world)


def test_under_the_emergency_stop_a_node_is_not_given_back_until_people_resume(
    world: World, clock: ManualClock
) -> None:
    """Pulled while the probe runs, which ends meanwhile: the uncordon waits for the resume."""
    slow = world.actuator = SlowProbe(world.cluster.path, clock.now_s, probes=True)
    with running(world) as lifecycle:
        name = contained(world, lifecycle)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        approved(world, name)
        assert lifecycle.wait_idle()
        assert world.gate.halt(BOB, "something is wrong").changed
        slow.ended = True
        clock.advance(60)
        assert lifecycle.wait_idle()
        assert is_cordoned(world)
        assert world.gate.resume(ANN).changed
        clock.advance(60)
        assert lifecycle.wait_idle()
    assert not is_cordoned(world)


def test_who_turns_to_observing_only_takes_the_proposal_away(world: World, clock: ManualClock) -> None:
    """A reload that leaves no actuator: what is approved is not carried out, and what is left is said."""
    there = [True]

    def actuator_for(incident: Incident) -> Actuator:
        if not there:
            raise Permanent("no configured actuator carries out return_node")
        return world.actuator

    with running(world, actuator_for=actuator_for) as lifecycle:
        name = contained(world, lifecycle)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        there.clear()
        world.gives_back = False
        approved(world, name)
        assert lifecycle.wait_idle()
    assert "stage_failed" in causes_of(world, name)
    last = world.store.incident(name).history[-1]
    assert last.note.endswith("our cordon of n1 remains: uncordon manually")
    assert is_cordoned(world)
