"""Graphs of rotary embeddings of pairs and of halves, and the same graphs with something changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from nightshift.kernels.apply.job.problems import SPECS
from nightshift.kernels.apply.job.rotary import AngleTable, Rotation
from tests.kernels.apply.pair_spellings import HALVED, Write, of_given_complex, written

B, H, S, D = 2, 3, 5, 8


def inputs(how: Write, by_position: bool) -> list[torch.Tensor]:
    """x, an upstream gradient and two tables."""
    generator = torch.Generator().manual_seed(3)
    shape = (B, S, H, D) if by_position else (B, H, S, D)
    x, g = (torch.randn(shape, generator=generator) for _ in range(2))
    width = D if how in HALVED else D // 2
    cos, sin = (torch.randn((S, 1, width) if by_position else (S, width), generator=generator) for _ in range(2))
    return [x, g, torch.complex(cos, sin) if how is of_given_complex else cos, sin]


def graph_of(how: Write, back: bool, by_position: bool) -> torch.fx.GraphModule:
    """What a compiler's pass is given: (x, g, cos, sin) → the rotated x, or the gradient of x."""

    def forward(x: torch.Tensor, g: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return how(x, cos, sin)

    def backward(x: torch.Tensor, g: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_(True)
        return torch.autograd.grad(how(x, cos, sin), x, g)[0]

    call = backward if back else torch.func.functionalize(forward) if how is written else forward
    made = make_fx(call, decomposition_table=select_decomp_table(), tracing_mode="fake")(*inputs(how, by_position))
    made.graph.eliminate_dead_code()
    return made


class Ran(torch.fx.Interpreter):
    """Every value of a run."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[Any, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        self.values[n] = super().run_node(n)
        return self.values[n]


def holds(found: Rotation, values: dict[Any, Any]) -> bool:
    """Whether a rotation that was read off a graph is what the graph computes."""

    def table(one: AngleTable) -> torch.Tensor:
        whole = values[one.node]
        part = {"": lambda: whole, "re": lambda: whole.real, "im": lambda: whole.imag}[one.of]()
        return part.reshape(S, -1)  # type: ignore[no-any-return]

    x, out = (values[n].permute(0, 2, 1, 3) if found.moved else values[n] for n in (found.x, found.out))
    cos, sin = table(found.cos), table(found.sin)
    if "half" in found.problem:
        wanted, _ = SPECS[found.problem].reference(x, x, cos, sin)  # q's rotation; k's is the same one
    else:
        wanted = SPECS[found.problem].reference(x, cos, sin)
    return bool(torch.allclose(out, wanted, rtol=1e-4, atol=1e-5))


def changes(graph: torch.fx.Graph) -> Iterator[tuple[str, Callable[[torch.fx.Graph], None]]]:
    """Every change of one sign, one index or one operand, by name; each is made in a copy of the graph."""
    nodes = list(graph.nodes)
    for at, node in enumerate(nodes):
        if node.op != "call_function":
            continue
        name = str(node.target).split(".")[1] if "aten." in str(node.target) else node.target.__name__
        if name in ("add", "sub"):
            yield f"{node}: the other sign", _put(at, target={"add": torch.ops.aten.sub.Tensor,
                                                              "sub": torch.ops.aten.add.Tensor}[name])  # fmt: skip
        if name in ("neg", "_conj"):
            yield f"{node}: no sign", _put(at, target=torch.ops.aten.clone.default)
        if name in ("select", "select_scatter"):
            place = 2 if name == "select" else 3
            yield f"{node}: the other element", _put(at, args={place: 1 - node.args[place]})
        if name in ("slice", "slice_scatter") and node.args[-1] == 2:
            place = 2 if name == "slice" else 3
            yield f"{node}: the other elements", _put(at, args={place: 1 - node.args[place]})
        if name in ("slice", "slice_scatter") and node.args[-1] != 2:
            place = 2 if name == "slice" else 3
            begin, end = (D // 2, 2**63 - 1) if not node.args[place] else (0, D // 2)
            yield f"{node}: the other half", _put(at, args={place: begin, place + 1: end})
        if name == "getitem":
            yield f"{node}: the other element", _put(at, args={1: 1 - node.args[1]})
        if name in ("cat", "stack"):
            yield f"{node}: the other order", _turn(at)
        for place, old in enumerate(node.args):
            for other, new in enumerate(nodes[:at]):
                if new is not old and _alike(old, new):
                    yield f"{node}: {new} instead of {old}", _put(at, nodes={place: other})
        for new in range(at):
            if (
                name in ("cat", "stack")
                and _alike(node.args[0][0], nodes[new])
                and nodes[new] is not node.args[0][0]
            ):
                yield f"{node}: {nodes[new]} first", _first(at, new)


def _alike(old: Any, new: Any) -> bool:
    values = [n.meta.get("val") if isinstance(n, torch.fx.Node) else None for n in (old, new)]
    if not all(isinstance(v, torch.Tensor) for v in values):
        return False
    return values[0].shape == values[1].shape and values[0].dtype == values[1].dtype  # type: ignore[union-attr]


def _put(at: int, target: Any = None, args: Any = None, nodes: Any = None) -> Callable[[torch.fx.Graph], None]:
    def change(graph: torch.fx.Graph) -> None:
        listed = list(graph.nodes)
        node = listed[at]
        given = list(node.args)
        for place, value in (args or {}).items():
            given[place] = value
        for place, other in (nodes or {}).items():
            given[place] = listed[other]
        node.args, node.target = tuple(given), target or node.target

    return change


def _turn(at: int) -> Callable[[torch.fx.Graph], None]:
    def change(graph: torch.fx.Graph) -> None:
        node = list(graph.nodes)[at]
        node.args = (list(node.args[0])[::-1], *node.args[1:])

    return change


def _first(at: int, new: int) -> Callable[[torch.fx.Graph], None]:
    def change(graph: torch.fx.Graph) -> None:
        listed = list(graph.nodes)
        node = listed[at]
        node.args = ([listed[new], *node.args[0][1:]], *node.args[1:])

    return change


def changed(module: torch.fx.GraphModule, *by: Callable[[torch.fx.Graph], None]) -> torch.fx.GraphModule:
    """A copy with changes in it; every change keeps the order of the nodes."""
    made = copy.deepcopy(module)
    for change in by:
        change(made.graph)
    return torch.fx.GraphModule(made, made.graph)
