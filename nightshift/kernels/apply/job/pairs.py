"""Reads a value in a compiled graph as what it does to the pairs of a last dimension, whatever it is spelled in.

Pairs lie side by side: elements 0 and 1, 2 and 3, and so on. Strided slices, stacks, selections, the scatters that
autograd makes of them, and complex numbers only move the two elements of a pair; sums, signs and products with
tables are followed coefficient by coefficient. (even · cos − odd · sin, even · sin + odd · cos) is a rotary
embedding, and with the other sign at both sines its gradient. What differs by a sign, an index or an operand is
neither.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nightshift.kernels.apply.job.folds import VIEWS, operator_name, seen_through

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
