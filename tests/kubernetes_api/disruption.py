"""PodDisruptionBudgets: the controller's status, and the Eviction subresource that spends it.

Sources: kubernetes.io/docs/concepts/scheduling-eviction/api-eviction (201, its body a Status; 404, 429, 500),
pkg/registry/core/pod/storage/eviction.go for the order of checks and the wording, recorded answers "evict …".
"""

from __future__ import annotations

import math
from typing import Any

from .errors import ApiError
from .resources import Resource
from .selectors import selector_object
from .storage import Object, Storage


def matching(storage: Storage, pdbs: Resource, pod: Object) -> list[Object]:
    namespace = pod["metadata"]["namespace"]
    return [b for b in storage.all(pdbs, namespace) if selector_object(b["spec"].get("selector"))(pod)]


def is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def update_status(storage: Storage, pods: Resource, pdbs: Resource, budget: Object, now: str) -> None:
    """What the disruption controller writes for bare pods and integer or percentage budgets."""
    covered = [
        pod
        for pod in storage.all(pods, budget["metadata"]["namespace"])
        if selector_object(budget["spec"].get("selector"))(pod)
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
    ]
    disrupted = {
        name: when
        for name, when in ((budget.get("status") or {}).get("disruptedPods") or {}).items()
        if any(p["metadata"]["name"] == name and not p["metadata"].get("deletionTimestamp") for p in covered)
    }
    healthy = sum(
        is_ready(p) and not p["metadata"].get("deletionTimestamp") and p["metadata"]["name"] not in disrupted
        for p in covered
    )
    expected, spec = len(covered), budget["spec"]
    if "maxUnavailable" in spec:
        desired = max(0, expected - _count(spec["maxUnavailable"], expected, up=True))
    else:
        desired = _count(spec.get("minAvailable", 1), expected, up=True)
    allowed = max(0, healthy - desired) if expected else 0
    enough = "True" if allowed else "False"
    status: dict[str, Any] = {
        "conditions": [
            {
                "type": "DisruptionAllowed",
                "status": enough,
                "reason": "SufficientPods" if allowed else "InsufficientPods",
                "message": "",
                "lastTransitionTime": now,
                "observedGeneration": budget["metadata"].get("generation", 1),
            }
        ],
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptionsAllowed": allowed,
        "expectedPods": expected,
        "observedGeneration": budget["metadata"].get("generation", 1),
    }
    if disrupted:
        status["disruptedPods"] = disrupted
    old = budget.get("status") or {}
    known = (old.get("conditions") or [{}])[0]
    if known.get("status") == enough:
        status["conditions"][0]["lastTransitionTime"] = known.get("lastTransitionTime", now)
    if status != old:
        storage.write(pdbs, {**budget, "status": status})


def _count(value: int | str, total: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    share = int(value.rstrip("%")) * total / 100
    return math.ceil(share) if up else math.floor(share)


def check_eviction(
    storage: Storage, pods: Resource, pdbs: Resource, pod: Object, now: str, *, dry_run: bool
) -> None:
    """Spends one allowed disruption, or raises 429 or 500."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Pending"):
        return
    if pod["metadata"].get("deletionTimestamp"):
        return
    budgets = matching(storage, pdbs, pod)
    if len(budgets) > 1:
        raise ApiError(
            "InternalError",
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )
    if not budgets:
        return
    budget = budgets[0]
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    policy = budget["spec"].get("unhealthyPodEvictionPolicy")
    if not is_ready(pod):
        healthy_enough = status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0) > 0
        if policy == "AlwaysAllow" or healthy_enough:
            return
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 1):
        raise _refused(f"The disruption budget {name} is still being processed by the server.", retry_s=10)
    if status.get("disruptionsAllowed", 0) <= 0:
        needed, have = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        raise _refused(f"The disruption budget {name} needs {needed} healthy pods and has {have} currently")
    if dry_run:
        return
    spent = {
        **status,
        "disruptionsAllowed": status["disruptionsAllowed"] - 1,
        "disruptedPods": {**(status.get("disruptedPods") or {}), pod["metadata"]["name"]: now},
    }
    storage.write(pdbs, {**budget, "status": spent})


def _refused(cause: str, retry_s: int | None = None) -> ApiError:
    details: dict[str, Any] = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    if retry_s is not None:
        details["retryAfterSeconds"] = retry_s
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return ApiError("TooManyRequests", message, details=details)
