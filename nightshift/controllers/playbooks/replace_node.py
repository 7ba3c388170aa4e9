"""Replace a node with hardware that no repair mends, where what made the node makes another.

A rented machine has no vendor whom its user could ask for an exchange: it is given back, and another one comes.
"""

from __future__ import annotations

from nightshift.collectors.kubernetes.makers import CLUSTER_API, GKE, KARPENTER, REASON, REPLACED_BY
from nightshift.collectors.subject import Subject
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
from nightshift.detectors.base import Fault


class ReplaceNode(Remedy):
    """Fits what a return to the vendor fits, on nodes of Karpenter, Cluster API and GKE."""

    kind = ActionKind.REPLACE_NODE

    def plan(self, situation: Situation, node: Subject) -> ActionProposal:
        made_by = situation.inventory.fact(node, REPLACED_BY) or ""
        sort, _, name = made_by.partition(" ")
        if not made_by:
            return ActionProposal(None, "nothing in the cluster would make another node")
        if sort not in (KARPENTER, CLUSTER_API, GKE):
            return ActionProposal(None, f"pool {name} ({sort.upper()}) replaces machines by the cloud's API alone")
        reach = Reach.of(situation, node)
        spares = released(situation.inventory, (node,), situation.at_s) if reach.jobs else ()
        why = str(situation.facts.get("return", "a row remapping failed (Xid 64): no reset repairs that"))
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            node,
            why=why,
            undo=Undo(False, "the machine is given back"),
            stops=reach.jobs,
            nodes=(node,),
            gpus=reach.gpus,
            cost_gpu_hours=restart_gpu_hours(
                situation, self._economy, reach.jobs, number(situation, "checkpoint_s")
            ),
            waiting_gpu_hours=crash_gpu_hours(situation, self._economy, reach.jobs),
            note="; ".join(filter(None, ("what is on the machine's own disks goes with it", words_of(spares)))),
            params={**params_of(spares), REASON: "XID" if situation.cause is Fault.XID else "unspecified"},
            preconditions=(Precondition(node, REPLACED_BY, made_by),),
        )
        return ActionProposal(action, why)
