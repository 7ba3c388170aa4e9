"""A pass over compiled graphs: a gate's product is computed again in the backward pass, and not kept until then.

An MLP with a gate, `down(silu(gate(x)) * up(x))`, keeps three tensors of its inner width for each layer: both
halves, which the gradient of the gate reads, and their product, which the gradient of `down`'s weight reads. The
product is made of the halves without a sum, in the kernel that reads them anyway. torch's partitioner keeps it,
since it counts what is read and written, and not what is held; Liger's layers compute it again as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from nightshift.kernels.apply.job.passes.folds import VIEWS, Pass, operator_name
from nightshift.kernels.apply.job.passes.logits import below
from nightshift.kernels.apply.job.state import STATE

_HELD = 1 << 24
"""Bytes of a product below which it is kept."""
_PRODUCTS = ("mm", "addmm", "bmm")
_UNCHANGED = (*VIEWS, "convert_element_type", "_to_copy", "clone", "expand")


class GatesAgain(Pass):
    """A pass for torch._inductor.config.joint_custom_pre_pass: marks what lies between two products' results, which
    the backward pass keeps anyway, and the value that a third product takes of both."""

    HAS_KERNELS = False

    def __init__(self, earlier: Any = None, held: int = _HELD) -> None:
        super().__init__(earlier)
        self.held = held

    def named(self) -> tuple[Any, ...]:
        return ("nightshift gates again 1", self.held)

    def rewrite(self, graph: Any) -> None:
        nodes = list(graph.nodes)
        behind = below({n for n in nodes if n.op == "placeholder" and n.name.startswith("tangents")}, nodes)
        for node in nodes:
            if node in behind or not _is_pointwise(node) or not self._is_large(node):
                continue
            takers = {taker in behind for taker in _taking(node)}
            between = _between(node, behind) if takers == {True, False} else set()
            if between:
                STATE.rewritten["gates computed again"] += 1
            for one in between:
                one.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE

    def _is_large(self, node: Any) -> bool:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in value.shape):
            return False
        return value.numel() * value.element_size() >= self.held


def _is_pointwise(node: Any) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
        return False
    return torch.Tag.pointwise in node.target.tags or operator_name(node) in _UNCHANGED


def _taking(node: Any) -> set[Any]:
    """The products that take a value, as it is or seen otherwise."""
    found = set()
    for user in node.users:
        if operator_name(user) in _PRODUCTS:
            found.add(user)
        elif operator_name(user) in (*VIEWS, "permute", "t", "transpose"):
            found |= _taking(user)
    return found


def _between(node: Any, behind: set[Any]) -> set[Any]:
    """What is computed between products' results and `node`, itself among it; empty where it is no gate, or where
    something of it is not kept or is marked by the job."""
    found, halves, left = set(), set(), [node]
    while left:
        one = left.pop()
        if operator_name(one) in _PRODUCTS:
            halves.add(one)
        elif one in behind or not _is_pointwise(one) or "recompute" in one.meta:
            return set()
        elif one not in found:
            found.add(one)
            left += one.all_input_nodes
    kept = all(_is_read(half, found, behind) for half in halves)
    return found if len(halves) > 1 and kept else set()


def _is_read(half: Any, between: set[Any], behind: set[Any]) -> bool:
    """Whether the backward pass reads a result beside what it computes again: then it is kept anyway."""
    # a view is no other tensor, so that its readers count although it is marked
    return any(
        user in behind
        or (operator_name(user) in VIEWS and _is_read(user, between, behind))
        or (user not in between and _is_pointwise(user) and _is_read(user, between, behind))
        for user in half.users
    )
