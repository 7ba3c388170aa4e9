"""Cordon a node: what runs there goes on, nothing new starts."""

from __future__ import annotations

from nightshift.collectors.subject import Subject
from nightshift.controllers.action import ActionKind, ActionProposal, Precondition, Situation, Undo
from nightshift.controllers.playbooks.plan import Reach, Remedy, draw_up
from nightshift.detectors.base import Fault

_WHY = {
    Fault.THROTTLE: "its GPUs run throttled; new work would be slow here",
    Fault.NVLINK_DEGRADED: "a link degrades; new jobs that span this node would suffer",
    Fault.PCIE_DEGRADED: "a bus degrades; new work would suffer",
    Fault.NETWORK_DEGRADED: "a network link degrades; new jobs that span this node would suffer",
}


class Cordon(Remedy):
    """Fits node-wide degradation under which running jobs still make progress."""

    kind = ActionKind.CORDON

    def plan(self, situation: Situation, node: Subject) -> ActionProposal:
        why = _WHY.get(situation.cause, "until it is repaired, nothing new should start here")
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            node,
            why=why,
            undo=Undo(True, "uncordon the node", ActionKind.UNCORDON),
            nodes=(node,),
            gpus=Reach.of(situation, node).gpus,
            note="running jobs are not touched",
            preconditions=(Precondition(node, "cordoned", "false"),),
        )
        return ActionProposal(action, why)
