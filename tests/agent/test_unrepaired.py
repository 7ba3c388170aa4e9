"""A GPU that needs a reset logs that once and is silent: its incident is not over by its silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.incident import IncidentState
from controllers.action import ActionKind, Proposal
from detectors.base import Fault, Severity, State
from tests.agent.incidents import GPU, NODE, ManualClock, a_finding, an_action
from tests.agent.lives import approved, causes_of, running
from tests.agent.world import ANN, UNDOABLE, World

_S = IncidentState


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path, clock: ManualClock) -> Iterator[World]:
    made = World(sqlite_url, tmp_path, clock)
    made.action = lambda i: an_action(
        f"{i.id}-{i.attempt + 1}".lower(), ActionKind.CORDON, NODE, undo=UNDOABLE, expires_at_s=clock.now_s() + 3600
    )
    yield made
    made.store.close()


def told(world: World, name: str, state: State, severity: Severity = Severity.CRITICAL) -> None:
    world.store.update_finding(name, a_finding(Fault.XID, state=state, severity=severity))


def opened(world: World, severity: Severity = Severity.CRITICAL) -> str:
    return world.store.open_incident("xid", [a_finding(Fault.XID, GPU, severity=severity)])


def test_a_fatal_xid_that_fell_silent_waits_for_a_decision_and_can_be_approved(
    world: World, clock: ManualClock
) -> None:
    with running(world) as lifecycle:
        name = opened(world)
        assert lifecycle.wait_idle()
        told(world, name, State.CLEAR)
        clock.advance(1000)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.AWAITING_APPROVAL
        approved(world, name)
        assert lifecycle.wait_idle()
        clock.advance(11)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.RESOLVED
    assert causes_of(world, name)[3:] == ["approved", "intent_stored", "action_done", "confirmed"]
    assert len(world.cluster.effects()) == 1


def test_its_plan_is_made_anew_when_nobody_decides_and_ends_with_a_person(world: World, clock: ManualClock) -> None:
    with running(world) as lifecycle:
        name = opened(world)
        assert lifecycle.wait_idle()
        told(world, name, State.CLEAR)
        for _ in range(6):
            clock.advance(3601)
            assert lifecycle.wait_idle()
    read = world.store.incident(name)
    assert (read.state, read.attempt, causes_of(world, name).count("expired")) == (_S.ESCALATED, 5, 5)


@pytest.mark.parametrize("severity", [Severity.WARNING, Severity.INFO])
def test_what_needs_no_repair_and_what_a_driver_left_behind_is_over_by_silence(
    world: World, clock: ManualClock, severity: Severity
) -> None:
    with running(world) as lifecycle:
        for name in (opened(world), opened(world, severity)):
            assert lifecycle.wait_idle()
            told(world, name, State.FIRING, severity)  # of the first: its driver began anew
            told(world, name, State.CLEAR, severity)
            clock.advance(11)
            assert lifecycle.wait_idle()
            assert world.store.incident(name).state is _S.RESOLVED


def test_what_a_person_rejected_or_closed_is_over_by_silence(world: World, clock: ManualClock) -> None:
    with running(world) as lifecycle:
        rejected, closed = opened(world), opened(world)
        assert lifecycle.wait_idle()
        plan = world.store.incident(rejected).action
        assert plan is not None
        assert world.gate.reject(rejected, plan.plan_sha256, ANN, "we looked").changed
        told(world, rejected, State.CLEAR)
        assert world.gate.close(closed, ANN, "reset by hand").changed
        clock.advance(11)
        assert lifecycle.wait_idle()
        assert [world.store.incident(name).state for name in (rejected, closed)] == [_S.RESOLVED, _S.RESOLVED]


def test_without_a_plan_it_is_watched_until_a_person_closes_it(world: World, clock: ManualClock) -> None:
    with running(world, plan=lambda incident: Proposal(None, "nothing fits")) as lifecycle:
        name = opened(world)
        assert lifecycle.wait_idle()
        told(world, name, State.CLEAR)
        clock.advance(10_000)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.MONITORING
        assert world.gate.close(name, ANN, "replaced").changed
