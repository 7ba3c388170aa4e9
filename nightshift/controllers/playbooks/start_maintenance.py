"""Have the cloud do the maintenance that it announced now, while no job runs on the machine.

GKE alone takes that request through Kubernetes. It taints the node and ends its pods itself.
"""

from __future__ import annotations

from nightshift.collectors.kubernetes.makers import GKE, REPLACED_BY
from nightshift.collectors.subject import Subject
from nightshift.controllers.action import ActionKind, ActionProposal, Precondition, Situation, Undo
from nightshift.controllers.playbooks.plan import Reach, Remedy, draw_up, notice_due_s


class StartMaintenance(Remedy):
    """Fits a notice of GKE for a node without jobs."""

    kind = ActionKind.START_MAINTENANCE

    def plan(self, situation: Situation, node: Subject) -> ActionProposal:
        made_by = situation.inventory.fact(node, REPLACED_BY) or ""
        reach = Reach.of(situation, node)
        if notice_due_s(situation, node) is None:
            return ActionProposal(None, "its cloud announces no maintenance")
        if not made_by.startswith(f"{GKE} "):
            return ActionProposal(None, "its cloud does not take that request through Kubernetes")
        if reach.jobs:
            return ActionProposal(None, "jobs run here: they move first")
        why = "no job runs here: the announced maintenance costs nothing now"
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            node,
            why=why,
            undo=Undo(False, "GKE does not take the request back"),
            nodes=(node,),
            gpus=reach.gpus,
            preconditions=(Precondition(node, REPLACED_BY, made_by),),
        )
        return ActionProposal(action, why)
