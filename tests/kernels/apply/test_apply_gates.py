"""Gates in compiled regions: what the backward pass keeps of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import aot_function, min_cut_rematerialization_partition, nop
from torch._inductor.decomposition import select_decomp_table

from nightshift.kernels.apply.job.passes.gates import GatesAgain
from nightshift.kernels.apply.job.state import STATE

ROWS, INNER, WIDE = 12, 3, 40
Activation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def geglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.gelu(gate, approximate="tanh") * up


def over_a_sum(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """No product of the halves alone: each row is divided by its sum, which would be summed again."""
    return torch.softmax(gate, -1) * up


def one_half(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate)


def dropped_out(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """What is drawn must not be drawn again."""
    return F.dropout(F.silu(gate) * up, 0.5)


def mlp(activation: Activation) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return F.linear(activation(F.linear(x, gate), F.linear(x, up)), down).float().square().sum()

    return run


def kept(activation: Activation, held: int) -> tuple[int, list[torch.Tensor]]:
    """How many tensors of the inner width the backward pass keeps, and the gradients."""
    found: list[int] = []

    def partition(joint: Any, inputs: Any, **named: Any) -> Any:
        GatesAgain(held=held)(joint.graph)
        joint.recompile()
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **named)
        outputs = next(node for node in forward.graph.nodes if node.op == "output").args[0]
        values = [one.meta["val"] for one in outputs if isinstance(one, torch.fx.Node)]
        found.append(sum(v.numel() == ROWS * WIDE for v in values if isinstance(v, torch.Tensor)))
        return forward, backward

    made = torch.Generator().manual_seed(2)
    sizes = ((2, ROWS // 2, INNER), (WIDE, INNER), (WIDE, INNER), (INNER, WIDE))
    given = [torch.randn(*size, generator=made).bfloat16().requires_grad_() for size in sizes]
    run = aot_function(
        mlp(activation), fw_compiler=nop, partition_fn=partition, decompositions=select_decomp_table()
    )
    torch.manual_seed(3)
    gradients = torch.autograd.grad(run(*given), given, allow_unused=True)
    return found[0], [one for one in gradients if one is not None]


@pytest.mark.parametrize(
    ("activation", "less"),
    [(swiglu, 1), (geglu, 1), (over_a_sum, 0), (one_half, 0), (dropped_out, 0)],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_the_product_of_a_gate_is_not_kept_and_its_gradients_are_the_same_bits(
    activation: Activation, less: int
) -> None:
    STATE.rewritten.clear()
    usual, without = kept(activation, 1 << 40)
    again, gradients = kept(activation, 1)
    assert usual - again == less
    assert STATE.rewritten["gates computed again"] == less
    assert len(gradients) >= 3
    assert all(torch.equal(a, b) for a, b in zip(gradients, without, strict=True))


def test_what_the_job_marked_itself_stays_as_it_is() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    marked = graph.call_function(torch.ops.aten.silu.default, (x,))
    marked.meta |= {"recompute": "the job's", "val": torch.zeros(4, 4)}
    GatesAgain(held=1).rewrite(graph)
    assert marked.meta["recompute"] == "the job's"
