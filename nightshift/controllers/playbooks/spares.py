"""Warm spares: which of them a plan releases for the nodes that it takes, and whether a node returns as one.

A warm spare is ready and takes work, but for the taint `nightshift.dev/spare`. The topology file states the share
of nodes to be kept so. A drain releases as many as it takes nodes with jobs, nearest first. A node that is given
back becomes a spare as long as the share is not met.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.topology import SPARE_SHARE, SPARE_TAINT

RELEASES, AS_SPARE = "releases", "as_spare"
"""Parameters of plans: names of spares, separated by blanks; that the node returns with the spares' taint."""
_K = SubjectKind


def warm(inventory: Inventory, at_s: float) -> Iterator[Subject]:
    """The warm spares, in order of their names."""
    for node in inventory.subjects(_K.NODE, at_s):
        facts = inventory.facts(node)
        takes_work = facts.get("unschedulable") == "false" and facts.get("ready") == "true"
        if takes_work and SPARE_TAINT in facts.get("taints", "").split(","):
            yield node


def released(inventory: Inventory, leaving: tuple[Subject, ...], at_s: float) -> tuple[Subject, ...]:
    """One warm spare for each node that leaves, as far as there are any: of its NVLink domain first, then of its
    rack, then any."""
    free = [node for node in warm(inventory, at_s) if node not in leaving]
    places = {node: inventory.nearest(node, (_K.NVLINK_DOMAIN, _K.RACK), at_s) for node in (*free, *leaving)}

    def distance(spare: Subject, node: Subject) -> int:
        near = [a is not None and a == b for a, b in zip(places[spare], places[node], strict=True)]
        return near.index(True) if any(near) else len(near)

    found: list[Subject] = []
    for node in leaving:
        if free:
            found.append(min(free, key=lambda spare: (distance(spare, node), spare.name)))
            free.remove(found[-1])
    return tuple(found)


def lacking(inventory: Inventory, at_s: float) -> int:
    """How many warm spares the stated share lacks; 0 where none is stated."""
    share = float(inventory.fact(inventory.cluster, SPARE_SHARE) or 0.0)
    if not share:
        return 0
    nodes = sum(1 for node in inventory.subjects(_K.NODE, at_s) if inventory.fact(node, "uid"))
    return max(0, math.ceil(share * nodes) - sum(1 for _ in warm(inventory, at_s)))


def params_of(spares: tuple[Subject, ...]) -> dict[str, str]:
    return {RELEASES: " ".join(node.name for node in spares)} if spares else {}


def words_of(spares: tuple[Subject, ...]) -> str:
    return f"warm spares released for its jobs: {', '.join(node.name for node in spares)}" if spares else ""
