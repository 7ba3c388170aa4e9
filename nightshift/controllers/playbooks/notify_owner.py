"""Tell the owner: where only they can repair it, or where nothing less than their decision is right."""

from __future__ import annotations

from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import ActionKind, ActionProposal, Situation, Undo
from nightshift.controllers.playbooks.plan import HORIZON_S, Reach, Remedy, draw_up, job_of, number
from nightshift.detectors.base import Fault

_ASKS = {
    Fault.OOM_KILL: "raise the memory limit or lower the demand: it will be killed again otherwise",
    Fault.JOB_CRASH: "read the lines that decide: the job does not return without a change or a restart",
    Fault.POD_START: "check what Kubernetes reports about the pods: they wait until that is changed",
    Fault.DATA_STALL: "check the input pipeline and its storage",
    Fault.STRAGGLER: "check whether this rank's share of work or data is larger than its peers'",
    Fault.THROTTLE: "check power and cooling at this GPU's place in the rack",
}


class NotifyOwner(Remedy):
    """Changes nothing in the cluster; possible wherever a job is known."""

    kind = ActionKind.NOTIFY_OWNER

    unknown = "no one job, and so no owner, is known"

    def subject(self, situation: Situation) -> Subject | None:
        # such a place has jobs of many owners: none of them is the one to tell
        wide = (SubjectKind.NODE, SubjectKind.RACK, SubjectKind.CLUSTER, SubjectKind.SOURCE)
        return None if situation.subject.kind in wide else job_of(situation)

    def plan(self, situation: Situation, target: Subject) -> ActionProposal:
        silent = situation.facts.get("silent_storage")
        others = situation.facts.get("other_jobs")
        why = (
            f"restore {silent}: the job waits for it and then continues" + (f"; so do {others}" if others else "")
            if silent
            else _ASKS.get(situation.cause, "what to do is the owner's decision")
        )
        gpus = len(Reach.of(situation, target).gpus)
        lost = number(situation, "lost_fraction")
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            target,
            why=why,
            undo=Undo(False, "a message cannot be unsent; nothing else changes"),
            waiting_gpu_hours=lost * gpus * HORIZON_S / 3600.0,
            params={"owner": str(situation.facts.get("owner", "not known"))},
            needs_approval=False,
        )
        return ActionProposal(action, why)
