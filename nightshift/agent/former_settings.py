"""Settings that became constants. A configuration that has one still loads, with a warning; its value has no effect.

docs/decisions/030-settings-people-can-tune.md has the rule. A row names the constant, so the value in the warning is
the one that the program uses.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

Field = tuple[str | int, ...]

BLOCK = "-"
REMOVED: Mapping[str, str] = {
}
"""Path (an entry of a list by its `type`, with shell patterns) → the constant that counts now, `module:NAME`; BLOCK: a block that
has no settings left."""


def constant(where: str) -> Any:
    """The value of `module:NAME`."""
    module, name = where.split(":")
    return getattr(importlib.import_module(module), name)


def found(values: Any, at: Field = (), name: str = "") -> Iterator[tuple[Field, str]]:
    """The place and the row's constant of each former setting in these plain values."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            inner = f"{name}.{key}" if name else str(key)
            where = _row(inner)
            inside = [] if where not in (None, BLOCK) else list(found(value, (*at, key), inner))
            yield from inside
            # A block goes only as a whole: a misspelt field in it is an error, not something to pass over.
            if where is not None and (where != BLOCK or len(inside) == len(value or ())):
                yield (*at, key), where
    elif isinstance(values, list | tuple):
        for i, item in enumerate(values):
            kind = item.get("type", "") if isinstance(item, Mapping) else ""
            yield from found(item, (*at, i), f"{name}.{kind}")


def without(values: Any, gone: frozenset[Field], at: Field = ()) -> Any:
    """These values without the fields at these places; what was given is not changed."""
    if isinstance(values, Mapping):
        return {k: without(v, gone, (*at, k)) for k, v in values.items() if (*at, k) not in gone}
    if isinstance(values, list | tuple):
        return type(values)(without(item, gone, (*at, i)) for i, item in enumerate(values))
    return values


def warning(place: str, where: str) -> str:
    """What a person reads of one former setting."""
    module, name = where.split(":")
    return f"{place}: no longer a setting; it has no effect. Used is {constant(where)!r} ({module}.{name})"


def _row(name: str) -> str | None:
    exact = REMOVED.get(name)
    if exact is not None:
        return exact
    return next((where for pattern, where in REMOVED.items() if "*" in pattern and fnmatchcase(name, pattern)), None)
