"""Attention in compiled regions whose keys and values were repeated for the heads of a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, min_cut_rematerialization_partition, nop
from torch.nn.functional import scaled_dot_product_attention as attention

from nightshift.kernels.apply.job.passes import groups
from nightshift.kernels.apply.job.passes.groups import GroupedHeads

B, H, K, S, D = 2, 6, 2, 8, 4


def repeated(x: torch.Tensor) -> torch.Tensor:
    """As `transformers` and torchtune write it."""
    return x[:, :, None].expand(B, K, H // K, S, D).reshape(B, H, S, D)


def in_turns(x: torch.Tensor) -> torch.Tensor:
    """Another order: head h reads key h % k."""
    return x[:, None].expand(B, H // K, K, S, D).reshape(B, H, S, D)


def both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention(q, repeated(k), repeated(v), is_causal=True)


def by_position(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Keys and values that lie position by position, as a projection leaves them."""
    k, v = (x.reshape(B, S, K, D).transpose(1, 2) for x in (k, v))
    return attention(q, repeated(k), repeated(v), is_causal=True)


def values_in_turns(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention(q, repeated(k), in_turns(v), is_causal=True)


def read_again(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The repeated keys are the job's as well: their gradient is more than attention's."""
    wide = repeated(k)
    return attention(q, wide, repeated(v), is_causal=True) + wide.square()


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention(q, repeated(k), repeated(v), attn_mask=torch.ones(S, S).tril().log())


def compiled(function: Callable[..., Any], seen: list[torch.fx.Graph]) -> Any:
    def partition(joint: Any, inputs: Any, **named: Any) -> Any:
        GroupedHeads()(joint.graph)
        joint.recompile()
        seen.append(joint.graph)
        return min_cut_rematerialization_partition(joint, inputs, **named)

    return aot_function(function, fw_compiler=nop, partition_fn=partition)


def gradients(function: Callable[..., Any]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    given = [torch.randn(B, heads, S, D, requires_grad=True) for heads in (H, K, K)]
    out = function(*given)
    return [out, *torch.autograd.grad(out.square().sum(), given)]


@pytest.mark.parametrize(
    ("job", "taken"),
    [(both, True), (by_position, True), (values_in_turns, False), (read_again, False), (masked, False)],
)
def test_keys_and_values_of_a_group_are_read_as_they_are(job: Callable[..., Any], taken: bool) -> None:
    seen: list[torch.fx.Graph] = []
    for made, expected in zip(gradients(compiled(job, seen)), gradients(job), strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)
    wide = [n for n in seen[0].nodes if isinstance(n.meta.get("val"), torch.Tensor) and n.meta["val"].dim() == 5]
    assert any(n.meta["val"].shape[2] > 1 for n in wide) is not taken


@pytest.mark.parametrize("what", ["raises", "differs"])
def test_an_operator_that_does_not_take_groups_keeps_what_it_has(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried on the device before a graph is changed."""
    right = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

    def wrong(q: torch.Tensor, k: torch.Tensor, *others: Any, **named: Any) -> Any:
        if what == "raises" and k.shape[1] != q.shape[1]:
            raise RuntimeError("num_heads of key must equal num_heads of query")
        return right(q, k.roll(1, 1), *others, **named)

    sizes, cpu = ((H, D), (K, D), (K, D)), torch.device("cpu")
    named = ((("scale"), None),)
    assert groups._tried(right, (0.0, True), named, cpu, torch.float32, sizes)
    assert not groups._tried(wrong, (0.0, True), named, cpu, torch.float32, sizes)
