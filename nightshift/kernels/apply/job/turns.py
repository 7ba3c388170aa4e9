"""Reads a sum in a compiled graph as what it does to the halves of a last dimension, whatever it is spelled in.

Slices, chunks, cat and the scatters that autograd makes of slices only move halves; sums, signs and products with a
table are followed coefficient by coefficient. x · cos + (−upper, lower) · sin is a rotary embedding, and with the
sine on the other side of the turn its gradient. What differs by a single sign is neither.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nightshift.kernels.apply.job.folds import operator_name, seen_through

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
