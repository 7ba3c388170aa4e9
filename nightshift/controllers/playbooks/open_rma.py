"""Open a return case with the vendor: for hardware that no reset repairs. It changes nothing in the cluster."""

from __future__ import annotations

from nightshift.collectors.subject import Subject
from nightshift.controllers.action import ActionKind, ActionProposal, Situation, Undo
from nightshift.controllers.playbooks.plan import Remedy, draw_up, held_by, number


class OpenRma(Remedy):
    """Fits a failed row remapping, and a GPU whose fault came back after a repair."""

    kind = ActionKind.OPEN_RMA

    def plan(self, situation: Situation, gpu: Subject) -> ActionProposal:
        # in order of how sure they are: the vendor's own criterion, ours for repeat offenders, one repair in vain
        if "remap_failure" in situation.facts:
            why = "a row remapping failed (Xid 64): NVIDIA's criterion for a return"
        elif "return" in situation.facts:
            why = str(situation.facts["return"])
        elif number(situation, "repairs") >= 1:
            why = "the fault came back after a repair"
        else:
            return ActionProposal(None, "no criterion for a return is met")
        action = draw_up(
            situation,
            self._economy,
            self.kind,
            gpu,
            why=why,
            undo=Undo(True, "close the case"),
            params={"model": situation.inventory.fact(gpu, "model") or "not known", **held_by(situation, gpu)},
        )
        return ActionProposal(action, why)
