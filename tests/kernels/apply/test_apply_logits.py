"""The loss over a large vocabulary in compiled regions: by rows where rows do not know of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import aot_function, min_cut_rematerialization_partition, nop
from torch._inductor.decomposition import select_decomp_table

from nightshift.kernels.apply.job.passes.logits import CHUNKS, LogitsByRows
from nightshift.kernels.apply.job.state import STATE

ROWS, INNER, WORDS = 8, 2, 40
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def plain(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels)


def as_transformers(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Two sequences; labels moved by one, padded and partly ignored."""
    wide = logits.view(2, ROWS // 2, WORDS).float()
    moved = F.pad(labels.view(2, -1), (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(wide.view(-1, WORDS), moved.view(-1), ignore_index=-100)


def smoothed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def with_z(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels) + 1e-2 * torch.logsumexp(logits, -1).square().mean()


def capped(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(30.0 * torch.tanh(logits / 30.0), labels, reduction="sum") / 7


def weighted(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A weight for each row, which a mean over the rows follows."""
    return (F.cross_entropy(logits, labels, reduction="none") * (1.0 + labels)).mean()


def over_rows(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Rows do know of each other."""
    return F.cross_entropy(logits - logits.mean(0, keepdim=True), labels)


def from_the_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Each row's gradient needs the loss of all."""
    return F.cross_entropy(logits, labels).square()


class Clipped(torch.autograd.Function):
    """A gradient that is not linear in what the backward pass brings, as a hook that clips makes it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient.clamp(-0.01, 0.01)


def clipped(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(Clipped.apply(logits), labels)


LOSSES: list[tuple[Loss, bool]] = [
    (plain, True), (as_transformers, True), (smoothed, True), (with_z, True), (capped, True), (weighted, True),
    (over_rows, False), (from_the_loss, False), (clipped, False),
]  # fmt: skip


def compiled(function: Callable[..., Any], seen: list[torch.fx.Graph], worth: int = 1) -> Any:
    def partition(joint: Any, inputs: Any, **named: Any) -> Any:
        LogitsByRows(worth=worth)(joint.graph)
        joint.recompile()
        seen.append(joint.graph)
        return min_cut_rematerialization_partition(joint, inputs, **named)

    tables = select_decomp_table()
    return aot_function(function, fw_compiler=nop, partition_fn=partition, decompositions=tables)


def gradients(function: Callable[..., Any], dtype: torch.dtype, scale: float = 1.0) -> list[torch.Tensor]:
    torch.manual_seed(1)
    x = torch.randn(ROWS, INNER, dtype=dtype, requires_grad=True)
    weight = torch.randn(WORDS, INNER, dtype=dtype, requires_grad=True)
    labels = torch.arange(ROWS) % 5
    labels[3] = -100 if "transformers" in str(function) else 3
    loss = function(x, weight, labels)
    return [loss, *torch.autograd.grad(loss * scale, [x, weight])]


def widest(graph: torch.fx.Graph) -> int:
    """The most rows of anything as wide as the vocabulary."""
    values = [node.meta["val"] for node in graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    return max(int(v.numel()) // WORDS for v in values if v.dim() > 1 and v.shape[-1] == WORDS)


@pytest.mark.parametrize(("loss", "taken"), LOSSES, ids=[loss.__name__ for loss, _ in LOSSES])
def test_the_loss_and_its_gradients_are_the_same_and_only_a_part_of_the_rows_exists(
    loss: Loss, taken: bool
) -> None:
    def job(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss(x @ weight.t(), labels)

    seen: list[torch.fx.Graph] = []
    for scale in (1.0, 0.125, -3.0):
        for made, expected in zip(
            gradients(compiled(job, seen), torch.float32, scale), gradients(job, torch.float32, scale), strict=True
        ):
            torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)
    assert widest(seen[0]) == (ROWS // CHUNKS if taken else ROWS)


def test_sixteen_bits_lose_no_more_than_they_do_without() -> None:
    def job(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return as_transformers(x @ weight.t(), labels)

    exact = gradients(job, torch.float64)
    made, plain_ = gradients(compiled(job, []), torch.bfloat16), gradients(job, torch.bfloat16)
    for one, eager, right in zip(made, plain_, exact, strict=True):
        # of a weight's gradient, parts of the rows are rounded one after the other
        assert (one.double() - right).norm() <= 2.0 * (eager.double() - right).norm() + 1e-3 * right.norm()


def test_float16_stays_whole() -> None:
    """Its loss scale would come after the gradients were taken."""
    seen: list[torch.fx.Graph] = []

    def job(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return plain((x @ weight.t()).float(), labels)

    gradients(compiled(job, seen), torch.float16)
    assert widest(seen[0]) == ROWS


def test_logits_that_the_job_reads_as_well_stay_whole() -> None:
    seen: list[torch.fx.Graph] = []

    def job(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = x @ weight.t()
        return plain(logits, labels), logits

    before = STATE.rewritten["logits by rows"]
    gradients(lambda *given: compiled(job, seen)(*given)[0], torch.float32)
    assert widest(seen[0]) == ROWS
    assert STATE.rewritten["logits by rows"] == before


def test_small_logits_stay_whole() -> None:
    seen: list[torch.fx.Graph] = []

    def job(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return plain(x @ weight.t(), labels)

    gradients(compiled(job, seen, worth=1 << 20), torch.float32)
    assert widest(seen[0]) == ROWS
