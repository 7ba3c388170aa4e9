"""Taint a node: nothing new starts there but what says that it tolerates this fault.

Softer than a cordon: work that the fault does not hurt (one node of a job that spans none, a diagnosis) may go on
using the node by its toleration, and no cordon is touched that a person, an autoscaler or a vendor's repair owns.
"""

from __future__ import annotations

from nightshift.collectors.subject import Subject
from nightshift.controllers.action import ActionKind, ActionProposal, Precondition, Situation, Undo
from nightshift.controllers.playbooks.plan import Reach, Remedy, draw_up


class Taint(Remedy):
    """Fits what a cordon fits, where cordons are not ours to make."""

    kind = ActionKind.TAINT

    def plan(self, situation: Situation, node: Subject) -> ActionProposal:
        value = situation.cause.value.replace("_", "-")
        why = f"new work that does not tolerate {value} should not start here until it is repaired"
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            node,
            why=why,
            undo=Undo(True, "take the taint off"),
            nodes=(node,),
            gpus=Reach.of(situation, node).gpus,
            note="running jobs are not touched",
            params={"value": value},
            preconditions=(Precondition(node, "tainted", "false"),),
        )
        return ActionProposal(action, why)
