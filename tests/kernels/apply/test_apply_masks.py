"""Attention in compiled regions whose mask is a constant: told to be causal where it is, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, default_partition, nop
from torch.nn.functional import scaled_dot_product_attention as attention

from nightshift.kernels.apply.job.masks import CausalMasks
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
    before = STATE.causal
    for expected, made in zip(
        gradients(job, sequence), gradients(compiled(job), sequence), strict=True
    ):  # packed sequences too: those of the second row are two
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)
    assert STATE.causal - before == told


def test_a_mask_of_an_inference_graph_is_found_as_well() -> None:
    def job(q: torch.Tensor) -> torch.Tensor:
        return attention(q, q, q, attn_mask=added(q))

    before, x = STATE.causal, torch.randn(B, H, S, D)
    graph: list[Any] = []

    def seen(made: Any, inputs: Any) -> Any:
        CausalMasks()(made.graph)
        graph.extend(node.target for node in made.graph.nodes)
        made.recompile()
        return made

    with torch.no_grad():
        found = aot_function(job, fw_compiler=seen)(x)
    torch.testing.assert_close(found, job(x))
    assert STATE.causal - before == 1
    assert torch.ops.aten.where.self not in graph  # what made the mask is gone
