"""What kube-controller-manager and the admission plugins do around a write, as far as mitigations meet it.

At once by default, so that tests are exact. With a lag they happen later and in a thread, as on a real cluster:
objects change under their readers, a namespace goes slowly, a service account is not there yet.

Sources: kubernetes.io/docs: concepts/workloads/controllers/job (suspend, backoffLimit, finished Jobs), …/daemonset
(affinity instead of nodeName, the tolerations that its controller adds), concepts/architecture/nodes (taints of
conditions and of cordons), …/garbage-collection, tasks/run-application/configure-pdb, TaintNodesByCondition and
ServiceAccount in reference/access-authn-authz/admission-controllers; pkg/controller/ttl (annotation of nodes).
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any

from . import disruption
from .errors import ApiError
from .storage import Object

if TYPE_CHECKING:
    from .api import Api

NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
MANAGER = "kube-controller-manager"
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_DRAWS = random.Random(1)  # its own: a test that seeds `random` again would get a name twice


def admit(kind: str, obj: Object) -> None:
    """Changes an object on its way in, as the default admission plugins do."""
    if kind == "Node":
        taints = obj.setdefault("spec", {}).setdefault("taints", [])
        if NOT_READY not in taints:
            taints.append(dict(NOT_READY))
    if kind == "Pod":
        tolerations = obj["spec"].setdefault("tolerations", [])
        for name in ("not-ready", "unreachable"):
            key = f"node.kubernetes.io/{name}"
            if not any(_tolerates(t, {"key": key, "effect": "NoExecute"}) for t in tolerations):
                tolerations.append(
                    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                )


def _tolerates(toleration: dict[str, Any], taint: dict[str, str]) -> bool:
    same = toleration.get("key") in (None, "", taint["key"])
    return same and toleration.get("effect") in (None, "", taint["effect"])


class Controllers:
    """Reacts to changes of `api`'s objects."""

    def __init__(self, api: Api, lag_s: float = 0.0) -> None:
        self._api, self.lag_s = api, lag_s
        self.are_there = True
        """False: an API server alone, without kube-controller-manager."""
        self._queue: list[tuple[float, int, str, str, str]] = []
        self._numbers = itertools.count()
        self._owed: list[tuple[str, str, str]] = []
        self._is_working = False
        self._wake = threading.Condition()
        self._ended = False
        self._thread: threading.Thread | None = None
        self._works = {
            "Job": self._job,
            "DaemonSet": self._daemon_set,
            "Deployment": self._deployment,
            "Node": self._node,
            "Namespace": self._namespace,
            "PodDisruptionBudget": self._budget,
        }

    def react(self, kind: str, obj: Object) -> None:
        """Notes what has to be looked at now that this object was written or removed."""
        if not self.are_there:
            return
        meta = obj["metadata"]
        namespace, owed = meta.get("namespace", ""), []
        if kind in self._works:
            owed.append((kind, namespace, meta["name"]))
        if kind == "Pod":
            budgets = self._api.storage.all(self._api.by_kind["PodDisruptionBudget"], namespace)
            owed += [("PodDisruptionBudget", namespace, b["metadata"]["name"]) for b in budgets]
            owner = next((r for r in meta.get("ownerReferences") or [] if r.get("controller")), None)
            if owner and owner["kind"] in ("Job", "DaemonSet"):
                owed.append((owner["kind"], namespace, owner["name"]))
        if kind == "Node":
            sets = self._api.storage.all(self._api.by_kind["DaemonSet"])
            owed += [("DaemonSet", d["metadata"]["namespace"], d["metadata"]["name"]) for d in sets]
        if self.lag_s:
            for what in owed:
                self._later(*what)
            return
        with self._api.storage.lock:
            self._owed += owed
            if self._is_working:
                return  # what a controller writes is looked at after it
            self._is_working = True
            try:
                while self._owed:
                    first, *rest = self._owed.pop(0)
                    self._works[first](*rest)
            finally:
                self._is_working = False

    def close(self) -> None:
        with self._wake:
            self._ended = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _later(self, kind: str, namespace: str, name: str) -> None:
        with self._wake:
            due = time.monotonic() + self.lag_s * _DRAWS.uniform(0.2, 1.0)
            heapq.heappush(self._queue, (due, next(self._numbers), kind, namespace, name))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="controllers", daemon=True)
                self._thread.start()
            self._wake.notify_all()

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._ended:
                    return
                if not self._queue or self._queue[0][0] > time.monotonic():
                    self._wake.wait(self._queue[0][0] - time.monotonic() if self._queue else None)
                    continue
                *_, kind, namespace, name = heapq.heappop(self._queue)
            try:
                with self._api.storage.lock:
                    self._works[kind](namespace, name)
            except ApiError:  # its namespace goes, say: what a real controller is refused it tries again later
                self._later(kind, namespace, name)

    # each reads what is there now and writes what is missing

    def _find(self, kind: str, namespace: str, name: str) -> Object | None:
        return self._api.storage.get(self._api.by_kind[kind], namespace, name)

    def _write(self, kind: str, obj: Object) -> None:
        resource = self._api.by_kind[kind]
        stored = self._api.storage.write(resource, obj)
        self.react(kind, stored)

    def _owned(self, owner: Object) -> list[Object]:
        pods = self._api.storage.all(self._api.by_kind["Pod"], owner["metadata"]["namespace"])
        uid = owner["metadata"]["uid"]
        return [p for p in pods if any(r["uid"] == uid for r in p["metadata"].get("ownerReferences") or [])]

    def _make_pod(self, kind: str, owner: Object, labels: dict[str, str], spec: Object) -> None:
        meta, template = owner["metadata"], owner["spec"]["template"]
        name = f"{meta['name']}-{''.join(_DRAWS.choices(_SUFFIX, k=5))}"
        reference = {"apiVersion": owner["apiVersion"], "kind": kind, "name": meta["name"], "uid": meta["uid"]}
        body = {
            "metadata": {
                "name": name,
                "labels": {**(template.get("metadata") or {}).get("labels", {}), **labels},
                "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": {**template["spec"], **spec},
        }
        self._api.add("Pod", meta["namespace"], body, MANAGER)

    def _delete_pod(self, pod: Object) -> None:
        meta = pod["metadata"]
        if not meta.get("deletionTimestamp"):
            self._api.take("Pod", meta["namespace"], meta["name"], MANAGER)

    def _job(self, namespace: str, name: str) -> None:
        job = self._find("Job", namespace, name)
        if job is None or job["metadata"].get("deletionTimestamp"):
            return
        spec, status, now = job["spec"], dict(job.get("status") or {}), self._api.now
        ended = {c["type"] for c in status.get("conditions") or [] if c["status"] == "True"} & {
            "Complete",
            "Failed",
        }
        pods = self._owned(job)
        active = [p for p in pods if not _is_over(p) and not p["metadata"].get("deletionTimestamp")]
        succeeded, failed = (
            sum((p.get("status") or {}).get("phase") == phase for p in pods) for phase in ("Succeeded", "Failed")
        )
        if ended or spec.get("suspend"):
            for pod in active:
                self._delete_pod(pod)
            active = []
        conditions = [c for c in status.get("conditions") or [] if c["type"] not in ("Suspended",)]
        if spec.get("suspend") and not ended:
            conditions.append(_condition("Suspended", "JobSuspended", now))
            status.pop("startTime", None)
        elif not ended:
            status.setdefault("startTime", now)
            if failed > spec.get("backoffLimit", 6):
                why = "BackoffLimitExceeded"
                conditions += [_condition("FailureTarget", why, now), _condition("Failed", why, now)]
            elif succeeded >= spec.get("completions", 1):
                why = "CompletionsReached"
                conditions += [_condition("SuccessCriteriaMet", why, now), _condition("Complete", why, now)]
                status["completionTime"] = now
            else:
                wanted = min(spec.get("parallelism", 1), spec.get("completions", 1) - succeeded)
                labels = {f"batch.kubernetes.io/{k}": v for k, v in _job_labels(job).items()} | _job_labels(job)
                for _ in range(wanted - len(active)):
                    self._make_pod("Job", job, labels, {})
                active = [p for p in self._owned(job) if not _is_over(p)]
        status |= {"active": len(active), "succeeded": succeeded, "failed": failed}
        status["conditions"] = conditions
        status = {k: v for k, v in status.items() if v}
        latest = self._find("Job", namespace, name)
        before = (latest or {}).get("status") or {}
        if latest is not None and _timeless(status) != _timeless(before):
            self._write("Job", {**latest, "status": status})

    def _deployment(self, namespace: str, name: str) -> None:
        """Its ReplicaSet; no pods, since nobody would run them."""
        found = self._find("Deployment", namespace, name)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return
        meta = found["metadata"]
        made = f"{name}-{zlib.crc32(json.dumps(found['spec']['template'], sort_keys=True).encode()):x}"
        if self._find("ReplicaSet", namespace, made) is None:
            owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": meta["uid"]}
            labels = (found["spec"]["template"].get("metadata") or {}).get("labels") or {}
            spec = {k: found["spec"][k] for k in ("replicas", "selector", "template") if k in found["spec"]}
            body = {"name": made, "labels": labels, "ownerReferences": [{**owner, "controller": True}]}
            self._api.add("ReplicaSet", namespace, {"metadata": body, "spec": spec}, MANAGER)

    def _daemon_set(self, namespace: str, name: str) -> None:
        """A pod for each node that its selector and its tolerations let in; where to is said by affinity."""
        found = self._find("DaemonSet", namespace, name)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return
        spec = found["spec"]["template"]["spec"]
        have = {_affine(pod) for pod in self._owned(found)}
        for node in list(self._api.storage.all(self._api.by_kind["Node"])):
            labels, node_name = node["metadata"].get("labels") or {}, node["metadata"]["name"]
            fits = all(labels.get(k) == v for k, v in (spec.get("nodeSelector") or {}).items())
            taints = [t for t in (node.get("spec") or {}).get("taints") or [] if t != UNSCHEDULABLE]
            let_in = all(any(_tolerates(t, taint) for t in spec.get("tolerations") or []) for taint in taints)
            if fits and let_in and node_name not in have:
                term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
                required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
                self._make_pod("DaemonSet", found, {}, {"affinity": {"nodeAffinity": required}})

    def _node(self, namespace: str, name: str) -> None:
        node = self._find("Node", namespace, name)
        if node is None:
            return
        taints = list(node["spec"].get("taints") or [])
        kept = [t for t in taints if t["key"] != UNSCHEDULABLE["key"]]
        wanted = [*kept, UNSCHEDULABLE] if node["spec"].get("unschedulable") else kept
        notes = node["metadata"].get("annotations") or {}
        ttl = {"node.alpha.kubernetes.io/ttl": "0"}
        if [t["key"] for t in wanted] != [t["key"] for t in taints] or not ttl.items() <= notes.items():
            meta = {**node["metadata"], "annotations": notes | ttl}
            spec = {k: v for k, v in node["spec"].items() if k != "taints"} | ({"taints": wanted} if wanted else {})
            self._write("Node", {**node, "metadata": meta, "spec": spec})

    def _namespace(self, namespace: str, name: str) -> None:
        found = self._find("Namespace", "", name)
        if found is None:
            return
        if not found["metadata"].get("deletionTimestamp"):
            for kind, made in (("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")):
                if self._find(kind, name, made) is None:
                    self._api.add(kind, name, {"metadata": {"name": made}}, MANAGER)
            return
        left = 0
        for resource in [r for r in self._api.resources.values() if r.namespaced]:
            for item in list(self._api.storage.all(resource, name)):
                try:
                    gone = self._api.take(resource.kind, name, item["metadata"]["name"], MANAGER, resource)
                except ApiError:
                    continue
                left += bool(gone.get("metadata", {}).get("deletionTimestamp"))
        if left:  # pods that no kubelet ends: it goes on when they are gone
            self._later("Namespace", "", name)
            return
        self._api.storage.remove(self._api.by_kind["Namespace"], "", name)

    def _budget(self, namespace: str, name: str) -> None:
        pods, budgets = self._api.by_kind["Pod"], self._api.by_kind["PodDisruptionBudget"]
        found = self._find("PodDisruptionBudget", namespace, name)
        if found is not None:
            disruption.update_status(self._api.storage, pods, budgets, found, self._api.now)


def _job_labels(job: Object) -> dict[str, str]:
    return {"job-name": job["metadata"]["name"], "controller-uid": job["metadata"]["uid"]}


def _condition(kind: str, reason: str, now: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason, "lastProbeTime": now, "lastTransitionTime": now}


def _timeless(status: Object) -> Object:
    kinds = sorted(c["type"] for c in status.get("conditions") or [])
    return {k: v for k, v in status.items() if k not in ("conditions", "startTime")} | {"conditions": kinds}


def _is_over(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _affine(pod: Object) -> str:
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    node = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = (node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []
    return str(terms[0]["matchFields"][0]["values"][0]) if terms else ""
