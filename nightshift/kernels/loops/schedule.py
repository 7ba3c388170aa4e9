"""Schedules of a nest's statements, and the actions that change them.

Each statement has a list of dimensions, alternately a place among its siblings (a number) and a loop; instances run
in the lexicographic order of their values ("2d + 1" form: Feautrier 1992; Kelly and Pugh 1995). An action changes
lists, never meaning: whether the new order keeps every dependence is `dependence.fault_of`'s to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from nightshift.kernels.loops.nest import LoopNest

LARGEST_UNROLL = 16
_ROOM = 100
# between two siblings, for statements that an action puts there


class ActionError(ValueError):
    """An action is malformed or has nothing to work on. The message says what is expected."""


@dataclass(frozen=True)
class Dim:
    """One dimension: an expression over the statement's iterators. name: of a loop; empty: a place."""

    expression: str
    name: str = ""


@dataclass(frozen=True)
class LoopOrder:
    """One statement's dimensions, and the loops that are marked: name → mark."""

    dims: tuple[Dim, ...]
    marks: tuple[tuple[str, str], ...] = ()

    def at(self, loop: str) -> int:
        """The dimension of a loop. Raises ActionError."""
        for number, dim in enumerate(self.dims):
            if dim.name == loop:
                return number
        names = ", ".join(dim.name for dim in self.dims if dim.name)
        raise ActionError(f"no loop {loop!r} there, but {names}")

    @property
    def loops(self) -> tuple[str, ...]:
        return tuple(dim.name for dim in self.dims if dim.name)


@dataclass(frozen=True)
class Schedule:
    """Of each statement its order; `actions`: how it came about."""

    orders: dict[str, LoopOrder] = field(hash=False)
    actions: tuple[str, ...] = ()


def original(nest: LoopNest) -> Schedule:
    """The order of the C text."""
    orders = {}
    for statement in nest.statements:
        dims = [Dim(str(_ROOM * statement.order[0]))]
        for loop, place in zip(statement.loops, statement.order[1:], strict=True):
            dims += [Dim(loop.name, loop.name), Dim(str(_ROOM * place))]
        orders[statement.name] = LoopOrder(tuple(dims))
    return Schedule(orders)


def _sized(text: str) -> tuple[str, int]:
    loop, _, size = text.partition(":")
    if not size.isdigit() or int(size) < 2:
        raise ActionError(f"{text!r}: expected LOOP:SIZE with a size from 2")
    return loop, int(size)


def _tile(order: LoopOrder, arguments: Sequence[str]) -> LoopOrder:
    """Loops over tiles, in the order named, around the outermost loop named."""
    sized = [_sized(text) for text in arguments]
    if any(f"{loop}_t" in order.loops for loop, _ in sized):
        raise ActionError("a loop can be tiled once")
    first = min(order.at(loop) for loop, _ in sized)
    tiles = [Dim(f"floor(({order.dims[order.at(loop)].expression})/{size})", f"{loop}_t") for loop, size in sized]
    return replace(order, dims=(*order.dims[:first], *tiles, *order.dims[first:]))


def _interchange(order: LoopOrder, arguments: Sequence[str]) -> LoopOrder:
    if len(arguments) != 2:
        raise ActionError("interchange takes two loops")
    a, b = (order.at(loop) for loop in arguments)
    dims = list(order.dims)
    dims[a], dims[b] = dims[b], dims[a]
    return replace(order, dims=tuple(dims))


def _unroll(order: LoopOrder, arguments: Sequence[str]) -> LoopOrder:
    """The loop steps by so many, and what it skips runs innermost, written out (unroll and jam)."""
    for loop, size in map(_sized, arguments):
        if size > LARGEST_UNROLL or f"{loop}_u" in order.loops:
            raise ActionError(f"a loop is unrolled once, by at most {LARGEST_UNROLL}")
        at = order.at(loop)
        inner = order.dims[at].expression
        dims = list(order.dims)
        dims[at] = Dim(f"floor(({inner})/{size})", loop)
        order = replace(order, dims=(*dims, Dim(inner, f"{loop}_u")), marks=(*order.marks, (f"{loop}_u", "unroll")))
    return order


def _marked(mark: str) -> Callable[[LoopOrder, Sequence[str]], LoopOrder]:
    def change(order: LoopOrder, arguments: Sequence[str]) -> LoopOrder:
        if len(arguments) != 1:
            raise ActionError(f"{mark} takes one loop")
        order.at(arguments[0])
        marks = tuple(pair for pair in order.marks if pair[1] != mark)
        return replace(order, marks=(*marks, (arguments[0], mark)))

    return change


ACTIONS: dict[str, tuple[str, Callable[[LoopOrder, Sequence[str]], LoopOrder] | None]] = {
    "tile": ("tile STATEMENTS LOOP:SIZE … : loops over tiles around the outermost loop named", _tile),
    "interchange": ("interchange STATEMENTS LOOP LOOP : swap two loops", _interchange),
    "unroll": ("unroll STATEMENTS LOOP:SIZE … : unroll and jam, at most 16", _unroll),
    "parallelise": ("parallelise STATEMENTS LOOP : run a loop's turns on several threads", _marked("parallel")),
    "vectorise": (
        "vectorise STATEMENTS LOOP : tell the compiler that its turns are independent",
        _marked("simd"),
    ),
    "fuse": ("fuse STATEMENTS DEPTH : run inside the first one's outer DEPTH loops, one behind the other", None),
    "distribute": ("distribute STATEMENTS DEPTH : share only the outer DEPTH loops; 0 shares none", None),
}
"""Action → (its form and meaning, what it does to one statement's order; None: it relates several)."""


def _together(orders: dict[str, LoopOrder], names: Sequence[str], depth: int, joined: bool) -> dict[str, LoopOrder]:
    """Statements one behind the other at a depth, as named. joined: inside the first one's outer loops."""
    if len(names) < 2:
        raise ActionError("name two statements or more")
    places = {name: [at for at, dim in enumerate(orders[name].dims) if not dim.name] for name in names}
    most = min(len(own) for own in places.values()) - 1
    if depth > most:
        raise ActionError(f"depth: these share at most {most} loops")
    first = [orders[names[0]].dims[at] for at in places[names[0]]]
    changed = dict(orders)
    for turn, name in enumerate(names):
        dims, own = list(orders[name].dims), places[name]
        if joined:
            for level in range(depth + 1):
                dims[own[level]] = first[level]
        dims[own[depth]] = Dim(str(int(dims[own[depth]].expression) + turn))
        changed[name] = replace(orders[name], dims=tuple(dims))
    return changed


def apply(schedule: Schedule, action: str) -> Schedule:
    """The schedule after an action, such as `tile S0,S1 i:32 j:64`. Raises ActionError."""
    verb, *words = action.split()
    if verb not in ACTIONS:
        raise ActionError(f"action: {verb!r} is none of {', '.join(ACTIONS)}")
    if len(words) < 2:
        raise ActionError(f"expected: {ACTIONS[verb][0]}")
    names, arguments = words[0].split(","), words[1:]
    unknown = sorted(set(names) - set(schedule.orders))
    if unknown or len(set(names)) < len(names):
        raise ActionError(f"statements: {', '.join(unknown) or 'one is named twice'}; there are "
                          f"{', '.join(schedule.orders)}")  # fmt: skip
    change = ACTIONS[verb][1]
    if change is not None:
        orders = {**schedule.orders, **{name: change(schedule.orders[name], arguments) for name in names}}
    elif len(arguments) == 1 and arguments[0].isdigit():
        orders = _together(schedule.orders, names, int(arguments[0]), verb == "fuse")
    else:
        raise ActionError(f"expected: {ACTIONS[verb][0]}")
    return Schedule(orders, (*schedule.actions, " ".join(action.split())))


def applied(nest: LoopNest, actions: Sequence[str]) -> Schedule:
    """The nest's own order after these actions."""
    schedule = original(nest)
    for action in actions:
        schedule = apply(schedule, action)
    return schedule
