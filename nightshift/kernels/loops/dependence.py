"""Whether a schedule keeps every dependence of a nest: exact integer sets, by islpy (isl; Verdoolaege 2010).

Two instances depend on each other where they touch the same element and one of them writes it. The earlier one in
the C text must stay the earlier one, whatever the values; no reduction is excused, because sums of floats change
with their order. A loop may run on several threads, or in vectors, where no dependence lies between its turns.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from nightshift.kernels.loops.nest import LoopNest, NestError
from nightshift.kernels.loops.schedule import LoopOrder, Schedule, original

isl: Any = None
with suppress(ImportError):  # the extra `loops`
    isl = importlib.import_module("islpy")

INDEPENDENT = {"parallel": "threads", "simd": "vectors"}
"""Marks that promise independent turns → of what."""


def library() -> Any:
    """islpy. Raises NestError where it is not installed."""
    if isl is None:
        raise NestError("loops: islpy is not installed. In the checkout: pip install '.[loops]'")
    return isl


@contextmanager
def bounded(operations: int = 1_000_000) -> Iterator[None]:
    """Within the block isl gives up, with its Error, after so many operations: a second's work or two."""
    context = library().DEFAULT_CONTEXT
    context.reset_operations()
    context.set_max_operations(operations)
    try:
        yield
    finally:
        context.set_max_operations(0)
        context.reset_operations()


def width(schedule: Schedule) -> int:
    """Dimensions of the time that all statements share."""
    return max(len(order.dims) for order in schedule.orders.values())


def times(nest: LoopNest, schedule: Schedule) -> Any:
    """Instance → time, over the nest's domain (an isl.UnionMap)."""
    parts = []
    for statement in nest.statements:
        dims = [dim.expression for dim in schedule.orders[statement.name].dims]
        dims += ["0"] * (width(schedule) - len(dims))
        parts.append(f"{statement.tuple_text} -> [{', '.join(dims)}]")
    return library().UnionMap(f"{{ {'; '.join(parts)} }}").intersect_domain(domain(nest))


def domain(nest: LoopNest) -> Any:
    return library().UnionSet(f"{{ {'; '.join(statement.domain for statement in nest.statements)} }}")


@lru_cache(maxsize=32)
def dependences(nest: LoopNest) -> Any:
    """Instance → instance that must run later (an isl.UnionMap): reads after writes, writes after both."""

    def accesses(kind: str) -> Any:
        parts = [
            f"{statement.tuple_text} -> {array}[{places}]"
            for statement in nest.statements
            for array, places in getattr(statement, kind)
        ]
        return library().UnionMap(f"{{ {'; '.join(parts)} }}").intersect_domain(domain(nest))

    reads, writes = accesses("reads"), accesses("writes")
    touching = writes.apply_range(reads.union(writes).reverse()).union(reads.apply_range(writes.reverse()))
    order = times(nest, original(nest))
    return touching.intersect(order.lex_lt_union_map(order)).coalesce()


def _marked(order: LoopOrder, mark: str) -> int:
    """The dimension of a marked loop; −1 where there is none."""
    return next((order.at(loop) for loop, name in order.marks if name == mark), -1)


def fault_of(nest: LoopNest, schedule: Schedule) -> str:
    """Which dependence a schedule breaks, in words; empty where it keeps all of them."""
    needed, order = dependences(nest), times(nest, schedule)
    late = needed.intersect(order.lex_ge_union_map(order))
    if not late.is_empty():
        return f"{_example(late)} run in the wrong order"
    for mark, what in INDEPENDENT.items():
        for name in schedule.orders:
            at = _marked(schedule.orders[name], mark)
            if at < 0:
                continue
            # turns of one run of the loop: equal up to it, apart in it
            before, after = (", ".join(f"{side}{i}" for i in range(width(schedule))) for side in "xy")
            equal = "".join(f"x{i} = y{i} and " for i in range(at))
            apart = library().UnionMap(f"{{ [{before}] -> [{after}] : {equal}x{at} < y{at} }}")
            moved = needed.apply_domain(order).apply_range(order).intersect(apart)
            # only what runs inside that loop: the marked statement's own places
            if not moved.is_empty():
                inside = order.intersect_domain(_statement(nest, name)).range()
                if not moved.intersect_domain(inside).union(moved.intersect_range(inside)).is_empty():
                    loop = schedule.orders[name].dims[at].name
                    return f"the turns of loop {loop} of {name} depend on each other: no {what}"
    return ""


def _statement(nest: LoopNest, name: str) -> Any:
    statement = next(one for one in nest.statements if one.name == name)
    return library().UnionSet(f"{{ {statement.domain} }}")


def _example(pairs: Any) -> str:
    """One pair of instances, as text."""
    return str(pairs.sample()).strip("{ }").replace(" -> ", " and ").split(" : ")[0]
