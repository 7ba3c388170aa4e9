"""Drain a node: cordon it and move its jobs, each from its newest checkpoint."""

from __future__ import annotations

import math
from dataclasses import replace

from nightshift.collectors.subject import Subject
from nightshift.controllers.action import ActionKind, ActionProposal, Precondition, Situation, Undo
from nightshift.controllers.playbooks.plan import (
    Reach,
    Remedy,
    crash_gpu_hours,
    draw_up,
    notice_due_s,
    number,
    restart_gpu_hours,
)
from nightshift.controllers.playbooks.spares import params_of, released, words_of
from nightshift.detectors.base import Fault, Finding, State

_SUFFERING = frozenset({Fault.STRAGGLER, Fault.HANG, Fault.LOSS_DIVERGED, Fault.LOSS_NONFINITE})


class Drain(Remedy):
    """Fits a degraded node only where a job on it already suffers: else a cordon is enough. Fits a machine that its
    cloud takes away where jobs run there: they move before it goes."""

    kind = ActionKind.DRAIN

    def plan(self, situation: Situation, node: Subject) -> ActionProposal:
        # a drain stops every job of the node: worth it only where one is already losing more than that
        due_s, reach = notice_due_s(situation, node), Reach.of(situation, node)
        suffering = sorted({f.fault.value for f in situation.findings if self._suffers(situation, f, node)})
        if due_s is not None and reach.jobs:
            why = "its cloud takes the machine away, and its jobs would end without a checkpoint"
        elif suffering:
            why = f"jobs on it already suffer ({', '.join(suffering)})"
        elif situation.cause is Fault.NODE_CONDITION:
            return ActionProposal(None, "no job runs here" if due_s is not None else "a cordon is enough")
        else:
            return ActionProposal(None, "no job suffers yet: a cordon is enough")
        spares = released(situation.inventory, (node,), situation.at_s) if reach.jobs else ()
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
            note=words_of(spares),
            params=params_of(spares),
            preconditions=(Precondition(node, "drained", "false"),),
        )
        # a drain after the machine went would be of another one
        ends_s = min(action.expires_at_s, math.inf if due_s is None else due_s)
        return ActionProposal(replace(action, expires_at_s=ends_s), why)

    def _suffers(self, situation: Situation, finding: Finding, node: Subject) -> bool:
        """Whether a finding says that work on this node suffers now."""
        now = finding.fault in _SUFFERING and finding.state is not State.CLEAR
        return now and node in Reach.of(situation, finding.subject).nodes
