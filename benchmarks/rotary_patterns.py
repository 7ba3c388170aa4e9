"""How much of the rotary embeddings that we read off graphs torch's pattern matchers would find.

Each spelling of `tests/kernels/apply/pair_spellings.py`, forward and backward, heads or positions first, is one.
A pattern is such a graph at one size; it is asked about the same graphs at another size, and about every graph with
one sign, index or operand changed that computes something else. `docs/decisions/035` rests on the figures.

    python -m benchmarks.rotary_patterns
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor import pattern_matcher
from torch.fx.passes.utils.matcher_utils import SubgraphMatcher

from nightshift.kernels.apply.job.rotary import rotation
from tests.kernels import pair_graphs
from tests.kernels.apply.pair_spellings import HALVED, SPELLINGS, Write

Way = tuple[Write, bool, bool]
Match = Callable[[torch.fx.GraphModule], bool]
_FLAGS = (False, True)
WAYS: list[Way] = [(how, back, by) for how in (*SPELLINGS, *HALVED) for back in _FLAGS for by in _FLAGS]
OUT = Path(__file__).parent / "results" / "rotary_patterns.json"


def graph(way: Way, positions: int = 5, heads: int = 3) -> torch.fx.GraphModule:
    pair_graphs.S, pair_graphs.H = positions, heads
    made = pair_graphs.graph_of(*way)
    for node in list(made.graph.nodes):
        if node.op == "placeholder" and not node.users:
            made.graph.erase_node(node)  # an input that a pattern does not use would have to be there
    return made


def by_subgraph(way: Way, literals: bool) -> Match:
    matcher = SubgraphMatcher(
        graph(way).graph, match_output=False, ignore_literals=not literals, remove_overlapping_matches=False
    )
    return lambda module: bool(matcher.match(module.graph))


def by_inductor(way: Way, literals: bool) -> Match:
    pattern: Any = pattern_matcher.fx_to_pattern(graph(way), ignore_types=() if literals else (int,))
    whole = pattern.outputs[0] if isinstance(pattern, pattern_matcher.MultiOutputPattern) else pattern
    return lambda module: any(pattern_matcher.is_match(whole.match(node)) for node in calls(module))


def calls(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function"]


def read(way: Way, module: torch.fx.GraphModule) -> bool:
    return any(rotation(node, way[0] in HALVED) is not None for node in module.graph.nodes)


def changed(way: Way) -> list[torch.fx.GraphModule]:
    """Graphs with one change in which our reader, which tests hold against numbers, finds no rotation."""
    pair_graphs.S, pair_graphs.H = 5, 3
    module, given = pair_graphs.graph_of(*way), pair_graphs.inputs(way[0], way[2])
    before, found = module(*given), []
    for _, change in pair_graphs.changes(module.graph):
        other = pair_graphs.changed(module, change)
        try:
            same = torch.allclose(other(*given), before, rtol=1e-4, atol=1e-5)
        except RuntimeError:
            continue  # what cannot be computed compiles nowhere
        other.graph.eliminate_dead_code()
        if not same and not read(way, other):
            found.append(other)
    return found


def asked(match: Match, module: torch.fx.GraphModule) -> bool:
    try:
        return match(module)
    except (RuntimeError, AttributeError, IndexError, KeyError, AssertionError):
        return False  # a matcher that stops at a graph has not found it


def main() -> None:
    larger = {way: graph(way, 7, 2) for way in WAYS}
    odd = {way: changed(way) for way in WAYS}
    figures: dict[str, Any] = {
        "torch": str(torch.__version__), "graphs": len(WAYS), "read": sum(read(*item) for item in larger.items()),
        "changed": sum(map(len, odd.values())),
    }  # fmt: skip
    for name, maker in (("fx SubgraphMatcher", by_subgraph), ("inductor pattern_matcher", by_inductor)):
        for literals in (True, False):
            matches = {way: maker(way, literals) for way in WAYS}
            figures[f"{name}, literals {'held' if literals else 'ignored'}"] = {
                "own spelling": sum(asked(matches[way], larger[way]) for way in WAYS),
                "by another spelling": sum(
                    any(asked(matches[other], larger[way]) for other in WAYS if other[0] is not way[0])
                    for way in WAYS
                ),
                "matched though changed": sum(asked(matches[way], one) for way in WAYS for one in odd[way]),
            }
    OUT.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
