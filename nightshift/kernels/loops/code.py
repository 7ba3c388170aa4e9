"""C for a schedule: isl generates loops that visit every instance once, in the schedule's order."""

from __future__ import annotations

import re
from typing import Any

from nightshift.kernels.loops.dependence import library, times, width
from nightshift.kernels.loops.nest import LoopNest, Statement
from nightshift.kernels.loops.schedule import Schedule

HELPERS = """
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define floord(a, b) (((a) < 0 ? (a) - (b) + 1 : (a)) / (b))
"""
PRAGMAS = {"parallel": "#pragma omp parallel for schedule(static)", "simd": "#pragma omp simd"}


def _prefix(schedule: Schedule, name: str, at: int) -> tuple[str, ...]:
    """The places around a loop of a statement: what tells it from another nest's loop of the same depth."""
    return tuple(dim.expression for dim in schedule.orders[name].dims[:at] if not dim.name)


def _marks(schedule: Schedule) -> dict[tuple[int, str], set[str]]:
    """(dimension, statement) → marks."""
    marks: dict[tuple[int, str], set[str]] = {}
    for name, order in schedule.orders.items():
        for loop, mark in order.marks:
            marks.setdefault((order.at(loop), name), set()).add(mark)
    return marks


def _options(schedule: Schedule) -> Any:
    """Which dimensions isl writes out, in which part of the schedule."""
    names = [f"c{i}" for i in range(width(schedule))]
    parts = []
    for (at, name), marks in _marks(schedule).items():
        if "unroll" in marks:
            dims = schedule.orders[name].dims
            inside = [f"c{i} = {dim.expression}" for i, dim in enumerate(dims[:at]) if not dim.name]
            parts.append(f"[{', '.join(names)}] -> unroll[{at}] : {' and '.join(inside)}")
    return library().UnionMap(f"{{ {'; '.join(parts)} }}")


class _Printer:
    def __init__(self, marks: dict[tuple[int, str], set[str]]) -> None:
        self.marks = marks
        self.lines: list[str] = []

    def statements(self, node: Any) -> set[str]:
        """Names of the statements inside a node."""
        isl, found = library(), set()
        kind = node.get_type()
        if kind == isl.ast_node_type.user:
            return {node.user_get_expr().get_op_arg(0).get_id().get_name()}
        for child in self.children(node):
            found |= self.statements(child)
        return found

    def children(self, node: Any) -> list[Any]:
        isl = library()
        kind = node.get_type()
        if kind == isl.ast_node_type.for_:
            return [node.for_get_body()]
        if kind == isl.ast_node_type.if_:
            both = [node.if_get_then_node()]
            return both + ([node.if_get_else_node()] if node.if_has_else_node() else [])
        if kind == isl.ast_node_type.block:
            block = node.block_get_children()
            return [block.get_at(i) for i in range(block.n_ast_node())]
        return []

    def show(self, node: Any, depth: int, threaded: bool) -> None:
        isl, pad = library(), "    " * depth
        kind = node.get_type()
        if kind == isl.ast_node_type.user:
            self.lines.append(f"{pad}{node.user_get_expr().to_C_str()};")
        elif kind == isl.ast_node_type.for_:
            name = node.for_get_iterator().get_id().get_name()
            start = node.for_get_init().to_C_str()
            if node.for_is_degenerate():
                self.lines.append(f"{pad}{{ const int {name} = {start};")
            else:
                marks = [self.marks.get((int(name[1:]), each), set()) for each in self.statements(node)]
                shared = set.intersection(*marks)
                if "parallel" in shared and not threaded:
                    self.lines.append(PRAGMAS["parallel"])
                    threaded = True
                elif "simd" in shared:
                    self.lines.append(PRAGMAS["simd"])
                until, step = node.for_get_cond().to_C_str(), node.for_get_inc().to_C_str()
                self.lines.append(f"{pad}for (int {name} = {start}; {until}; {name} += {step}) {{")
            self.show(node.for_get_body(), depth + 1, threaded)
            self.lines.append(f"{pad}}}")
        elif kind == isl.ast_node_type.if_:
            self.lines.append(f"{pad}if ({node.if_get_cond().to_C_str()}) {{")
            self.show(node.if_get_then_node(), depth + 1, threaded)
            if node.if_has_else_node():
                self.lines.append(f"{pad}}} else {{")
                self.show(node.if_get_else_node(), depth + 1, threaded)
            self.lines.append(f"{pad}}}")
        else:
            for child in self.children(node):
                self.show(child, depth, threaded)


def source_of(nest: LoopNest, schedule: Schedule) -> str:
    """The nest's C with its loops in the schedule's order. Raises isl.Error where isl cannot write a loop out."""
    isl = library()
    build = isl.AstBuild.from_context(isl.Set("{ : }"))
    names = isl.IdList.alloc(isl.DEFAULT_CONTEXT, width(schedule))
    for number in range(width(schedule)):
        names = names.add(isl.Id(f"c{number}"))
    build = build.set_iterators(names).set_options(_options(schedule))
    tree = build.node_from_schedule_map(times(nest, schedule))
    printer = _Printer(_marks(schedule))
    printer.show(tree, 1, False)

    def body_of(statement: Statement) -> str:
        """Its text, each iterator in brackets: what a macro puts there may be a sum."""
        text = " ".join(statement.text[:-1].split())
        return re.sub(rf"\b({'|'.join(statement.iterators)})\b", r"(\1)", text) if statement.iterators else text

    macros = [f"#define {one.name}({', '.join(one.iterators)}) {body_of(one)}" for one in nest.statements]
    body = "\n".join(printer.lines)
    return f"{nest.declarations}{HELPERS}{chr(10).join(macros)}\nvoid kernel(void) {{\n{body}\n}}\n"
