"""Definitions, workloads and solutions in FlashInfer-Bench's format, read from a folder that the user names.

The format: https://bench.flashinfer.ai/docs/flashinfer-trace (definition, workload, solution, trace). A folder has
`definitions/**/*.json`, `workloads/**/*.jsonl` and `solutions/**/*.json`. What is read here is data: nothing of it
runs. A file that does not follow the format, or names a dtype that torch lacks, is a ProblemError that names it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nightshift.kernels.problem import ProblemError

MAX_FILE_BYTES = 4 << 20
MAX_AXIS = 1 << 31
MAX_WORKLOADS = 4096
FLOATS: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
WHOLE: Mapping[str, torch.dtype] = {
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
DTYPES: Mapping[str, torch.dtype] = {**FLOATS, **WHOLE}
LANGUAGES: Mapping[str, str] = {
    "python": "python",
    "pytorch": "python",
    "triton": "triton",
    "cuda": "cuda",
    "cpp": "cuda",
}


@dataclass(frozen=True)
class TensorForm:
    """An input or output: axis names or fixed sizes, None for a Python number."""

    shape: tuple[str | int, ...] | None
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]


@dataclass(frozen=True)
class Definition:
    """What is computed. axes: sizes, None where an axis varies."""

    name: str
    kind: str
    axes: Mapping[str, int | None]
    inputs: Mapping[str, TensorForm]
    outputs: Mapping[str, TensorForm]
    reference: str
    constraints: tuple[str, ...] = ()

    @property
    def variable(self) -> tuple[str, ...]:
        return tuple(name for name, size in self.axes.items() if size is None)


@dataclass(frozen=True)
class Workload:
    """One published size of a definition: axes that vary, and numbers among the inputs."""

    name: str
    axes: Mapping[str, int]
    numbers: Mapping[str, float] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Solution:
    """What an author wrote for a definition. entry: the file and the name in it. style: whether outputs are passed
    in (True), returned (False) or the file says neither (None)."""

    name: str
    definition: str
    author: str
    language: str
    entry: tuple[str, str]
    sources: Mapping[str, str]
    needs: tuple[str, ...] = ()
    style: bool | None = None
    binding: str = ""


def read_json(path: Path) -> Mapping[str, Any]:
    """A file's one JSON object. Raises ProblemError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ProblemError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise error if isinstance(error, ProblemError) else ProblemError(f"{path}: {error}") from error
    if not isinstance(value, Mapping):
        raise ProblemError(f"{path}: expected an object, found {type(value).__name__}")
    return value


def definition_of(path: Path) -> Definition:
    """A definition's file. Raises ProblemError that names the file and the field."""
    record = read_json(path)
    name, reference = (_text(path, record, key) for key in ("name", "reference"))
    axes = {axis: _size(path, axis, form) for axis, form in _mapping(path, record, "axes").items()}
    inputs, outputs = (_forms(path, record, part, axes) for part in ("inputs", "outputs"))
    _hold_to_run(path, reference)
    constraints = tuple(str(text) for text in record.get("constraints") or ())
    kind = str(record.get("op_type") or record.get("type"))
    return Definition(name, kind, axes, inputs, outputs, reference, constraints)


def _size(path: Path, axis: str, form: Any) -> int | None:
    """Of a constant axis its size, of a variable one None."""
    kind, size = (form.get("type"), form.get("value")) if isinstance(form, Mapping) else (None, None)
    if kind == "var":
        return None
    if kind != "const":
        raise ProblemError(f"{path}: axes.{axis}: type {kind!r} is neither 'const' nor 'var'")
    if type(size) is not int or not 0 < size < MAX_AXIS:
        raise ProblemError(f"{path}: axes.{axis}: value {size!r} is no size")
    return size


def _forms(path: Path, record: Mapping[str, Any], part: str, axes: Mapping[str, Any]) -> dict[str, TensorForm]:
    items = _mapping(path, record, part).items()
    if not items:
        raise ProblemError(f"{path}: no {part}")
    return {key: _form(path, f"{part}.{key}", item, axes) for key, item in items}


def _hold_to_run(path: Path, reference: str) -> None:
    """A reference is Python that defines `run`."""
    try:
        names = {node.name for node in ast.parse(reference).body if isinstance(node, ast.FunctionDef)}
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ProblemError(f"{path}: reference: {error}") from error
    if "run" not in names:
        raise ProblemError(f"{path}: reference: defines no run")


def definitions_in(folder: Path) -> tuple[dict[str, Definition], dict[str, str]]:
    """Of a folder's `definitions` those that are well formed, by name, and why the others are not, by path."""
    root = folder / "definitions"
    paths = sorted(root.rglob("*.json")) if root.is_dir() else []
    if not paths:
        raise ProblemError(f"{root}: holds no definitions")
    found, refused = dict[str, Definition](), dict[str, str]()
    for path in paths:
        try:
            definition = definition_of(path)
        except ProblemError as error:
            refused[str(path.relative_to(root))] = str(error)
        else:
            found[definition.name] = definition
    return found, refused


def workloads_of(folder: Path, definition: Definition) -> list[Workload]:
    """The workloads that a folder has for a definition; none where it has no file. Raises ProblemError."""
    made: list[Workload] = []
    for path in sorted((folder / "workloads").rglob(f"{definition.name}.jsonl")):
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ProblemError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.strip():
                made.append(_workload(f"{path}:{number}", line, definition))
            if len(made) > MAX_WORKLOADS:
                raise ProblemError(f"{path}: more than {MAX_WORKLOADS} workloads")
    return made


def _workload(place: str, line: str, definition: Definition) -> Workload:
    try:
        record = json.loads(line)
        given = record["workload"]
        axes, inputs = dict(given["axes"]), dict(given["inputs"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProblemError(f"{place}: no workload: {error}") from error
    if set(axes) != set(definition.variable):
        wanted, has = ", ".join(definition.variable), ", ".join(axes)
        raise ProblemError(f"{place}: axes {has or 'none'}, and {definition.name} varies in {wanted or 'none'}")
    for axis, size in axes.items():
        if type(size) is not int or not 0 <= size < MAX_AXIS:
            raise ProblemError(f"{place}: axes.{axis}: {size!r} is no size")
    numbers = {
        name: item["value"]
        for name, item in inputs.items()
        if isinstance(item, Mapping)
        and item.get("type") == "scalar"
        and type(item.get("value")) in (int, float, bool)
    }
    return Workload(str(given.get("uuid", place)), axes, numbers, given)


def solution_of(path: Path) -> Solution:
    """A solution's file. Raises ProblemError that names the file and the field."""
    record = read_json(path)
    spec = _mapping(path, record, "spec")
    sources = dict(_source(path, item) for item in record.get("sources") or ())
    if not sources:
        raise ProblemError(f"{path}: sources: none")
    language = LANGUAGES.get(str(spec.get("language", "")).lower())
    if language is None:
        raise ProblemError(f"{path}: spec.language: {spec.get('language')!r} is none of {', '.join(LANGUAGES)}")
    style = spec.get("destination_passing_style")
    return Solution(
        name=_text(path, record, "name"),
        definition=_text(path, record, "definition"),
        author=str(record.get("author", "")),
        language=language,
        entry=_entry(path, spec, sources),
        sources=sources,
        needs=tuple(str(x) for x in spec.get("dependencies") or ()),
        style=style if isinstance(style, bool) else None,
        binding=str(spec.get("binding") or ""),
    )


def _source(path: Path, item: Any) -> tuple[str, str]:
    """A source's name, inside its folder, and its text."""
    if not isinstance(item, Mapping) or not isinstance(item.get("content"), str):
        raise ProblemError(f"{path}: sources: no content")
    name = str(item.get("path") or item.get("path_name") or "main.py")
    parts = Path(name).parts
    if Path(name).is_absolute() or ".." in parts or not parts:
        raise ProblemError(f"{path}: sources: {name!r} leaves its folder")
    return name, item["content"]


def _entry(path: Path, spec: Mapping[str, Any], sources: Mapping[str, str]) -> tuple[str, str]:
    file, _, entry = str(spec.get("entry_point", "")).rpartition("::")
    file = file or next(iter(sources))
    if file not in sources or not entry.isidentifier():
        raise ProblemError(f"{path}: spec.entry_point: {spec.get('entry_point')!r} names no file of the sources")
    return file, entry


def solutions_in(folder: Path) -> Iterator[tuple[Path, Solution | ProblemError]]:
    """A folder's solutions by path, each read or refused."""
    for path in sorted((folder / "solutions").rglob("*.json")):
        try:
            yield path, solution_of(path)
        except ProblemError as error:
            yield path, error


def _text(path: Path, record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value:
        raise ProblemError(f"{path}: {key}: missing")
    return value


def _mapping(path: Path, record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    if not isinstance(value, Mapping):
        raise ProblemError(f"{path}: {key}: expected an object, found {type(value).__name__}")
    return value


def _form(path: Path, place: str, item: Any, axes: Mapping[str, int | None]) -> TensorForm:
    if not isinstance(item, Mapping):
        raise ProblemError(f"{path}: {place}: expected an object, found {type(item).__name__}")
    dtype, shape = str(item.get("dtype")), item.get("shape")
    if dtype not in DTYPES:
        raise ProblemError(f"{path}: {place}.dtype: {dtype!r} is none of {', '.join(DTYPES)}")
    if shape is None:
        return TensorForm(None, dtype)
    if not isinstance(shape, list):
        raise ProblemError(f"{path}: {place}.shape: expected a list, found {type(shape).__name__}")
    for size in shape:
        if not (type(size) is int and 0 < size < MAX_AXIS) and size not in axes:
            raise ProblemError(f"{path}: {place}.shape: {size!r} is no axis")
    return TensorForm(tuple(shape), dtype)
