"""Names, labels and custom resources' schemas, refused with 422 as the real server words it."""

from __future__ import annotations

import re
from typing import Any

from .errors import ApiError, invalid
from .resources import Resource

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def metadata(resource: Resource, body: dict[str, Any]) -> None:
    """Raises 422 for a name, label or annotation that the API machinery refuses."""
    meta = body["metadata"]
    name = meta.get("name", "")
    problems: list[tuple[str, str]] = []
    if not name:
        problems.append(("metadata.name", "Required value: name or generateName is required"))
    elif not (_LABEL if resource.label_name else _SUBDOMAIN).fullmatch(name):
        rule = _LABEL_RULE if resource.label_name else _SUBDOMAIN_RULE
        problems.append(("metadata.name", f'Invalid value: "{name}": {rule}'))
    elif len(name) > (63 if resource.label_name else 253):
        limit = 63 if resource.label_name else 253
        problems.append(("metadata.name", f'Invalid value: "{name}": must be no more than {limit} characters'))
    for key, value in (meta.get("labels") or {}).items():
        problems += _qualified("metadata.labels", key)
        if not isinstance(value, str):
            raise ApiError(
                "BadRequest",
                f"json: cannot unmarshal {type(value).__name__} into Go struct field "
                "ObjectMeta.metadata.labels of type string",
            )
        if len(value) > 63:
            problems.append(("metadata.labels", f'Invalid value: "{value}": must be no more than 63 bytes'))
        elif value and not _QUALIFIED.fullmatch(value):
            problems.append(
                (
                    "metadata.labels",
                    (
                        f'Invalid value: "{value}": a valid label must be an empty string or '
                        "consist of alphanumeric characters, '-', '_' or '.'"
                    ),
                )
            )
    total = 0
    for key, value in (meta.get("annotations") or {}).items():
        problems += _qualified("metadata.annotations", key.lower())
        total += len(key) + len(str(value))
    if total > 256 * 1024:
        problems.append(("metadata.annotations", "Too long: may not be more than 262144 bytes"))
    if problems:
        raise invalid(_kind_in_messages(resource), name, *problems)


def _kind_in_messages(resource: Resource) -> str:
    return f"{resource.kind}.{resource.group}" if resource.group else resource.kind


def _qualified(field: str, key: str) -> list[tuple[str, str]]:
    prefix, _, name = key.rpartition("/")
    good = bool(name) and len(name) <= 63 and _QUALIFIED.fullmatch(name)
    if prefix:
        good = good and len(prefix) <= 253 and bool(_SUBDOMAIN.fullmatch(prefix))
    if good:
        return []
    return [
        (field, f"Invalid value: \"{key}\": name part must consist of alphanumeric characters, '-', '_' or '.'")
    ]


def content(resource: Resource, body: dict[str, Any], before: dict[str, Any] | None) -> None:
    """Raises 422 for the spec rules that mitigations can run into."""
    name = body["metadata"]["name"]
    problems: list[tuple[str, str]] = []
    match resource.kind:
        case "Pod":
            problems = _pod(body, before)
        case "Node":
            for i, taint in enumerate((body.get("spec") or {}).get("taints") or []):
                if taint.get("effect") not in _EFFECTS:
                    supported = ", ".join(f'"{effect}"' for effect in sorted(_EFFECTS))
                    field = f"metadata.taints[{i}].effect"
                    problems.append(
                        (field, f'Unsupported value: "{taint.get("effect")}": supported values: {supported}')
                    )
        case "Job":
            for field in ("selector", "completionMode"):
                if before and field in before["spec"] and (body["spec"].get(field) != before["spec"][field]):
                    problems.append((f"spec.{field}", "Invalid value: field is immutable"))
            if before and _template(body) != _template(before) and not before["spec"].get("suspend"):
                problems.append(("spec.template", "Invalid value: field is immutable"))
            problems += _job_status(body, before or {})
        case "PodDisruptionBudget":
            spec = body.get("spec") or {}
            if "minAvailable" in spec and "maxUnavailable" in spec:
                problems.append(("spec", "Invalid value: minAvailable and maxUnavailable cannot be both set"))
        case "Event":
            about = (body.get("involvedObject") or {}).get("namespace", "")
            where = body["metadata"]["namespace"]
            if about != where and (about or where != "default"):
                message = f'Invalid value: "{about}": does not match event.namespace'
                problems.append(("involvedObject.namespace", message))
        case "Lease":
            spec = body.get("spec") or {}
            if spec.get("leaseDurationSeconds") is not None and spec["leaseDurationSeconds"] <= 0:
                problems.append(("spec.leaseDurationSeconds", "Invalid value: must be greater than 0"))
    for field, schema in resource.schema:
        if field in body:
            problems += check_schema(schema, body[field], field)  # type: ignore[arg-type]
        elif field in (dict(resource.schema).get("", {}) or {}):  # type: ignore[operator]
            problems.append((field, "Required value"))
    if problems:
        raise invalid(_kind_in_messages(resource), name, *problems)


def _job_status(job: dict[str, Any], before: dict[str, Any]) -> list[tuple[str, str]]:
    """What a Job's status may not become (pkg/apis/batch/validation, validateJobStatus and its update)."""
    status, was = job.get("status") or {}, before.get("status") or {}
    if status == was:
        return []
    true = {c["type"] for c in status.get("conditions") or [] if c["status"] == "True"}
    no = "Invalid value"
    problems = [
        ("status.conditions", f"{no}: cannot set {ended}=True condition without the {first}=true condition")
        for ended, first in (("Failed", "FailureTarget"), ("Complete", "SuccessCriteriaMet"))
        if ended in true and first not in true
    ]
    start, is_over = status.get("startTime"), bool(true & {"Failed", "Complete"})
    if is_over and status.get("active"):
        words = f"Invalid value: {status['active']}: active>0 is invalid for finished job"
        problems.append(("status.active", words))
    if is_over and not start:
        problems.append(("status.startTime", "Required value: startTime is required for finished job"))
    if was.get("startTime") not in (None, start) and not job["spec"].get("suspend"):
        how = "updated" if start else "removed"
        problems.append(("status.startTime", f"Required value: startTime cannot be {how} for unsuspended job"))
    return problems


def _template(job: dict[str, Any]) -> Any:
    return ((job["spec"].get("template") or {}).get("spec") or {}).get("containers")


def _pod(body: dict[str, Any], before: dict[str, Any] | None) -> list[tuple[str, str]]:
    spec = body.get("spec") or {}
    if not spec.get("containers"):
        return [("spec.containers", "Required value")]
    problems = []
    for i, container in enumerate(spec["containers"]):
        for field in ("name", "image"):
            if not container.get(field):
                problems.append((f"spec.containers[{i}].{field}", "Required value"))
    if before is not None and _frozen(before["spec"]) != _frozen(spec):
        problems.append(
            (
                "spec",
                (
                    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
                    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
                    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be "
                    "set to 1 if it was previously negative)"
                ),
            )
        )
    return problems


def _frozen(spec: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in spec.items() if k not in ("activeDeadlineSeconds", "tolerations", "schedulingGates")}
    if spec.get("schedulingGates") or "nodeSelector" in kept or "affinity" in kept:
        kept.pop("nodeSelector", None)
        kept.pop("affinity", None)
    for group in ("containers", "initContainers"):
        if group in kept:
            kept[group] = [{k: v for k, v in c.items() if k != "image"} for c in kept[group]]
    return kept


def check_schema(schema: dict[str, Any], value: Any, path: str) -> list[tuple[str, str]]:
    """The part of OpenAPI v3 structural schemas that operators' CRDs use; unknown keywords are ignored."""
    problems: list[tuple[str, str]] = []
    wanted = schema.get("type")
    types = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    if schema.get("x-kubernetes-int-or-string"):
        wanted = None
    if value is None and schema.get("nullable"):
        return []
    if wanted and (
        not isinstance(value, types[wanted]) or (wanted in ("integer", "number") and isinstance(value, bool))
    ):
        names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
        got = names.get(type(value), "null")
        return [(path, f'Invalid value: "{got}": {path} in body must be of type {wanted}: "{got}"')]
    shown = f'"{value}"' if isinstance(value, str) else value
    for keyword, bad, phrase in (
        ("maximum", lambda limit: value > limit, "less than or equal to"),
        ("minimum", lambda limit: value < limit, "greater than or equal to"),
    ):
        if keyword in schema and isinstance(value, int | float) and bad(schema[keyword]):
            problems.append((path, f"Invalid value: {shown}: {path} in body should be {phrase} {schema[keyword]}"))
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(f'"{item}"' for item in schema["enum"])
        problems.append((path, f"Unsupported value: {shown}: supported values: {supported}"))
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        problems.append((path, f"Invalid value: {shown}: {path} in body should match '{schema['pattern']}'"))
    if "maxLength" in schema and isinstance(value, str) and len(value) > schema["maxLength"]:
        problems.append((path, f"Too long: may not be more than {schema['maxLength']} bytes"))
    if isinstance(value, dict):
        problems += [(f"{path}.{n}", "Required value") for n in schema.get("required", ()) if n not in value]
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                problems += check_schema(inner, value[name], f"{path}.{name}")
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            problems += check_schema(schema["items"], item, f"{path}[{i}]")
    return problems


def prune(schema: dict[str, Any], value: Any) -> Any:
    """Drops the fields that a structural schema does not name (kubernetes.io, "Field pruning")."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    if isinstance(value, dict) and "additionalProperties" in schema:
        inner = schema["additionalProperties"]
        return {k: prune(inner, v) if isinstance(inner, dict) else v for k, v in value.items()}
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        return {k: prune(properties[k], v) for k, v in value.items() if k in properties}
    if isinstance(value, list) and "items" in schema:
        return [prune(schema["items"], item) for item in value]
    return value
