"""The three patch formats that are not server-side apply.

Sources: RFC 6902 (JSON Patch), RFC 7386 (JSON Merge Patch), and Kubernetes' strategic merge patch
(kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch; directives in
design-proposals strategic-merge-patch.md): `$patch: delete|replace`, `$setElementOrder/…` (order kept as is),
`$deleteFromPrimitiveList/…`, `$retainKeys`.
"""

from __future__ import annotations

import copy
from typing import Any

from .errors import ApiError
from .resources import SET_LISTS, list_keys


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def strategic_patch(kind: str, target: Any, patch: Any, path: str = "") -> Any:
    """Merges lists by the keys of `resources.LIST_KEYS`; every other list is replaced."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    patch = dict(patch)
    directive = patch.pop("$patch", None)
    if directive == "replace":
        return copy.deepcopy(patch)
    if directive == "delete":
        return {}
    retain = patch.pop("$retainKeys", None)
    result = dict(target) if isinstance(target, dict) else {}
    if retain is not None:
        result = {key: value for key, value in result.items() if key in retain}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [item for item in result.get(name, []) if item not in value]
        elif key.startswith("$setElementOrder/"):
            continue
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = _strategic_value(kind, result.get(key), value, f"{path}.{key}".lstrip("."))
    return result


def _strategic_value(kind: str, current: Any, value: Any, path: str) -> Any:
    if isinstance(value, dict):
        return strategic_patch(kind, current, value, path)
    if isinstance(value, list):
        if path in SET_LISTS:
            return [*(current or []), *(item for item in value if item not in (current or []))]
        keys = list_keys(kind, path)
        if keys:
            return _merge_list(kind, current or [], value, path, keys[0])
    return copy.deepcopy(value)


def _merge_list(kind: str, current: list[Any], patch: list[Any], path: str, key: str) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [copy.deepcopy(item) for item in patch if item.get("$patch") != "replace"]
    result = [copy.deepcopy(item) for item in current]
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise ApiError("BadRequest", f"map: {item} does not contain declared merge key: {key}")
        position = next((i for i, known in enumerate(result) if known.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if position is not None:
                del result[position]
        elif position is None:
            result.append(strategic_patch(kind, {}, item, path))
        else:
            result[position] = strategic_patch(kind, result[position], item, path)
    return result


def json_patch(document: Any, operations: Any) -> Any:
    """RFC 6902; a failed `test` or a missing path is 422, as the real server answers."""
    if not isinstance(operations, list):
        raise ApiError("BadRequest", "json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    result = copy.deepcopy(document)
    for operation in operations:
        result = _operate(result, operation)
    return result


def _refused(message: str) -> ApiError:
    return ApiError("Invalid", f"the server rejected our request due to an error in our request: {message}")


def _parts(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise _refused(f"invalid JSON pointer {pointer!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _read(document: Any, parts: list[str]) -> Any:
    for part in parts:
        try:
            document = document[int(part)] if isinstance(document, list) else document[part]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise _refused(f"missing path /{'/'.join(parts)}") from error
    return document


def _write(document: Any, parts: list[str], value: Any, *, replace: bool) -> Any:
    if not parts:
        return value
    parent, last = _read(document, parts[:-1]), parts[-1]
    if isinstance(parent, list):
        position = len(parent) if last == "-" else int(last)
        if position > len(parent) or (replace and position >= len(parent)):
            raise _refused(f"index {last} out of bounds")
        parent[position : position + (1 if replace else 0)] = [value]
    elif isinstance(parent, dict):
        if replace and last not in parent:
            raise _refused(f"missing path /{'/'.join(parts)}")
        parent[last] = value
    else:
        raise _refused(f"missing path /{'/'.join(parts)}")
    return document


def _remove(document: Any, parts: list[str]) -> Any:
    _read(document, parts)
    parent, last = _read(document, parts[:-1]), parts[-1]
    if isinstance(parent, list):
        del parent[int(last)]
    else:
        del parent[last]
    return document


def _operate(document: Any, operation: dict[str, Any]) -> Any:
    kind, parts = operation.get("op"), _parts(str(operation.get("path", "")))
    match kind:
        case "add" | "replace":
            return _write(document, parts, copy.deepcopy(operation.get("value")), replace=kind == "replace")
        case "remove":
            return _remove(document, parts)
        case "test":
            if _read(document, parts) != operation.get("value"):
                raise _refused(f"testing path {operation['path']} failed")
            return document
        case "copy" | "move":
            source = _parts(str(operation.get("from", "")))
            value = copy.deepcopy(_read(document, source))
            document = _remove(document, source) if kind == "move" else document
            return _write(document, parts, value, replace=False)
        case _:
            raise _refused(f"unexpected kind: {kind}")
