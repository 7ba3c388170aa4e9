"""Kubernetes' Status objects as exceptions (reasons as in apimachinery's `StatusReason`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .resources import Resource

CODES = {
    "BadRequest": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "AlreadyExists": 409,
    "Conflict": 409,
    "Expired": 410,
    "Gone": 410,
    "UnsupportedMediaType": 415,
    "Invalid": 422,
    "TooManyRequests": 429,
    "InternalError": 500,
    "NotImplemented": 501,
    "ServiceUnavailable": 503,
}


class ApiError(Exception):
    """Ends a request with a Status of kind Failure."""

    def __init__(self, reason: str, message: str, *, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.reason, self.message, self.details = reason, message, details or {}
        self.code = CODES[reason]

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            body["details"] = self.details
        return body


class NoSuchPath(ApiError):
    """What no kind is served at: plain text, and no Status (k8s.io/apiserver, pkg/util/notfoundhandler)."""

    def __init__(self) -> None:
        super().__init__("NotFound", "404 page not found\n")


def not_found(qualified: str, name: str) -> ApiError:
    return ApiError("NotFound", f'{qualified} "{name}" not found', details={"name": name, "kind": qualified})


def other_object(resource: Resource, name: str, word: str, wanted: str, found: str, how: str) -> ApiError:
    """A delete whose precondition does not hold (k8s.io/apiserver, pkg/registry/rest/delete.go, BeforeDelete)."""
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    differs = f"the {word} in the precondition ({wanted}) does not match the {word} in record ({found})"
    message = f'Operation cannot be fulfilled on {kind} "{name}": {differs}. The object might have been {how}'
    return ApiError("Conflict", message, details={"name": name, "kind": kind})


def modified(qualified: str, name: str) -> ApiError:
    message = (
        f'Operation cannot be fulfilled on {qualified} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return ApiError("Conflict", message, details={"name": name, "kind": qualified})


def terminating(namespace: str) -> ApiError:
    """The NamespaceLifecycle admission plugin; an eviction is a create, too (kubernetes/kubernetes#93947)."""
    message = f"unable to create new content in namespace {namespace} because it is being terminated"
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {namespace} is being terminated",
        "field": "metadata.namespace",
    }
    return ApiError("Forbidden", message, details={"causes": [cause]})


def invalid(kind: str, name: str, *causes: tuple[str, str]) -> ApiError:
    """`causes`: (field, message) pairs; the message in Kubernetes' aggregate form."""
    lines = [f"{field}: {message}" for field, message in causes]
    joined = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    details = {
        "name": name,
        "kind": kind,
        "causes": [{"reason": "FieldValueInvalid", "message": m, "field": f} for f, m in causes],
    }
    return ApiError("Invalid", f'{kind} "{name}" is invalid: {joined}', details=details)
