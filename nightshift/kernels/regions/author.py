"""An author of kernels for any operation: its own graph, cut into regions, over a space of schedules.

The space is small and one for all regions of an operation: a search that is given seconds tries what usually wins
first (`BEGINNINGS`), and the surrogate goes on from there.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch

from nightshift.kernels.candidate import Candidate, Kind
from nightshift.kernels.candidate_file import parse_candidate
from nightshift.kernels.generate.base import Config, GeneratorError, Value
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import Template, Warm
from nightshift.kernels.problem import Case, Inputs, Problem
from nightshift.kernels.regions.graph import (
    BUSY,
    LAID,
    STRIDES,
    GraphError,
    captured,
    channels_last,
    copied,
    deep_in_parts,
    depth_last,
    forwarded,
    is_forwarded,
)
from nightshift.kernels.regions.kernel import Cut, RegionWriter, Schedule, Written, contiguous, region_of
from nightshift.kernels.regions.lowering import Node, dtype_of, is_tensor, kind_of, name_of, shape_of
from nightshift.kernels.regions.product import PRODUCTS, ProductSchedule, product_kernel, writes_product

TILES = {
    "128x128x32": (128, 128, 32, 8, 3), "128x64x32": (128, 64, 32, 4, 3), "64x64x32": (64, 64, 32, 4, 3),
    "128x256x32": (128, 256, 32, 8, 3), "64x32x32": (64, 32, 32, 4, 4), "32x32x16": (32, 32, 16, 4, 1),
}  # fmt: skip
"""Rows, columns and depth of a product's tiles, its warps and stages."""


@dataclass
class RegionFamily:
    """The schedules of one problem's graph, as a family of one problem. forms: of its inputs, on a device."""

    problem: Problem
    forms: Inputs
    device: str
    name: str = "regions"
    made: dict[str, Composition] = field(default_factory=dict)
    written: dict[tuple[Any, ...], Composition] = field(default_factory=dict)
    """By what they were written for: a network takes seconds."""

    @property
    def problems(self) -> tuple[str, ...]:
        return (self.problem.name,)

    @cached_property
    def graph(self) -> torch.fx.GraphModule:
        """Raises GeneratorError where the operation has no graph."""
        try:
            return captured(self.problem.reference, self.forms, self.device)
        except GraphError as error:
            raise GeneratorError(f"{self.name}: {error}") from error

    @cached_property
    def products(self) -> tuple[bool, bool]:
        """Whether there are matrix products, and whether there are convolutions, that a kernel here writes."""
        found = [n for n in self.graph.graph.nodes if n.op == "call_function" and writes_product(n)]
        turned = ["convolution" in str(n.target) for n in found]
        return not all(turned), any(turned)

    @cached_property
    def convolutions(self) -> list[torch.fx.Node]:
        """Written here or not."""
        return [node for node in self.graph.graph.nodes if str(node.target) == "aten.convolution.default"]

    @property
    def turns(self) -> bool:
        """Whether there is a transposed convolution that another can stand for."""
        return any(map(is_forwarded, self.convolutions))

    def space(self, problem: str, case: Case) -> Space:
        product, convolution = self.products
        tiles = tuple(TILES)
        return Space.of(
            block=(512, 1024, 2048, 4096, 8192),
            warps=(4, 8),
            rows=(0, 1, 16, 64),
            persistent=(2048, 8192, 16384),
            product=("torch", *tiles) if product else ("torch",),
            convolution=("torch", *["forward"] * self.turns, *(tiles if convolution else ())),
            precision=("tf32x3", "tf32", "ieee") if product or convolution else ("tf32x3",),
            channels=("first", "last") if self.convolutions else ("first",),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        return self.composed(case, config).candidate.source

    def composed(self, case: Case, config: Config) -> Composition:
        """The candidate of one configuration. Raises GeneratorError that names the operator that cannot be cut."""
        key = (self.problem.name, case, *sorted(config.items()))
        if key not in self.written:
            self.written[key] = made = self._composed(case, config)
            self.made[made.candidate.sha256] = made
        return self.written[key]

    def _composed(self, case: Case, config: Config) -> Composition:
        numbers = {key: int(config[key]) for key in ("block", "warps", "rows", "persistent")}
        product, convolution = (self._tiles(config, key) for key in ("product", "convolution"))
        turned = config["channels"] == "last" and convolution is None
        plan = GraphPlan(Schedule(**numbers), product, convolution, turned, config["convolution"] == "forward")
        try:
            made = Composer(self.graph, plan).composed(self.problem.name, case)
        except GraphError as error:
            raise GeneratorError(f"{self.name}: {error}") from error
        return replace(made, config=config)

    def _tiles(self, config: Config, key: str) -> ProductSchedule | None:
        tile = TILES.get(str(config[key]))
        busy = BUSY // 4 if self.device == "cuda" else 0  # of fewer, most multiprocessors have none
        return ProductSchedule(*tile, str(config["precision"]), busy) if tile else None


def beginnings(family: RegionFamily) -> tuple[Config, ...]:
    """What usually wins, the best first: kernels of one's own between torch's calls, then products of one's own."""
    product, _ = family.products
    exact = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"  # as precise as eager's own products
    usual: dict[str, Value] = {"block": 2048, "warps": 4, "rows": 0, "persistent": 8192, "precision": exact}
    usual |= {"product": "torch", "convolution": "torch", "channels": "first"}
    owned: dict[str, Value] = {**usual, **({"product": "128x128x32"} if product else {})}
    found: list[Config] = [owned, usual]
    if family.convolutions:
        last = {**owned, "channels": "last"}
        forward = [{**one, "convolution": "forward"} for one in (last, owned) if family.turns]
        found = [owned, last, *forward, usual]
    found += [{**usual, "block": 4096, "warps": 8, "persistent": 16384}, {**usual, "block": 1024}]
    if product:
        found += [{**owned, "product": tile} for tile in ("128x64x32", "64x64x32", "128x256x32")]
    return tuple(dict(pairs) for pairs in dict.fromkeys(tuple(config.items()) for config in found))


def region_author(problem: Problem, forms: Inputs, device: str, seed: int = 0) -> Template:
    """The author as a search takes it. Raises GeneratorError where the operation has no graph."""
    family = RegionFamily(problem, forms, device)
    return Template(family, seed, Warm(beginnings(family)), spread=4)


def contestants(author: Template, case: Case) -> Iterator[Composition]:
    """What an author begins with, each text once, without what only calls torch; each is written when its
    turn comes. Raises GeneratorError."""
    family = author.family
    assert isinstance(family, RegionFamily)
    given = set[str]()
    for config in author.warm.configs:
        made = family.composed(case, config)
        if made.candidate.kind != "library" and made.candidate.sha256 not in given:
            given.add(made.candidate.sha256)
            yield made


def attempted(author: Template, case: Case) -> Composition:
    """The first candidate of an author, without a judge. Raises GeneratorError."""
    family = author.family
    assert isinstance(family, RegionFamily)
    return family.composed(case, author.warm.configs[0])


# Composition ------------------------------------------------------------------------------------------------------
#
# A graph as one candidate: which tensors lie in memory, which kernel makes each, and which are torch's to make.
# Everything between two tensors in memory is one kernel. In memory are the graph's inputs and outputs, what torch's
# calls take and give, and what a region needs that cannot hold two splits of one tensor (`kernels.regions.kernel`).

_SHAPES = frozenset({"view", "_unsafe_view", "unsqueeze", "squeeze"})
"""Views of another shape and the same order of elements."""
_ALIKE = 8
"""Parts of one tensor, of one shape, that are read where they lie."""
_LAUNCH_BYTES = 4 << 20
"""What memory moves while one more kernel is launched."""
_SMALL = 4096
"""Elements of a tensor that the graph holds as a constant, at most."""


@dataclass(frozen=True)
class GraphPlan:
    """schedule: of regions; product: of matrix products and convolutions, None where torch makes them all.
    channels_last: torch's convolutions have their channels last in memory; forward: transposed ones of stride 1 are
    convolutions with turned weights."""

    schedule: Schedule
    product: ProductSchedule | None = None
    convolution: ProductSchedule | None = None
    channels_last: bool = False
    forward: bool = False


@dataclass(frozen=True)
class Composition:
    """The candidate, how many kernels of its own it launches, and what torch makes: operator and why. config: what
    it was composed by."""

    candidate: Candidate
    kernels: int
    calls: Mapping[str, str]
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Composer:
    """One graph under one plan."""

    module: torch.fx.GraphModule
    plan: GraphPlan
    in_memory: dict[Node, None] = field(default_factory=dict)
    calls: dict[Node, str] = field(default_factory=dict)  # made by torch, and why
    views: set[Node] = field(default_factory=set)
    kernels: dict[Node, Written] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lay_out()
        self.nodes = list(self.module.graph.nodes)
        self.order = {node: i for i, node in enumerate(self.nodes)}
        self.outputs = [x for x in _flat(self.nodes[-1].args[0]) if isinstance(x, Node)]
        self.alive = _alive(self.outputs)
        for node in self.nodes:
            if node.op in ("placeholder", "get_attr") or (LAID in node.meta and node in self.alive):
                self.in_memory[node] = None
            elif node.op == "call_function" and node in self.alive and self._is_torchs(node):
                self._call(node, "no kernel is written for it")
        self.in_memory |= dict.fromkeys([*self._parts(), *self.outputs])
        self._settle()

    def _parts(self) -> list[Node]:
        """The parts of what lies in memory and is read part by part, as a recurrent network's steps do: each lies
        where it is, so that one kernel reads any of them."""
        parts: dict[Any, list[Node]] = {}
        for node in self.nodes:
            if name_of(node) in ("select", "slice") and node in self.alive and node.args[0] in self.in_memory:
                parts.setdefault((node.args[0], shape_of(node)), []).append(node)
        return [node for alike in parts.values() if len(alike) >= _ALIKE for node in alike]

    def _lay_out(self) -> None:
        """The graph in the order in memory that the plan's products and torch's calls take."""
        self.module = copied(self.module)
        if self.plan.product is not None:
            self.module = depth_last(deep_in_parts(self.module), self._product_plan)
        if self.plan.forward:
            self.module = forwarded(self.module)
        if self.plan.channels_last and self._calls_keep_to_rows():
            self.module = channels_last(self.module, self._is_torchs)

    def _calls_keep_to_rows(self) -> bool:
        """Whether torch makes convolutions and products alone: other calls may pass on the layout that they are
        given, and no kernel here would know."""
        torchs = [n for n in self.module.graph.nodes if n.op == "call_function" and self._is_torchs(n)]
        return all(name_of(node) in ("convolution", *PRODUCTS) for node in torchs)

    def _is_torchs(self, node: Node) -> bool:
        return not kind_of(node) and not self._product_plan(node)

    def _product_plan(self, node: Node) -> ProductSchedule | None:
        convolution = name_of(node) == "convolution"
        schedule = self.plan.convolution if convolution else self.plan.product
        return schedule if schedule is not None and writes_product(node) and schedule.fits(node) else None

    def _call(self, node: Node, why: str) -> None:
        self.calls[node] = why
        self.in_memory[node] = None
        for source in _sources(node):
            self.in_memory[source] = None

    def _settle(self) -> None:
        """Until every tensor in memory is made of others."""
        while True:
            before = len(self.in_memory), len(self.calls)
            for node in sorted(self.in_memory, key=self.order.__getitem__):
                self._make(node)
            self.in_memory |= dict.fromkeys([*self._shared(), *self._reread()])
            if (len(self.in_memory), len(self.calls)) == before:
                return
            self.kernels.clear()

    def _make(self, node: Node) -> None:
        if node.op != "call_function" or self._is_made(node):
            return
        if kind_of(node) == "view" and self._is_free(node) and (node not in self.outputs or self._is_ours(node)):
            self.views |= {node, *self._chain(node)}
            self._note_strides(node)
            return
        name = f"kernel{self.order[node]}"
        while not self._is_made(node):
            resident = set(self.in_memory) - {node}
            try:
                # a product with what follows it, where one leads here and to nowhere else
                made = product_kernel(node, name, resident, self._product_plan, self.alive)
                if made is None:
                    region = region_of(node, resident)
                    made = RegionWriter(region, name, resident, self.plan.schedule).written()
                self.kernels[node] = made
            except Cut as cut:
                self._cut(node, cut)

    def _is_made(self, node: Node) -> bool:
        """Whether it is settled what makes it: a kernel, torch, or the call of which it is one result."""
        of_call = _is_item(node) and node.args[0] in self.calls
        return node in self.kernels or node in self.calls or of_call

    def _cut(self, node: Node, cut: Cut) -> None:
        """Put into memory what a node's kernel asked for; where it lies there, or cannot, torch makes it."""
        parts = [u for u in cut.node.users if u in self.alive] if _is_many(cut.node) else [cut.node]
        if not _is_many(cut.node) and self._is_torchs(cut.node) and not _is_item(cut.node):
            self._call(cut.node, cut.why)
        elif node in parts or all(part in self.in_memory for part in parts):
            if not hasattr(cut.node.target, "_schema"):
                raise GraphError(f"{cut}: a region that cannot be cut") from cut
            self._call(cut.node, cut.why)
        self.in_memory |= dict.fromkeys(parts)

    def _is_free(self, node: Node) -> bool:
        """Whether a view is torch's to make without copying: of something in memory, whatever its strides."""
        source = node.args[0]
        assert isinstance(source, Node)
        if source not in self.in_memory:
            return kind_of(source) == "view" and self._is_free(source)
        return STRIDES not in source.meta or name_of(node) in ("permute", "transpose")

    def _is_ours(self, view: Node) -> bool:
        """Whether an output is another shape of what is made here, in the same order: no copy of it is due."""
        source: Any = view.args[0]
        if name_of(view) not in _SHAPES or source in self.outputs:
            return False
        if kind_of(source) == "view" and source not in self.kernels:
            return self._is_ours(source)
        return (source in self.calls or source in self.kernels) and STRIDES not in source.meta

    def _note_strides(self, view: Node) -> None:
        """How a view lies in memory, for kernels that read it: as torch makes it, without a copy."""
        chain = [view, *self._chain(view)]
        root: Any = chain[-1].args[0]
        laid = torch.empty_strided(
            shape_of(root), root.meta.get(STRIDES) or contiguous(shape_of(root)), device="meta"
        )
        for node in reversed(chain):
            apart = name_of(node) in ("view", "_unsafe_view")
            rest: Any = node.args[1:]
            laid = laid.reshape(shape_of(node)) if apart else node.target(laid, *rest, **node.kwargs)  # type: ignore
        if laid.stride() != contiguous(shape_of(view)):
            view.meta[STRIDES] = tuple(laid.stride())

    def _chain(self, view: Node) -> Iterator[Node]:
        """The views between a view and what lies in memory."""
        source = view.args[0]
        assert isinstance(source, Node)
        if source not in self.in_memory:
            yield source
            yield from self._chain(source)

    def _shared(self) -> list[Node]:
        """Reductions that several kernels would make anew."""
        count: dict[Node, int] = {}
        for written in self.kernels.values():
            for node in written.reductions:
                count[node] = count.get(node, 0) + 1
        return [node for node, times in count.items() if times > 1 and isinstance(node.meta["val"], torch.Tensor)
                and node not in self.in_memory]  # fmt: skip

    def _reread(self) -> list[Node]:
        """Pointwise values that several kernels would make of more memory than it takes to make them once and read
        them: a sum that a network's blocks add to would be read from all its parts, ever more of them."""
        count = Counter(node for target in self.kernels for node in self._below(target, ())[0])
        chosen: dict[Node, None] = {}
        for node in self.nodes:
            many = count[node] > 1 and sum(user in self.alive for user in node.users) > 1
            if not many or kind_of(node) != "point":
                continue
            size = math.prod(shape_of(node))
            leaves = self._below(node, chosen)[1]
            read = sum(min(size, math.prod(shape_of(x))) * dtype_of(x).itemsize for x in leaves)
            if (count[node] - 1) * read - (count[node] + 1) * size * dtype_of(node).itemsize > _LAUNCH_BYTES:
                chosen[node] = None
        return list(chosen)

    def _below(self, target: Node, chosen: Collection[Node]) -> tuple[set[Node], set[Node]]:
        """What a target is made of within its kernel, and what that reads in memory."""
        within, read, left = set[Node](), set[Node](), list(target.all_input_nodes)
        while left:
            node = left.pop()
            if node in self.in_memory or node in chosen:
                read.add(node)
            elif node not in within:
                within.add(node)
                left += node.all_input_nodes
        return within, {node for node in read if is_tensor(node)}

    # Text ---------------------------------------------------------------------------------------------------------

    def composed(self, problem: str, case: Case) -> Composition:
        """The candidate for one case: its sizes stand in the kernels."""
        wanted = [n for n in self.nodes if (n in self.in_memory and n in self.alive) or n in self.views]
        kernels = self._renamed([n for n in wanted if n in self.kernels])
        called = {str(n.target).removeprefix("aten."): why for n, why in self.calls.items() if n in self.alive}
        kind: Kind = "own_kernel" if not called else "composition" if kernels else "library"
        text = _file(problem, case, kind, kernels, self._lines(wanted))
        return Composition(parse_candidate(text, "regions").candidate, len(kernels), called)

    def _lines(self, wanted: Sequence[Node]) -> list[str]:
        """What makes these tensors one after the other, each forgotten after its last use, and returns the
        outputs."""
        names = {node: f"a[{i}]" for i, node in enumerate(n for n in self.nodes if n.op == "placeholder")}
        lines: list[str] = []
        last, by_row = self._last_uses(wanted), self._read_by_row()
        for node in wanted:
            if node.op == "placeholder":
                continue
            names[node] = f"t{self.order[node]}"
            lines += self._statement(node, names, ".contiguous()" if node in by_row else "")
            lines += [f"{names[n]} = None" for n in last.get(node, ()) if names.get(n, "a").startswith("t")]
        made = [names[x] for x in self.outputs]
        many = isinstance(self.nodes[-1].args[0], list | tuple) and len(made) > 1
        return [*lines, f"return ({', '.join(made)},)" if many else f"return {made[0]}"]

    def _read_by_row(self) -> set[Node]:
        """What torch's calls make and kernels read, through views or not. A call lays out its result as it likes,
        and on one device otherwise than on another: a copy where it is not what the kernels expect."""
        roots = set()
        for written in self.kernels.values():
            for argument in written.arguments[:-1]:
                read = argument
                while read in self.views:
                    read = read.all_input_nodes[0]
                roots.add(read)
        return {node for node in roots if node in self.calls or _is_item(node)}

    def _renamed(self, nodes: Sequence[Node]) -> list[str]:
        """The texts of all kernels. Those of one text are one kernel, compiled once: a network repeats itself."""
        texts: dict[str, str] = {}
        for node in nodes:
            made = self.kernels[node]
            text = re.sub(rf"\b{made.name}\b", "kernel_of_no_name", made.source)
            name = texts.setdefault(text, f"kernel{len(texts)}")
            self.kernels[node] = replace(made, name=name)
        return [text.replace("kernel_of_no_name", name) for text, name in texts.items()]

    def _last_uses(self, wanted: Sequence[Node]) -> dict[Node, list[Node]]:
        last: dict[Node, Node] = {}
        for node in wanted:
            uses = self.kernels[node].arguments if node in self.kernels else _sources(node)
            for source in uses:
                last[source] = node
        made: dict[Node, list[Node]] = {}
        roots = {root for view in self.views for root in _sources(view)}
        for source, node in last.items():
            if source is not node and source not in self.outputs and source not in roots:
                made.setdefault(node, []).append(source)
        return made

    def _statement(self, node: Node, names: Mapping[Node, str], rows: str) -> list[str]:
        """rows: what lays the result of a call out row by row."""
        name = names[node]
        if node.op == "get_attr":
            return [f"{name} = {self._constant(node)}"]
        if node in self.kernels:
            made = self.kernels[node]
            form = f"{shape_of(node)}, dtype={dtype_of(node)}, device={_device(self.nodes)}"
            given = ", ".join([*(names[x] for x in made.arguments[:-1]), name])
            stages = f", num_stages={made.stages}" if made.stages else ""
            return [
                f"{name} = torch.empty({form})",
                f"{made.name}[{made.grid}]({given}, {made.constants}, num_warps={made.warps}{stages})",
            ]
        if _is_item(node):
            return [f"{name} = {names[node.args[0]]}[{node.args[1]}]{rows}"]  # type: ignore[index]
        if kind_of(node) == "view" and (view := _view(node)):
            return [f"{name} = {_text(node.args[0], names)}.{view}"]
        values = [_text(x, names) for x in node.args] + [f"{k}={_text(v, names)}" for k, v in node.kwargs.items()]
        form = "channels_last" if len(shape_of(node) if is_tensor(node) else ()) == 4 else "channels_last_3d"
        turned = STRIDES in node.meta and name_of(node) == "convolution"
        laid = f".contiguous(memory_format=torch.{form})" if turned else rows
        return [f"{name} = torch.ops.{node.target}({', '.join(values)}){laid}"]

    def _constant(self, node: Node) -> str:
        value: Any = attrgetter(str(node.target))(self.module)
        if not isinstance(value, torch.Tensor) or value.numel() > _SMALL:
            raise GraphError(f"{node.target}: the model keeps a tensor that is no parameter and no buffer")
        made = f"torch.tensor({value.tolist()!r}, dtype={value.dtype}, device={_device(self.nodes)})"
        return made.replace("inf", "float('inf')").replace("nan", "float('nan')")


def _file(problem: str, case: Case, kind: Kind, kernels: Sequence[str], lines: Sequence[str]) -> str:
    """A candidate's file, for one case alone."""
    bounds = ", ".join(f"{name} {n}..{n}" for name, n in case.params)
    head = {"problem": problem, "language": "triton" if kernels else "python", "kind": kind}
    bits = "bitwise" if kind == "own_kernel" else "none"  # torch promises no bits of its calls
    head |= {"determinism": bits, "dtypes": case.dtype, "layouts": "contiguous offset", "bounds": bounds}
    parts = ["# nightshift candidate\n" + "".join(f"# {key}: {value}\n" for key, value in head.items() if value)]
    parts.append("import torch\nimport triton\nimport triton.language as tl\n")
    laid = "    a = [x.contiguous() if isinstance(x, torch.Tensor) else x for x in a]\n"
    body = "".join(f"    {line}\n" for line in lines)
    return "\n\n".join([*parts, *kernels, f"def entry(*a):\n{laid}{body}"])


def _device(nodes: Sequence[Node]) -> str:
    places = [n for n in nodes if n.op == "placeholder"]
    return f"a[{next((i for i, n in enumerate(places) if is_tensor(n)), 0)}].device"


def _view(node: Node) -> str:
    """A view as a tensor's own method: an operator that is called by its name counts as a library's. Empty where
    there is none."""
    name, args = name_of(node), list[Any](node.args[1:])
    if name in ("view", "_unsafe_view"):
        return f"reshape({shape_of(node)})"
    if name == "slice":
        defaults: list[Any] = [0, 0, None, 1]
        dim, start, _, step = [*args, *defaults[len(args) :]]
        size = shape_of(node.all_input_nodes[0])[dim]
        begun = max(0, start + size if start < 0 else min(start, size)) if start else 0
        return f"narrow({dim}, {begun}, {shape_of(node)[dim]})" if step == 1 else ""
    methods = ("select", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand")
    return f"{name}({', '.join(map(str, args))})" if name in methods and not node.kwargs else ""


def _is_item(node: Node) -> bool:
    return node.op == "call_function" and "getitem" in str(node.target)


def _is_many(node: Node) -> bool:
    """Whether its value is several tensors."""
    return isinstance(node.meta.get("val"), tuple | list)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _sources(node: Node) -> list[Node]:
    return list(node.all_input_nodes)


def _alive(outputs: Sequence[Node]) -> set[Node]:
    seen, left = set(), list(outputs)
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left += node.all_input_nodes
    return seen


def _text(value: Any, names: Mapping[Node, str]) -> str:
    if isinstance(value, Node):
        return names[value]
    if isinstance(value, list | tuple):
        inner = ", ".join(_text(x, names) for x in value)
        return f"[{inner}]"
    if isinstance(value, torch.device):
        return "a[0].device"
    return repr(value) if not isinstance(value, float) or math.isfinite(value) else f"float('{value}')"
