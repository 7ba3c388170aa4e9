"""Reads a YAML file so that every error can say where it stands: file, line and field.

Written against two traps of plain YAML loading: a key given twice silently keeps the last, and an alias can expand
without bound. Both are refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import ErrorDetails

from nightshift.collectors.base import Permanent

MAX_BYTES = 1 << 20
MAX_NODES = 100_000
Field = tuple[str | int, ...]
_COLLECTIONS = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})


class ConfigError(Permanent):
    """The configuration cannot be used. `problems` are sentences, each with its file, line and field."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Document:
    """A file's plain values, and the line (from 1) on which each field stands."""

    path: Path
    values: dict[str, Any]
    lines: Mapping[Field, int] = field(default_factory=dict)

    def place(self, at: Field) -> str:
        """`FILE:LINE: field`, with the line of the nearest enclosing field that stands in the file."""
        nearest = at
        # A field that is missing has no line; its block has.
        while nearest and nearest not in self.lines:
            nearest = nearest[:-1]
        return f"{self.path}:{self.lines.get(nearest, 1)}: {dotted(at)}"

    def followed(self, moved: Mapping[Field, Field]) -> Document:
        """The same, with the lines of values that were moved (today's place → the file's)."""
        lines = {
            (*today, *at[len(was) :]): line
            for today, was in moved.items()
            for at, line in self.lines.items()
            if at[: len(was)] == was
        }
        return replace(self, lines={**self.lines, **lines})


def dotted(at: Field) -> str:
    """`sources[0].urls`."""
    text = ""
    for part in at:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the file"


def read(path: Path) -> Document:
    """Raises ConfigError where the file is absent, too large, not YAML, not a mapping, or has a key twice."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror or error}"]) from error
    # Before the parser: the tree that PyYAML builds is many times the file's size.
    if len(content) > MAX_BYTES:
        raise ConfigError([f"{path}: {len(content)} bytes; a configuration has at most {MAX_BYTES}"])
    walk = _Walk(path)
    try:
        loader = yaml.SafeLoader(content)
        root = loader.get_single_node()
        values = {} if root is None else walk.value(loader, root, ())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        raise ConfigError([f"{path}:{line}: {getattr(error, 'problem', None) or error}"]) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigError([f"{path}: {error}"]) from error
    if not isinstance(values, dict):
        raise ConfigError([f"{path}:1: a configuration is a mapping of fields, not {type(values).__name__}"])
    if walk.problems:
        raise ConfigError(walk.problems)
    return Document(path, values, walk.lines)


class _Walk:
    """Turns YAML nodes into plain values, remembering lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Field, int] = {}
        self.problems: list[str] = []
        self._nodes = 0

    def value(self, loader: yaml.SafeLoader, node: yaml.Node, at: Field) -> Any:
        # Counted as they are expanded: ten aliases of ten aliases are few bytes and a billion values.
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise ConfigError([f"{self.path}: more than {MAX_NODES} values; are aliases nested?"])
        self.lines.setdefault(at, node.start_mark.line + 1)
        if node.tag not in _COLLECTIONS and not isinstance(node, yaml.ScalarNode):
            return loader.construct_object(node, deep=True)  # refuses the tag, with its place
        if isinstance(node, yaml.SequenceNode):
            return [self.value(loader, item, (*at, i)) for i, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return loader.construct_object(node, deep=True)
        # Merge keys (`<<`) are YAML of their own; only this resolves them before keys are compared.
        loader.flatten_mapping(node)
        values: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            inner = (*at, str(key))
            if not isinstance(key, Hashable) or key in values:
                line = key_node.start_mark.line + 1
                self.problems.append(f"{self.path}:{line}: {dotted(inner)}: given twice (line {self.lines[inner]})")
                continue
            self.lines[inner] = key_node.start_mark.line + 1
            values[key] = self.value(loader, value_node, inner)
        return values


def explain(
    errors: Iterable[ErrorDetails], document: Document | None, schema: Mapping[str, Any], environ: Mapping[str, str]
) -> list[str]:
    """Pydantic's errors as sentences with their place; an unknown key names the nearest one that exists.

    `schema` is the model's JSON schema; `environ` tells values of the environment from those of the file.
    """
    problems = []
    for error in errors:
        at, options = _follow(schema, error["loc"])
        message = error["msg"]
        if error["type"] == "extra_forbidden":
            message = "there is no such setting" + _nearest(str(at[-1]), options)
        elif error["type"] == "union_tag_invalid":
            known = str(error.get("ctx", {}).get("expected_tags", "")).replace("'", "")
            tag = str(error.get("ctx", {}).get("tag", ""))
            message = f"there is no type {tag!r}" + _nearest(tag, known.split(", "))
            at = (*at, "type")
        elif error["type"] == "missing":
            message = "is required"
        elif error["type"] == "union_tag_not_found":
            message = "needs a `type`"
        problems.append(f"{place(at, document, environ)}: {message}")
    return problems


def place(at: Field, document: Document | None, environ: Mapping[str, str]) -> str:
    """The environment variable that gives this field, else its file and line."""
    for depth in range(len(at), 0, -1):
        variable = "NIGHTSHIFT_" + "__".join(str(part) for part in at[:depth]).upper()
        if variable in environ:
            return f"environment variable {variable}: {dotted(at)}"
    return document.place(at) if document is not None else dotted(at)


def _nearest(word: str, options: Iterable[str]) -> str:
    known = sorted(options)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}" if known else ""


def _follow(schema: Mapping[str, Any], location: Iterable[str | int]) -> tuple[Field, list[str]]:
    """The field that an error's location means, without the tags of unions in it, and the names known beside it."""
    definitions = schema.get("$defs", {})
    at: Field = ()
    here: Mapping[str, Any] = schema
    beside: list[str] = []
    for part in location:
        here = _resolve(here, definitions)
        mapping = here.get("discriminator", {}).get("mapping", {})
        # pydantic puts a union's tag into the location, though no such field is in the file.
        if isinstance(part, str) and part in mapping:
            here = {"$ref": mapping[part]}
            continue
        at = (*at, part)
        beside = sorted(here.get("properties", {}))
        if isinstance(part, int):
            here = here.get("items", {})
        else:
            here = here.get("properties", {}).get(part) or here.get("additionalProperties") or {}
        here = here if isinstance(here, Mapping) else {}
    return at, beside


def _resolve(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = definitions[str(schema["$ref"]).rsplit("/", 1)[-1]]
    # An optional block is `anyOf` of the block and null; names are looked for in the block.
    for option in schema.get("anyOf", ()):
        if option.get("type") != "null":
            return _resolve(option, definitions)
    return schema
