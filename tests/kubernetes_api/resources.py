"""Which resources there are, how they are named, and how their lists merge.

Merge keys are those that the API types declare (`patchMergeKey`, `listMapKey`; kubernetes/api, v1.36). A list that
is not named here is atomic: a patch replaces it whole, as it replaces `spec.taints` of a node (recorded answer
"strategic patch merge taints by key").
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resource:
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = True
    """Has a `/status` subresource: the main resource ignores status, and the other way round."""
    keeps_status_on_create: bool = False
    unconditional_update: bool = True
    """A PUT without resourceVersion overwrites; else it is refused with 422 (rest.UpdateStrategy)."""
    label_name: bool = False
    """The name is an RFC 1123 label, not a subdomain."""
    custom: bool = False
    schema: tuple[tuple[str, object], ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As it stands in messages: `nodes`, `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def key(self) -> tuple[str, str]:
        return (self.group, self.plural)


BUILT_IN = (
    Resource("", "v1", "namespaces", "Namespace", namespaced=False, label_name=True),
    Resource("", "v1", "nodes", "Node", namespaced=False, keeps_status_on_create=True),
    Resource("", "v1", "pods", "Pod"),
    Resource("", "v1", "configmaps", "ConfigMap", status=False),
    Resource("", "v1", "secrets", "Secret", status=False),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", status=False),
    Resource("", "v1", "services", "Service", label_name=True),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Resource("", "v1", "events", "Event", status=False),
    Resource("apps", "v1", "deployments", "Deployment"),
    Resource("apps", "v1", "statefulsets", "StatefulSet"),
    Resource("apps", "v1", "daemonsets", "DaemonSet"),
    Resource("apps", "v1", "replicasets", "ReplicaSet"),
    Resource("batch", "v1", "jobs", "Job"),
    Resource("batch", "v1", "cronjobs", "CronJob"),
    Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", status=False),
    Resource("networking.k8s.io", "v1", "ingresses", "Ingress"),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    Resource("coordination.k8s.io", "v1", "leases", "Lease", status=False, unconditional_update=False),
    Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, status=False),
    Resource("rbac.authorization.k8s.io", "v1", "roles", "Role", status=False),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", status=False),
    Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False, status=False),
    Resource(
        "rbac.authorization.k8s.io",
        "v1",
        "clusterrolebindings",
        "ClusterRoleBinding",
        namespaced=False,
        status=False,
    ),
    Resource(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
    ),
)

POD_SPEC_LISTS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "containers.env": ("name",),
    "containers.ports": ("containerPort", "protocol"),
    "containers.volumeMounts": ("mountPath",),
    "initContainers.env": ("name",),
    "initContainers.volumeMounts": ("mountPath",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "schedulingGates": ("name",),
}

_METADATA_LISTS = {"metadata.ownerReferences": ("uid",)}
SET_LISTS = frozenset({"metadata.finalizers"})


def _pod_template(prefix: str) -> dict[str, tuple[str, ...]]:
    return {f"{prefix}.{path}": keys for path, keys in POD_SPEC_LISTS.items()}


LIST_KEYS: dict[str, dict[str, tuple[str, ...]]] = {
    "Node": {"status.conditions": ("type",), "status.addresses": ("type",)},
    "Pod": {
        **_pod_template("spec"),
        "status.conditions": ("type",),
        "status.podIPs": ("ip",),
    },
    "Deployment": {**_pod_template("spec.template.spec"), "status.conditions": ("type",)},
    "StatefulSet": {**_pod_template("spec.template.spec"), "status.conditions": ("type",)},
    "DaemonSet": {**_pod_template("spec.template.spec"), "status.conditions": ("type",)},
    "ReplicaSet": {**_pod_template("spec.template.spec"), "status.conditions": ("type",)},
    "Job": {**_pod_template("spec.template.spec")},
    "Service": {"spec.ports": ("port", "protocol")},
    "ServiceAccount": {"secrets": ("name",), "imagePullSecrets": ()},
    "PodDisruptionBudget": {"status.conditions": ("type",)},
}


def list_keys(kind: str, path: str) -> tuple[str, ...] | None:
    """The keys by which the list at a dotted path merges; None where it is atomic (or a set)."""
    return LIST_KEYS.get(kind, {}).get(path) or _METADATA_LISTS.get(path)
