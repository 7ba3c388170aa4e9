"""Take one GPU out of use: no new work gets it, and the job on it moves off after its next checkpoint.

The mildest answer to memory that degrades while it still works: neighbours on the node keep running, and what is
lost is one GPU's capacity and a planned restart instead of a crash.
"""

from __future__ import annotations

from nightshift.collectors.subject import Subject
from nightshift.controllers.action import ActionKind, ActionProposal, Precondition, Situation, Undo
from nightshift.controllers.playbooks.plan import (
    REPEAT_PROBABILITY,
    Reach,
    Remedy,
    crash_gpu_hours,
    draw_up,
    held_by,
    job_gpus,
)
from nightshift.detectors.base import Fault


class QuarantineGpu(Remedy):
    """Fits faults of one GPU that need it idle, not gone."""

    kind = ActionKind.QUARANTINE_GPU

    def plan(self, situation: Situation, gpu: Subject) -> ActionProposal:
        jobs = Reach.of(situation, gpu).jobs
        memory = situation.cause in (Fault.HBM_IMMINENT, Fault.HBM_DEGRADED)
        usual = (
            "its memory degrades" if memory else situation.facts.get("recovery_reason", "its error is not cleared")
        )
        why = f"{situation.facts.get('return', usual)}; no new work gets this GPU"
        # it moves at its next checkpoint, since the GPU still works: a restart now would lose the work since the
        # last
        goes = not situation.facts.keys().isdisjoint(("return", "remap_failure"))
        if jobs:
            why += f", and {jobs[0].name} moves off it after its next checkpoint"
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            gpu,
            why=why,
            undo=Undo(True, "lift the quarantine: the GPU is given to work again", None),
            stops=jobs,
            gpus=(gpu,),
            cost_gpu_hours=job_gpus(situation, jobs) * self._economy.restart_s / 3600.0,
            waiting_gpu_hours=REPEAT_PROBABILITY * crash_gpu_hours(situation, self._economy, jobs),
            note="the row remapping takes effect with the next GPU reset" if "remap" in situation.facts else "",
            params={"after_checkpoint": True, **held_by(situation, gpu), **({"for_return": True} if goes else {})},
            preconditions=(Precondition(gpu, "quarantined", "false"),),
        )
        return ActionProposal(action, why)
