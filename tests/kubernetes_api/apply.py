"""Server-side apply: who manages which field, and when two managers conflict.

Source: kubernetes.io/docs/reference/using-api/server-side-apply and structured-merge-diff's field sets. A field
set is a set of paths; a path's elements are `f:name` (a field), `k:{"name":"x"}` (a list item by its keys), `v:"x"`
(a set's value), exactly as `managedFields[].fieldsV1` spells them.
Recorded answers "SSA …" fix the conflict's wording.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from .errors import ApiError
from .resources import SET_LISTS, list_keys

Path = tuple[str, ...]
_IDENTITY = frozenset(
    {
        ("f:apiVersion",),
        ("f:kind",),
        ("f:metadata",),
        *(
            ("f:metadata", f"f:{name}")
            for name in (
                "name",
                "namespace",
                "uid",
                "resourceVersion",
                "generation",
                "creationTimestamp",
                "managedFields",
                "selfLink",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "generateName",
            )
        ),
    }
)


def field_set(kind: str, value: Any, path: str = "", prefix: Path = ()) -> set[Path]:
    """Every leaf, and every keyed list item, of an object."""
    found: set[Path] = set()
    if isinstance(value, dict) and value:
        for key, item in value.items():
            found |= field_set(kind, item, f"{path}.{key}".lstrip("."), (*prefix, f"f:{key}"))
    elif isinstance(value, list) and path in SET_LISTS:
        found |= {(*prefix, "v:" + json.dumps(item)) for item in value}
    elif isinstance(value, list) and list_keys(kind, path) and value:
        for item in value:
            here = (*prefix, _item_key(item, list_keys(kind, path) or ()))
            found.add(here)
            found |= field_set(kind, item, path, here)
    elif prefix:
        found.add(prefix)
    return {p for p in found if not any(p[: len(i)] == i and len(p) <= 2 for i in _IDENTITY if len(i) == len(p))}


def _item_key(item: dict[str, Any], keys: tuple[str, ...]) -> str:
    identity = {key: item[key] for key in keys if key in item}
    return "k:" + json.dumps(identity, separators=(",", ":"), sort_keys=True)


def encode(paths: set[Path]) -> dict[str, Any]:
    """`fieldsV1` of a field set."""
    root: dict[str, Any] = {}
    for path in sorted(paths):
        node = root
        for part in path:
            node = node.setdefault(part, {})
        if path[-1].startswith("k:"):
            node["."] = {}
    return root


def decode(fields: dict[str, Any], prefix: Path = ()) -> set[Path]:
    found: set[Path] = set()
    for key, inner in fields.items():
        if key == ".":
            found.add(prefix)
        elif inner:
            found |= decode(inner, (*prefix, key))
        else:
            found.add((*prefix, key))
    return found


def read_path(kind: str, value: Any, path: Path, dotted: str = "") -> Any:
    """The value at a path, or a marker that equals nothing where it is absent."""
    for position, part in enumerate(path):
        tag, _, name = part.partition(":")
        if tag == "f":
            if not isinstance(value, dict) or name not in value:
                return _ABSENT
            value = value[name]
            dotted = f"{dotted}.{name}".lstrip(".")
        elif tag == "k":
            wanted = json.loads(name)
            matches = [i for i in value or [] if all(i.get(k) == v for k, v in wanted.items())]
            if not matches:
                return _ABSENT
            value = matches[0]
            if position == len(path) - 1:
                return name
        else:
            return name if json.loads(name) in (value or []) else _ABSENT
    return value


class _Absent:
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


_ABSENT = _Absent()


def human(path: Path) -> str:
    """A path as conflicts name it: `.data.k`, `.spec.containers[name="c"].image`."""
    text = ""
    for part in path:
        tag, _, name = part.partition(":")
        if tag == "f":
            text += f".{name}"
        elif tag == "k":
            text += "[" + ",".join(f"{k}={json.dumps(v)}" for k, v in json.loads(name).items()) + "]"
        else:
            text += f"[={name}]"
    return text


def apply(
    kind: str,
    live: dict[str, Any] | None,
    applied: dict[str, Any],
    manager: str,
    force: bool,
    now: str,
    subresource: str = "",
) -> dict[str, Any]:
    """The object after an apply; raises 409 with every conflicting field unless forced."""
    wanted = field_set(kind, applied)
    entries = copy.deepcopy((live or {}).get("metadata", {}).get("managedFields", []))
    own = next((e for e in entries if _is(e, manager, "Apply", subresource)), None)
    conflicts: dict[str, list[Path]] = {}
    for entry in entries:
        if entry is own:
            continue
        held = decode(entry["fieldsV1"])
        for path in wanted & held:
            if path[-1].startswith("k:"):
                continue
            if read_path(kind, live, path) != read_path(kind, applied, path):
                conflicts.setdefault(entry["manager"], []).append(path)
    if conflicts and not force:
        raise _conflict(conflicts)
    result = copy.deepcopy(live) if live else {}
    if own is not None:
        others = set().union(*(decode(e["fieldsV1"]) for e in entries if e is not own), set())
        # an item goes as a whole before its fields: without its keys it could not be found any more
        for path in sorted(decode(own["fieldsV1"]) - wanted - others, key=len):
            if not any(other[: len(path)] == path for other in others):
                _delete(result, path)
    result = _merge(kind, result, applied)
    kept = []
    for entry in entries:
        if entry is own:
            continue
        taken = {p for ps in conflicts.values() for p in ps}
        remaining = decode(entry["fieldsV1"]) - (taken if entry["manager"] in conflicts else set())
        if remaining:
            kept.append({**entry, "fieldsV1": encode(remaining)})
    mine = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": applied.get("apiVersion", ""),
        "time": now,
        "fieldsType": "FieldsV1",
        "fieldsV1": encode(wanted),
    }
    if subresource:
        mine["subresource"] = subresource
    if own is not None and decode(own["fieldsV1"]) == wanted:
        mine["time"] = own["time"]
    result.setdefault("metadata", {})["managedFields"] = [mine, *kept]
    return result


def _is(entry: dict[str, Any], manager: str, operation: str, subresource: str) -> bool:
    return (entry["manager"], entry["operation"], entry.get("subresource", "")) == (manager, operation, subresource)


def _conflict(conflicts: dict[str, list[Path]]) -> ApiError:
    count = sum(len(paths) for paths in conflicts.values())
    parts = []
    for manager, paths in sorted(conflicts.items()):
        names = sorted(human(path) for path in paths)
        listed = names[0] if len(names) == 1 else "\n" + "\n".join(f"- {name}" for name in names)
        parts.append(
            f'conflict with "{manager}": {listed}' if len(names) == 1 else f'conflicts with "{manager}":{listed}'
        )
    plural = "" if count == 1 else "s"
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{m}"', "field": human(p)}
        for m, ps in sorted(conflicts.items())
        for p in sorted(ps)
    ]
    message = f"Apply failed with {count} conflict{plural}: {', '.join(parts)}"
    return ApiError("Conflict", message, details={"causes": causes})


def _merge(kind: str, target: Any, applied: Any, path: str = "") -> Any:
    if isinstance(applied, dict):
        result = dict(target) if isinstance(target, dict) else {}
        for key, value in applied.items():
            result[key] = _merge(kind, result.get(key), value, f"{path}.{key}".lstrip("."))
        return result
    if isinstance(applied, list):
        if path in SET_LISTS:
            return [*(target or []), *(item for item in applied if item not in (target or []))]
        keys = list_keys(kind, path)
        if keys:
            result_list = [copy.deepcopy(item) for item in target or []]
            for item in applied:
                wanted = _item_key(item, keys)
                at = next((i for i, known in enumerate(result_list) if _item_key(known, keys) == wanted), None)
                if at is None:
                    result_list.append(copy.deepcopy(item))
                else:
                    result_list[at] = _merge(kind, result_list[at], item, path)
            return result_list
    return copy.deepcopy(applied)


def _delete(value: Any, path: Path) -> None:
    """Removes the value at a path, then any map that this left empty."""
    part, rest = path[0], path[1:]
    tag, _, name = part.partition(":")
    if tag == "f" and isinstance(value, dict) and name in value:
        if rest:
            _delete(value[name], rest)
            if value[name] in ({}, []):
                del value[name]
        else:
            del value[name]
    elif tag == "k" and isinstance(value, list):
        wanted = json.loads(name)
        for position, item in enumerate(value):
            if all(item.get(k) == v for k, v in wanted.items()):
                if rest:
                    _delete(item, rest)
                else:
                    del value[position]
                return
    elif tag == "v" and isinstance(value, list) and json.loads(name) in value:
        value.remove(json.loads(name))


def track_update(
    kind: str, before: dict[str, Any] | None, after: dict[str, Any], manager: str, now: str, subresource: str = ""
) -> None:
    """Gives the fields that a create, PUT or patch changed to its manager (operation Update), in place."""
    entries = copy.deepcopy((before or {}).get("metadata", {}).get("managedFields", []))
    new, old = field_set(kind, after), field_set(kind, before) if before else set()
    changed = {
        p for p in new if before is None or p not in old or read_path(kind, before, p) != read_path(kind, after, p)
    }
    result = []
    mine: set[Path] = set(changed)
    for entry in entries:
        held = decode(entry["fieldsV1"]) & new
        if _is(entry, manager, "Update", subresource):
            mine |= held
            continue
        held -= {p for p in changed if not p[-1].startswith("k:")}
        if held:
            result.append({**entry, "fieldsV1": encode(held)})
    if mine:
        entry = {
            "manager": manager,
            "operation": "Update",
            "apiVersion": after.get("apiVersion", ""),
            "time": now,
            "fieldsType": "FieldsV1",
            "fieldsV1": encode(mine),
        }
        if subresource:
            entry["subresource"] = subresource
        result.append(entry)
    after.setdefault("metadata", {})["managedFields"] = result
