"""Reset one GPU: clears an error that NVIDIA's catalogue, or the driver itself by Xid 154, says needs a reset."""

from __future__ import annotations

from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import ActionKind, ActionProposal, Situation, Undo
from nightshift.controllers.playbooks.plan import (
    RESET_S,
    Reach,
    Remedy,
    crash_gpu_hours,
    draw_up,
    number,
    restart_gpu_hours,
)
from nightshift.controllers.playbooks.probes import probe_for


class ResetGpu(Remedy):
    """Fits only where a reset is called for by Xid; the job on the GPU has lost its process already, or will."""

    kind = ActionKind.RESET_GPU

    def plan(self, situation: Situation, gpu: Subject) -> ActionProposal:
        # only where the driver, or the catalogue of Xids, says so: it ends whatever runs on the GPU
        if situation.facts.get("recovery_action") != ActionKind.RESET_GPU.value:
            return ActionProposal(None, "no Xid calls for a reset")
        jobs = Reach.of(situation, gpu).jobs
        node = situation.inventory.above(gpu, SubjectKind.NODE, situation.at_s)
        if node is None:
            return ActionProposal(None, f"unknown which node holds {gpu.name}")
        why = str(situation.facts.get("recovery_reason", "its Xid calls for a GPU reset"))
        cost = restart_gpu_hours(situation, self._economy, jobs, number(situation, "checkpoint_s"))
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            gpu,
            why=why,
            undo=Undo(False, "a reset cannot be undone; the GPU returns to service once its check passes"),
            stops=jobs,
            gpus=(gpu,),
            cost_gpu_hours=cost + RESET_S / 3600.0,
            waiting_gpu_hours=crash_gpu_hours(situation, self._economy, jobs),
            note="its job restarts from the newest checkpoint once the GPU is back"
            if jobs
            else "no job runs on it",
            params={"node": node.name, "probe": probe_for(situation.cause)},
        )
        return ActionProposal(action, why)
