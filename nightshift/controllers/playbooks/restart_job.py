"""Restart a job once, from the right checkpoint: the newest for a leak, stall or hang, one from before the onset
where its weights may be damaged. Later checkpoints are kept: they are evidence, and the diagnosis may be wrong."""

from __future__ import annotations

import math

from nightshift.collectors.subject import Subject
from nightshift.controllers.action import ActionKind, ActionProposal, Precondition, Situation, Undo
from nightshift.controllers.playbooks.plan import (
    HORIZON_S,
    RESPONSE_S,
    Remedy,
    crash_gpu_hours,
    draw_up,
    job_gpus,
    number,
    restart_gpu_hours,
)
from nightshift.detectors.base import Fault

LEAKS = frozenset({Fault.GPU_MEMORY_LEAK, Fault.HOST_MEMORY_LEAK})
DAMAGED = frozenset({Fault.LOSS_DIVERGED, Fault.LOSS_NONFINITE})


class RestartJob(Remedy):
    """Fits leaks, damaged training, stalls that cost more than a restart, hangs and crashed applications."""

    kind = ActionKind.RESTART_JOB

    def plan(self, situation: Situation, job: Subject) -> ActionProposal:
        silent = situation.facts.get("silent_storage")
        if silent:
            return ActionProposal(
                None, f"no answer from {silent}: what waits for it cannot be stopped, and would wait again"
            )
        if situation.cause in DAMAGED:
            return self._from_before_the_onset(situation, job)
        return self._from_the_newest(situation, job)

    def _from_before_the_onset(self, situation: Situation, job: Subject) -> ActionProposal:
        step, saved_s = number(situation, "safe_checkpoint_step"), number(situation, "safe_checkpoint_s")
        if math.isnan(step):
            return ActionProposal(
                None, "no checkpoint from before the onset was seen: where to resume is the owner's call"
            )
        # all that it does until a person looks is thrown away: it trains on damaged weights
        wasted = job_gpus(situation, (job,)) * (RESPONSE_S + self._economy.restart_s) / 3600.0
        cost = restart_gpu_hours(situation, self._economy, (job,), saved_s)
        why = (
            f"training is damaged since step {number(situation, 'onset_step'):.0f}; the newest checkpoint "
            f"from before that is step {step:.0f}. Later checkpoints are kept and must not be resumed from"
        )
        return self._answer(situation, job, why, cost, cost + wasted, int(step))

    def _from_the_newest(self, situation: Situation, job: Subject) -> ActionProposal:
        step, saved_s = number(situation, "checkpoint_step"), number(situation, "checkpoint_s")
        cost = restart_gpu_hours(situation, self._economy, (job,), saved_s)
        waiting = crash_gpu_hours(situation, self._economy, (job,))
        # a job that stalls still trains: a restart throws work away that a slow one keeps
        if situation.cause is Fault.DATA_STALL:
            waiting = number(situation, "lost_fraction") * job_gpus(situation, (job,)) * HORIZON_S / 3600
            if waiting < cost:
                return ActionProposal(
                    None, f"a restart costs {cost:.1f} GPU-h, the stalls {waiting:.1f} GPU-h in a shift"
                )
        why = {
            Fault.DATA_STALL: "the input pipeline stalls the job; a restart renews its loader workers",
            Fault.HANG: "the job makes no progress and will not recover on its own",
        }.get(situation.cause, "its process must restart")
        if situation.cause in LEAKS:
            why = "memory that the process keeps comes back only with a new process"
        return self._answer(situation, job, why, cost, waiting, None if math.isnan(step) else int(step))

    def _answer(
        self, situation: Situation, job: Subject, why: str, cost: float, waiting: float, step: int | None
    ) -> ActionProposal:
        params: dict[str, str | int | float | bool] = {"keep_checkpoints": True}
        if step is not None:
            params["checkpoint_step"] = step
        if situation.cause in DAMAGED or situation.cause is Fault.HANG:
            params["save_first"] = False  # what it would save now is damaged, or never comes
        # an owner who submits it anew under its name has done what is proposed: that one is not to be stopped
        uid = situation.inventory.fact(job, "uid")
        same = (Precondition(job, "uid", uid),) if uid else ()
        note = "" if step is not None else "no checkpoint was seen in its log: it resumes as its own settings say"
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            job,
            why=why,
            undo=Undo(False, "a restart cannot be undone; every checkpoint is kept"),
            stops=(job,),
            cost_gpu_hours=cost,
            waiting_gpu_hours=waiting,
            note=note,
            params=params,
            preconditions=(
                Precondition(job, "running", "false" if situation.cause is Fault.XID else "true"),
                *same,
            ),
        )
        return ActionProposal(action, why)
