"""Giving a node back: proposed once its fault is gone, probed first, and never a node that is not ours to give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from nightshift.agent.approvals.manual_fixes import Fix, is_same
from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings
from nightshift.agent.rca.summary import as_text, summarise
from nightshift.agent.store.incident import Incident, IncidentState
from nightshift.agent.store.incident_store import number_of
from nightshift.agent.store.intents import standing_cordons
from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.history import History
from nightshift.collectors.subject import SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.action import Action, ActionKind
from nightshift.detectors.base import Fault, State
from tests.agent.incidents import GPU, NODE, ManualClock, a_diagnosis, a_finding, an_action
from tests.agent.lives import (
    SlowProbe,
    approved,
    causes_of,
    cleared,
    contained,
    is_cordoned,
    opened,
    running,
    state_of,
)
from tests.agent.world import BOB, UNDOABLE, World

_S, _A = IncidentState, ActionKind
Change = Callable[[World, ManualClock, str], object]


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path, clock: ManualClock) -> Iterator[World]:
    made = World(sqlite_url, tmp_path, clock, gives_back=True)
    made.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", _A.CORDON, NODE, undo=UNDOABLE)
    yield made
    made.store.close()


def test_a_cordoned_node_is_given_back_once_clear_approved_and_probed(world: World, clock: ManualClock) -> None:
    """The whole way: nothing happens to the node before a person approves, and then the probe comes first."""
    with running(world) as lifecycle:
        name = contained(world, lifecycle)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        assert state_of(world, name) == (_S.AWAITING_APPROVAL, _A.RETURN_NODE)
        clock.advance(500)
        assert lifecycle.wait_idle()
        assert is_cordoned(world), "waiting approves nothing"
        text = as_text(summarise(world.store.incident(name), clock.now_s()))
        approved(world, name)
        assert lifecycle.wait_idle()
        assert not is_cordoned(world)
        assert world.cluster.facts(NODE)["probes"] == "1"
        clock.advance(11)
        assert lifecycle.wait_idle()
    acted = ["plan_proposed", "approved", "intent_stored", "action_done"]
    told = ["opened", "diagnosis_stored", *acted, "return_due", *acted, "confirmed"]
    assert causes_of(world, name) == told
    assert "Plan: probe the node and, where that passes, uncordon it: n1" in text
    assert "if it fails, the node stays cordoned" in text
    assert world.store.audit.verify().ok


def test_no_policy_lets_a_node_be_given_back_without_a_person(
    sqlite_url: str, tmp_path: Path, clock: ManualClock, world: World
) -> None:
    """Automatic by configuration is one person all the same."""
    world.gate.policy = ApprovalSettings(
        default=ApprovalRule.AUTOMATIC, kinds={_A.RETURN_NODE: ApprovalRule.AUTOMATIC}
    )
    with running(world) as lifecycle:
        name = opened(world)
        assert lifecycle.wait_idle()
        assert is_cordoned(world)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        assert state_of(world, name) == (_S.AWAITING_APPROVAL, _A.RETURN_NODE)


def a_person_cordoned(world: World, clock: ManualClock, name: str) -> None:
    world.cluster.add(NODE, cordoned="true", cordoned_by="a person")


def a_person_uncordoned(world: World, clock: ManualClock, name: str) -> None:
    world.cluster.add(NODE, cordoned="false")


def the_mark_is_gone(world: World, clock: ManualClock, name: str) -> None:
    with world.cluster.transaction() as db:
        db.execute("DELETE FROM marker")


def the_mark_is_of_another(world: World, clock: ManualClock, name: str) -> None:
    with world.cluster.transaction() as db:
        db.execute("UPDATE marker SET action_id = 'inc-99-cordon'")


def another_also_cordoned(world: World, clock: ManualClock, name: str) -> None:
    world.actuator.execute(an_action("inc-99-drain", _A.DRAIN, NODE))


NOT_OURS = [a_person_cordoned, a_person_uncordoned, the_mark_is_gone, the_mark_is_of_another, another_also_cordoned]


@pytest.mark.parametrize("change", [NOT_OURS[0], *(pytest.param(c, marks=pytest.mark.full) for c in NOT_OURS[1:])])
@pytest.mark.parametrize(
    "when", [pytest.param("before it clears", marks=pytest.mark.full), "while it waits for approval"]
)
def test_a_cordon_that_is_not_just_ours_is_left_alone(
    world: World, clock: ManualClock, change: Change, when: str
) -> None:
    """Whoever has a part in the cordon, before the proposal or after it: nothing is probed or uncordoned by us."""
    with running(world) as lifecycle:
        name = contained(world, lifecycle)
        if when == "before it clears":
            change(world, clock, name)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        if when == "while it waits for approval":
            change(world, clock, name)
            approved(world, name)
            assert lifecycle.wait_idle()
    read = world.store.incident(name)
    assert read.state is _S.RESOLVED
    assert "not given back by us" in read.history[-1].note
    assert world.cluster.facts(NODE)["probes"] == "0"
    assert is_cordoned(world) is (change is not a_person_uncordoned)


def another_is_open(world: World, clock: ManualClock, name: str) -> None:
    world.store.open_incident("other", [a_finding(Fault.XID, GPU)])


def it_alarms(world: World, clock: ManualClock, name: str) -> None:
    world.store.update_finding(name, a_finding())


def it_has_no_data(world: World, clock: ManualClock, name: str) -> None:
    world.store.update_finding(name, a_finding(state=State.NO_DATA))


def it_is_not_seen(world: World, clock: ManualClock, name: str) -> None:
    world.history = History()


def it_is_seen_no_more(world: World, clock: ManualClock, name: str) -> None:
    history, index, at_s = History(), SeriesIndex(SubjectKind.GPU, (GPU,)), clock.now_s() - 121.0
    frame = Frame(at_s, index, ("gpu_power_w",), np.ones((1, 1)), np.full((1, 1), at_s), np.zeros(1, np.int64))
    history.add(Tick(at_s, {SubjectKind.GPU: frame}))
    world.history = history


def nothing_is_known_of_it(world: World, clock: ManualClock, name: str) -> None:
    world.inventory.end(GPU, NODE, clock.now_s() - 1.0)


WAITS = [another_is_open, it_is_not_seen, it_is_seen_no_more, nothing_is_known_of_it]
_IN_FULL = [pytest.param(change, marks=pytest.mark.full) for change in WAITS]


@pytest.mark.parametrize("change", [WAITS[0], *_IN_FULL[1:]])
def test_it_is_not_proposed_while_it_could_not_be_done(world: World, clock: ManualClock, change: Change) -> None:
    """Another open incident on the node, or missing telemetry: nothing is proposed, and nothing is forgotten."""
    with running(world) as lifecycle:
        name = contained(world, lifecycle)
        change(world, clock, name)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.DIAGNOSED
        if change is another_is_open:
            (other,) = [row.id for row in world.store.open_incidents() if row.id != name]
            assert world.gate.close(other, BOB, "done").changed
            clock.advance(60)
            assert lifecycle.wait_idle()
            assert state_of(world, name) == (_S.AWAITING_APPROVAL, _A.RETURN_NODE)
    assert is_cordoned(world)


@pytest.mark.parametrize("change", [*_IN_FULL, it_has_no_data])
def test_an_approved_return_is_asked_again_before_it_begins(
    world: World, clock: ManualClock, change: Change
) -> None:
    """What was right when it was proposed and is not when it was approved: the node stays as it is."""
    with running(world) as lifecycle:
        name = contained(world, lifecycle)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        change(world, clock, name)
        approved(world, name)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.DIAGNOSED
    assert causes_of(world, name)[-1] == "world_changed"
    assert is_cordoned(world)


def test_a_fault_that_comes_back_takes_the_proposal_away_until_it_is_clear_again(
    world: World, clock: ManualClock
) -> None:
    """The plan is withdrawn at once, people are told that the cordon stays, and later it is proposed anew."""
    with running(world) as lifecycle:
        name = contained(world, lifecycle)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        it_alarms(world, clock, name)
        assert lifecycle.wait_idle()
        assert causes_of(world, name)[-2:] == ["world_changed", "containment_kept"]
        clock.advance(1)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        assert state_of(world, name) == (_S.AWAITING_APPROVAL, _A.RETURN_NODE)
    assert is_cordoned(world)


@pytest.mark.full
def test_a_fault_that_outlasted_its_confirmation_is_given_back_once_a_person_has_repaired_it(
    world: World, clock: ManualClock
) -> None:
    """The cordon stayed because the fault did; when its signals are clear at last, the return is proposed."""
    with running(world) as lifecycle:
        name = contained(world, lifecycle)
        clock.advance(101)
        assert lifecycle.wait_idle()
        assert causes_of(world, name)[-1] == "containment_kept"
        clock.advance(100_000)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        assert state_of(world, name) == (_S.AWAITING_APPROVAL, _A.RETURN_NODE)


def test_a_probe_that_fails_leaves_the_node_cordoned_and_tells_a_person(world: World, clock: ManualClock) -> None:
    """It is told once, stays open, and is not proposed again on the same signals."""
    world.cluster.add(NODE, probe="fails")
    with running(world) as lifecycle:
        name = contained(world, lifecycle)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        approved(world, name)
        assert lifecycle.wait_idle()
        clock.advance(1_000)
        assert lifecycle.wait_idle()
    read = world.store.incident(name)
    assert read.state is _S.ESCALATED
    assert read.history[-1].note == "the probe failed; n1 stays cordoned"
    assert is_cordoned(world)


def test_who_rejects_it_leaves_the_node_cordoned_for_good(world: World, clock: ManualClock) -> None:
    """A person's no is the last word, and the end says what is left."""
    with running(world) as lifecycle:
        name = contained(world, lifecycle)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        plan = world.store.incident(name).action
        assert plan is not None
        assert world.gate.reject(name, plan.plan_sha256, BOB, "it goes to the vendor").changed
        assert lifecycle.wait_idle()
    read = world.store.incident(name)
    assert read.state is _S.RESOLVED
    assert read.history[-1].note.endswith("; our cordon of n1 remains: uncordon manually")
    assert is_cordoned(world)


@pytest.mark.parametrize("change", [it_alarms, *_IN_FULL])
def test_what_changes_while_the_probe_runs_keeps_the_node_cordoned(
    world: World, clock: ManualClock, change: Change
) -> None:
    """Asked again when the probe has ended: a fault that shows under the probe's load is found then."""
    slow = world.actuator = SlowProbe(world.cluster.path, clock.now_s, probes=True)
    with running(world) as lifecycle:
        name = contained(world, lifecycle)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        approved(world, name)
        assert lifecycle.wait_idle()
        assert world.store.incident(name).state is _S.ACTING
        change(world, clock, name)
        clock.advance(6)
        assert lifecycle.wait_idle()
    assert slow.begun
    assert causes_of(world, name)[-1] == "containment_kept"
    assert is_cordoned(world)


@pytest.mark.full
def test_a_node_that_fails_again_after_its_return_is_diagnosed_anew(world: World, clock: ManualClock) -> None:
    """What comes next is a new plan that asks again, never a cordon by itself."""
    with running(world) as lifecycle:
        name = contained(world, lifecycle)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        approved(world, name)
        assert lifecycle.wait_idle()
        it_alarms(world, clock, name)
        assert lifecycle.wait_idle()
        assert state_of(world, name) == (_S.AWAITING_APPROVAL, _A.CORDON)
    assert not is_cordoned(world)


def test_without_an_actuator_that_probes_an_incident_ends_as_before(world: World, clock: ManualClock) -> None:
    """Nothing is proposed that nobody here could do; that the cordon is left is said."""
    world.gives_back = False
    with running(world) as lifecycle:
        name = contained(world, lifecycle)
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
    last = world.store.incident(name).history[-1]
    assert (last.cause, "our cordon of n1 remains" in last.note) == ("confirmed", True)


def test_a_person_who_uncordons_did_what_was_proposed() -> None:
    """By hand or by a click: for the scoreboard it is the same decision."""
    assert is_same(Fix(_A.UNCORDON, NODE, "ann", 0.0), an_action(kind=_A.RETURN_NODE, target=NODE))


@pytest.mark.full
def test_an_incident_remembers_its_standing_cordon_after_other_plans(world: World, clock: ManualClock) -> None:
    """News after the cordon led to another plan, which waits when all is clear: the node is given back first."""
    news = a_finding(Fault.XID, NODE)

    def causes(incident: Incident) -> bool:
        return any(item.finding.fault is Fault.XID for item in incident.findings)

    def plan(incident: Incident) -> Action:
        made = f"{incident.id}-{incident.attempt + 1}"
        return an_action(made) if causes(incident) else an_action(made, _A.CORDON, NODE)

    world.action = plan
    diagnose = lambda i: a_diagnosis(Fault.XID if causes(i) else Fault.GPU_MEMORY_LEAK)  # noqa: E731
    with running(world, diagnose=diagnose) as lifecycle:
        name = contained(world, lifecycle)
        world.store.attach(name, news)
        clock.advance(1)
        assert lifecycle.wait_idle()
        assert state_of(world, name) == (_S.AWAITING_APPROVAL, _A.RESTART_JOB)
        world.store.update_finding(name, a_finding(Fault.XID, NODE, State.CLEAR))
        cleared(world, clock, name)
        assert lifecycle.wait_idle()
        assert state_of(world, name) == (_S.AWAITING_APPROVAL, _A.RETURN_NODE)


@pytest.mark.full
def test_a_reboot_after_the_cordon_has_given_the_node_back_itself(world: World, clock: ManualClock) -> None:
    """What a later repair of the same incident returned is not returned twice."""
    world.gate.policy = ApprovalSettings(fresh_sign_in=frozenset())
    with running(world) as lifecycle:
        name = contained(world, lifecycle)
        number = number_of(name)
        with world.store.database.read() as connection:
            assert [action.kind for action in standing_cordons(connection, number)] == [_A.CORDON]
        world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}", _A.REBOOT_NODE, NODE)
        world.store.attach(name, a_finding(Fault.XID, NODE))
        clock.advance(1)
        diagnosed = a_diagnosis(Fault.XID)
        lifecycle._stages._parts = world.parts(diagnose=lambda incident: diagnosed)
        assert lifecycle.wait_idle()
        approved(world, name)
        assert lifecycle.wait_idle()
        with world.store.database.read() as connection:
            assert standing_cordons(connection, number) == []
