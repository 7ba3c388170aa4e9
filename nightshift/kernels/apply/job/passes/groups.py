"""A pass over compiled graphs: attention with fewer heads of keys than of queries reads each of them once.

Models that share keys and values within a group of heads write them out for every head wherever they hand over a
mask: eight times the memory and the traffic of Llama's. Attention's kernels take them as they are. So does their
gradient, which sums over a group in float32; the written-out one sums what was rounded.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nightshift.kernels.apply.job.passes.folds import VIEWS, Pass, operator_name
from nightshift.kernels.apply.job.passes.masks import given_for, with_gradients
from nightshift.kernels.apply.job.state import STATE

_SHARING = ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu")
"""Operators that take fewer heads of keys than of queries. Both have q, k and v first, and their gradients v's and
k's second and third."""
_TRIED = 64
"""Positions of the attention that is computed both ways before a graph is changed."""


class GroupedHeads(Pass):
    """A pass for torch._inductor.config.joint_custom_pre_pass: keys and values that were repeated for the heads of
    a group go to attention as they are. Where attention has a mask they stay repeated."""

    HAS_KERNELS = False

    def named(self) -> tuple[Any, ...]:
        return ("nightshift grouped heads 1",)

    def rewrite(self, graph: Any) -> None:
        for node in list(graph.nodes):
            if node.op != "call_function" or operator_name(node) not in _SHARING or given_for(node) is not None:
                continue
            repeated = node.args[1:3]
            sources = [_before_repeat(one) for one in repeated]
            together = with_gradients(node)
            if None in sources or together is None:
                continue
            if any(one.args[2:4] != repeated for one in together[1:]):
                continue
            sums = [_sum_over_group(part, source) for part, source in _gradients_of(together[1:], sources)]
            if None in sums or not _agrees(node, sources):
                continue
            STATE.rewritten["grouped heads"] += 1
            for part, source in _gradients_of(together[1:], sources):
                _as_it_is(graph, part, source)
            for one in together:
                for old, new in zip(repeated, sources, strict=True):
                    one.replace_input_with(old, new)


def _before_repeat(node: Any) -> Any:
    """(b, k, s, d) of a (b, k·g, s, d) that is a view of it, repeated g times behind each head; None of another."""
    wide: Any = node.args[0] if operator_name(node) in VIEWS else None
    if wide is not None and operator_name(wide) == "clone":
        wide = wide.args[0]
    narrow: Any = wide.args[0] if wide is not None and operator_name(wide) == "expand" else None
    if narrow is None or operator_name(narrow) != "unsqueeze" or narrow.args[1] != 2:
        return None
    shape, (b, k, s, d) = tuple(wide.meta["val"].shape), tuple(narrow.args[0].meta["val"].shape)
    whole = shape[:2] + shape[3:] == (b, k, s, d) and tuple(node.meta["val"].shape) == (b, k * shape[2], s, d)
    return narrow.args[0] if whole else None


def _gradients_of(operators: list[Any], sources: list[Any]) -> list[tuple[Any, Any]]:
    """(gradient of the repeated, what it was repeated from) for keys and values."""
    return [(part, sources[part.args[1] - 1]) for one in operators for part in one.users if part.args[1] in (1, 2)]


def _sum_over_group(gradient: Any, source: Any) -> Any:
    """The node that sums a gradient of (b, k·g, s, d) over g, if nothing else reads it."""
    b, k, s, d = source.meta["val"].shape
    apart = next(iter(gradient.users), None)
    if apart is None or len(gradient.users) != 1 or operator_name(apart) not in VIEWS or len(apart.users) != 1:
        return None
    summed = next(iter(apart.users))
    fits = operator_name(summed) == "sum" and tuple(summed.args[1:]) == ([2], True) and not summed.kwargs
    return summed if fits and tuple(summed.meta["val"].shape) == (b, k, 1, s, d) else None


def _as_it_is(graph: Any, gradient: Any, source: Any) -> None:
    """The operator's gradient, of as many heads as the source, in the place of the sum."""
    summed, value = _sum_over_group(gradient, source), gradient.meta["val"]
    b, k, s, d = source.meta["val"].shape
    # readers were traced for the sum's dense layout; an operator gives the source's
    gradient.meta["val"] = value.new_empty_strided(source.meta["val"].shape, source.meta["val"].stride())
    with graph.inserting_before(summed):
        dense = graph.call_function(
            torch.ops.aten.clone.default, (gradient,), {"memory_format": torch.contiguous_format}
        )
        apart = graph.call_function(torch.ops.aten.view.default, (dense, [b, k, 1, s, d]))
    dense.meta["val"], apart.meta["val"] = value.new_empty((b, k, s, d)), value.new_empty((b, k, 1, s, d))
    summed.replace_all_uses_with(apart)


def _agrees(node: Any, sources: list[Any]) -> bool:
    """Whether the operator, on this device, computes the same of keys and values as they are; gradients too."""
    query, key, value = (one.meta["val"] for one in (node.args[0], *sources))
    if not all(isinstance(size, int) for size in (*query.shape, *key.shape)):
        return False
    return _tried(
        node.target, node.args[3:], tuple(node.kwargs.items()), query.device, query.dtype,
        tuple((one.shape[1], one.shape[3]) for one in (query, key, value)),
    )  # fmt: skip


@cache
def _tried(
    operator: Any, others: tuple[Any, ...], named: tuple[Any, ...], device: torch.device, dtype: torch.dtype,
    sizes: tuple[tuple[int, int], ...],
) -> bool:  # fmt: skip
    forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with _disable_current_modes(), torch.enable_grad(), forked:
        given = [torch.randn(1, h, _TRIED, d, device=device, dtype=dtype, requires_grad=True) for h, d in sizes]
        group = sizes[0][0] // sizes[1][0]
        wide = [given[0], *(one.repeat_interleave(group, 1) for one in given[1:])]
        found = []
        for inputs in (given, wide):
            try:
                out = operator(*inputs, *others, **dict(named))[0]
                found.append([out, *torch.autograd.grad(out, given, torch.ones_like(out))])
            except RuntimeError:  # a version of torch or cuDNN that does not take them
                return False
        return all(
            bool((a.float() - b.float()).norm() <= 0.02 * b.float().norm()) for a, b in zip(*found, strict=True)
        )
