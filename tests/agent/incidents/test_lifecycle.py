"""The lifecycle: every way through the table, on a simulated cluster whose effects can be counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import nightshift.agent.incidents.lifecycle as lifecycle_module
from nightshift.agent.incidents import stages
from nightshift.agent.store.incident import Incident, IncidentState, world_says
from nightshift.collectors.base import Permanent, Temporary
from nightshift.controllers.action import (
    Action,
    ActionKind,
    ActionOutcome,
    ActionProposal,
    OutcomeStatus,
    Precondition,
)
from nightshift.controllers.actuators.simulated import Mishap, SimulatedActuator
from nightshift.detectors.base import Fault, State
from tests.agent.incidents import NODE, ManualClock, a_finding, an_action
from tests.agent.lives import approved, causes_of, cleared, opened, running
from tests.agent.world import ANN, UNDOABLE, World

_S = IncidentState


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path, clock: ManualClock) -> Iterator[World]:
    made = World(sqlite_url, tmp_path, clock)
    yield made
    made.store.close()


def test_a_fault_is_diagnosed_planned_approved_repaired_confirmed_and_resolved(
    world: World, clock: ManualClock
) -> None:
    with running(world) as lifecycle:
        name = opened(world)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.AWAITING_APPROVAL
        assert world.cluster.effects() == []
        approved(world, name)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING
        assert [effect.action_id for effect in world.cluster.effects()] == [f"{name}-1".lower()]
        clock.advance(50)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING  # the detector still fires
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
    assert causes_of(world, name) == [
        "opened",
        "diagnosis_stored",
        "plan_proposed",
        "approved",
        "intent_stored",
        "action_done",
        "confirmed",
    ]
    kinds = [record.kind for record in world.store.audit.records()]
    assert [kinds.count(kind) for kind in ("diagnosis", "plan", "approval", "intent", "outcome")] == [1, 1, 1, 1, 1]
    assert world.store.audit.verify().ok


def test_two_lifecycles_one_after_the_other_in_one_process_and_never_two_at_once(
    world: World, clock: ManualClock
) -> None:
    name = opened(world)
    with running(world) as first:
        first.wait_idle()
        with pytest.raises(Permanent, match="already started"):
            world.lifecycle().start()
    approved(world, name)
    with running(world) as second:
        assert second.wait_idle()
        assert second.term > 1
    assert world.store.incident(name).state is _S.CONFIRMING
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("lifecycle", "queue-w"))]


def test_a_missing_signal_is_never_taken_for_recovery(world: World, clock: ManualClock) -> None:
    with running(world) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
        world.store.update_finding(name, a_finding(state=State.NO_DATA))
        clock.advance(99)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING
        clock.advance(2)
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert (read.state, read.history[-1].note) == (
        _S.ESCALATED,
        "cannot be undone: a restart cannot be undone",
    )


def test_what_does_not_help_is_taken_back_and_escalated(world: World, clock: ManualClock) -> None:
    world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", ActionKind.UNCORDON, NODE, undo=UNDOABLE)
    with running(world) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
        clock.advance(101)
        assert lifecycle.wait_idle()
    assert causes_of(world, name)[-2:] == ["not_confirmed", "undone"]
    assert [effect.undo for effect in world.cluster.effects()] == [False, True]


def test_containment_stays_in_place_when_the_fault_persists(world: World, clock: ManualClock) -> None:
    world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", ActionKind.CORDON, NODE, undo=UNDOABLE)
    with running(world) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
        clock.advance(101)
        assert lifecycle.wait_idle()
    assert causes_of(world, name)[-1] == "containment_kept"
    assert world.cluster.facts(NODE)["cordoned"] == "true"


@pytest.mark.parametrize(
    ("status", "last"), [(OutcomeStatus.DONE, ["confirmed"]), (OutcomeStatus.FAILED, ["not_confirmed", "undone"])]
)
def test_the_probe_has_the_last_word(
    world: World, clock: ManualClock, status: OutcomeStatus, last: list[str]
) -> None:
    world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", ActionKind.UNCORDON, NODE, undo=UNDOABLE)
    with running(world, probe=lambda incident: ActionOutcome(status, "GEMM probe", clock.now_s())) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
    assert causes_of(world, name)[-len(last) :] == last


def test_an_unanswered_plan_expires_and_is_made_anew_until_a_person_has_to_take_over(
    world: World, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "MAX_PLANS", 2)
    world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", expires_at_s=clock.now_s() + 60)
    with running(world) as lifecycle:
        name = opened(world)
        for _ in range(3):
            lifecycle.wait_idle()
            clock.advance(61)
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert read.state is _S.ESCALATED
    assert causes_of(world, name).count("expired") == 2
    assert world.cluster.effects() == []


def test_a_changed_world_asks_again_instead_of_acting(world: World, clock: ManualClock) -> None:
    rests_on = (Precondition(NODE, "cordoned", "false"),)
    world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", preconditions=rests_on)
    with running(world) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        world.cluster.add(NODE, cordoned="true")
        approved(world, name)
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert (read.state, read.attempt) == (_S.AWAITING_APPROVAL, 2)
    assert "cordoned is true, expected false" in read.history[-2].note
    assert world.cluster.effects() == []


def test_a_new_fault_is_diagnosed_again_and_voids_the_plan(world: World, clock: ManualClock) -> None:
    with running(world) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        old = world.store.incident(name).action
        world.store.attach(name, a_finding(Fault.GPU_MEMORY_LEAK, NODE))  # a fault that the diagnosis knows
        lifecycle.wait_idle()
        assert "new_evidence" not in causes_of(world, name)
        world.store.attach(name, a_finding(Fault.XID, NODE))
        lifecycle.wait_idle()
        assert causes_of(world, name).count("diagnosis_stored") == 2
        assert old is not None
        assert "changed since you saw it" in world.gate.approve(name, old.plan_sha256, ANN).message


@pytest.mark.parametrize("mishap", [Mishap.BUSY, Mishap.LOST_REPLY])
def test_a_temporary_failure_is_tried_again_and_acts_once(world: World, clock: ManualClock, mishap: Mishap) -> None:
    world.cluster.plan_mishap(mishap)
    with running(world) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
        clock.advance(6)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING
    assert len(world.cluster.effects()) == 1


def test_a_stage_that_keeps_failing_ends_with_a_person_after_growing_pauses(
    world: World, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried_at: list[float] = []

    def never(incident: Incident) -> None:
        tried_at.append(clock.now_s())
        raise Temporary("no answer from the model")

    monkeypatch.setattr(stages, "MAX_TRIES", 4)
    monkeypatch.setattr(lifecycle_module, "RETRY_MAX_S", 12.0)
    with running(world, diagnose=never) as lifecycle:
        name = opened(world)
        for _ in range(60):
            lifecycle.wait_idle()
            clock.advance(1)
        read = world.store.incident(name)
    assert (read.state, read.history[-1].note) == (_S.ESCALATED, "tried 4 times: no answer from the model")
    assert [round(b - a) for a, b in pairwise(tried_at)] == [5, 10, 12]


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (Permanent("no such model"), "no such model"),
        (ZeroDivisionError("x"), "defect in nightshift: ZeroDivisionError: x"),
    ],
)
def test_a_permanent_failure_or_a_defect_of_ours_is_said_and_strands_nobody(
    world: World, error: Exception, note: str
) -> None:
    def broken(incident: Incident) -> None:
        raise error

    with running(world, plan=broken) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        read = world.store.incident(name)
    assert (read.state, read.history[-1].note) == (_S.ESCALATED, note)


@pytest.mark.parametrize(
    ("mishap", "causes"),
    [(Mishap.REFUSE, ["action_failed"]), (Mishap.UNKNOWN, ["outcome_unknown"])],
)
def test_a_refused_action_and_an_unknown_outcome_go_to_a_person(
    world: World, mishap: Mishap, causes: list[str]
) -> None:
    world.cluster.plan_mishap(mishap)
    with running(world) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.ESCALATED
    assert causes_of(world, name)[-len(causes) :] == causes


def test_what_turns_out_to_have_succeeded_is_confirmed_once_a_person_resumes_it(
    world: World, clock: ManualClock
) -> None:
    class Unsure(SimulatedActuator):
        def execute(self, action: Action) -> ActionOutcome:
            return replace(super().execute(action), status=OutcomeStatus.UNKNOWN)

    unsure = Unsure(world.cluster.path, clock.now_s)
    with running(world, actuator_for=lambda _: unsure) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
        assert world_says(world.store.incident(name)).startswith("succeeded: ")
        assert world.gate.carry_on(name, ANN).changed
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.CONFIRMING
    assert len(world.cluster.effects()) == 1


def test_no_plan_is_watched_and_resolves_when_clear_and_relapses_when_it_comes_back(
    world: World, clock: ManualClock
) -> None:
    with running(world, plan=lambda incident: ActionProposal(None, "watched only")) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.MONITORING
        cleared(world, clock, name)
        lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.RESOLVED
        world.store.update_finding(name, a_finding())
        lifecycle.wait_idle()
    assert causes_of(world, name)[3:] == ["cleared_by_itself", "relapsed", "diagnosis_stored", "no_plan"]
