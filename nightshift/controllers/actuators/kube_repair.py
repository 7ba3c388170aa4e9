"""Repairs a GPU or a node of a Kubernetes cluster with privileged Jobs: reset, reboot, and a check afterwards.

Both go the same way, a step a call, and each step finds out by itself whether it was done before:

    empty     reset: the GPU's own jobs stop whole and start elsewhere, the node takes nothing new;
              reboot: the node is drained
    release   reset: whoever holds NVML handles leaves the node: our node agent, and the GPU operator's components
              by its own convention, a deploy label that is not "true" (mig-manager pauses them so, too)
    repair    a Job with a name made of the action's id, pinned to the node. The reset refuses while a process holds
              the GPU, and names it; the reboot happens only under the boot id that was read before, so never twice
    check     another Job: a DCGM diagnostic, or what you name
    return    the components come back; the node is uncordoned if the cordon is ours and the check passed

Giving a node back that was only cordoned or drained (`return_node`) is the last two alone: nothing is stopped.
A repair or check that fails leaves the node cordoned, with its components back, and says what its Job said.

Sources: NVIDIA/mig-parted (nvidia-mig-manager, `paused-for-mig-change`), the GPU operator's
`nvidia.com/gpu.deploy.*` labels, `nvidia-smi --gpu-reset` (its manual: no process may use the GPU), proc(5).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import BaseModel

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import fingerprint
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, OutcomeStatus, UnderWay
from nightshift.controllers.actuators import kube_nodes, kube_rights
from nightshift.controllers.actuators import kube_repair_jobs as jobs
from nightshift.controllers.actuators.kube_client import KubeClient, Object
from nightshift.controllers.actuators.kube_marks import MARKER
from nightshift.controllers.actuators.kube_probe import ProbeJob, probe_job
from nightshift.controllers.actuators.kube_repair_jobs import COMPONENTS, RepairSettings
from nightshift.controllers.actuators.kube_workloads import POLL_S
from nightshift.controllers.actuators.kubernetes import (
    FIELD_MANAGER,
    KubernetesActuator,
    KubernetesActuatorSettings,
)
from nightshift.controllers.actuators.site import Arrows, SiteActuator
from nightshift.controllers.cordon import CORDON_OF, TAKES_OUT, node_of, of_other_incidents
from nightshift.controllers.playbooks.spares import AS_SPARE

__all__ = ["KubernetesRepairActuator", "RepairSettings"]
_A, _O = ActionKind, OutcomeStatus
Labels = dict[str, str | None]
EVIDENCE = "-evidence"
PAUSED = "paused-for-gpu-reset"
RELEASING = "releasing"
"""From this phase on components are paused, until the repair ends."""
AGENT_PAUSED = "nightshift.dev/node-agent-paused"
"""Label of a node from which our node agent keeps away; the chart's DaemonSet honours it."""


class KubernetesRepairActuator(SiteActuator):
    """Resets GPUs, reboots nodes, gives nodes back. Fulfils `controllers.action.Actuator`."""

    plugin: ClassVar[str] = "kubernetes_repair"
    Settings: ClassVar[type[BaseModel]] = RepairSettings

    def __init__(
        self, settings: RepairSettings, kube: KubeClient, *, now_s: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._kube, self._now_s = settings, kube, now_s
        self._nodes = KubernetesActuator(KubernetesActuatorSettings(drain=settings.drain), kube, now_s=now_s)

    @classmethod
    def from_settings(
        cls, settings: RepairSettings, now_s: Callable[[], float] = time.time
    ) -> KubernetesRepairActuator:
        kube = KubeClient.connect(settings.access)
        return cls(settings, kube, now_s=now_s)

    def one_look(self) -> AbstractContextManager[None]:
        return self._kube.one_look()

    def refused(self) -> list[str]:
        """What the API server says that this identity may not do; `nightshift doctor` tells it."""
        kinds, mine = [kind for kind in self.TARGETS if kind in self.kinds()], self._settings
        return kube_rights.refused(
            self._kube, kinds, namespaces=mine.access.namespaces, own_namespace=mine.namespace
        )

    def changed(self, action: Action) -> list[str]:
        """A node is not given back on nothing but the default check, which only lists its GPUs."""
        sentences = self._nodes.changed(action)
        default = RepairSettings.model_fields["check_command"].default
        if action.kind is _A.RETURN_NODE and not self._probe(action) and self._settings.check_command == default:
            sentences.append(f"the {action.params.get('probe')} probe cannot run: no image is set for it")
        return sentences

    # Acting ------------------------------------------------------------------------------------------------------

    def _step(self, action: Action) -> ActionOutcome:
        node_name = self._node_of(action)
        if action.kind is _A.OPEN_RMA:  # its evidence is stored by now: the rest is between people
            archive = f"`nightshift rma {action.target.name}` writes the archive for the vendor"
            return self._outcome(_O.DONE, f"return case for {action.target} on {node_name}: {archive}")
        node = self._kube.find(kube_nodes.path(node_name))
        mark = {} if node is None else self._mark(node, action)
        if not mark and (stopped := self._left_stopped(action)):
            return self._carry_on(action, node_name, stopped)
        if node is None:
            return self._outcome(_O.REFUSED, f"{action.kind}: {node_name} no longer exists")
        if mark.get("phase") == "done":
            return self._outcome(_O.ALREADY_DONE, f"{action.id} was done before")
        if mark.get("phase") == "failed":
            return self._failed(node, str(mark.get("why", "the repair failed")))
        if action.kind is _A.RETURN_NODE:
            return self._return(action, node_name)
        mark = self._begin(action, node_name, mark)
        try:
            self._empty(action, node_name)
            if action.kind is _A.RESET_GPU:
                mark = self._release(action, node_name, mark)
            failure = self._repair(action, node_name, mark) or self._check(action, node_name)
        except Permanent as error:
            # what was stopped or paused has to come back, whatever stands in the way of the rest
            for step in self._left_stopped(action):
                with suppress(Permanent):
                    self._finish(step)
            mark = self._mark(self._kube.get(kube_nodes.path(node_name)), action)
            if not mark:
                raise
            failure = str(error)
        try:
            return self._bring_back(action, node_name, mark, failure)
        except Permanent as error:
            raise Permanent("; ".join(filter(None, (failure, str(error))))) from error

    def _return(self, action: Action, node_name: str) -> ActionOutcome:
        """Checks a node as it stands, and uncordons it; the cordon that the plan rests on is read again before the
        check and, in the version that is written, after it."""
        node = self._kube.get(kube_nodes.path(node_name))
        if changed := self.changed(action):
            return self._outcome(_O.REFUSED, f"{'; '.join(changed)}: nothing is done")
        if not self._mark(node, action):
            self._write(action, node, {"phase": "begun"})
        failure = self._check(action, node_name)
        node = self._kube.get(kube_nodes.path(node_name))
        whose = self._nodes.cordon_of(node)
        if not failure and any(whose != p.expected for p in action.preconditions if p.fact == CORDON_OF):
            failure = f"the cordon is now of {whose}"
        return self._end(action, node, {}, {}, failure, keep=failure is not None)

    def _begin(self, action: Action, node_name: str, mark: dict[str, Any]) -> dict[str, Any]:
        """Writes down, once, what has to be known afterwards: the boot id, and whose the cordon is."""
        if mark:
            return mark
        node = self._kube.get(kube_nodes.path(node_name))
        boot_id = ((node.get("status") or {}).get("nodeInfo") or {}).get("bootID", "")
        if action.kind is _A.REBOOT_NODE and not boot_id:
            raise Permanent(
                f"action {action.id}: {node_name} does not say its boot id: a reboot could not be proved"
            )
        # asked before our own cordon is on it: afterwards both look alike
        theirs = kube_nodes.is_cordoned(node) and not self._nodes.owns_cordon(node)
        mark = {"boot_id": boot_id, "phase": "begun", "theirs": theirs, "labels": {}}
        self._write(action, node, mark)
        return mark

    def _empty(self, action: Action, node_name: str) -> None:
        """Cordons the node and moves what the plan named; UnderWay until it has gone."""
        # a reboot drains the node, and a drain cordons it
        if action.kind is not _A.REBOOT_NODE:
            node = Subject(SubjectKind.NODE, node_name)
            self._finish(replace(action, id=f"{action.id}-cordon", kind=_A.CORDON, target=node))
        for step in self._stops(action):
            self._finish(step)
        if action.kind is _A.REBOOT_NODE:
            return
        # a reset is of one GPU: pods on the others of its node stay
        held = set(action.blast_radius.pods)
        left = [p for p in kube_nodes.evictable(self._kube, node_name) if kube_nodes.pod_name(p) in held]
        waits = [wait for p in left if (wait := kube_nodes.evict(self._kube, p, self._settings.drain.grace_s))]
        if waits:
            after_s = max([POLL_S, *(wait.retry_after_s for wait in waits)])
            raise UnderWay("; ".join(wait.text for wait in waits), retry_after_s=after_s)

    def _stops(self, action: Action) -> list[Action]:
        """The steps of a repair that stop jobs and start them elsewhere."""
        if action.kind is _A.REBOOT_NODE:
            return [replace(action, id=f"{action.id}-drain", kind=_A.DRAIN)]
        return [
            replace(action, id=f"{action.id}-job{n}", kind=_A.RESTART_JOB, target=Subject(SubjectKind.JOB, job))
            for n, job in enumerate(action.blast_radius.jobs)
        ]

    def _left_stopped(self, action: Action) -> list[Action]:
        if action.kind is _A.RETURN_NODE:
            return []
        return [step for step in self._stops(action) if self._nodes.read(step).status is _O.UNDER_WAY]

    def _carry_on(self, action: Action, node_name: str, stopped: list[Action]) -> ActionOutcome:
        """The node is gone, or another machine has its name: what was stopped is started again, and that is all."""
        for step in stopped:
            with suppress(Permanent):
                self._finish(step)
        again = f"{node_name} is gone or replaced; started again: {', '.join(action.blast_radius.jobs)}"
        return self._outcome(_O.REFUSED, f"{action.kind} of {action.target}: {again}")

    def _finish(self, step: Action) -> None:
        """A step of the plan that another action is; UnderWay until it is done, Permanent where it is refused."""
        if step.kind is _A.RESTART_JOB:
            if (waits := self._nodes.work.cycle_named(step.target.name, step)) is not None:
                raise UnderWay(waits, retry_after_s=POLL_S)
            return
        outcome = self._nodes.execute(step)
        if outcome.status not in (_O.DONE, _O.ALREADY_DONE):
            raise Permanent(f"{step.kind} of {step.target}: {outcome.detail}")

    def _release(self, action: Action, node_name: str, mark: dict[str, Any]) -> dict[str, Any]:
        """Pauses what holds handles on the GPU; UnderWay until its pods have gone, Permanent where they stay."""
        node = self._kube.get(kube_nodes.path(node_name))
        labels = node["metadata"].get("labels") or {}
        # only what runs now is paused: what another client has paused is not ours to bring back
        running = {name: labels[name] for name in COMPONENTS if labels.get(name) == "true"}
        if running or AGENT_PAUSED not in labels:
            mark = {**mark, "labels": {**mark["labels"], **running}, "phase": RELEASING}
            # counted from the first pause: a component that comes back meanwhile must not renew the time that it
            # has
            mark.setdefault("released_s", self._now_s())
            changes: Labels = {**dict.fromkeys(running, PAUSED), AGENT_PAUSED: "true"}
            self._write(action, node, mark, changes)
        left = sorted(kube_nodes.pod_name(pod) for pod in self._holders(node_name))
        if left and self._now_s() - float(mark.get("released_s", math.inf)) > self._settings.job_timeout_s:
            raise Permanent(f"{', '.join(left)} did not leave within {self._settings.job_timeout_s} s")
        if left:
            raise UnderWay(f"{', '.join(left)} hold handles on the GPU and leave", retry_after_s=POLL_S)
        return mark

    def _holders(self, node_name: str) -> list[Object]:
        pods, apps = kube_nodes.pods_on(self._kube, node_name), set(COMPONENTS.values())
        return [pod for pod in pods if jobs.holds(pod["metadata"].get("labels") or {}, apps)]

    def _repair(self, action: Action, node_name: str, mark: dict[str, Any]) -> str | None:
        """Runs the repair's Job; None once it did its work, else what it said."""
        if action.kind is _A.RESET_GPU:
            return self._run(
                action, node_name, "", jobs.container(self._settings.image, jobs.RESET, {"GPU": action.target.name})
            )
        node = self._kube.get(kube_nodes.path(node_name))
        boot_id = ((node.get("status") or {}).get("nodeInfo") or {}).get("bootID", "")
        # the kernel makes a new boot id at each start (proc(5)): this alone proves the reboot
        if boot_id and boot_id != mark["boot_id"]:
            if not kube_nodes.is_ready(node):
                raise UnderWay(f"{node_name} has rebooted and is not ready yet", retry_after_s=POLL_S)
            return None
        failure = self._run(
            action, node_name, "", jobs.container(self._settings.image, jobs.REBOOT, {"BOOT_ID": mark["boot_id"]})
        )
        ordered_s = float(mark.get("ordered_s", 0.0))
        if not ordered_s:
            self._write(action, node, {**mark, "phase": "rebooting", "ordered_s": self._now_s()})
        elif failure is not None and self._now_s() - ordered_s > self._settings.job_timeout_s:
            return failure
        # going down, a node ends the very pod that asked for it: its failure alone proves nothing
        raise UnderWay(f"{node_name} has not come back under another boot id", retry_after_s=POLL_S)

    def _check(self, action: Action, node_name: str) -> str | None:
        """None where the check passed, else what it said."""
        container = jobs.container(self._settings.image, "", {"GPU": action.target.name})
        probe = self._probe(action)
        command = probe.command if probe else self._settings.check_command
        image = probe.image if probe else self._settings.check_image or self._settings.image
        container |= {"command": list(command), "image": image}
        failure = self._run(action, node_name, "-check", container)
        return None if failure is None else f"the check failed: {failure}"

    def _probe(self, action: Action) -> ProbeJob | None:
        """The probe that the plan names; None where no image is set for it."""
        return probe_job(self._settings.probes, str(action.params.get("probe", "")))

    def _checked_by(self, action: Action) -> str:
        """Which check passed, and what it said; or which probe was not run, and why."""
        named, ran = str(action.params.get("probe", "")), f"checked by {self._settings.check_command[0]}"
        if self._probe(action) is None:
            return f"{ran}; the {named} probe was not run: no image is set for it" if named else ran
        said = jobs.said(self._kube, self._settings.namespace, jobs.job_name(action) + "-check")
        return f"the {named} probe passed" + (f": {said}" if said else "")

    def evidence(self, action: Action) -> dict[str, bytes]:
        node_name, mark = node_of(action), fingerprint([action.id, "evidence"])
        if self._kube.find(kube_nodes.path(node_name)) is None:
            raise Permanent(f"the cluster has no node {node_name}")
        values = {"LIMIT": str(jobs.EVIDENCE_S), "MARK": mark}
        container = jobs.container(self._settings.image, jobs.EVIDENCE, values)
        place = self._settings.namespace, jobs.job_name(action) + EVIDENCE
        failure, under_way = "its Job printed nothing", None
        try:
            failure = self._run(action, node_name, EVIDENCE, container, jobs.EVIDENCE_S + 15) or failure
        except UnderWay as error:
            under_way = error
        # a command that hangs keeps its Job running after all was printed
        found = jobs.evidence_of(jobs.log(self._kube, *place), mark)
        if found is None:
            raise under_way or Permanent(failure)
        return found

    def _run(
        self, action: Action, node_name: str, suffix: str, container: Object, timeout_s: int | None = None
    ) -> str | None:
        """The Job of a step: made once, waited for; None once it succeeded, else what it said."""
        path = f"/apis/batch/v1/namespaces/{self._settings.namespace}/jobs"
        name = jobs.job_name(action) + suffix
        job = self._kube.find(f"{path}/{name}")
        if job is None:
            made = jobs.job(action, name, node_name, container, self._settings, timeout_s)
            job = self._kube.request("POST", path, body=made)
        if (job["metadata"].get("annotations") or {}).get("nightshift.dev/action-id") != action.id:
            raise Permanent(f"Job {self._settings.namespace}/{name} is there and is not ours")
        conditions = (job.get("status") or {}).get("conditions") or []
        ended = {c["type"]: c for c in conditions if c.get("status") == "True"}
        if "Failed" in ended:
            place = self._kube, self._settings.namespace, name
            return jobs.said(*place) or jobs.why_failed(*place, ended["Failed"])
        if "Complete" in ended:
            return None
        if action.kind is _A.REBOOT_NODE and not suffix:
            return None  # not a success: who asks looks at the boot id
        raise UnderWay(f"Job {name} works on {node_name}", retry_after_s=POLL_S)

    def _bring_back(
        self, action: Action, node_name: str, mark: dict[str, Any], failure: str | None
    ) -> ActionOutcome:
        """Everything that was paused runs again. A node that was not repaired stays out of use, and so does one
        whose cordon somebody else has come to have a part in, or which another incident of ours keeps out, too."""
        node = self._kube.get(kube_nodes.path(node_name))
        labels: Labels = {**mark["labels"], AGENT_PAUSED: None}
        ours = self._nodes.cordons(node)
        others = of_other_incidents(ours.values(), action.id)
        keep = failure is not None or mark["theirs"] or not ours or bool(others)
        own = [] if failure is not None else [kind for kind, of in ours.items() if of not in others]
        return self._end(action, node, mark, labels, failure, keep=keep, off=own, whose=", ".join(others))

    def _end(
        self,
        action: Action,
        node: Object,
        mark: dict[str, Any],
        labels: Labels,
        failure: str | None,
        *,
        keep: bool,
        off: Iterable[ActionKind] = TAKES_OUT,
        whose: str = "",
    ) -> ActionOutcome:
        """One write: how it ended, and the uncordon unless the node is kept out of use. `off`: kinds of our own
        cordons that end either way, so that a later one of a person's is not taken for ours."""
        name = str(node["metadata"]["name"])
        ended = {**mark, "phase": "failed" if failure else "done", "why": failure or ""}
        self._write(action, node, ended, labels, off=() if failure else off, uncordon=not keep)
        stays = f"; {name} stays cordoned" if keep and kube_nodes.is_cordoned(node) else ""
        if failure is not None:
            return self._failed(node, f"{action.kind} of {action.target}: {failure}{stays}")
        back = (f"{stays} for {whose}" if whose else f"{stays}, as another client has set") if stays else ""
        return self._outcome(_O.DONE, f"{action.kind} of {action.target} done; {self._checked_by(action)}{back}")

    # Reading back ------------------------------------------------------------------------------------------------

    def read(self, action: Action) -> ActionOutcome:
        if action.kind is _A.OPEN_RMA:
            return self._outcome(_O.NOT_DONE, "it changes nothing in the cluster")
        node = self._kube.find(kube_nodes.path(self._node_of(action)))
        phase = None if node is None else self._mark(node, action).get("phase")
        phase = phase or ("its node is gone or replaced" if self._left_stopped(action) else None)
        if node is not None and phase == "failed":
            return self._failed(node, f"{action.kind} of {action.target} failed")
        status = {None: _O.NOT_DONE, "done": _O.DONE}.get(phase, _O.UNDER_WAY)
        stays = "; the node is cordoned" if phase and node and kube_nodes.is_cordoned(node) else ""
        return self._outcome(status, f"{action.kind} of {action.target}: {phase or 'untouched'}{stays}")

    def undo(self, action: Action) -> ActionOutcome:
        if action.kind is _A.OPEN_RMA:  # the fault is still there: the case is what is done about it
            return self._outcome(_O.DONE, "nothing to undo in the cluster; the case with the vendor stays open")
        return self._outcome(_O.REFUSED, f"{action.kind} of {action.target} cannot be undone")

    def _node_of(self, action: Action) -> str:
        self._check_target(action)
        name = action.target.name if action.target.kind is SubjectKind.NODE else str(action.params.get("node", ""))
        if not name:
            raise Permanent(f"action {action.id}: params.node is missing: which node holds {action.target}?")
        return name

    def _mark(self, node: Object, action: Action) -> dict[str, Any]:
        mark = self._nodes.marks.of(node, action.kind) or {}
        return mark if mark.get("id") == action.id else {}

    def _write(
        self,
        action: Action,
        node: Object,
        mark: dict[str, Any],
        labels: Labels | None = None,
        *,
        off: Iterable[ActionKind] = (),
        uncordon: bool = False,
    ) -> None:
        text = json.dumps({**mark, "id": action.id, "at_s": self._now_s()})
        marks: Labels = {MARKER + action.kind: text} | {MARKER + kind: None for kind in off}
        change: Object = {"metadata": {"annotations": marks, "labels": labels or {}}}
        if uncordon:
            spare = kube_nodes.spare_patch(node, warm=True) if action.params.get(AS_SPARE) else {}
            change["spec"] = {"unschedulable": None, **spare}
        version = str(node["metadata"]["resourceVersion"])
        path = kube_nodes.path(str(node["metadata"]["name"]))
        self._kube.merge(path, change, version=version, manager=FIELD_MANAGER)

    def _failed(self, node: Object, detail: str) -> ActionOutcome:
        """What it leaves out of use counts, until somebody takes it back."""
        cordoned = {"cordoned": "true"} if kube_nodes.is_cordoned(node) else {}
        return ActionOutcome(_O.FAILED, detail, self._now_s(), cordoned)

    ARROWS: ClassVar[Arrows] = dict.fromkeys((_A.RESET_GPU, _A.REBOOT_NODE, _A.RETURN_NODE, _A.OPEN_RMA), _step)
