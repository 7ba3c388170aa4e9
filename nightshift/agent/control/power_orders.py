"""Orders to nodes as leases: what each node's GPUs may have, and what the agent had ordered before; and what nodes
complain of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from nightshift.controllers.actuators.power_nodes import NodeStatus
from nightshift.controllers.power import clocks, shield


def leases(
    ordered_mw: Mapping[str, int],
    gpus: Iterable[shield.Gpu],
    memory: shield.Memory,
    term: int,
    ttl_s: float,
    locks: clocks.Memory,
) -> dict[str, dict[str, Any]]:
    """Node → lease (`power_leases.Lease`). None for a limit that a person set, nor for a node that lied. Clocks are
    in it only where there are any: a node agent from before they were takes the rest."""
    by_node: dict[str, dict[str, int]] = defaultdict(dict)
    held: dict[str, int] = {}
    for gpu in gpus:
        if gpu.uuid in ordered_mw and gpu.uuid not in memory.manual and gpu.node not in memory.liars:
            by_node[gpu.node][gpu.uuid] = ordered_mw[gpu.uuid]
        if gpu.enforced_mw is not None and gpu.uuid in memory.confirmed:
            held[gpu.uuid] = gpu.enforced_mw
    found: dict[str, dict[str, Any]] = {
        node: {
            "id": "power",
            "term": term,
            "ttl_s": ttl_s,
            "limits_mw": limits,
            "held_mw": {u: held[u] for u in limits if u in held},
        }
        for node, limits in by_node.items()
    }
    for lease in found.values():
        mine = lease["limits_mw"]
        if ordered := {u: mhz for u, mhz in locks.ordered_mhz.items() if u in mine}:
            lease["clocks_mhz"] = ordered
        ours = locks.changed_s.keys() - locks.ordered_mhz.keys() - locks.manual - locks.odd.keys()
        if freed := sorted(ours & mine.keys()):
            lease["clocks_freed"] = freed
        if left := sorted(locks.manual & mine.keys()):
            lease["clocks_left"] = left
    return found


def complaints(told: Mapping[str, NodeStatus], before: Mapping[str, NodeStatus]) -> list[tuple[str, str]]:
    """(node, what is wrong with it), where that is news."""
    return [
        (n, s.error) for n, s in sorted(told.items()) if s.error and s.error != before.get(n, NodeStatus()).error
    ]
