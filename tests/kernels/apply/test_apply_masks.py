"""Attention in compiled regions whose mask is a constant: told to be causal where it is, and nowhere else."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, default_partition, nop
from torch.nn.functional import scaled_dot_product_attention as attention

from nightshift.kernels.apply.job.passes.masks import CausalMasks
from nightshift.kernels.apply.job.state import STATE

B, H, S, D = 2, 2, 8, 4


def causal(sequence: torch.Tensor) -> torch.Tensor:
    at = torch.arange(S)
    return (at[None, :] <= at[:, None]).expand(B, 1, S, S)


def added(sequence: torch.Tensor) -> torch.Tensor:
    return torch.where(causal(sequence), 0.0, -math.inf)


def least(sequence: torch.Tensor) -> torch.Tensor:
    """As older models write it: the dtype's least number, above the diagonal."""
    return torch.full((S, S), torch.finfo(torch.float32).min).triu(1)[None, None]


def torchs(sequence: torch.Tensor) -> torch.Tensor:
    """What torch makes of a boolean mask for cuDNN, rounded to the queries' dtype."""
    return torch.where(causal(sequence).logical_not(), -65504.0, 0.0)


def unpacked(sequence: torch.Tensor) -> torch.Tensor:
    """As transformers writes it where it cannot ask whether sequences are packed: their numbers from positions."""
    at = torch.arange(S).expand(B, -1)
    number = (torch.diff(at, prepend=at[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    return causal(sequence) & (number[:, None, :, None] == number[:, None, None, :])


def packed(sequence: torch.Tensor) -> torch.Tensor:
    """The same of positions that the job hands over."""
    return causal(sequence) & (sequence[:, None, :, None] == sequence[:, None, None, :])


def window(sequence: torch.Tensor) -> torch.Tensor:
    at = torch.arange(S)
    return causal(sequence) & (at[:, None] - at[None, :] < S - 1)


def ahead(sequence: torch.Tensor) -> torch.Tensor:
    at = torch.arange(S)
    return (at[None, :] <= at[:, None] + 1).expand(B, 1, S, S)


def one_of_two(sequence: torch.Tensor) -> torch.Tensor:
    return torch.stack([causal(sequence)[0], ahead(sequence)[0]])


def drawn(sequence: torch.Tensor) -> torch.Tensor:
    return causal(sequence) & (torch.rand(S, S) >= 0.0)


def slight(sequence: torch.Tensor) -> torch.Tensor:
    """A mask that only makes what is ahead unlikely."""
    return torch.where(causal(sequence), 0.0, -30.0)


MASKS: list[tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = [
    (causal, True), (added, True), (least, True), (torchs, True), (unpacked, True),
    (packed, False), (window, False), (ahead, False), (one_of_two, False), (drawn, False), (slight, False),
]  # fmt: skip


def compiled(function: Callable[..., torch.Tensor]) -> Any:
    """With the pass over its joint graph, as a compiler runs it; by torch's operators."""

    def partition(joint: Any, inputs: Any, **named: Any) -> Any:
        CausalMasks()(joint.graph)
        joint.recompile()
        return default_partition(joint, inputs, **named)

    return aot_function(function, fw_compiler=nop, partition_fn=partition)


def gradients(function: Callable[..., torch.Tensor], sequence: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    given = [torch.randn(B, H, S, D, requires_grad=True) for _ in range(3)]
    torch.manual_seed(2)
    out = function(*given, sequence)
    return [out, *torch.autograd.grad(out.square().sum(), given)]


@pytest.mark.parametrize(("mask", "told"), MASKS, ids=[mask.__name__ for mask, _ in MASKS])
def test_a_constant_causal_mask_is_not_read_and_any_other_is(
    mask: Callable[[torch.Tensor], torch.Tensor], told: bool
) -> None:
    def job(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, attn_mask=mask(sequence))

    sequence = torch.tensor([[0] * S, [0] * (S // 2) + [1] * (S // 2)])
    before = STATE.rewritten["causal masks"]
    for expected, made in zip(
        gradients(job, sequence), gradients(compiled(job), sequence), strict=True
    ):  # packed sequences too: those of the second row are two
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)
    assert STATE.rewritten["causal masks"] - before == told


def test_a_mask_of_an_inference_graph_is_found_as_well() -> None:
    def job(q: torch.Tensor) -> torch.Tensor:
        return attention(q, q, q, attn_mask=added(q))

    before, x = STATE.rewritten["causal masks"], torch.randn(B, H, S, D)
    graph: list[Any] = []

    def seen(made: Any, inputs: Any) -> Any:
        CausalMasks()(made.graph)
        graph.extend(node.target for node in made.graph.nodes)
        made.recompile()
        return made

    with torch.no_grad():
        found = aot_function(job, fw_compiler=seen)(x)
    torch.testing.assert_close(found, job(x))
    assert STATE.rewritten["causal masks"] - before == 1
    assert torch.ops.aten.where.self not in graph  # what made the mask is gone


def graph_of(forward: Any, others: tuple[Any, ...], backward: Any, after: tuple[Any, ...]) -> torch.fx.Graph:
    """A joint graph of one attention operator with the mask that torch makes of a boolean one, as it is traced.
    others: what the operator takes behind the mask. after: what its gradient takes behind q, k and v; whole numbers
    are the operator's outputs."""
    graph, aten = torch.fx.Graph(), torch.ops.aten
    graph.owning_module = torch.nn.Module()

    def put(target: Any, *given: Any, like: torch.Tensor | None = None, **named: Any) -> Any:
        node = graph.call_function(target, given, named)
        node.meta["val"] = like
        return node

    given = [graph.placeholder(name) for name in ("g", "q", "k", "v")]
    for node in given:
        node.meta["val"] = torch.empty(B, H, S, D, device="meta", dtype=torch.bfloat16)
    rows = put(aten.arange.default, S)
    seen = put(aten.le.Tensor, put(aten.unsqueeze.default, rows, 0), put(aten.unsqueeze.default, rows, 1))
    kept = put(aten.scalar_tensor.default, 0.0, dtype=torch.bfloat16)
    hidden = put(aten.scalar_tensor.default, -65504.0, dtype=torch.bfloat16)
    mask = put(aten.where.self, put(aten.logical_not.default, seen), hidden, kept)
    mask = put(aten.expand.default, mask, [B, 1, S, S], like=torch.empty(B, 1, S, S, device="meta"))
    made = put(forward, *given[1:], mask, *others)
    parts: dict[int, Any] = {n: put(operator.getitem, made, n) for n in (0, *(n for n in after if type(n) is int))}
    back = put(backward, *given, *(mask if n == "mask" else parts[n] if type(n) is int else n for n in after))
    graph.output((parts[0], put(operator.getitem, back, 0)))
    return graph


CUDNN = (
    torch.ops.aten._scaled_dot_product_cudnn_attention.default, (True, 0.0, False, False),
    torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default,
    (0, 1, 6, 7, "mask", None, None, "long", "long", 0.0, False),
)  # fmt: skip
EFFICIENT = (
    torch.ops.aten._scaled_dot_product_efficient_attention.default, (True,),
    torch.ops.aten._scaled_dot_product_efficient_attention_backward.default,
    ("mask", 0, 1, 2, 3, 0.0, [True, True, True, False]),
)  # fmt: skip


@pytest.mark.parametrize("operators", [CUDNN, EFFICIENT], ids=["cudnn", "efficient"])
def test_the_operators_of_a_gpu_lose_the_mask_with_their_gradients(operators: Any) -> None:
    """Which no CPU can run: by their schemas."""
    graph = graph_of(*operators)
    CausalMasks()(graph)
    found = {node.target: node for node in graph.nodes if "attention" in str(node.target)}
    assert found.keys() == {operators[0], operators[2]}
    for node in found.values():
        names = [one.name for one in node.target._schema.arguments]
        told = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        assert (told["attn_bias"], told["is_causal"]) == (None, True)
    assert not [node for node in graph.nodes if "where" in str(node.target)]


def test_an_operator_with_a_reader_that_is_no_gradient_of_it_keeps_its_mask() -> None:
    graph = graph_of(*CUDNN)
    made = next(node for node in graph.nodes if node.target == CUDNN[0])
    with graph.inserting_before(next(node for node in graph.nodes if node.op == "output")):
        logs = graph.call_function(operator.getitem, (made, 1))
        graph.call_function(torch.ops.aten.add_.Scalar, (logs, 1.0))
    before = STATE.rewritten["causal masks"]
    CausalMasks()(graph)
    assert STATE.rewritten["causal masks"] == before
