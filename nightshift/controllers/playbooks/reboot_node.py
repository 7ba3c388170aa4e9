"""Reboot a node: for a GPU that fell off the bus, or where the driver says that nothing less helps (Xid 154)."""

from __future__ import annotations

from nightshift.collectors.subject import Subject
from nightshift.controllers.action import ActionKind, ActionProposal, Situation, Undo
from nightshift.controllers.playbooks.plan import (
    REBOOT_S,
    Reach,
    Remedy,
    crash_gpu_hours,
    draw_up,
    number,
    restart_gpu_hours,
)
from nightshift.controllers.playbooks.probes import probe_for


class RebootNode(Remedy):
    """Fits only where a reboot is called for by Xid; every job on the node moves first."""

    kind = ActionKind.REBOOT_NODE

    def plan(self, situation: Situation, node: Subject) -> ActionProposal:
        if situation.facts.get("recovery_action") != ActionKind.REBOOT_NODE.value:
            return ActionProposal(None, "no Xid calls for a reboot")
        reach = Reach.of(situation, node)
        why = str(situation.facts.get("recovery_reason", "its Xid calls for a node reboot"))
        cost = restart_gpu_hours(situation, self._economy, reach.jobs, number(situation, "checkpoint_s"))
        params: dict[str, str | int | float | bool] = {"drain_first": True, "probe": probe_for(situation.cause)}
        if for_gpu := situation.facts.get("gpu"):
            params["gpu"] = str(for_gpu)
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            node,
            why=why,
            undo=Undo(False, "a reboot cannot be undone; the node is uncordoned once its checks pass"),
            stops=reach.jobs,
            nodes=(node,),
            gpus=reach.gpus,
            cost_gpu_hours=cost + len(reach.gpus) * REBOOT_S / 3600.0,
            waiting_gpu_hours=crash_gpu_hours(situation, self._economy, reach.jobs),
            params=params,
        )
        return ActionProposal(action, why)
