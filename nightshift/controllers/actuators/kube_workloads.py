"""Pods, jobs and Deployments as mitigations handle them: a pod is replaced, a gang stops and starts whole.

A Deployment is never scaled: who owns its replica count, and what they would change, is said. A count that an
autoscaler or GitOps owns is put back by it within minutes, so writing it is a fight, not a repair. The owner is
read from the HorizontalPodAutoscaler that targets the Deployment (autoscaling/v2), KEDA's mark on that
(`scaledobject.keda.sh/name`), the marks of Argo CD and Flux on the Deployment, a Helm release's, and last from the
field manager of `spec.replicas`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from nightshift.collectors.base import Permanent
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionOutcome, OutcomeStatus, UnderWay
from nightshift.controllers.actuators import kube_jobs, kube_nodes
from nightshift.controllers.actuators.kube_client import KubeClient, NotFound, Object, named
from nightshift.controllers.actuators.kube_marks import Marks

POLL_S = 5.0
BEGUN = frozenset({"saving", "stopping", "emptying", "starting"})
"""Phases of a job's mark from which it still has to be started again. `emptying`: its Workload was seen to be
inactive, so that whoever makes it active from then on is somebody else."""
STOPPED = BEGUN - {"saving"}
_ARGO = ("argocd.argoproj.io/tracking-id", "argocd.argoproj.io/instance")
_FLUX = ("kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name")
_HELM = "meta.helm.sh/release-name"


class Workloads:
    """What is done to pods and jobs. Each call goes one step; UnderWay until the last is done."""

    def __init__(
        self,
        kube: KubeClient,
        marks: Marks,
        field_manager: str,
        now_s: Callable[[], float],
        save_wait_s: float = 0.0,
    ) -> None:
        """`save_wait_s`: how long a job that saves on request is given to do so before it is stopped."""
        self._kube, self.marks, self._manager, self._now_s = kube, marks, field_manager, now_s
        self._save_wait_s = save_wait_s

    def restart_pod(self, action: Action) -> ActionOutcome:
        """Deletes the very pod that was marked: its controller makes another. A bare pod is refused."""
        path = pod_path(action.target.name)
        pod = self._kube.find(path)
        if pod is None:
            return self._outcome(OutcomeStatus.DONE, f"{action.target} is gone; its controller replaces it")
        meta = pod["metadata"]
        if kube_nodes.is_mirror(pod):
            return self._refused(action, "its kubelet runs it from a file: deleting it here restarts nothing")
        if kube_nodes.unmanaged(pod):
            return self._refused(action, "no controller owns it: deleted, it would not come back")
        if not self.marks.has(pod, action):
            # a StatefulSet's next pod bears the same name: without the uid each successor would be deleted in turn
            wanted = action.params.get("uid")
            if wanted is None and kube_nodes.has_successor_of_its_name(pod):
                why = "the plan does not name its uid, so that its successor of the same name would be deleted, too"
                return self._refused(action, why)
            if wanted is not None and wanted != meta["uid"]:
                return self._outcome(OutcomeStatus.ALREADY_DONE, f"{action.target} has been replaced already")
            # of its own Job, not of the outermost: what is lost counts against the backoffLimit there
            above = kube_jobs.own_job(self._kube, pod)
            if above is not None and above.loses_by(1):
                return self._refused(action, f"one more lost pod ends Job {_named(above)}: restart the job")
        with suppress(NotFound):  # it went by itself since it was read
            if not self.marks.has(pod, action):
                self.marks.patch(path, pod, action, {})
            if not meta.get("deletionTimestamp"):
                # by uid, since its controller may have made another of that name between the read and this
                self._kube.request("DELETE", path, body={"preconditions": {"uid": meta["uid"]}})
        waits = kube_nodes.held_by(pod) + kube_nodes.overdue([pod], self._now_s())
        raise UnderWay(f"{action.target} is terminating{waits}", retry_after_s=POLL_S)

    def restart_job(self, action: Action) -> ActionOutcome:
        job = kube_jobs.find(self._kube, action.target)
        if job is None:
            raise Permanent(f"action {action.id}: {action.target} does not exist")
        waiting = self.cycle(job, action)
        if waiting is None:
            return self._outcome(OutcomeStatus.DONE, f"{action.target} stopped completely and restarted")
        raise UnderWay(waiting, retry_after_s=POLL_S)

    def cycle(self, job: kube_jobs.FoundJob, action: Action) -> str | None:
        """Lets a job save where it can, stops it, waits until its pods are gone, starts it again; None once it was
        started again."""
        name, phase = f"{job.namespace}/{job.name}", self.marks.phase(job.object, action)
        workload = kube_jobs.workload(self._kube, job)
        if phase == "started":
            return None
        if job.ended is not None and phase != "starting":
            raise Permanent(f"job {name} has ended ({job.ended}); only its owner can resubmit it")
        if phase in (None, "saving") and (waits := self._begin_to_stop(job, workload, action, phase)) is not None:
            return waits
        if phase == "starting":  # from here on Kueue starts it: what is seen of it now is its new life
            self._start_workload(job, workload, action)
            return None
        stopped = phase == ("stopping" if workload is None else "emptying")
        runs = not job.suspended if workload is None else kube_jobs.is_active(workload)
        if stopped and runs:
            self.marks.patch(job.path, job.object, action, {}, phase="started")
            raise Permanent(f"job {name} was restarted by another client while it stopped; it keeps running")
        if workload is not None:
            self._stop_workload(job, workload, action, runs, phase)
        left = kube_jobs.live_pods(self._kube, job)
        if not stopped or left:
            return f"job {name} is stopping: {len(left)} pods left{kube_nodes.overdue(left, self._now_s())}"
        self._resume(job, workload, action)
        return None if workload is None else f"job {name} restarts"

    def _stop_workload(
        self, job: kube_jobs.FoundJob, workload: Object, action: Action, runs: bool, phase: str | None
    ) -> None:
        """Takes a job out of Kueue, and marks it as out at the next look. Before that mark an active Workload is
        one that we have not stopped yet; after it, one that another client has started again."""
        if runs:
            kube_jobs.set_active(self._kube, workload, False, self._manager)
        elif phase == "stopping":
            self.marks.patch(job.path, job.object, action, {}, phase="emptying")

    def _begin_to_stop(
        self, job: kube_jobs.FoundJob, workload: Object | None, action: Action, phase: str | None
    ) -> str | None:
        """Marks a job as stopping, once it has saved; until then, what it waits for. Raises Permanent where it is
        not ours to stop."""
        name = f"{job.namespace}/{job.name}"
        if job.unstoppable is not None and workload is None:
            raise Permanent(f"job {name} cannot be stopped and started: {job.unstoppable}")
        # resuming it afterwards would overrule whoever suspended it. With Kueue a suspended job just waits
        if workload is None and job.suspended:
            raise Permanent(f"job {name} is suspended by another client, which must resume it")
        if (waits := self._saves(job, action, phase)) is not None:
            return waits
        change = job.with_suspend(True) if workload is None else {}
        self.marks.patch(job.path, job.object, action, change, phase="stopping")
        return None

    def _resume(self, job: kube_jobs.FoundJob, workload: Object | None, action: Action) -> None:
        """Lets a stopped job start, from the step that it saved. Raises UnderWay where the API server refuses."""
        name = f"{job.namespace}/{job.name}"
        resume = job.with_suspend(False) if workload is None else {}
        saved = job.saved_step(action.id) if self._may_save(action) else None
        step = saved if saved is not None else action.params.get("checkpoint_step")
        # without a step the annotation goes: what an earlier restart named would lose all the work since
        notes = {kube_jobs.RESUME_STEP: None if step is None else str(step), kube_jobs.SAVE_REQUEST: None}
        resume["metadata"] = {"annotations": notes}
        try:
            self.marks.patch(
                job.path, job.object, action, resume, phase="started" if workload is None else "starting"
            )
        except Permanent as error:  # a role or a webhook may be mended; what we stopped is not given up meanwhile
            raise UnderWay(f"job {name} is stopped and may not be started again: {error}", 10 * POLL_S) from error

    def _start_workload(self, job: kube_jobs.FoundJob, workload: Object | None, action: Action) -> None:
        """Hands a job back to Kueue, and says so on the job. It was marked before: lost between the two writes, it
        would be taken for one that still stops, and be stopped a second time."""
        if workload is not None and not kube_jobs.is_active(workload):
            kube_jobs.set_active(self._kube, workload, True, self._manager)
        self.marks.patch(job.path, job.object, action, {}, phase="started")

    def _saves(self, job: kube_jobs.FoundJob, action: Action, phase: str | None) -> str | None:
        """Asks a job that saves on request to do so, and waits a while; None where it may be stopped."""
        if not job.saves_on_request or not self._may_save(action) or self._save_wait_s <= 0:
            return None
        name = f"{job.namespace}/{job.name}"
        if phase is None:
            ask: Object = {"metadata": {"annotations": {kube_jobs.SAVE_REQUEST: action.id}}}
            self.marks.patch(job.path, job.object, action, ask, phase="saving")
            return f"job {name} is asked to save"
        asked_s = float(str((self.marks.of(job.object, action.kind) or {}).get("at_s", 0.0)))
        # a clock that was set back ends the wait: it would else last for as long as it jumped
        waited_s = self._now_s() - asked_s
        if job.saved_step(action.id) is not None or not 0 <= waited_s < self._save_wait_s:
            return None
        return f"job {name} saves; it has {self._save_wait_s - waited_s:.0f} s left"

    def _may_save(self, action: Action) -> bool:
        """Never where the weights may be damaged: what would be saved now is not to be resumed from."""
        return action.params.get("save_first", True) is True

    def gangs(self, pods: list[Object]) -> tuple[set[str], list[Object]]:
        """Jobs among the pods' owners that span nodes, or that an eviction would end; and the pods of none of
        them. Of a job that has ended, pods that are left are evicted."""
        # counted together: evicted in one drain, pods of one job count together against its backoffLimit
        owners = [(pod, kube_jobs.owner_job(self._kube, pod)) for pod in pods]
        counts = Counter(_named(job) for _, job in owners if job is not None)
        whole: dict[str, bool] = {}
        gangs, single = set(), []
        for pod, job in owners:
            if job is not None and _named(job) not in whole:
                whole[_named(job)] = self._moves_whole(job, counts[_named(job)])
            if job is not None and whole[_named(job)]:
                gangs.add(_named(job))
            else:
                single.append(pod)
        return gangs, single

    def _moves_whole(self, job: kube_jobs.FoundJob, evicted: int) -> bool:
        if job.ended is not None:
            return False
        nodes = {p["spec"].get("nodeName") for p in kube_jobs.live_pods(self._kube, job)}
        # a gang that loses one rank leaves the others waiting for it in a collective
        return len(nodes) > 1 or job.loses_by(evicted)

    def unstoppable(self, gangs: set[str]) -> list[str]:
        """Of these jobs, those that cannot be stopped and started, and why."""
        said = []
        for name in sorted(gangs):
            job = kube_jobs.find(self._kube, Subject(SubjectKind.JOB, name))
            # where Kueue manages it, its Workload stops it whatever its own field would do
            if job is not None and job.unstoppable is not None and kube_jobs.workload(self._kube, job) is None:
                said.append(f"job {name}: {job.unstoppable}")
        return said

    def gangs_of(self, node: Object, action: Action) -> set[str]:
        mark = self.marks.of(node, action.kind) if self.marks.has(node, action) else None
        jobs = (mark or {}).get("jobs")
        return {str(job) for job in jobs} if isinstance(jobs, list) else set()

    def cycle_named(self, name: str, action: Action, *, on_node: bool = True) -> str | None:
        """The same for a job that only has to leave a node: where it is gone, has ended, has left it by itself, or
        was suspended by somebody else, there is nothing of it to stop, and nothing to start."""
        job = kube_jobs.find(self._kube, Subject(SubjectKind.JOB, name))
        if job is None or (job.ended is not None and self.marks.phase(job.object, action) != "starting"):
            return None
        untouched = self.marks.phase(job.object, action) in (None, "saving")
        if untouched and (not on_node or (job.suspended and kube_jobs.workload(self._kube, job) is None)):
            return None
        return self.cycle(job, action)

    def stopped_by(self, action: Action, names: Iterable[str], phases: frozenset[str] = BEGUN) -> list[str]:
        """Of these jobs, those that this action has begun to stop, and not yet started again."""
        jobs = {name: kube_jobs.find(self._kube, Subject(SubjectKind.JOB, name)) for name in sorted(set(names))}
        return [
            name
            for name, job in jobs.items()
            if job is not None and job.ended is None and self.marks.phase(job.object, action) in phases
        ]

    def read(self, action: Action) -> ActionOutcome:
        """How far a restart is."""
        if action.target.kind is SubjectKind.POD:
            pod = self._kube.find(pod_path(action.target.name))
            if pod is None:
                return self._outcome(OutcomeStatus.DONE, f"{action.target} is gone; its controller replaces it")
            if self.marks.has(pod, action):
                return self._outcome(OutcomeStatus.UNDER_WAY, f"{action.target} is terminating")
            done = action.params.get("uid") not in (None, pod["metadata"]["uid"])
            status = OutcomeStatus.DONE if done else OutcomeStatus.NOT_DONE
            return self._outcome(status, f"{action.target} " + ("has been replaced" if done else "is there"))
        job = kube_jobs.find(self._kube, action.target)
        phase = self.marks.phase(job.object, action) if job else None
        under_way = dict.fromkeys(BEGUN, OutcomeStatus.UNDER_WAY)
        steps = {"started": OutcomeStatus.DONE, **under_way}
        status = steps.get(phase or "", OutcomeStatus.NOT_DONE)
        return self._outcome(status, f"{action.target}: {phase or 'untouched'}")

    def _outcome(self, status: OutcomeStatus, detail: str) -> ActionOutcome:
        return ActionOutcome(status, detail, self._now_s())

    def _refused(self, action: Action, why: str) -> ActionOutcome:
        return self._outcome(OutcomeStatus.REFUSED, f"{action.kind} of {action.target}: {why}")


def _named(job: kube_jobs.FoundJob) -> str:
    return f"{job.namespace}/{job.name}"


def pod_path(name: str) -> str:
    """The path of `namespace/pod`. Raises Permanent where it is not that."""
    namespace, _, pod = name.partition("/")
    if not pod:
        raise Permanent(f"pod {name!r} is not namespace/pod")
    return f"/api/v1/namespaces/{named(namespace)}/pods/{named(pod)}"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What a person would change, where, and who owns it."""

    deployment: str
    owner: str
    diff: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.deployment} is scaled by {self.owner}; nothing was changed. To add capacity: " + " ".join(
            self.diff
        )


def suggest_scaling(kube: KubeClient, namespace: str, replica_set: str, replicas: int = 1) -> Suggestion | None:
    """For the Deployment above a ReplicaSet; None where there is none. Raises Temporary or Permanent."""
    found = kube.find(f"/apis/apps/v1/namespaces/{named(namespace)}/replicasets/{named(replica_set)}")
    references = (found or {"metadata": {}})["metadata"].get("ownerReferences") or []
    owner = next((r for r in references if r.get("controller") and r["kind"] == "Deployment"), None)
    if owner is None:
        return None
    try:
        deployment = kube.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{owner['name']}")
    except NotFound:
        return None
    scalers = kube.list(f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers")
    return decide(deployment, scalers, replicas)


def decide(deployment: Object, scalers: list[Object], replicas: int) -> Suggestion:
    """Purely: who owns the replica count, and the smallest change there that gives so many more `replicas`."""
    meta, now = deployment["metadata"], int((deployment.get("spec") or {}).get("replicas", 1))
    name = f"{meta['namespace']}/{meta['name']}"
    for scaler in scalers:
        target = scaler["spec"]["scaleTargetRef"]
        if (target.get("kind"), target.get("name")) == ("Deployment", meta["name"]):
            return Suggestion(f"Deployment {name}", *_scaled(scaler, now + replicas))
    notes = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
    for who, keys in (("Argo CD", _ARGO), ("Flux", _FLUX), ("Helm", (_HELM,))):
        if (key := next((k for k in keys if notes.get(k)), None)) is not None:
            owner = f"{who} ({notes[key]})"
            return Suggestion(
                f"Deployment {name}", owner, _diff("in its source, Deployment", "replicas", now, replicas)
            )
    return Suggestion(f"Deployment {name}", _manager(meta), _diff(f"Deployment {name}", "replicas", now, replicas))


def _scaled(scaler: Object, wanted: int) -> tuple[str, tuple[str, ...]]:
    meta, spec = scaler["metadata"], scaler["spec"]
    low, high = int(spec.get("minReplicas") or 1), int(spec["maxReplicas"])
    keda = (meta.get("labels") or {}).get("scaledobject.keda.sh/name")
    where = f"{meta['namespace']}/{keda or meta['name']}"
    kind, least, most = (
        ("ScaledObject", "minReplicaCount", "maxReplicaCount")
        if keda
        else ("HorizontalPodAutoscaler", "minReplicas", "maxReplicas")
    )
    lines = _diff(f"{kind} {where}", least, low, wanted - low)
    if wanted > high:
        lines += _diff("and", most, high, wanted - high)
    return f"{'KEDA' if keda else 'an autoscaler'} ({kind} {where}, {low} to {high})", lines


def _diff(where: str, field: str, before: int, more: int) -> tuple[str, ...]:
    return (where, f"- {field}: {before}", f"+ {field}: {before + more}")


def _manager(meta: Object) -> str:
    """The newest manager of `spec.replicas`."""
    newest = sorted(meta.get("managedFields") or [], key=lambda entry: str(entry.get("time", "")))
    for entry in reversed(newest):
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            return f"no autoscaler; its replicas were set last by {entry.get('manager', 'somebody')}"
    return "no autoscaler that is known"
