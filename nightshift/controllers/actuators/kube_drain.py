"""Drains a node: cordons it, stops gangs whole and starts them elsewhere, evicts the rest; a step a call.

A node may be deleted, or another machine may come up under its name, in the middle of it: cloud repair and
autoscalers do that to bad nodes. Then nothing is done to the other machine, and the jobs that were stopped are
started again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nightshift.collectors.base import Permanent
from nightshift.collectors.kubernetes.api import Refused
from nightshift.controllers.action import Action, ActionKind, Outcome, OutcomeStatus, UnderWay
from nightshift.controllers.actuators import kube_nodes
from nightshift.controllers.actuators.kube_client import KubeClient, Object
from nightshift.controllers.actuators.kube_marks import Marks, cordoning
from nightshift.controllers.actuators.kube_workloads import POLL_S, STOPPED, Workloads


@dataclass(frozen=True)
class Limits:
    """What a drain may take along: as `kubectl drain` has it by its flags. `grace_s` None: each pod's own."""

    grace_s: int | None
    evict_unmanaged: bool
    evict_local_data: bool


class Drains:
    """Carries drains out and reads them back. `owns_cordon`: whether a node's cordon is ours alone."""

    def __init__(
        self,
        kube: KubeClient,
        marks: Marks,
        work: Workloads,
        limits: Limits,
        owns_cordon: Callable[[Object], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._kube, self._marks, self._work, self._limits = kube, marks, work, limits
        self._owns_cordon, self._now_s = owns_cordon, now_s
        self._known: dict[str, set[str]] = {}
        """Gangs by action, those among them that the plan does not name: where the node goes, so does its mark."""

    def execute(self, action: Action) -> Outcome:
        """UnderWay until all of it is done. The node's marker names the gangs before the first of them is stopped,
        so that none is left stopped when the last pod has gone."""
        path = kube_nodes.path(action.target.name)
        node = self._kube.find(path)
        marked = node is not None and self._marks.has(node, action)
        if not marked and (stopped := self._work.stopped_by(action, self._jobs(action))):
            what = "is gone" if node is None else "is another machine now, or our mark was taken off it"
            return self._carry_on(action, stopped, f"{action.target.name} {what}")
        if node is None:
            return self._outcome(OutcomeStatus.REFUSED, f"{action.target} does not exist any more")
        if marked and not kube_nodes.is_cordoned(node):
            stopped = self._work.stopped_by(action, self._work.gangs_of(node, action), STOPPED)
            return self._carry_on(action, stopped, "a person has uncordoned it during the drain; that stands")
        left = kube_nodes.evictable(self._kube, action.target.name)
        gangs, single = self._work.gangs(left)
        known = self._work.gangs_of(node, action)
        if not marked and (obstacles := self._obstacles(gangs, single)):
            return self._refused(action, f"nothing was changed: {'; '.join(obstacles)}")
        if not marked or not gangs <= known:
            known |= gangs
            theirs = kube_nodes.is_cordoned(node) and not self._owns_cordon(node)
            change = cordoning(node, ActionKind.DRAIN)
            self._marks.patch(path, node, action, change, jobs=sorted(known), theirs=theirs)
        self._known[action.id] = known
        waits = [wait for gang in sorted(known) if (wait := self._cycle(gang, action, here=gang in gangs))]
        waits += [kept for pod in single if (kept := self._evict(pod))]
        if not waits and not left:
            more = ", ".join(sorted(known - {*action.blast_radius.jobs}))
            also = f"; stopped and started, too, though the plan does not name it: {more}" if more else ""
            self._known.pop(action.id, None)
            return self._outcome(OutcomeStatus.DONE, f"{action.target} cordoned and empty of evictable pods{also}")
        said = f"{len(left)} pods left; {'; '.join(wait.text for wait in waits)}"
        if waits and all(wait.refused for wait in waits):  # what can be done is done
            why = f"drain of {action.target.name} cannot go on, and the node stays cordoned: {said}"
            if self._work.stopped_by(action, known):
                raise Permanent(why)
            return Outcome(OutcomeStatus.FAILED, why, self._now_s(), {"cordoned": "true"})
        after_s = max([POLL_S, *(wait.retry_after_s for wait in waits)])
        raise UnderWay(f"drain of {action.target.name}: {said}", retry_after_s=after_s)

    def _jobs(self, action: Action) -> set[str]:
        return {*action.blast_radius.jobs, *self._known.get(action.id, ())}

    def read(self, action: Action) -> Outcome:
        """DONE where the node stands cordoned by us and empty, and every gang was started again."""
        node = self._kube.find(kube_nodes.path(action.target.name))
        marked = node is not None and self._marks.has(node, action)
        if node is None or not marked:
            begun = bool(self._work.stopped_by(action, self._jobs(action)))
            status = OutcomeStatus.UNDER_WAY if begun else OutcomeStatus.NOT_DONE
            return self._outcome(status, f"{action.target} bears no mark of {action.id}")
        gangs = self._work.gangs_of(node, action)
        done = not kube_nodes.evictable(self._kube, action.target.name) and not self._work.stopped_by(action, gangs)
        if not kube_nodes.is_cordoned(node):
            begun = bool(self._work.stopped_by(action, gangs, STOPPED))
            status = OutcomeStatus.UNDER_WAY if begun else OutcomeStatus.NOT_DONE
            return self._outcome(status, f"{action.target} is not cordoned any more")
        status = OutcomeStatus.DONE if done else OutcomeStatus.UNDER_WAY
        observed = {"cordoned": "true", "marked": "true"}
        return Outcome(status, f"{action.kind} of {action.target} read back", self._now_s(), observed)

    def _carry_on(self, action: Action, stopped: list[str], why: str) -> Outcome:
        """The drain is over, whoever ended it: jobs that it stopped are started again, and that is all."""
        waits = [wait.text for gang in stopped if (wait := self._cycle(gang, action)) and not wait.refused]
        if waits:
            raise UnderWay(f"{why}; {'; '.join(waits)}", retry_after_s=POLL_S)
        if left := self._work.stopped_by(action, stopped):
            raise Permanent(f"{why}; still stopped, and may not be started again: {', '.join(left)}")
        return self._refused(action, f"{why}; started again: {', '.join(stopped)}" if stopped else why)

    def _cycle(self, gang: str, action: Action, *, here: bool = False) -> kube_nodes.Wait | None:
        """What is waited for of one gang, which is `here` on the node or was; a refusal of one is kept until no
        other is left half-way."""
        try:
            text = self._work.cycle_named(gang, action, here=here)
        except Permanent as error:
            return kube_nodes.Wait(str(error), refused=True)
        return None if text is None else kube_nodes.Wait(text)

    def _evict(self, pod: Object) -> kube_nodes.Wait | None:
        """What is waited for of one pod of a drain that has begun; None where it is gone."""
        if kept := self._keeps(pod):
            return kube_nodes.Wait(kept)  # it came after the drain had begun
        try:
            wait = kube_nodes.evict(self._kube, pod, self._limits.grace_s)
            late = kube_nodes.overdue([pod], self._now_s())
            return replace(wait, text=wait.text + late) if wait is not None and late else wait
        except Refused as error:  # permitted when it was asked as a dry run, and no more
            return kube_nodes.Wait(f"pod {kube_nodes.pod_name(pod)}: {error}", refused=True)

    def _keeps(self, pod: Object) -> str | None:
        """Why a pod is not evicted, as `kubectl drain` without its flags says it; None where it may be."""
        name = kube_nodes.pod_name(pod)
        if pod["metadata"].get("deletionTimestamp"):
            return None
        if kube_nodes.unmanaged(pod) and not self._limits.evict_unmanaged:
            return f"pod {name} has no controller and would not come back (evict_unmanaged)"
        if kube_nodes.has_local_data(pod) and not self._limits.evict_local_data:
            return f"pod {name} has data on this node's disk (evict_local_data)"
        return None

    def _obstacles(self, gangs: set[str], single: list[Object]) -> list[str]:
        """What would stop a drain half-way for good, found out before its first change: pods that are kept, jobs
        that cannot be stopped, evictions that an admission webhook or a role forbids (asked as a dry run)."""
        said = [kept for pod in single if (kept := self._keeps(pod))] + self._work.unstoppable(gangs)
        for pod in single if not said else []:
            try:
                kube_nodes.evict(self._kube, pod, self._limits.grace_s, dry_run=True)
            except Refused as error:
                said.append(f"pod {kube_nodes.pod_name(pod)}: {error}")
        return said

    def _outcome(self, status: OutcomeStatus, detail: str) -> Outcome:
        return Outcome(status, detail, self._now_s())

    def _refused(self, action: Action, why: str) -> Outcome:
        return self._outcome(OutcomeStatus.REFUSED, f"{action.kind} of {action.target}: {why}")
