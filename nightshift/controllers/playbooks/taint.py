"""Taint a node: nothing new starts there but what says that it tolerates this fault.

Softer than a cordon: work that the fault does not hurt (one node of a job that spans none, a diagnosis) may go on
using the node by its toleration, and no cordon is touched that a person, an autoscaler or a vendor's repair owns.
"""

from __future__ import annotations

from nightshift.collectors.subject import SubjectKind
from nightshift.controllers.action import ActionKind, ActionProposal, Precondition, Situation, Undo
from nightshift.controllers.playbooks.plan import Economy, Reach, draw_up, place_of


class Taint:
    """Fits what a cordon fits, where cordons are not ours to make."""

    kind = ActionKind.TAINT

    def __init__(self, economy: Economy | None = None) -> None:
        self._economy = economy or Economy()

    def propose(self, situation: Situation) -> ActionProposal:
        node = place_of(situation, SubjectKind.NODE)
        if node is None:
            return ActionProposal(None, "unknown which single node is affected")
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
