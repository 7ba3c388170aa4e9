"""Drain the nodes of a rack that one failed part of it serves: one plan, and no more nodes than the part.

What is drained follows from what failed. A switch tray, a lost fabric or coolant: the rack's whole NVLink domain. A
power shelf: the nodes that it feeds. Else the nodes that are bad themselves, and the others keep running. A node is
counted to a rack only where labels, the topology file and the GPUs' own fabric do not contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.topology import COOLANT, FEEDS, MEMBERS, PART, POWER_SHELF, SPARE, SWITCH_TRAY, conflict
from nightshift.controllers.action import ActionKind, ActionProposal, Precondition, Situation, Undo
from nightshift.controllers.playbooks.plan import (
    Reach,
    Remedy,
    crash_gpu_hours,
    draw_up,
    number,
    restart_gpu_hours,
)
from nightshift.controllers.playbooks.spares import params_of, released, words_of
from nightshift.detectors.base import Fault, Finding, State
from nightshift.detectors.hardware.xid_catalogue import LINK_XIDS

LEAST_NODES = 4
"""So many bad nodes are a rack's fault: as many as make a storm (`agent.correlation`)."""
_WHOLE = frozenset({SWITCH_TRAY, COOLANT})
_BAD = frozenset(
    {
        Fault.NVLINK_DEGRADED,
        Fault.PCIE_DEGRADED,
        Fault.THROTTLE,
        Fault.XID,
        Fault.GPU_LOST,
        Fault.DRIVER_ERROR,
        Fault.HOST_ERROR,
        Fault.NODE_CONDITION,
        Fault.SOURCE_LOST,
    }
)
"""What makes a node of the rack a bad one."""
_K = SubjectKind


class DrainRack(Remedy):
    """Fits where a part of the rack says that it failed, or where several nodes of one rack are bad at once."""

    kind = ActionKind.DRAIN_RACK
    unknown = "not the fault of one rack"

    def subject(self, situation: Situation) -> Subject | None:
        bad = _bad_nodes(situation)
        part = _failed_part(situation)
        racks = {_rack(situation.inventory, s, situation.at_s) for s in (*bad, *([part] if part else []))}
        enough = part is not None or len(bad) >= LEAST_NODES
        return racks.pop() if enough and len(racks) == 1 else None

    def plan(self, situation: Situation, rack: Subject) -> ActionProposal:
        inventory, at_s = situation.inventory, situation.at_s
        bad, part = _bad_nodes(situation), _failed_part(situation)
        # the file may name nodes that another cluster has
        here = [
            node
            for node in inventory.children(rack, at_s, _K.NODE)
            if inventory.parents(node, at_s, _K.CLUSTER) or inventory.gpus(node, at_s)
        ]
        doubted = {node: why for node in here if (why := conflict(inventory, node, at_s))}
        chosen, cause = _served(situation, rack, bad, part)
        nodes = tuple(sorted(node for node in chosen & set(here) if node not in doubted))
        if not nodes:
            words = "; ".join(sorted(set(doubted.values()))) or "none of its nodes is known here"
            return ActionProposal(None, f"{rack.name}: {words}", refused=bool(doubted))
        reaches = [Reach.of(situation, node) for node in nodes]
        jobs = tuple(sorted({job for reach in reaches for job in reach.jobs}))
        gpus = tuple(sorted({gpu for reach in reaches for gpu in reach.gpus}))
        busy = tuple(node for node, reach in zip(nodes, reaches, strict=True) if reach.jobs)
        spares = released(inventory, busy, at_s)
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            rack,
            why=cause,
            undo=Undo(True, "uncordon its nodes; moved jobs stay where they went", ActionKind.UNCORDON),
            stops=jobs,
            nodes=nodes,
            gpus=gpus,
            cost_gpu_hours=restart_gpu_hours(situation, self._economy, jobs, number(situation, "checkpoint_s")),
            waiting_gpu_hours=crash_gpu_hours(situation, self._economy, jobs),
            note="; ".join(filter(None, (words_of(spares), _note(inventory, rack, here, nodes, doubted)))),
            params=params_of(spares),
            preconditions=tuple(Precondition(node, "drained", "false") for node in nodes),
        )
        return ActionProposal(action, cause)


def _bad_nodes(situation: Situation) -> set[Subject]:
    """Nodes with a finding of their own that is not clear."""
    found = (f for f in situation.findings if f.fault in _BAD and f.state is not State.CLEAR)
    at_s = situation.at_s
    nodes = {_node(situation.inventory, finding, at_s) for finding in found}
    return {node for node in nodes if node is not None}


def _node(inventory: Inventory, finding: Finding, at_s: float) -> Subject | None:
    # a GPU that is gone has left its node: where it was at the onset counts
    times = (at_s, finding.since.t_s)
    return next((node for t_s in times if (node := inventory.above(finding.subject, _K.NODE, t_s))), None)


def _rack(inventory: Inventory, subject: Subject, at_s: float) -> Subject | None:
    return inventory.above(subject, _K.RACK, at_s)


def _failed_part(situation: Situation) -> Subject | None:
    """The rack's own part, by the topology file, that says it failed."""
    for finding in situation.findings:
        if finding.fault is Fault.PART_FAILED and finding.state is not State.CLEAR:
            holder = Subject(_K.PART, finding.subject.name.partition("/")[0])
            if situation.inventory.fact(holder, PART):
                return holder
    return None


def _is_link(finding: Finding) -> bool:
    codes = str(finding.facts.get("codes", "")).split() or [str(finding.facts.get("xid", ""))]
    xids = {int(float(code)) for code in codes if code.replace(".", "", 1).isdigit()}
    return finding.fault is Fault.NVLINK_DEGRADED or (finding.fault is Fault.XID and bool(xids & LINK_XIDS))


def _served(
    situation: Situation, rack: Subject, bad: set[Subject], part: Subject | None
) -> tuple[set[Subject], str]:
    """(nodes to drain, why)."""
    inventory, at_s = situation.inventory, situation.at_s
    whole = set(inventory.children(rack, at_s, _K.NODE))
    sort = inventory.fact(part, PART) if part is not None else None
    if part is not None and sort in _WHOLE:
        return whole, f"{sort.replace('_', ' ')} {part.name} serves the whole rack"
    if part is not None and sort == POWER_SHELF:
        fed = {Subject(_K.NODE, name) for name in (inventory.fact(part, FEEDS) or "").split()}
        return fed or whole, f"power shelf {part.name} feeds {len(fed) or len(whole)} nodes"
    fabric = {_node(inventory, f, at_s) for f in situation.findings if _is_link(f)}
    if bad and 2 * len(fabric & bad) > len(bad):
        domains = {inventory.above(node, _K.NVLINK_DOMAIN, at_s) for node in bad} - {None}
        inside = {n for d in domains if d is not None for n in inventory.children(d, at_s, _K.NODE)}
        if len(domains) <= 1:  # where no label names a domain, the rack is one
            return inside & whole or whole, f"{len(bad)} nodes lost their NVLink fabric together"
    return bad, f"{len(bad)} of {len(whole)} nodes are bad; the others keep running"


def _note(
    inventory: Inventory,
    rack: Subject,
    here: Iterable[Subject],
    nodes: tuple[Subject, ...],
    doubted: dict[Subject, str],
) -> str:
    spares = [n.name for n in here if n not in nodes and inventory.fact(n, SPARE) == "true"]
    members = int(inventory.fact(rack, MEMBERS) or 0)
    known = sum(1 for _ in here)
    told = []
    if spares:
        told.append(f"spares of this rack take its jobs first: {', '.join(sorted(spares))}")
    if members > known:
        told.append(f"{members - known} of its {members} nodes are not in this cluster: tell their operators")
    told += sorted(f"{node.name} is skipped: {why}" for node, why in doubted.items())
    return "; ".join(told)
