"""What the actuator's identity may not do, asked of the API server itself, without doing it.

SelfSubjectAccessReview (authorization.k8s.io/v1) answers for the caller, and every authenticated user may ask.
"""

from __future__ import annotations

from controllers.actuators.kube_client import KubeClient
from controllers.actuators.kube_jobs import KINDS

_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
NEEDED: tuple[tuple[str, str, str, str], ...] = (
    *((verb, "", "nodes", "") for verb in ("get", "list", "patch")),
    *((verb, "", "pods", "") for verb in ("get", "list", "patch", "delete")),
    ("create", "", "pods", "eviction"),
    *((verb, kind.api.split("/")[1], kind.plural, "") for kind in KINDS[:1] for verb in ("get", "patch")),
)
"""(verb, group, resource, subresource). Of the kinds of jobs only Kubernetes's own: others need their operator."""


def refused(kube: KubeClient) -> list[str]:
    """What is not permitted in every namespace, such as `patch nodes`. Raises Temporary or Permanent."""
    found = []
    for verb, group, resource, subresource in NEEDED:
        asked = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = kube.request("POST", _REVIEW, body=body)
        if not answer["status"]["allowed"]:
            found.append(f"{verb} {resource}{'/' + subresource if subresource else ''}")
    return found
