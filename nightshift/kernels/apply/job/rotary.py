"""Rotary embeddings: what a compiled region computes that way, and two functions for a model's own code to call.

A pass over joint graphs (`turns` reads them) makes one kernel of two rotations by the same tables, forward and
backward; another makes one of each rotation of pairs that lie side by side (`pairs` reads them). In eager code
nothing calls such a function by a name that could be found: `rotary` and `rotary_interleaved` are there to be
called instead. Where a guard refuses, and before `apply`, they are torch's.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nightshift.kernels.apply.job.folds import VIEWS, operator_name, seen_through, viewed
from nightshift.kernels.apply.job.guards import refusal
from nightshift.kernels.apply.job.operators import operator_of, run_once
from nightshift.kernels.apply.job.places import transformed
from nightshift.kernels.apply.job.problems import SPECS
from nightshift.kernels.apply.job.state import HALVES, PAIRS, STATE, Kernel, Report, fell_back, in_use, slot

Half = Mapping[tuple[int, int], int]
"""One half of a tensor: (half of what is rotated, half of the table or −1 while there is none) → coefficient."""
_TURN: tuple[Half, ...] = ({(1, 0): -1}, {(0, 1): 1})
_BACK: tuple[Half, ...] = ({(1, 1): 1}, {(0, 0): -1})
_DEEP = 8


@dataclass(frozen=True)
class Rotation:
    """`out` = `x` rotated by two tables. problem: by how its heads lie; moved: for that, heads and positions change
    places. key: what two must share to be one kernel's."""

    out: Any
    x: Any
    cos: Any
    sin: Any
    problem: str
    moved: bool
    key: tuple[Any, ...]


class _Reader:
    """Reads one sum as a function of `x` and one table, which is learnt on the way."""

    def __init__(self, x: Any) -> None:
        self.x, self.width = x, x.meta["val"].shape[-1]
        self.table: Any = None

    def halves(self, node: Any, depth: int = 0) -> tuple[Half, ...] | None:
        """Two halves, or one of half the width; None where it is no such function."""
        if node is self.x:
            return {(0, -1): 1}, {(1, -1): 1}
        if not isinstance(node, torch.fx.Node) or node.op != "call_function" or depth > _DEEP or node.kwargs:
            return self._zeros(node)
        name, last = operator_name(node), _rank(node) - 1
        args: Any = node.args
        if node.target is operator.getitem:
            return self._part(args[0], int(args[1]), depth)
        if name == "mul":
            return self._times(args, depth)
        if name in ("slice", "slice_scatter"):
            return self._slice(name, args, last, depth)
        given = args[0] if name == "cat" else args
        parts = [self.halves(part, depth + 1) for part in given] if name in ("cat", "neg", "add", "sub") else []
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts) or len({len(part) for part in known}) > 1:
            return None
        if name == "neg":
            return tuple({key: -value for key, value in half.items()} for half in known[0])
        if len(known) != 2:
            return None
        if name == "cat":
            fits = len(known[0]) == 1 and len(args) == 2 and args[1] in (-1, last)
            return (known[0][0], known[1][0]) if fits else None
        sign = -1 if name == "sub" else 1
        return tuple(_sum(a, b, sign) for a, b in zip(*known, strict=True))

    def _zeros(self, node: Any) -> tuple[Half, ...] | None:
        """Nothing in both halves, if a tensor of zeros is asked for."""
        plain = isinstance(node, torch.fx.Node) and operator_name(node) == "full" and node.args[1] == 0
        value = node.meta.get("val") if plain else None
        return ({}, {}) if isinstance(value, torch.Tensor) and value.shape == self.x.meta["val"].shape else None

    def _times(self, args: Any, depth: int) -> tuple[Half, ...] | None:
        for part, table in (args, args[::-1]):
            value = self.halves(part, depth + 1)
            if value is None or len(value) != 2 or not _is_table(table, self.x) or self.table not in (None, table):
                continue
            if any(key[1] != -1 for half in value for key in half):
                return None
            self.table = table
            return tuple({(key[0], n): c for key, c in half.items()} for n, half in enumerate(value))
        return None

    def _part(self, split: Any, number: int, depth: int) -> tuple[Half, ...] | None:
        """One of the two halves that a chunk leaves."""
        if not isinstance(split, torch.fx.Node) or operator_name(split) not in ("split", "split_with_sizes"):
            return None
        given, size, *dim = split.args
        half = self.width // 2
        fits = size == half or (isinstance(size, list | tuple) and list(size) == [half, half])
        whole = self.halves(given, depth + 1) if fits and dim and dim[0] in (-1, _rank(given) - 1) else None
        return whole[number : number + 1] if whole is not None and len(whole) == 2 else None

    def _slice(self, name: str, args: Any, last: int, depth: int) -> tuple[Half, ...] | None:
        """A half of a whole, or a whole with another half."""
        base, rest = args[0], list(args[1:])
        usual: list[Any] = [0, None, None, 1]
        put = rest.pop(0) if name == "slice_scatter" else None
        dim, begin, end, step = rest + usual[len(rest) :]
        half = self.width // 2
        begin, end = begin or 0, self.width if end is None else min(end, self.width)
        if step != 1 or dim not in (-1, last) or (begin, end) not in ((0, half), (half, self.width)):
            return None
        whole, at = self.halves(base, depth + 1), begin // half
        if whole is None or len(whole) != 2 or put is None:
            return whole[at : at + 1] if whole is not None and len(whole) == 2 else None
        new = self.halves(put, depth + 1)
        if new is None or len(new) != 1:
            return None
        return (new[0], whole[1]) if at == 0 else (whole[0], new[0])


def _sum(a: Half, b: Half, sign: int) -> Half:
    total = {key: a.get(key, 0) + sign * b.get(key, 0) for key in {**a, **b}}
    return {key: value for key, value in total.items() if value}


def _rank(node: Any) -> int:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value.dim() if isinstance(value, torch.Tensor) else 0


def _is_table(node: Any, x: Any) -> bool:
    """One row of the width for each position, the same for every head and batch."""
    return _rows(node, x) is not None


def _rows(node: Any, x: Any) -> int | None:
    """Which dimension of `x` the rows of a table stand for: 2 where heads are first, 1 where positions are."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.is_contiguous() or value.dim() > 4:
        return None
    sizes, wanted = (1,) * (4 - value.dim()) + tuple(value.shape), tuple(x.meta["val"].shape)
    if sizes == (1, 1, wanted[2], wanted[3]):
        return 2
    return 1 if sizes == (1, wanted[1], 1, wanted[3]) else None


def rotation(node: Any) -> Rotation | None:
    """What a sum is, if it is a rotation of halves or its gradient."""
    value = node.meta.get("val")
    if operator_name(node) != "add" or node.kwargs or not isinstance(value, torch.Tensor) or value.dim() != 4:
        return None
    if not value.is_floating_point() or value.shape[-1] % 2 or not all(isinstance(n, int) for n in value.shape):
        return None
    if not value.is_contiguous() and not value.permute(0, 2, 1, 3).is_contiguous():
        return None
    terms = _terms(node)
    for term in terms:
        if operator_name(term) != "mul" or term.kwargs or len(term.args) != 2:
            continue
        for x, cos in (term.args, term.args[::-1]):
            same = isinstance(x, torch.fx.Node) and isinstance(x.meta.get("val"), torch.Tensor)
            if not same or x.meta["val"].shape != value.shape or not _is_table(cos, x):
                continue
            found = _read(node, x, cos, [other for other in terms if other is not term])
            if found is not None:
                return found
    return None


def _terms(node: Any) -> list[Any]:
    """What is added up: a sum's terms, and those of a sum that goes into it alone."""
    found: list[Any] = []
    for part in node.args:
        if not isinstance(part, torch.fx.Node):
            return []
        inner = operator_name(part) == "add" and not part.kwargs and len(part.users) == 1
        found += [n for n in part.args if isinstance(n, torch.fx.Node)] if inner else [part]
    return found


def _read(node: Any, x: Any, cos: Any, rest: list[Any]) -> Rotation | None:
    reader = _Reader(x)
    total: tuple[Half, ...] = ({}, {})
    for term in rest:
        value = reader.halves(term)
        if value is None or len(value) != 2:
            return None
        total = tuple(_sum(a, b, 1) for a, b in zip(total, value, strict=True))
    if total not in (_TURN, _BACK) or reader.table is None:
        return None
    rows, value = _rows(cos, x), x.meta["val"]
    if rows != _rows(reader.table, x):
        return None
    turned = value.permute(0, 2, 1, 3)
    if rows == 1 and value.is_contiguous():
        problem, moved = "rotary_half_by_position", False
    elif rows == 2 and value.is_contiguous():
        problem, moved = "rotary_half", False
    elif rows == 2 and turned.is_contiguous():
        problem, moved = "rotary_half_by_position", True
    else:
        return None
    problem += "_backward" if total == _BACK else ""
    heads = 1 if rows == 2 else 2
    others = tuple(n for dim, n in enumerate(value.shape) if dim != heads)
    key = (problem, moved, seen_through(cos), seen_through(reader.table), rows, others, value.dtype)
    return Rotation(node, x, cos, reader.table, problem, moved, key)


Terms = Mapping[tuple[int, Any], int]
"""One element of a pair: (element of what is rotated, table or None while there is none) → coefficient."""
_WHOLE, _PART, _PAIRED, _LINE, _COMPLEX = "whole", "part", "paired", "line", "complex"
"""(…, d); one element of each pair, (…, d/2); (…, d/2, 2); one element as (…, d/2, 1); (…, d/2) complex numbers."""
_FARTHEST, _MOST = 24, 64
_MOVES = (*VIEWS, "clone", "squeeze", "unsqueeze")
_OPERATORS = (
    *_MOVES, "slice", "select", "unbind", "split", "cat", "stack", "slice_scatter", "select_scatter", "neg", "add",
    "sub", "mul", "copy", "view_as_complex", "view_as_real",
)  # fmt: skip


@dataclass(frozen=True)
class AngleTable:
    """Cosines or sines: a node of real numbers, or the real ("re") or imaginary part ("im") of a complex one."""

    node: Any
    of: str = ""


@dataclass(frozen=True)
class PairRotation:
    """`out` = `x` rotated. problem: by how its heads lie; moved: for that, heads and positions change places."""

    out: Any
    x: Any
    cos: AngleTable
    sin: AngleTable
    problem: str
    moved: bool


@dataclass(frozen=True)
class _Form:
    """parts: None where an element was never written."""

    kind: str
    parts: tuple[Terms | None, ...]


class _PairReader:
    """Reads one value as a function of `x` and of tables, which are learnt on the way. rows: the dimension of `x`
    that the tables' rows stand for."""

    def __init__(self, x: Any) -> None:
        self.x, self.value = x, x.meta["val"]
        self.rows: int | None = None
        self._known: dict[Any, _Form | None] = {x: _Form(_WHOLE, ({(0, None): 1}, {(1, None): 1}))}

    def form(self, node: Any, depth: int = 0) -> _Form | None:
        """None where it is no such function."""
        if not isinstance(node, torch.fx.Node) or depth > _FARTHEST:
            return None
        if node not in self._known:
            self._known[node] = None
            found = self._read(node, depth + 1) if node.op == "call_function" else None
            self._known[node] = found if found is not None and self._shaped(node, found.kind) else None
        return self._known[node]

    def _shaped(self, node: Any, kind: str) -> bool:
        """Whether a value is as large and of the dtype that its form says."""
        value, (*first, width), half = node.meta.get("val"), self.value.shape, self.value.shape[-1] // 2
        last = {_WHOLE: [width], _PAIRED: [half, 2], _LINE: [half, 1]}.get(kind, [half])
        if not isinstance(value, torch.Tensor) or list(value.shape) != [*first, *last]:
            return False
        return value.is_complex() if kind == _COMPLEX else value.dtype == self.value.dtype

    def _read(self, node: Any, depth: int) -> _Form | None:
        name, args = operator_name(node), list(node.args)
        if node.target is operator.getitem:
            return self._one_of(args[0], args[1], depth)
        if name in ("full", "zeros", "empty", "new_empty_strided", "new_zeros", "zeros_like"):
            return self._filled(node, name, args)
        if name not in _OPERATORS or name in ("unbind", "split") or (node.kwargs and name != "clone"):
            return None
        if name == "mul":
            return self._times(args, depth)
        if name in ("cat", "stack"):
            return self._side_by_side(node, name, args, depth)
        base = self.form(args[1] if name == "copy" else args[0], depth)
        if base is None or name in ("clone", "copy"):
            return base
        if name in _MOVES:
            return self._moved(node, base)
        if name == "neg":
            return _Form(base.kind, tuple(_signed(part, -1) for part in base.parts))
        if name in ("add", "sub"):
            other = self.form(args[1], depth)
            if other is None or other.kind != base.kind:
                return None
            sign = -1 if name == "sub" else 1
            return _Form(base.kind, tuple(_added(a, b, sign) for a, b in zip(base.parts, other.parts, strict=True)))
        if name in ("view_as_complex", "view_as_real"):
            wanted, made = (_PAIRED, _COMPLEX) if name == "view_as_complex" else (_COMPLEX, _PAIRED)
            return _Form(made, base.parts) if base.kind == wanted else None
        put = self.form(args.pop(1), depth) if name.endswith("_scatter") else None
        at, kind = (
            self._element(name, base.kind, args[1:]),
            _LINE if "slice" in name and base.kind == _PAIRED else _PART,
        )
        if at is None or (put is None) == name.endswith("_scatter"):
            return None
        if put is None:
            return _Form(kind, (base.parts[at],))
        if put.kind != kind:
            return None
        return _Form(base.kind, tuple(put.parts[0] if n == at else part for n, part in enumerate(base.parts)))

    def _one_of(self, every: Any, number: Any, depth: int) -> _Form | None:
        """One element of each pair, of a tensor for each."""
        name = operator_name(every) if isinstance(every, torch.fx.Node) and not every.kwargs else ""
        size, dim = ((), every.args[1:]) if name == "unbind" else (every.args[1:2], every.args[2:])
        base = self.form(every.args[0], depth) if name == "unbind" or (name == "split" and size == (1,)) else None
        if base is None or base.kind != _PAIRED or dim not in ((-1,), (self.value.dim(),)) or number not in (0, 1):
            return None
        return _Form(_PART if name == "unbind" else _LINE, (base.parts[number],))

    def _filled(self, node: Any, name: str, args: list[Any]) -> _Form | None:
        """Nothing in any element where a tensor of zeros is asked for; elements that are not written yet."""
        nothing: Terms | None = None if "empty" in name else {}
        if name == "full" and (len(args) < 2 or args[1] != 0):
            return None
        for kind, count in ((_WHOLE, 2), (_PAIRED, 2), (_PART, 1), (_LINE, 1)):
            if self._shaped(node, kind):
                return _Form(kind, (nothing,) * count)
        return None

    def _moved(self, node: Any, base: _Form) -> _Form | None:
        """The same elements in the same order under another shape."""
        kinds = {_WHOLE: (_WHOLE, _PAIRED), _PART: (_PART, _LINE), _COMPLEX: (_COMPLEX,)}
        same = next(group for group in kinds.values() if base.kind in group)
        kind = next((kind for kind in same if self._shaped(node, kind)), None)
        return None if kind is None else _Form(kind, base.parts)

    def _side_by_side(self, node: Any, name: str, args: list[Any], depth: int) -> _Form | None:
        """Two elements that become a pair."""
        parts = [self.form(part, depth) for part in args[0]] if isinstance(args[0], list | tuple) else []
        wanted, last = (_LINE if name == "cat" else _PART), self.value.dim()
        if len(parts) != 2 or len(args) != 2 or args[1] not in (-1, last):
            return None
        found = [part.parts[0] for part in parts if part is not None and part.kind == wanted]
        return _Form(_PAIRED, tuple(found)) if len(found) == 2 else None

    def _element(self, name: str, kind: str, rest: list[Any]) -> int | None:
        """Which element of each pair a slice of every second, a slice of one, or a selection is of."""
        if name.startswith("select"):
            fits = kind == _PAIRED and len(rest) == 2 and rest[0] in (-1, self.value.dim())
            return {0: 0, 1: 1, -1: 1, -2: 0}.get(rest[1]) if fits else None
        usual: list[Any] = [0, None, None, 1]
        dim, begin, end, step = rest + usual[len(rest) :]
        begin, width, last = begin or 0, self.value.shape[-1], self.value.dim()
        if begin not in (0, 1) or not (end is None or isinstance(end, int)):
            return None
        if kind == _PAIRED:
            one = step == 1 and dim in (-1, last) and (end == 1 if begin == 0 else end is None or end >= 2)
            return begin if one else None
        every_second = kind == _WHOLE and step == 2 and dim in (-1, last - 1)
        return begin if every_second and (end is None or end > width - 2 + begin) else None

    def _times(self, args: list[Any], depth: int) -> _Form | None:
        for part, other in (args, args[::-1]):
            base = self.form(part, depth)
            if base is None or any(p is None or any(key[1] is not None for key in p) for p in base.parts):
                continue
            if base.kind == _COMPLEX:
                known = self._complex(other)
                if known is None:
                    continue
                (real, imaginary, sign), (first, second) = known, base.parts
                return _Form(
                    _COMPLEX,
                    (
                        _added(_by(first, real, 1), _by(second, imaginary, sign), -1),
                        _added(_by(first, imaginary, sign), _by(second, real, 1), 1),
                    ),
                )
            table = self._table(other, base.kind)
            if table is not None:
                return _Form(base.kind, tuple(_by(p, table, 1) for p in base.parts))
        return None

    def _table(self, node: Any, kind: str) -> AngleTable | None:
        """A table of one value for each pair, as what is multiplied with it takes it."""
        value = _value(node)
        if value is None or value.dtype != self.value.dtype:
            return None
        sizes = tuple(value.shape)
        if kind == _WHOLE:
            sizes, node = (*sizes[:-1], sizes[-1] // 2), _undoubled(node)
        elif kind in (_PAIRED, _LINE):
            node = _undoubled(node) if sizes[-1:] == (2,) else node if sizes[-1:] == (1,) else None
            sizes = sizes[:-1]
        if not self._fits(sizes) or node is None:
            return None
        source = seen_through(node)
        return AngleTable(source) if _is_plain(source, value.dtype) else None

    def _complex(self, node: Any) -> tuple[AngleTable, AngleTable, int] | None:
        """(cosines, sines, the sines' sign) of a table of complex numbers."""
        value = _value(node)
        if value is None or value.dtype != _COMPLEX_OF.get(self.value.dtype) or not self._fits(tuple(value.shape)):
            return None
        sign = 1
        while node.op == "call_function" and operator_name(node) in (*_MOVES, *_CONJUGATES, "resolve_conj"):
            sign = -sign if operator_name(node) in _CONJUGATES else sign
            node = node.args[0]
        if operator_name(node) == "complex" and not node.kwargs:
            parts = [seen_through(part) for part in node.args]
            shapes = {_value(part).shape for part in node.args}  # type: ignore[union-attr]
            if len(shapes) == 1 and all(_is_plain(part, self.value.dtype) for part in parts):
                return AngleTable(parts[0]), AngleTable(parts[1]), sign
        return (AngleTable(node, "re"), AngleTable(node, "im"), sign) if _is_plain(node, value.dtype) else None

    def _fits(self, sizes: tuple[int, ...]) -> bool:
        """One row of half the width for each position, the same for every head and batch; always the same one."""
        wanted = self.value.shape
        half = wanted[-1] // 2
        sizes = (1,) * (4 - len(sizes)) + sizes
        rows = 2 if sizes == (1, 1, wanted[2], half) else 1 if sizes == (1, wanted[1], 1, half) else None
        if rows is None or self.rows not in (None, rows):
            return False
        self.rows = rows
        return True


_CONJUGATES = ("_conj", "conj_physical")
_COMPLEX_OF = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def _value(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _is_plain(node: Any, kind: torch.dtype) -> bool:
    value = _value(node)
    return value is not None and value.dtype == kind and value.is_contiguous() and not value.is_conj()


def _undoubled(node: Any) -> Any:
    """The table whose values were each written twice side by side (`repeat_interleave(2, -1)`); None where they
    were not. What only gives the same elements another shape does not part the two."""
    while node.op == "call_function" and operator_name(node) in _MOVES:
        node = node.args[0]
    value = _value(node)
    source = _value(node.args[0]) if operator_name(node) == "expand" and value is not None else None
    if source is None or value is None or value.shape[-1:] != (2,) or source.shape != (*value.shape[:-1], 1):
        return None
    return node.args[0]


def _signed(part: Terms | None, sign: int) -> Terms | None:
    return None if part is None else {key: sign * value for key, value in part.items()}


def _added(a: Terms | None, b: Terms | None, sign: int) -> Terms | None:
    if a is None or b is None:
        return None
    total = {key: a.get(key, 0) + sign * b.get(key, 0) for key in {**a, **b}}
    return {key: value for key, value in total.items() if value}


def _by(part: Terms | None, table: AngleTable, sign: int) -> Terms | None:
    return None if part is None else {(key[0], table): sign * value for key, value in part.items()}


def pair_rotation(node: Any) -> PairRotation | None:
    """What a value is, if it is a rotation of pairs or its gradient."""
    value = _value(node)
    if value is None or node.op != "call_function" or value.dim() != 4 or not value.is_floating_point():
        return None
    if operator_name(node) not in _OPERATORS or value.shape[-1] % 2 or not value.numel():
        return None
    if not all(isinstance(n, int) for n in (*value.shape, *value.stride())):
        return None
    for x in _leaves(node, value):
        reader = _PairReader(x)
        found = reader.form(node)
        claim = _claim(found) if found is not None and found.kind == _WHOLE else None
        if claim is None or reader.rows is None:
            continue
        cos, sin, back = claim
        laid = x.meta["val"]
        turned = laid.permute(0, 2, 1, 3)
        if not laid.is_contiguous() and not turned.is_contiguous():
            return None
        if not value.is_contiguous() and not value.permute(0, 2, 1, 3).is_contiguous():
            return None  # views behind it were traced for strides that no copy of ours has
        moved = not laid.is_contiguous()
        by_position = (reader.rows == 1) != moved
        problem = f"rotary_interleaved{'_by_position' if by_position else ''}{'_backward' if back else ''}"
        return PairRotation(node, x, cos, sin, problem, moved)
    return None


def _leaves(node: Any, value: torch.Tensor) -> list[Any]:
    """What might be rotated: values of the same shape and dtype that the node is made of, the nearest first."""
    found: list[Any] = []
    seen, waiting = {node}, list(node.all_input_nodes)
    while waiting and len(seen) < _MOST:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        other = _value(one)
        if other is not None and other.shape == value.shape and other.dtype == value.dtype:
            found.append(one)
        if one.op == "call_function" and (one.target is operator.getitem or operator_name(one) in _OPERATORS):
            waiting += one.all_input_nodes
    return found


def _claim(form: _Form) -> tuple[AngleTable, AngleTable, bool] | None:
    """(cosines, sines, whether it is the gradient) of a rotation's two elements."""
    even, odd = form.parts
    if even is None or odd is None or len(even) != 2 or len(odd) != 2:
        return None
    cos, sin = (next((table for part, table in even if part == n), None) for n in (0, 1))
    if not isinstance(cos, AngleTable) or not isinstance(sin, AngleTable) or cos == sin:
        return None
    sign = even[(1, sin)]
    turned = {(0, sin): -sign, (1, cos): 1}
    if even[(0, cos)] != 1 or abs(sign) != 1 or dict(odd) != turned:
        return None
    return cos, sin, sign == 1


class TurnHalves:
    """A pass for torch._inductor.config.joint_custom_pre_pass."""

    def __init__(self, earlier: Any = None) -> None:
        self.earlier = earlier

    def uuid(self) -> Any:
        """For the compiler's cache."""
        inner = getattr(self.earlier, "uuid", lambda: None)() if self.earlier is not None else ""
        used = sorted(k.certificate for k in STATE.kernels.values() if k.problem in HALVES and not k.disabled)
        return None if inner is None else ("nightshift turn halves 1", tuple(used), inner)

    def __call__(self, graph: Any) -> None:
        if self.earlier is not None:
            self.earlier(graph)
        order = {node: number for number, node in enumerate(graph.nodes)}
        waiting: dict[tuple[Any, ...], Rotation] = {}
        for node in list(graph.nodes):
            found = rotation(node) if node.op == "call_function" else None
            if found is None or in_use(found.problem) is None:
                continue
            first = waiting.pop(found.key, None)
            if first is None or not self._swap(graph, first, found, order):
                waiting[found.key] = found
        graph.eliminate_dead_code()

    def _swap(self, graph: Any, first: Rotation, second: Rotation, order: dict[Any, int]) -> bool:
        """Puts one kernel where the first of the two sums is or where the second is: all that it needs is known
        there, nothing that it makes was wanted before. False where there is no such place, or a guard refuses."""
        needs = [second.x, second.cos, second.sin, first.x, first.cos, first.sin]
        if any(n not in order for n in needs):
            return False
        if all(order[n] < order[first.out] for n in needs):
            before = first.out
        elif all(order.get(user, -1) > order[second.out] for user in first.out.users):
            before = second.out
        else:
            return False
        for q, k in ((first, second), (second, first)):
            given = [_moved(one.x.meta["val"], one.moved) for one in (q, k)]
            positions = given[0].shape[-3 if "position" in q.problem else -2]
            tables = [t.meta["val"].view(positions, given[0].shape[-1]) for t in (q.cos, q.sin)]
            kernel = in_use(q.problem)
            if kernel is None or refusal(kernel.record, SPECS[q.problem].sizes(*given, *tables), (*given, *tables)):
                continue
            with graph.inserting_before(before):
                self._put(graph, q, k, [*given, *tables])
            return True
        return False

    def _put(self, graph: Any, q: Rotation, k: Rotation, values: list[Any]) -> None:
        nodes = [_permuted(graph, one.x) if one.moved else one.x for one in (q, k)]
        for table, value in zip((q.cos, q.sin), values[2:], strict=True):
            nodes.append(graph.call_function(torch.ops.aten.view.default, (table, list(value.shape))))
            nodes[-1].meta["val"] = value
        made = graph.call_function(operator_of(q.problem)._opoverload, tuple(nodes))
        fakes = SPECS[q.problem].fake(*values)
        # the second says to the compiler that operands must lie as they do here
        made.meta = {**q.out.meta, "val": fakes, "eager_input_vals": (tuple(values), {})}
        for number, one in enumerate((q, k)):
            part = graph.call_function(operator.getitem, (made, number))
            part.meta["val"] = fakes[number]
            whole = _permuted(graph, part) if one.moved else part
            if whole.meta["val"].stride() != one.out.meta["val"].stride():
                whole = _laid_out(graph, whole, one.out.meta["val"])
            one.out.replace_all_uses_with(whole)


def _moved(value: torch.Tensor, moved: bool) -> torch.Tensor:
    return value.permute(0, 2, 1, 3) if moved else value


def _permuted(graph: Any, node: Any) -> Any:
    made = graph.call_function(torch.ops.aten.permute.default, (node, [0, 2, 1, 3]))
    made.meta["val"] = node.meta["val"].permute(0, 2, 1, 3)
    return made


def _laid_out(graph: Any, node: Any, like: torch.Tensor) -> Any:
    """A copy with the strides that torch's own result has: views behind it were traced for those."""
    given = node if like.is_contiguous() else _permuted(graph, node)
    made = graph.call_function(torch.ops.aten.clone.default, (given,), {"memory_format": torch.contiguous_format})
    made.meta["val"] = given.meta["val"].clone(memory_format=torch.contiguous_format)
    return made if like.is_contiguous() else _permuted(graph, made)


class TurnPairs:
    """The same for pairs that lie side by side, one rotation by one kernel."""

    def __init__(self, earlier: Any = None) -> None:
        self.earlier = earlier

    def uuid(self) -> Any:
        """For the compiler's cache."""
        inner = getattr(self.earlier, "uuid", lambda: None)() if self.earlier is not None else ""
        used = sorted(k.certificate for k in STATE.kernels.values() if k.problem in PAIRS and not k.disabled)
        return None if inner is None else ("nightshift turn pairs 1", tuple(used), inner)

    def __call__(self, graph: Any) -> None:
        if self.earlier is not None:
            self.earlier(graph)
        for node in list(graph.nodes):
            found = pair_rotation(node)
            if found is not None:
                self._swap(graph, found)
        graph.eliminate_dead_code()

    def _swap(self, graph: Any, found: PairRotation) -> None:
        x, old = _moved(found.x.meta["val"], found.moved), found.out.meta["val"]
        positions, half = x.shape[1 if "position" in found.problem else 2], x.shape[3] // 2
        tables = [x.new_empty((positions, half)) for _ in range(2)]
        kernel = kernel_of(found.problem, x, *tables)
        if kernel is None or refusal(kernel.record, SPECS[found.problem].sizes(x, *tables), (x, *tables)):
            return
        with graph.inserting_before(found.out):
            nodes = [_permuted(graph, found.x) if found.moved else found.x]
            nodes += [_listed(graph, table, [positions, half]) for table in (found.cos, found.sin)]
            made = graph.call_function(operator_of(found.problem)._opoverload, tuple(nodes))
            values = tuple(node.meta["val"] for node in nodes)
            # the second says to the compiler that operands must lie as they do here
            made.meta = {**found.out.meta, "val": x.new_empty(x.shape), "eager_input_vals": (values, {})}
            whole = _permuted(graph, made) if found.moved else made
            if whole.meta["val"].stride() != old.stride():
                whole = _laid_out(graph, whole, old)
        found.out.replace_all_uses_with(whole)


def _listed(graph: Any, table: AngleTable, sizes: list[int]) -> Any:
    """A table as rows: of complex numbers the part that is meant, by itself."""
    node = table.node
    if table.of:
        real = graph.call_function(torch.ops.aten.view_as_real.default, (node,))
        real.meta["val"] = torch.view_as_real(node.meta["val"])
        part = graph.call_function(torch.ops.aten.select.int, (real, -1, int(table.of == "im")))
        part.meta["val"] = real.meta["val"].select(-1, int(table.of == "im"))
        node = _laid_out(graph, part, part.meta["val"].contiguous())
    return viewed(graph, node, sizes)


class Turned(torch.autograd.Function):
    """A rotation by a problem whose last two inputs are the tables; `torch.compile` sees the operators in it."""

    @staticmethod
    def forward(ctx: Any, problem: str, *tensors: torch.Tensor) -> Any:
        ctx.save_for_backward(*tensors[-2:])
        ctx.problem = problem
        return _turn_by(problem, *tensors)

    @staticmethod
    def backward(ctx: Any, *g: torch.Tensor) -> Any:
        made = _turn_by(f"{ctx.problem}_backward", *(x.contiguous() for x in g), *ctx.saved_tensors)
        return (None, *(made if isinstance(made, tuple | list) else (made,)), None, None)


def kernel_of(problem: str, *tensors: torch.Tensor) -> Kernel | None:
    """The kernel in use for a rotation of these."""
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    return in_use(slot(problem, SPECS[problem].sizes(*tensors), dtype))


def _turn_by(problem: str, *tensors: torch.Tensor) -> Any:
    """By the kernel where one may, else by torch; where it is differentiated again as well."""
    kernel = kernel_of(problem, *tensors)
    if kernel is not None and not torch.is_grad_enabled():
        why = refusal(kernel.record, SPECS[problem].sizes(*tensors), tensors)
        plain = all(type(x) in (torch.Tensor, nn.Parameter) for x in tensors)
        if not why and (torch.compiler.is_compiling() or not plain):
            return operator_of(problem)(*tensors)
        if not why:
            return run_once(problem, tensors)
        fell_back(problem, why)
    return SPECS[problem].reference(*tensors)


def _rotated(problem: str, *tensors: torch.Tensor) -> Any:
    if tensors[-1].requires_grad or tensors[-2].requires_grad or transformed():
        return SPECS[problem].reference(*tensors)
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return Turned.apply(problem, *tensors)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return _turn_by(problem, *tensors)


def rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """q · cos + (−upper, lower half of q) · sin, and the same of k, as Llama does it; by a certified kernel where
    one may. q: (b, h, s, d); k: (b, g, s, d), in memory as they are or turned from (b, s, h, d); cos, sin: (s, d),
    dimensions of one before that are taken away. Raises RuntimeError where these do not fit."""
    positions, width = q.shape[-2:]
    tables = [table.reshape(positions, width) for table in (cos, sin)]
    if q.is_contiguous() and k.is_contiguous():
        made = _rotated("rotary_half", q, k, *tables)
    else:
        made = (
            x.transpose(1, 2)
            for x in _rotated("rotary_half_by_position", q.transpose(1, 2), k.transpose(1, 2), *tables)
        )
    q, k = made
    return q, k


def rotary_interleaved(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates the pairs (0, 1), (2, 3)… of the last dimension. x: (b, h, s, d), in memory as it is or turned from
    (b, s, h, d); cos, sin: (s, d/2), as `rotary`."""
    tables = [table.reshape(x.shape[-2], x.shape[-1] // 2) for table in (cos, sin)]
    if x.is_contiguous():
        made: torch.Tensor = _rotated("rotary_interleaved", x, *tables)
    else:
        made = _rotated("rotary_interleaved_by_position", x.transpose(1, 2), *tables).transpose(1, 2)
    return made


def name_rotary(report: Report) -> None:
    """Tells of the kernels, and makes their operators."""
    for name, kernel in STATE.kernels.items():
        if name.startswith("rotary"):
            operator_of(kernel.problem)
            report.applied.append(("rotary embeddings", name, kernel.certificate))
