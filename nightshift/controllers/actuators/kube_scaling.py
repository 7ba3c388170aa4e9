"""Says how a Deployment would be scaled, and by whom: its autoscaler's or its repository's owner. Changes nothing.

A replica count that an autoscaler or GitOps owns is put back by it within minutes, so writing it is a fight, not a
repair. Who owns it is read from the HorizontalPodAutoscaler that targets the Deployment (autoscaling/v2), KEDA's
mark on that (`scaledobject.keda.sh/name`), the marks of Argo CD and Flux on the Deployment, a Helm release's, and
last from the field manager of `spec.replicas`.
"""

from __future__ import annotations

from dataclasses import dataclass

from nightshift.controllers.actuators.kube_client import KubeClient, NotFound, Object, named

_ARGO = ("argocd.argoproj.io/tracking-id", "argocd.argoproj.io/instance")
_FLUX = ("kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name")
_HELM = "meta.helm.sh/release-name"


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


def suggest(kube: KubeClient, namespace: str, replica_set: str, more: int = 1) -> Suggestion | None:
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
    return decide(deployment, scalers, more)


def decide(deployment: Object, scalers: list[Object], more: int) -> Suggestion:
    """Purely: who owns the replica count, and the smallest change there that gives `more` replicas."""
    meta, now = deployment["metadata"], int((deployment.get("spec") or {}).get("replicas", 1))
    name = f"{meta['namespace']}/{meta['name']}"
    for scaler in scalers:
        target = scaler["spec"]["scaleTargetRef"]
        if (target.get("kind"), target.get("name")) == ("Deployment", meta["name"]):
            return Suggestion(f"Deployment {name}", *_scaled(scaler, now + more))
    notes = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
    for who, keys in (("Argo CD", _ARGO), ("Flux", _FLUX), ("Helm", (_HELM,))):
        if (key := next((k for k in keys if notes.get(k)), None)) is not None:
            owner = f"{who} ({notes[key]})"
            return Suggestion(
                f"Deployment {name}", owner, _diff("in its source, Deployment", "replicas", now, more)
            )
    return Suggestion(f"Deployment {name}", _manager(meta), _diff(f"Deployment {name}", "replicas", now, more))


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
