"""Drain a node: cordon it and move its jobs, each from its newest checkpoint."""

from __future__ import annotations

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
from nightshift.detectors.base import Fault, Finding, State

_SUFFERING = frozenset({Fault.STRAGGLER, Fault.HANG, Fault.LOSS_DIVERGED, Fault.LOSS_NONFINITE})


class Drain(Remedy):
    """Fits a degraded node only where a job on it already suffers: else a cordon is enough."""

    kind = ActionKind.DRAIN

    def plan(self, situation: Situation, node: Subject) -> ActionProposal:
        # a drain stops every job of the node: worth it only where one is already losing more than that
        suffering = sorted({f.fault.value for f in situation.findings if self._suffers(situation, f, node)})
        if not suffering:
            return ActionProposal(None, "no job suffers yet: a cordon is enough")
        reach = Reach.of(situation, node)
        why = f"jobs on it already suffer ({', '.join(suffering)})"
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            node,
            why=why,
            undo=Undo(True, "uncordon the node; moved jobs stay where they went", ActionKind.UNCORDON),
            stops=reach.jobs,
            nodes=(node,),
            gpus=reach.gpus,
            cost_gpu_hours=restart_gpu_hours(
                situation, self._economy, reach.jobs, number(situation, "checkpoint_s")
            ),
            waiting_gpu_hours=crash_gpu_hours(situation, self._economy, reach.jobs),
            preconditions=(Precondition(node, "drained", "false"),),
        )
        return ActionProposal(action, why)

    def _suffers(self, situation: Situation, finding: Finding, node: Subject) -> bool:
        """Whether a finding says that work on this node suffers now."""
        now = finding.fault in _SUFFERING and finding.state is not State.CLEAR
        return now and node in Reach.of(situation, finding.subject).nodes
