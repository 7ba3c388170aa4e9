"""What the API server says of nodes reaches the guard: capacity that people took counts."""

from __future__ import annotations

from nightshift.agent.incidents.advisor import out_of_use
from nightshift.collectors.subject import Inventory, Subject, SubjectKind


def node(name: str) -> Subject:
    return Subject(SubjectKind.NODE, name)


def test_cordoned_and_unready_nodes_are_out_of_use_and_gone_ones_are_not() -> None:
    inventory = Inventory()
    for name in ("well", "cordoned", "unready", "unknown", "gone"):
        inventory.observe(node(name), inventory.cluster, 0.0)
    inventory.describe(node("well"), unschedulable="false", ready="true")
    inventory.describe(node("cordoned"), unschedulable="true", ready="true")
    inventory.describe(node("unready"), unschedulable="false", ready="false")
    inventory.describe(node("gone"), unschedulable="true")
    inventory.end(node("gone"), inventory.cluster, 5.0)
    assert out_of_use(inventory, 10.0) == {node("cordoned"), node("unready")}
