"""Suggest more replicas of a Deployment that lost one. Never done: an autoscaler or a repository owns that number.

The suggestion names the owner and the change; whoever owns it decides. What was read is the outcome of the action.
"""

from __future__ import annotations

from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import ActionKind, ActionProposal, Situation, Undo
from nightshift.controllers.playbooks.plan import Remedy, draw_up


class SuggestScaling(Remedy):
    """Fits what serves: pods that a ReplicaSet made, where nothing milder repairs them."""

    kind = ActionKind.SUGGEST_SCALING

    unknown = "unknown which single workload is affected"

    def plan(self, situation: Situation, job: Subject) -> ActionProposal:
        inventory, at_s = situation.inventory, situation.at_s
        pods = inventory.children(job, at_s, SubjectKind.POD)
        if not any(inventory.fact(pod, "job_kind") == "ReplicaSet" for pod in pods):
            return ActionProposal(None, "it is no Deployment: another replica would not help")
        why = "a replica of it is lost or slow; the owner of its replica count may add one until it recovers"
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            job,
            why=why,
            undo=Undo(False, "a suggestion changes nothing"),
            note="nothing is scaled: the suggestion names the owner and the change",
            needs_approval=False,
        )
        return ActionProposal(action, why)
