"""The simulated cluster keeps the actuator's promises: once per id, durable, readable back, undoable."""

from __future__ import annotations

import multiprocessing
import signal
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import (
    KINDS,
    Action,
    ActionKind,
    Actuator,
    BlastRadius,
    OutcomeStatus,
    Precondition,
    Undo,
)
from nightshift.controllers.actuators.simulated import EFFECTS, Mishap, SimulatedActuator, SimulatedCluster

NODE = Subject(SubjectKind.NODE, "n1")
TARGETS = {
    SubjectKind.NODE: NODE,
    SubjectKind.GPU: Subject(SubjectKind.GPU, "GPU-1"),
    SubjectKind.JOB: Subject(SubjectKind.JOB, "ml/llm"),
    SubjectKind.POD: Subject(SubjectKind.POD, "ml/llm-0"),
}


def action(kind: ActionKind, identity: str = "a1", *conditions: Precondition, undo: bool = True) -> Action:
    target = TARGETS[min(KINDS[kind].targets)] if kind in EFFECTS else NODE
    return Action(identity, kind, target, "test", BlastRadius(), Undo(undo, "test"), 1e9, preconditions=conditions)


@pytest.fixture
def actuator(tmp_path: Path) -> SimulatedActuator:
    made = SimulatedActuator(tmp_path / "world.sqlite", lambda: 100.0)
    for target in TARGETS.values():
        made.cluster.add(target)
    return made


def test_fulfils_the_actuator_contract(actuator: SimulatedActuator) -> None:
    """The class is an Actuator."""
    assert isinstance(actuator, Actuator)


@pytest.mark.parametrize("kind", EFFECTS)
def test_the_same_id_changes_the_world_once(actuator: SimulatedActuator, kind: ActionKind) -> None:
    """A repeat of any kind finds it already done, and exactly one effect stands in the world."""
    assert actuator.read(action(kind)).status is OutcomeStatus.NOT_DONE
    assert actuator.execute(action(kind)).status is OutcomeStatus.DONE
    before = actuator.cluster.facts(action(kind).target)
    assert actuator.execute(action(kind)).status is OutcomeStatus.ALREADY_DONE
    assert actuator.read(action(kind)).status is OutcomeStatus.DONE
    assert actuator.cluster.facts(action(kind).target) == before
    assert [effect.kind for effect in actuator.cluster.effects()] == [kind]


@pytest.mark.parametrize("kind", [ActionKind.CORDON, ActionKind.DRAIN, ActionKind.QUARANTINE_GPU])
def test_undo_restores_the_facts_once(actuator: SimulatedActuator, kind: ActionKind) -> None:
    """Taking an action back restores every fact, a second time does nothing, and the id stays spent."""
    target = action(kind).target
    before = actuator.cluster.facts(target)
    actuator.execute(action(kind))
    assert actuator.cluster.facts(target) != before
    assert actuator.undo(action(kind)).status is OutcomeStatus.DONE
    assert actuator.cluster.facts(target) == before
    assert actuator.undo(action(kind)).status is OutcomeStatus.ALREADY_DONE
    assert actuator.execute(action(kind)).status is OutcomeStatus.REFUSED
    assert actuator.read(action(kind)).status is OutcomeStatus.NOT_DONE
    assert len(actuator.cluster.effects()) == 2


def test_undo_of_a_restart_is_refused(actuator: SimulatedActuator) -> None:
    """A restart cannot be undone, and the answer says so instead of pretending."""
    actuator.execute(action(ActionKind.RESTART_JOB))
    assert actuator.undo(action(ActionKind.RESTART_JOB)).status is OutcomeStatus.REFUSED


def test_changed_names_the_facts_that_moved(actuator: SimulatedActuator) -> None:
    """A precondition that no longer holds becomes a sentence with both values; one that holds is silent."""
    holds = Precondition(NODE, "cordoned", "false")
    gone = Precondition(Subject(SubjectKind.NODE, "n9"), "cordoned", "false")
    assert actuator.changed(action(ActionKind.DRAIN, "a", holds)) == []
    actuator.execute(action(ActionKind.CORDON, "b"))
    assert actuator.changed(action(ActionKind.DRAIN, "a", holds, gone)) == [
        "node:n1: cordoned is true, expected false",
        "node:n9 no longer exists",
    ]


def test_refuses_what_it_cannot_do(actuator: SimulatedActuator) -> None:
    """An unknown kind, a target of the wrong kind and a missing target are Permanent and leave no effect."""
    for wrong, message in (
        (action(ActionKind.OPEN_RMA), "has no open_rma"),
        (
            Action("a", ActionKind.CORDON, TARGETS[SubjectKind.JOB], "", BlastRadius(), Undo(False, ""), 0),
            "for a node",
        ),
        (
            Action("a", ActionKind.CORDON, Subject(SubjectKind.NODE, "n7"), "", BlastRadius(), Undo(False, ""), 0),
            "n7",
        ),
    ):
        with pytest.raises(Permanent, match=message):
            actuator.execute(wrong)
    assert actuator.cluster.effects() == []


def test_mishaps_say_what_happened_and_change_what_they_claim(actuator: SimulatedActuator) -> None:
    """Refused and busy change nothing; a lost reply did happen; no_effect claims without changing anything."""
    cordon = action(ActionKind.CORDON)
    for mode, error, effects in (
        (Mishap.REFUSE, Permanent, 0),
        (Mishap.BUSY, Temporary, 0),
        (Mishap.LOST_REPLY, Temporary, 1),
    ):
        actuator.cluster.plan_mishap(mode)
        with pytest.raises(error):
            actuator.execute(cordon)
        assert len(actuator.cluster.effects()) == effects
    assert actuator.read(cordon).status is OutcomeStatus.DONE
    actuator.cluster.plan_mishap(Mishap.NO_EFFECT)
    assert actuator.execute(action(ActionKind.DRAIN, "d")).status is OutcomeStatus.DONE
    assert actuator.cluster.facts(NODE)["drained"] == "false"


def test_unknown_stays_unknown(actuator: SimulatedActuator) -> None:
    """An effect whose marker was lost reads UNKNOWN, never done and never not done."""
    actuator.cluster.plan_mishap(Mishap.UNKNOWN)
    assert actuator.execute(action(ActionKind.REBOOT_NODE)).status is OutcomeStatus.UNKNOWN
    assert actuator.read(action(ActionKind.REBOOT_NODE)).status is OutcomeStatus.UNKNOWN
    assert len(actuator.cluster.effects()) == 1


def _execute(path: Path) -> None:
    SimulatedActuator(path).execute(action(ActionKind.RESTART_JOB))


@pytest.mark.parametrize(("mode", "effects"), [(Mishap.DIE_BEFORE, 0), (Mishap.DIE_AFTER, 1)])
def test_survives_its_process(actuator: SimulatedActuator, mode: Mishap, effects: int) -> None:
    """Killed before the effect nothing is left, after it one effect; a repeat makes it exactly one."""
    actuator.cluster.plan_mishap(mode)
    child = multiprocessing.get_context("spawn").Process(target=_execute, args=(actuator.cluster.path,))
    child.start()
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    assert len(actuator.cluster.effects()) == effects
    actuator.execute(action(ActionKind.RESTART_JOB))
    assert actuator.cluster.facts(TARGETS[SubjectKind.JOB])["restarts"] == "1"


def test_a_file_that_is_no_cluster_is_said_clearly(tmp_path: Path) -> None:
    """A damaged file is Permanent and named; a locked one is Temporary."""
    (tmp_path / "bad").write_bytes(b"not a database" * 100)
    with pytest.raises(Permanent, match="bad"):
        SimulatedActuator(tmp_path / "bad")
    cluster = SimulatedCluster(tmp_path / "good", lock_timeout_s=0.05)
    holder = sqlite3.connect(tmp_path / "good", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Temporary, match="locked"):
        cluster.facts(NODE)
    holder.close()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(EFFECTS)), st.integers(0, 3)), max_size=12))
def test_any_sequence_has_one_effect_per_id(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[ActionKind, int]]
) -> None:
    """However calls repeat and interleave, each id changes the world exactly once, in the order first asked."""
    made = SimulatedActuator(tmp_path_factory.mktemp("w") / "world", lambda: 1.0)
    for target in TARGETS.values():
        made.cluster.add(target)
    asked = [action(kind, f"{kind}-{number}") for kind, number in calls]
    for one in asked:
        made.execute(one)
    assert [effect.action_id for effect in made.cluster.effects()] == list(dict.fromkeys(one.id for one in asked))
