"""Rotary embeddings: what a compiled region computes that way, and two functions for a model's own code to call.

A pass over joint graphs reads each value as what it does to the two parts of a last dimension, whatever it is
spelled in. The parts are its halves, or the elements of its pairs (0 and 1, 2 and 3, and so on). Slices, chunks,
stacks, selections, the scatters that autograd makes of them, and complex numbers only move parts; sums, signs and
products with tables are followed coefficient by coefficient. (first · cos − second · sin, first · sin + second ·
cos) is a rotary embedding, and with the other sign at both sines its gradient. What differs by a sign, an index or
an operand is neither. Two rotations of halves by the same tables become one kernel, each rotation of pairs one.

In eager code nothing calls such a function by a name that could be found: `rotary` and `rotary_interleaved` are
there to be called instead. Where a guard refuses, and before `apply`, they are torch's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nightshift.kernels.apply.job.forwards import transformed
from nightshift.kernels.apply.job.guards import refusal
from nightshift.kernels.apply.job.names import HALVES, PAIRS
from nightshift.kernels.apply.job.operators import operator_of, run_once
from nightshift.kernels.apply.job.passes.folds import VIEWS, Pass, operator_name, seen_through, viewed
from nightshift.kernels.apply.job.problems import SPECS
from nightshift.kernels.apply.job.state import STATE, Kernel, Report, fell_back, in_use, slot

_WHOLE, _PART, _PAIRED, _LINE, _COMPLEX = "whole", "part", "paired", "line", "complex"
"""(…, d); one part, (…, d/2); and of pairs (…, d/2, 2); one element as (…, d/2, 1); (…, d/2) complex numbers."""
_FARTHEST, _MOST = 24, 64
"""Operators between a rotation and what it rotates; values that are looked at for one. A graph has thousands of
nodes, and each is asked."""
_MOVES = (*VIEWS, "clone", "squeeze", "unsqueeze")
_CONJUGATES = ("_conj", "conj_physical")
_COMPLEX_OF = {torch.float32: torch.complex64, torch.float64: torch.complex128}


@dataclass(frozen=True)
class AngleTable:
    """Cosines or sines: a node of real numbers. of: "re" or "im" of a complex one; "low" or "high" half of rows."""

    node: Any
    of: str = ""


Terms = Mapping[tuple[int, AngleTable | None], int]
"""One part of a value: (part of what is rotated, table or None while there is none) → coefficient."""


@dataclass(frozen=True)
class Rotation:
    """`out` = `x` rotated. problem: by how its heads lie; moved: for that, heads and positions change places.
    rows: the dimension of `x` that the tables' rows stand for."""

    out: Any
    x: Any
    cos: AngleTable
    sin: AngleTable
    problem: str
    moved: bool
    rows: int

    @property
    def key(self) -> tuple[Any, ...]:
        """What two rotations must share to be one kernel's: all but the number of heads."""
        value, heads = self.x.meta["val"], 3 - self.rows
        others = tuple(size for dim, size in enumerate(value.shape) if dim != heads)
        return self.problem, self.moved, self.cos, self.sin, self.rows, others, value.dtype

    @property
    def table_sizes(self) -> list[int]:
        """(positions, columns) of the tables, as the problem takes them."""
        *_, columns = sizes = self.x.meta["val"].shape
        return [sizes[self.rows], columns if self.problem in HALVES else columns // 2]


@dataclass(frozen=True)
class _Form:
    """parts: None where one was never written."""

    kind: str
    parts: tuple[Terms | None, ...]


class _Reader:
    """Reads one value as a function of `x` and of tables, which are learnt on the way. halves: the two parts are
    halves, not elements of pairs. rows: the dimension of `x` that the tables' rows stand for."""

    def __init__(self, x: Any, halves: bool) -> None:
        self.x, self.value, self.halves = x, x.meta["val"], halves
        self.rank, self.width = self.value.dim(), self.value.shape[-1]
        self.half = self.width // 2
        self.rows: int | None = None
        self._depth = 0
        self._known: dict[Any, _Form | None] = {x: _Form(_WHOLE, ({(0, None): 1}, {(1, None): 1}))}
        if halves:
            self._cuts = {_WHOLE: {(0, self.half, 1): 0, (self.half, self.width, 1): 1}}
            self._pieces = {_WHOLE: _PART}
            self._joins = {"cat": (_PART, _WHOLE)}
            self._shapes: tuple[tuple[str, ...], ...] = ((_WHOLE,), (_PART,))
        else:
            # without an end, or with one before the last element: every second one from the first is the same
            every_second = {(0, self.width, 2): 0, (0, self.width - 1, 2): 0, (1, self.width, 2): 1}
            self._cuts = {_WHOLE: every_second, _PAIRED: {(0, 1, 1): 0, (1, 2, 1): 1}}
            self._pieces = {_PAIRED: _LINE}
            self._joins = {"cat": (_LINE, _PAIRED), "stack": (_PART, _PAIRED)}
            self._shapes = ((_WHOLE, _PAIRED), (_PART, _LINE), (_COMPLEX,))

    def form(self, node: Any) -> _Form | None:
        """None where it is no such function."""
        if not isinstance(node, torch.fx.Node) or self._depth > _FARTHEST:
            return None
        if node not in self._known:
            self._known[node] = None
            self._depth += 1
            found = self._read(node) if node.op == "call_function" else None
            self._depth -= 1
            self._known[node] = found if found is not None and self._shaped(node, found.kind) else None
        return self._known[node]

    def _shaped(self, node: Any, kind: str) -> bool:
        """Whether a value is as large and of the dtype that its form says."""
        value, first = node.meta.get("val"), self.value.shape[:-1]
        last = {_WHOLE: [self.width], _PAIRED: [self.half, 2], _LINE: [self.half, 1]}.get(kind, [self.half])
        if not isinstance(value, torch.Tensor) or list(value.shape) != [*first, *last]:
            return False
        return value.is_complex() if kind == _COMPLEX else value.dtype == self.value.dtype

    def _read(self, node: Any) -> _Form | None:
        name, args = operator_name(node), list(node.args)
        if node.target is operator.getitem:
            return self._one_of(*args)
        if name in _FILLS:
            return self._filled(node, name, args)
        rule = _RULES.get(name)
        # a keyword changes what an operator computes (alpha, dtype); a clone's only says how the copy lies
        return None if rule is None or (node.kwargs and name != "clone") else rule(self, node, name, args)

    def _last(self, kind: str) -> tuple[int, int]:
        """Both names of the dimension in which the two parts lie."""
        return -1, self.rank - (kind != _PAIRED)

    def _one_of(self, every: Any, number: Any) -> _Form | None:
        """One part, of an operator that gives a tensor for each."""
        name = operator_name(every) if isinstance(every, torch.fx.Node) and not every.kwargs else ""
        if name not in _PARTING or number not in (0, 1):
            return None
        base, rest = self.form(every.args[0]), every.args[1:]
        if base is None or not rest or rest[-1] not in self._last(base.kind):
            return None
        if name == "unbind":
            return _Form(_PART, (base.parts[number],)) if base.kind == _PAIRED else None
        each = 1 if base.kind == _PAIRED else self.half
        even = len(rest) == 2 and (rest[0] == each or rest[0] == [each, each])
        return _Form(self._pieces[base.kind], (base.parts[number],)) if even and base.kind in self._pieces else None

    def _filled(self, node: Any, name: str, args: list[Any]) -> _Form | None:
        """Nothing in any part where a tensor of zeros is asked for; parts that are not written yet."""
        nothing: Terms | None = None if "empty" in name else {}
        if name == "full" and (len(args) < 2 or args[1] != 0):
            return None
        every = [kind for kinds in self._shapes for kind in kinds if kind != _COMPLEX]
        kind = next((kind for kind in every if self._shaped(node, kind)), None)
        return None if kind is None else _Form(kind, (nothing,) * (2 if kind in (_WHOLE, _PAIRED) else 1))

    def _same(self, node: Any, name: str, args: list[Any]) -> _Form | None:
        return self.form(args[1] if name == "copy" else args[0])

    def _moved(self, node: Any, name: str, args: list[Any]) -> _Form | None:
        """The same elements in the same order under another shape."""
        base = self.form(args[0])
        same = next((kinds for kinds in self._shapes if base is not None and base.kind in kinds), ())
        kind = next((kind for kind in same if self._shaped(node, kind)), None)
        return None if base is None or kind is None else _Form(kind, base.parts)

    def _recast(self, node: Any, name: str, args: list[Any]) -> _Form | None:
        """Pairs as complex numbers, and back."""
        base = self.form(args[0])
        wanted, made = (_PAIRED, _COMPLEX) if name == "view_as_complex" else (_COMPLEX, _PAIRED)
        return _Form(made, base.parts) if base is not None and base.kind == wanted else None

    def _sum(self, node: Any, name: str, args: list[Any]) -> _Form | None:
        base = self.form(args[0])
        if base is None or name == "neg":
            return None if base is None else _Form(base.kind, tuple(_added({}, part, -1) for part in base.parts))
        other, sign = self.form(args[1]), -1 if name == "sub" else 1
        if other is None or other.kind != base.kind:
            return None
        return _Form(base.kind, tuple(_added(a, b, sign) for a, b in zip(base.parts, other.parts, strict=True)))

    def _joined(self, node: Any, name: str, args: list[Any]) -> _Form | None:
        """Two parts, one after the other."""
        wanted, made = self._joins.get(name, ("", ""))
        parts = [self.form(part) for part in args[0]] if isinstance(args[0], list | tuple) else []
        fits = len(parts) == 2 and len(args) == 2 and args[1] in self._last(made)
        found = [part.parts[0] for part in parts if part is not None and part.kind == wanted]
        return _Form(made, tuple(found)) if fits and len(found) == 2 else None

    def _taken(self, node: Any, name: str, args: list[Any]) -> _Form | None:
        """One part, by a slice or a selection."""
        base = self.form(args[0])
        at = None if base is None else self._place(name, base.kind, args[1:])
        return None if base is None or at is None else _Form(self._piece(name, base.kind), (base.parts[at],))

    def _put(self, node: Any, name: str, args: list[Any]) -> _Form | None:
        """Both parts, one of them written anew."""
        base, new = self.form(args[0]), self.form(args[1])
        at = None if base is None else self._place(name, base.kind, args[2:])
        if base is None or at is None or new is None or new.kind != self._piece(name, base.kind):
            return None
        return _Form(base.kind, tuple(new.parts[0] if n == at else part for n, part in enumerate(base.parts)))

    def _piece(self, name: str, kind: str) -> str:
        return _LINE if kind == _PAIRED and name.startswith("slice") else _PART

    def _place(self, name: str, kind: str, rest: list[Any]) -> int | None:
        """Which part a slice or a selection is of."""
        if name.startswith("select"):
            fits = kind == _PAIRED and len(rest) == 2 and rest[0] in self._last(kind)
            return {0: 0, 1: 1, -1: 1, -2: 0}.get(rest[1]) if fits else None
        usual: list[Any] = [0, None, None, 1]
        dim, begin, end, step = rest + usual[len(rest) :]
        size = 2 if kind == _PAIRED else self.width
        begin, end = begin or 0, size if end is None else end
        if dim not in self._last(kind) or not all(isinstance(n, int) for n in (begin, end, step)):
            return None
        return self._cuts.get(kind, {}).get((begin, min(end, size), step))

    def _times(self, node: Any, name: str, args: list[Any]) -> _Form | None:
        for part, other in (args, args[::-1]):
            base = self.form(part)
            # a product of two tables is no rotation: what has one already takes no other
            if base is None or any(p is None or any(table is not None for _, table in p) for p in base.parts):
                continue
            made = self._by_complex(base, other) if base.kind == _COMPLEX else self._by_real(base, other)
            if made is not None:
                return made
        return None

    def _by_real(self, base: _Form, other: Any) -> _Form | None:
        table = self._table(other, base.kind)
        if table is None:
            return None
        ways = [AngleTable(table.node, of) for of in ("low", "high")] if self.halves else [table] * len(base.parts)
        return _Form(base.kind, tuple(_by(part, way, 1) for part, way in zip(base.parts, ways, strict=True)))

    def _by_complex(self, base: _Form, other: Any) -> _Form | None:
        found = self._complex(other)
        if found is None:
            return None
        (real, imaginary, sign), (first, second) = found, base.parts
        return _Form(
            _COMPLEX,
            (
                _added(_by(first, real, 1), _by(second, imaginary, sign), -1),
                _added(_by(first, imaginary, sign), _by(second, real, 1), 1),
            ),
        )

    def _table(self, node: Any, kind: str) -> AngleTable | None:
        """A table as what is multiplied with it takes it: of halves one of the whole width, of pairs one value for
        each."""
        value = _value(node)
        if value is None or value.dtype != self.value.dtype or (self.halves and kind != _WHOLE):
            return None
        sizes = tuple(value.shape)
        if kind == _WHOLE and not self.halves:
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
        """One row for each position, the same for every head and batch; always the same dimension's positions."""
        _, *dims = self.value.shape
        columns = self.width if self.halves else self.half
        sizes = (1,) * (4 - len(sizes)) + sizes
        rows = 2 if sizes == (1, 1, dims[1], columns) else 1 if sizes == (1, dims[0], 1, columns) else None
        if rows is None or self.rows not in (None, rows):
            return False
        self.rows = rows
        return True


_Rule = Callable[[_Reader, Any, str, list[Any]], _Form | None]
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_MOVES, _Reader._moved),
    **dict.fromkeys(("clone", "copy"), _Reader._same),
    **dict.fromkeys(("slice", "select"), _Reader._taken),
    **dict.fromkeys(("slice_scatter", "select_scatter"), _Reader._put),
    **dict.fromkeys(("cat", "stack"), _Reader._joined),
    **dict.fromkeys(("neg", "add", "sub"), _Reader._sum),
    **dict.fromkeys(("view_as_complex", "view_as_real"), _Reader._recast),
    "mul": _Reader._times,
}
_PARTING = ("unbind", "split", "split_with_sizes")
_FILLS = ("full", "zeros", "empty", "new_empty_strided", "new_zeros", "zeros_like")


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


def _added(a: Terms | None, b: Terms | None, sign: int) -> Terms | None:
    if a is None or b is None:
        return None
    total = {key: a.get(key, 0) + sign * b.get(key, 0) for key in {**a, **b}}
    return {key: value for key, value in total.items() if value}


def _by(part: Terms | None, table: AngleTable, sign: int) -> Terms | None:
    return None if part is None else {(key[0], table): sign * value for key, value in part.items()}


def rotation(node: Any, halves: bool) -> Rotation | None:
    """What a value is, if it is a rotation of halves (else: of pairs) or its gradient."""
    value = _value(node)
    if value is None or not _may_be_one(node, value, halves):
        return None
    for x in _leaves(node, value):
        reader = _Reader(x, halves)
        found = reader.form(node)
        claim = _claim(found, halves) if found is not None and found.kind == _WHOLE else None
        if claim is None or reader.rows is None:
            continue
        cos, sin, back = claim
        if not all(_whole_in_memory(one) for one in (reader.value, value)):
            return None  # and views behind `value` were traced for strides that no copy of ours has
        moved = not reader.value.is_contiguous()
        kind = "half" if halves else "interleaved"
        # the tables' rows say where positions are; a kernel is of memory, in which they may have changed places
        by_position = "_by_position" if (reader.rows == 1) != moved else ""
        return Rotation(node, x, cos, sin, f"rotary_{kind}{by_position}{'_backward' * back}", moved, reader.rows)
    return None


def _may_be_one(node: Any, value: torch.Tensor, halves: bool) -> bool:
    # of halves a sum alone: two copies of one rotation would be taken for those of queries and keys
    roots = ("add", "sub") if halves else _RULES
    if node.op != "call_function" or operator_name(node) not in roots:
        return False
    plain = value.dim() == 4 and value.is_floating_point() and bool(value.numel()) and not value.shape[-1] % 2
    # of sizes that are no numbers (dynamic shapes) nothing is certified
    return plain and all(isinstance(n, int) for n in (*value.shape, *value.stride()))


def _whole_in_memory(value: torch.Tensor) -> bool:
    """Whether its memory is whole, with heads or with positions first."""
    return value.is_contiguous() or value.permute(0, 2, 1, 3).is_contiguous()


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
        name = operator_name(one) if one.op == "call_function" else ""
        if name in _RULES or name in _PARTING or one.target is operator.getitem:
            waiting += one.all_input_nodes
    return found


def _claim(form: _Form, halves: bool) -> tuple[AngleTable, AngleTable, bool] | None:
    """(cosines, sines, whether it is the gradient) of a rotation's two parts."""
    first, second = form.parts
    if first is None or second is None or len(first) != 2 or len(second) != 2:
        return None
    cos, sin = (next((table for part, table in first if part == n), None) for n in (0, 1))
    if cos is None or sin is None:
        return None
    if halves:
        cos, sin = AngleTable(cos.node), AngleTable(sin.node)

    def of(table: AngleTable, half: str) -> AngleTable:
        return AngleTable(table.node, half) if halves else table

    for back, sign in ((False, 1), (True, -1)):
        # what came to a part by its partner's half of the sines goes back by that half
        one, other = ("high", "low") if back else ("low", "high")
        wanted = (
            {(0, of(cos, "low")): 1, (1, of(sin, one)): -sign},
            {(1, of(cos, "high")): 1, (0, of(sin, other)): sign},
        )
        if (first, second) == wanted and cos != sin:
            return cos, sin, back
    return None


class TurnByKernels(Pass):
    """A pass for torch._inductor.config.joint_custom_pre_pass: rotations become kernels."""

    def named(self) -> tuple[Any, ...]:
        every = (*HALVES, *PAIRS)
        used = sorted(k.certificate for k in STATE.kernels.values() if k.problem in every and not k.disabled)
        return "nightshift turn 2", tuple(used)

    def rewrite(self, graph: Any) -> None:
        held = {kernel.problem for kernel in STATE.kernels.values() if not kernel.disabled}
        order = {node: number for number, node in enumerate(graph.nodes)}
        waiting: dict[tuple[Any, ...], Rotation] = {}
        for node in list(graph.nodes):
            found = rotation(node, halves=False) if not held.isdisjoint(PAIRS) else None
            if found is not None:
                _swap(graph, [found], found.out)
            found = rotation(node, halves=True) if not held.isdisjoint(HALVES) else None
            if found is None or found.problem not in held:
                continue
            first = waiting.pop(found.key, None)
            if first is None or not _swap_both(graph, first, found, order):
                waiting[found.key] = found


def _swap_both(graph: Any, first: Rotation, second: Rotation, order: dict[Any, int]) -> bool:
    """Puts one kernel where the first of the two sums is or where the second is: all that it needs is known there,
    nothing that it makes was wanted before. False where there is no such place, or a guard refuses."""
    needs = [second.x, second.cos.node, second.sin.node, first.x, first.cos.node, first.sin.node]
    if any(n not in order for n in needs):
        return False
    if all(order[n] < order[first.out] for n in needs):
        before = first.out
    elif all(order.get(user, -1) > order[second.out] for user in first.out.users):
        before = second.out
    else:
        return False
    # a kernel is certified for one number of heads of each: which of the two are the queries nothing else says
    return any(_swap(graph, both, before) for both in ([first, second], [second, first]))


def _swap(graph: Any, turned: Sequence[Rotation], before: Any) -> bool:
    """Puts one kernel for a rotation, or for two by the same tables, before a node; False where a guard refuses."""
    one = turned[0]
    values = [_as_moved(each.x.meta["val"], each.moved) for each in turned]
    given = (*values, *(values[0].new_empty(one.table_sizes) for _ in range(2)))
    kernel = kernel_of(one.problem, *given)
    if kernel is None or refusal(kernel.record, SPECS[one.problem].sizes(*given), given):
        return False
    with graph.inserting_before(before):
        nodes = [_permuted(graph, each.x) if each.moved else each.x for each in turned]
        nodes += [_listed(graph, table, one.table_sizes) for table in (one.cos, one.sin)]
        lying = tuple(node.meta["val"] for node in nodes)
        made = graph.call_function(operator_of(one.problem)._opoverload, tuple(nodes))
        fakes = SPECS[one.problem].fake(*lying)
        # the second says to the compiler that operands must lie as they do here
        made.meta = {**one.out.meta, "val": fakes, "eager_input_vals": (lying, {})}
        for number, each in enumerate(turned):
            part = made
            if isinstance(fakes, tuple):
                part = graph.call_function(operator.getitem, (made, number))
                part.meta["val"] = fakes[number]
            whole = _permuted(graph, part) if each.moved else part
            if whole.meta["val"].stride() != each.out.meta["val"].stride():
                whole = _laid_out(graph, whole, each.out.meta["val"])
            each.out.replace_all_uses_with(whole)
    return True


def _as_moved(value: torch.Tensor, moved: bool) -> torch.Tensor:
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
