"""How dataclasses are written to and read from JSON columns: by their type hints, with the place of every error.

Never a pickle: a stored record is read by the next version of the program, by other programs, and by people. Floats
that JSON lacks (NaN = missing, ±Inf) are written as `{"$float": "nan"}`, bytes as `{"$bytes": base64}`, and a
dataclass of a union carries `"$type"`. A field that is absent takes its default, so an older record stays readable;
a field that is unknown is refused, so nothing that a newer version wrote is lost silently.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import types
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import canonical_json

T = TypeVar("T")


class UnreadableRecord(Permanent):
    """A stored record does not have the shape of its type; the message names the field."""


def dump(value: object) -> str:
    """The canonical JSON text of a dataclass, or of plain JSON values."""
    return canonical_json(plain(value)).decode()


def load(kind: type[T], text: str) -> T:
    """The value of type `kind` that `dump` wrote. Raises UnreadableRecord."""
    try:
        read = json.loads(text)
    except ValueError as error:
        raise UnreadableRecord(f"{kind.__name__}: not JSON ({error})") from error
    built: T = _read(kind, read, kind.__name__)
    return built


def plain(value: object, tagged: bool = False) -> Any:
    """Plain JSON values of a dataclass, enum, mapping, sequence, bytes or number."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = _hints(type(value))
        fields = {name: plain(getattr(value, name), _is_choice(hint)) for name, hint in hints.items()}
        # a reader needs the name only where several types fit
        return {"$type": type(value).__name__, **fields} if tagged else fields
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item, tagged) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, tagged) for item in value]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_choice(hint: Any) -> bool:
    """Whether a value under this hint is one of several dataclasses, directly or inside a tuple or mapping."""
    if sum(dataclasses.is_dataclass(option) for option in _options(hint)) > 1:
        return True
    return any(_is_choice(part) for part in get_args(hint))


def _read(hint: Any, value: Any, where: str) -> Any:
    options = _options(hint)
    if len(options) > 1:
        return _read_choice(options, value, where)
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(hint, value, where)
    origin = get_origin(hint)
    if origin is tuple:
        if not isinstance(value, list):
            raise UnreadableRecord(f"{where}: {value!r} is not a list")
        parts = get_args(hint)
        each = [parts[0]] * len(value) if parts[1:] == (...,) else list(parts)
        return tuple(
            _read(part, item, f"{where}[{i}]") for i, (part, item) in enumerate(zip(each, value, strict=True))
        )
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise UnreadableRecord(f"{where}: {value!r} is not an object")
        return {key: _read(get_args(hint)[1], item, f"{where}.{key}") for key, item in value.items()}
    return _read_scalar(hint, value, where)


def _read_scalar(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError as error:
            raise UnreadableRecord(f"{where}: {error}") from error
    tag, inside = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else ("", "")
    if hint is bytes and tag == "$bytes":
        return base64.b64decode(inside, validate=True)
    if hint is float and tag == "$float":
        return float(inside)
    # a bool is an int to Python, and a whole float is written as an int: exact types, but for that one case
    if hint is float and type(value) in (int, float):
        return float(value)
    if hint in (str, int, bool, type(None)) and type(value) is hint:
        return value
    raise UnreadableRecord(f"{where}: {value!r} is not {getattr(hint, '__name__', hint)}")


def _read_choice(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    left = [option for option in options if option is not type(None)]
    name = value.get("$type") if isinstance(value, dict) else None
    if name is not None:
        left = [option for option in left if getattr(option, "__name__", "") == name] or left
    # 1 fits both int and float: the type that JSON gave goes first, or an int would come back as a float
    left = [option for option in left if type(value) is option] or left
    for option in left[:-1]:
        with suppress(UnreadableRecord):
            return _read(option, value, where)
    return _read(left[-1], value, where)


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise UnreadableRecord(f"{where}: {value!r} is not an object")
    hints = _hints(kind)
    # a newer program may have written it, and storing the record again would lose it
    unknown = set(value) - set(hints) - {"$type"}
    if unknown:
        raise UnreadableRecord(f"{where}: unknown field {min(unknown)!r}; a newer version may have written it")
    fields = {name: _read(hints[name], item, f"{where}.{name}") for name, item in value.items() if name in hints}
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise UnreadableRecord(f"{where}: {error}") from error
