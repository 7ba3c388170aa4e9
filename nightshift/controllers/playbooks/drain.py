"""Drain a node: cordon it and move its jobs, each from its newest checkpoint."""

from __future__ import annotations

from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import ActionKind, ActionProposal, Precondition, Situation, Undo
from nightshift.controllers.playbooks.plan import (
    Economy,
    Reach,
    crash_gpu_hours,
    draw_up,
    number,
    place_of,
    restart_gpu_hours,
)
from nightshift.detectors.base import Fault, Finding, State

_SUFFERING = frozenset({Fault.STRAGGLER, Fault.HANG, Fault.LOSS_DIVERGED, Fault.LOSS_NONFINITE})


class Drain:
    """Fits a degraded node only where a job on it already suffers: else a cordon is enough."""

    kind = ActionKind.DRAIN

    def __init__(self, economy: Economy | None = None) -> None:
        self._economy = economy or Economy()

    def propose(self, situation: Situation) -> ActionProposal:
        node = place_of(situation, SubjectKind.NODE)
        if node is None:
            return ActionProposal(None, "unknown which single node is affected")
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
