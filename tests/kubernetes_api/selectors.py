"""Label and field selectors (kubernetes.io/docs/concepts/overview/working-with-objects)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .errors import ApiError

Match = Callable[[dict[str, Any]], bool]

FIELDS: dict[str, tuple[str, ...]] = {
    "Pod": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    "Node": ("spec.unschedulable",),
    "Event": (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    "Job": ("status.successful",),
    "Namespace": ("status.phase",),
    "Secret": ("type",),
}


def labels(text: str) -> Match:
    """`a=b,c!=d,e in (f,g),h notin (i),j,!k`."""
    tests = [_label_test(term.strip()) for term in re.split(r",(?![^(]*\))", text) if term.strip()]
    return lambda obj: all(test((obj["metadata"].get("labels")) or {}) for test in tests)


def _label_test(term: str) -> Callable[[dict[str, str]], bool]:
    if found := re.fullmatch(r"([^\s=!,()]+)\s+(in|notin)\s+\(([^)]*)\)", term):
        key, word, values = found[1], found[2], {v.strip() for v in found[3].split(",")}
        if word == "in":
            return lambda have: have.get(key) in values
        return lambda have: have.get(key) not in values
    if found := re.fullmatch(r"([^\s=!,()]+)\s*(==|=|!=)\s*([^\s=!,()]*)", term):
        key, sign, value = found[1], found[2], found[3]
        return (lambda have: have.get(key) != value) if sign == "!=" else (lambda have: have.get(key) == value)
    if found := re.fullmatch(r"(!?)([^\s=!,()]+)", term):
        absent, key = bool(found[1]), found[2]
        return lambda have: (key not in have) == absent
    raise ApiError("BadRequest", f"unable to parse requirement: found '{term}', expected: identifier")


def selector_object(selector: dict[str, Any] | None) -> Match:
    """A LabelSelector of the API; an empty one matches everything, None nothing."""
    if selector is None:
        return lambda obj: False
    tests: list[Callable[[dict[str, str]], bool]] = []
    for key, value in (selector.get("matchLabels") or {}).items():
        tests.append(lambda have, key=key, value=value: have.get(key) == value)  # type: ignore[misc]
    for rule in selector.get("matchExpressions") or []:
        key, operator, values = rule["key"], rule["operator"], rule.get("values") or []
        text = {"In": f"{key} in ({','.join(values)})", "NotIn": f"{key} notin ({','.join(values)})"}
        tests.append(_label_test({**text, "Exists": key, "DoesNotExist": f"!{key}"}[operator]))
    return lambda obj: all(test(obj["metadata"].get("labels") or {}) for test in tests)


def fields(kind: str, text: str) -> Match:
    """`spec.nodeName=n1,status.phase!=Running`; an unsupported field is 400, as on the real server."""
    tests: list[tuple[str, bool, str]] = []
    for term in text.split(","):
        if not term:
            continue
        found = re.fullmatch(r"([^=!]+?)(==|=|!=)(.*)", term)
        if not found:
            raise ApiError("BadRequest", f"invalid selector: '{text}'; can't understand '{term}'")
        name = found[1]
        if name not in ("metadata.name", "metadata.namespace", *FIELDS.get(kind, ())):
            raise ApiError(
                "BadRequest",
                f'Unable to find "{name}" that match label selector "", field selector '
                f'"{text}": field label not supported: {name}',
            )
        tests.append((name, found[2] != "!=", found[3]))
    return lambda obj: all((_field(obj, name) == value) == equal for name, equal, value in tests)


def _field(obj: Any, dotted: str) -> str:
    for part in dotted.split("."):
        obj = (obj or {}).get(part)
    if isinstance(obj, bool):
        return str(obj).lower()
    if obj is None:
        return "false" if dotted in ("spec.unschedulable", "spec.hostNetwork") else ""
    return str(obj)
