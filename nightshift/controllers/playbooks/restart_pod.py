"""Restart one pod that belongs to no gang: a rank of a larger job cannot restart without the others."""

from __future__ import annotations

import math

from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import ActionKind, ActionProposal, Precondition, Situation, Undo
from nightshift.controllers.playbooks.plan import BEFORE_CRASH_S, RESPONSE_S, Remedy, draw_up, number


class RestartPod(Remedy):
    """Fits leaks and crashes of a pod that runs alone, such as an inference server."""

    kind = ActionKind.RESTART_POD

    def plan(self, situation: Situation, pod: Subject) -> ActionProposal:
        inventory, at_s = situation.inventory, situation.at_s
        onset_s = number(situation, "since_s")
        # a crash empties its gang at once: now alone, the last pod of it would look single
        for when_s in [at_s] if math.isnan(onset_s) else [at_s, onset_s, onset_s - BEFORE_CRASH_S]:
            gangs = inventory.parents(pod, when_s, SubjectKind.JOB)
            job = next((j for j in gangs if len(inventory.children(j, when_s, SubjectKind.POD)) > 1), None)
            if job is not None:
                return ActionProposal(None, f"{pod.name} is one rank of {job.name}: the gang restarts together")
        gpus = len(inventory.gpus(pod, at_s))
        uid = inventory.fact(pod, "uid")
        why = "the fault is inside this one process, and nothing waits for it"
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            pod,
            why=why,
            undo=Undo(False, "a restart cannot be undone"),
            cost_gpu_hours=gpus * self._economy.restart_s / 3600.0,
            waiting_gpu_hours=gpus * (RESPONSE_S + self._economy.restart_s) / 3600.0,
            note=f"pod {pod.name} restarts",
            params={"uid": uid} if uid else {},
            preconditions=(Precondition(pod, "running", "true"),),
        )
        return ActionProposal(action, why)
