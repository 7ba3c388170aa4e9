"""Warm spares: released nearest first for the nodes that a plan takes, and kept as a stated share by returns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.topology import TopologyCollector, TopologySettings
from nightshift.controllers.action import ActionKind, Situation
from nightshift.controllers.playbooks.drain_rack import DrainRack
from nightshift.controllers.playbooks.return_node import return_node
from nightshift.controllers.playbooks.spares import AS_SPARE, RELEASES, lacking, released, warm
from tests.controllers.playbooks.test_drain_rack import AT_S, finding, fleet, node, proposed

K = SubjectKind
SPARES = (node(16), node(17), node(17, "r8"))


def with_spares(*, cold: tuple[Subject, ...] = ()) -> Inventory:
    """Two racks of 18; three nodes have the spares' taint, `cold` ones among them are cordoned."""
    inventory = fleet()
    for each in inventory.subjects(K.NODE, AT_S):
        taints = "nightshift.dev/spare" if each in SPARES else "other"
        inventory.describe(
            each, uid=each.name, ready="true", taints=taints, unschedulable=str(each in cold).lower()
        )
    return inventory


def with_job(inventory: Inventory, *nodes: Subject) -> Inventory:
    for each in nodes:
        pod = Subject(K.POD, f"ml/{each.name}")
        inventory.observe(inventory.gpus(each, AT_S)[0], pod, 0.0)
        inventory.observe(pod, each, 0.0)
        inventory.observe(pod, Subject(K.JOB, "ml/a"), 0.0)
    return inventory


def test_spares_of_the_same_domain_are_released_first_and_none_that_is_taken_itself() -> None:
    inventory = with_spares()
    assert released(inventory, (node(0, "r8"),), AT_S) == (node(17, "r8"),)
    assert released(inventory, (node(0), node(1), node(2)), AT_S) == SPARES
    assert released(inventory, (node(0), node(16)), AT_S) == (node(17), node(17, "r8"))
    assert released(inventory, tuple(node(n) for n in range(9)), AT_S) == SPARES
    inventory.observe(node(17, "r8"), Subject(K.NVLINK_DOMAIN, "d"), 0.0)
    inventory.observe(node(0), Subject(K.NVLINK_DOMAIN, "d"), 0.0)
    assert released(inventory, (node(0),), AT_S) == (node(17, "r8"),)
    assert list(warm(with_spares(cold=SPARES[:2]), AT_S)) == [node(17, "r8")]


def test_a_rack_plan_releases_one_spare_for_each_node_with_jobs() -> None:
    bad = [finding(node(n)) for n in (1, 3, 5, 7)]
    action, _ = proposed(with_job(with_spares(), node(3), node(5)), bad)
    assert action is not None
    assert action.params[RELEASES] == "r7-n16 r7-n17"
    assert "warm spares released for its jobs: r7-n16, r7-n17" in action.blast_radius.note
    idle, _ = proposed(with_spares(), bad)
    assert idle is not None
    assert RELEASES not in idle.params
    assert DrainRack.kind is ActionKind.DRAIN_RACK


@pytest.mark.parametrize(("share", "lacks"), [(0.0, 0), (0.05, 0), (0.1, 1), (0.25, 6)])
def test_a_node_returns_as_a_spare_while_the_stated_share_is_not_met(
    tmp_path: Path, share: float, lacks: int
) -> None:
    inventory = with_spares()
    file = tmp_path / "racks.yaml"
    file.write_text(f"{{spare_share: {share}, racks: {{r7: {{nodes: [r7-n00]}}}}}}")
    assert TopologyCollector(TopologySettings(path=file)).collect(AT_S, inventory, 1.0).sources[0].ok
    assert lacking(inventory, AT_S) == lacks
    told = finding(node(0))
    situation = Situation("INC-1", told.fault, told.subject, (told,), inventory, AT_S)
    drained, _ = proposed(inventory, [finding(node(n)) for n in range(4)])
    assert drained is not None
    back = return_node(situation, [replace(drained, target=node(0))])
    assert back.params.get(AS_SPARE, False) is (lacks > 0)
