"""Nightshift at fault: it stops itself after so many nodes or repairs in vain, pages, and waits for a person."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.agent.approvals.gate import NIGHTSHIFT, Gate
from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings
from nightshift.agent.incidents.breaker import Breaker
from nightshift.agent.store.incident import Incident, IncidentState
from nightshift.agent.store.intents import deeds
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind
from nightshift.controllers.actuators.simulated import Mishap
from nightshift.controllers.guard import Deed, Settings, overrun
from nightshift.detectors.alarms.lanes import Lane, widest
from nightshift.detectors.base import Fault, State
from tests.agent.incidents import ManualClock, a_finding, an_action
from tests.agent.lives import running
from tests.agent.world import ANN, World

_A = ActionKind
CLUSTER = Subject(SubjectKind.CLUSTER, "cluster")
AUTOMATIC = ApprovalSettings(kinds={_A.REBOOT_NODE: ApprovalRule.AUTOMATIC, _A.CORDON: ApprovalRule.AUTOMATIC})


def node(number: int) -> Subject:
    return Subject(SubjectKind.NODE, f"n{number}")


def deed(number: int, at_s: float, recovered: bool | None = None, kind: ActionKind = _A.REBOOT_NODE) -> Deed:
    return Deed(an_action(f"a-{number}-{at_s}", kind, node(number)), at_s, recovered)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 10_000)), max_size=60), st.integers(1, 8))
def test_no_order_of_actions_touches_more_nodes_in_an_hour(wanted: list[tuple[int, float]], most: int) -> None:
    done: list[Deed] = []
    for number, at_s in sorted(wanted, key=lambda pair: pair[1]):
        action = an_action(f"a-{len(done)}", _A.CORDON, node(number))
        if not overrun(done, at_s, Settings(breaker_nodes=most), action):
            done.append(Deed(action, at_s))
    for at_s in (d.begun_s for d in done):
        assert len({d.action.target for d in done if 0 <= at_s - d.begun_s < 3600.0}) <= most


def test_repairs_in_vain_count_by_node_and_in_a_row() -> None:
    three = Settings(breaker_repairs=3)
    assert "n0, n1, n2" in overrun([deed(n, 10.0 * n, False) for n in range(3)], 100.0, three)
    assert not overrun([deed(7, 10.0 * n, False) for n in range(9)], 100.0, three)
    with_one_that_helped = [deed(0, 1.0, False), deed(1, 2.0, False), deed(2, 3.0, True), deed(3, 4.0, False)]
    assert not overrun(with_one_that_helped, 100.0, three)
    assert not overrun([deed(n, 10.0 * n) for n in range(9)], 100.0, three)


def test_what_changes_nothing_is_not_counted() -> None:
    told = [deed(n, 10.0, kind=_A.OPEN_RMA) for n in range(30)]
    assert not overrun(told, 20.0, Settings(breaker_nodes=1), an_action("a", _A.CORDON, node(1)))


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path, clock: ManualClock) -> Iterator[World]:
    made = World(sqlite_url, tmp_path, clock, policy=AUTOMATIC, action=_of_its_node)
    for number in range(12):
        made.cluster.add(node(number))
    yield made
    made.store.close()


kind = _A.REBOOT_NODE


def _of_its_node(incident: Incident) -> Action:
    return an_action(f"{incident.id}-{incident.attempt + 1}".lower(), kind, incident.subjects[0], expires_at_s=1e9)


def breaker(world: World, **settings: int) -> Breaker:
    return Breaker(world.store, world.gate, world.clock, CLUSTER, lambda: Settings(**settings))


def intended(world: World) -> list[Subject]:
    """What actions were decided for, oldest first; a stop may hold back one that was decided a moment before it."""
    with world.store.database.read() as connection:
        return [deed.action.target for deed in deeds(connection, 0.0)]


def faulty(world: World, *numbers: int) -> list[str]:
    return [world.store.open_incident("bad", [a_finding(Fault.XID, node(n))]) for n in numbers]


def test_the_next_node_stops_all_actions_and_a_person_lets_them_go_on(world: World, clock: ManualClock) -> None:
    stops = breaker(world, breaker_nodes=2)
    with running(world, breaker=stops) as lifecycle:
        faulty(world, *range(6))
        lifecycle.wait_idle()
        assert len(before := intended(world)) == 2
        assert {effect.target for effect in world.cluster.effects()} <= set(before)
        assert (world.gate.halted().halted, world.gate.halted().by) == (True, NIGHTSHIFT)
        clock.advance(4000.0)
        faulty(world, 7)
        lifecycle.wait_idle()
        assert intended(world) == before  # time alone allows nothing
    again = Gate(world.store, AUTOMATIC, clock)
    assert again.halted().halted, "another process sees it"
    assert again.resume(ANN).changed
    with running(world, breaker=stops) as lifecycle:
        lifecycle.wait_idle()
        # one of them may be a node of before, which is tried again
        assert len(set(intended(world)[2:])) == 2
        assert {effect.target for effect in world.cluster.effects()} <= set(intended(world))


def test_the_stop_pages_until_a_person_resumes(world: World, clock: ManualClock) -> None:
    stops = breaker(world)
    assert stops.findings(clock.now_s()) == []
    stops.trip("11 nodes")
    stops.trip("12 nodes")
    (alarm,) = stops.findings(clock.now_s())
    assert "11 nodes" in alarm.summary
    assert widest([alarm]) is Lane.PAGE
    name = world.store.open_incident("stopped", [alarm])
    clock.advance(60.0)
    assert [f.episode for f in stops.findings(clock.now_s())] == [alarm.episode]
    world.gate.resume(ANN)
    restarted = breaker(world)
    for process in (stops, restarted):
        (over,) = process.findings(clock.now_s())
        assert (over.episode, over.state) == (alarm.episode, State.CLEAR)
        assert process.findings(clock.now_s()) == []
    world.store.update_finding(name, over)
    assert breaker(world).findings(clock.now_s()) == []


def test_a_stop_holds_in_the_transaction_of_the_intent(world: World) -> None:
    """It may come after the gate's last look: what an action asks of the breaker then is refused."""
    stops, action = breaker(world), an_action("a-1", kind, node(1))
    with world.store.database.read() as connection:
        assert stops.objection(connection, action) == ""
    world.gate.halt(ANN, "change freeze")
    with world.store.database.read() as connection:
        assert "change freeze" in stops.objection(connection, action)
        assert stops.objection(connection) == ""


def test_a_stop_by_a_person_stays_theirs(world: World, clock: ManualClock) -> None:
    world.gate.halt(ANN, "change freeze")
    stops = breaker(world)
    stops.trip("11 nodes")
    assert world.gate.halted().by == ANN.identity
    assert stops.findings(clock.now_s()) == []


def test_repairs_that_fail_stop_it(world: World) -> None:
    with running(world, breaker=breaker(world, breaker_repairs=3)) as lifecycle:
        world.cluster.plan_mishap(Mishap.UNKNOWN, times=5)
        faulty(world, *range(3))
        lifecycle.wait_idle()
        assert "no confirmed recovery" in world.gate.halted().reason


def test_repairs_without_a_confirmed_recovery_stop_it(world: World, clock: ManualClock) -> None:
    with running(world, breaker=breaker(world, breaker_repairs=3)) as lifecycle:
        names = faulty(world, *range(3))
        lifecycle.wait_idle()
        assert not world.gate.halted().halted
        clock.advance(200.0)  # longer than it waits for recovery, and every fault goes on
        lifecycle.wait_idle()
        assert "no confirmed recovery" in world.gate.halted().reason
        states = {world.store.incident(name).state for name in names}
        assert states <= {IncidentState.UNDOING, IncidentState.ESCALATED}
