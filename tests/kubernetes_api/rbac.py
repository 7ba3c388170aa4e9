"""Who may do what: bearer tokens to users, users to rules, from the stored Role and Binding objects.

Source: kubernetes.io/docs/reference/access-authn-authz/rbac; wording of 403 as the real authorizer's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .errors import ApiError
from .resources import Resource
from .storage import Object, Storage


@dataclass(frozen=True)
class User:
    name: str
    groups: tuple[str, ...] = ("system:authenticated",)

    @property
    def is_master(self) -> bool:
        return "system:masters" in self.groups


ADMIN = User("kubernetes-admin", ("system:masters", "system:authenticated"))


def service_account(namespace: str, name: str) -> User:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups)


@dataclass(frozen=True)
class Attributes:
    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def full(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Authorizer:
    def __init__(self, storage: Storage, resources: dict[str, Resource], is_seen: Callable[[Object], bool]) -> None:
        """`is_seen`: whether the authorizer's cache has this role or binding already."""
        self._storage, self._kinds, self._is_seen = storage, resources, is_seen
        self.warming_up = False
        """Whether roles are not read yet, as while a server starts: it is not ready, and denies what they grant."""

    def allowed(self, user: User, what: Attributes) -> bool:
        if user.is_master:
            return True
        if self.warming_up:
            return False
        for kind, namespace in (("ClusterRoleBinding", None), ("RoleBinding", what.namespace or None)):
            if kind == "RoleBinding" and namespace is None:
                continue
            for binding in filter(self._is_seen, self._storage.all(self._kinds[kind], namespace)):
                if any(_is_subject(s, user, binding) for s in binding.get("subjects") or []) and any(
                    _covers(rule, what) for rule in self._rules(binding)
                ):
                    return True
        return False

    def _rules(self, binding: Object) -> list[dict[str, list[str]]]:
        reference = binding["roleRef"]
        namespace = binding["metadata"].get("namespace", "") if reference["kind"] == "Role" else ""
        role = self._storage.get(self._kinds[reference["kind"]], namespace, reference["name"])
        return (role or {}).get("rules") or []

    def check(self, user: User, what: Attributes) -> None:
        if not self.allowed(user, what):
            raise denied(user, what)


def denied(user: User, what: Attributes) -> ApiError:
    """The authorizer's refusal."""
    scope = f'in the namespace "{what.namespace}"' if what.namespace else "at the cluster scope"
    named = f' "{what.name}"' if what.name else ""
    qualified = f"{what.resource}.{what.group}" if what.group else what.resource
    message = (
        f'{qualified}{named} is forbidden: User "{user.name}" cannot {what.verb} resource "{what.full}" '
        f'in API group "{what.group}" {scope}'
    )
    return ApiError("Forbidden", message, details={"name": what.name, "kind": what.resource})


def _is_subject(subject: dict[str, str], user: User, binding: Object) -> bool:
    match subject["kind"]:
        case "ServiceAccount":
            namespace = subject.get("namespace") or binding["metadata"].get("namespace", "")
            return user.name == f"system:serviceaccount:{namespace}:{subject['name']}"
        case "User":
            return user.name == subject["name"]
        case "Group":
            return subject["name"] in user.groups
    return False


def _covers(rule: dict[str, list[str]], what: Attributes) -> bool:
    resources = rule.get("resources") or []
    named = rule.get("resourceNames") or []
    return (
        bool({"*", what.verb} & set(rule.get("verbs") or []))
        and bool({"*", what.group} & set(rule.get("apiGroups") or []))
        and bool({"*", what.full, f"*/{what.subresource}" if what.subresource else what.full} & set(resources))
        and (not named or what.name in named)
    )
