"""Acts on a Kubernetes cluster: cordon, uncordon, drain, quarantine, replace, restart a pod or a whole job.

Each effect leaves a marker with the action's id in the same write that makes it (an annotation of the object), so
that a repeat, or a reader after a crash, finds its own work. Every patch holds only for the version that was read.
What takes long (a drain, a job that stops) is done a step a call: `execute` raises UnderWay until it is done.

What is somebody else's stays theirs: a node that a person cordoned is never uncordoned here, and a person who takes
our cordon back has the last word.

A drain cordons the node, stops gangs whole and starts them elsewhere, and evicts the rest. A node may be deleted,
or another machine may come up under its name, in the middle of it: cloud repair and autoscalers do that to bad
nodes. Then nothing is done to the other machine, and the jobs that were stopped are started again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.kubernetes.api import ACCESS, Access, AccessSettings, Refused
from nightshift.collectors.kubernetes.makers import (
    CLUSTER_API,
    GKE,
    GKE_DUE,
    GKE_START,
    KARPENTER,
    REASON,
    REPLACED_BY,
    maker,
)
from nightshift.collectors.shared_settings import completed, stated_once
from nightshift.collectors.subject import SubjectKind
from nightshift.controllers.action import (
    Action,
    ActionKind,
    ActionOutcome,
    OutcomeStatus,
    Precondition,
    UnderWay,
)
from nightshift.controllers.actuators import kube_jobs, kube_nodes, kube_rights
from nightshift.controllers.actuators.kube_client import KubeClient, NotFound, Object, named
from nightshift.controllers.actuators.kube_marks import MARKER, Marks, cordoning
from nightshift.controllers.actuators.kube_workloads import POLL_S, STOPPED, Workloads, pod_path, suggest_scaling
from nightshift.controllers.actuators.site import Arrows, SiteActuator, word
from nightshift.controllers.cordon import CORDON_OF, NOBODY, SOMEBODY_ELSE, cordon_ids
from nightshift.controllers.playbooks.spares import RELEASES


@dataclass(frozen=True)
class DrainLimits:
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
        limits: DrainLimits,
        owns_cordon: Callable[[Object], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._kube, self._marks, self._work, self._limits = kube, marks, work, limits
        self._owns_cordon, self._now_s = owns_cordon, now_s
        self._known: dict[str, set[str]] = {}
        """Gangs by action, those among them that the plan does not name: where the node goes, so does its mark."""

    def execute(self, action: Action) -> ActionOutcome:
        """UnderWay until all of it is done. The node's marker names the gangs before the first of them is stopped,
        so that none is left stopped when the last pod has gone."""
        path = kube_nodes.path(action.target.name)
        node = self._kube.find(path)
        marked = node is not None and self._marks.has(node, action)
        if (lost := self._lost(action, node, marked)) is not None:
            return lost
        assert node is not None  # a node that is gone is lost
        # read again at every step: pods may have come between the plan and the cordon
        left = kube_nodes.evictable(self._kube, action.target.name)
        gangs, single = self._work.gangs(left)
        known = self._work.gangs_of(node, action)
        if not marked and (obstacles := self._obstacles(gangs, single)):
            return self._refused(action, f"nothing was changed: {'; '.join(obstacles)}")
        if not marked:  # first, since the mark says that this is done
            self._release_spares(action)
        if not marked or not gangs <= known:
            known |= gangs
            theirs = kube_nodes.is_cordoned(node) and not self._owns_cordon(node)
            change = cordoning(node, ActionKind.DRAIN)
            self._marks.patch(path, node, action, change, phase="cordoned", jobs=sorted(known), theirs=theirs)
        self._known[action.id] = known
        waits = [wait for gang in sorted(known) if (wait := self._cycle(gang, action, here=gang in gangs))]
        waits += [kept for pod in single if (kept := self._evict(pod))]
        return self._conclude(action, known, waits, len(left))

    def _release_spares(self, action: Action) -> None:
        """Takes the spares' taint off the nodes that the plan names; one that is gone or in use is left alone."""
        for name in str(action.params.get(RELEASES, "")).split():
            path = kube_nodes.path(name)
            spare = self._kube.find(path)
            if spare is not None and kube_nodes.is_spare(spare):
                change = {"spec": kube_nodes.spare_patch(spare, warm=False)}
                self._kube.merge(
                    path, change, version=str(spare["metadata"]["resourceVersion"]), manager=FIELD_MANAGER
                )

    def _lost(self, action: Action, node: Object | None, marked: bool) -> ActionOutcome | None:
        """Where the node is no longer ours to drain: what becomes of the jobs that were stopped for it."""
        if not marked and (stopped := self._work.stopped_by(action, self._jobs(action))):
            what = "is gone" if node is None else "is another machine now, or our mark was taken off it"
            return self._carry_on(action, stopped, f"{action.target.name} {what}")
        if node is None:
            return self._outcome(OutcomeStatus.REFUSED, f"{action.target} no longer exists")
        if marked and not kube_nodes.is_cordoned(node):
            stopped = self._work.stopped_by(action, self._work.gangs_of(node, action), STOPPED)
            return self._carry_on(
                action, stopped, "a person has uncordoned it during the drain; it stays uncordoned"
            )
        return None

    def _conclude(
        self, action: Action, known: set[str], waits: Sequence[kube_nodes.Wait], left: int
    ) -> ActionOutcome:
        """DONE where nothing is left (`left`: pods); else UnderWay, or given up where only refusals are left."""
        if not waits and not left:
            more = ", ".join(sorted(known - {*action.blast_radius.jobs}))
            also = f"; stopped and started, too, though the plan does not name it: {more}" if more else ""
            self._known.pop(action.id, None)
            return self._outcome(OutcomeStatus.DONE, f"{action.target} cordoned and empty of evictable pods{also}")
        said = f"{left} pods left; {'; '.join(wait.text for wait in waits)}"
        # while one is still on its way out it is waited for: giving up then would leave it half-way
        if waits and all(wait.refused for wait in waits):  # what can be done is done
            why = f"drain of {action.target.name} cannot continue; the node stays cordoned: {said}"
            if self._work.stopped_by(action, known):
                raise Permanent(why)
            return ActionOutcome(OutcomeStatus.FAILED, why, self._now_s(), {"cordoned": "true"})
        after_s = max([POLL_S, *(wait.retry_after_s for wait in waits)])
        raise UnderWay(f"drain of {action.target.name}: {said}", retry_after_s=after_s)

    def _jobs(self, action: Action) -> set[str]:
        return {*action.blast_radius.jobs, *self._known.get(action.id, ())}

    def read(self, action: Action) -> ActionOutcome:
        """DONE where the node stands cordoned by us and empty, and every gang was started again."""
        node = self._kube.find(kube_nodes.path(action.target.name))
        marked = node is not None and self._marks.has(node, action)
        if node is None or not marked:
            begun = bool(self._work.stopped_by(action, self._jobs(action)))
            status = OutcomeStatus.UNDER_WAY if begun else OutcomeStatus.NOT_DONE
            what = "no longer exists" if node is None else f"bears no mark of {action.id}"
            return self._outcome(status, f"{action.target} {what}")
        gangs = self._work.gangs_of(node, action)
        # a gang that only saves and has left the node is not stopped, though it may not be said to have ended
        begun = bool(self._work.stopped_by(action, gangs, STOPPED))
        done = not begun and not kube_nodes.evictable(self._kube, action.target.name)
        if not kube_nodes.is_cordoned(node):
            status = OutcomeStatus.UNDER_WAY if begun else OutcomeStatus.NOT_DONE
            return self._outcome(status, f"{action.target} is no longer cordoned")
        status = OutcomeStatus.DONE if done else OutcomeStatus.UNDER_WAY
        observed = {"cordoned": "true", "marked": "true"}
        return ActionOutcome(status, f"{action.kind} of {action.target} read back", self._now_s(), observed)

    def _carry_on(self, action: Action, stopped: list[str], why: str) -> ActionOutcome:
        """The drain is over, whoever ended it: jobs that it stopped are started again, and that is all."""
        waits = [wait.text for gang in stopped if (wait := self._cycle(gang, action)) and not wait.refused]
        if waits:
            raise UnderWay(f"{why}; {'; '.join(waits)}", retry_after_s=POLL_S)
        if left := self._work.stopped_by(action, stopped):
            raise Permanent(f"{why}; still stopped, and may not be started again: {', '.join(left)}")
        return self._refused(action, f"{why}; started again: {', '.join(stopped)}" if stopped else why)

    def start_stopped(self, action: Action, node: Object) -> None:
        """Starts the jobs again that a half-done drain has stopped. Raises UnderWay until they are."""
        gangs = self._work.gangs_of(node, action) | self._jobs(action)
        stopped = self._work.stopped_by(action, gangs, STOPPED)
        if waits := [wait.text for gang in stopped if (wait := self._cycle(gang, action))]:
            raise UnderWay("; ".join(waits), retry_after_s=POLL_S)

    def _cycle(self, gang: str, action: Action, *, here: bool = False) -> kube_nodes.Wait | None:
        """What is waited for of one gang, which is `here` on the node or was; a refusal of one is kept until no
        other is left half-way."""
        try:
            text = self._work.cycle_named(gang, action, on_node=here)
        except Permanent as error:
            return kube_nodes.Wait(str(error), refused=True)
        return None if text is None else kube_nodes.Wait(text)

    def _evict(self, pod: Object) -> kube_nodes.Wait | None:
        """What is waited for of one pod of a drain that has begun; None where it is gone."""
        # what would refuse the whole drain before it began only holds it up now: jobs are stopped already
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
        # dry runs ask admission webhooks too, so none is made where the drain is refused anyway
        for pod in single if not said else []:
            try:
                kube_nodes.evict(self._kube, pod, self._limits.grace_s, dry_run=True)
            except Refused as error:
                if kube_nodes.NO_DRY_RUN not in str(error):  # then nothing is known; the eviction itself may pass
                    said.append(f"pod {kube_nodes.pod_name(pod)}: {error}")
        return said

    def _outcome(self, status: OutcomeStatus, detail: str) -> ActionOutcome:
        return ActionOutcome(status, detail, self._now_s())

    def _refused(self, action: Action, why: str) -> ActionOutcome:
        return self._outcome(OutcomeStatus.REFUSED, f"{action.kind} of {action.target}: {why}")


_K, _A = SubjectKind, ActionKind


# Name under which writes are recorded. One name: it distinguishes Nightshift's cordons and gates from others'.
FIELD_MANAGER = "nightshift"


class DrainSettings(BaseModel):
    """What a drain may do to the pods of a node, and whose cordons it keeps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grace_s: int | None = Field(None, ge=0, description="Grace period of evicted pods (s); none: each pod's own")
    evict_unmanaged: bool = Field(False, description="Also evict pods that no controller would make again")
    evict_local_data: bool = Field(True, description="Also evict pods with an emptyDir; its data is deleted")
    save_wait_s: float = Field(
        300.0,
        ge=0,
        description="How long a job that saves on request has before it is stopped (s); 0: none is asked",
    )
    cordon_claims: tuple[str, ...] = Field(
        kube_nodes.CLAIMS,
        description="Annotations or labels that other tools put on a node they cordon; Nightshift then keeps "
        "the cordon",
    )


DrainRules = Annotated[SkipJsonSchema[DrainSettings], completed("drain")]


class KubernetesActuatorSettings(BaseModel):
    """How the agent reaches the cluster that it acts on."""

    model_config = ConfigDict(extra="forbid")

    access: Access = Field(default_factory=AccessSettings, description=ACCESS)
    drain: DrainRules = stated_once("drain", DrainSettings)
    actions: tuple[ActionKind, ...] | None = Field(
        default=None, description="Only these kinds of action; none: every kind that it knows."
    )

    @field_validator("actions")
    @classmethod
    def _are_known(cls, actions: tuple[ActionKind, ...] | None) -> tuple[ActionKind, ...] | None:
        unknown = [kind for kind in actions or () if kind not in kube_rights.RIGHTS]
        if unknown:
            raise ValueError(f"Kubernetes has no {', '.join(unknown)}; there are {', '.join(kube_rights.RIGHTS)}")
        return actions


class KubernetesActuator(SiteActuator):
    """Fulfils `controllers.action.Actuator` for one cluster."""

    plugin: ClassVar[str] = "kubernetes"
    Settings: ClassVar[type[BaseModel]] = KubernetesActuatorSettings

    def __init__(
        self, settings: KubernetesActuatorSettings, kube: KubeClient, *, now_s: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._kube, self._now_s = settings, kube, now_s
        self._warned: dict[str, tuple[str, ...]] = {}  # action → what was warned of in its tries so far
        self.marks = Marks(kube, FIELD_MANAGER, now_s)
        self.work = Workloads(kube, self.marks, FIELD_MANAGER, now_s, settings.drain.save_wait_s)
        drain = settings.drain
        limits = DrainLimits(drain.grace_s, drain.evict_unmanaged, drain.evict_local_data)
        self._drains = Drains(kube, self.marks, self.work, limits, self.owns_cordon, now_s)
        self._replacements = Replacements(kube, self.marks, self._drains, self.owns_cordon, now_s)

    @classmethod
    def from_settings(
        cls, settings: KubernetesActuatorSettings, now_s: Callable[[], float] = time.time
    ) -> KubernetesActuator:
        kube = KubeClient.connect(settings.access)
        return cls(settings, kube, now_s=now_s)

    def one_look(self) -> AbstractContextManager[None]:
        return self._kube.one_look()

    def refused(self) -> list[str]:
        """What the API server says that this identity may not do; `nightshift doctor` tells it."""
        kinds = [kind for kind in self.TARGETS if kind in self.kinds()]
        return kube_rights.refused(self._kube, kinds, namespaces=self._settings.access.namespaces)

    # The plan against the world ----------------------------------------------------------------------------------

    def _is_absent(self, error: Permanent) -> bool:
        return isinstance(error, NotFound)

    def _fact(self, action: Action, condition: Precondition) -> str | None:
        subject, fact = condition.subject, condition.fact
        match subject.kind, fact:
            case _K.NODE, "cordoned":
                return word(kube_nodes.is_cordoned(self._kube.get(kube_nodes.path(subject.name))))
            case _K.NODE, fact if fact == CORDON_OF:
                return self.cordon_of(self._kube.get(kube_nodes.path(subject.name)))
            case _K.NODE, "uid":
                return str(self._kube.get(kube_nodes.path(subject.name))["metadata"].get("uid", ""))
            case _K.NODE, fact if fact == REPLACED_BY:
                return maker(self._kube.get(kube_nodes.path(subject.name)))
            case _K.NODE, "tainted":
                return word(kube_nodes.is_tainted(self._kube.get(kube_nodes.path(subject.name))))
            case _K.NODE, "drained":
                node = self._kube.get(kube_nodes.path(subject.name))
                return word(kube_nodes.is_cordoned(node) and not kube_nodes.evictable(self._kube, subject.name))
            case _K.GPU, "quarantined":
                return word(kube_nodes.node_that_quarantines(self._kube, subject.name) is not None)
            case _K.POD, "running":
                pod = self._kube.get(pod_path(subject.name))
                return word((pod.get("status") or {}).get("phase") == "Running")
            case _K.JOB, ("running" | "uid"):
                job = kube_jobs.find(self._kube, subject)
                if job is None:
                    raise NotFound(f"{subject} does not exist", 404)
                if fact == "uid":
                    return str(job.object["metadata"].get("uid", ""))
                return word(not job.suspended and bool(kube_jobs.live_pods(self._kube, job)))
        return None

    # Acting ------------------------------------------------------------------------------------------------------

    def execute(self, action: Action) -> ActionOutcome:
        """What the API server warns of meanwhile stands in the outcome, of all the tries that it took."""
        self._kube.warnings()  # of other calls
        before = self._warned.pop(action.id, ())
        try:
            outcome = super().execute(action)
        except Temporary:
            self._warned[action.id] = (*before, *self._kube.warnings())
            raise
        said = dict.fromkeys((*before, *self._kube.warnings()))
        return replace(outcome, detail="; the API server warns: ".join((outcome.detail, *said)))

    def _suggest(self, action: Action) -> ActionOutcome:
        """Reads who owns the replica count and says what they would change; nothing is written."""
        namespace, name = kube_jobs.split(action.target)
        found = suggest_scaling(self._kube, namespace, name)
        if found is None:
            return self._refused(action, "it belongs to no Deployment")
        return self._outcome(OutcomeStatus.DONE, str(found))

    def _taint(self, action: Action) -> ActionOutcome:
        path = kube_nodes.path(action.target.name)
        node = self._kube.get(path)
        if self.marks.has(node, action):
            if not kube_nodes.is_tainted(node):
                return self._refused(action, "another client has removed the taint since; it stays removed")
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.id} tainted it before")
        if kube_nodes.is_tainted(node):
            return self._outcome(OutcomeStatus.ALREADY_DONE, "it has a taint that this action did not set")
        change = kube_nodes.taint_patch(node, str(action.params.get("value", "fault")))
        self.marks.patch(path, node, action, change)
        return self._outcome(OutcomeStatus.DONE, f"{action.target} tainted {kube_nodes.TAINT}")

    def _cordon(self, action: Action) -> ActionOutcome:
        node = self._kube.get(kube_nodes.path(action.target.name))
        if self.marks.has(node, action):
            if not kube_nodes.is_cordoned(node):
                return self._refused(action, "a person has uncordoned it since; it stays uncordoned")
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.id} cordoned it before")
        if kube_nodes.is_cordoned(node):
            return self._outcome(OutcomeStatus.ALREADY_DONE, "another client has cordoned it and must uncordon it")
        self.marks.patch(kube_nodes.path(action.target.name), node, action, cordoning(node, _A.CORDON))
        return self._outcome(OutcomeStatus.DONE, f"{action.target} cordoned")

    def _uncordon(self, action: Action) -> ActionOutcome:
        node = self._kube.get(kube_nodes.path(action.target.name))
        if not kube_nodes.is_cordoned(node):
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} is schedulable")
        ours = self.cordons(node)
        if not ours:
            return self._refused(action, "it was not cordoned by Nightshift; whoever did takes it back")
        annotations = {MARKER + kind: None for kind in ours}
        change: Object = {"spec": {"unschedulable": None}, "metadata": {"annotations": annotations}}
        self.marks.patch(kube_nodes.path(action.target.name), node, action, change)
        return self._outcome(OutcomeStatus.DONE, f"{action.target} uncordoned")

    def owns_cordon(self, node: Object) -> bool:
        """Whether a node's cordon is Nightshift's alone: then it may take it back."""
        return bool(self.cordons(node))

    def cordon_of(self, node: Object) -> str:
        """Whose cordon stands on a node (`controllers.cordon`)."""
        if not kube_nodes.is_cordoned(node):
            return NOBODY
        return cordon_ids(ours.values()) if (ours := self.cordons(node)) else SOMEBODY_ELSE

    def cordons(self, node: Object) -> dict[ActionKind, str]:
        """The ids of our actions whose cordon stands; none as soon as somebody else has a part in it: had it before
        us, wrote it after us by the API server's own record, or claims the node in their own words."""
        marks = {kind: mark for kind in (_A.CORDON, _A.DRAIN) if (mark := self.marks.of(node, kind)) is not None}
        theirs = any(mark.get("theirs") for mark in marks.values())
        theirs |= kube_nodes.cordoned_by(node) != {FIELD_MANAGER}
        if theirs or kube_nodes.claimed(node, self._settings.drain.cordon_claims):
            return {}
        return {kind: str(mark.get("id")) for kind, mark in marks.items()}

    def _quarantine(self, action: Action) -> ActionOutcome:
        """Labels and taints the node that holds the GPU: pods that run there stay, new ones go elsewhere."""
        name = str(action.params.get("node", ""))
        if not name:
            raise Permanent(f"action {action.id}: params.node is missing: which node holds {action.target}?")
        node = self._kube.get(kube_nodes.path(name))
        held = kube_nodes.quarantined(node)
        if action.target.name in held:
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} is quarantined on {name}")
        change = kube_nodes.quarantine_patch(node, [*held, action.target.name])
        self.marks.patch(kube_nodes.path(name), node, action, change)
        return self._outcome(OutcomeStatus.DONE, f"{action.target} quarantined on {name}")

    # Reading back and taking back --------------------------------------------------------------------------------

    def read(self, action: Action) -> ActionOutcome:
        self._check_target(action)
        if action.kind is _A.SUGGEST_SCALING:
            return self._outcome(OutcomeStatus.NOT_DONE, "a suggestion leaves no trace in the cluster")
        if action.kind in (_A.RESTART_POD, _A.RESTART_JOB):
            return self.work.read(action)
        if action.kind is _A.DRAIN:
            return self._drains.read(action)
        if action.kind is _A.REPLACE_NODE:
            return self._replacements.read(action)
        name = str(action.params.get("node", "")) if action.kind is _A.QUARANTINE_GPU else action.target.name
        node = self._kube.find(kube_nodes.path(name))
        if node is None:
            return self._outcome(OutcomeStatus.NOT_DONE, f"node {name} no longer exists")
        marked, cordoned = self.marks.has(node, action), kube_nodes.is_cordoned(node)
        match action.kind:
            case _A.UNCORDON:
                done = marked and not cordoned
            case _A.TAINT:
                done = marked and kube_nodes.is_tainted(node)
            case _A.START_MAINTENANCE:
                done = marked
            case _A.QUARANTINE_GPU:
                done = action.target.name in kube_nodes.quarantined(node)
            case _:
                done = marked and cordoned
        observed = {"cordoned": word(cordoned), "marked": word(marked)}
        status = OutcomeStatus.DONE if done else OutcomeStatus.NOT_DONE
        return ActionOutcome(status, f"{action.kind} of {action.target} read back", self._now_s(), observed)

    def _take_back(self, action: Action) -> ActionOutcome:
        name = str(action.params.get("node", "")) if action.kind is _A.QUARANTINE_GPU else action.target.name
        node = self._kube.get(kube_nodes.path(name))
        match action.kind:
            case _A.QUARANTINE_GPU:
                return self._end_quarantine(action, name, node)
            case _A.TAINT:
                return self._untaint(action, name, node)
            case _:
                if action.kind is _A.DRAIN:  # what it stopped runs again, whoever has a part in the cordon
                    self._drains.start_stopped(action, node)
                return self._end_own_cordon(action, name, node)

    def _end_quarantine(self, action: Action, name: str, node: Object) -> ActionOutcome:
        held = kube_nodes.quarantined(node)
        if action.target.name not in held:
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} is not quarantined")
        change = kube_nodes.quarantine_patch(node, [uuid for uuid in held if uuid != action.target.name])
        self.marks.patch(kube_nodes.path(name), node, action, change, undone=True)
        return self._outcome(OutcomeStatus.DONE, f"{action.target} back in service")

    def _untaint(self, action: Action, name: str, node: Object) -> ActionOutcome:
        if not kube_nodes.is_tainted(node):
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} has no taint of Nightshift")
        if not self.marks.has(node, action):
            return self._refused(action, "its taint is not this action's")
        self.marks.patch(kube_nodes.path(name), node, action, kube_nodes.taint_patch(node, None), undone=True)
        return self._outcome(OutcomeStatus.DONE, f"{action.target} no longer has Nightshift's taint")

    def _end_own_cordon(self, action: Action, name: str, node: Object) -> ActionOutcome:
        if not kube_nodes.is_cordoned(node):
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} is schedulable")
        ours = self.cordons(node)
        if ours.get(action.kind) != action.id:
            return self._refused(action, "this action does not (or no longer) own its cordon alone")
        # a cordon and a drain of ours may both hold the node: the one that is taken back leaves it to the other
        others = sorted(id_ for id_ in ours.values() if id_ != action.id)
        change = {} if others else {"spec": {"unschedulable": None}}
        self.marks.patch(kube_nodes.path(name), node, action, change, undone=True)
        left = f"stays cordoned for {', '.join(others)}" if others else "uncordoned"
        return self._outcome(OutcomeStatus.DONE, f"{action.target} {left}")

    ARROWS: ClassVar[Arrows] = {
        _A.SUGGEST_SCALING: _suggest,
        _A.TAINT: _taint,
        _A.CORDON: _cordon,
        _A.UNCORDON: _uncordon,
        _A.DRAIN: lambda self, action: self._drains.execute(action),
        _A.QUARANTINE_GPU: _quarantine,
        _A.START_MAINTENANCE: lambda self, action: self._replacements.start_maintenance(action),
        _A.REPLACE_NODE: lambda self, action: self._replacements.replace_node(action),
        _A.RESTART_POD: lambda self, action: self.work.restart_pod(action),
        _A.RESTART_JOB: lambda self, action: self.work.restart_job(action),
    }


# Replacement ------------------------------------------------------------------------------------------------------
#
# Gives a node's machine back to what made it, and has a cloud begin maintenance, by fields of Kubernetes alone.
#
#     karpenter     the NodeClaim is deleted; Karpenter ends the machine and makes one for pods that wait
#     cluster_api   the Machine is deleted; its MachineSet makes another
#     gke           a label reports the host as faulty; GKE moves the node to another host
#
# Before that the node is drained as by any plan: gangs stop whole and start elsewhere from their newest checkpoint.
# What is deleted must name this very node, and is deleted by its uid. Where the node is gone, or another machine
# bears its name, nothing is left to do, whoever did it.

_O = OutcomeStatus
_GKE_FAULT = "cloud.google.com/fault-behavior"
_GKE_STATUS = "cloud.google.com/report-and-replace-status"
_VERSIONS = {KARPENTER: ("karpenter.sh", ("v1",)), CLUSTER_API: ("cluster.x-k8s.io", ("v1beta2", "v1beta1"))}


class Emptying(Protocol):
    """Carries drains out and reads them back (`controllers.actuators.kubernetes.Drains`)."""

    def execute(self, action: Action) -> ActionOutcome: ...

    def read(self, action: Action) -> ActionOutcome: ...


class Replacements:
    """`drains`: carries drains out. `owns_cordon`: whether a node's cordon is ours alone."""

    def __init__(
        self,
        kube: KubeClient,
        marks: Marks,
        drains: Emptying,
        owns_cordon: Callable[[Object], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._kube, self._marks, self._drains = kube, marks, drains
        self._owns_cordon, self._now_s = owns_cordon, now_s

    def replace_node(self, action: Action) -> ActionOutcome:
        path, drain = kube_nodes.path(action.target.name), _drain_of(action)
        node = self._kube.find(path)
        if node is None or not _is_same(action, node):
            return self._gone(action, drain)
        made_by = maker(node)
        made = self._maker(made_by, action) if not made_by.startswith(f"{GKE} ") else None
        if made is not None and not made[1] and self._drains.read(drain).status is not _O.DONE:
            told = f"this API server has no {made_by}: ask its management cluster"
            raise Permanent(f"action {action.id}: {told}")
        if self._marks.phase(node, action) is None:
            emptied = self._drains.execute(drain)
            if emptied.status not in (_O.DONE, _O.ALREADY_DONE):
                return replace(emptied, detail=f"{action.target} is not emptied: {emptied.detail}")
        if made is None:
            return self._report(action, path)
        # one that is gone already was deleted before a crash: its node follows
        if made[1] and not made[1]["metadata"].get("deletionTimestamp"):
            body = {"preconditions": {"uid": made[1]["metadata"]["uid"]}}
            self._kube.request("DELETE", made[0], body=body)
        raise UnderWay(f"{made_by} gives {action.target.name} back", retry_after_s=POLL_S)

    def read(self, action: Action) -> ActionOutcome:
        node = self._kube.find(kube_nodes.path(action.target.name))
        drained = self._drains.read(_drain_of(action))
        if node is None or not _is_same(action, node):
            status = _O.UNDER_WAY if drained.status is _O.UNDER_WAY else _O.DONE
            return self._outcome(status, f"{action.target} is gone or another machine")
        if self._marks.phase(node, action) == "done":
            return self._outcome(_O.DONE, f"{action.target} is reported to GKE")
        begun = drained.status is not _O.NOT_DONE or self._marks.has(node, action)
        return self._outcome(_O.UNDER_WAY if begun else _O.NOT_DONE, f"{action.target} is this machine still")

    def start_maintenance(self, action: Action) -> ActionOutcome:
        path = kube_nodes.path(action.target.name)
        node = self._kube.get(path)
        labels = node["metadata"].get("labels") or {}
        if labels.get(GKE_START):
            return self._outcome(_O.ALREADY_DONE, f"{action.target} has the label {GKE_START}")
        # nothing takes the request back: a notice that was withdrawn since the approval ends the plan
        if not labels.get(GKE_DUE):
            told = f"Google Cloud no longer announces maintenance of {action.target.name}"
            raise Permanent(f"action {action.id}: {told}")
        self._marks.patch(path, node, action, {"metadata": {"labels": {GKE_START: "true"}}})
        return self._outcome(_O.DONE, f"GKE is asked to maintain the host of {action.target.name} now")

    def _gone(self, action: Action, drain: Action) -> ActionOutcome:
        """Starts again what was stopped for a node that is not there any longer."""
        again = ""
        if self._drains.read(drain).status is _O.UNDER_WAY:
            again = f"; {self._drains.execute(drain).detail}"
        return self._outcome(_O.ALREADY_DONE, f"{action.target} is gone or another machine{again}")

    def _maker(self, made_by: str, action: Action) -> tuple[str, Object]:
        """The path and the object that is deleted, empty where it is not here. Raises Permanent where it is not of
        this node."""
        sort, _, name = made_by.partition(" ")
        if sort not in _VERSIONS:
            raise Permanent(f"action {action.id}: nothing here gives {action.target.name} back")
        group, versions = _VERSIONS[sort]
        space, _, short = name.rpartition("/")
        tail = f"namespaces/{named(space)}/machines/{named(short)}" if space else f"nodeclaims/{named(short)}"
        for path in (f"/apis/{group}/{version}/{tail}" for version in versions):
            found = self._kube.find(path) if self._kube.serves(path) else None
            if found is None:
                continue
            status = found.get("status") or {}
            told = status.get("nodeName") if sort == KARPENTER else (status.get("nodeRef") or {}).get("name")
            if told != action.target.name:
                raise Permanent(f"action {action.id}: {made_by} is of {told}, not {action.target.name}")
            return path, found
        return "", {}

    def _report(self, action: Action, path: str) -> ActionOutcome:
        """Reports the host to GKE; done once GKE has taken the report. Our cordon ends then: GKE keeps pods away
        by a taint until the node is on another host, and nothing would uncordon it there."""
        node = self._kube.get(path)
        phase = self._marks.phase(node, action)
        if phase is None:
            labels = {_GKE_FAULT: str(action.params.get(REASON, "unspecified")), _GKE_STATUS: None}
            self._marks.patch(path, node, action, {"metadata": {"labels": labels}}, phase="reported")
            raise UnderWay(f"{action.target.name} is reported to GKE", retry_after_s=POLL_S)
        status = str((node["metadata"].get("labels") or {}).get(_GKE_STATUS, ""))
        if phase == "done":
            return self._outcome(_O.ALREADY_DONE, f"{action.id} reported it before")
        if status.lower() == "error":
            why = f"GKE does not take the report of {action.target.name}; the node stays cordoned"
            return ActionOutcome(_O.FAILED, why, self._now_s(), {"cordoned": "true"})
        if not status.lower().startswith("operation"):
            raise UnderWay(f"GKE empties {action.target.name}: {status or 'no status yet'}", retry_after_s=POLL_S)
        change: Object = {}
        if self._owns_cordon(node):
            annotations = {MARKER + ActionKind.DRAIN: None}
            change = {"spec": {"unschedulable": None}, "metadata": {"annotations": annotations}}
        self._marks.patch(path, node, action, change)
        return self._outcome(_O.DONE, f"GKE moves {action.target.name} to another host ({status})")

    def _outcome(self, status: OutcomeStatus, detail: str) -> ActionOutcome:
        return ActionOutcome(status, detail, self._now_s())


def _drain_of(action: Action) -> Action:
    return replace(action, id=f"{action.id}-drain", kind=ActionKind.DRAIN)


def _is_same(action: Action, node: Object) -> bool:
    """Whether a Node is the machine that the plan is about, as far as the plan names its uid."""
    uids = [p.expected for p in action.preconditions if (p.subject, p.fact) == (action.target, "uid")]
    return all(uid == node["metadata"].get("uid") for uid in uids)
