"""One plan for a rack: which nodes, why, and what keeps a node out of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.topology import CLIQUE_LABEL, FABRIC, FEEDS, MEMBERS, PART, RACK_LABEL, SPARE
from nightshift.controllers.action import Action, Situation
from nightshift.controllers.guard import Limit, rule
from nightshift.controllers.guard import Settings as GuardSettings
from nightshift.controllers.playbooks.drain_rack import DrainRack
from nightshift.detectors.base import Fault, Finding, Severity, State

K, AT_S = SubjectKind, 1_000.0
RACK = Subject(K.RACK, "r7")


def node(number: int, rack: str = "r7") -> Subject:
    return Subject(K.NODE, f"{rack}-n{number:02d}")


def fleet(racks: Sequence[str] = ("r7", "r8"), nodes: int = 18) -> Inventory:
    """Racks of 18 nodes with 4 GPUs each, in a cluster."""
    inventory = Inventory()
    for rack in racks:
        inventory.describe(Subject(K.RACK, rack), **{MEMBERS: "18"})
        for number in range(nodes):
            here = node(number, rack)
            inventory.observe(here, inventory.cluster, 0.0)
            inventory.observe(here, Subject(K.RACK, rack), 0.0)
            for gpu in range(4):
                inventory.observe(Subject(K.GPU, f"{here.name}-g{gpu}"), here, 0.0)
    for part, kind, feeds in (("r7-shelf-1", "power_shelf", range(9)), ("r7-switch-1", "switch_tray", ())):
        inventory.observe(Subject(K.PART, part), RACK, 0.0)
        inventory.describe(Subject(K.PART, part), **{PART: kind, FEEDS: " ".join(node(n).name for n in feeds)})
    return inventory


def finding(subject: Subject, fault: Fault = Fault.HOST_ERROR, **facts: str) -> Finding:
    now = Instant(AT_S)
    return Finding(
        "test", fault, subject, State.FIRING, now, now, Severity.CRITICAL, "is bad", 1.0, 0.5, facts=facts
    )


def proposed(inventory: Inventory, findings: Sequence[Finding]) -> tuple[Action | None, str]:
    found = DrainRack().propose(
        Situation("INC-1", findings[0].fault, findings[0].subject, tuple(findings), inventory, AT_S)
    )
    return found.action, found.reason


def names(action: Action | None) -> list[str]:
    assert action is not None
    assert action.target == RACK
    return [name.removeprefix("r7-n") for name in action.blast_radius.nodes]


def test_what_is_drained_is_what_the_failed_part_serves() -> None:
    inventory = fleet()
    shelf = finding(Subject(K.PART, "r7-shelf-1/PSU 2"), Fault.PART_FAILED)
    tray = finding(Subject(K.PART, "r7-switch-1/ASIC"), Fault.PART_FAILED)
    assert names(proposed(inventory, [shelf])[0]) == [f"{n:02d}" for n in range(9)]
    assert len(names(proposed(inventory, [tray])[0])) == 18
    bad = [finding(node(n)) for n in (1, 3, 5, 7, 9)]
    action, why = proposed(inventory, bad)
    assert names(action) == ["01", "03", "05", "07", "09"]
    assert why == "5 of 18 nodes are bad; the others keep running"
    links = [finding(node(n), Fault.NVLINK_DEGRADED) for n in range(9)]
    action, why = proposed(inventory, links)
    assert (len(names(action)), why) == (18, "9 nodes lost their NVLink fabric together")


def test_an_xid_of_a_link_is_the_fabric_and_another_is_not() -> None:
    inventory = fleet()
    for codes, count in (("74", 18), ("79", 5)):
        found = [finding(Subject(K.GPU, f"{node(n).name}-g0"), Fault.XID, codes=codes) for n in range(5)]
        assert len(names(proposed(inventory, found)[0])) == count


@pytest.mark.parametrize(
    "bad",
    [
        [node(1), node(2), node(3)],
        [node(1), node(2), node(1, "r8"), node(2, "r8"), node(3, "r8")],
        [Subject(K.NODE, f"loose-{n}") for n in range(6)],
    ],
)
def test_few_nodes_two_racks_and_no_rack_are_not_one_racks_fault(bad: list[Subject]) -> None:
    action, why = proposed(fleet(), [finding(one) for one in bad])
    assert (action, why) == (None, "not the fault of one rack")


def test_a_node_that_labels_or_fabric_contradict_is_skipped_with_the_reason() -> None:
    inventory = fleet()
    inventory.describe(node(1), **{RACK_LABEL: "r9"})
    inventory.describe(node(2), **{CLIQUE_LABEL: "aa.1"})
    inventory.describe(Subject(K.GPU, "r7-n02-g0"), **{FABRIC: "bb.1"})
    inventory.describe(Subject(K.GPU, "r7-n03-g0"), **{FABRIC: "aa.1"})
    inventory.describe(Subject(K.GPU, "r7-n03-g1"), **{FABRIC: "aa.2"})
    action, _ = proposed(inventory, [finding(node(n)) for n in range(6)])
    assert names(action) == ["00", "04", "05"]
    assert action is not None
    for words in ("says rack r9", "NVLink domain aa.1, its GPUs bb.1", "several fabrics: aa.1, aa.2"):
        assert words in action.blast_radius.note


def test_where_every_node_is_contradicted_a_person_has_to_look() -> None:
    inventory = fleet()
    for number in range(18):
        inventory.describe(node(number), **{RACK_LABEL: "r9"})
    action, why = proposed(inventory, [finding(node(n)) for n in range(6)])
    assert action is None
    assert "says rack r9" in why


def test_half_a_rack_in_another_cluster_is_said_and_left_alone() -> None:
    inventory = fleet(nodes=9)
    for number in range(9, 18):  # by the file alone: no source of this cluster has them
        inventory.observe(node(number), RACK, 0.0)
    action, _ = proposed(inventory, [finding(Subject(K.PART, "r7-switch-1/ASIC"), Fault.PART_FAILED)])
    assert len(names(action)) == 9
    assert action is not None
    assert "9 of its 18 nodes are not in this cluster" in action.blast_radius.note


def test_spares_of_the_rack_are_named() -> None:
    inventory = fleet()
    inventory.describe(node(17), **{SPARE: "true"})
    action, _ = proposed(inventory, [finding(node(n)) for n in range(6)])
    assert action is not None
    assert "spares of this rack take its jobs first: r7-n17" in action.blast_radius.note


def test_the_guard_counts_the_drained_nodes_and_the_clusters_share_holds() -> None:
    """A rack's own share is not asked for its own plan; another rack's node beside it is counted as ever."""
    few, many = fleet(), fleet(tuple(f"r{n}" for n in range(7, 27)))
    tray = finding(Subject(K.PART, "r7-switch-1/ASIC"), Fault.PART_FAILED)
    action, _ = proposed(few, [tray])
    assert action is not None
    assert rule(action, [], few, AT_S).limit is Limit.CLUSTER_CAPACITY
    assert rule(action, [], many, AT_S).allowed
    bad, _ = proposed(many, [finding(node(n)) for n in range(6)])
    assert bad is not None
    ruling = rule(bad, [], many, AT_S, GuardSettings(cluster_fraction=24 / 1440))
    assert ruling.allowed, "six nodes of four GPUs, not the rack's 72"
