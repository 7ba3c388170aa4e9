"""A rack's plan is carried out node by node, once each, whatever happens between two of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import (
    Action,
    ActionKind,
    ActionOutcome,
    Actuator,
    BlastRadius,
    OutcomeStatus,
    Precondition,
    UnderWay,
    Undo,
    node_steps,
)
from nightshift.controllers.actuators.simulated import Mishap, SimulatedActuator, SimulatedCluster
from nightshift.controllers.rack_actuator import RackActuator

NODES = tuple(Subject(SubjectKind.NODE, f"n{number}") for number in range(5))
PLAN = Action(
    "inc-1-drain-rack-0",
    ActionKind.DRAIN_RACK,
    Subject(SubjectKind.RACK, "r7"),
    "its switch tray failed",
    BlastRadius(nodes=tuple(node.name for node in NODES)),
    Undo(True, "uncordon its nodes", ActionKind.UNCORDON),
    2_000.0,
    preconditions=tuple(Precondition(node, "drained", "false") for node in NODES),
)


def made(folder: Path) -> tuple[SimulatedCluster, RackActuator]:
    cluster = SimulatedCluster(folder / "cluster.sqlite")
    for node in NODES:
        cluster.add(node)
    return cluster, RackActuator(SimulatedActuator(cluster.path, lambda: 1_000.0))


def drained(cluster: SimulatedCluster) -> list[str]:
    return sorted(effect.target.name for effect in cluster.effects() if not effect.undo)


def test_it_is_an_actuator_that_drains_racks_where_the_inner_one_drains_nodes(tmp_path: Path) -> None:
    _, actuator = made(tmp_path)
    assert isinstance(actuator, Actuator)
    assert ActionKind.DRAIN_RACK in actuator.kinds()


def test_each_node_is_drained_once_and_taken_back_once(tmp_path: Path) -> None:
    cluster, actuator = made(tmp_path)
    assert actuator.changed(PLAN) == []
    assert actuator.read(PLAN).status is OutcomeStatus.NOT_DONE
    assert actuator.execute(PLAN).status is OutcomeStatus.DONE
    assert actuator.read(PLAN).status is OutcomeStatus.DONE
    assert actuator.execute(PLAN).detail == "5 nodes: 5 done"
    assert drained(cluster) == ["n0", "n1", "n2", "n3", "n4"]
    assert len(actuator.changed(PLAN)) == 5, "each node's precondition is its own"
    assert actuator.undo(PLAN).status is OutcomeStatus.DONE
    assert sum(effect.undo for effect in cluster.effects()) == 5


@pytest.mark.parametrize("times", range(1, 5))
def test_a_reply_that_is_lost_after_some_nodes_costs_nothing(tmp_path: Path, times: int) -> None:
    cluster, actuator = made(tmp_path)
    for part in node_steps(PLAN)[:times]:
        actuator._inner.execute(part)
    assert actuator.read(PLAN).status is OutcomeStatus.UNDER_WAY
    cluster.plan_mishap(Mishap.LOST_REPLY, times=times + 1)  # the done ones hear nothing of it
    with pytest.raises(Temporary):
        actuator.execute(PLAN)
    assert actuator.execute(PLAN).status is OutcomeStatus.DONE
    assert drained(cluster) == ["n0", "n1", "n2", "n3", "n4"]


class Odd:
    """Drains, but for what `said` has of a node."""

    name = "odd"

    def __init__(self, said: dict[str, ActionOutcome | Exception]) -> None:
        self.said, self.asked = said, list[str]()

    def kinds(self) -> frozenset[ActionKind]:
        return frozenset({ActionKind.DRAIN})

    def execute(self, action: Action) -> ActionOutcome:
        self.asked.append(action.target.name)
        found = self.said.get(action.target.name, ActionOutcome(OutcomeStatus.DONE, "", 1.0))
        if isinstance(found, Exception):
            raise found
        return found

    read = undo = execute


def rack_of(said: dict[str, ActionOutcome | Exception]) -> tuple[RackActuator, Odd]:
    odd = Odd(said)
    return RackActuator(odd), odd  # type: ignore[arg-type]


def test_a_node_that_waits_keeps_no_other_from_its_turn() -> None:
    actuator, odd = rack_of({"n0": UnderWay("pods are leaving")})
    with pytest.raises(UnderWay, match="5 nodes: 4 done, 1 under way"):
        actuator.execute(PLAN)
    assert odd.asked == ["n0", "n1", "n2", "n3", "n4"]


def test_a_node_that_is_refused_fails_the_plan_once_the_others_ended() -> None:
    actuator, odd = rack_of({"n2": Permanent("a budget forbids it"), "n3": UnderWay("pods are leaving")})
    with pytest.raises(UnderWay):
        actuator.execute(PLAN)
    odd.said.pop("n3")
    outcome = actuator.execute(PLAN)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.left_cordoned
    assert "n2: a budget forbids it" in outcome.detail


def test_what_is_unknown_of_one_node_is_unknown_of_the_plan() -> None:
    actuator, _ = rack_of({"n4": ActionOutcome(OutcomeStatus.UNKNOWN, "who knows", 1.0)})
    assert actuator.read(PLAN).status is OutcomeStatus.UNKNOWN


def test_other_kinds_pass_through() -> None:
    actuator, odd = rack_of({})
    actuator.execute(replace(PLAN, kind=ActionKind.DRAIN, target=NODES[3]))
    assert odd.asked == ["n3"]
